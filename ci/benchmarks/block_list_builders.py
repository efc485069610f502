"""Time and peak memory of the block-sparse metadata at a million tokens: lists, transposition, write order.

    python ci/benchmarks/block_list_builders.py [--device cuda] [--tokens 1000000] [--out ci/results/metadata_cpu.json]

Each step runs in turn on the same lists; times are the least of the repeats, memory is what the step adds at its peak
(on CUDA what the allocator handed out, on the CPU the growth of the process's resident set). On CUDA, transposition and
write order run with PyTorch's synchronisation errors switched on: a step that asked the device would fail. For scale,
the bytes that one dense int32 tensor of batch x heads x m x n would take are given beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.intervals import documents
from kernels.blocksparse.lists.ranges import CAUSAL, ranges
from kernels.blocksparse.lists.schedule import DESCENDING, permutation
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse, spread
from kernels.blocksparse.lists.write_order import write_order

TILE = 128
WINDOW = 2048


def main() -> None:
    """Measures every case and writes one JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="window,window_32_heads,documents,ranges,causal")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    cases = {name: measured(name, options.tokens, device, options.repeats) for name in options.cases.split(",")}
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    result = {
        "device": f"{device.type}, {where}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tokens": options.tokens,
        "tile": TILE,
        "cases": cases,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def measured(name: str, tokens: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """One case: its entries, and each step's seconds and bytes."""
    steps: dict[str, dict[str, float]] = {}
    blocks = timed(steps, "forward lists", lambda: made(name, tokens, device), repeats, device)
    if name.endswith("_32_heads"):
        blocks = for_every_head(blocks, 32)
    n_blocks = -(-tokens // TILE)
    entries = int(blocks.forward.partial.count.sum() + blocks.forward.full.count.sum())
    shuffled = torch.randperm(n_blocks).view(1, 1, -1).to(device, torch.int32)
    with no_synchronising(device):
        turned = timed(steps, "transpose", lambda: with_backward(blocks, n_blocks), repeats, device)
        assert turned.backward is not None
        lists = turned.backward
        orders = {"descending": DESCENDING, "permutation": permutation(shuffled)}
        for kind, schedule in orders.items():
            run = partial(write_order, lists, schedule, blocks.m_blocks)
            timed(steps, f"write order, {kind}", run, repeats, device)
    groups = blocks.forward.partial.batch * blocks.forward.partial.heads
    return {
        "entries": entries,
        "bytes of the lists": sum(4 * one.capacity + 12 * one.count.numel() for one in both(blocks)),
        "bytes of one dense int32 tensor": 4 * groups * blocks.m_blocks * n_blocks,
        "steps": steps,
    }


def made(name: str, tokens: int, device: torch.device) -> BlockSparse:
    """The forward lists of a case."""
    if name.startswith("window"):
        return band(tokens, tokens, left=WINDOW - 1, right=0, tile_m=TILE, tile_n=TILE, device=device, backward=False)
    if name == "causal":
        return band(tokens, tokens, left=None, right=0, tile_m=TILE, tile_n=TILE, device=device, backward=False)
    cuts = torch.randint(1, tokens, (255,), generator=torch.Generator().manual_seed(0)).sort().values.tolist()
    if name == "documents":  # 256 documents of random lengths, causal inside: intervals per row
        return documents(cuts, tokens, tokens, causal=True, device=device, backward=False)
    if name == "ranges":  # the same mask, as pairs of a query range and a key range
        spans = list(pairwise([0, *cuts, tokens]))
        return ranges(spans, spans, [CAUSAL] * len(spans), tokens, tokens, device=device, backward=False)
    raise ValueError(f"cases: needs window, window_32_heads, causal, documents or ranges, got {name!r}")


def for_every_head(blocks: BlockSparse, heads: int) -> BlockSparse:
    """Repeats the lists, one for each of so many heads."""
    return replace(blocks, forward=BlockLists(*(spread(one, 1, heads) for one in both(blocks))))


def both(blocks: BlockSparse) -> tuple[BlockList, BlockList]:
    """The partial and the full list."""
    return blocks.forward.partial, blocks.forward.full


def timed(steps: dict, name: str, run: Callable[[], Any], repeats: int, device: torch.device) -> Any:
    """Runs a step, notes its least time and the memory that it adds at its peak."""
    seconds, peaks, result = [], [], None
    for _ in range(repeats):
        del result
        before = reset_peak(device)
        start = time.perf_counter()
        result = run()
        settle(device)
        seconds.append(time.perf_counter() - start)
        peaks.append(peak(device) - before)
    steps[name] = {"seconds": round(min(seconds), 4), "peak_bytes": max(peaks)}
    return result


def settle(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(device)
        torch.cuda.set_sync_debug_mode(mode)


def reset_peak(device: torch.device) -> int:
    """Bytes in use now, from where the peak is counted."""
    if device.type == "cuda":
        settle(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    ctypes.CDLL(None).malloc_trim(0)  # so that freed memory is not used again unnoticed
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak(device: torch.device) -> int:
    """The most bytes in use since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else status("VmHWM")


def status(field: str) -> int:
    """A number of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


@contextmanager
def no_synchronising(device: torch.device) -> Iterator[None]:
    """Context in which, on CUDA, a step that asks the device raises RuntimeError."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main()
