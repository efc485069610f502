"""Arguments by which another thread may be chosen, lanes have waited for products, or another pointer may be asked for:
texts that the proofs are read off, and near misses."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result

# the last thread of a warp announces a tile in shared memory, and all of the warp read it
ANNOUNCED = """
.reqntid 384, 1, 1
	mov.b32 	%r9, __dynamic_shmem__0;
	shfl.sync.idx.b32 	%r1, %r9, 0, 31, -1;
	mov.u32 	%r2, %tid.x;
	shr.u32 	%r10, %r2, 5;
	shfl.sync.idx.b32 	%r3, %r10, 0, 31, -1;
	setp.ne.b32 	%p9, %r2, 0;
	@%p9 bra 	$L__BB0_1;
	mbarrier.init.shared.b64 	[%r1+600], %r10;
$L__BB0_1:
	bar.sync 	0;
	setp.ne.b32 	%p1, %r3, 3;
	@%p1 bra 	$L__BB0_6;
	ld.param.b64 	%rd1, [k_param_0];
	ld.param.b32 	%r4, [k_param_1];
	mov.u32 	%r5, %ctaid.x;
	setp.ne.b32 	%p2, %r2, 127;
	@%p2 bra 	$L__BB0_4;
	mul.lo.s32 	%r6, %r5, %r4;
	mov.b32 	%r7, 0;
	setp.eq.b64 	%p3, %rd1, 0;
	@%p3 bra 	$L__BB0_3;
$L__BB0_2:
	atom.global.add.u32 	%r7, [%rd1], 1;
	setp.lt.s32 	%p4, %r7, %r6;
	@%p4 bra 	$L__BB0_2;
$L__BB0_3:
	// begin inline asm
	{
	.reg .pred       P1; 
	LAB_WAIT: 
	mbarrier.try_wait.parity.shared.b64 P1, [%r1], 1, 10000000; 
	@P1 bra.uni DONE; 
	bra.uni     LAB_WAIT; 
	DONE: 
	}
	// end inline asm
	st.shared.v2.b32 	[%r1+8], {%r6, %r7};
	mbarrier.arrive.shared.b64 %rd2, [%r1+16], 1;
$L__BB0_4:
	mov.u32 	%r8, %laneid;
	bar.warp.sync 	-1;
	ld.shared.b32 	%r11, [%r1+8];
	setp.ne.b32 	%p5, %r8, 0;
	@%p5 bra 	$L__BB0_6;
	st.global.b32 	[%rd1], %r11;
$L__BB0_6:
	ret;
"""
# a turn's barrier, products of a warp, and the lane that gives their buffer back
PRODUCTS = """
	ld.shared.b32 	%r121, [%r120+196768];
	bar.sync 	%r119, 256;
	wgmma.fence.sync.aligned;
	mov.b64 	%rd35, {%r442, %r443};
	// begin inline asm
	{
.reg .pred p;
setp.ne.b32 p, %r430, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %rd34, %rd35, p, 1,  1, 0, 0;
}
	// end inline asm
	wgmma.commit_group.sync.aligned;
	bar.arrive %r974, 256;
	setp.lt.s32 	%p36, %r117, 1;
	@%p36 bra 	$L__BB0_1;
	ld.param.b32 	%r2580, [k_param_51];
	neg.s32 	%r484, %r2580;
$L__BB0_1:
	setp.gt.u32 	%p38, %r92, 1;
	wgmma.wait_group.sync.aligned 	0;
	bar.warp.sync 	-1;
	@%p38 bra 	$L__BB0_2;
	mapa.shared::cluster.u32 	%r515, %r514, %r92;
	mbarrier.arrive.shared::cluster.b64 _, [%r515], %r517;
$L__BB0_2:
	ret;
"""
PAIR = """
	ld.param.b64 	%rd1, [k_param_25];
	setp.eq.b64 	%p1, %rd1, 0;
	@%p1 bra 	$L__BB0_1;
	ld.param.b64 	%rd2, [k_param_26];
	ld.global.b32 	%r1, [%rd2];
$L__BB0_1:
	ret;
"""


def status(text: str, operator: str, before: str, after: str, kind: str = "forward", **seen: bool) -> tuple[str, str]:
    """Status and rule of a result that is missed, of a mutant that has `after` in place of `before`."""
    line = next(one.number for one in lines(text) if one.text == before)
    target = "blocksparse.wgmma"
    bug = PtxMutant("fp16_d64_intervals_atomic_wgmma", kind, operator, line, before, after, target=target)
    found = judged(Result(bug.id, bug, "missed", looked=True, **({"same_bits": True} | seen)), lambda bug: text)
    return found.status, found.rule


def announced(text: str, thread: int = 126, **seen: bool) -> tuple[str, str]:
    """As `status`, of the mutant by which another thread announces."""
    return status(text, "bound_shifted", "setp.ne.b32 %p2, %r2, 127;", f"setp.ne.b32 %p2, %r2, {thread};", **seen)


def test_another_thread_of_a_warp_may_announce_a_tile():
    rule = ("equivalent", "another thread of the warp")
    assert announced(ANNOUNCED) == announced(ANNOUNCED, 96) == rule
    assert announced(ANNOUNCED, same_bits=False)[0] == "missed"
    # of another warp, or none
    assert announced(ANNOUNCED, 95)[0] == announced(ANNOUNCED, 128)[0] == announced(ANNOUNCED, 384)[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # the lanes do not meet behind it, or not before they read, or come by another way
        ("\tbar.warp.sync \t-1;\n", ""),
        ("\tbar.warp.sync", "\tld.shared.b32 \t%r21, [%r1+8];\n\tbar.warp.sync"),
        ("\tmov.u32 \t%r5, %ctaid.x;", "\t@%p1 bra \t$L__BB0_3;\n\tmov.u32 \t%r5, %ctaid.x;"),
        ("\tmov.b32 \t%r7, 0;", "\tmov.b32 \t%r7, 0;\n\t@%p3 bra \t$L__BB0_6;"),
        # memory is accessed before it, since threads met, or they did not meet
        ("\tmov.u32 \t%r5, %ctaid.x;", "\tmov.u32 \t%r5, %ctaid.x;\n\tst.shared.b32 \t[%r1], %r5;"),
        ("\tbar.sync \t0;\n", ""),
        ("\tbar.sync \t0;\n", "\tbar.sync \t1, 128;\n"),
        # what is read there is not the same in both, or the way there
        ("mul.lo.s32 \t%r6, %r5, %r4", "mul.lo.s32 \t%r6, %r5, %r2"),
        ("mul.lo.s32 \t%r6, %r5, %r4", "mov.u32 \t%r6, %laneid"),
        ("mul.lo.s32 \t%r6, %r5, %r4", "mul.lo.s32 \t%r6, %r5, %r12"),
        ("\tld.param.b32 \t%r4, [k_param_1];", "\tld.global.b32 \t%r4, [%rd1];"),
        ("\tmov.u32 \t%r5, %ctaid.x;", "\tand.b32 \t%r5, %r2, 1;"),
        ("setp.ne.b32 \t%p1, %r3, 3", "setp.gt.u32 \t%p1, %r2, 126"),
        # something of the thread's own
        ("\tst.shared.v2", "\tfence.proxy.async.shared::cta;\n\tst.shared.v2"),
        ("\tst.shared.v2", "\tcp.async.commit_group;\n\tst.shared.v2"),
        ("\tst.shared.v2", "\telect.sync \t%r20|%p8, -1;\n\tst.shared.v2"),
        # what it leaves is read behind it, its predicate too
        ("st.global.b32 \t[%rd1], %r11", "st.global.b32 \t[%rd1], %r7"),
        ("setp.ne.b32 \t%p5, %r8, 0", "setp.ne.b32 \t%p5, %r6, 0"),
        ("\t@%p5 bra", "\t@%p2 bra"),
        # several threads are chosen
        (".reqntid 384, 1, 1\n", ""),
    ],
)  # fmt: skip
def test_a_thread_that_others_rely_on_is_missed(old, new):
    there = ANNOUNCED.replace(old, new)
    assert there != ANNOUNCED and announced(there)[0] == "missed"


def test_values_of_both_threads_count_alone():
    # both are above 63, and what the region leaves may be given anew
    there = ANNOUNCED.replace("%r6, %r5, %r4", "%r6, %r5, %r20").replace(
        "\tbar.sync \t0;\n", "\tbar.sync \t0;\n\tshr.u32 \t%r20, %r2, 6;\n"
    )
    again = ANNOUNCED.replace(
        "\tld.shared.b32 \t%r11", "\tmov.b32 \t%r7, 1;\n\tadd.s32 \t%r13, %r7, 1;\n\tld.shared.b32 \t%r11"
    )
    assert announced(there) == announced(again) == ("equivalent", "another thread of the warp")


def waited(text: str, **seen: bool) -> tuple[str, str]:
    """As `status`, of the mutant without the barrier of lanes."""
    return status(text, "barrier_dropped", "bar.warp.sync -1;", ";", **seen)


def test_lanes_that_waited_for_products_need_no_barrier():
    rule = ("equivalent", "the lanes have waited for products")
    assert waited(PRODUCTS) == waited(PRODUCTS, kind="backward") == rule
    assert waited(PRODUCTS, same_bits=False)[0] == "missed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\twgmma.wait_group.sync.aligned \t0;\n", ""),
        (
            "\twgmma.wait_group.sync.aligned \t0;\n",
            "\twgmma.wait_group.sync.aligned \t0;\n\tld.shared.b32 \t%r5, [%r6];\n",
        ),
        ("\twgmma.wait_group", "\t@%p38 bra \t$L__BB0_3;\n\twgmma.wait_group"),
        ("\tbar.sync \t%r119, 256;\n", ""),
        ("\tbar.sync \t%r119, 256;\n", "\tbar.arrive \t%r119, 256;\n"),
        ("\tneg.s32", "\tld.shared.b32 \t%r5, [%r6];\n\tneg.s32"),
        ("\tneg.s32", "\tst.shared.b32 \t[%r6], %r5;\n\tneg.s32"),
        ("\tneg.s32", "\tcp.async.wait_group \t0;\n\tneg.s32"),
    ],
)
def test_lanes_with_other_accesses_need_it(old, new):
    there = PRODUCTS.replace(old, new)
    there = there.replace("\tbar.warp.sync", "$L__BB0_3:\n\tbar.warp.sync")
    assert waited(there)[0] == "missed"


def asked(text: str, before: int, after: int, **seen: bool) -> str:
    """As `status`, of the mutant that asks for another parameter."""
    one, other = (f"ld.param.b64 %rd1, [k_param_{number}];" for number in (before, after))
    return status(text.replace("k_param_25", f"k_param_{before}"), "parameter_wrong", one, other, **seen)[1]


def test_pointers_that_are_given_together_are_null_together():
    for pair in ((25, 26), (28, 29), (63, 62)):
        assert asked(PAIR, *pair) == asked(PAIR, *pair[::-1]) == "both or neither"
    assert asked(PAIR, 25, 24) == asked(PAIR, 26, 27) == asked(PAIR, 25, 26, same_bits=False) == ""
    # it is read too, or another kernel has other parameters
    assert asked(PAIR.replace("[%rd2]", "[%rd1]"), 25, 26) == asked(PAIR, 25, 26, kind="backward") == ""
