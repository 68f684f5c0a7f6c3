"""Every command in a process of its own, which has imported nothing that the command needs.

A test process has imported nearly all packages. Here, each command takes the ways on which it
imports something only then: models and datasets of the Hub, buckets, Parquet, dumps, pictures.
"""

import bz2
import importlib.util
import json
import os
import subprocess
import sys

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertjax.__main__ import COMMANDS
from tests.hub_server import TOKEN, Repository, unique
from tests.tracker_stand_ins import MODULES

pytestmark = pytest.mark.slow
# These have tests of their own that start processes.
RUN_ELSEWHERE = {
    "quickstart": "test_quickstart.py",
    "completion": "test_completion.py",
    "export": "test_export.py",
    "serve": "test_serve.py",
}


def run(*words, status=0, **env):
    """Runs `bertjax WORDS` in a process of its own, and returns what it printed."""
    command = [sys.executable, "-m", "bertjax", *map(str, words)]
    started = set(map(str, words[:1]))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | env
    )
    assert done.returncode == status, f"{started}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def hub(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return hub


def pushed(hub, name):
    return hub.repositories[f"models/{name}"].at("main")[1]


def model_on_hub(hub, folder):
    name = unique("model")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    hub.repositories[f"models/{name}"] = Repository(files)
    return name


@pytest.fixture(scope="module")
def article(sentences):
    """A dump of MediaWiki with one article, which has a heading, a link and a template."""
    text = "{{Box|x=1}}\n== Head ==\n" + "\n".join(f"[[x|{s}]]" for s in sentences)
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><namespaces/>'
        f"</siteinfo><page><title>a</title><ns>0</ns><revision><text>{text}</text></revision>"
        "</page></mediawiki>"
    )


def test_train_tokenizer(sentences, tmp_path):
    table = pyarrow.table({"text": ["\n".join(sentences)]})
    pyarrow.parquet.write_table(table, tmp_path / "text.parquet")
    (tmp_path / "more.txt.zst").write_bytes(zstandard.compress("\n".join(sentences).encode()))
    inputs = (tmp_path / "text.parquet", tmp_path / "more.txt.zst")
    run(
        *("train_tokenizer", "--kind=unigram", "--vocab_size=60", "--input", *inputs),
        *("--output", tmp_path / "tokenizer"),
    )
    assert (tmp_path / "tokenizer" / "spiece.model").is_file()
    # Reads spiece.model again, and writes pieces into it.
    run(
        *("train_tokenizer", "--extend", tmp_path / "tokenizer", "--add=5", "--input", *inputs),
        *("--output", tmp_path / "extended"),
    )


def test_prepare(bucket, hub, one_layer, article, sentences, tmp_path):
    # A dump in a bucket, a dataset of the Hub, and the tokenizer of a model of the Hub.
    dump = f"{bucket}/dump.xml.bz2"
    with fsspec.open(dump, "wb") as file:
        file.write(bz2.compress(article.encode()))
    lines = "".join(json.dumps({"text": s}) + "\n" for s in sentences)
    dataset = unique()
    hub.dataset(dataset, {"data/train.jsonl": lines.encode()})
    run(
        *("prepare", "--input", dump, f"hf:{dataset}", "--tokenizer", model_on_hub(hub, one_layer)),
        *("--max_length=16", "--output", f"{bucket}/data", "--num_processes=1"),
    )
    names = fsspec.filesystem(bucket.partition(":")[0]).find(f"{bucket}/data")
    assert any(name.endswith("metadata.json") for name in names)


def test_pretrain_report_and_benchmark(hub, prepared, small_run, tmp_path):
    for tracker in MODULES:
        stand_in = "import sys\nfrom tests.tracker_stand_ins import MODULES, SERVERS\n"
        stand_in += f"SERVERS['{tracker}'] = {{}}\nsys.modules.update(MODULES['{tracker}']())\n"
        (tmp_path / f"{tracker}.py").write_text(stand_in)
    name, workdir, config = unique("model"), tmp_path / "run", small_run(8, 4)
    paths = os.pathsep.join([str(tmp_path), os.getcwd(), os.environ.get("PYTHONPATH", "")])
    run(
        *("pretrain", "--config", config, "--data", prepared, "--workdir", workdir),
        *("--push_to_hub", name, "--track", *MODULES, "--track_project=project"),
        PYTHONPATH=paths,
    )
    assert "model.safetensors" in pushed(hub, name)
    run("report", workdir, "--output", tmp_path / "report.html")
    assert "1 x cpu" in run("benchmark", "--config", config, "--steps=2", "--unroll=1")


def test_finetune_predict_and_visualize(hub, one_layer, files, sentences, tmp_path):
    # A model and a dataset of the Hub; the model goes there, and the next process takes it back.
    name, rows = unique("model"), unique()
    lines = (json.dumps({"text": s, "label": s[0] <= "e"}) + "\n" for s in sentences[:64])
    hub.dataset(rows, {"train.jsonl": "".join(lines).encode()})
    run(
        *(
            "finetune",
            "--task=classify",
            f"--train=hf:{rows}",
            "--init",
            model_on_hub(hub, one_layer),
        ),
        *("--dev", f"hf:{rows}", "--max_steps=2", "--max_length=32", "--batch_size=8"),
        *("--unroll=1", "--workdir", tmp_path / "run", "--push_to_hub", name, "--calibrate"),
    )
    assert "model.safetensors" in pushed(hub, name)
    output = tmp_path / "answers.parquet"
    table = files["classify"]["dev"]
    run("predict", "--model", name, "--input", table, "--output", output)
    assert pyarrow.parquet.read_table(output).num_rows == 30
    picture = tmp_path / "attention.png"
    run("visualize", sentences[0], "--model", name, "--output", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_embed_fill_mask_and_search(bucket, one_layer, sentences, tmp_path):
    with fsspec.open(f"{bucket}/texts.txt", "wb") as file:
        file.write("\n".join(sentences[:9]).encode())
    texts = f"{bucket}/texts.txt"
    run("embed", "--model", one_layer, "--input", texts, "--output", tmp_path / "vectors.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "vectors.parquet").num_rows == 9
    assert "probability" in run("fill_mask", f"{sentences[0]} [MASK]", "--model", one_layer)
    files = ("--corpus", texts, "--queries", texts, "--output", tmp_path / "run.trec")
    run("search", "--model", one_layer, *files)
    assert len((tmp_path / "run.trec").read_text().splitlines()) == 81


def test_mine(one_layer, sentences, tmp_path):
    pairs = "".join(f"{text},{text[:20]}\n" for text in sentences[:30])
    (tmp_path / "pairs.csv").write_text(f"query,positive\n{pairs}")
    (tmp_path / "corpus.txt").write_text("\n".join(sentences[30:90]))
    files = ("--queries", tmp_path / "pairs.csv", "--corpus", tmp_path / "corpus.txt")
    run("mine", "--model", one_layer, *files, "--output", tmp_path / "mined.jsonl")
    assert len((tmp_path / "mined.jsonl").read_text().splitlines()) == 30


def test_score(tmp_path):
    (tmp_path / "gold.tsv").write_text("sentence\tlabel\na\t0\nb\t1\nc\t1\n")
    (tmp_path / "predictions.tsv").write_text("index\tprediction\n0\t0\n1\t1\n2\t0\n")
    files = ("--gold", tmp_path / "gold.tsv", "--predictions", tmp_path / "predictions.tsv")
    assert "accuracy" in run("score", "--task=sst2", *files)


def test_convert(hub, one_layer, tmp_path):
    name = unique("model")
    run("convert", model_on_hub(hub, one_layer), tmp_path / "model", "--push_to_hub", name)
    assert pushed(hub, name).keys() >= {"model.safetensors", "config.json"}


def test_plan(small_run):
    flags = ("plan", "--config", small_run(3, 2), "--topology=v5e:2x2")
    if importlib.util.find_spec("libtpu") is None:
        assert "bertjax[tpu]" in run(*flags, status=1)
    else:
        run(*flags)


def test_every_command_is_run_in_a_process():
    tested = " ".join(name for name in globals() if name.startswith("test_"))
    assert all(command in tested for command in set(COMMANDS) - RUN_ELSEWHERE.keys())
