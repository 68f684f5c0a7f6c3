"""Converts a model to the format of Hugging Face or of TF1 BERT: `python -m bertjax.convert`."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertjax.base import command_line, progress, signals

if TYPE_CHECKING:
    import numpy as np

    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import LoadedModel
    from bertjax.weights.source import Source

TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Config of `bertjax.convert`, which converts models and keeps every weight bit for bit."""

    src: Annotated[str, tyro.conf.Positional]
    """Model to read: a model directory, a .bin or .safetensors file beside its config.json, a hub
    name, bertjax:tiny, the workdir of a run or a TF1 checkpoint (needs the extra `tf`)."""
    dst: Annotated[str, tyro.conf.Positional]
    """Output directory: a new directory, or that of an older model, which is replaced if it holds
    only what bertjax wrote there."""
    to: Literal["hf", "tf1", "static"] = "hf"
    """Output format: hf writes a Hugging Face directory (config.json, model.safetensors,
    tokenizer); tf1 writes bert_model.ckpt, bert_config.json and vocab.txt for google-research/bert,
    of BERT models only and without heads for tagging and multiple choice (needs the extra `tf`);
    static writes a table of embeddings of the tokens, StaticEmbedding of sentence-transformers."""
    verify: bool = False
    """Load the converted model with PyTorch, compare its outputs on a few sentences and pairs with
    those of the model in JAX, and the ids and token types with those of transformers' tokenizers of
    both models; fail if an output differs by more than 1e-4 (needs the extra `parity`)."""
    push_to_hub: str | None = None
    """Repository OWNER/NAME on the Hugging Face Hub to which the converted model is uploaded; it is
    created if it does not exist; None: the model is not uploaded."""
    hub_private: bool = False
    """Create the repository of --push_to_hub as a private one, if it does not exist."""


def run(config: ConvertConfig) -> None:
    """Converts the model `config.src`; with --verify, compares its outputs with PyTorch's.

    Raises:
        FileNotFoundError: there is no model, or no tokenizer, which `--to tf1` and `--verify` need.
        ValueError: the output format cannot hold the model, or as in `verify`.
        OSError: the model cannot be written or uploaded.
    """
    import jax

    from bertjax.base.outputs import check_paths
    from bertjax.cloud.hub import create_repository, push_folder
    from bertjax.inference.pretrained import Pretrained
    from bertjax.inference.static import save_static
    from bertjax.weights import load_model
    from bertjax.weights.families import architecture
    from bertjax.weights.tf1 import save_tf1

    check_paths(config)
    if config.to == "static" and config.verify:
        raise ValueError("--verify has no effect on --to static: leave it out.")
    if config.push_to_hub is not None:
        create_repository(config.push_to_hub, private=config.hub_private)
    with progress.progress("reading the weights"):
        loaded = load_model(config.src, None, tokenizer_required=False)
    model = Pretrained(loaded)
    if loaded.tokenizer is None:
        if config.to != "hf" or config.verify:
            flag = "--verify" if config.verify else f"--to {config.to}"
            raise FileNotFoundError(
                f"{loaded.source.where} has no tokenizer, which {flag} needs: copy its files, such "
                "as tokenizer.json or vocab.txt, there."
            )
        print(f"{config.src} has no tokenizer: config and weights are written alone")
    if config.to == "static":
        rows, size = save_static(model, config.dst)
        print(f"{rows:,} embeddings of {size} numbers, written to {config.dst}")
        if config.push_to_hub is not None:
            push_folder(Path(config.dst), config.push_to_hub)
        return
    for part in loaded.absent:
        print(f"{config.src} has no {part}: a newly initialised {part} is written")
    if config.to == "hf":
        model.save(config.dst)
        for part in loaded.unused:
            print(f"{part} is left out: {architecture(loaded.config, loaded.head)} has no {part}")
        for name in _left_out(loaded.source, Path(config.dst)):
            print(f"{name} is left out: only the model, its tokenizer and modules are written")
    else:
        is_absent = loaded.head in ("token_classification", "multiple_choice")
        if is_absent or set(loaded.model.separate_parts) & loaded.params.keys():
            raise ValueError(
                f"{config.src} has the head {loaded.head}, which Google's TF1 code lacks. "
                "Use --to hf."
            )
        config_json = loaded.config.to_dict()
        vocab = loaded.tokenizer.tokens
        with progress.progress("writing the TF1 checkpoint"):
            save_tf1(config.dst, _google_tensors(loaded), config_json, vocab)
    print(f"{loaded.head}, {sum(x.size for x in jax.tree.leaves(loaded.params)):,} parameters")
    print(f"written to {config.dst}")
    if config.verify:
        verify(model, Path(config.dst))
    if config.push_to_hub is not None:
        push_folder(Path(config.dst), config.push_to_hub)


def _left_out(source: "Source", written: Path) -> list[str]:
    """Returns the names in a model directory of which nothing is in the written copy."""
    from bertjax.base.checksums import CHECKSUMS
    from bertjax.tokenization import TOKENIZER_FILES
    from bertjax.weights.adapters import MATRICES, SETTINGS
    from bertjax.weights.hf import CARD, WEIGHT_SUFFIXES, WEIGHTS
    from bertjax.weights.sentence_transformers import transformer_folder

    if source.kind != "hf":
        return []
    names = {file.name for file in written.iterdir()} | {transformer_folder(source.where).name}
    names |= {*TOKENIZER_FILES, *WEIGHTS, CARD, CHECKSUMS, SETTINGS, *MATRICES}
    files = [file for file in source.where.glob("[!.]*") if file.name not in names]
    shards = [file for file in files if file.suffix in WEIGHT_SUFFIXES and "-of-" in file.name]
    return sorted(file.name for file in files if file not in shards)


def _google_tensors(loaded: "LoadedModel") -> Iterator[tuple[str, "np.ndarray"]]:
    """Yields (name, array) of each weight, as in PyTorch, with the pooler that files contain."""
    from bertjax.model.recipe import flattened
    from bertjax.weights import names

    yield from names.to_hf(flattened(loaded.params), loaded.config)
    if "bert/pooler" in loaded.unused:
        for stored, targets in names.located(loaded.source.tensors, loaded.config).items():
            if targets and targets[0].path.startswith("bert/pooler/"):
                yield targets[0].rule.hf_name, loaded.source.tensors[stored]


def verify(model: "Pretrained", written: Path) -> None:
    """Prints how much the outputs of `model` differ from PyTorch's with the model in `written`.

    A model in the TF1 format is compared by a temporary copy in Hugging Face's format.

    Raises ValueError if an output differs by more than 1e-4, or the tokenizer of transformers, in
    `written` or where `model` was loaded from, gives other ids or token types.
    """
    import numpy as np

    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model
    from bertjax.weights.sentence_transformers import transformer_folder

    with tempfile.TemporaryDirectory() as folder:
        if not (written / "config.json").is_file():  # PyTorch cannot read TF1 files
            again = Pretrained(load_model(written, model.head))
            written = Path(folder) / "model"
            again.save(written)
        with progress.progress("comparing the outputs with PyTorch's"):
            differences = output_differences(model, written)
            source = model.loaded.source
            origin = []
            if source.kind == "hf":
                place = transformer_folder(source.where)
                # Without these, transformers does not know the class of the tokenizer.
                described = [place / "config.json", place / "tokenizer_config.json"]
                if any(file.is_file() for file in described):
                    origin = [place]
            for directory in (written, *origin):
                _check_tokenizer(model, directory)
    for name, difference in differences.items():
        print(f"{name}: largest difference {difference:.2e}")
    worst = float(np.max([*differences.values()]))  # NaN if any is NaN
    if not worst <= TOLERANCE:
        raise ValueError(
            f"The outputs differ from PyTorch's by up to {worst:.2e}, more than {TOLERANCE:.0e}."
        )


def _check_tokenizer(model: "Pretrained", directory: Path) -> None:
    import transformers

    from bertjax.inference.texts import SAMPLE_TEXTS

    tokenizer: Any = model.tokenizer
    # transformers 5 gives ALBERT token types only if it is told to.
    is_albert = tokenizer.tokenizer_class == "AlbertTokenizer"
    told = {}
    if is_albert:
        told = {"model_input_names": [*tokenizer.model_input_names]}
    theirs: Any = transformers.AutoTokenizer.from_pretrained(directory, **told)
    has_pairs = type(theirs).__name__ != "EsmcTokenizer"  # which gives a pair no special tokens
    for text in SAMPLE_TEXTS:
        texts = (text, None) if isinstance(text, str) else text
        if texts[1] and not has_pairs:
            continue
        ids, types = tokenizer.encode_pair(*texts)
        found = theirs(*texts, verbose=False)
        expected = found.get("token_type_ids", [0] * len(ids))
        if ids != found["input_ids"] or (types != expected and model.config.type_vocab_size > 1):
            what = "ids"
            if ids == found["input_ids"]:
                what = "token types"
            raise ValueError(
                f"transformers' tokenizer in {directory} gives {texts} other {what} than bertjax: "
                "correct its files so that they say how the model was trained, as warnings name."
            )


def output_differences(model: "Pretrained", directory: Path) -> dict[str, float]:
    """Returns {output name: largest absolute difference from PyTorch's model} on sample texts.

    The outputs at padding tokens are not compared. Raises ImportError without the extra `parity`.
    """
    import numpy as np

    from bertjax.inference.texts import SAMPLE_TEXTS
    from bertjax.weights.families import architecture

    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError("--verify runs PyTorch: pip install 'bertjax[parity]'.") from error
    ids, mask, types = model.encode(SAMPLE_TEXTS)
    outputs = model(
        input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True
    )
    # For a head that transformers lacks, `architecture` is the encoder, which may have a pooler.
    theirs = architecture(model.config, model.head)
    head = model.head
    has_class = head == "encoder" or not theirs.endswith("Model")
    has_class &= not (head == "masked_lm" and model.config.enhanced_mask_decoder)
    if model.head == "multiple_choice":  # one example, whose choices are the sentences
        ids = ids[None]
        mask = mask[None]
        types = types[None]
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.type_vocab_size > 1:
        # Models with one token type ignore token types, and some have a tokenizer with two types.
        inputs["token_type_ids"] = types
    with torch.no_grad():
        torch_outputs = _torch_outputs(
            model,
            getattr(transformers, theirs),
            directory,
            {key: torch.tensor(value, dtype=torch.long) for key, value in inputs.items()},
        )
    real = mask.reshape(-1, mask.shape[-1]) > 0
    differences = {}
    for name, value in torch_outputs.items():
        if not has_class and (name not in outputs or name == "logits"):
            continue
        if name == "hidden_states":
            expected = np.stack([layer.numpy() for layer in value])
            differences[name] = float(np.abs(expected - outputs[name])[:, real].max())
            continue
        expected = value.numpy()
        difference = np.abs(expected - outputs[name].reshape(value.shape))
        per_token = expected.shape[:2] == real.shape
        differences[name] = float(difference[real].max() if per_token else difference.max())
    return differences


def _torch_outputs(
    model: "Pretrained", torch_class: Any, directory: Path, inputs: dict[str, Any]
) -> Any:
    import torch

    from bertjax.weights.families import family_of

    torch_model: Any = torch_class.from_pretrained(directory)
    outputs = torch_model.eval()(**inputs, output_hidden_states=True)
    base = getattr(torch_model, family_of(model.config).prefix, torch_model)
    pooler = getattr(base, "pooler", None)
    if isinstance(pooler, torch.nn.Linear):  # ALBERT's pooler has no activation
        outputs["pooler_output"] = pooler(outputs["hidden_states"][-1][:, 0]).tanh()
    elif pooler is not None:
        outputs["pooler_output"] = pooler(outputs["hidden_states"][-1])
    return outputs


parse, main = command_line.command_of(
    ConvertConfig,
    run,
    "convert",
    "Converts a model; its weights, as float32, stay the same bit for bit. "
    "--verify compares its outputs with PyTorch's.",
)


if __name__ == "__main__":
    signals.leave(main())
