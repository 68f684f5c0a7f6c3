"""A setting that would have no effect is refused, or cannot be written down."""

import dataclasses
import re

import pytest

import bertjax
from bertjax import finetune
from bertjax.config import FinetuneConfig
from bertjax.tasks import TASKS, finetune_config, make_task
from bertjax.tasks.embedding import EmbedOptions
from bertjax.tasks.registry import options_class
from bertjax.tasks.reranking import RerankOptions
from tests.cases import others_weekly

GLUE_CLASSES = {"cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "ax"}
ALL_GLUE = {*GLUE_CLASSES, "stsb", "glue"}
SQUAD = {"squad", "squad2"}
OFFICIAL = {*ALL_GLUE, *SQUAD, "swag", "conll"}
TABLES = {"classify", "regress", "tag", "choice", "embed", "sparse", "colbert", "rerank"}
OWN = {*TABLES, "qa"}
EMBEDDERS = {"embed", "sparse", "colbert"}
RETRIEVAL = {*EMBEDDERS, "rerank"}
CLASSES = {*GLUE_CLASSES, "classify"}
TAGS = {"tag", "conll"}
# Option of a task -> the tasks in which it has an effect.
OWNERS = {
    **dict.fromkeys(("data_dir", "tfds_data_dir"), OFFICIAL),
    **dict.fromkeys(("train", "dev", "dev_fraction", "test", "skip_bad_rows"), OWN),
    **dict.fromkeys(("ignore_columns", "group_column", "time_column", "drop_leaks"), OWN),
    "slice_column": OWN,
    **dict.fromkeys(("text_column", "label_column", "id_column"), TABLES),
    "pair_column": TABLES - {"tag"},
    "label_columns": {"classify", "regress"},
    "choice_columns": {"choice"},
    **dict.fromkeys(("negative_columns", "score_columns"), RETRIEVAL),
    **dict.fromkeys(("label_separator", "keep_labels", "tune_thresholds"), {"classify"}),
    "doc_stride": {*ALL_GLUE, *SQUAD, *TAGS, "qa", "classify", "regress"},
    **dict.fromkeys(("max_query_length", "max_answer_length"), {*SQUAD, "qa"}),
    "null_threshold": {"squad2", "qa"},
    "submission": ALL_GLUE,
    **dict.fromkeys(("loss", "temperature"), RETRIEVAL),
    **dict.fromkeys(("pooling", "normalize", "matryoshka", "false_negative_margin"), {"embed"}),
    **dict.fromkeys(("query_prompt", "document_prompt"), EMBEDDERS),
    **dict.fromkeys(("retrieval_dir", "keep_same_id"), EMBEDDERS),
    **dict.fromkeys(("queries", "splade_pooling", "splade_activation"), {"sparse"}),
    **dict.fromkeys(("query_regularizer_weight", "document_regularizer_weight"), {"sparse"}),
    "regularizer_warmup": {"sparse"},
    **dict.fromkeys(("similarity", "vector_size", "skip_punctuation"), {"colbert"}),
    **dict.fromkeys(("query_expansion", "attend_expansion"), {"colbert"}),
    **dict.fromkeys(("query_length", "document_length"), {"colbert"}),
    "class_weights": {*CLASSES, *TAGS},
    "label_smoothing": {*CLASSES, *TAGS, "choice", "swag"},
    "calibrate": {*CLASSES, "glue"},
}
# Values of options that are no texts.
VALUES = {
    **{"dev_fraction": "0.2", "doc_stride": "8", "max_query_length": "9", "max_answer_length": "9"},
    **{"null_threshold": "1.5", "loss": "kl", "temperature": "2", "pooling": "cls"},
    **{"false_negative_margin": "0.1", "matryoshka": "8", "label_smoothing": "0.1"},
    **{"class_weights": "balanced", "drop_leaks": "dev", "similarity": "maxsim"},
    **{"vector_size": "8", "query_expansion": "min", "query_length": "8", "document_length": "8"},
    **{"splade_pooling": "sum", "splade_activation": "relu", "regularizer_warmup": "0.1"},
    **{"query_regularizer_weight": "0.1", "document_regularizer_weight": "0.1"},
    "queries": "static",
}


@pytest.mark.parametrize("task", [*TASKS, "glue"])
def test_a_task_has_the_options_that_have_an_effect_in_it(task):
    options = {field.name for field in dataclasses.fields(options_class(task))}
    assert options == {name for name, owners in OWNERS.items() if task in owners}


@pytest.mark.parametrize(
    "task", others_weekly([*TASKS, "glue"], "ax", "classify", "embed", "glue", "tag")
)
def test_an_option_of_another_task_cannot_be_written_down(task, capsys):
    for name, owners in OWNERS.items():
        if task in owners:
            continue
        message = f"--{name} belongs to --task=.*; --task={task} has no such option"
        with pytest.raises(TypeError, match=message) as error:
            finetune_config(task=task, **{name: VALUES.get(name, "a")})
        assert {*re.split("=|, |;", str(error.value))} > owners
        with pytest.raises(TypeError, match=message):
            finetune_config(options_config(task), **{name: VALUES.get(name, "a")})
        if task == "ax":  # it is no task of the command
            continue
        with pytest.raises(SystemExit, match="2"):
            finetune.parse([f"--task={task}", f"--{name}", VALUES.get(name, "a")])
        assert re.search(message, capsys.readouterr().err)


def options_config(task):
    return FinetuneConfig(task=task, options=options_class(task)())


def test_options_of_another_task_are_no_options_of_a_config():
    config = FinetuneConfig(task="classify", options=EmbedOptions())
    with pytest.raises(ValueError, match="ClassifyOptions, .* EmbedOptions"):
        finetune.run(config)
    trained = FinetuneConfig(task="embed", options=EmbedOptions(train="a.csv", loss="kl"))
    with pytest.raises(TypeError, match="--loss belongs to .*; --task=classify"):
        finetune_config(trained, task="classify")


def test_a_config_of_a_task_may_have_no_options_yet():
    config = FinetuneConfig(task="classify", folds=5)
    assert finetune_config(config, train="a.csv").folds == 5
    with pytest.raises(ValueError, match="--folds 5"):
        finetune_config(config, task="rte")


LORA = {"lora": {"rank": 4}}
TAGGER = {"tagger": {"layers": -1}}
TEACHER = {"teacher": {"model": "t"}}


@pytest.mark.parametrize(
    ("task", "setting", "others"),
    [
        ("classify", {"select_by": "last"}, [{"patience": 1}, {"evals_per_epoch": 2}]),
        ("classify", {"sweep": True}, [{"max_steps": 3}, {"seeds": 2}, {"shots": 8}, {"folds": 3}]),
        ("classify", {"shots": 8}, [{"doc_stride": 8}, {"folds": 3}]),
        ("tag", {"shots": 8}, [{"doc_stride": 8}]),
        (
            "classify",
            {"folds": 5},
            [
                *({"dev": "a.csv"}, {"dev_fraction": 0.0}, {"seeds": 2}, {"patience": 1}),
                *({"calibrate": True}, {"tune_thresholds": True}, {"select_by": "macro_f1"}),
                {"evals_per_epoch": 2},
            ],
        ),
        ("classify", {"dev": "a.csv"}, [{"dev_fraction": 0.2}]),
        (
            "conll",
            TAGGER,
            [{"layer_decay": 0.9}, {"freeze_embeddings": True}, {"freeze_layers": 1}, LORA],
        ),
        ("rte", LORA, [{"layer_decay": 0.9}, {"freeze_embeddings": True}, {"freeze_layers": 1}]),
        (
            "glue",
            {},
            [
                *({"shots": 8}, {"folds": 3}, {"select_by": "f1"}, {"push_to_hub": "a/b"}),
                *(TAGGER, TEACHER),
            ],
        ),
        ("embed", {"loss": "simcse"}, [{"dev_fraction": 0.2}, {"folds": 3}]),
        ("embed", {}, [{"keep_same_id": True}, TEACHER, TAGGER]),
        ("rerank", {}, [TEACHER, TAGGER]),
        *((task, {}, [{"folds": 3}]) for task in sorted(OFFICIAL)),
        *((task, {}, [TAGGER]) for task in sorted({*TASKS} - TAGS)),
    ],
)
def test_settings_that_exclude_each_other_are_refused(task, setting, others):
    base = finetune_config(task=task, **setting)
    for other in others:
        (name,) = other
        with pytest.raises(ValueError, match=name):
            finetune_config(base, **other)
        if setting:
            finetune_config(task=task, **other)  # by itself, it has an effect


@pytest.mark.parametrize(
    ("flag", "recipe"),
    [
        *(("--lora.alpha=4", "lora"), ("--lora.targets=query", "lora")),
        *(("--lora.export=adapter", "lora"), ("--teacher.temperature=2", "teacher")),
        *(("--teacher.weight=.3", "teacher"), ("--tagger.join=sum", "tagger")),
        *(("--tagger.kind=bilstm", "tagger"), ("--tagger.size=8", "tagger")),
    ],
)
def test_a_detail_of_a_recipe_needs_the_recipe(flag, recipe, capsys):
    required = {"lora": "rank", "teacher": "model", "tagger": "layers"}[recipe]
    with pytest.raises(SystemExit, match="2"):
        finetune.parse(["--task=conll", flag])
    assert f"--{recipe}.{required}" in capsys.readouterr().err
    name, value = flag.removeprefix(f"--{recipe}.").split("=")
    with pytest.raises(TypeError, match=required):
        finetune_config(task="conll", **{recipe: {name: value}})


def test_a_linear_tagger_has_no_hidden_units():
    with pytest.raises(ValueError, match="size=8"):
        finetune_config(task="tag", tagger={"layers": -1, "size": 8})


def table(tmp_path, *columns):
    """A CSV file of twelve rows, in which scores and labels are numbers."""
    numbers = ("score", "label", "score1", "score2")
    rows = [
        ",".join(f"{i % 2}" if name in numbers else f"{name} {i}" for name in columns)
        for i in range(12)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return str(path)


PAIR = ("query", "positive")
SCORED = ("sentence1", "sentence2", "score")
MINED = (*PAIR, "negative", "score1", "score2")
SCORES = {"score_columns": ("score1", "score2")}


@pytest.mark.parametrize(
    ("columns", "options", "idle"),
    [
        (SCORED, {}, {"temperature": 0.1}),
        (SCORED, {}, {"false_negative_margin": 0.1}),
        (SCORED, {"loss": "cosent"}, {"false_negative_margin": 0.1}),
        (MINED, {"loss": "margin", **SCORES}, {"temperature": 0.1}),
        (MINED, {"loss": "margin", **SCORES}, {"false_negative_margin": 0.1}),
        (MINED, {"loss": "kl", **SCORES}, {"false_negative_margin": 0.1}),
        (PAIR, {}, {"loss": "similarity"}),
        (PAIR, {}, {"loss": "cosent"}),
        (PAIR, {}, {"loss": "margin"}),
        (PAIR, {}, {"loss": "kl"}),
        (SCORED, {}, {"loss": "contrastive"}),
    ],
)
def test_options_of_embeddings_fit_the_loss_and_the_columns(columns, options, idle, tmp_path):
    given = {"train": table(tmp_path, *columns), "dev_fraction": 0.0, **options}
    make_task("embed", EmbedOptions(**given))
    (name,) = idle
    with pytest.raises(ValueError, match=name):
        make_task("embed", EmbedOptions(**{**given, **idle}))


LABELLED = ("query", "passage", "label")


@pytest.mark.parametrize(
    ("columns", "options", "idle"),
    [
        (LABELLED, {}, {"temperature": 2.0}),
        (LABELLED, {}, {"loss": "listwise"}),
        (LABELLED, {}, {"loss": "kl"}),
        (MINED[:3], {}, {"temperature": 2.0}),
        (MINED[:3], {}, {"loss": "margin"}),
        (MINED, {"loss": "listwise", "ignore_columns": SCORES["score_columns"]}, SCORES),
        (MINED, {"loss": "margin", **SCORES}, {"temperature": 2.0}),
    ],
)
def test_options_of_reranking_fit_the_loss_and_the_columns(columns, options, idle, tmp_path):
    given = {"train": table(tmp_path, *columns), "dev_fraction": 0.0, "skip_bad_rows": True}
    make_task("rerank", RerankOptions(**given, **options))
    (name,) = idle
    with pytest.raises(ValueError, match=name):
        make_task("rerank", RerankOptions(**{**given, **options, **idle}))


@pytest.mark.parametrize(("task", "loss"), [("embed", "binary"), ("rerank", "cosent")])
def test_a_loss_of_another_task_is_refused(task, loss, capsys):
    with pytest.raises(ValueError, match=f"loss='{loss}'"):
        finetune_config(task=task, loss=loss)
    with pytest.raises(SystemExit, match="2"):
        finetune.parse([f"--task={task}", f"--loss={loss}"])
    assert loss in capsys.readouterr().err


def test_epochs_have_no_effect_beside_the_steps_of_a_config_file(tmp_path):
    flags = ["--task=sst2", "--shots=8", "--num_epochs=20"]
    with pytest.raises(ValueError, match="num_epochs=20 .*max_steps=200"):
        finetune.parse(flags)
    with pytest.raises(ValueError, match="num_epochs=20 .*max_steps=200"):
        bertjax.finetune(task="sst2", shots=8, num_epochs=20)
    for steps in ("None", "30"):
        assert finetune.parse([*flags, f"--max_steps={steps}"]).num_epochs == 20


FIELDS = {
    "temperature": 0.05,
    "matryoshka": (128, 64),
    "train": "a.csv",
    "pooling": "cls",
    "batch_size": 16,
    "lora": {"rank": 8, "targets": ("query", "value")},
    "optimizer": {"learning_rate": 1e-4},
}
FLAGS = (
    "--temperature=.05 --matryoshka 128 64 --train=a.csv --pooling cls --batch_size 16 "
    "--lora.rank=8 --lora.targets query value --optimizer.learning_rate=1e-4"
)
FILE = """
import dataclasses

from bertjax.config import FinetuneConfig, LoraConfig, load_config_file
from bertjax.tasks.embedding import EmbedOptions

defaults = load_config_file("embed", FinetuneConfig)
config = dataclasses.replace(
    defaults,
    options=EmbedOptions(temperature=0.05, matryoshka=(128, 64), train="a.csv", pooling="cls"),
    batch_size=16,
    lora=LoraConfig(rank=8, targets=("query", "value")),
    optimizer=dataclasses.replace(defaults.optimizer, learning_rate=1e-4),
)
"""


def test_flags_keywords_and_a_config_file_give_the_same_config(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(finetune, "_finetune", lambda config, *_: seen.append(config))
    bertjax.finetune(task="embed", **FIELDS)
    assert finetune.main(["--task=embed", *FLAGS.split()]) == 0
    (tmp_path / "config.py").write_text(FILE)
    assert finetune.main([f"--config={tmp_path / 'config.py'}"]) == 0
    assert finetune.main([f"--config={tmp_path / 'config.py'}", "--task=embed"]) == 0
    assert len(seen) == 4 and all(config == seen[0] for config in seen)
    assert (seen[0].task, seen[0].options.temperature, seen[0].lora.rank) == ("embed", 0.05, 8)
