import dataclasses
import errno
import gzip
import hashlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from bertjax import prepare
from bertjax.base.lock import Locked
from bertjax.base.signals import STOPPED, Interrupted, signals_raise
from bertjax.config import PrepareConfig
from bertjax.data import records
from bertjax.data.metadata import open_prepared, shard_paths
from bertjax.data.preparation import chunks, prepared_dir, workers
from bertjax.data.preparation.chunks import held_out_documents
from bertjax.data.preparation.segments import OBJECTIVES
from bertjax.data.records import decode_row
from bertjax.data.text import streams
from bertjax.tokenization import load_tokenizer, train_bpe, train_wordpiece
from tests.base.test_lock import without_flock
from tests.cases import WEEKLY

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"
WORDS = [a + b for a in "bdfgklmnprst" for b in ("a", "en", "ing", "o", "ub", "ed", "ist")]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([" ".join(WORDS)] * 3, vocab_size=200).save(directory)
    return directory


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """120 documents of random words, one sentence a line."""
    rng = random.Random(0)
    documents = [
        "".join(
            " ".join(rng.choices(WORDS, k=rng.randrange(3, 25))) + ".\n"
            for _ in range(rng.randrange(1, 30))
        )
        for _ in range(120)
    ]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(documents))
    return path


@pytest.fixture
def config(tokenizer_dir, text, tmp_path):
    """Several small chunks, prepared in this process."""
    return PrepareConfig(
        input=(str(text),),
        tokenizer=str(tokenizer_dir),
        output=str(tmp_path / "out"),
        max_length=(32,),
        num_processes=1,
        chunk_mb=0.02,
        eval_fraction=0.1,
        text_format="lines",
    )


def rows(directory, split="train", length=32):
    found = []
    for path in shard_paths(directory, split, length):
        reader = ArrayRecordReader(path)
        found += [decode_row(record) for record in reader.read_all()]
        reader.close()
    return found


def contents(directory, pattern="*.array_record"):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(directory).glob(pattern))
    }


def test_counts_in_the_metadata_are_exact(config):
    config = dataclasses.replace(config, max_length=(64, 32), dupe_factor=2)
    metadata = prepare.run(config)
    assert metadata == open_prepared(config.output)
    assert metadata is not None and metadata.chunks > 3 and metadata.max_lengths == [32, 64]
    splits = metadata.splits.values()
    assert sum(split.documents for split in splits) == 120
    lines = Path(config.input[0]).read_text().split("\n")
    assert sum(split.sentences for split in splits) == sum(map(bool, lines))
    for split, summary in metadata.splits.items():
        for length in (32, 64):
            found = rows(config.output, split, length)
            content = summary.lengths[str(length)]
            assert content.records == content.sequences == len(found) > 0
            assert content.tokens == sum(len(row.input_ids) for row in found)
            assert content.labels == dict(Counter(str(row.labels[0]) for row in found))
            expected = np.bincount([len(r.input_ids) for r in found], minlength=length + 1)
            assert content.length_counts == expected.tolist()


def test_a_vocabulary_that_does_not_fit_the_text_is_warned_of(config, tmp_path, capsys):
    tokenizer = load_tokenizer(config.tokenizer)
    words = {word for word in Path(config.input[0]).read_text().split() if word.isalpha()}
    known = [w for w in sorted(words) if tokenizer.unk_token_id not in tokenizer.encode([w])[0]]
    for number, words in enumerate((known[:9], [*known[:7], "και", "你"])):
        text = tmp_path / f"{number}.txt"
        text.write_text("\n\n".join([" ".join(words) + "\n" + " ".join(known)] * 50))
        made = dataclasses.replace(config, input=(str(text),), output=str(tmp_path / str(number)))
        metadata = prepare.run(dataclasses.replace(made, eval_fraction=0))
        out = " ".join(capsys.readouterr().out.split())
        assert metadata is not None
        unknown, tokens = 100 * number, metadata.splits["train"].text_tokens
        assert metadata.counts.get("unknown_tokens", 0) == unknown
        warning = f"of the text are in unknown tokens, {unknown / tokens:.1%} of its tokens, from"
        assert (warning in out) == bool(number)


@pytest.mark.parametrize("end", ["。", ""])
def test_pairs_that_teach_little_are_warned_of(config, tmp_path, capsys, end):
    sentences = [f"{' '.join(WORDS[n % 50 : n % 50 + 9])}{end}" for n in range(120)]
    for size in (1, 12):
        texts = [" ".join(sentences[n : n + size]) for n in range(0, 120, size)]
        text = tmp_path / f"{size}.jsonl"
        text.write_text("\n".join(json.dumps({"text": t}) for t in texts))
        output, path = str(tmp_path / str(size)), (str(text),)
        made = dataclasses.replace(config, input=path, output=output, text_format="auto")
        metadata = prepare.run(dataclasses.replace(made, eval_fraction=0))
        assert metadata is not None
        out = " ".join(capsys.readouterr().out.split())
        content = metadata.splits["train"].lengths["32"]
        share = content.labels.get("0", 0) / content.sequences
        warning = f"warning: {share:.1%} of the {content.sequences:,} nsp pairs of length 32 are"
        assert (warning in out) == (size == 1 or not end)
        assert ("warning: 100.0% of the" in out) == (not end)
        made = dataclasses.replace(made, objective="full_sentences", overwrite=True)
        assert prepare.run(made) and "consecutive text" not in capsys.readouterr().out


@pytest.mark.parametrize("end", [".", "؟"])
def test_copies_are_counted_and_warned_of(config, tmp_path, capsys, end):
    rng = random.Random(0)
    documents = [
        "\n".join(" ".join(rng.choices(WORDS, k=9)) + end for _ in range(5)) for _ in range(20)
    ]
    menu = "\n".join(" ".join(WORDS[n : n + 9]) for n in range(9))
    for number, (texts, copies, repeated) in enumerate(
        [(documents, 0, 0), (documents + documents[:4], 4, 20)]
        + [([f"{menu}\n{text}" for text in documents], 0, 171)]
    ):
        text = tmp_path / f"{number}.txt"
        text.write_text("\n\n".join(texts))
        made = dataclasses.replace(config, input=(str(text),), output=str(tmp_path / str(number)))
        metadata = prepare.run(dataclasses.replace(made, chunk_mb=8))
        assert metadata is not None
        assert metadata.counts.get("duplicate_documents", 0) == copies
        assert metadata.counts.get("repeated_sentences", 0) == repeated
        out = " ".join(capsys.readouterr().out.split())
        assert (f"warning: {copies / len(texts):.1%} of the documents repeat" in out) == bool(
            number
        )


def test_packed_rows_hold_the_same_sequences(config, tmp_path):
    config = dataclasses.replace(config, dupe_factor=2, short_seq_prob=0.7)
    packed = dataclasses.replace(config, output=str(tmp_path / "p"), pack=True, max_sequences=3)
    alone, together = prepare.run(config), prepare.run(packed)
    assert alone is not None and together is not None and together.max_sequences == 3
    assert open_prepared(packed.output) == together
    for split in ("train", "eval"):
        found = rows(packed.output, split)
        sequences = []
        for row in found:
            assert len(row.input_ids) <= 32 and len(row.lengths) <= 3
            ends = np.cumsum(row.lengths)[:-1]
            ids = [part.tolist() for part in np.split(row.input_ids, ends)]
            sequences += zip(ids, row.a_lengths, row.labels, strict=True)
        single = rows(config.output, split)
        assert sorted(sequences) == sorted(
            (row.input_ids.tolist(), row.a_lengths[0], row.labels[0]) for row in single
        )
        one, several = (m.splits[split].lengths["32"] for m in (alone, together))
        assert several.records == len(found) < several.sequences == len(single)
        for name in ("sequences", "tokens", "labels", "length_counts", "attended"):
            assert getattr(one, name) == getattr(several, name)


def test_rows_are_pairs_with_special_tokens_in_place(config):
    prepare.run(config)
    tokenizer = load_tokenizer(config.output)
    for row in rows(config.output):
        ids, a_length = row.input_ids, row.a_lengths[0]
        assert len(ids) == row.lengths[0] <= 32
        assert ids[0] == tokenizer.cls_token_id
        separators = np.flatnonzero(ids == tokenizer.sep_token_id)
        assert separators.tolist() == [a_length - 1, len(ids) - 1]
        assert row.labels[0] in (0, 1)


@pytest.mark.parametrize("objective", ["sop", "mlm"])
def test_other_objectives_have_their_labels(config, objective):
    prepare.run(dataclasses.replace(config, objective=objective))
    expected = {0, 1} if OBJECTIVES[objective].has_sentence_pairs else {-1}
    assert {row.labels[0] for row in rows(config.output)} == expected


def test_single_segments_hold_all_text_in_order(config):
    config = dataclasses.replace(config, objective="mlm", eval_fraction=0)
    prepare.run(config)
    tokenizer = load_tokenizer(config.output)
    lines = Path(config.input[0]).read_text().split("\n")
    expected = [token for ids in tokenizer.encode(lines) for token in ids]
    assert [token for row in rows(config.output) for token in row.input_ids[1:-1]] == expected


@pytest.fixture(scope="module")
def bpe_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bpe")
    train_bpe([" ".join(WORDS)] * 3, vocab_size=350).save(directory)
    return directory


def text_of(config):
    """Ids of the documents of the input, one space between sentences."""
    tokenizer = load_tokenizer(config.output)
    documents = Path(config.input[0]).read_text().split("\n\n")
    return tokenizer.encode([" ".join(document.split("\n")).strip() for document in documents])


@pytest.mark.parametrize("objective", ["mlm", "full_sentences"])
def test_rows_of_a_byte_level_bpe_hold_the_text_with_its_spaces(config, bpe_dir, objective):
    config = dataclasses.replace(
        config, tokenizer=str(bpe_dir), objective=objective, eval_fraction=0
    )
    metadata = prepare.run(config)
    assert metadata is not None
    tokenizer = load_tokenizer(config.output)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    found = rows(config.output)
    assert all(row.input_ids[0] == cls and row.input_ids[-1] == sep for row in found)
    assert all(row.a_lengths == row.lengths for row in found)
    between = [int((row.input_ids[1:-1] == sep).sum()) for row in found]
    assert (max(between) > 0) == (objective == "full_sentences")
    tokens = [int(t) for row in found for t in row.input_ids if t not in (cls, sep)]
    assert tokens == [token for document in text_of(config) for token in document]
    summary = metadata.splits["train"]
    assert summary.text_tokens == len(tokens)
    content = summary.lengths["32"]
    assert content.tokens == len(tokens) + 2 * len(found) + sum(between)
    assert content.labels == {"-1": len(found)}


def test_full_sentences_are_cut_elsewhere_in_each_duplicate(config):
    config = dataclasses.replace(
        config, objective="full_sentences", dupe_factor=3, eval_fraction=0, chunk_mb=1
    )
    prepare.run(config)
    tokenizer = load_tokenizer(config.output)
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    found = [tuple(row.input_ids.tolist()) for row in rows(config.output)]
    assert len(set(found)) > 0.9 * len(found)
    expected = [t for document in text_of(config) for t in document]
    tokens = [t for row in found for t in row if t not in special]
    assert tokens == 3 * expected


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_pairs_of_a_byte_level_bpe_are_put_together_as_its_tokenizer_does(
    config, bpe_dir, objective
):
    prepare.run(dataclasses.replace(config, tokenizer=str(bpe_dir), objective=objective))
    tokenizer = load_tokenizer(config.output)
    for row in rows(config.output):
        ids = row.input_ids.tolist()
        middle = ids.index(tokenizer.sep_token_id)
        a, b = ids[1:middle], ids[middle + 2 : -1]
        assert a and b and tokenizer.join(a, b) == (ids, [0] * len(ids))
        assert row.a_lengths == row.lengths and len(ids) <= 32 and row.labels[0] in (0, 1)


def test_the_unigram_entropy_is_that_of_the_held_out_text(config):
    config = dataclasses.replace(config, objective="mlm")
    metadata = prepare.run(config)
    assert metadata is not None
    # Single segments hold each token of the text once.
    counts = Counter(t for row in rows(config.output, "eval") for t in row.input_ids[1:-1].tolist())
    total = counts.total()
    expected = -sum(n / total * math.log(n / total) for n in counts.values())
    held_out = metadata.splits["eval"]
    assert held_out.text_tokens == total
    assert held_out.unigram_entropy_nats == pytest.approx(expected, abs=1e-12)


def test_one_process_prepares_where_several_cannot_be_started(
    config, tmp_path, capsys, monkeypatch
):
    one = prepare.run(config)

    def read_only(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", read_only)
    several = dataclasses.replace(config, output=str(tmp_path / "several"), num_processes=2)
    assert prepare.run(several) == one
    assert "warning: one process prepares, since /dev/shm cannot be used" in capsys.readouterr().out


def test_any_number_of_processes_and_parts_gives_the_same_bytes(config, tmp_path, capsys):
    one = prepare.run(config)
    two = prepare.run(dataclasses.replace(config, output=str(tmp_path / "two"), num_processes=2))
    parts = dataclasses.replace(config, output=str(tmp_path / "parts"))
    assert prepare.run(dataclasses.replace(parts, shard="1/2")) is None
    with pytest.raises(FileNotFoundError, match="incomplete"):
        open_prepared(parts.output)
    with pytest.raises(ValueError, match="lacks chunks"):
        prepare.run(dataclasses.replace(parts, merge=True))
    joined = prepare.run(dataclasses.replace(parts, shard="0/2"))
    assert one == two == joined
    assert contents(config.output) == contents(tmp_path / "two") == contents(parts.output)
    names = ("metadata.json", "vocab.txt")
    for name in names:
        assert contents(config.output, name) == contents(parts.output, name)
    Path(parts.output, "metadata.json").unlink()
    assert prepare.run(dataclasses.replace(parts, merge=True)) == one


def test_other_seeds_give_other_examples(config, tmp_path):
    prepare.run(config)
    prepare.run(dataclasses.replace(config, seed=1, output=str(tmp_path / "other")))
    assert contents(config.output) != contents(tmp_path / "other")


def test_held_out_documents_are_a_fair_share_and_the_same_every_time():
    counts = [
        len(held_out_documents(97, 0.03, 0, chunk, is_first=False)) for chunk in range(1, 2001)
    ]
    sigma = np.std(counts) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - 97 * 0.03) < 3 * sigma
    assert held_out_documents(50, 0.1, 1, 2, is_first=False) == held_out_documents(
        50, 0.1, 1, 2, is_first=False
    )
    assert [len(held_out_documents(n, 1e-9, 0, 0, is_first=True)) for n in (0, 1, 2, 3, 4, 9)] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert held_out_documents(100, 0, 0, 0, is_first=True) == set()


class Stop(Exception):
    pass


def stop_after(monkeypatch, module, name, calls, error):
    original = getattr(module, name)
    made = 0

    def counting(*args, **kwargs):
        nonlocal made
        made += 1
        if made > calls:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, counting)


@pytest.mark.parametrize(("where", "calls"), [("write_shard", 3), ("write_summary", 0)])
def test_a_run_that_stopped_goes_on_and_gives_the_same(config, tmp_path, monkeypatch, where, calls):
    expected = prepare.run(dataclasses.replace(config, output=str(tmp_path / "whole")))
    with monkeypatch.context() as patch:
        stop_after(patch, chunks, where, calls, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepare.run(config)
    with pytest.raises(FileNotFoundError, match="incomplete"):
        open_prepared(config.output)
    finished = {path.name: path.stat().st_mtime_ns for path in Path(config.output).glob("chunks/*")}
    assert bool(finished) == bool(calls)
    assert prepare.run(config) == expected
    assert contents(config.output) == contents(tmp_path / "whole")
    for path in Path(config.output).glob("chunks/*"):
        assert finished.get(path.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
    assert not list(Path(config.output).rglob("*.tmp"))


def test_a_full_disk_stops_the_run_and_says_what_to_do(config, tmp_path, monkeypatch, capsys):
    class FullDisk(records.ArrayRecordWriter):
        def write(self, record):
            raise RuntimeError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "ArrayRecordWriter", FullDisk)
        with pytest.raises(OSError, match="train-32-00000.*No space left.*same command again"):
            prepare.run(config)
    assert not list(Path(config.output).glob("*.array_record*"))
    assert prepare.run(config) == open_prepared(config.output)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_worker_that_cannot_write_reports_it(config, tokenizer_dir):
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from bertjax.prepare import main\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    path = Path(config.output).parent / "script.py"
    path.write_text(script)
    flags = [
        f"--input={config.input[0]}",
        f"--tokenizer={tokenizer_dir}",
        f"--output={config.output}",
    ]
    done = subprocess.run(
        [sys.executable, str(path), *flags, "--num_processes=2", "--chunk_mb=0.05"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=60,
    )
    assert done.returncode == 1
    assert "Writing" in done.stderr and "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(config.output, "metadata.json").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT as a terminal does")
def test_interrupting_all_processes_loses_nothing(config, tokenizer_dir, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("\n".join([Path(config.input[0]).read_text()] * 60))
    flags = [f"--input={text}", f"--tokenizer={tokenizer_dir}", "--num_processes=2"]
    # A shell's background job, as CI may be one, ignores SIGINT, and so would its children.
    code = (
        "import signal, sys; from bertjax import prepare; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(prepare.main())"
    )
    command = [sys.executable, "-c", code, *flags, "--chunk_mb=0.05"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    output = tmp_path / "interrupted"
    process = subprocess.Popen(
        [*command, f"--output={output}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while len(list(output.glob("chunks/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "run the same command again" in errors and "Traceback" not in errors
    finished = len(list(output.glob("chunks/*.json")))
    assert finished >= 3 and not (output / "metadata.json").exists()
    assert not list(output.rglob("*.tmp"))
    for directory in (output, tmp_path / "whole"):
        done = subprocess.run(
            [*command, f"--output={directory}"], env=environment, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert contents(output) == contents(tmp_path / "whole")
    assert contents(output, "metadata.json") == contents(tmp_path / "whole", "metadata.json")


def test_temporary_files_of_a_killed_run_are_removed_at_the_end(config):
    prepare.run(config)
    output = Path(config.output)
    (output / "metadata.json").unlink()  # as if it had not ended
    for name in ("tokenizer.json", "metadata.json"):
        (output / f"{name}.{'0af9' * 8}.tmp").write_text("{")
    prepare.run(config)
    assert not list(output.rglob("*.tmp"))


def test_a_finished_run_is_not_done_again(config, monkeypatch, capsys):
    metadata = prepare.run(config)
    stop_after(monkeypatch, chunks, "write_shard", 0, Stop())
    assert prepare.run(config) == metadata
    assert "already complete" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(b"x" * 1000)])
def test_lost_and_damaged_shards_are_noticed_and_made_again(config, damage):
    metadata = prepare.run(config)
    before = contents(config.output)
    (shard,) = Path(config.output).glob("train-32-*.array_record")
    damage(shard)
    with pytest.raises((FileNotFoundError, ValueError), match=shard.name):
        open_prepared(config.output)
    assert prepare.run(config) == metadata
    assert contents(config.output) == before


def test_other_settings_are_refused_and_named(config):
    prepare.run(config)
    with pytest.raises(ValueError, match=r"dupe_factor was 1, now 3; seed was 0, now 7"):
        prepare.run(dataclasses.replace(config, seed=7, dupe_factor=3))
    before = contents(config.output)
    metadata = prepare.run(dataclasses.replace(config, seed=7, overwrite=True))
    assert metadata is not None and metadata.settings["seed"] == 7
    assert contents(config.output).keys() == before.keys()
    assert contents(config.output) != before


def test_overwriting_one_part_spares_the_others(config):
    first = dataclasses.replace(config, shard="0/2")
    prepare.run(first)
    prepare.run(dataclasses.replace(first, overwrite=True))
    before = contents(config.output)
    with pytest.raises(ValueError, match="--shard 1/2 would delete files of other parts"):
        prepare.run(dataclasses.replace(config, shard="1/2", overwrite=True))
    assert contents(config.output) == before
    assert prepare.run(dataclasses.replace(config, shard="1/2")) is not None


def test_replacing_bad_bytes_goes_on_where_strict_reading_stopped(config, tmp_path):
    bad = tmp_path / "z.txt"
    bad.write_bytes(b"Ba bo.\n\xff\n")
    config = dataclasses.replace(config, input=(*config.input, str(bad)))
    with pytest.raises(ValueError, match="--errors replace"):
        prepare.run(config)
    finished = {path: path.stat().st_mtime_ns for path in Path(config.output).glob("chunks/*")}
    replacing = dataclasses.replace(config, errors="replace")
    metadata = prepare.run(replacing)
    assert metadata is not None and metadata.settings["errors"] == "replace" and finished
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    new = prepare.run(dataclasses.replace(replacing, output=str(tmp_path / "new")))
    assert new == metadata and contents(config.output) == contents(tmp_path / "new")
    with pytest.raises(ValueError, match="errors was 'replace', now 'strict'"):
        prepare.run(config)


def test_changed_input_and_tokenizer_are_refused(config, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(Path(config.input[0]).read_bytes())
    config = dataclasses.replace(config, input=(str(path),))
    prepare.run(config)
    path.write_text(path.read_text() + "bo.\n")
    with pytest.raises(ValueError, match="inputs were .*text.txt"):
        prepare.run(config)
    other = tmp_path / "other"
    train_wordpiece([" ".join(WORDS)] * 3, vocab_size=60).save(other)
    with pytest.raises(ValueError, match="tokenizer_fingerprint was"):
        prepare.run(dataclasses.replace(config, tokenizer=str(other)))


@pytest.mark.parametrize("place", [0, -3])
def test_an_edit_that_keeps_the_size_is_noticed(config, tmp_path, place):
    path = tmp_path / "text.txt"
    content = bytearray(Path(config.input[0]).read_bytes())
    path.write_bytes(content)
    config = dataclasses.replace(config, input=(str(path),))
    prepare.run(config)
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="inputs were .*text.txt"):
        prepare.run(config)


def test_merging_needs_neither_input_nor_tokenizer(config, capsys):
    prepare.run(dataclasses.replace(config, shard="0/2"))
    whole = prepare.run(dataclasses.replace(config, shard="1/2"))
    Path(config.output, "metadata.json").unlink()
    assert prepare.main(["--merge", "--output", config.output]) == 0
    assert open_prepared(config.output) == whole
    for name in ("input", "tokenizer"):
        with pytest.raises(ValueError, match=f"--{name} is missing"):
            dataclasses.replace(config, **{name: type(getattr(config, name))()})


@pytest.mark.parametrize("has_flock", [True, False])
def test_two_preparations_of_one_output_are_refused_but_not_two_of_its_parts(
    config, monkeypatch, has_flock
):
    if not has_flock:
        without_flock(monkeypatch)
        monkeypatch.setattr("bertjax.base.lock.HEARTBEAT_SECONDS", 0.05)
        monkeypatch.setattr("bertjax.base.lock.POLL_SECONDS", 0.1)
    directory = Path(config.output)
    message = rf"--output {directory}.* another prepare command \(process {os.getpid()} on .*wait"
    with prepared_dir.locked(directory, None):
        with pytest.raises(Locked, match=message):
            prepare.run(config)
    assert not directory.exists()
    first, second = (dataclasses.replace(config, shard=f"{part}/2") for part in range(2))
    with prepared_dir.locked(directory, "0/2"):
        prepare.run(second)
        with pytest.raises(Locked, match="--shard 0/2"):
            prepare.run(first)
    assert prepare.run(first) == open_prepared(directory)
    assert not list(directory.glob("*.lock*"))


def test_files_of_others_are_never_touched(config):
    output = Path(config.output)
    output.mkdir()
    (output / "vocab.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="did not write: .*vocab.txt"):
            prepare.run(dataclasses.replace(config, overwrite=overwrite))
    assert (output / "vocab.txt").read_text() == "precious"
    (output / "vocab.txt").unlink()
    prepare.run(config)
    (output / "notes.txt").write_text("mine")
    (output / "chunks" / "notes.txt").write_text("mine")
    prepare.run(dataclasses.replace(config, seed=3, overwrite=True))
    assert (output / "notes.txt").read_text() == (output / "chunks" / "notes.txt").read_text()


def test_a_chunk_lost_during_the_run_costs_no_other_chunk(config, monkeypatch):
    whole = prepare._prepare_chunks

    def losing_one(*args):
        made = whole(*args)
        (Path(config.output) / "train-32-00001.array_record").unlink()
        return made

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_prepare_chunks", losing_one)
        with pytest.raises(ValueError, match="Chunk 1 of .* is missing: run prepare again"):
            prepare.run(config)
    kept = {path.name: path.stat().st_mtime_ns for path in Path(config.output).glob("chunks/*")}
    metadata = prepare.run(config)
    assert metadata is not None and len(kept) == metadata.chunks > 3
    for path in Path(config.output).glob("chunks/?????.json"):
        assert path.name == "00001.json" or path.stat().st_mtime_ns == kept[path.name]


@pytest.mark.parametrize("content", ["", "\n\n \n", "\x01\x02\n"])
def test_a_corpus_without_text_is_refused_and_leaves_no_data(config, tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_text(content)
    config = dataclasses.replace(config, input=(str(path),))
    with pytest.raises(ValueError, match=r"contains no text: .*empty.txt") as error:
        prepare.run(config)
    assert ("Left out" in str(error.value)) == ("\x01" in content)
    path.write_text("ba. bo.\n\nbub. ding.\n")
    assert prepare.run(config) is not None  # nothing stands in the way of the next try


def test_a_single_document_needs_another_objective(config, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("Ba bo.\nBub ding.\n")
    config = dataclasses.replace(config, input=(str(path),))
    with pytest.raises(ValueError, match="single document.*--objective nsp"):
        prepare.run(config)
    metadata = prepare.run(dataclasses.replace(config, objective="mlm"))
    assert metadata is not None and set(metadata.splits) == {"train"}


def test_documents_of_one_sentence_are_paired(config, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("\n\n".join(["Ba bo bub."] * 50))
    prepare.run(dataclasses.replace(config, input=(str(path),)))
    assert {row.labels[0] for row in rows(config.output)} == {1}


def test_undecodable_bytes_stop_the_run_and_cost_nothing(config, tmp_path):
    bad = tmp_path / "z.txt"
    bad.write_bytes(b"good text.\n\xff\n")
    config = dataclasses.replace(config, input=(*config.input, str(bad)))
    with pytest.raises(ValueError, match="z.txt is not UTF-8.*offset 11.*--errors replace"):
        prepare.run(config)
    assert not Path(config.output, "metadata.json").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_length", (7,)), ("max_length", (128, 128)), ("max_length", ()), ("dupe_factor", 0),
     ("eval_fraction", 0.9), ("shard", "4/4"), ("shard", "one"), ("chunk_mb", 0.0),
     ("num_processes", 0), ("short_seq_prob", 2.0), ("seed", -1)],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(config, field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(config, **{field: value})


def test_unknown_encodings_are_refused(config):
    for name in ("klingon", "base64"):
        with pytest.raises(ValueError, match=f"encoding='{name}' is not an encoding of text"):
            dataclasses.replace(config, encoding=name)


def test_the_command_reports_errors_in_one_line_and_suggests_flags(capsys):
    flags = ["--input", "nothing/here*", "--tokenizer", "./no/where", "--output", "never"]
    assert prepare.main(flags) == 1
    assert capsys.readouterr().err.startswith("error: No tokenizer at no/where")
    with pytest.raises(SystemExit):
        prepare.main([*flags, "--dupe-facter", "2"])
    assert "dupe_factor" in capsys.readouterr().err.replace("-", "_")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real corpora are not beside the checkout")
def test_real_text_gives_the_same_examples_for_one_and_two_processes(tmp_path):
    config = PrepareConfig(
        input=(str(SHARED / "text" / "wikitext-2.valid.raw"),),
        tokenizer=str(SHARED / "vocab" / "bert-base-uncased"),
        output=str(tmp_path / "1"),
        num_processes=1,
        chunk_mb=0.3,
        objective="mlm",
    )
    one = prepare.run(config)
    two = prepare.run(dataclasses.replace(config, num_processes=2, output=str(tmp_path / "2")))
    assert one == two and contents(tmp_path / "1") == contents(tmp_path / "2")
    assert json.loads((tmp_path / "1" / "metadata.json").read_text())["vocab_size"] == 30522


@pytest.mark.parametrize(("fraction", "warns"), [(0.01, True), (0.1, False), (0.0, False)])
def test_few_held_out_tokens_are_warned_of(config, capsys, fraction, warns):
    metadata = prepare.run(dataclasses.replace(config, eval_fraction=fraction))
    said = " ".join(capsys.readouterr().out.split())
    assert ("its losses will be noisy: give --eval_fraction 0.1." in said) == warns
    if warns:
        assert f"only {metadata.splits['eval'].text_tokens:,} tokens are held out" in said


TEXT_WITHOUT_SPACES = {
    "protein": "MKTAYIAKQRQISFVKSHFSRQ" * 9,
    "Thai": "แมวกินปลาหมาวิ่งเล่น" * 8,
}


@pytest.mark.parametrize("script", TEXT_WITHOUT_SPACES)
def test_characters_of_unknown_words_are_counted(config, tmp_path, capsys, script):
    word = TEXT_WITHOUT_SPACES[script]
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join([f"ba ba ba\n{word}"] * 50), encoding="utf-8")
    made = dataclasses.replace(config, input=(str(text),), output=str(tmp_path / "out"))
    metadata = prepare.run(dataclasses.replace(made, objective="mlm"))
    out = " ".join(capsys.readouterr().out.split())
    assert metadata is not None and metadata.counts["unknown_tokens"] == 50
    assert metadata.counts["unknown_characters"] == 50 * len(word)
    assert metadata.counts["characters"] == 50 * len(f"ba ba ba\n{word}")
    share = metadata.counts["unknown_characters"] / metadata.counts["characters"]
    assert share > 0.9 and f"warning: {share:.1%} of the characters of the text are in un" in out
    assert "words of more than 100 characters" in out and "--split residues" in out


@pytest.mark.parametrize("text", ["Tiếng Việt có dấu", "한국어 문장"])
def test_composed_text_gives_the_same_rows(config, tmp_path, capsys, text):
    from bertjax.tokenization import train_wordpiece

    train_wordpiece([text] * 9, vocab_size=99, do_lower_case=False).save(tmp_path / "tokenizer")
    folders, said = [], []
    for form in ("NFC", "NFD"):
        name = tmp_path / f"{form}.txt"
        written = unicodedata.normalize(form, text)
        name.write_text("\n\n".join([f"{written}\n{written}"] * 9), encoding="utf-8")
        for normalize in ("none", "nfc"):
            fields = {"input": (str(name),), "output": str(tmp_path / f"{form}{normalize}")}
            fields |= {"tokenizer": str(tmp_path / "tokenizer"), "normalize": normalize}
            metadata = prepare.run(dataclasses.replace(config, **fields))
            assert metadata is not None
            folders.append(b"".join(p.read_bytes() for p in Path(fields["output"]).glob("train*")))
            said.append("composed form (NFC)" in capsys.readouterr().out)
            assert ("unknown_tokens" in metadata.counts) == said[-1]
    assert folders[0] == folders[1] == folders[3] != folders[2]
    assert said == [False, False, True, False]


def test_a_signal_waits_until_worker_processes_are_started():
    started, pool = [], workers.Workers(None, 2)  # pyright: ignore[reportArgumentType]

    def submit(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)
        started.append("a process, which reads what it is to do")
        return Future()

    with pytest.raises(Interrupted), signals_raise():
        pool._pool.submit = submit
        pool.submit(None)
    assert started


def test_a_daemonic_process_prepares_alone(small_chunks, monkeypatch, capsys, tmp_path):
    alone = dataclasses.replace(small_chunks, output=str(tmp_path / "alone"), num_processes=1)
    prepare.run(alone)
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)
    prepare.run(dataclasses.replace(small_chunks, num_processes=2))
    assert "note: one process prepares, because a daemonic" in capsys.readouterr().out
    for file in Path(alone.output).glob("*.array_record"):
        assert file.read_bytes() == (Path(small_chunks.output) / file.name).read_bytes()


STOPPED_EARLY = """
import os, signal, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext
from bertjax.base import signals
from bertjax.data.preparation import workers

def stopped(method):
    def with_signal(*args, **named):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)
        return method(*args, **named)
    return with_signal

CLASS.METHOD = stopped(CLASS.METHOD)
def run():
    with workers.Workers(None, 2):
        pass
signals.leave(signals.run_reporting_errors(run))
"""


@pytest.mark.parametrize(
    "owner, method", [("SpawnContext", "SimpleQueue"), ("ProcessPoolExecutor", "shutdown")]
)
def test_a_signal_while_the_pool_of_workers_is_made_or_ended_leaves_no_semaphores(owner, method):
    program = STOPPED_EARLY.replace("CLASS", owner).replace("METHOD", method)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == "stopped by SIGTERM; run the same command again to resume\n"
    assert done.returncode == STOPPED


def edited(path: Path, times: bool) -> None:
    """Changes a byte in the middle of a file, whose size and, with `times`, times stay."""
    before, is_gz = path.stat(), path.suffix == ".gz"
    content = bytearray(gzip.decompress(path.read_bytes()) if is_gz else path.read_bytes())
    middle = content.index(b"a", len(content) // 2)
    content[middle : middle + 1] = b"o"
    path.write_bytes(gzip.compress(content, 0) if is_gz else content)
    assert path.stat().st_size == before.st_size
    if times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("form", "times"),
    [
        pytest.param("file", False, marks=WEEKLY),
        *(pytest.param(form, True, marks=WEEKLY) for form in ("glob", "folder", "replaced")),
        *((form, True) for form in ("file", "gz")),
    ],
)
def test_a_corpus_that_was_edited_in_its_middle_is_not_taken_for_the_prepared_one(
    form, times, config, text, tmp_path, capsys
):
    folder = tmp_path / "text"
    folder.mkdir()
    content = text.read_bytes()
    content *= 1 + 3 * streams.HASHED_BYTES // len(content)
    for name in ("a.txt", "b.txt"):
        (folder / name).write_bytes(content)
    path = folder / "b.txt"
    given = {"folder": str(folder), "glob": f"{folder}/*.txt"}.get(form, str(path))
    if form == "gz":
        path = folder / "b.txt.gz"
        given = str(path)
        path.write_bytes(gzip.compress(content, 0))  # the text as it is
    config = dataclasses.replace(config, input=(given,), chunk_mb=0.1, max_length=(64,))
    metadata = prepare.run(config)
    if form == "replaced":  # by a renamed file, as editors do
        copy = folder / "copy"
        shutil.copy2(path, copy)
        edited(copy, times)
        copy.rename(path)
    else:
        edited(path, times)
    with pytest.raises(ValueError, match=r"begun with other settings: .*b\.txt.* was 'SHA-256"):
        prepare.run(config)
    assert prepare.run(dataclasses.replace(config, overwrite=True)) is not None
    assert prepare.run(config) is not None and "already complete" in capsys.readouterr().out
    assert metadata is not None


def test_files_are_hashed_once_and_again_only_if_something_tells_of_a_change(
    config, text, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "text.txt"
    shutil.copy(text, path)
    config = dataclasses.replace(config, input=(str(path),))
    hashed = []
    checksum = prepared_dir.checksum
    monkeypatch.setattr(
        prepared_dir, "checksum", lambda file, *more: hashed.append(file) or checksum(file, *more)
    )
    for _ in range(3):
        prepare.run(config)
    assert hashed == [str(path)]
    os.utime(path)  # as a copy or a `touch` does: the content is the same
    for _ in range(2):
        prepare.run(config)
    assert hashed == [str(path)] * 2 and capsys.readouterr().out.count("already complete") == 4


def test_a_directory_of_an_older_version_without_hashes_is_still_complete(config, capsys):
    prepare.run(config)
    path = Path(config.output) / "prepare.json"
    plan = json.loads(path.read_text())
    hashes = {name: plan.pop(name) for name in ("contents", "stamps")}
    path.write_text(json.dumps(plan))
    assert prepare.run(config) is not None
    assert "already complete" in capsys.readouterr().out
    assert {name: json.loads(path.read_text())[name] for name in hashes} == hashes


@pytest.mark.parametrize(
    "files", [{"metadata.json": '{"title": "my photos"}'}, {"prepare.json": '{"steps": []}'}]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_another_program_with_the_names_of_prepare_are_not_touched(
    config, files, overwrite, tmp_path
):
    files = files | {"train-32-00000.array_record": "years of work"}
    for number in (1, 2):
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        for name, content in list(files.items())[:number]:
            (folder / name).write_text(content)
        before = contents(folder, "*")
        with pytest.raises(ValueError, match="contains files that prepare did not write"):
            prepare.run(dataclasses.replace(config, output=str(folder), overwrite=overwrite))
        assert contents(folder, "*") == before
