"""Measures tokens per second, MFU, roofline ratio and peak memory of a pretraining step.

MFU (model FLOP utilisation) is achieved FLOP/s over peak FLOP/s. The roofline ratio is the time of
the step's matrix multiplications, when run alone, over the time of the step.
"""

import dataclasses
import importlib.metadata
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config import Phase, PretrainConfig
from bertjax.devices import sharding
from bertjax.devices.compilation import no_compilation_cache
from bertjax.devices.flops import Roofline, forward_products, peak_flops
from bertjax.record.events import STEPS_AHEAD
from bertjax.train.pretraining import make_job
from bertjax.train.program import PretrainingProgram, max_predictions, random_rows, with_head

ROUNDS = 5


def measure(
    config: PretrainConfig,
    index: int,
    steps: int,
    profile: str | None = None,
    *,
    rounds: int | None = None,
    with_roofline: bool = True,
    devices: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Measures the train step of one phase in `rounds` rounds of `steps` steps.

    Without data in the config, the batches are rows of random token ids without padding. `profile`
    is the directory for a profiler trace of one additional round; None: no trace. `rounds` None
    means `ROUNDS`, and `devices` None all devices.

    Returns:
        A dictionary of measurements. Times (in seconds) and rates, such as "tokens_per_second", are
        medians over the rounds; other entries describe the config, the device and the versions.
    """
    if not 0 <= index < len(config.phases):
        raise ValueError(
            f"phase={index}, but the config has {len(config.phases)} phases: give --config FILE "
            "and one of its phases, which are numbered from 0."
        )
    phase = config.phases[index]
    subject = Subject(config, index, devices)
    with no_compilation_cache():
        first = subject.block(1)["seconds"]
    roofline = None
    program = subject.program
    shape = program.mesh.shape
    if with_roofline and shape["tensor"] == 1 and config.distillation is None:
        rows = phase.batch_size // (shape["data"] * shape["fsdp"])
        products = forward_products(config.model, rows, phase.max_length, subject.predictions)
        roofline = Roofline(products, jnp.dtype(config.dtype))
    blocks = []
    ratios = []
    for _ in range(rounds or ROUNDS):
        alone = roofline.seconds() if roofline else 0.0
        blocks.append(subject.block(steps))
        ratios.append(alone / blocks[-1]["seconds"])
    if profile is not None:
        with jax.profiler.trace(profile):
            subject.block(steps)
    medians = {key: statistics.median(block[key] for block in blocks) for key in blocks[0]}
    seconds = medians["seconds"]
    peak = peak_flops(config.peak_tflops) * program.mesh.size / jax.device_count()
    return {
        "batch": [phase.batch_size, phase.max_length],
        "dtype": config.dtype,
        "attention": program.attention.kernel,
        "remat": program.remat,
        "input": config.data or "random full rows",
        "step_seconds": seconds,
        "tokens_per_second": medians["tokens"] / seconds,
        "mfu": subject.flops_per_row * phase.batch_size / seconds / peak,
        "roofline_ratio": statistics.median(ratios) if roofline else None,
        "input_stall": medians["waited"] if config.data else None,
        "compile_seconds": first - seconds,
        "peak_memory_bytes": _peak_memory(),
        "device": f"{program.mesh.size} x {jax.devices()[0].device_kind}",
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")},
    }


def _peak_memory() -> int:
    """Returns the bytes of memory that the device, or this process on CPUs, has used at most."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Subject:
    """The compiled train step, training state and batches of phase `index`, which is measured.

    `devices` are those of the mesh; None: all. With data, the mesh always has all devices.
    """

    def __init__(self, config: PretrainConfig, index: int, devices: Sequence[Any] | None = None):
        phase = config.phases[index]
        if config.data:
            with tempfile.TemporaryDirectory() as empty:
                job = make_job(dataclasses.replace(config, workdir=empty))
            self.program = job.program
            self.flops_per_row = job.flops_per_row(phase)
            self.batches = job.batches(index, phase.batch_size_warmup_steps)
            self.predictions = max_predictions(job.config, phase, job.metadata.max_sequences)
            self.state: Any = job.new_state()
        elif config.distillation is not None:
            raise ValueError(
                f"distillation.teacher={config.distillation.teacher!r} needs the tokenizer of the "
                "data: give --data."
            )
        else:
            config = with_head(config, config.model.type_vocab_size > 1)
            self.program = PretrainingProgram(config, sharding.make_mesh(config.mesh, devices))
            self.flops_per_row = self.program.flops_per_row(phase)
            self.batches = itertools.repeat(self._random_batch(config, phase))
            self.predictions = max_predictions(config, phase)
            self.state = self.program.new_state()
        self.step = self.program.seeded_step(phase)

    def _random_batch(self, config: PretrainConfig, phase: Phase) -> Any:
        rows = sharding.host_rows(self.program.rows, phase.batch_size)
        batch = random_rows(config, phase, len(rows))
        return sharding.to_devices(batch, rows, self.program.rows, phase.batch_size)

    def block(self, steps: int) -> dict[str, float]:
        """Runs `steps` steps of the training loop and measures their time.

        Returns:
            "seconds" and "tokens" (without padding), means per step, and "waited", the fraction of
            the time in which the loop waited for the next batch.
        """
        waited = 0.0
        tokens = []
        begin = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(self.batches)
            waited += time.perf_counter() - asked
            self.state, metrics = self.step(self.state, batch)
            tokens.append(metrics["tokens"])
            if len(tokens) > STEPS_AHEAD:
                jax.block_until_ready(tokens[-1 - STEPS_AHEAD])
        jax.block_until_ready(self.state)
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds / steps,
            "tokens": sum(map(int, jax.device_get(tokens))) / steps,
            "waited": waited / seconds,
        }
