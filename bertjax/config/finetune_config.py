"""A fine-tuning run: `bertjax.finetune`."""

import dataclasses
from typing import Literal

from bertjax.config.model import TaggerConfig
from bertjax.config.training import OptimizerConfig, TrainingConfig

# [CLS] a [SEP] b [SEP]
SHORTEST = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Fine-tunes a model on a task; the same command again resumes (Devlin et al. 2018, 4)."""

    task: str = ""
    """cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad, squad2, swag, conll; or classify,
    regress, tag, qa, choice on files of your own."""
    init: str = "bert-base-uncased"
    """Model to start from: a directory, the workdir of a run, a TF1 checkpoint, a hub name."""
    workdir: str = ""
    """Directory for checkpoints, metrics, predictions and the model; runs/TASK if not given."""
    data_dir: str | None = None
    """Folder with the task's official files; without it TensorFlow Datasets fetches them."""
    tfds_data_dir: str | None = None
    """Where TensorFlow Datasets keeps its data; its own default if not given."""
    train: str | None = None
    """A file of your own: CSV, TSV, JSON lines, SQuAD's JSON, CoNLL's columns."""
    dev: str | None = None
    test: str | None = None
    text_column: str | None = None
    """Column of the text, or of the first of two; guessed, and said so, if not given."""
    pair_column: str | None = None
    """Column of the second text; of what begins every choice."""
    label_column: str | None = None
    id_column: str | None = None
    choice_columns: tuple[str, ...] = ()
    """Columns of the choices, or the one of JSON lines that lists them."""
    label_separator: str | None = None
    """What stands between the labels of an example that may have several: makes classify
    multi-label, as lists in JSON lines do."""
    max_length: int | None = None
    """Tokens of a sequence at most; None: the task's (128; SQuAD 384)."""
    doc_stride: int = 128
    """Question answering: tokens between the beginnings of two windows of a long passage."""
    max_query_length: int = 64
    """Question answering: tokens of a question; the rest is cut."""
    max_answer_length: int = 30
    """Question answering: tokens of an answer at most."""
    null_threshold: float = 0.0
    """SQuAD 2.0: odds above which there is no answer; `null_odds` in the predictions."""
    teacher: str | None = None
    """Directory of a model that was fine-tuned on the task, to learn from besides the labels."""
    temperature: float | None = None
    """Both models' logits are divided by it where they are compared; None: 2."""
    soft_weight: float | None = None
    """What the teacher's answers weigh in the loss, the labels weighing the rest; None: 0.5."""
    feature_layers: tuple[int, ...] = ()
    """Tagging: leave the encoder as it is and train a tagger on these of its hidden states (0 =
    embeddings, -1 = the last layer; the paper's best: -4 -3 -2 -1). None given: fine-tuning.
    A tagger wants a greater learning rate, about 1e-3."""
    feature_join: Literal["concat", "sum"] = "concat"
    """How several of them become one vector."""
    tagger: Literal["linear", "bilstm"] = "linear"
    """What tags them: a linear layer, or a two-layer BiLSTM before it, as in the paper."""
    tagger_size: int = 768
    """Units of the BiLSTM in each direction."""
    batch_size: int = 32
    """Examples (SQuAD: windows) an update, over all devices."""
    accumulation_steps: int = 1
    """Microbatches that an update is computed in: less memory, the same gradient."""
    num_epochs: float = 3.0
    max_steps: int | None = None
    """Stop after so many updates; the schedule ends there, too."""
    optimizer: OptimizerConfig = OptimizerConfig(
        recipe="adamw",
        learning_rate=5e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
    )
    dropout: float | None = None
    """Of hidden states, attention and classifier; None: as the model's config says."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """What an example of each class counts in the loss, in the order of the labels; balanced:
    all classes come to the same in total. For one class an example, or a word."""
    evals_per_epoch: int = 1
    """Evaluations on the dev split, each with a checkpoint; the best one becomes the model."""
    patience: int = 0
    """Stop after so many evaluations without a better one; 0: train to the end."""
    seeds: int = 1
    """Runs with seed, seed + 1, ...; mean and standard deviation are reported."""
    sweep: bool = False
    """Try the paper's grid (batch 16 and 32, rate 5e-5, 3e-5 and 2e-5, 2 to 4 epochs) and keep the
    best on the dev split."""
    submission: str | None = None
    """The zip file that GLUE's server takes; this task's predictions are put in it. None: one
    beside the predictions."""
    log_every: int = 50
    """Steps between lines of metrics."""
    reader_threads: int = 2

    def __post_init__(self):
        super().__post_init__()
        self.check_positive(
            *("batch_size", "accumulation_steps", "evals_per_epoch", "seeds", "max_steps")
        )
        if not self.num_epochs > 0:
            raise ValueError(f"num_epochs={self.num_epochs}: it must be positive.")
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
        given = {"temperature": self.temperature, "soft_weight": self.soft_weight}
        given = {name: value for name, value in given.items() if value is not None}
        if given and self.teacher is None:
            raise ValueError(
                f"{', '.join(f'{k}={v!r}' for k, v in given.items())}: without effect, for there "
                "is no teacher; give --teacher DIR, or leave it out."
            )
        if not self.distillation_temperature > 0:
            raise ValueError(f"temperature={self.temperature}: it must be positive.")
        if not 0 < self.distillation_weight <= 1:
            raise ValueError(
                f"soft_weight={self.soft_weight}: choose it in (0, 1]; without a teacher's answers "
                "leave --teacher out."
            )

    @property
    def distillation_temperature(self) -> float:
        """The temperature, whether given or not."""
        return 2.0 if self.temperature is None else self.temperature

    @property
    def distillation_weight(self) -> float:
        """The weight of the teacher, whether given or not."""
        return 0.5 if self.soft_weight is None else self.soft_weight

    def _check_tagger(self) -> None:
        options = {
            "feature_join": self.feature_join,
            "tagger": self.tagger,
            "tagger_size": self.tagger_size,
        }
        plain = {"feature_join": "concat", "tagger": "linear", "tagger_size": 768}
        if self.feature_tagger is None and options != plain:
            given = ", ".join(f"{k}={v!r}" for k, v in options.items() if v != plain[k])
            raise ValueError(
                f"{given}: that is for a tagger on a frozen encoder; say on which hidden states by "
                "--feature_layers, for example -4 -3 -2 -1."
            )
        if self.tagger == "linear" and self.tagger_size != plain["tagger_size"]:
            raise ValueError(
                f"tagger_size={self.tagger_size}: a linear tagger has no size; give --tagger "
                "bilstm, too."
            )

    @property
    def feature_tagger(self) -> TaggerConfig | None:
        """The tagger to train on a frozen encoder; None: the encoder is fine-tuned."""
        if not self.feature_layers:
            return None
        return TaggerConfig(
            layers=self.feature_layers,
            join=self.feature_join,
            kind=self.tagger,
            size=self.tagger_size,
        )
