"""Mutants of the forward kernel with products by tcgen05: its waits, fences and mbarriers, and its tensor memory.

They change nothing in other kernels. The emulated GPU carries an asynchronous instruction out when it is issued, so
most of them compute the right numbers there: what is found is what the PTX ISA would let happen later.
"""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Int32, cute

from kernels.blocksparse.common import tcgen05
from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.forward.blackwell import exponentials
from kernels.mutants.blocksparse.registration import register_mutant


@cute.jit
def _no_wait(w: Any, s: Int32) -> None:
    tcgen05.fence_after()


register_mutant(
    "scores_read_before_commit",
    "tcgen05: scores are read from tensor memory as soon as their turn comes, and not when their product is done.",
    "invented, after the mbarrier between a product and its epilogue in CUTLASS's kernels for Blackwell",
    forward={"wait_scored": _no_wait},
)

register_mutant(
    "output_rescaled_before_commit",
    "tcgen05: O is rescaled and read while the product of the step before may still be added to it.",
    "invented, after the correction warps of FlashAttention-4",
    forward={"wait_added": _no_wait},
)


@cute.jit
def _first_phase(w: Any, s: Int32) -> None:
    cute.arch.mbarrier_wait(w.scored + s % w.tuning.buffers, 0)
    tcgen05.fence_after()


register_mutant(
    "phase_not_flipped",
    "tcgen05: the softmax waits for the first phase of its mbarrier in every step; from the second one on of each "
    "buffer it reads scores that may not be there.",
    "invented, after the parities that each role of such a kernel counts for itself",
    forward={"wait_scored": _first_phase},
)


@cute.jit
def _nothing() -> None:
    pass


register_mutant(
    "probabilities_not_waited_for",
    "tcgen05: probabilities are announced without tcgen05.wait::st, while their stores may be under way.",
    "PTX ISA: tcgen05.wait::st tracks the completion of tcgen05.st",
    forward={"wait_stored": _nothing},
)

register_mutant(
    "scores_not_waited_for",
    "tcgen05: registers of tcgen05.ld are used, and their columns overwritten, without tcgen05.wait::ld.",
    "PTX ISA: to enforce memory ordering around tcgen05.ld, tcgen05.wait::ld must be used",
    forward={"wait_loaded": _nothing},
)

register_mutant(
    "tensor_fence_missing",
    "tcgen05: tensor memory is used after the wait for an mbarrier without tcgen05.fence::after_thread_sync.",
    "PTX ISA, canonical synchronization patterns; Triton 3.9 and CuTe DSL 4.8 write none",
    forward={"fence_after": _nothing},
)

register_mutant(
    "queries_without_proxy_fence",
    "tcgen05: the last rows of Q, K or V are copied to shared memory by threads and read by products, with no "
    "fence.proxy.async between.",
    "PTX ISA, async proxy",
    forward={"fence_shared": _nothing},
)


@cute.jit
def _arrival(barrier: cute.Pointer) -> None:
    with cute.arch.elect_one():  # type: ignore[no-untyped-call]
        cute.arch.mbarrier_arrive(barrier)


register_mutant(
    "keys_released_when_issued",
    "tcgen05: the buffer of K is released when the product that reads it has been issued, and not when it is done.",
    "invented, after the release of a wgmma's buffers by an arrival of its warps",
    forward={"release_keys": _arrival},
)


@cute.jit
def _kept(columns: cute.Pointer, count: int) -> None:
    pass


register_mutant(
    "columns_never_freed",
    "tcgen05: tensor memory is not given back: the next CTA on the SM waits for it forever.",
    "PTX ISA: all allocated tensor memory must be deallocated before the kernel exits",
    forward={"free_columns": _kept},
)


register_mutant(
    "bytes_of_half_a_tile",
    "tcgen05: the mbarrier of a bulk copy is told to expect half of the bytes that come.",
    "invented, after the byte counts that CUTLASS's TMA pipelines take from the layout of a stage",
    forward={"expected_bytes": lambda count: count // 2},
)

register_mutant(
    "bytes_that_never_come",
    "tcgen05: the mbarrier of a bulk copy is told to expect twice the bytes that come: its phase never completes.",
    "invented, as bytes_of_half_a_tile",
    forward={"expected_bytes": lambda count: 2 * count},
)


@cute.jit
def _first_filling(buffers: Buffers, s: Int32) -> None:
    cute.arch.mbarrier_wait(buffers.full + s % buffers.stages, 0)


register_mutant(
    "first_filling_of_a_buffer",
    "tcgen05: products wait for the first phase of a buffer of K or V in every step; later they read what a bulk copy "
    "may be writing.",
    "invented, as phase_not_flipped",
    forward={"wait_filled": _first_filling},
)


@cute.jit
def _filled_at_once(buffers: Buffers, s: Int32) -> None:
    pass


register_mutant(
    "buffer_refilled_before_read",
    "tcgen05: the next bulk copy into a buffer of K or V is issued before the products have read it.",
    "invented, after the wait for an empty stage in CUTLASS's TMA pipelines",
    forward={"wait_empty": _filled_at_once},
)


@cute.jit
def _any_tile(left: Int32, rows: int) -> Boolean:
    return Boolean(True)


register_mutant(
    "tail_by_bulk_copy",
    "tcgen05: TMA loads the last tile of a sequence too, with rows of the next one, or from past the tensor's end.",
    "invented, after kernels that load packed sequences by a tensor map of the whole tensor",
    forward={"whole": _any_tile},
)

register_mutant(
    "output_tail_by_bulk_store",
    "tcgen05: TMA stores the last tile of a sequence too, over rows of the next one, or past the tensor's end.",
    "invented, after kernels that store packed sequences by a tensor map of the whole tensor",
    forward={"whole_output": _any_tile},
)

register_mutant(
    "output_without_proxy_fence",
    "tcgen05: O is written to shared memory by threads and stored by TMA, with no fence.proxy.async between.",
    "PTX ISA, async proxy",
    forward={"fence_output": _nothing},
)

register_mutant(
    "output_store_not_waited_for",
    "tcgen05: the next Q takes the shared memory of O, or a CTA exits, while TMA may still read O there.",
    "PTX ISA, cp.async.bulk.wait_group.read; invented for persistent CTAs",
    forward={"wait_read": _nothing},
)


register_mutant(
    "exponent_of_forbidden_keys_wraps",
    "tcgen05: exponentials by polynomials are bounded one power of two too low, where the exponent's bits wrap.",
    "invented, after 2^x with whole and fractional part as FlashAttention-4 has it",
    forward={"power_of": lambda pair: exponentials.by_polynomial(pair, exponentials.LEAST - 1)},
)
