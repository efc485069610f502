"""Finds predicates that are read where no instruction has given them a value: on any way that leads there.

What may have been given one comes from the control flow: an instruction under a guard counts, and so does any way from
the kernel's beginning. A good kernel reads no such predicate, and costs nothing when it runs. An instruction that does
is a finding where it runs, so a path that is never taken is none.

Predicates alone. Other registers hold a number that shows where it is used, -1 or NaN, before anything is written; of
a predicate each of its two values may look right. And compilers read other registers so, whose value is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fuzz.devices.emulator.decode.wgmma_hazards import names
from fuzz.devices.emulator.ptx import Instruction, Kernel

_LEAVES = ("ret", "exit", "trap")


def undefined_reads(kernel: Kernel) -> dict[int, str]:
    """By index of an instruction that can run: a predicate that it reads, and that nothing before it can have given a
    value. Empty where a branch has several targets that the labels do not say."""
    code = kernel.instructions
    bits = {name: 1 << n for n, name in enumerate(x for x, kind in kernel.registers.items() if kind == "pred")}
    if not bits or any(i.name.startswith("brx") for i in code):
        return {}
    reads = [_mask(_reads(i), bits) for i in code]
    gives = [_mask(names(i.operands[0]) if i.operands else (), bits) for i in code]  # may give: whatever it is
    found: dict[int, str] = {}
    for start, end, before in _before_blocks(kernel, gives):
        there = before
        for at in range(start, end):
            if missing := reads[at] & ~there:
                found[at] = next(name for name, bit in bits.items() if missing & bit)
            there |= gives[at]
    return found


def _reads(i: Instruction) -> Iterator[str]:
    """Names that an instruction reads."""
    if i.guard is not None:
        yield i.guard
    yield from names(i.operands[1:])


def _mask(found: Iterable[str], bits: dict[str, int]) -> int:
    mask = 0
    for name in found:
        mask |= bits.get(name, 0)
    return mask


def _before_blocks(kernel: Kernel, gives: list[int]) -> Iterator[tuple[int, int, int]]:
    """(first instruction, the one behind the last, predicates that may have a value before it) of every block of
    instructions that can be reached."""
    code, labels = kernel.instructions, kernel.labels
    behind = (at + 1 for at, i in enumerate(code) if i.name.startswith(("bra", *_LEAVES)))
    starts = sorted({0, *labels.values(), *behind} - {len(code)})
    ends = dict(zip(starts, [*starts[1:], len(code)], strict=True))
    given = dict.fromkeys(starts, 0)
    for start in starts:
        for at in range(start, ends[start]):
            given[start] |= gives[at]
    before = {0: 0} if code else {}
    waiting = list(before)
    while waiting:
        start = waiting.pop()
        after, last = before[start] | given[start], code[ends[start] - 1]
        following = [labels[str(last.operands[0])]] if _branches(last, labels) else []
        if last.guard is not None or not last.name.startswith(("bra", *_LEAVES)):
            following.append(ends[start])
        for one in following:
            if one < len(code) and before.get(one) != (new := before.get(one, 0) | after):
                before[one] = new
                waiting.append(one)
    for start, mask in before.items():
        yield start, ends[start], mask


def _branches(i: Instruction, labels: dict[str, int]) -> bool:
    return i.name.startswith("bra") and str(i.operands[0]) in labels
