"""Loads a tokenizer from a model directory, a vocabulary file, or the Hugging Face hub.

The tokenizers library loads a `tokenizer.json` as it is, and our classes wrap the result;
without one, they build the tokenizer.
"""

import base64
import copy
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from bertjax.base.files import MAX_JSON_BYTES, brief, naming_read_errors, read_bytes, read_json
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import fetch, may_be_hub_name
from bertjax.shipped import shipped_model
from bertjax.tokenization.base import (
    GENERIC_CLASS,
    SPECIAL_TOKENS,
    Layout,
    SpecialTokens,
    Tokenizer,
    explaining_the_library,
    numbered,
    state,
    steps,
)
from bertjax.tokenization.bpe import (
    GEMMA,
    ROBERTA,
    BPETokenizer,
    ByteLevelBPETokenizer,
    ModernBertTokenizer,
)
from bertjax.tokenization.dictionary import DICTIONARY, read_dictionary
from bertjax.tokenization.tokenizer_files import (
    ADDED,
    ALBERT_CLASS,
    CONFIG,
    ESM_CLASS,
    ESMC_CLASS,
    FLAGS,
    TOKENIZER_FILES,
    TokenizerFiles,
    find_tokenizer,
    pair_of,
    read_merges,
    read_optional,
    read_vocab_txt,
    warn,
)
from bertjax.tokenization.unigram import (
    DEBERTA,
    LAYOUTS,
    Pieces,
    UnigramTokenizer,
    check_charsmap,
    check_pieces,
    read_sentencepiece,
    steps_of_albert,
    steps_of_deberta,
)
from bertjax.tokenization.wordpiece import WordPieceTokenizer, looks_cased

# What these classes of transformers assume without the field.
_DEFAULTS = {
    "BertTokenizer": {"do_lower_case": True},
    "ElectraTokenizer": {"do_lower_case": True},
    "DistilBertTokenizer": {"do_lower_case": True},
    "RobertaTokenizer": {"add_prefix_space": False},
    ALBERT_CLASS: {"do_lower_case": True, "keep_accents": False},
}
# {field of tokenizer_config.json: field of a step of tokenizer.json that the classes set}.
_FIELDS = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "strip_accents": "strip_accents",
    "add_prefix_space": "add_prefix_space",
}
_FLAGS_OF_DEBERTA = {"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True}
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_OF_PROTEINS = SpecialTokens(unk="<unk>", pad="<pad>", cls="<cls>", sep="<eos>", mask="<mask>")
# The vocabulary of ESM C: special tokens, amino acids, gaps and the break between two chains.
_ESMC_VOCABULARY = """
    <cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - | <mask>
    """.split()


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> Tokenizer:
    """Loads a tokenizer from a directory, a vocabulary file, or the Hugging Face hub.

    The files determine the tokenization algorithm: `vocab.txt` means WordPiece, `vocab.json` with
    `merges.txt` means byte-level BPE, `spiece.model`, `sentencepiece.bpe.model` and `spm.model`
    mean unigram, and `tokenizer.json` names the algorithm. `tokenizer.json` takes precedence over
    the other vocabulary files. `vocab.bpe` of GPT-2 needs fairseq's `dict.txt`, which has the ids.
    A warning names the fields that nobody here knows.

    Args:
        path: the directory or file, the name of a model on the hub, or `bertjax:NAME` for a model
            that comes with bertjax.
        do_lower_case: whether to lower-case text; None: the setting in the files. If the files
            lack this setting, ALBERT's tokenizer lower-cases text, and a WordPiece tokenizer
            lower-cases text unless over 1 % of its tokens contain a capital letter
            (`wordpiece.looks_cased`).

    Raises:
        FileNotFoundError: there is no vocabulary at `path` or on the hub, or not all of it.
        ValueError: the tokenizer is not supported or lacks special tokens, the files contradict
            each other, a link leads out of the directory, or the tokenizer does not do what
            `do_lower_case` asks for.
    """
    path = shipped_model(path) or local_copy(path)
    if may_be_hub_name(path) and Path(path).suffix not in (".txt", ".json", ".model"):
        path = fetch(str(path), (*TOKENIZER_FILES, "config.json"))
    source = find_tokenizer(Path(path), do_lower_case)
    with naming_read_errors(source.file):
        loaders = {"WordPiece": _wordpiece, "BPE": _bpe, "Unigram": _unigram}
        tokenizer = loaders[source.kind](source)
        if do_lower_case not in (None, tokenizer.do_lower_case):
            does = "lower-cases"
            if do_lower_case:
                does = "keeps"
            raise ValueError(
                f"do_lower_case={do_lower_case}, but the {source.kind} tokenizer in "
                f"{source.directory} {does} capital letters: leave do_lower_case out."
            )
    with naming_read_errors(source.directory / CONFIG):
        _add_tokens(source, tokenizer)
    is_usual = tokenizer.is_usual and tokenizer.tokenizer_class != GENERIC_CLASS
    if source.json and source.tokenizer_class not in ("", ESMC_CLASS) and not is_usual:
        warn(
            f"{source.file} is followed, also in settings that transformers' "
            f"{source.tokenizer_class} ignores: its ids may differ"
        )
    if source.config.get("truncation_side"):
        tokenizer.truncation_side = source.config["truncation_side"]
    if do_lower_case is None:
        _say_settings(source, tokenizer.settings())
    _say_types(source, tokenizer)
    return tokenizer


def _say_settings(source: TokenizerFiles, actual: dict[str, Any]) -> None:
    """Warns of settings of tokenizer.json that the class of transformers would not take."""
    name = source.tokenizer_class
    if source.kind == "WordPiece" and not (source.directory / CONFIG).is_file():
        name = name or "BertTokenizer"
    defaults = {}
    if source.json:
        defaults = _DEFAULTS.get(name, {})
    for flag, value in (defaults | source.config).items():
        if flag in FLAGS and value not in (actual.get(flag, value), None):
            by = ""
            if flag not in source.config:
                by = f", as transformers' {name} has by default"
            warn(f"{source.file} is followed: {flag} is {actual[flag]}, and not {value}{by}")


def _say_types(source: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Warns of token types of pairs that depend on the version of transformers."""
    model_type = source.model.get("model_type")
    if model_type not in ("bert", "electra", "ernie", "albert"):
        return
    has_types = source.model.get("type_vocab_size", 2) > 1 and tokenizer.layout.second_type
    if source.config.get("model_input_names") or not has_types:
        return
    does = "as in transformers 5"
    if tokenizer.second_type:
        if model_type != "albert":
            return
        does = "as in transformers 4, but not 5"
    warn(
        f"{source.directory} does not say whether its tokenizer gives token types: the texts of a "
        f"pair get the types 0 and {tokenizer.second_type}, {does}. If the model was trained "
        f"otherwise, write model_input_names into {CONFIG}, with or without token_type_ids"
    )


def _wordpiece(source: TokenizerFiles) -> Tokenizer:
    if source.json:
        layout = Layout(special_tokens=SPECIAL_TOKENS)
        return _wrapped(source, WordPieceTokenizer, layout, source.json["model"].get("unk_token"))
    vocab = read_vocab_txt(source.file)
    if source.tokenizer_class == ESM_CLASS:
        return _residues_of_esm(source, vocab)
    flags = {"do_lower_case": not looks_cased(vocab), **source.flags}
    known = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")
    flags = {name: flags[name] for name in known if name in flags}
    return WordPieceTokenizer(vocab, **flags, **source.common)


def _residues_of_esm(source: TokenizerFiles, vocab: dict[str, int]) -> Tokenizer:
    """Builds the tokenizer of ESM: each entry of the vocabulary is split off, and nothing else."""
    special = _OF_PROTEINS
    entries = sorted(vocab, key=len, reverse=True)
    pattern = tokenizers.Regex("|".join(map(re.escape, entries)))
    with explaining_the_library():
        backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special.unk))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(pattern, "isolated")]
        )
        backend.add_special_tokens([*special])
    layout = Layout(special_tokens=special)
    return WordPieceTokenizer.wrap(backend, layout, **source.common)


def _residues_of_esmc(source: TokenizerFiles) -> Tokenizer:
    """Loads the tokenizer of ESM C: each character is a token.

    Of its tokenizer.json, the class of transformers takes the added tokens alone. It gives a pair
    no special tokens; here, a pair is arranged as in ESM-2.
    """
    vocab = numbered(_ESMC_VOCABULARY)
    if source.json.get("model", {}).get("vocab") != vocab:
        raise ValueError(
            f"{source.file} has another vocabulary than {ESMC_CLASS}, which transformers would use "
            "instead: download it again."
        )
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": _OF_PROTEINS.unk}
    content = source.json | dict.fromkeys(_PARTS) | {"model": model}
    source = dataclasses.replace(source, json=content)
    return _wrapped(source, BPETokenizer, Layout(special_tokens=_OF_PROTEINS, second_type=0))


def _bpe(source: TokenizerFiles) -> Tokenizer:
    if source.tokenizer_class == ESMC_CLASS:
        return _residues_of_esmc(source)
    vocab_file = source.directory / "vocab.json"
    merges_file = source.directory / "merges.txt"
    missing = [file for file in (vocab_file, merges_file) if not file.is_file()]
    dictionary = source.directory / DICTIONARY
    if source.file.name == "vocab.bpe" and dictionary.is_file():
        merges = read_merges(source.file)
        tokens = read_dictionary(dictionary, merges)
        return ByteLevelBPETokenizer(numbered(tokens), merges, **source.common)
    if not source.json:
        if missing:
            raise FileNotFoundError(
                f"{missing[0]} is missing: a byte-level BPE needs vocab.json and merges.txt, "
                "vocab.bpe and fairseq's dict.txt, or a tokenizer.json."
            )
        return ByteLevelBPETokenizer(
            read_json(vocab_file),
            read_merges(merges_file),
            add_prefix_space=source.flags.get("add_prefix_space", False),
            **source.common,
        )
    model = source.json["model"]
    merges = model["merges"]
    if isinstance(next(iter(merges), None), str):  # as older files have them
        merges = [pair_of(merge, source.file) for merge in merges]
    merges = list(map(tuple, merges))
    if source.bare and not missing:
        if read_json(vocab_file) != model["vocab"] or read_merges(merges_file) != merges:
            _refuse_two(source, "vocabulary or merges", "vocab.json and merges.txt")
    if model.get("dropout"):
        raise ValueError(
            f"{source.file} splits words at random, with dropout={brief(model['dropout'])}, which "
            "is not supported: set it to null."
        )
    prefix = model.get("continuing_subword_prefix") or ""
    # With a prefix that merges do not have, the library ends the process.
    if not all(second.startswith(prefix) for _, second in merges):
        raise ValueError(
            f"{source.file} has merges whose second piece lacks the continuing_subword_prefix="
            f"{brief(prefix)!r}: download it again."
        )
    added = source.json.get("added_tokens") or []
    known = {*model["vocab"], *(token["content"] for token in added)}
    splits = [step.get("type") for step in steps(source.json.get("pre_tokenizer"))]
    if "ByteLevel" in splits and not prefix:
        kind = ByteLevelBPETokenizer
        if {*SPECIAL_TOKENS} <= known:
            kind = ModernBertTokenizer
        return _wrapped(source, kind, kind.layout_of_class)
    fitting = GEMMA
    for layout in (GEMMA, ModernBertTokenizer.layout_of_class, ROBERTA):
        if {*layout.special_tokens} <= known:
            fitting = layout
            break
    return _wrapped(source, BPETokenizer, fitting, model.get("unk_token"))


def _unigram(source: TokenizerFiles) -> Tokenizer:
    name = _unigram_class(source)
    pieces = []
    charsmap = b""
    added = []
    model_file = None
    if source.bare:
        model_file = read_bytes(source.bare, MAX_JSON_BYTES)
        pieces, charsmap, added = read_sentencepiece(model_file, str(source.bare), name)
    if source.json:
        tokenizer = _unigram_of_json(source, name, pieces)
        tokenizer.model_file = model_file
        return tokenizer
    flags: dict[str, Any] = {"do_lower_case": False, "keep_accents": True}
    if name == ALBERT_CLASS:
        flags = {flag: value for flag, value in source.flags.items() if flag in flags}
    elif name == DEBERTA:
        charsmap = b""
        flags |= {**_flags_of_deberta(source), "added": added}
    return UnigramTokenizer(
        pieces,
        tokenizer_class=name,
        charsmap=charsmap,
        model_file=model_file,
        **flags,
        **source.common,
    )


def _flags_of_deberta(source: TokenizerFiles) -> dict[str, bool]:
    return {flag: source.flags.get(flag, value) for flag, value in _FLAGS_OF_DEBERTA.items()}


def _unigram_of_json(source: TokenizerFiles, name: str, pieces: Pieces) -> UnigramTokenizer:
    """Loads a tokenizer.json of the class `name`; `pieces` are those of a file beside it."""
    model = source.json["model"]
    check_pieces(model["vocab"])
    own_pieces = [piece for piece, _ in model["vocab"]]
    if pieces and [piece for piece, _ in pieces] != own_pieces:
        _refuse_two(source, f"{len(own_pieces)} pieces", f"the {len(pieces)} in {source.bare}")
    if model.get("unk_id") is None and not model.get("byte_fallback"):
        raise ValueError(
            f"{source.file} has no unk_id, so that the library cannot encode a text with a "
            "character that no piece has: give the index of the piece for unknown characters."
        )
    changes = {}
    if name == ALBERT_CLASS:
        changes = _steps_of_albert(source)
    elif name == DEBERTA:
        if source.tokenizer_class:  # as in transformers, it keeps pieces alone
            normalizer, words = steps_of_deberta(**_flags_of_deberta(source))
            changes = {
                "normalizer": state(normalizers.Sequence(normalizer)),
                "pre_tokenizer": state(pre_tokenizers.Sequence(words)),
            }
        flags = {x: y for x, y in source.flags.items() if x not in _FLAGS_OF_DEBERTA}
        source = dataclasses.replace(source, flags=flags)
    source = dataclasses.replace(source, json=source.json | changes)
    unk = None
    if model.get("unk_id") is not None:
        unk = model["vocab"][model["unk_id"]][0]
    return _wrapped(source, UnigramTokenizer, LAYOUTS[name], unk, tokenizer_class=name)


def _steps_of_albert(source: TokenizerFiles) -> dict[str, Any]:
    """Returns the normalizer with the flags of the files, if the one in tokenizer.json has others,
    as {"normalizer": normalizer}."""
    normalizer = steps(source.json.get("normalizer"))
    types = [step.get("type") for step in normalizer]
    actual = {"do_lower_case": "Lowercase" in types, "keep_accents": "StripAccents" not in types}
    wanted = {flag: source.flags.get(flag, value) for flag, value in actual.items()}
    if wanted == actual:
        return {}
    changed = state(normalizers.Sequence(steps_of_albert(**wanted)))
    changed["normalizers"] += [step for step in normalizer if "precompiled_charsmap" in step]
    return {"normalizer": changed}


def _refuse_two(source: TokenizerFiles, what: str, other: str) -> None:
    raise ValueError(
        f"{source.directory} has two tokenizers: the {what} in tokenizer.json differ from {other}. "
        "Delete the wrong files."
    )


def _unigram_class(source: TokenizerFiles) -> str:
    if source.tokenizer_class:
        return source.tokenizer_class
    if source.json:
        pieces = {piece for piece, _ in source.json["model"]["vocab"]}
        if {"[CLS]", SPECIAL_TOKENS.pad} <= pieces:
            return DEBERTA
        if "[CLS]" in pieces:
            return ALBERT_CLASS
        if "<s>NOTUSED" in pieces:
            return "CamembertTokenizer"
        return "XLMRobertaTokenizer"
    if source.file.name == "spm.model":
        return DEBERTA
    if source.file.name != "sentencepiece.bpe.model":
        return ALBERT_CLASS
    model_type = source.model.get("model_type")
    classes = {"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}
    dictionary = source.directory / DICTIONARY
    if model_type not in classes and dictionary.is_file():
        model_type = "xlm-roberta"
        if read_dictionary(dictionary, None)[4] == "<unk>":  # a second one
            model_type = "camembert"
    if model_type not in classes:
        raise ValueError(
            f"{source.file} may be from XLM-RoBERTa or CamemBERT, whose ids differ: add a "
            'tokenizer_config.json with {"tokenizer_class": "XLMRobertaTokenizer"} or '
            '"CamembertTokenizer" to its directory.'
        )
    return classes[model_type]


def _wrapped(
    source: TokenizerFiles,
    kind: type[Any],
    layout: Layout,
    unk: str | None = None,
    **options: Any,
) -> Any:
    """Loads tokenizer.json, with the settings of its class, by the library; wraps the result."""
    content = _as_transformers_reads(source.json, source.flags)
    source = dataclasses.replace(source, json=content)
    for part in _PARTS:
        _check_readable(source.file, part, content.get(part))
    with explaining_the_library():
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    side = (backend.truncation or {}).get("direction")
    backend.no_truncation()  # callers choose lengths
    backend.no_padding()
    model = content["model"]
    if source.kind == "Unigram":  # the library's parser of JSON rounds the scores
        pieces = [tuple(piece) for piece in model["vocab"]]
        fallback = model.get("byte_fallback", False)
        backend.model = models.Unigram(pieces, model.get("unk_id"), fallback)
    known = ("type", "vocab", "merges", "unk_id", "byte_fallback", *dir(backend.model))
    unread = [f"model.{name}" for name in model if name not in known]
    for part in _PARTS:
        unread += _unread(content.get(part), state(getattr(backend, part)), part)
    if unread:
        warn(f"{source.file} has fields of unknown meaning: {brief(unread, 120)}")
    layout = _with_named_tokens(source, backend, layout, unk)
    layout = _arranged(source, backend, layout)
    tokenizer = kind.wrap(backend, layout, **source.common, **options)
    tokenizer.truncation_side = side or "right"
    return tokenizer


def _as_transformers_reads(
    tokenizer_json: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a tokenizer.json with the flags of its class, and all fields of added tokens."""
    content = dict(tokenizer_json)
    for part in _PARTS:
        content[part] = copy.deepcopy(content.get(part))
        for step in steps(content[part]):
            if isinstance(table := step.get("precompiled_charsmap"), str):
                check_charsmap(base64.b64decode(table))
            for flag, field in _FIELDS.items():
                if flag in flags and field in step:
                    step[field] = flags[flag]
            if "prepend_scheme" in step and "add_prefix_space" in flags:
                step["prepend_scheme"] = "never"
                if flags["add_prefix_space"]:
                    step["prepend_scheme"] = "always"
    defaults = dict.fromkeys(("special", "single_word", "lstrip", "rstrip"), False)
    tokens = []
    for token in content.get("added_tokens") or ():
        if isinstance(token, dict) and "content" in token:
            is_normalized = not token.get("special")
            token = {**defaults, "normalized": is_normalized, **token}
        tokens.append(token)
    content["added_tokens"] = tokens
    return content


def _with_named_tokens(
    source: TokenizerFiles, backend: tokenizers.Tokenizer, layout: Layout, unk: str | None
) -> Layout:
    """Returns `layout` with the special tokens that the configs name, and the model's `unk`."""
    named = {}
    for name in SpecialTokens._fields:
        token = _content(source.config.get(f"{name}_token"))
        if name == "unk":
            token = unk or token
        if not token:
            continue
        if backend.token_to_id(str(token)) is None:
            raise ValueError(
                f"{source.directory} has {name}_token={brief(repr(token), 60)}, which the "
                f"vocabulary in {source.file.name} lacks: correct the name, or add the token."
            )
        named[name] = str(token)
    return dataclasses.replace(layout, special_tokens=layout.special_tokens._replace(**named))


def _check_readable(file: Path, part: str, step: Any) -> None:
    """Refuses a part of tokenizer.json that the installed library lacks, with its type."""
    kind = step
    if isinstance(step, dict):
        kind = step.get("type")
        for name in ("normalizers", "pretokenizers", "processors", "decoders"):
            members = step.get(name)
            if isinstance(members, list):
                for member in members:
                    _check_readable(file, part, member)
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    try:
        with explaining_the_library():
            tokenizers.Tokenizer.from_str(json.dumps({"model": empty, part: step}))
    except ValueError as error:
        raise ValueError(
            f"{file} has the {part} {brief(kind, 60)!r}, which tokenizers "
            f"{tokenizers.__version__} cannot read ({brief(error.__cause__, 80)}): update the "
            "library."
        ) from error


def _unread(written: Any, read: Any, name: str) -> Iterator[str]:
    """Yields the names of the fields of `written` that the library has not `read`."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key in written:
            # Older files have these two fields of Metaspace, which the library reads.
            if key in read or key in ("str_rep", "add_prefix_space"):
                yield from _unread(written[key], read.get(key), f"{name}.{key}")
            else:
                yield f"{name}.{key}"
    elif isinstance(written, list) and isinstance(read, list):
        for first, second in zip(written, read, strict=False):
            yield from _unread(first, second, name)


def _arranged(source: TokenizerFiles, backend: tokenizers.Tokenizer, layout: Layout) -> Layout:
    """Returns the layout that transformers makes: of the class or, if it keeps it, of the file."""
    with explaining_the_library():
        one = backend.encode("a")
        two = backend.encode("a", "b")
        a = backend.encode("a", add_special_tokens=False).ids
        b = backend.encode("b", add_special_tokens=False).ids
    name = source.tokenizer_class
    is_named = bool(source.config.get("tokenizer_class"))
    replaces = name != ""
    if name == ALBERT_CLASS and source.json.get("post_processor"):
        replaces = False
    if one.ids == a and (replaces or not is_named):
        if not is_named:
            warn(f"{source.file} adds no special tokens to a text: BERT's are added")
        backend.post_processor = None
        return layout
    special = layout.special_tokens
    cls = backend.token_to_id(special.cls)
    sep = backend.token_to_id(special.sep)
    tail = [*b, sep]
    separators = max(len(two.ids) - 1 - len(a) - len(tail), 1)  # between the two texts
    head = [cls, *a, *[sep] * separators]
    fits = one.ids == [cls, *a, sep] and two.ids == head + tail
    second = 0
    if layout.second_type:
        second = two.type_ids[-1]
        types = [0] * len(head) + [second] * len(tail)
        has_types = two.type_ids[1:] == types[1:] and not any(one.type_ids)
        fits = fits and has_types
    arranged = dataclasses.replace(layout, separators=separators, second_type=second)
    if fits and (arranged == layout or not replaces):
        return arranged
    problem = (
        f"{source.file} arranges two texts as {brief(two.tokens, 80)}, with the token types "
        f"{brief(two.type_ids, 40)}, by its post_processor"
    )
    if not replaces:
        raise ValueError(
            f"{problem}: only {special.cls} A {special.sep} B {special.sep} is supported."
        )
    warn(f"{problem}: it is replaced by that of {name}, as in transformers")
    backend.post_processor = None
    return layout


def _add_tokens(source: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Adds the tokens that the files beside the vocabulary declare, as transformers 5 does."""
    _check_special(source, tokenizer)
    named = _named_tokens(source.config)
    contents = [_content(token) for token in named]
    ids = {token["content"]: token["id"] for token in source.json.get("added_tokens") or []}
    declared = source.config.get("added_tokens_decoder")
    if declared is None:
        declared = {}
        for token, index in read_optional(source.directory / ADDED).items():
            if token not in ids:
                is_special = token in contents
                declared[index] = {
                    "content": token,
                    "special": is_special,
                    "normalized": not is_special,
                }
    tokens = {int(index): _added_token(token) for index, token in declared.items()}
    tokenizer.add_tokens([tokens[index] for index in sorted(tokens)])
    for index, token in tokens.items():
        ids[token.content] = index
    for token, index in ids.items():
        # The library leaves out empty tokens, which no text contains.
        actual = tokenizer.vocab.get(token, index)
        if actual != index:
            warn(
                f"{source.directory / CONFIG}: {brief(token)!r} is {actual}, as in transformers, "
                f"and not {index}"
            )
    known = {*ids, *(token.content for token in tokenizer.added())}
    more = []
    for token, content in zip(named, contents, strict=True):
        is_known = content in known
        if isinstance(token, dict):  # whose settings a token of the vocabulary alone lacks
            is_known = content in ids
        if not is_known:
            more.append(_added_token(token, special=True))
    tokenizer.add_tokens(more)


def _named_tokens(config: Mapping[str, Any]) -> list[Any]:
    """Returns the special tokens that the configs name, in the order in which they are added."""
    names = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    others = [name for name in config if name.endswith("_token") and name not in names]
    # Those with settings come before mere strings.
    names += sorted(others, key=lambda name: isinstance(config[name], str))
    tokens = []
    for name in names:
        token = config.get(name)
        if isinstance(token, str | dict):
            tokens.append(token)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        extra = extra.values()
    return [*tokens, *extra]


def _check_special(source: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Refuses names of special tokens in the configs that differ from those of the vocabulary."""
    special = tokenizer.layout.special_tokens
    names = special._asdict()
    if source.kind == "Unigram" and special.cls == "<s>":  # its class puts these around a text
        names |= {"bos": special.cls, "eos": special.sep}
    for name, token in names.items():
        said = _content(source.config.get(f"{name}_token"))
        # Nothing is inserted for the others, so that an empty name changes no id.
        if said not in (None, token) and (said or name in ("cls", "sep", "bos", "eos")):
            raise ValueError(
                f"{source.directory / CONFIG} has {name}_token={brief(said)}, but the vocabulary "
                f"has {token}: correct it."
            )


def _content(token: Any) -> Any:
    if isinstance(token, dict):
        return token.get("content")
    return token


def _added_token(token: Any, **changes: Any) -> AddedToken:
    fields = {"content": token}
    if isinstance(token, dict):
        fields = dict(token)
    fields.pop("__type", None)
    return AddedToken(**fields | changes)
