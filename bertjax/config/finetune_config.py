"""The config of a fine-tuning run: `bertjax.finetune`."""

import dataclasses
from typing import ClassVar, Literal

from bertjax.config.model import TaggerConfig
from bertjax.config.training import OptimizerConfig, TrainingConfig

# The fewest tokens of a sequence: [CLS] a [SEP] b [SEP].
SHORTEST = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Fine-tunes a model on a task; the same command again resumes (Devlin et al. 2018, 4)."""

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "task data_dir tfds_data_dir train dev test text_column pair_column label_column "
        "id_column choice_columns label_separator max_length doc_stride max_query_length "
        "max_answer_length null_threshold reader_threads",
        "model": "init dropout feature_layers feature_join tagger tagger_size",
        "training": "batch_size accumulation_steps num_epochs max_steps class_weights teacher "
        "temperature soft_weight patience seed seeds sweep optimizer",
        "hardware": "dtype attention remat unroll dropout_prng peak_tflops mesh distributed",
        "output": "workdir evals_per_epoch log_every submission",
    }

    task: str = ""
    """Task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad, squad2, swag or conll; or
    classify, regress, tag, qa or choice on files of your own."""
    init: str = "bert-base-uncased"
    """Model to start from: a model directory, the workdir of a run, a TF1 checkpoint or a hub
    name."""
    workdir: str = ""
    """Directory for checkpoints, metrics, predictions and the model; empty: runs/TASK."""
    data_dir: str | None = None
    """Folder with the task's official files; None: TensorFlow Datasets fetches them."""
    tfds_data_dir: str | None = None
    """Folder where TensorFlow Datasets keeps its data; None: its own default."""
    train: str | None = None
    """Train split in a file of your own: CSV, TSV, JSON lines, SQuAD's JSON or CoNLL's columns;
    None: the official task's."""
    dev: str | None = None
    """Dev split in a file of your own; None: no evaluation."""
    test: str | None = None
    """Test split in a file of your own, to predict after the training; None: no predictions."""
    text_column: str | None = None
    """Column of the text, or of the first text of a pair; None: guessed, and the guess is
    printed."""
    pair_column: str | None = None
    """Column of the second text of a pair, or of the text that begins every choice; None:
    guessed."""
    label_column: str | None = None
    """Column of the label; None: guessed."""
    id_column: str | None = None
    """Column of the name of each example in the predictions; None: guessed, or the row's number."""
    choice_columns: tuple[str, ...] = ()
    """Columns of the choices, or the one column of JSON lines that lists them; empty: guessed."""
    label_separator: str | None = None
    """Character between the labels of an example that may have several, which makes classify
    multi-label (lists in JSON lines do so, too); None: one label per example."""
    max_length: int | None = None
    """Largest number of tokens per sequence; None: the task's (128; SQuAD: 384)."""
    doc_stride: int = 128
    """Question answering: tokens between the beginnings of two windows of a long passage."""
    max_query_length: int = 64
    """Question answering: tokens of a question that are kept."""
    max_answer_length: int = 30
    """Question answering: largest number of tokens of an answer."""
    null_threshold: float = 0.0
    """SQuAD 2.0: a question has no answer if its `null_odds` in the predictions exceed this."""
    teacher: str | None = None
    """Directory of a model that was fine-tuned on the task, to learn from besides the labels; None:
    labels only."""
    temperature: float | None = None
    """Temperature that the logits of teacher and student are divided by; None: 2."""
    soft_weight: float | None = None
    """Loss weight of the teacher's predictions; the labels have the rest; None: 0.5."""
    feature_layers: tuple[int, ...] = ()
    """Tagging: hidden states of the frozen encoder that a tagger is trained on (0 = embeddings,
    -1 = the last layer; the paper's best: -4 -3 -2 -1), with a learning rate of about 1e-3; empty:
    the encoder is fine-tuned."""
    feature_join: Literal["concat", "sum"] = "concat"
    """Tagging: how several hidden states become one vector."""
    tagger: Literal["linear", "bilstm"] = "linear"
    """Tagging: a linear layer on the hidden states, or a two-layer BiLSTM before it, as in the
    paper."""
    tagger_size: int = 768
    """Tagging: units of the BiLSTM in each direction."""
    batch_size: int = 32
    """Examples (SQuAD: windows) per update, over all devices."""
    accumulation_steps: int = 1
    """Microbatches per update: more of them need less memory and give the same gradient."""
    num_epochs: float = 3.0
    """Passes over the train split."""
    max_steps: int | None = None
    """Updates after which the training and its schedule end; None: num_epochs decides."""
    optimizer: OptimizerConfig = OptimizerConfig(
        recipe="adamw",
        learning_rate=5e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
    )
    """Optimizer and learning rate."""
    dropout: float | None = None
    """Dropout of hidden states, attention and classifier; None: as in the model's config."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Loss weight of each class, in the order of the labels; balanced: weights inversely
    proportional to class frequency; None: 1 each. For tasks with one class per example or word."""
    evals_per_epoch: int = 1
    """Evaluations on the dev split per epoch, each with a checkpoint; the best one becomes the
    model."""
    patience: int = 0
    """Evaluations without a better one after which the training stops; 0: it runs to its end."""
    seeds: int = 1
    """Number of runs, with seed, seed + 1, ...; their mean and standard deviation are reported."""
    sweep: bool = False
    """Try the paper's grid (batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4
    epochs) and keep the run that is best on the dev split."""
    submission: str | None = None
    """Zip file for GLUE's server that the task's predictions are added to; None: a new one beside
    the predictions."""
    log_every: int = 50
    """Steps between lines of metrics."""
    reader_threads: int = 2
    """Threads that read and batch examples ahead of the training."""

    def __post_init__(self):
        super().__post_init__()
        self.check_positive(
            *("batch_size", "accumulation_steps", "evals_per_epoch", "seeds", "max_steps")
        )
        if not self.num_epochs > 0:
            raise ValueError(f"num_epochs={self.num_epochs}: it must be positive.")
        if self.seed + self.seeds > 2**32:
            raise ValueError(
                f"seed={self.seed} with seeds={self.seeds}: the last seed must be below 2^32."
            )
        if self.patience < 0:
            raise ValueError(f"patience={self.patience}: it must be at least 0.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: choose it in [0, 1).")
        if self.max_length is not None and self.max_length < SHORTEST:
            raise ValueError(f"max_length={self.max_length}: it must be at least {SHORTEST}.")
        if self.sweep and self.seeds > 1:
            raise ValueError(
                f"--sweep and --seeds {self.seeds}: sweep first, then run the best with its seeds."
            )
        self._check_tagger()
        self._check_teacher()

    def _check_teacher(self) -> None:
        fields = {"temperature": self.temperature, "soft_weight": self.soft_weight}
        changed = [f"{name}={value!r}" for name, value in fields.items() if value is not None]
        if changed and self.teacher is None:
            raise ValueError(
                f"{', '.join(changed)} has no effect without a teacher: set --teacher, or leave it "
                "out."
            )
        if not self.distillation_temperature > 0:
            raise ValueError(f"temperature={self.temperature}: it must be positive.")
        if not 0 < self.distillation_weight <= 1:
            raise ValueError(
                f"soft_weight={self.soft_weight}: choose it in (0, 1]; to train without a teacher, "
                "leave --teacher out."
            )

    @property
    def distillation_temperature(self) -> float:
        """The temperature, by default 2."""
        return 2.0 if self.temperature is None else self.temperature

    @property
    def distillation_weight(self) -> float:
        """The loss weight of the teacher, by default 0.5."""
        return 0.5 if self.soft_weight is None else self.soft_weight

    def _check_tagger(self) -> None:
        options = {
            "feature_join": self.feature_join,
            "tagger": self.tagger,
            "tagger_size": self.tagger_size,
        }
        plain = {"feature_join": "concat", "tagger": "linear", "tagger_size": 768}
        if self.feature_tagger is None and options != plain:
            changed = ", ".join(f"{k}={v!r}" for k, v in options.items() if v != plain[k])
            raise ValueError(
                f"{changed} is for a tagger on a frozen encoder: choose its hidden states by "
                "--feature_layers, for example -4 -3 -2 -1."
            )
        if self.tagger == "linear" and self.tagger_size != plain["tagger_size"]:
            raise ValueError(
                f"tagger_size={self.tagger_size}: a linear tagger has no size; add --tagger bilstm."
            )

    @property
    def feature_tagger(self) -> TaggerConfig | None:
        """The tagger to train on the frozen encoder; None: the encoder is fine-tuned."""
        if not self.feature_layers:
            return None
        return TaggerConfig(
            layers=self.feature_layers,
            join=self.feature_join,
            kind=self.tagger,
            size=self.tagger_size,
        )
