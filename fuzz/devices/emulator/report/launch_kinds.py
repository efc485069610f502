"""Findings about launches inside a grid (clusterlaunchcontrol), registers of warps (setmaxnreg), registers without a
value, and the order of copies (cp.async, bulk copies): the name of each kind, and its sentence. See `kinds.py`."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.state import tables as st

LAUNCH_NAMES = {
    st.F_CLC_AGAIN: "try_cancel after a failed one",
    st.F_REGISTERS: "setmaxnreg misused",
    st.F_COPY_IN_FLIGHT: "shared memory used while a cp.async is under way to it",
    st.F_GLOBAL_PROXY: "global memory accessed by a bulk copy without fence.proxy.async",
    st.F_UNDEFINED: "register without a value",
}


# values of F_REGISTERS, see execute/register_limits.py
WRONG_SIDE, TOO_FEW, DIFFERENT, UNORDERED, ALONE = range(5)


def _registers(s: Seen) -> str:
    if s.value == TOO_FEW:
        return (
            f"runs an instruction that names {s.size} registers, but its warp has {s.address} for each thread since "
            "its last setmaxnreg"
        )
    if s.value == WRONG_SIDE:
        side = "above" if ".dec" in s.name else "below"
        return f"asks for {s.size} registers for each thread, which is {side} the {s.address} that its warp has"
    other = f"warp {s.size} of its warpgroup"
    if s.value == DIFFERENT:
        instruction = f"setmaxnreg.{'inc' if s.address & 1 else 'dec'} {s.address >> 1}"
        return f"executes another setmaxnreg than {other}, which executes {instruction}; all four must execute the same"
    if s.value == UNORDERED:
        return f"executes its next setmaxnreg with no barrier after that of {other}"
    return f"executes a setmaxnreg that {other} never executes; all four must execute the same"


def _copy_in_flight(s: Seen) -> str:
    issuer = "the same warp" if s.own else s.other
    verb = "issues a cp.async to" if s.name.startswith("cp.async.c") else s.verb
    return (
        f"{verb} {s.place}, to which a cp.async of {issuer} is under way; a cp.async.wait_group of the thread that "
        "issued it is missing"
    )


LAUNCH_SENTENCES: dict[int, Callable[[Seen], str]] = {
    st.F_CLC_AGAIN: lambda s: (
        "asks to cancel the launch of a cluster after its CTA has seen such a request fail; PTX leaves undefined what "
        "happens"
    ),
    st.F_REGISTERS: _registers,
    st.F_COPY_IN_FLIGHT: _copy_in_flight,
    st.F_GLOBAL_PROXY: lambda s: (
        f"{s.verb} {s.place}, which {'the same warp' if s.own else s.other} writes; no fence.proxy.async (or "
        ".async.global) is between the two"
    ),
    st.F_UNDEFINED: lambda s: (
        f"reads register {s.register}, which has no value: no instruction on any way that leads here gives it one"
    ),
}
