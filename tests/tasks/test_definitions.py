"""Every task states its own facts: metrics, columns, flags, and how its model is restored."""

import dataclasses
from types import SimpleNamespace

import pytest

from bertjax.inference.saved_task import KINDS, saved_task
from bertjax.model.losses import REGRESSION
from bertjax.tasks import make_task
from bertjax.tasks.classification import (
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    RegressOptions,
    TargetsTask,
    make_regression,
)
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.metrics import (
    class_metrics,
    entity_f1,
    matthews,
    multi_label,
    ordinal_metrics,
    word_accuracy,
)
from bertjax.tasks.registry import TASKS, options_class
from bertjax.tasks.reranking import RerankTask
from bertjax.tasks.sources.columns import Columns, TableKind, flag_of
from bertjax.tasks.sources.glue import GLUE
from bertjax.tasks.tagging import TagTask
from bertjax.train.run_plan import _objective


def test_the_metric_that_selects_the_best_checkpoint_is_computed():
    for spec in GLUE.values():
        golds = [1.0, 2.0, 3.0] if not spec.labels else [*spec.labels, spec.labels[0]]
        assert spec.best_metric in spec.metric(golds, golds)
    tagging = TagTask.of_labels(("O", "B-X", "I-X"), name="tag")
    words = TagTask.of_labels(("NN", "VB"), name="tag")
    assert (tagging.metric, words.metric) == (entity_f1, word_accuracy)
    for task, golds in (
        (tagging, [("O", "B-X")]),
        (words, [("NN", "VB")]),
        (MultiLabelTask(name="m"), [("a",), ()]),
        (RegressionTask(name="r"), [1.0, 2.0]),
        (ClassificationTask(name="c"), ["a", "b"]),
    ):
        assert task.best_metric in task.metric(golds, golds)


def test_a_saved_model_is_scored_with_the_metric_of_its_task():
    def saved(head, labels, config=None, **description):
        return saved_task(head, labels, len(labels), config or {}, description, 64)

    head = "sequence_classification"
    cola = saved(head, ["unacceptable", "acceptable"], task="cola", label_kind="classes")
    assert cola.metric is matthews and cola.name == "cola"
    assert saved(head, ["a", "b"], task="classify", label_kind="classes").metric is class_metrics
    several = saved(head, ["a", "b"], task="classify", label_kind="multi_label")
    assert several.metric is multi_label
    # Models of others: the head decides, then problem_type, then the number of labels.
    assert isinstance(saved(head, ["a", "b"]), ClassificationTask)
    assert isinstance(saved(head, ["a"]), RerankTask)
    assert isinstance(saved(head, ["a"], {"problem_type": "regression"}), RegressionTask)
    several = saved(head, ["x", "y"], {"problem_type": "regression"})
    assert isinstance(several, TargetsTask) and several.labels == ("x", "y")
    with pytest.raises(ValueError, match="the activation Sigmoid"):
        saved_task(head, ["x", "y"], 2, {"problem_type": "regression"}, {}, 64, "Sigmoid")
    assert saved(head, ["1", "2", "3"], label_kind="classes").metric is ordinal_metrics
    named = {"problem_type": "multi_label_classification"}
    assert isinstance(saved(head, ["a", "b"], named), MultiLabelTask)
    assert saved("token_classification", ["O", "B-X"]).metric is entity_f1
    for kind in KINDS:
        if kind.head != head:
            assert saved(kind.head, ["O", "B-X"]).head == kind.head
    assert type(saved("sentence_embedding", ["a"])) is SimilarityTask
    with pytest.raises(ValueError, match="the head masked_lm, which no task uses"):
        saved("masked_lm", ["a"])
    # Words are tagged with names alone, and no probability of a class is lost.
    assert saved("token_classification", ["O", "B-X", "O"]).labels == ("O", "B-X", "O")
    for kind in ("classes", "multi_label"):
        message = r"id2label in config.json has neg, pos more than once, .* give each id a name"
        with pytest.raises(ValueError, match=message):
            saved(head, ["pos", "neg", "neg", "so-so", "pos"], label_kind=kind)


def test_no_message_recommends_a_flag_that_its_task_refuses(tmp_path):
    files = {"classify": "text,label\na,x\nb,y\n", "regress": "text,score\na,1\nb,2\nc,3\n"}
    files |= {"choice": "text,choice1,choice2,label\na,b,c,0\n"}
    files |= {"embed": "anchor,positive\na,b\nc,d\n"}
    files |= {"rerank": "query,passage,label\na,b,1\nc,d,1\n"}
    files |= {"tag": '{"words": ["a", "b"], "tags": ["O", "B-X"]}\n'}
    for name, text in files.items():
        path = tmp_path / ("t.jsonl" if name == "tag" else "t.csv")
        path.write_text(text)
        note = make_task(name, options_class(name)(train=str(path))).source.note
        own = {f"--{field.name}" for field in dataclasses.fields(options_class(name))}
        for field in dataclasses.fields(Columns):
            flag = flag_of(field.name)
            assert flag not in note or flag in own


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuberOptions(RegressOptions):
    table = TableKind("huber", labels=("severity",), label="number")
    delta: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuberTask(RegressionTask):
    options: HuberOptions = HuberOptions()

    def objective(self, head):
        return super().objective(head)._replace(loss_weights={"loss": self.options.delta})


def test_a_new_kind_of_task_says_what_it_reads_and_its_own_loss(tmp_path):
    (tmp_path / "a.csv").write_text("text,severity,rank\na bad film,2.5,1\na good film,1,2\n")
    options = HuberOptions(train=str(tmp_path / "a.csv"), dev_fraction=0, delta=0.5)
    task = HuberTask(**vars(make_regression(options, None)), options=options)
    assert task.source.columns.label == "severity" and task.source.name == "--task=huber"
    loaded = SimpleNamespace(model=SimpleNamespace(objective=lambda *_: REGRESSION))
    config = SimpleNamespace(options=options, teacher=None)
    objective = _objective(config, SimpleNamespace(task=task, loaded=loaded), None, steps=1)
    assert objective.loss_weights == {"loss": 0.5}


def test_a_saved_model_gets_the_kind_of_the_task_that_it_names(monkeypatch):
    definition = TaskDefinition(
        name="huber", kinds=(HuberTask,), options=HuberOptions, make=make_regression
    )
    monkeypatch.setitem(TASKS, "huber", definition)
    for name, kind in (("huber", HuberTask), ("regress", RegressionTask)):
        description = {"task": name, "label_kind": "regression"}
        task = saved_task("sequence_classification", ["LABEL_0"], 1, {}, description, 64)
        assert type(task) is kind and task.name == name


class OtherRegression(RegressionTask):
    """The same kind of labels as `RegressionTask`, with another head."""

    head = "another"


def test_a_saved_model_gets_the_task_of_its_head(monkeypatch):
    monkeypatch.setattr("bertjax.inference.saved_task.KINDS", (*KINDS, OtherRegression))
    for head, kind in (
        ("another", OtherRegression),
        ("sequence_classification", RegressionTask),
    ):
        for description in ({"label_kind": "regression"}, {}):
            config = {"problem_type": "regression"}
            task = saved_task(head, ["LABEL_0"], 1, config, description, 64)
            assert type(task) is kind and task.labels == ()
