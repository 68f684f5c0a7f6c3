"""Phases of pretraining: batch-size warm-up, and settings that contradict each other."""

import dataclasses

import pytest

from bertjax.config import Phase, PretrainConfig, model_at
from bertjax.config.model import BertConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_batch_sizes": (2, 8)}, r"warmup_batch_sizes=\(2, 8\) with batch_size=8"),
        ({"warmup_batch_sizes": (4, 2)}, "ascending order"),
        ({"warmup_batch_sizes": (2, 4)}, "batch_size_warmup_steps=0 with 2 warmup_batch_sizes"),
        ({"batch_size_warmup_steps": 5}, "batch_size_warmup_steps=5 with 0 warmup_batch_sizes"),
        (
            {"warmup_batch_sizes": (2,), "batch_size_warmup_steps": 11},
            "batch_size_warmup_steps=11 with 1 warmup_batch_sizes and num_steps=10",
        ),
    ],
)
def test_batch_size_warm_ups_without_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Phase(num_steps=10, max_length=8, batch_size=8, **settings)


def test_microbatches_of_a_batch_size_warm_up_are_no_larger_than_those_after_it():
    phase = Phase(
        num_steps=10,
        max_length=8,
        batch_size=48,
        accumulation_steps=3,
        warmup_batch_sizes=(8, 16, 24, 40),
        batch_size_warmup_steps=9,
    )
    found = [(s.num_steps, s.batch_size, s.accumulation_steps) for s in phase.stages]
    assert found == [(2, 8, 1), (2, 16, 1), (2, 24, 2), (3, 40, 4), (1, 48, 3)]
    assert phase.num_rows == sum(steps * size for steps, size, _ in found)


def test_decay_steps_of_a_phase_need_a_trapezoidal_schedule():
    phase = Phase(
        num_steps=10, max_length=8, batch_size=8, learning_rate_curve="restart", decay_steps=2
    )
    with pytest.raises(ValueError, match="phases.0.decay_steps=2 with optimizer.schedule='google'"):
        PretrainConfig(phases=(phase,))


def test_a_model_says_how_many_positions_its_phases_trained():
    phases = [{"num_steps": 5, "max_length": 64}, {"num_steps": 5, "max_length": 256}]
    model = BertConfig(max_position_embeddings=512)

    def trained(model, step, **how):
        return model_at(model, phases, step, **how).trained_positions

    assert [trained(model, step, is_new=True) for step in (1, 5, 6, 10)] == [64, 64, 256, 256]
    assert trained(model, 10) is None  # --init had trained all of them
    partly = dataclasses.replace(model, trained_positions=128)
    assert [trained(partly, step) for step in (5, 6)] == [128, 256]
    short = dataclasses.replace(model, max_position_embeddings=256)
    assert [trained(short, step, is_new=True) for step in (5, 6)] == [64, None]
    roberta = dataclasses.replace(short, max_position_embeddings=258, position_offset=2)
    assert [trained(roberta, step, is_new=True) for step in (5, 6)] == [64, None]
    rotary = dataclasses.replace(model, pre_norm=True, global_rope_theta=1e4)
    assert trained(rotary, 5, is_new=True) is None
    relative = dataclasses.replace(model, relative_attention=True, position_biased_input=False)
    assert trained(relative, 5, is_new=True) is None
