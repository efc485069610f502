"""Does a wgmma of a Hopper GPU begin, and end, for all four warps of its warpgroup at once?

    python ci/check_wgmma_warps.py --out ci/results/wgmma_warps_sm_90.json     on a machine with an H100 or H200
    python ci/check_wgmma_warps.py --emulated                                 the emulator's answer, with and without
                                                                              its check `wgmma_warps`

PTX has wgmma.mma_async and wgmma.wait_group speak of the executing warp alone. Kernels exist that rely on more. One
warpgroup runs one product (m64n64k16, bf16); one of its warps, the late one, is held up for 100,000 cycles at one
place, and the other three go on. Three questions for each late warp and place:

waits        was the late warp at its wgmma before any other warp was past its own wait_group? Asked where the delay
             comes before the wgmma.
sees_late    the late warp writes its share of the operands after the delay, without a barrier: do the other warps'
             results have what it wrote?
keeps_early  the other warps overwrite the operands after their own wait_group: is the late warp's result as if they had
             not?

'waits' is measured by the multiprocessor's clock. Every row is asked `--repeats` times; a row's answer is yes or no
only where all repeats agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.devices.emulator.conformance.gpu_process import GpuProcess
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.conformance.wgmma import Wgmma, kernel

CYCLES = 100_000
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
FILLED = "fence.proxy.async; bar.sync 0;"  # what follows the writes of the operands
BARRIER = "bar.sync 0;"
PLACES = ("before its writes", "before wgmma.fence", "before the wgmma", "before the commit", "before the wait")
OPERANDS = {"both in shared memory": Wgmma(64), "A in registers": Wgmma(64, a=None)}
ANSWERS = ("waits", "sees_late", "keeps_early")
Run = Callable[[MicroKernel], np.ndarray]


@dataclass(frozen=True)
class Question:
    """A kernel to build. late: the warp that is held up, -1 for none; place: of PLACES; barrier: does one follow the
    writes of the operands?; overwrites: do the other warps write zeros over the operands after their wait?"""

    operands: str
    late: int = -1
    place: str = PLACES[0]
    barrier: bool = True
    overwrites: bool = False

    def kernel(self) -> MicroKernel:
        """The product of conformance/wgmma.py with a delay, and two more words a thread: the clock right before the
        wgmma and right after wait_group."""
        base = kernel("wgmma of a late warp", OPERANDS[self.operands])
        (image, n_d) = (_image_words(OPERANDS[self.operands]), base.words)
        zeros = " ".join(f"st.shared.b32 [%sp+{4 * i}], 0;" for i in range(image))
        text = base.text
        product = next(line for line in text.split("\n") if line.startswith("wgmma.mma_async"))
        fill = next(line for line in text.split("\n") if line.startswith("ld.global.b32 %x, [%a+0]; st.shared"))
        after = f"{zeros} fence.proxy.async;"
        if self.overwrites:
            after = f"setp.eq.u32 %late, %warp, {self.late}; @%late bra.uni $kept; {after} $kept:"
        changes = (
            (f"mul.wide.u32 %at, %index, {4 * n_d};", f"mul.wide.u32 %at, %index, {4 * (n_d + 2)};"),
            ("mov.u32 %thread, %tid.x;", "mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5;"),
            (".reg .pred %q;", ".reg .pred %q, %late, %more; .reg .b64 %c0, %c1; .reg .b32 %warp, %t0, %t1;"),
            (FILLED, "fence.proxy.async; " + BARRIER * self.barrier),
            (fill, f"{zeros} fence.proxy.async; {BARRIER} {self.delay(PLACES[0])}\n{fill}"),
            (FENCE, f"{self.delay(PLACES[1])} {FENCE} {self.delay(PLACES[2])} mov.u32 %t0, %clock;"),
            (product, f"{product} {self.delay(PLACES[3])}"),
            (f"{COMMIT} {WAIT}", f"{COMMIT} {self.delay(PLACES[4])} {WAIT} mov.u32 %t1, %clock;"
             f" {after * self.overwrites} st.global.b32 [%o+{4 * n_d}], %t0; st.global.b32 [%o+{4 * n_d + 4}], %t1;"),
        )  # fmt: skip
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return replace(base, text=text, words=n_d + 2)

    def delay(self, place: str) -> str:
        """CYCLES of the clock, for the late warp alone, at its place."""
        if self.late < 0 or place != self.place:
            return ""
        label = f"$at{PLACES.index(place)}"
        return (
            f"setp.ne.u32 %late, %warp, {self.late}; @%late bra.uni {label}; mov.u64 %c0, %clock64;"
            f" {label}_more: mov.u64 %c1, %clock64; sub.s64 %c1, %c1, %c0; setp.lt.s64 %more, %c1, {CYCLES};"
            f" @%more bra.uni {label}_more; {label}:"
        )


def _image_words(p: Wgmma) -> int:
    """Words of shared memory that a thread writes."""
    return ((p.a.size(64) if p.a else 0) + p.b.size(p.n)) // 128 // 4


def by_warp(answer: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(results (4, 32, words), clock before the wgmma (4,), after the wait (4,)) of an answer (128, words + 2)."""
    warps = answer.reshape(4, 32, -1)
    return warps[:, :, :-2], warps[:, 0, -2], warps[:, 0, -1]


def equal_warps(answer: np.ndarray, whole: np.ndarray) -> list[bool]:
    """For each warp: are its results those of `whole`?"""
    return [bool((a == b).all()) for a, b in zip(by_warp(answer)[0], by_warp(whole)[0], strict=True)]


def agreed(answers: list[bool]) -> bool | str:
    """The answer of all repeats, or how many said yes."""
    return answers[0] if len(set(answers)) == 1 else f"{sum(answers)} of {len(answers)}"


def rows(run: Run, repeats: int, clock: bool = True) -> Iterator[dict[str, object]]:
    """A row for each kind of operands, place and late warp. Raises RuntimeError where the product without a delay is
    not the same twice."""
    for operands in OPERANDS:
        whole = run(Question(operands).kernel())
        if not all(equal_warps(run(Question(operands).kernel()), whole)):
            raise RuntimeError("the product without a delay differs from run to run")
        for place in PLACES:
            for late in range(4):
                others = [w for w in range(4) if w != late]
                asked = Question(operands, late, place)
                waits, sees, keeps = [], [], []
                for _ in range(repeats):
                    _, issued, done = by_warp(run(asked.kernel()))
                    first_done = min((int(done[w]) - int(issued[late])) % 2**32 for w in others)
                    waits.append(first_done < 2**31)
                    if place in PLACES[:1]:
                        same = equal_warps(run(replace(asked, barrier=False).kernel()), whole)
                        sees.append(all(same[w] for w in others))
                    keeps.append(equal_warps(run(replace(asked, overwrites=True).kernel()), whole)[late])
                row: dict[str, object] = {"operands": operands, "place": place, "late_warp": late}
                row |= {"waits": agreed(waits)} if clock and place in PLACES[:3] else {}
                row |= {"sees_late": agreed(sees)} if sees else {}
                yield row | {"keeps_early": agreed(keeps)}


def emulated(checks: frozenset[str]) -> Run:
    """The emulator as the device; findings are not raised."""
    import torch

    from fuzz.devices.emulator import Emulator

    device = Emulator(strict=False, checks=checks, warp_schedule="greedy")

    def run(k: MicroKernel) -> np.ndarray:
        given = torch.from_numpy(k.inputs[0].reshape(-1).view("int32"))
        out = torch.zeros(k.threads * k.words, dtype=torch.int32)
        device.load_ptx(k.text).launch("k", (1,), (128,), [given, out])
        return out.numpy().view("uint32").reshape(k.threads, k.words)

    return run


def table(found: list[dict[str, object]]) -> str:
    """A line for each kind of operands and place; the four late warps side by side."""
    lines = []
    for operands in OPERANDS:
        for place in PLACES:
            ours = [r for r in found if (r["operands"], r["place"]) == (operands, place)]
            answers = [f"{q} {' '.join(str(r[q]) for r in ours)}" for q in ANSWERS if q in ours[0]]
            lines.append(f"{operands:<22} {place:<20} {'; '.join(answers)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="OUT.json")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--emulated", action="store_true", help="ask the emulator, with and without `wgmma_warps`")
    args = parser.parse_args()
    if args.emulated:
        from fuzz.devices.emulator.config import DEFAULT_CHECKS

        for name, checks in (("with wgmma_warps", DEFAULT_CHECKS), ("without", DEFAULT_CHECKS - {"wgmma_warps"})):
            print(f"{name}\n{table(list(rows(emulated(frozenset(checks)), 1, clock=False)))}")
        return 0
    gpu = GpuProcess(limit_s=30)
    found = list(rows(lambda k: gpu.ask("run", k), args.repeats))
    print(table(found))
    if args.out:
        result = {
            "what": "one warp of a warpgroup is late by 100,000 cycles at a wgmma: do the others wait for it?",
            "device": gpu.name, "arch": gpu.arch, "repeats": args.repeats,
            "command": "python ci/check_wgmma_warps.py " + " ".join(sys.argv[1:]), "rows": found,
        }  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
