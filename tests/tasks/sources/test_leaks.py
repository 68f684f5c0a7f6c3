"""Rows of dev and test that are in train are found: equal ones, and nearly equal ones."""

import dataclasses
import json
import types
from typing import Any

import numpy as np
import pytest

from bertjax.tasks import finetune_config, make_task
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.dataset import Dataset, Example, Leak
from bertjax.tasks.sources import leaks
from bertjax.tasks.sources.leaks import band_keys, find_leaks, normalized, similarity
from bertjax.train.facts import gather_finetuning
from bertjax.train.finetuning import FinetuningJob

# Letters of five languages; Chinese and Thai have no spaces, and the others words of usual length.
ALPHABETS = {
    "English": "etaoinshrdlucmfwypvbgk",
    "Russian": "оеаинтсрвлкмдпуя",
    "Arabic": "اليمنتبرعدسفكحق",
    "Chinese": "".join(map(chr, range(0x4E00, 0x4E00 + 900))),
    "Thai": "กขคงจชซญดตถทนบปผพมยรลวสหอะาิีุูเแโไ",
}
UNSPACED = ("Chinese", "Thai")


def words_of(language: str, rng) -> np.ndarray:
    letters = np.array(list(ALPHABETS[language]))
    most = {"Chinese": 4, "Thai": 7}.get(language, 9)
    return np.array(["".join(rng.choice(letters, rng.integers(2, most))) for _ in range(1000)])


def sentence(words: list[str], language: str) -> str:
    return ("" if language in UNSPACED else " ").join(words)


def dataset(**texts: list[str]) -> Dataset:
    def parse(split, counts):
        for number, text in enumerate(texts[split]):
            yield Example(id=str(number), where=f"{split} {number}", text=text)

    return Dataset.read("texts", {split: split for split in texts}, parse)


def jaccard(a: str, b: str) -> float:
    """Restates the similarity: runs of six bytes of the normalised texts."""
    sets = []
    for text in (a, b):
        data = normalized(text).encode()
        sets.append({data[i : i + 6] for i in range(max(len(data) - 5, 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("language", ALPHABETS)
def test_copies_and_near_copies_are_found_in_languages_with_and_without_spaces(language):
    rng = np.random.default_rng(0)
    vocabulary = words_of(language, rng)
    train, dev, true, different = [], [], [], []
    for number in range(360):
        words = list(rng.choice(vocabulary, 20))
        first, second = sentence(words[:10], language), sentence(words[10:], language)
        changed = list(words)
        for place in rng.choice(20, number % 3 * 3 + 1, replace=False):
            changed[place] = str(rng.choice(vocabulary))
        text = f"{first}. {second}."
        copy = (
            f"  {text.upper()}\n",
            f"{second}. {first}.",
            f"{sentence(changed[:10], language)}. {sentence(changed[10:], language)}.",
        )[number // 3 % 3]
        train.append(text)
        dev.append(copy)
        value = jaccard(text, copy)
        assert similarity(normalized(text).encode(), normalized(copy).encode()) == value
        true += [number] * (value >= 0.8)
        different += [number] * (value <= 0.5)
    leaks = find_leaks(dataset(train=train, dev=dev))
    found = {int(leak.where.split()[1]) for leak in leaks}
    assert len(true) > 150 and len(different) > 20
    assert len(found.intersection(true)) >= 0.95 * len(true)
    assert not found.intersection(different)
    assert all(leak.where.split()[1] == leak.train.split()[1] for leak in leaks)


def test_one_changed_word_in_twenty_is_mostly_a_near_copy():
    rng = np.random.default_rng(1)
    for language in ALPHABETS:
        vocabulary, values = words_of(language, rng), []
        for _ in range(200):
            words = list(rng.choice(vocabulary, 20))
            changed = [*words[:9], str(rng.choice(vocabulary)), *words[10:]]
            values.append(jaccard(sentence(words, language), sentence(changed, language)))
        assert np.mean(np.array(values) >= 0.8) > 0.7


def test_the_minima_of_bands_agree_as_often_as_theory_says():
    rng = np.random.default_rng(2)
    vocabulary = words_of("English", rng)
    agree, expected = [], []
    for _ in range(400):
        words = list(rng.choice(vocabulary, 40))
        changed = list(words)
        for place in rng.choice(40, 6, replace=False):
            changed[place] = str(rng.choice(vocabulary))
        texts = [" ".join(words), " ".join(changed)]
        first, second = band_keys([text.encode() for text in texts])
        agree.append((first == second).mean())
        expected.append(jaccard(*texts) ** 6)
    assert np.mean(agree) == pytest.approx(np.mean(expected), abs=0.02)


def test_short_texts_are_compared_whole_and_unicode_and_case_do_not_matter():
    leaks = find_leaks(
        dataset(train=["ok", "Ｃafé", "no", "x"], dev=["OK ", "cafe\u0301", "n\u043e"])
    )
    assert {(leak.where, leak.train) for leak in leaks} == {
        ("dev 0", "train 0"),
        ("dev 1", "train 1"),
    }


def test_both_texts_of_a_pair_must_be_similar():
    passage = "a long passage about which many questions are asked, one after the other"

    def parse(split, counts):
        yield Example(id="0", where=f"{split} 0", text=f"what about {split}?", pair=passage)
        yield Example(id="1", where=f"{split} 1", text="the same question?", pair=f"{passage}.")

    data = Dataset.read("pairs", {"train": "a", "dev": "b"}, parse)
    assert find_leaks(data) == (Leak("dev", "dev 1", "train 1", 1.0),)


def test_many_copies_give_a_pair_per_row_not_all_pairs():
    data = dataset(train=["the same text again"] * 300, dev=["the same text again"] * 200)
    leaks = find_leaks(data)
    assert len(leaks) == 200 + 300 - 1
    assert {leak.where for leak in leaks} == {f"dev {i}" for i in range(200)}
    assert {leak.train for leak in leaks} == {f"train {i}" for i in range(300)}


def test_a_note_of_a_template_is_compared_with_few_others_and_its_copy_is_found(monkeypatch):
    rng = np.random.default_rng(3)
    vocabulary = words_of("English", rng)
    form = list(rng.choice(vocabulary, 60))
    train = [sentence([*form, *rng.choice(vocabulary, 20)], "English") for _ in range(300)]
    dev = [sentence([*form, *rng.choice(vocabulary, 20)], "English") for _ in range(100)]
    dev += train[250:]
    compared = []
    of_sets = leaks._similarity
    monkeypatch.setattr(leaks, "_similarity", lambda a, b: compared.append(1) or of_sets(a, b))
    found = {leak.where for leak in find_leaks(dataset(train=train, dev=dev))}
    assert len(compared) <= leaks.MOST_CANDIDATES * len(train)
    assert found >= {f"dev {number}" for number in range(100, 150)}


@pytest.fixture
def files(tmp_path):
    rows = [
        f"Note {n}: the patient number {n * 7919} came on foot,{'ab'[n % 2]}\n" for n in range(60)
    ]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(rows))
    other = [row.replace("Note", "Other").replace("foot", "a horse by night") for row in rows[:30]]
    copies = [row.upper().replace(",A", ",a").replace(",B", ",b") for row in rows[30:40]]
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(other[:20] + copies[:6]))
    (tmp_path / "test.csv").write_text("text,label\n" + "".join(copies[6:]))
    return {name: str(tmp_path / f"{name}.csv") for name in ("train", "dev", "test")}


def test_leaks_are_counted_and_left_out_of_the_split_that_the_user_names(files, capsys, tmp_path):
    task = make_task("classify", ClassifyOptions(**files))
    said = capsys.readouterr().out
    assert "6 of the 26 examples of dev (23.1%) and 4 of the 4 examples of test (100.0%)" in said
    task.data.write_leaks(tmp_path / "leaks.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "leaks.jsonl").read_text().splitlines()]
    assert len(lines) == 10 and lines[0]["train"] == f"{files['train']}, row 32"
    assert lines[0]["where"] == f"{files['dev']}, row 22" and lines[0]["similarity"] == 1.0
    sizes = {}
    for drop in ("train", "dev"):
        source = make_task("classify", ClassifyOptions(**files, drop_leaks=drop)).data
        sizes[drop] = [len([*source.examples(split)]) for split in ("train", "dev", "test")]
        assert len(source.leaks) == 10 and not source.all_bad_rows()
    assert sizes == {"train": [50, 26, 4], "dev": [60, 20, 4]}


def test_dropped_leaks_are_no_warning_and_a_split_of_leaks_alone_is_refused(files, capsys):
    del files["dev"]
    options = ClassifyOptions(**files, dev_fraction=0, drop_leaks="train")
    make_task("classify", options)
    said = capsys.readouterr().out
    assert "4 examples of train are left out" in said and "warning" not in said
    make_task("classify", dataclasses.replace(options, drop_leaks="dev"))
    said = capsys.readouterr().out
    assert "of dev are left out" not in said and "warning: 4 of the 4 examples of test" in said
    copied = dataclasses.replace(options, test=files["train"])
    with pytest.raises(ValueError, match="--drop_leaks train: all 60 examples of train are in"):
        make_task("classify", copied)


def test_leaks_of_official_tasks_are_counted_and_nothing_is_left_out(tmp_path, capsys):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    rows = [f"a film with number {n * 7919}\t{n % 2}\n" for n in range(20)]
    (folder / "train.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    (folder / "dev.tsv").write_text("sentence\tlabel\n" + "".join(rows[:3]) + "another one\t1\n")
    config = finetune_config(task="sst2", data_dir=str(tmp_path), init="bertjax:tiny")
    facts = gather_finetuning(config, tmp_path, [])
    assert "3 of the 4 examples of dev (75.0%) are in train" in capsys.readouterr().out
    assert facts.data.examples == 20 and len({leak.where for leak in facts.task.data.leaks}) == 3
    workdir = types.SimpleNamespace(path=tmp_path)
    job: Any = types.SimpleNamespace(
        task=facts.task,
        workdir=workdir,
        data=facts.data,
        max_length=128,
        plan=types.SimpleNamespace(lines=[]),
    )
    FinetuningJob.claimed(job)
    assert len((tmp_path / "leaks.jsonl").read_text().splitlines()) >= 3
