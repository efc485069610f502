"""Block lists of kernels.nsa: their time, launches and memory, beside those that tensor operations make.

    python ci/benchmarks/nsa_lists.py --out ci/results/nsa_lists_h200.json
    python ci/benchmarks/nsa_lists.py --smoke --out /tmp/x.json     tiny, interpreted: its syntax

One sequence, 32 query heads on 8 KV heads, head dim 128, blocks of 64, 16 selected at random, a window of 512, ordered
adds. For each length, branch and pass:

call      milliseconds of a call, median of CUDA events; 'graph' those of a replay of it in a CUDA graph
launches  kernels and memsets of a call, by torch.profiler
mib       MiB of memory that the lists hold, each storage once: index tensors, counts, starts, ranks, masks, bounds
before    the same of the builders of kernels.blocksparse.lists, whose backward lists come with the forward ones
equal     whether both say the same to the kernels: counts, entries in their order, masks, ranks

Last the whole forward pass in a CUDA graph, at lengths up to 16 K.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from ci.benchmarks.nsa_speed import DEVICE, ON_GPU, Inputs, Problem, graphed, timed  # noqa: E402
from fuzz.targets.nsa.list_facts import expected_lists, facts  # noqa: E402
from kernels.nsa.branches import BRANCHES  # noqa: E402
from kernels.nsa.lists.build import branch_lists  # noqa: E402
from kernels.nsa.operands import Operands, Settings  # noqa: E402
from kernels.nsa.selection import Selection  # noqa: E402

K, M = 1 << 10, 1 << 20
CHOSEN, BLOCK, TILE = 16, 64, 256


def operands_of(length: int, heads: tuple[int, int]) -> Operands:
    """Operands of a sequence that take no memory."""
    q, k = (torch.empty(1, 1, 1, 1, dtype=torch.bfloat16, device=DEVICE).expand(1, length, n, 128) for n in heads)
    settings = Settings(BLOCK, CHOSEN, 512, 0, 1, TILE, length, 1.0, True)
    return Operands(q, k, k, None, None, None, None, settings)


def selection_of(operands: Operands) -> Selection:
    """Distinct random blocks, ascending, of those that begin before the tile ends."""
    s = operands.settings
    allowed = (torch.arange(1, s.tiles + 1, device=DEVICE) * TILE // BLOCK).clamp(max=s.blocks)[:, None]
    place = torch.arange(min(CHOSEN, s.blocks), device=DEVICE)
    drawn = torch.rand(1, operands.heads_q, s.tiles, len(place), device=DEVICE).sort(-1).values
    found = (drawn * (allowed - len(place) + 1).clamp(min=1)).to(torch.int32) + place
    return Selection(torch.where(found < allowed, found, -1).to(torch.int32))


def launches_of(work: Callable[[], Any]) -> int:
    """Kernels and memsets of a call."""
    if not ON_GPU:
        return 0
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    return sum(1 for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA)


def measured(work: Callable[[], Any]) -> dict[str, Any]:
    """A call's figures."""
    row: dict[str, Any] = {"call": timed(work)}
    if ON_GPU:
        row |= {"graph": graphed(work), "launches": launches_of(work)}
    return row | {"mib": round(work().nbytes / 2**20, 3)}


def row_of(name: str, operands: Operands, selection: Selection, backward: bool) -> dict[str, Any]:
    """A branch's lists for one pass."""

    def made() -> Any:
        return branch_lists(name, operands, selection, backward)

    def before() -> Any:
        return expected_lists(name, operands, selection, backward)

    deterministic = operands.settings.deterministic
    width = 1 + int(max(one.count.max() for one in lists_of(made(), backward)))
    got, want = (facts(lists, backward, deterministic, width) for lists in (made(), before()))
    equal = got.keys() == want.keys() and all(torch.equal(got[key].long(), want[key].long()) for key in want)
    del got, want
    return {"equal": equal, **measured(made), "before": measured(before)}


def lists_of(blocks: Any, backward: bool) -> tuple[Any, Any]:
    """Partial and full ones of a pass."""
    lists = blocks.backward if backward else blocks.forward
    return lists.partial, lists.full


def main() -> int:
    """All lengths; 1 where lists differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4 * K, 16 * K, 128 * K, 1 * M])
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if ON_GPU else "interpreted"
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": [], "forward_graph": []}
    heads = (2, 1) if options.smoke else (32, 8)
    for length in [512] if options.smoke else options.lengths:
        operands = operands_of(length, heads)
        selection = selection_of(operands)
        total: dict[str, Any] = {}
        for backward in (False, True):
            for name in BRANCHES:
                row = {"tokens": length, "branch": name, "pass": "backward" if backward else "forward"}
                row |= row_of(name, operands, selection, backward)
                found["rows"].append(row)
                print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
                for key in ("call", "graph", "launches", "mib"):
                    total[key] = round(total.get(key, 0) + row.get(key, 0), 3)
            print(f"  all so far: {total}", flush=True)
    if ON_GPU:
        for length in (4 * K, 8 * K, 16 * K):
            with torch.no_grad():
                row = {"tokens": length, "forward_graph": graphed(Inputs(Problem((length,))).call)}
            found["forward_graph"].append(row)
            print(row, flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row["equal"] for row in found["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
