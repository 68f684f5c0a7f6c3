"""Learning a vocabulary: the same every time, never larger than asked."""

import contextlib
import dataclasses
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import bertjax
from bertjax import train_tokenizer
from bertjax.base.files import write_bytes
from bertjax.config import TrainTokenizerConfig
from bertjax.tokenization import load_tokenizer, train_wordpiece
from bertjax.tokenization.base import SPECIAL_TOKENS, count_words
from tests.cases import WEEKLY

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def text(tmp_path):
    """Random words, so that many pairs are equally frequent."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(1, 9))) for _ in range(3000)]
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(rng.choices(words, k=10)) + ".\n" for _ in range(1000)))
    return path


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("bpe", "unigram")),
        *(pytest.param(x, marks=WEEKLY) for x in ("wordpiece", "modernbert")),
    ],
)
def test_training_twice_in_two_processes_gives_equal_files(text, tmp_path, kind):
    files = []
    for name in ("one", "two"):
        command = [sys.executable, "-m", "bertjax.train_tokenizer", f"--input={text}"]
        subprocess.run(
            [*command, f"--kind={kind}", f"--output={tmp_path / name}", "--vocab_size=500"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=True,
            capture_output=True,
            timeout=60,
        )
        files.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert load_tokenizer(tmp_path / "one").vocab_size == 500


def test_bytes_that_are_replaced_are_counted(text, tmp_path, capsys):
    text.write_bytes(text.read_bytes() + b"caf\xe9 na\xefve\n")
    train_tokenizer(input=str(text), errors="replace", output=str(tmp_path / "a"), vocab_size=200)
    assert "replaced characters: 2\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_dropped_words_are_reported(text, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setattr(count_words, "__defaults__", (None, 9_000))
    config = TrainTokenizerConfig(
        input=(str(text),), output=str(tmp_path / "out"), kind=kind, vocab_size=300
    )
    train_tokenizer.run(config)
    assert "rare words were dropped" in capsys.readouterr().out
    assert load_tokenizer(tmp_path / "out").vocab_size == 300


def test_words_that_are_dropped_are_the_rare_ones_and_memory_is_bounded():
    rng = random.Random(0)
    common = {f"w{i}" for i in range(50)}
    texts = [rng.choices(sorted(common), k=5) + [f"x{i}"] for i in range(2000)]
    said = []
    counts = count_words(texts, said.append, most_characters=1000)
    assert sum(map(len, counts)) <= 1000 + 50
    true = Counter(word for text in texts for word in text)
    assert all(counts[word] == true[word] for word in common)  # never as rare as those dropped
    assert len(said) == 1 and "dropped" in said[0]
    assert count_words(texts, said.append) == true and len(said) == 1


def test_words_as_frequent_as_each_other_do_not_leave_nothing():
    counts = count_words([[f"x{i}"] for i in range(1000)], most_characters=50)
    assert "x999" in counts


def test_pairs_are_joined_in_order_of_how_often_they_occur():
    tokenizer = train_wordpiece(["abc"] * 5 + ["xbc"] * 4 + ["xy"] * 3, vocab_size=100)
    characters = ["a", "b", "c", "x", "y", "##b", "##c", "##y"]
    # b+c occurs 9 times, then a+bc 5, x+bc 4 and x+y 3.
    assert tokenizer.tokens == [*SPECIAL_TOKENS, *characters, "##bc", "abc", "xbc", "xy"]


def test_equally_frequent_pairs_are_joined_in_alphabetical_order():
    tokenizer = train_wordpiece(["ef cd ab"] * 3, vocab_size=100)
    assert tokenizer.tokens[-3:] == ["ab", "cd", "ef"]


@pytest.mark.parametrize("vocab_size", [6, 20, 37, 38, 60])
def test_a_vocabulary_is_never_larger_than_asked(text, vocab_size):
    tokenizer = train_wordpiece(text.read_text().splitlines(), vocab_size=vocab_size)
    assert tokenizer.vocab_size == vocab_size


def test_too_small_a_vocabulary_keeps_the_most_frequent_characters():
    tokenizer = train_wordpiece(["ab c", "a c", "a"], vocab_size=7)
    assert tokenizer.tokens == [*SPECIAL_TOKENS, "a", "c"]


def test_a_vocabulary_without_room_for_a_character_is_refused():
    with pytest.raises(ValueError, match="vocab_size=5 must be at least 6"):
        TrainTokenizerConfig(input=("text",), output="out", vocab_size=5)
    with pytest.raises(ValueError, match="vocab_size=260 must be at least 261"):
        TrainTokenizerConfig(input=("text",), output="out", kind="bpe", vocab_size=260)


def test_a_corpus_without_words_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n")
    config = TrainTokenizerConfig(input=(str(path),), output=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="no word to learn"):
        train_tokenizer.run(config)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_is_trained_from_python(text, tmp_path):
    output = tmp_path / "tokenizer"
    tokenizer = bertjax.train_tokenizer(input=str(text), vocab_size=100, output=str(output))
    assert tokenizer.vocab_size == 100
    assert load_tokenizer(output).fingerprint == tokenizer.fingerprint


def test_the_vocabulary_of_a_model_is_extended_and_the_tokens_saved_are_said(
    text, tmp_path, capsys, encoder, tokenizer
):
    text.write_text(text.read_text().translate(str.maketrans("klmnop", "abcdef")))
    flags = ["--extend", str(encoder), "--add", "25", "--input", str(text)]
    assert train_tokenizer.main([*flags, "--output", str(tmp_path / "one")]) == 0
    new = load_tokenizer(tmp_path / "one")
    assert new.tokens[: tokenizer.vocab_size] == tokenizer.tokens
    assert new.vocab_size == tokenizer.vocab_size + 25
    said = " ".join(capsys.readouterr().out.split())
    assert f"25 entries added to the {tokenizer.vocab_size} of {encoder}" in said
    assert "% fewer; one token per word would be" in said
    # A checkpoint of TF1 and the workdir of a run have their tokenizer in other places.
    tokenizer.save(tmp_path / "run" / "tokenizer")
    (tmp_path / "run" / "run.json").write_text("{}")
    tokenizer.save(tmp_path / "google")
    (tmp_path / "google" / "bert_model.ckpt.index").touch()
    for model in (tmp_path / "run", tmp_path / "google" / "bert_model.ckpt"):
        again = bertjax.train_tokenizer(
            input=(str(text),), extend=str(model), add=25, output=str(tmp_path / model.name / "new")
        )
        assert again.fingerprint == new.fingerprint


def test_the_characters_that_a_vocabulary_lacked_are_said(tmp_path, capsys, encoder):
    (tmp_path / "a.txt").write_text("ძაღლი დიდია. კატა პატარაა.\n" * 9, encoding="utf-8")
    flags = [f"--extend={encoder}", "--add=40", f"--input={tmp_path / 'a.txt'}"]
    assert train_tokenizer.main([*flags, f"--output={tmp_path / 'new'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "entries added" in said
    assert "Characters added that the vocabulary lacked: 20." in said
    assert "Characters of the text in unknown tokens: 91.30% before, 0.00% now." in said
    assert "before with the new characters alone" in said and "-" not in said.split("now, ")[-1]


def test_settings_without_effect_are_refused():
    fields = {"input": ("text",), "output": "out"}
    with pytest.raises(ValueError, match="kind='bpe' has no effect with --ext"):
        TrainTokenizerConfig(**fields, extend="m", kind="bpe", vocab_size=300)
    with pytest.raises(ValueError, match="add=7 has no effect without --extend"):
        TrainTokenizerConfig(**fields, add=7)
    with pytest.raises(ValueError, match="add=0: it must be at least 1"):
        TrainTokenizerConfig(**fields, extend="m", add=0)


@pytest.mark.parametrize("after", range(1, 8))
@pytest.mark.parametrize("stops", ["full disk", "kill"])
def test_an_unfinished_tokenizer_is_written_by_the_same_command_again(
    tmp_path, monkeypatch, after, stops
):
    (tmp_path / "text.txt").write_text("one short text, and another one\n" * 9)
    given = {"input": (str(tmp_path / "text.txt"),), "vocab_size": 40}
    config = TrainTokenizerConfig(output=str(tmp_path / "out"), **given)
    done = 0

    class Killed(BaseException):
        pass

    def stopping(function):
        def call(*args, **options):
            nonlocal done
            done += 1
            if done == after:
                raise OSError(28, "No space left on device") if stops == "full disk" else Killed
            return function(*args, **options)

        return call

    monkeypatch.setattr("bertjax.tokenization.base.write_bytes", stopping(write_bytes))
    monkeypatch.setattr("pathlib.Path.touch", stopping(Path.touch))
    monkeypatch.setattr("os.replace", stopping(os.replace))
    with contextlib.suppress(OSError, Killed):
        train_tokenizer.run(config)
    monkeypatch.undo()
    if after > done:
        with pytest.raises(ValueError, match="is not empty"):
            train_tokenizer.run(config)
    else:
        assert not (tmp_path / "out" / "tokenizer_config.json").exists() or after > 5
        train_tokenizer.run(config)
    train_tokenizer.run(dataclasses.replace(config, output=str(tmp_path / "whole")))
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("out", "whole")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", ["vocab.txt", "notes.txt", "tokenizer.json", "sub/a.txt"])
def test_no_file_of_the_user_is_replaced_by_a_tokenizer(text, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("[PAD]\n")
    with pytest.raises(ValueError, match="is not empty: choose another --output"):
        train_tokenizer(input=str(text), output=str(tmp_path / "out"), vocab_size=300)
    if name == "notes.txt":  # not even in a folder that is unfinished
        (tmp_path / "out" / ".unfinished").touch()
        with pytest.raises(ValueError, match="is not empty: choose another --output"):
            train_tokenizer(input=str(text), output=str(tmp_path / "out"), vocab_size=300)
    assert path.read_text() == "[PAD]\n"
