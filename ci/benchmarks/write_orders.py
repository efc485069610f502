"""Ascending, descending and computed schedules of the deterministic backward pass: on the model, and on a GPU.

    python ci/benchmarks/write_orders.py --out ci/results/schedule_model.json                 # the model alone,
    anywhere
    python ci/benchmarks/write_orders.py --device cuda --out ci/results/schedule_h100.json    # and the kernels' times
    beside it
    python ci/benchmarks/write_orders.py --device cuda --masks "random 50 %" --pairs plan,2,4,8,16  # the model put to
    the test
    python ci/benchmarks/write_orders.py --device cuda --tuning releaser=1                          # beside the
    default kernels

Model times are in units of one block's products (kernels/blocksparse/planner/planner.py). GPU times are medians over
CUDA events of the whole backward pass (preprocess, kernel, postprocess), with the atomic backward pass beside them.
A computed schedule stands there for each number of pairs asked for ("plan": for the number that the planner chooses),
with what the model has for it: of the whole pass, over the least of them, so that its choice can be judged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.from_mask import from_grid
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import PAIRS, Plan, least_blocking

TILE = 128


def main() -> None:
    """Measures every mask, length and number of heads; one JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--tile", type=int, default=TILE)
    parser.add_argument("--slots", type=int, help="resident CTAs of the model; default: multiprocessors, 132 on a CPU")
    parser.add_argument(
        "--pairs", default=str(PAIRS), help="(sequence, unit) pairs launched side by side, or plan; several by commas"
    )
    parser.add_argument("--heads", default="16/16,16/2", help="query heads / KV heads")
    parser.add_argument("--tuning", default="", help="of the backward kernel, beside its default: releaser=1,…")
    parser.add_argument("--repeats", type=int, default=20, help="of each time on the GPU; 1 under a profiler")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    slots = options.slots or (torch.cuda.get_device_properties(0).multi_processor_count if cuda else 132)
    pairs = {name: None if name == "plan" else int(name) for name in options.pairs.split(",")}
    rows = []
    for length in map(int, options.lengths.split(",")):
        for name in options.masks.split(","):
            blocks = MASKS[name](length, options.tile)
            for heads_q, heads_kv in (map(int, heads.split("/")) for heads in options.heads.split(",")):
                start = time.perf_counter()
                sizes = {"heads_q": heads_q, "heads_kv": heads_kv, "dim": options.dim, "slots": slots}
                plans = {label: least_blocking(blocks, **sizes, pairs=number) for label, number in pairs.items()}
                row = of_model(plans, blocks.schedule.kind) | {"seconds to plan": round(time.perf_counter() - start, 2)}
                if cuda:
                    shape = Shape(length, heads_q, heads_kv, options.dim, options.device)
                    row |= on_gpu(blocks, plans, shape, options.repeats)
                    if options.tuning:
                        with tuned(options.tuning):
                            found = on_gpu(blocks, plans, shape, options.repeats)
                        row |= {f"ms, {options.tuning}": found["ms"]}
                rows.append({"mask": name, "length": length, "heads": [heads_q, heads_kv], **row})
                print(json.dumps(rows[-1]), flush=True)
                write(options, rows, torch.cuda.get_device_name() if cuda else "model", slots)


def write(options: argparse.Namespace, rows: list[dict[str, Any]], where: str, slots: int) -> None:
    """Writes the rows so far, so that a kill loses one row."""
    if options.out:
        sizes = {"dim": options.dim, "tile": options.tile, "slots": slots}
        result = {"device": where, "torch": torch.__version__, **sizes, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def of_model(plans: dict[str, Plan], default: str) -> dict[str, Any]:
    """Model times, over what no order can beat, of the two directions (with the first plan's pairs) and of each plan;
    default: the direction that the lists' builder took, knowing the mask but neither heads nor device. total: of the
    whole pass, over the least of all plans."""
    first, least = next(iter(plans.values())), min(plan.total for plan in plans.values())
    directions = {name: round(first.estimates[name] / first.bound, 3) for name in ("ascending", "descending")}
    planned = {
        label: {
            "pairs": plan.pairs,
            "parts": plan.group_split,
            "policy": plan.chosen[0],
            "model": round(plan.makespan / plan.bound, 3),
            "total": round(plan.total / least, 3),
        }
        for label, plan in plans.items()
    }
    return {"default": default, "model": directions, "planned": planned}


@dataclass(frozen=True)
class Shape:
    """Shape of the operands of one row: one sequence, bfloat16."""

    length: int
    heads_q: int
    heads_kv: int
    dim: int
    device: str

    def tensor(self, heads: int) -> Tensor:
        """Random, (1, heads, length, dim)."""
        size = (1, heads, self.length, self.dim)
        return torch.randn(size, dtype=torch.bfloat16, device=self.device, requires_grad=True)


def on_gpu(blocks: BlockSparse, plans: dict[str, Plan], shape: Shape, repeats: int) -> dict[str, Any]:
    """Milliseconds of the backward pass: atomic, and deterministic under each schedule; of the first plan's lists also
    atomic."""
    q, k, v = (shape.tensor(heads) for heads in (shape.heads_q, shape.heads_kv, shape.heads_kv))
    grad = torch.randn_like(q)

    def time_of(blocks: BlockSparse, deterministic: bool) -> float:
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=deterministic)
        return median(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), repeats)

    blocks = blocks.to(shape.device)
    lists = {label: plan.blocks.to(shape.device) for label, plan in plans.items()}
    times = {
        "atomic": time_of(blocks, False),
        "ascending": time_of(with_order(blocks, ASCENDING), True),
        "descending": time_of(with_order(blocks, DESCENDING), True),
        **{f"planned, {label}": time_of(one, True) for label, one in lists.items()},
        "atomic, planned": time_of(next(iter(lists.values())), False),
    }
    return {"ms": {name: round(at, 4) for name, at in times.items()}}


@contextmanager
def tuned(text: str) -> Iterator[None]:
    """The operator's backward pass with a tuning, such as releaser=1."""
    tuning = tuple(sorted((name, int(value)) for name, _, value in (one.partition("=") for one in text.split(","))))
    plain = launch_backward.backward
    launch_backward.backward = partial(plain, tuning=tuning)
    try:
        yield
    finally:
        launch_backward.backward = plain


def median(run: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of a call, by events, after three calls that do not count."""
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
