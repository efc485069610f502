"""Kinds of findings: the name of each, which signatures and the corpus keep, and the sentence for each.

A sentence continues "CTA (…) warp … lane …": what that lane does, where, by how much it is off, and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.report.cluster_kinds import CLUSTER_NAMES, CLUSTER_SENTENCES
from fuzz.devices.emulator.report.launch_kinds import LAUNCH_NAMES, LAUNCH_SENTENCES
from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.report.tensor_memory_kinds import TENSOR_MEMORY_NAMES, TENSOR_MEMORY_SENTENCES
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state.mbarrier_word import MOST

_NAMES = (
    "out of bounds", "misaligned access", "address of no tensor", "out of bounds of shared memory",
    "barrier in a divergent branch", "barrier with a wrong count", "lanes missing at a .sync instruction", "trap",
    "too many copies in flight", "read of uninitialised memory", "race: two writes", "race: read of an unordered write",
    "race: write over an unordered read", "32-bit arithmetic wrapped in an address", "out of bounds of the parameters",
    "matrix instruction without all lanes", "barrier id above 15", "floating-point adds in no fixed order",
    "shared memory read by wgmma without fence.proxy.async", "register of a wgmma used before wait_group",
    "register of a wgmma used without wgmma.fence", "warps of a warpgroup at different wgmma",
    "operand of a wgmma differs between lanes", "mbarrier misused",
    "copy of more bytes than its size", "tensor map that cannot be used",
    "shared memory accessed by a bulk copy without fence.proxy.async", "bulk copy in flight when its CTA exits",
    "bulk copy with a misaligned address or size", "illegal coordinate of a bulk copy",
)  # fmt: skip
KIND_NAMES = dict(enumerate(_NAMES)) | CLUSTER_NAMES | LAUNCH_NAMES | TENSOR_MEMORY_NAMES


def lanes(mask: int) -> str:
    """A mask of lanes as their numbers: 'lanes 0-6, 9', or 'no lane'."""
    runs, lane = [], 0
    while lane < 32:
        if mask >> lane & 1:
            first = lane
            while lane < 31 and mask >> lane + 1 & 1:
                lane += 1
            runs.append(str(first) if first == lane else f"{first}-{lane}")
        lane += 1
    if not runs:
        return "no lane"
    return f"{'lane' if runs[0].isdigit() and len(runs) == 1 else 'lanes'} {', '.join(runs)}"


def _out_of_bounds(s: Seen) -> str:
    return f"{s.verb} {s.size} bytes at {s.place}{f'; its shape is {s.memory}' if s.memory else ''}"


def _misaligned(s: Seen) -> str:
    off = s.address % s.size if s.size else 0
    return f"{s.verb} {s.size} bytes at {s.place}, whose address is {off} bytes past a multiple of {s.size}"


def _barrier_count(s: Seen) -> str:
    count = f"{s.value} threads" if s.value else "all threads of the CTA"
    if s.size:
        return f"calls barrier {s.address} for {count}, but warps that arrived before expect {s.size}"
    if s.value and (s.value % 32 or s.value > s.threads):
        return f"calls barrier {s.address} for {count}; it needs a multiple of 32 up to the CTA's {s.threads}"
    return f"calls barrier {s.address} for {count}, but warps that arrived before expect all threads of the CTA"


def _race(what: str, before: str) -> Callable[[Seen], str]:
    def tell(s: Seen) -> str:
        if s.own and s.value & st.OTHER_LANE:
            return (
                f"{what} {s.place}, which lane {s.value & 31} of the same warp {before}; no __syncwarp or other "
                "barrier orders the two accesses"
            )
        if s.own:
            return f"{what} {s.place}, which a wgmma of the same warp may still be reading; wgmma.wait_group is missing"
        if s.value:
            return (
                f"{what} {s.place}, which {s.other} {before}; both accesses are strong, but one has the scope of its "
                "CTA (.cta), which the other is not part of"
            )
        return (
            f"{what} {s.place}, which {s.other} {before}; no barrier, fence or release with acquire orders the two "
            "accesses"
        )

    return tell


def _no_fence(s: Seen) -> str:
    return "issues a wgmma on registers that were used since the last wgmma.fence; it needs a wgmma.fence before it"


def _warpgroup(s: Seen) -> str:
    if s.value < 0:
        return f"issues a wgmma that warp {s.address} of its warpgroup never issues; all four warps must issue the same"
    if s.rival == s.instruction:
        return "issues a wgmma with other descriptors than another warp of its warpgroup; all four must give the same"
    return f"issues this wgmma where another warp of its warpgroup issues {s.rival}; all four must issue the same"


def _descriptor(s: Seen) -> str:
    if s.lane == 0:
        return f"issues a wgmma whose predicate scale-d is true in {lanes(s.value)} only; all lanes must agree"
    return f"gives the wgmma descriptor {s.value:#x}, but lane 0 gives {s.address:#x}; all lanes must agree"


def _mbarrier(s: Seen) -> str:
    if s.name.startswith("mbarrier.init"):
        return f"initialises the mbarrier at {s.place} for {s.value} arrivals; it needs 1 to {MOST}"
    if s.value < 0:
        return f"uses the memory at {s.place} as an mbarrier, but it is none: nothing has initialised it"
    return f"arrives at the mbarrier at {s.place} more often than its phase expects: {s.value} arrivals are left"


_MAPS = {
    tm.NOT_A_MAP: "no tensor map is there",
    tm.BAD_RANK: "it has another number of dimensions than the instruction",
    tm.BAD_ELEMENT: "its elements have no known type",
    tm.BAD_ADDRESS: "its tensor does not begin at a multiple of 16 bytes",
    tm.BAD_ROW: "a row of its box is no multiple of 16 bytes",
    tm.BAD_SPAN: "a row of its box is longer than its swizzle's span",
    tm.BAD_FILL: "its fill is NaN, but its elements are integers",
    tm.BAD_REDUCTION: (
        "its elements have a type that the reduction does not combine; an H200 raises an illegal instruction"
    ),
}


def _bulk_proxy(s: Seen) -> str:
    return f"{s.verb} {s.place}, which {s.other} writes; no fence.proxy.async is between the two"


def _bulk_coordinate(s: Seen) -> str:
    copy = f"issues a bulk copy with the tensor map at {s.place}"
    x, dimension = s.value >> 3, s.value & 7
    if s.size:
        return (
            f"{copy} at coordinate 0 = {x}, which is {x * s.size} bytes from the start of a row; coordinate 0 must be "
            f"a multiple of {16 // s.size} elements (16 bytes), or an H200 raises an illegal instruction"
        )
    return (
        f"{copy} at coordinate {dimension} = {x}; a copy to global memory must not have a negative coordinate, or an "
        "H200 raises an illegal instruction"
    )


def _shared_bounds(s: Seen) -> str:
    swizzled = " (each row of a swizzled box takes the swizzle's whole span)" if ".bulk.tensor." in s.name else ""
    there = s.value - op.RESERVED_SHARED
    return f"{s.verb} {s.size} bytes{swizzled} at byte {s.address} of shared memory, of which the CTA has {there} bytes"


def _bulk_left(s: Seen) -> str:
    what = "cp.async.bulk.wait_group.read" if s.value in (op.BULK_STORE, op.BULK_REDUCE) else "wait for its mbarrier"
    return (
        f"{s.verb} {s.size} bytes at {s.place} that is in flight when {'that' if s.remote else 'its'} CTA exits; a "
        f"{what} is missing"
    )


_SENTENCES: dict[int, Callable[[Seen], str]] = {
    st.F_BOUNDS: _out_of_bounds,
    st.F_ALIGN: _misaligned,
    st.F_UNMAPPED: lambda s: f"{s.verb} {s.size} bytes at {s.place}: no tensor of the launch lies there",
    st.F_SHARED_BOUNDS: _shared_bounds,
    st.F_BARRIER_DIVERGED: lambda s: (
        f"is elsewhere while its warp is at the barrier; there: {lanes(s.address)}, expected: {lanes(s.value)}"
    ),
    st.F_BARRIER_COUNT: _barrier_count,
    st.F_SYNC_MISSING: lambda s: (
        f"never reaches the instruction, whose mask names it; missing: {lanes(s.address)}, there: {lanes(s.value)}"
    ),
    st.F_TRAP: lambda s: "fails an assertion" if "__assertfail" in s.instruction else "executes a trap",
    st.F_COPIES: lambda s: f"has {s.value} asynchronous operations in flight, more than the emulator can follow",
    st.F_UNINITIALISED: lambda s: f"{s.verb} {s.place}, which nothing has written",
    st.F_RACE_WW: _race("writes", "also writes"),
    st.F_RACE_WR: _race("reads", "writes"),
    st.F_RACE_RW: _race("writes", "reads"),
    st.F_WRAPPED: lambda s: (
        f"accesses {s.place} by an index that overflowed 32 bits and wrapped around; it needs 64-bit arithmetic"
    ),
    st.F_PARAM: lambda s: (
        f"reads {s.size} bytes at byte {s.address} of the kernel's parameters, of which there are {s.value} bytes"
    ),
    st.F_UNCONVERGED: lambda s: "runs an instruction that needs all lanes of its warp",
    st.F_BARRIER_ID: lambda s: f"calls barrier {s.address}; a CTA has barriers 0 to 15",
    st.F_UNORDERED: lambda s: (
        f"adds to {s.place}, to which {s.other} also adds; nothing fixes the order of these floating-point adds, so "
        "the sum can differ from run to run"
    ),
    st.F_PROXY: lambda s: (
        f"issues a wgmma that reads {s.place}, which {s.other} writes without a fence.proxy.async between the two"
    ),
    st.F_IN_FLIGHT: lambda s: "uses a register of a wgmma that is in flight; it needs wgmma.wait_group before it",
    st.F_NO_FENCE: _no_fence,
    st.F_WARPGROUP: _warpgroup,
    st.F_DESCRIPTOR: _descriptor,
    st.F_MBARRIER: _mbarrier,
    st.F_COPY_SIZE: lambda s: f"copies {s.value} bytes of {s.place} with a copy of {s.size} bytes",
    st.F_TENSOR_MAP: lambda s: f"issues a bulk copy with the tensor map at {s.place}, but {_MAPS[s.value]}",
    st.F_BULK_PROXY: _bulk_proxy,
    st.F_BULK_LEFT: _bulk_left,
    st.F_BULK_COORDINATE: _bulk_coordinate,
    st.F_BULK_FORM: lambda s: (
        f"issues a bulk copy of {s.size} bytes between byte {s.address} of shared memory and address {s.value:#x}; "
        "addresses and sizes must be multiples of 16 bytes"
    ),
    **CLUSTER_SENTENCES,
    **LAUNCH_SENTENCES,
    **TENSOR_MEMORY_SENTENCES,
}


def sentence(seen: Seen) -> str:
    """What is wrong, without its subject."""
    return _SENTENCES[seen.kind](seen)
