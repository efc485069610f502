"""Times of Hopper's forward kernel at head dim 64 by layout: tiles of 128 and of 192 queries, in turn, in one run.

    python ci/benchmarks/forward_tiles.py [--rounds 5] [--layouts 128 192] [--dry] [--out results.json]

A layout is TILE_M or TILE_M:name=value,…, overrides of HopperTuning. All layouts of a problem are timed one after the
other, `--rounds` times; the least median counts. Results are compared with those of the first layout, bit for bit no:
tiles change the order of sums; the largest difference is in the table. Exits with 1 where one is above 0.02.
--dry: one tiny problem on the emulated GPU, to try the script.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import difference, milliseconds  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands, pairs_of  # noqa: E402

from kernels.blocksparse.launch import forward as launch  # noqa: E402

PROBLEMS = [("causal", 8192, 16), ("full", 8192, 16), ("window", 32768, 16), ("causal", 32768, 16), ("causal", 8192, 2)]
DIM, HEADS, DISAGREE = 64, 16, 0.02


def layout_of(text: str) -> tuple[int, tuple[tuple[str, int], ...]]:
    """(tile_m, tuning) of TILE_M:name=value,…."""
    tile, _, rest = text.partition(":")
    pairs = (pair.split("=") for pair in rest.split(",") if pair)
    return int(tile), tuple(sorted((name, int(value)) for name, value in pairs))


def measured(entry: Entry, layouts: list[str], rounds: int) -> dict[str, Any]:
    """One problem: milliseconds, TFLOP/s and the difference from the first layout, by layout."""
    q, k, v, _ = (x.detach().transpose(1, 2) for x in operands(entry))
    zero = torch.zeros(1, dtype=torch.int32, device=q.device)
    sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
    o, lse = torch.empty_like(q), torch.empty(1, entry.heads_q, entry.tokens, device=q.device)
    cuda, calls, off, errors = q.is_cuda, {}, {}, {}
    first: list[torch.Tensor] = []
    for layout in layouts:
        tile_m, tuning = layout_of(layout)
        blocks = blocks_of(entry, tile_m=tile_m)

        def call(blocks=blocks, tuning=tuning) -> None:
            launch.forward(
                q, k, v, o, lse, sequences, blocks, scale=DIM**-0.5, tuning=tuning, products="wgmma"
            )  # fmt: skip

        o.fill_(float("nan"))
        lse.fill_(float("nan"))
        try:
            call()
        except (ValueError, RuntimeError) as error:  # a layout that is refused costs itself only
            errors[layout] = str(error)[:200]
            continue
        first = first or [o.clone(), lse.clone()]
        off[layout] = max(difference(x, y) for x, y in zip((o, lse), first, strict=True))
        calls[layout] = call
    times = [{name: milliseconds(call, cuda) for name, call in calls.items()} for _ in range(rounds if cuda else 1)]
    best = {name: min(at[name] for at in times) for name in calls}
    work = 4 * DIM * pairs_of(entry) * entry.heads_q
    return {
        "mask": entry.mask,
        "tokens": entry.tokens,
        "heads": [entry.heads_q, entry.heads_kv],
        "ms": {name: round(at, 4) for name, at in best.items()},
        "tflops": {name: round(work / at / 1e9, 1) for name, at in best.items()},
        "difference": off,
        "errors": errors,
    }


def main() -> int:
    """Measures all problems; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layouts", nargs="+", default=["128", "192"])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry:
        from fuzz.targets.blocksparse.devices import connect

        connect("emulator")
    problems = [("causal", 256, 1)] if options.dry else PROBLEMS
    rows = []
    for mask, tokens, heads_kv in problems:
        heads = 1 if options.dry else HEADS
        entry = Entry("once", mask, tokens, DIM, heads, heads_kv, "emulator" if options.dry else "cuda")
        row = measured(entry, options.layouts, options.rounds)
        rows.append(row)
        print(f"{mask} {tokens} {row['heads']}", flush=True)
        for name in row["ms"]:
            at, rate, gap = (row[key][name] for key in ("ms", "tflops", "difference"))
            print(f"  {name:40} {at:9.4f} ms {rate:6.1f} TFLOP/s, difference {gap:.1e}", flush=True)
        for name, why in row["errors"].items():
            print(f"  {name:40} {why}", flush=True)
    if options.out:
        from fuzz.session.records import machine

        options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return int(any(not gap < DISAGREE for row in rows for gap in row["difference"].values()))


if __name__ == "__main__":
    sys.exit(main())
