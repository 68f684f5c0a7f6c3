"""A student that starts from its teacher has the layers that were chosen."""

import dataclasses

import numpy as np
import pytest

from bertjax.model import BertForPreTraining
from bertjax.weights import load_model
from bertjax.weights.load import fingerprint, student_params


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tiny_config, tokenizer, written):
    """A masked LM of three layers, without the head of sentence pairs."""
    config = dataclasses.replace(tiny_config, num_hidden_layers=3, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("teacher") / "model"
    return load_model(written(folder, config, "masked_lm", tokenizer), "pretraining")


def student_of(teacher, layers, **changes):
    config = dataclasses.replace(teacher.config, num_hidden_layers=2, **changes)
    return student_params(teacher, BertForPreTraining(config), layers, 0)


def test_the_student_has_the_chosen_layers_and_all_else_of_the_teacher(teacher):
    params, absent = student_of(teacher, (0, 2))
    for name in ("query", "output"):
        found, theirs = (
            p["bert"]["encoder"]["layers"]["attention"][name]["kernel"]
            for p in (params, teacher.params)
        )
        np.testing.assert_array_equal(found, theirs[[0, 2]])
    for part in ("bert/embeddings", "predictions"):
        found, theirs = params, teacher.params
        for name in part.split("/"):
            found, theirs = found[name], theirs[name]
        assert fingerprint(found) == fingerprint(theirs)
    assert absent == ["bert/pooler", "seq_relationship"]


@pytest.mark.parametrize(
    ("layers", "changes", "message"),
    [
        ((0, 3), {}, "the teacher has the layers 0 to 2"),
        ((0,), {}, "one for each of the 2 layers"),
        ((0, 1), {"intermediate_size": 48}, r"intermediate/kernel: \(2, 32, 48\), the teacher's"),
        ((0, 1), {"hidden_act": "relu"}, "hidden_act: 'relu', the teacher's 'gelu'"),
    ],
)
def test_layers_that_do_not_fit_are_refused(teacher, layers, changes, message):
    with pytest.raises(ValueError, match=message):
        student_of(teacher, layers, **changes)


def test_a_fingerprint_tells_models_apart_by_any_weight(teacher):
    bias = teacher.params["predictions"]["bias"]
    other = {**teacher.params, "predictions": {**teacher.params["predictions"], "bias": bias + 1}}
    assert fingerprint(teacher.params) != fingerprint(other)
    assert fingerprint(teacher.params) == fingerprint(dict(reversed(teacher.params.items())))
