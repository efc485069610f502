# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Base classes of the backward kernels for sm_90a: with operands that come by TMA, and with a CTA for each tile."""

from types import SimpleNamespace

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator, softmax_gradient
from kernels.blocksparse.backward.entry import Backward
from kernels.blocksparse.backward.kernel import Gradients
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.tile_iterator import Counts, Lists, Order, take_place
from kernels.blocksparse.backward.transposed import loads, turns
from kernels.blocksparse.backward.wgmma import operand_layout
from kernels.blocksparse.common import mbarriers
from kernels.blocksparse.common.arguments import operand as argument_operand
from kernels.blocksparse.common.bulk import BulkOperand, bulk_operand
from kernels.blocksparse.common.list_reader import Operand, Sequences, read, sequence
from kernels.blocksparse.common.mask_words import Mask


class BulkBackward(Backward):
    """A backward kernel whose K, V, Q and dO come by TMA."""

    def operand(self, arguments, name: str) -> Operand | BulkOperand:
        """Those that are loaded with their tensor maps."""
        found, tiling = argument_operand(arguments, name), self.tiling
        if name in ("dk", "dv"):
            return found
        rows, heads = (tiling.step_m, arguments.heads_q) if name in ("q", "do") else (tiling.tile_n, arguments.heads_kv)
        shared = operand_layout(self.dtype, rows, tiling.dim)
        return bulk_operand(found, (rows, tiling.dim), shared, heads, arguments.batch, arguments.dim)


class TileBackward(BulkBackward):
    """A kernel with a CTA for each tile of keys; a subclass has `roles`."""

    load = staticmethod(loads.load_all)
    work_of_cta = staticmethod(lambda work: Work(**work))

    def rank(self) -> int:
        """The CTA's number among those that have the tiles from the same one on."""
        return 0

    @cute.jit
    def take_place(self, storage, order: Order, counts: Counts, thread: Int32):
        """(batch, unit, n_block) of the tile whose row of the lists this CTA works through."""
        return take_place(self.variant.deterministic, order, counts, storage.sTileNumber, thread)

    @cute.jit
    def begin(self, w) -> None:
        """What a CTA with a tile does first."""
        if w.thread == 0:
            mbarriers.initialise(w.storage.barriers, turns.barrier_table(w.tiling))
        cute.arch.sync_threads()

    def end(self) -> None:
        """The last thing that a thread of such a CTA does."""

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
        order: Order,
        counts: Counts,
        tiles: dq_accumulator.Tiles,
        dim: Int32,
        factors: softmax_gradient.Factors,
    ) -> None:
        variant, tiling = self.variant, self.tiling
        thread, _, _ = cute.arch.thread_idx()
        storage = self.shared_memory()
        batch, unit, listed = self.take_place(storage, order, counts, thread)
        n_block = listed + self.rank()
        seq_q = sequence(queries, batch)
        seq_k = sequence(keys, batch)
        first_key = n_block * tiling.tile_n
        if listed * tiling.tile_n < seq_k.length:
            row, head_kv = Int64(seq_k.begin) + first_key, unit // counts.group_split
            sums = dq_accumulator.tile_number(gradients.tiles, batch, unit, seq_k.begin, tiling.tile_n) + n_block
            band_offset = Int32(0)
            if cutlass.const_expr(variant.mask == "band"):
                band_offset = read(mask.band_offset, batch * mask.band_stride)
            first_head = unit * counts.share
            work = dict(
                kernel=self,
                variant=variant,
                tiling=tiling,
                dtype=self.dtype,
                thread=thread,
                storage=storage,
                loads=SimpleNamespace(tiles=tiles),
                q=q,
                k=k,
                v=v,
                do=do,
                statistics=statistics,
                mdQ=gradients.dq,
                dim=dim,
                rank=self.rank(),
                place=(batch, unit, n_block),
                place_of_lists=(batch, unit, listed),
                first_head=first_head,
                total=self.entries(lists, batch, listed, first_head, counts.share),
                seq_q=seq_q,
                keys_left=seq_k.length - first_key,
                lists=lists,
                mask=mask,
                band_offset=band_offset,
                order=order,
                counts=counts,
                factors=factors,
                **mbarriers.addresses(storage.barriers, turns.barrier_table(tiling)),
            )
            w = self.work_of_cta(work)
            self.begin(w)
            dk = (gradients.dk.at(batch, row, head_kv), gradients.dk.stride_row)
            dv = (gradients.dv.at(batch, row, head_kv), gradients.dv.stride_row)
            self.roles(w, head_kv, row, dk, dv, gradients.sums, sums)
            self.end()
