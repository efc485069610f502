"""Mutants of the backward kernel with products by tcgen05: its waits, fences and mbarriers, its tensor memory, and the
release of its semaphores. They change nothing in other kernels; see blackwell.py."""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Int32, cute

from kernels.blocksparse.common import tcgen05
from kernels.mutants.blocksparse.registration import register_mutant


@cute.jit
def _no_wait(w: Any, step: Int32) -> None:
    tcgen05.fence_after()


@cute.jit
def _nothing() -> None:
    pass


register_mutant(
    "dp_read_before_commit",
    "tcgen05: dP is read, and dS of the step before overwritten, before the products are done.",
    "invented, after the mbarrier between a product and its epilogue in CUTLASS's kernels for Blackwell",
    backward={"await_products": _no_wait},
)

register_mutant(
    "dq_read_before_commit",
    "tcgen05: dQ of a step is read from tensor memory before its product is done.",
    "invented, after the warps of FlashAttention-4's backward pass that reduce dQ",
    backward={"await_dq": _no_wait},
)

register_mutant(
    "dq_overwritten_before_read",
    "tcgen05: the next product takes dQ's place in tensor memory without a wait for the warps that read it.",
    "invented, after FlashAttention-4's backward pass, where dQ and dP share columns",
    backward={"await_columns": _no_wait},
)

register_mutant(
    "ds_not_waited_for",
    "tcgen05: P and dS are announced without tcgen05.wait::st, while their stores may be under way.",
    "PTX ISA: tcgen05.wait::st tracks the completion of tcgen05.st",
    backward={"stored_ds": _nothing},
)

register_mutant(
    "dq_not_waited_for",
    "tcgen05: columns of dQ are given to the next product without tcgen05.wait::ld.",
    "PTX ISA: to enforce memory ordering around tcgen05.ld, tcgen05.wait::ld must be used",
    backward={"loaded_dq": _nothing},
)

register_mutant(
    "ds_without_proxy_fence",
    "tcgen05: dS is written to shared memory by threads and read by dQ's product, with no fence.proxy.async between.",
    "PTX ISA, async proxy",
    backward={"publish_ds": _nothing},
)

register_mutant(
    "product_fence_missing",
    "tcgen05: products follow the wait for P or dS without tcgen05.fence::after_thread_sync.",
    "PTX ISA, canonical synchronization patterns",
    backward={"fence_products": _nothing},
)


@cute.jit
def _arrival(barrier: cute.Pointer) -> None:
    with cute.arch.elect_one():  # type: ignore[no-untyped-call]
        cute.arch.mbarrier_arrive(barrier)


register_mutant(
    "queries_released_when_issued",
    "tcgen05: a stage of Q is released when the product that reads it has been issued, and not when it is done.",
    "invented, after the release of a wgmma's buffers by an arrival of its warps",
    backward={"release_queries": _arrival},
)


def _next_chunk(first: cute.Pointer) -> Any:
    return first + tcgen05.CHUNK


register_mutant(
    "dq_of_wrong_columns",
    "tcgen05: dQ is read 32 columns beside where its product wrote it.",
    "invented, after the table of tensor memory offsets in FlashAttention-4's backward pass",
    backward={"column_of_dq": _next_chunk},
)


@cute.jit
def _all_but_the_last(step: Int32, total: Int32) -> Boolean:
    return step + 1 < total


register_mutant(
    "last_block_not_released",
    "tcgen05: the last block of each KV tile does not hand on its semaphore: hangs where another tile comes after it.",
    "invented, after the release that was skipped for tiles out of bounds",
    backward={"releases": _all_but_the_last},
)


@cute.jit
def _keys_at_once(w: Any, barrier: cute.Pointer) -> None:
    pass


register_mutant(
    "keys_not_waited_for",
    "tcgen05: the first products read K and V before the bulk copies that bring them are complete.",
    "invented, after the barriers that CUTLASS's kernels have for operands that are loaded once",
    backward={"await_keys": _keys_at_once},
)

register_mutant(
    "statistics_not_counted",
    "tcgen05: the mbarrier of a step's Q or dO expects the bytes of the tile, and not those of LSE or delta with it.",
    "invented, after the byte counts of stages that hold several operands",
    backward={"expected_bytes": lambda count: count - 512 if count % 1024 else count},
)


@cute.jit
def _any_tile(left: Int32, rows: int) -> Boolean:
    return Boolean(True)


register_mutant(
    "gradient_tail_by_bulk_copy",
    "tcgen05: TMA loads the last tiles of a sequence too, with rows of the next one, or from past the tensor's end.",
    "invented, as tail_by_bulk_copy",
    backward={"whole": _any_tile},
)

register_mutant(
    "dq_without_proxy_fence",
    "tcgen05: dQ is written to shared memory by threads and added from there by a bulk reduction, with no "
    "fence.proxy.async between.",
    "PTX ISA, async proxy",
    backward={"publish_dq": _nothing},
)

register_mutant(
    "dq_buffer_reused_before_read",
    "tcgen05: threads overwrite a buffer of dQ which a bulk reduction may still read.",
    "PTX ISA, cp.async.bulk.wait_group.read; FlashAttention-4's backward pass waits for it",
    backward={"dq_buffers_read": _nothing},
)


@cute.jit
def _read_alone() -> None:
    cute.arch.cp_async_bulk_wait_group(0, read=True)


register_mutant(
    "dq_released_before_added",
    "tcgen05: a block's semaphore is released when its bulk reductions have read shared memory, and not when they are "
    "complete.",
    "PTX ISA, cp.async.bulk.wait_group: .read waits for the reads of the source alone",
    backward={"dq_added": _read_alone},
)
