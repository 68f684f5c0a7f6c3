"""python -m bertjax.convert SRC DST: any model to the format of Hugging Face or of TF1 BERT."""

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tyro
from flax.traverse_util import flatten_dict

from bertjax import command_line
from bertjax.inference.pretrained import Pretrained
from bertjax.weights import LoadedModel, load_model, names
from bertjax.weights.families import architecture, family_of
from bertjax.weights.hf import TAGGER
from bertjax.weights.tf1 import save_tf1

TOLERANCE = 1e-4
# What --verify compares on; any text would do, these have pairs, long words and numbers.
SENTENCES = (
    "The harbour was quiet, and only two boats had come in before the storm.",
    ("Who wrote the letter?", "She did not say, but the ink was still wet on her fingers."),
    "Photosynthesis converts light, water and carbon dioxide into sugar.",
    ("In 1987 the bridge was closed.", "It reopened eleven years later with 4 lanes."),
    "No.",
    "Although nobody had asked for it, the committee published a report of 612 pages on the "
    "standardisation of screws, which to everybody's surprise became a success.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Reads a model and writes it in another format; every weight stays as it is, bit for bit."""

    src: Annotated[str, tyro.conf.Positional]
    """Model directory, hub name, run's workdir, or TF1 checkpoint."""
    dst: Annotated[str, tyro.conf.Positional]
    """Directory to write."""
    to: Literal["hf", "tf1"] = "hf"
    """hf: config.json and safetensors; tf1: bert_model.ckpt as google-research/bert reads it."""
    verify: bool = False
    """Run sentences through PyTorch, too, and fail beyond 1e-4 (needs the extra `parity`)."""


def run(config: ConvertConfig) -> None:
    """Converts, and with --verify compares.

    Raises:
        FileNotFoundError: there is no model at `src`.
        ValueError: the format has no place for one of its weights, or PyTorch differs.
    """
    loaded = load_model(config.src, None)
    model = Pretrained(loaded)
    for part in loaded.absent:
        print(f"{config.src} has no {part}: a fresh one is written")
    if config.to == "hf":
        model.save(config.dst)
        for part in loaded.unused:
            print(f"{part} is left out: {architecture(loaded.config, loaded.head)} has none")
        if (loaded.source.where / TAGGER).is_file():
            print(f"{TAGGER} is left out: the encoder alone is written")
    else:
        if loaded.head in ("token_classification", "multiple_choice"):
            raise ValueError(
                f"{config.src} is a model for {loaded.head}: Google's TF1 code has no such head. "
                "Use --to hf."
            )
        config_json, vocab = loaded.config.to_dict(), loaded.tokenizer.tokens
        save_tf1(config.dst, _google_tensors(loaded), config_json, vocab)
    print(f"{loaded.head}, {sum(x.size for x in jax.tree.leaves(loaded.params)):,} parameters")
    print(f"written to {config.dst}")
    if config.verify:
        verify(model, Path(config.dst))


def _google_tensors(loaded: LoadedModel) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors by PyTorch name, with the pooler that Google's SQuAD graph has unused."""
    flat: Any = flatten_dict(loaded.params, sep="/")
    yield from names.to_hf(flat, loaded.config)
    if "bert/pooler" in loaded.unused:
        for stored in loaded.source.tensors:
            name = names.normalized(stored, loaded.config)
            if name and name.startswith("bert.pooler."):
                yield name, loaded.source.tensors[stored]


def verify(model: Pretrained, written: Path) -> None:
    """Compares our outputs with PyTorch's on what was written, and prints the differences.

    Raises:
        ValueError: one of them is beyond 1e-4.
        ImportError: the extra `parity` is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        if not (written / "config.json").is_file():  # TF1: PyTorch reads it by way of us
            again = Pretrained(load_model(written, model.head))
            written = Path(folder) / "model"
            again.save(written)
        found = differences(model, written)
    for name, difference in found.items():
        print(f"{name}: largest difference {difference:.2e}")
    if (worst := max(found.values())) > TOLERANCE:
        raise ValueError(f"PyTorch differs by {worst:.2e}, more than {TOLERANCE:.0e}.")


def differences(model: Pretrained, directory: Path) -> dict[str, float]:
    """Largest absolute differences to transformers on `directory`, at real tokens."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError("--verify runs PyTorch: pip install 'bertjax[parity]'.") from error
    theirs: Any = getattr(transformers, architecture(model.config, model.head)).from_pretrained(
        directory
    )
    ids, mask, types = model.encode(SENTENCES)
    ours = model(
        input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True
    )
    if model.head == "multiple_choice":  # one example, whose choices are the sentences
        ids, mask, types = ids[None], mask[None], types[None]
    # A model of one type takes every token for it; some come with a tokenizer that names two.
    types_of_batch = (
        {"token_type_ids": torch.tensor(types, dtype=torch.long)}
        if model.config.type_vocab_size > 1
        else {}
    )
    with torch.no_grad():
        outputs = theirs.eval()(
            input_ids=torch.tensor(ids, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
            **types_of_batch,
            output_hidden_states=True,
        )
        # Heads keep to themselves what they pool.
        base = getattr(theirs, family_of(model.config).prefix, theirs)
        pooler = getattr(base, "pooler", None)
        if isinstance(pooler, torch.nn.Linear):  # ALBERT's, without its activation
            outputs["pooler_output"] = pooler(outputs["hidden_states"][-1][:, 0]).tanh()
        elif pooler is not None:
            outputs["pooler_output"] = pooler(outputs["hidden_states"][-1])
    real = mask.reshape(-1, mask.shape[-1]) > 0
    found = {}
    for name, value in outputs.items():
        if name == "hidden_states":
            expected = np.stack([layer.numpy() for layer in value])
            found[name] = float(np.abs(expected - ours[name])[:, real].max())
            continue
        expected, mine = value.numpy(), ours[name].reshape(value.shape)
        difference = np.abs(expected - mine)
        of_tokens = expected.shape[:2] == real.shape
        found[name] = float(difference[real].max() if of_tokens else difference.max())
    return found


def parse(argv: Sequence[str] | None = None) -> ConvertConfig:
    """Reads the flags."""
    return command_line.parse(
        ConvertConfig,
        argv,
        prog="python -m bertjax.convert",
        description="Converts models, bit for bit, and compares them with PyTorch.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
