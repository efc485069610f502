"""Copies with a tensor map that an H200 refuses: it raises an illegal instruction. Compiled by numba.

The rules were measured; they fit all of the answers in ci/results/ptx_sm_90.json. A box that does not fit into
shared memory is the remaining case: `bulk/copies.py` finds it as out of bounds.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state.addressing import finding, operand
from fuzz.devices.emulator.state.intrinsics import s32
from fuzz.devices.emulator.tensor_map import BF16, F16, F32, F32_FTZ, F64, S32, S64, TF32, TF32_FTZ, U4, U32, U64


@njit
def refusal(map_, rank, kind, operation):
    """Why the copy cannot use the map: tm.VALID, tm.BAD_… or tm.NO_…. operation: a reduction's."""
    why = tm.refusal(map_, rank)
    if why == tm.VALID and kind != op.BULK_LOAD and tm.chunk_bytes(map_) < tm.CHUNK:
        return tm.NO_PADDED_STORE
    if why == tm.VALID and kind == op.BULK_REDUCE and not _reduces(operation, tm.element(map_)):
        return tm.BAD_REDUCTION
    return why


@njit
def _reduces(operation, code):
    """True if a reduction exists for an element type."""
    if operation == op.ADD:
        return code in (U32, S32, U64, F16, BF16, F32, F64, F32_FTZ, TF32, TF32_FTZ)
    if operation in (op.MIN, op.MAX):
        return code in (U32, S32, U64, S64, F16, BF16)
    if operation in (op.INC, op.DEC):
        return code == U32
    return code in (U32, S32, U64)


@njit
def note_coordinates(m, w, pc, wb, cb, c, lane, kind, rank, map_, there):
    """Findings where the box of a lane begins at coordinates that a copy cannot have. there: the map's address; the
    value has the dimension (3 bits) and above it the coordinate; size: bytes of an element, 0 where it is negative."""
    width = tm.element_bytes(map_)
    for d in range(rank):
        x = s32(operand(wb, cb, s32(c + 36 + 4 * d)) + 4 * lane)
        if d == 0 and x * width % tm.CHUNK and tm.element(map_) < U4:
            finding(m, st.F_BULK_COORDINATE, pc, w, lane, there, width, x << 3)
        elif x < 0 and kind != op.BULK_LOAD:
            finding(m, st.F_BULK_COORDINATE, pc, w, lane, there, 0, x << 3 | d)
