"""A directory is replaced whole or not at all, and only where it holds a model."""

import pytest

from bertjax.weights.replace import replaced_whole


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("old")
    return tmp_path / "model"


def replace(directory, text="new"):
    with replaced_whole(directory) as beside:
        (beside / "config.json").write_text(text)


def test_a_new_directory_an_empty_one_and_a_model_are_written(model):
    (model.parent / "empty").mkdir()
    for name in ("model", "empty", "new", "deep/er"):
        replace(model.parent / name)
        assert (model.parent / name / "config.json").read_text() == "new"
    assert sorted(p.name for p in model.parent.iterdir()) == ["deep", "empty", "model", "new"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("bad")])
def test_an_error_leaves_what_was_there(model, error):
    with pytest.raises(type(error), match=str(error.args[-1])), replaced_whole(model) as beside:
        (beside / "config.json").write_text("half")
        raise error
    assert (model / "config.json").read_text() == "old"
    assert list(model.parent.iterdir()) == [model]


def test_what_a_killed_process_left_is_put_in_order(model):
    scratch = model.with_name("model.writing")
    (scratch / "new").mkdir(parents=True)
    model.rename(scratch / "old")  # killed between the two renames
    with pytest.raises(ValueError, match="bad"), replaced_whole(model):
        raise ValueError("bad")
    assert (model / "config.json").read_text() == "old"
    assert list(model.parent.iterdir()) == [model]


def test_what_is_no_model_is_not_replaced(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    for place in (tmp_path / "work", tmp_path / "work" / "thesis.tex"):
        with pytest.raises(ValueError, match="is no model directory"):
            replace(place)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"


def test_a_linked_directory_is_replaced_where_it_lies(model):
    link = model.with_name("link")
    link.symlink_to(model)
    replace(link)
    assert link.is_symlink() and (model / "config.json").read_text() == "new"
