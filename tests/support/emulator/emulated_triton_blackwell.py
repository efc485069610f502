"""Triton kernels for sm_100a on the emulated GPU, in a process of its own, as emulated_triton.py.

Prints a JSON object: the name of each scenario, and what it saw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from fuzz.devices.emulator import Emulator, emulated
from fuzz.devices.emulator.config import DEFAULT_CHECKS

LOG2E = 1.4426950408889634


@triton.jit
def product(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, steps = (
        tl.program_id(0) * M + tl.arange(0, M),
        tl.program_id(1) * N + tl.arange(0, N),
        tl.arange(0, K),
    )
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + steps
        left = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        right = tl.load(
            b + at[:, None] * n + columns[None, :], mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def attention(q, k, v, o, scale, len_q, len_k, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    rows, dims, keys = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    query = tl.load(q + rows[:, None] * D + dims[None, :], mask=rows[:, None] < len_q, other=0.0)
    total = tl.zeros((M, D), tl.float32)
    largest = tl.full((M,), -float("inf"), tl.float32)
    weight = tl.zeros((M,), tl.float32)
    for start in range(0, len_k, N):
        at = start + keys
        key = tl.load(k + at[None, :] * D + dims[:, None], mask=at[None, :] < len_k, other=0.0)
        score = tl.where(at[None, :] < len_k, tl.dot(query, key) * scale, -float("inf"))
        new = tl.maximum(largest, tl.max(score, 1))
        p = tl.exp2(score - new[:, None])
        shrink = tl.exp2(largest - new)
        weight = weight * shrink + tl.sum(p, 1)
        value = tl.load(v + at[:, None] * D + dims[None, :], mask=at[:, None] < len_k, other=0.0)
        total = tl.dot(p.to(value.dtype), value, total * shrink[:, None])
        largest = new
    tl.store(o + rows[:, None] * D + dims[None, :], total / weight[:, None], mask=rows[:, None] < len_q)


@triton.jit
def scaled(a, a_scale, b, b_scale, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr,
           B: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    rows, columns, factors = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // BLOCK)
    a_steps, b_steps = tl.arange(0, K // A_PACK), tl.arange(0, K // B_PACK)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + rows[:, None] * (k // A_PACK) + start // A_PACK + a_steps[None, :])
        right = tl.load(b + columns[None, :] * (k // B_PACK) + start // B_PACK + b_steps[:, None])
        left_scale = tl.load(a_scale + rows[:, None] * (k // BLOCK) + start // BLOCK + factors[None, :])
        right_scale = tl.load(b_scale + columns[:, None] * (k // BLOCK) + start // BLOCK + factors[None, :])
        total = tl.dot_scaled(left, left_scale, A, right, right_scale, B, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
HALVES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # e2m1


def _narrow(form: str, rows: int, k: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers as float64, as Triton takes them: two e2m1 in a byte)."""
    if form == "e2m1":
        codes = torch.randint(0, 16, (rows, k), generator=generator)
        return torch.cat([HALVES, -HALVES]).double()[codes], (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    x = (torch.randint(-6, 7, (rows, k), generator=generator) * 0.5).to(FLOAT8[form])
    return x.double(), x


def _factors(form: str, rows: int, k: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    if form == "e4m3":
        x = (torch.randint(1, 5, (rows, k), generator=generator) * 0.5).to(FLOAT8[form])
        return x.double(), x
    codes = torch.randint(126, 129, (rows, k), generator=generator)
    return torch.exp2(codes.double() - 127), codes.to(torch.uint8)


def _scaled(many: bool) -> dict[str, bool]:
    """tl.dot_scaled, whose layouts Triton makes: numbers, sums of which are exact."""
    found = {}
    every = [("e4m3", "e5m2", "e8m0", 32), ("e2m1", "e4m3", "e8m0", 32), ("e2m1", "e2m1", "e8m0", 32),
             ("e2m1", "e2m1", "e4m3", 16), ("e4m3", "e2m1", "e8m0", 32), ("e5m2", "e5m2", "e8m0", 32)]  # fmt: skip
    for a_form, b_form, scale, block in every if many else every[:4]:
        generator = torch.Generator().manual_seed(5)
        m, n, k = 128, 64, 256
        (x, a), (y, b) = (_narrow(form, rows, k, generator) for form, rows in ((a_form, m), (b_form, n)))
        (fx, a_scale), (fy, b_scale) = (_factors(scale, rows, k // block, generator) for rows in (m, n))
        c = torch.full((m, n), float("nan"))
        packs = [2 if form == "e2m1" else 1 for form in (a_form, b_form)]
        with emulated("sm_100a"):
            scaled[(1,)](a, a_scale, b, b_scale, c, k, m, n, k // 2, a_form, b_form, *packs, block)
        exact = (x * fx.repeat_interleave(block, 1)) @ (y * fy.repeat_interleave(block, 1)).T
        found[f"{a_form} {b_form} {scale} {block}"] = torch.equal(c.double(), exact)
    return found


def _whole(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).float().to(dtype)


def _multiply(arch: str, a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int], warps: int) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.full((m, n), float("nan"))
    with emulated(arch):
        grid = (triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1]))
        product[grid](a, b, c, m, n, k, *tile, num_warps=warps)
    return c


def _products(many: bool) -> dict[str, bool]:
    """Products of whole numbers, whose sums are exact: equal to PyTorch's, with edges that the masks cut."""
    found = {}
    tiles = ((128, 128, 64), (64, 64, 64), (128, 64, 32), (128, 256, 64), (64, 128, 128))
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
    every = [(dtype, tile, warps) for dtype in types for tile in tiles for warps in (4, 8)]
    few = [(torch.bfloat16, tiles[0], 4), (torch.float16, tiles[1], 8), *((dtype, tiles[2], 4) for dtype in types[2:])]
    for dtype, tile, warps in every if many else few:
        if dtype.itemsize == 4 and max(tile[:2]) * tile[2] > 8192:
            continue  # out of shared memory
        m, n, k = tile[0] + 40, tile[1] + 16, 3 * tile[2] - 32
        a, b = _whole(m, k, dtype=dtype), _whole(k, n, dtype=dtype)
        c = _multiply("sm_100a", a, b, tile, warps)
        found[f"{dtype} {tile} {warps} warps"] = torch.equal(c, a.float() @ b.float())
    return found


def _same_bits() -> dict[str, Any]:
    """One source compiled for mma.sync, wgmma and tcgen05: the same sums in the same order, so the same bits."""
    found: dict[str, Any] = {}
    for dtype in (torch.bfloat16, torch.float16):
        generator = torch.Generator().manual_seed(3)
        a, b = (
            torch.randn(128, 192, generator=generator).to(dtype),
            torch.randn(192, 128, generator=generator).to(dtype),
        )
        results = [_multiply(arch, a, b, (128, 128, 64), 4) for arch in ("sm_80", "sm_90a", "sm_100a")]
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        found[str(dtype)] = {
            "equal": [torch.equal(results[2], one) for one in results[:2]],
            "error in units of the bound": float(((results[2] - exact).abs() / (size * 192 * 2.0**-24)).max()),
        }
    return found


def _attention(many: bool) -> dict[str, float]:
    """Largest errors of an attention forward in units of the last place of its type."""
    found = {}
    every = (
        (torch.bfloat16, (128, 64, 64), 4), (torch.float16, (64, 64, 64), 4), (torch.float16, (128, 128, 64), 8),
        (torch.bfloat16, (128, 64, 128), 4),
    )  # fmt: skip
    for dtype, tile, warps in every if many else every[:2]:
        len_q, len_k, dim = tile[0] + 30, 3 * tile[1] - 9, tile[2]
        generator = torch.Generator().manual_seed(4)
        q, k, v = (torch.randn(length, dim, generator=generator).to(dtype) for length in (len_q, len_k, len_k))
        o = torch.full((len_q, dim), float("nan"))
        with emulated("sm_100a"):
            attention[(2,)](q, k, v, o, dim**-0.5 * LOG2E, len_q, len_k, *tile, num_warps=warps)
        expected = torch.softmax(q.double() @ k.double().T * dim**-0.5, 1) @ v.double()
        found[f"{dtype} {tile} {warps} warps"] = float((o - expected).abs().max() / torch.finfo(dtype).eps)
    return found


def _planted() -> dict[str, list[str]]:
    """Kinds of findings in the product after lines of its PTX were removed."""
    values = {"M": 128, "N": 128, "K": 64}
    kinds = {"a": "*bf16", "b": "*bf16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    source = triton.compiler.ASTSource(product, kinds | dict.fromkeys(values, "constexpr"), values)
    compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_warps": 4})
    text = compiled.asm["ptx"]
    a, b = _whole(128, 192, dtype=torch.bfloat16), _whole(192, 128, dtype=torch.bfloat16)
    found = {}
    for name, part in {
        "": "no such line", "proxy fence": "fence.proxy.async", "wait for the product": "mbarrier.try_wait",
        "wait for loads": "tcgen05.wait::ld", "wait for stores": "tcgen05.wait::st", "dealloc": "tcgen05.dealloc",
        "commit": "tcgen05.commit",
    }.items():  # fmt: skip
        lines = [
            "mov.pred complete, -1;" if part in line and "try_wait" in line else line
            for line in text.splitlines() if part not in line or "try_wait" in line
        ]  # fmt: skip
        checks = DEFAULT_CHECKS | {"tensor_waits"}  # or a use of a loaded register does what the wait would
        kernel = Emulator(strict=False, checks=checks).load_ptx("\n".join(lines))
        c = torch.zeros(128, 128)
        report = kernel.launch(
            "product", (1, 1, 1), (128, 1, 1), [a, b, c, 128, 128, 192, 0, 0], shared=compiled.metadata.shared
        )
        found[name] = sorted({f.kind for f in report.findings} | ({report.status} - {"finished"}))
    return found


def main() -> None:
    """Runs all scenarios; argument "many": more tiles."""
    found = {
        "products": _products("many" in sys.argv),
        "same bits": _same_bits(),
        "attention": _attention("many" in sys.argv),
        "scaled": _scaled("many" in sys.argv),
        "planted": _planted(),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
