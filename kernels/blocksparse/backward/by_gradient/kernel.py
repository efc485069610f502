# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_90a with tiles of 64 keys at head dim 256 (`Tiling.by_gradient`): three warpgroups.

Arguments, order of tiles and numbers are those of backward/kernel.py, loads and their barriers those of the transposed
main loop: NOTE [turns of the transposed loop] of transposed/turns.py.

NOTE [a gradient each] dK and dV of 64 keys, 128 KiB of float32, are half of an SM's registers: 128 of each multiplying
thread, whatever the split. Here one warpgroup has all of dV, and S and P before it, the other one all of dK, and dP and
dS before it. So P and dS are operand A of dV and dK from the registers in which they were computed, an instruction has
all 256 columns, and no product of 64 x 64 is split among warpgroups, which would read an operand twice. What the two
exchange, by shared memory, is P, in float32, and dS, which dQ needs: mainloop.py. Of the third warpgroup one warp
loads (transposed/loads.py) and two add dQ in memory, one for each multiplying warpgroup, or three in turns
(dq_warps.py).
"""

from types import SimpleNamespace

from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward.by_gradient.dq_warps import add_dq
from kernels.blocksparse.backward.by_gradient.mainloop import loop_of_dk, loop_of_dv
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.mma import accumulator, staged_layout
from kernels.blocksparse.backward.tiling import DQ_COLUMNS, ENTRY_STAGES, columns_of_dq, groups_of_gradients
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dkdv_kernel import ALL_WARPS, KeyGradients
from kernels.blocksparse.backward.transposed.query_words import LaneQueries
from kernels.blocksparse.backward.transposed.shared_tiles import SharedTiles
from kernels.blocksparse.backward.transposed.tile_kernel import TileBackward
from kernels.blocksparse.backward.transposed.turns import GROUPS
from kernels.blocksparse.backward.wgmma import WARPGROUP, GroupProduct, GroupThread, operand, transposed_operand
from kernels.blocksparse.common import mbarriers

# Of a thread: the warpgroup that loads and adds dQ, that of dV, that of dK; launched with 168, a third of their sum
REGISTERS = (32, 240, 232)


class GradientGroups(TileBackward):
    """The backward kernel of one variant whose tiling has `by_gradient`."""

    write = KeyGradients.write
    loop_of_dv, loop_of_dk = staticmethod(loop_of_dv), staticmethod(loop_of_dk)

    @cute.jit
    def roles(self, w, head_kv: Int32, row: Int64, dk, dv, mSums, sums) -> None:
        """The roles of the warps: NOTE [a gradient each]."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < WARPGROUP // 32:
            cute.arch.setmaxregister_decrease(REGISTERS[0])
            self.other_warps(w, head_kv, row, warp)
        else:
            group = warp // (WARPGROUP // 32) - 1
            of_dv, of_dk = groups_of_gradients(self.tiling)
            if group == of_dv:
                cute.arch.setmaxregister_increase(REGISTERS[1])
                self.dv_of_row(self.work_of(w, of_dv), dv, mSums, sums)
            else:
                cute.arch.setmaxregister_increase(REGISTERS[2])
                self.dk_of_row(self.work_of(w, of_dk), dk, mSums, sums)

    @cute.jit
    def other_warps(self, w, head_kv: Int32, row: Int64, warp: Int32) -> None:
        """The warps of the warpgroup that does not multiply."""
        if warp == 0:
            self.load(w, head_kv, row)
        else:
            add_dq(w, warp - 1)

    def work_of(self, w, group: int) -> Work:
        """The work of a multiplying warpgroup, and its products."""
        w = Work(**{**w.__dict__, "thread": w.thread % WARPGROUP, "group": group})
        tiling, s, thread = w.tiling, w.storage, w.thread
        step_m, tile_n, dim = tiling.step_m, tiling.tile_n, tiling.dim
        of_scores = GroupProduct(self.dtype, (tile_n, step_m, dim), ALL_WARPS)
        by_keys = GroupProduct(self.dtype, (tile_n, dim, step_m), ALL_WARPS, transpose_b=True, a_in_registers=True)
        if group == groups_of_gradients(tiling)[0]:
            w.to_s = GroupThread(of_scores, thread, s.sK, s.sQ, tiling.depth)
            by_dim = transposed_operand(s.plaindO, step_m, dim, tiling.stages)
            w.to_dv = GroupThread(by_keys, thread, None, by_dim, columns=tiling.depth)
        else:
            w.to_dp = GroupThread(of_scores, thread, s.sV, s.sdO, tiling.depth)
            by_dim = transposed_operand(s.plainQ, step_m, dim, tiling.stages_q)
            w.to_dk = GroupThread(by_keys, thread, None, by_dim, columns=tiling.depth)
        self.add_products_of_dq(w, group)
        return w

    def add_products_of_dq(self, w, group: int) -> None:
        """The product of a warpgroup's columns of dQ: halves of K's columns lie one after the other, as stages do."""
        tiling, s, thread = w.tiling, w.storage, w.thread
        step_m, tile_n, half = tiling.step_m, tiling.tile_n, tiling.dim // GROUPS
        to_dq = GroupProduct(self.dtype, (step_m, half, tile_n), ALL_WARPS, transpose_a=True, transpose_b=True)
        halves = transposed_operand(s.plainK, tile_n, half, GROUPS)
        ds = transposed_operand(s.sdS, tile_n, step_m)
        w.to_dq = GroupThread(to_dq, thread, ds, halves, columns=columns_of_dq(tiling, group) % half)

    @cute.jit
    def dv_of_row(self, w, dv, mSums, sums) -> None:
        """The first multiplying warpgroup: a row's steps, then its dV."""
        w.words = LaneQueries(w.thread, w.tiling.step_m)
        w.rdV = accumulator(w.to_dv)
        w.rdV.fill(Float32(0.0))
        self.loop_of_dv(w)
        self.before_reuse(w.thread)
        w.to_dk = w.to_dv
        self.write(w, w.rdV, Float32(1.0), dv, mSums, sums, 1)

    @cute.jit
    def dk_of_row(self, w, dk, mSums, sums) -> None:
        """The second one: a row's steps, then its dK."""
        w.rdK = accumulator(w.to_dk)
        w.rdK.fill(Float32(0.0))
        self.loop_of_dk(w)
        self.before_reuse(w.thread)
        self.write(w, w.rdK, self.dk_factor(w.factors.scale), dk, mSums, sums, 0)

    def shared_memory(self) -> SimpleNamespace:
        """K and V, later dK and dV; the stages of Q and dO; dS with keys as rows; P as threads hold it; a piece of dQ
        for each warpgroup; all else. Tiles twice: `plain` ones with their swizzle in the layout, the others as bulk
        copies and products take them."""
        tiling, memory = self.tiling, SharedTiles(self.dtype)
        step_m, tile_n, dim, tensor = tiling.step_m, tiling.tile_n, tiling.dim, memory.tensor
        tiles = memory.operands(tile_n, dim, step_m, tiling.stages_q, tiling.stages)
        return SimpleNamespace(
            **tiles,
            sQ=operand(tiles["plainQ"], step_m, dim, tiling.stages_q),
            sdO=operand(tiles["plaindO"], step_m, dim, tiling.stages),
            sdS=tensor(staged_layout(tile_n, step_m, 1))[None, None, 0],
            sP=tensor(cute.make_layout(tile_n * step_m), Float32),
            **self.memory_of_dq(memory, tiles).__dict__,
            sLSE=tensor(cute.make_layout((step_m, tiling.stages_q)), Float32),
            sDelta=tensor(cute.make_layout((step_m, tiling.stages)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTileNumber=tensor(cute.make_layout(1), Int32),
            barriers=memory.barriers(mbarriers.barrier_count(turns.barrier_table(tiling))),
        )

    def memory_of_dq(self, memory: SharedTiles, tiles: dict[str, cute.Tensor]) -> SimpleNamespace:
        """What hands over dQ. tiles: those that are allocated."""
        pieces = 1 if self.tiling.exchanges else GROUPS
        return SimpleNamespace(sdQ=memory.tensor(cute.make_layout(pieces * self.tiling.step_m * DQ_COLUMNS), Float32))
