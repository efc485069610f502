"""Loops of a kernel, and what ends them: read from the code, for the report of one that does not end.

A loop is a backward branch and the micro-operations from its target up to it. A loop whose range is inside another's is
nested; where a `continue` makes several branches of one loop, the last of them is the loop around the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Program
from fuzz.devices.emulator.ptx import Instruction

_COMPARISON = re.compile(r"setp\.(?:eq|ne|lt|le|gt|ge|lo|ls|hi|hs)\.([bsu])(16|32|64)$")
_FROM_MEMORY = re.compile(r"(?!ld\.(param|const)\b)(ld|ldu|ldmatrix|atom|tex|tld4|suld|tcgen05\.ld|mbarrier)\b")
BEHIND = 12  # registers that the origin of a value is looked for in
Compared = tuple[str | int, str | int]


@dataclass(frozen=True)
class Exit:
    """A way out of a loop, at micro-operation `pc`.

    compared  the two registers or numbers whose comparison decides; None where it is not one of two integers
    always    every trip comes to it
    fixed     nothing in the loop writes what decides
    counted   what decides is computed from registers alone: a number that the loop reads from memory may rise by one in
              each trip and end it at once
    bits      of the integers; signed: compared as signed ones
    """

    pc: int
    compared: Compared | None
    always: bool
    fixed: bool
    counted: bool = False
    bits: int = 32
    signed: bool = True


@dataclass(frozen=True)
class Loop:
    """The loop of the backward branch at micro-operation `branch`, which goes to `head`."""

    branch: int
    head: int
    exits: tuple[Exit, ...]

    @property
    def endless(self) -> bool:
        """True where a second trip shows that the lanes that go round never leave."""
        return all(way.always and way.fixed for way in self.exits)


def number_loops(code: np.ndarray) -> None:
    """Gives the backward branches of a kernel (int32 (n, 16)) their loops' numbers, see opcodes.BRANCH: in the order of
    the branches, so that those inside of a loop come right before it."""
    at = _backward(code)
    code[at, 3] = np.arange(len(at))
    code[at, 4] = np.searchsorted(at, code[at, 2])


def loop_count(program: Program) -> int:
    """Loops of a kernel."""
    return len(_backward(program.code))


def loops_of(program: Program) -> tuple[Loop, ...]:
    """The loops of a kernel, by their numbers."""
    code = program.code
    targets = set(code[code[:, 0] == op.BRANCH, 2].tolist())
    found = []
    for branch in _backward(code).tolist():
        head = int(code[branch, 2])
        body = _Body(program, head, branch, targets)
        found.append(Loop(branch, head, tuple(body.exits())))
    return tuple(found)


def loads_behind(program: Program, register: str) -> list[Instruction]:
    """The loads that a register's value is made of, where one instruction alone writes each register on the way; empty
    where that is not so, or after many instructions."""
    found: dict[int, Instruction] = {}
    todo, seen = [register], {register}
    while todo:
        name = todo.pop()
        writers = {id(i): i for i in program.source if name in written(i)}
        if len(writers) != 1 or len(seen) > BEHIND:
            return []
        ((key, i),) = writers.items()
        if i.name.startswith("ld."):
            found[key] = i
            continue
        sources = {x for part in i.operands[1:] for x in _names(part) if x in program.places} - seen
        seen |= sources
        todo += sources
    return sorted(found.values(), key=lambda i: i.line)


def written(i: Instruction) -> set[str]:
    """Registers that an instruction may write."""
    return set(_names(i.operands[0])) if i.operands else set()


def _names(x: object) -> Iterator[str]:
    if isinstance(x, str):
        yield x
    elif isinstance(x, tuple):
        for part in x:
            yield from _names(part)


def _backward(code: np.ndarray) -> np.ndarray:
    at = np.flatnonzero(code[:, 0] == op.BRANCH)
    return at[code[at, 2] <= at]


class _Body:
    """The micro-operations of a loop. targets: of all branches of the kernel."""

    def __init__(self, program: Program, head: int, branch: int, targets: set[int]) -> None:
        self.program, self.head, self.branch = program, head, branch
        self.source = program.source
        rows = program.code[head : branch + 1]
        jumps = {head + i for i in np.flatnonzero(np.isin(rows[:, 0], (op.BRANCH, op.EXIT, op.TRAP))).tolist()}
        inside = range(head, branch + 1)
        self.leaves = [
            pc for pc in sorted(jumps)
            if pc == branch or program.code[pc, 0] != op.BRANCH or int(program.code[pc, 2]) not in inside
        ]  # fmt: skip
        joins = [pc for pc in targets if head < pc <= branch]
        self.straight = min([branch, *(pc for pc in jumps), *joins])  # every trip comes up to here
        self.writers: dict[str, list[Instruction]] = {}
        for i in {id(self.source[pc]): self.source[pc] for pc in inside}.values():
            for register in written(i):
                self.writers.setdefault(register, []).append(i)
        self.written = set(self.writers)

    def exits(self) -> Iterator[Exit]:
        for pc in self.leaves:
            guard = self.source[pc].guard
            if pc == self.branch and guard is None:
                continue
            yield self._exit(pc, guard)

    def _exit(self, pc: int, guard: str | None) -> Exit:
        always = pc == self.branch or pc <= self.straight
        if guard is None:
            return Exit(pc, None, False, False)
        if guard not in self.written:
            return Exit(pc, None, always, True)
        decides = next((i for i in self.source[self.head : pc][::-1] if guard in written(i)), None)
        kind = _COMPARISON.match(decides.name) if decides is not None else None
        if decides is None or kind is None or decides.operands[0] != guard or len(decides.operands) != 3:
            return Exit(pc, None, always, False)
        a, b = (x if isinstance(x, int) else str(x) for x in decides.operands[1:3])
        if any(isinstance(x, str) and x not in self.program.places for x in (a, b)):
            return Exit(pc, None, always, False)
        fixed = not {a, b} & self.written and decides.guard is None
        return Exit(pc, (a, b), always, fixed, self._is_counted(decides), max(32, int(kind[2])), kind[1] == "s")

    def _is_counted(self, decides: Instruction) -> bool:
        """True where nothing that the loop computes what decides from comes from memory."""
        todo, seen = [decides], {id(decides)}
        while todo:
            i = todo.pop()
            if _FROM_MEMORY.match(i.name):
                return False
            sources = {x for part in (i.guard, *i.operands[1:]) for x in _names(part)}
            for j in (writer for x in sources for writer in self.writers.get(x, ())):
                if id(j) not in seen:
                    seen.add(id(j))
                    todo.append(j)
        return True
