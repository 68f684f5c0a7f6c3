"""Single changes of model directories mean the same here and to the libraries that wrote them."""

import pytest

from bertjax import convert
from tests.programs import meaning

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(autouse=True)
def _libraries():
    pytest.importorskip("sentence_transformers", reason="the extra `parity` is not installed")
    pytest.importorskip("torch", reason="the extra `parity` is not installed")


def test_no_change_is_dropped_in_silence(tmp_path):
    names = ["bert-classes", "roberta-mlm", "albert-number", "st-mean"]
    output = tmp_path / "changes.jsonl"
    results = meaning.run(24, 3, output, names, tmp_path / "models")
    wrong = [r for r in results if r["outcome"] in ("silent", "nameless")]
    assert not wrong, meaning.table(results)
    assert sum(result["moves"] for result in results) > 0
    assert {"equal", "refused"} <= {result["outcome"] for result in results}
    assert meaning.run(24, 3, output, names, tmp_path / "models") == results  # nothing again


@pytest.mark.parametrize("name", meaning.KINDS)
def test_a_converted_copy_is_whole_and_means_the_same(tmp_path, name):
    kind, folder, copy = meaning.KINDS[name], tmp_path / "model", tmp_path / "copy"
    meaning.write_directory(kind, folder)
    convert.main([str(folder), str(copy)])
    assert (
        meaning.difference(meaning.reference(kind, copy, 1), meaning.reference(kind, folder, 1))
        == ""
    )
    before, after = (
        {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
        for place in (folder, copy)
    )
    assert before - after <= {"special_tokens_map.json"}
    added = {"README.md", "checksums.json", "vocab.txt", "vocab.json", "merges.txt"}
    assert after - before <= added | {"task.json"}


def test_a_difference_is_seen():
    whole = {"ids": [[1, 2]], "outputs": [meaning.np.ones((1, 3))], "answers": [{"a": 0.5}]}
    assert meaning.difference(whole, whole) == ""
    for key, other in (
        ("ids", [[1, 3]]),
        ("outputs", [meaning.np.full((1, 3), 1.1)]),
        ("outputs", [meaning.np.ones((1, 2))]),
        ("answers", [{"b": 0.5}]),
    ):
        assert key in meaning.difference(whole | {key: other}, whole).replace("answer ", "answers ")
