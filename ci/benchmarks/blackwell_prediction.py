"""Predicts the speed of the backward kernel by tcgen05 on a B200, which no run has tested, from its instructions.

    python ci/benchmarks/blackwell_prediction.py [--out ci/results/blackwell_prediction_host.json]

Needs no GPU: the kernels without a mask are compiled for sm_100a, and cuobjdump (Triton's, or $CUOBJDUMP) lists SASS.
For each head dim, clocks of one SM for a block of 128 x 128, bfloat16, long sequences, that each unit takes alone:

    products       five, at the datasheet's dense bf16 rate
    exponentials   16 a clock (CUDA Programming Guide, "Arithmetic Instructions", compute capability 10.0)
    shared memory  bytes that products read and that loads and dS write, at 128 a clock; LSE and delta, one read of 16
                   bytes by a warp a clock
    issue slots    of one scheduler: two softmax warps, a dQ warp, and the busiest other one. Instructions of the loop
                   of each role, each counted once: as if every block were masked, and every wait over at once
    L2             bytes of Q and dO read and of dQ added, at a rate that is a guess: twice that at which Hopper's
                   kernel reads K and V on an H100
    chain          what one step waits for before the next may begin: dP, then dS by the softmax warps, dK and dQ, and,
                   where dQ takes dP's columns, reading dQ out. Their parts of the loop in issue slots, and LATENCY
                   clocks at each of the hand-overs

The prediction is the largest of them to 1.6 times that: what the kernel by wgmma takes of its own largest column on an
H100 (docs/performance/index.md, "What bounds them").
"""

from __future__ import annotations

import argparse
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

from kernels.blocksparse.backward.blackwell.tuning import HALF, blackwell_backward_tuning  # noqa: E402
from kernels.blocksparse.compile.build import build  # noqa: E402
from kernels.blocksparse.spec.variant import Variant  # noqa: E402

SMS, CLOCK, FLOPS = 148, 1.856e9, 8192  # multiprocessors; Hz; dense bf16 operations a clock and SM: 2,250 TFLOP/s
EXPONENTIALS, SHARED = 16, 128  # a clock and SM; bytes a clock and SM
L2 = 2 * 5.2e12 / SMS / CLOCK  # bytes a clock and SM: a guess
TILE = 128
LATENCY = 100  # clocks of an mbarrier's phase, a commit or a round trip to tensor memory: a guess
RANGE = (1.0, 1.6)  # of clocks over the largest column


@dataclass(frozen=True)
class Prediction:
    """Clocks of one SM for a block, by unit, the range predicted of them, and TFLOP/s of the whole GPU."""

    dim: int
    instructions: dict[str, int]
    clocks: dict[str, int]
    nearest: str
    predicted_clocks: tuple[int, int]
    predicted_tflops: tuple[int, int]


def main() -> int:
    """Prints a table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = [predict(dim) for dim in (64, 128)]
    for one in found:
        print(json.dumps(asdict(one)))
    if given.out:
        rates = {"sms": SMS, "clock_hz": CLOCK, "flops_a_clock": FLOPS, "l2_bytes_a_clock": round(L2, 1)}
        command = "python ci/benchmarks/blackwell_prediction.py --out " + str(given.out)
        made = {"command": command, "rates": rates, "latency_clocks": LATENCY, "backward": [asdict(x) for x in found]}
        given.out.write_text(json.dumps(made, indent=1) + "\n")
    return 0


def predict(dim: int) -> Prediction:
    """The backward kernel of a head dim, without a mask, atomic adds."""
    variant = Variant("backward", "bfloat16", dim, products="tcgen05")
    counts = instructions_by_role(sass(build(variant, "sm_100a").artifacts.CUBIN), dim)
    clocks = clocks_of(dim, counts, shares_dq=blackwell_backward_tuning(variant).shares_dq)
    nearest = max(clocks, key=lambda name: clocks[name])
    low, high = (round(clocks[nearest] * factor) for factor in RANGE)
    slow, fast = (round(5 * 2 * TILE * TILE * dim * SMS * CLOCK / value / 1e12) for value in (high, low))
    return Prediction(dim, counts, clocks, nearest, (low, high), (slow, fast))


def clocks_of(dim: int, counts: dict[str, int], *, shares_dq: bool) -> dict[str, int]:
    """Clocks of one SM for a block of TILE x TILE, by unit."""
    product = 2 * TILE * TILE * dim / FLOPS
    tile, square = 2 * TILE * dim, 2 * TILE * TILE  # bytes in 16 bits
    read = 2 * (tile + tile) + 2 * tile + (square + tile)  # S and dP; dV and dK, whose A is in tensor memory; dQ
    statistics = 8 * 2 * (TILE // 2) // 4  # warps, LSE and delta, queries of a thread, four at a time
    # a scheduler's two softmax warps: half of their loop makes dS; its dQ warp's, before it adds, reads dQ
    make_ds, read_dq = counts["softmax"], counts["dq"] // 2 if shares_dq else 0
    hand_overs = (4 if shares_dq else 3) * LATENCY
    return {
        "products": round(5 * product),
        "exponentials": TILE * TILE // EXPONENTIALS,
        "shared memory": round((read + square + 2 * tile) / SHARED + statistics),
        "issue slots": 2 * counts["softmax"] + counts["dq"] + max(counts["load"], counts["issue"]),
        "L2": round((2 * tile + 4 * TILE * dim) / L2),
        "chain": round(3 * product + make_ds + read_dq + hand_overs),
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


def instructions_by_role(code: list[tuple[int, str]], dim: int) -> dict[str, int]:
    """Instructions in the loop over blocks of each role: the smallest loop that has an instruction as often as the
    role's work for a block takes. Raises ValueError where there is none."""
    of_role = {
        "softmax": ("MUFU.EX2", HALF),  # one for each query of a thread
        "dq": ("REDG", dim // 4),  # four columns of a row
        "load": ("LDGSTS", TILE * dim // 8 // 32 + 1),  # eight elements by each lane; LSE or delta
        "issue": ("UTCHMMA", 2 * (dim // 16) + 3 * (TILE // 16)),  # sixteen along the dimension that is summed
    }
    found = {}
    for role, (mark, times) in of_role.items():
        loops = [
            sum(begin <= at <= end and not what.startswith("NOP") for at, what in code)
            for begin, end in loops_of(code)
            if sum(mark in what for at, what in code if begin <= at <= end) == times
        ]
        if not loops:
            raise ValueError(f"no loop with {times} {mark}: the kernel is not as this script expects")
        found[role] = min(loops)
    return found


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
