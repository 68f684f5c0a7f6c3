"""The averages of GLUE are those of the papers, and missing scores are not averaged over."""

import pytest

from bertjax.tasks.registry import check_task, make_task
from bertjax.tasks.sources.glue import (
    COLUMNS,
    GLUE,
    GLUE_NAMES,
    PAPER_COLUMNS,
    PUBLISHED,
    columns_of,
    glue_average,
    paper_average,
    published_scores,
    tasks_in,
)


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-large-uncased"])
def test_the_average_of_the_papers_rows_is_the_papers_average(name):
    row = published_scores(name)[0]
    columns = {column: row.scores[column] / 100 for column in PAPER_COLUMNS}
    average = paper_average(columns)
    assert (average.count, average.total, average.missing) == (9, 9, ())
    assert average.complete is not None
    assert round(100 * average.complete, 1) == row.scores["average"]


def test_glue_averages_the_means_of_its_nine_tasks():
    columns = {column.name: 0.5 for column in COLUMNS}
    columns |= {"MNLI-m accuracy": 0.8, "MNLI-mm accuracy": 0.6, "MRPC F1": 0.9}
    average = glue_average(columns)
    assert average.complete == pytest.approx((0.7 + 0.7 + 7 * 0.5) / 9) and average.total == 9
    # Nine columns without WNLI, of which MNLI's are two.
    assert paper_average(columns).complete == pytest.approx((0.8 + 0.6 + 0.9 + 6 * 0.5) / 9)


def test_no_mean_of_all_is_given_where_a_score_is_missing():
    scores = {"cola": {"dev/matthews": 0.4}, "mnli": {"dev_matched/accuracy": 0.8}}
    columns = columns_of(scores)
    assert columns == {"CoLA Matthews": 0.4, "MNLI-m accuracy": 0.8}
    paper, glue = paper_average(columns), glue_average(columns)
    assert paper.complete is None and paper.present == pytest.approx(0.6) and paper.count == 2
    assert "MNLI-mm accuracy" in paper.missing and len(paper.missing) == 7
    # Of MNLI, one half of its mean is missing.
    assert (glue.complete, glue.present, glue.count) == (None, 0.4, 1) and "MNLI" in glue.missing
    assert paper_average({}).present is None


def test_every_column_is_a_metric_of_its_task(monkeypatch):
    names = {column.task: set() for column in COLUMNS}
    for column in COLUMNS:
        names[column.task].add(column.key.partition("/")[2])
    assert names.keys() == set(GLUE_NAMES)
    for name, keys in names.items():
        labels = GLUE[name].labels or (1.0,)
        assert keys <= GLUE[name].metric(labels[:1], labels[:1]).keys()
    titles = {column.name for column in COLUMNS}
    assert set(PAPER_COLUMNS) <= titles
    unstated = {"MNLI", "MRPC", "QQP", "STS-B"}
    for rows in PUBLISHED.values():
        for row in rows:
            assert row.scores.keys() <= titles | unstated | {"average"}


def test_published_scores_are_found_with_and_without_the_owner():
    assert published_scores("google-bert/bert-base-uncased") == PUBLISHED["bert-base-uncased"]
    assert published_scores("my-bert") == ()


def write(folder, *splits):
    folder.mkdir()
    for split in splits:
        (folder / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n")


def test_tasks_without_a_folder_or_a_split_are_missing_and_the_reason_is_said(tmp_path):
    write(tmp_path / "RTE", "train", "dev", "test")
    write(tmp_path / "QNLI", "train")
    write(tmp_path / "WNLI", "test")
    present, missing = tasks_in(str(tmp_path))
    assert present == ["rte"] and len(missing) == 8
    assert missing["qnli"].endswith("has no dev split")
    assert missing["wnli"].endswith("has no train and no dev split")
    assert missing["cola"].endswith("CoLA has no files of the task")
    assert tasks_in(None) == (list(GLUE_NAMES), {})
    with pytest.raises(FileNotFoundError, match="none of the folders of GLUE's tasks"):
        tasks_in(str(tmp_path / "RTE"))


def test_only_finetune_knows_glue_as_a_task():
    assert check_task("GLUE", "glue") == "glue"
    with pytest.raises(ValueError, match="Did you mean 'glue'"):
        check_task("glu", "glue")
    with pytest.raises(ValueError, match="Unknown task 'glue'"):
        make_task("glue", None)  # type: ignore[arg-type]
