"""Runs a Triton kernel whose programs are clusters of CTAs (num_ctas) on the emulated GPU; prints what came of it."""

import json
import sys

import torch
import triton
import triton.language as tl

from fuzz.devices.emulator import emulated

ROWS, COLUMNS, DEPTH = 128, 128, 64


@triton.jit
def product(a, b, c, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr, block: tl.constexpr):
    """C = A B, and to each row the sum of its elements in the block, which the CTAs of a cluster have to exchange."""
    rows = tl.program_id(0) * m + tl.arange(0, m)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    depth = tl.arange(0, k)
    x = tl.load(a + rows[:, None] * k + depth[None, :])
    y = tl.load(b + depth[:, None] * n + columns[None, :])
    z = tl.dot(x, y)
    tl.store(c + rows[:, None] * n + columns[None, :], z + tl.sum(z, 1)[:, None])


def main() -> None:
    seen = {}
    for arch in sys.argv[1:]:
        for schedule in ("in_order", "random", "oldest_last"):
            draw = torch.Generator().manual_seed(1)
            a = torch.randint(-3, 4, (2 * ROWS, DEPTH), generator=draw).bfloat16()
            b = torch.randint(-3, 4, (DEPTH, COLUMNS), generator=draw).bfloat16()
            c = torch.zeros(2 * ROWS, COLUMNS)
            with emulated(arch, strict=False, warp_schedule=schedule) as gpu:
                product[(2, COLUMNS // 64)](a, b, c, ROWS, COLUMNS, DEPTH, 64, num_ctas=2)
            d = a.float() @ b.float()
            expected = d + d.view(-1, COLUMNS // 64, 64).sum(2).repeat_interleave(64, 1)
            seen[f"{arch} {schedule}"] = [torch.equal(c, expected), [str(f) for r in gpu.reports for f in r.findings]]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
