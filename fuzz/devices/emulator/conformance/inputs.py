"""Inputs of the micro-kernels of the form table: edge values and random ones, NaNs of every kind, numbers whose
product is next to the least normal one. All of it follows from seeds, so that a GPU and the emulator see the same.
"""

from __future__ import annotations

import numpy as np

CASES = 2048  # threads of a kernel that runs on `values`
SPECIAL = 512  # threads of one that runs on the others
EDGES32 = (0, 1, 2, 3, 31, 32, 33, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
           0x80000001,            0xFFFFFFFF, 0xFFFFFFFE, 0x12345678, 0xDEADBEEF)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 1e-38, -1e-38, 1e-45, -1e-45, 1.17549435e-38, 3.4028235e38,
          -3.4028235e38, float("inf"), float("-inf"), float("nan"), 65504.0, 65519.0, 65520.0, 6.1e-5, 5.9e-8, 2.98e-8,
          1.0000001, 0.99999994, 127.5, -126.5, -149.5, 2147483648.0, -2147483904.0, 4294967296.0, 1e10, -1e20, 0.1,
          1.00390625, 1.01171875, 3.3895314e38, 3.140625)  # fmt: skip


def values(kind: str, seed: int, operand: int) -> np.ndarray:
    """Inputs of one operand as unsigned integers: all pairs of edge values first, then random patterns and numbers."""
    rng = np.random.default_rng([seed, operand])
    if kind in ("f32", "f32x2"):
        edges = np.array(FLOATS, dtype=np.float32).view(np.uint32)
    elif kind == "f64":
        edges = np.array(FLOATS, dtype=np.float64).view(np.uint64)
    elif kind in ("f16", "f16x2"):
        with np.errstate(over="ignore"):
            edges = np.array(FLOATS, dtype=np.float32).astype(np.float16).view(np.uint16)
    elif kind in ("bf16", "bf16x2"):
        edges = (np.array(FLOATS, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif kind == "b64":
        low = np.array(EDGES32, dtype=np.uint64)
        edges = np.concatenate([low, low << np.uint64(32), low | np.uint64(0xFFFFFFFF00000000)])
    elif kind == "p":
        edges = np.array([0, 1], dtype=np.uint32)
    else:
        edges = np.array(EDGES32, dtype=np.uint32 if kind == "b32" else np.uint64).astype(
            np.uint32 if kind == "b32" else np.uint16
        )
    n = len(edges)
    i = np.arange(CASES)
    grid = edges[(i // n if operand == 1 else i * (1 if operand == 0 else 7) // (1 if operand == 0 else 3)) % n]
    if kind == "p":
        return rng.integers(0, 2, CASES).astype(np.uint32)
    bits = edges.dtype.itemsize * 8
    noise = rng.integers(0, 1 << bits, CASES, dtype=np.uint64, endpoint=bits == 64 and False).astype(edges.dtype)
    if kind in ("f32", "f32x2"):
        noise = (rng.standard_normal(CASES) * np.exp2(rng.integers(-20, 20, CASES))).astype(np.float32).view(np.uint32)
    out = np.where(i < min(n * n, CASES * 3 // 4), grid, noise).astype(edges.dtype)
    if kind in ("f32x2", "f16x2", "bf16x2"):
        wide = np.uint64 if kind == "f32x2" else np.uint32
        high = np.left_shift(np.roll(out, 5).astype(wide), bits, dtype=wide)
        return np.bitwise_or(out.astype(wide), high)
    return out


# quiet and signalling NaNs of both signs with bits of their own, between numbers; the first four hexadecimal digits
# are those of a bf16, all eight an f32
NANS = {
    "bf16": (0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7FD5, 0xFFFF, 0x7FFF, 0x3F80, 0x8000, 0x7F80, 0xFF80),
    "f16": (0x7E00, 0xFE00, 0x7C01, 0xFC01, 0x7E55, 0xFFFF, 0x7FFF, 0x3C00, 0x8000, 0x7C00, 0xFC00),
    "f32": (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF812345, 0x7FD54321, 0xFFFFFFFF, 0x7FFFFFFF, 0x3F800000,
            0x80000000, 0x7F800000, 0xFF800000),
    "f64": (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFF2345678ABCDEF, 0x7FFABCDE12345678,
            0xFFFFFFFFFFFFFFFF, 0x7FF8000000000001, 0x3FF0000000000000, 0x8000000000000000, 0x7FF0000000000000,
            0xFFF0000000000000),
}  # fmt: skip
WIDTHS = {"bf16": 16, "f16": 16, "f32": 32, "f64": 64}


def nan_patterns(operands: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Every combination of NANS for one and two operands, many for three; pairs hold two different ones."""
    n = len(NANS["f32"])
    i = np.arange(SPECIAL)
    picks = [i % n, i // n % n, (i // (n * n) + i // n * 3 + i * 5) % n]
    out = []
    for kind, pick in zip(operands, picks, strict=False):
        single = kind.removesuffix("x2")
        width = WIDTHS[single]
        table = np.array(NANS[single], dtype=f"u{width // 8}")
        if kind == single:
            out.append(table[pick])
        else:
            wide = np.dtype(f"u{width // 4}")
            out.append(table[pick].astype(wide) | table[(pick + 3) % n].astype(wide) << wide.type(width))
    return tuple(out)


def tiny_products() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a, b, c), float32: a b is within a few units of 2**-126, c is nothing, almost nothing or 2**-126 itself."""
    rng = np.random.default_rng(126)
    x = rng.uniform(1, 2, SPECIAL).astype(np.float32)
    x[::3] = np.float32(2) - np.exp2(-rng.integers(1, 24, len(x[::3]))).astype(np.float32)
    steps = rng.integers(-3, 4, SPECIAL)
    below = np.float32(2.0**-63)
    product = (below / x).view(np.int32) + steps.astype(np.int32)
    other = product.astype(np.int32).view(np.float32)
    sign = np.where(rng.integers(0, 2, SPECIAL), np.float32(-1), np.float32(1)).astype(np.float32)
    small = (rng.integers(-4, 5, SPECIAL) * 2.0**-149).astype(np.float32)
    addend = np.where(np.arange(SPECIAL) % 2, np.copysign(np.float32(2.0**-126), rng.standard_normal(SPECIAL)), small)
    return x * below * sign, other, addend.astype(np.float32)
