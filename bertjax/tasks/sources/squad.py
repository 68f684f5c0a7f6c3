"""Questions on passages, from JSON as SQuAD publishes it (Rajpurkar et al. 2016; 2018)."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bertjax.tasks.task import Example

# The label of a question that its passage does not answer.
IMPOSSIBLE = "impossible"
# Where an answer starts that does not stand in its passage.
NOWHERE = -1
FOLDERS = ("", "squad", "SQuAD", "SQUAD")


class SquadSource:
    """Examples from JSON files: SQuAD's own, or a user's in the same form.

    The accepted answers keep their order. One that does not stand where its `answer_start` says is
    looked for nearby; nowhere in the passage, it serves for scores alone and starts at -1. A train
    split leaves out the questions that have only such answers.

    Attributes:
        splits: those that have a file.
        counts: what was mended or left out, by split and reason, of the splits read so far.
    """

    def __init__(self, files: Mapping[str, Path | str]):
        """Takes a file for each split.

        Raises:
            FileNotFoundError: one of them does not exist.
        """
        self.files = {split: Path(path).expanduser() for split, path in files.items()}
        for split, path in self.files.items():
            if not path.is_file():
                raise FileNotFoundError(f"{path} (the {split} split) does not exist.")
        self.splits = tuple(self.files)
        self.counts: Counter[str] = Counter()

    @classmethod
    def in_directory(cls, data_dir: Path | str, version: Literal["1.1", "2.0"]) -> "SquadSource":
        """Finds `train-v1.1.json` and `dev-v1.1.json`, or those of 2.0; a part of one will do.

        Raises:
            FileNotFoundError: neither is there.
            ValueError: several files may be meant.
        """
        data_dir = Path(data_dir).expanduser()
        for folder in FOLDERS:
            found = {split: _find(data_dir / folder, split, version) for split in ("train", "dev")}
            files = {split: path for split, path in found.items() if path is not None}
            if files:
                return cls(files)
        raise FileNotFoundError(
            f"Neither train-v{version}.json nor dev-v{version}.json lies in {data_dir}: give "
            "--data_dir the folder of SQuAD's files, or leave it out for TFDS."
        )

    def examples(self, split: str) -> Iterator[Example]:
        """The questions of a split in the order of its file.

        Raises:
            ValueError: there is no such split, or something is missing or of another form; the
                question is named.
        """
        if split not in self.files:
            raise ValueError(f"There is no split {split!r}; there are: {', '.join(self.splits)}.")
        for reason in [key for key in self.counts if key.startswith(f"{split}: ")]:
            del self.counts[reason]
        path = self.files[split]
        for article_number, article in enumerate(_articles(path), 1):
            place = f"{path}, article {article_number}"
            for number, paragraph in enumerate(_get(article, "paragraphs", list, place), 1):
                at = f"{place}, paragraph {number}"
                context = _text(paragraph, "context", at)
                for question in _get(paragraph, "qas", list, at):
                    example = self._example(split, question, context, at)
                    if example is not None:
                        yield example

    def _example(self, split: str, question: Any, context: str, place: str) -> Example | None:
        name = question.get("id") if isinstance(question, dict) else None
        if not isinstance(name, str | int) or name == "":
            raise ValueError(f'{place}: a question has no "id": give each a text of its own.')
        where = f"{place}, question {name}"
        text = _text(question, "question", where)
        if question.get("is_impossible"):
            return Example(id=str(name), where=where, text=text, pair=context, label=IMPOSSIBLE)
        answers = []
        for answer in _get(question, "answers", list, where) if "answers" in question else []:
            answer_text = _text(answer, "text", where)
            given = answer.get("answer_start", 0)
            if not isinstance(given, int):
                raise ValueError(f"{where}: answer_start is {given!r}; it must be a whole number.")
            answers.append((answer_text, nearest(answer_text, context, given)))
            if answers[-1][1] not in (given, NOWHERE):
                self.counts[f"{split}: answers moved to where they stand in the passage"] += 1
        if split == "train" and answers and all(start == NOWHERE for _, start in answers):
            self.counts["train: questions left out, their answers stand nowhere"] += 1
            return None
        return Example(id=str(name), where=where, text=text, pair=context, answers=tuple(answers))


def nearest(text: str, context: str, start: int) -> int:
    """Where the occurrence of a text begins that is nearest to a character; -1 if there is none."""
    if not text.strip():
        return NOWHERE
    if start >= 0 and context.startswith(text, start):
        return start
    before = context.rfind(text, 0, max(start, 0) + len(text))
    behind = context.find(text, max(start, 0))
    found = [place for place in (before, behind) if place >= 0]
    return min(found, key=lambda place: abs(place - start), default=NOWHERE)


def _find(folder: Path, split: str, version: str) -> Path | None:
    whole = folder / f"{split}-v{version}.json"
    if whole.is_file():
        return whole
    parts = sorted(folder.glob(f"{split}-v{version}*.json"))
    if len(parts) > 1:
        raise ValueError(
            f"{folder} holds {len(parts)} files for the {split} split: "
            f"{', '.join(part.name for part in parts)}. Keep one of them, or give it by --{split}."
        )
    return parts[0] if parts else None


def _articles(path: Path) -> list[Any]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON in UTF-8 ({error}).") from error
    return _get(document, "data", list, str(path))


def _text(value: Any, key: str, where: str) -> str:
    text = _get(value, key, str, where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {key!r} holds half a character (\\u{ord(text[error.start]):04x}) at "
            f"{error.start}: remove it."
        ) from error
    return text


def _get(value: Any, key: str, kind: type, where: str) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        names = {list: "a list", str: "a text"}
        raise ValueError(
            f"{where}: {key!r} should be {names[kind]}, but is {str(found)[:50]!r}. The form is "
            '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...", '
            '"answers": [{"text": "...", "answer_start": 0}]}]}]}]}.'
        )
    return found
