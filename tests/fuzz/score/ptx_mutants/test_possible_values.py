"""Arguments by what a register may be: texts that the proofs are read off, and changes that they refuse."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import changed, lines
from fuzz.score.ptx_mutants.possible_values import Bits
from fuzz.score.ptx_mutants.results import PtxMutant, Result

# the descriptor of a buffer in a ring, a doubled count that loops ask for, and a truth value
TEXT = """
.extern .shared .align 1024 .b8 __dynamic_shmem__0[];
.reqntid 384, 1, 1
	mov.b32 	%r9, __dynamic_shmem__0;
	shfl.sync.idx.b32 	%r1, %r9, 0, 31, -1;
	ld.global.b32 	%r2, [%rd1];
	shl.b32 	%r3, %r2, 3;
	and.b32 	%r4, %r3, 8;
	add.s32 	%r5, %r1, 65536;
	shr.u32 	%r6, %r5, 4;
	and.b32 	%r7, %r6, 16320;
	cvt.u64.u32 	%rd2, %r7;
	mov.u32 	%r30, %tid.x;
	shl.b32 	%r31, %r30, 2;
	and.b32 	%r32, %r31, 2032;
	xor.b32 	%r33, %r4, %r32;
	st.shared.b32 	[%r1], %r33;
	shl.b32 	%r10, %r2, 1;
	setp.lt.s32 	%p1, %r10, 1;
	@%p1 bra 	$L__BB0_5;
	setp.gt.s32 	%p3, %r10, 0;
	@%p3 bra 	$L__BB0_1;
	st.global.b32 	[%rd1], %r4;
$L__BB0_1:
	selp.b32 	%r20, 1, 0, %p2;
	// begin inline asm
	mov.b32 %r21, %r20;
	// end inline asm
	setp.lt.s32 	%p4, %r21, 1;
	@%p4 bra 	$L__BB0_5;
	and.b32 	%r22, %r21, 3;
	setp.lt.u32 	%p5, %r21, 4;
	@%p5 bra 	$L__BB0_3;
	mov.b32 	%r23, 0;
$L__BB0_2:
	add.s32 	%r23, %r23, 4;
	setp.ne.b32 	%p6, %r23, 4;
	@%p6 bra 	$L__BB0_2;
	setp.eq.b32 	%p7, %r22, 0;
	@%p7 bra 	$L__BB0_5;
$L__BB0_3:
	setp.eq.b32 	%p8, %r22, 1;
	@%p8 bra 	$L__BB0_5;
	st.global.b32 	[%rd1], %r21;
$L__BB0_5:
	ret;
"""
SET, NUMBER, DECIDED = "bits that are never set", "never that number", "decided before"


def status(operator: str, before: str, after: str, text: str = TEXT, **seen: bool) -> tuple[str, str]:
    """Status and rule of a result that is missed, of the mutant that has `after` in place of `before`."""
    line = next(one.number for one in lines(text) if one.text == before)
    target = "blocksparse.wgmma"
    bug = PtxMutant("bf16_d128_nested_ordered_wgmma", "forward", operator, line, before, after, target=target)
    assert changed(text, line, 1, after) != text
    found = judged(Result(bug.id, bug, "missed", looked=True, **({"same_values": True} | seen)), lambda bug: text)
    return found.status, found.rule


EQUAL = [
    # an address of shared memory is a multiple of 1,024; eight times a number, and four times one
    ("immediate_off_by_one", "and.b32 %r7, %r6, 16320;", "and.b32 %r7, %r6, 16321;", SET),
    ("immediate_off_by_one", "and.b32 %r4, %r3, 8;", "and.b32 %r4, %r3, 9;", SET),
    ("immediate_off_by_one", "and.b32 %r32, %r31, 2032;", "and.b32 %r32, %r31, 2033;", SET),
    # one has bit 3 at most, the other one bits 4 to 10
    ("operation_replaced", "xor.b32 %r33, %r4, %r32;", "or.b32 %r33, %r4, %r32;", SET),
    # an even number
    ("compare_shifted", "setp.lt.s32 %p1, %r10, 1;", "setp.le.s32 %p1, %r10, 1;", NUMBER),
    ("bound_shifted", "setp.lt.s32 %p1, %r10, 1;", "setp.lt.s32 %p1, %r10, 2;", NUMBER),
    ("bound_shifted", "setp.gt.s32 %p3, %r10, 0;", "setp.gt.s32 %p3, %r10, 1;", NUMBER),
    # 0 was found below 1 before
    ("compare_shifted", "setp.gt.s32 %p3, %r10, 0;", "setp.ge.s32 %p3, %r10, 0;", NUMBER),
    ("bound_shifted", "setp.gt.s32 %p3, %r10, 0;", "setp.gt.s32 %p3, %r10, -1;", NUMBER),
    ("compare_flipped", "setp.gt.s32 %p3, %r10, 0;", "setp.le.s32 %p3, %r10, 0;", ""),
    # a truth value, which is not 0 there: it was asked
    ("guard_dropped", "@%p5 bra $L__BB0_3;", "bra $L__BB0_3;", "a truth value"),
    ("guard_dropped", "@%p8 bra $L__BB0_5;", "bra $L__BB0_5;", DECIDED),
    ("bound_shifted", "setp.eq.b32 %p8, %r22, 1;", "setp.eq.b32 %p8, %r22, 2;", ""),
    # it may be 0 or 1, and a number may be any
    ("guard_dropped", "@%p4 bra $L__BB0_5;", "bra $L__BB0_5;", ""),
    ("guarded_dropped", "@%p4 bra $L__BB0_5;", ";", ""),
    ("guarded_dropped", "@%p8 bra $L__BB0_5;", ";", ""),
    ("bound_shifted", "setp.lt.s32 %p1, %r10, 1;", "setp.lt.s32 %p1, %r10, 0;", ""),
    ("compare_flipped", "setp.lt.s32 %p1, %r10, 1;", "setp.ge.s32 %p1, %r10, 1;", ""),
    # bits that may be set
    ("immediate_off_by_one", "and.b32 %r7, %r6, 16320;", "and.b32 %r7, %r6, 16319;", ""),
    ("immediate_off_by_one", "and.b32 %r4, %r3, 8;", "and.b32 %r4, %r3, 7;", ""),
    ("immediate_off_by_one", "shl.b32 %r3, %r2, 3;", "shl.b32 %r3, %r2, 4;", ""),
]


@pytest.mark.parametrize(("operator", "before", "after", "rule"), EQUAL)
def test_a_change_is_equivalent_where_no_value_shows_it(operator, before, after, rule):
    assert status(operator, before, after) == ("equivalent" if rule else "missed", rule)
    if rule:
        assert status(operator, before, after, same_values=False)[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new", "case"),
    [
        # an address that is aligned to less, of no buffer, or that something is added to
        (".align 1024", ".align 16", 0),
        ("%r5, %r1, 65536", "%r5, %r2, 65536", 0),
        ("%r5, %r1, 65536", "%r5, %r1, 65552", 0),
        ("\tadd.s32 \t%r5, %r1, 65536;", "\tadd.s32 \t%r5, %r1, 65536;\n\tld.shared.b32 \t%r5, [%r1];", 0),
        # a number that is not shifted far enough, or whose register has another one too
        ("shl.b32 \t%r3, %r2, 3", "mul.lo.s32 \t%r3, %r2, 9", 1),
        ("\tshl.b32 \t%r3, %r2, 3;", "\tshl.b32 \t%r3, %r2, 3;\n\t@%p2 mov.b32 \t%r3, 1;", 1),
        ("shl.b32 \t%r31, %r30, 2", "shl.b32 \t%r31, %r30, %r2", 2),
        # bits that both have
        ("and.b32 \t%r32, %r31, 2032", "and.b32 \t%r32, %r31, 2040", 3),
        ("shl.b32 \t%r10, %r2, 1", "add.s32 \t%r10, %r2, 1", 4),
        # another number was found below 1, or the number is given anew since, or there is a way round
        ("setp.lt.s32 \t%p1, %r10, 1", "setp.lt.s32 \t%p1, %r2, 1", 7),
        ("setp.lt.s32 \t%p1, %r10, 1", "setp.lt.s32 \t%p1, %r10, 0", 7),
        ("\tsetp.gt.s32 \t%p3", "\tadd.s32 \t%r10, %r10, 2;\n\tsetp.gt.s32 \t%p3", 7),
        ("\tmov.u32 \t%r30, %tid.x;", "\tshl.b32 \t%r10, %r2, 1;\n\t@%p2 bra \t$L__BB0_9;", 7),
        ("@%p1 bra \t$L__BB0_5", "@!%p1 bra \t$L__BB0_5", 7),
        # a truth value that was not asked, or that is none
        ("\t@%p4 bra \t$L__BB0_5;\n", "", 11),
        ("selp.b32 \t%r20, 1, 0, %p2", "selp.b32 \t%r20, 2, 0, %p2", 11),
        ("and.b32 \t%r22, %r21, 3", "and.b32 \t%r22, %r2, 3", 11),
    ],
)
def test_another_text_shows_it(old, new, case):
    operator, before, after, rule = EQUAL[case]
    there = TEXT.replace(old, new)
    if "$L__BB0_9" in new:
        there = there.replace("\tsetp.gt.s32 \t%p3", "$L__BB0_9:\n\tsetp.gt.s32 \t%p3")
    assert rule and there != TEXT and status(operator, before, after, there)[0] == "missed"


@pytest.mark.parametrize(
    ("line", "bits"),
    [
        ("mov.b32 \t%r9, -1", 0xFFFFFFFF),
        ("mov.u32 \t%r9, %laneid", 31),
        ("mov.u32 \t%r9, %tid.x", 511),
        ("mov.u32 \t%r9, %ctaid.x", 0xFFFFFFFF),
        ("mov.b32 \t%r9, 0f00000001", 0xFFFFFFFF),
        ("shr.s32 \t%r9, %r1, 28", 0xFFFFFFFF),
        ("shr.u32 \t%r9, %r1, 28", 15),
        ("add.s32 \t%r9, %r2, %r2", 14),
        ("add.s32 \t%r9, %r2, 8", 14),
        ("add.s32 \t%r9, %r2, -2", 0xFFFFFFFE),
        ("sub.s32 \t%r9, %r2, 4", 0xFFFFFFFE),
        ("mul.lo.s32 \t%r9, %r2, 4", 24),
        ("mad.lo.s32 \t%r9, %r2, 4, 1", 25),
        ("mul.hi.s32 \t%r9, %r2, 4", 0xFFFFFFFF),
        ("selp.b32 \t%r9, 4, %r2, %p1", 6),
        ("max.s32 \t%r9, %r2, 1", 7),
        ("not.b32 \t%r9, %r2", 0xFFFFFFFF),
        ("shl.b32 \t%r9, %r2, 31", 0),
        ("shl.b32 \t%r9, %r2, 30", 0x80000000),
        ("shfl.sync.bfly.b32 \t%r9, %r2, 1, 31, -1", 0xFFFFFFFF),
        ("{mov.b32 \t%r9, %r2; add.s32 \t%r9, %r9, 1", 0xFFFFFFFF),
    ],
)
def test_bits_that_may_be_set(line, bits):
    text = f".reqntid 384, 1, 1\n\tld.global.b32 \t%r1, [%rd1];\n\tand.b32 \t%r2, %r1, 6;\n\t{line};\n\tret;\n"
    assert Bits(text).of("%r9") == bits


SUM = ("immediate_off_by_one", "add.s32 %r5, %r1, 65536;", "add.s32 %r5, %r1, 65537;")


def test_bits_of_an_address_that_a_shift_drops_may_be_any():
    assert status(*SUM, same_bits=True) == ("equivalent", "bits that are dropped")
    assert status(*SUM, same_bits=False)[0] == "missed"
    assert status(*SUM[:2], "add.s32 %r5, %r1, 65535;", same_bits=True)[0] == "missed"  # higher bits differ too


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shr.u32 \t%r6, %r5, 4", "shr.u32 \t%r6, %r5, 0"),  # the bit is kept
        ("shr.u32 \t%r6, %r5, 4", "shl.b32 \t%r6, %r5, 4"),
        ("shr.u32 \t%r6, %r5, 4", "shr.u32 \t%r6, %r5, %r4"),
        ("\tcvt.u64.u32 \t%rd2, %r7", "\tst.shared.b32 \t[%r5], %r6;\n\tcvt.u64.u32 \t%rd2, %r7"),  # read elsewhere
        ("\tcvt.u64.u32 \t%rd2, %r7", "\tadd.s32 \t%r5, %r5, %r6;\n\tcvt.u64.u32 \t%rd2, %r7"),
        ("\tshr.u32 \t%r6", "\tadd.s32 \t%r5, %r2, 1;\n\tshr.u32 \t%r6"),  # given another value
        (".align 1024", ".align 1"),  # the address may be odd
        ("%r1, %r9, 0, 31", "%r1, %r2, 0, 31"),
    ],
)
def test_bits_of_a_sum_that_are_read_or_may_be_carried_are_missed(old, new):
    there = TEXT.replace(old, new)
    assert there != TEXT and status(*SUM, text=there, same_bits=True)[0] == "missed"
