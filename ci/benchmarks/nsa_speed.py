"""kernels.nsa on a GPU beside the fastest causal attention there: one table over the length.

    python ci/benchmarks/nsa_speed.py --check --max-time 540 --out ci/results/nsa_speed_h200.json
    python ci/benchmarks/nsa_speed.py --smoke --out /tmp/x.json     tiny, on the emulated GPU: its syntax

One sequence, 32 query heads on 8 KV heads, head dim 128, bfloat16, blocks of 64, 16 selected, a window of 512; 'nsa'
sees all compressed blocks, 'nsa groups' 16 groups of 128 of them. Then two packed sequences of 60 and 40 %, sequences
of two and three million tokens with 8 query heads on 2, and the selected branch by itself with 64 on 4.
Times are medians of CUDA events around each call after a warm-up, in milliseconds; 'both' is a forward and a backward
pass together, 'graph' a forward pass in a CUDA graph. 'parts' times the steps of both passes one by one. 'peak_mib' is
what a forward and a backward pass take beside their inputs. 'lists_mib' is what the block lists of all branches and
both passes take, each storage once: index tensors, counts, starts, ranks, masks and bounds; those of one branch and one
pass exist at a time. Before it is timed, each backward pass is checked to run (backward_ran.py).

dense   causal attention by scaled_dot_product_attention (flash, cuDNN) and by kernels.blocksparse: the fastest of those
        that run, at each length, in the same process; from 256 K tokens on that which was the fastest before, and
        from 2 M on its forward pass alone

`--max-time` ends it: what was left out is listed. Results are written as they come; `--resume` goes on with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "kernels")]
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from ci.benchmarks.backward_ran import BackwardDidNotRunError, check_backward  # noqa: E402
from kernels.nsa import native_sparse_attention  # noqa: E402
from kernels.nsa.api import checked  # noqa: E402
from kernels.nsa.launches import combine  # noqa: E402
from kernels.nsa.plans import branches_of, compressed  # noqa: E402
from kernels.nsa.selection import select  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
K, M = 1 << 10, 1 << 20
PUBLISHED = {  # MSLK with FlashAttention-4, GB200, forward: milliseconds of dense, nsa, nsa with groups
    4 * K: (0.23, 2.97, 1.65),
    8 * K: (0.66, 1.51, 2.42),
    16 * K: (1.58, 2.76, 3.11),
    32 * K: (5.50, 3.99, 4.02),
    64 * K: (25.29, 7.16, 7.04),
    128 * K: (97.71, 12.34, 12.69),
    256 * K: (407.6, 26.3, 30.2),
    512 * K: (1633.0, 71.3, 68.3),
    1 * M: (6538.0, 228.0, 171.0),
}
PUBLISHED_BOTH = {64 * K: (25.2, 11.5), 128 * K: (98.7, 21.3), 256 * K: (406.0, 44.8), 512 * K: (1632.0, 108.7)}
SELECTED_ALONE = {64 * K: (24.5, 33.8), 128 * K: (49.0, 93.8)}  # others', H100: forward, backward


@dataclass(frozen=True)
class Problem:
    """Lengths of the sequences, packed where there are several; heads, and the options of the call."""

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (32, 8)
    dim: int = 128
    block: int = 64
    chosen: int = 16
    window: int = 512
    groups: int | None = None
    gated: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """Fields that name the row of the table."""
        found = {"tokens": "+".join(map(str, self.lengths)), "heads": "/".join(map(str, self.heads))}
        return found | {"block": self.block, "groups": self.groups, "gated": self.gated}


class Inputs:
    """Tensors of a problem, and the options of `native_sparse_attention`."""

    def __init__(self, problem: Problem) -> None:
        p = self.problem = problem
        torch.manual_seed(42)
        rows = (sum(p.lengths),) if len(p.lengths) > 1 else (1, p.lengths[0])
        made = [
            torch.randn(*rows, n, p.dim, device=DEVICE, dtype=torch.bfloat16) for n in (p.heads[0], *[p.heads[1]] * 2)
        ]
        self.q, self.k, self.v = (x.requires_grad_() for x in made)
        self.do = torch.randn_like(self.q)
        self.leaves = [self.q, self.k, self.v]
        self.options: dict[str, Any] = {
            "compress_block_size": p.block,
            "num_selected_blocks": p.chosen,
            "window_size": p.window,
            "num_cmp_selected_blocks": p.groups,
        }
        if len(p.lengths) > 1:
            starts = torch.tensor([0, *p.lengths]).cumsum(0).to(torch.int32)
            self.options |= {"cu_seqlens": starts.to(DEVICE), "max_seqlen": max(p.lengths)}
        if p.gated:
            gate = torch.randn(p.heads[0], 3, p.dim, device=DEVICE, dtype=torch.bfloat16) / p.dim**0.5
            self.options["gate_proj_weight"] = gate.requires_grad_()
            self.leaves.append(gate)

    def call(self) -> torch.Tensor:
        """The forward pass."""
        return native_sparse_attention(self.q, self.k, self.v, **self.options)


def timed(work: Callable[[], Any], rounds: int = 5, compiled: bool = False) -> float:
    """Median milliseconds, of fewer rounds where one takes long. compiled: a first round of over 5 s counts."""
    times: list[float] = []
    for number in range(rounds + 2):
        if ON_GPU:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            took = begin.elapsed_time(end)
        else:
            began = time.perf_counter()
            work()
            took = 1e3 * (time.perf_counter() - began)
        if number >= 2 or (took > 2000 and number) or (took > 5000 and compiled):
            times.append(took)
        if not ON_GPU or (took > 5000 and times) or (took > 2000 and len(times) > 1):
            break
    return round(statistics.median(times or [took]), 4)


def peak(work: Callable[[], Any]) -> float:
    """MiB at most beside what is there."""
    if not ON_GPU:
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def graph_of(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a call that has run once."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def graphed(work: Callable[[], Any]) -> float:
    """Milliseconds of a replay."""
    return timed(graph_of(work).replay)


def sparse_row(inputs: Inputs) -> dict[str, Any]:
    """Times, memory and parts of kernels.nsa."""
    with torch.no_grad():
        found: dict[str, Any] = {"forward": timed(inputs.call)}

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(inputs.call(), inputs.leaves, inputs.do)

    check_backward(both, inputs.leaves, inputs.do)
    found |= {"both": timed(both), "peak_mib": peak(both)}
    with torch.no_grad():
        found["parts"], found["lists_mib"] = parts(inputs)
        if ON_GPU and max(inputs.problem.lengths) <= 32 * K:
            found["graph"] = graphed(inputs.call)
    return found


def parts(inputs: Inputs) -> tuple[dict[str, float], float]:
    """(milliseconds of each step, MiB of all block lists)."""
    operands, _ = checked(inputs.q, inputs.k, inputs.v, **inputs.options)
    small = compressed(operands)
    selection = select(operands, small.k)
    found = {"compress": timed(lambda: compressed(operands)), "select": timed(lambda: select(operands, small.k))}
    kept, bytes_of_lists = [], 0
    for branch in branches_of(operands, small, selection):
        for backward in (False, True):
            name = f"{branch.name} lists{' backward' * backward}"
            found[name] = timed(lambda b=branch, way=backward: b.lists(way))
            bytes_of_lists += branch.lists(backward).nbytes
        out, lse = branch.forward()
        found[f"{branch.name} forward, lists too"] = timed(branch.forward)
        found[f"{branch.name} backward, lists too"] = timed(lambda b=branch, o=out, s=lse: b.backward(o, s, inputs.do))
        kept.append(out)
    out = torch.empty_like(kept[0])
    found["combine"] = timed(lambda: combine(operands, kept, out).run())
    return found, round(bytes_of_lists / 2**20, 1)


def dense_ways(inputs: Inputs) -> Iterator[tuple[str, Callable[[], torch.Tensor], list[torch.Tensor], torch.Tensor]]:
    """(name, call, leaves, gradient of the output) of causal attention, heads first."""
    q, k, v, do = (x.detach().transpose(1, 2).contiguous() for x in (*inputs.leaves[:3], inputs.do))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        if ON_GPU:
            yield f"sdpa {name}", _sdpa(leaves, backend), leaves, do
    from kernels.blocksparse import block_sparse_attention, causal

    blocks = causal(q.shape[2], q.shape[2], device=DEVICE)
    yield "blocksparse", lambda: block_sparse_attention(*leaves, blocks, deterministic=not ON_GPU)[0], leaves, do


def _sdpa(leaves: list[torch.Tensor], backend: SDPBackend) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)

    return call


def _both(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(call(), leaves, do)


class Dense:
    """Causal attention, row by row: from `LONG` tokens on only those ways that were the fastest of the row before."""

    LONG, FORWARD_ONLY = 256 * K, 2 * M  # tokens

    def __init__(self, before: list[dict[str, Any]]) -> None:
        self.fastest: dict[str, str] = {}  # way, by kind of pass
        for row in before:
            self.note(row)

    def row(self, inputs: Inputs) -> dict[str, Any]:
        """The fastest forward pass, the fastest of both passes, and who was what."""
        found: dict[str, Any] = {"ways": {}}
        length = max(inputs.problem.lengths)
        for name, call, leaves, do in dense_ways(inputs):
            both = partial(_both, call, leaves, do)
            kinds: dict[str, Callable[[], Any]] = {"forward": call, "both": both}
            asked = [k for k in kinds if length < self.LONG or self.fastest.get(k, name) == name]
            times: dict[str, Any] = {}
            for kind in asked:
                if kind == "both" and length >= self.FORWARD_ONLY:
                    continue
                try:
                    if kind == "both" and length < self.LONG:  # above, what ran at shorter lengths
                        check_backward(both, leaves, do)
                    with torch.set_grad_enabled(kind == "both"):
                        times[kind] = timed(kinds[kind], 3, compiled=length > self.LONG)
                except BackwardDidNotRunError:
                    raise
                except Exception as error:  # a backend that this machine lacks, or that is out of memory
                    times["error"] = f"{kind}: {type(error).__name__}: {error}"[:200]
            if times:
                found["ways"][name] = times
        self.note(found)
        return found

    def note(self, row: dict[str, Any]) -> None:
        """Adds the fastest times to a row, and keeps who had them."""
        for kind in ("forward", "both"):
            took = {name: way[kind] for name, way in row["ways"].items() if kind in way}
            if took:
                self.fastest[kind] = min(took, key=lambda name: took[name])
                row[kind] = took[self.fastest[kind]]


def selected_alone(inputs: Inputs) -> dict[str, Any]:
    """The selected branch by itself, its lists among it: backward as it chooses, and with ordered and atomic adds to dQ
    in memory (nsa_selected_backward.py has the times of each kernel)."""
    operands, _ = checked(inputs.q, inputs.k, inputs.v, **inputs.options)
    with torch.no_grad():
        small = compressed(operands)
        branch = branches_of(operands, small, select(operands, small.k))[1]
        out, lse = branch.forward()
        leaves = [operands.q, operands.k, operands.v]
        check_backward(lambda: branch.backward(out, lse, inputs.do), leaves, inputs.do)
        backward = timed(lambda: branch.backward(out, lse, inputs.do))
        settings = replace(operands.settings, deterministic=False)
        atomic = replace(branch, operands=replace(operands, settings=settings))
        return {
            "forward": timed(branch.forward),
            "backward": backward,
            "backward_ordered": timed(lambda: branch.backward(out, lse, inputs.do, separate_dq=False)),
            "backward_atomic": timed(lambda: atomic.backward(out, lse, inputs.do, separate_dq=False)),
        }


def check() -> dict[str, float]:
    """The largest error of each tensor of a call of 1,024 tokens, of its largest value, beside float64 matrices."""
    from nsa_cases import Call, errors, expected, run, tensors_of
    from nsa_formula import Setting

    from kernels.nsa import native_sparse_answer

    setting = Setting(64, 4, 256, q_tile_size=256) if ON_GPU else Setting()
    length, dim = (1024, 128) if ON_GPU else (100, 32)
    call = Call((length,), 4, 2, dim, weights=("w_k", "w_v", "w_gate"), setting=setting)
    tensors = tensors_of(call)
    answer, grads, grad_out = run(call, native_sparse_answer, tensors)
    wanted, wanted_grads, _ = expected(call, tensors, grad_out)
    return {name: round(error, 5) for name, error in errors(call, answer, grads, wanted, wanted_grads).items()}


class Table:
    """Rows as they come, on disk after each one. resume: rows of `out` that have no error are not measured again.
    ways: those that are measured; none: all."""

    def __init__(
        self, out: Path | None, limit: float, resume: bool = False, ways: frozenset[str] = frozenset()
    ) -> None:
        self.out, self.began, self.limit, self.ways = out, time.monotonic(), limit, ways
        self.found: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if ON_GPU else "emulated",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "published_gb200_forward": PUBLISHED,
            "published_gb200_both": PUBLISHED_BOTH,
            "published_selected_alone_h100": SELECTED_ALONE,
            "rows": [],
            "left_out": [],
        }
        if resume and out and out.exists():
            before = json.loads(out.read_text())
            self.found["check"] = before.get("check", {})
            self.found["rows"] = [row for row in before["rows"] if "error" not in row]

    def of(self, way: str) -> list[dict[str, Any]]:
        """The rows of a way."""
        return [row for row in self.found["rows"] if row["way"] == way]

    def measure(self, way: str, problem: Problem, work: Callable[[Inputs], dict[str, Any]]) -> dict[str, Any]:
        """One more row, or a line of what was left out."""
        row: dict[str, Any] = {"way": way, **problem.row}
        if way not in (self.ways or {way}):
            return row
        for there in self.found["rows"]:
            if row.items() <= there.items():
                return there
        late = time.monotonic() - self.began > self.limit
        if not late:
            try:
                row |= work(Inputs(problem))
            except BackwardDidNotRunError:
                raise
            except Exception as error:  # out of memory
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            if ON_GPU:
                torch.cuda.empty_cache()
        self.found["left_out" if late else "rows"].append(row)
        self.write(row)
        return row

    def write(self, row: dict[str, Any]) -> None:
        """Writes the rows so far to the file, and prints the newest."""
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.found, indent=1) + "\n")


def main() -> int:
    """Everything; 1 where the check finds an error above 0.02."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-time", type=float, default=540.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--resume", action="store_true", help="go on with the rows of --out")
    parser.add_argument("--check", action="store_true", help="first a call of 1,024 tokens against float64 matrices")
    parser.add_argument("--longest", type=int, default=1 * M, help="tokens of the longest sequence of the main table")
    parser.add_argument("--shortest", type=int, default=4 * K, help="tokens of the shortest one")
    parser.add_argument("--way", action="append", default=[], help="rows of this way alone; may be repeated")
    options = parser.parse_args()
    if not ON_GPU:
        from fuzz.targets.blocksparse.devices import connect

        connect("emulator")
        torch.set_num_threads(1)
    table = Table(options.out, options.max_time, options.resume, frozenset(options.way))
    if options.check:
        table.found["check"] = check()
        table.write(table.found["check"])
    small = Problem((256,), (2, 1), 32, 16, 2, 64) if options.smoke else Problem((0,))
    lengths = (128, 256) if options.smoke else tuple(n for n in PUBLISHED if options.shortest <= n <= options.longest)
    longer = () if options.smoke else (2 * M, 3 * M)
    for length in lengths:
        problem = replace(small, lengths=(length,))
        table.measure("nsa", problem, sparse_row)
        if length >= 16 * 128 * problem.block:  # elsewhere all groups are seen
            table.measure("nsa groups", replace(problem, groups=16), sparse_row)
    last = lengths[-1]
    table.measure("nsa gated", replace(small, lengths=(last,), gated=True), sparse_row)
    table.measure("nsa packed", replace(small, lengths=(last * 3 // 5, last - last * 3 // 5)), sparse_row)
    alone = replace(small, lengths=(256,)) if options.smoke else Problem((64 * K,), (64, 4))
    for length in (256,) if options.smoke else SELECTED_ALONE:
        table.measure("selected alone", replace(alone, lengths=(length,)), selected_alone)
    for length in longer:
        for block in (64, 128):
            problem = Problem((length,), (8, 2), block=block, groups=16)
            table.measure("nsa groups", problem, sparse_row)
    dense = Dense(table.of("dense"))
    for length in lengths:
        table.measure("dense", replace(small, lengths=(length,)), dense.row)
    for length in longer:
        table.measure("dense", Problem((length,), (8, 2)), dense.row)
    return 1 if max(table.found.get("check", {"": 0.0}).values()) > 0.02 else 0


if __name__ == "__main__":
    raise SystemExit(main())
