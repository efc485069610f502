"""The backward pass of short sequences on a Hopper GPU: the faster adds beside ordered and atomic ones.

    python ci/benchmarks/short_rows.py [--out FILE.json] [--seconds 150] [--only "causal 1024"]
    python ci/benchmarks/short_rows.py --dry        tiny problems on the emulated GPU

Batches of 16,384 tokens, and of as few sequences as leave SMs idle; 256 to 8,192 tokens a sequence, 16 query heads on
16 and on 2 KV heads, head dims 64, 128 and 256, bfloat16; causal and full masks. Ways: "faster" is
`deterministic=None`, "atomic" False, "ordered" True. All ways of a row are measured in turn, the least of three medians
of device times of whole calls (blocksparse_entry.py). Exits with 1 where gradients of two ways differ.
blocksparse_beside.py has some of these rows beside FlashAttention-4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import compared, connected, difference  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands  # noqa: E402
from compiled_rows import Benchmark, run  # noqa: E402

from kernels.blocksparse.api import block_sparse_attention  # noqa: E402

ADDS = {"faster": None, "atomic": False, "ordered": True}
MANY = ((256, 64), (512, 32), (1024, 16), (2048, 8), (4096, 4), (8192, 2))  # tokens, sequences
FEW = ((256, 8), (512, 4), (1024, 2), (2048, 1), (4096, 1), (8192, 1))


def planned(dry: bool) -> list[Entry]:
    """All rows, the most important first."""
    if dry:
        return [Entry("beside", mask, 256, 128, 1, 1, "emulator") for mask in ("causal", "full")]
    kinds = (("causal", 128, 16), ("causal", 128, 2), ("full", 128, 16), ("causal", 64, 16), ("causal", 256, 16))
    return [
        Entry("beside", mask, tokens, dim, 16, heads_kv, batch=batch)
        for mask, dim, heads_kv in kinds
        for tokens, batch in MANY + FEW
        if dim <= 128 or tokens <= 1024
    ]


def measure(entry: Entry) -> dict[str, Any]:
    """One row: milliseconds of the backward pass by way, and how far gradients are from the first way's."""
    cuda = entry.device == "cuda"
    blocks, (q, k, v, do) = blocks_of(entry), operands(entry)
    calls: dict[str, Callable[[], Any]] = {}
    for name, adds in ADDS.items():
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=adds)
        calls[name] = partial(torch.autograd.grad, out, (q, k, v), do, retain_graph=True)
    found = {name: call() for name, call in calls.items()}
    off = {
        name: max(difference(x, y) for x, y in zip(found[name], found["atomic"], strict=True))
        for name in found
        if name != "atomic"
    }
    ms = {name: round(at, 4) for name, at in compared(calls, cuda).items()}
    sizes = {"tokens": entry.tokens, "batch": entry.batch, "dim": entry.dim, "heads": [entry.heads_q, entry.heads_kv]}
    return {"row": entry.name, "mask": entry.mask, **sizes, "ms": ms, "difference": off}


def warm(entry: Entry) -> str:
    """Compiles what a row needs, in a process of its own."""
    few = replace(entry, batch=1)
    with connected(few):
        blocks, (q, k, v, do) = blocks_of(few), operands(few)
        for adds in (False, True):
            block_sparse_attention(q, k, v, blocks, deterministic=adds)[0].backward(do)
    return entry.name


def kernels_of(entries: list[Entry]) -> list[Entry]:
    """Rows that together need all kernels of ours: one of each mask and head dim."""
    return list({(e.mask, e.dim): e for e in entries}.values())


def as_line(row: dict[str, Any]) -> str:
    """A row of the table: milliseconds, and the time of each way over that of the first."""
    ms = row["ms"]
    return f"{row['row']}: " + ", ".join(f"{name} {at:.3f} ({at / ms['faster']:.3f})" for name, at in ms.items())


if __name__ == "__main__":
    sys.exit(
        run(
            Benchmark(
                __doc__,
                planned=planned,
                name=lambda entry: entry.name,
                to_compile=kernels_of,
                warm=warm,
                measure=measure,
                as_line=as_line,
            )
        )
    )
