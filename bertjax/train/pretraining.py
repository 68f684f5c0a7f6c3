"""Pretraining: trains an encoder on prepared data and writes a model directory.

A run consists of phases, each with its own number of steps, row length and batch size. The prepared
data consists of rows of token ids, each with one sequence or, in packed data, several.
"""

import contextlib
import os
from pathlib import Path

from bertjax.base.addresses import place
from bertjax.base.files import is_remote
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub_push import create_repository, push_folder
from bertjax.cloud.mirror import upload
from bertjax.config import PretrainConfig
from bertjax.devices import activity, host_watch, hosts
from bertjax.devices.compilation_cache import use_compilation_cache
from bertjax.devices.determinism import use_deterministic_operations
from bertjax.record import journal, report
from bertjax.record.trackers import check_installed
from bertjax.train.bad_steps import RolledBack
from bertjax.train.bucket_workdir import connect, opened
from bertjax.train.hub_pushes import create_repository_of
from bertjax.train.pretraining_run import PretrainingRun, write_model
from bertjax.train.workdir import Workdir
from bertjax.weights import load_model


def pretrain(config: PretrainConfig) -> Path:
    """Trains all phases from the newest checkpoint, or from the start, and writes the model.

    Returns:
        The path of the model directory.

    Raises:
        Interrupted: a stop signal (such as SIGTERM) came; the same call resumes the run.
        NotFinite: in `config.max_bad_steps` consecutive steps, the loss or the gradient was NaN,
            infinite or, with `config.skip_spikes`, far above its last values; or a parameter is NaN
            or infinite.
        ValueError: the config cannot be used with the data, the models or the devices, or the
            workdir belongs to another run.
    """
    activity.begin()
    use_deterministic_operations(config.deterministic)
    use_compilation_cache()
    if config.workdir:
        connect(config.distributed, config.workdir)
    with (
        host_watch.watching(config.stall_seconds),
        opened(config.workdir, direct=True) as workdir,
        report.reported(workdir.path),
        journal.recorded(),
    ):
        hosts.on_first(lambda: check_installed(config.track))
        hosts.on_first_patiently(lambda: create_repository_of(config))
        while True:
            hosts.on_first(lambda: workdir.set_damaged_aside(overwrite=config.overwrite))
            run = hosts.on_all(lambda: PretrainingRun(config, workdir))
            with contextlib.suppress(RolledBack):
                state = run.train()
                break
            hosts.on_first(workdir.publish)
            hosts.on_all(workdir.refresh)
        with activity.doing(activity.SAVING):
            run.write_model(state)
    return place(run.workdir.address) / run.workdir.model.name


def export(
    workdir: str | Path, push_to_hub: str | None = None, *, hub_private: bool = False
) -> Path:
    """Exports the model of a run's newest checkpoint, even while the run is in progress.

    Args:
        workdir: the workdir of the run.
        push_to_hub: a repository OWNER/NAME on the Hub, to whose branch step-N the model of step N
            is uploaded; None: it is not uploaded.
        hub_private: whether the repository is private if it must be created.

    Returns:
        The path of the model directory.

    Raises:
        FileNotFoundError: there is no run in `workdir`, or the run has no checkpoint yet.
    """
    loaded = load_model(workdir, None)
    if loaded.source.kind != "run":
        raise FileNotFoundError(f"There is no run in {workdir}: give the --workdir of a run.")
    # The run in a bucket may be in progress, so that only a copy of its files is opened here.
    run, step = Workdir(Path(local_copy(workdir))), int(loaded.source.config["step"])
    parts = (loaded.params, loaded.config, loaded.tokenizer, loaded.head)
    write_model(run, run.model, *parts, step)
    if push_to_hub is not None:
        create_repository(push_to_hub, private=hub_private)
        push_folder(run.model, push_to_hub, branch=f"step-{step}")
    if not is_remote(workdir):
        return run.model
    target = place(workdir) / run.model.name
    upload(run.model, os.fspath(target))
    print(f"the model was uploaded to {target}")
    return target
