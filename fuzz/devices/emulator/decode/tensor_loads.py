"""Finds where the registers of a tcgen05.ld are first used, in each block of instructions.

PTX keeps the order of a tcgen05.ld and an instruction that uses one of its registers, also without tcgen05.wait::ld
(docs/explanation/tensor_memory.md), so after that instruction the load is complete.
"""

from __future__ import annotations

import re

from fuzz.devices.emulator.decode.wgmma_hazards import names
from fuzz.devices.emulator.ptx import Instruction, Kernel

MOVE = re.compile(r"mov\.[bfus](16|32|64)")
ENDS = ("bra", "ret", "exit")


def is_load(i: Instruction) -> bool:
    return i.name.startswith("tcgen05.ld.")


def first_uses(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """By index of an instruction: the indices of the loads before it whose registers it is the first of its block to
    use. A register that one is moved to, whole or in part, counts as it."""
    found: dict[int, tuple[int, ...]] = {}
    of: dict[str, set[int]] = {}  # register → the loads that it holds a value of
    seen: set[int] = set()
    starts = set(kernel.labels.values())
    for at, i in enumerate(kernel.instructions):
        if at in starts:
            seen = set()
        if is_load(i):
            for name in names(i.operands[0]):
                of.setdefault(name, set()).add(at)
        elif of and MOVE.fullmatch(i.name):
            sources = [of[name] for name in names(i.operands[1]) if name in of]
            for name in names(i.operands[0]) if sources else ():
                of.setdefault(name, set()).update(*sources)
        elif of:
            used = set().union(*(of.get(name, ()) for name in names(i.operands))) - seen
            if used:
                found[at] = tuple(sorted(used))
                seen |= used
        if i.name.startswith(ENDS):
            seen = set()
    return found
