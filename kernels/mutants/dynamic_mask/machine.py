"""Mutants of `kernels.dynamic_mask` that only a machine with warps shows: warps that part, barriers that are missing.

Triton places the barriers of shared buffers, and no step of a kernel's source is one of them: those mutants change the
PTX that Triton makes.
"""

from dataclasses import fields
from functools import partial

import triton
import triton.language as tl

from kernels.dynamic_mask.tiles import list_of
from kernels.mutants.dynamic_mask.edited_launch import EditedLaunch, without_barriers_before_writes
from kernels.mutants.dynamic_mask.registration import register_mutant
from kernels.sdpa.launch import Launch


@triton.jit
def _of_each_warp(lists, batch, head, line, lines, steps):
    mEntries, number = list_of(lists, batch, head, line, lines, steps)
    thread = tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r,r", [number], dtype=tl.int32, is_pure=True, pack=1)
    return mEntries, number - (thread < 32).to(tl.int32)


register_mutant(
    "tiles_of_each_warp",
    "Forward: each warp has a number of tiles of its own: the first one passes by barriers at which the others wait.",
    "flash-dmattn 801e816: any_active of each thread, before __syncthreads_or; barriers in the branch diverge",
    list_of=_of_each_warp,
)


def _edited(kernel: str, launches: list[Launch]) -> list[Launch]:
    def edited(launch: Launch) -> EditedLaunch:
        given = {field.name: getattr(launch, field.name) for field in fields(Launch)}
        return EditedLaunch(**given, edit=without_barriers_before_writes)

    return [edited(one) if one.kernel.__name__ == kernel else one for one in launches]


register_mutant(
    "next_keys_copied_early",
    "Forward: a tile of K and V is copied into shared memory that other warps still read for the tile before.",
    "flash-dmattn 801e816: the next mask is copied over P before the product with V has read it",
    launches=partial(_edited, "forward_kernel"),
)

register_mutant(
    "next_queries_copied_early",
    "dK and dV: a tile of Q and dO is copied into shared memory that other warps still read for the tile before.",
    "flash-dmattn 801e816: the next bias is copied over dS before the product that makes dK has read it",
    launches=partial(_edited, "dkdv_kernel"),
)
