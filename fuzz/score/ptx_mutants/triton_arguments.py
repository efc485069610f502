"""Arguments for mutants of Triton's kernels, those of nsa and of both targets, as Triton compiles them.

Triton unrolls tiles: a tile's rows stand one after the other in the PTX, each with a bound of its own. Sums over
threads end with the same value in all of them. What is masked off is 0.
"""

from __future__ import annotations

from fuzz.score.ptx_mutants.argument import Argument
from fuzz.score.ptx_mutants.dynamic_mask_arguments import DYNAMIC_MASK_ARGUMENTS
from fuzz.score.ptx_mutants.operators import OPERATORS

_BOTH = ("dynamic_mask", "nsa")
_ALL = tuple(OPERATORS)

TRITON_ARGUMENTS = (
    *DYNAMIC_MASK_ARGUMENTS,
    Argument(
        "never negative",
        "Signed and unsigned differ for negative numbers only. The operand is an index, a length, an offset or a "
        "count, which was never negative; both forms gave the same value in every execution.",
        ("sign_changed",),
        r"(setp|mul\.wide|cvt|div|max|min|shr\.[us]32)",
        "same_values",
        targets=_BOTH,
    ),
    Argument(
        "bits that are never set",
        "The mask takes the lowest bit too of a number that was shifted to the left.",
        ("immediate_off_by_one",),
        r"and\.b32 %r\d+, %r\d+, \d*[02468];",
        "same_values",
        after=r"[13579];$",
        defined=r"shl\.b32 \t%r\d+, %r\d+, [1-9]",
        targets=_BOTH,
    ),
    Argument(
        "rounding of a division",
        "Part of a division by a power of 2 that is rounded towards 0: it adds something to negative dividends only. "
        "The dividend is a length, a head dim or an index.",
        ("operation_replaced", "sign_changed", "immediate_off_by_one", "instruction_dropped", "operands_swapped"),
        r"(shr\.[su]32 %r\d+, %r\d+, \d+;|add\.s32 %r\d+, %r\d+, %r\d+;)",
        "same_values",
        near=r"shr\.s32 \t(%r\d+), (%r\d+), 31;\n(.*\.loc.*\n)*\tshr\.u32 \t(%r\d+), \1, \d+;",
        targets=_BOTH,
    ),
    Argument(
        "rounding of a division",
        "The highest bit of a number of 64 bits, which rounds its division by 2 towards 0; changed, the bit below it "
        "too. The number is an index or a count, which has neither.",
        ("immediate_off_by_one",),
        r"shr\.u64 %rd\d+, %rd\d+, 63;",
        "same_values",
        after=r", 62;$",
        targets=_BOTH,
    ),
    *(
        Argument(
            "any of the threads with the same sum",
            "Which thread writes a sum. Every thread that takes part in a reduction ends with the same value and the "
            "same address.",
            operators,
            before,
            "same_bits",
            near=r"(shfl\.sync\.bfly|bar\.sync|ld\.shared|and\.pred).*(\n.*)*@!?%p\d+ st\.",
            kinds=("mean_kernel", "gate_weight_kernel", "split_kernel", "marks_kernel", "lists_kernel",
                   "row_state_kernel", "forward_kernel"),
            targets=_BOTH,
        )
        for operators, before in (
            (("compare_flipped", "bound_shifted", "compare_shifted"),
             r"setp\.(eq|ne|lt|gt)\.[bu]32 %p\d+, %r\d+, \d+;"),
            (("guard_negated", "guard_dropped"), r"@!?%p\d+ st\.shared\.b32"),
        )
    ),
    Argument(
        "a guard that always holds",
        "The guard is set to true just before.",
        ("guard_dropped",), r"@%p\d+ (ld|st)\.shared", "same_values",
        near=r"mov\.pred \t(%p\d+), -1;(\n.*)*\n\t@\1 ld\.shared",
        targets=_BOTH,
    ),
    Argument(
        "the wait after a loop",
        "The wait where a pipelined loop is left. A turn awaits the copies that it reads. The last turns start none, "
        "or such as read nothing and fill with zeros a buffer that the rest of the kernel leaves alone. On the "
        "emulated GPU copies arrive as late as PTX allows.",
        ("wait_weakened", "wait_dropped"),
        r"cp\.async\.wait_group 0;",
        "same_bits",
        near=r"%\._crit_edge\n(.*\n){1,5}\tcp\.async\.wait_group \t0;\n\tbar\.sync \t0;",
        targets=_BOTH,
    ),
    Argument(
        "head dims are multiples of 8",
        "The bound of one column of an unrolled tile, whose number is no multiple of 8, as every head dim is: it is no "
        "head dim, so that below and not above are the same.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_values",
        defined=r"or\.b32 \t%r\d+, %r\d+, [1-7];",
        kinds=("split_kernel", "combine_kernel", "query_gradient_kernel", "key_gradient_kernel", "gate_weight_kernel"),
        least=10,
        targets=("nsa",),
    ),
    Argument(
        "head dims are multiples of 8",
        "The number of one column of an unrolled tile, which is compared with the head dim alone. It stays between the "
        "same multiples of 8, of which the head dim is one.",
        ("immediate_off_by_one",),
        r"or\.b32 %r\d+, %r\d+, [2-7];",
        "same_bits",
        kinds=("split_kernel", "combine_kernel", "query_gradient_kernel", "key_gradient_kernel"),
        after=r", [1-7];$",
        least=10,
        targets=("nsa",),
    ),
    Argument(
        "an order that nobody reads",
        "The order of rows of keys by their number of tiles. Lists that have an order of adds are walked as that says. "
        "In calls without an order of adds, whose kernel is another one, it would be read unwritten.",
        ("store_dropped",),
        r"@%p\d+ st\.global\.b32",
        "same_bits",
        kinds=("span_columns_kernel",),
        inside="kernels/nsa/lists/spans.py span_columns_kernel",
        line=r"mOrder \+ line, n_block",
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "no such NaN",
        "The least number that a score becomes. The one below it is that of the NaN whose bits are all ones, which no "
        "arithmetic gives.",
        ("immediate_off_by_one",),
        r"max\.s32 %r\d+, %r\d+, -2147483647;",
        "same_values",
        after=r"-2147483648;$",
        kinds=("choose_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "a loop of one turn or more",
        "Whether a loop over rows is left out. A stretch has a row, and so has a part of the rows.",
        ("guarded_dropped", "compare_shifted", "bound_shifted"),
        r"(@!?%p\d+ bra|setp\.(lt|le|gt|ge)\.s32 %p\d+, %r\d+, (%r\d+|0);)",
        "same_values",
        near=r"setp\.(lt|le|gt|ge)\.s32 \t(%p\d+), .*(\n.*)*\n\t@!?\2 bra",
        kinds=("mean_kernel", "gate_weight_kernel"),
        targets=_BOTH,
    ),
    Argument(
        "one group or two",
        "Two groups of copies become one. The second is committed before anything is awaited, and every wait of this "
        "kernel is for all groups.",
        ("commit_dropped",),
        r"cp\.async\.commit_group;",
        "same_bits",
        follows=r"((?!.*(cp\.async\.wait|\tbra|^\$L__BB))[^\n]*\n)*?\s*cp\.async\.commit_group;",
        lacks=r"cp\.async\.wait_group\s+[1-9]",
        targets=_BOTH,
    ),
    Argument(
        "words of a table",
        "One word of the table of masks, or how it is computed. The table follows from the kernel's constants and is "
        "the same in every call; a case that makes the lists alone compares every word of it.",
        _ALL,
        r"",
        "same_bits",
        kinds=("chosen_kernel",),
        alone=1,
        inside="kernels/nsa/lists/chosen.py write_words",
        targets=("nsa",),
    ),
    Argument(
        "words of a table",
        "One word of the table of masks, or how it is computed. The table follows from the kernel's constants and is "
        "the same in every call, and every call computes all of it: what had the same values once always has.",
        _ALL,
        r"",
        "same_values",
        kinds=("chosen_kernel",),
        inside="kernels/nsa/lists/chosen.py write_words",
        targets=("nsa",),
    ),
    Argument(
        "rounding of a division",
        "Part of a division by a power of 2 that is rounded towards 0: it adds something to negative dividends only. "
        "The dividend is a number of rows or tiles.",
        ("operation_replaced", "immediate_off_by_one", "instruction_dropped"),
        r"shr\.u32 %r\d+, %r\d+, \d+;",
        "same_values",
        defined=r"shr\.s32 \t%r\d+, %r\d+, 31;",
        targets=_BOTH,
    ),
    Argument(
        "shares of equal size",
        "Where a row's share begins, if shares differ in size. Those of a window, and of a branch that is not causal, "
        "are equal: another formula says where they begin. Cases that make lists alone compare all rows.",
        _ALL,
        r"@|(add|sub|neg|shr|shl|min|max|div|rem|setp|mad|and|or)\.",
        "same_bits",
        kinds=("span_rows_kernel", "span_columns_kernel"),
        alone=1,
        inside="kernels/nsa/lists/spans.py share_begins",
        without="kernels/nsa/lists/spans.py pools_seen",
        targets=("nsa",),
    ),
    Argument(
        "two ways to divide",
        "Whether a division of 64 bits is made by one of 32 bits, where both numbers have no more. That is a matter of "
        "time alone, and no index of these kernels has more.",
        ("guard_negated", "guard_dropped", "guarded_dropped", "bound_shifted", "compare_flipped"),
        r"(@!?%p\d+ bra|setp\.ne\.b64 %p\d+, %rd\d+, 0;)",
        "same_bits",
        near=r"and\.b64 \t(%rd\d+), %rd\d+, -4294967296;\n(.*\.loc.*\n|\$L.*\n)*\tsetp\.ne\.b64 \t(%p\d+), \1, 0;\n"
        r"\t@!?\3 bra",
        targets=("nsa",),
    ),
    Argument(
        "no row past the end",
        "Whether a row's tile of queries begins before the end of its sequence, or at it. In a padded call, which "
        "reads no lengths, every row that there is begins before it; of others, nothing is stored or listed.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        kinds=("span_rows_kernel", "span_columns_kernel"),
        lacks=r"ld\.global",
        near=r"\tsetp\.lt\.s32 \t%p\d+, %r\d+, (%r\d+);\n(\tsetp\.lt\.s32 \t%p\d+, %r\d+, \1;(\n|$))+",
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "a row that several warps hold",
        "Which of the warps writes a row of the lists. All of them compute the same rows, and the same addresses.",
        ("compare_flipped", "bound_shifted"),
        r"setp\.(eq|ne)\.b32 %p\d+, %r\d+, \d+;",
        "same_bits",
        kinds=("span_rows_kernel", "span_columns_kernel"),
        near=r"and\.b32 \t(%r\d+), %r\d+, (32|64|96);\n(.*\.loc.*\n)?\tsetp\.eq\.b32 \t(%p\d+), \1, 0;\n\tand\.pred",
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "the last row again",
        "Where the lists of a row of keys begin, written by threads without a row too. They hold the last row again: "
        "the same number goes to the same address.",
        ("guard_dropped",),
        r"@%p\d+ st\.global\.b64",
        "same_bits",
        kinds=("span_columns_kernel",),
        near=r"@%p\d+ st\.global\.b32 (.*\n){1,8}.*@%p\d+ st\.global\.b64 (.*\n){1,8}.*@%p\d+ st\.global\.b64",
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "an empty span",
        "Whether the tiles that a row sees whole end after they begin, or where they begin. Their span is empty then, "
        "and lies among those that the row sees at all: no tile is in it, and all are in the parts around it.",
        ("compare_shifted",),
        r"setp\.lt\.s32 %p\d+, %r\d+, %r\d+;",
        "same_bits",
        defined=r"shr\.s32 \t%r\d+, %r\d+, [67];",
        kinds=("span_rows_kernel", "span_columns_kernel"),
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "stores that are masked off",
        "Whether the loop over the entries of a program's rows is left out where no row has any. Its stores are masked "
        "off then.",
        ("guarded_dropped",),
        r"@%p\d+ bra",
        "same_bits",
        kinds=("span_rows_kernel",),
        near=r"setp\.lt\.s32 \t(%p\d+), %r\d+, 1;\n\t@\1 bra",
        alone=1,
        targets=("nsa",),
    ),
    Argument(
        "a warp's own places",
        "The barrier between a sum's last read of partial sums and the write of the sums to shared memory. A warp "
        "writes where it has read itself. Addresses follow from the thread alone; the emulated GPU saw no unordered "
        "access.",
        ("barrier_dropped",),
        r"bar\.sync 0;",
        "same_bits",
        near=r"ld\.shared\.b32 \t(%r\d+), .*\n\tshfl\.sync\.bfly\.b32 \t%r\d+, \1, 1, 31, -1;\n(.*\n)*?"
        r"\tadd\.f32 .*\n(.*\.loc.*\n|\$L.*\n)*\tbar\.sync \t0;\n\tst\.shared\.b32",
        kinds=("mean_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "a warp's own places",
        "The barrier between a sum's last read of partial sums and the write of the sums to shared memory. No warp "
        "reads where another one writes: addresses follow from the thread alone, and the emulated GPU saw no unordered "
        "access.",
        ("barrier_dropped",),
        r"bar\.sync 0;",
        "same_bits",
        near=r"shfl\.sync\.bfly\.b32 \t(%r\d+), (%r\d+), 1, 31, -1;\n(.*\.loc.*\n|\$L.*\n)*"
        r"\tadd\.f32 \t%r\d+, \2, \1;\n(.*\.loc.*\n|\$L.*\n)*\tbar\.sync \t0;\n\tst\.shared\.b32",
        kinds=("gate_weight_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "nothing there before",
        "The barrier before partial sums are written to shared memory. It keeps them from what an earlier turn of the "
        "loop over a stretch has there, and a stretch of this kernel is no longer than its tile.",
        ("barrier_dropped",),
        r"bar\.sync 0;",
        "same_bits",
        near=r"bar\.sync \t0;\n(.*\n)?(.*\n)?\tadd\.f32",
        kinds=("mean_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "whole sixteenths",
        "A position in a tile of rows, compared with the size of a stretch: a multiple of 16 that is more than half "
        "the tile. It is on the same side of all such sizes.",
        ("operation_replaced",),
        r"add\.s32 %r\d+, %r\d+, (\d|[123]\d|4[0-6]);",
        "same_bits",
        kinds=("mean_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "whole sixteenths",
        "A position in a tile of rows, compared with the size of a stretch: a multiple of 16 that is more than half "
        "the tile. It is on the same side of all such sizes.",
        ("immediate_off_by_one",),
        r"add\.s32 %r\d+, %r\d+, (?!4[5678];|6[234];)\d+;",
        "same_bits",
        kinds=("mean_kernel",),
        near=r"add\.s32 \t%r\d+, (%r\d+), \d+;\n\tadd\.s32 \t%r\d+, \1, \d+;",
        targets=("nsa",),
    ),
    Argument(
        "a row that is masked off",
        "The row of an element of a stretch, which is negative before a sequence's first token. Another bound masks it "
        "off then, so that neither this bound nor its address matters.",
        ("sign_changed",),
        r"(cvt\.[su]64\.[su]32|setp\.l[te]\.[su]32|mul\.wide)",
        "same_bits",
        kinds=("mean_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "no such token",
        "A stretch begins at a multiple of 16 tokens, or a token after one: token 0 is its first position or its last "
        "one, and the token before it the last but one. This position of the unrolled tile is another one.",
        ("bound_shifted", "compare_shifted"),
        r"setp\.gt\.s32 %p\d+, %r\d+, -1;",
        "same_values",
        kinds=("mean_kernel",),
        least=10,
        targets=("nsa",),
    ),
    Argument(
        "a row where the next one is",
        "Bits for the rows that exist. The changed bit is also set below its place, where it means the row before. "
        "That one exists where this one does.",
        ("operation_replaced",),
        r"shl\.b16 %rs\d+, %rs\d+, 1;",
        "same_bits",
        near=r"selp\.b16 \t(%rs\d+), -1, 0, .*\n\tshl\.b16 \t%rs\d+, \1, 1;",
        kinds=("gate_weight_kernel",),
        targets=("nsa",),
    ),
    Argument(
        "rows that nobody stores",
        "What stands for an element that is masked off. It is of a row past the end, of which nothing is stored. A "
        "column past the head dim would be NaN on the emulated GPU, and found.",
        ("instruction_dropped",),
        r"mov\.[ub]32 %r\d+, %r\d+;",
        "same_bits",
        near=r"mov\.u32 (%r\d+), %r\d+;\n(.*mov\.u32 .*\n)*\s*@%p\d+ ld\.global\S* \{",
        kinds=("split_kernel", "combine_kernel", "query_gradient_kernel", "key_gradient_kernel"),
        targets=("nsa",),
    ),
)  # fmt: skip
