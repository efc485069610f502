"""Shadow of tensor memory: who touched what last. Finds accesses that nothing orders or waits for. Compiled by numba.

A cell stands for 16 lanes of a column and has four words. The writer: kind (bits 42-43), warp (32-41, its number in the
cluster) and a number (0-31), which is that of the operation (`tensor_clocks.py`) for mma and cp, and for tcgen05.st the
warp's clock at the tcgen05.wait::st that covers it, PENDING until then. The warp's clock when it issued that mma or cp.
The last tcgen05.ld: 1 + warp (from 32 on) and its clock at the wait::ld. The last mma that read it as A, or as
scale factors: 1 + warp and number.

What counts as ordered follows PTX's memory consistency model of tcgen05 (docs/explanation/tensor_memory.md).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import tensor_clocks, vector_clocks
from fuzz.devices.emulator.sanitize.tensor_clocks import done, fenced_done, fenced_known, known
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import i64, w64
from fuzz.devices.emulator.state.tensor_memory import COLUMNS

GROUPS = 8  # of 16 lanes
CELL = 32  # bytes
BYTES = COLUMNS * GROUPS * CELL  # of one tensor memory
PENDING = 0xFFFFFFFF
LOW32 = 0xFFFFFFFF
NOBODY, STORE, PRODUCT, COPY = range(4)  # kinds of writers
# kinds of accesses
LD, ST, MMA_WRITE, MMA_ADD, MMA_A, CP_WRITE, FREE, MMA_SCALES = range(8)


@njit(inline="always")
def cell_at(m, slot, group, column):
    return m.k[st.K_TENSOR_CELLS] + slot // m.k[st.K_TENSOR_SHARE] * BYTES + (column * GROUPS + group) * CELL


@njit
def forget(m, w, column, count):
    """Columns that were just allocated: nothing has written them."""
    slot = w // m.k[st.K_WARPS]
    for i in range(cell_at(m, slot, 0, column), cell_at(m, slot, 0, column + count), 8):
        w64(i, 0)


@njit
def _tell(m, kind, pc, w, group, column, access, other):
    finding(m, kind, pc, w, 0, (16 * group) << 16 | column, 4, access, tensor_clocks.first_entity(m, w) + other)


@njit
def _after_writer(m, w, pc, group, column, access, at):
    """Holds an access against the last writer of the cell."""
    writer = i64(at)
    mine = vector_clocks.in_cluster(m, w)
    warp, number = writer >> 32 & 1023, writer & LOW32
    fences = m.k[st.K_CHECKS] & st.CHECK_TENSOR_FENCES
    if writer >> 42 == STORE:
        if number == PENDING:
            if warp != mine or (access != ST and access != FREE):
                _tell(m, st.F_TC_STORE, pc, w, group, column, access, warp)
        elif warp != mine:
            if known(m, w, warp) < number:
                _tell(m, st.F_TC_RACE, pc, w, group, column, access, warp)
            elif fences and access != FREE and fenced_known(m, w, warp) < number:
                _tell(m, st.F_TC_FENCE, pc, w, group, column, access, warp)
    elif access in (LD, ST, FREE) or (access in (MMA_A, MMA_SCALES) and writer >> 42 == PRODUCT):
        if done(m, w, warp) < number:
            _tell(m, st.F_TC_COMMIT, pc, w, group, column, access, warp)
        elif fences and access in (LD, ST) and fenced_done(m, w, warp) < number:
            _tell(m, st.F_TC_FENCE, pc, w, group, column, access, warp)
    elif warp != mine and done(m, w, warp) < number and known(m, w, warp) < i64(at + 8):
        _tell(m, st.F_TC_RACE, pc, w, group, column, access, warp)


@njit
def _after_readers(m, w, pc, group, column, access, at):
    """Holds a write against the last readers of the cell."""
    mine = vector_clocks.in_cluster(m, w)
    load = i64(at + 16)
    if load:
        warp, number = (load >> 32) - 1, load & LOW32
        if number == PENDING:
            _tell(m, st.F_TC_LOAD, pc, w, group, column, access, warp)
        elif warp != mine and known(m, w, warp) < number:
            _tell(m, st.F_TC_RACE, pc, w, group, column, access, warp)
    product = i64(at + 24)
    if product and access in (ST, FREE) and done(m, w, (product >> 32) - 1) < (product & LOW32):
        _tell(m, st.F_TC_COMMIT, pc, w, group, column, access, (product >> 32) - 1)


@njit
def note(m, w, pc, groups, column, count, access):
    """An access to `count` columns from `column` in the groups of lanes of the mask `groups`."""
    note_in(m, w, w // m.k[st.K_WARPS], pc, groups, column, count, access)


@njit
def note_in(m, w, slot, pc, groups, column, count, access):
    """The same in the tensor memory of the CTA in row `slot`."""
    races = m.k[st.K_CHECKS] & st.CHECK_RACES
    unwritten = m.k[st.K_CHECKS] & st.CHECK_UNINITIALISED
    if not races and not unwritten:
        return
    mine = vector_clocks.in_cluster(m, w)
    issued = m.tensor_warp[w, st.TW_ISSUED]
    clock = vector_clocks.own(m, w)
    for c in range(column, column + count):
        for group in range(GROUPS):
            if not groups >> group & 1:
                continue
            at = cell_at(m, slot, group, c)
            if i64(at) == 0:
                if unwritten and access in (LD, MMA_ADD, MMA_A, MMA_SCALES):
                    _tell(m, st.F_TC_UNWRITTEN, pc, w, group, c, access, mine)
            elif races:
                _after_writer(m, w, pc, group, c, access, at)
            if access == LD:
                w64(at + 16, (1 + mine) << 32 | PENDING)
            elif access in (MMA_A, MMA_SCALES):
                w64(at + 24, (1 + mine) << 32 | issued)
            elif access == FREE:
                if races:
                    _after_readers(m, w, pc, group, c, access, at)
            else:
                if races:
                    _after_readers(m, w, pc, group, c, access, at)
                if access == ST:
                    w64(at, STORE << 42 | mine << 32 | PENDING)
                else:
                    w64(at, (COPY if access == CP_WRITE else PRODUCT) << 42 | mine << 32 | issued)
                w64(at + 8, clock)
                w64(at + 16, 0)
                w64(at + 24, 0)


@njit
def complete(m, w, groups, column, count, store):
    """A tcgen05.wait covers an access of warp `w`."""
    mine = vector_clocks.in_cluster(m, w)
    clock = vector_clocks.own(m, w)
    for c in range(column, column + count):
        for group in range(GROUPS):
            if groups >> group & 1:
                at = cell_at(m, w // m.k[st.K_WARPS], group, c)
                if store and i64(at) == STORE << 42 | mine << 32 | PENDING:
                    w64(at, STORE << 42 | mine << 32 | clock)
                elif not store and i64(at + 16) == (1 + mine) << 32 | PENDING:
                    w64(at + 16, (1 + mine) << 32 | clock)
