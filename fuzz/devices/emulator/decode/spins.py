"""Finds the value that a spin waits for: the one that it compares with what it reads, in the code of the loop.

A spin is a backward branch. The first load behind its target reads what is waited for; a `setp` of what was loaded
guards the branch, so that it is taken until the two are equal. That gives the place of the register or constant
that is returned here, for reports and timelines: nothing that is executed depends on it.
"""

from __future__ import annotations

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Program

LOOKED_AT = 12  # micro-operations of a loop


def wanted_by(program: Program) -> np.ndarray:
    """Per micro-operation that a spin goes back to: the place of the value that ends it; op.ABSENT where none is
    known."""
    found = np.full(len(program.code), op.ABSENT, dtype=np.int64)
    for at in np.flatnonzero(program.code[:, 0] == op.BRANCH).tolist():
        target = int(program.code[at, 2])
        if 0 < at - target <= LOOKED_AT:
            found[target] = _compared(program, target, at)
    return found


def _compared(program: Program, start: int, branch: int) -> int:
    """The other operand of `setp.ne value, other`, where the branch is taken if they differ."""
    guard, loaded = int(program.code[branch, 1]), None
    for at in range(start, branch):
        row, name = program.code[at].tolist(), program.source[at].name
        if loaded is None and row[0] == op.LOAD:
            loaded = row[5]
        elif loaded is not None and name.startswith(("setp.ne.", "setp.eq.")):
            unequal = name.startswith("setp.ne.")
            if guard == 2 * row[2] + (not unequal) and loaded in row[3:5]:
                return row[4] if loaded == row[3] else row[3]
    return op.ABSENT
