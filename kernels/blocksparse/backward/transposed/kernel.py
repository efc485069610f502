# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel for sm_90a with the transposed main loop: tiles of 128 keys, three warpgroups, persistent CTAs.

Arguments, order of tiles and numbers are those of backward/kernel.py.

NOTE [warpgroups] Two warpgroups multiply: mainloop.py. The other one leaves them its registers. Of its warps one takes
tiles and reads the block lists (tile_scheduler.py). With atomic adds one loads Q and K by TMA, one dO and V (loads.py),
and one adds dQ in memory (dq_warps.py); with ordered adds one loads all four, and two add dQ. How they take turns: NOTE
[turns of the transposed loop] of turns.py; tile after tile: NOTE [tiles of keys] of tile_scheduler.py.

NOTE [dK and dV] Between its last dQ and the next tile's first dS a warp stores its 16 rows of dV and of dK, through the
rows of a tile that lies where dS does. So K and V of the next tile are loaded meanwhile.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.dkv_partials import keys_product, sums_of, write_sums
from kernels.blocksparse.backward.dq_accumulator import dq_product
from kernels.blocksparse.backward.gemms import share, store_float32
from kernels.blocksparse.backward.kernel import Gradients
from kernels.blocksparse.backward.load import store_rows
from kernels.blocksparse.backward.mainloop_mma import Work, sync_multiplying
from kernels.blocksparse.backward.mma import accumulator, staged_layout
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, MMA_REGISTERS, SEMAPHORE_REGISTERS, TILE_STAGES, WARPS
from kernels.blocksparse.backward.transposed import dq_warps, loads, tile_scheduler, turns
from kernels.blocksparse.backward.transposed.loads import Side
from kernels.blocksparse.backward.transposed.mainloop import clear, mainloop_transposed
from kernels.blocksparse.backward.transposed.query_words import LaneQueries
from kernels.blocksparse.backward.transposed.shared_tiles import SharedTiles
from kernels.blocksparse.backward.transposed.split_sums import SplitOrder, combine
from kernels.blocksparse.backward.transposed.tile_kernel import BulkBackward
from kernels.blocksparse.backward.transposed.tile_scheduler import Tile
from kernels.blocksparse.backward.transposed.turns import GROUPS
from kernels.blocksparse.backward.wgmma import (
    WARPGROUP,
    GroupProduct,
    GroupThread,
    clear_others,
    operand,
    transposed_operand,
)
from kernels.blocksparse.common import mbarriers, split_tiles
from kernels.blocksparse.common.bulk import BulkOperand
from kernels.blocksparse.common.layouts import tile_layout
from kernels.blocksparse.common.list_reader import Sequences
from kernels.blocksparse.common.mask_words import Mask
from kernels.blocksparse.common.split_tiles import split_tiles_of
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.spec.variant import NO_INJECTION, OF_SPLITS, Injection, Variant


class TransposedBackward(BulkBackward):
    """The backward kernel of one variant whose tuning has `transposed`."""

    look_up, load, add_dq, add_dq_in_order, mainloop = (
        staticmethod(tile_scheduler.look_up_window),
        staticmethod(loads.load_sides),
        staticmethod(dq_warps.add_steps),
        staticmethod(dq_warps.add_steps_in_order),
        staticmethod(mainloop_transposed),
    )

    INJECTION_POINTS = (*BulkBackward.INJECTION_POINTS, *OF_SPLITS)

    def __init__(self, variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> None:
        super().__init__(variant, arch, injection)
        self.arrive_part = injection.pick("arrive_part", split_tiles.arrive)
        self.entries_of_part = injection.pick("entries_of_part", split_tiles.entries_of)

    def ctas(self, tiles: Int32, resident: Int32) -> Int32:
        """As many as are resident, if there are so many tiles."""
        return cutlass.min(tiles, resident)

    def order(self, order: Order, arguments) -> Order | SplitOrder:
        """With the tiles that are split, where any may be."""
        return SplitOrder(order, split_tiles_of(arguments)) if self.tiling.splits else order

    @cute.kernel
    def kernel(
        self,
        q,
        k: BulkOperand,
        v: BulkOperand,
        do,
        statistics: tuple[cute.Pointer, cute.Pointer],
        gradients: Gradients,
        queries: Sequences,
        keys: Sequences,
        lists: Lists,
        mask: Mask,
        order: Order | SplitOrder,
        counts: Counts,
        tiles: dq_accumulator.Tiles,
        dim: Int32,
        factors: softmax_gradient.Factors,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        storage, splits = self.shared_memory(), None
        if cutlass.const_expr(self.tiling.splits):
            order, splits = order
        w = Work(
            kernel=self,
            variant=self.variant,
            tiling=self.tiling,
            dtype=self.dtype,
            thread=thread,
            storage=storage,
            loads=SimpleNamespace(tiles=tiles),
            q=q,
            k=k,
            v=v,
            do=do,
            statistics=statistics,
            gradients=gradients,
            mdQ=gradients.dq,
            dim=dim,
            queries=queries,
            keys=keys,
            lists=lists,
            mask=mask,
            order=order,
            splits=splits,
            counts=counts,
            factors=factors,
            **mbarriers.addresses(storage.barriers, turns.barrier_table(self.tiling)),
        )
        if thread == 0:
            mbarriers.initialise(storage.barriers, turns.barrier_table(self.tiling))
        cute.arch.sync_threads()
        self.roles(w)

    @cute.jit
    def roles(self, w) -> None:
        """The roles of the warps: NOTE [warpgroups]."""
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        if warp < WARPGROUP // 32:
            cute.arch.setmaxregister_decrease(SEMAPHORE_REGISTERS)
            if cutlass.const_expr(self.variant.deterministic):
                if warp == 0:
                    self.load_tiles(w, (Side.DO, Side.Q))
                elif warp < 1 + GROUPS:
                    self.add_dq_of_tiles(w, warp - 1)
                else:
                    tile_scheduler.schedule(w, self.look_up)
            elif warp == 0:
                self.load_tiles(w, (Side.Q,))
            elif warp == 1:
                self.add_dq_of_tiles(w)
            elif warp == 2:
                self.load_tiles(w, (Side.DO,))
            else:
                tile_scheduler.schedule(w, self.look_up)
        else:
            cute.arch.setmaxregister_increase(MMA_REGISTERS)
            self.multiply_tiles(Work(**{**w.__dict__, "thread": w.thread - WARPGROUP}))

    @cute.jit
    def load_tiles(self, w, sides: cutlass.Constexpr) -> None:
        """A loading warp."""
        progress, more, load = tile_scheduler.beginning(), Boolean(True), self.load
        while more:
            tile = tile_scheduler.take(w, progress.tiles, releases=False)
            more = tile.batch >= 0
            steps = progress.steps
            if tile.total > 0:
                steps = load(tile_scheduler.waiting_work_of(w, tile.total, progress), sides, steps)
            turns.arrive_empty(w.tile_empty, progress.tiles, TILE_STAGES)
            progress = tile_scheduler.after(progress, tile, steps)

    @cute.jit
    def add_dq_of_tiles(self, w, group: Int32 | None = None) -> None:
        """A dQ warp. group: the warpgroup whose share it adds, in order; None: it adds both, atomically."""
        progress, more = tile_scheduler.beginning(), Boolean(True)
        add_dq, add_dq_in_order = self.add_dq, self.add_dq_in_order
        if cutlass.const_expr(group is None):
            for each in cutlass.range_constexpr(GROUPS):
                turns.offer_dq(w, each)
        else:
            turns.offer_dq(w, group)
        while more:
            tile = tile_scheduler.take(w, progress.tiles, releases=False)
            more = tile.batch >= 0
            steps = progress.steps
            if tile.total > 0:
                of_tile = tile_scheduler.waiting_work_of(w, tile.total, progress)
                if cutlass.const_expr(group is None):
                    steps = add_dq(of_tile, steps)
                else:
                    steps = add_dq_in_order(of_tile, group, steps)
            turns.arrive_empty(w.tile_empty, progress.tiles, TILE_STAGES)
            progress = tile_scheduler.after(progress, tile, steps)

    @cute.jit
    def multiply_tiles(self, w) -> None:
        """The multiplying threads."""
        progress, more, mainloop = tile_scheduler.beginning(), Boolean(True), self.mainloop
        self.products(w)
        w.words = LaneQueries(w.thread, w.tiling.step_m)
        while more:
            tile = tile_scheduler.take(w, progress.tiles)
            more = tile.batch >= 0
            if more:
                of_tile = tile_scheduler.work_of(w, tile, progress)
                of_tile.rdK, of_tile.rdV = accumulator(w.to_dk), accumulator(w.to_dv)
                clear_others(w.to_dk, of_tile.rdK)
                clear_others(w.to_dv, of_tile.rdV)
                steps = progress.steps
                if tile.total > 0:
                    steps = mainloop(of_tile, steps)
                else:
                    clear(of_tile)
                self.finish(of_tile, tile)
                progress = tile_scheduler.after(progress, tile, steps)
        turns.drain_dq(w)

    @cute.jit
    def finish(self, w, tile: Tile) -> None:
        """Writes dK and dV of a tile; of one that is split, in its last part."""
        w.rdK.store(w.rdK.load() * self.dk_factor(w.factors.scale))
        if cutlass.const_expr(self.tiling.splits):
            last, write, splits = Boolean(True), self.write, w.splits
            if tile.split >= 0:
                last = combine(w, splits, tile.split)
            if last:
                write(w, tile)
        else:
            self.write(w, tile)

    @cute.jit
    def write(self, w, tile: Tile) -> None:
        """Writes dK and dV of a tile, or where its head's group has several units, their sums."""
        tiling, thread, row, head = w.tiling, w.thread, w.row, w.head_kv
        dk, dv, mSums = w.gradients.dk, w.gradients.dv, w.gradients.sums
        if w.counts.group_split > 1:
            sums = tile_scheduler.sums_number(w, tile)
            write_sums(w.rdK, sums_of(mSums, sums, 0, tiling), thread)
            write_sums(w.rdV, sums_of(mSums, sums, 1, tiling), thread)
        elif cutlass.const_expr(self.variant.float32):
            shape = (tiling.tile_n, tiling.dim)
            of_k, of_v = ((x.at(tile.batch, row, head), x.stride_row) for x in (dk, dv))
            store_float32(w.to_dk.mma, w.rdK, shape, of_k, w.keys_left, w.dim, thread)
            store_float32(w.to_dv.mma, w.rdV, shape, of_v, w.keys_left, w.dim, thread)
        else:
            self.before_reuse(thread)
            self.store(w, w.to_dv.mma, w.rdV, (dv.at(tile.batch, row, head), dv.stride_row))
            self.store(w, w.to_dk.mma, w.rdK, (dk.at(tile.batch, row, head), dk.stride_row))
            # what is in the way of dS has been read
            sync_multiplying()

    @cute.jit
    def store(self, w, mma: cute.TiledMma, rD: cute.Tensor, rows: tuple[cute.Pointer, Int64]) -> None:
        """A warp stores its rows of dK or dV: NOTE [dK and dV]. rows: (address of the tile's first one, elements
        between rows)."""
        tile_n, dim, own = w.tiling.tile_n, w.tiling.dim, w.tiling.tile_n // WARPS
        warp = cute.arch.make_warp_uniform(w.thread // 32)
        sD = cute.make_tensor(w.storage.sdS.iterator, tile_layout(tile_n, dim))
        cute.arch.sync_warp()
        share(mma, rD, sD, w.thread, True)
        cute.arch.sync_warp()
        first = rows[0] + Int64(warp * own) * cute.assume(rows[1], divby=8)
        copy = TileCopy(self.dtype, 32, dim, w.thread % 32, w.dim)
        store_rows(copy, cute.local_tile(sD, (own, dim), (warp, 0)), (first, rows[1]), w.keys_left - warp * own)

    def products(self, w) -> None:
        """The five products of a thread: S and dP with keys as rows, dV and dK with P and dS from registers, dQ."""
        tiling, s, thread = w.tiling, w.storage, w.thread
        step_m, tile_n, dim = tiling.step_m, tiling.tile_n, tiling.dim
        of_scores = GroupProduct(self.dtype, (tile_n, step_m, dim), tiling.warps_s)
        by_keys = keys_product(tiling, self.dtype)
        to_dq = dq_product(tiling, self.dtype)
        of_do, of_q = (step_m, dim, tiling.stages), (step_m, dim, tiling.stages_q)
        of_ds = (tile_n, step_m, tiling.stages_ds)
        w.to_s = GroupThread(of_scores, thread, s.sK, s.sQ, tiling.depth)
        w.to_dp = GroupThread(of_scores, thread, s.sV, s.sdO, tiling.depth)
        w.to_dv = GroupThread(by_keys, thread, None, transposed_operand(s.plaindO, *of_do), columns=tiling.depth)
        w.to_dk = GroupThread(by_keys, thread, None, transposed_operand(s.plainQ, *of_q), columns=tiling.depth)
        by_dim = transposed_operand(s.plainK, tile_n, dim)
        if tiling.dq_by_dim:
            w.to_dq = GroupThread(to_dq, thread, by_dim, operand(s.sdS, step_m, tile_n, tiling.stages_ds))
        else:
            w.to_dq = GroupThread(to_dq, thread, transposed_operand(s.sdS, *of_ds), by_dim)

    def shared_memory(self) -> SimpleNamespace:
        """K and V; the stages of Q and dO; dS, later dK and dV; dQ; all else. Tiles twice: `plain`
        ones with their swizzle in the layout, the others as bulk copies and products take them."""
        tiling, memory = self.tiling, SharedTiles(self.dtype)
        step_m, tile_n, dim, tensor = tiling.step_m, tiling.tile_n, tiling.dim, memory.tensor
        of_ds = (step_m, tile_n) if tiling.dq_by_dim else (tile_n, step_m)
        tiles = memory.operands(tile_n, dim, step_m, tiling.stages_q, tiling.stages)
        return SimpleNamespace(
            **tiles,
            sQ=operand(tiles["plainQ"], step_m, dim, tiling.stages_q),
            sdO=operand(tiles["plaindO"], step_m, dim, tiling.stages),
            sdS=tensor(staged_layout(*of_ds, tiling.stages_ds)),
            sdQ=tensor(cute.make_layout(step_m * dim * tiling.stages_dq), Float32),
            sLSE=tensor(cute.make_layout((step_m, tiling.stages_q)), Float32),
            sDelta=tensor(cute.make_layout((step_m, tiling.stages)), Float32),
            sEntries=tensor(cute.make_layout((4, ENTRY_STAGES)), Int32),
            sTile=tensor(cute.make_layout((tile_scheduler.ints_of(tiling), TILE_STAGES)), Int32),
            sLast=memory.numbers(Int32, (1,)) if tiling.splits else None,
            barriers=memory.barriers(mbarriers.barrier_count(turns.barrier_table(tiling))),
        )
