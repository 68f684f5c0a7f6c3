"""Phases of pretraining: batch-size warm-up, and settings that contradict each other."""

import pytest

from bertjax.config import Phase, PretrainConfig


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
