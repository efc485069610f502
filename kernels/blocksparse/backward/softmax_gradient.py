"""S to P to dS, element by element, in a thread's registers."""

import math
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute

from kernels.blocksparse.common.layouts import rows_columns

LOG2_E = math.log2(math.e)


class Factors(NamedTuple):
    """to_tanh = scale / cap, read under a soft cap; to_log2: what makes scores exponents of two; scale is dK's
    factor."""

    to_tanh: Float32
    to_log2: Float32
    scale: Float32


@cute.jit
def probabilities(
    softcap: cutlass.Constexpr,
    slope_of: cutlass.Constexpr,
    rS: cute.Tensor,
    rSlope: Any,
    lse2: Any,
    factors: Factors,
) -> None:
    """S becomes P, not masked yet. slope_of: `slope_of` or its replacement; lse2: of this thread's rows; rSlope: under
    a soft cap, takes the slope."""
    rS_mn: Any = rows_columns(rS)
    if cutlass.const_expr(softcap):
        rS.store(tanh(rS.load() * factors.to_tanh))
        rSlope.store(slope_of(rS.load()))
    for i in cutlass.range_constexpr(cute.size(rS_mn, mode=[0])):
        rS_mn[i, None] = exp2(rS_mn[i, None].load() * factors.to_log2 - lse2[i])


def of_rows(sX: Any, rows: Any, stage: Int32) -> Any:
    """LSE or delta of these rows, read now."""
    return [sX[row, stage] for row in rows]


@cute.jit
def start_from_delta(start_of: cutlass.Constexpr, rdS: cute.Tensor, delta: Any) -> None:
    """dS starts as -delta, so that the next product makes it dO V^T - delta. start_of: `start_of` or its
    replacement; delta: of this thread's rows."""
    rdS_mn: Any = rows_columns(rdS)
    for i in cutlass.range_constexpr(cute.size(rdS_mn, mode=[0])):
        start = start_of(delta[i])
        for c in cutlass.range_constexpr(cute.size(rdS_mn, mode=[1])):
            rdS_mn[i, c] = start


@cute.jit
def add_start(start_of: cutlass.Constexpr, rdS: cute.Tensor, delta: Any) -> None:
    """Adds `start_of` after the product, where its registers cannot be set before it."""
    rdS_mn: Any = rows_columns(rdS)
    for i in cutlass.range_constexpr(cute.size(rdS_mn, mode=[0])):
        rdS_mn[i, None] = rdS_mn[i, None].load() + start_of(delta[i])


def slope_of(capped: Any) -> Any:
    """The slope of tanh where it has these values."""
    return 1.0 - capped * capped


@cute.jit
def start_of(delta: Float32) -> Any:
    """The value that dP is added to."""
    return -delta


@cute.jit
def dk_factor(scale: Float32) -> Float32:
    """The factor from dS^T Q to dK: the scale that forward applied to q·k."""
    return scale


def exp2(values: Any) -> Any:
    """2^x, approximately: ex2.approx."""
    return cute.math.exp2(values, fastmath=True)  # type: ignore[attr-defined]


def tanh(values: cute.TensorSSA) -> cute.TensorSSA:
    """1 - 2 / (1 + exp(2x)), as forward computes it: within 1e-6 of tanh, where tanh.approx is 5e-4 off."""
    return 1.0 - 2.0 / (1.0 + exp2(values * (2.0 * LOG2_E)))
