"""Metrics between steps: MFU over phases, evaluation without waiting for each batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.devices.activity import STEPPING, Clock
from bertjax.devices.flops import PEAK_TFLOPS, listed_tflops
from bertjax.planning.hardware import CHIPS
from bertjax.record.events import Ended, StepDone
from bertjax.record.metrics import MetricLogger
from bertjax.train.facts import device_text
from bertjax.train.held_out_evaluation import evaluation_sums


def test_mfu_of_a_line_over_two_phases_counts_the_flop_of_each_step(monkeypatch):
    lines, clock = [], Clock()
    logger = MetricLogger(lines.append, clock, every=6, num_steps=6)
    metrics = {
        "sums": {"loss": (jnp.ones(()), jnp.ones(()))},
        "tokens": jnp.ones(()),
        "learning_rate": jnp.ones(()),
        "grad_norm": jnp.ones(()),
    }
    seconds = 0.0
    monkeypatch.setattr(clock, "seconds_of", lambda *_: seconds)
    for step in range(1, 7):
        seconds += 100.0 if step in (1, 4) else 1.0  # the first step of each phase compiles
        logger.read(StepDone(step, metrics, None, step // 4, 0, 0.1 if step < 4 else 0.4))
        if step == 3:
            logger.read(Ended(STEPPING))
    (line,) = lines
    # Two steps of a second are timed in each phase, which take .1 and .4 seconds at the peak.
    assert line.step == 6
    assert line.metrics["train/mfu"] == pytest.approx((2 * 0.1 + 2 * 0.4) / 4.0)
    assert line.metrics["train/tokens_per_second"] == pytest.approx(1.0)


def test_evaluation_reads_the_device_once_and_adds_up_all_batches(monkeypatch):
    reads = []

    def device_get(tree):
        reads.append(tree)
        return jax.tree.map(np.asarray, tree)

    monkeypatch.setattr(jax, "device_get", device_get)
    step = jax.jit(lambda params, batch: {"loss": (batch.sum(), batch.size * jnp.ones(()))})
    batches = [np.full(4, value, np.float32) for value in range(8)]
    assert evaluation_sums(step, None, batches) == {"loss": (112.0, 32.0)}
    assert len(reads) == 1


def test_the_peak_of_a_gpu_is_that_of_its_own_card():
    kinds = {
        "NVIDIA H100 80GB HBM3": 989.0,
        "NVIDIA H100 PCIe": 756.0,
        "NVIDIA H100 NVL": 835.0,
        "NVIDIA A100-SXM4-80GB": 312.0,
        "NVIDIA A10": 125.0,
        "NVIDIA A10G": None,  # another card than the A10
        "NVIDIA L40S": 362.0,
        "TPU v5 lite": 197.0,
        "TPU v5p": 459.0,
    }
    assert {kind: listed_tflops(kind) for kind in kinds} == kinds


def test_every_tpu_that_can_be_planned_for_has_a_peak():
    assert {chip.kind for chip in CHIPS.values()} <= PEAK_TFLOPS.keys()
    assert all(PEAK_TFLOPS[chip.kind] > 0 for chip in CHIPS.values())


def test_devices_are_named_in_words():
    assert device_text("cpu", 1, 1) == "1 CPU"
    assert device_text("NVIDIA H100", 1, 1) == "1 NVIDIA H100"
    assert device_text("TPU v4", 8, 2) == "8 x TPU v4 in 2 processes"
