"""Times of the block-sparse backward pass by itself: atomic and ordered, units, pairs side by side, mma.sync and wgmma.

    python ci/benchmarks/blocksparse_backward.py --out FILE.json [--tokens 8192,32768] [--dims 128,64] [--only
    window,10%]
    python ci/benchmarks/blocksparse_backward.py --dry        one tiny problem on the emulated GPU, to try the script

What blocksparse_speed.py cannot measure, because it takes the defaults and needs seconds of compiling for each of
FlexAttention's rows: what the choices of group_split.py and concurrent_pairs cost or gain. Every way's gradients are
compared with the first one's, ordered ones must be bitwise the same in four calls. Exits with 1 where one is not. The
three runs in ci/results/blocksparse_backward_h100.json are of earlier forms of this script.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from blocksparse_entry import difference  # noqa: E402
from blocksparse_masks import TILE, Entry, blocks_of, operands  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.launch import backward as launch_backward  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402
from kernels.blocksparse.spec.variant import Variant, backward_products, padded_dim  # noqa: E402

MASKS = ("full", "causal", "window", "documents", "10%", "50%")
KINDS = {"causal": "band", "window": "band", "documents": "intervals"}
PLANNED = 8192  # tokens up to which a schedule is computed
DISAGREE = 0.02
Way = tuple[str, bool, int | None, dict[str, Any]]  # name, ordered, parts, options of launch_backward.backward


def ways(entry: Entry, hopper: bool) -> list[Way]:
    """The first one is what the others' gradients are compared with."""
    found: list[Way] = [("atomic", False, None, {})]
    found += [("atomic, mma.sync", False, None, {"products": "mma"})] if hopper else []
    parts = [n for n in (1, 2, 4, 8) if n <= entry.heads_q // entry.heads_kv]
    found += [(f"atomic, {n} parts", False, n, {}) for n in parts if len(parts) > 1]
    found += [("ordered", True, None, {})]
    found += [(f"ordered, {n} pairs", True, None, {"pairs": n}) for n in (1, 2, 4, 8, 16)]
    return found + ([("planned", True, None, {})] if entry.tokens <= PLANNED else [])


def measured(entry: Entry, all_ways: list[Way]) -> dict[str, Any]:
    """Milliseconds of each way, and what was wrong."""
    cuda = entry.device == "cuda"
    q, k, v, do = (x.detach().transpose(1, 2).contiguous() for x in operands(entry))
    zero = torch.zeros(1, dtype=torch.int32, device=q.device)
    sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
    blocks, scale = blocks_of(entry), entry.dim**-0.5
    o, lse = torch.empty_like(q), torch.empty(1, entry.heads_q, entry.tokens, device=q.device)
    launch.forward(q, k, v, o, lse, sequences, blocks, scale=scale, products="mma")
    ms, wrong, expected = {}, [], None
    for name, ordered, parts, options in all_ways:
        here = planned(blocks, entry) if name == "planned" else blocks
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        workspace = launch_backward.make_workspace(q, k, sequences, here, ordered, parts)
        call = partial(
            launch_backward.backward, gradients[0], gradients[1], gradients[2], q, k, v, o, lse, do, sequences, here,
            scale=scale, deterministic=ordered, workspace=workspace, **options,
        )  # fmt: skip
        call()
        first = [x.clone() for x in gradients]
        expected = expected or first
        off = max(difference(x, y) for x, y in zip(first, expected, strict=True))
        if not off < DISAGREE:
            wrong.append(f"{name}: gradients differ by {off:.3f}")
        if ordered and not all(same_again(call, first, gradients) for _ in range(3)):
            wrong.append(f"{name}: other bits in another call")
        ms[f"{name} ({workspace.group_split})"] = round(least(call, cuda), 4)
    heads = [entry.heads_q, entry.heads_kv]
    return {"mask": entry.mask, "tokens": entry.tokens, "dim": entry.dim, "heads": heads, "ms": ms, "wrong": wrong}


def planned(blocks: BlockSparse, entry: Entry) -> BlockSparse:
    """Under a computed schedule."""
    return least_blocking(blocks, heads_q=entry.heads_q, heads_kv=entry.heads_kv).blocks


def same_again(call: Callable[[], None], first: list[Tensor], gradients: list[Tensor]) -> bool:
    """True if another call gives the same bits."""
    call()
    return all(torch.equal(x, y) for x, y in zip(first, gradients, strict=True))


def least(call: Callable[[], None], cuda: bool) -> float:
    """Milliseconds of a call: the least of three means over 3 to 20 calls; without a GPU that of one call's clock."""
    if not cuda:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def mean(repeats: int) -> float:
        torch.cuda._sleep(2_000_000)  # until the host has queued them all
        before.record()
        for _ in range(repeats):
            call()
        after.record()
        torch.cuda.synchronize()
        return before.elapsed_time(after) / repeats

    repeats = max(3, min(20, int(50 / max(mean(1), 0.01))))
    return min(mean(repeats) for _ in range(3))


def builds(entries: list[Entry], hopper: bool) -> list[Variant]:
    """The kernels that are needed, each once."""
    found: dict[Variant, None] = {}
    for entry in entries:
        dim, mask = padded_dim(entry.dim), KINDS.get(entry.mask, "none")
        found[Variant("forward", "bfloat16", dim, TILE, TILE, mask)] = None
        found[Variant("preprocess", "bfloat16", dim, tile_m=TILE)] = None
        for products in {"mma", backward_products("wgmma" if hopper else "mma", TILE, dim)}:
            for ordered in (False, True):
                found[Variant("backward", "bfloat16", dim, TILE, TILE, mask, ordered, products=products)] = None
            found[Variant("postprocess", "bfloat16", dim, TILE, TILE, products=products)] = None
    return list(found)


def build(folder: str, arch: str, variant: Variant) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    export(variant, arch, folder)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--only", help="masks, comma-separated")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from fuzz.session.records import machine

    if options.dry:
        from fuzz.targets.blocksparse.devices import connect, emulated

        connect("emulator")
        emulated().blind = True  # atomic adds in no fixed order are what is measured, not a finding
        entry = Entry("pair", "causal", 256, 64, 2, 1, "emulator")
        row = measured(entry, ways(entry, False))
        print(json.dumps(row))
        return int(bool(row["wrong"]))
    masks = options.only.split(",") if options.only else MASKS
    entries = [
        Entry("pair", mask, tokens, dim, 16, heads_kv)
        for tokens in map(int, options.tokens.split(","))
        for heads_kv in (16, 2)
        for dim in map(int, options.dims.split(","))
        for mask in masks
    ]
    arch, rows = runtime.arch_of(torch.device("cuda", 0)), []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(partial(build, folder, arch), builds(entries, arch == "sm_90a")))
        with runtime.use_source(runtime.artifact_source(folder)):
            for entry in entries:
                rows.append(measured(entry, ways(entry, arch == "sm_90a")))
                print(json.dumps(rows[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
