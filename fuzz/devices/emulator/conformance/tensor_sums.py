"""Model of how an H100's tensor cores add: mma m16n8k16 and wgmma with sums in f32 that its answers fit bit for bit.

The sixteen products of a row and a column, exact, and C are aligned to the largest exponent among them (a product's is
the sum of its factors' exponents, whether or not its significand reaches 2), cut off towards zero 25 bits below that
exponent's unit, added exactly, and the sum is cut off towards zero to f32. NaN and infinities follow IEEE 754. The
emulator itself rounds term by term (`isa/mma.py`), which is much cheaper: this says how far that is from the hardware,
and what an exact emulation would have to do. What it rests on:
tests/fuzz/devices/emulator/conformance/test_tensor_sums.py.
"""

from __future__ import annotations

import numpy as np

KEPT = 25  # bits of the aligned terms below the unit of the largest exponent


def exponents(x: np.ndarray) -> np.ndarray:
    """The exponent of each number's leading bit; far below all others for zero."""
    return np.where(x == 0, -10_000, np.frexp(x)[1] - 1)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a bᵀ + c as float32 (m, n). a (m, 16), b (n, 16), c (m, n): float64 that hold bf16 or f16 numbers, c f32 ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        products = a[:, None, :] * b[None, :, :]
        plain = products.sum(2) + c
        terms = np.concatenate([products, c[:, :, None]], 2)
        tops = np.concatenate([exponents(a)[:, None, :] + exponents(b)[None, :, :], exponents(c)[:, :, None]], 2)
        top = np.maximum(tops.max(2), -2_000)
        unit = np.exp2((top - KEPT).astype(np.float64))
        total = np.trunc(np.where(np.isfinite(terms), terms, 0) / unit[:, :, None]).sum(2) * unit
        short = total.astype(np.float32)
        over = np.abs(short.astype(np.float64)) > np.abs(total)
        short = np.where(over, np.nextafter(short, np.float32(0)), short)
        return np.where(np.isfinite(plain), short, plain.astype(np.float32))
