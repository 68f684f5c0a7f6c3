"""Run configs: frozen dataclasses, loaded from a file, overridden by flags, saved with the run.

A config file is Python that defines `config`. `--config` looks in the current folder, then among
the ones that come with the package.
"""

import dataclasses
import difflib
import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bertjax.data.segments import Objective
from bertjax.model.config import BertConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTokenizerConfig:
    """Learns a WordPiece vocabulary."""

    input: tuple[str, ...]
    """What bertjax.prepare reads, too: files, directories, globs, tfds:NAME, pydocs."""
    output: str
    """Directory for the tokenizer; a new one."""
    kind: Literal["wordpiece"] = "wordpiece"
    """wordpiece: BERT's."""
    vocab_size: int = 30522
    """Entries at most, special tokens included; a small corpus may give fewer."""
    do_lower_case: bool = True
    """Lower-case the text and strip its accents."""
    min_frequency: int = 2
    """How often a pair must occur to be joined."""
    model_max_length: int = 512
    """Longest input of the model that the tokenizer is for."""
    text_format: Literal["auto", "lines", "prose"] = "auto"
    """As for bertjax.prepare."""
    text_field: str = "text"
    """The field or column that holds the text in JSON lines, Parquet and TFDS."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do at bytes that are not UTF-8: stop, or put U+FFFD in their place."""

    def __post_init__(self):
        smallest = 6  # five special tokens and a character
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size={self.vocab_size} must be at least {smallest}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Turns text into rows of token ids on disk.

    Running the same command again goes on where it stopped.
    """

    input: tuple[str, ...] = ()
    """Files, directories, globs in quotes (text, JSON lines, WikiExtractor, Parquet; also inside
    gz, bz2, xz, zst, tar), tfds:NAME[/CONFIG][:VERSION], or pydocs."""
    tokenizer: str = ""
    """Directory of a tokenizer, or a vocab.txt or tokenizer.json."""
    output: str
    """Directory for the shards; a new one, or one that this command began."""
    max_length: tuple[int, ...] = (128,)
    """Longest example in tokens, [CLS] and [SEP] included; several lengths share a directory."""
    objective: Objective = "nsp"
    """nsp: next-sentence pairs (BERT); sop: sentence-order pairs (ALBERT); mlm: single segments
    (RoBERTa)."""
    dupe_factor: int = 1
    """How many times the text is cut into examples, at different places; masks are drawn anew in
    every epoch anyway."""
    short_seq_prob: float = 0.1
    """Share of documents whose pairs aim at a random shorter length (nsp and sop)."""
    seed: int = 0
    """Seed of all randomness."""
    eval_fraction: float = 0.01
    """Share of documents held out for evaluation; 0 for none."""
    text_format: Literal["auto", "lines", "prose"] = "auto"
    """lines: one sentence a line, blank lines between documents; prose: a file is a document, and
    is split into sentences; auto: decided by the beginning of each file."""
    text_field: str = "text"
    """The field or column that holds the text in JSON lines, Parquet and TFDS."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do at bytes that are not UTF-8: stop, or put U+FFFD in their place."""
    tfds_data_dir: str | None = None
    """Where TensorFlow Datasets keeps its data; its own default if not given."""
    chunk_mb: float = 8.0
    """Text per chunk, the unit of work and of randomness: other values give other examples."""
    num_processes: int | None = None
    """Worker processes; by default one per core. The output does not depend on it."""
    shard: str | None = None
    """i/n: prepare the i-th of n parts (from 0), on several machines with one output directory;
    the last to finish joins them."""
    merge: bool = False
    """Prepare nothing, join the parts that --shard made."""
    overwrite: bool = False
    """Delete what an earlier run of prepare wrote in the output directory, and start anew."""

    def __post_init__(self):
        for name in ("input", "tokenizer"):
            if not getattr(self, name) and not self.merge:
                raise ValueError(f"--{name} is missing: only --merge does without it.")
        shortest = 8
        longest = (1 << 16) - 1
        if not self.max_length or not all(shortest <= n <= longest for n in self.max_length):
            raise ValueError(
                f"max_length={self.max_length}: every length must be {shortest} to {longest}."
            )
        if len(set(self.max_length)) != len(self.max_length):
            raise ValueError(f"max_length={self.max_length} names a length twice.")
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor={self.dupe_factor} must be at least 1.")
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob={self.short_seq_prob} must lie in 0..1.")
        if not 0 <= self.eval_fraction <= 0.5:
            raise ValueError(f"eval_fraction={self.eval_fraction} must lie in 0..0.5.")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative.")
        if not self.chunk_mb > 0:
            raise ValueError(f"chunk_mb={self.chunk_mb} must be positive.")
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError(f"num_processes={self.num_processes} must be at least 1.")
        if self.shard is not None:
            self.part()

    def part(self) -> tuple[int, int]:
        """(i, n) of `shard`; (0, 1) without it.

        Raises:
            ValueError: it is not i/n with 0 <= i < n.
        """
        if self.shard is None:
            return 0, 1
        index, slash, count = self.shard.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"shard={self.shard!r} must be i/n with 0 <= i < n, as in 0/4.")
        return int(index), int(count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with decoupled weight decay and linear warm-up and decay."""

    recipe: Literal["google", "adamw"] = "google"
    """google: Adam without bias correction, as BERT was trained; adamw: with it."""
    learning_rate: float = 1e-4
    """The peak, reached after the warm-up."""
    warmup_steps: int = 10_000
    schedule: Literal["google", "hf"] = "google"
    """Linear decay to 0, counted from step 0 (google) or from the end of the warm-up (hf)."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    """Applied to all but biases and LayerNorms; embeddings are decayed too."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    def __post_init__(self):
        if self.learning_rate <= 0 or self.warmup_steps < 0 or self.max_grad_norm < 0:
            raise ValueError(
                f"learning_rate={self.learning_rate}, warmup_steps={self.warmup_steps}, "
                f"max_grad_norm={self.max_grad_norm}: the rate must be positive, the others at "
                "least 0."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """Steps at one sequence length; a run has one or several, in order."""

    num_steps: int
    max_length: int
    """Tokens a row; the data must have been prepared at this length."""
    batch_size: int
    """Rows an update, over all devices."""
    accumulation_steps: int = 1
    """Microbatches that an update is computed in: less memory, the same gradient."""
    max_predictions: int | None = None
    """Masked tokens a row at most; None: the share `mlm_probability` of the row, rounded up."""
    learning_rate_curve: Literal["continue", "restart"] = "continue"
    """Go on along the run's curve, or begin a new one (of this phase and those that continue it)
    with its own warm-up; the moments of the optimizer are kept in any case."""
    learning_rate: float | None = None
    """Peak of the new curve, where it restarts; None: the optimizer's."""
    warmup_steps: int | None = None
    """Warm-up of the new curve, where it restarts; None: the optimizer's."""

    def __post_init__(self):
        for field in (
            *("num_steps", "max_length", "batch_size", "accumulation_steps"),
            *(("max_predictions",) if self.max_predictions is not None else ()),
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: it must be at least 1.")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into "
                f"accumulation_steps={self.accumulation_steps} equal microbatches."
            )
        if self.learning_rate_curve == "continue" and (
            self.learning_rate is not None or self.warmup_steps is not None
        ):
            raise ValueError(
                f"learning_rate={self.learning_rate}, warmup_steps={self.warmup_steps} of a phase "
                "hold only for a new curve: set learning_rate_curve='restart', or change the "
                "optimizer's."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices split the rows (data), the parameters (fsdp), the matrices (tensor)."""

    data: int = -1
    """-1: all devices that the other axes leave."""
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """A pretraining run: which model, on what data, by which recipe."""

    data: str = ""
    """Directory that bertjax.prepare wrote."""
    workdir: str = ""
    """Directory for checkpoints, metrics and the model; running again there resumes."""
    init: str | None = None
    """Model to start from: a model directory, or the workdir of another run."""
    model: BertConfig = BertConfig()
    phases: tuple[Phase, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig()
    mlm_probability: float = 0.15
    """Share of the tokens that are predicted."""
    whole_word_masking: bool = False
    """Mask all pieces of a word together."""
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What activations are computed in; parameters and optimizer are float32 in any case."""
    mesh: MeshConfig = MeshConfig()
    unroll: int = 1
    """Layers written out in each step of the scan over layers: faster, but slower to compile."""
    remat: bool = False
    """Recompute each layer in the backward pass: less memory, a third more work."""
    log_every: int = 100
    """Steps between lines of metrics."""
    eval_every: int = 1_000
    """Steps between evaluations on the held-out rows; 0: only at the end of each phase."""
    eval_rows: int = 10_000
    """Held-out rows used at most."""
    save_every: int = 1_000
    """Steps between checkpoints; one is also written at the end and on interruption."""
    keep_checkpoints: int = 3
    """The last N are kept, and besides the one of the lowest held-out loss."""
    reader_threads: int = 4
    peak_tflops: float | None = None
    """Peak of one device, for MFU; None: its data sheet, or a measured matrix product."""

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: it must be at least 0.")
        if not 0.0 < self.mlm_probability < 1.0:
            raise ValueError(f"mlm_probability={self.mlm_probability}: choose it in (0, 1).")
        for field in ("log_every", "save_every", "eval_rows", "keep_checkpoints", "unroll"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: it must be at least 1.")
        for phase in self.phases:
            if phase.max_length > self.model.max_position_embeddings:
                raise ValueError(
                    f"max_length={phase.max_length} exceeds max_position_embeddings="
                    f"{self.model.max_position_embeddings}: shorten the phase, or give the model "
                    "more positions."
                )

    @property
    def num_steps(self) -> int:
        """Updates of all phases together."""
        return sum(phase.num_steps for phase in self.phases)


def load_config_file(path: str) -> Any:
    """Runs a config file and returns its `config`.

    Raises:
        FileNotFoundError: neither the current folder nor the package has it; nearest names said.
        ValueError: it defines no `config`.
    """
    file = _find_config_file(path)
    spec = importlib.util.spec_from_file_location("bertjax_run_config", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TypeError as error:
        raise ValueError(f"{file}: {error}. {_nearest_field(str(error))}") from error
    if not isinstance(getattr(module, "config", None), PretrainConfig):
        raise ValueError(f"{file} defines no `config`: end it with `config = PretrainConfig(...)`.")
    return module.config


def _nearest_field(message: str) -> str:
    """Which field was meant by an argument that no dataclass of ours has."""
    unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
    classes = (PretrainConfig, Phase, OptimizerConfig, MeshConfig, BertConfig)
    of_class = next((c for c in classes if unknown and c.__name__ == unknown[1]), None)
    if unknown is None or of_class is None:
        return "Check the types of its values."
    known = [field.name for field in dataclasses.fields(of_class)]
    nearest = difflib.get_close_matches(unknown[2], known, n=1, cutoff=0.0)[0]
    return f"Did you mean {nearest!r}? {of_class.__name__} knows: {', '.join(known)}."


def _find_config_file(path: str) -> Path:
    if Path(path).is_file():
        return Path(path)
    packaged = importlib.util.find_spec("bertjax.configs")
    roots = [Path(root) for root in (packaged and packaged.submodule_search_locations) or []]
    relative = Path(path).relative_to("configs") if path.startswith("configs/") else Path(path)
    for root in roots:
        if (root / relative).is_file():
            return root / relative
    known = sorted(f"configs/{f.relative_to(r)}" for r in roots for f in r.glob("*/[!_]*.py"))
    nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise FileNotFoundError(f"No config file {path!r}. {hint}Known: {', '.join(known)}.")


def differences(
    now: dict[str, Any], saved: dict[str, Any], ignore: Sequence[str] = ()
) -> list[str]:
    """Names and values of the fields, flattened, in which a config is not what was saved."""
    new, old = _flatten(json.loads(json.dumps(now))), _flatten(saved)
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(new.keys() | old.keys())
        if key.split(".")[0] not in ignore and old.get(key) != new.get(key)
    ]


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        children = tree.items()
    elif isinstance(tree, list):
        children = ((str(index), value) for index, value in enumerate(tree))
    else:
        return {prefix: tree}
    return {
        key: value
        for name, child in children
        for key, value in _flatten(child, f"{prefix}.{name}" if prefix else name).items()
    }
