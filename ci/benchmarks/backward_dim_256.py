"""Speed of the backward pass at head dim 256 on a Hopper GPU: mma.sync, the loop whose warpgroups have a gradient each,
FlashAttention-4 and cuDNN, in turn.

    python ci/benchmarks/backward_dim_256.py [--out FILE.json] [--seconds 240] [--only causal]
    python ci/benchmarks/backward_dim_256.py --dry        tiny problems on the emulated GPU, without the others

Rows are causal and full masks of 2 x 8,192 and 8 x 2,048 tokens, and 10 % of the blocks of 8,192; 16 heads, bfloat16.
Ours, with atomic and with ordered adds (the planned order where CTAs would wait): "mma.sync" is the portable kernel,
"by gradient" Hopper's. Times are device times of whole passes, measured in turn, the least of three medians
(blocksparse_entry.py); "main" those of ours' main kernel alone, the least of ROUNDS. TFLOP/s count 10 operations of a
kept pair and column. Differences are relative ones from mma.sync's gradients; ordered gradients must have the same bits
in three calls. A row is printed, and written to FILE, as soon as it is there. Exits with 1 where a row of ours is
wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import torch  # noqa: E402
from backward_loops import run  # noqa: E402
from blocksparse_entry import compared, difference  # noqa: E402
from blocksparse_masks import Entry, blocks_of, operands, pairs_of  # noqa: E402
from blocksparse_others import Problem, others  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels.blocksparse.compile import runtime  # noqa: E402
from kernels.blocksparse.launch import backward as launch_backward  # noqa: E402
from kernels.blocksparse.launch import concurrency  # noqa: E402
from kernels.blocksparse.launch import forward as launch  # noqa: E402
from kernels.blocksparse.lists.halves import halve_keys  # noqa: E402
from kernels.blocksparse.planner.planner import least_blocking  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

DIM, HEADS, ROUNDS, DISAGREE = 256, 16, 8, 0.02
ROWS = [("causal", 8192, 2), ("full", 8192, 2), ("causal", 2048, 8), ("10%", 8192, 1), ("full", 2048, 8)]
# name -> the products and the tuning that are asked for; the first one is what the others' gradients are compared with
WAYS: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "mma.sync": ("mma", ()),
    "by gradient": ("wgmma", ()),
}


class Passes:
    """Backward passes of one row, of ours and of others."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.problem = Problem(entry, blocks_of(entry), *operands(entry))
        of = self.problem
        self.q, self.k, self.v, self.do = (x.detach().transpose(1, 2).contiguous() for x in (of.q, of.k, of.v, of.do))
        zero = torch.zeros(entry.batch, dtype=torch.int32, device=self.q.device)
        self.sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
        self.scale = entry.dim**-0.5
        self.o = torch.empty_like(self.q)
        self.lse = torch.empty(entry.batch, entry.heads_q, entry.tokens, device=self.q.device)
        launch.forward(
            self.q, self.k, self.v, self.o, self.lse, self.sequences, of.blocks, scale=self.scale, products="mma"
        )
        self.lists = {False: self.halved(of.blocks)}
        self.lists[True] = self.lists[False]
        if not concurrency.in_step(of.blocks):
            heads = {"heads_q": entry.heads_q, "heads_kv": entry.heads_kv}
            self.lists[True] = self.halved(least_blocking(of.blocks, **heads, dim=entry.dim).blocks)

    def halved(self, blocks: Any) -> Any:
        """Lists over tiles of 64 keys, as the operator makes them at this head dim."""
        lengths = [self.entry.tokens] * self.entry.batch
        return halve_keys(blocks, torch.tensor(lengths, device=self.q.device), longest=self.entry.tokens)

    def launches(self, way: str, ordered: bool) -> tuple[list[Any], list[Tensor]]:
        """The kernels of a way of ours, with their values, and the gradients that they write."""
        products, tuning = WAYS[way]
        gradients, blocks = [torch.empty_like(x) for x in (self.q, self.k, self.v)], self.lists[ordered]
        workspace = launch_backward.make_workspace(self.q, self.k, self.sequences, blocks, ordered)
        found = launch_backward.backward_launches(
            *gradients, self.q, self.k, self.v, self.o, self.lse, self.do, self.sequences, blocks, workspace,
            scale=self.scale, deterministic=ordered, tuning=tuning, products=products,
        )  # fmt: skip
        # the values hold addresses of the workspace: it must outlive them
        return found, [*gradients, workspace]  # type: ignore[list-item]

    def launch(self, launches: list[Any]) -> None:
        """A whole pass."""
        for variant, values in launches:
            runtime.launch(variant, self.q.device, values)


def measured(entry: Entry) -> dict[str, Any]:
    """A row: times, rates and differences."""
    cuda, passes = entry.device == "cuda", Passes(entry)
    calls: dict[str, Any] = {}
    kept, main, off, wrong, errors = [], {}, {}, [], {}
    expected: list[Tensor] = []
    for ordered in (False, True):
        for way in WAYS:
            name = way + (", ordered" if ordered else "")
            launches, gradients = passes.launches(way, ordered)
            kept.append(gradients)
            passes.launch(launches)
            first = [x.clone() for x in gradients[:3]]
            expected = expected or first
            off[name] = round(max(difference(x, y) for x, y in zip(first, expected, strict=True)), 5)
            if not off[name] < DISAGREE:
                wrong.append(f"{name}: gradients differ by {off[name]}")
            for _ in range(3 if ordered else 0):
                passes.launch(launches)
                if not all(torch.equal(x, y) for x, y in zip(first, gradients[:3], strict=True)):
                    wrong.append(f"{name}: other bits in another call")
            calls[name] = partial(passes.launch, launches)
            main[name] = round(min(run(passes, launches)[1] for _ in range(ROUNDS if cuda else 1)), 4)
    for name, (call, leaves, do) in (others(passes.problem) if cuda else {}).items():
        try:
            out = call()
            gradients = list(torch.autograd.grad(out, leaves, do, retain_graph=True))
        except Exception as error:  # what one of them refuses is a result
            errors[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        by_token = [x if name.startswith("FlashAttention-4") else x.transpose(1, 2) for x in gradients]
        off[name] = round(max(difference(x, y) for x, y in zip(by_token, expected, strict=True)), 5)
        calls[name] = partial(torch.autograd.grad, out, leaves, do, retain_graph=True)
    ms = compared(calls, cuda)
    operations = 10 * pairs_of(entry) * entry.dim * entry.heads_q * entry.batch
    return {
        **{"mask": entry.mask, "tokens": entry.tokens, "batch": entry.batch, "dim": entry.dim},
        "ms": {name: round(at, 4) for name, at in ms.items()},
        "tflops": {name: round(operations / at / 1e9, 1) for name, at in ms.items()},
        "main_ms": main,
        "main_tflops": {name: round(operations / at / 1e9, 1) for name, at in main.items()},
        "difference": off,
        "errors": errors,
        "wrong": wrong,
    }


def builds(entries: list[Entry]) -> list[Variant]:
    """The kernels of ours that are needed, each once."""
    found: dict[Variant, None] = {}
    for entry in entries:
        kind = "band" if entry.mask == "causal" else "none"
        found[Variant("forward", "bfloat16", DIM, 128, 128, kind)] = None
        found[Variant("preprocess", "bfloat16", DIM, tile_m=128)] = None
        for products, tuning in WAYS.values():
            for ordered in (False, True):
                found[Variant("backward", "bfloat16", DIM, 128, 64, kind, ordered, False, products, tuning)] = None
            found[Variant("postprocess", "bfloat16", DIM, 128, 64, products=products, tuning=tuning)] = None
    return list(found)


def build(folder: str, arch: str, variant: Variant) -> None:
    """Compiles in a process of its own."""
    from kernels.blocksparse.compile.build import export

    export(variant, arch, folder)


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240, help="begin no row after so many")
    parser.add_argument("--only", nargs="*", help="rows whose mask has one of these")
    parser.add_argument("--dry", action="store_true", help="on the emulated GPU, tiny")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    entries = [Entry("beside", mask, tokens, DIM, HEADS, HEADS, batch=batch) for mask, tokens, batch in ROWS]
    if options.dry:
        entries = [Entry("beside", mask, 256, DIM, 1, 1, "emulator") for mask in ("causal", "50%")]
    entries = [e for e in entries if not options.only or any(part in e.mask for part in options.only)]
    rows: list[dict[str, Any]] = []

    def all_rows() -> None:
        for entry in entries:
            if time.monotonic() - began > options.seconds:
                print("left out:", entry.name, flush=True)
                continue
            rows.append(measured(entry))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")

    device = "emulated" if options.dry else torch.cuda.get_device_name()
    print(device, torch.__version__, flush=True)
    if options.dry:
        from fuzz.targets.blocksparse.devices import connect, emulated

        connect("emulator")
        emulated().blind = True  # atomic adds in no fixed order are what is measured, not a finding
        all_rows()
    else:
        with tempfile.TemporaryDirectory() as folder:
            arch = runtime.arch_of(torch.device("cuda", 0))
            with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
                list(pool.map(partial(build, folder, arch), builds(entries)))
            print(f"built in {time.monotonic() - began:.0f} s", flush=True)
            with runtime.use_source(runtime.artifact_source(folder)):
                all_rows()
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
