"""Ordered adds of the backward pass beside atomic ones on a Hopper GPU, by the number of concurrent pairs and by the
order.

    python ci/benchmarks/ordered_pairs.py [--out FILE.json] [--seconds 90] [--only "full 8192 256"]
    python ci/benchmarks/ordered_pairs.py --dry        tiny problems on the emulated GPU

"default pN" is the order of the lists' builder with N concurrent pairs, "planned pN" that of `least_blocking` for N,
"atomic pN" atomic adds with N; "atomic", "default" and "planned" have the pairs that launcher and planner choose.
"unreversed" launches the last group of a causal mask as the others, with the pairs of atomic adds. With --splits:
"default gN" and "atomic gN" split the query heads of a KV head into N units.

In each round all ways of a row are measured, in an order at random, each after SETTLE seconds of the same: a
GPU at its power limit runs as fast as what it ran before lets it. The median of the rounds' medians counts, of the main
kernel and of the whole pass. Ordered gradients must have the same bits in five calls. Exits with 1 where they have not,
or where gradients differ from the atomic ones.
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import difference  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.launch import backward as launch_backward  # noqa: E402
from kernels.blocksparse.launch import concurrency  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.launch.backward_tuning import tuning_of_full  # noqa: E402
from kernels.blocksparse.lists.halves import halve_keys  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

HEADS, ROUNDS, CALLS, SETTLE, DISAGREE = 16, 6, 6, 0.06, 0.02


@dataclass(frozen=True)
class Row:
    """A problem and its ways: pairs of the default order, of planned ones and of atomic adds; splits: or every split of
    its groups."""

    mask: str
    tokens: int
    batch: int
    dim: int
    default: tuple[int, ...]
    planned: tuple[int, ...] = ()
    atomic: tuple[int, ...] = ()
    heads: int = HEADS
    heads_kv: int = HEADS
    splits: bool = False

    @property
    def name(self) -> str:
        """Mask, tokens, head dim, and heads where they are not HEADS."""
        heads = "" if self.heads == self.heads_kv == HEADS else f" h{self.heads}/{self.heads_kv}"
        return f"{self.mask} {self.tokens} {self.dim}{heads}"

    @property
    def entry(self) -> Entry:
        """As the other benchmarks have it."""
        return Entry("beside", self.mask, self.tokens, self.dim, self.heads, self.heads_kv, batch=self.batch)


ROWS = [
    Row("causal", 8192, 2, 128, (1, 2, 3, 4), (), (1, 2, 3, 6)),
    Row("causal", 8192, 2, 64, (1, 2, 4, 8), (), (2, 4, 6)),
    Row("causal", 8192, 1, 128, (1, 2, 4)),
    Row("causal", 8192, 1, 128, (1, 2, 4), heads=4, heads_kv=4),
    Row("causal", 8192, 1, 128, (1, 2, 4), heads=8, heads_kv=8),
    Row("causal", 8192, 2, 128, (1, 2, 4), heads_kv=2),
    Row("causal", 4096, 4, 128, (2, 4, 8)),
    Row("causal", 4096, 1, 128, (2, 4, 8)),
    Row("causal", 4096, 2, 128, (1, 2, 4, 8), heads=4, heads_kv=4),
    Row("causal", 2048, 1, 128, (2, 4, 8, 16)),
    Row("causal", 2048, 2, 128, (4, 8, 16)),
    Row("causal", 1024, 16, 128, (8, 16, 32)),
    Row("causal", 2048, 8, 64, (4, 8, 16, 24)),
    Row("causal", 16384, 1, 128, (1, 2)),
    Row("causal", 8192, 1, 256, (1, 2)),
    Row("full", 8192, 2, 128, (2, 4, 8), (), (2, 4)),
    Row("50%", 8192, 1, 128, (), (8, 16), (1, 2, 3, 8)),
    Row("10%", 8192, 1, 128, (), (8, 16), (1, 2, 8)),
    Row("10%", 32768, 1, 128, (), (), (2, 3, 4)),
    Row("causal", 2048, 8, 128, (4, 8, 16), (), (4, 8, 16)),
    Row("causal", 32768, 1, 128, (2, 3), (), (2, 3, 4)),
    Row("50%", 8192, 1, 64, (), (8,), (1, 2, 4)),
    Row("window", 32768, 1, 128, (2, 4, 8), (), (2, 8)),
    Row("causal", 8192, 2, 256, (1, 2, 3, 4), (), (1, 2, 3, 4)),
    Row("10%", 8192, 1, 256, (), (4, 8, 16), (1, 2, 4)),
    Row("full", 8192, 2, 256, (1, 2, 3, 4, 8), (8, 16), (1, 2, 4)),
    Row("causal", 2048, 8, 256, (2, 4, 6, 8)),
    Row("full", 2048, 8, 256, (4, 6, 8, 16), (16,)),
]
SPLITS = [
    Row(mask, tokens, batch, 128, (), heads_kv=heads_kv, splits=True)
    for mask, heads_kv, many in (("causal", 2, True), ("causal", 4, False), ("full", 2, False))
    for tokens, batch in (
        (256, 64), (512, 32), (1024, 16), (2048, 8), (4096, 4), (256, 8), (512, 4), (1024, 2), (2048, 1), (4096, 1),
        (8192, 2), (8192, 1), (4096, 2), (2048, 4),
    )
    if many or (tokens, batch) in ((8192, 2), (8192, 1), (4096, 2), (2048, 4))
]  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way of the backward pass. pairs, group_split: None for the launcher's; reverses: the last group of a causal
    mask."""

    blocks: BlockSparse
    ordered: bool
    pairs: int | None = None
    reverses: bool = True
    group_split: int | None = None


def ways_of(row: Row, blocks: BlockSparse) -> dict[str, Way]:
    """Ways by name; lists are as the operator has them at this head dim."""

    def halved(lists: BlockSparse) -> BlockSparse:
        return halve_keys(lists, row.tokens) if row.dim > 128 else lists

    default, of = halved(blocks), {"heads_q": row.heads, "heads_kv": row.heads_kv, "batch": row.batch, "dim": row.dim}
    found = {"atomic": Way(default, False), "default": Way(default, True)}
    if not row.splits and concurrency.has_longest_last(default):
        found["unreversed"] = Way(default, True, atomic_pairs(row, default), False)
    if not concurrency.in_step(blocks):
        plan = least_blocking(blocks, **of)
        found[f"planned ({plan.pairs}, {plan.chosen[0]})"] = Way(halved(plan.blocks), True)
    if row.splits:
        for split in (2**n for n in range((row.heads // row.heads_kv).bit_length())):
            found[f"default g{split}"] = Way(default, True, group_split=split)
            found[f"atomic g{split}"] = Way(default, False, group_split=split)
    found |= {f"default p{pairs}": Way(default, True, pairs) for pairs in row.default}
    found |= {f"atomic p{pairs}": Way(default, False, pairs) for pairs in row.atomic}
    for pairs in row.planned:
        found[f"planned p{pairs}"] = Way(halved(least_blocking(blocks, **of, pairs=pairs).blocks), True)
    return found


def atomic_pairs(row: Row, blocks: BlockSparse) -> int:
    """Concurrent pairs of atomic adds, of as many units as ordered adds have."""
    q = torch.empty(row.batch, row.tokens, row.heads, row.dim, dtype=torch.bfloat16, device="meta")
    split = concurrency.group_split_of(blocks, row.batch, q, q[:, :, : row.heads_kv], True)
    return concurrency.concurrent_pairs(q, q[:, :, : row.heads_kv], blocks, False, split)


class Passes:
    """Backward passes of one row."""

    def __init__(self, entry: Entry, blocks: BlockSparse) -> None:
        self.q, self.k, self.v, self.do = (x.detach().transpose(1, 2).contiguous() for x in operands(entry))
        zero = torch.zeros(entry.batch, dtype=torch.int32, device=self.q.device)
        self.sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
        self.scale, self.o = entry.dim**-0.5, torch.empty_like(self.q)
        self.lse = torch.empty(entry.batch, entry.heads_q, entry.tokens, device=self.q.device)
        launch.forward(
            self.q, self.k, self.v, self.o, self.lse, self.sequences, blocks, scale=self.scale, products="mma"
        )

    def launches(self, way: Way) -> tuple[list[Any], list[Any]]:
        """The kernels of a way with their values, and the gradients that they write, before the workspace."""
        gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        workspace = launch_backward.make_workspace(
            self.q, self.k, self.sequences, way.blocks, way.ordered, way.group_split
        )
        found = launch_backward.backward_launches(
            *gradients, self.q, self.k, self.v, self.o, self.lse, self.do, self.sequences, way.blocks, workspace,
            scale=self.scale, deterministic=way.ordered, pairs=way.pairs, products="wgmma",
        )  # fmt: skip
        if not way.reverses:
            never = {"reversed_from": launch.INT32_MAX}
            found = [(of, values | never if of.kind == "backward" else values) for of, values in found]
        return found, [*gradients, workspace]

    def run(self, launches: list[Any]) -> tuple[float, float]:
        """Milliseconds of the main kernel and of the whole pass."""
        device = self.q.device
        if device.type != "cuda":
            began = time.perf_counter()
            for variant, values in launches:
                runtime.launch(variant, device, values)
            return (1e3 * (time.perf_counter() - began),) * 2
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda._sleep(150_000)  # until the host has queued them all
        marks[0].record()
        for mark, (variant, values) in zip(marks[1:], launches, strict=True):
            runtime.launch(variant, device, values)
            mark.record()
        torch.cuda.synchronize()
        return marks[1].elapsed_time(marks[2]), marks[0].elapsed_time(marks[3])

    def settled(self, launches: list[Any]) -> tuple[float, float]:
        """The medians of `run` after SETTLE seconds of it; one run where there is no GPU."""
        until, calls = time.monotonic() + SETTLE, CALLS if self.q.is_cuda else 1
        while self.q.is_cuda and time.monotonic() < until:
            self.run(launches)
        found = [self.run(launches) for _ in range(calls)]
        return statistics.median(t[0] for t in found), statistics.median(t[1] for t in found)


def measured(row: Row, entry: Entry, rounds: int) -> dict[str, Any]:
    """Times of all ways of a row, and what is wrong."""
    blocks, cuda = blocks_of(entry), entry.device == "cuda"
    passes, ways, made, wrong = Passes(entry, blocks), ways_of(row, blocks), {}, []
    expected = None
    for name, way in ways.items():
        made[name] = launches, gradients = passes.launches(way)
        passes.run(launches)
        first = [x.clone() for x in gradients[:3]]
        expected = expected or first
        off = max(difference(x, y) for x, y in zip(first, expected, strict=True))
        if not off < DISAGREE:
            wrong.append(f"{name}: gradients differ by {off}")
        for _ in range(4 if way.ordered else 0):
            passes.run(launches)
            if not all(torch.equal(x, y) for x, y in zip(first, gradients[:3], strict=True)):
                wrong.append(f"{name}: other bits in another call")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    draw = random.Random(0)
    for _ in range(rounds if cuda else 1):
        for name in draw.sample(list(made), len(made)):
            times[name].append(passes.settled(made[name][0]))
    main, whole = ({name: round(statistics.median(t[i] for t in ts), 4) for name, ts in times.items()} for i in (0, 1))
    pairs = {name: int(made[name][0][1][1]["pairs"]) for name in made}
    split = int(made["default"][0][1][1]["group_split"])
    sizes = {"tokens": row.tokens, "batch": row.batch, "dim": row.dim, "heads": [row.heads, row.heads_kv]}
    return {
        "row": row.name,
        **sizes,
        "group_split": split,
        "pairs": pairs,
        "main_ms": main,
        "ms": whole,
        "wrong": wrong,
    }


def builds(rows: list[Row]) -> list[Variant]:
    """The kernels that are needed, each once."""
    found: dict[Variant, None] = {}
    for row in rows:
        kind = "band" if row.mask in ("causal", "window") else "none"
        dim, tile_n = row.dim, 64 if row.dim > 128 else 128
        variants = [Variant("forward", "bfloat16", dim, 128, 128, kind), Variant("preprocess", "bfloat16", dim, 128)]
        for ordered in (False, True):
            of = tuning_of_full(dim, ordered) if row.mask == "full" else ()
            variants.append(Variant("backward", "bfloat16", dim, 128, tile_n, kind, ordered, False, "wgmma", of))
        variants.append(Variant("postprocess", "bfloat16", dim, 128, tile_n, products="wgmma"))
        found |= dict.fromkeys(variants)
    return sorted(found, key=lambda one: one.kind != "backward")


def build(folder: str, arch: str, variant: Variant) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    export(variant, arch, folder)


def table(row: dict[str, Any]) -> str:
    """A row's ways: milliseconds of the main kernel and of the pass, and both over the atomic ones."""
    main, whole = row["main_ms"], row["ms"]
    lines = [f"{row['row']} x {row['batch']}   {'; '.join(row['wrong'])}"]
    for name in main:
        ratio = main[name] / main["atomic"], whole[name] / whole["atomic"]
        lines.append(
            f"    {ratio[0]:.3f} {ratio[1]:.3f}  {main[name]:8.3f} {whole[name]:8.3f}  p{row['pairs'][name]:<3} {name}"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90, help="begin no row after so many")
    parser.add_argument("--only", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--splits", action="store_true", help="rows with few KV heads, by the split of their groups")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dry", action="store_true", help="on the emulated GPU, tiny")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    rows = SPLITS if options.splits else ROWS
    rows = [row for row in rows if not options.only or any(part in row.name for part in options.only)]
    found: list[dict[str, Any]] = []
    device = "emulated" if options.dry else torch.cuda.get_device_name()
    print(device, torch.__version__, flush=True)

    def all_rows() -> None:
        for row in rows:
            if time.monotonic() - began > options.seconds:
                print("left out:", row.name, flush=True)
                continue
            entry = row.entry
            if options.dry:
                entry = replace(entry, tokens=256, heads_q=1, heads_kv=1, batch=1, device="emulator")
            found.append(measured(row, entry, options.rounds))
            print(table(found[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps({"device": device, "rows": found}, indent=1) + "\n")

    if options.dry:
        from fuzz.targets.blocksparse.devices import connect, emulated

        connect("emulator")
        emulated().blind = True  # atomic adds in no fixed order are what is measured, not a finding
        rows = [replace(row, tokens=256, batch=1, heads=1, heads_kv=1) for row in rows]
        all_rows()
    else:
        with tempfile.TemporaryDirectory() as folder:
            arch = runtime.arch_of(torch.device("cuda", 0))
            with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
                list(pool.map(partial(build, folder, arch), builds(rows)))
            print(f"built in {time.monotonic() - began:.0f} s", flush=True)
            with runtime.use_source(runtime.artifact_source(folder)):
                all_rows()
    return int(any(row["wrong"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
