"""Base classes of the options of a task: what files it reads.

The options of each kind of task are a subclass that stands with the task in `bertjax.tasks`; their
fields are the flags that this kind of task has, and no other.
"""

import dataclasses
from typing import ClassVar, Literal

from bertjax.base.checked import Checked, Rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(Checked):
    """Base class of the options of a task.

    Attributes:
        recipes: the recipes of `FinetuneConfig` that the task can be trained with.
    """

    recipes: ClassVar[tuple[str, ...]] = ("lora", "teacher", "tagger")

    @property
    def can_hold_out(self) -> bool:
        """Whether examples of the train split can be held out for evaluation."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialOptions(TaskOptions):
    """Options of a benchmark task, which reads its official files."""

    recipes = ("lora", "teacher")

    data_dir: str | None = None
    """Folder with the official files of the task; None: they are downloaded from the Hugging Face
    Hub, unless TensorFlow Datasets has prepared them."""
    tfds_data_dir: str | None = None
    """Data folder of TensorFlow Datasets, which prepares the task there if necessary; None: its
    default folder, which is used only if it has the task already."""

    @property
    def can_hold_out(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFilesOptions(TaskOptions):
    """Options of a task on the user's own files.

    Raises:
        ValueError: there is a dev split, and a fraction to hold out or a time column as well.
    """

    recipes = ("lora", "teacher")

    train: str | None = None
    """File or folder with the train split, also in a bucket or on the Hub (hf:OWNER/NAME); None: it
    must be given."""
    dev: str | None = None
    """File or folder with the dev split; None: --dev_fraction of --train."""
    dev_fraction: Rate | None = None
    """Fraction of --train that is held out as the dev split; 0: no evaluation; None: 0.1."""
    test: str | None = None
    """File or folder with the test split, to be predicted; None: nothing is predicted."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be used, and list them in WORKDIR/bad_rows.jsonl."""
    ignore_columns: tuple[str, ...] = ()
    """Columns not to be used, which could change the meaning of a row; empty: none."""
    group_column: tuple[str, ...] = ()
    """Columns such as patient or author: rows with one value are in only one of train, dev, test
    and folds; empty: none."""
    time_column: str | None = None
    """Column of dates, years or numbers: the newest rows are the dev split, and folds are evaluated
    with models of older rows; None: rows are held out at random."""
    slice_column: tuple[str, ...] = ()
    """Columns such as source or language, of whose values the scores are shown apart; empty:
    none."""
    drop_leaks: Literal["train", "dev"] | None = None
    """Leave rows that are in train and in dev or test, equal or nearly so, out of this split; None:
    they are counted."""

    def __post_init__(self):
        super().__post_init__()
        if self.dev is not None and self.dev_fraction is not None:
            raise ValueError(
                f"dev_fraction={self.dev_fraction}: --dev {self.dev} is the dev split; leave one "
                "of them out."
            )
        if self.dev is not None and self.time_column is not None:
            raise ValueError(
                f"time_column={self.time_column}: it chooses the dev split, but --dev {self.dev} "
                "is given; leave one of them out."
            )

    @property
    def dividing_columns(self) -> tuple[str, ...]:
        """Columns of groups, the time and slices; examples may be made of them, too."""
        times = () if self.time_column is None else (self.time_column,)
        return (*self.group_column, *times, *self.slice_column)
