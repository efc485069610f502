"""Arguments for mutants of how Hopper's forward kernels take tiles, load them and begin them: the text that each proof
is read off, and near misses."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result

# a CTA passes over tiles without rows: its first one, and those whose numbers it takes
NUMBERS = """
	mov.u32 	%r1, %ctaid.x;
	ld.param.b32 	%r2, [k_param_52];
	ld.param.b32 	%r3, [k_param_53];
	mul.lo.s32 	%r4, %r2, %r3;
	ld.param.b64 	%rd1, [k_param_63];
	ld.param.b32 	%r5, [k_param_64];
$L__BB0_1:
	setp.ge.s32 	%p1, %r1, %r4;
	setp.lt.s32 	%p2, %r6, %r7;
	or.pred 	%p3, %p1, %p2;
	@%p3 bra 	$L__BB0_4;
$L__BB0_2:
	setp.ge.s32 	%p4, %r5, %r4;
	mov.b32 	%r8, %r4;
	@%p4 bra 	$L__BB0_3;
	atom.global.add.u32 	%r9, [%rd2], 1;
	add.s32 	%r8, %r9, %r5;
$L__BB0_3:
	setp.lt.s32 	%p5, %r8, %r4;
	setp.ge.s32 	%p6, %r10, %r7;
	and.pred 	%p7, %p5, %p6;
	@%p7 bra 	$L__BB0_2;
$L__BB0_4:
	mul.lo.s32 	%r20, %r2, %r3;
	setp.eq.b64 	%p20, %rd1, 0;
	@%p20 bra 	$L__BB0_5;
	ld.global.b32 	%r20, [%rd3];
$L__BB0_5:
	ld.param.b32 	%r21, [k_param_64];
	mul.lo.s32 	%r22, %r20, %r3;
	setp.ge.s32 	%p21, %r21, %r22;
	@%p21 bra 	$L__BB0_6;
	atom.global.add.u32 	%r23, [%rd2], 1;
	add.s32 	%r22, %r23, %r21;
$L__BB0_6:
	mul.lo.s32 	%r24, %r2, %r3;
	setp.eq.b64 	%p22, %rd1, 0;
	@%p22 bra 	$L__BB0_7;
	ld.global.b32 	%r24, [%rd3];
$L__BB0_7:
	mul.lo.s32 	%r25, %r24, %r3;
	setp.ge.s32 	%p23, %r22, %r25;
	setp.lt.s32 	%p24, %r26, %r27;
	or.pred 	%p25, %p23, %p24;
	@%p25 bra 	$L__BB0_11;
	bra.uni 	$L__BB0_8;
$L__BB0_8:
	setp.eq.b64 	%p26, %rd1, 0;
	@%p26 bra 	$L__BB0_9;
	bra.uni 	$L__BB0_11;
$L__BB0_9:
	setp.ge.s32 	%p27, %r21, %r25;
	mov.b32 	%r28, %r25;
	@%p27 bra 	$L__BB0_10;
	atom.global.add.u32 	%r29, [%rd2], 1;
	add.s32 	%r28, %r29, %r21;
$L__BB0_10:
	setp.lt.s32 	%p28, %r28, %r25;
	setp.ge.s32 	%p29, %r30, %r27;
	and.pred 	%p30, %p28, %p29;
	@%p30 bra 	$L__BB0_9;
$L__BB0_11:
	setp.ge.s32 	%p31, %r31, %r32;
	@%p31 bra 	$L__BB0_4;
	ret;
"""
ASKED = ("compare_shifted", "setp.ge.s32 %p27, %r21, %r25;", "setp.gt.s32 %p27, %r21, %r25;")

# a warp that loads tiles of 128 keys
LOADS = """
$L__BB0_1:
	sub.s32 	%r1, %r2, %r3;
	add.s32 	%r4, %r5, 600;
	setp.lt.s32 	%p1, %r1, 128;
	@%p1 bra 	$L__BB0_3;
	elect.sync 	%r6|%p2, -1;
	not.pred 	%p3, %p2;
	@%p3 bra 	$L__BB0_2;
	st.shared.v2.b32 	[%r5+700], {%r3, 0};
	mov.b32 	%r7, 32768;
	mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r4], %r7;
$L__BB0_2:
	mov.b64 	%rd2, 0;
	BULK.L2::cache_hint [%r5], [%rd3, {%r8}], [%r4], %rd2;
	bra.uni 	$L__BB0_5;
$L__BB0_3:
	mov.b32 	%r10, 0;
$L__BB0_4:
	setp.lt.s32 	%p4, %r11, %r12;
	setp.lt.s32 	%p5, %r10, %r1;
	selp.b32 	%r13, 16, 0, %p5;
	selp.b32 	%r14, %r13, 0, %p4;
	cp.async.cg.shared.global [%r15], [%rd4], 16, %r14;
	add.s32 	%r10, %r10, 4;
	setp.ne.b32 	%p6, %r10, 128;
	@%p6 bra 	$L__BB0_4;
	setp.ne.b32 	%p7, %r16, 0;
	cp.async.commit_group;
	cp.async.wait_group 	0;
	fence.proxy.async.shared::cta;
	bar.warp.sync 	-1;
	@%p7 bra 	$L__BB0_5;
	st.shared.v2.b32 	[%r5+700], {%r3, 0};
	mov.b32 	%r17, 1;
	mbarrier.arrive.shared.b64 %rd5, [%r4], %r17;
$L__BB0_5:
	add.s32 	%r3, %r3, 128;
	setp.lt.s32 	%p8, %r3, %r2;
	@%p8 bra 	$L__BB0_1;
	ret;
""".replace("BULK", "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes")
WHOLE = ("compare_shifted", "setp.lt.s32 %p1, %r1, 128;", "setp.le.s32 %p1, %r1, 128;")
HINT = ("immediate_off_by_one", "mov.b64 %rd2, 0;", "mov.b64 %rd2, 1;")

# a tile's first step: maxima, update, sums; a later step, which multiplies O by factors where its update made them
FIRST = """
	add.f32 	%r3, %r1, 0f7F800000;
	mul.f32 	%r4, %r9, %r3;
	add.f32 	%r5, %r2, 0f7F800000;
	mul.f32 	%r6, %r9, %r5;
	max.f32 	%r7, %r4, %r6;
	setp.gt.f32 	%p1, %r7, 0f41000000;
	vote.sync.any.pred 	%p2, %p1, -1;
	selp.b32 	%r8, 1, 0, %p2;
	// begin inline asm
	mov.b32 %r10, %r8;
	// end inline asm
	setp.lt.s32 	%p3, %r10, 1;
	mov.b32 	%r11, 0fFF800000;
	mov.b32 	%r12, 0f00000000;
	mov.b32 	%r13, 0f3F800000;
	mov.b32 	%r14, %r11;
	mov.b32 	%r15, %r12;
	mov.b32 	%r16, %r13;
	@%p3 bra 	$L__BB0_1;
	setp.eq.f32 	%p4, %r1, 0fFF800000;
	selp.f32 	%r20, 0f00000000, %r1, %p4;
	sub.f32 	%r21, %r11, %r20;
	mul.f32 	%r22, %r9, %r21;
	ex2.approx.ftz.f32 	%r13, %r22;
	mul.f32 	%r12, %r12, %r13;
	setp.eq.f32 	%p5, %r2, 0fFF800000;
	selp.f32 	%r23, 0f00000000, %r2, %p5;
	sub.f32 	%r24, %r14, %r23;
	mul.f32 	%r25, %r9, %r24;
	ex2.approx.ftz.f32 	%r16, %r25;
	mul.f32 	%r15, %r15, %r16;
	mov.b32 	%r11, %r1;
	mov.b32 	%r14, %r2;
$L__BB0_1:
	add.f32 	%r12, %r12, %r30;
	add.f32 	%r15, %r15, %r31;
	setp.gt.f32 	%p6, %r32, 0f41000000;
	vote.sync.any.pred 	%p7, %p6, -1;
	selp.b32 	%r33, 1, 0, %p7;
	mov.b32 	%r34, %r33;
	setp.lt.s32 	%p8, %r34, 1;
	@%p8 bra 	$L__BB0_2;
	ex2.approx.ftz.f32 	%r13, %r35;
	ex2.approx.ftz.f32 	%r16, %r36;
$L__BB0_2:
	mov.b32 	%r37, %r33;
	setp.lt.s32 	%p9, %r37, 1;
	@%p9 bra 	$L__BB0_3;
	mul.f32 	%r40, %r40, %r13;
	mul.f32 	%r41, %r41, %r16;
$L__BB0_3:
	@%p10 bra 	$L__BB0_1;
	fma.rn.f32 	%r50, %r9, %r11, %r12;
	fma.rn.f32 	%r51, %r9, %r14, %r15;
	ret;
"""
BEGUN = ("guarded_dropped", "@%p3 bra $L__BB0_1;", ";")

# an update as kernels have it: a loop that has one turn, and more for counts that there are none of
LOOPED = FIRST.replace(
    "\tmov.b32 	%r11, %r1;\n",
    """	and.b32 	%r60, %r10, 3;
	setp.eq.b32 	%p11, %r60, 1;
	@%p11 bra 	$L__BB0_9;
	sub.f32 	%r61, %r1, %r20;
	mul.f32 	%r62, %r9, %r61;
	ex2.approx.ftz.f32 	%r13, %r62;
	mul.f32 	%r12, %r12, %r13;
	sub.f32 	%r63, %r2, %r23;
	mul.f32 	%r64, %r9, %r63;
	ex2.approx.ftz.f32 	%r16, %r64;
	mul.f32 	%r15, %r15, %r16;
$L__BB0_9:
	mov.b32 	%r11, %r1;
""",
)

# a CTA's first tile, and a further one: passed over where the tile's rows begin past the end
PASSED_OVER = """
	setp.ge.s32 	%p1, %r8, %r9;
	shl.b32 	%r2, %r1, 7;
	setp.lt.s32 	%p2, %r2, %r3;
	or.pred 	%p3, %p1, %p2;
	@%p3 bra 	$L__BB0_1;
$L__BB0_1:
	ret;
"""
TAKEN = PASSED_OVER.replace("setp.ge", "SETP.LT").replace("setp.lt", "setp.ge").replace("SETP.LT", "setp.lt")
TAKEN = TAKEN.replace("or.pred", "and.pred")

# the last word that is announced of a tile is the number of its steps
STEPS = """
	shfl.sync.idx.b32 	%r2, %r1, 0, 31, -1;
	shl.b32 	%r4, %r3, 4;
	add.s32 	%r5, %r6, %r4;
	ld.shared.v2.b64 	{%rd2, %rd1}, [%r5+196864];
	bar.warp.sync 	-1;
	setp.lt.s32 	%p1, %r2, 1;
	@%p1 bra 	$L__BB0_2;
	mov.b32 	%r7, 0;
$L__BB0_1:
	add.s32 	%r7, %r7, 1;
	setp.ge.s32 	%p2, %r7, %r2;
	@!%p2 bra 	$L__BB0_1;
$L__BB0_2:
	ret;
"""


def status(text: str, operator: str, before: str, after: str, kind: str = "forward", **seen: bool) -> tuple[str, str]:
    """Status of the mutant of the first line that is `before`, and the argument that gives it."""
    line = next(x for x in lines(text) if x.text == before)
    bug = PtxMutant("c_full_", kind, operator, line.number, before, after, target="blocksparse.wgmma")
    evidence = {"same_bits": True, "same_values": True} | seen
    found = judged(Result(bug.id, bug, "missed", looked=True, reaching=1, **evidence), lambda _: text)
    return found.status, found.rule


def test_a_cta_that_took_a_number_below_that_of_the_tiles_is_one_of_fewer():
    rule = ("equivalent", "a number was below it")
    never = ("guarded_dropped", "@%p27 bra $L__BB0_10;", ";")
    assert status(NUMBERS, *ASKED) == status(NUMBERS, *never) == rule
    assert status(NUMBERS, *ASKED, same_values=False)[0] == status(NUMBERS, *ASKED, "backward")[0] == "missed"
    # a branch that is always taken; a CTA's first tile, of its own number; the first number that it takes
    assert status(NUMBERS, "guard_dropped", never[1], "bra $L__BB0_10;")[0] == "missed"
    assert status(NUMBERS, "guarded_dropped", "@%p4 bra $L__BB0_3;", ";")[0] == "missed"
    for before in ("setp.ge.s32 %p4, %r5, %r4;", "setp.ge.s32 %p21, %r21, %r22;"):
        assert status(NUMBERS, "compare_shifted", before, before.replace("ge", "gt"))[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # what was asked says nothing of the number, or the other way, or is about other tiles
        ("setp.ge.s32 \t%p23", "setp.gt.s32 \t%p23"),
        ("%p23, %r22, %r25", "%p23, %r22, %r35"),
        ("or.pred \t%p25", "and.pred \t%p25"),
        ("or.pred \t%p25, %p23", "or.pred \t%p25, %p33"),
        ("@%p25 bra \t$L__BB0_11", "@!%p25 bra \t$L__BB0_11"),
        ("and.pred \t%p30", "or.pred \t%p30"),
        ("setp.lt.s32 \t%p28", "setp.le.s32 \t%p28"),
        ("@%p31 bra \t$L__BB0_4", "@%p31 bra \t$L__BB0_9"),  # a way without a number
        ("\tor.pred \t%p25", "\tadd.s32 \t%r22, %r22, -1;\n\tor.pred \t%p25"),  # changed since
        ("$L__BB0_8:\n", "$L__BB0_8:\n\tadd.s32 \t%r25, %r25, -1;\n"),
        # the number is not made of the CTAs' number and a counter
        ("%r22, %r23, %r21", "%r22, %r23, %r3"),
        ("add.s32 \t%r28, %r29, %r21", "sub.s32 \t%r28, %r29, %r21"),
        ("atom.global.add.u32 \t%r29, [%rd2], 1", "ld.global.b32 \t%r29, [%rd2]"),
        ("ld.param.b32 \t%r21, [k_param_64]", "ld.global.b32 \t%r21, [%rd9]"),
        ("mov.b32 \t%r28, %r25", "mov.b32 \t%r28, %r35"),
        # it is one of other tiles
        ("mul.lo.s32 \t%r20, %r2, %r3", "mul.lo.s32 \t%r20, %r2, %r2"),
        ("ld.global.b32 \t%r20, [%rd3]", "ld.global.b32 \t%r20, [%rd4]"),
        ("%p20, %rd1, 0", "%p20, %rd5, 0"),
        ("$L__BB0_6:\n", "$L__BB0_6:\n\tadd.s32 \t%r3, %r3, 1;\n"),
    ],
)  # fmt: skip
def test_a_cta_that_may_be_the_last_one_is_missed(old, new):
    there = NUMBERS.replace(old, new)
    assert there != NUMBERS and status(there, *ASKED)[0] == "missed"


def test_a_whole_tile_may_be_loaded_row_by_row():
    rule = ("equivalent", "a whole tile, row by row")
    always = ("guard_dropped", "@%p1 bra $L__BB0_3;", "bra $L__BB0_3;")
    assert status(LOADS, *WHOLE) == status(LOADS, *always) == status(LOADS, *WHOLE, "backward") == rule
    assert status(LOADS, *WHOLE, same_bits=False)[0] == "missed"
    # a tile that is cut off by bulk copies: rows of the next sequence
    assert status(LOADS, "bound_shifted", WHOLE[1], WHOLE[1].replace("128", "127"))[0] == "missed"
    assert status(LOADS, "guarded_dropped", always[1], ";")[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # what is left says more than which rows there are
        ("%p5, %r10, %r1", "%p5, %r10, %r18"),
        ("setp.lt.s32 \t%p5, %r10, %r1", "setp.lt.s32 \t%p5, %r1, %r10"),
        ("setp.lt.s32 \t%p5", "setp.le.s32 \t%p5"),
        ("selp.b32 \t%r13, 16, 0", "selp.b32 \t%r13, 0, 16"),
        ("\tcp.async.cg", "\t@%p5 bra \t$L__BB0_5;\n\tcp.async.cg"),
        ("\tcp.async.cg", "\tadd.s32 \t%r15, %r15, %r1;\n\tcp.async.cg"),
        ("$L__BB0_2:\n", "$L__BB0_2:\n\tadd.s32 \t%r8, %r8, %r1;\n"),
        ("$L__BB0_5:\n", "$L__BB0_5:\n\tadd.s32 \t%r40, %r40, %r1;\n"),
        # the other way does not copy, wait, fence or arrive, or does so elsewhere
        ("cp.async.cg.shared.global [%r15], [%rd4], 16, %r14", "mov.b32 \t%r19, %r14"),
        ("wait_group \t0", "wait_group \t1"),
        ("\tfence.proxy.async.shared::cta;\n", ""),
        ("\tbar.warp.sync \t-1;\n", ""),
        ("%rd5, [%r4]", "%rd5, [%r5]"),
        ("\tmbarrier.arrive.shared.b64 %rd5, [%r4], %r17;\n", ""),
        ("\tmbarrier.arrive.shared.b64 %rd5", "\tmbarrier.arrive.shared.b64 %rd6, [%r4], %r17;\n"
         "\tmbarrier.arrive.shared.b64 %rd5"),
        # something else than the tile comes, or is seen, in one of the ways
        ("[%r5+700], {%r3, 0};\n\tmov.b32 \t%r17", "[%r5+708], {%r3, 0};\n\tmov.b32 \t%r17"),
        ("$L__BB0_2:\n", "$L__BB0_2:\n\tcp.async.bulk.shared::cluster.global [%r5], [%rd6], 512, [%r4];\n"),
        ("$L__BB0_2:\n", "$L__BB0_2:\n\tbar.arrive \t5, 64;\n"),
        ("mov.b32 \t%r10, 0", "mov.b32 \t%r3, 0"),
    ],
)  # fmt: skip
def test_tiles_that_are_loaded_in_another_way_are_missed(old, new):
    there = LOADS.replace(old, new)
    assert there != LOADS and status(there, *WHOLE)[0] == "missed"


def test_a_policy_of_the_cache_changes_no_value():
    assert status(LOADS, *HINT) == ("equivalent", "a cache's policy")
    assert status(LOADS, *HINT, same_bits=False)[0] == "missed"
    for old, new in (
        (".L2::cache_hint", ""),  # the operand is something else then
        ("[%r4], %rd2;", "[%r4], %rd7;"),
        ("[%rd3, {%r8}], [%r4], %rd2;", "[%rd2, {%r8}], [%r4], %rd2;"),
        ("\tbra.uni", "\tadd.s64 \t%rd8, %rd2, 0;\n\tbra.uni"),
    ):
        there = LOADS.replace(old, new)
        assert there != LOADS and status(there, *HINT)[0] == "missed", (old, new)


def test_a_first_step_may_follow_maxima_of_no_scores():
    assert status(FIRST, *BEGUN) == ("equivalent", "a first step without scores")
    assert status(FIRST, *BEGUN, same_bits=False)[0] == "missed"
    assert status(FIRST, "guard_negated", BEGUN[1], "@!%p3 bra $L__BB0_1;")[0] == "missed"
    assert status(FIRST, "guarded_dropped", "@%p8 bra $L__BB0_2;", ";")[0] == "missed"  # a later step


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # rows that are behind go there too
        ("0f41000000;\n\tvote.sync.any.pred \t%p2", "0f51000000;\n\tvote.sync.any.pred \t%p2"),
        ("vote.sync.any.pred \t%p2", "vote.sync.all.pred \t%p2"),
        ("max.f32", "min.f32"),
        ("%r3, %r1, 0f7F800000", "%r3, %r1, 0f00000000"),
        ("mul.f32 \t%r6, %r9", "mul.f32 \t%r6, %r19"),
        ("%p3, %r10, 1", "%p3, %r10, 2"),
        # the update makes something else of rows without scores
        ("selp.f32 \t%r20, 0f00000000", "selp.f32 \t%r20, 0fFF800000"),
        ("mov.b32 \t%r11, %r1", "mov.b32 \t%r11, %r20"),
        ("mov.b32 \t%r12, 0f00000000", "mov.b32 \t%r12, 0f3F800000"),
        ("\tmul.f32 \t%r15", "\tmul.f32 \t%r15, %r15, %r13;\n\tmul.f32 \t%r15"),  # a row's NaN comes to the other one
        ("\tmov.b32 \t%r14, %r2;\n$L", "\tmov.b32 \t%r14, %r2;\n\tst.shared.b32 \t[%r60], %r2;\n$L"),
        # the factors are read: at once, without an update, or by another truth value
        ("$L__BB0_1:\n", "$L__BB0_1:\n\tmul.f32 \t%r40, %r40, %r13;\n"),
        ("\t@%p9 bra \t$L__BB0_3;\n", ""),
        ("mov.b32 \t%r37, %r33", "mov.b32 \t%r37, %r38"),
        ("\tex2.approx.ftz.f32 \t%r16, %r36;\n", ""),
        ("$L__BB0_2:\n", "$L__BB0_2:\n\tselp.b32 \t%r33, 1, 0, %p11;\n"),
    ],
)  # fmt: skip
def test_a_first_step_that_changes_rows_is_missed(old, new):
    there = FIRST.replace(old, new)
    assert there != FIRST and status(there, *BEGUN)[0] == "missed"


TURN = ("guarded_dropped", "@%p11 bra $L__BB0_9;", ";")


def test_an_update_of_a_first_step_may_have_another_turn():
    asked = "setp.eq.b32 %p11, %r60, 1;"
    rule = ("equivalent", "an update of nothing")
    assert status(LOOPED, *TURN) == status(LOOPED, "guard_negated", TURN[1], "@!%p11 bra $L__BB0_9;") == rule
    assert status(LOOPED, "bound_shifted", asked, asked.replace("1;", "2;")) == rule
    assert status(LOOPED, *TURN, same_bits=False)[0] == status(LOOPED, *TURN, "backward")[0] == "missed"
    # a reference that is not the maximum; rows that mix; a later step; a branch behind the update
    assert status(LOOPED, "instruction_dropped", "mov.b32 %r14, %r2;", ";")[0] == "missed"
    assert status(LOOPED, "guarded_dropped", "@%p8 bra $L__BB0_2;", ";")[0] == "missed"
    assert status(LOOPED, "guard_dropped", "@%p9 bra $L__BB0_3;", "bra $L__BB0_3;")[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # the other turn makes something else of sums, or of references
        ("sub.f32 \t%r61, %r1, %r20", "sub.f32 \t%r61, %r20, %r11"),
        ("mul.f32 \t%r12, %r12, %r13;\n\tsub.f32 \t%r63", "add.f32 \t%r12, %r12, %r13;\n\tsub.f32 \t%r63"),
        ("mul.f32 \t%r15, %r15, %r16;\n$L__BB0_9", "mul.f32 \t%r15, %r15, %r13;\n$L__BB0_9"),
        ("\tex2.approx.ftz.f32 \t%r16, %r64", "\tst.shared.b32 \t[%r70], %r2;\n\tex2.approx.ftz.f32 \t%r16, %r64"),
        # a factor that somebody reads
        ("$L__BB0_1:\n", "$L__BB0_1:\n\tmul.f32 \t%r40, %r40, %r13;\n"),
        # no update of rows that are behind, or a count that is not known
        ("vote.sync.any.pred \t%p2", "vote.sync.all.pred \t%p2"),
        ("%r60, %r10, 3", "%r60, %r65, 3"),
    ],
)  # fmt: skip
def test_another_turn_that_changes_rows_is_missed(old, new):
    there = LOOPED.replace(old, new)
    assert there != LOOPED and status(there, *TURN)[0] == "missed"


@pytest.mark.parametrize(("old", "new"), [("or.pred", "lt"), ("and.pred", "ge")])
def test_a_tile_that_begins_where_its_sequence_ends_may_be_worked_on(old, new):
    """The look at a CTA's first tile, and that at further ones, as kernels have them: the tile's number in 128 rows."""
    text, asked = (PASSED_OVER, "setp.lt.s32 %p2, %r2, %r3;") if new == "lt" else (TAKEN, "setp.ge.s32 %p2, %r2, %r3;")
    changed = ("compare_shifted", asked, asked.replace("lt", "le").replace("ge", "gt"))
    assert old in text and status(text, *changed) == ("equivalent", "a tile without rows")
    assert status(text, *changed, same_bits=False)[0] == status(text, *changed, "backward")[0] == "missed"
    assert status(text, "operands_swapped", asked, asked.replace("%r2, %r3", "%r3, %r2"))[0] == "missed"
    for here, there in (
        ("shl.b32 \t%r2, %r1, 7", "shl.b32 \t%r2, %r1, 2"),  # something else than a tile's first row
        ("shl.b32 \t%r2, %r1, 7", "shl.b32 \t%r5, %r1, 7"),
        (old, "xor.pred"),
        ("%p1, %p2", "%p2, %p1"),  # another way to ask than the kernels'
        ("@%p3 bra", "@%p4 bra"),
    ):
        unlike = text.replace(here, there)
        assert unlike != text and status(unlike, *changed)[0] == "missed", there


def test_each_part_of_a_split_tile_has_a_step():
    asked = ("bound_shifted", "setp.lt.s32 %p1, %r2, 1;", "setp.lt.s32 %p1, %r2, 0;")
    assert status(STEPS, *asked) == ("equivalent", "each part has a step")
    assert status(STEPS, *asked, same_values=False)[0] == status(STEPS, *asked, "backward")[0] == "missed"
    assert status(STEPS, asked[0], asked[1], asked[1].replace("1;", "2;"))[0] == "missed"
    for old, new in (
        ("setp.ge.s32 \t%p2, %r7, %r2", "setp.ge.s32 \t%p2, %r7, %r3"),  # no loop counts to it
        ("%r2, %r1, 0, 31, -1", "%r2, %r1, 1, 31, -1"),  # not what a tile's first lane has read
        ("\tshl.b32 \t%r4", "\tld.shared.b32 \t%r9, [%r6];\n\tshl.b32 \t%r4"),  # not the last word
        ("\tmov.b32 \t%r7", "\tadd.s32 \t%r2, %r2, -1;\n\tmov.b32 \t%r7"),  # changed since
    ):
        there = STEPS.replace(old, new)
        assert there != STEPS and status(there, *asked)[0] == "missed", new
