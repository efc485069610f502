# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Probabilities of a row's scores: most by MUFU.EX2, some by a polynomial, two at a time by packed fp32 instructions.

NOTE [polynomials] An SM of sm_100a has 16 MUFU.EX2 a clock, which takes a block of 128 x 128 as long as products at
head dim 128 do, and twice as long as those at 64. So some pairs of a row take other units: x is n + f, n the nearest
whole number; 2^f is a polynomial, 2^n the bits of n in an exponent. The polynomial is 1 at 0, so that a row's largest
score is exactly 1; its relative error in fp32, 1.7e-7, is less than that of `ex2.approx` (2^-22). x below -126.5, such
as the -inf of a forbidden key, is exactly 0, as a row's sum needs it; NaN stays NaN.
"""

import cutlass
from cutlass import Float32, Uint32, cute

from kernels.blocksparse.forward.blackwell.tuning import GROUP

LEAST = -127.0  # log2 of what is 0
# x plus this is rounded to a whole number n; the sum's last bits are n + 127, the exponent's bits of 2^n
ROUND = 1.5 * 2**23 + 127
# 2^f for f in [-0.5, 0.5]: 1 + f (c0 + f (c1 + …)), the least largest relative error at this degree
COEFFICIENTS = (
    0.6931470036506653,
    0.24022242426872253,
    0.05550733581185341,
    0.009671512991189957,
    0.001326472731307149,
)


@cute.jit
def exponentials(w, acc_s: cute.Tensor) -> cute.Tensor:
    """The probabilities of some of a row's scores times the final sum, in the operands' dtype; adds them to the row's
    sum. acc_s: a multiple of eight scores, which become the probabilities in fp32."""
    power, factor = w.power_of, w.to_log2
    offset = -(w.finite(w.row_ref[0]) * factor)
    total = (Float32(0.0), Float32(0.0))
    for i in cutlass.range_constexpr(cute.size(acc_s) // 2):
        pair = acc_s[2 * i], acc_s[2 * i + 1]
        pair = cute.arch.fma_packed_f32x2(pair, (factor, factor), (offset, offset))
        if cutlass.const_expr(i % GROUP < w.tuning.polynomials):
            pair = power(pair)
        else:
            pair = tuple(cute.math.exp2(x, fastmath=True) for x in pair)
        total = cute.arch.add_packed_f32x2(total, pair)
        acc_s[2 * i], acc_s[2 * i + 1] = pair
    w.row_sum[0] = w.row_sum[0] + (total[0] + total[1])
    rounded = cute.make_rmem_tensor_like(acc_s, w.dtype)
    rounded.store(acc_s.load().to(w.dtype))
    return rounded


@cute.jit
def power_of(pair):
    """2 to the power of both, each at most 127: NOTE [polynomials]."""
    return by_polynomial(pair, LEAST)


def by_polynomial(pair, least):
    """2 to the power of both, or of `least` where that is more."""
    x = tuple(cute.arch.fmax(value, Float32(least), nan=True) for value in pair)
    shifted = cute.make_rmem_tensor(2, Float32)
    shifted[0], shifted[1] = cute.arch.add_packed_f32x2(x, both(ROUND))
    whole = cute.arch.add_packed_f32x2((shifted[0], shifted[1]), both(-ROUND))
    f = cute.arch.fma_packed_f32x2(whole, both(-1.0), x)
    value = both(COEFFICIENTS[-1])
    for coefficient in (*COEFFICIENTS[-2::-1], 1.0):
        value = cute.arch.fma_packed_f32x2(value, f, both(coefficient))
    bits = cute.recast_tensor(shifted, Uint32)
    bits[0], bits[1] = bits[0] << 23, bits[1] << 23
    return cute.arch.mul_packed_f32x2(value, (shifted[0], shifted[1]))


def both(value: float):
    """A constant twice."""
    return Float32(value), Float32(value)
