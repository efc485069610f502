"""Short calls of kernels.nsa in a CUDA graph, beside dense attention: both ways of choosing blocks, and each kernel.

    python ci/benchmarks/nsa_short.py --out ci/results/nsa_short_h200.json

One sequence, 32 query heads on 8 KV heads, head dim 128, bfloat16, blocks of 64, 16 selected, a window of 512. Medians
of replays, the ways in turns; milliseconds, but microseconds of kernels.

nsa       the forward pass; 'by tensors': the choice by tensor operations, `kernels.nsa.choice.top`, at any length
dense     causal attention of cuDNN, of PyTorch's FlashAttention, and of kernels.blocksparse
choice    `kernels.nsa.selection.select` by itself
equal     whether both ways choose the same blocks
kernels   of one forward pass, by torch.profiler: name, microseconds
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from ci.benchmarks.nsa_speed import Inputs, K, Problem, checked, dense_ways, graph_of
from kernels.nsa import selection
from kernels.nsa.plans import compressed

WIDEST = selection.WIDEST


@contextmanager
def by_tensors(chosen: bool) -> Iterator[None]:
    """The choice by tensor operations, within."""
    selection.WIDEST = 0 if chosen else WIDEST
    try:
        yield
    finally:
        selection.WIDEST = WIDEST


def medians(ways: dict[str, torch.cuda.CUDAGraph], rounds: int = 30) -> dict[str, float]:
    """Milliseconds of a replay of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 3):
        for name, graph in ways.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 3:
                times[name].append(begin.elapsed_time(end))
    return {name: round(statistics.median(took), 4) for name, took in times.items()}


def kernels_of(work: Callable[[], Any]) -> list[tuple[str, float]]:
    """(name, microseconds) of the kernels of a call, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    events = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name[:60], round(event.time_range.elapsed_us(), 2)) for event in events]


def row_of(length: int) -> dict[str, Any]:
    """All of one length."""
    inputs = Inputs(Problem((length,)))
    operands, _ = checked(inputs.q, inputs.k, inputs.v, **inputs.options)
    small = compressed(operands)
    ways: dict[str, torch.cuda.CUDAGraph] = {}
    chosen = []
    for tensors in (False, True):
        name = " by tensors" * tensors
        with by_tensors(tensors):
            chosen.append(selection.select(operands, small.k).blocks)
            ways[f"nsa{name}"] = graph_of(inputs.call)
            ways[f"choice{name}"] = graph_of(lambda: selection.select(operands, small.k))
    for name, call, _, _ in dense_ways(inputs):
        try:
            ways[f"dense {name}"] = graph_of(call)
        except RuntimeError as error:
            print(f"{name}: {error}"[:200], flush=True)
    row: dict[str, Any] = {"tokens": length, "equal": torch.equal(*chosen), **medians(ways)}
    return row | {"kernels": kernels_of(inputs.call)}


def main() -> int:
    """All lengths; 1 where both ways choose different blocks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4 * K, 8 * K, 16 * K, 32 * K, 128 * K])
    options = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for length in options.lengths:
        with torch.no_grad():
            row = row_of(length)
        found["rows"].append(row)
        kernels = row["kernels"]
        print({name: value for name, value in row.items() if name != "kernels"}, flush=True)
        print(f"  {len(kernels)} kernels, {sum(took for _, took in kernels):.1f} us: {kernels}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row["equal"] for row in found["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
