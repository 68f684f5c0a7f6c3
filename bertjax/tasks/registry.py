"""The tasks by name, and the config of a fine-tuning with the options of its task."""

import dataclasses
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from bertjax.base.command_line import Box
from bertjax.base.files import did_you_mean
from bertjax.config import FinetuneConfig, TaskOptions, config_from
from bertjax.config.finetune_config import GLUE_TASK
from bertjax.tasks.classification import CHOICE, CLASSIFY, REGRESS
from bertjax.tasks.dataset import Fold
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.embedding import EMBED
from bertjax.tasks.late_interaction import COLBERT
from bertjax.tasks.reranking import RERANK
from bertjax.tasks.sources.columns import TableKind
from bertjax.tasks.sources.glue import GLUE_TASKS, AllGlueOptions
from bertjax.tasks.sources.squad import SQUAD_TASKS
from bertjax.tasks.sources.swag import SWAG_TASK
from bertjax.tasks.sparse import SPARSE
from bertjax.tasks.tagging import CONLL, TAG
from bertjax.tasks.task import Task

OWN_TASKS = (CLASSIFY, REGRESS, TAG, CHOICE, EMBED, SPARSE, COLBERT, RERANK)
TASKS: Mapping[str, TaskDefinition] = {
    task.name: task for task in (*GLUE_TASKS, *SQUAD_TASKS, SWAG_TASK, CONLL, *OWN_TASKS)
}

_TEXT = (resources.files("bertjax.tasks.sources") / "formats.txt").read_text(encoding="utf-8")
# {task: examples of the formats of its files}, for --help and the documentation.
FORMATS = dict(re.findall(r"^# (\w+)\n(.*?)\s*(?=^# |\Z)", _TEXT, re.MULTILINE | re.DOTALL))


def table_kind(task: Task) -> TableKind:
    """Returns what the kind of `task`, a task on own tables, reads from tables."""
    options: Any = next(entry.options for entry in OWN_TASKS if type(task) in entry.kinds)
    return options.table


def options_class(name: str) -> type[TaskOptions]:
    """Returns the class of the options of a task, or of "glue"."""
    if name == GLUE_TASK:
        return AllGlueOptions
    return TASKS[name].options


def format_help(task: str) -> str:
    """Returns the formats of the user's files for a task, for --help; "" for official files.

    A task without formats of its own reads the files of the task whose options it extends.
    """
    formats_of = {TASKS[name].options: formats for name, formats in FORMATS.items()}
    for options in options_class(task).__mro__:
        if options in formats_of:
            return f"Files for --task={task}:\n\n{formats_of[options]}"
    return ""


def with_task_options(config: FinetuneConfig) -> FinetuneConfig:
    """Returns `config` with the name of its task in lower case, and with options of this task.

    Raises:
        ValueError: there is no such task, or the options are those of another one.
    """
    task = check_task(config.task, GLUE_TASK)
    options = config.options
    own = options_class(task)
    if type(options) is TaskOptions:
        options = own()
    if type(options) is not own:
        raise ValueError(
            f"--task={task} has the options {own.__name__}, but the config has "
            f"{type(options).__name__}: pass options={own.__name__}(...)."
        )
    return dataclasses.replace(config, task=task, options=options)


def finetune_config(config: FinetuneConfig | None = None, /, **fields: Any) -> FinetuneConfig:
    """Returns a copy of `config` with `fields` replaced, for the Python API.

    Args:
        config: the config, whose options are kept if the task in `fields` is another one; None:
            the default values of `FinetuneConfig`.
        fields: values of fields of `FinetuneConfig` and of options of the task, as in
            `config_from`: `finetune_config(task="embed", train="a.csv", temperature=0.1)`.

    Raises:
        TypeError: a name is unknown, or belongs to another task.
        ValueError: there is no such task, or two values cannot be combined.
    """
    config = config or FinetuneConfig()
    task = check_task(fields.get("task", config.task), GLUE_TASK)
    own = options_class(task)
    options: Any = config.options
    if type(options) is not own:
        fields = {**_changed(options), **fields}
        options = own()
    known = _names(own)
    values = {name: fields.pop(name) for name in [*fields] if name in known}
    for name in fields.keys() - _names(FinetuneConfig):
        if hint := belongs_to(name, task):
            raise TypeError(hint)
    options = config_from(own, options, values)
    return config_from(FinetuneConfig, config, {"options": options, **fields, "task": task})


def _names(kind: Any) -> set[str]:
    """Returns the names of the fields of a dataclass."""
    return {field.name for field in dataclasses.fields(kind)}


def _changed(options: TaskOptions) -> dict[str, Any]:
    """Returns {name: value} of the fields of `options` that are not the default values."""
    values = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            values[field.name] = value
    return values


def all_options() -> list[Box]:
    """Returns the options of all tasks, each once."""
    boxes = []
    seen = set()
    for task in (*TASKS, GLUE_TASK):
        own = options_class(task)
        names = _names(own) - seen
        boxes.append(Box(task, own, names))
        seen |= names
    return boxes


def belongs_to(name: str, task: str) -> str:
    """Returns a sentence that tells which other tasks have the option `name`; "": none has."""
    owners = []
    for other in (*TASKS, GLUE_TASK):
        own = options_class(other)
        if name.partition(".")[0] in _names(own).union(own.recipes):
            owners.append(other)
    if not owners or task in owners:
        return ""
    sentence = f"--{name} belongs to --task={', '.join(owners)}"
    if task:
        return f"{sentence}; --task={task} has no such option."
    return f"{sentence}: give --task."


def check_task(name: str, *others: str) -> str:
    """Checks that `name` is a task, or in `others`; returns it in lower case.

    Raises:
        ValueError: there is no such task; the message suggests the nearest name.
    """
    known = (*TASKS, *others)
    if not name:
        own = [task.name for task in TASKS.values() if task.own_files]
        rest = [task for task in known if task not in own]
        raise ValueError(
            f"No task is set: give --task, for files of your own one of {', '.join(own)}, and else "
            f"the name of a benchmark, {', '.join(rest)}."
        )
    if name.lower() not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"Unknown task {name!r}. {hint}Known: {', '.join(known)}.")
    return name.lower()


def make_task(name: str, options: TaskOptions, fold: Fold | None = None) -> Task:
    """Creates the task named `name`, with the source of its examples, from the user's options.

    Raises:
        ValueError: no task is named `name`, or its examples cannot be used.
        FileNotFoundError: the data of the task does not exist.
    """
    return TASKS[check_task(name)].make(options, fold)
