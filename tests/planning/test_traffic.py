"""The bytes that the kernels of a compiled program move, by kind of kernel."""

import jax
import jax.numpy as jnp
import pytest

from bertjax.planning.traffic import MATRIX_MULTIPLICATIONS, memory_traffic

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


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="has no ENTRY computation"):
        memory_traffic("nothing")
