"""Compiles the train step of a run for TPUs or GPUs; reports the step's memory and time."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base import progress
from bertjax.config import FinetuneConfig, Phase, PretrainConfig
from bertjax.devices import sharding
from bertjax.devices.compilation import no_compilation_cache
from bertjax.devices.flops import train_flops_per_row
from bertjax.model import HEADS, MODEL_SIZES, BertWithHead, named_config
from bertjax.model.encoder import REMAT_POLICIES
from bertjax.planning.hardware import Topology
from bertjax.planning.traffic import Collective, collectives, memory_traffic
from bertjax.tasks.training_data import FeatureBatches
from bertjax.train.distillation import Teacher
from bertjax.train.facts import FinetuningFacts
from bertjax.train.program import (
    PretrainingProgram,
    Program,
    batch_shapes,
    with_head,
    with_sharding,
)
from bertjax.train.run_plan import plan_finetuning
from bertjax.weights import init_params, load_model

GB = 1e9
# Error messages of two compiler passes about the used and the available memory.
_OUT_OF_MEMORY = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
_NO_TILES = "Couldn't find output tile sizes"
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


def describe(plan: Plan) -> str:
    """Returns the lines of text that describe a plan, joined by newlines."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    chips = "" if plan.chips == plan.devices else f" on {plan.chips} chips"
    lines = [
        f"{plan.topology}: {plan.devices} devices {plan.device}{chips} ({mesh}); "
        f"phase {plan.phase}: {plan.batch_size} x {plan.max_length} tokens, "
        f"accumulation_steps {plan.accumulation_steps}, remat {plan.remat}, attention by "
        f"{plan.attention}"
    ]
    peak = plan.memory["peak"]
    available = plan.memory["available"]
    gb = {name: f"{size / 1e9:.2f}" for name, size in plan.memory.items()}
    if plan.fits:
        lines.append(
            f"fits: {gb['peak']} of {gb['available']} GB per device ({peak / available:.0%}): "
            f"arguments {gb['arguments']}, temporaries {gb['temporaries']}, outputs "
            f"{gb['outputs']}, of which {gb['aliased']} reuse donated arguments"
        )
        lines += _lines_of_step(plan)
    else:
        lines.append(
            f"does not fit: {gb['peak']} GB per device, {(peak - available) / 1e9:.2f} GB more "
            f"than the memory of {gb['available']} GB"
        )
        lines += [f"advice: {advice}" for advice in plan.advice]
    return "\n  ".join(lines)


def _lines_of_step(plan: Plan) -> Iterator[str]:
    yield f"computation: {plan.flops / 1e12:.3f} TFLOP per device and step"
    kinds = ", ".join(f"{kind} {n / 1e9:.1f}" for kind, n in plan.traffic.items())
    yield (
        f"memory traffic: {sum(plan.traffic.values()) / 1e9:.1f} GB per device and step, "
        f"counted from the kernels of the program: {kinds}"
    )
    for moved in plan.collectives:
        yield (
            f"{moved.kind} over {moved.group} devices: {moved.times} per step, which process "
            f"{moved.payload / 1e6:,.2f} MB"
        )
    low, high = plan.step_seconds
    yield (
        f"step: at least {1e3 * low:.1f} ms if communication and computation overlap, "
        f"{1e3 * high:.1f} ms if not "
        f"({1e3 * plan.compute_seconds:.1f} ms of computation at the device's peak FLOP/s, "
        f"{1e3 * plan.memory_seconds:.1f} ms of memory traffic at its peak bandwidth, "
        f"{1e3 * plan.communication_seconds:.1f} ms of communication at the links' peak bandwidth)"
    )
    yield f"compiled in {plan.compile_seconds:.0f} s"


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


def plan_finetuning_step(
    config: FinetuneConfig, facts: FinetuningFacts, topology: Topology
) -> Plan:
    """Compiles the train step of a fine-tuning for `topology`; returns the plan, without advice.

    The step is that of a batch with the most rows that a batch of the run can have.

    Args:
        config: the config of a single run.
        facts: what the run is planned from on this machine.

    Raises ValueError if the run is refused on the devices.
    """
    machine = facts.machine._replace(devices=topology.devices)
    run = plan_finetuning(config, dataclasses.replace(facts, machine=machine, workdirs={}))
    program = run.program
    assert run.shape is not None
    phase = dataclasses.replace(run.phases[0], batch_size=run.shape.row_counts[-1])
    _, row = FeatureBatches(
        str(facts.data.path),
        facts.data.sizes,
        config.batch_size,
        run.shape,
        run.labels,
        facts.loaded.tokenizer.pad_token_id,
        seed=config.seed,
        host_rows_of=lambda _: np.arange(1),
    )[0]
    batch = {
        name: jax.ShapeDtypeStruct(
            (phase.batch_size, *values.shape[1:]), values.dtype, sharding=program.rows
        )
        for name, values in row.items()
    }
    teacher = None
    if facts.teacher is not None:
        teacher = with_sharding(facts.teacher.params, program.teacher_sharding)
    flops = 0.0
    for encoder, predicts_words in program.model.trained_encoders:
        predictions = phase.max_length if predicts_words else 0
        flops += train_flops_per_row(encoder, phase.max_length, predictions)
    if program.state_shapes.fixed:  # of the backward pass, a part is left out
        flops /= 3
    return _compiled(program, phase, 0, batch, teacher, flops, topology)


def _try(config: PretrainConfig, index: int, topology: Topology) -> Plan:
    phase = config.phases[index]
    program, teacher = _program(config, sharding.make_mesh(config.mesh, topology.devices))
    batch = batch_shapes(program.config, phase, program.rows)
    flops = program.flops_per_row(phase)
    return _compiled(program, phase, index, batch, teacher, flops, topology)


def _compiled(
    program: Program,
    phase: Phase,
    index: int,
    batch: Any,
    teacher: Any,
    flops_per_row: float,
    topology: Topology,
) -> Plan:
    mesh = program.mesh
    devices = len(topology.devices)
    flops = flops_per_row * phase.batch_size / devices
    begin = time.perf_counter()
    moved: list[Collective] = []
    traffic: dict[str, int] = {}
    try:
        compiled = _compile(program, phase, batch, teacher)
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
        accumulation_steps=program.microbatches(phase),
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


def _compile(program: Program, phase: Phase, batch: Any, teacher: Any) -> Any:
    step = program.for_phase(phase).train_step(program.microbatches(phase))
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    lowered = step.lower(program.state_shapes, batch, seed, teacher)
    try:
        # Local devices cannot load the program from the cache.
        with no_compilation_cache(), progress.progress("compiling the training step"):
            try:
                return lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                if _NO_TILES not in str(error):
                    raise
                # Without a GPU to try kernels on, XLA may choose one that the shapes do not allow.
                return lowered.compile({"xla_gpu_enable_triton_gemm": False})
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
