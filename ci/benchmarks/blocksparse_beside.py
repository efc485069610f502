"""Speed of the block-sparse kernels beside FlashAttention-4, cuDNN and FlashInfer on a Hopper GPU, in one run.

    python ci/benchmarks/blocksparse_beside.py --seconds 240 --out ci/results/blocksparse_beside_h200.json
    python ci/benchmarks/blocksparse_beside.py --dry --out /tmp/x.json     tiny, on the emulated GPU, without the others

Rows are masks (causal, full, windows, random blocks) at 512 to 32,768 tokens, head dims 64 and 128, 16 query heads
on 16 and on 2 KV heads, bfloat16; 64 blocks of 64 × 64 a row of 109,632 tokens, 7 heads, which FlashInfer publishes a
rate of; packed sequences with block lists; gradients at head dim 256 with lists over 128 keys. Columns are forward,
backward with the faster adds, which are atomic but for short rows, and with ordered ones (the planned order where the
default one waits). FlashAttention-4 runs where `flash_attn.cute` imports; cuDNN is PyTorch's backend for full and
causal masks, and for random blocks `cudnn.BSA` where that imports; FlashInfer is its block-sparse kernel for sm_90,
forward alone, which takes up to 64 blocks of 64 × 64 a row.

Each row is a process of its own, so that compiling runs side by side; only measuring is exclusive. Times are device
times of whole calls, measured in turn, the least of six medians or more (blocksparse_entry.py); 'rounds' has them.
'difference' is the relative one of ours from FlashAttention-4's. TFLOP/s count 4 · dim operations of a kept pair
forward, and 10 backward.
Exits with 1 where a row failed or differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_entry import alone, connected, difference, medians  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands, pairs_of  # noqa: E402
from blocksparse_others import Call, Problem, Way, others  # noqa: E402
from blocksparse_speed import DISAGREE, Results, build_ahead, run_all  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels.blocksparse.api import block_sparse_attention  # noqa: E402
from kernels.blocksparse.launch.concurrency import in_step  # noqa: E402
from kernels.blocksparse.lists.types import BlockSparse  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402
from kernels.blocksparse.spec.variant import WIDEST_DIM  # noqa: E402

ROUNDS = 6


def planned(dry: bool) -> list[Entry]:
    """All rows, the most important first."""

    def row(mask: str, tokens: int, dim: int = 128, batch: int = 1, heads_kv: int = 16, **more: Any) -> Entry:
        return Entry("beside", mask, tokens, dim, 16, heads_kv, batch=batch, **more)

    if dry:
        tiny = [Entry("beside", mask, 256, 64, 2, 1, "emulator") for mask in ("causal", "50%")]
        return [*tiny, replace(tiny[1], batch=2, packed=True), replace(tiny[1], mask="top 2", dim=128, tile=64)]
    return [
        row("causal", 8192, batch=2),
        row("full", 8192, batch=2),
        row("causal", 8192, 64, 2),
        row("full", 8192, 64, 2),
        row("window", 32768),
        row("window", 32768, 64),
        row("10%", 8192),
        row("50%", 8192),
        row("causal", 8192, batch=2, heads_kv=2),
        row("causal", 32768),
        row("causal", 2048, batch=8),
        row("causal", 1024, batch=16),
        row("causal", 512, batch=32),
        row("window", 8192, heads_kv=2),
        row("10%", 32768),
        row("10%", 8192, 64),
        row("50%", 8192, 64),
        row("10%", 8192, batch=4, packed=True),
        Entry("beside", "top 64", 109632, 128, 7, 7, tile=64),
        row("causal", 8192, 256),
        row("10%", 8192, 256),
        row("causal", 8192, 96, 2),
        row("full", 8192, 96, 2),
    ]


def measure(entry: Entry, lock: Path) -> dict[str, Any]:
    """One row: times, rates and differences."""
    cuda = entry.device == "cuda"
    problem = Problem(entry, blocks_of(entry, wide=entry.dim <= WIDEST_DIM), *operands(entry))
    ways = ours(problem)
    errors: dict[str, str] = {}
    if cuda:
        ways |= others(problem)
    forward: dict[str, Call] = {}
    backward: dict[str, Call] = {}
    results: dict[str, list[Tensor]] = {}
    for name, (call, leaves, do) in ways.items():
        try:
            out = call()
            gradients = torch.autograd.grad(out, leaves, do, retain_graph=True) if leaves else ()
            results[name] = [shaped(out.detach(), name), *(shaped(x, name) for x in gradients)]
        except Exception as error:  # what one of them refuses is a result
            errors[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if leaves:
            backward[name] = partial(torch.autograd.grad, out, leaves, do, retain_graph=True)
        if "deterministic" not in name:
            forward[name] = call
    differences = {
        f"{name}, {which}": difference(x, y)
        for name in results
        if name != "ours"
        for which, x, y in zip(("out", "dq", "dk", "dv"), results[name], results["ours"], strict=False)
    }
    results.clear()
    with alone(lock):
        rounds = {"forward": medians(forward, cuda, ROUNDS), "backward": medians(backward, cuda, ROUNDS)}
    ms = {way: {name: min(times) for name, times in found.items()} for way, found in rounds.items()}
    operations = pairs_of(entry) * entry.dim * entry.heads_q * entry.batch
    return {
        "direction": "beside",
        **{name: value for name, value in asdict(entry).items() if name not in ("kind", "device", "tile")},
        "ms": {way: {name: round(at, 4) for name, at in found.items()} for way, found in ms.items()},
        "rounds": {
            way: {name: [round(at, 4) for at in times] for name, times in found.items()}
            for way, found in rounds.items()
        },
        "tflops": {
            way: {name: round((4 if way == "forward" else 10) * operations / at / 1e9, 1) for name, at in found.items()}
            for way, found in ms.items()
        },
        "difference": differences,
        "errors": errors,
    }


def shaped(result: Tensor, name: str) -> Tensor:
    """A result as (batch, heads, tokens, dim), as ours are."""
    if name.startswith("FlashAttention-4"):
        return result.transpose(1, 2)
    return result[None] if name == "FlashInfer" else result


def ours(problem: Problem) -> dict[str, Way]:
    """name -> way."""
    entry, blocks = problem.entry, problem.blocks
    leaves, do, packing = (problem.q, problem.k, problem.v), problem.do, {}
    if entry.packed:
        *tensors, do = (x.detach().transpose(1, 2).flatten(0, 1) for x in (*leaves, do))
        leaves = tuple(x.requires_grad_() for x in tensors)
        starts = torch.arange(entry.batch + 1, dtype=torch.int32, device=do.device) * entry.tokens
        packing = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    ordered = blocks
    if not in_step(blocks):
        heads = {"heads_q": entry.heads_q, "heads_kv": entry.heads_kv}
        ordered = least_blocking(blocks, **heads, dim=entry.dim).blocks

    def call(lists: BlockSparse, deterministic: bool | None, products: str | None = None) -> Tensor:
        return block_sparse_attention(*leaves, lists, deterministic=deterministic, products=products, **packing)[0]

    found = {
        "ours": (partial(call, blocks, None), leaves, do),
        "ours deterministic": (partial(call, ordered, True), leaves, do),
    }
    if entry.tile == 64:  # for which the portable kernels are the default
        found["ours, wgmma"] = (partial(call, blocks, None, "wgmma"), leaves, do)
    return found


def as_line(row: dict[str, Any]) -> str:
    """A row of the table: TFLOP/s."""
    if "trouble" in row:
        return f"FAILED {row['entry']}: {row['trouble']}"
    head = f"{row['mask']:7} {row['tokens']:6} B{row['batch']} dim {row['dim']:3} {row['heads_q']}/{row['heads_kv']:<3}"
    found = [
        f"{way}: " + ", ".join(f"{name} {rate:.0f}" for name, rate in row["tflops"][way].items())
        for way in ("forward", "backward")
    ]
    return head + (" packed" if row["packed"] else "") + " | " + " | ".join([*found, str(row["errors"] or "")])


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240, help="in all")
    parser.add_argument("--entry-seconds", type=float, default=400, help="of one row, waits for others included")
    parser.add_argument("--least", type=float, default=30, help="begin no row in the last so many seconds")
    parser.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 3)))
    parser.add_argument("--only", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--dry", action="store_true", help="on the emulated GPU, tiny")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--entry", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.entry:
        entry = Entry(**json.loads(options.entry))
        with connected(entry):
            print("ROW " + json.dumps(measure(entry, options.lock)), flush=True)
        return 0

    from fuzz.session.records import machine

    until = time.monotonic() + options.seconds
    entries = [e for e in planned(options.dry) if not options.only or any(part in e.name for part in options.only)]
    results = Results(options.out, as_line)
    results.note(machine=machine(), versions=versions(), command=" ".join(sys.argv), jobs=options.jobs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lock").touch()
        if not options.dry:
            build_ahead([replace(e, kind="pair") for e in entries if e.dim <= 128], max(2, options.jobs // 2))
        run_all(entries, folder, results, options, until, Path(__file__))
    wrong = [row for row in results.rows if "trouble" in row or any(x > DISAGREE for x in row["difference"].values())]
    for row in wrong:
        print("WRONG " + json.dumps(row), file=sys.stderr)
    print(f"{len(results.rows)} rows, {len(wrong)} wrong, left out: {results.notes['left_out']}")
    return 1 if wrong else 0


def versions() -> dict[str, str]:
    """Versions of what is measured beside."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"cudnn": str(torch.backends.cudnn.version())}
    for name in ("flash-attn-4", "nvidia-cutlass-dsl", "nvidia-cudnn-frontend", "flashinfer-python"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
