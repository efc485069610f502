"""Times of the deterministic backward pass under candidate orders, beside the atomic one, on the rows of
blocksparse_beside.py.

    python ci/benchmarks/ordered_rows.py --out ordered.json [--only causal] [--dry]

Candidates of bands: launched from the last tile of keys on, with several numbers of concurrent pairs and of units of
a KV head. Of random blocks: planned for several numbers of concurrent pairs. All candidates of a row are measured in
turn; gradients must be bitwise the same in two calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from blocksparse_beside import planned  # noqa: E402
from blocksparse_entry import compared, connected  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands  # noqa: E402
from blocksparse_speed import build_ahead  # noqa: E402

from kernels.blocksparse.api import block_sparse_attention  # noqa: E402
from kernels.blocksparse.lists.schedule import Schedule  # noqa: E402
from kernels.blocksparse.lists.types import Band, BlockSparse  # noqa: E402
from kernels.blocksparse.lists.write_order import with_order  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402


def candidates(entry: Entry, blocks: BlockSparse) -> dict[str, BlockSparse]:
    """Lists by the name of their order."""
    found = {"default": blocks}
    group = entry.heads_q // entry.heads_kv
    sizes = {"heads_q": entry.heads_q, "heads_kv": entry.heads_kv, "batch": entry.batch, "dim": entry.dim}
    if isinstance(blocks.mask, Band):
        for split in [s for s in (1, 2, 4, 8) if group % s == 0 and entry.batch * entry.heads_kv * s >= 4]:
            units = entry.batch * entry.heads_kv * split
            for pairs in sorted({min(units, p) for p in (1, 2, 4, 8, 16, 32, 64, 128)}):
                desc = Schedule("descending", None, pairs, split)
                found[f"desc s{split} p{pairs}"] = with_order(blocks, desc)
    elif entry.mask != "full":
        for pairs in (None, 8, 16, 32, 64):
            if pairs is None or pairs <= entry.batch * entry.heads_q:
                start = time.perf_counter()
                plan = least_blocking(blocks, **sizes, pairs=pairs)
                spent = time.perf_counter() - start
                found[f"planned {pairs}: p{plan.pairs} {plan.chosen[0]}, {spent:.1f} s"] = plan.blocks
    return found


def measure(entry: Entry) -> dict[str, Any]:
    """Milliseconds of each way."""
    blocks = blocks_of(entry)
    *leaves, do = operands(entry)
    packing: dict[str, Any] = {}
    if entry.packed:
        *leaves, do = (x.detach().transpose(1, 2).flatten(0, 1) for x in (*leaves, do))
        leaves = [x.requires_grad_() for x in leaves]
        starts = torch.arange(entry.batch + 1, dtype=torch.int32, device=do.device) * entry.tokens
        packing = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    calls, wrong = {}, []
    ways = {"atomic": (blocks, False), **{name: (one, True) for name, one in candidates(entry, blocks).items()}}
    for name, (lists, deterministic) in ways.items():
        out = block_sparse_attention(*leaves, lists, deterministic=deterministic, **packing)[0]
        calls[name] = partial(torch.autograd.grad, out, leaves, do, retain_graph=True)
        if deterministic:
            one, two = calls[name](), calls[name]()
            wrong += [name] * (not all(torch.equal(x, y) for x, y in zip(one, two, strict=True)))
    ms = compared(calls, entry.device == "cuda")
    return {"row": entry.name, "ms": {name: round(at, 4) for name, at in ms.items()}, "differ": wrong}


def main() -> int:
    """Measures every row; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--dry", action="store_true", help="tiny, on the emulated GPU")
    parser.add_argument("--seconds", type=float, default=600, help="begin no row after so many")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    rows = [e for e in planned(options.dry) if e.dim <= 128 and e.tile == 128 and e.mask != "full"]
    if options.dry:
        rows = [replace(rows[0], tokens=512, heads_q=4)]
    rows = [e for e in rows if not options.only or any(part in e.name for part in options.only)]
    if not options.dry:
        build_ahead([replace(e, kind="pair") for e in rows], options.jobs)
    found = []
    for entry in rows:
        if time.monotonic() > until:
            break
        with connected(entry):
            found.append(measure(entry))
        atomic = found[-1]["ms"]["atomic"]
        print(found[-1]["row"], "atomic", atomic, "differ", found[-1]["differ"], flush=True)
        for name, at in sorted(found[-1]["ms"].items(), key=lambda item: item[1]):
            print(f"    {at / atomic:.3f} {at:.4f} {name}", flush=True)
        if options.out:
            options.out.write_text(json.dumps({"gpu": gpu(), "rows": found}, indent=1) + "\n")
    return int(any(row["differ"] for row in found))


def gpu() -> str:
    """The card's name."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "emulator"


if __name__ == "__main__":
    sys.exit(main())
