import pytest

from bertjax.tasks.sources.swag import read_swag

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


def test_choices_are_the_beginning_with_each_ending(tmp_path):
    row = '17,v,3,He rides. He,He rides.,He,gold,"looks, ""up"".",b.,c.,d.'
    (tmp_path / "val.csv").write_text(f"{HEADER},label\r\n{row},2\r\n\r\n", newline="")
    (tmp_path / "test.csv").write_text(f"{HEADER}\n{row}")
    swag = read_swag(tmp_path)
    assert swag.splits == ("dev", "test")
    (example,) = swag.examples("dev")
    assert (example.id, example.text, example.label) == ("17", "He rides.", 2)
    assert example.choices == ('He looks, "up".', "He b.", "He c.", "He d.")
    assert example.where.endswith("val.csv, row 2")
    (example,) = swag.examples("test")
    assert example.label is None


def test_damaged_files_are_named_with_the_row(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(f"{HEADER},label\n0,v,3,s,He rides.,He,gold,a,b,c,d,4\n")
    with pytest.raises(ValueError, match="train.csv, row 2: label '4' is none of the endings"):
        list(read_swag(tmp_path).examples("train"))
    path.write_text("sent1,sent2,ending0,ending1,ending2\n")
    with pytest.raises(ValueError, match="train.csv, row 1 lacks the columns ending3 and has"):
        list(read_swag(tmp_path).examples("train"))


@pytest.mark.real
def test_swag_has_its_rows(shared):
    examples = list(read_swag(shared).examples("dev"))
    assert len(examples) == len({example.id for example in examples}) == 500
    assert {example.label for example in examples} == {0, 1, 2, 3}
    assert all(len(example.choices) == 4 and example.text for example in examples)
