# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_90a of dK and dV alone (`Variant.separate_dq`), with tiles of 64 keys at head dim 128.

Arguments, order of tiles and numbers are those of backward/kernel.py, loads and their barriers those of the transposed
main loop: NOTE [turns of the transposed loop] of turns.py, without what is about dQ. A CTA has a warpgroup that loads,
by one warp, and one or two that multiply: NOTE [whole steps] of mainloop_dkdv.py. With one there are two CTAs on an SM.
"""

from enum import IntEnum
from types import SimpleNamespace

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward.dkv_partials import VECTOR, write_sums
from kernels.blocksparse.backward.gemms import share, store_float32
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.mma import accumulator
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, MMA_REGISTERS, SEMAPHORE_REGISTERS
from kernels.blocksparse.backward.transposed import loads, turns
from kernels.blocksparse.backward.transposed.mainloop_dkdv import gather_sums, mainloop_dkdv
from kernels.blocksparse.backward.transposed.query_words import LaneQueries
from kernels.blocksparse.backward.transposed.shared_tiles import SharedTiles
from kernels.blocksparse.backward.transposed.tile_kernel import TileBackward
from kernels.blocksparse.backward.wgmma import WARPGROUP, GroupProduct, GroupThread, operand, transposed_operand
from kernels.blocksparse.common import mbarriers
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.spec.variant import BACKWARD_OF_STEPS, NO_INJECTION, Injection, Variant

REGISTERS = {1: 232, 2: MMA_REGISTERS}  # of a thread that multiplies; launched with 128 and 168
ALL_WARPS = (4, 1)  # of a warpgroup, over the rows of a product


class StepBarrier(IntEnum):
    """Named barriers: all threads that multiply; the first of one for each warpgroup."""

    ALL = 0
    GROUP = 1


class KeyGradients(TileBackward):
    """The backward kernel of one variant whose tuning has `step_groups`."""

    INJECTION_POINTS = (*TileBackward.INJECTION_POINTS, *BACKWARD_OF_STEPS)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        super().__init__(variant, arch, injection)
        groups = self.tiling.step_groups
        self.ctas_per_sm = 2 // groups
        self.before_reuse = injection.pick("before_reuse", sync_all(groups))
        self.await_sums = injection.pick("await_sums", sync_all(groups))
        self.release_scored_q = injection.pick("release_scored_q", keep)
        self.release_q = injection.pick("release_q", turns.arrive_empty)
        self.release_do = injection.pick("release_do", turns.arrive_empty)

    @cute.jit
    def roles(self, w, head_kv: Int32, row: Int64, dk, dv, mSums, sums) -> None:
        """The roles of the warps."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < WARPGROUP // 32:
            cute.arch.setmaxregister_decrease(SEMAPHORE_REGISTERS)
            if warp == 0:
                loads.load_all(w, head_kv, row)
        else:
            cute.arch.setmaxregister_increase(REGISTERS[self.tiling.step_groups])
            group = warp // (WARPGROUP // 32) - 1
            self.multiply_row(
                Work(**{**w.__dict__, "thread": w.thread % WARPGROUP, "group": group}), dk, dv, mSums, sums
            )

    @cute.jit
    def multiply_row(self, w, dk, dv, mSums, sums) -> None:
        """A warpgroup's steps of a row; then dK and dV, or one of them."""
        self.products(w)
        w.words = LaneQueries(w.thread, w.tiling.step_m)
        w.rdK, w.rdV = accumulator(w.to_dk), accumulator(w.to_dv)
        w.rdK.fill(Float32(0.0))
        w.rdV.fill(Float32(0.0))
        mainloop_dkdv(w)
        self.before_reuse(w.thread)
        factor = self.dk_factor(w.factors.scale)
        if cutlass.const_expr(w.tiling.step_groups == 2):
            rD = gather_sums(w)
            if w.group == 0:
                self.write(w, rD, factor, dk, mSums, sums, 0)
            else:
                self.write(w, rD, Float32(1.0), dv, mSums, sums, 1)
        else:
            self.write(w, w.rdK, factor, dk, mSums, sums, 0)
            self.write(w, w.rdV, Float32(1.0), dv, mSums, sums, 1)

    @cute.jit
    def write(self, w, rD: cute.Tensor, factor: Float32, rows, mSums, sums: Int64, which: cutlass.Constexpr) -> None:
        """A warpgroup writes dK (which 0) or dV (1) of the tile, times a factor."""
        tiling, thread, dtype = w.tiling, w.thread, self.dtype
        rD.store(rD.load() * factor)
        if w.counts.group_split > 1:
            write_partial(rD, mSums, 2 * sums + which, thread)
        elif cutlass.const_expr(self.variant.float32):
            store_float32(w.to_dk.mma, rD, (tiling.tile_n, tiling.dim), rows, w.keys_left, w.dim, thread)
        else:
            sD = w.storage.plainV if cutlass.const_expr(which) else w.storage.plainK
            share(w.to_dk.mma, rD, sD, thread, True)
            cute.arch.barrier(barrier_id=StepBarrier.GROUP + w.group, number_of_threads=WARPGROUP)
            store_rows(TileCopy(dtype, WARPGROUP, tiling.dim, thread, w.dim), sD, rows, w.keys_left)

    def products(self, w) -> None:
        """The four products of a thread: S and dP with keys as rows, dV and dK with P and dS from registers."""
        tiling, s, thread = w.tiling, w.storage, w.thread
        step_m, tile_n, dim = tiling.step_m, tiling.tile_n, tiling.dim
        of_scores = GroupProduct(self.dtype, (tile_n, step_m, dim), ALL_WARPS)
        by_keys = GroupProduct(self.dtype, (tile_n, dim, step_m), ALL_WARPS, transpose_b=True, a_in_registers=True)
        w.to_s = GroupThread(of_scores, thread, s.sK, s.sQ, tiling.depth)
        w.to_dp = GroupThread(of_scores, thread, s.sV, s.sdO, tiling.depth)
        w.to_dv = GroupThread(by_keys, thread, None, transposed_operand(s.plaindO, step_m, dim, tiling.stages))
        w.to_dk = GroupThread(by_keys, thread, None, transposed_operand(s.plainQ, step_m, dim, tiling.stages_q))

    def shared_memory(self) -> SimpleNamespace:
        """K and V, later dK and dV; the stages of Q, later sums, and of dO; all else. Tiles twice: `plain` ones with
        their swizzle in the layout, the others as bulk copies and products take them."""
        tiling, memory = self.tiling, SharedTiles(self.dtype)
        step_m, tile_n, dim, tensor = tiling.step_m, tiling.tile_n, tiling.dim, memory.tensor
        tiles = memory.operands(tile_n, dim, step_m, tiling.stages_q, tiling.stages)
        return SimpleNamespace(
            **tiles,
            sQ=operand(tiles["plainQ"], step_m, dim, tiling.stages_q),
            sdO=operand(tiles["plaindO"], step_m, dim, tiling.stages),
            sLSE=tensor(cute.make_layout((step_m, tiling.stages_q)), Float32),
            sDelta=tensor(cute.make_layout((step_m, tiling.stages)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
            barriers=memory.barriers(mbarriers.barrier_count(turns.barrier_table(tiling))),
        )


@cute.jit
def write_partial(rD: cute.Tensor, mSums: cute.Pointer, number: Int64, thread: Int32) -> None:
    """Writes a warpgroup's dK or dV as NOTE [dK and dV partials] has it: two warpgroups' threads hold half of the
    columns each, one after the other."""
    values = cute.size(rD)
    target = mSums + cute.assume(number * (WARPGROUP * values), divby=VECTOR)
    for half in cutlass.range_constexpr(2):
        part = cute.make_tensor(rD.iterator + half * (values // 2), cute.make_layout(values // 2))
        write_sums(part, target, thread + half * WARPGROUP)


@cute.jit
def keep(empty: cute.Pointer, step: Int32, stages: cutlass.Constexpr) -> None:
    """A stage of Q whose scores are there stays full: dK's product reads it."""


def sync_all(groups: int):
    """A barrier of all threads that multiply; the injection point takes a thread number."""

    @cute.jit
    def synchronise(thread: Int32) -> None:
        cute.arch.barrier(barrier_id=int(StepBarrier.ALL), number_of_threads=WARPGROUP * groups)

    return synchronise
