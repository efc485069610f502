"""The planner's model of a launch beside a Hopper GPU: random blocks, ordered adds, many orders of CTAs and visits.

    python ci/benchmarks/launch_model.py --seconds 150 --out ci/results/launch_model_h200.json
    python ci/benchmarks/launch_model.py --dry        the orders and the model's times alone, anywhere

Of each problem and number of concurrent pairs: the order of each policy, and that with its visits chosen again
(kernels/blocksparse/planner). Times are those of the main kernel by CUDA events, all orders of a problem in turn, the
least of ROUNDS medians, with the atomic kernel among them; `time` is the model's, in units of one block's products, of
which `waiting` and `memory`. "fit" of a problem is the spread of the measured over the modelled time, as a standard
deviation of its logarithm; "regret" is how much longer the order takes that the model likes best than the best one.
Exits with 1 where gradients differ from the atomic ones.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import difference  # noqa: E402
from blocksparse_masks import Entry, blocks_of  # noqa: E402
from ordered_pairs import Passes, Way, build  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.lists.halves import halve_keys  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.planner.cost_model import WARM, LaunchOrder, by_release, costs_of, orders, warm_first  # noqa: E402
from kernels.blocksparse.planner.launch_model import bound, chosen_again, run  # noqa: E402
from kernels.blocksparse.planner.planner import Sizes, segments_of, under  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

HEADS, ROUNDS, SETTLE, MEASURED, DISAGREE = 16, 4, 0.05, 0.05, 0.02
POLICIES = (
    *(f"longest{WARM}", "longest, rows by release", "shortest, rows by release"),
    *("greedy, longest", "greedy, shortest"),
)
PROBLEMS = {  # mask, tokens, head dim → concurrent pairs
    ("10%", 8192, 128): (4, 8, 16),
    ("50%", 8192, 128): (4, 8, 16),
    ("10%", 32768, 128): (1, 2, 4),
    ("10%", 8192, 64): (4, 8, 16),
    ("50%", 8192, 64): (4, 8, 16),
    ("10%", 8192, 256): (2, 4, 8, 16),
}


def orders_of(entry: Entry, blocks: BlockSparse, pairs: int) -> list[dict[str, Any]]:
    """Orders for so many concurrent pairs, and what the model has for each."""
    costs, sizes = costs_of(entry.dim), Sizes.of(blocks, HEADS, HEADS, 1, entry.dim, 132)
    (segments,), launch = segments_of(blocks, 1, 1), sizes.launch(blocks, pairs)
    made = orders(segments, max(1, launch.slots // launch.side_by_side), costs)
    found = []
    for name in POLICIES:
        again: LaunchOrder = made[name]
        for rounds in (0, 3):
            for _ in range(rounds):
                visit = warm_first if name.endswith(WARM) else by_release
                again = chosen_again(segments, again, launch, costs, visit)
            modelled = run(segments, again, launch, costs)
            row = {"pairs": pairs, "policy": name, "chosen again": rounds, "time": round(modelled.makespan, 2)}
            row |= {"waiting": round(modelled.waiting / launch.slots, 2), "memory": round(modelled.memory, 2)}
            found.append(row | {"bound": round(bound(segments, launch, costs), 2), "order": again})
    return found


def measured(entry: Entry, blocks: BlockSparse, rows: list[dict[str, Any]]) -> list[str]:
    """Adds the milliseconds of each order to its row; what is wrong."""

    def halved(lists: BlockSparse) -> BlockSparse:
        return halve_keys(lists, entry.tokens) if entry.dim > 128 else lists

    passes, made, wrong = Passes(entry, blocks), {}, []
    made[-1], gradients = passes.launches(Way(halved(blocks), False))
    passes.run(made[-1])
    expected = [x.clone() for x in gradients[:3]]
    for i, row in enumerate(rows):
        lists = halved(under(blocks, [row["order"]], 1, row["pairs"], 1))
        made[i], gradients = passes.launches(Way(lists, True))
        passes.run(made[i])
        if not max(difference(x, y) for x, y in zip(gradients[:3], expected, strict=True)) < DISAGREE:
            wrong.append(f"{entry.name}: {row['policy']}, {row['pairs']} pairs: gradients differ")
    times: dict[int, list[float]] = {i: [] for i in made}
    for turn in range(ROUNDS):
        for i in random.Random(turn).sample(list(made), len(made)):
            once = max(1e-4, min(passes.run(made[i])[1] for _ in range(2)) / 1e3)
            for _ in range(int(SETTLE / once)):
                passes.run(made[i])
            times[i].append(statistics.median(passes.run(made[i])[0] for _ in range(max(3, int(MEASURED / once)))))
    for i, row in enumerate(rows):
        row |= {"ms": round(min(times[i]), 4), "atomic ms": round(min(times[-1]), 4)}
    return wrong


def judged(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How well the model has a problem's times."""
    off = [math.log(row["ms"] / row["time"]) for row in rows]
    liked = min(rows, key=lambda row: row["time"])
    return {
        "fit": round(statistics.pstdev(off), 4),
        "regret": round(liked["ms"] / min(row["ms"] for row in rows) - 1, 4),
        "liked over atomic": round(liked["ms"] / liked["atomic ms"], 3),
    }


def builds(problems: list[tuple[str, int, int]]) -> list[Variant]:
    """The kernels that are needed, each once."""
    found: dict[Variant, None] = {}
    for dim in {dim for _, _, dim in problems}:
        tile_n = 64 if dim > 128 else 128
        for ordered in (False, True):
            found[Variant("backward", "bfloat16", dim, 128, tile_n, "none", ordered, False, "wgmma")] = None
        found[Variant("forward", "bfloat16", dim, 128, 128, "none")] = None
        found[Variant("preprocess", "bfloat16", dim, 128)] = None
        found[Variant("postprocess", "bfloat16", dim, 128, tile_n, products="wgmma")] = None
    return list(found)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="begin no problem after so many")
    parser.add_argument("--only", nargs="*", help="problems whose name has one of these, such as '10%% 8192 128'")
    parser.add_argument("--dry", action="store_true", help="the model alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, found, wrong = time.monotonic(), list[dict[str, Any]](), list[str]()
    names = {" ".join(map(str, problem)): problem for problem in PROBLEMS}
    problems = [p for name, p in names.items() if not options.only or any(part in name for part in options.only)]

    def all_problems() -> None:
        for problem in problems:
            if time.monotonic() - began > options.seconds:
                print("left out:", *problem, flush=True)
                continue
            mask, tokens, dim = problem
            entry = Entry("beside", mask, tokens, dim, HEADS, HEADS, device="emulator" if options.dry else "cuda")
            blocks = replace(blocks_of(entry), merged=False)
            rows = [row for pairs in PROBLEMS[problem] for row in orders_of(entry, blocks, pairs)]
            if not options.dry:
                wrong.extend(measured(entry, blocks, rows))
            for row in rows:
                del row["order"]
            found.append({"problem": problem} | ({} if options.dry else judged(rows)) | {"orders": rows})
            print(table(found[-1]), flush=True)
            if options.out:
                where = "model" if options.dry else torch.cuda.get_device_name()
                options.out.write_text(json.dumps({"device": where, "problems": found}, indent=1) + "\n")

    if options.dry:
        all_problems()
    else:
        with tempfile.TemporaryDirectory() as folder:
            arch = runtime.arch_of(torch.device("cuda", 0))
            with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
                list(pool.map(partial(build, folder, arch), builds(problems)))
            print(f"built in {time.monotonic() - began:.0f} s", flush=True)
            with runtime.use_source(runtime.artifact_source(folder)):
                all_problems()
    print("\n".join(wrong))
    return int(bool(wrong))


def table(problem: dict[str, Any]) -> str:
    """A problem's orders: the measured time over that of the atomic kernel, the model's over its bound."""
    judged_by = {name: value for name, value in problem.items() if name not in ("problem", "orders")}
    lines = [f"{problem['problem']} {judged_by}"]
    for row in problem["orders"]:
        over = f"{row['ms'] / row['atomic ms']:.3f}" if "ms" in row else "-"
        model = f"{row['time'] / row['bound']:.3f} ({row['memory'] / row['bound']:.2f} memory)"
        again = ", chosen again" if row["chosen again"] else ""
        lines.append(f"    {over}  {model}  p{row['pairs']:<3} {row['policy']}{again}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
