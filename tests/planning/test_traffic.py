"""The bytes that the kernels of a compiled program move, by kind of kernel."""

import jax
import jax.numpy as jnp
import pytest

from bertjax.planning.traffic import (
    MATRIX_MULTIPLICATIONS,
    Collective,
    collectives,
    memory_traffic,
)

MEGABYTE = 1 << 20
X = jax.ShapeDtypeStruct((512, 512), jnp.float32)
STACK = jax.ShapeDtypeStruct((10, 512, 512), jnp.float32)


def traffic(function, *shapes) -> dict[str, int]:
    return memory_traffic(jax.jit(function).lower(*shapes).compile().as_text())


def test_a_fusion_reads_its_operands_and_writes_its_results_once():
    found = traffic(lambda x, y: jnp.sin(x) * jnp.cos(y) + x, X, X)
    assert found == {MATRIX_MULTIPLICATIONS: 0, "optimizer and metrics": 3 * MEGABYTE}


def test_a_matrix_multiplication_is_a_kind_of_its_own():
    found = traffic(lambda x, y: jnp.sin(x @ y), X, X)
    assert found[MATRIX_MULTIPLICATIONS] == 3 * MEGABYTE


def test_a_loop_reads_one_slice_of_a_stack_per_iteration():
    def add_all(stack):
        return jax.lax.scan(lambda sum, x: (jnp.sin(sum) + x, None), jnp.zeros(X.shape), stack)[0]

    # In each of the 10 iterations, the sum and a slice are read, and the sum is written.
    assert sum(traffic(add_all, STACK).values()) == pytest.approx(30 * MEGABYTE, rel=0.1)


def test_a_loop_writes_one_slice_of_a_stack_per_iteration():
    def all_sums(x):
        return jax.lax.scan(lambda sum, _: (jnp.sin(sum), sum), x, length=10)[1]

    # The stack is filled with zeros once. An iteration reads and writes the sum and writes a slice;
    # the compiler may copy each of them. A whole stack per iteration would be ten times as much.
    assert 30 * MEGABYTE < sum(traffic(all_sums, X).values()) < 80 * MEGABYTE


HLO = """HloModule jit_step

%fused (p.0: bf16[4,8], p.1: f32[10,4,8], p.2: s32[]) -> bf16[4,8] {
  %p.0 = bf16[4,8]{1,0} parameter(0)
  %p.1 = f32[10,4,8]{2,1,0} parameter(1)
  %p.2 = s32[] parameter(2)
  %slice = f32[1,4,8]{2,1,0} dynamic-slice(%p.1, %p.2), dynamic_slice_sizes={1,4,8}
  %reshaped = f32[4,8]{1,0} bitcast(%slice)
  %erf = f32[4,8]{1,0} erf(%reshaped)
  ROOT %out = bf16[4,8]{1,0} convert(%erf)
}

ENTRY %main (a: bf16[4,8], b: f32[10,4,8], i: s32[]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = f32[10,4,8]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %gelu = bf16[4,8]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%fused
  ROOT %copy = bf16[4,8]{1,0} copy(%gelu), metadata={op_name="jit(step)/jvp(B)/layer_norm/x"}
}
"""


def test_kernels_are_told_by_their_operations_and_by_the_names_of_modules():
    # 32 elements: p.0 is not read, a slice of p.1 is (128 bytes), an index (4), and 64 are written.
    assert memory_traffic(HLO) == {MATRIX_MULTIPLICATIONS: 0, "GELU": 196, "LayerNorm": 128}


# A loop of 5 iterations, as in programs for TPUs: S(1) is the memory on the chip, and fusions have
# fusions within.
TPU_HLO = """HloModule jit_step

%slice (p.0: f32[5,256], p.1: s32[]) -> f32[256] {
  %p.0 = f32[5,256]{1,0:T(8,128)} parameter(0)
  %p.1 = s32[]{:T(128)S(6)} parameter(1)
  %dynamic-slice.1 = f32[1,256]{1,0:T(8,128)} dynamic-slice(%p.0, %p.1), dynamic_slice_sizes={1,256}
  ROOT %bitcast.1 = f32[256]{0:T(256)} bitcast(%dynamic-slice.1)
}

%fused (q.0: s32[], q.1: f32[5,256], q.2: f32[256]) -> (f32[256], f32[256]) {
  %q.1 = f32[5,256]{1,0:T(8,128)} parameter(1)
  %q.0 = s32[]{:T(128)S(6)} parameter(0)
  %q.2 = f32[256]{0:T(256)S(1)} parameter(2)
  %weight = f32[256]{0:T(256)} fusion(%q.1, %q.0), kind=kLoop, calls=%slice
  %product = f32[256]{0:T(256)} convolution(%weight, %q.2), dim_labels=bf_oi->bf
  %kept = f32[256]{0:T(256)S(1)} negate(%product)
  ROOT %tuple.1 = (f32[256]{0:T(256)}, f32[256]{0:T(256)S(1)}) tuple(%product, %kept)
}

%body (s: (s32[], f32[5,256], f32[256])) -> (s32[], f32[5,256], f32[256]) {
  %s = (s32[]{:T(128)}, f32[5,256]{1,0:T(8,128)}, f32[256]{0:T(256)S(1)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%s), index=0
  %w = f32[5,256]{1,0:T(8,128)} get-tuple-element(%s), index=1
  %x = f32[256]{0:T(256)S(1)} get-tuple-element(%s), index=2
  %fusion.1 = (f32[256]{0:T(256)}, f32[256]{0:T(256)S(1)}) fusion(%i, %w, %x), kind=kOutput, calls=%fused
  %buffer = f32[5,256]{1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %y = f32[256]{0:T(256)S(1)} get-tuple-element(%fusion.1), index=1
  ROOT %next = (s32[]{:T(128)}, f32[5,256]{1,0:T(8,128)}, f32[256]{0:T(256)S(1)}) tuple(%i, %w, %y)
}

%condition (c: (s32[], f32[5,256], f32[256])) -> pred[] {
  %c = (s32[]{:T(128)}, f32[5,256]{1,0:T(8,128)}, f32[256]{0:T(256)S(1)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%c), index=0
  %limit = s32[]{:T(128)} constant(5)
  ROOT %lt = pred[]{:T(512)} compare(%j, %limit), direction=LT
}

ENTRY %main (a: s32[], b: f32[5,256], d: f32[256]) -> f32[256] {
  %a = s32[]{:T(128)} parameter(0)
  %b = f32[5,256]{1,0:T(8,128)} parameter(1)
  %d = f32[256]{0:T(256)} parameter(2)
  %copy-start = (f32[256]{0:T(256)S(1)}, f32[256]{0:T(256)}, u32[]{:S(2)}) copy-start(%d)
  %copy-done = f32[256]{0:T(256)S(1)} copy-done(%copy-start)
  %t = (s32[]{:T(128)}, f32[5,256]{1,0:T(8,128)}, f32[256]{0:T(256)S(1)}) tuple(%a, %b, %copy-done)
  %while.1 = (s32[]{:T(128)}, f32[5,256]{1,0:T(8,128)}, f32[256]{0:T(256)S(1)}) while(%t), condition=%condition, body=%body
  %u = f32[256]{0:T(256)S(1)} get-tuple-element(%while.1), index=2
  ROOT %sum = f32[256]{0:T(256)} all-reduce(%u), replica_groups={{0,1}}, to_apply=%add
}
"""  # noqa: E501


def test_on_a_tpu_arrays_on_the_chip_move_nothing_and_loops_count_by_their_conditions():
    # Each iteration reads a row of the weights and writes one result to the HBM: 2 x 1,024 bytes.
    # A copy to the chip reads 1,024 bytes of the HBM, and the sum is written there. The condition
    # has 9 bytes.
    assert memory_traffic(TPU_HLO) == {
        MATRIX_MULTIPLICATIONS: 5 * 2048,
        "optimizer and metrics": 2048 + 5 * 9,
    }
    assert collectives(TPU_HLO, 2) == [Collective("all-reduce", 2, 1, 1024)]


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="has no ENTRY computation"):
        memory_traffic("nothing")
