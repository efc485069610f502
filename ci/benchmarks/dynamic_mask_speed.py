"""kernels.dynamic_mask on a GPU beside PyTorch's attention, FlexAttention and kernels.blocksparse: one table.

    python ci/benchmarks/dynamic_mask_speed.py --check 60 --tune --out ci/results/dynamic_mask_speed_h200.json
    python ci/benchmarks/dynamic_mask_speed.py --smoke --out /tmp/x.json     tiny, in Triton's interpreter: its syntax

One sequence of 16,384 queries and keys, causal, two query heads on one KV head, bfloat16. The mask keeps W keys of each
row: the W with the largest score among those that causality leaves, one score a key for all rows ('top'), or the W
nearest ones ('band').
Times are medians of CUDA events around each call after a warm-up, in milliseconds; a backward time is that of
torch.autograd.grad alone, which is checked to run before it is timed (backward_ran.py). 'forward_graph' and
'backward_graph' are those of the same calls from CUDA graphs, which leave out the host's launches. O, dQ, dK and dV of
every way are compared with those of the first.

sdpa tensor    scaled_dot_product_attention with the mask as a bool tensor, and the causal mask alone as one
sdpa causal    the same with is_causal, which looks at no mask: what dense attention costs
flex           compiled FlexAttention with a block mask made of the same tensor
blocksparse    kernels.blocksparse with lists from from_mask

Bounds: the bytes of mask that must be read, and the exponentials and products of tiles that hold a key, at the device's
published rates. `--max-time` ends it: what was left out is listed. Results are written as they come.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from ci.benchmarks.backward_ran import BackwardDidNotRunError, check_backward  # noqa: E402
from ci.benchmarks.flex_block_mask import block_mask_of  # noqa: E402
from kernels.dynamic_mask import config, dynamic_mask_answer, dynamic_mask_attention, pack_mask, prepare, top_mask  # noqa: E402
from kernels.dynamic_mask.config import Config, Tiles  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
DISAGREE = 0.02  # relative root mean square; two correct bfloat16 kernels are within 0.01
H200 = {"bytes": 4.8e12, "exponentials": 132 * 16 * 1.755e9, "flops": 989e12}
PUBLISHED = {  # flash-dmattn 801e816, RTX 4090, backward: milliseconds of SDPA with the causal mask as a tensor, theirs
    32: (28.42, 4.64),
    64: (28.27, 4.57),
    128: (28.36, 4.67),
    256: (28.52, 4.69),
    512: (28.67, 5.28),
    1024: (28.47, 4.83),
    2048: (28.56, 4.86),
    4096: (28.39, 4.91),
    8192: (28.37, 5.68),
    16384: (28.50, 5.87),
}
Call = Callable[[], torch.Tensor]
Job = tuple[int, bool, bool, Tiles | None]


@dataclass(frozen=True)
class Problem:
    """Tokens on both sides, head dim, kept keys of a row, and which: 'top' or 'band'."""

    tokens: int
    dim: int
    window: int
    kind: str
    heads_q: int = 2
    heads_kv: int = 1


class Inputs:
    """Tensors of a problem; the bias is one row for every KV head, with a gradient."""

    def __init__(self, problem: Problem) -> None:
        p = self.problem = problem
        torch.manual_seed(42)
        shapes = ((p.heads_q, p.tokens, p.dim), (p.heads_kv, p.tokens, p.dim), (p.heads_kv, p.tokens, p.dim))
        made = [torch.randn(1, *shape, device=DEVICE, dtype=torch.bfloat16) for shape in shapes]
        self.q, self.k, self.v = (x.requires_grad_() for x in made)
        self.do = torch.randn_like(self.q)
        scores = torch.rand(1, p.heads_kv, 1, p.tokens, device=DEVICE)
        self.bias = scores.to(torch.bfloat16).requires_grad_()
        if p.kind == "top":
            self.mask = top_mask(scores, p.window, p.tokens, causal="top_left")
        else:
            at = torch.arange(p.tokens, device=DEVICE)
            self.mask = ((at <= at[:, None]) & (at > at[:, None] - p.window))[None, None]
        self.leaves = [self.q, self.k, self.v]

    def repeated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V with a head for each query head."""
        group = self.problem.heads_q // self.problem.heads_kv
        return self.k.repeat_interleave(group, 1), self.v.repeat_interleave(group, 1)


def timed(work: Callable[[], Any], rounds: int) -> float:
    """Median milliseconds."""
    for _ in range(2):
        work()
    times = []
    for _ in range(rounds):
        if ON_GPU:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def graphed(call: Call, leaves: list[torch.Tensor], do: torch.Tensor, rounds: int) -> dict[str, float]:
    """Milliseconds of forward and of backward, each replayed from a CUDA graph: without the host's launches."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = call()
        torch.autograd.grad(out, leaves, do, retain_graph=True)
    side.synchronize()
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(forward, stream=side):
        call()
    with torch.cuda.graph(backward, stream=side):
        torch.autograd.grad(out, leaves, do, retain_graph=True)
    return {"forward_graph": timed(forward.replay, rounds), "backward_graph": timed(backward.replay, rounds)}


def measured(call: Call, leaves: list[torch.Tensor], do: torch.Tensor, rounds: int) -> dict[str, float]:
    """Milliseconds of forward and of backward, eager and from CUDA graphs, and the peak of memory that both take beside
    what is there."""
    with torch.no_grad():
        forward = timed(call, rounds)
    out = call()

    def work() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, leaves, do, retain_graph=True)

    check_backward(work, leaves, do)
    backward = timed(work, rounds)
    found = {"forward": forward, "backward": backward}
    if ON_GPU:
        del out
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(call(), leaves, do)
        found["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found |= graphed(call, leaves, do, rounds)
    return {name: round(value, 4) for name, value in found.items()}


def answers(call: Call, inputs: Inputs) -> list[torch.Tensor]:
    """O, dQ, dK, dV."""
    out = call()
    return [out.detach(), *torch.autograd.grad(out, inputs.leaves, inputs.do)]


def disagreement(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative root mean square of a difference."""
    return max(
        float((a.float() - b.float()).pow(2).mean().sqrt() / b.float().pow(2).mean().sqrt().clamp(min=1e-9))
        for a, b in zip(got, wanted, strict=True)
    )


def ours(inputs: Inputs, *, bits: bool, bias: bool) -> Call:
    """kernels.dynamic_mask; causality is in the mask, and said besides so that the upper half is not looked at."""
    mask = pack_mask(inputs.mask) if bits else inputs.mask
    given = inputs.bias if bias else None
    return lambda: dynamic_mask_attention(inputs.q, inputs.k, inputs.v, mask, given, causal="top_left")


def sdpa(inputs: Inputs, mask: torch.Tensor | None) -> Call:
    """PyTorch's attention with a mask, or is_causal without one."""

    def call() -> torch.Tensor:
        k, v = inputs.repeated()
        return torch.nn.functional.scaled_dot_product_attention(inputs.q, k, v, mask, is_causal=mask is None)

    def pinned() -> torch.Tensor:
        with sdpa_kernel(BACKENDS):
            return call()

    return call if mask is None else pinned


def flex(inputs: Inputs) -> Call:
    """Compiled FlexAttention over a block mask of the same tensor."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.cache_size_limit = 64
    torch._functorch.config.donated_buffer = False  # a backward pass is timed several times
    blocks = block_mask_of(inputs.mask)
    attend = torch.compile(flex_attention) if ON_GPU else flex_attention
    return lambda: attend(inputs.q, inputs.k, inputs.v, block_mask=blocks, enable_gqa=True)


def block_sparse(inputs: Inputs) -> Call:
    """kernels.blocksparse with lists of the same tensor."""
    from kernels.blocksparse import block_sparse_attention
    from kernels.blocksparse.lists.from_mask import from_mask

    blocks = from_mask(inputs.mask)
    return lambda: block_sparse_attention(inputs.q, inputs.k, inputs.v, blocks)[0]


SHAPES = (  # tile_m, tile_n, warps, stages
    (64, 64, 4, 1),
    (64, 64, 4, 3),
    (64, 64, 8, 2),
    (128, 64, 4, 2),
    (128, 64, 8, 2),
    (64, 128, 4, 2),
    (64, 32, 4, 2),
    (32, 64, 4, 2),
)
BYTES, WORDS, BIASED = "dynamic_mask bytes", "dynamic_mask words", "dynamic_mask bytes, bias"
DENSE = "sdpa causal"
WAYS: dict[str, Callable[[Inputs], Call]] = {
    "sdpa tensor": lambda inputs: sdpa(inputs, inputs.mask),
    DENSE: lambda inputs: sdpa(inputs, None),
    BYTES: partial(ours, bits=False, bias=False),
    WORDS: partial(ours, bits=True, bias=False),
    BIASED: partial(ours, bits=False, bias=True),
    "flex": flex,
    "blocksparse": block_sparse,
}


def bounds(inputs: Inputs, tiles: list[int]) -> dict[str, float]:
    """Least milliseconds of backward, by what would take them: two kernels read the mask and make all exponentials."""
    p = inputs.problem
    scores = tiles[0] * 64 * 64
    looked = sum(tiles) * 64 * 64
    return {
        "mask_bytes": round(2e3 * looked / p.heads_q * p.heads_kv / H200["bytes"], 4),
        "mask_words": round(2e3 * looked / 8 / p.heads_q * p.heads_kv / H200["bytes"], 4),
        "exponentials": round(2e3 * scores / H200["exponentials"], 4),
        "products": round(1e3 * scores * 7 * 2 * max(p.dim, 32) / H200["flops"], 4),
    }


class Table:
    """Rows as they come, on disk after each one."""

    def __init__(self, out: Path | None, limit: float) -> None:
        self.out, self.began, self.limit = out, time.monotonic(), limit
        self.found: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if ON_GPU else "interpreter",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "published_rtx_4090": PUBLISHED,
            "rows": [],
            "tuning": [],
            "left_out": [],
        }

    @property
    def late(self) -> bool:
        return time.monotonic() - self.began > self.limit

    def add(self, kind: str, row: dict[str, Any]) -> None:
        """One more row."""
        self.found[kind].append(row)
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.found, indent=1) + "\n")


def entry(table: Table, inputs: Inputs, name: str, make: Callable[[], Call], wanted: Any, rounds: int) -> Any:
    """Checks and times one way; the answers, or None where it cannot run here. Nothing after the time is over."""
    p = inputs.problem
    row: dict[str, Any] = {"kind": p.kind, "window": p.window, "dim": p.dim, "way": name}
    if table.late:
        table.add("left_out", row)
        return None
    try:
        call = make()
        got = answers(call, inputs)
        if wanted is not None:
            row["disagreement"] = round(disagreement(got, wanted), 5)
        leaves = inputs.leaves + ([inputs.bias] if "bias" in name else [])
        row |= measured(call, leaves, inputs.do, rounds)
    except BackwardDidNotRunError:
        raise
    except Exception as error:  # a kernel that this machine lacks, or that is out of memory
        row["error"] = f"{type(error).__name__}: {error}"[:200]
        got = None
    table.add("rows", row)
    return got


def compare(table: Table, problem: Problem, ways: tuple[str, ...], rounds: int) -> None:
    """One mask, by the ways named; the first one's answers are what the others' are compared with."""
    if table.late:
        table.add("left_out", {"kind": problem.kind, "window": problem.window, "dim": problem.dim, "way": "all"})
        return
    inputs = Inputs(problem)
    with torch.no_grad():
        answer = dynamic_mask_answer(inputs.q, inputs.k, inputs.v, inputs.mask, causal="top_left")
    tiles = answer.tiles.sum((0, 1, 2)).tolist()
    right = None
    for name in ways:
        same_answer = name not in (DENSE, BIASED)
        got = entry(table, inputs, name, partial(WAYS[name], inputs), right if same_answer else None, rounds)
        right = got if right is None and same_answer else right
        if name == BYTES and not table.late:
            table.found["rows"][-1] |= {"tiles": tiles, "bounds": bounds(inputs, tiles)}


def processes() -> ProcessPoolExecutor:
    """Several at a time, each with a start of its own."""
    return ProcessPoolExecutor(min(12, os.cpu_count() or 1), multiprocessing.get_context("spawn"))


def checked(seed: int) -> str:
    """In a process of its own: what is wrong with a drawn call, ''."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "support" / "kernels")]
    from dynamic_mask_cases import complaints, drawn

    call = drawn(random.Random(seed), 513 if ON_GPU else 70)
    try:
        found = complaints(call)
    except Exception as error:
        return f"{call}: {type(error).__name__}: {str(error)[:300]}"
    return f"{call}: {found}" if found else ""


def compiled_ahead(job: Job) -> int:
    """In a process of its own: compiles the kernels of (dim, words, bias, tiles of every kernel or None: the table's)
    for small tensors, which share them with large ones. Triton keeps them on disk."""
    dim, bits, bias, tiles = job
    if tiles is not None:
        config.TABLE[config.block_d(dim, dim)] = Config(*[tiles] * 4)
    inputs = Inputs(Problem(256, dim, 64, "band"))
    mask = pack_mask(inputs.mask) if bits else inputs.mask
    given = inputs.bias if bias else None
    try:
        return prepare(inputs.q, inputs.k, inputs.v, mask, given, causal="top_left", num_splits=2)
    except Exception as error:  # its own row says so
        print(f"{job}: {type(error).__name__}: {str(error)[:100]}")
        return 0


def compile_ahead(tiles: list[Tiles]) -> None:
    """Every kernel that `main` launches, several at a time."""
    jobs: list[Job] = [(dim, bits, False, None) for dim in (32, 64, 128) for bits in (False, True)]
    jobs += [(32, False, True, None), *((32, True, False, one) for one in tiles)]
    began = time.monotonic()
    with processes() as pool:
        count = sum(pool.map(compiled_ahead, jobs))
        print(f"{count} kernels compiled in {time.monotonic() - began:.1f} s", flush=True)


def tune(table: Table, problem: Problem, tiles: list[Tiles], rounds: int) -> None:
    """Other tiles and warps than the table's: each kernel by itself, the others as they are."""
    inputs = Inputs(problem)
    block = config.block_d(problem.dim, problem.dim)
    before = config.TABLE[block]
    call = ours(inputs, bits=True, bias=False)
    for part in ("forward", "dkdv", "dq"):
        for one in tiles:
            if table.late:
                break
            config.TABLE[block] = replace(before, **{part: one})
            row: dict[str, Any] = {"window": problem.window, "dim": problem.dim, "kernel": part}
            row["tiles"] = f"{one.tile_m}x{one.tile_n} warps {one.warps} stages {one.stages}"
            try:
                row |= measured(call, inputs.leaves, inputs.do, rounds)
            except BackwardDidNotRunError:
                raise
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:120]
            table.add("tuning", row)
    config.TABLE[block] = before


def main() -> int:
    """Everything, the rows of the published table first; 1 where two ways disagree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-time", type=float, default=120.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--flex", action="store_true", help="FlexAttention's rows alone")
    parser.add_argument("--tune", action="store_true", help="other tiles too, in the time that is left")
    parser.add_argument("--check", type=int, default=0, help="first so many drawn calls against plain PyTorch")
    options = parser.parse_args()
    table = Table(options.out, options.max_time)
    tiles = [Tiles(*shape) for shape in SHAPES] if options.tune else []
    if options.check:
        with processes() as pool:
            wrong_calls = [line for line in pool.map(checked, range(options.check)) if line]
        table.found["checked"] = {"calls": options.check, "wrong": wrong_calls}
        print(f"{options.check} drawn calls, {len(wrong_calls)} wrong", *wrong_calls, sep="\n", flush=True)
        table.began = time.monotonic()
    tokens, rounds = (128, 1) if options.smoke else (16384, 5)
    if options.flex:
        for window in (tokens, 64):
            compare(table, Problem(tokens, 32, window, "top"), (BYTES, "flex"), rounds)
        return 0
    if ON_GPU:
        compile_ahead(tiles)
    windows = (32, 128) if options.smoke else tuple(reversed(PUBLISHED))
    for window in windows:
        ways = ("sdpa tensor", BYTES, WORDS, BIASED, DENSE) if window in (64, tokens) else ("sdpa tensor", BYTES, WORDS)
        compare(table, Problem(tokens, 32, window, "top"), ways, rounds)
    if not options.smoke:
        for dim in (64, 128, 96):
            compare(table, Problem(tokens, dim, tokens, "top"), ("sdpa tensor", BYTES, WORDS, DENSE), rounds)
            compare(table, Problem(tokens, dim, 64, "top"), (BYTES, WORDS), rounds)
    for window in windows:
        compare(table, Problem(tokens, 32, window, "band"), ("sdpa tensor", BYTES, WORDS), rounds)
    for window in () if options.smoke else (tokens, 64):
        compare(table, Problem(tokens, 32, window, "top"), (BYTES, "blocksparse"), rounds)
    if options.tune:
        for problem in (Problem(tokens, 32, tokens, "top"), Problem(tokens, 32, 64, "top")):
            tune(table, problem, tiles[:1] if options.smoke else tiles, 3)
    for window in () if options.smoke else (tokens,):
        compare(table, Problem(tokens, 32, window, "top"), (BYTES, "flex"), rounds)
    wrong = [row for row in table.found["rows"] if row.get("disagreement", 0) > DISAGREE]
    for row in wrong:
        print(f"DISAGREES: {row}")
    return 1 if wrong or table.found.get("checked", {}).get("wrong") else 0


if __name__ == "__main__":
    raise SystemExit(main())
