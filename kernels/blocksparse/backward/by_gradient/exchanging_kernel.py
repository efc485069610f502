# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The backward kernel of kernel.py as clusters of two CTAs, which have the halves of a tile of 128 keys and exchange dS
(`Tiling.exchanges`): NOTE [exchanged dS] of exchange.py.

Lists are those of halves, whose rows 2i and 2i + 1 have the same blocks (`BlockLists.halves`). Both CTAs read row 2i:
a second half that begins past the sequence's end has no blocks, but its CTA adds columns of dQ for the first one. Ranks
of ordered adds are those of pairs: `pair_rank` of tile_iterator.py.
"""

from types import SimpleNamespace

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.by_gradient import exchange
from kernels.blocksparse.backward.by_gradient.dq_warps import add_dq
from kernels.blocksparse.backward.by_gradient.exchanging_mainloop import loop_of_dk, loop_of_dv
from kernels.blocksparse.backward.by_gradient.kernel import GradientGroups
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.mma import staged_layout
from kernels.blocksparse.backward.tile_iterator import place_of_pair
from kernels.blocksparse.backward.tiling import columns_of_dq
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dkdv_kernel import ALL_WARPS, KeyGradients
from kernels.blocksparse.backward.transposed.turns import GROUPS
from kernels.blocksparse.backward.wgmma import GroupProduct, GroupThread, transposed_operand
from kernels.blocksparse.common import mbarriers
from kernels.blocksparse.common.clusters import cluster_of, leave, meet
from kernels.blocksparse.common.tile_counter import take_tile_number


class ExchangingGroups(GradientGroups):
    """The backward kernel of one variant whose tiling has `exchanges`."""

    cluster = (exchange.CTAS, 1, 1)
    loop_of_dv, loop_of_dk = staticmethod(loop_of_dv), staticmethod(loop_of_dk)

    def rank(self) -> Int32:
        """The CTA's number in its cluster: which half of the keys it has."""
        return cluster_of(exchange.CTAS).rank

    @cute.jit
    def take_place(self, storage, order, counts, thread: Int32):
        """(batch, unit, first half) of this cluster. Also sets up the mbarriers, before the CTAs meet."""
        cluster = cluster_of(exchange.CTAS)
        if thread == 0:
            mbarriers.initialise(storage.barriers, turns.barrier_table(self.tiling))
        meet(cluster)
        number = cute.arch.block_idx()[0] // exchange.CTAS
        if cutlass.const_expr(self.variant.deterministic):
            if (thread == 0) & (cluster.rank == 0):
                rNumber = cute.make_rmem_tensor(1, Int32)
                rNumber[0] = take_tile_number(order.tile_counter)
                for cta in cutlass.range_constexpr(exchange.CTAS):
                    there = cute.arch.map_dsmem_ptr(storage.sTileNumber.iterator, Int32(cta))
                    cute.autovec_copy(rNumber, cute.make_tensor(there, cute.make_layout(1)))
            meet(cluster)
            number = storage.sTileNumber[0]
        return place_of_pair(number, order, counts)

    @cute.jit
    def begin(self, w) -> None:
        """What a CTA with a tile does first."""
        if w.thread == 0:
            exchange.expect_first(w)

    @cute.jit
    def end(self) -> None:
        """The last thing that a thread of such a CTA does."""
        leave(cluster_of(exchange.CTAS))

    @cute.jit
    def other_warps(self, w, head_kv: Int32, row: Int64, warp: Int32) -> None:
        """The warps of the warpgroup that does not multiply. The last one sends K, before it adds dQ."""
        if warp == 0:
            self.load(w, head_kv, row)
        else:
            if warp == 1 + GROUPS:
                exchange.send_keys(w)
            add_dq(w, warp - 1)

    @cute.jit
    def write(self, w, rD: cute.Tensor, factor, rows, mSums, sums: Int64, which: cutlass.Constexpr) -> None:
        """Writes dK or dV, if the CTA has keys."""
        if w.keys_left > 0:
            KeyGradients.write(self, w, rD, factor, rows, mSums, sums, which)

    def add_products_of_dq(self, w, group: int) -> None:
        """The products of a warpgroup's columns of dQ, over the CTA's own keys and over the peer's."""
        tiling, s = w.tiling, w.storage
        step_m, tile_n = tiling.step_m, tiling.tile_n
        product = GroupProduct(
            self.dtype, (step_m, exchange.ATOM, tile_n), ALL_WARPS, transpose_a=True, transpose_b=True
        )
        columns = columns_of_dq(tiling, group) % exchange.ATOM

        def product_with(ds, keys, atoms: int) -> GroupThread:
            by_dim = transposed_operand(keys, tile_n, exchange.ATOM, atoms)
            if columns:  # half of an atom, the last one in the second CTA
                start = by_dim.iterator + cute.assume(columns * w.rank, divby=columns)
                by_dim = cute.make_tensor(start, by_dim.layout)
            return GroupThread(product, w.thread, transposed_operand(ds, tile_n, step_m), by_dim, columns=columns)

        w.to_dq = product_with(s.sdS, s.plainK, tiling.dim // exchange.ATOM)
        w.to_peer_dq = product_with(s.sPeerdS, s.plainPeerK, exchange.PEER_ATOMS)
        w.atom, w.peer_atom = exchange.atom_of(tiling, w.rank, group), exchange.peer_atom_of(tiling, w.rank, group)

    def memory_of_dq(self, memory, tiles) -> SimpleNamespace:
        """A piece of dQ of the warpgroup of dK, the peer's K and dS. Up to head dim 192 the peer's dS is in V's last
        columns, and K's take the piece of the warpgroup of dV."""
        tiling = self.tiling
        peer_keys = staged_layout(tiling.tile_n, exchange.PEER_ATOMS * exchange.ATOM, 1)
        of_ds = staged_layout(tiling.tile_n, tiling.step_m, 1)
        if tiling.dq_in_p:
            peer_ds = memory.tensor(of_ds)
        else:
            free = tiles["plainV"].iterator + tiling.tile_n * (tiling.dim - exchange.ATOM)
            peer_ds = cute.make_tensor(free, of_ds)
        return SimpleNamespace(
            plainPeerK=memory.tensor(peer_keys)[None, None, 0],
            sPeerdS=peer_ds[None, None, 0],
            **super().memory_of_dq(memory, tiles).__dict__,
        )

    @staticmethod
    def work_of_cta(w: dict) -> Work:
        """The work of a CTA, whose keys may all lie past the sequence's end."""
        return Work(**{**w, "keys_left": cutlass.max(w["keys_left"], 0)})
