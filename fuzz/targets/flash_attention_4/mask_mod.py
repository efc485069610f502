"""The masks that flash_attn.cute is given where its own options do not say it: a mask_mod that reads a tensor, and one
that reads two bounds.

One function for every predicate, so that masks cost no compile. FlashAttention-4 finds the kernel by this function's
source, and compiles it into the kernel; so they live alone, in a module that needs the compiler.
"""

import cutlass
from cutlass import cute


@cute.jit
def keep_mod(
    batch: cute.TensorSSA,
    head: cute.TensorSSA,
    query: cute.TensorSSA,
    key: cute.TensorSSA,
    seqlen_info: cutlass.Constexpr,
    aux_tensors: cutlass.Constexpr,
) -> cute.TensorSSA:
    """True if (query, key) of that sequence and query head is kept: aux_tensors[0], uint8 (batch, heads_q, len_q,
    len_k or more), is not 0. Positions are those inside the sequence."""
    kept = cute.make_rmem_tensor(1, cutlass.Boolean)
    kept[0] = aux_tensors[0][batch[0], head[0], query[0], key[0]] != cutlass.Uint8(0)
    return kept.load()


@cute.jit
def band_mod(
    batch: cute.TensorSSA,
    head: cute.TensorSSA,
    query: cute.TensorSSA,
    key: cute.TensorSSA,
    seqlen_info: cutlass.Constexpr,
    aux_tensors: cutlass.Constexpr,
    aux_scalars,
) -> cute.TensorSSA:
    """True if the key is at most aux_scalars[0] before the query, and at most aux_scalars[1] behind it."""
    kept = cute.make_rmem_tensor(1, cutlass.Boolean)
    distance = key[0] - query[0]
    kept[0] = (distance <= aux_scalars[1]) & (distance >= -aux_scalars[0])
    return kept.load()


def scalars(values: tuple[int, ...]) -> tuple[cutlass.Int32, ...]:
    """aux_scalars: of plain ints, which its annotation allows, FlashAttention-4 compiles no kernel."""
    return tuple(cutlass.Int32(value) for value in values)
