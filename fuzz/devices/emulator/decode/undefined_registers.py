"""Finds registers that are read where no instruction has given them a value: on any way that leads there.

What may have been given one comes from the control flow: an instruction under a guard counts, and so does any way from
the kernel's beginning. A good kernel reads no such register, and costs nothing when it runs. An instruction that does
is a finding where it runs, so a path that is never taken is none.

Some reads are no findings, as compilers write them of values that nobody uses:

- a move between registers, after which the other one has no value either;
- parts of registers, or a vector of them, that are put together, stored or multiplied: some of it may be unused;
- accumulators of a wgmma, which may leave them out of its sum;
- a register that the compiler says is undefined (`// implicit-def:`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from fuzz.devices.emulator.decode.wgmma_hazards import names
from fuzz.devices.emulator.ptx import Address, Instruction, Kernel

_LEAVES = ("ret", "exit", "trap")
_READS_FIRST = re.compile(r"(bar|barrier)(\.cta)?\.(sync|arrive)|nanosleep")  # the first operand is read
_PARTS = re.compile(r"(prmt|bfi)\.")  # puts parts of registers together
_MOVE = re.compile(r"mov\.[bfsu]\d+")
Step: TypeAlias = tuple[int, int]  # registers that are given a value where all of these others have one


def undefined_reads(kernel: Kernel) -> dict[int, str]:
    """By index of an instruction that can run: a register that it reads, and that nothing before it can have given a
    value; its guard, where that has none. Empty where a branch has several targets that the labels do not say."""
    code = kernel.instructions
    bits = {name: 1 << n for n, name in enumerate(kernel.registers)}
    if not bits or any(i.name.startswith("brx") for i in code):
        return {}
    reads = [_mask(_reads(i), bits) for i in code]
    # what a guarded instruction may give counts as given
    steps = [(_mask(_gives(i), bits), _mask(_moved(i), bits)) for i in code]
    said = _mask(kernel.undefined, bits)
    found: dict[int, str] = {}
    for start, end, before in _before_blocks(kernel, steps, said):
        there = before
        for at in range(start, end):
            if missing := reads[at] & ~there:
                guard = code[at].guard
                named = (name for name, bit in bits.items() if missing & bit)
                found[at] = guard if guard is not None and missing & bits.get(guard, 0) else next(named)
            there = _after(steps[at], there)
    return found


def _after(step: Step, there: int) -> int:
    """Registers that may have a value after an instruction, of those that may have one before it."""
    given, needed = step
    return there if needed & ~there else there | given


def _reads(i: Instruction) -> Iterator[str]:
    """Names that an instruction reads, and does not only move."""
    if i.guard is not None:
        yield i.guard
    if i.operands and (isinstance(i.operands[0], Address) or _READS_FIRST.match(i.name)):
        yield from names(i.operands[0])
    if not (_MOVE.fullmatch(i.name) or _PARTS.match(i.name)):
        for one in i.operands[1:]:
            if not isinstance(one, tuple):
                yield from names(one)


def _moved(i: Instruction) -> list[str]:
    """The register that an instruction moves to another one, or to several; none of predicates, of which each value may
    look right."""
    return names(i.operands[1]) if _MOVE.fullmatch(i.name) and isinstance(i.operands[1], str) else []


def _gives(i: Instruction) -> list[str]:
    """Names that an instruction may give a value."""
    return [] if not i.operands or isinstance(i.operands[0], Address) else names(i.operands[0])


def _mask(found: Iterable[str], bits: dict[str, int]) -> int:
    mask = 0
    for name in found:
        mask |= bits.get(name, 0)
    return mask


def _before_blocks(kernel: Kernel, steps: list[Step], said: int) -> Iterator[tuple[int, int, int]]:
    """(first instruction, the one behind the last, registers that may have a value before it) of every block of
    instructions that can be reached. said: those that count as given from the beginning."""
    code, labels = kernel.instructions, kernel.labels
    behind = (at + 1 for at, i in enumerate(code) if i.name.startswith(("bra", *_LEAVES)))
    starts = sorted({0, *labels.values(), *behind} - {len(code)})
    ends = dict(zip(starts, [*starts[1:], len(code)], strict=True))
    joined = {start: _joined(steps[start : ends[start]]) for start in starts}
    before = {0: said} if code else {}
    waiting = list(before)
    while waiting:
        start = waiting.pop()
        after, last = before[start], code[ends[start] - 1]
        for step in joined[start]:
            after = _after(step, after)
        following = [labels[str(last.operands[0])]] if _branches(last, labels) else []
        if last.guard is not None or not last.name.startswith(("bra", *_LEAVES)):
            following.append(ends[start])
        for one in following:
            if one < len(code) and before.get(one) != (new := before.get(one, 0) | after):
                before[one] = new
                waiting.append(one)
    for start, mask in before.items():
        yield start, ends[start], mask


def _joined(steps: list[Step]) -> list[Step]:
    """The same steps, those that need nothing as one as long as no other one is between them."""
    found: list[Step] = []
    for given, needed in steps:
        if not needed and found and not found[-1][1]:
            found[-1] = (found[-1][0] | given, 0)
        else:
            found.append((given, needed))
    return found


def _branches(i: Instruction, labels: dict[str, int]) -> bool:
    return i.name.startswith("bra") and str(i.operands[0]) in labels
