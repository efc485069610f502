"""Mutants of `kernels.blocksparse` that only a machine sees: barriers, memory, and the width of an index.

On a GPU most of them give right answers most of the time. The emulated GPU sees each where it happens.
"""

from __future__ import annotations

from cutlass import Boolean, Int32, Int64, cute

from kernels.mutants.blocksparse.registration import register_mutant


@cute.jit
def _no_barrier(thread: Int32):
    pass


register_mutant(
    "barrier_before_reuse_missing",
    "dK and dV take the place of K and V in shared memory while other warps still read K for the last dQ.",
    "invented, after the barriers that FlashAttention's backward has before its epilogue",
    backward={"before_reuse": _no_barrier},
)


@cute.jit
def _barrier_of_half_the_lanes(thread: Int32):
    if thread % 32 < 16:
        cute.arch.sync_threads()


register_mutant(
    "barrier_diverges",
    "Half of each warp's lanes reach the barrier before dK and dV are shared: undefined, often a hang.",
    "invented, after barriers inside a bounds check",
    backward={"before_reuse": _barrier_of_half_the_lanes},
)


@cute.jit
def _every_row(length: Int32, first_key: Int32) -> Int32:
    return Int32(1 << 20)


register_mutant(
    "tail_keys_read",
    "Forward: the rows of K and V beyond the sequence's end are read, past the end of the tensors of the last head.",
    "invented, after the unpredicated loads of a last tile in early flash attention kernels",
    forward={"keys_left": _every_row},
)


@cute.jit
def _not_zeroed(target: cute.Pointer, thread: Int32, size: int):
    pass


register_mutant(
    "dq_not_zeroed",
    "Atomic adds: the dQ accumulator starts with what the memory held: right as long as the allocator hands out zeros.",
    "invented, after accumulators allocated with torch.empty",
    backward={"zero": _not_zeroed},
)


@cute.jit
def _never_first(rank: Int32) -> Boolean:
    return Boolean(False)


register_mutant(
    "first_add_adds",
    "Ordered adds: the first KV tile adds to what the memory held: right as long as the allocator hands out zeros.",
    "invented, as dq_not_zeroed",
    backward={"is_first": _never_first},
)


@cute.jit
def _always_added(semaphores: cute.Pointer, tile: Int32) -> Boolean:
    return Boolean(True)


register_mutant(
    "unvisited_dq_read",
    "Ordered adds: dQ of a tile that no KV tile adds to is what the accumulator held, which nothing has written.",
    "invented, after gradients of rows without keys",
    backward={"is_added": _always_added},
)


@cute.jit
def _offset_of_32_bits(first_key: Int32, stride: Int64) -> Int64:
    return Int64(first_key * Int32(stride))


register_mutant(
    "key_offset_wraps",
    "Forward: the offset of a tile of keys is computed in 32 bits, and wraps at 2 ** 31 elements.",
    "Meta's NSA at 2,000,000 tokens: row index times stride in int32, cudaErrorIllegalAddress",
    forward={"key_offset": _offset_of_32_bits},
)
