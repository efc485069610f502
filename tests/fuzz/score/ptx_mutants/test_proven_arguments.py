"""Arguments for mutants of Hopper's kernels that have a proof: the text that it is read off, and near misses."""

from itertools import product

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import lines
from fuzz.score.ptx_mutants.proven_arguments import PROVEN_ARGUMENTS
from fuzz.score.ptx_mutants.results import PtxMutant, Result

# the number of a thread's warpgroup, of those that multiply, by a division towards minus infinity
WARPGROUP = """.reqntid 384, 1, 1
	mov.u32 	%r2, %tid.x;
	shr.u32 	%r3, %r2, 5;
	shfl.sync.idx.b32 	%r4, %r3, 0, 31, -1;
	setp.lt.u32 	%p1, %r4, 4;
	@%p1 bra 	$L__BB0_1;
	add.s32 	%r385, %r2, -128;
	cvt.u16.u32 	%rs1, %r385;
	shr.s16 	%rs5, %rs1, 15;
	shr.u16 	%rs6, %rs5, 9;
	add.s16 	%rs7, %rs1, %rs6;
	shr.s16 	%rs8, %rs7, 7;
	cvt.s32.s16 	%r85, %rs8;
	mul.wide.s16 	%r386, %rs8, 128;
	setp.ne.b32 	%p3, %r385, %r386;
	setp.lt.u32 	%p4, %r2, 128;
	and.pred 	%p5, %p4, %p3;
	selp.b32 	%r387, -1, 0, %p5;
	add.s32 	%r86, %r387, %r85;
	st.shared.b32 	[%r9], %r86;
$L__BB0_1:
	ret;
"""
# a word of votes that a quad's lanes take turns with
QUAD = """.reqntid 384, 1, 1
	mov.u32 	%r2, %tid.x;
	shr.u32 	%r3, %r2, 5;
	shfl.sync.idx.b32 	%r4, %r3, 0, 31, -1;
	setp.lt.u32 	%p1, %r4, 4;
	@%p1 bra 	$L__BB0_1;
	add.s32 	%r5, %r2, -128;
	shr.s32 	%r6, %r5, 2;
	shl.b32 	%r7, %r6, 2;
	sub.s32 	%r8, %r5, %r7;
	shl.b32 	%r88, %r8, 1;
	ld.shared.b32 	%r10, [%r11];
	shr.u32 	%r12, %r10, %r88;
	and.b32 	%r13, %r12, 1;
	and.b32 	%r14, %r12, 33554432;
	st.shared.v2.b32 	[%r11], {%r13, %r14};
$L__BB0_1:
	ret;
"""
# sums that begin with zero: where a tile begins, and once more before its loop
BEGUN = """
$L__BB0_1:
	mov.b32 	%r1, 0f00000000;
	mov.b32 	%r2, %r1;
	@%p1 bra 	$L__BB0_2;
	mov.b32 	%r3, 0;
	mov.b32 	%r2, %r3;
$L__BB0_2:
	add.f32 	%r1, %r1, %r5;
	mov.b32 	%r4, 0f00000000;
	mov.b32 	%r2, %r4;
	add.f32 	%r2, %r2, %r6;
	@%p2 bra 	$L__BB0_1;
	ret;
"""
ORDER = """
	barrier.cluster.arrive;
	barrier.cluster.wait;
	ld.param.b64 	%rd1, [k_param_63];
	setp.eq.b64 	%p1, %rd1, 0;
"""
# a warp that loads dO (mbarriers at 800) and Q (at 700) of a step, and one that reads both
COPIES = """
	@%p10 bra 	$L__BB0_10;
	mov.b32 	%r20, 0;
$L__BB0_1:
	and.b32 	%r21, %r20, 1;
	mad.lo.s32 	%r22, %r21, 36, %r1;
	ld.shared.b32 	%r23, [%r22+900];
	sub.s32 	%r24, %r23, %r6;
	setp.lt.s32 	%p1, %r24, 64;
	@%p1 bra 	$L__BB0_3;
	cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r30], [%rd1, {%r31}], [%r32];
	bra.uni 	$L__BB0_5;
$L__BB0_3:
	cp.async.cg.shared.global [%r40], [%rd5], 16, %r41;
	add.s32 	%r40, %r40, 16;
	setp.ne.b32 	%p2, %r40, %r42;
	@%p2 bra 	$L__BB0_3;
	setp.ne.b32 	%p3, %r8, 0;
	cp.async.commit_group;
	cp.async.wait_group 	0;
	fence.proxy.async.shared::cta;
	bar.warp.sync 	-1;
	@%p3 bra 	$L__BB0_5;
	and.b32 	%r46, %r20, 1;
	shl.b32 	%r43, %r46, 3;
	add.s32 	%r44, %r1, %r43;
	mbarrier.arrive.expect_tx.shared.b64 %rd7, [%r44+800], %r45;
$L__BB0_5:
	and.b32 	%r50, %r20, 1;
	mad.lo.s32 	%r51, %r50, 36, %r1;
	ld.shared.b32 	%r52, [%r51+900];
	sub.s32 	%r53, %r52, %r6;
	setp.lt.s32 	%p4, %r53, 64;
	@%p4 bra 	$L__BB0_6;
	cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r60], [%rd1, {%r31}], [%r62];
	bra.uni 	$L__BB0_8;
$L__BB0_6:
	cp.async.cg.shared.global [%r70], [%rd8], 16, %r71;
	setp.ne.b32 	%p5, %r8, 0;
	cp.async.commit_group;
	cp.async.wait_group 	0;
	fence.proxy.async.shared::cta;
	bar.warp.sync 	-1;
	@%p5 bra 	$L__BB0_8;
	shl.b32 	%r73, %r50, 3;
	add.s32 	%r74, %r1, %r73;
	mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r74+700], %r75;
$L__BB0_8:
	add.s32 	%r20, %r20, 1;
	setp.ne.b32 	%p6, %r20, %r9;
	@%p6 bra 	$L__BB0_1;
	ret;
$L__BB0_10:
	shl.b32 	%r80, %r79, 3;
	add.s32 	%r81, %r1, %r80;
	add.s32 	%r82, %r81, 700;
	shr.u32 	%r83, %r79, 1;
	mbarrier.try_wait.parity.shared.b64 P1, [%r82], %r83, 10000000;
	@%p8 bra 	$L__BB0_11;
	add.s32 	%r90, %r90, 1;
$L__BB0_11:
	shl.b32 	%r84, %r79, 3;
	add.s32 	%r85, %r1, %r84;
	add.s32 	%r86, %r85, 800;
	shr.u32 	%r87, %r79, 1;
	mbarrier.try_wait.parity.shared.b64 P1, [%r86], %r87, 10000000;
	add.s32 	%r79, %r79, 1;
	setp.ne.b32 	%p7, %r79, %r9;
	@%p7 bra 	$L__BB0_10;
	ret;
"""

# a warp that loads a tile's keys (mbarrier at 600, free at 700), and warps that write dS of each step (free at 800)
TILES = """.reqntid 384, 1, 1
	shfl.sync.idx.b32 	%r1, %r90, 0, 31, -1;
	mov.u32 	%r2, %laneid;
	setp.ne.b32 	%p3, %r2, 0;
	mov.b32 	%r5, 8;
	mov.b32 	%r6, 1;
	mbarrier.init.shared.b64 	[%r1+600], %r6;
	add.s32 	%r7, %r1, 700;
	mbarrier.init.shared.b64 	[%r7], %r5;
	mbarrier.init.shared.b64 	[%r1+800], %r5;
	mbarrier.init.shared.b64 	[%r1+808], %r5;
	@%p1 bra 	$L__BB0_10;
$L__BB0_1:
	add.s32 	%r10, %r1, 700;
	mbarrier.try_wait.parity.shared.b64 P1, [%r10], %r11, 10000000;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%rd3], 512, [%r13];
	mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r1+600], %r14;
	add.s32 	%r15, %r15, 1;
	setp.ne.b32 	%p2, %r15, %r16;
	@%p2 bra 	$L__BB0_1;
	ret;
$L__BB0_10:
	add.s32 	%r20, %r1, 600;
	mbarrier.try_wait.parity.shared.b64 P1, [%r20], %r21, 10000000;
	shl.b32 	%r22, %r19, 3;
	add.s32 	%r23, %r1, %r22;
	add.s32 	%r24, %r23, 800;
	mbarrier.try_wait.parity.shared.b64 P1, [%r24], %r25, 10000000;
	stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r26], {%r30, %r31, %r32, %r33};
$L__BB0_11:
	add.s32 	%r40, %r23, 800;
	mbarrier.try_wait.parity.shared.b64 P1, [%r40], %r41, 10000000;
	@%p3 bra 	$L__BB0_12;
	mov.b32 	%r42, 1;
	mbarrier.arrive.shared.b64 %rd5, [%r23+800], %r42;
$L__BB0_12:
	@%p4 bra 	$L__BB0_11;
	setp.ne.b32 	%p5, %r2, 0;
	@%p5 bra 	$L__BB0_13;
	mov.b32 	%r43, 1;
	mbarrier.arrive.shared.b64 %rd6, [%r1+700], %r43;
$L__BB0_13:
	@%p6 bra 	$L__BB0_10;
	ret;
"""
AT_FIRST = "mbarrier.try_wait.parity.shared.b64 P1, [%r24], %r25, 10000000;"


def status(text: str, operator: str, before: str, after: str, kind: str = "forward", **seen: bool) -> tuple[str, str]:
    """Status of the mutant of the first line that is `before`, and the argument that gives it."""
    line = next(x for x in lines(text) if x.text == before)
    bug = PtxMutant("c_full_", kind, operator, line.number, before, after, target="blocksparse.wgmma")
    evidence = {"same_bits": True, "same_values": False} | seen
    found = judged(Result(bug.id, bug, "missed", looked=True, reaching=1, **evidence), lambda _: text)
    return found.status, found.rule


def test_a_value_is_the_same_for_every_thread():
    rule = ("equivalent", "whatever the thread's number")
    before = "setp.lt.u32 %p4, %r2, 128;"
    assert status(WARPGROUP, "compare_shifted", before, "setp.le.u32 %p4, %r2, 128;") == rule
    assert status(WARPGROUP, "compare_shifted", before, "setp.le.u32 %p4, %r2, 128;", same_bits=False)[0] == "missed"
    # rows of a warpgroup by a division of 16 bits that is never negative
    assert status(WARPGROUP, "sign_changed", "shr.u16 %rs6, %rs5, 9;", "shr.s16 %rs6, %rs5, 9;")[0] == "missed"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("setp.lt.u32 %p4, %r2, 128;", "setp.le.u32 %p4, %r2, 129;"),  # thread 129 has a remainder
        ("setp.lt.u32 %p4, %r2, 128;", "setp.lt.u32 %p4, %r2, 127;"),
        ("setp.lt.u32 %p4, %r2, 128;", "setp.gt.u32 %p4, %r2, 128;"),
        ("setp.lt.u32 %p4, %r2, 128;", "setp.lt.u32 %p6, %r2, 128;"),
        ("setp.lt.u32 %p4, %r2, 128;", ";"),
        ("shr.s16 %rs8, %rs7, 7;", "shr.s16 %rs8, %rs7, 8;"),
        ("add.s32 %r385, %r2, -128;", "add.s32 %r385, %r2, -127;"),
        ("add.s32 %r86, %r387, %r85;", "sub.s32 %r86, %r387, %r85;"),
    ],
)
def test_a_value_that_differs_for_one_thread_is_missed(before, after):
    assert status(WARPGROUP, "bound_shifted", before, after)[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".reqntid 384, 1, 1", ".reqntid 384, 2, 1"),  # threads that are not in a row
        ("%tid.x", "%ctaid.x"),
        ("and.pred \t%p5", "or.pred \t%p5"),
        ("and.pred \t%p5, %p4, %p3", "and.pred \t%p5, %p4, %p9"),  # something else than the thread's number
        ("\tand.pred", "\t@%p4 bra \t$L__BB0_1;\n\tand.pred"),  # an instruction of another kind reads it
        ("\tand.pred", "\tselp.b32 \t%r90, %r91, 0, %p4;\n\tand.pred"),
        ("\tsetp.lt.u32 \t%p4", "\t@%p9 mov.pred \t%p4, 0;\n\tsetp.lt.u32 \t%p4"),  # given twice
        ("\tshr.s16 \t%rs8", "\tadd.s16 \t%rs7, %rs7, 1;\n\tshr.s16 \t%rs8"),
        ("mul.wide.s16", "mul.wide.s32"),  # a number of 64 bits
    ],
)
def test_a_value_that_more_than_the_thread_decides_is_missed(old, new):
    there = WARPGROUP.replace(old, new)
    assert there != WARPGROUP
    change = ("compare_shifted", "setp.lt.u32 %p4, %r2, 128;", "setp.le.u32 %p4, %r2, 128;")
    assert status(there, *change)[0] == "missed"


def test_the_sign_of_a_word_is_not_read_by_masks():
    change = ("sign_changed", "shr.u32 %r12, %r10, %r88;", "shr.s32 %r12, %r10, %r88;")
    assert status(QUAD, *change) == ("equivalent", "bits that nobody reads")
    assert status(QUAD, *change, same_bits=False)[0] == "missed"
    for old, new in (
        ("33554432", "67108864"),  # the 27th bit, which lanes that shift by 6 fill
        ("and.b32 \t%r14", "or.b32 \t%r14"),
        ("\tst.shared", "\tadd.s32 \t%r15, %r12, 1;\n\tst.shared"),
        ("shl.b32 \t%r88, %r8, 1", "shl.b32 \t%r88, %r8, 2"),
        ("shl.b32 \t%r88, %r8, 1", "shl.b32 \t%r88, %r8, %r19"),
        ("\tshr.u32 \t%r12", "\tmov.b32 \t%r12, 0;\n\tshr.u32 \t%r12"),
        ("shr.s32 \t%r6, %r5, 2;\n\tshl.b32 \t%r7, %r6, 2", "shr.s32 \t%r6, %r5, 4;\n\tshl.b32 \t%r7, %r6, 4"),
    ):
        there = QUAD.replace(old, new)
        assert there != QUAD and status(there, *change)[0] == "missed", (old, new)


def test_threads_that_do_not_come_there_shift_by_any_number():
    change = ("sign_changed", "shr.u32 %r12, %r10, %r88;", "shr.s32 %r12, %r10, %r88;")
    towards_zero = QUAD.replace(
        "shr.s32 \t%r6, %r5, 2;", "shr.s32 \t%r16, %r5, 31;\n\tand.b32 \t%r17, %r16, 3;\n\tadd.s32 \t%r18, %r5, %r17;\n"
        "\tshr.s32 \t%r6, %r18, 2;"
    )  # fmt: skip
    assert status(towards_zero, *change)[0] == "equivalent"
    for old, new in (("%r4, 4;", "%r4, 3;"), ("@%p1", "@!%p1"), ("@%p1", "@%p2"), ("%r3, 0, 31", "%r3, 1, 31")):
        assert status(towards_zero.replace(old, new), *change)[0] == "missed", (old, new)


def test_clusters_have_no_order_of_sequences():
    before, after = "ld.param.b64 %rd1, [k_param_63];", "ld.param.b64 %rd1, [k_param_62];"
    change = ("parameter_wrong", before, after)
    assert status(ORDER, *change, same_values=True) == ("equivalent", "no order in clusters")
    assert status(ORDER, *change)[1] == "both or neither"  # pointers that differ: test_chosen_threads.py
    assert status(ORDER, "parameter_wrong", before, after.replace("62", "61"), same_values=True)[0] == "missed"
    assert status(ORDER, *change, "backward", same_values=True)[0] == "missed"
    for old, new in (("barrier.cluster", "barrier.cta"), ("setp.eq.b64", "setp.lt.s64"), (", 0;", ", 1;")):
        assert status(ORDER.replace(old, new), *change, same_values=True)[1] != "no order in clusters", (old, new)


def test_a_register_may_hold_a_constant_already():
    change = ("instruction_dropped", "mov.b32 %r2, %r4;", ";")
    assert status(BEGUN, *change, same_values=True) == ("equivalent", "it holds that already")
    assert status(BEGUN, *change)[0] == "missed"
    # what the sums begin with where the loop goes on; a register that was added to
    assert status(BEGUN, "instruction_dropped", "mov.b32 %r2, %r1;", ";", same_values=True)[0] == "missed"
    for old, new in (
        ("%r4, 0f00000000", "%r4, 0f3F800000"),
        ("%r3, 0;", "%r3, 1;"),
        ("mov.b32 \t%r3, 0;", "@%p3 mov.b32 \t%r3, 0;"),
        ("mov.b32 \t%r3, 0;", "ld.shared.b32 \t%r3, [%r9];"),
        ("\tmov.b32 \t%r4", "\tmov.b64 \t{%r7, %r2}, %rd1;\n\tmov.b32 \t%r4"),
        ("\tmov.b32 \t%r4", "\t@%p4 bra \t$L__BB0_3;\n\tadd.f32 \t%r2, %r2, %r6;\n$L__BB0_3:\n\tmov.b32 \t%r4"),
        ("$L__BB0_1:\n\tmov.b32 \t%r1, 0f00000000;\n\tmov.b32 \t%r2, %r1;\n", "$L__BB0_1:\n"),
    ):
        there = BEGUN.replace(old, new)
        assert there != BEGUN and status(there, *change, same_values=True)[0] == "missed", (old, new)


WAYS = (
    ("commit_dropped", "cp.async.commit_group;", ";"),
    ("wait_dropped", "cp.async.wait_group 0;", ";"),
    ("wait_weakened", "cp.async.wait_group 0;", "cp.async.wait_group 1;"),
)


@pytest.mark.parametrize("way", WAYS)
def test_copies_are_awaited_with_the_next_ones(way):
    assert status(COPIES, *way, "backward") == ("equivalent", "awaited with the next copies")
    assert status(COPIES, *way, "backward", same_bits=False)[0] == "missed"
    # the next ones themselves
    assert status(COPIES[COPIES.index("$L__BB0_5:") :], *way, "backward")[0] == "missed"


@pytest.mark.parametrize(
    ("way", "change"),
    list(product(
        WAYS,
        [
            # the next copies are made by another condition, of another word, of another row, or not at all
            ("%r53, 64;", "%r53, 128;"),
            ("setp.lt.s32 \t%p4", "setp.le.s32 \t%p4"),
            ("[%r51+900]", "[%r51+904]"),
            ("%r52, %r6;", "%r52, %r7;"),
            ("\t@%p4 bra", "\tbra.uni \t$L__BB0_8;\n\t@%p4 bra"),
            ("\t@%p4 bra", "\t@%p9 bra \t$L__BB0_8;\n\t@%p4 bra"),
            # what the condition is made of changes in between
            ("$L__BB0_5:\n", "$L__BB0_5:\n\tadd.s32 \t%r6, %r6, 1;\n"),
            ("$L__BB0_5:\n", "$L__BB0_5:\n\tadd.s32 \t%r20, %r20, 1;\n"),
            ("$L__BB0_5:\n", "$L__BB0_5:\n\tst.shared.b32 \t[%r22+900], %r6;\n"),
            # the place may be that of a step before
            ("\tand.b32 \t%r46, %r20, 1;\n\tshl.b32 \t%r43, %r46, 3;", "\tshl.b32 \t%r43, %r21, 3;"),
            # another lane arrives, at another place, or the same mbarrier; nothing fences, or lanes do not meet
            ("setp.ne.b32 \t%p5, %r8, 0", "setp.ne.b32 \t%p5, %r8, 1"),
            ("shl.b32 \t%r73, %r50, 3", "shl.b32 \t%r73, %r50, 4"),
            ("[%r74+700]", "[%r74+800]"),
            ("@%p5 bra \t$L__BB0_8", "@!%p5 bra \t$L__BB0_8"),
            ("\tfence.proxy.async.shared::cta;\n\tbar.warp.sync \t-1;\n\t@%p5", "\tbar.warp.sync \t-1;\n\t@%p5"),
            ("\tbar.warp.sync \t-1;\n\t@%p5", "\t@%p5"),
            ("\tcp.async.wait_group \t0;\n\tfence.proxy.async.shared::cta;\n\tbar.warp.sync \t-1;\n\t@%p5",
             "\tcp.async.wait_group \t1;\n\tfence.proxy.async.shared::cta;\n\tbar.warp.sync \t-1;\n\t@%p5"),
            # who reads waits for the other buffer later, elsewhere, for another phase, of another step, or not always
            ("%r81, 700;", "%r81, 708;"),
            ("%r80, %r79, 3;", "%r80, %r79, 4;"),
            ("%r83, %r79, 1;", "%r83, %r79, 2;"),
            ("add.s32 \t%r90, %r90, 1;", "add.s32 \t%r79, %r79, 1;"),
            ("$L__BB0_10:\n", "$L__BB0_10:\n\t@%p9 bra \t$L__BB0_11;\n"),
            ("@%p7 bra \t$L__BB0_10", "@%p7 bra \t$L__BB0_11"),
            ("[%r86], %r87", "[%r89], %r87"),
        ],
    )),
)  # fmt: skip
def test_copies_that_nobody_awaits_are_missed(way, change):
    there = COPIES.replace(*change)
    assert there != COPIES and status(there, *way, "backward")[0] == "missed"


def test_a_value_that_was_made_before_a_loop_is_another_one_in_it():
    """The first time both conditions are of one word; then the second one is of the next."""
    there = COPIES.replace("\tand.b32 \t%r21, %r20, 1;\n", "").replace(
        "$L__BB0_1:\n", "\tand.b32 \t%r21, %r20, 1;\n$L__BB0_1:\n"
    )
    assert status(there, *WAYS[0], "backward")[0] == "missed"


def test_a_ring_is_free_at_a_tile_s_first_step():
    change = ("phase_not_awaited", AT_FIRST, "setp.eq.s32 P1, 0, 0;", "backward")
    assert status(TILES, *change) == ("equivalent", "free since the tile before")
    assert status(TILES, *change, same_bits=False)[0] == "missed"
    in_loop = AT_FIRST.replace("%r24], %r25", "%r40], %r41")
    assert status(TILES, "phase_not_awaited", in_loop, "setp.eq.s32 P1, 0, 0;", "backward")[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # keys are awaited on some ways, later, or at another mbarrier; a step was done since
        ("$L__BB0_10:\n", "$L__BB0_10:\n\t@%p9 bra \t$L__BB0_14;\n"),
        ("%r20, %r1, 600", "%r20, %r1, 608"),
        ("@%p6 bra \t$L__BB0_10", "@%p6 bra \t$L__BB0_14"),
        ("\tshl.b32 \t%r22", "\tmbarrier.arrive.shared.b64 %rd7, [%r23+800], %r42;\n\tshl.b32 \t%r22"),
        # keys are loaded without a wait, twice after one, or by a wait for another mbarrier
        ("\tmbarrier.try_wait.parity.shared.b64 P1, [%r10], %r11, 10000000;\n", ""),
        ("@%p2 bra \t$L__BB0_1;", "@%p2 bra \t$L__BB0_2;"),
        ("%r10, %r1, 700", "%r10, %r1, 900"),
        ("\tadd.s32 \t%r15", "\tmbarrier.arrive.shared.b64 %rd8, [%r1+600], %r14;\n\tadd.s32 \t%r15"),
        # fewer warps say that they are done; other lanes do, or not on every way, or before they are done
        ("[%r7], %r5", "[%r7], %r6"),
        ("%p5, %r2, 0", "%p5, %r2, 1"),
        ("%p5, %r2, 0", "%p5, %r3, 0"),
        ("@%p5 bra", "@%p7 bra"),
        ("$L__BB0_12:\n", "$L__BB0_12:\n\t@%p9 bra \t$L__BB0_13;\n"),
        ("[%r1+700], %r43", "[%r1+900], %r43"),
        ("$L__BB0_13:\n", "$L__BB0_13:\n\t@%p3 bra \t$L__BB0_15;\n\tmov.b32 \t%r44, 1;\n"
         "\tmbarrier.arrive.shared.b64 %rd9, [%r23+800], %r44;\n$L__BB0_15:\n"),
        # an arrival at what is not known
        ("\tret;\n$L__BB0_10", "\tmbarrier.arrive.shared.b64 %rd7, [%r17], %r42;\n\tret;\n$L__BB0_10"),
    ],
)  # fmt: skip
def test_a_ring_that_may_be_in_use_is_missed(old, new):
    labelled = TILES.replace("\tshl.b32 \t%r22", "$L__BB0_14:\n\tshl.b32 \t%r22")
    labelled = labelled.replace("\tcp.async.bulk", "$L__BB0_2:\n\tcp.async.bulk")
    change = ("phase_not_awaited", AT_FIRST, "setp.eq.s32 P1, 0, 0;", "backward")
    assert old in labelled and status(labelled, *change)[0] == "equivalent"
    assert status(labelled.replace(old, new), *change)[0] == "missed"


def test_arguments_are_of_these_kernels_alone():
    assert all(one.targets == ("blocksparse.wgmma",) and (one.proof or one.compared) for one in PROVEN_ARGUMENTS)
