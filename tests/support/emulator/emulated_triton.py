"""Triton kernels on the emulated GPU, in a process of its own: Triton decides at its import whether it interprets.

Prints a JSON object: the name of each scenario, and what it saw.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzz.devices.emulator import EmulationError, emulated


@triton.jit
def scaled_sum(x, y, o, nothing, n, scale, one, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < n
    tl.store(o + at, tl.load(x + at, mask=inside) + scale * tl.load(y + at, mask=inside) + one, mask=inside)


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K, STEP: tl.constexpr):
    rows, columns, steps = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, STEP):
        left = tl.load(a + rows[:, None] * K + (start + steps)[None, :])
        right = tl.load(b + (start + steps)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def too_far(x, o, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(o + at, tl.load(x + at, mask=at < n))  # the mask of the store is missing


@triton.jit
def last_one_wins(o):
    tl.store(o, tl.program_id(0))


@triton.jit
def all_the_same(o):
    tl.store(o, 7)


@triton.jit
def endless(x, o):
    while tl.load(x) == 0:  # nothing writes it
        tl.store(o, tl.load(o) + 1)


@triton.jit
def product_of_host_descriptors(a, b, c, K, M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr):
    m, n = tl.program_id(0) * M_TILE, tl.program_id(1) * N_TILE
    total = tl.zeros((M_TILE, N_TILE), tl.float32)
    for k in range(0, K, K_TILE):
        total = tl.dot(a.load([m, k]), b.load([k, n]), total)
    c.store([m, n], total.to(tl.bfloat16))


@triton.jit
def product_of_device_descriptors(a, b, c, M, N, K, M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr):
    tiles_a = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[M_TILE, K_TILE])
    tiles_b = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[K_TILE, N_TILE])
    tiles_c = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[M_TILE, N_TILE])
    m, n = tl.program_id(0) * M_TILE, tl.program_id(1) * N_TILE
    total = tl.zeros((M_TILE, N_TILE), tl.float32)
    for k in range(0, K, K_TILE):
        total = tl.dot(tiles_a.load([m, k]), tiles_b.load([k, n]), total)
    tiles_c.atomic_add([m, n], total)


@triton.autotune([triton.Config({"N": 16}), triton.Config({"N": 256})], key=["n"])
@triton.jit
def tuned(x, o, n, N: tl.constexpr):
    for start in range(0, n, N):
        at = start + tl.arange(0, N)
        tl.store(o + at, tl.load(x + at, mask=at < n), mask=at < n)


def _sums() -> dict[str, Any]:
    x, y, o = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    with emulated("sm_90a") as gpu:
        scaled_sum[(4,)](x, y, o, None, 1000, 0.5, 1, N=256)
    return {"equal": torch.equal(o, x + 0.5 * y + 1), "ok": gpu.ok, "launches": len(gpu.reports)}


def _products() -> dict[str, float]:
    errors = {}
    for arch in ("sm_80", "sm_90a"):
        for dtype in (torch.float16, torch.bfloat16):
            a, b = torch.randn(64, 128).to(dtype), torch.randn(128, 64).to(dtype)
            c = torch.zeros(64, 64)
            with emulated(arch):
                product[(1,)](a, b, c, 64, 64, 128, 64)
            errors[f"{arch} {dtype}"] = float((c - (a.double() @ b.double())).abs().max())
    return errors


def _raised(run: Callable[[], Any], **settings: Any) -> str:
    try:
        with emulated("sm_90a", **settings):
            run()
    except (EmulationError, NotImplementedError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _descriptors() -> dict[str, Any]:
    """Products whose edges lie inside of tiles, on sums that are exact."""
    m, n, k = 100, 72, 200
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-3, 4, size, generator=draw).bfloat16() for size in ((m, k), (k, n)))
    right, found = a.float() @ b.float(), {}
    for schedule in ("in_order", "random"):
        with emulated("sm_90a", warp_schedule=schedule, strict=False) as gpu:
            c, total = torch.full((m, n), 7.0).bfloat16(), torch.zeros(m, n)
            tiles = [TensorDescriptor.from_tensor(x, [64, 64]) for x in (a, b, c)]
            grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
            product_of_host_descriptors[grid](*tiles, k, 64, 64, 64)
            product_of_device_descriptors[grid](a, b, total, m, n, k, 64, 64, 64)
        equal = [torch.equal(c, right.bfloat16()), torch.equal(total, right)]
        found[schedule] = {"equal": equal, "found": [str(r) for r in gpu.reports if not r.ok]}
    return found


def _after() -> str:
    """The driver that was active before is active again, which is none on a machine without a GPU."""
    try:
        return type(triton.runtime.driver.active).__name__
    except RuntimeError:
        return "none"


def _tuned() -> dict[str, Any]:
    x, o = torch.randn(512), torch.zeros(512)
    with emulated("sm_90a"):
        tuned[(1,)](x, o, 512)
    return {"N": tuned.best_config.kwargs["N"], "equal": torch.equal(o, x)}


def main() -> None:
    """Runs all scenarios."""
    x, few, one = torch.randn(64), torch.zeros(50), torch.zeros(1, dtype=torch.int32)
    found = {
        "sums": _sums(),
        "products": _products(),
        "tuned": _tuned(),
        "out of bounds": _raised(lambda: too_far[(1,)](x, few, 50, N=64)),
        "race": _raised(lambda: last_one_wins[(3,)](one)),
        "race of equal values": _raised(lambda: all_the_same[(3,)](one)),
        "race of equal values, asked for": _raised(lambda: all_the_same[(3,)](one), checks={"races", "equal_writes"}),
        "descriptors": _descriptors(),
        "tensor elsewhere": _raised(lambda: too_far[(1,)](x, few.to("meta"), 50, N=64)),
        "after": _after(),
        "endless": _raised(lambda: endless[(1,)](torch.zeros(1), few), patience=0.2),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
