"""Tells whether a fine-tuning run has nothing left to do, so that no process needs to open it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax.config import FinetuneConfig, defaults_of, differences
from bertjax.train.workdir import Workdir


def has_nothing_to_do(
    workdir: Workdir,
    config: FinetuneConfig,
    identity: Mapping[str, Any],
    data_fingerprint: str,
    splits: Sequence[str],
    scores: str,
) -> bool:
    """Returns whether the run in a workdir has written all that the same command would write.

    This is so if the config is exactly that of the run, the model, the scores and the predictions
    are there, and no file of examples was changed since the scores were written. Otherwise, a run
    whose steps are all done is opened nevertheless, for example to predict another test file; so
    is a run on several hosts.

    Args:
        workdir: the workdir of the run.
        config: the config of the run.
        identity: the config as run.json stores it.
        data_fingerprint: the hash of the training data.
        splits: the names of the splits that are predicted.
        scores: the name of the file of the scores.
    """
    file = workdir.path / scores
    if jax.process_count() > 1:  # the hosts might not see the files at the same time
        return False
    if not file.is_file() or not (workdir.model / "config.json").is_file():
        return False
    try:
        saved = workdir.read()
    except (OSError, ValueError):
        return False
    ignored = ("overwrite", "workdir")
    if differences(identity, saved["config"], ignore=ignored, defaults=defaults_of(config)):
        return False
    predictions = workdir.path / "predictions"
    is_complete = data_fingerprint == saved["data_fingerprint"]
    is_complete &= config.submission is None or Path(config.submission).is_file()
    is_complete &= any(workdir.model.glob("*.safetensors"))
    is_complete &= all(any(predictions.glob(f"{split}.*")) for split in splits)
    written = file.stat().st_mtime
    return is_complete and all(time < written for time in _times(config))


def _times(config: FinetuneConfig) -> Iterator[float]:
    """Yields when each file of examples was changed, in seconds since 1970.

    What is not a local file or folder, such as a dataset of the Hub, counts as changed just now.
    """
    for name in ("train", "dev", "test", "data_dir"):
        value = getattr(config, name)
        if value is None:
            continue
        path = Path(value).expanduser()
        if path.exists():
            yield from (file.stat().st_mtime for file in (path, *path.rglob("*")))
        else:
            yield float("inf")
