"""Faulty steps that mutants of several kernels have in common."""

import triton
import triton.language as tl


@triton.jit
def kv_head_modulo(head, heads_q, heads_kv):
    """Query heads take KV heads round-robin."""
    return head % heads_kv


@triton.jit
def lse_unmasked(mLSE, offset, index_row, rLSE, len_q):
    """LSE is stored without the row mask."""
    tl.store(mLSE + offset + index_row, rLSE)


@triton.jit
def scaled_twice(rX, scale):
    """A gradient is multiplied by the scale twice."""
    return rX * scale * scale


@triton.jit
def without_delta(rP, rdP, rDelta):
    """dS = P dP."""
    return rP * rdP


@triton.jit
def not_summed(rdX, axis: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """A broadcast tensor's gradient is not summed along an axis of a tile."""
    return rdX
