"""Ascending, descending and computed schedules of the deterministic backward pass: on the model, and on a GPU.

    python ci/bench_schedule.py --out ci/results/schedule_model.json                 # the model alone, anywhere
    python ci/bench_schedule.py --device cuda --out ci/results/schedule_h100.json    # and the kernels' times beside it

Model times are in units of one block's products (kernels/blocksparse/least_blocking.py). GPU times are medians over
CUDA events of the whole backward pass (preprocess, kernel, postprocess), with the atomic backward pass beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernels.blocksparse.bands import band
from kernels.blocksparse.build import dense
from kernels.blocksparse.from_mask import from_grid
from kernels.blocksparse.intervals import documents
from kernels.blocksparse.least_blocking import PAIRS, Plan, least_blocking
from kernels.blocksparse.lists import BlockSparse
from kernels.blocksparse.schedule import ASCENDING, DESCENDING
from kernels.blocksparse.write_order import with_order

TILE = 128
HEADS = ((16, 16), (16, 2))


def main() -> None:
    """Every mask, length and number of heads; one JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--tile", type=int, default=TILE)
    parser.add_argument("--slots", type=int, help="resident CTAs of the model; default: multiprocessors, 132 on a CPU")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="(sequence, KV head) pairs launched side by side")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    slots = options.slots or (torch.cuda.get_device_properties(0).multi_processor_count if cuda else 132)
    rows = []
    for length in map(int, options.lengths.split(",")):
        for name in options.masks.split(","):
            blocks = MASKS[name](length, options.tile)
            for heads_q, heads_kv in HEADS:
                start = time.perf_counter()
                plan = least_blocking(blocks, heads_q=heads_q, heads_kv=heads_kv, slots=slots, pairs=options.pairs)
                row = of_model(plan, blocks.schedule.kind) | {"seconds to plan": round(time.perf_counter() - start, 2)}
                if cuda:
                    row |= on_gpu(blocks, plan, length, heads_q, heads_kv, options.dim, options.device)
                rows.append({"mask": name, "length": length, "heads": [heads_q, heads_kv], **row})
                print(json.dumps(rows[-1]), flush=True)
    where = torch.cuda.get_device_name() if cuda else "model"
    sizes = {"dim": options.dim, "tile": options.tile, "slots": slots, "pairs": options.pairs}
    if options.out:
        options.out.write_text(
            json.dumps({"device": where, "torch": torch.__version__, **sizes, "rows": rows}, indent=1) + "\n"
        )


def of_model(plan: Plan, default: str) -> dict[str, Any]:
    """Model times of the two directions and of the plan, over what no order can beat; default: the direction that the
    lists' builder took, knowing the mask but neither heads nor device."""
    times = {"ascending": plan.estimates["ascending"], "descending": plan.estimates["descending"]}
    times["planned"] = min(plan.estimates.values())
    return {
        "policy": plan.chosen[0],
        "default": default,
        "model": {name: round(at / plan.bound, 3) for name, at in times.items()},
    }


def on_gpu(
    blocks: BlockSparse, plan: Plan, length: int, heads_q: int, heads_kv: int, dim: int, device: str
) -> dict[str, Any]:
    """Milliseconds of the backward pass: atomic, and deterministic under each schedule."""
    from kernels.blocksparse.api import block_sparse_attention

    def gradients(blocks: BlockSparse, deterministic: bool) -> Callable[[], Any]:
        q, k, v = (
            torch.randn(1, heads, length, dim, dtype=torch.bfloat16, device=device, requires_grad=True)
            for heads in (heads_q, heads_kv, heads_kv)
        )
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=deterministic)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    blocks, planned = blocks.to(device), plan.blocks.to(device)
    times = {
        "atomic": median(gradients(blocks, False)),
        "ascending": median(gradients(with_order(blocks, ASCENDING), True)),
        "descending": median(gradients(with_order(blocks, DESCENDING), True)),
        "planned": median(gradients(planned, True)),
        "atomic, planned": median(gradients(planned, False)),
    }
    return {"ms": {name: round(at, 4) for name, at in times.items()}}


def median(run: Callable[[], Any], repeats: int = 20) -> float:
    """Milliseconds of a call, by events."""
    for _ in range(3):
        run()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for before, after in pairs:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairs)


def random_blocks(length: int, tile: int, density: float) -> BlockSparse:
    """Full blocks at random."""
    blocks = -(-length // tile)
    draw = torch.rand(1, 1, blocks, blocks, generator=torch.Generator().manual_seed(0))
    return from_grid(draw < density, length, length, tile_m=tile, tile_n=tile)


def of_documents(length: int, tile: int, causal: bool) -> BlockSparse:
    """Twelve documents of random lengths."""
    cuts = torch.randint(1, length, (11,), generator=torch.Generator().manual_seed(0)).sort().values.tolist()
    return documents(cuts, length, length, causal=causal, tile_m=tile, tile_n=tile)


def of_band(length: int, tile: int, left: int | None, right: int | None) -> BlockSparse:
    """Causal, a window, or the causal mask turned round."""
    return band(length, length, left=left, right=right, tile_m=tile, tile_n=tile)


MASKS: dict[str, Callable[[int, int], BlockSparse]] = {
    "dense": lambda length, tile: dense(length, length, tile_m=tile, tile_n=tile),
    "causal": lambda length, tile: of_band(length, tile, None, 0),
    "window 2048": lambda length, tile: of_band(length, tile, 2047, 0),
    "anti-causal": lambda length, tile: of_band(length, tile, 0, None),
    "documents": lambda length, tile: of_documents(length, tile, False),
    "causal documents": lambda length, tile: of_documents(length, tile, True),
    "random 10 %": lambda length, tile: random_blocks(length, tile, 0.1),
    "random 50 %": lambda length, tile: random_blocks(length, tile, 0.5),
}


if __name__ == "__main__":
    main()
