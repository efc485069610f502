"""Block-sparse cases with rows of so many tiles that Hopper's backward kernel works through runs of them.

    python ci/check_long_rows.py --cases 600 --jobs 12 --out ci/results/blocksparse_long_rows_h200.json
    python ci/check_long_rows.py --full --cases 500 --jobs 15 --out ci/results/blocksparse_full_masks_h200.json
    python ci/check_long_rows.py --nested --cases 500 --jobs 15 --out ci/results/blocksparse_nested_rows_h200.json
    python ci/check_long_rows.py --halves --cases 400 --jobs 15 --out ci/results/blocksparse_halves_h200.json
    python ci/check_long_rows.py --cases 4 --device emulator                  on the emulated GPU: minutes

A session's cases are small: few have five whole tiles of 128 queries, which are one run (NOTE [pieces] of
kernels/blocksparse/backward/transposed/runs_loads.py), and rows that are alike in lists of full blocks. Atomic adds
have runs, ordered ones of full masks alone. Here every case has 640 to 2,700 queries, head dim 24 to 192 and tiles of
128 × 128, or beyond head dim 128 of 128 × 64: full masks as `dense` makes their lists, causal masks and windows,
documents, blocks at random; padded and packed; ordered and atomic adds; every order of launches. Each is judged as a
session's cases are, ordered ones five times, bit for bit.

With `--full` every case has a full mask over padded sequences of one length, from 129 queries on, at head dims from 40
to 256: their forward kernels run in clusters of two CTAs beyond head dim 96, and several CTAs share the keys of their
last tiles, as they do the queries of the backward kernel's last tiles; of both a session has few. The file
says how many did.

With `--nested` every case has a causal mask over padded sequences of one length, from 129 queries on, at head dims from
104 to 128 and from 208 to 256, and lists that say that their rows are nested: their forward kernels run in clusters of
two CTAs, as those of long causal masks do.

With `--halves` every case has head dim 136 to 256 and lists of halves of tiles of 128 keys, both of which have the same
blocks: their backward kernels run in clusters of two CTAs that exchange dS, but for atomic adds at head dim 208.

The kernels of all cases are compiled first, each once. Then cases are shared among `--jobs` processes. One that has not
ended all of its cases after `--seconds`, compiling included, is killed, and the cases that it has not told of count as
lost. Exits with 1 unless every case passes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import torch
from rich.console import Console

from fuzz.core.case import Case, Inputs
from fuzz.core.target import Device
from fuzz.judging.judge import execute
from fuzz.session.precompile.background_compile import compile_for
from fuzz.session.records import machine
from fuzz.targets.blocksparse.static_checks import shapes_of
from fuzz.targets.registry import load
from kernels.blocksparse.launch.backward import backward_variants
from kernels.blocksparse.launch.concurrency import group_split_of
from kernels.blocksparse.launch.forward import cluster_size, forward_variant
from kernels.blocksparse.launch.split_tiles import BACKWARD, FORWARD, may_split, split_of
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.spec.variant import WIDE, WIDEST_DIM
from oracles.masks import Blocks, Causal, Documents, Full, Mask, Window
from oracles.problem import Dtype, Layout, Problem

TILE, LEAST, MOST = 128, 640, 2700
FULL_DIMS = (40, 64, 64, 96, 104, 120, 128, 128, 128, 208, 256)
HALVES_DIMS = (136, 160, 192, 192, 208, 224, 256, 256)
NESTED_DIMS = (104, 120, 128, 128, 128, 208, 256)
SMS = 132  # of an H200
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16")
LAYOUTS: tuple[Layout, ...] = ("padded", "packed")
SCHEDULES = ("ascending", "descending", "shuffled", "planned")


def drawn(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    batch, heads_kv = draw.choice((1, 1, 2)), draw.choice((1, 2))
    lengths_q = tuple(_length(draw) for _ in range(batch))
    same = draw.choice((True, True, False))
    lengths_k = lengths_q if same else tuple(max(8, _length(draw) // draw.choice((1, 2, 4))) for _ in range(batch))
    mask, kind = _mask(draw, min(lengths_q))
    variant: dict[str, Any] = {
        "mask": kind,
        "deterministic": draw.choice((True, True, False)),
        "schedule": draw.choice((*SCHEDULES, "ascending", "descending")),
    }
    dim = draw.choice((64, 128, 128, 128, 96, 72, 24, 192))
    if dim > TILE:
        variant["tile_n"] = TILE // 2
    problem = Problem(
        lengths_q,
        lengths_k,
        heads_kv * draw.choice((1, 2, 3)),
        heads_kv,
        dim,
        dim,
        draw.choice(DTYPES),
        layout=draw.choice(LAYOUTS),
        mask=mask,
    )
    return Case("blocksparse", problem, Inputs(seed=number), variant, repeats=5 if variant["deterministic"] else 2)


def _length(draw: random.Random) -> int:
    """Whole tiles half of the time."""
    length = draw.randint(LEAST, MOST)
    return length // TILE * TILE if draw.choice((True, False)) else length


def drawn_full(seed: int, number: int) -> Case:
    """Case `number` of a seed, with a full mask."""
    draw = random.Random(f"full {seed} {number}")
    batch, heads_kv, dim = draw.choice((1, 1, 2, 3)), draw.choice((1, 2)), draw.choice(FULL_DIMS)
    tiles = draw.choice((2, 4, 6, 10, 16, 16, 33))
    len_q = tiles * TILE - draw.choice((0, draw.randrange(TILE)))
    len_k = draw.choice((len_q, draw.randint(1, MOST), TILE * draw.randint(1, MOST // TILE)))
    ordered = draw.choice((True, False))
    variant: dict[str, Any] = {
        "mask": "none",
        "tile_n": TILE if dim <= TILE else TILE // 2,
        "deterministic": ordered,
        "schedule": draw.choice(SCHEDULES) if ordered else "ascending",
    }
    if dim <= WIDEST_DIM and draw.choice((True, False)):
        variant["wide"] = WIDE
    heads_q = heads_kv * draw.choice((1, 1, 2, 3))
    shape = (len_q,) * batch, (len_k,) * batch, heads_q, heads_kv, dim, dim
    problem = Problem(*shape, draw.choice(DTYPES), mask=Full(), backward=draw.choice((True, True, False)))
    return Case("blocksparse", problem, Inputs(seed=number), variant, repeats=5)


def drawn_nested(seed: int, number: int) -> Case:
    """Case `number` of a seed, with a causal mask whose rows are nested."""
    draw = random.Random(f"nested {seed} {number}")
    batch, heads_kv, dim = draw.choice((1, 1, 2, 3)), draw.choice((1, 2)), draw.choice(NESTED_DIMS)
    len_q = draw.randint(TILE + 1, MOST)
    len_k = draw.choice((len_q, len_q, draw.randint(1, MOST)))
    variant: dict[str, Any] = {
        "mask": "band",
        "nested": True,
        "tile_n": TILE if dim <= TILE else TILE // 2,
        "deterministic": draw.choice((True, False)),
        "schedule": draw.choice(("ascending", "descending")),
        "lists": draw.choice(("csr", "padded", "compact")),
    }
    heads_q = heads_kv * draw.choice((1, 1, 2, 3))
    shape = (len_q,) * batch, (len_k,) * batch, heads_q, heads_kv, dim, dim
    problem = Problem(
        *shape,
        draw.choice(DTYPES),
        mask=Causal(draw.choice(("top_left", "bottom_right"))),
        softcap=draw.choice((0.0, 0.0, 20.0)),
        backward=draw.choice((True, False)),
    )
    return Case("blocksparse", problem, Inputs(seed=number), variant, repeats=5)


def drawn_halves(seed: int, number: int) -> Case:
    """Case `number` of a seed, with lists of halves of tiles."""
    draw = random.Random(f"halves {seed} {number}")
    batch, heads_kv, dim = draw.choice((1, 1, 2, 3)), draw.choice((1, 2)), draw.choice(HALVES_DIMS)
    lengths_q = tuple(_past_halves(_length(draw)) for _ in range(batch))
    lengths_k = draw.choice((lengths_q, tuple(draw.randint(1, MOST) for _ in range(batch))))
    wholes = range(TILE, min(lengths_q), TILE)  # no half of a listed tile is without an unmasked pair
    mask, kind = draw.choice(
        (
            (Full(), "none"),
            (Causal("top_left"), draw.choice(("band", "intervals"))),
            (Window(draw.choice(wholes) - 1, 0, "top_left"), "band"),
        )
    )
    variant: dict[str, Any] = {
        "mask": kind,
        "tile_n": TILE // 2,
        "lists": "halved",
        "deterministic": draw.choice((True, True, False)),
        "schedule": draw.choice(("ascending", "descending")),
    }
    heads_q = heads_kv * draw.choice((1, 1, 2, 3))
    shape = lengths_q, lengths_k, heads_q, heads_kv, dim, dim
    problem = Problem(*shape, draw.choice(DTYPES), mask=mask, layout=draw.choice(LAYOUTS))
    return Case("blocksparse", problem, Inputs(seed=number), variant, repeats=20 if variant["deterministic"] else 2)


def _past_halves(length: int) -> int:
    """Queries whose last tile is longer than the half of one: under a causal mask it sees keys of both halves of the
    diagonal tile."""
    return length + TILE // 2 if 0 < length % TILE <= TILE // 2 else length


def exchanges(case: Case) -> bool:
    """True if its backward kernel on Hopper runs in clusters of CTAs that exchange dS."""
    q, lists, _ = shapes_of(case)
    ordered = bool(case.variant["deterministic"])
    return ("exchanges", 1) in backward_variants(q, lists, None, ordered, products="wgmma")[-2].tuning


def clustered(case: Case) -> bool:
    """True if its forward kernel on Hopper runs in clusters of CTAs."""
    q, lists, _ = shapes_of(case)
    return cluster_size(forward_variant(q, lists, products="wgmma")) > 1


def splits_forward(case: Case) -> bool:
    """True if some of its forward kernel's tiles are split on an H200."""
    problem, (q, lists, _) = case.problem, shapes_of(case)
    variant = forward_variant(q, lists, products="wgmma")
    cluster, listed = cluster_size(variant), -(-problem.len_k // variant.tile_n)
    tiles = problem.batch * problem.heads_q * -(-problem.len_q // (variant.tile_m * cluster))
    return may_split(variant) and split_of(tiles, SMS // cluster, listed, FORWARD).tiles > 0


def splits_backward(case: Case) -> bool:
    """True if some of its backward kernel's tiles are split on an H200."""
    problem, (q, lists, _) = case.problem, shapes_of(case)
    ordered, group = bool(case.variant["deterministic"]), problem.heads_q // problem.heads_kv
    if not problem.backward or not may_split(backward_variants(q, lists, None, ordered, products="wgmma")[-2]):
        return False
    lists = dense(problem.len_q, problem.len_k, device="cpu")
    q, k = (
        torch.empty(problem.batch, length, heads, problem.dim, dtype=problem.torch_dtype, device="meta")
        for length, heads in ((problem.len_q, problem.heads_q), (problem.len_k, problem.heads_kv))
    )
    if group_split_of(lists, problem.batch, q, k, ordered) > 1:
        return False
    tiles = problem.batch * problem.heads_kv * -(-problem.len_k // lists.tile_n)
    return split_of(tiles, SMS, lists.m_blocks * group, BACKWARD).tiles > 0


def _mask(draw: random.Random, length: int) -> tuple[Mask, str]:
    """A mask, and the kind of lists that say it."""
    kind = draw.choice(("full", "full", "causal", "causal", "window", "documents", "blocks", "blocks"))
    if kind == "full":
        return Full(), "none"
    if kind == "causal":
        return Causal(draw.choice(("top_left", "bottom_right"))), draw.choice(("band", "intervals"))
    if kind == "window":
        return Window(draw.randint(300, 2400), draw.choice((0, 0, 200)), "top_left"), "band"
    if kind == "blocks":
        cells, tiles = draw.choice(("FF.", "F.", "FFM.", "FM..")), -(-MOST // TILE)  # shares of each kind
        rows = tuple("".join(draw.choices(cells, k=tiles)) for _ in range(tiles))
        return Blocks(TILE, TILE, rows, draw.randrange(1000)), "bits"
    bounds = sorted(draw.sample(range(1, length), draw.choice((1, 2))))
    return Documents(tuple(bounds)), "intervals"


def of_hopper(case: Case, device: Device) -> Case:
    """The case as it runs: on the emulated GPU it asks for Hopper's kernels, which are not the default there."""
    if device == "emulator":
        return msgspec.structs.replace(case, variant=case.variant | {"products": "wgmma"})
    return case


def told(case: Case, device: Device) -> dict[str, Any]:
    """The outcome of a case, its largest error over its budget, and its findings."""
    case = of_hopper(case, device)
    verdict = execute(case, load(case.target, device=device), lambda phase, limit: None)
    findings = [f"{one.oracle}: {one.message}"[:300] for one in verdict.findings]
    return {"outcome": verdict.outcome, "ratio": verdict.ratio, "reason": verdict.reason[:200], "findings": findings}


def share(options: argparse.Namespace) -> int:
    """A process's own cases, a line of JSON for each."""
    for number in range(options.share, options.cases, options.jobs):
        case = options.draw(options.seed, number)
        print(json.dumps({"number": number} | told(case, options.device)), flush=True)
    return 0


def gathered(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of all processes' cases, sorted by the cases' numbers."""
    until, lines = time.monotonic() + options.seconds, list[str]()
    cases = [of_hopper(options.draw(options.seed, number), options.device) for number in range(options.cases)]
    compile_for(load("blocksparse", device=options.device), cases, Console(stderr=True))
    command = [sys.executable, __file__, *sys.argv[1:], "--share"]
    children = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(options.jobs)]
    for child in children:
        try:
            out, _ = child.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
        lines += out.splitlines()
        print(f"{len(lines)}/{options.cases} cases", file=sys.stderr)
    return sorted((json.loads(line) for line in lines if line.endswith("}")), key=lambda one: one["number"])


def summary(options: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, the largest ratio of an error to its budget, and what did not pass."""
    cases = {one["number"]: options.draw(options.seed, one["number"]) for one in rows}
    of_cases = [case.variant for case in cases.values()]
    kinds = Counter(f"{of['mask']}, {'ordered' if of['deterministic'] else 'atomic'}" for of in of_cases)
    lost = sorted(set(range(options.cases)) - cases.keys())
    return {
        "machine": machine(),
        "command": " ".join(sys.argv),
        "cases": options.cases,
        "seed": options.seed,
        "outcomes": dict(Counter(one["outcome"] for one in rows)),
        "lost": lost,
        "by_mask_and_adds": dict(sorted(kinds.items())),
        "in_clusters": sum(map(clustered, cases.values())),
        "exchanging": sum(map(exchanges, cases.values())),
        "split_forward": sum(map(splits_forward, cases.values())),
        "split_backward": sum(map(splits_backward, cases.values())),
        "largest_ratio": max((one["ratio"] for one in rows), default=0.0),
        "not_passed": [one for one in rows if one["outcome"] != "pass"],
    }


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all cases, compiling included")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--full", dest="draw", action="store_const", const=drawn_full, default=drawn, help="full masks")
    parser.add_argument("--nested", dest="draw", action="store_const", const=drawn_nested, help="nested rows")
    parser.add_argument("--halves", dest="draw", action="store_const", const=drawn_halves, help="halves of tiles")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share is not None:
        return share(options)
    found = summary(options, gathered(options))
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["outcomes"] == {"pass": options.cases} else 1


if __name__ == "__main__":
    sys.exit(main())
