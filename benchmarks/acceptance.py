"""Evidence for the devices at hand: checks and speeds, as lines of JSON and as a page.

    python benchmarks/acceptance.py --output acceptance

Rows are measurements in the order of their worth: checks that compare the devices with a reference,
and figures. A result is appended to `acceptance.jsonl` as soon as it is known, so that a process
that is killed loses one; the next call measures what has no result for the same devices, versions
and code.

The models of the checks, and of all rows of the size "tiny", have the sizes `SMALL`. `TOLERANCES`
are the largest differences from what the CPU computes in float32, relative to the largest value.
`ANYWHERE` are the arguments with which kernels of attention are checked where they do not run:
interpreted, or computed by XLA. A device's batch has at most `MOST_TOKENS` tokens, and
proportionally fewer if it has less memory than `ENOUGH_MEMORY`.
"""

import argparse
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from bertjax.base import files
from bertjax.config import MeshConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.config.model import DROPOUT_FIELDS
from bertjax.devices import compilation, flops, hosts
from bertjax.devices.kernels import choose_attention
from bertjax.model import HEADS, named_config
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.dropout import drop_threshold, keep_mask
from bertjax.model.fused_attention import FUSED
from bertjax.pages import fill
from bertjax.planning import compile, hardware
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.program import random_rows
from bertjax.train.step import DropoutKey, make_loss_fn
from bertjax.train.throughput import Subject, measure
from bertjax.weights.fill import param_shapes

LINES, PAGE = "acceptance.jsonl", "acceptance.html"
BENCHMARKS = Path(__file__).parent
BASE, LARGE, MODERN = "bert-base-uncased", "bert-large-uncased", "modernbert-base"
SMALL = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 4096}
SMALL |= {"num_hidden_layers": 2, "pad_token_id": 0}
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}
ANYWHERE: dict[str, Any] = dict.fromkeys(("flash", "splash"), {"interpret": True})
ANYWHERE["cudnn"] = {"implementation": "xla"}
SEQUENCE, F32 = 64, jnp.dtype("float32")
MOST_TOKENS, ENOUGH_MEMORY = 1 << 15, 60e9

Line = dict[str, Any]


def accept(folder: Path, size: str, minutes: float) -> list[Line]:
    """Measures rows until `minutes` have passed, prints their results, and returns all lines.

    A line holds the row's name, "row", and what identifies the measurement: "device", "size",
    "versions" and "code". It has "left" if the row was not measured, "error" or "skipped" with a
    reason, or "checks" or figures; "failed" tells of errors and of checks that failed. Rows that
    ended with an error, or with the process, are measured again after those that have not begun.

    Args:
        folder: the folder of `LINES`, to which lines are appended, and of `PAGE`.
        size: "tiny" for small models, "full", or "auto", which is tiny on CPUs.
        minutes: the time after which no row is begun.
    """
    end, platforms = time.monotonic() + 60 * minutes, os.environ.get("JAX_PLATFORMS")
    if platforms and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")  # the CPU computes references
    tiny = size == "tiny" or (size == "auto" and jax.default_backend() == "cpu")
    same = {
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "size": "tiny" if tiny else "full",
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")},
        "code": f"{hosts.code_fingerprint()[:12]} {_digest_of_file(Path(__file__))[:12]}",
    }
    known = (x for x in files.json_lines(folder / LINES) if x and same.items() <= x.items())
    lines = {line["row"]: line for line in known}

    def write(**line: Any) -> list[Line]:
        if line:
            lines[line["row"]] = line = {"date": time.strftime("%Y-%m-%d"), **line, **same}
            with files.naming_write_errors(folder), (folder / LINES).open("a+b") as file:
                if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                    file.write(b"\n")  # after a line that a kill has cut
                file.write(json.dumps(files.in_json(line)).encode() + b"\n")
        shown = [lines.get(name, {"row": name, "left": True}) for name in rows]
        data = files.in_json(same | {"rows": shown})
        files.write_text(folder / PAGE, fill(BENCHMARKS / PAGE, data))
        return shown

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        rows = Acceptance(tiny, lines, Path(scratch)).rows()
        again = [name for name in rows if lines.get(name, {}).keys() & {"begun", "error"}]
        for name in [*(name for name in rows if name not in lines), *again]:
            if (begin := time.monotonic()) >= end:
                break
            write(row=name, begun=True)
            try:
                result: Line = rows[name]()
            except Exception as error:  # of whatever kind: the next rows go on
                result = {"error": files.brief(f"{type(error).__name__}: {error}", 400)}
            gc.collect()
            bad = [x["what"] for x in result.get("checks", ()) if x["passed"] is False]
            bad += [result["error"]] if "error" in result else []
            seconds = round(time.monotonic() - begin, 2)
            write(row=name, seconds=seconds, failed=bool(bad), **result)
            print(f"{name}: {'; '.join(bad) or _told(result)}", flush=True)
            if "CUDA_ERROR" in result.get("error", ""):
                break  # this process cannot use the device any more
        return write()


def _told(result: Line) -> str:
    if "tokens_per_second" in result:
        return f"{result['tokens_per_second']:,.0f} tokens/s, MFU {result['mfu']:.1%}"
    return "passed" if "checks" in result else result.get("skipped", "measured")


class Acceptance:
    """The rows for the devices of this process; `lines` are {row: line} of those with a result."""

    def __init__(self, tiny: bool, lines: dict[str, Line], scratch: Path):
        self._tiny, self._lines, self._scratch = tiny, lines, scratch
        self._devices, self._device = jax.devices(), jax.devices()[0]
        self._cpu, self._kind = jax.devices("cpu")[0], self._device.device_kind
        self._times: Any = {"steps": 2, "rounds": 2} if tiny else {"steps": 20, "rounds": 3}

    def rows(self) -> dict[str, Callable[[], Line]]:
        """Returns {name of a row: the function that measures it}, in the order of their worth."""
        short, long, longer, longest = (32, 64, 128, 256) if self._tiny else (128, 512, 1024, 8192)
        part, n, title = functools.partial, len(self._devices), _title(BASE, short)
        main = [(BASE, long), (BASE, short), (LARGE, long), (LARGE, short)]
        main = main[:2] if self._tiny else main  # BERT-large has the sizes of BERT-base
        main += [(MODERN, longer), (MODERN, longest)][self._tiny :]
        full = main[:1] if self._tiny else main
        speeds = [(_title(*x), part(self.speed, *x, with_roofline=x in full)) for x in main]
        lean = part(self.speed, BASE, short, with_roofline=False)
        meshes = {"fsdp": MeshConfig(fsdp=n), "tensor": MeshConfig(tensor=math.gcd(n, 4))}
        fewer = [1 << i for i in range(n.bit_length()) if 1 << i < n]
        checks = (self.heads, self.attention_kernels, self.dropout_bits, self.packed_rows)
        steps = (self.the_same_steps_twice, self.a_loss_that_is_not_finite, self.save_and_restore)
        rows: list[tuple[str, Callable[[], Line]]] = [
            *((check.__name__.replace("_", " "), check) for check in checks),
            *speeds[:2],
            *((check.__name__.replace("_", " "), check) for check in steps),
            *speeds[2:],
            *((f"plan of {_title(*key)}", part(self.plan, *key)) for key in full),
            (f"{title}, text", part(self.text, short)),
            (f"{title}, packed text", part(self.text, short, "--pack")),
            (f"{title}, no dropout", part(lean, model=dict.fromkeys(DROPOUT_FIELDS, 0.0))),
            (f"{title}, dropout by rbg", part(lean, dropout_prng="rbg")),
            *((f"PyTorch, {_title(*x)}", part(self.pytorch, *x)) for x in main[self._tiny : 2]),
            *((f"{title}, {m} of {n} devices", part(lean, self._devices[:m])) for m in fewer),
        ]
        for name, mesh in meshes.items() if n > 1 else ():
            wide = {"vocab_size": 30720}  # a multiple of the number of devices
            rows.append((f"{title}, {name}", part(lean, mesh=mesh, model=wide)))
        return dict(rows)

    def heads(self) -> Line:
        """Compares outputs of all heads, and gradients with dropout, with the CPU's in float32."""
        checks = []
        for name, head in (*HEADS.items(), ("masked_lm, local", HEADS["masked_lm"])):
            model, params, batch = self._small(head, MODERN if "local" in name else BASE)
            expected = _computed(model, params, batch, self._cpu)
            for dtype, tolerance in TOLERANCES.items():
                if self._tiny and dtype == "bfloat16" and "gradients" not in expected:
                    continue
                model = model.clone(dtype=jnp.dtype(dtype))
                found = _computed(model, params, batch, self._device)
                checks.append(_check(f"{name}, {dtype}", found, expected, tolerance))
        return {"reference": "the CPU in float32", "checks": checks}

    def attention_kernels(self) -> Line:
        """Compares the kernels, outputs and gradients, with XLA's attention in float32."""
        checks = []
        for kernel, name in (("flash", BASE), *((kernel, MODERN) for kernel in FUSED)):
            how, head = ("dropout", "pretraining") if name == BASE else ("local", "masked_lm")
            model, params, batch = self._small(HEADS[head], name)
            exact = _computed(model, params, batch, self._device)
            for dtype in ("float32",) if self._tiny else TOLERANCES:
                what, attend = f"{kernel}, {how}, {dtype}", FUSED[kernel].attend
                try:
                    choose_attention(kernel, named_config(MODERN), [256], self._kind, dtype)
                except ValueError as error:
                    if not self._tiny:
                        checks.append({"what": what, "passed": None, "reason": str(error)})
                        continue
                    what += ", not on its device"
                    attend = functools.partial(attend, **ANYWHERE[kernel])
                plain = model.clone(dtype=jnp.dtype(dtype))
                error = _error(_computed(plain, params, batch, self._device), exact)
                with mock.patch.dict(FUSED, {kernel: FUSED[kernel]._replace(attend=attend)}):
                    fused = plain.clone(attention_kernel=kernel)
                    found = _computed(fused, params, batch, self._device)
                checks.append(_check(what, found, exact, max(TOLERANCES["float32"], 2 * error)))
        return {"reference": "XLA's attention in float32", "checks": checks}

    def dropout_bits(self) -> Line:
        """Compares the bits of dropout with the CPU's."""
        key, shape, threshold = jax.random.key(2), (12, 256, 256), drop_threshold(0.1)
        bits = jax.jit(lambda rows: keep_mask(key, rows, shape, threshold))
        found, expected = (
            bits(jax.device_put(np.arange(2), device)) for device in (self._device, self._cpu)
        )
        return {"reference": "the CPU", "checks": [_same("threefry2x32", found, expected)]}

    def packed_rows(self) -> Line:
        """Compares hidden states of sequences that share rows with those of each alone."""
        checks = []
        for name in (BASE, MODERN):
            model, params, batch = self._small(HEADS["encoder"], name)
            kernel = choose_attention("auto", model.config, [512], self._kind, "float32").kernel
            packed = _computed(model.clone(attention_kernel=kernel), params, batch, self._device)
            alone = {key: batch[key].reshape(-1, SEQUENCE) for key in MODEL_INPUTS[:4]}
            alone["sequence_starts"] = np.zeros((len(alone["input_ids"]), 1), np.int32)
            expected = _computed(model, params, alone, self._device)["last_hidden_state"]
            found = packed["last_hidden_state"].reshape(expected.shape)
            checks.append(_check(f"{name}, {kernel}", {"": found}, {"": expected}, 1e-4))
        return {"reference": "each sequence in a row of its own", "checks": checks}

    @functools.cached_property
    def _subject(self) -> Subject:
        length, fields = (64, SMALL) if self._tiny else (512, {"num_hidden_layers": 2})
        return Subject(self._config(BASE, length, 8, model=fields), 0)

    def digest(self) -> str:
        """Returns a hash of the training state after three steps."""
        self._subject.state = self._subject.program.new_state()
        self._subject.block(3)
        return _digest(self._subject.state)

    def the_same_steps_twice(self) -> Line:
        """Runs three steps twice; on GPUs in new processes, with deterministic operations."""
        digest, what = self.digest, "three steps"
        if self._device.platform == "gpu":
            code = f"print(acceptance.Acceptance({self._tiny}, {{}}, None).digest())"
            flags = " ".join((os.environ.get("XLA_FLAGS", ""), *compilation.FLAGS))
            command = ("-c", f"from benchmarks import acceptance; {code}")
            digest = functools.partial(_child, *command, XLA_FLAGS=flags)
            what += ", --deterministic"
        check = {"what": what, "passed": digest() == digest()}
        return {"reference": "the first time, bit for bit", "checks": [check]}

    def a_loss_that_is_not_finite(self) -> Line:
        """Runs a step whose loss is NaN, and a good one."""
        subject, batch = self._subject, next(self._subject.batches)
        before, nan = _digest(subject.state.params), batch["masked_weights"] * jnp.nan
        subject.state, bad = subject.step(subject.state, batch | {"masked_weights": nan})
        kept = _digest(subject.state.params) == before
        subject.state, good = subject.step(subject.state, batch)
        checks = {"parameters": kept, "skipped": bad["skipped"], "the next": ~good["skipped"]}
        made = [{"what": what, "passed": bool(passed)} for what, passed in checks.items()]
        return {"reference": "the state before, bit for bit", "checks": made}

    def save_and_restore(self) -> Line:
        """Saves the training state, and restores it on the devices."""
        subject = self._subject
        with Checkpointer(self._scratch / "checkpoints") as checkpoints:
            checkpoints.save(1, subject.state, {})
            restored = checkpoints.restore(subject.program.state_shapes)[0]
        checks = [_same("training state", restored, subject.state)]
        return {"reference": "the state that was saved, bit for bit", "checks": checks}

    def speed(
        self, name: str, length: int, devices: Any = None, with_roofline: bool = True, **run: Any
    ) -> Line:
        """Measures the train step on the largest batch of 2^n rows per device that fits.

        `run` are fields of the config, and "model", {field of the model: value}.
        """
        rows, before = self._most_rows(length), self._memory("peak_bytes_in_use")
        options = self._times | {"devices": devices, "with_roofline": with_roofline}
        while True:
            config = self._config(name, length, rows * len(devices or self._devices), **run)
            try:
                result = measure(config, 0, **options)
                break
            except RuntimeError as error:
                if rows == 1 or "RESOURCE_EXHAUSTED" not in str(error):
                    raise
            gc.collect()
            rows //= 2
        if self._memory("peak_bytes_in_use") <= before:  # that of an earlier row of the process
            result["peak_memory_bytes"] = None
        return result

    def text(self, length: int, *flags: str) -> Line:
        """Measures steps on rows of text, with padding and with work of the host."""
        output = self._scratch / f"data{len(flags)}"
        source = hosts.PACKAGE / ("base" if self._tiny else "**") / "*.py"
        flags = ("--tokenizer=bertjax:tiny", f"--max_length={length}", *flags)
        _child("-m", "bertjax.prepare", "--input", source, "--output", output, *flags)
        return self.speed(BASE, length, with_roofline=False, data=str(output))

    def plan(self, name: str, length: int) -> Line:
        """Compiles a measured step ahead of time for this card, by `bertjax.plan` if it can."""
        batch = self._lines.get(_title(name, length), {}).get("batch")
        if batch is None:
            return {"skipped": "the step has not been measured"}
        config, n = self._config(name, length, batch[0]), len(self._devices)
        file, output, topology = self._scratch / "run.py", self._scratch / "plan", self._topology()
        file.write_text(f"from bertjax.config import *\nconfig = {config!r}\n")
        command = ("--config", file, "--topology", topology, "--json", output, "--no_advice")
        try:
            if ":" not in topology:
                raise OSError(f"it has no {topology}")
            _child("-m", "bertjax.plan", *command, JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="-1")
            plan = files.read_json(output, kind=list)[0]
            peak, bound = plan["memory"]["peak"], plan["step_seconds_hidden"]
            how = f"compiled without the device, for {topology}"
        except OSError as error:
            tflops = flops.peak_flops(None) / 1e12 / n
            about = (self._memory("bytes_limit") or sys.maxsize, math.inf, tflops, math.inf, None)
            here = hardware.Topology("here", self._kind, self._devices, n, *about)
            plan = compile.plan_phase(config, 0, here, advise=False)
            peak, bound = plan.memory["peak"], plan.step_seconds[0]
            how = f"compiled on the device itself, and not by bertjax.plan: {error}"
        return {"of": _title(name, length), "plan": how, "bytes": peak, "bound": bound}

    def _topology(self) -> str:
        """Returns the name of these devices in `bertjax.plan`, or the kind if they have none."""
        kind, n = self._kind.replace(" lite", "e"), len(self._devices)
        gpus = {f"{name}:{n}": x for name, x in hardware.GPUS.items() if kind.startswith(x.kind)}
        sizes = {name: x.memory_gib * hardware.MEMORY_FRACTION for name, x in gpus.items()}
        for name, chip in hardware.CHIPS.items():
            shapes = chip.examples.split() if chip.kind in (kind, f"{kind}p") else ()
            numbers = {x: math.prod(map(int, x.split("x"))) * chip.devices for x in shapes}
            sizes |= {
                f"{name}:{x}": chip.memory_gib for x, number in numbers.items() if number == n
            }
        memory = self._memory("bytes_limit") / hardware.GIB
        return min(sizes, key=lambda name: abs(sizes[name] - memory), default=kind)

    def pytorch(self, name: str, length: int) -> Line:
        """Runs our step and those of transformers on the same batch in turns, in new processes."""
        script = BENCHMARKS / "pretraining.py"
        missing = [x for x in ("torch", "transformers") if not importlib.util.find_spec(x)]
        if self._device.platform == "tpu" or missing:
            return {"skipped": "it needs torch, transformers, and no TPU"}
        rows = max(1, self._most_rows(length) // 4)  # a quarter of a GPU's memory is left to others
        kinds = ("sdpa-autocast", *(() if self._tiny else ("sdpa-autocast-compile",)))
        flags = ("--model", name, "--batch_size", rows, "--max_length", length, "--theirs", *kinds)
        flags += ("--changes", json.dumps(SMALL if self._tiny else {}), "--ours", "bfloat16")
        flags += ("--steps", self._times["steps"], "--rounds", self._times["rounds"])
        output = _child(script, *flags)
        return {"contenders": [json.loads(line) for line in output.splitlines() if line[0] == "{"]}

    def _config(
        self, name: str, length: int, rows: int, model: Any = None, **run: Any
    ) -> PretrainConfig:
        fields = (SMALL if self._tiny else {}) | (model or {})
        return PretrainConfig(
            model=named_config(name, **fields),
            phases=(Phase(num_steps=1000, max_length=length, batch_size=rows),),
            optimizer=OptimizerConfig(warmup_steps=0),
            dtype="bfloat16",
            **run,
        )

    def _small(self, head: Any, name: str) -> tuple[Any, Any, Any]:
        """Returns a model, its parameters, and a batch of packed rows of equal sequences.

        The weights are large, so that attention is not almost uniform.
        """
        local = {"local_attention": 32} if name == MODERN else {}
        config, rng = self._config(name, 256, 2, model=SMALL | local), np.random.default_rng(0)
        model, places = head(config.model, F32), np.broadcast_to(np.arange(256), (2, 256))
        batch = random_rows(config, config.phases[0], 2)
        batch |= {"position_ids": places % SEQUENCE, "sequence_ids": places // SEQUENCE + 1}
        params = {
            path: rng.normal(path.endswith("scale"), 0.1, x.shape).astype(np.float32)
            for path, x in param_shapes(model).items()
        }
        return model, unflatten_dict(params, sep="/"), batch

    def _memory(self, key: str) -> int:
        return (self._device.memory_stats() or {}).get(key, 0)

    def _most_rows(self, length: int) -> int:
        memory = self._memory("bytes_limit")
        rows = MOST_TOKENS / length * min(1.0, memory / ENOUGH_MEMORY)
        return 1 << int(math.log2(max(1.0, rows))) if memory else 8


def _title(name: str, length: int) -> str:
    return f"{name}, {length:,} tokens"


@functools.cache
def _program(model: Any) -> Any:
    def run(params: Any, batch: Any) -> dict[str, Any]:
        outputs = model.apply({"params": params}, **{key: batch[key] for key in MODEL_INPUTS})
        # A generator's samples may differ where rounding does.
        if "pretraining" not in model.objectives or model.training_parts:
            return outputs
        weights, loss = model.objective("pretraining").weights(batch), make_loss_fn(model)
        key = DropoutKey(jax.random.key(0), jnp.arange(len(batch["input_ids"])))
        gradients = jax.grad(lambda params: loss(params, batch, weights, key)[0])(params)
        return outputs | {"gradients": gradients}

    return jax.jit(run)


def _computed(model: Any, params: Any, batch: Any, device: Any) -> dict[str, Any]:
    """Returns the outputs of a model on a device and, of pretraining, gradients with dropout."""
    precision = {"float32": "highest"}.get(model.dtype.name, "default")
    with jax.default_matmul_precision(precision):
        return jax.device_get(_program(model)(*jax.device_put((params, batch), device)))


def _error(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Returns the largest difference of a member, relative to the largest value of the member."""

    def largest(tree: Any) -> Any:
        return np.max([np.max(np.abs(x), initial=0.0) for x in jax.tree.leaves(tree)])

    found, expected = (jax.tree.map(np.float64, x) for x in (found, expected))
    differences = jax.tree.map(np.subtract, found, expected)
    return float(np.max([largest(differences[key]) / largest(expected[key]) for key in expected]))


def _check(what: str, found: Any, expected: Any, tolerance: float) -> Line:
    error = _error(found, expected)
    return {"what": what, "error": error, "tolerance": tolerance, "passed": error <= tolerance}


def _digest(tree: Any) -> str:
    leaves = jax.device_get(jax.tree.leaves(tree))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _same(what: str, found: Any, expected: Any) -> Line:
    return {"what": what, "passed": _digest(found) == _digest(expected)}


def _child(*command: Any, **variables: str) -> str:
    """Runs Python in a new process with environment variables, and returns what it printed.

    The process takes memory of a GPU step by step, as this one has reserved most of it.
    """
    variables |= {"PYTHONPATH": str(BENCHMARKS.parent), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    options: Any = {"capture_output": True, "text": True, "env": os.environ | variables}
    done = subprocess.run([sys.executable, *map(str, command)], **options)
    if done.returncode:
        raise OSError(files.brief(done.stderr.strip().rpartition("\n")[2], 200))
    return done.stdout


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--output",
        default="acceptance",
        help=f"folder of {LINES}, to which each result is appended, and of the page {PAGE}",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="time after which no row is begun; the row in progress is finished",
    )
    parser.add_argument(
        "--size",
        choices=("auto", "tiny", "full"),
        default="auto",
        help="tiny takes models so small that a CPU needs a minute or two, which shows only that "
        "the checks pass; full takes the models by their names; auto is tiny on CPUs",
    )
    args = parser.parse_args(argv)
    if args.minutes <= 0:
        parser.error(f"--minutes {args.minutes}: it must be positive.")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what has no result yet; returns 1 if a check fails, and else 0."""
    args = parse(argv)
    compilation.use_compilation_cache()
    lines = accept(Path(args.output), args.size, args.minutes)
    left = [line["row"] for line in lines if "left" in line]
    if left:
        print(f"left for the next call of the same command: {'; '.join(left)}")
    print(f"written to {Path(args.output) / PAGE}")
    bad = [line["row"] for line in lines if line.get("failed")]
    if bad:
        print(f"{len(bad)} rows have failed ({'; '.join(bad)}): see the page.", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
