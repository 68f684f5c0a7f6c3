"""Files are written whole or not at all, and nearest names are found."""

import pytest

from bertjax.base.files import (
    did_you_mean,
    is_remote,
    read_json,
    write_text,
    writing,
)


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
