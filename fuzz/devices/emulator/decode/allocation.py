"""Registers of a kernel that can have one place: never in use at the same time.

PTX has a register for every value; together a warp's registers are larger than the processor's caches. Here their
lives are found from the control flow, and a place is given to the next register when the last one's life is over.
A life is taken as all instructions from the first to the last at which the register's value may still be read. Lanes
of a warp at different instructions do not disturb each other: each has its own part of a place.

A register shares its place only with those whose taints (`sanitize/taint.py`) are written in the same way, and only if
every instruction that writes it is of a family that is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from fuzz.devices.emulator.decode.wgmma_hazards import names
from fuzz.devices.emulator.isa.all_forms import FORMS
from fuzz.devices.emulator.isa.mma import MATRIX
from fuzz.devices.emulator.ptx import Instruction, Kernel

SMALL = 64  # instructions of a loop that may be a spin
Written = tuple[tuple[str, ...], bool | None]  # see `written`
Group = tuple[int, bool]  # bits of a register, and whether what writes it writes its taint
_CLEANED = re.compile(r"(ld|ldmatrix|shfl|cvta)\.")
_ENDS = re.compile(  # a stretch of micro-operations for straight_line.py: those of the interpreter
    r"(bra|ret|exit|trap|ld|st|atom|red|ldmatrix|stmatrix|cp|bar|barrier|shfl|vote|redux|match|activemask|elect|fence|"
    r"membar|mbarrier|nanosleep|wgmma|tcgen05)(\.|$)"
)
_CLOCK = re.compile(r"%(clock|globaltimer)")  # read by the interpreter too
_LEAVES = ("ret", "exit", "trap")


def written(i: Instruction) -> Written:
    """(registers that an instruction writes, whether it writes their taints; None if it is of no family known here)"""
    if not i.operands:
        return (), None
    to = tuple(names(i.operands[0]))
    form = FORMS.get(i.name)
    if form is not None:
        if isinstance(i.operands[0], tuple) and not i.name.startswith(("mov.b", "setp.")):
            return to, None
        return to, form.result in ("b16", "b32", "b64")
    if i.name in MATRIX:
        return to, False
    return to, True if _CLEANED.match(i.name) else None


class _Lives:
    """First and last instruction of each register's life."""

    def __init__(self, kernel: Kernel, writes: list[Written]) -> None:
        self.code, self.labels = kernel.instructions, kernel.labels
        self.order = list(kernel.registers)
        self.bits = {name: n for n, name in enumerate(self.order)}
        behind = (at + 1 for at, i in enumerate(self.code) if i.name.startswith(("bra", *_LEAVES)))
        self.starts = sorted({0, *self.labels.values(), *behind} - {len(self.code)})
        self.ends = dict(zip(self.starts, [*self.starts[1:], len(self.code)], strict=True))
        self.effects: list[tuple[int, int]] = []  # registers that an instruction reads, those whose old value is over
        self.mentioned: list[int] = []  # all of its registers
        for i, (to, known) in zip(self.code, writes, strict=True):
            whole = known is not None and i.guard is None
            reads = self._mask((*names(i.operands[1:] if whole else i.operands), i.guard or ""))
            writes_to = self._mask(to)
            self.effects.append((reads, writes_to if whole else 0))
            self.mentioned.append(reads | writes_to)
        self.touched: list[tuple[int, int, int]] = []

    def after(self, last: int) -> Iterator[int]:
        """Blocks that can follow the one that ends with instruction `last`."""
        i = self.code[last]
        if i.name.startswith("bra") and str(i.operands[0]) in self.labels:
            yield self.labels[str(i.operands[0])]
        if i.guard is not None or not i.name.startswith(("bra", *_LEAVES)):
            yield last + 1

    def _mask(self, registers: Iterable[str]) -> int:
        mask = 0
        for name in registers:
            if (bit := self.bits.get(name)) is not None:
                mask |= 1 << bit
        return mask

    def _block(self, start: int) -> tuple[int, int]:
        """`effects` of a whole block: (read before it writes them, values that are over or read)."""
        reads = over = 0
        for its, gone in reversed(self.effects[start : self.ends[start]]):
            reads, over = reads & ~gone | its, over | gone
        return reads, over

    def live_in(self) -> dict[int, int]:
        """The registers, as a mask, whose values may be read from the start of each block on."""
        blocks = [(start, *self._block(start), tuple(self.after(self.ends[start] - 1))) for start in self.starts]
        found = dict.fromkeys(self.starts, 0)
        changed = True
        while changed:
            changed = False
            for start, reads, over, behind in reversed(blocks):
                live = 0
                for following in behind:
                    live |= found.get(following, 0)
                live = live & ~over | reads
                if live != found[start]:
                    found[start], changed = live, True
        return found

    def spans(self) -> dict[str, tuple[int, int]]:
        """(first, last) by register; the first is -1 where its value may be read before anything writes it."""
        live = self.live_in()
        self._touch(live[0], -1, 0)
        for start in self.starts:
            self._touch(live[start], start, start)
            for following in self.after(self.ends[start] - 1):
                self._touch(live.get(following, 0), self.ends[start] - 1, self.ends[start] - 1)
        for at, mask in enumerate(self.mentioned):
            self._touch(mask, at, at)
        self._touch_stretches()
        for at, i in enumerate(self.code):
            target = self.labels.get(str(i.operands[0]), at + 1) if i.name.startswith("bra") else at + 1
            # what a loop compares may be looked up at any place in it (decode/spins.py): it stays there
            mask = 0
            for within in range(target, at + 1):
                if at < target + SMALL or self.code[within].name.startswith("setp."):
                    mask |= self.mentioned[within]
            self._touch(mask, target, at)
        first = self._extremes(sorted(self.touched, key=lambda one: one[1]), 1)
        last = self._extremes(sorted(self.touched, key=lambda one: one[2], reverse=True), 2)
        return {name: (first[bit], last[bit]) for bit, name in enumerate(self.order) if bit in first}

    def _touch(self, mask: int, low: int, high: int) -> None:
        """Has the lives of these registers last from `low` to `high` at least."""
        self.touched.append((mask, low, high))

    @staticmethod
    def _extremes(touched: list[tuple[int, int, int]], which: int) -> dict[int, int]:
        """Entry `which` of the first one in `touched` that has a register, by the register's bit."""
        found: dict[int, int] = {}
        seen = 0
        for one in touched:
            new = one[0] & ~seen
            seen |= new
            while new:
                lowest = new & -new
                new ^= lowest
                found[lowest.bit_length() - 1] = one[which]
        return found

    def _touch_stretches(self) -> None:
        """Stretches of register instructions: what is read there of before stays to the end.

        Lanes that were parked at its end run a stretch again when a lane of their warp wakes up (interpreter.py); what
        it reads is then what it was. A stretch may begin at a label, after another instruction, and anywhere in a
        kernel whose micro-operations note the use of registers. A register is touched once for all beginnings, one
        before the other, that read it."""
        anywhere = any(i.name.startswith(("wgmma.", "tcgen05.")) for i in self.code)
        begins = set(self.starts)
        end, reads = len(self.code) - 1, 0
        read, since = 0, end  # by the stretch that begins at `since`
        for at in reversed(range(len(self.code))):
            i = self.code[at]
            if _ENDS.match(i.name):
                self._touch(read, since, end)
                end, reads, read = at, 0, 0
            before, over = self.effects[at]
            reads = reads & ~over | before
            last = self.code[at - 1] if at else None
            if anywhere or at in begins or last is None or last.name not in FORMS or _CLOCK.search(last.text):
                self._touch(read & ~reads, since, end)
                read, since = reads, at
        self._touch(read, since, end)


def share(kernel: Kernel, bits: dict[str, int]) -> dict[str, tuple[Group, int]]:
    """By register that may share its place: (group, number of the place in it). bits: of the kernel's registers.

    Registers that are not in the result want a place of their own."""
    if any(i.name.startswith(("brx", "call")) for i in kernel.instructions):
        return {}
    groups: dict[str, Group | None] = {}
    writes = [written(i) for i in kernel.instructions]
    for to, taints in writes:
        for name in to:
            width = bits.get(name, 1)
            group = None if taints is None or width == 1 else (max(width, 32), taints)
            groups[name] = group if groups.get(name, group) == group else None
    spans = _Lives(kernel, writes).spans()
    chosen = sorted((spans[name], name, group) for name, group in groups.items() if group and name in spans)
    found: dict[str, tuple[Group, int]] = {}
    free: dict[Group, list[int]] = {}
    count: dict[Group, int] = {}
    busy: list[tuple[int, int, Group, int]] = []  # a heap: last instruction, number of the register, its place
    for number, ((first, last), name, group) in enumerate(chosen):
        over = []
        while busy and busy[0][0] < first:
            over.append(heappop(busy)[1:])
        for _, its, place in sorted(over):
            free.setdefault(its, []).append(place)
        if free.get(group):
            place = free[group].pop()
        else:
            place = count.get(group, 0)
            count[group] = place + 1
        found[name] = group, place
        heappush(busy, (last, number, group, place))
    return found
