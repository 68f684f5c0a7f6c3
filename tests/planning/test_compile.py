"""Advice for plans that do not fit: which changes of a config are tried."""

from types import SimpleNamespace

from bertjax.config import Phase, PretrainConfig
from bertjax.planning.compile import _kinds_of_change


def test_changes_that_a_phase_does_not_allow_are_left_out():
    phase = Phase(num_steps=1, max_length=128, batch_size=256, accumulation_steps=32)
    memory = {"peak": 3.0, "available": 1.0}
    plan = SimpleNamespace(mesh={"data": 4, "fsdp": 1}, memory=memory, devices=4, remat="full")
    config = PretrainConfig(phases=(phase,))
    flags = [flag for kind in _kinds_of_change(config, 0, plan) for flag, _ in kind]
    plan.remat = "selective"
    more = [flag for kind in _kinds_of_change(config, 0, plan) for flag, _ in kind]
    assert more == ["--remat dots", "--remat full", *flags]
    assert flags == [
        "--phases.0.batch_size 64",
        "--phases.0.batch_size 32",
        "--mesh.data 1 --mesh.fsdp 4",
    ]
