"""Settings of a launch on the emulated GPU, as a plain value: what runs, in which order, and what is looked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

ARCHES = ("sm_80", "sm_90a", "sm_100a")  # that kernels are compiled for
WARP_SCHEDULES = ("in_order", "random", "oldest_last", "greedy")
DISPATCHES = ("in_order", "reversed", "permuted")
AS_WRITTEN = "as_written"
CONTRACTIONS = (AS_WRITTEN, "first", "second")
TRANSLATE = ("auto", "always", "never")
ALL_CHECKS = frozenset(
    {
        "races",
        "uninitialised",
        "wrapped",
        "unordered_adds",
        "warpgroups",
        "equal_writes",
        "copies_at_exit",
        "tensor_fences",
        "tensor_waits",
        "volatile",
        "lanes",
        "warpgroup_registers",
        "wgmma_warps",
    }
)
# few kernels promise an order; compilers write no such fences; kernels leave such waits out; PTX orders volatile
# accesses; warps run in step mostly; FlashAttention-4 gives warps of a warpgroup different numbers of registers
DEFAULT_CHECKS = ALL_CHECKS - {
    "unordered_adds",
    "tensor_fences",
    "tensor_waits",
    "volatile",
    "lanes",
    "warpgroup_registers",
}
BLOCK_CHECKS = DEFAULT_CHECKS - {"equal_writes"}  # of an `emulated` block: Triton has several warps write one value


@dataclass(frozen=True)
class LaunchConfig:
    """An emulated GPU, and what to look for while kernels run on it. Raises ValueError for a setting out of range.

    resident_ctas  CTAs resident at once
    ctas_per_sm    CTAs that share the 512 columns of a tensor memory (Blackwell); 1: each has its own
    warp_schedule  which warp goes on next: 'in_order' (round robin), 'random', 'oldest_last' (a warp of the CTA that
                   started last, so that the oldest CTA starves) or 'greedy' (the same warp until it waits)
    seed           of the random schedule, and of a permuted dispatch
    dispatch       'in_order', 'reversed' or 'permuted': the order in which CTAs of the grid become resident
    strict         raise EmulationError when a run finds something; else the report says so
    budget         micro-operations of a warp, summed over a launch, after which it is ended
    patience       seconds of the processor that a launch gets in a loop whose end nothing shows (execute/watch.py), and
                   after an access out of bounds; math.inf: no loop counts as endless
    checks         what is looked for: 'races', 'uninitialised', 'wrapped' (32-bit arithmetic that wrapped in an
                   address); 'warpgroups' (registers of wgmma used before wait_group or without wgmma.fence, and warps
                   of a warpgroup that do not issue the same); 'unordered_adds' (beside 'races', and only when asked
                   for): atomic sums of floats whose order nothing fixes, for kernels that promise the same bits;
                   'equal_writes' (beside 'races'): two writes of one value that nothing orders count as a race too;
                   'copies_at_exit': bulk copies that still use shared memory when their CTA exits;
                   'tensor_fences' (beside 'races', and only when asked for: neither Triton nor CuTe DSL writes these):
                   tensor memory used after another warp's tcgen05 instruction, or after a wait for a tcgen05.commit,
                   without tcgen05.fence::after_thread_sync;
                   'tensor_waits' (beside 'races', and only when asked for: FlashAttention-4 leaves them out): a
                   tcgen05.ld is complete at its tcgen05.wait::ld alone, and not where one of its registers is used;
                   'volatile' (beside 'races', and only when asked for): volatile accesses race as ordinary ones do,
                   which is C++'s rule; by PTX they are relaxed ones of scope sys, and do not race with each other. A
                   volatile or atomic read needs the writer's fence only: none of its own after the flag that it saw;
                   'lanes' (beside 'races', and only when asked for): two lanes of one warp race where nothing between
                   their accesses has them wait for each other: __syncwarp or another barrier; a fence; in shared memory
                   also other instructions with .sync;
                   'warpgroup_registers' (only when asked for: FlashAttention-4 does otherwise): warps of a warpgroup
                   that do not execute the same setmaxnreg, or with no barrier between two of them;
                   'wgmma_warps': a warp's wgmma and wgmma.wait_group are about its own part of a product. Without it a
                   product begins when all warps of the warpgroup have executed wgmma.fence, and is done for all of
                   them at once, which PTX does not say and some kernels rely on.
                   Bounds, alignment, barriers and deadlocks are always looked at
    translate      machine code for the kernel's straight runs: 'auto' (where it is in the cache folder, and where the
                   kernel has run for longer than compiling takes), 'always' or 'never'; results are the same. Where it
                   is not given, the variable ATTNFUZZ_TRANSLATE is
    contraction    products and sums of the PTX that its compiler may fuse (ptx_contraction.py): 'as_written', none is;
                   'first' or 'second', all are, and of two products in one sum the first or the second one
    trace          keep a timeline of every launch in the report, see report/timeline.py
    """

    resident_ctas: int = 4
    ctas_per_sm: int = 1
    warp_schedule: str = "in_order"
    seed: int = 1
    dispatch: str = "in_order"
    strict: bool = True
    budget: int = 1 << 40
    patience: float = 10.0
    checks: frozenset[str] = DEFAULT_CHECKS
    translate: str = field(default_factory=lambda: os.environ.get("ATTNFUZZ_TRANSLATE", "auto"))
    contraction: str = AS_WRITTEN
    trace: bool = False

    def __post_init__(self) -> None:
        if self.resident_ctas < 1:
            raise ValueError(f"resident_ctas must be at least 1, not {self.resident_ctas}")
        if self.ctas_per_sm < 1:
            raise ValueError(f"ctas_per_sm must be at least 1, not {self.ctas_per_sm}")
        if not self.patience > 0:
            raise ValueError(f"patience: must be a positive number of seconds, not {self.patience}")
        if self.warp_schedule not in WARP_SCHEDULES:
            raise ValueError(f"warp_schedule must be one of {', '.join(WARP_SCHEDULES)}, not {self.warp_schedule!r}")
        if self.dispatch not in DISPATCHES:
            raise ValueError(f"dispatch must be one of {', '.join(DISPATCHES)}, not {self.dispatch!r}")
        if self.translate not in TRANSLATE:
            raise ValueError(f"translate must be one of {', '.join(TRANSLATE)}, not {self.translate!r}")
        if self.contraction not in CONTRACTIONS:
            raise ValueError(f"contraction must be one of {', '.join(CONTRACTIONS)}, not {self.contraction!r}")
        if not frozenset(self.checks) <= ALL_CHECKS:
            raise ValueError(f"checks must be among {', '.join(sorted(ALL_CHECKS))}, not {sorted(self.checks)}")
