"""Findings about tensor memory (tcgen05): the name of each kind, and its sentence. See `kinds.py`."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.sanitize import tensor_shadow
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.tensor_memory import (
    COLUMNS,
    FREED,
    INSTRUCTION,
    LANE,
    MORE_COLUMNS,
    OUTSIDE,
    SCALES,
    SHAPE,
    SHARED_A,
    WRONG_ADDRESS,
)

TENSOR_MEMORY_NAMES = {
    st.F_TC_COLUMNS: "tensor memory that is not allocated",
    st.F_TC_LANES: "lanes of tensor memory that the warp cannot reach",
    st.F_TC_ALLOC: "wrong allocation of tensor memory",
    st.F_TC_LEAK: "tensor memory never freed",
    st.F_TC_RELINQUISHED: "tcgen05.alloc after relinquish_alloc_permit",
    st.F_TC_UNWRITTEN: "read of uninitialised tensor memory",
    st.F_TC_STORE: "tensor memory used before tcgen05.wait::st",
    st.F_TC_LOAD: "tensor memory overwritten before tcgen05.wait::ld",
    st.F_TC_COMMIT: "tensor memory used before a tcgen05.commit was waited for",
    st.F_TC_RACE: "race: tensor memory",
    st.F_TC_FENCE: "tensor memory used without tcgen05.fence::after_thread_sync",
    st.F_TC_PROXY: "shared memory read by tcgen05 without fence.proxy.async",
    st.F_TC_OVERWRITTEN: "shared memory overwritten before a tcgen05.commit was waited for",
    st.F_TC_DESCRIPTOR: "wrong operand of tcgen05",
    st.F_TC_COPIES: "copies in tensor memory that differ",
}


def columns(first: int, count: int) -> str:
    return f"column {first}" if count == 1 else f"columns {first} to {first + count - 1}"


def place(address: int) -> str:
    """A cell of the shadow: 'column 12, lanes 16 to 31 of tensor memory'."""
    lane = address >> 16
    return f"column {address & 0xFFFF}, lanes {lane} to {lane + 15} of tensor memory"


_VERBS = {
    tensor_shadow.LD: "reads", tensor_shadow.ST: "writes", tensor_shadow.MMA_WRITE: "writes, as D,",
    tensor_shadow.MMA_ADD: "adds to, as D,", tensor_shadow.MMA_A: "reads, as A,", tensor_shadow.CP_WRITE: "writes",
    tensor_shadow.FREE: "frees", tensor_shadow.MMA_SCALES: "reads, as scale factors,",
}  # fmt: skip


def _other(s: Seen) -> str:
    return "the same warp" if s.own else s.other


def _columns(s: Seen) -> str:
    what = f"uses {columns(s.address, s.size)} of tensor memory"
    if s.value == OUTSIDE:
        return f"{what}, which has {COLUMNS} columns"
    if s.value == FREED:
        return f"{what}, which its CTA has freed with tcgen05.dealloc"
    return f"{what}, which its CTA has not allocated"


def _lanes(s: Seen) -> str:
    return (
        f"gives the address of lane {s.address >> 16} of tensor memory; warp {s.value // 32} of a warpgroup reaches "
        f"lanes {s.value} to {s.value + 31}"
    )


def _alloc(s: Seen) -> str:
    if s.value == WRONG_ADDRESS:
        return (
            f"frees {s.size} columns at column {s.address & 0xFFFF} of tensor memory; a tcgen05.dealloc needs the "
            "address and the number of columns of an allocation of its CTA"
        )
    if s.value == MORE_COLUMNS:
        return f"allocates {s.size} columns after an allocation of {s.address}; no later one may have more columns"
    return f"allocates {s.size} columns of tensor memory; it must be a power of 2 from 32 to {COLUMNS}"


def _commit(s: Seen) -> str:
    return (
        f"{_VERBS[s.value]} {place(s.address)}, which a tcgen05.mma or .cp of {_other(s)} may still be using; it needs "
        "a wait for an mbarrier that a later tcgen05.commit arrives at"
    )


def _descriptor(s: Seen) -> str:
    if s.name.startswith(("tcgen05.ld", "tcgen05.st")):
        return f"gives the address {s.value:#x}, but lane 0 gives {s.address:#x}; all lanes must agree"
    if s.value == SHAPE:
        return f"asks for M = {s.address} and N = {s.size}, a shape that this kind of tcgen05.mma does not have"
    if s.value == LANE:
        return f"gives the address {s.address:#x} of tensor memory, whose lane {s.address >> 16} does not fit the shape"
    if s.value == INSTRUCTION:
        return f"gives the instruction descriptor {s.address:#x}, which PTX does not define for its kind and operands"
    which = "A" if s.value == SHARED_A else "B"
    return (
        f"gives the shared memory descriptor {s.address & (1 << 64) - 1:#018x} of {which}: its fixed bits or its "
        "swizzle are not what PTX defines for the type and direction"
    )


def _copies(s: Seen) -> str:
    where = f"column {s.address & 0xFFFF} of lane {s.address >> 16}"
    if s.value == SCALES:
        return (
            f"issues a {s.name} whose scale factors in {where} are not those of the other lanes 32, 64 or 96 away; all "
            "four quarters of the lanes, in both CTAs of a pair, must have the same"
        )
    return (
        f"issues a {s.name} of two CTAs with M = 128 whose A in {where} is not that of lane {(s.address >> 16) - 64}; "
        "both halves of the lanes must have the same A"
    )


TENSOR_MEMORY_SENTENCES: dict[int, Callable[[Seen], str]] = {
    st.F_TC_COLUMNS: _columns,
    st.F_TC_LANES: _lanes,
    st.F_TC_ALLOC: _alloc,
    st.F_TC_LEAK: lambda s: (
        f"allocates {columns(s.address, s.size)} of tensor memory, and its CTA ends without a tcgen05.dealloc of them"
    ),
    st.F_TC_RELINQUISHED: lambda s: (
        f"allocates {s.size} columns of tensor memory after its CTA has executed tcgen05.relinquish_alloc_permit"
    ),
    st.F_TC_UNWRITTEN: lambda s: f"{_VERBS[s.value]} {place(s.address)}, which nothing has written",
    st.F_TC_STORE: lambda s: (
        f"{_VERBS[s.value]} {place(s.address)}, which a tcgen05.st of {_other(s)} writes; that warp's tcgen05.wait::st "
        "is missing between the two"
    ),
    st.F_TC_LOAD: lambda s: (
        f"{_VERBS[s.value]} {place(s.address)}, which a tcgen05.ld of {_other(s)} may still be reading; that warp's "
        "tcgen05.wait::ld is missing between the two"
    ),
    st.F_TC_COMMIT: _commit,
    st.F_TC_RACE: lambda s: (
        f"{_VERBS[s.value]} {place(s.address)}, which {s.other} uses too; no barrier, fence or mbarrier orders the two "
        "accesses"
    ),
    st.F_TC_FENCE: lambda s: (
        f"{_VERBS[s.value]} {place(s.address)} after a tcgen05 instruction of {_other(s)}; it needs a "
        "tcgen05.fence::after_thread_sync after the wait that orders the two"
    ),
    st.F_TC_PROXY: lambda s: (
        f"issues a {s.name} that reads {s.place}, which {s.other} writes without a fence.proxy.async between the two"
    ),
    st.F_TC_OVERWRITTEN: lambda s: (
        f"writes {s.place}, which a tcgen05.mma or .cp of {_other(s)} may still be reading; it needs a wait for an "
        "mbarrier that a later tcgen05.commit arrives at"
    ),
    st.F_TC_DESCRIPTOR: _descriptor,
    st.F_TC_COPIES: _copies,
}
