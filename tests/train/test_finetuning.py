"""How fine-tuning begins: which weights of a stored classifier become those of which class."""

import copy
import csv
import dataclasses
import json
import random

import numpy as np
import pytest

import bertjax
from bertjax import finetune
from bertjax.config import OptimizerConfig
from bertjax.inference.saved_task import stated_length
from bertjax.model import HEADS
from bertjax.tasks import finetune_config, make_task
from bertjax.tasks.embedding import ContrastiveTask
from bertjax.tasks.reranking import RerankTask
from bertjax.tokenization import train_bpe, train_modernbert_bpe
from bertjax.train.experiments import publish
from bertjax.train.facts import gather_finetuning, load_for_task
from bertjax.train.run_plan import plan_finetuning
from bertjax.weights import load_model, save_hf
from tests.cases import others_weekly
from tests.served_models import write_models
from tests.steps import run_until

FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert")
NLI = ["contradiction", "entailment", "neutral"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory, tiny_family, tokenizer, random_params):
    """(names of the classes, head, family) -> a model directory with a random classifier."""

    def make(names, head="sequence_classification", family="bert", **fields):
        folder = tmp_path_factory.mktemp("init") / "model"
        params = random_params(HEADS[head](tiny_family(family), num_labels=len(names)))
        save_hf(folder, params, tiny_family(family), tokenizer, head=head)
        (folder / "checksums.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        config |= {"id2label": {str(i): name for i, name in enumerate(names)}, **fields}
        config["label2id"] = {name: i for i, name in enumerate(names)}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def rows_of(path, names):
    """A file of texts, two of each class."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"abc {x}", x) for x in [*names] * 2)])
    return str(path)


def started(folder, task="classify", **files):
    """The task, and the model that its training starts with."""
    config = finetune_config(task=task, init=str(folder), max_length=32, **files)
    made = make_task(task, config.options)
    return made, load_for_task(config, made)


def kept(folder, task, loaded, name_of=str):
    """Whether each class of the task has the weights of the class of its name."""
    stored = load_model(folder, task.head)
    order = [stored.labels.index(name_of(label)) for label in task.labels]
    parts = [model.params["classifier"] for model in (stored, loaded)]
    return parts[0].keys() == {"kernel", "bias"} and all(
        np.array_equal(parts[0][name][..., order], parts[1][name]) for name in parts[0]
    )


@pytest.mark.parametrize("family", others_weekly(FAMILIES, "bert", "roberta", "distilbert"))
def test_classes_in_another_order_keep_their_weights(tmp_path, model_of, family, capsys):
    folder = model_of(["entailment", "neutral", "contradiction"], family=family)
    task, loaded = started(folder, train=rows_of(tmp_path / "a.csv", NLI))
    assert list(task.labels) == NLI and kept(folder, task, loaded)
    assert "each class has its weights by its name" in capsys.readouterr().out
    assert not loaded.absent


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["NEUTRAL", "ENTAILMENT", "CONTRADICTION"], NLI),
        (["Not Entailment", "entailment", "Other"], ["entailment", "not_entailment", "other"]),
        (["c", "a", "B"], ["A", "b", "C"]),
        (["2", "0", "1"], ["0", "1", "2"]),
        (["LABEL_2", "LABEL_1", "LABEL_0"], ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ],
)
def test_names_may_be_spelled_otherwise(tmp_path, model_of, names, rows):
    folder = model_of(names)
    task, loaded = started(folder, train=rows_of(tmp_path / "a.csv", rows))

    def spelled(label):
        return next(x for x in names if x.lower().replace(" ", "_") == label.lower())

    assert kept(folder, task, loaded, spelled)


@pytest.mark.parametrize("family", others_weekly(FAMILIES, "bert", "roberta", "distilbert"))
def test_tags_in_another_order_keep_their_weights(tmp_path, model_of, family):
    folder = model_of(["I-LOC", "O", "B-LOC"], "token_classification", family)
    words = [{"words": ["abc", "hij", "a"], "tags": ["O", "B-LOC", "I-LOC"]}] * 3
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(x) + "\n" for x in words))
    task, loaded = started(folder, "tag", train=str(tmp_path / "a.jsonl"))
    assert task.labels == ("O", "B-LOC", "I-LOC") and kept(folder, task, loaded)


def test_several_labels_in_another_order_keep_their_weights(tmp_path, model_of):
    folder = model_of(["c", "b", "a"], problem_type="multi_label_classification")
    rows = [{"text": "abc", "labels": ["a", "b"]}, {"text": "hij", "labels": ["c"]}] * 2
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    task, loaded = started(folder, train=str(tmp_path / "a.jsonl"))
    assert task.label_kind == "multi_label" and kept(folder, task, loaded)


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, sentences):
    """A folder with official files of MNLI and RTE."""
    folder = tmp_path_factory.mktemp("glue")
    splits = {"MNLI": ("train", "dev_matched", "dev_mismatched"), "RTE": ("train", "dev")}
    names = {"MNLI": NLI, "RTE": ["entailment", "not_entailment"]}
    for task, parts in splits.items():
        (folder / task).mkdir()
        label = "gold_label" if task == "MNLI" else "label"
        lines = [f"index\tsentence1\tsentence2\t{label}"]
        lines += [f"{i}\t{sentences[i]}\tabc\t{x}" for i, x in enumerate(names[task] * 2)]
        for part in parts:
            (folder / task / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_official_tasks_take_a_classifier_by_its_names(model_of, mnli, seed):
    names = [name.upper() for name in NLI]
    random.Random(seed).shuffle(names)
    folder = model_of(names)
    task, loaded = started(folder, "mnli", data_dir=str(mnli))
    assert kept(folder, task, loaded, str.upper)


def test_two_classes_that_are_reversed_keep_their_weights(mnli, model_of):
    folder = model_of(["NOT_ENTAILMENT", "ENTAILMENT"])
    task, loaded = started(folder, "rte", data_dir=str(mnli))
    assert task.labels == ("entailment", "not_entailment")
    assert kept(folder, task, loaded, str.upper)


@pytest.mark.parametrize(
    "names",
    [
        ["negative", "neutral", "positive"],  # of which the task has one
        ["0", "1", "2"],
        ["entailment", "ENTAILMENT", "neutral"],
    ],
)
def test_other_names_get_a_new_classifier(tmp_path, model_of, names, capsys):
    folder = model_of(names)
    task, loaded = started(folder, train=rows_of(tmp_path / "a.csv", NLI))
    printed = capsys.readouterr().out
    assert f"is not used, since its classes {', '.join(names)} are not those of" in printed
    assert loaded.absent == ["classifier"]
    stored = load_model(folder, task.head).params["classifier"]["kernel"]
    fresh = loaded.params["classifier"]["kernel"]
    assert fresh.shape == stored.shape and not np.isclose(fresh, stored).any()
    assert np.array_equal(loaded.params["classifier"]["bias"], np.zeros(3))


@pytest.mark.parametrize("names", [["LABEL_0", "LABEL_1", "LABEL_2"], None])
def test_names_that_say_nothing_keep_the_order(tmp_path, model_of, names, capsys):
    folder = model_of(names or ["a", "b", "c"])
    config = json.loads((folder / "config.json").read_text())
    if names is None:
        del config["id2label"]
        (folder / "config.json").write_text(json.dumps(config))
    task, loaded = started(folder, train=rows_of(tmp_path / "a.csv", NLI))
    stored = load_model(folder, task.head).params["classifier"]
    for name, value in stored.items():
        np.testing.assert_array_equal(loaded.params["classifier"][name], value)
    message = f"LABEL_0, LABEL_1, LABEL_2 are now called {', '.join(NLI)}"
    assert message in capsys.readouterr().out and not loaded.absent


def test_names_of_other_ids_than_the_outputs_are_refused(tmp_path, model_of):
    folder = model_of(NLI, id2label={str(i): x for i, x in enumerate(NLI, 1)})
    with pytest.raises(ValueError, match="has the ids 1, 2, 3, but the outputs .* are 0 to 2"):
        started(folder, train=rows_of(tmp_path / "a.csv", NLI))


def test_the_output_of_a_regression_stays(model_of, files, capsys):
    folder = model_of(["score"])
    task, loaded = started(folder, "regress", **files["regress"])
    kernel = load_model(folder, task.head).params["classifier"]["kernel"]
    np.testing.assert_allclose(loaded.params["classifier"]["kernel"] * task.std, kernel, rtol=1e-5)
    assert not loaded.absent and "The classifier of" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_moves_no_weights_again(tmp_path, model_of, monkeypatch):
    folder = model_of(["entailment", "neutral", "contradiction"])
    options = {"train": rows_of(tmp_path / "a.csv", NLI * 4), "dev_fraction": 0}
    optimizer = OptimizerConfig(recipe="adamw", warmup_steps=0)
    config = finetune_config(
        task="classify",
        init=str(folder),
        **options,
        max_steps=4,
        batch_size=4,
        max_length=32,
        optimizer=optimizer,
    )
    whole, stopped = (dataclasses.replace(config, workdir=str(tmp_path / x)) for x in "ab")
    finetune.run(whole)
    run_until(2, lambda: finetune.run(stopped), monkeypatch)
    finetune.run(stopped)
    files = [tmp_path / run / "model/model.safetensors" for run in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param("bpe", "roberta", marks=pytest.mark.exhaustive),
        ("modernbert", "modernbert"),
    ],
)
def test_a_tagger_on_bytes_reads_words_in_transformers_as_here(
    tmp_path, tiny_family, sentences, random_params, kind, family
):
    transformers = pytest.importorskip("transformers")
    train = {"bpe": train_bpe, "modernbert": train_modernbert_bpe}[kind]
    tokenizer = train([s.capitalize() for s in sentences], vocab_size=300, model_max_length=512)
    assert tokenizer.encode(["Abc"]) != tokenizer.encode_after_space(["Abc"])
    config = tiny_family(family, vocab_size=tokenizer.vocab_size)
    params = random_params(HEADS["encoder"](config), spread=0.5)
    save_hf(tmp_path / "init", params, config, tokenizer, head="encoder")
    rows = [{"words": s.rstrip(".").capitalize().split()} for s in sentences[:8]]
    for row in rows:
        row["tags"] = ["O" if word[0] < "e" else "B-X" for word in row["words"]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finetune.run(
        finetune_config(
            task="tag",
            init=str(tmp_path / "init"),
            train=str(tmp_path / "a.jsonl"),
            dev_fraction=0,
            max_steps=1,
            batch_size=8,
            max_length=60,
            workdir=str(tmp_path / "run"),
        )
    )
    folder = tmp_path / "run" / "model"
    here = bertjax.load_pretrained(folder, head=None)
    answer = transformers.pipeline("token-classification", model=str(folder), device="cpu")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    longest = json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]
    assert longest == here.config.max_length < 512
    for row in rows:
        words = row["words"]
        [expected] = here.predict([words])
        answers = answer(" ".join(words), ignore_labels=[])
        found = {x["start"]: x for x in reversed(answers)}  # the first piece with this start
        starts = [0]
        for word in words[:-1]:
            starts.append(starts[-1] + len(word) + 1)
        firsts = [found.get(start - 1) or found[start] for start in starts]
        assert [x["entity"] for x in firsts] == expected["labels"]
        scores = [x["score"] for x in firsts]
        np.testing.assert_allclose(scores, expected["probabilities"], atol=1e-5)
        # A list of words gets the same ids.
        ids = theirs(words, is_split_into_words=True)["input_ids"]
        assert ids == theirs(" ".join(words))["input_ids"]
    answer(" ".join(rows[0]["words"] * 40))  # more words than the model reads


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "modernbert"])
@pytest.mark.parametrize("longest", [20, 512, 10**9])
def test_a_saved_tokenizer_reads_no_more_tokens_than_the_model(
    tmp_path, tiny_family, random_params, tokenizer, family, longest
):
    config = tiny_family(family)
    long = copy.copy(tokenizer)
    long.model_max_length = longest
    params = random_params(HEADS["encoder"](config))
    save_hf(tmp_path / "a", params, config, long, head="encoder")
    bertjax.load_pretrained(tmp_path / "a").save(tmp_path / "b")
    for folder in (tmp_path / "a", tmp_path / "b"):
        said = json.loads((folder / "tokenizer_config.json").read_text())
        positions = config.max_position_embeddings - (2 if family == "roberta" else 0)
        assert said["model_max_length"] == min(longest, positions)
    assert long.model_max_length == longest


@pytest.mark.parametrize(
    "family", others_weekly(("bert", "roberta", "distilbert", "albert", "mpnet"), "roberta")
)
def test_positions_that_were_never_trained_are_named(
    tmp_path, tiny_family, random_params, tokenizer, family, files, capsys
):
    config = dataclasses.replace(tiny_family(family), trained_positions=16)
    params = random_params(HEADS["encoder"](config))
    save_hf(tmp_path / "a", params, config, tokenizer, head="encoder")
    bertjax.load_pretrained(tmp_path / "a").save(tmp_path / "b")
    stored = json.loads((tmp_path / "b/config.json").read_text())
    assert stored["trained_positions"] == 16
    capsys.readouterr()
    for max_length, warns in ((48, True), (16, False)):
        run = finetune_config(
            task="classify",
            init=str(tmp_path / "b"),
            max_length=max_length,
            workdir=str(tmp_path / "run"),
            **files["classify"],
        )
        folder = tmp_path / str(max_length)
        folder.mkdir()
        facts = gather_finetuning(run, folder, [run.workdir])
        assert facts.loaded.config.trained_positions == 16  # a fine-tuned model keeps it
        printed = "\n".join(("".join(capsys.readouterr()), *plan_finetuning(run, facts).lines))
        message = f"positions after 16 of {tmp_path / 'b'} were never trained: give --max_length 16"
        assert (message in printed) == warns and "unknown here" not in printed
        assert ("--new_positions" in printed) == warns


def test_the_leaks_of_the_best_run_of_several_are_in_the_workdir(tmp_path):
    for seed in ("seed1", "seed2"):
        (tmp_path / seed / "model").mkdir(parents=True)
        (tmp_path / seed / "leaks.jsonl").write_text(seed)
        (tmp_path / seed / "model/README.md").write_text(f"---\n# {seed}\n\n## Training\n\n")
    for _ in range(2):  # the same command again
        publish(tmp_path, "seed2", {"seed1": {}, "seed2": {}}, None, {}, "\nabout\n")
    assert (tmp_path / "leaks.jsonl").read_text() == "seed2"
    card = (tmp_path / "model/README.md").read_text()
    assert card == f"---\n# {tmp_path.name}\n\nabout\n\n## Training\n\n"


# {case: (task, model of `write_models`, a file, what it says, the length of texts in training)}
STATED = {
    "dense": ("embed", "dense", "sentence_bert_config.json", {"max_seq_length": 40}, 40),
    "positions": ("embed", "dense", "sentence_bert_config.json", {"max_seq_length": 4000}, 64),
    "sparse": ("sparse", "sparse", "sentence_bert_config.json", {"max_seq_length": 30}, 30),
    "tokens": ("colbert", "tokens", "sentence_bert_config.json", {"document_length": 50}, 64),
    "reranker": ("rerank", "rank", "tokenizer_config.json", {"model_max_length": 40}, 40),
}


@pytest.mark.parametrize("case", others_weekly(STATED, "dense", slow=("reranker",)))
def test_texts_are_as_long_as_the_files_of_the_first_model_say(
    case, one_layer, tmp_path, sentences
):
    task, name, file, says, expected = STATED[case]
    model = write_models(tmp_path / "models", one_layer)[name]
    (model / "checksums.json").unlink()
    before = json.loads((model / file).read_text())
    (model / file).write_text(json.dumps(before | says))
    train = tmp_path / "train.jsonl"
    rows = []
    for text, other in zip(sentences[:8], sentences[8:16], strict=True):
        rows.append(json.dumps({"query": text, "positive": text, "negative": other}) + "\n")
    train.write_text("".join(rows))
    for given, found, line in (
        (None, expected, f"after {expected} tokens, as the files of {model} say"),
        (34, 34, ""),
    ):
        workdir = tmp_path / f"run{given}"
        run = finetune_config(
            task=task, init=str(model), train=str(train), workdir=str(workdir), max_length=given
        )
        workdir.mkdir()
        facts = gather_finetuning(run, workdir, [])
        plan = plan_finetuning(run, facts)
        assert plan.max_length == found
        said = [x for x in plan.lines if x.startswith("texts are cut after")]
        assert len(said) == (given is None) and line in "".join(said)


def test_neither_positions_nor_texts_of_another_kind_are_a_length(one_layer, tmp_path):
    """A reranker reads pairs, which are longer than the texts of the embedder that it begins as."""
    encoder = load_model(one_layer, "sequence_classification", num_labels=1)
    assert stated_length(RerankTask(name="rerank"), encoder) is None
    assert stated_length(ContrastiveTask(name="embed"), encoder) is None
    folder = write_models(tmp_path, one_layer)["dense"]
    embedder = load_model(folder, "sequence_classification", num_labels=1)
    assert stated_length(RerankTask(name="rerank"), embedder) is None
    assert stated_length(ContrastiveTask(name="embed"), embedder) == 40
