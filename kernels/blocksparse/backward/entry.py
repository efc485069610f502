"""The backward kernel with its flat signature: what `compile.build` compiles."""

from typing import Any

import cutlass
from cuda.bindings import driver
from cutlass import Float32, cute

from kernels.blocksparse.backward.dq_accumulator import Tiles
from kernels.blocksparse.backward.kernel import BackwardKernel, Gradients
from kernels.blocksparse.backward.softmax_gradient import LOG2_E, Factors
from kernels.blocksparse.backward.tile_iterator import Contributors, Counts, Lists, Order
from kernels.blocksparse.common.arguments import block_list, entry, mask_of, operand, sequence_order_of, sequences_of


class Backward(BackwardKernel):
    """The backward kernel of one variant on one arch; calling it (under cute.compile) launches it."""

    ctas_per_sm = 1  # that registers and shared memory have room for
    cluster = None  # (CTAs of a cluster, 1, 1)

    def operand(self, arguments: Any, name: str) -> Any:
        """An operand or a gradient as `kernel` takes it."""
        return operand(arguments, name)

    def ctas(self, tiles: Any, resident: Any) -> Any:
        """CTAs of a launch over so many tiles of keys: one for each; resident is for persistent ones."""
        return tiles

    def order(self, order: Order, arguments: Any) -> Any:
        """The order of the work of all CTAs, as `kernel` takes it."""
        return order

    @entry("backward")
    @cute.jit
    def __call__(self, arguments, stream: driver.CUstream) -> None:
        """Launch over `tiles_to_launch` tiles, at least one: `ctas`. These are batch x heads_kv x group_split x
        n_blocks or, where sequences have an order, as many as they have at most.

        q … dv         (…, rows, heads, dim) of the variant's dtype, dk and dv float32 where it says so, 16-byte
                       aligned; strides are multiples of 8
        dq_sum         fp32, 16-byte aligned: NOTE [dQ accumulator] of dq_accumulator.py
        dkv_sum        fp32, 16-byte aligned: NOTE [dK and dV partials] of dkv_partials.py, written instead of dk and dv
                       where group_split is more than 1: a divisor of heads_q / heads_kv
        lse2, delta    fp32, 16-byte aligned: NOTE [statistics] of preprocess.py
        *_begin, *_length   int32 (batch): where a sequence's rows start, counted from the batch's start, and how many
        partial, full  the backward block lists, common/list_reader.py; *_rank: their write order, read by deterministic
                       variants; merged: tile_iterator.py's Lists
        mask_*, band_* common/mask_words.py; mask_slot is parallel to partial_index
        positions, schedule, pairs, reversed_from, tile_counter, semaphores   tile_iterator.py's Order; the last three
                       are read by deterministic variants, the counter by persistent CTAs too
        order_*        common/sequence_order.py's SequenceOrder, of tiles of keys; null: none
        contributors_* tile_iterator.py's Contributors, where there is a reversed group
        resident       CTAs to launch of a persistent kernel
        first_split, split_*   common/split_tiles.py's SplitTiles; tiles_to_launch then counts parts
        tiles_*        dq_accumulator.py's Tiles, of queries; key_tiles_*: those of keys
        scale, cap     positive
        """
        a = arguments
        if cutlass.const_expr(self.variant.softcap):
            factors = Factors(a.scale / a.cap, a.cap * LOG2_E, a.scale)
        else:
            factors = Factors(Float32(1.0), a.scale * LOG2_E, a.scale)
        lists = Lists(
            block_list(a, "partial"),
            block_list(a, "full"),
            a.merged,
            a.partial_rank,
            a.full_rank,
            a.mask_slot,
            Contributors(
                a.contributors_partial,
                a.contributors_full,
                a.contributors_stride_batch,
                a.contributors_stride_head,
            ),
        )
        order = Order(
            a.schedule,
            a.positions,
            a.positions_stride_batch,
            a.positions_stride_head,
            a.pairs,
            a.tile_counter,
            a.semaphores,
            a.reversed_from,
            sequence_order_of(a, "order"),
        )
        key_tiles = Tiles(a.key_tiles_stride_batch, a.key_tiles_total)
        self.kernel(
            self.operand(a, "q"),
            self.operand(a, "k"),
            self.operand(a, "v"),
            self.operand(a, "do"),
            (a.lse2.align(16), a.delta.align(16)),
            Gradients(a.dq_sum.align(16), self.operand(a, "dk"), self.operand(a, "dv"), a.dkv_sum.align(16), key_tiles),
            sequences_of(a, "q"),
            sequences_of(a, "k"),
            lists,
            mask_of(a),
            self.order(order, a),
            Counts(a.batch, a.heads_q, a.heads_kv, a.heads_q // a.heads_kv, a.group_split, a.m_blocks, a.n_blocks),
            Tiles(a.tiles_stride_batch, a.tiles_total),
            a.dim,
            factors,
        ).launch(
            grid=[self.ctas(a.tiles_to_launch, a.resident), 1, 1],
            block=[self.tiling.threads, 1, 1],
            cluster=self.cluster,
            stream=stream,
            min_blocks_per_mp=self.ctas_per_sm,
            # given, so that a build need not ask a driver how much an SM has
            preferred_smem_carveout=100 if self.ctas_per_sm > 1 else None,
        )
