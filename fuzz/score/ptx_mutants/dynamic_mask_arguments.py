"""Arguments for mutants of kernels.dynamic_mask, as Triton compiles them. See triton_arguments.py."""

from __future__ import annotations

from fuzz.score.ptx_mutants.argument import Argument

DYNAMIC_MASK_ARGUMENTS = (
    Argument(
        "any of the threads with the same sum",
        "Which threads write a sum. What is written is the last step of a reduction, after which every thread that "
        "takes part in it has the same value; a place follows from the row alone.",
        ("guard_negated", "guard_dropped"),
        r"@!?%p\d+ st\.shared\.b32",
        "same_bits",
        stored=r"(add|max)\.(NaN\.)?f32",
        kinds=("forward_kernel", "dbias_kernel", "dkdv_kernel", "dq_kernel", "row_state_kernel"),
        targets=("dynamic_mask",),
    ),
    Argument(
        "any of the threads with the same sum",
        "Which threads write how many tiles a list has. The number is a sum over all threads, which each of them has, "
        "as it has the list's place.",
        ("guard_negated", "guard_dropped"),
        r"@!?%p\d+ st\.global\.b32",
        "same_bits",
        inside="kernels/dynamic_mask/tile_lists.py lists_kernel",
        line=r"tl\.store\(mCount",
        kinds=("lists_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "one OR over all",
        "Two of a thread's partial results change places on their way through shared memory. All of them are taken "
        "into one OR over the tile, the only reduction of the kernel.",
        ("fragment_swapped",),
        r"(st|ld)\.shared\.v[24]\.b32",
        "same_bits",
        lacks=r"redux\.sync\.add|add\.f32|max\.f32|shfl\.sync\.up",
        kinds=("marks_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "no subnormal sum",
        "What is added to the logarithm of a sum below 2^-126. A row's largest exponential is 1, and a sum of 0 is "
        "replaced by 1 before: there are no such sums.",
        ("constant_wrong",),
        r"selp\.f32 %r\d+, 0fC1B80000, 0f00000000, %p\d+;",
        "same_values",
        kinds=("forward_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "the same logarithm",
        "Whether a sum's logarithm is taken of 2^23 times the sum, less 23. The factor changes the exponent alone, to "
        "which 23 is added and taken away without rounding. A sum, of one exponential up to 1 for each key, is far "
        "below 2^105, where the product would overflow.",
        ("operands_swapped", "compare_flipped", "compare_shifted", "constant_wrong"),
        r"setp\.lt\.f32 %p\d+, %r\d+, 0f00800000;",
        "same_bits",
        kinds=("forward_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "marks that are masked off",
        "Whether the loop over a list's marks is left out where there are none. In its turn every mark is masked off: "
        "nothing is stored, and 0 is added to the count.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("lists_kernel",),
        near=r"setp\.l[te]\.s32 \t(%p\d+), %r\d+, [01];(\n.*)*\n\t@\1 bra",
        targets=("dynamic_mask",),
    ),
    Argument(
        "a second bound",
        "Whether a row has a dLSE. The number of rows with one is that of the queries, below which another bound keeps "
        "the row, or 0; this row of the unrolled tile is not row 0.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        defined=r"or\.b32 \t%r\d+, %r\d+, [1-9]\d*;",
        inside="kernels/dynamic_mask/row_state.py row_state_kernel",
        line=r"m < len_dlse",
        kinds=("row_state_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "a finite sum",
        "Whether a logarithm's argument is finite: a sum of bounded exponentials, one for each key, which is far from "
        "infinite. One that is NaN has no sign bit, as no NaN that arithmetic makes.",
        ("compare_shifted", "bound_shifted", "sign_changed"),
        r"setp\.lt\.u32 %p\d+, %r\d+, 2139095040;",
        "same_values",
        kinds=("forward_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "bits that nobody reads",
        "A word of the mask is shifted to the right, and the lowest bit is taken of it. Signed and unsigned differ in "
        "the bits that come in at the top; the shift is by at most 31 places.",
        ("sign_changed",),
        r"shr\.[us]32 %r\d+, %r\d+, %r\d+;",
        "same_bits",
        inside="kernels/dynamic_mask/tiles.py keep_tile",
        line=r"rWords >> \(n % BITS\)\) & 1",
        targets=("dynamic_mask",),
    ),
    Argument(
        "a program has a tile",
        "Whether the loop over a program's tiles of keys is left out where there are none. Programs are as many as "
        "chunks of tiles, each of one tile at least.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_values",
        inside="kernels/dynamic_mask/tile_lists.py marks_kernel",
        line=r"for n_block in range",
        kinds=("marks_kernel",),
        targets=("dynamic_mask",),
    ),
    Argument(
        "a warp's own places",
        "The barrier between two results of the rows, which change threads in the same shared memory one after the "
        "other. No warp writes where another one reads: addresses follow from the thread alone, and the emulated GPU "
        "saw no unordered access.",
        ("barrier_dropped",),
        r"bar\.sync 0;",
        "same_bits",
        inside="kernels/dynamic_mask/row_state.py row_state_kernel",
        line=r"tl\.store\(mState \+ planes",
        kinds=("row_state_kernel",),
        targets=("dynamic_mask",),
    ),
)
