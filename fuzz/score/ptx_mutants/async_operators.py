"""Mutation operators of what runs beside the threads: bulk copies and sums, mbarriers, wgmma. See operators.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fuzz.score.ptx_mutants.operators import NOTHING, OPERATORS, Line, Operator

_BULK = ("cp.async.bulk.", "cp.reduce.async.bulk.")
_GROUPS = ("cp.async.bulk.wait_group", "cp.async.bulk.commit_group")


def bulk_copy_dropped(x: Line) -> Iterator[str]:
    """A bulk copy, or a bulk sum, is left out."""
    if x.name.startswith(_BULK) and not x.name.startswith(_GROUPS):
        yield NOTHING


def bulk_size_wrong(x: Line) -> Iterator[str]:
    """A bulk copy, or a bulk sum, is of 16 bytes fewer."""
    if x.name.startswith(_BULK) and ".tensor." not in x.name:
        for i, one in enumerate(x.operands):
            if one.isdigit() and int(one) > 16:
                yield x.made(at=i, operand=str(int(one) - 16))


def bulk_group_dropped(x: Line) -> Iterator[str]:
    """cp.async.bulk.commit_group, or a wait for bulk groups, is left out."""
    if x.name.startswith(_GROUPS):
        yield NOTHING


def bulk_wait_weakened(x: Line) -> Iterator[str]:
    """A wait for bulk groups lets one more stay pending, or waits until their sources were read only."""
    if x.name.startswith(_GROUPS[0]):
        yield x.made(at=0, operand=str(int(x.operands[0]) + 1))
        if not x.name.endswith(".read"):
            yield x.made(name=f"{x.name}.read")


def arrival_dropped(x: Line) -> Iterator[str]:
    """An arrival at an mbarrier, or at a named barrier, is left out; so are the bytes that it expects."""
    if x.name.startswith(("mbarrier.arrive.", "bar.arrive")):
        yield NOTHING


def phase_not_awaited(x: Line) -> Iterator[str]:
    """A wait for a phase of an mbarrier returns at once."""
    if x.name.startswith("mbarrier.try_wait.parity."):
        yield f"setp.eq.s32 {x.operands[0]}, 0, 0;"


def phase_flipped(x: Line) -> Iterator[str]:
    """A wait is for the phase of the other parity."""
    if x.name.startswith("mbarrier.try_wait.parity.") and x.operands[2].startswith("%"):
        yield f"{{ .reg .b32 %flipped; xor.b32 %flipped, {x.operands[2]}, 1; {x.made(at=2, operand='%flipped')} }}"


def named_barrier_wrong(x: Line) -> Iterator[str]:
    """The next named barrier is meant."""
    if x.name in ("bar.sync", "bar.arrive") and len(x.operands) == 2 and x.operands[0].isdigit():
        yield x.made(at=0, operand=str(int(x.operands[0]) + 1))


def product_dropped(x: Line) -> Iterator[str]:
    """A product by wgmma is left out."""
    if x.name.startswith("wgmma.mma_async."):
        yield NOTHING


def product_transposed(x: Line) -> Iterator[str]:
    """An operand of wgmma in shared memory is read along its other dimension."""
    if x.name.startswith("wgmma.mma_async."):
        first = next(i for i, one in enumerate(x.operands) if re.fullmatch(r"p|%p\d+|[01]", one)) + 3
        for i in range(first, len(x.operands)):  # after the two signs of A and B
            yield x.made(at=i, operand=str(1 - int(x.operands[i])))


def product_order_dropped(x: Line) -> Iterator[str]:
    """wgmma.fence or wgmma.commit_group is left out."""
    if x.name.startswith(("wgmma.fence.", "wgmma.commit_group.")):
        yield NOTHING


def product_wait_weakened(x: Line) -> Iterator[str]:
    """wgmma.wait_group lets one more group stay pending, or is left out."""
    if x.name.startswith("wgmma.wait_group."):
        yield x.made(at=0, operand=str(int(x.operands[0]) + 1))
        yield NOTHING


ASYNC_OPERATORS: dict[str, Operator] = {
    one.__name__: one
    for one in (
        bulk_copy_dropped, bulk_size_wrong, bulk_group_dropped, bulk_wait_weakened, arrival_dropped, phase_not_awaited,
        phase_flipped, named_barrier_wrong, product_dropped, product_transposed, product_order_dropped,
        product_wait_weakened,
    )
}  # fmt: skip
ALL_OPERATORS = OPERATORS | ASYNC_OPERATORS
