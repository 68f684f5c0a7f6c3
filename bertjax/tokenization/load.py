"""Opens the tokenizer of a model directory, or a bare vocabulary file."""

import json
from pathlib import Path

from bertjax.tokenization.wordpiece import WordPieceTokenizer, looks_cased


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> WordPieceTokenizer:
    """Loads a tokenizer from a directory, a `vocab.txt` or a `tokenizer.json`.

    Args:
        path: the directory or file.
        do_lower_case: overrides what the files say. When neither says, a vocabulary that holds
            capital letters is taken as cased, any other as uncased.

    Raises:
        FileNotFoundError: nothing at `path` is a vocabulary.
        ValueError: the vocabulary does not suit BERT, or contradicts `do_lower_case`.
    """
    path = Path(path)
    directory, names = (
        (path, ("tokenizer.json", "vocab.txt")) if path.is_dir() else (path.parent, (path.name,))
    )
    file = next((directory / name for name in names if (directory / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"No tokenizer at {path}: expected a directory with tokenizer.json or vocab.txt, "
            "or one of these files."
        )
    read = _read_tokenizer_json if file.suffix == ".json" else _read_vocab_txt
    vocab, settings = read(file)
    config_file = directory / "tokenizer_config.json"
    if config_file.is_file():
        config = _read_json(config_file)
        _refuse_other_kinds(config.get("tokenizer_class"), config_file)
        if do_lower_case is None:
            _refuse_disagreement(settings, config, file, config_file)
        for name in (*_SETTINGS, "model_max_length"):
            if name in config:
                settings.setdefault(name, config[name])
    if do_lower_case is not None:
        settings["do_lower_case"] = do_lower_case
    settings.setdefault("do_lower_case", not looks_cased(vocab))
    # transformers writes 1e30 for "no limit".
    settings["model_max_length"] = int(min(settings.get("model_max_length", 512), 2**31 - 1))
    return WordPieceTokenizer(vocab, **settings)


_SETTINGS = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")


def _read_vocab_txt(file: Path) -> tuple[dict[str, int], dict]:
    # Only "\n" ends a line: splitlines() would also split at U+2028, which is an entry of some
    # released vocabularies.
    with file.open(encoding="utf-8-sig", newline="") as opened:
        lines = opened.read().split("\n")
    tokens = [line.rstrip("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        seen: set[str] = set()
        twice = [token for token in tokens if token in seen or seen.add(token)]
        raise ValueError(
            f"{file} holds {len(twice)} entries twice (first: {twice[0]!r}): make each line unique."
        )
    return vocab, {}


def _read_tokenizer_json(file: Path) -> tuple[dict[str, int], dict]:
    content = _read_json(file)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{file} has no 'model': it is not a tokenizer of the tokenizers library.")
    _refuse_other_kinds(model.get("type"), file)
    if not isinstance(model.get("vocab"), dict):
        raise ValueError(f"{file} has no vocabulary in its 'model': fetch it again.")
    vocab = dict(model["vocab"])
    for added in content.get("added_tokens", []):
        vocab.setdefault(added["content"], added["id"])
    normalizer = content.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return vocab, {}
    return vocab, {
        "do_lower_case": normalizer["lowercase"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        "strip_accents": normalizer["strip_accents"],
    }


def _read_json(file: Path) -> dict:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}): fetch or write it again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object: fetch or write it again.")
    return content


def _refuse_disagreement(settings: dict, config: dict, file: Path, config_file: Path) -> None:
    """Refuses a tokenizer_config.json that says other than tokenizer.json."""

    def value(said: dict, name: str) -> object:
        found = said.get(name)
        if name == "strip_accents" and found is None:
            return said.get("do_lower_case", settings["do_lower_case"])
        return found

    names = [name for name in _SETTINGS if name in settings and name in config]
    different = [
        f"{name} is {settings[name]} in {file.name}, {config[name]} in {config_file.name}"
        for name in names
        if value(settings, name) != value(config, name)
    ]
    if different:
        raise ValueError(
            f"{file.parent} contradicts itself: {'; '.join(different)}. Correct one of them, or "
            f"delete {file.name} if {config_file.name} and vocab.txt are right."
        )


def _refuse_other_kinds(kind: str | None, file: Path) -> None:
    known = (
        None,
        "WordPiece",
        "BertTokenizer",
        "BertTokenizerFast",
        "PreTrainedTokenizerFast",
        "DistilBertTokenizer",
        "DistilBertTokenizerFast",
        "TokenizersBackend",
    )
    if kind not in known:
        raise ValueError(f"{file} describes a {kind}: only WordPiece tokenizers are supported.")
