"""Files and folders are written whole or not at all, and nearest names are found."""

import pytest

from bertjax.base.files import (
    did_you_mean,
    is_remote,
    read_json,
    replacing_folder,
    write_text,
    writing,
)
from bertjax.base.lock import Locked
from bertjax.weights.hf import MODEL_FILES


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("old")
    return tmp_path / "model"


def replace(directory, text="new"):
    with replacing_folder(directory, MODEL_FILES) as beside:
        (beside / "config.json").write_text(text)


def test_a_new_directory_an_empty_one_and_a_model_are_written(model):
    (model.parent / "empty").mkdir()
    for name in ("model", "empty", "new", "deep/er"):
        replace(model.parent / name)
        assert (model.parent / name / "config.json").read_text() == "new"
    assert sorted(p.name for p in model.parent.iterdir()) == ["deep", "empty", "model", "new"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("bad")])
def test_an_error_leaves_what_was_there(model, error):
    with (
        pytest.raises(type(error), match=str(error.args[-1])),
        replacing_folder(model, MODEL_FILES) as beside,
    ):
        (beside / "config.json").write_text("half")
        raise error
    assert (model / "config.json").read_text() == "old"
    assert list(model.parent.iterdir()) == [model]


def test_what_a_killed_process_left_is_put_in_order(model):
    scratch = model.with_name("model.writing")
    (scratch / "new").mkdir(parents=True)
    model.rename(scratch / "old")  # killed between the two renames
    with pytest.raises(ValueError, match="bad"), replacing_folder(model, MODEL_FILES):
        raise ValueError("bad")
    assert (model / "config.json").read_text() == "old"
    assert list(model.parent.iterdir()) == [model]


def test_a_folder_is_not_replaced_by_two_processes_at_once(model):
    with replacing_folder(model, MODEL_FILES) as beside:
        (beside / "config.json").write_text("new")
        with pytest.raises(Locked, match="is being written by another process"):
            replacing_folder(model, MODEL_FILES).__enter__()
    assert (model / "config.json").read_text() == "new"
    assert list(model.parent.iterdir()) == [model]


def test_what_is_no_model_is_not_replaced(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match="is no model directory"):
        replace(tmp_path / "work")
    for marks in (MODEL_FILES, ()):
        with pytest.raises(ValueError, match="is a file, so it is not replaced: name a new dir"):
            with replacing_folder(tmp_path / "work" / "thesis.tex", marks):
                raise AssertionError
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"


def test_a_linked_directory_is_replaced_where_it_lies(model):
    link = model.with_name("link")
    link.symlink_to(model)
    replace(link)
    assert link.is_symlink() and (model / "config.json").read_text() == "new"


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.txt"
    write_text(file, "old")
    for error in (OSError(28, "No space left on device"), ValueError("No space in the text")):
        with pytest.raises(type(error), match="No space"), writing(file) as temporary:
            temporary.write_text("half")
            raise error
        assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    with writing(file, unique=True) as temporary:
        temporary.write_text("new")
    assert file.read_text() == "new" and list(tmp_path.iterdir()) == [file]
    with writing(file):
        pass  # nothing written: the old content stays
    assert file.read_text() == "new"


def test_only_an_error_of_the_file_itself_is_said_to_be_of_writing_it(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "a.txt"):
        (tmp_path / "input").read_text()
    with pytest.raises(OSError, match="Writing .*/no/a.txt failed"):
        write_text(tmp_path / "no" / "a.txt", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "a.json cannot be read, because it is not JSON"),
        (b'"\xff"', "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "it holds a list, not an object: copy"),
    ],
)
def test_json_that_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}


def test_the_nearest_name_is_named_and_none_that_is_far():
    assert did_you_mean("mnl", ["cola", "mnli"]) == "Did you mean 'mnli'? "
    assert did_you_mean("xyz", ["cola", "mnli"]) == ""


@pytest.mark.parametrize(
    "address",
    ["s3://key:secret@bucket/x", "gs://secret@b", "https://user:secret@host/x", "s3://:secret@b"],
)
def test_an_address_with_a_password_is_refused_without_repeating_it(address):
    with pytest.raises(ValueError, match="holds the name of a user or a password") as error:
        is_remote(address)
    assert "secret" not in str(error.value)
    assert is_remote("gs://bucket/run@2/x")
    assert not is_remote("folder/key:secret@bucket")
