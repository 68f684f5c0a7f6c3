"""Datasets of the Hugging Face Hub as input equal the same files on a disk, and fail clearly."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertjax.base import addresses
from bertjax.cloud.copies import ahead
from bertjax.cloud.hub import CONVERTED, download, local_split, open_dataset
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.prepare import prepare
from bertjax.tasks import finetune_config
from bertjax.tasks.registry import make_task
from tests.hub_server import TOKEN, unique


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=50)
    return buffer.getvalue()


@pytest.fixture
def texts(sentences):
    return [" ".join(sentences[start : start + 8]) for start in range(0, 400, 4)]


@pytest.fixture
def files(texts):
    """The files of a dataset of two training shards, as `datasets` names them."""
    return {
        "data/train-00000-of-00002.parquet": parquet(text=texts[:60]),
        "data/train-00001-of-00002.parquet": parquet(text=texts[60:]),
        "data/test-00000-of-00001.parquet": parquet(text=texts[:2]),
        "README.md": b"# A corpus",
    }


def documents(*inputs, **options):
    return list(Corpus(inputs, ReadOptions(**options)).documents())


def write(files, folder):
    for name, content in files.items():
        if "train" in name:
            path = folder / name.replace("/", "_")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return str(folder)


@pytest.mark.slow
def test_prepared_data_equals_that_of_the_same_files(hub, files, tokenizer, tmp_path):
    name = unique()
    hub.dataset(name, files)
    tokenizer.save(tmp_path / "tokenizer")
    fields = {"tokenizer": str(tmp_path / "tokenizer"), "max_length": (16,), "num_processes": 1}
    prepare(input=(write(files, tmp_path / "files"),), output=str(tmp_path / "local"), **fields)
    # Requests fail, and a download is cut in the middle.
    hub.fail.update(info=1, resolve=2)
    hub.cut.update(resolve=2)
    prepare(input=(f"hf:{name}",), output=str(tmp_path / "hub"), **fields)
    shards = sorted(path.name for path in (tmp_path / "local").glob("*.array_record"))
    assert shards
    for shard in shards:
        assert (tmp_path / "hub" / shard).read_bytes() == (tmp_path / "local" / shard).read_bytes()
    # The commit is part of what the data was prepared from: a changed dataset is other data.
    sent = hub.sent
    prepare(input=(f"hf:{name}",), output=str(tmp_path / "hub"), **fields)
    assert hub.sent - sent < 5000  # nothing is downloaded again
    # The name with the commit, which the error shows, goes on with the dataset as it was.
    (entry, *_), *_ = json.loads((tmp_path / "hub" / "prepare.json").read_text())["inputs"]
    pinned = entry.partition(":default/")[0]
    assert pinned == f"hf:{name}@{hub.repositories[f'datasets/{name}'].heads['main']}"
    hub.repositories[f"datasets/{name}"].commit("main", files | {"data/train-00002.parquet": b""})
    with pytest.raises(ValueError, match=f"{pinned}.*--overwrite"):
        prepare(input=(f"hf:{name}",), output=str(tmp_path / "hub"), **fields)
    prepare(input=(pinned,), output=str(tmp_path / "hub"), **fields)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_cut_download_continues_where_it_stopped(hub, files):
    name, content = unique(), bytes(range(256)) * 40_000
    hub.dataset(name, files | {"data/train-00000-of-00002.parquet": content})
    hub.cut.update(resolve=1)
    dataset = open_dataset(f"hf:{name}")
    assert download(dataset.files[0]).read_bytes() == content
    assert hub.sent < 1.6 * len(content)


def test_formats_configurations_and_splits(hub, files, texts):
    name = unique()
    hub.dataset(name, files)
    expected = documents(f"hf:{name}")
    assert len(expected) == len(texts)
    assert len(documents(f"hf:{name}:default:test")) == 2
    # Only the branch that the Hub converts has Parquet files.
    name, lines = unique(), "".join(json.dumps({"text": text}) + "\n" for text in texts)
    repository = hub.dataset(name, {"all.jsonl": lines.encode()})
    assert [d.text for d in documents(f"hf:{name}")] == [d.text for d in expected]
    repository.commit(CONVERTED, {"default/train/0000.parquet": parquet(text=texts[:3])})
    assert len(documents(f"hf:{name}")) == 3
    # Several configurations, by folders and by the card.
    name = unique()
    shards = {f"{c}/train-00000-of-00001.parquet": parquet(text=[c] * 2) for c in ("en", "de")}
    hub.dataset(name, shards)
    assert {d.text.strip() for d in documents(f"hf:{name}:de")} == {"de"}
    english = open_dataset(f"hf:{name}:en:train")
    assert [file.path for file in english.files] == ["en/train-00000-of-00001.parquet"]
    with pytest.raises(ValueError, match="has 2 configurations: name one, such as hf:.*:de"):
        open_dataset(f"hf:{name}")
    name = unique()
    data_files = [{"split": "train", "path": "x/*.parquet"}]
    card = {"configs": [{"config_name": "main", "data_files": data_files}]}
    hub.dataset(name, {"x/b.parquet": parquet(text=["b"]), "y.parquet": b""}, card=card)
    assert [file.path for file in open_dataset(f"hf:{name}").files] == ["x/b.parquet"]


def paths(name):
    return [file.path for file in open_dataset(name).files]


def test_converted_files_are_of_the_configuration_and_split_of_their_folders(hub, texts, capsys):
    name, content = unique(), parquet(text=texts[:1])
    repository = hub.dataset(name, {"all.csv": b"text"})
    converted = [
        *(f"en/{split}/000{n}.parquet" for split in ("train", "test_matched") for n in (0, 1)),
        *("de/train-part0/0000.parquet", "de/train-part1/0000.parquet"),
        "fr/partial-train/0000.parquet",
    ]
    repository.commit(CONVERTED, dict.fromkeys(converted, content))
    assert paths(f"hf:{name}:en") == converted[:2]
    assert paths(f"hf:{name}:en:test_matched") == converted[2:4]
    assert paths(f"hf:{name}:de:train") == converted[4:6]
    with pytest.raises(ValueError, match="no split 'test'.*Known: .*test_matched"):
        open_dataset(f"hf:{name}:en:test")
    with pytest.raises(ValueError, match="has 3 configurations"):
        open_dataset(f"hf:{name}")
    assert "only the first part" not in capsys.readouterr().out
    assert paths(f"hf:{name}:fr") == converted[6:]
    assert f"of hf:{name}:fr:train, the Hub has converted only the first" in capsys.readouterr().out
    # The pinned name leads to the same files, although it has no name of a branch.
    dataset = open_dataset(f"hf:{name}:en")
    repository.commit(CONVERTED, {"en/train/0000.parquet": b""})
    assert open_dataset(dataset.pinned) == dataset


def test_folders_of_splits_and_globs_of_cards_select_files_as_the_hub_does(hub):
    name = unique()
    hub.dataset(name, dict.fromkeys(["test/0.parquet", "train/0.parquet", "train/1.parquet"], b""))
    assert paths(f"hf:{name}") == ["train/0.parquet", "train/1.parquet"]
    assert paths(f"hf:{name}:default:test") == ["test/0.parquet"]
    files = ["top.parquet", "x/a.parquet", "x/deep/b.parquet", "y/train.parquet", "y/test.parquet"]
    configs = [
        {"config_name": "flat", "data_files": "x/*.parquet"},
        {"config_name": "deep", "data_files": [{"split": "all", "path": ["**/*.parquet"]}]},
        {"config_name": "listed", "data_files": ["top.parquet", "x/a.parquet"]},
        {"config_name": "folder", "data_dir": "y"},
    ]
    hub.dataset(name, dict.fromkeys(files, b""), card={"configs": configs})
    assert paths(f"hf:{name}:flat") == ["x/a.parquet"]
    assert paths(f"hf:{name}:deep:all") == sorted(files)
    assert paths(f"hf:{name}:listed") == ["top.parquet", "x/a.parquet"]
    assert paths(f"hf:{name}:folder") == ["y/train.parquet"]
    assert paths(f"hf:{name}:folder:test") == ["y/test.parquet"]


def test_workers_elsewhere_read_the_commit_that_was_opened(hub, files, texts):
    name, other = unique(), unique()
    repository = hub.dataset(name, files)
    hub.dataset(other, files)
    for inputs in ((f"hf:{name}",), (f"hf:{name}=0.7,hf:{other}=0.3",)):
        corpus = Corpus(inputs, ReadOptions())
        repository.commit("main", {"train.parquet": parquet(text=texts[:1])})
        again = Corpus(corpus.pinned_inputs, ReadOptions())
        assert again.identity == corpus.identity
        assert Corpus(inputs, ReadOptions()).identity != corpus.identity
        repository.commit("main", files)


def test_links_of_an_earlier_run_follow_the_cache(hub, files, monkeypatch, tmp_path):
    from huggingface_hub import constants

    name = unique()
    hub.dataset(name, files)
    folder = local_split(f"hf:{name}")
    shutil.move(tmp_path / "hf", tmp_path / "gone")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert local_split(f"hf:{name}") == folder
    assert [link.read_bytes() for link in sorted(folder.iterdir())] == list(files.values())[:2]


def test_one_item_is_made_ahead():
    made = []

    def make(item):
        if item == 5:
            raise ValueError("no more")
        made.append(item)
        return -item

    iterator = ahead(make, range(6))
    for expected in range(5):
        assert next(iterator) == -expected
        for _ in range(100):
            if len(made) == min(expected + 2, 5):
                break
            time.sleep(0.01)
        time.sleep(0.02)
        assert len(made) == min(expected + 2, 5)
    with pytest.raises(ValueError, match="no more"):
        next(iterator)


def test_the_text_column_is_named_or_guessed(hub, texts, capsys):
    name = unique()
    hub.dataset(name, {"train.parquet": parquet(url=texts[:2], content=texts[2:4], n=[1, 2])})
    assert documents(f"hf:{name}")[0].text.strip() == texts[2]
    assert "the text is read from the column 'content'" in capsys.readouterr().out
    assert documents(f"hf:{name}", text_field="url")[0].text.strip() == texts[0]
    with pytest.raises(ValueError, match="no text column 'body'.*url.*--text_field"):
        documents(f"hf:{name}", text_field="body")
    hub.dataset(name, {"train.parquet": parquet(n=[1, 2])})
    with pytest.raises(ValueError, match="no text column 'text'"):
        documents(f"hf:{name}")


def test_finetuning_reads_the_examples_of_the_same_files(hub, sentences, tmp_path):
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    shards = {}
    for number in range(2):
        table = pa.table({"text": sentences[number * 20 :][:20], "label": [0, 1] * 10})
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(metadata), buffer)
        shards[f"data/train-0000{number}-of-00002.parquet"] = buffer.getvalue()
    shards["data/test-00000-of-00001.parquet"] = shards["data/train-00001-of-00002.parquet"]
    name = unique()
    hub.dataset(name, shards)
    local = write(shards, tmp_path / "files")
    examples = []
    for train, dev in (
        (local, f"{local}/data_train-00001-of-00002.parquet"),
        (f"hf:{name}", f"hf:{name}:default:test"),
    ):
        config = finetune_config(task="classify", train=train, dev=dev)
        source = make_task("classify", config.options).source
        examples.append([(e.text, e.label) for s in source.splits for e in source.examples(s)])
    assert examples[0] == examples[1] and len(examples[0]) == 60
    assert {label for _, label in examples[0]} == {"bad", "good"}
    assert local_split(f"hf:{name}").is_dir()  # of links to the files


def test_what_cannot_be_read_is_said(hub, files, monkeypatch):
    name = unique()
    with pytest.raises(FileNotFoundError, match="has no dataset .*check the name"):
        open_dataset(f"hf:{name}")
    hub.dataset(name, files, gated=True)
    with pytest.raises(PermissionError, match="is gated: accept its conditions.*hf auth login"):
        open_dataset(f"hf:{name}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert open_dataset(f"hf:{name}").split == "train"
    for bad, message in {
        f"{name}:default:trian": "no split 'trian'. Did you mean 'train'",
        f"{name}:english": "no configuration 'english'",
        "corpus": "write hf:OWNER/NAME",
    }.items():
        with pytest.raises(ValueError, match=message):
            open_dataset(f"hf:{bad}")
    with pytest.raises(FileNotFoundError, match="no revision 'v9'"):
        open_dataset(f"hf:{name}@v9")
    hub.dataset(name, {"audio.wav": b"RIFF"})
    with pytest.raises(ValueError, match="neither Parquet files nor JSON lines"):
        open_dataset(f"hf:{name}")
    hub.fail.update(info=100)
    with pytest.raises(OSError, match=r"could not be read in 5 attempts.*503.*check the network"):
        open_dataset(f"hf:{name}")


def test_without_a_network_the_error_says_so(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="in 5 attempts.*check the network"):
        open_dataset("hf:me/corpus")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set: unset it"):
        open_dataset("hf:me/corpus")


# Not measured with `resource`: a process that starts another program passes its own peak on, and
# that of the tests is larger, so that nothing that is measured could fail.
MEASURED = """
import re, sys
from bertjax.prepare import prepare
prepare(
    input=(sys.argv[1],), tokenizer=sys.argv[2], output=sys.argv[3], max_length=(64,),
    num_processes=1,
)
with open("/proc/self/status") as file:
    print("peak", int(re.search(r"VmHWM:\\s*(\\d+) kB", file.read())[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_dataset(hub, sentences, tokenizer, tmp_path):
    """5 and 50 MB of text in files of 5 MB, prepared from the Hub and, the larger, from files."""
    tokenizer.save(tmp_path / "tokenizer")
    rng = np.random.default_rng(0)
    peaks = {}
    for megabytes in (5, 50):
        files = {}
        for number in range(megabytes // 5):
            texts, size = [], 0
            while size < 5_000_000:
                texts.append(" ".join(sentences[i] for i in rng.integers(0, 400, 40)))
                size += len(texts[-1])
            name = f"data/train-{number:05d}-of-{megabytes // 5:05d}.parquet"
            files[name] = parquet(text=texts)
        name = unique()
        hub.dataset(name, files)
        for kind, source in (("hub", f"hf:{name}"), ("files", write(files, tmp_path / name))):
            output = tmp_path / f"{kind}{megabytes}"
            done = subprocess.run(
                [sys.executable, "-c", MEASURED, source, str(tmp_path / "tokenizer"), str(output)],
                env=os.environ, capture_output=True, text=True, check=True,
            )  # fmt: skip
            peaks[kind, megabytes] = int(done.stdout.split("peak")[1])
        for shard in (tmp_path / f"files{megabytes}").glob("*.array_record"):
            assert (tmp_path / f"hub{megabytes}" / shard.name).read_bytes() == shard.read_bytes()
    print("peak RSS, MB", peaks)
    assert peaks["hub", 50] < peaks["hub", 5] + 60


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416, 451, 501])
@pytest.mark.parametrize("kind", ["info", "resolve"])
def test_what_the_hub_refuses_for_good_is_asked_for_once(kind, status, hub):
    hub.dataset(name := unique(), {"train.jsonl": b'{"text": "a"}\n'})
    hub.fail[kind], hub.status = 100, status
    with pytest.raises((FileNotFoundError, PermissionError), match=re.escape(f"hf:{name}")):
        local_split(f"hf:{name}")
    assert hub.requests[kind] == 1 if kind == "resolve" else hub.requests == {"info": 1}


def test_a_full_disk_or_an_answer_without_sense_is_no_reason_to_ask_again():
    for error in (OSError(errno.ENOSPC, "No space left on device"), TypeError("x"), KeyError("x")):
        asked = []

        def ask(error=error, asked=asked):
            asked.append(1)
            raise error

        with pytest.raises(type(error)):
            addresses.repeated(ask, "x")
        assert len(asked) == 1


GLOBS = "data/*"
BAD_CARDS = [
    *("x", 5, {"configs": "x"}, {"configs": 5}, {"configs": {"a": 1}}, {"configs": [None]}),
    {"configs": [{"data_files": 5}]},
    {"configs": [{"data_files": [{"split": "train"}]}]},
    {"configs": [{"data_files": [{"path": GLOBS}]}]},
    {"configs": [{"data_files": [{"split": "train", "path": [5]}]}]},
    {"configs": [{"data_files": ["*" * 1000] * 20}]},
]


@pytest.mark.parametrize("card", BAD_CARDS, ids=lambda card: str(card)[:50])
def test_a_card_that_makes_no_sense_is_named(card, hub, monkeypatch):
    monkeypatch.setattr("bertjax.cloud.hub.MOST_WORK", 100_000)
    hub.dataset(name := unique(), {"data/train.jsonl": b'{"text": "a"}\n'}, card=card)
    with pytest.raises(ValueError, match=f"The card of hf:{name} cannot be read .*download the fi"):
        open_dataset(f"hf:{name}")
    assert hub.requests == {"info": 1}


def test_names_in_cards_are_cut_in_messages(hub):
    names = ["\x1b[31m" * 1000, *(f"c{n}" for n in range(2000))]
    card = {"configs": [{"config_name": name, "data_files": GLOBS} for name in names]}
    hub.dataset(name := unique(), {"data/train.jsonl": b'{"text": "a"}\n'}, card=card)
    for ending in ("", ":other", ":c1:dev"):
        with pytest.raises(ValueError) as error:
            open_dataset(f"hf:{name}{ending}")
        assert len(str(error.value)) < 800 and str(error.value).isprintable()
