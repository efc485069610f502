"""Compiles the kernels of kernels.dynamic_mask and kernels.nsa for architectures that need not be there, to PTX: those
of eight calls of the one, and of four of the other, whose attention kernels are kernels.blocksparse's.

    python ci/compile_triton.py --arch sm_90a --arch sm_100a

Prints a line for each architecture and kernel, with the instructions that multiply; exits with 1 where one does not
compile. It needs no GPU: Triton compiles for the architecture of the emulated one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TRITON_INTERPRET"] = "0"

import torch

from fuzz.compiling import CompileError, obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import emulated
from kernels.blocksparse.spec.variant import NO_INJECTION
from kernels.dynamic_mask import pack_mask, plan
from kernels.nsa import plan as plan_of_nsa
from kernels.nsa.launcher import Plan
from kernels.sdpa.launch import Launch

PRODUCTS = re.compile(r"(wgmma\.mma_async|tcgen05\.mma|mma\.sync)")
TOKENS = 256


def calls() -> Iterator[list[Launch]]:
    """Launches of forward and backward: masks as bytes and as words, a bias of one row and a whole one."""
    for dim in (32, 64, 128):
        q, k, v = (torch.zeros(1, heads, TOKENS, dim, dtype=torch.bfloat16) for heads in (2, 1, 1))
        mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
        row = torch.zeros(1, 1, 1, TOKENS, dtype=torch.bfloat16).requires_grad_()
        yield plan(q, k, v, mask, row, causal="top_left", num_splits=2)
        yield plan(q, k, v, pack_mask(mask), None, causal="bottom_right", softcap=30.0)
    whole = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16).requires_grad_()
    yield plan(q, k, v, mask, whole)
    starts = torch.tensor([0, 100, TOKENS], dtype=torch.int32)
    longest = {"max_seqlen_q": 156, "max_seqlen_k": 156}
    packed = (x[0].transpose(0, 1) for x in (q, k, v))
    yield plan(*packed, None, None, cu_seqlens_q=starts, cu_seqlens_k=starts, **longest)


def sparse_calls(arch: str) -> Iterator[Plan]:
    """Calls of kernels.nsa, forward and backward: with and without weights, padded and packed, dense and grouped."""
    products = "wgmma" if arch == "sm_90a" else "mma"
    for dim in (64, 128):
        q, k, v = (torch.zeros(1, TOKENS, heads, dim, dtype=torch.bfloat16) for heads in (2, 1, 1))
        weights = {"w_k_compress": torch.zeros(1, dim, dim), "gate_proj_weight": torch.zeros(2, 3, dim)}
        yield plan_of_nsa(q, k, v, products=products)
        starts = {"cu_seqlens": torch.tensor([0, 100, TOKENS], dtype=torch.int32), "max_seqlen": 156}
        yield plan_of_nsa(*(x[0] for x in (q, k, v)), products=products, **weights, **starts, deterministic=False)


def compiled(launch: Launch) -> str:
    """PTX of a launch's kernel."""
    kernel = launch.kernel.warmup(grid=(launch.programs,), **launch.runtime, **launch.constants, **launch.options)
    return str(kernel.asm["ptx"])


def main() -> int:
    """All calls for all architectures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", action="append", required=True)
    failed = 0
    for arch in parser.parse_args().arch:
        met: Counter[str] = Counter()
        with emulated(arch):
            sparse = list(sparse_calls(arch))
            for launch in (one for launches in (*calls(), *(call.launches for call in sparse)) for one in launches):
                name = launch.kernel.__name__
                try:
                    found = Counter(PRODUCTS.findall(compiled(launch)))
                except Exception as error:
                    failed += 1
                    print(f"{arch} {name}: FAILED: {type(error).__name__}: {str(error)[:300]}")
                    continue
                met[f"{name}: {' '.join(sorted(found)) or 'no product'}"] += 1
        for line, count in sorted(met.items()):
            print(f"{arch} {count:2} x {line}")
        for variant in dict.fromkeys(variant for call in sparse for variant in call.variants):
            try:
                found = Counter(PRODUCTS.findall(obtain(build_of(variant, arch, NO_INJECTION)).ptx.read_text()))
            except CompileError as error:
                failed += 1
                print(f"{arch} {variant.name}: FAILED: {str(error)[:300]}")
                continue
            print(f"{arch}  1 x {variant.name}: {' '.join(sorted(found)) or 'no product'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
