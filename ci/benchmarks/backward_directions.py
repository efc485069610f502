"""Deterministic backward pass under ascending and descending schedules, by length: a window of 2,048 and a causal mask.

    python ci/benchmarks/backward_directions.py --out ci/results/backward_directions_h200.json --plot backward.svg

Times are medians over CUDA events of the whole backward pass, bfloat16, tiles of 128 x 128; TFLOP/s count five products
of each (query, key) pair that the mask keeps. The work of a length is the same in all: heads x queries is constant.
Takes less than a minute on an H200.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from ci.benchmarks.write_orders import Shape, median, of_band
from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.lists.schedule import NAMED
from kernels.blocksparse.lists.write_order import with_order

TILE = 128
MASKS: dict[str, int | None] = {"window 2048": 2047, "causal": None}  # keys before the query's own
COLOURS = {"atomic": "#888888", "ascending": "#c44e52", "descending": "#4c72b0"}


def main() -> None:
    """Measures every mask and length; JSON, and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    parser.add_argument("--tokens", type=int, default=32768, help="sequences x length, of 16 heads")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="SVG or PNG")
    parser.add_argument("--from", dest="source", type=Path, help="draw this JSON; measure nothing")
    options = parser.parse_args()
    result = json.loads(options.source.read_text()) if options.source else measured(options)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        draw(result, options.plot)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All rows, with the machine."""
    rows = []
    for mask, left in MASKS.items():
        for length in map(int, options.lengths.split(",")):
            rows.append({"mask": mask, "length": length, **times(options, length, left)})
            print(json.dumps(rows[-1]), flush=True)
    sizes = {"tokens": options.tokens, "heads": options.heads, "dim": options.dim, "tile": TILE}
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **sizes, "rows": rows}


def times(options: argparse.Namespace, length: int, left: int | None) -> dict[str, Any]:
    """Milliseconds and TFLOP/s of one length: atomic, and ordered under each direction."""
    batch = max(options.tokens // length, 1)
    shape = Shape(length, batch * options.heads, batch * options.heads, options.dim, "cuda")
    q, k, v = (shape.tensor(shape.heads_q) for _ in range(3))
    grad = torch.randn_like(q)
    blocks = of_band(length, TILE, left, 0)
    orders = {name: (with_order(blocks, NAMED[name]), True) for name in ("ascending", "descending")}
    found = {}
    for name, (lists, deterministic) in {"atomic": (blocks, False), **orders}.items():
        out, _ = block_sparse_attention(q, k, v, lists.to("cuda"), deterministic=deterministic)
        found[name] = median(
            lambda out=out: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), options.repeats
        )
    seen = pairs(length, left)
    flops = 10 * seen * shape.heads_q * options.dim
    return {
        "ms": {name: round(ms, 4) for name, ms in found.items()},
        "TFLOP/s": {name: round(flops / ms / 1e9, 1) for name, ms in found.items()},
    }


def pairs(length: int, left: int | None) -> int:
    """(Query, key) pairs of a causal mask, or of one that sees `left` keys before the query's own."""
    width = min(length, length if left is None else left + 1)
    return width * (width + 1) // 2 + (length - width) * width


def draw(result: dict[str, Any], path: Path) -> None:
    """TFLOP/s by length: a row for each mask, ascending beside descending, each with the atomic backward pass."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(MASKS), 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for line, mask in zip(grid, MASKS, strict=True):
        rows = [row for row in result["rows"] if row["mask"] == mask]
        lengths = [row["length"] for row in rows]
        for axis, direction in zip(line, ("ascending", "descending"), strict=True):
            for name, label in (("atomic", "atomic"), (direction, f"deterministic, {direction}")):
                speeds = [row["TFLOP/s"][name] for row in rows]
                axis.plot(lengths, speeds, "o-", color=COLOURS[name], label=label)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{mask}, {direction}")
            axis.grid(alpha=0.3)
            axis.legend()
    for axis in grid[-1]:
        axis.set_xlabel("length")
    for axis in grid[:, 0]:
        axis.set_ylabel("TFLOP/s")
        axis.set_ylim(bottom=0)
    figure.suptitle(f"Backward pass, {result['device']}")
    figure.savefig(path)


if __name__ == "__main__":
    main()
