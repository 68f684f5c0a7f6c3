"""The definitions of GLUE's tasks (Wang et al. 2018).

A new task with files in GLUE's format needs an entry in `GLUE` and a config in configs/finetune/.
"""

import functools
from typing import Any

from bertjax.tasks.classification import ClassificationTask, RegressionTask
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.metrics import accuracy, accuracy_and_f1, matthews, pearson_spearman
from bertjax.tasks.sources.datasets import DatasetSource
from bertjax.tasks.sources.glue_files import GlueSource, GlueSpec, dataset_reader
from bertjax.tasks.submission import export_submission, score_submission
from bertjax.tasks.task import Task

MNLI_FILES = {
    "train": ("train.tsv",),
    "dev_matched": ("dev_matched.tsv",),
    "dev_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
}
# MRPC may not be redistributed: users have Microsoft's files, or those that GLUE's script writes.
MRPC_FILES = {
    "train": ("train.tsv", "msr_paraphrase_train.txt"),
    "dev": ("dev.tsv", "msr_paraphrase_train.txt"),
    "test": ("test.tsv", "msr_paraphrase_test.txt"),
}
NLI = ("entailment", "neutral", "contradiction")
_COLA_COLUMNS = ("source", "label", "mark", "sentence")

GLUE: dict[str, GlueSpec] = {
    spec.name: spec
    for spec in (
        GlueSpec(
            name="cola",
            folder="CoLA",
            metric=matthews,
            best_metric="matthews",
            text=("sentence",),
            pair=(),
            labels=("unacceptable", "acceptable"),
            codes=("0", "1"),
            submission={"test": "CoLA.tsv"},
            dataset_fields=("sentence",),
            no_header={"train": _COLA_COLUMNS, "dev": _COLA_COLUMNS},
        ),
        GlueSpec(
            name="sst2",
            folder="SST-2",
            metric=accuracy,
            text=("sentence",),
            pair=(),
            labels=("negative", "positive"),
            codes=("0", "1"),
            submission={"test": "SST-2.tsv"},
            dataset_fields=("sentence",),
        ),
        GlueSpec(
            name="mrpc",
            folder="MRPC",
            metric=functools.partial(accuracy_and_f1, positive="equivalent"),
            best_metric="accuracy_f1",
            text=("#1 String",),
            pair=("#2 String",),
            label=("Quality",),
            labels=("not_equivalent", "equivalent"),
            codes=("0", "1"),
            submission={"test": "MRPC.tsv"},
            files=MRPC_FILES,
        ),
        GlueSpec(
            name="stsb",
            folder="STS-B",
            metric=pearson_spearman,
            best_metric="pearson_spearman",
            label=("score",),
            labels=(),
            submission={"test": "STS-B.tsv"},
        ),
        GlueSpec(
            name="qqp",
            folder="QQP",
            metric=functools.partial(accuracy_and_f1, positive="duplicate"),
            best_metric="accuracy_f1",
            text=("question1",),
            pair=("question2",),
            label=("is_duplicate",),
            labels=("not_duplicate", "duplicate"),
            codes=("0", "1"),
            submission={"test": "QQP.tsv"},
            dataset_fields=("question1", "question2"),
            has_broken_rows=True,
        ),
        GlueSpec(
            name="mnli",
            folder="MNLI",
            metric=accuracy,
            label=("gold_label",),
            labels=NLI,
            codes=NLI,
            submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
            files=MNLI_FILES,
            dataset_fields=("premise", "hypothesis"),
        ),
        GlueSpec(
            name="qnli",
            folder="QNLI",
            metric=accuracy,
            text=("question",),
            pair=("sentence",),
            labels=("entailment", "not_entailment"),
            codes=("entailment", "not_entailment"),
            submission={"test": "QNLI.tsv"},
            dataset_fields=("question", "sentence"),
        ),
        GlueSpec(
            name="rte",
            folder="RTE",
            metric=accuracy,
            labels=("entailment", "not_entailment"),
            codes=("entailment", "not_entailment"),
            submission={"test": "RTE.tsv"},
        ),
        GlueSpec(
            name="wnli",
            folder="WNLI",
            metric=accuracy,
            labels=("not_entailment", "entailment"),
            codes=("0", "1"),
            submission={"test": "WNLI.tsv"},
        ),
        # The diagnostic set has no train split; it evaluates models fine-tuned on MNLI.
        GlueSpec(
            name="ax",
            folder="diagnostic",
            metric=matthews,
            best_metric="matthews",
            text=("sentence1", "Premise"),
            pair=("sentence2", "Hypothesis"),
            label=("label", "Label"),
            labels=NLI,
            codes=NLI,
            submission={"test": "AX.tsv"},
            files={"test": ("diagnostic.tsv", "AX.tsv", "diagnostic-full.tsv")},
            dataset_fields=("premise", "hypothesis"),
        ),
    )
}


def _make(spec: GlueSpec, options: TaskOptions) -> Task:
    if options.data_dir is not None:
        source = GlueSource(spec, options.data_dir)
    else:
        source = DatasetSource(f"glue/{spec.name}", dataset_reader(spec), options.tfds_data_dir)
    fields: dict[str, Any] = {
        "name": spec.name,
        "source": source,
        "metric": spec.metric,
        "best_metric": spec.best_metric,
        "pairs": bool(spec.pair),
        "doc_stride": options.doc_stride,
        "export": export_submission(spec, options.submission),
    }
    if not spec.labels:
        return RegressionTask(**fields)
    return ClassificationTask(labels=spec.labels, **fields)


GLUE_TASKS = tuple(
    TaskDefinition(
        name=spec.name,
        kinds=(ClassificationTask if spec.labels else RegressionTask,),
        make=functools.partial(_make, spec),
        metric=spec.metric,
        submission=bool(spec.submission),
        score_files=functools.partial(score_submission, spec),
    )
    for spec in GLUE.values()
)
