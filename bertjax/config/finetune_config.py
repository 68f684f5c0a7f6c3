"""The config of a fine-tuning run: `bertjax.finetune`."""

import dataclasses
from typing import Annotated, Literal

from bertjax.base.checked import AtLeast0, Checked, Count, Positive, Rate
from bertjax.config.model import TaggerConfig
from bertjax.config.task_options import TaskOptions
from bertjax.config.training import OptimizerConfig, TrainingConfig

GLUE_TASK = "glue"
# The shortest sequence of a text pair is [CLS] a [SEP] b [SEP].
SHORTEST = 5
LAST = "last"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig(Checked):
    """Config of LoRA (Hu et al. 2021): adapters and head are trained in place of the encoder.

    Raises:
        ValueError: a value is out of its range.
    """

    rank: Count
    """Rank of the adapters; learning rates of about ten times the usual ones are common."""
    alpha: Positive | None = None
    """Numerator of the factor alpha / rank of the adapters; None: rank."""
    targets: tuple[str, ...] = ()
    """Linear layers that get an adapter, by the ends of their names in transformers, such as query
    value, as in PEFT's target_modules; empty: all."""
    export: Literal["merged", "adapter"] = "merged"
    """merged writes a usual model; adapter also model/adapter, which PEFT loads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(Checked):
    """Config of distillation: the student learns from a teacher and from the labels.

    Raises:
        ValueError: a value is out of its range.
    """

    model: str
    """Teacher that was fine-tuned on the same task: a model directory, the workdir of a finished
    run or a hub name."""
    temperature: Positive | None = None
    """Temperature by which the logits of teacher and student are divided; not for regression; None:
    2."""
    weight: Annotated[float, "(0, 1]"] = 0.5
    """Loss weight of the teacher's predictions; that of the labels is 1 minus it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Config of a fine-tuning run: what all tasks share, the options of its task, and recipes.

    Raises:
        ValueError: a value is out of its range, or two settings cannot be combined.
    """

    task: str = ""
    """Task to fine-tune on, which is required."""
    options: TaskOptions = TaskOptions()
    """Options of the task, whose fields are flags: --temperature of --task=embed, for example."""
    init: str = "bert-base-uncased"
    """Model to start from: a model directory, a .bin or .safetensors file, the workdir of a run, a
    TF1 checkpoint, a hub name, or bertjax:tiny."""
    workdir: str = ""
    """Directory for checkpoints, metrics, predictions and the model; empty: runs/TASK."""
    max_length: Annotated[int, f"[{SHORTEST}, inf)"] | None = None
    """Maximum number of tokens; None: as --init says, or 128 (question answering: 384; rerank:
    256)."""
    batch_size: Count = 32
    """Number of examples (of long texts: windows) per update, over all devices."""
    accumulation_steps: Count = 1
    """Number of microbatches per update, which save memory."""
    num_epochs: Positive = 3.0
    """Number of passes over the train split."""
    max_steps: Count | None = None
    """Number of updates, whatever num_epochs is; None: computed from num_epochs."""
    optimizer: OptimizerConfig = OptimizerConfig(
        recipe="adamw",
        learning_rate=5e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
    )
    """Optimizer and learning-rate schedule."""
    layer_decay: Annotated[float, "(0, 1]"] = 1.0
    """Factor of the learning rate from each layer to the one below (Bao et al. 2022)."""
    average_decay: Rate = 0.0
    """Decay rate of a moving average of the parameters, which is exported; 0: no average."""
    freeze_embeddings: bool = False
    """Do not train the embeddings."""
    freeze_layers: AtLeast0 = 0
    """Number of lowest layers that are not trained."""
    lora: LoraConfig | None = None
    """LoRA's adapters in the encoder; None: no adapters."""
    teacher: TeacherConfig | None = None
    """Distillation from a teacher; None: no teacher."""
    tagger: TaggerConfig | None = None
    """Tagger on a frozen encoder; None: no such tagger."""
    evals_per_epoch: Count = 1
    """Number of evaluations on the dev split per epoch, each with a checkpoint."""
    select_by: str | None = None
    """Metric on the dev split that selects the best checkpoint, or last for the last step; None:
    the main metric of the task."""
    patience: AtLeast0 = 0
    """Number of evaluations without a better value after which training stops; 0: never."""
    seeds: Count = 1
    """Number of runs, with seed, seed + 1, ...; the best on the dev split is exported."""
    sweep: bool = False
    """Train 18 times, on the grid of Devlin et al. 2018, and export the best on the dev split."""
    folds: int = 0
    """Number of folds of a cross-validation on files of your own; 0: none."""
    shots: Count | tuple[Count, ...] | None = None
    """Number of training examples per class, or several for a curve, drawn with seed, with the
    defaults of configs/finetune/few_shot.py; None: all examples."""
    log_every: Count = 50
    """Number of steps between log lines."""
    reader_threads: Count = 2
    """Number of threads that read examples ahead."""

    def __post_init__(self):
        super().__post_init__()
        if self.seed + self.seeds > 2**32:
            raise ValueError(
                f"seed={self.seed} with seeds={self.seeds}: the last seed, seed + seeds - 1, must "
                "be below 2^32."
            )
        for name in ("lora", "teacher", "tagger"):
            if getattr(self, name) is not None and name not in self.options.recipes:
                raise ValueError(f"--{name}: --task={self.task} cannot be trained with it.")
        self._check_frozen()
        self._check_several_runs()
        self._check_selection()
        if self.task.lower() == GLUE_TASK:
            self.refuse_set(
                ("shots", "folds", "push_to_hub", *self._selection),
                f"with --task {GLUE_TASK}",
                "it would have to be another one for each task, which can be run alone with it",
            )

    @property
    def shot_counts(self) -> tuple[int, ...]:
        """The different numbers of `shots`, in ascending order; () for all examples."""
        shots = self.shots or ()
        if isinstance(shots, tuple):
            return tuple(sorted({*shots}))
        return (shots,)

    @property
    def _selection(self) -> tuple[str, ...]:
        """The fields that select a checkpoint by a metric."""
        if self.select_by == LAST:
            return ()
        return ("select_by",)

    def _check_frozen(self) -> None:
        layers = ("layer_decay", "freeze_embeddings", "freeze_layers")
        if self.tagger is not None:
            self.refuse_set(
                (*layers, "lora"), "with --tagger.layers", "the encoder is frozen as a whole"
            )
        if self.lora is not None:
            self.refuse_set(
                layers,
                f"with --lora.rank {self.lora.rank}",
                "the encoder stays as it is, and its adapters have one learning rate",
            )

    def _check_several_runs(self) -> None:
        if self.folds == 1 or self.folds < 0:
            raise ValueError(f"folds={self.folds}: give at least 2, or 0 for no cross-validation.")
        if self.sweep:
            self.refuse_set(
                ("seeds", "folds", "shots", "max_steps"),
                "with --sweep",
                "it compares the settings of single runs with numbers of epochs",
            )
        if not self.folds:
            return
        if not self.options.can_hold_out:
            raise ValueError(
                f"--folds {self.folds}: the train split of --task={self.task} cannot be divided "
                "into folds; leave it out."
            )
        self.refuse_set(
            ("patience", "evals_per_epoch", *self._selection),
            f"with --folds {self.folds}",
            "a fold that selects a checkpoint cannot measure it",
        )
        self.refuse_set(
            ("seeds", "shots"),
            f"with --folds {self.folds}",
            "there is one run per fold, on all rows",
        )
        self.options.refuse_set(
            ("dev", "dev_fraction", "calibrate", "tune_thresholds"),
            f"with --folds {self.folds}",
            "the folds take the place of a dev split",
        )

    def _check_selection(self) -> None:
        if self.shot_counts:
            self.options.refuse_set(
                ("doc_stride",),
                f"with --shots {self.shot_counts[0]}",
                "a shot would be one window of a long text",
            )
        if self.select_by == LAST:
            where = f"with --select_by {LAST}"
            if self.shots is not None:
                where += " (the default of --shots)"
            self.refuse_set(
                ("patience", "evals_per_epoch"),
                where,
                "the dev split is evaluated only once, with the model of the last step",
            )
