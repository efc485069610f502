"""Predicts the speed of the kernels by tcgen05 on a B200, which no run has tested, from their instructions.

    python ci/benchmarks/blackwell_prediction.py [--out ci/results/blackwell_prediction_host.json]

Needs no GPU: the kernels without a mask are compiled for sm_100a, and cuobjdump (Triton's, or $CUOBJDUMP) lists SASS.
For each head dim, clocks of one SM for a block of 128 x 128, bfloat16, long sequences, that each unit takes alone:

    products       five, at the datasheet's dense bf16 rate
    exponentials   16 a clock (CUDA Programming Guide, "Arithmetic Instructions", compute capability 10.0)
    shared memory  bytes that products read and that loads and dS write, at 128 a clock; LSE and delta, one read of 16
                   bytes by a warp a clock
    issue slots    of one scheduler. Backward: two softmax warps, a dQ warp, and the busiest other one; instructions of
                   the loop of each role, each counted once: as if every block were masked, every wait over at once, and
                   every dQ warp the one that issues bulk adds; but of loads by TMA the shortest way: of whole tiles.
                   Forward: a softmax warp and the busier of those that load and issue products; instructions of the
                   shortest way through the loop: no block is masked, O is not rescaled, TMA loads every tile
    L2             bytes of K and V read, or of Q and dO read and of dQ added, at a rate that is a guess: twice that at
                   which Hopper's kernel reads K and V on an H100
    chain          what one step waits for before the next may begin: dP, then dS by the softmax warps, dK and dQ, and,
                   where dQ takes dP's columns, reading dQ out. Their parts of the loop in issue slots, and LATENCY
                   clocks at each of the hand-overs, PEER_LATENCY where they are between two CTAs

Pairs of CTAs: a block of each of the two SMs. The loading warp that counts is the one of dO and of Q by columns.

Persistent CTAs: clocks of the whole forward pass with two query tiles, for each of ROWS, where every SM takes the next
tile of the LPT order when it is free. A tile takes its steps, at the lower end of the prediction of a block, and beside
them BESIDE_STEPS clocks: what it costs Hopper's kernel with a CTA for each tile, and what was predicted to be left with
persistent ones, but for the first tile of each (docs/performance/log.md). For this kernel both are guesses.

The prediction is the largest of them to FORWARD_RANGE or RANGE times that: what the kernels by wgmma take of their own
largest column on an H100 (docs/performance/index.md, "What bounds them").
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernels.blocksparse.backward.blackwell.pairs.tuning import pair_tuning  # noqa: E402
from kernels.blocksparse.backward.blackwell.tuning import (  # noqa: E402
    DQ_COLUMNS,
    HALF,
    blackwell_backward_tuning,
)
from kernels.blocksparse.compile.build import build  # noqa: E402
from kernels.blocksparse.forward.blackwell.tuning import GROUP  # noqa: E402
from kernels.blocksparse.spec.variant import PAIR_KEYS, Variant  # noqa: E402

SMS, CLOCK, FLOPS = 148, 1.856e9, 8192  # multiprocessors; Hz; dense bf16 operations a clock and SM: 2,250 TFLOP/s
EXPONENTIALS, SHARED = 16, 128  # a clock and SM; bytes a clock and SM
L2 = 2 * 5.2e12 / SMS / CLOCK  # bytes a clock and SM: a guess
TILE = 128
LATENCY = 100  # clocks of an mbarrier's phase, a commit or a round trip to tensor memory: a guess
PEER_LATENCY = 200  # the same from one CTA of a pair to the other, or to both: a guess
RANGE = (1.0, 1.6)  # of clocks over the largest column
BESIDE_STEPS = (3500, 1500)  # clocks of a tile: alone in a CTA or its first, another one of a CTA
PAIR_ROWS = 2 * TILE  # queries of a CTA's tile
ROWS = ((8192, 2), (2048, 8), (2048, 1))  # (tokens, batch), of HEADS heads
HEADS = 16
FORWARD_RANGE = {64: (1.0, 2230 / 1024), 128: (1.0, 2930 / 1965)}


@dataclass(frozen=True)
class Prediction:
    """Clocks of one SM for a block, by unit, the range predicted of them, and TFLOP/s of the whole GPU. loads: tma or
    cp.async; with "bulk dQ" where the backward kernel adds dQ by bulk reductions, "pairs of CTAs" where it runs on
    these, "two query tiles" where a CTA of the forward kernel has these, and "no polynomials" where it makes all
    exponentials by MUFU.EX2."""

    dim: int
    loads: str
    instructions: dict[str, int]
    clocks: dict[str, int]
    nearest: str
    predicted_clocks: tuple[int, int]
    predicted_tflops: tuple[int, int]


@dataclass(frozen=True)
class Persistence:
    """Predicted gain of persistent CTAs for a pass. tiles: of the pass; steps: of all of them; clocks: of the pass,
    with a CTA for each tile and with persistent ones; saved: part of the time."""

    dim: int
    mask: str
    tokens: int
    batch: int
    tiles: int
    steps: int
    clocks: tuple[int, int]
    saved: float


def main() -> int:
    """Prints a table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    forward = [
        predict_forward(dim, tma, tiles, polynomials)
        for dim in (64, 128)
        for tiles in (1, 2)
        for tma, polynomials in ((1, 1), (1, 0), (0, 1))
    ]
    backward = [predict(dim, tma, bulk) for dim in (64, 128) for tma, bulk in ((1, 0), (1, 1), (0, 0))]
    backward += [predict_pair(dim) for dim in (64, 128)]
    of_a_step = {one.dim: 2 * one.predicted_clocks[0] for one in forward if one.loads == "tma, two query tiles"}
    persistent = [
        predict_persistent(dim, mask, tokens, batch, clocks)
        for dim, clocks in of_a_step.items()
        for mask in ("full", "causal")
        for tokens, batch in ROWS
    ]
    everything: list[Any] = [*forward, *backward, *persistent]
    for one in everything:
        print(json.dumps(asdict(one)))
    if given.out:
        rates = {"sms": SMS, "clock_hz": CLOCK, "flops_a_clock": FLOPS, "l2_bytes_a_clock": round(L2, 1)}
        command = "python ci/benchmarks/blackwell_prediction.py --out " + str(given.out)
        made = {"command": command, "rates": rates, "latency_clocks": LATENCY, "peer_latency_clocks": PEER_LATENCY}
        made |= {"forward": [asdict(x) for x in forward], "backward": [asdict(x) for x in backward]}
        made |= {"clocks_beside_steps": BESIDE_STEPS, "persistent": [asdict(x) for x in persistent]}
        given.out.write_text(json.dumps(made, indent=1) + "\n")
    return 0


def predict(dim: int, tma: int, bulk: int) -> Prediction:
    """The backward kernel of a head dim, without a mask, atomic adds; tma, bulk: 1 where it loads by TMA, and where it
    adds dQ by bulk reductions."""
    variant = Variant("backward", "bfloat16", dim, products="tcgen05").with_tuning(tma=tma, bulk_dq=bulk)
    counts = instructions_by_role(sass(build(variant, "sm_100a").artifacts.CUBIN), backward_marks(dim, tma, bulk))
    clocks = clocks_of(dim, counts, bulk, shares_dq=blackwell_backward_tuning(variant).shares_dq)
    how = ("tma" if tma else "cp.async") + ", bulk dQ" * bulk
    return prediction(dim, how, counts, clocks, RANGE, products=5)


def predict_pair(dim: int) -> Prediction:
    """The backward kernel of pairs of CTAs, without a mask, atomic adds, loads by TMA."""
    variant = Variant("backward", "bfloat16", dim, tile_n=PAIR_KEYS, products="tcgen05")
    counts = instructions_by_role(sass(build(variant, "sm_100a").artifacts.CUBIN), pair_marks(dim))
    clocks = pair_clocks(dim, counts, shares_dq=pair_tuning(variant).shares_dq)
    return prediction(dim, "tma, pairs of CTAs", counts, clocks, RANGE, products=5)


def predict_forward(dim: int, tma: int, tiles: int, polynomials: int) -> Prediction:
    """The forward kernel of a head dim, without a mask; tma: 1 where it loads by TMA; tiles: of queries in a CTA;
    polynomials: pairs of exponentials that are, of each GROUP."""
    variant = Variant("forward", "bfloat16", dim, tiles * TILE, products="tcgen05")
    code = sass(build(variant.with_tuning(tma=tma, polynomials=polynomials), "sm_100a").artifacts.CUBIN)
    counts = forward_instructions(code, dim, tma, polynomials)
    clocks = forward_clocks(dim, counts, tiles, polynomials)
    how = ("tma" if tma else "cp.async") + ", two query tiles" * (tiles - 1) + ", no polynomials" * (not polynomials)
    return prediction(dim, how, counts, clocks, FORWARD_RANGE[dim], products=2)


def predict_persistent(dim: int, mask: str, tokens: int, batch: int, clocks: int) -> Persistence:
    """The forward pass with two query tiles in a CTA. clocks: of a step of a CTA, which has an SM to itself."""
    m_blocks, blocks = -(-tokens // PAIR_ROWS), -(-tokens // TILE)
    of_head = [min((i + 1) * PAIR_ROWS // TILE, blocks) if mask == "causal" else blocks for i in range(m_blocks)]
    steps = sorted(of_head * HEADS * batch, reverse=True)
    alone, rest = BESIDE_STEPS
    apart = makespan([n * clocks + alone for n in steps])
    together = makespan([n * clocks + rest for n in steps], alone - rest)
    saved = round(1 - together / apart, 3)
    return Persistence(dim, mask, tokens, batch, len(steps), sum(steps), (apart, together), saved)


def makespan(times: list[int], begin: int = 0, workers: int = SMS) -> int:
    """The time until all is done, where the next of the list goes to the worker that is free first; from `begin`
    on all are."""
    free = [begin] * workers
    for time in times:
        heapq.heappush(free, heapq.heappop(free) + time)
    return max(free)


def prediction(
    dim: int, loads: str, counts: dict[str, int], clocks: dict[str, int], factors: tuple[float, float], *, products: int
) -> Prediction:
    """The range that follows from the clocks of each unit. products: matrix products of a block."""
    nearest = max(clocks, key=lambda name: clocks[name])
    low, high = (round(clocks[nearest] * factor) for factor in factors)
    slow, fast = (round(products * 2 * TILE * TILE * dim * SMS * CLOCK / value / 1e12) for value in (high, low))
    return Prediction(dim, loads, counts, clocks, nearest, (low, high), (slow, fast))


def forward_clocks(dim: int, counts: dict[str, int], tiles: int, polynomials: int) -> dict[str, int]:
    """Clocks of one SM for a block of TILE x TILE of the forward kernel, by unit. tiles: blocks for
    which K and V are loaded once; polynomials: see predict_forward."""
    product, tile = 2 * TILE * TILE * dim / FLOPS, 2 * TILE * dim  # tile: bytes in 16 bits
    return {
        "products": round(2 * product),
        "exponentials": TILE * by_instruction(polynomials) // EXPONENTIALS,
        "shared memory": round((3 * tile + 2 * tile / tiles) / SHARED),
        "issue slots": counts["softmax"] + max(counts["load"] // tiles, counts["issue"]),
        "L2": round(2 * tile / L2 / tiles),
    }


def by_instruction(polynomials: int) -> int:
    """Exponentials of a row of TILE scores that are no polynomials."""
    return TILE - TILE // GROUP * polynomials


def clocks_of(dim: int, counts: dict[str, int], bulk: int, *, shares_dq: bool) -> dict[str, int]:
    """Clocks of one SM for a block of TILE x TILE, by unit. By bulk reductions dQ passes through shared memory."""
    product = 2 * TILE * TILE * dim / FLOPS
    tile, square = 2 * TILE * dim, 2 * TILE * TILE  # bytes in 16 bits
    read = 2 * (tile + tile) + 2 * tile + (square + tile)  # S and dP; dV and dK, whose A is in tensor memory; dQ
    statistics = 8 * 2 * (TILE // 2) // 4  # warps, LSE and delta, queries of a thread, four at a time
    adds = 2 * 4 * TILE * dim * bulk  # bytes of dQ, written and read
    # a scheduler's two softmax warps: half of their loop makes dS; its dQ warp's, before it adds, reads dQ
    make_ds, read_dq = counts["softmax"], counts["read dq"] if shares_dq else 0
    hand_overs = (4 if shares_dq else 3) * LATENCY
    return {
        "products": round(5 * product),
        "exponentials": TILE * TILE // EXPONENTIALS,
        "shared memory": round((read + square + 2 * tile + adds) / SHARED + statistics),
        "issue slots": 2 * counts["softmax"] + counts["dq"] + max(counts["load"], counts["issue"]),
        "L2": round((2 * tile + 4 * TILE * dim) / L2),
        "chain": round(3 * product + make_ds + read_dq + hand_overs),
    }


def pair_clocks(dim: int, counts: dict[str, int], *, shares_dq: bool) -> dict[str, int]:
    """Clocks of each SM of a pair for its block of TILE x TILE, by unit: NOTE [shares] of pairs/tuning.py."""
    product = 2 * TILE * TILE * dim / FLOPS
    tile, square = 2 * TILE * dim, 2 * TILE * TILE  # bytes in 16 bits
    # S and dP: a whole A, half of B; dV and dK: half of B; dQ: dS of half of the queries and all keys, as much of K
    read = 2 * (tile + tile // 2) + 2 * (tile // 2) + square + tile
    statistics = 8 * 2 * (TILE // 2) // 4
    read_dq = counts["read dq"] if shares_dq else 0
    return {
        "products": round(5 * product),
        "exponentials": TILE * TILE // EXPONENTIALS,
        "shared memory": round((read + square + 2 * tile) / SHARED + statistics),  # Q and dO by rows and by columns
        "issue slots": 2 * counts["softmax"] + counts["dq"] + max(counts["load"], counts["issue"]),
        "L2": round((2 * tile + 4 * TILE * dim // 2) / L2),
        "chain": round(3 * product + counts["softmax"] + read_dq + (4 if shares_dq else 3) * PEER_LATENCY),
    }


def sass(cubin: bytes) -> list[tuple[int, str]]:
    """(address, instruction) of a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([cuobjdump(), "-sass", file.name], capture_output=True, text=True, check=True).stdout
    return [(int(at, 16), what) for at, what in re.findall(r"/\*([0-9a-f]{4,5})\*/ +(\S.*?) *;", text)]


def cuobjdump() -> str:
    """The program. Raises FileNotFoundError where there is none."""
    if found := os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump"):
        return found
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not bundled.exists():
        raise FileNotFoundError("cuobjdump: not on the path, nor in Triton; set $CUOBJDUMP")
    return str(bundled)


Marks = dict[str, tuple[str, int]]  # role → an instruction, and how often its work for a block takes it


def backward_marks(dim: int, tma: int, bulk: int) -> Marks:
    """Those of the backward kernel of a CTA."""
    return {
        "softmax": ("MUFU.EX2", HALF),  # one for each query of a thread
        # so many columns of all rows, or four of a row
        "dq": ("UBLKRED", dim // DQ_COLUMNS) if bulk else ("REDG", dim // 4),
        # 128 bytes of each row; or eight elements by each lane, and LSE or delta
        "load": ("UTMALDG", dim // 64) if tma else ("LDGSTS", TILE * dim // 8 // 32 + 1),
        "issue": ("UTCHMMA", 2 * (dim // 16) + 3 * (TILE // 16)),  # sixteen along the dimension that is summed
    }


def pair_marks(dim: int) -> Marks:
    """Those of the backward kernel of pairs, loads by TMA: dQ has half of the columns, and is summed over 256 keys."""
    return {
        "softmax": ("MUFU.EX2", HALF),
        "dq": ("REDG", dim // 8),
        "load": ("UTMALDG", dim // 64 + 2),  # dO by rows, dO and Q by columns
        "issue": ("UTCHMMA", 2 * (dim // 16) + 2 * (TILE // 16) + PAIR_KEYS // 16),
    }


def instructions_by_role(code: list[tuple[int, str]], of_role: Marks) -> dict[str, int]:
    """Instructions in the loop over blocks of each role: the smallest loop that has an instruction as often as the
    role's work for a block takes; of loads by TMA the shortest way through it. "read dq": those of a dQ warp before its
    first add. Raises ValueError where there is none."""
    found = {}
    for role, (mark, times) in of_role.items():
        loops = [
            [(at, what) for at, what in code if begin <= at <= end]
            for begin, end in loops_of(code)
            if sum(mark in what for at, what in code if begin <= at <= end) == times
        ]
        lengths = [sum(not what.startswith("NOP") for _, what in loop) for loop in loops]
        if mark == "UTMALDG":
            ways = [shortest_way(code, loop, mark, times) for loop in loops_of(code)]
            lengths = [way for way in ways if way]
        if not lengths:
            raise ValueError(f"no loop with {times} {mark}: the kernel is not as this script expects")
        found[role] = min(lengths)
        if role == "dq":
            loop = min(loops, key=len)
            found["read dq"] = next(i for i, (_, what) in enumerate(loop) if "STS" in what or mark in what)
    return found


def forward_instructions(code: list[tuple[int, str]], dim: int, tma: int, polynomials: int) -> dict[str, int]:
    """Instructions of each role of the forward kernel for a block: of the shortest way through its loop on which it
    does the work of one block, or of two, where the loop is unrolled or issues products of two query tiles. Raises
    ValueError where there is none."""
    of_role = {
        "softmax": ("MUFU.EX2", by_instruction(polynomials)),  # a row
        "load": ("UTMALDG", dim // 64) if tma else ("LDGSTS", TILE * dim // 8 // 32),  # 128 bytes of each row
        "issue": ("UTCHMMA", dim // 16 + TILE // 16),
    }
    found = {}
    for role, (mark, times) in of_role.items():
        ways = [
            (shortest_way(code, loop, mark, blocks * times), blocks) for loop in loops_of(code) for blocks in (1, 2)
        ]
        counts = [-(-count // blocks) for count, blocks in ways if count]
        if not counts:
            raise ValueError(f"no loop with {times} {mark}: the kernel is not as this script expects")
        found[role] = min(counts)
    return found


def shortest_way(code: list[tuple[int, str]], loop: tuple[int, int], mark: str, times: int) -> int | None:
    """Instructions on the shortest way from the first to the last address of a loop that passes a mark so often; None
    where there is no such way."""
    place = {at: i for i, (at, _) in enumerate(code)}
    first, last = place[loop[0]], place[loop[1]]
    queue = [(0, first, 0)]
    seen: set[tuple[int, int]] = set()
    while queue:
        cost, i, passed = heapq.heappop(queue)
        if (i, passed) in seen:
            continue
        seen.add((i, passed))
        what = code[i][1]
        cost, passed = cost + (not what.startswith("NOP")), passed + (mark in what)
        if i == last and passed == times:
            return cost
        if i == last or passed > times:
            continue
        target = re.search(r"\bBRA\S* .*?0x([0-9a-f]+)", what)
        if target and int(target[1], 16) in place:
            heapq.heappush(queue, (cost, place[int(target[1], 16)], passed))
        if i + 1 < len(code) and not re.match(r"(BRA\S* 0x|EXIT)", what):
            heapq.heappush(queue, (cost, i + 1, passed))
    return None


def loops_of(code: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """(first, last address) of every branch that goes back."""
    found = []
    for at, what in code:
        target: Any = re.search(r"\bBRA\S* .*?0x([0-9a-f]+)", what)
        if target and int(target[1], 16) < at:
            found.append((int(target[1], 16), at))
    return found


if __name__ == "__main__":
    sys.exit(main())
