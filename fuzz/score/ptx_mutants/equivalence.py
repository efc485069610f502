"""Reason why a missed mutant is equivalent: arguments, each for one pattern of changes, used only where what was seen
fits.

An argument needs evidence from `trial.look_closer`: that the changed instruction gave the same value in every execution
of the wider list (`same_values`), or that every answer was the same to the bit and nothing was found (`same_bits`). The
evidence alone makes nothing equivalent, and an argument is printed with every survivor that it is used for. Patterns
name instructions of their targets' kernels, as NVVM compiles kernels.blocksparse and Triton the others.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from fuzz.score.ptx_mutants.argument import Argument, TextOf, code_around
from fuzz.score.ptx_mutants.proven_arguments import PROVEN_ARGUMENTS
from fuzz.score.ptx_mutants.register_flow import number_is_free
from fuzz.score.ptx_mutants.results import Result
from fuzz.score.ptx_mutants.tile_arguments import TILE_ARGUMENTS
from fuzz.score.ptx_mutants.triton_arguments import TRITON_ARGUMENTS
from fuzz.score.ptx_mutants.triton_remarks import TRITON_REMARKS
from fuzz.score.ptx_mutants.wgmma_arguments import WGMMA_ARGUMENTS, WGMMA_REMARKS


def judged(result: Result, text_of: TextOf) -> Result:
    """The result, as equivalent where an argument says so; one that stays missed with what is known of it."""
    if result.status == "found":
        return result
    every = (*ARGUMENTS, *TRITON_ARGUMENTS, *WGMMA_ARGUMENTS, *PROVEN_ARGUMENTS, *TILE_ARGUMENTS)
    one = next((one for one in every if result.status == "missed" and one.fits(result, text_of)), None)
    if one is not None:
        return replace(result, status="equivalent", rule=one.rule, argument=one.why)
    bug = result.bug
    known = (
        why
        for operator, kind, before, near, why in _REMARKS.get(bug.target, TRITON_REMARKS)
        if (operator, kind or bug.kind) == (bug.operator, bug.kind)
        and re.match(before, bug.before)
        and re.search(near, code_around(bug, text_of), re.M)
    )
    return replace(result, argument=next(known, ""))


_BLOCKSPARSE = ("blocksparse", "blocksparse.wgmma")

ARGUMENTS = (
    Argument(
        "never negative",
        "Signed and unsigned differ for negative numbers only. The operand is an index, a length, an offset or a "
        "count of threads, which is never negative; both forms gave the same value in every execution.",
        ("sign_changed",),
        r"(setp|mul\.wide|cvt|div|max|min|shr\.[us]32 %r\d+, %r\d+, \d+;)",
        "same_values",
    ),
    Argument(
        "bits that nobody reads",
        "The word of mask bits is shifted by at most 6 places; signed and unsigned differ in the top bits that "
        "come in, and a thread reads bits 0 to 25 of what it gets.",
        ("sign_changed",),
        r"shr\.[us]32 %r\d+, %r\d+, %r\d+",
        "same_bits",
    ),
    Argument(
        "the same in all lanes",
        "The address of shared memory is the same in every lane, so it does not matter from which one it comes.",
        ("lane_wrong",),
        r"shfl\.sync\.idx\.b32 %r\d+, %r\d+, 0, 31, -1;",
        "same_values",
    ),
    Argument(
        "floor division",
        "Part of the correction of a division towards minus infinity, which applies where the signs differ and "
        "there is a remainder. Dividend and divisor are counts and never negative, or there is no remainder: the "
        "correction is never made, with the change or without.",
        ("compare_flipped", "compare_shifted", "bound_shifted", "immediate_off_by_one", "instruction_dropped",
         "operands_swapped", "operation_replaced", "sign_changed"),
        r"(setp\.(ne|eq|lt|gt|ge|le)|(and|or)\.pred|selp\.b32 %r\d+, -1, 0|xor\.b32|shr\.[us]32|(add|mul\.lo)\.s32)",
        "same_bits",
        near=r"selp\.b32 \t%r\d+, -1, 0",
    ),
    Argument(
        "the last wait",
        "The kernel's last wait for copies. The loop before it awaited every group that holds copies: a step that"
        " has no successor commits an empty one. On the emulated GPU copies arrive as late as PTX allows, and "
        "none did after it.",
        ("wait_weakened", "wait_dropped"),
        r"cp\.async\.wait_group 0;",
        "same_bits",
        never=r"^\s*cp\.async\.c[ag]",
    ),
    Argument(
        "own rows",
        "The forward kernel's barrier before O is laid over Q in shared memory. A warp reads the rows of Q that "
        "are its own, and writes O to the same rows: its own order suffices, and the barrier is not needed. (Q's "
        "copies were awaited at a barrier before the first product.)",
        ("barrier_dropped",),
        r"bar\.sync 0;",
        "same_bits",
        kinds=("forward",),
        never=r"^\s*(ldmatrix|cp\.async)",
    ),
    Argument(
        "ordered already",
        "Where the adds to dQ are ordered, no two happen at once: the semaphore's release and acquire order them,"
        " which the emulator checked. A load, an add and a store then give the same sum.",
        ("atomic_plain",),
        r"red\.relaxed\.gpu\.global\.add\S*\.f32",
        "same_bits",
        configs="ordered$",
    ),
    Argument(
        "NaN either way",
        "A maximum that forgets NaN. A score that is NaN makes its row's sum of exponentials NaN, and with it O "
        "and the log-sum-exp, whatever the row's reference is; without NaN the two are the same.",
        ("nan_dropped",),
        r"max\.NaN\.f32",
        "same_values",
        targets=_BLOCKSPARSE,
    ),
    Argument(
        "a number that nobody uses",
        "All threads of the CTA meet at the number of another barrier. They have met at barrier 0 since another "
        "instruction named that number, and none does so afterwards (register_flow.py).",
        ("named_barrier_wrong",),
        r"bar\.sync 0, 256;",
        "same_bits",
        kinds=("backward",),
        after=r"bar\.sync 1, 256;",
        proof=lambda text, line: number_is_free(text, line, 1),
    ),
    Argument(
        "the logarithm of nothing",
        "The log-sum-exp of a row without keys is computed as that of any other row: the logarithm of its sum, 0, is "
        "-inf, and so is its reference, and what is computed of them.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("forward",),
        follows=r"(\tld\.param[^\n]*\n)?\tlg2\.approx\.ftz\.f32 \t(%r\d+), %r\d+;\n"
        r"\tfma\.rn\.f32 \t(%r\d+), %r\d+, %r\d+, \2;\n\tmul\.f32 \t(%r\d+), \3, 0f3F317218;",
        near=r"mov\.b32 \t%r\d+, 0fFF800000;\n\t@%p\d+ bra",
    ),
    Argument(
        "threshold of the lazy rescaling",
        "The row's reference is moved when the maximum has outgrown it by more than 8. It may be moved at exactly"
        " 8 as well: the reference cancels out of O.",
        ("compare_shifted",),
        r"setp\.g[te]\.f32 %p\d+, %r\d+, 0f41000000;",
        "same_bits",
        kinds=("forward",),
    ),
    Argument(
        "a tile past the end",
        "A CTA whose tile begins at or past the end of its sequence leaves early. If it stays, it reads what is "
        "in bounds, and writes no row: every row that is written is compared with the length.",
        ("compare_shifted", "guarded_dropped"),
        r"(setp\.l[te]\.s32 %p\d+, %r\d+, %r\d+;|@%p\d+ bra)",
        "same_bits",
        near=r"setp\.le\.s32 \t%p\d+, (%r\d+), %r\d+;\n\t@%p\d+ bra",
        kinds=("forward", "backward"),
    ),
    Argument(
        "any lane of four",
        "Which of the four lanes of a row writes its log-sum-exp. All four have the same sum and reference, so the "
        "others write the same number.",
        ("compare_flipped", "bound_shifted"),
        r"setp\.(ne|eq)\.b32 %p\d+, %r\d+, 0;",
        "same_bits",
        kinds=("forward",),
        near=r"(rcp\.approx|shfl\.sync\.bfly)",
    ),
    Argument(
        "any one thread",
        "Which thread releases the semaphore after the barrier. One does, and the barrier orders every thread's adds "
        "before it.",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r2, 0;",
        "same_bits",
        kinds=("backward",),
        near=r"bar\.sync",
    ),
    Argument(
        "a mask that is not used",
        "Words of the mask are looked up for a full block too, which does not apply them.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("backward",),
        near=r"not\.pred \t%p\d+, %p1;",
    ),
    Argument(
        "a loop of one turn",
        "A branch that the kernel writes as a loop of no turn or one, so that the compiler keeps it: it never goes "
        "round again.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_values",
        near=r"add\.s32 \t(%r\d+), \1, 1;\n\tsetp\.ne\.b32 \t%p\d+, \1, ",
    ),
    Argument(
        "masked twice",
        "A loop of one turn that goes round a second time, and then ends: it masks scores that are masked already.",
        ("guard_negated",),
        r"@%p\d+ bra",
        "same_bits",
        near=r"add\.s32 \t(%r\d+), \1, 1;\n\tsetp\.ne\.b32 \t%p\d+, \1, 0;",
    ),
    Argument(
        "masked twice",
        "A loop of one turn that goes round a second time, and then ends: it masks scores that are masked already.",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r\d+, 0;",
        "same_bits",
        after=r", 1;$",
        kinds=("forward",),
        near=r"selp\.f32 .*0fFF800000.*\n\tadd\.s32 \t(%r\d+), \1, 1;\n\tsetp\.ne\.b32 \t%p\d+, \1, 0;",
    ),
    Argument(
        "rescaled twice",
        "A loop of one turn that goes round a second time, and then ends: the sums are multiplied by 2 to the power of "
        "the reference less the reference, which is 1.",
        ("compare_flipped", "guard_negated"),
        r"(setp\.ne\.b32 %p\d+, %r\d+, %r\d+;|@%p\d+ bra)",
        "same_bits",
        kinds=("forward",),
        near=r"mul\.f32x2 .*\n(\tmov\.b64 .*\n)*\tadd\.s32 \t(%r\d+), \2, 1;\n\tsetp\.ne\.b32 \t%p\d+, \2, ",
    ),
    Argument(
        "a step too many is loaded",
        "In the last step of a row the step after it is loaded too, which there is none of: the last block's keys once "
        "more, in bounds, into the buffer that nobody reads any more. The kernel's last wait comes after it.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("forward",),
        near=r"bar\.sync \t0;\n\tadd\.s32 \t(%r\d+), %r\d+, 1;\n\tsetp\.ge\.s32 \t%p\d+, \1, ",
    ),
    Argument(
        "a step too many is loaded",
        "In the last step the one after it is loaded too: the place in the list is not above the last one's, so it is "
        "the last block once more, in bounds, into the buffer that nobody reads any more. The kernel's last wait comes "
        "after it.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("backward",),
        near=r"setp\.ge\.s32 \t%p\d+, (%r\d+, %r\d+);\n\tsetp\.lt\.s32 \t(%p\d+), \1;(\n\t.*)*selp\.b32 \t.*, 0, \2;",
    ),
    Argument(
        "steps come in twos",
        "Tiles of 128 keys are walked in steps of 64: twice as many steps as blocks, so there is one step or more just "
        "where there are two or more.",
        ("bound_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, 2;",
        "same_values",
        kinds=("forward",),
        configs="^fp16_d64_band",
    ),
    Argument(
        "no partial block",
        "What stands for the place of the first partial block's mask where a row has none. Only a partial block looks "
        "for its mask.",
        ("instruction_dropped",),
        r"mov\.b32 %r\d+, 0;",
        "same_bits",
        kinds=("forward",),
        near=r"mov\.b32 \t(%r\d+), 0;\n\t@%p\d+ bra.*\n\tld\.global\.b32 \t\1, ",
    ),
    Argument(
        "no key, no reference",
        "The logarithm of a sum of exponentials that is 0 is taken too. It is -inf, and what is added to it, the "
        "reference of a row without keys, is -inf or finite: the log-sum-exp is -inf either way.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("forward",),
        near=r"setp\.eq\.f32 \t(%p\d+), %r\d+, 0f00000000;\n\tmov\.b32 \t%r\d+, 0fFF800000;\n\t@\1 bra.*\n\tlg2\.",
    ),
    Argument(
        "bits that are never set",
        "The mask takes a bit more of eight times the thread's number, one of its lowest three.",
        ("immediate_off_by_one",),
        r"and\.b32 %r\d+, %r14, 1792;",
        "same_values",
        kinds=("backward",),
        configs="^bf16_d32_bits_ordered",
    ),
    Argument(
        "bits that are never set",
        "The mask takes the lowest bit too of 32 times a number.",
        ("immediate_off_by_one",),
        r"and\.b32 %r\d+, %r\d+, 32;",
        "same_values",
        kinds=("postprocess",),
        near=r"shl\.b32 \t(%r\d+), %r\d+, 5;\n\tand\.b32 \t%r\d+, \1, 32;",
    ),
    Argument(
        "a group has a part",
        "Parts of a group are summed in a loop of no turn where there are none. Whoever launches this kernel has one "
        "or more.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_values",
        kinds=("postprocess",),
        near=r"setp\.lt\.s32 \t(%p\d+), %r\d+, 1;(\n\t.*)*\n\t@\1 bra",
    ),
    Argument(
        "no block is partial and full",
        "The two lists of a row are merged by comparing m blocks of one with m blocks of the other. A block is in one "
        "of them only, which is checked before a launch, so the two are never equal.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_values",
        kinds=("backward",),
        near=r"ld\.global\.b32 \t(%r\d+), .*\n\tsetp\.lt\.s32 \t%p\d+, %r\d+, \1;\n(\$L__\w+:\n|\n)*\tselp",
    ),
    Argument(
        "refilled an entry sooner",
        "The ring's other half is looked up when its last entry but one is done with, from that entry on: one is "
        "looked up again, and what is overwritten was done with. The next refill comes an entry sooner as well.",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r\d+, 2;",
        "same_bits",
        kinds=("backward",),
        near=r"setp\.lt\.u32 \t%p\d+, %r\d+, 33;",
    ),
    Argument(
        "a mask of ones",
        "The mask is applied to a block that hides nothing too: its words are all ones.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("backward",),
        near=r"and\.pred \t%p\d+, %p\d+, %p\d+;\n\t@%p\d+ bra.*\n\tshl\.b32 \t(%r\d+), %r2, 1;\n"
        r"\tand\.b32 \t%r\d+, \1, 6;",
    ),
    Argument(
        "no sum, no reference",
        "The reference of a row that has no block. Its sum of exponentials is 0, and where it is, neither O nor the "
        "log-sum-exp looks at the reference.",
        ("constant_wrong",),
        r"mov\.b32 %r\d+, 0fFF800000;",
        "same_bits",
        kinds=("forward",),
    ),
    Argument(
        "masked all the same",
        "Rows without keys have a log-sum-exp of -inf, which the preprocess turns into +inf, so that P is 0 and not "
        "inf. Such rows lie in partial blocks only, where the mask sets P to 0 whatever it is.",
        ("constant_wrong",),
        r"setp\.eq\.f32 %p\d+, %r\d+, 0fFF800000;",
        "same_bits",
        kinds=("preprocess",),
        targets=_BLOCKSPARSE,
    ),
)  # fmt: skip

# Of bugs that are bugs: operator, kind, instruction, what stands near it, and what would find them.
_REFILL = r"setp\.lt\.u32 \t%p\d+, %r\d+, 33;"
REMARKS = (
    ("constant_wrong", "forward", r"setp\.gt\.f32 %p\d+, %r\d+, 0f41000000;", "",
     "The reference of a row is moved at 16 and not at 8: P, in fp16, overflows where a later score is above the "
     "reference by 15.9998 to 16 powers of two. It would take inputs whose scores step by such an amount."),
    ("operands_swapped", "forward", r"sub\.f32", r"shfl\.sync\.bfly",
     "One of a thread's rows never asks for its reference to be moved. It shows where that row's scores outgrow it by "
     "more than P's dtype has (2^16 in fp16, 2^127 in bf16), and no other row of the warp outgrows its own by 2^8."),
    ("fragment_swapped", "backward", r"mma\.sync", "",
     "Rows of dS change places in 16 keys and the last 8 columns of dQ. It shows where the head dim is the padded one, "
     "a tile of keys is visited in two steps or more, and these keys' gradients are not negligible: more cases."),
    ("order_relaxed", "backward", r"red\.release", "",
     "The release within the loop: it shows where two tiles of keys or more add to two tiles of queries or more."),
    *((operator, "backward", before, _REFILL,
       "The ring of blocks is filled again for a list of more than 64 blocks only: 4,160 queries of one head, in tiles "
       "of 64. No case is as long, nor are those of a session on the emulated GPU (320).")
      for operator, before in (("guard_negated", r"@%p\d+ bra"), ("guard_dropped", r"@%p\d+ bra"),
                               ("compare_flipped", r"setp\.eq\.b32 %p\d+, %r\d+, 64;"))),
    ("compare_shifted", "forward", r"setp\.ge\.s32 %p\d+, %r\d+, %r\d+;", "",
     "The first full block after the partial ones, looked up two steps ahead: it takes a row of two partial "
     "blocks or more, and a full one."),
    ("immediate_off_by_one", "forward", r"add\.s32 %r\d+, %r\d+, 64;", "",
     "Keys of a full block are not masked where one is missing of its 64: it takes a length of 63 more than a multiple "
     "of 64, and a full block there."),
    ("function_dropped", "forward", r"not\.b32", r"setp\.eq\.b32 \t%p\d+, %r\d+, 1;",
     "The last tile is launched first where no order is given. Lists that were built always give one."),
)  # fmt: skip
_REMARKS = {"blocksparse": REMARKS, "blocksparse.wgmma": WGMMA_REMARKS}
