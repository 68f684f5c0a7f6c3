"""Facts about a run: those that its report shows, and the line with which the training begins."""

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from bertjax.train.run import Run


def facts_of(run: "Run", step: int) -> dict[str, Any]:
    """Returns what the report of `run` says about this process, which trains from `step`."""
    attention, requested = run.program.attention, run.training.attention
    ignored = requested not in ("auto", attention.kernel)
    warning = f"; warning: {requested} was requested" if ignored else ""
    sizes = run.program.mesh.shape.items()
    return {
        "step": step,
        "num_steps": run.num_steps,
        "rollbacks": run.rollbacks.count,
        "best_metric": run.best_metric,
        "higher_is_better": run.higher_is_better,
        "parameters": sum(x.size for x in jax.tree.leaves(run.program.state_shapes.params)),
        "dtype": run.training.dtype,
        "mesh": " x ".join(f"{axis}={size}" for axis, size in sizes),
        "attention": f"{attention.kernel} ({attention.reason}{warning})",
    }


def first_line(run: "Run", step: int) -> str:
    """Returns the line about model, devices and steps with which `run` begins at `step`."""
    facts = facts_of(run, step)
    where = device_text(jax.devices()[0].device_kind, jax.device_count(), jax.process_count())
    if jax.device_count() > 1:
        where += f" ({facts['mesh']})"
    # The kernel of small runs without a choice is of no interest.
    kernel, requested = run.program.attention.kernel, run.training.attention
    if jax.device_count() > 1 or kernel != "xla" or requested != "auto":
        where += f", attention kernel {facts['attention']}"
    if step == run.num_steps:
        steps = f"all {run.num_steps:,} steps are done already"
    else:
        plural = "s" if run.num_steps > 1 else ""
        steps = f"{run.num_steps:,} step{plural}"
        steps += f", resuming at step {step}" if step else ""
    return f"{facts['parameters']:,} parameters, {facts['dtype']}, on {where}; {steps}"


def device_text(kind: str, count: int, processes: int) -> str:
    """Returns the devices of a run in words: "1 CPU", "8 x TPU v4 in 2 processes".

    Args:
        kind: the kind of the devices, jax's `device_kind`.
        count: the number of devices.
        processes: the number of processes that use them.
    """
    name = "CPU" if kind.lower() == "cpu" else kind
    text = f"1 {name}" if count == 1 else f"{count} x {name}"
    return text + (f" in {processes} processes" if processes > 1 else "")
