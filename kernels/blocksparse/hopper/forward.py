# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The forward kernel for sm_90a: one warpgroup loads, one for each 64 query rows of the tile multiplies.

Signature, grid, order of tiles and epilogue's numbers are Forward's; NOTE [buffers] of buffers.py says how loads and
products meet, NOTE [asynchronous products] of products.py what may be touched when.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warp
from cutlass.memory import SmemAllocator

from kernels.blocksparse.common import layouts
from kernels.blocksparse.common.lists import Sequence, read
from kernels.blocksparse.common.loads import TileCopy
from kernels.blocksparse.forward import Forward
from kernels.blocksparse.forward_steps import Work
from kernels.blocksparse.hopper import buffers, products
from kernels.blocksparse.hopper.buffers import Buffers
from kernels.blocksparse.hopper.steps import multiply_steps
from kernels.blocksparse.hopper.tuning import LOADING, ROWS, WARPGROUP


class HopperForward(Forward):
    """The forward kernel of one variant with products "wgmma"."""

    def shared_memory(self) -> tuple[cute.Pointer, ...]:
        """Q, later O; the stages of K; the stages of V; the barriers."""
        memory, tuning = SmemAllocator(), self.tuning
        tile = tuning.stages * tuning.step * self.variant.dim_padded
        return (
            memory.allocate_array(self.dtype, self.variant.tile_m * self.variant.dim_padded, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(self.dtype, tile, byte_alignment=1024),
            memory.allocate_array(Int64, 4 * tuning.stages, byte_alignment=8),
        )

    @cute.jit
    def tile(
        self,
        storage,
        thread,
        dim,
        q,
        k,
        v,
        o,
        lse_row,
        place,
        seq_q: Sequence,
        seq_k: Sequence,
        walk,
        mask,
        to_tanh,
        to_log2,
    ) -> None:
        """One query tile. q, k, v, o: (address of the first row, stride of rows); place: (batch, head, m_block)."""
        variant, tuning = self.variant, self.tuning
        stages, dim_padded = tuning.stages, variant.dim_padded
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        if thread == 0:
            buffers.initialise(storage[3], 2, stages, tuning.warpgroups(variant) * 4)
        cute.arch.sync_threads()
        buffers_k, buffers_v = (Buffers(storage[3] + 2 * stages * i, stages) for i in (0, 1))
        sK = products.shared_tiles(storage[1], self.dtype, tuning.step, dim_padded, stages)
        sV = products.shared_tiles(storage[2], self.dtype, tuning.step, dim_padded, stages)
        if warp_index < 4:
            if cutlass.const_expr(tuning.registers):
                cute.arch.setmaxregister_decrease(LOADING)
            self.load_stages(warp_index, thread, dim, k, v, sK, sV, buffers_k, buffers_v, walk, seq_k)
        else:
            if cutlass.const_expr(tuning.registers):
                cute.arch.setmaxregister_increase(tuning.registers)
            self.multiply(
                storage,
                thread - WARPGROUP,
                dim,
                q,
                o,
                lse_row,
                place,
                (seq_q, seq_k),
                walk,
                mask,
                (to_tanh, to_log2),
                (sK, sV),
                (buffers_k, buffers_v),
            )

    @cute.jit
    def load_stages(self, warp_index, thread, dim, k, v, sK, sV, buffers_k, buffers_v, walk, seq_k) -> None:
        """The loading warps: even ones K, odd ones V, two for each stage."""
        w = Work(
            variant=self.variant,
            tuning=self.tuning,
            key_offset=self.key_offset,
            keys_left=self.keys_left,
            copy=TileCopy(self.dtype, 32, self.variant.dim_padded, thread % 32, dim),
            length_k=seq_k.length,
            walk=walk,
        )
        stage = warp_index // 2
        if stage < self.tuning.stages:
            if warp_index % 2 == 0:
                buffers.fill(w, buffers_k, k, sK, stage)
            else:
                buffers.fill(w, buffers_v, v, sV, stage)

    @cute.jit
    def multiply(
        self, storage, thread, dim, q, o, lse_row, place, sequences, walk, mask, factors, tiles, both_buffers
    ) -> None:
        """A multiplying warpgroup. thread: of those that multiply."""
        variant, step = self.variant, self.tuning.step
        tile_m, dim_padded = variant.tile_m, variant.dim_padded
        seq_q, seq_k = sequences
        batch, _, m_block = place
        first_row = m_block * tile_m
        rows_left = seq_q.length - first_row
        band_offset = Int32(0)
        if cutlass.const_expr(variant.mask == "band"):
            band_offset = read(mask.band_offset, batch * mask.band_stride)

        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        in_group = thread % WARPGROUP
        sQ = products.shared_tiles(storage[0], self.dtype, tile_m, dim_padded, 1)[None, None, 0]
        own = cute.local_tile(sQ, (ROWS, dim_padded), (group, 0))
        copy = TileCopy(self.dtype, WARPGROUP, dim_padded, in_group, dim)
        copy.load(self.own_rows(q, group), q[1], rows_left - group * ROWS, own)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.fence_view_async_shared()
        self.meet(group)

        mma_s = products.scores_mma(self.dtype, tile_m, step)
        mma_o = products.values_mma(self.dtype, tile_m, dim_padded)
        slice_s, slice_o = mma_s.get_slice(group * WARPGROUP), mma_o.get_slice(group * WARPGROUP)
        acc_o = products.accumulator(mma_o, (tile_m, dim_padded))
        acc_o.fill(0.0)
        mask_rows = products.AccumulatorRows(mma_s, thread, (tile_m, step))
        row_ref, row_sum, corrections = (cute.make_rmem_tensor(mask_rows.rows, Float32) for _ in range(3))
        row_ref.fill(-Float32.inf)
        row_sum.fill(0.0)
        corrections.fill(1.0)
        multiply_steps(
            Work(
                variant=variant,
                tuning=self.tuning,
                dtype=self.dtype,
                keep_keys=self.keep_keys,
                correction=self.correction,
                finite=self.finite,
                allow_all=self.allow_all,
                length_k=seq_k.length,
                walk=walk,
                mask=mask,
                mask_rows=mask_rows,
                place=place,
                first_row=first_row,
                rows_left=rows_left,
                band_offset=band_offset,
                mma_s=mma_s,
                mma_o=mma_o,
                fragment_q=slice_s.make_fragment_A(slice_s.partition_A(sQ)),
                fragment_k=slice_s.make_fragment_B(slice_s.partition_B(tiles[0])),
                fragment_v=slice_o.make_fragment_B(slice_o.partition_B(products.transposed(tiles[1]))),
                buffers_k=both_buffers[0],
                buffers_v=both_buffers[1],
                acc_s=products.accumulator(mma_s, (tile_m, step)),
                acc_o=acc_o,
                row_ref=row_ref,
                row_sum=row_sum,
                factors=corrections,
                to_tanh=factors[0],
                to_log2=factors[1],
            )
        )

        self.normalise(thread, mask_rows, layouts.rows_columns(acc_o), row_ref, row_sum, factors[1], lse_row, rows_left)
        values = cute.make_rmem_tensor_like(acc_o, self.dtype)
        values.store(acc_o.load().to(self.dtype))
        to_shared = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), self.dtype), mma_o
        )
        thread_copy = to_shared.get_slice(thread)
        # all of the group's products have read Q
        self.meet(group)
        cute.copy(to_shared, thread_copy.retile(products.as_accumulator(values)), thread_copy.partition_D(sQ))
        self.meet(group)
        copy.store(own, self.own_rows(o, group), o[1], rows_left - group * ROWS)

    def own_rows(self, operand, group: Int32) -> cute.Pointer:
        """Address of a warpgroup's first row."""
        return operand[0] + Int64(group * ROWS) * cute.assume(operand[1], divby=8)

    def meet(self, group: Int32) -> None:
        """The warpgroup's threads wait for each other."""
        cute.arch.barrier(barrier_id=1 + group, number_of_threads=WARPGROUP)
