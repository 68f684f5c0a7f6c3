"""Changes one setting of a model directory at a time, and compares what it means here and there.

    python -m tests.programs.meaning --changes 2000 --seed 0 --output changes.jsonl

transformers and sentence-transformers write twelve tiny directories: families, heads and tokenizers
of all kinds, with weights of a large standard deviation, so that whatever is dropped shows. Each
change is of one field of a JSON file, of one file, or of one tensor's name. Then both libraries and
bertjax load the directory and apply it to the same texts, one by one:

- *equal*: ids are equal, outputs within 1e-5, and so are probabilities by their labels, and the
  reference makes the same of a copy that `Pretrained.save` writes;
- *as written*: the same, if the reference takes `tokenizer.json` as it is, while transformers'
  class of the tokenizer ignores some of it (bertjax follows the file, and says so);
- *both refuse*;
- *refused*: only bertjax refuses, in a message that names the field, the tensor or the file;
- *undefined*: the reference initialises missing weights, or its tokenizer adds a token that the
  model has no embedding for, so that there is nothing to compare;
- *accepted*: the reference refuses, and bertjax gives the result of the unchanged directory;
- *nameless*: bertjax refuses, and the message names nothing;
- *silent*: everything else. There must be none.

`--output` gets a line per change; changes that have one are not repeated. `--show KIND` prints
the changes of a kind. Exits with status 1 if a change is silent or nameless.
"""

import argparse
import collections
import contextlib
import copy
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TOLERANCE = 1e-5
SECONDS = 120
TEXTS = (
    "The parser reads one line at a time, and returns a list.",
    "Größe, café naïve ÀÉ; 你好 see <url> now\tand [MASK] or <mask> there",
    "UNBELIEVABLE   spaces\n\nnewline, don't 12,345.67 (x) e\u0301 \u200b\u00ad end ",
    " ".join(["photosynthesisandmore" * 6, "returns", "##ing", "🙂", "[unused1]", "</s>"]),
    "a list of values " * 30,
)
# In texts of tasks, bertjax reads the names of the model's own special tokens as text
# (docs/fidelity.md), so that texts for answers have none.
PLAIN = TEXTS[0], TEXTS[2], TEXTS[4], "Größe, café naïve ÀÉ; 你好 see <url> now [unused1] ##ing 🙂"


class Kind(NamedTuple):
    """A directory: how it is written, and what reads it."""

    family: str
    task: str  # a suffix of transformers' Auto classes, or "SentenceTransformer"
    tokenizer: str
    config: dict[str, Any] = {}
    modules: dict[str, Any] = {}


LABELS = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
TAGS = {"id2label": dict(enumerate(("O", "B-PER", "I-PER", "B-ORG", "I-ORG")))}
KINDS = {
    "bert-mlm": Kind("bert", "MaskedLM", "uncased"),
    "bert-classes": Kind("bert", "SequenceClassification", "uncased", LABELS),
    "bert-tags": Kind("bert", "TokenClassification", "cased", TAGS),
    "bert-answers": Kind("bert", "QuestionAnswering", "cased"),
    "distilbert-labels": Kind(
        *("distilbert", "SequenceClassification", "uncased"),
        LABELS | {"problem_type": "multi_label_classification"},
    ),
    "roberta-mlm": Kind("roberta", "MaskedLM", "bpe"),
    "roberta-classes": Kind("roberta", "SequenceClassification", "bpe", LABELS),
    "xlm-roberta-tags": Kind("xlm-roberta", "TokenClassification", "unigram", TAGS),
    "albert-number": Kind("albert", "SequenceClassification", "albert", {"num_labels": 1}),
    "modernbert-mlm": Kind("modernbert", "MaskedLM", "modernbert"),
    "st-mean": Kind("bert", "SentenceTransformer", "uncased", {}, {"pooling_mode": "mean"}),
    "st-cls": Kind("roberta", "SentenceTransformer", "bpe", {}, {"pooling_mode": "cls"}),
}
HEADS = {"MaskedLM": "masked_lm", "QuestionAnswering": "question_answering"}


# Directories.


def _corpus() -> list[str]:
    """Docstrings of Python's standard library, with a few words of other alphabets."""
    modules = (argparse, collections, contextlib, copy, json, multiprocessing, random, shutil, io)
    texts = [(getattr(m, name).__doc__ or "") for m in modules for name in dir(m)]
    lines = [line for text in texts if isinstance(text, str) for line in text.splitlines()]
    return [*lines, *TEXTS] * 2


def _train(kind: str) -> Any:
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    lines, size = _corpus(), 800
    if kind in ("uncased", "cased"):
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=kind == "uncased")
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.train_from_iterator(
            lines, trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials)
        )
        return transformers.BertTokenizer(
            vocab=made.get_vocab(), do_lower_case=kind == "uncased", model_max_length=64
        )
    if kind == "bpe":
        made = tokenizers.ByteLevelBPETokenizer()
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        made.train_from_iterator(lines, vocab_size=size, special_tokens=specials)
        model = json.loads(made.to_str())["model"]
        merges = [tuple(pair) for pair in model["merges"]]
        return transformers.RobertaTokenizer(
            vocab=model["vocab"], merges=merges, model_max_length=64
        )
    if kind == "modernbert":
        made = tokenizers.Tokenizer(models.BPE())
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            lines,
            trainers.BpeTrainer(
                vocab_size=size, special_tokens=specials, initial_alphabet=alphabet
            ),
        )
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
        named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad")}
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, mask_token="[MASK]", model_max_length=64, **named
        )
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    albert = kind == "albert"
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    specials = specials if albert else ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="<unk>")
    made.train_from_iterator([line.lower() if albert else line for line in lines], trainer)
    pieces = [(piece, score) for piece, score in json.loads(made.to_str())["model"]["vocab"]]
    cls = transformers.AlbertTokenizer if albert else transformers.XLMRobertaTokenizer
    return cls(vocab=pieces if albert else [*pieces, ("<mask>", 0.0)], model_max_length=64)


def write_directory(kind: Kind, folder: Path) -> None:
    """Writes a tiny model of the kind, as transformers or sentence-transformers do."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokenizer = _train(kind.tokenizer)
    settings: dict[str, Any] = {
        **{"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "intermediate_size": 48},
        **{"initializer_range": 0.2, "pad_token_id": tokenizer.pad_token_id},
        **{"max_position_embeddings": 66 if "roberta" in kind.family else 64},
    }
    if kind.family == "distilbert":
        renamed = {"hidden_size": "dim", "num_hidden_layers": "n_layers"}
        renamed |= {"num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}
        settings = {renamed.get(name, name): value for name, value in settings.items()}
    if kind.family == "albert":
        settings |= {"embedding_size": 16}
    if kind.family == "modernbert":
        settings |= {"local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 3}
        settings |= {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
        settings |= {"initializer_cutoff_factor": 100.0}
    config = transformers.AutoConfig.for_model(kind.family, **settings, **kind.config)
    task = "" if kind.task == "SentenceTransformer" else f"For{kind.task}"
    model = getattr(transformers, f"AutoModel{task}").from_config(config)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 1:  # biases of zeros and norms of ones would hide what is dropped
                tensor.add_(0.1 * torch.randn_like(tensor))
    if task:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as models

    with tempfile.TemporaryDirectory() as encoder:
        model.save_pretrained(encoder)
        tokenizer.save_pretrained(encoder)
        transformer = models.Transformer(encoder, max_seq_length=48)
        pooling = models.Pooling(32, **kind.modules)
        modules = [transformer, pooling, models.Normalize()]
        SentenceTransformer(modules=modules).save(str(folder), create_model_card=False)


# Changes.

VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("relu", "gelu_new", "silu", "swish", "tanh", "gelu_pytorch_tanh", "foo"),
    "activation": ("relu", "silu", "foo"),
    "type": ("BertNormalizer", "Lowercase", "NFC", "Strip", "WordPiece", "Whitespace", "ByteLevel"),
    "model_type": ("bert", "roberta", "distilbert", "electra", "camembert"),
    "problem_type": ("single_label_classification", "regression", "multi_label_classification"),
    "padding_side": ("left",),
    "truncation_side": ("left",),
    "prepend_scheme": ("never", "first", "always"),
    "pooling_mode": ("max", "cls", "mean", "mean_sqrt_len_tokens", "lasttoken", "weightedmean"),
    "behavior": ("Removed", "Isolated", "MergedWithNext"),
}
NEW: tuple[tuple[str, Any], ...] = (
    *(("a_setting_of_tomorrow", True), ("is_decoder", True), ("tie_word_embeddings", False)),
    *(("position_embedding_type", "relative_key"), ("torch_dtype", "float16")),
    *(("dtype", "bfloat16"), ("do_lower_case", True), ("do_lower_case", False)),
    *(("strip_accents", True), ("strip_accents", False), ("model_max_length", 16)),
    *(("padding_side", "left"), ("truncation_side", "left"), ("add_prefix_space", True)),
    *(("tokenize_chinese_chars", False), ("clean_up_tokenization_spaces", True)),
    *(("additional_special_tokens", ["<url>"]), ("extra_special_tokens", ["<url>"])),
    *(("problem_type", "multi_label_classification"), ("num_labels", 3), ("max_seq_length", 8)),
    *(("prompts", {"query": "query: "}), ("default_prompt_name", "query")),
    *(("include_prompt", False), ("pooling_mode_max_tokens", True), ("layer_norm_eps", 1e-3)),
    *(("classifier_dropout", 0.5), ("output_hidden_states", True), ("use_cache", False)),
    *(("add_special_tokens", False), ("split_special_tokens", True), ("normalized", True)),
    *(("quantization_config", {"load_in_8bit": True}), ("pruned_heads", {"0": [1]})),
    *(("chunk_size_feed_forward", 4), ("add_cross_attention", True), ("rope_theta", 100.0)),
)
# Fields that change a result if they are followed; half of the changes are made there.
TELLING = {
    *("hidden_act", "hidden_activation", "activation", "classifier_activation", "layer_norm_eps"),
    *("norm_eps", "type_vocab_size", "position_embedding_type", "num_attention_heads", "n_heads"),
    *("pad_token_id", "local_attention", "global_attn_every_n_layers", "rope_theta", "mlp_bias"),
    *("attention_bias", "norm_bias", "classifier_pooling", "decoder_bias", "layer_types"),
    *("tie_word_embeddings", "num_hidden_groups", "inner_group_num", "hidden_size"),
    *("id2label", "problem_type", "0", "1", "2", "num_labels", "sinusoidal_pos_embds"),
    *("lowercase", "strip_accents", "clean_text", "handle_chinese_chars", "do_lower_case"),
    *("tokenize_chinese_chars", "add_prefix_space", "trim_offsets", "use_regex", "behavior"),
    *("continuing_subword_prefix", "max_input_chars_per_word", "unk_token", "unk_id", "type"),
    *("lstrip", "rstrip", "normalized", "single_word", "special", "content", "normalizer"),
    *("pre_tokenizer", "post_processor", "prepend_scheme", "replacement", "split", "pattern"),
    *("ignore_merges", "byte_fallback", "dropout", "model_max_length", "truncation_side"),
    *("tokenizer_class", "mask_token", "sep_token", "cls_token", "type_id", "ids", "direction"),
    *("pooling_mode", "embedding_dimension", "include_prompt", "max_seq_length", "prompts"),
    *("default_prompt_name", "path", "module_input_name", "module_output_name"),
}
MANY = 12  # children of a long list or dictionary, such as a vocabulary, that may be changed
# Fields whose change is seldom of interest to a model's meaning.
TENSORS = ("rename", "drop", "add", "prefix", "half", "transpose", "gamma", "twin")


class Change(NamedTuple):
    """A change of a directory: its kind of thing, the file, the place in it, and the new value."""

    what: str
    file: str
    place: str
    value: str

    def names(self) -> set[str]:
        """What a refusal may name: the file, the field, a setting above it, or the new value."""
        parts = [part for part in self.place.split("/") if part and not part.isdigit()]
        value = self.value.strip('"') if len(self.value) > 4 else ""
        return {self.file, Path(self.file).name, *parts[-2:], *parts[:1], value} - {""}


def _places(tree: Any, above: tuple = ()) -> Iterator[tuple]:
    """The paths of the nodes of a JSON tree; of long lists and dictionaries, some."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if len(keys) > MANY * 3:
        keys = random.Random(len(keys)).sample(keys, MANY)
    for key in keys:
        yield (*above, key)
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key], (*above, key))


def _other_value(rng: random.Random, key: Any, value: Any) -> Any:
    if key in VALUES and rng.random() < 0.8:
        return rng.choice([other for other in VALUES[key] if other != value] or [None])
    if isinstance(value, bool):
        return rng.choice((not value, not value, not value, None, str(value).lower(), int(value)))
    if isinstance(value, int | float):
        near = (value + 1, value - 1, value * 2, value // 2, -value)
        return rng.choice((*near, *near, 0, 1, 2, 0.5, None, str(value), float(value)))
    if isinstance(value, str):
        return rng.choice(("", value.upper(), value + "x", value[1:], "foo", None, " ", 1, [value]))
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        changed = (value[:at] + value[at + 1 :], value[::-1], [*value, value[at]], [], None)
        return rng.choice(changed)
    if isinstance(value, dict) and value:
        renamed = rng.choice(list(value))
        return rng.choice(
            (
                {k: v for k, v in value.items() if k != renamed},
                {(f"{k}0" if k == renamed else k): v for k, v in value.items()},
                dict(reversed(value.items())),
                {},
                None,
            )
        )
    return rng.choice((None, True, False, 1, 0.5, "", "foo", [], {}, {"type": "NFC"}))


def _change_json(rng: random.Random, folder: Path, path: Path) -> Change:
    tree = json.loads(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(folder))
    if rng.random() < 0.2 and isinstance(tree, dict):
        key, value = rng.choice(NEW)
        changed = tree | {key: value}
        change = Change("new field", name, key, json.dumps(value))
    else:
        # By depth first, so that the many entries of a vocabulary do not hide the settings.
        places = list(_places(tree))
        telling = [place for place in places if place[-1] in TELLING]
        if telling and rng.random() < 0.6:
            places = telling
        depth = rng.choice(sorted({len(place) for place in places}))
        *above, key = rng.choice([place for place in places if len(place) == depth])
        changed = tree
        for step in above:
            tree = tree[step]
        where = "/".join(map(str, (*above, key)))
        if rng.random() < 0.15:
            change = Change("deleted field", name, where, json.dumps(tree[key])[:80])
            del tree[key]
        else:
            tree[key] = _other_value(rng, key, tree[key])
            change = Change("field", name, where, json.dumps(tree[key])[:80])
    path.write_text(json.dumps(changed, ensure_ascii=False), encoding="utf-8")
    return change


def _change_file(rng: random.Random, folder: Path, path: Path) -> Change:
    name, how = str(path.relative_to(folder)), rng.choice(("delete", "empty", "bom"))
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else b"\xef\xbb\xbf" + path.read_bytes())
    return Change("file", name, how, "")


def _change_tensors(rng: random.Random, folder: Path, path: Path) -> Change:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    name, how = rng.choice(sorted(tensors)), rng.choice(TENSORS)
    value = tensors[name]
    if how == "rename":
        tensors[name + "x"] = tensors.pop(name)
    elif how == "drop":
        del tensors[name]
    elif how == "add":
        tensors["bert.embeddings.position_ids"] = np.arange(4)[None]
    elif how == "prefix":
        prefix = rng.choice(("module.", "_orig_mod.", "model.", "encoder.", "bert."))
        tensors, name = {prefix + key: value for key, value in tensors.items()}, prefix
    elif how == "half":
        tensors[name] = value.astype(np.float16)
    elif how == "transpose":
        tensors[name] = np.ascontiguousarray(value.T)
    elif how == "gamma":
        tensors = {
            key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): value
            for key, value in tensors.items()
        }
    else:
        twins = [key for key in ("lm_head.decoder.weight", "cls.predictions.decoder.weight")]
        words = [key for key in tensors if key.endswith("word_embeddings.weight")]
        name = twins["cls" in " ".join(tensors)]
        if words:
            tensors[name] = tensors[words[0]] + (0.1 if rng.random() < 0.5 else 0.0)
    save_file(tensors, path, metadata={"format": "pt"})
    return Change("tensor", str(path.relative_to(folder)), name, how)


def change_directory(rng: random.Random, folder: Path) -> Change:
    """Makes one change in a directory."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = rng.random()
    if chosen < 0.06:
        return _change_file(rng, folder, rng.choice(files))
    weights = [path for path in files if path.suffix == ".safetensors"]
    if chosen < 0.14:
        return _change_tensors(rng, folder, rng.choice(weights))
    return _change_json(rng, folder, rng.choice([p for p in files if p.suffix == ".json"]))


# Results: {"ids": [...], "outputs": [...], "answers": [...]}, lists with an entry per text.


def reference(
    kind: Kind, folder: Path, seed: int, as_written: bool = False
) -> dict[str, list[Any]]:
    """What transformers or sentence-transformers make of the texts, one by one.

    `as_written` is whether `tokenizer.json` is taken as it is, whatever class is named.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    if as_written:
        _name_generic_class(folder)
    if not {"tokenizer.json", "vocab.txt"} & {path.name for path in folder.iterdir()}:
        raise Undefined("no vocabulary")  # transformers makes a tokenizer of special tokens alone
    if kind.task == "SentenceTransformer":
        from sentence_transformers import SentenceTransformer

        cls: Any = transformers.AutoModel
        encoder, loaded = cls.from_pretrained(folder, output_loading_info=True)
        _refuse_initialised(loaded)
        _refuse_tokens(transformers.AutoTokenizer.from_pretrained(folder), encoder)
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        vectors: list[Any] = []
        for text in TEXTS:
            vectors.append(None)
            # Without a maximum length, sentence-transformers fails at long texts.
            with contextlib.suppress(RuntimeError, IndexError):
                vectors[-1] = model.encode([text], show_progress_bar=False)[0].astype(np.float32)
        return {"outputs": vectors}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cls = getattr(transformers, f"AutoModelFor{kind.task}")
    # bertjax computes in float32, unless another type is asked for.
    model, loaded = cls.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    model = model.eval()
    _refuse_tokens(tokenizer, model)
    _refuse_initialised(loaded)
    positions = model.config.max_position_embeddings
    if kind.family in ("roberta", "xlm-roberta"):
        positions -= (model.config.pad_token_id or 0) + 1
    longest = min(tokenizer.model_max_length, positions)
    results: dict[str, list[Any]] = {"ids": [], "outputs": [], "answers": []}
    for text in (*TEXTS, *PLAIN):
        encoded = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            out = model(**encoded)
        logits = [out[key] for key in sorted(out) if key.endswith("logits")]
        results["ids"].append(encoded["input_ids"][0].tolist())
        results["outputs"].append(np.stack([v[0].numpy() for v in logits]))
        if kind.task == "SequenceClassification" and len(results["ids"]) > len(TEXTS):
            results["answers"].append(_their_answer(model.config, logits[0][0]))
    return results


class Undefined(Exception):
    """The files lack weights or a vocabulary."""


def _refuse_initialised(loaded: dict[str, Any]) -> None:
    missing = {*loaded["missing_keys"], *loaded["mismatched_keys"]}
    missing -= {name for name in missing if "pooler" in name}
    if missing:
        raise Undefined(f"initialised: {sorted(missing)}")


def _refuse_tokens(tokenizer: Any, model: Any) -> None:
    if len(tokenizer) > model.config.vocab_size:
        raise Undefined(f"{len(tokenizer)} tokens, of which some have no embedding")


def _name_generic_class(folder: Path) -> None:
    for tokenizer in folder.rglob("tokenizer.json"):
        file = tokenizer.with_name("tokenizer_config.json")
        config = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))


def _their_answer(config: Any, logits: Any) -> dict[str, float]:
    """The probabilities by label, as the pipeline for text classification gives them."""
    multiple = config.problem_type == "multi_label_classification"
    if config.problem_type == "regression":
        return {"score": logits.item()} if len(logits) == 1 else {}
    if len(logits) == 1 and not config.problem_type:
        return {"score": logits.sigmoid().item()}
    probabilities = logits.sigmoid() if multiple or len(logits) == 1 else logits.softmax(-1)
    names = [config.id2label[i] for i in range(len(logits))]
    names = [name if isinstance(name, str) else json.dumps(name) for name in names]
    if len(set(names)) < len(names):
        return {}  # a dictionary cannot tell two classes of one name apart
    return dict(zip(names, probabilities.tolist(), strict=True))


def _load(kind: Kind, folder: Path) -> Any:
    import bertjax

    return bertjax.load_pretrained(folder, head=HEADS.get(kind.task, "auto"))


def of_copy(kind: Kind, folder: Path, copy: Path) -> dict[str, list[Any]]:
    """What the reference makes of the texts by a copy that bertjax writes."""
    _load(kind, folder).save(copy)
    return reference(kind, copy, 1)


def ours(kind: Kind, folder: Path) -> dict[str, list[Any]]:
    """What bertjax makes of the texts."""
    if kind.task == "SentenceTransformer":
        return {"outputs": list(_load(kind, folder).embed(list(TEXTS)))}
    model = _load(kind, folder)
    results: dict[str, list[Any]] = {"ids": [], "outputs": [], "answers": []}
    for text in (*TEXTS, *PLAIN):
        ids, mask, types = model.encode([text])
        out = model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        logits = [out[key][0] for key in sorted(out) if key.endswith("logits")]
        results["ids"].append(ids[0].tolist())
        results["outputs"].append(np.stack(logits))
    if kind.task == "SequenceClassification":
        for answer in model.predict(list(PLAIN)):
            probabilities = answer.get("probabilities")
            results["answers"].append(
                {"score": answer["score"]} if probabilities is None else dict(probabilities)
            )
    return results


def difference(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> str:
    """Returns in what two results differ; "" if they are equal."""
    for key in ("ids", "outputs", "answers"):
        for text, (a, b) in enumerate(zip(first.get(key, ()), second.get(key, ()), strict=True)):
            if key == "ids":
                if a != b:
                    return f"ids of text {text}: {a[:12]}, not {b[:12]}"
            elif b is None or a is None:
                pass
            elif key == "outputs":
                if a.shape != b.shape:
                    return f"outputs of text {text}: shape {a.shape}, not {b.shape}"
                # A tie broken by the last bit is no difference in meaning: scales by the values.
                error = float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0))
                if not error <= TOLERANCE * (1 if key == "outputs" else 10):
                    return f"outputs of text {text}: {error:.2g} apart"
            elif b and (a.keys() != b.keys() or any(abs(a[k] - b[k]) > TOLERANCE for k in b)):
                return f"answer to text {text}: {a}, not {b}"
    return ""


# One change after the other.


class Alarm(Exception):
    """A change took too long."""


def _attempt(function: Callable[..., dict], *args: Any) -> tuple[dict | None, str]:
    """Returns (result, "") or (None, error); what is printed goes nowhere."""
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return function(*args), ""
    except Alarm:
        return None, f"Alarm: no end within {SECONDS} s"
    except BaseException as error:
        # Panics of the tokenizers library derive from nothing else.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None, f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def judge(kind: Kind, folder: Path, whole: dict, change: Change) -> dict[str, Any]:
    """Returns the outcome of a change that was made in `folder`."""
    theirs, their_error = _attempt(reference, kind, folder, 1)
    again, _ = _attempt(reference, kind, folder, 2) if theirs else (None, "")
    found, error = _attempt(ours, kind, folder)
    moves = bool(theirs) and bool(difference(theirs or {}, whole))
    detail = error or their_error
    if their_error.startswith("Undefined"):
        outcome, moves = "undefined", False
    elif theirs is None or again is None:
        if found is None:
            outcome = "both refuse"
        else:
            # Names of classes that the files do not have are LABEL_0, LABEL_1...
            apart = difference({**found, "answers": []}, {**whole, "answers": []})
            outcome, detail = (
                ("silent", f"{apart}; they: {their_error}")
                if apart
                else (
                    "accepted",
                    their_error,
                )
            )
    elif difference(theirs, again):
        outcome, moves = "undefined", False
    elif found is None:
        named = any(name in error for name in change.names())
        known = error.startswith(("ValueError", "OSError", "FileNotFoundError"))
        outcome = "refused" if named and known else "nameless"
    else:
        detail = difference(found, theirs)
        if not detail:
            copied, error = _attempt(of_copy, kind, folder, folder.with_name("copy"))
            apart = difference(copied, theirs) if copied else error
            detail = apart and f"the copy: {apart}"
        outcome = "silent" if detail else "equal"
        if detail and not detail.startswith("the copy"):
            written, _ = _attempt(reference, kind, folder, 1, True)
            if written and not difference(found, written):
                outcome = "as written"
    return {"outcome": outcome, "moves": moves, "detail": detail[:500]}


def _work(pipe: Any, base: str, seed: int) -> None:
    """Judges the changes whose (directory, index) come through the pipe."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
    import transformers

    def alarm(*_: Any) -> None:
        raise Alarm

    signal.signal(signal.SIGALRM, alarm)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    whole: dict[str, dict] = {}
    while True:
        name, index = pipe.recv()
        kind, original = KINDS[name], Path(base) / name
        if name not in whole:
            whole[name] = reference(kind, original, 0)
        with tempfile.TemporaryDirectory(prefix="bertjax-meaning-") as place:
            folder = Path(place) / "model"
            shutil.copytree(original, folder)
            change = Change("none", "", "", "")
            if index:  # the first is the directory as it was written
                change = change_directory(random.Random(f"{seed}/{name}/{index}"), folder)
            pipe.send(change._asdict() | judge(kind, folder, whole[name], change))


def run(changes: int, seed: int, output: Path, names: list[str], base: Path) -> list[dict]:
    """Judges the changes that `output` lacks; returns all."""
    lines = output.read_text().splitlines() if output.exists() else []
    done = [json.loads(line) for line in lines]
    judged = {(line["directory"], line["index"]) for line in done if line["seed"] == seed}
    for name in names:
        if (
            not (base / name / "config.json").exists()
            and not (base / name / "modules.json").exists()
        ):
            write_directory(KINDS[name], base / name)
    context, process, pipe = multiprocessing.get_context("spawn"), None, None
    with output.open("a") as file:
        for number in range(changes):
            name, index = names[number % len(names)], number // len(names)
            if (name, index) in judged:
                continue
            if process is None or not process.is_alive():
                pipe, end = context.Pipe()
                process = context.Process(target=_work, args=(end, str(base), seed), daemon=True)
                process.start()
                end.close()
            assert pipe is not None
            pipe.send((name, index))
            try:
                result = pipe.recv() if pipe.poll(SECONDS * 5) else None
            except EOFError:
                result = None
            if result is None:
                process.kill()
                process.join()
                result = {"outcome": "silent", "detail": "the process died or hung", "moves": False}
            line = {"directory": name, "index": index, "seed": seed} | result
            file.write(json.dumps(line) + "\n")
            file.flush()
            done.append(line)
    if process is not None:
        process.kill()
    return done


OUTCOMES = ("equal", "as written", "both refuse", "refused", "undefined", "accepted")
OUTCOMES += ("nameless", "silent")


def table(results: list[dict]) -> str:
    """Returns a line per directory: changes, those that move the reference, and the outcomes."""
    rows = [("directory", "changes", "moved", *OUTCOMES)]
    for name in (*KINDS, "all"):
        of = [result for result in results if name in (result["directory"], "all")]
        counts = collections.Counter(result["outcome"] for result in of)
        moved = sum(result["moves"] for result in of)
        if of:
            rows.append((name, str(len(of)), str(moved), *(str(counts[key]) for key in OUTCOMES)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    defined = [r for r in results if r["outcome"] not in ("both refuse", "undefined", "accepted")]
    refused = sum(result["outcome"] == "refused" for result in defined)
    share = refused / max(len(defined), 1)
    lines.append(f"refused of those that the reference defines: {refused} ({share:.1%})")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the changes and prints the table; returns 1 if a change is silent or nameless."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.meaning")
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("changes.jsonl"))
    parser.add_argument("--directory", action="append", choices=sorted(KINDS))
    parser.add_argument("--base", type=Path, help="where the directories are kept")
    parser.add_argument("--show", choices=OUTCOMES, action="append", default=[])
    flags = parser.parse_args(argv)
    base = flags.base or Path(tempfile.mkdtemp(prefix="bertjax-directories-"))
    results = run(flags.changes, flags.seed, flags.output, flags.directory or list(KINDS), base)
    for result in results:
        if result["outcome"] in flags.show:
            print(json.dumps(result))
    print(table(results))
    return int(any(result["outcome"] in ("silent", "nameless") for result in results))


if __name__ == "__main__":
    sys.exit(main())
