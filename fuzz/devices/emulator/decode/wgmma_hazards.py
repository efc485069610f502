"""Finds instructions that might use registers of a wgmma in flight, or without the fence that it needs.

From wgmma.mma_async until a wait_group that covers it, its accumulators and its registers of A are not to be used; and
registers that were used want a wgmma.fence before the next wgmma has them (PTX, "wgmma.fence"). Both are questions
about the order of instructions, so the control flow answers them: a good kernel has no such instruction on any path,
and costs nothing when it runs. Those that are found here are looked at when they run (`execute/wgmma.py`,
note_register_use), so a path that is never taken is no finding. A move of a register in flight, whole or in parts, is
allowed, because compilers write them where loops meet, and to unpack pairs: its destination is in flight from then on.
So is a move, after a fence, of a register that nothing has used since: compilers copy registers there to have them in
one row, and its destination is as its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from fuzz.devices.emulator.ptx import Address, Instruction, Kernel

AGES = 9  # committed groups that are distinguished; older ones count as one
MOVE = re.compile(r"mov\.[bfus](16|32|64)")


@dataclass(frozen=True)
class Use:
    """Registers that are followed, and where they are used.

    numbers        number of each followed register, by name; empty where there is nothing to look for
    register_uses  by index of an instruction: the registers that it uses
    moves          by index of an instruction: (sources, destinations) of a move that may carry the sources' state
    """

    numbers: dict[str, int] = field(default_factory=dict)
    register_uses: dict[int, tuple[int, ...]] = field(default_factory=dict)
    moves: dict[int, Move] = field(default_factory=dict)


Move = tuple[tuple[int, ...], tuple[int, ...]]
State = tuple[int, ...]  # masks of registers: used since the last fence; in flight: not committed, by youngest group …


def names(x: object) -> list[str]:
    """The registers among operands."""
    found: list[str] = []
    _add_names(x, found)
    return found


def _add_names(x: object, found: list[str]) -> None:
    if isinstance(x, str):
        found.append(x.lstrip("!"))
    elif isinstance(x, tuple):
        for part in x:
            if type(part) is str:  # nearly all
                found.append(part.lstrip("!"))
            else:
                _add_names(part, found)
    elif isinstance(x, Address) and x.base:
        found.append(x.base)


class _Flow:
    """The question of one kernel: a mask per instruction, and the states before each block of instructions."""

    def __init__(self, kernel: Kernel) -> None:
        self.code = kernel.instructions
        self.labels = kernel.labels
        self.registers = kernel.registers.keys()
        self.bits: dict[str, int] = {}
        for i in self.code:
            if is_product(i):
                for name in names(i.operands[:2] if isinstance(i.operands[1], tuple) else i.operands[:1]):
                    self.bits.setdefault(name, len(self.bits))
        self.follow_moves()
        self.masks = [self.mask(i) for i in self.code]
        self.moves = [self.move(i) for i in self.code]

    def follow_moves(self) -> None:
        """A register that a followed one is moved to, or from, whole or in part, is followed."""
        pairs = [(set(names(i.operands[1])), list(names(i.operands[0]))) for i in self.code if MOVE.fullmatch(i.name)]
        before = -1
        while before != len(self.bits):
            before = len(self.bits)
            for sources, to in pairs:
                if not sources.isdisjoint(self.bits) or not self.bits.keys().isdisjoint(to):
                    for name in (*to, *sorted(sources & self.registers)):
                        self.bits.setdefault(name, len(self.bits))

    def mask(self, i: Instruction) -> int:
        operands = i.operands
        if is_product(i):
            operands = operands[:2] if isinstance(operands[1], tuple) else operands[:1]
        found = {self.bits[n] for n in names(operands) if n in self.bits}
        return reduce(or_, (1 << bit for bit in found), 0)

    def move(self, i: Instruction) -> Move | None:
        if not MOVE.fullmatch(i.name):
            return None
        to, sources = (tuple(self.bits[n] for n in names(x) if n in self.bits) for x in i.operands)
        return (sources, to) if sources and to else None

    @staticmethod
    def carries(move: Move | None, used: int, flying: int) -> bool:
        """True for a move after which the destinations are as the sources: where one of those is in flight, or where
        none of them was used since the last fence and no destination is in flight."""
        if move is None:
            return False
        sources, to = (sum(1 << bit for bit in set(bits)) for bits in move)
        return bool(flying & sources) or not (used & sources or flying & to)

    def blocks(self) -> dict[int, int]:
        """Start → end of each block of instructions that run one after another."""
        starts = {0, *self.labels.values()}
        starts |= {at + 1 for at, i in enumerate(self.code) if i.name.startswith(("bra", "ret", "exit"))}
        order = sorted(s for s in starts if s < len(self.code))
        return dict(zip(order, [*order[1:], len(self.code)], strict=True))

    def after(self, at: int) -> list[int]:
        """Indices of the instructions that can follow the one at `at`."""
        i = self.code[at]
        following = [at + 1] if i.guard or not i.name.startswith(("bra", "ret", "exit", "trap")) else []
        if i.name.startswith("bra") and str(i.operands[0]) in self.labels:
            following.append(self.labels[str(i.operands[0])])
        return [f for f in following if f < len(self.code)]

    def step(self, state: State, at: int) -> State:
        """The state after the instruction at `at`."""
        i, mask = self.code[at], self.masks[at]
        used, open_, *groups = state
        if i.name.startswith("wgmma."):
            if is_product(i):
                open_ |= mask
            elif ".fence" in i.name:
                used = 0
            elif ".commit_group" in i.name:
                groups = [open_, *groups[:-2], groups[-2] | groups[-1]]
                open_ = 0
            else:
                keep = int(i.operands[0])  # type: ignore[call-overload]
                if keep < len(groups) - 1:
                    groups = [g if n < keep else 0 for n, g in enumerate(groups)]
            return (used, open_, *groups)
        if not mask:
            return state
        move = self.moves[at]
        if move and self.carries(move, used, reduce(or_, groups, open_)):
            sources, to = (sum(1 << bit for bit in set(bits)) for bits in move)
            clear = 0 if i.guard else to
            open_, *groups = ((g & ~clear) | (to if g & sources else 0) for g in (open_, *groups))
            return ((used & ~clear) | (to if used & sources else 0), open_, *groups)
        return (used | mask, open_, *groups)

    def states(self) -> Iterator[tuple[int, State]]:
        """(index, what may be before it) of every instruction that can be reached."""
        blocks = self.blocks()
        empty: State = (0,) * (1 + AGES)
        before: dict[int, State] = {0: empty} if self.code else {}
        waiting = list(before)
        while waiting:
            start = waiting.pop()
            state = before[start]
            for at in range(start, blocks[start]):
                state = self.step(state, at)
            for following in self.after(blocks[start] - 1):
                old = before.get(following)
                new = state if old is None else tuple(x | y for x, y in zip(old, state, strict=True))
                if new != old:
                    before[following] = new
                    waiting.append(following)
        for start, entered in before.items():
            state = entered
            for at in range(start, blocks[start]):
                yield at, state
                state = self.step(state, at)


def is_product(i: Instruction) -> bool:
    return i.name.startswith("wgmma.mma_async")


def uses(kernel: Kernel) -> Use:
    """Finds the instructions to look at when `kernel` runs."""
    if not any(is_product(i) for i in kernel.instructions):
        return Use()
    flow = _Flow(kernel)
    early: set[int] = set()
    moved: dict[int, Move] = {}
    unfenced = 0
    for at, (used, *groups) in flow.states():
        mask, flying = flow.masks[at], reduce(or_, groups)
        if is_product(flow.code[at]):
            unfenced |= mask & used
        elif (move := flow.moves[at]) and flow.carries(move, used, flying):
            moved[at] = move
        elif mask & flying:
            early.add(at)
    register_uses = {at: mask for at, mask in enumerate(flow.masks)
               if at in early or (mask & unfenced and not is_product(flow.code[at]) and at not in moved)}  # fmt: skip
    if not register_uses:
        return Use()  # moves alone need no looking at
    numbers = {at: tuple(b for b in range(mask.bit_length()) if mask >> b & 1) for at, mask in register_uses.items()}
    return Use(flow.bits, numbers, moved)
