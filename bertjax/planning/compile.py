"""Compiles the train step of pretraining for TPUs or GPUs; reports the step's memory and time."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.base import progress
from bertjax.config import Phase, PretrainConfig
from bertjax.devices import sharding
from bertjax.devices.compilation import no_compilation_cache
from bertjax.model import HEADS, MODEL_SIZES, BertWithHead, named_config
from bertjax.model.encoder import REMAT_POLICIES
from bertjax.planning.hardware import Topology
from bertjax.planning.traffic import Collective, collectives, memory_traffic
from bertjax.train.distillation import Teacher
from bertjax.train.program import PretrainingProgram, batch_shapes, with_head, with_sharding
from bertjax.weights import init_params, load_model

GB = 1e9
# Error messages of two compiler passes about the used and the available memory.
_OUT_OF_MEMORY = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The resources of the train step of one phase; bytes and FLOP are per device.

    Attributes:
        topology: the name of the topology, such as "v3:4x4".
        device: the kind of the devices, as jax names it.
        chips: the number of chips, of which each has one or two devices.
        phase: the index of the phase in the config.
        num_rows: the rows of all `num_steps` steps of the phase.
        mesh: {axis of the mesh: number of devices}.
        memory: {name: bytes} with the keys `arguments` (state and batch), `temporaries`, `outputs`,
            `aliased` (outputs that reuse the memory of arguments: the donated state), `peak` (an
            upper bound of the memory in use) and `available`; of a step that does not fit, only
            `peak` and `available`.
        flops: the FLOP of the matrix multiplications of a train step, without recomputation.
        compute_seconds: `flops` over the peak FLOP/s of a device.
        communication_seconds: the bytes that a device sends per step, over its link bandwidth.
        traffic: {kind of kernel: bytes read from and written to device memory per step}, counted by
            `memory_traffic`; empty if the train step does not fit.
        memory_seconds: the bytes of `traffic` over the bandwidth of the memory.
        watts_per_chip: the maximum power of a chip or GPU; None if its maker has not published it.
        advice: flags with which the train step would fit, each verified by compiling the step, or
            one sentence that none of those tried suffices; empty if it fits.
    """

    topology: str
    device: str
    devices: int
    chips: int
    phase: int
    max_length: int
    batch_size: int
    num_steps: int
    num_rows: int
    accumulation_steps: int
    remat: str
    attention: str
    mesh: dict[str, int]
    fits: bool
    memory: dict[str, float]
    flops: float
    collectives: tuple[Collective, ...]
    compile_seconds: float
    compute_seconds: float
    communication_seconds: float
    traffic: dict[str, int] = dataclasses.field(default_factory=dict)
    memory_seconds: float = 0.0
    watts_per_chip: float | None = None
    advice: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Lower bounds of the seconds per step, with and without overlap of communication."""
        compute = self.compute_seconds
        communication = self.communication_seconds
        compute = max(compute, self.memory_seconds)
        return max(compute, communication), compute + communication

    @property
    def hours(self) -> float:
        """A lower bound of the hours of the phase, whose rows take as long in smaller batches."""
        return self.num_rows / self.batch_size * self.step_seconds[0] / 3600


class DoesNotFit(Exception):
    """Raised if a program needs more memory (`used`, in bytes) than a device has (`available`)."""

    def __init__(self, used: float, available: float):
        super().__init__(f"needs {used / GB:.2f} GB, but has {available / GB:.2f} GB")
        self.used = used
        self.available = available


def plan_phase(config: PretrainConfig, index: int, topology: Topology, *, advise: bool) -> Plan:
    """Compiles the train step of phase `index` of a config for `topology`; returns the plan.

    Raises ValueError if the mesh, batch size, model or attention kernel does not suit the devices.
    """
    plan = _try(config, index, topology)
    if plan.fits or not advise:
        return plan
    return dataclasses.replace(plan, advice=tuple(_advice(config, index, topology, plan)))


def _try(config: PretrainConfig, index: int, topology: Topology) -> Plan:
    phase = config.phases[index]
    mesh = sharding.make_mesh(config.mesh, topology.devices)
    program, teacher = _program(config, mesh)
    devices = len(topology.devices)
    flops = program.flops_per_row(phase) * phase.batch_size / devices
    begin = time.perf_counter()
    moved: list[Collective] = []
    traffic: dict[str, int] = {}
    try:
        compiled = _compile(program, phase, teacher)
        memory = _memory(compiled, topology)
    except DoesNotFit as error:
        memory = {"peak": error.used, "available": error.available}
    else:
        text = compiled.as_text()
        moved = collectives(text, devices)
        traffic = memory_traffic(text)
    return Plan(
        topology=topology.name,
        device=topology.kind,
        devices=devices,
        chips=topology.num_chips,
        phase=index,
        max_length=phase.max_length,
        batch_size=phase.batch_size,
        num_steps=phase.num_steps,
        num_rows=phase.num_rows,
        accumulation_steps=phase.accumulation_steps,
        remat=program.remat,
        attention=program.attention.kernel,
        mesh=dict(mesh.shape),
        fits="arguments" in memory,
        memory=memory,
        flops=flops,
        collectives=tuple(moved),
        compile_seconds=time.perf_counter() - begin,
        compute_seconds=flops / (topology.tflops * 1e12),
        communication_seconds=sum(collective.sent for collective in moved)
        / topology.link_bytes_per_s,
        traffic=traffic,
        memory_seconds=sum(traffic.values()) / topology.memory_bytes_per_s,
        watts_per_chip=topology.watts,
    )


def _program(config: PretrainConfig, mesh: Any) -> tuple[PretrainingProgram, Any]:
    """Returns the program of the train step, and the shapes of the teacher's parameters or None."""
    # Without data, a model with two token types is assumed to be trained on sentence pairs.
    config = with_head(config, config.model.type_vocab_size > 1)
    if config.distillation is None:
        return PretrainingProgram(config, mesh), None
    model = _teacher(config.distillation.teacher, config.dtype)
    shapes = jax.eval_shape(lambda: init_params(model, 0))
    program = PretrainingProgram(config, mesh, Teacher(model, shapes, ""))
    return program, with_sharding(shapes, program.teacher_sharding)


def _teacher(name: str, dtype: str) -> BertWithHead:
    if name in MODEL_SIZES and not Path(name).exists():
        return HEADS["masked_lm"](named_config(name), jnp.dtype(dtype))
    return load_model(name, "masked_lm", dtype=dtype).model


def _compile(program: PretrainingProgram, phase: Phase, teacher: Any) -> Any:
    step = program.for_phase(phase).train_step(phase.accumulation_steps)
    batch = batch_shapes(program.config, phase, program.rows)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    lowered = step.lower(program.state_shapes, batch, seed, teacher)
    try:
        # Local devices cannot load the program from the cache.
        with no_compilation_cache(), progress.progress("compiling the training step"):
            return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        for pattern in _OUT_OF_MEMORY:
            if match := pattern.search(str(error)):
                used, used_unit, available, unit = match.groups()
                raise DoesNotFit(
                    float(used) * _UNITS[used_unit.upper()], float(available) * _UNITS[unit.upper()]
                ) from error
        raise


def _memory(compiled: Any, topology: Topology) -> dict[str, float]:
    """Returns `Plan.memory` of a program; raises DoesNotFit if it exceeds a device's memory."""
    stats = compiled.memory_analysis()
    arguments = stats.argument_size_in_bytes
    temporaries = stats.temp_size_in_bytes
    outputs = stats.output_size_in_bytes
    aliased = stats.alias_size_in_bytes
    peak = arguments + temporaries + outputs - aliased + stats.generated_code_size_in_bytes
    # Programs for GPUs are compiled even if they do not fit.
    if peak > topology.memory_bytes:
        raise DoesNotFit(peak, topology.memory_bytes)
    return {
        "arguments": arguments,
        "temporaries": temporaries,
        "outputs": outputs,
        "aliased": aliased,
        "peak": peak,
        "available": topology.memory_bytes,
    }


def _advice(config: PretrainConfig, index: int, topology: Topology, plan: Plan) -> Iterator[str]:
    """Yields the first change of each kind that fits, or a sentence that none does."""
    fits = False
    for changes in _kinds_of_change(config, index, plan):
        for flags, changed in changes:
            with contextlib.suppress(ValueError):  # a size is no multiple of the devices' number
                tried = _try(changed, index, topology)
                if tried.fits:
                    fits = True
                    yield f"{flags}: at most {tried.memory['peak'] / GB:.2f} GB"
                    break
    if not fits:
        yield (
            "none of the changes tried (rematerialisation, smaller microbatches, a smaller batch, "
            "parameters sharded over all devices): use more devices, or devices with more memory"
        )


def _kinds_of_change(
    config: PretrainConfig, index: int, plan: Plan
) -> Iterator[Iterator[tuple[str, PretrainConfig]]]:
    """For each kind of config change, yields an iterator of the (flags, changed config) to try."""
    policies = [*REMAT_POLICIES]  # by what they store, in descending order
    less = policies[policies.index(plan.remat) + 1 :]
    yield ((f"--remat {p}", dataclasses.replace(config, remat=p)) for p in less)

    phase = config.phases[index]
    steps = phase.accumulation_steps
    batch_size = phase.batch_size
    rows = batch_size // (plan.mesh["data"] * plan.mesh["fsdp"])
    # Memory grows at most linearly with the rows of a microbatch, so dividing the rows by less than
    # peak / available memory cannot suffice.
    least = max(2.0, plan.memory["peak"] / plan.memory["available"])
    finer = []
    smaller = []
    for power in range(1, 20):
        cut = 1 << power
        if cut < least:
            continue
        if steps * cut <= rows:
            finer.append(steps * cut)
        if batch_size % cut == 0:
            smaller.append(batch_size // cut)
    yield _phases_of(config, index, "accumulation_steps", finer)
    yield _phases_of(config, index, "batch_size", smaller)
    if config.mesh.fsdp == config.mesh.tensor == 1:
        split = dataclasses.replace(config.mesh, data=1, fsdp=plan.devices)
        changed = dataclasses.replace(config, mesh=split)
        yield iter([(f"--mesh.data 1 --mesh.fsdp {plan.devices}", changed)])


def _phases_of(
    config: PretrainConfig, index: int, field: str, values: Sequence[int]
) -> Iterator[tuple[str, PretrainConfig]]:
    """Yields (flag, config) for each of `values` of `field` with which the config is valid."""
    for value in values:
        phases = list(config.phases)
        with contextlib.suppress(ValueError):  # the batch must divide into equal microbatches
            phases[index] = dataclasses.replace(phases[index], **{field: value})
            changed = dataclasses.replace(config, phases=tuple(phases))
            yield f"--phases.{index}.{field} {value}", changed
