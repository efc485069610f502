"""One entry of ci/benchmarks/blocksparse_speed.py, in a process of its own: makes a problem, compiles, measures,
prints rows.

A process for each entry, so that FlexAttention's compilation (20 to 40 s each) runs beside others', and a hang or a
crash costs one entry. Only measuring is exclusive: the process that holds the lock file measures, and FlexAttention is
measured before and after the block-sparse kernels, so that disturbance by another process's first call shows as a
difference.

Times are device times, of a GPU that the same call has kept busy for SETTLE seconds: where it is at its power limit, as
with full masks, its clock is lower than after a pause or after another call. Then the stream is kept busy
(`torch.cuda._sleep`) until the host has queued all repeats, and each repeat stands between two events; the median
counts. So neither side pays for its Python. Whatever is compared is measured in turn, in several rounds, each in
another order, and the least median counts: another process's first call, and the part of a second for which a GPU at
its power limit is 5 to 8 % slower now and then, disturb some rounds, not all. A call whose least two medians are not
within SETTLED is measured again, up to MORE times: so the least is no single lucky one.
"""

from __future__ import annotations

import fcntl
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blocksparse_masks import TILE, WINDOW, Entry, blocks_of, flex_mask, operands, pairs_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.blocksparse.api import block_sparse_attention
from kernels.blocksparse.compile import runtime
from kernels.blocksparse.launch import backward as launch_backward
from kernels.blocksparse.launch import concurrency
from kernels.blocksparse.launch import forward as launch
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.variant import forward_products

SECONDS = 0.06  # of device time for one measurement
SETTLE = 0.15  # of device time before it
ROUNDS = 3  # where a benchmark says nothing else
MORE = 10  # rounds beside them, of calls that have not settled
SETTLED = 1.01  # the second least median over the least one
Emit = Callable[[dict[str, Any]], None]


def run(entry: Entry, lock: Path, emit: Emit) -> None:
    """Measures one entry and emits a row for each thing that was measured."""
    with connected(entry):
        KINDS[entry.kind](entry, lock, emit)


@contextmanager
def connected(entry: Entry) -> Iterator[None]:
    """Block in which kernels run on the entry's device, compiled by way of the cache."""
    if entry.device == "cuda":
        from fuzz.compiling import obtain
        from fuzz.devices.cuda import build_of, load

        with runtime.use_source(lambda variant, arch, injection: load(obtain(build_of(variant, arch, injection)))):
            yield
    else:
        from fuzz.targets.blocksparse.devices import connect, emulated

        connect("emulator")
        emulated().blind = True  # atomic adds in no fixed order are what is measured, not a finding
        yield


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Lock under which no other process measures."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()


def milliseconds(call: Callable[[], Any], cuda: bool) -> float:
    """Median device time of a call; where there is no GPU, the wall time of one call."""
    if not cuda:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = time.perf_counter() - began
    for _ in range(int(SETTLE / once)):
        call()
    torch.cuda.synchronize()
    repeats = max(5, min(30, int(SECONDS / once)))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda._sleep(int(repeats * 1.5e6))  # about 0.9 ms of host time for each repeat
    for before, after in events:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in events)


def compared(calls: dict[str, Callable[[], Any]], cuda: bool) -> dict[str, float]:
    """The least of each call's `medians`."""
    return {name: min(times) for name, times in medians(calls, cuda).items()}


def medians(calls: dict[str, Callable[[], Any]], cuda: bool, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Each call's median of every round, all of them in turn, in an order at random; then of those that have not
    settled, as long as there are some, and up to MORE times."""
    draw, found = random.Random(0), {name: list[float]() for name in calls}
    for at in range(rounds + MORE if cuda else 1):
        again = sorted(calls) if at < rounds else [name for name in sorted(calls) if not has_settled(found[name])]
        for name in draw.sample(again, len(again)):
            found[name].append(milliseconds(calls[name], cuda))
    return found


def has_settled(times: list[float]) -> bool:
    """True where the least two medians are within SETTLED."""
    least, second = sorted(times)[:2]
    return second <= SETTLED * least


def schedules(entry: Entry, blocks: BlockSparse) -> dict[str, BlockSparse]:
    """The lists under the default schedule; where CTAs wait under that, also under a computed one."""
    found = {"default": blocks}
    if not concurrency.in_step(blocks):
        heads = {"heads_q": entry.heads_q, "heads_kv": entry.heads_kv}
        found["planned"] = least_blocking(blocks, **heads, dim=entry.dim).blocks
    return found


def difference(one: Tensor, other: Tensor) -> float:
    """||one - other|| / ||other||."""
    one, other = one.detach().float(), other.detach().float()
    return float((one - other).norm() / other.norm())


def pair(entry: Entry, lock: Path, emit: Emit) -> None:
    """Forward, and backward (atomic; deterministic under each schedule), beside FlexAttention; on Hopper the portable
    kernels too."""
    from torch.nn.attention.flex_attention import flex_attention

    cuda = entry.device == "cuda"
    blocks, (q, k, v, grad) = blocks_of(entry), operands(entry)
    of_mask = flex_mask(entry)
    flex = torch.compile(flex_attention, dynamic=False) if cuda else dense_attention

    def flex_forward():
        return flex(q, k, v, block_mask=of_mask, enable_gqa=entry.heads_q != entry.heads_kv)

    def gradients(out):
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    began = time.perf_counter()
    flex_out = flex_forward()
    flex_grads = None if entry.kind == "forward" else gradients(flex_out)
    compiling = time.perf_counter() - began
    out, _ = block_sparse_attention(q, k, v, blocks, deterministic=False)
    with alone(lock):  # with gradients switched on: FlexAttention would be compiled anew without
        calls: dict[str, Callable[[], Any]] = {"forward": partial(block_sparse_attention, q, k, v, blocks)}
        if has_wgmma(entry):
            calls["portable"] = partial(block_sparse_attention, q, k, v, blocks, products="mma")
        second = flash_2(entry, q, k, v)
        ms = compared(calls | {"flex": flex_forward} | ({"flash_2": second} if second else {}), cuda)
    agree = {"out": difference(out, flex_out)}
    emit(row(entry, "forward", blocks, ms) | {"difference": agree, "flex_compile_s": round(compiling, 1)})
    if entry.kind == "forward":
        return

    atomic = gradients(out)
    agree = {name: difference(x, y) for name, x, y in zip(("dq", "dk", "dv"), atomic, flex_grads, strict=True)}
    ordered = {
        name: block_sparse_attention(q, k, v, one, deterministic=True)[0]
        for name, one in schedules(entry, blocks).items()
    }
    for one in ordered.values():
        again = gradients(one)
        agree["deterministic dq"] = max(agree.get("deterministic dq", 0.0), difference(again[0], flex_grads[0]))
    del flex_grads, atomic, again
    other = block_sparse_attention(q, k, v, blocks, products="mma")[0] if has_wgmma(entry) else None
    with alone(lock):
        of = {"atomic": out, "portable": other, **ordered, "flex": flex_out, "flash_2": second() if second else None}
        calls = {name: partial(gradients, one) for name, one in of.items() if one is not None}
        ms = compared(calls, cuda)
    emit(row(entry, "backward", blocks, ms) | {"difference": agree})


def flash_2(entry: Entry, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor] | None:
    """PyTorch's FlashAttention 2 on these operands, where it has the mask: what others made of mma.sync."""
    if entry.device != "cuda" or entry.mask not in ("full", "causal"):
        return None

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            grouped = entry.heads_q != entry.heads_kv
            return scaled_dot_product_attention(q, k, v, is_causal=entry.mask == "causal", enable_gqa=grouped)

    return call


def has_wgmma(entry: Entry) -> bool:
    """True if the forward pass has two kernels, so that both are timed."""
    arch = runtime.arch_of(torch.device("cuda", 0)) if entry.device == "cuda" else ""
    return forward_products(arch, entry.tile) == "wgmma"


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, enable_gqa: bool) -> Tensor:
    """Results of FlexAttention for this BlockMask, where it has no backward pass: on a CPU."""
    positions = torch.arange(q.shape[2])
    every = [getattr(block_mask, kind) for kind in ("kv_num_blocks", "kv_indices")]
    whole = [getattr(block_mask, "full_" + kind) for kind in ("kv_num_blocks", "kv_indices")]
    size, grids = block_mask.BLOCK_SIZE[0], []
    for count, index in (every, whole):
        grid = torch.zeros(index.shape[2:], dtype=torch.bool)
        for m, (many, row) in enumerate(zip(count[0, 0].tolist(), index[0, 0], strict=True)):
            grid[m, row[:many].long()] = True
        grids.append(grid.repeat_interleave(size, 0).repeat_interleave(size, 1))
    masked = block_mask.mask_mod(0, 0, positions[:, None], positions[None, :])
    mask = (grids[0] & masked) | grids[1]
    group = q.shape[1] // k.shape[1] if enable_gqa else 1
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = (q.double() @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~mask, -float("inf"))
    return (scores.softmax(-1) @ v).to(q.dtype)


def row(entry: Entry, direction: str, blocks: BlockSparse, times: dict[str, float]) -> dict[str, Any]:
    """Row of the results: measurements, and what follows from them. times: of ours, of "flex", and of "flash_2" where
    it has the mask."""
    from blocksparse_bounds import bounds

    ms = {name: at for name, at in times.items() if name not in ("flex", "flash_2")}
    flex_ms = times["flex"]
    best = ms.get("forward", ms.get("atomic", 0.0))
    found: dict[str, Any] = {
        "direction": direction,
        "mask": entry.mask,
        "tokens": entry.tokens,
        "dim": entry.dim,
        "heads": [entry.heads_q, entry.heads_kv],
        "density": round(pairs_of(entry) / entry.tokens**2, 4),
        "ms": {name: round(at, 4) for name, at in ms.items()},
        "flex_ms": round(flex_ms, 4),
        "speed_ratio": round(flex_ms / best, 3),
    }
    if "flash_2" in times:
        portable = ms.get("portable", best)
        found |= {
            "flash_2_ms": round(times["flash_2"], 4),
            "portable_over_flash_2": round(times["flash_2"] / portable, 3),
        }
    if direction == "backward":
        ordered = {name: at for name, at in ms.items() if name not in ("atomic", "portable")}
        schedule = min(ordered, key=lambda name: ordered[name])
        found |= {"best_schedule": schedule, "deterministic_over_atomic": round(ordered[schedule] / best, 3)}
    flops = (4 if direction == "forward" else 10) * pairs_of(entry) * entry.dim * entry.heads_q
    found["bounds"] = bounds(entry, direction, blocks, flops, best)
    return found


def tune(entry: Entry, lock: Path, emit: Emit) -> None:
    """Times every alternative of the forward and backward kernels' layouts, with the default first and last."""
    from blocksparse_bounds import ALTERNATIVES

    cuda = entry.device == "cuda"
    q, k, v, do = (x.detach().transpose(1, 2) for x in operands(entry))
    zero = torch.zeros(1, dtype=torch.int32, device=q.device)
    sequences = launch.Sequences(zero, zero + entry.tokens, zero, zero + entry.tokens)
    o, lse = torch.empty_like(q), torch.empty(1, entry.heads_q, entry.tokens, device=q.device)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    scale = entry.dim**-0.5
    expected: dict[str, list[Tensor]] = {}
    for direction, tiles, tuning in ALTERNATIVES[entry.dim]:
        blocks = blocks_of(entry, *tiles)
        options = tuple(sorted((name, value) for name, value in tuning.items() if name != "pairs"))

        pairs = tuning.get("pairs")

        def call(direction=direction, blocks=blocks, options=options, pairs=pairs) -> None:
            if direction == "forward":
                launch.forward(
                    q, k, v, o, lse, sequences, blocks, scale=scale, tuning=options, products="mma"
                )  # fmt: skip
            else:
                launch_backward.backward(
                    dq, dk, dv, q, k, v, o, lse, do, sequences, blocks,
                    scale=scale, tuning=options, pairs=pairs, products="mma",
                )  # fmt: skip

        found = {"direction": f"tune {direction}", "mask": entry.mask, "tokens": entry.tokens, "dim": entry.dim}
        found |= {"tiles": tiles, "tuning": tuning}
        results = [o, lse] if direction == "forward" else [dq, dk, dv]
        try:
            for x in results:
                x.fill_(float("nan"))
            call()
            if direction not in expected:
                expected[direction] = [x.clone() for x in results]
            off = max(difference(x, y) for x, y in zip(results, expected[direction], strict=True))
            with alone(lock):
                at = milliseconds(call, cuda)
        except Exception as error:  # one alternative that does not build costs itself only
            emit(found | {"error": f"{type(error).__name__}: {error}"[:300]})
            continue
        if not off < 0.02:  # restored, so that a wrong forward does not spoil the backward passes after it
            for x, y in zip(results, expected[direction], strict=True):
                x.copy_(y)
        emit(found | {"ms": round(at, 4), "difference": off})


def once(entry: Entry, lock: Path, emit: Emit) -> None:
    """One forward and one backward pass, atomic and deterministic, for a profiler to look at."""
    blocks, (q, k, v, grad) = blocks_of(entry), operands(entry)
    for deterministic in (False, True):
        block_sparse_attention(q, k, v, blocks, deterministic=deterministic)[0].backward(grad)


def memory(entry: Entry, lock: Path, emit: Emit) -> None:
    """Peak memory of forward and backward: what is allocated beside q, k, v, out's gradient and the lists."""
    assert entry.device == "cuda", "the emulated GPU has no allocator to ask"
    blocks, (q, k, v, grad) = blocks_of(entry), operands(entry)
    small = [x[:, :, :TILE].detach().requires_grad_(i < 3) for i, x in enumerate((q, k, v, grad))]
    one_tile = band(TILE, TILE, left=WINDOW - 1, right=0, device="cuda")
    few, _ = block_sparse_attention(small[0], small[1], small[2], one_tile, deterministic=True)
    few.backward(small[3])  # builds and loads the kernels
    del small, few
    with alone(lock):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out, _ = block_sparse_attention(q, k, v, blocks, deterministic=True)
        torch.cuda.synchronize()
        forward = torch.cuda.max_memory_allocated() - before
        out.backward(grad)
        torch.cuda.synchronize()
        both = torch.cuda.max_memory_allocated() - before
    given = sum(x.numel() * x.element_size() for x in (q, k, v, grad))
    emit(
        {
            "direction": "memory",
            "mask": entry.mask,
            "tokens": entry.tokens,
            "dim": entry.dim,
            "heads": [entry.heads_q, entry.heads_kv],
            "bytes": {"given": given, "forward": forward, "forward_backward": both},
            "bytes_per_token": round((given + both) / entry.tokens, 1),
            "one_dense_score_matrix_of_one_head": 2 * entry.tokens**2,
        }
    )


KINDS: dict[str, Callable[[Entry, Path, Emit], None]] = {
    "pair": pair,
    "forward": pair,
    "tune": tune,
    "memory": memory,
    "once": once,
}


def emit_line(found: dict[str, Any]) -> None:
    """One row to the parent."""
    print("ROW " + json.dumps(found), flush=True)
