"""Arguments for mutants of Hopper's kernels by wgmma, as NVVM compiles kernels.blocksparse. See equivalence.py,
which has those that hold for the portable kernels too."""

from __future__ import annotations

from fuzz.score.ptx_mutants.argument import Argument
from fuzz.score.ptx_mutants.mbarrier_order import release_is_idle, wait_is_idle
from fuzz.score.ptx_mutants.register_flow import (
    asks_for_parameter,
    barrier_after_shuffles_is_idle,
    barrier_is_idle,
    fence_is_idle,
    is_read_once,
    stores_at_parameter,
    stores_zeros,
)
from fuzz.score.ptx_mutants.truth_values import is_below, may_run_twice

_WGMMA = ("blocksparse.wgmma",)

WGMMA_ARGUMENTS = (
    Argument(
        "never negative",
        "Signed and unsigned differ for negative numbers only. The operand is an index, a length, an offset or an "
        "address of shared memory, which is never negative; both forms gave the same value in every execution.",
        ("sign_changed",),
        r"(setp|mul\.wide|cvt|div|max|min|shr\.[us]32 %r\d+, %r\d+, \d+;)",
        "same_values",
        targets=_WGMMA,
    ),
    Argument(
        "the same in all lanes",
        "The value is made of the warp's number, or all lanes read it from one address: every lane has it, so it does "
        "not matter from which one it comes.",
        ("lane_wrong",),
        r"shfl\.sync\.idx\.b32 %r\d+, %r\d+, 0, 31, -1;",
        "same_values",
        targets=_WGMMA,
    ),
    Argument(
        "floor division",
        "Part of the correction of a division towards minus infinity, which applies where the signs differ and there "
        "is a remainder. Dividend and divisor are counts and never negative, or there is no remainder: the correction "
        "is never made, with the change or without.",
        ("compare_flipped", "compare_shifted", "bound_shifted", "immediate_off_by_one", "instruction_dropped",
         "operands_swapped", "operation_replaced", "sign_changed"),
        r"(setp\.(ne\.b32 %p\d+, %r\d+, %r|lt\.s32 %p\d+, %r\d+, 0;)|and\.pred|selp\.b32 %r\d+, -1, 0|xor\.b32)",
        "same_bits",
        near=r"and\.pred[^\n]*\n\tselp\.b32 \t%r\d+, -1, 0",
        targets=_WGMMA,
    ),
    Argument(
        "floor division",
        "The correction of a division towards minus infinity, -1 or 0, is subtracted and not added. It was 0 in every "
        "execution.",
        ("operation_replaced",),
        r"add\.s32 %r\d+, %r\d+, %r\d+;",
        "same_values",
        near=r"selp\.b32 \t(%r\d+), -1, 0, %p\d+;\n(\tmad\.lo\.s32 .*\n)?\tadd\.s32 \t%r\d+, %r\d+, \1;",
        targets=_WGMMA,
    ),
    Argument(
        "rounding of a division",
        "Part of a division by a power of 2 that is rounded towards 0: it adds something to negative dividends only. "
        "The dividend is the number of a thread or a part of it.",
        ("operation_replaced", "sign_changed", "immediate_off_by_one", "instruction_dropped", "operands_swapped"),
        r"(shr\.[su]16 %rs\d+, %rs\d+, \d+;|and\.b16 %rs\d+, %rs\d+, \d+;|add\.s16 %rs\d+, %rs\d+, %rs\d+;)",
        "same_values",
        targets=_WGMMA,
    ),
    Argument(
        "rounding of a division",
        "Part of a division by a power of 2 that is rounded towards 0: it adds something to negative dividends only. "
        "The dividend is a count.",
        ("operation_replaced", "sign_changed", "immediate_off_by_one", "instruction_dropped", "operands_swapped"),
        r"(shr\.[su]32 %r\d+, %r\d+, \d+;|add\.s32 %r\d+, %r\d+, %r\d+;)",
        "same_values",
        near=r"shr\.s32 \t(%r\d+), (%r\d+), 31;\n\tshr\.u32 \t(%r\d+), \1, \d+;\n\tadd\.s32 \t%r\d+, \2, \3;",
        targets=_WGMMA,
    ),
    Argument(
        "the end has no blocks",
        "A warp that loads goes on with the tile that says that there are no more: it has no blocks, and its loop over "
        "tiles ends there.",
        ("sign_changed",),
        r"setp\.lt\.s32 %p\d+, %r\d+, 0;",
        "same_bits",
        kinds=("forward",),
        near=r"mbarrier\.arrive\.shared\.b64 [^\n]*\n\$L__\w+:\n\tsetp\.lt\.s32 \t(%p\d+), %r\d+, 0;\n\t@\1 bra",
        targets=_WGMMA,
    ),
    Argument(
        "beyond the last tile",
        "The number of a tile that is not there, the first one beyond the last, is passed over as one without rows is: "
        "the next number is beyond it too.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("forward",),
        near=r"setp\.lt\.s32 \t(%p\d+), .*\n\tshl\.b32 .*\n\tsetp\.ge\.s32 \t(%p\d+), .*\n\tand\.pred \t%p\d+, \1, \2;",
        targets=_WGMMA,
    ),
    Argument(
        "a first filling",
        "The first wait for an empty buffer, the phase of parity 1 before any: it never waits.",
        ("phase_not_awaited",),
        r"mbarrier\.try_wait\.parity\.shared\.b64 P1, \[%r\d+\], 1,",
        "same_bits",
        targets=_WGMMA,
    ),
    Argument(
        "the other warpgroup begins",
        "The last warpgroup opens its own turn and not the first one's. It issues its products first, and then the "
        "turns go round as they do.",
        ("named_barrier_wrong",),
        r"bar\.arrive 3, 256;",
        "same_bits",
        kinds=("forward",),
        near=r"setp\.ne\.b32 \t(%p\d+), %r\d+, 1;\n\t@\1 bra",
        targets=_WGMMA,
    ),
    Argument(
        "it adds to the accumulators",
        "Whether a product adds to its accumulators, a constant 1: compared with 0 or with -1.",
        ("bound_shifted",),
        r"setp\.ne\.b32 p, %r\d+, 0;",
        "same_bits",
        after=r", -1;$",
        defined=r"mov\.b32 \t%r\d+, 1;",
        targets=_WGMMA,
    ),
    Argument(
        "another lane arrives",
        "One lane of a warp arrives at an mbarrier, after the warp's barrier: whichever it is.",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r\d+, 0;",
        "same_bits",
        after=r", 1;$",
        defined=r"mov\.u32 \t%r\d+, %laneid",
        targets=_WGMMA,
    ),
    Argument(
        "fenced before",
        "On every way to this fence another one comes before, and no instruction between the two accesses a register "
        "of the products after it: it orders nothing (register_flow.py).",
        ("product_order_dropped",),
        r"wgmma\.fence\.",
        "same_bits",
        targets=_WGMMA,
        proof=fence_is_idle,
    ),
    Argument(
        "released again",
        "The buffer of dO is released before the product that reads it is done. The warp that fills it waits for Q's "
        "buffer of the same step first, which is released after the wait for all products (mbarrier_order.py).",
        ("product_wait_weakened",),
        r"wgmma\.wait_group\.sync\.aligned 1;",
        "same_bits",
        kinds=("backward",),
        after=r"aligned 2;",
        targets=_WGMMA,
        proof=release_is_idle,
    ),
    Argument(
        "awaited with Q",
        "The wait for dO's buffer comes after the one for Q's buffer of the same step and parity, at which every warp "
        "arrives after it has arrived at dO's (mbarrier_order.py).",
        ("phase_not_awaited",),
        r"mbarrier\.try_wait\.parity",
        "same_bits",
        kinds=("backward",),
        targets=_WGMMA,
        proof=wait_is_idle,
    ),
    Argument(
        "the lanes have met",
        "All lanes wait for each other at the wgmma.wait_group right before, and nothing is accessed between the two. "
        "What the lane that arrives hands back was read by the warp's products alone, which are done.",
        ("barrier_dropped",),
        r"bar\.warp\.sync",
        "same_bits",
        near=r"wgmma\.wait_group\.sync\.aligned \t\d+;\n\tbar\.warp\.sync \t-1;\n\t@%p\d+ bra[^\n]*\n"
        r"(\t(mov|shl|and|add)[^\n]*\n){0,5}\tmbarrier\.arrive",
        follows=r"\t@%p\d+ bra[^\n]*\n(\t(mov|shl|and|add)[^\n]*\n){0,5}\tmbarrier\.arrive",
        targets=_WGMMA,
    ),
    Argument(
        "copies end with a fence",
        "The thread has waited for its bulk reductions. PTX: the completion of one is followed by an implicit fence "
        "between the proxies, so the release that follows carries them without another fence.",
        ("barrier_dropped",),
        r"fence\.proxy\.async\.global",
        "same_bits",
        kinds=("backward",),
        near=r"cp\.async\.bulk\.wait_group \t0;\n\t@%p\d+ bra[^\n]*\n\tfence\.proxy\.async\.global;",
        targets=_WGMMA,
    ),
    Argument(
        "a barrier at rest",
        "The warps with rows of dK and dV meet at the number of another barrier, after the loop: they have met at "
        "barrier 0 since the last of them used it, the warp that adds dQ does not arrive after the last step, and "
        "nobody uses it again.",
        ("named_barrier_wrong",),
        r"bar\.sync 0, 256;",
        "same_bits",
        kinds=("backward",),
        after=r"bar\.sync [12], 256;",
        never=r"\bbar\.(sync|arrive)\b",
        near=r"stmatrix[^\n]*\n\tbar\.sync \t0, 256;",
        targets=_WGMMA,
    ),
    Argument(
        "rounded to 16 bytes",
        "An address is rounded up to a multiple of 16 bytes, which it is: as long as less than 16 is added, the result "
        "is the address.",
        ("immediate_off_by_one",),
        r"add\.s64 %rd\d+, %rd\d+, 14;",
        "same_bits",
        kinds=("preprocess",),
        near=r"add\.s64 \t(%rd\d+), %rd\d+, 14;\n\tand\.b64 \t%rd\d+, \1, -16;",
        targets=_WGMMA,
    ),
    Argument(
        "rounded to 16 bytes",
        "The mask of the address leaves its last bit too, which is 0: it is the address of a number of two bytes.",
        ("immediate_off_by_one",),
        r"and\.b64 %rd\d+, %rd\d+, -16;",
        "same_values",
        kinds=("preprocess",),
        after=r", -15;$",
        near=r"shl\.b64 \t(%rd\d+), %rd\d+, 1;\n\tadd\.s64 \t(%rd\d+), %rd\d+, \1;\n"
        r"\tadd\.s64 \t(%rd\d+), \2, 14;\n\tand\.b64 \t%rd\d+, \3, -16;",
        targets=_WGMMA,
    ),
    Argument(
        "awaited with V",
        "The copies of a cut-off tile of K are awaited with those of V, by the same threads, before Q is loaded. The "
        "first product awaits Q too.",
        ("commit_dropped", "wait_dropped", "wait_weakened"),
        r"cp\.async\.(commit_group|wait_group 0);",
        "same_bits",
        kinds=("backward",),
        near=r"mbarrier\.arrive\.shared\.b64 %rd\d+, \[%r1\+(231696|198664|199688|116744)\]",
        targets=_WGMMA,
    ),
    Argument(
        "a mask that hides nothing",
        "The mask is applied to a full block too. All its keys are inside the band: every score stays.",
        ("bound_shifted", "compare_shifted", "guarded_dropped"),
        r"(setp\.lt\.s32 %p\d+, %r\d+, 1;|@%p\d+ bra)",
        "same_bits",
        kinds=("forward",),
        configs="_band_",
        near=r"wgmma\.commit_group[^\n]*\n(.*\n){0,4}\tsetp\.lt\.s32 \t(%p\d+), %r\d+, 1;\n\t@\2 bra",
        targets=_WGMMA,
    ),
    Argument(
        "elect.sync meets the lanes",
        "elect.sync, behind the barrier, makes all lanes wait for each other too. Between the two they read what the "
        "scheduling warp has announced. The copy that the elected lane starts may arrive at the mbarrier before the "
        "other one says how many bytes it brings: the phase does not end before both.",
        ("barrier_dropped",),
        r"bar\.warp\.sync",
        "same_bits",
        kinds=("backward",),
        follows=r"(\t(and|mad|shl|add|ld\.shared)[^\n]*\n){0,6}\telect\.sync",
        targets=_WGMMA,
    ),
    Argument(
        "awaited with K",
        "The copies of a cut-off tile of V are awaited with those of K, which the same warp loads right after it. The "
        "multiplying warps wait for the mbarriers of both before they read either.",
        ("commit_dropped", "wait_dropped", "wait_weakened"),
        r"cp\.async\.(commit_group|wait_group 0);",
        "same_bits",
        kinds=("backward",),
        configs="_ordered_",
        near=r"mbarrier\.arrive\.shared\.b64 %rd\d+, \[%r1\+(216656|198736)\]",
        targets=_WGMMA,
    ),
    Argument(
        "awaited with Q's copies",
        "The copies of a cut-off step of dO are awaited with those of Q, which the same warp loads right after it. The "
        "multiplying warps wait for Q first.",
        ("commit_dropped", "wait_dropped", "wait_weakened"),
        r"cp\.async\.(commit_group|wait_group 0);",
        "same_bits",
        kinds=("backward",),
        configs="_ordered_",
        follows=r"(.*\n){3,10}.*add\.s32 \t%r\d+, %r\d+, (216712|198776);",
        targets=_WGMMA,
    ),
    Argument(
        "an odd number arrives",
        "31 lanes arrive at an mbarrier in place of the one of the 32, after all of them have met: 31 phases end in "
        "place of one. Waits go by the phase's parity, which is that of one.",
        ("guard_negated",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("backward",),
        near=r"bar\.warp\.sync \t-1;\n\t@%p\d+ bra[^\n]*\n\tmov\.b32 \t(%r\d+), 1;\n"
        r"\tmbarrier\.arrive\.shared\.b64 %rd\d+, \[%r1\+\d+\], \1;\n\$L",
        targets=_WGMMA,
    ),
    Argument(
        "both or neither",
        "Where a sequence's rows start and how many it has are two tensors that are given together, or not at all: "
        "whether one pointer is null is whether the other one is.",
        ("parameter_wrong",),
        r"ld\.param\.b64 %rd\d+, \[\w+_param_50\];",
        "same_bits",
        kinds=("backward",),
        after=r"_param_51\];",
        near=r"ld\.param\.b64 \t(%rd\d+), \[\w+_param_50\];\n\tsetp\.eq\.b64 \t%p\d+, \1, 0;",
        targets=_WGMMA,
    ),
    Argument(
        "a loop that runs",
        "Whether a tile has blocks to loop over: that it has one at least was asked right before.",
        ("compare_shifted",),
        r"setp\.ge\.s32 %p\d+, %r\d+, %r\d+;",
        "same_values",
        near=r"setp\.lt\.s32 \t(%p\d+), (%r\d+), 1;\n\t@\1 bra[^\n]*\n\tshl\.b32 \t(%r\d+), [^\n]*\n"
        r"\tadd\.s32 \t(%r\d+), \2, \3;\n\tsetp\.ge\.s32 \t%p\d+, \3, \4;",
        targets=_WGMMA,
    ),
    Argument(
        "another number for all",
        "All threads that multiply meet at the number of a barrier that no other instruction of the kernel uses.",
        ("named_barrier_wrong",),
        r"bar\.sync 0, 256;",
        "same_bits",
        kinds=("backward",),
        after=r"bar\.sync 1, 256;",
        lacks=r"\bbar\.(sync|arrive)\s+(1\b|%)",
        targets=_WGMMA,
    ),
    Argument(
        "all lanes of a row have it",
        "Of the lanes that share a row, one stores its LSE and delta. All of them have read the LSE and have the same "
        "sum, so the others store the same numbers.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("preprocess",),
        near=r"shfl\.sync\.bfly\.b32 [^\n]*\n\tadd\.f32 [^\n]*\n\t@%p\d+ bra[^\n]*\n"
        r"\tsetp\.eq\.f32 \t%p\d+, %r\d+, 0fFF800000;",
        targets=_WGMMA,
    ),
    Argument(
        "a mask that hides nothing",
        "A block that ends with the keys is masked as one that they end in. None of its keys is past them.",
        ("compare_shifted",),
        r"setp\.gt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("forward",),
        after=r"setp\.ge\.s32",
        near=r"add\.s32 \t(%r\d+), %r\d+, 128;\n\tsetp\.gt\.s32 \t(%p\d+), \1, %r\d+;\n\tor\.pred \t%p\d+, %p\d+, \2;",
        targets=_WGMMA,
    ),
    Argument(
        "the lanes have met",
        "On every way to this barrier of the lanes another one comes before, or elect.sync, and between the two there "
        "is no access to memory but what one lane arrives at or copies: it orders nothing (register_flow.py).",
        ("barrier_dropped",),
        r"bar\.warp\.sync",
        "same_bits",
        targets=_WGMMA,
        proof=barrier_is_idle,
    ),
    Argument(
        "the lanes have met at a shuffle",
        "All lanes have met at a shuffle of the warp just before, and what they had read was its operand or that of "
        "one before: nothing is left for this barrier to order (register_flow.py).",
        ("barrier_dropped",),
        r"bar\.warp\.sync",
        "same_bits",
        targets=_WGMMA,
        proof=barrier_after_shuffles_is_idle,
    ),
    Argument(
        "each has a tile",
        "There are no more persistent CTAs than tiles (`forward_values` of launch/forward.py): the first tile of a "
        "CTA, whose number is the CTA's, is always there.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_values",
        kinds=("forward",),
        near=r"mov\.u32 \t(%r\d+), %ctaid\.x;\n\tmul\.lo\.s32 .*\n\tmul\.lo\.s32 .*\n"
        r"\tsetp\.ge\.s32 \t(%p\d+), \1, %r\d+;\n(\tmov\.b32 .*\n)*\t@\2 bra",
        targets=_WGMMA,
    ),
    Argument(
        "a truth value",
        "2 stands for true in place of 1. It is compared with 1 alone, and less is false.",
        ("immediate_off_by_one",),
        r"selp\.b32 %r\d+, 1, 0, %p\d+;",
        "same_bits",
        after=r"selp\.b32 %r\d+, 2, 0, %p\d+;",
        near=r"selp\.b32 \t(%r\d+), 1, 0, %p\d+;\n\t// begin inline asm\n\tmov\.b32 (%r\d+), \1;\n"
        r"\t// end inline asm\n(\t[^\n]*\n)?\tsetp\.lt\.s32 \t%p\d+, \2, 1;",
        targets=_WGMMA,
    ),
    Argument(
        "zeros either way",
        "A tile of shared memory is filled with zeros: all four registers are one, which one line makes 0. Transposed "
        "zeros are zeros.",
        ("transposed",),
        r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[%r\d+(\+\d+)?\], \{(%r\d+), \2, \2, \2\};",
        "same_bits",
        targets=_WGMMA,
        proof=stores_zeros,
    ),
    Argument(
        "twice a positive number",
        "A number that is not below 1 is doubled: then it is 2 or more, and not 1 either.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, 1;",
        "same_values",
        after=r"^setp\.le\.s32 ",
        near=r"\tsetp\.lt\.s32 \t(%p\d+), (%r\d+), 1;\n\t@\1 bra [^\n]*\n\tshl\.b32 \t(%r\d+), \2, 1;\n"
        r"\tsetp\.lt\.s32 \t%p\d+, \3, 1;",
        follows=r"\t@%p\d+ bra ",
        targets=_WGMMA,
    ),
    Argument(
        "a threshold",
        "A row's reference follows its maximum where exponentials would be more than 2 to the 8th: the number is a "
        "choice, and at it both ways are right (`rescale` of forward/mainloop.py).",
        ("compare_shifted",),
        r"setp\.gt\.f32 %p\d+, %r\d+, 0f41000000;",
        "same_values",
        kinds=("forward",),
        after=r"^setp\.ge\.f32 ",
        follows=r"\tvote\.sync\.any\.pred ",
        targets=_WGMMA,
    ),
    Argument(
        "a truth value",
        "A truth value is asked whether it is below a number: that is 2 or more, and it is 0 or 1. One more is as well "
        "(truth_values.py).",
        ("compare_shifted",),
        r"setp\.lt\.u32 ",
        "same_values",
        after=r"^setp\.le\.u32 ",
        targets=_WGMMA,
        proof=is_below,
    ),
    Argument(
        "a truth value",
        "A branch is taken where a truth value is below a number, 2 or more: always (truth_values.py).",
        ("guard_dropped",),
        r"@%p\d+ bra ",
        "same_values",
        after=r"^bra ",
        targets=_WGMMA,
        proof=is_below,
    ),
    Argument(
        "once more",
        "A loop that is a branch runs twice in place of once. The second time leaves every register as the first one "
        "did (truth_values.py).",
        ("compare_flipped",),
        r"setp\.ne\.b32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        after=r"^setp\.eq\.b32 ",
        targets=_WGMMA,
        proof=may_run_twice,
    ),
    Argument(
        "nobody counts",
        "The tile counter is not zeroed. The backward kernel of this configuration takes no tile by it, but each CTA "
        "the tile of its own number: its text has no atomic operation that reads.",
        ("store_dropped",),
        r"st\.global\.b32 \[%rd\d+\], 0;",
        "same_bits",
        kinds=("preprocess",),
        proof=stores_at_parameter(17),
        none_in=("backward", r"\batom\."),
        targets=_WGMMA,
    ),
    Argument(
        "all tiles of an order have rows",
        "The loop that looks for the next tile with rows does not ask whether sequences have an order. Where they "
        "have, no CTA comes to it: each number up to the last one is that of a tile with rows (NOTE [sequences by "
        "length] of lists/lpt.py).",
        ("guard_dropped",),
        r"@%p\d+ bra ",
        "same_values",
        kinds=("forward",),
        after=r"^bra ",
        follows=r"\tbra\.uni [^\n]*\n\$\w+:\n\tsetp\.ge\.s32 \t(%p\d+), [^\n]*\n\tmov\.b32 [^\n]*\n\t@\1 bra[^\n]*\n"
        r"\tatom\.global\.add\.u32 \t[^\n]*, 1;",
        proof=asks_for_parameter(63),
        targets=_WGMMA,
    ),
    Argument(
        "bits that nobody reads",
        "A word of votes is shifted right by twice the number of a lane of its quad, 6 at most, and bits 0 to 25 of "
        "the result are read: those that the sign fills are not among them.",
        ("sign_changed",),
        r"shr\.u32 %r\d+, %r\d+, %r\d+;",
        "same_bits",
        near=r"vote\.sync\.ballot\.b32 \t(%r\d+), %p\d+, -1;\n\tselp\.b32 \t(%r\d+), \1, %r\d+, %p\d+;\n"
        r"\tshr\.u32 \t%r\d+, \2, %r\d+;",
        targets=_WGMMA,
    ),
    Argument(
        "floor division",
        "Whether a division towards minus infinity has a remainder is found with the product of quotient and divisor, "
        "which serves nothing else. The correction needs signs that differ too: counts have no sign.",
        ("instruction_dropped",),
        r"mul\.lo\.s32 %r\d+, %r\d+, %r\d+;",
        "same_bits",
        follows=r"\tsetp\.ne\.b32 \t%p\d+, %r\d+, %r\d+;\n\txor\.b32 \t(%r\d+), %r\d+, %r\d+;\n"
        r"\tsetp\.lt\.s32 \t(%p\d+), \1, 0;\n\tand\.pred \t(%p\d+), (%p\d+, \2|\2, %p\d+);\n"
        r"\tselp\.b32 \t%r\d+, -1, 0, \3;",
        targets=_WGMMA,
        proof=is_read_once,
    ),
    Argument(
        "another thread clears",
        "One thread of a CTA zeroes what CTAs count with, before the kernel ends: whichever it is.",
        ("bound_shifted",),
        r"setp\.ne\.b32 %p\d+, %r\d+, 0;",
        "same_bits",
        kinds=("preprocess",),
        after=r", 1;$",
        defined=r"mov\.u32 \t%r\d+, %tid\.x;",
        follows=r"\t@%p\d+ bra[^\n]*\n\tmul\.wide\.u32 \t(%rd\d+), %r\d+, 4;\n\tadd\.s64 \t(%rd\d+), %rd\d+, \1;\n"
        r"\tst\.global\.b32 \t\[\2\], 0;",
        targets=_WGMMA,
    ),
    Argument(
        "times zero",
        "Columns past the head dim have zeros for four words of O and four of dO, which are multiplied with each "
        "other. A word of one of them may be any finite number.",
        ("immediate_off_by_one",),
        r"mov\.b32 %r\d+, 0;",
        "same_bits",
        kinds=("preprocess",),
        after=r", 1;$",
        near=r"(\tmov\.b32 \t%r\d+, 0;\n){8}\tcvt\.u32\.u64 \t(%r\d+), %rd\d+;\n\tor\.b32 \t(%r\d+), \2, \d+;\n"
        r"\tsetp\.ge\.s32 \t%p\d+, \3, %r\d+;",
        targets=_WGMMA,
    ),
)  # fmt: skip

# Of bugs that are bugs: see REMARKS of equivalence.py.
WGMMA_REMARKS = (
    ("barrier_dropped", "backward", r"fence\.proxy\.async\.global;", r"ld\.acquire\.gpu",
     "PTX asks for this fence between the acquire, of the generic proxy, and the reductions, of the async one. The "
     "emulated GPU orders them without it: the sums are accessed by the async proxy on both sides."),
    *((operator, "backward", r"cp\.async\.bulk\.wait_group 0;", r"ld\.acquire\.gpu",
       "A step in two tiles releases the first one before it waits for the second, and before its adds are complete. "
       "It shows where the second tile has to be waited for, and another CTA waits for the first: one case of the list "
       "comes to it. A test plants this bug (test_planted_bugs_of_steps_in_two_tiles_are_seen).")
      for operator in ("bulk_group_dropped", "bulk_wait_weakened")),
    ("barrier_dropped", "forward", r"bar\.sync %r\d+, 128;", "",
     "Each warp reads rows of Q and writes rows of O of its own on the emulated GPU. PTX does not say which rows of A "
     "a warp reads."),
    ("barrier_dropped", "forward", r"fence\.mbarrier_init\.release\.cluster;", "",
     "The fence between mbarrier.init and what uses the mbarriers. The emulated GPU asks for it where another CTA of "
     "the cluster does. Here the text does not show that CTAs form no cluster and that their threads meet before."),
    ("parameter_wrong", "backward", r"ld\.param\.b32 %r\d+, \[\w+_param_52\];", "",
     "Lists whose partial blocks come first would be visited merged with the full ones. The lists of every case that "
     "comes here are merged."),
    ("compare_shifted", "forward", r"setp\.lt\.s32 %p\d+, %r\d+, 1;", r"mov\.b32 \t%r\d+, 0;\n\t@%p\d+ bra",
     "The number of the first block of keys is not looked up where it is the only one: it takes a row of one block "
     "that is not the first."),
    ("instruction_dropped", "forward", r"setp\.ne\.b32 p, %r\d+, 0;", "",
     "Whether a product adds to its accumulators is not set. On the emulated GPU what nothing has set is 0, and here "
     "that is right."),
    ("constant_wrong", "forward", r"setp\.gt\.f32 %p\d+, %r\d+, 0f41000000;", "",
     "O and its sums are rescaled where a row's maximum moved at all, or by more than 16 in place of 8: right within "
     "the budget."),
    ("compare_shifted", "backward", r"setp\.gt\.s32 %p\d+, %r\d+, 63;", "",
     "A step of 63 queries is not masked. The row past the end has an infinite LSE, which makes its P zeros as the "
     "mask would."),
)  # fmt: skip
