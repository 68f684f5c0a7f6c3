"""python -m bertjax.pretrain: masked LM and next sentence prediction (Devlin et al. 2018, 3.1).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax import command_line
from bertjax.config import PretrainConfig, load_config_file
from bertjax.devices import hosts
from bertjax.devices.compilation_cache import use_compilation_cache
from bertjax.devices.flops import peak_flops
from bertjax.model import BertConfig
from bertjax.tokenization import Tokenizer
from bertjax.training.checkpoint import Checkpointer
from bertjax.training.hooks import Interrupted, MetricLogger, StopSignal
from bertjax.training.pretraining import Run, Tools
from bertjax.training.state import TrainState
from bertjax.training.workdir import Workdir
from bertjax.training.writers import MetricWriter
from bertjax.weights import load_model, save_hf
from bertjax.weights.card import model_card, training_facts


def run(config: PretrainConfig) -> None:
    """Trains all phases from the newest checkpoint, or from the start, and writes the model.

    Raises:
        Interrupted: a signal came; the state is saved.
        ValueError: config, data and workdir do not fit together.
    """
    use_compilation_cache()
    if config.workdir:
        hosts.connect(config.distributed, Workdir(Path(config.workdir)).meeting_place)
    this = hosts.on_all(lambda: Run(config))
    this.claim_workdir()
    checkpointer = Checkpointer(this.workdir.checkpoints, keep=config.keep_checkpoints)
    try:
        state, step = _train(this, checkpointer)
    finally:
        checkpointer.close()
        this.workdir.release()
    if step < config.num_steps:
        raise Interrupted(f"stopped after step {step} of {config.num_steps}")
    params = hosts.fetch(state.params, this.program.mesh)
    head = str(this.config.head)
    hosts.on_first(
        lambda: _write_model(this.workdir, params, this.config.model, this.tokenizer, head, step)
    )


def _write_model(
    workdir: Workdir, params: Any, model: BertConfig, tokenizer: Tokenizer, head: str, step: int
) -> None:
    """Writes model/ with a card that says how far the training has come."""
    facts = training_facts(workdir.read()["config"], step, workdir.last_evaluation())
    card = model_card(workdir.path.name, head, model, tokenizer.do_lower_case, facts)
    save_hf(workdir.model, params, model, tokenizer, head=head, card=card)
    print(f"model of step {step:,} written to {workdir.model}")


def _train(this: Run, checkpointer: Checkpointer) -> tuple[TrainState, int]:
    """Trains from the newest checkpoint, or from the start, until the end or a signal."""
    config, pending = this.config, None
    if checkpointer.latest_step is None:
        # Not read from the state: the step is traced while the state is still being drawn.
        state, step = this.new_state(), 0
    else:
        state, progress = checkpointer.restore(this.program.state_shapes)
        step, pending = int(state.step), progress["pending"]
    this.initial = None
    hosts.say(_summary(this, step))
    logger = MetricLogger(
        MetricWriter(this.workdir.path, step) if hosts.is_first() else None,
        every=config.log_every,
        num_steps=config.num_steps,
        step=step,
        pending=pending,
        loss_weights=config.distillation.loss_weights,
    )
    try:
        with hosts.AgreedStop() if jax.process_count() > 1 else StopSignal() as stop:
            tools = Tools(checkpointer, logger, stop, peak_flops(config.peak_tflops))
            start = 0
            for index, phase in enumerate(config.phases):
                if step < start + phase.num_steps and not stop.received:
                    state, step = this.train_phase(index, state, step, start, tools)
                start += phase.num_steps
    finally:
        logger.close()
    return state, step


def export(workdir: str) -> None:
    """Writes the model of a run's newest checkpoint, also while the run goes on.

    Raises:
        FileNotFoundError: there is no run, or it has no checkpoint yet.
    """
    loaded = load_model(workdir, None)
    if loaded.source.kind != "run":
        raise FileNotFoundError(f"No run in {workdir}: give --workdir of one.")
    step = int(loaded.source.config["step"])
    _write_model(
        Workdir(Path(workdir)),
        loaded.params,
        loaded.config,
        loaded.tokenizer,
        loaded.head,
        step,
    )


def _summary(this: Run, step: int) -> str:
    parameters = sum(x.size for x in jax.tree.leaves(this.program.state_shapes.params))
    shape = " x ".join(f"{axis}={size}" for axis, size in this.program.mesh.shape.items())
    where = f"resuming at step {step}" if step else "starting"
    attention, asked = this.program.attention, this.config.attention
    warning = f"; warning: {asked} was asked for" if asked not in ("auto", attention.kernel) else ""
    return (
        f"{parameters:,} parameters, {this.config.dtype}, {jax.device_count()} "
        f"{jax.devices()[0].device_kind} devices ({shape}) of {jax.process_count()} processes, "
        f"attention by {attention.kernel} ({attention.reason}{warning}), "
        f"{this.config.num_steps} steps; {where}"
    )


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, bool]:
    """Reads `--config FILE`, whose values become the defaults, `--export`, and all other flags."""
    before = argparse.ArgumentParser(
        prog="python -m bertjax.pretrain", add_help=False, allow_abbrev=False
    )
    before.add_argument("--config")
    before.add_argument("--export", action="store_true")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    config = command_line.parse(
        PretrainConfig,
        rest,
        prog="python -m bertjax.pretrain",
        description="Pretrains a BERT; the same command again resumes. Two more flags: "
        "--config FILE sets the defaults of all others; --export writes the model of the newest "
        "checkpoint of --workdir and stops.",
        default=load_config_file(first.config, PretrainConfig),
    )
    return config, first.export


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs, or exports."""

    def start() -> None:
        config, only_export = parse(argv)
        export(config.workdir) if only_export else run(config)

    try:
        return command_line.run_reporting_errors(start)
    except Interrupted as interrupted:
        print(f"{interrupted}; run the same command again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
