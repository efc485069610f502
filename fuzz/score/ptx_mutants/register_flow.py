"""Proofs from a kernel's text that a wgmma.fence, a barrier of a warp's lanes or a barrier's number is not needed.

PTX asks for a wgmma.fence between an access of registers and a wgmma that has the same registers as accumulators or as
A; accumulators of several wgmma of one shape need none in between. So a fence orders nothing where, on every way that
leads to it, another fence comes before it, and between the two no instruction names a register of the products that
follow it (as far as the next fence), but products of the same shape that add to the same accumulators.

A barrier of a warp's lanes orders nothing where, on every way that leads to it, another one or an elect.sync of all
lanes comes before it, and between the two there is no access to memory but arrivals at mbarriers, and bulk copies that
one lane starts.

Nor does it where all lanes have met at a shuffle of the whole warp just before, with nothing but registers in between,
and since they met at a barrier no lane has accessed memory but by waits for mbarriers, which have ended, and by loads
from shared memory whose values it has given to such a shuffle, and so has.

A register holds a constant already where, on every way that leads to a line, the last instruction that gave it a value
is a move of that constant, or of another register that holds it there.

Threads may meet at a barrier of another number where nobody else is at that one, or comes to it: on every way that
leads there all threads of the CTA have met at barrier 0, and after that no instruction names the number, or one in a
register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_REGISTER = re.compile(r"%\w+")
_LABEL = re.compile(r"\s*(\$\w+):")
_BRANCH = re.compile(r"\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+);")
_END = re.compile(r"\s*(ret|exit|trap)\b")
_PRODUCT = re.compile(r"\s*(wgmma\.mma_async\S*)\s+\{([^}]*)\},\s*(?:\{([^}]*)\}|\S+),")
FENCE = re.compile(r"\s*wgmma\.fence\b")
_LANES_MEET = re.compile(r"\s*(bar\.warp\.sync\s+-1;|elect\.sync\s.*, -1;)")
_CTA_MEETS = re.compile(r"\s*bar\.sync\s+0;")
_BARRIER = re.compile(
    r"\s*(?:@!?%\w+\s+)?(?:bar|barrier)(?:\.cta)?\.(?:(?:sync|arrive)\S*\s+|red\S*\s+%\w+,\s*)(%\w+|\d+)"
)
_SHUFFLE = re.compile(r"\s*shfl\.sync\.idx\.b32\s+%\w+, (%\w+), \w+, 31, -1;")
_SHARED_LOAD = re.compile(r"\s*ld\.shared\.b32\s+(%\w+), ")
_BARRIER_OF_ALL = re.compile(_LANES_MEET.pattern + "|" + _CTA_MEETS.pattern)
_WAIT = re.compile(  # for an mbarrier's phase, as CuTe DSL writes it: a loop
    r"\s*([{}]|LAB_WAIT:|DONE:|@P1 bra\.uni DONE;|bra\.uni +LAB_WAIT;"
    r"|mbarrier\.try_wait\.parity\.shared\.\S+ P1, .*)\s*$"
)
_PARAMETERS = re.compile(r"\s*(ld\.param\.|setmaxnreg\.)")
_BY_ONE_LANE = re.compile(r"\s*(mbarrier\.arrive\.|cp\.async\.bulk\.)")
_ON_REGISTERS = re.compile(
    r"\s*(@!?%p\d+ )?(setp|selp|mov|add|sub|and|or|xor|not|shl|shr|mul|mad|min|max|cvt|cvta|bra)\b"
)
_NEVER = re.compile(r"(?!)")
_MOVE = re.compile(r"\s*mov\.b32\s+(%r\d+), (%r\d+|0f[0-9A-Fa-f]{8}|-?\d+);\s*$")
_NOTHING = re.compile(r"\s*($|//|\.|\$\w+:)")


@dataclass(frozen=True)
class Product:
    """A wgmma: its name, which has its shape and types; registers of the accumulators, in order; those of A."""

    name: str
    accumulators: tuple[str, ...]
    a: frozenset[str]


def product(line: str) -> Product | None:
    """The wgmma of a line, if it is one."""
    found = _PRODUCT.match(line)
    if found is None:
        return None
    return Product(found[1], tuple(_REGISTER.findall(found[2])), frozenset(_REGISTER.findall(found[3] or "")))


class Flow:
    """Control flow of one kernel's text, line by line. Raises ValueError where a branch has several targets."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._labels: dict[str, int] = {}
        self._comes_from: dict[str, list[int]] = {}
        for i, line in enumerate(self.lines):
            if "brx.idx" in line:
                raise ValueError(f"line {i + 1}: a branch with several targets")
            if (label := _LABEL.match(line)) is not None:
                self._labels[label[1]] = i
            if (branch := _BRANCH.match(line)) is not None:
                self._comes_from.setdefault(branch[2], []).append(i)

    def before(self, i: int) -> list[int]:
        """Lines that may run right before line `i`, both counted from 0; -1: the kernel begins."""
        label = _LABEL.match(self.lines[i])
        found = list(self._comes_from.get(label[1], [])) if label is not None else []
        return found + [i - 1] * (i == 0 or self._goes_on(i - 1))

    def after(self, i: int) -> list[int]:
        """Lines that may run right after line `i`; none: the kernel ends."""
        branch = _BRANCH.match(self.lines[i])
        found = [self._labels[branch[2]]] if branch is not None else []
        return found + [i + 1] * (self._goes_on(i) and i + 1 < len(self.lines))

    def has_all_labels(self) -> bool:
        """True if every label that is branched to is in the text."""
        return self._comes_from.keys() <= self._labels.keys()

    def ways(self, start: int, ends: set[int], within: set[int] | None = None) -> set[int]:
        """Lines that may run from `start` on, as far as one of `ends`, which is among them. within: all that may."""
        found, todo = set[int](), [start]
        while todo:
            i = todo.pop()
            if i not in found and (within is None or i in within):
                found.add(i)
                todo += [] if i in ends else self.after(i)
        return found

    def since(self, begins: set[int], end: int) -> set[int]:
        """Lines that may run between the last one of `begins` and line `end`, which is among them where it may run
        again; -1 where none of them may have run."""
        found, todo = set[int](), self.before(end)
        while todo:
            i = todo.pop()
            if i in found or i in begins:
                continue
            found.add(i)
            todo += self.before(i) if i >= 0 else []
        return found

    def _goes_on(self, i: int) -> bool:
        branch = _BRANCH.match(self.lines[i])
        return bool(branch[1]) if branch is not None else _END.match(self.lines[i]) is None


def _flow(text: str) -> Flow | None:
    """Control flow of a kernel's text; None where a branch has several targets."""
    try:
        return Flow(text)
    except ValueError:
        return None


def whole_flow(text: str) -> Flow | None:
    """Control flow of a kernel's whole text; None where a branch has several targets, or one that is not in it."""
    flow = _flow(text)
    return flow if flow is not None and flow.has_all_labels() else None


def fence_is_idle(text: str, number: int) -> bool:
    """True where the wgmma.fence in line `number` (counted from 1) of a kernel's PTX orders nothing, see above; False
    where that is not known."""
    flow = _flow(text)
    if flow is None:
        return False
    ordered = [
        one
        for i in _until(FENCE, number - 1, flow.after, flow.lines)
        if i >= 0 and (one := product(flow.lines[i])) is not None
    ]
    since = _until(FENCE, number - 1, flow.before, flow.lines)
    return bool(ordered) and -1 not in since and all(not _disturbs(flow.lines[i], ordered) for i in since)


def barrier_is_idle(text: str, number: int) -> bool:
    """True where the bar.warp.sync in line `number` (counted from 1) of a kernel's PTX orders nothing, see above; False
    where that is not known."""
    flow = _flow(text)
    if flow is None:
        return False
    since = _until(_LANES_MEET, number - 1, flow.before, flow.lines)
    allowed = (_BY_ONE_LANE, _ON_REGISTERS, _NOTHING)
    return -1 not in since and all(any(one.match(flow.lines[i]) for one in allowed) for i in since)


def barrier_after_shuffles_is_idle(text: str, number: int) -> bool:
    """True where the bar.warp.sync in line `number` (counted from 1) of a kernel's PTX orders nothing, as all lanes
    have met at a shuffle, see above; False where that is not known."""
    flow = _flow(text)
    if flow is None:
        return False
    behind = _until(_SHUFFLE, number - 1, flow.before, flow.lines)
    since = _until(_BARRIER_OF_ALL, number - 1, flow.before, flow.lines)
    if -1 in since or not behind < since or not all(_is_one_of(flow.lines[i], _ON_REGISTERS, _NOTHING) for i in behind):
        return False
    allowed = (_BY_ONE_LANE, _ON_REGISTERS, _NOTHING, _SHUFFLE, _WAIT, _PARAMETERS)
    return all(_is_one_of(flow.lines[i], *allowed) or _is_shuffled(flow.lines, i) for i in since)


def _is_one_of(line: str, *patterns: re.Pattern[str]) -> bool:
    """True if one of the patterns matches a line."""
    return any(one.match(line) for one in patterns)


def _is_shuffled(lines: list[str], i: int) -> bool:
    """True if line `i`, counted from 0, loads from shared memory what the next one gives to a shuffle."""
    load, shuffle = _SHARED_LOAD.match(lines[i]), _SHUFFLE.match(lines[i + 1]) if i + 1 < len(lines) else None
    return load is not None and shuffle is not None and load[1] == shuffle[1]


def number_is_free(text: str, number: int, barrier: int) -> bool:
    """True where threads may meet at this barrier in line `number` (counted from 1) of a kernel's PTX, whatever barrier
    the line names, see above; False where that is not known."""
    flow = _flow(text)
    if flow is None:
        return False
    since = _until(_CTA_MEETS, number - 1, flow.before, flow.lines)
    if -1 in since:
        return False
    begins = {before for i in since | {number - 1} for before in flow.before(i)} - since
    reached = {i for begin in begins for i in _until(_NEVER, begin, flow.after, flow.lines)}
    named = {found[1] for i in reached if i != number - 1 and (found := _BARRIER.match(flow.lines[i])) is not None}
    return not any(name.startswith("%") or name == str(barrier) for name in named)


def _until(end: re.Pattern[str], start: int, step: Callable[[int], list[int]], lines: list[str]) -> set[int]:
    """Lines that `step` leads to from `start`, as far as the next ones that match `end`, which are left out."""
    found: set[int] = set()
    todo = list(step(start))
    while todo:
        i = todo.pop()
        if i in found or (i >= 0 and end.match(lines[i])):
            continue
        found.add(i)
        todo += step(i) if i >= 0 else []
    return found


def _disturbs(line: str, ordered: Iterable[Product]) -> bool:
    """True if the instruction of a line accesses registers of one of the products in a way that a fence orders."""
    earlier = product(line)
    if earlier is None:
        named = set(_REGISTER.findall(line))
        return any(named & (set(one.accumulators) | one.a) for one in ordered)
    for one in ordered:
        same = earlier.name == one.name and earlier.accumulators == one.accumulators
        if not same and set(earlier.accumulators) & set(one.accumulators):
            return True
        if set(earlier.accumulators) & one.a or earlier.a & set(one.accumulators):
            return True
    return False


def is_read_once(text: str, line: int) -> bool:
    """True if one line alone names the register that this line gives its value."""
    lines = text.splitlines()
    given = re.match(r"\s*\S+\s+(%\w+),", lines[line - 1])
    return given is not None and sum(given[1] in _REGISTER.findall(one) for one in lines) == 2


def is_cache_hint(text: str, line: int) -> bool:
    """True if the register that this line gives its value is the cache policy of one bulk copy, and nothing else."""
    lines = text.splitlines()
    given = re.match(r"\s*\S+\s+(%\w+),", lines[line - 1])
    if given is None or not is_read_once(text, line):
        return False
    hinted = re.compile(rf"\s*cp\.async\.bulk\.\S*\.L2::cache_hint\s.*, {re.escape(given[1])};$")
    return sum(hinted.match(one) is not None and one.count(given[1]) == 1 for one in lines) == 1


def holds_already(text: str, number: int) -> bool:
    """True where line `number` (counted from 1) of a kernel's PTX gives a register the constant that it holds, see
    above; False where that is not known."""
    flow = _flow(text)
    move = None if flow is None else _MOVE.match(flow.lines[number - 1])
    if flow is None or move is None:
        return False
    held = _held(flow, move[1], number - 1, frozenset())
    return held is not None and held == _constant(flow, move[2], number - 1, frozenset())


def _constant(flow: Flow, operand: str, i: int, asked: frozenset[tuple[str, int]]) -> int | None:
    """The constant that an operand is in line `i`, counted from 0, as bits; None where that is not known."""
    if operand.startswith("%"):
        return _held(flow, operand, i, asked)
    return int(operand[2:], 16) if operand.startswith("0f") else int(operand) % (1 << 32)


def _held(flow: Flow, register: str, i: int, asked: frozenset[tuple[str, int]]) -> int | None:
    """The constant that a register holds when line `i`, counted from 0, is come to; None where that is not known, as
    where it was `asked` on the way here."""
    if (register, i) in asked:
        return None
    named = re.compile(rf"{re.escape(register)}\b")
    found, seen, todo = set[int | None](), set[int](), flow.before(i)
    while todo:
        j = todo.pop()
        if j in seen:
            continue
        seen.add(j)
        if j < 0:
            return None
        several = flow.lines[j].count(";") > 1  # instructions
        if not named.search(flow.lines[j]) or not (several or giving([flow.lines[j]], register)):
            todo += flow.before(j)
            continue
        move = _MOVE.match(flow.lines[j])
        found.add(None if move is None else _constant(flow, move[2], j, asked | {(register, i)}))
    return found.pop() if len(found) == 1 else None


def stores_zeros(text: str, line: int) -> bool:
    """True where a line stores matrices of one register, which one line gives a value: 0."""
    stored = re.match(r"\s*stmatrix\S+\s+\[[^\]]*\], \{([^}]*)\};", text.splitlines()[line - 1])
    registers = set(stored[1].split(", ")) if stored else set[str]()
    if len(registers) != 1:
        return False
    given = giving(text.splitlines(), registers.pop())
    return len(given) == 1 and re.match(r"\s*mov\.b32\s+\S+, 0;", given[0]) is not None


def stores_at_parameter(parameter: int) -> Callable[[str, int], bool]:
    """A proof that a line stores where the kernel's parameter of this number points, which one line loads."""

    def proof(text: str, line: int) -> bool:
        address = re.match(r"\s*st\.\S+\s+\[(%\w+)\],", text.splitlines()[line - 1])
        return address is not None and _is_parameter(text, address[1], parameter)

    return proof


def asks_for_parameter(parameter: int) -> Callable[[str, int], bool]:
    """A proof that a line is a branch where the kernel's parameter of this number, which one line loads, is null; the
    line before compares it."""

    def proof(text: str, line: int) -> bool:
        asked = re.match(
            r"\s*setp\.eq\.b64\s+(%\w+), (%\w+), 0;\n\s*@\1 bra\b", "\n".join(text.splitlines()[line - 2 : line])
        )
        return asked is not None and _is_parameter(text, asked[2], parameter)

    return proof


def asks_in_clusters(text: str, line: int) -> bool:
    """True where a line loads a parameter that the text compares with null, in a kernel whose CTAs run in clusters."""
    loaded = re.match(r"\s*ld\.param\.b64\s+(%\w+), \[", text.splitlines()[line - 1])
    if loaded is None or len(giving(text.splitlines(), loaded[1])) != 1:
        return False
    asked = re.compile(rf"^\s*setp\.eq\.b64\s+%\w+, {re.escape(loaded[1])}, 0;", re.M)
    return asked.search(text) is not None and re.search(r"^\s*barrier\.cluster\.wait", text, re.M) is not None


def asks_of_pair(*pairs: tuple[int, int]) -> Callable[[str, str, int], bool]:
    """A proof that a line, and the changed one, load the two parameters of one of these pairs, into a register that
    other lines only compare with null."""

    def proof(text: str, changed: str, line: int) -> bool:
        loaded = [
            re.match(r"\s*ld\.param\.b64\s+(%rd\d+), \[\w+_param_(\d+)\];", one.splitlines()[line - 1])
            for one in (text, changed)
        ]
        here, there = loaded
        if here is None or there is None or here[1] != there[1]:
            return False
        asked = re.compile(rf"\s*setp\.(eq|ne)\.b64\s+%p\d+, {re.escape(here[1])}, 0;\s*$")
        others = [one for i, one in enumerate(text.splitlines(), 1) if i != line and here[1] in _REGISTER.findall(one)]
        numbers = int(here[2]), int(there[2])
        return bool(others) and all(map(asked.match, others)) and (numbers in pairs or numbers[::-1] in pairs)

    return proof


def _is_parameter(text: str, register: str, parameter: int) -> bool:
    """True if a register gets a value once, that of a parameter."""
    given = giving(text.splitlines(), register)
    return len(given) == 1 and re.match(rf"\s*ld\.param\.b64\s+\S+ \[\w+_param_{parameter}\];", given[0]) is not None


def giving(lines: Iterable[str], register: str) -> list[str]:
    """The lines that give a register a value."""
    first = re.compile(rf"\s*(?:@!?%p\d+\s+)?[\w.:]+\s+(?:\{{[^}}]*|%\w+\|)?{re.escape(register)}\b")
    return [line for line in lines if first.match(line)]
