"""The model of how tensor cores add, against what a GPU answered to random, wide and special numbers: bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from fuzz.devices.emulator.conformance import micro_kernels, wgmma
from fuzz.devices.emulator.conformance.tensor_sums import multiply_add

ANSWERS = Path(__file__).parents[5] / "ci" / "results" / "ptx_sm_90.npz"
CASES = {f"{p.name} {mark}": p for mark, p in wgmma.cases() if p.data != "small" and p.sums == "f32"}


def numbers(words, kind):
    """uint32 words as the 16-bit numbers in them, low half first."""
    halves = np.ascontiguousarray(words).view(np.uint16)
    if kind == "f16":
        return halves.view(np.float16).astype(np.float64)
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rows_of(memory, start, rows):
    """A matrix (rows, 16) that lies K-major with the 128-byte swizzle from byte `start`."""
    i, k = np.arange(rows)[:, None], np.arange(16)[None, :]
    at = start + i % 8 * 128 + i // 8 * 1024 + 2 * k
    return memory[(at ^ at >> 3 & 0x70) // 2]


def accumulators(words):
    """float64 (64, n) from what 128 threads hold."""
    threads, count = words.shape
    t, i = np.arange(threads)[:, None], np.arange(count)[None, :]
    out = np.empty((64, 2 * count))
    out[16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + t % 4 * 2 + i % 2] = words.view(np.float32)
    return out


def left_rows(words, kind):
    """A (64, 16) from the registers of 128 threads."""
    out = np.empty((64, 16))
    values = numbers(words, kind).reshape(128, 4, 2)
    for t in range(128):
        for r in range(4):
            row, column = 16 * (t // 32) + t % 32 // 4 + 8 * (r % 2), t % 4 * 2 + 8 * (r // 2)
            out[row, column : column + 2] = values[t, r]
    return out


@pytest.mark.parametrize("form", CASES)
def test_it_gives_what_the_gpu_gave(form):
    p, kernel = CASES[form], wgmma.kernel(form, CASES[form])
    given, n_d = kernel.inputs[0], p.n // 2
    if p.a is None:
        image = given.shape[1] - n_d - 4
        a, start = left_rows(given[:, image : image + 4], p.kind), 0
    else:
        image = given.shape[1] - n_d
        start = p.a.size(64)
    memory = numbers(given[:, :image], p.kind).reshape(-1)
    if p.a is not None:
        a = rows_of(memory, 0, 64)
    c = accumulators(np.ascontiguousarray(given[:, -n_d:])) * p.accumulates
    got, expected = multiply_add(a, rows_of(memory, start, p.n), c), accumulators(np.load(ANSWERS)[form])
    assert np.array_equal(got.astype(np.float64), expected, equal_nan=True)


MMA = [k for k in micro_kernels.matrix_kernels() if k.form.startswith("mma") and not k.exact and "m16n8k16" in k.form
       and ".f32 " in k.form]  # fmt: skip


@pytest.mark.parametrize("kernel", MMA, ids=lambda k: k.form)
def test_a_warps_own_products_are_added_alike(kernel):
    """mma.sync.m16n8k16 of the same GPU."""
    kind = "bf16" if ".bf16." in kernel.form else "f16"
    words = kernel.inputs[0]
    a, b, c = (np.empty(shape) for shape in ((16, 16), (8, 16), (16, 8)))
    ab, sums = numbers(words[:, :6], kind).reshape(32, 6, 2), words[:, 6:].copy().view(np.float32)
    answer = np.load(ANSWERS)[kernel.form].view(np.float32)
    expected = np.empty((16, 8))
    for t in range(32):
        for r in range(4):
            a[t // 4 + 8 * (r % 2), t % 4 * 2 + 8 * (r // 2) :][:2] = ab[t, r]
            c[t // 4 + 8 * (r // 2), t % 4 * 2 + r % 2] = sums[t, r]
            expected[t // 4 + 8 * (r // 2), t % 4 * 2 + r % 2] = answer[t, r]
        for r in range(2):
            b[t // 4, t % 4 * 2 + 8 * r :][:2] = ab[t, 4 + r]
    assert np.array_equal(multiply_add(a, b, c).astype(np.float64), expected)
