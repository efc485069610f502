"""Times of Hopper's forward kernel by layout on an SM (HopperTuning), in turn, in one run.

    python ci/benchmarks/forward_layouts.py [--rows full:2x8192x128 …] [--layouts "" turns=1 tma=1,turns=1 …]
        [--rounds 3] [--flash-attention] [--dry] [--out results.json]

A row is MASK:BATCHxTOKENSxDIM, with 16 heads, or MASK:BATCHxTOKENSxDIMxKV_HEADS; MASK one of blocksparse_masks.py, or
"top 64": 64 random blocks of 64 x 64 a row, 7 heads. A layout is name=value,…: overrides of HopperTuning; tile_m=64 or
192; l2=MB, of K and V that tiles launched together have; mma=1, the portable kernel; "" is the default.

Kernels are built first, in processes beside each other. Then all layouts of a row are timed one after the other,
`--rounds` times, in an order at random, each after SETTLE seconds of the same: a GPU that was idle is faster, and one
at its power limit runs as fast as what it ran before lets it. The median of the rounds' medians counts. Results are
compared with those of the first layout; exits with 1 where a difference is above 0.02.

--flash-attention   FlashAttention-4 in the same turns, where it is installed and has the mask (full, causal, window)
--dry               one tiny row on the emulated GPU, to try the script
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import difference  # noqa: E402
from blocksparse_masks import WINDOW, Entry, blocks_of, pairs_of  # noqa: E402

from kernels.blocksparse.compile.runtime import artifact_source, use_source  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

ROWS = [
    *("full:2x8192x128", "causal:2x8192x128", "causal:1x32768x128", "10%:1x8192x128"),
    *("full:2x8192x64", "causal:2x8192x64", "causal:1x32768x64", "window:1x32768x64"),
]
LAYOUTS = ["", "turns=1", "tma=1", "tma=1,turns=1"]
HEADS, REPEATS, SETTLE, DISAGREE = 16, 12, 0.06, 0.02
SECTIONS = launch.L2_BYTES, launch.UNEVEN_L2_BYTES

Layout = tuple[tuple[str, int], ...]


class Row(NamedTuple):
    """A problem: the mask's entry, and how many sequences."""

    name: str
    entry: Entry
    batch: int


def row_of(text: str, heads: int, device: str) -> Row:
    """The problem of MASK:BATCHxTOKENSxDIM[xKV_HEADS]."""
    mask, _, sizes = text.partition(":")
    batch, tokens, dim, *heads_kv = map(int, sizes.split("x"))
    if mask.startswith("top"):
        return Row(text, Entry("once", mask, tokens, dim, 7, 7, device, tile=64), batch)
    return Row(text, Entry("once", mask, tokens, dim, heads, heads_kv[0] if heads_kv else heads, device), batch)


def layout_of(text: str) -> Layout:
    """Overrides of HopperTuning from name=value,…."""
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    return tuple(sorted((name, int(value)) for name, value in pairs))


def lists_of(row: Row, layout: str) -> BlockSparse:
    """The row's lists, for the layout's tiles."""
    return blocks_of(row.entry, tile_m=dict(layout_of(layout)).get("tile_m"))


def tuning_of(layout: str) -> Layout:
    """The layout's overrides of HopperTuning."""
    return tuple(pair for pair in layout_of(layout) if pair[0] not in ("tile_m", "l2", "mma"))


def products_of(layout: str) -> str:
    """The products of the layout's kernel."""
    return "mma" if dict(layout_of(layout)).get("mma") else "wgmma"


def operands(row: Row) -> list[torch.Tensor]:
    """q, k, v: (batch, tokens, heads, dim), bfloat16."""
    entry, device = row.entry, "cuda" if row.entry.device == "cuda" else "cpu"
    draw = torch.Generator(device=device).manual_seed(0)
    return [
        torch.randn(row.batch, entry.tokens, heads, entry.dim, generator=draw, device=device, dtype=torch.bfloat16)
        for heads in (entry.heads_q, entry.heads_kv, entry.heads_kv)
    ]


def build(task: tuple[Variant, str]) -> str:
    """Builds a variant into a folder; why it cannot be built, or ""."""
    from kernels.blocksparse.compile.build import export

    variant, folder = task
    try:
        export(variant, "sm_90a", folder)
    except Exception as error:  # a layout that is refused costs itself only
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def built(rows: list[Row], layouts: list[str], folder: str) -> dict[Variant, str]:
    """Builds what rows and layouts need; the errors by variant."""
    variants = {found for row in rows for layout in layouts if isinstance(found := variant_of(row, layout), Variant)}
    with multiprocessing.get_context("spawn").Pool(min(len(variants), os.cpu_count() or 1, 14)) as pool:
        tasks = [(variant, folder) for variant in variants]
        return dict(zip(variants, pool.map(build, tasks, chunksize=1), strict=True))


def variant_of(row: Row, layout: str) -> Variant | str:
    """The kernel of a row in a layout, or why there is none."""
    if row.entry.mask.endswith("%") and "tile_m" in layout:
        return "the random blocks have 128 queries"
    q = torch.empty(1, 1, row.entry.heads_q, row.entry.dim, dtype=torch.bfloat16, device="meta")
    try:
        return launch.forward_variant(q, lists_of(row, layout), None, tuning_of(layout), products_of(layout))
    except (ValueError, RuntimeError) as error:
        return str(error)[:200]


def flash_attention(row: Row, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any] | None:
    """FlashAttention-4's forward pass of the row, if it has the mask."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError as error:
        print(f"FlashAttention-4: {error}")
        return None
    if row.entry.mask not in ("full", "causal", "window"):
        return None
    options: dict[str, Any] = {"causal": row.entry.mask == "causal"}
    if row.entry.mask == "window":
        options["window_size"] = (WINDOW - 1, 0)
    return lambda: flash_attn_func(q, k, v, **options)


def milliseconds(call: Callable[[], Any], cuda: bool) -> float:
    """Median device time of a call."""
    call()
    if not cuda:
        return float("nan")
    until = time.monotonic() + SETTLE
    while time.monotonic() < until:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    torch.cuda._sleep(int(REPEATS * 5e5))  # the host is ahead of the device
    for before, after in events:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in events)


def measured(row: Row, layouts: list[str], options: argparse.Namespace, errors: dict[str, str]) -> dict[str, Any]:
    """One row: milliseconds, TFLOP/s and the difference from the first layout, by layout."""
    q, k, v = operands(row)
    entry = row.entry
    zero = torch.zeros(row.batch, dtype=torch.int32, device=q.device)
    sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
    o, lse = torch.empty_like(q), torch.empty(row.batch, entry.heads_q, entry.tokens, device=q.device)
    calls: dict[str, Callable[[], Any]] = {}
    off: dict[str, float] = {}
    first: list[torch.Tensor] = []
    for layout in layouts:
        if errors.get(layout):
            continue

        tuning, blocks, products = tuning_of(layout), lists_of(row, layout), products_of(layout)
        megabytes = dict(layout_of(layout)).get("l2")
        sections = (megabytes << 20,) * 2 if megabytes else SECTIONS

        def call(
            tuning: Layout = tuning,
            blocks: BlockSparse = blocks,
            sections: tuple[int, ...] = sections,
            products: str = products,
        ) -> None:
            launch.L2_BYTES, launch.UNEVEN_L2_BYTES = sections
            scale = entry.dim**-0.5
            launch.forward(q, k, v, o, lse, sequences, blocks, scale=scale, tuning=tuning, products=products)

        o.fill_(float("nan"))
        lse.fill_(float("nan"))
        call()
        first = first or [o.clone(), lse.clone()]
        off[layout] = max(difference(x, y) for x, y in zip((o, lse), first, strict=True))
        calls[layout] = call
    if options.flash_attention and (other := flash_attention(row, q, k, v)):
        calls["FlashAttention-4"] = other
    rounds = options.rounds if q.is_cuda else 1
    names = list(calls)
    draw = random.Random(0)
    times = [
        {name: milliseconds(calls[name], q.is_cuda) for name in draw.sample(names, len(names))} for _ in range(rounds)
    ]
    best = {name: statistics.median(at[name] for at in times) for name in calls}
    work = 4 * entry.dim * pairs_of(entry) * entry.heads_q * row.batch
    return {
        "row": row.name,
        "ms": {name: round(at, 4) for name, at in best.items()},
        "tflops": {name: round(work / at / 1e9, 1) for name, at in best.items()},
        "difference": off,
        "errors": {name: text for name, text in errors.items() if text},
    }


def main() -> int:
    """Measures all rows; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS)
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry:
        from fuzz.targets.blocksparse.devices import connect

        connect("emulator")
    rows = [row_of(text, 1 if options.dry else HEADS, "emulator" if options.dry else "cuda") for text in options.rows]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        errors = {} if options.dry else built(rows, options.layouts, folder)
        with nullcontext() if options.dry else use_source(artifact_source(folder)):
            for row in rows:
                kernels = {layout: variant_of(row, layout) for layout in options.layouts}
                why = {name: of if isinstance(of, str) else errors.get(of, "") for name, of in kernels.items()}
                found.append(measured(row, options.layouts, options, why))
                show(found[-1])
    if options.out:
        device = "none" if options.dry else torch.cuda.get_device_name()
        options.out.write_text(json.dumps({"device": device, "rows": found}, indent=1) + "\n")
    return int(any(not gap < DISAGREE for row in found for gap in row["difference"].values()))


def show(found: dict[str, Any]) -> None:
    """Prints a row."""
    print(found["row"], flush=True)
    for name, at in found["ms"].items():
        gap = found["difference"].get(name, float("nan"))
        print(f"  {name or 'default':44} {at:9.4f} ms {found['tflops'][name]:6.1f} TFLOP/s, difference {gap:.1e}")
    for name, why in found["errors"].items():
        print(f"  {name:44} {why}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
