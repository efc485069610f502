"""Arguments for mutants of Hopper's kernels: the instruction that each is about, and a near miss."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result
from fuzz.score.ptx_mutants.wgmma_arguments import WGMMA_ARGUMENTS

DIVISION = """
	setp.ne.b32 	%p1, %r1, %r2;
	setp.lt.s32 	%p2, %r3, 0;
	and.pred 	%p3, %p1, %p2;
	selp.b32 	%r4, -1, 0, %p3;
	setp.lt.s32 	%p4, %r5, 1;
"""
OPENING = "\tsetp.ne.b32 \t%p1, %r1, 1;\n\t@%p1 bra \t$L__BB0_1;\n\tbar.arrive \t3, 256;\n"
LANE = "\tmov.u32 \t%r1, %laneid;\n\tsetp.ne.b32 \t%p1, %r1, 0;\n"
END = """
	mbarrier.arrive.shared.b64 %rd1, [%r9], %r8;
$L__BB0_9:
	setp.lt.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_72;
"""
WGMMA = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{d}}}, {a}, %rd9, p, 1, 1, 1;"
FIRST, SECOND = (WGMMA.format(d=d, a="%rd8") for d in ("%r10, %r11", "%r12, %r13"))
# the fence in the middle is dropped
FENCE = f"""
	wgmma.fence.sync.aligned;
	{FIRST}
	wgmma.commit_group.sync.aligned;
	@%p1 bra 	$L__BB0_1;
	add.s32 	%r1, %r2, 512;
$L__BB0_1:
	wgmma.fence.sync.aligned;
	{SECOND}
	wgmma.fence.sync.aligned;
	mov.b32 	%r12, %r1;
	ret;
"""
MEET = """
	wgmma.wait_group.sync.aligned 	1;
	bar.warp.sync 	-1;
	@%p1 bra 	$L__BB0_168;
	mov.b32 	%r760, 1;
	mbarrier.arrive.shared.b64 %rd70, [%r111+98320], %r760;
$L__BB0_168:
"""
REDUCED = """
	cp.async.bulk.wait_group 	0;
	@%p1 bra 	$L__BB0_89;
	fence.proxy.async.global;
	red.release.gpu.global.add.s32 [%rd187], %r1271;
"""
AT_REST = "\tstmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9], {%r1, %r2, %r3, %r4};\n\tbar.sync \t0, 256;\n\tret;\n"
REMAINDER = """
	mul.lo.s32 	%r7, %r5, %r6;
	setp.ne.b32 	%p1, %r1, %r7;
	xor.b32 	%r8, %r1, %r5;
	setp.lt.s32 	%p2, %r8, 0;
	and.pred 	%p3, %p1, %p2;
	selp.b32 	%r9, -1, 0, %p3;
"""
CLEARED = """
	mov.u32 	%r1, %tid.x;
	setp.ne.b32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_3;
	mul.wide.u32 	%rd2, %r2, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.b32 	[%rd3], 0;
"""
ZEROS = "".join(f"\tmov.b32 \t%r{i}, 0;\n" for i in range(10, 18))
ZEROS += """\
	cvt.u32.u64 	%r18, %rd6;
	or.b32 	%r19, %r18, 112;
	setp.ge.s32 	%p4, %r19, %r8;
"""
# a ring of Q and dO: who fills it, and who is done with a step
RING = """
	add.s32 	%r20, %r9, 700;
	mbarrier.try_wait.parity.shared.b64 P1, [%r20], %r30, 10000000;
	add.s32 	%r21, %r9, 800;
	mbarrier.try_wait.parity.shared.b64 P1, [%r21], %r30, 10000000;
	wgmma.wait_group.sync.aligned 	1;
	bar.warp.sync 	-1;
	@%p5 bra 	$L__BB0_1;
	mbarrier.arrive.shared.b64 %rd1, [%r13+800], %r8;
$L__BB0_1:
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 	0;
	@%p5 bra 	$L__BB0_2;
	mbarrier.arrive.shared.b64 %rd2, [%r13+700], %r8;
$L__BB0_2:
"""
ONCE_MORE = ("setp.ne.b32 %p4, %r3, %r2;", "setp.eq.b32 %p4, %r3, %r2;")
DO_WAIT = "mbarrier.try_wait.parity.shared.b64 P1, [%r21], %r30, 10000000;"
ADDRESS = "\tadd.s64 \t%rd1, %rd2, 14;\n\tand.b64 \t%rd3, %rd1, -16;\n"
SCALE = "\tmov.b32 \t%r1, 1;\n\tsetp.ne.b32 \tp, %r1, 0;\n"
ELECTED = """
	bar.warp.sync 	-1;
	and.b32 	%r1, %r2, 1;
	ld.shared.b32 	%r3, [%r1+231680];
	elect.sync 	%r4|%p1, -1;
"""
TAIL_OF_V = """
	cp.async.commit_group;
	cp.async.wait_group 	0;
	fence.proxy.async.shared::cta;
	bar.warp.sync 	-1;
	@%p1 bra 	$L__BB0_1;
	mov.b32 	%r5, 1;
	mbarrier.arrive.shared.b64 %rd1, [%r1+216656], %r5;
$L__BB0_1:
"""
TAIL_OF_DO = """
	cp.async.wait_group 	0;
	fence.proxy.async.shared::cta;
	bar.warp.sync 	-1;
	@%p1 bra 	$L__BB0_1;
	add.s32 	%r2, %r3, 216712;
"""
STARTS = "\tld.param.b64 \t%rd1, [k_param_50];\n\tsetp.eq.b64 \t%p1, %rd1, 0;\n"
LOOP = """
	setp.lt.s32 	%p1, %r1, 1;
	@%p1 bra 	$L__BB0_1;
	shl.b32 	%r2, %r9, 5;
	add.s32 	%r3, %r1, %r2;
	setp.ge.s32 	%p2, %r2, %r3;
"""
MAIN = "\tbar.sync \t0, 256;\n\tret;\n"
ROW = """
	shfl.sync.bfly.b32 	%r1, %r2, 8, 31, -1;
	add.f32 	%r3, %r2, %r1;
	@%p1 bra 	$L__BB0_1;
	setp.eq.f32 	%p2, %r4, 0fFF800000;
"""
END_OF_KEYS = "\tadd.s32 \t%r1, %r2, 128;\n\tsetp.gt.s32 \t%p1, %r1, %r3;\n\tor.pred \t%p2, %p3, %p1;\n"

# two barriers of the lanes, with an arrival or a bulk copy of one lane between them
TWICE = """
	@%p2 bra 	$L__BB0_1;
	elect.sync 	%r4|%p1, -1;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd3], 512, [%r6];
	bra.uni 	$L__BB0_2;
$L__BB0_1:
	bar.warp.sync 	-1;
	@%p3 bra 	$L__BB0_2;
	mbarrier.arrive.shared.b64 %rd1, [%r1+198880], %r7;
$L__BB0_2:
	and.b32 	%r8, %r9, 31;
	bar.warp.sync 	-1;
"""
SHUFFLED = """
	bar.sync 	0;
$L__BB0_1:
	{
	LAB_WAIT: 
	mbarrier.try_wait.parity.shared.b64 P1, [%r210], %r211, 10000000; 
	@P1 bra.uni DONE; 
	bra.uni     LAB_WAIT; 
	DONE: 
	}
	ld.shared.b32 	%r1, [%r2+41088];
	shfl.sync.idx.b32 	%r3, %r1, 0, 31, -1;
	add.s32 	%r4, %r3, 1;
	bar.warp.sync 	-1;
	@%p1 bra 	$L__BB0_1;
	ret;
"""
FIRST_TILE = """
	mov.u32 	%r1, %ctaid.x;
	mul.lo.s32 	%r2, %r8, %r9;
	mul.lo.s32 	%r3, %r7, %r2;
	setp.ge.s32 	%p1, %r1, %r3;
	mov.b32 	%r4, 0;
	@%p1 bra 	$L__BB0_1;
"""
TRUTH = """
	selp.b32 	%r1, 1, 0, %p1;
	// begin inline asm
	mov.b32 %r2, %r1;
	// end inline asm
	sub.s32 	%r3, %r4, %r5;
	setp.lt.s32 	%p2, %r2, 1;
"""
UNROLLED = """
	selp.b32 	%r1, 1, 0, %p1;
	// begin inline asm
	mov.b32 %r2, %r1;
	// end inline asm
	setp.lt.s32 	%p2, %r2, 1;
	@%p2 bra 	$L__BB0_2;
	setp.lt.u32 	%p3, %r2, 4;
	@%p3 bra 	$L__BB0_1;
"""
# a score is hidden where a bit of a word is not set, which is cut off first
MASKED = """
	selp.b32 	%r1, 1, 0, %p1;
	// begin inline asm
	mov.b32 %r2, %r1;
	// end inline asm
	setp.lt.s32 	%p2, %r2, 1;
	@%p2 bra 	$L__BB0_2;
	mov.b32 	%r3, 0;
$L__BB0_1:
	and.b32 	%r4, %r9, %r4;
	and.b32 	%r5, %r4, 2;
	setp.eq.b32 	%p3, %r5, 0;
	selp.f32 	%r6, 0fFF800000, %r6, %p3;
	add.s32 	%r3, %r3, 1;
	setp.ne.b32 	%p4, %r3, %r2;
	@%p4 bra 	$L__BB0_1;
$L__BB0_2:
	add.f32 	%r7, %r6, %r8;
"""
ZERO_MATRICES = "\tmov.b32 \t%r1, 0;\n\tstmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2+64], {%r1, %r1, %r1, %r1};\n"
STORED = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2+64], {%r1, %r1, %r1, %r1};"
TRANSPOSED = STORED.replace("x4", "x4.trans")
DOUBLED = """
	setp.lt.s32 	%p1, %r1, 1;
	@%p1 bra 	$L__BB0_1;
	shl.b32 	%r2, %r1, 1;
	setp.lt.s32 	%p2, %r2, 1;
	@%p2 bra 	$L__BB0_1;
"""
FALLS_BEHIND = (
    "\tmax.f32 \t%r3, %r1, %r2;\n\tsetp.gt.f32 \t%p1, %r3, 0f41000000;\n\tvote.sync.any.pred \t%p2, %p1, -1;\n"
)
COUNTER = "\tld.param.b64 \t%rd1, [k_param_17];\n\tst.global.b32 \t[%rd1], 0;\n"
NEXT_TILE = """
	ld.param.b64 	%rd1, [k_param_63];
	setp.eq.b64 	%p1, %rd1, 0;
	@%p1 bra 	$L__BB0_1;
	bra.uni 	$L__BB0_3;
$L__BB0_1:
	setp.ge.s32 	%p2, %r1, %r2;
	mov.b32 	%r3, %r2;
	@%p2 bra 	$L__BB0_2;
	atom.global.add.u32 	%r4, [%rd2], 1;
"""
OF_TWO_BYTES = "\tshl.b64 \t%rd1, %rd5, 1;\n\tadd.s64 \t%rd2, %rd6, %rd1;\n\tadd.s64 \t%rd3, %rd2, 14;\n"
OF_TWO_BYTES += "\tand.b64 \t%rd4, %rd3, -16;\n"
VOTES = """
	vote.sync.ballot.b32 	%r1, %p1, -1;
	selp.b32 	%r2, %r1, %r3, %p2;
	shr.u32 	%r4, %r2, %r5;
"""


def status(text: str, operator: str, before: str, after: str, kind: str, **seen: bool) -> tuple[str, str]:
    """Status of the mutant of the line `before` (the middle one of several), and the argument that gives it."""
    there = [x for x in lines(text) if x.text == before]
    line = there[len(there) // 2]
    bug = PtxMutant("c_ordered_", kind, operator, line.number, before, after, target="blocksparse.wgmma")
    evidence = {"same_bits": True, "same_values": False} | seen
    found = judged(Result(bug.id, bug, "missed", looked=True, reaching=1, **evidence), lambda _: text)
    return found.status, found.rule


@pytest.mark.parametrize(
    ("rule", "text", "operator", "before", "after", "kind"),
    [
        ("floor division", DIVISION, "compare_shifted", "setp.lt.s32 %p2, %r3, 0;", "setp.le.s32 %p2, %r3, 0;",
         "forward"),
        ("the other warpgroup begins", OPENING, "named_barrier_wrong", "bar.arrive 3, 256;", "bar.arrive 4, 256;",
         "forward"),
        ("another lane arrives", LANE, "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, 1;",
         "backward"),
        ("the end has no blocks", END, "sign_changed", "setp.lt.s32 %p1, %r1, 0;", "setp.lt.u32 %p1, %r1, 0;",
         "forward"),
        ("fenced before", FENCE, "product_order_dropped", "wgmma.fence.sync.aligned;", ";", "backward"),
        ("the lanes have met", MEET, "barrier_dropped", "bar.warp.sync -1;", ";", "forward"),
        ("copies end with a fence", REDUCED, "barrier_dropped", "fence.proxy.async.global;", ";", "backward"),
        ("a barrier at rest", AT_REST, "named_barrier_wrong", "bar.sync 0, 256;", "bar.sync 1, 256;", "backward"),
        ("released again", RING, "product_wait_weakened", "wgmma.wait_group.sync.aligned 1;",
         "wgmma.wait_group.sync.aligned 2;", "backward"),
        ("awaited with Q", RING, "phase_not_awaited", DO_WAIT, "setp.eq.s32 P1, 0, 0;", "backward"),
        ("rounded to 16 bytes", ADDRESS, "immediate_off_by_one", "add.s64 %rd1, %rd2, 14;", "add.s64 %rd1, %rd2, 13;",
         "preprocess"),
        ("elect.sync meets the lanes", ELECTED, "barrier_dropped", "bar.warp.sync -1;", ";", "backward"),
        ("awaited with K", TAIL_OF_V, "commit_dropped", "cp.async.commit_group;", ";", "backward"),
        ("awaited with Q's copies", TAIL_OF_DO, "wait_weakened", "cp.async.wait_group 0;", "cp.async.wait_group 1;",
         "backward"),
        ("an odd number arrives", TAIL_OF_V, "guard_negated", "@%p1 bra $L__BB0_1;", "@!%p1 bra $L__BB0_1;",
         "backward"),
        ("both or neither", STARTS, "parameter_wrong", "ld.param.b64 %rd1, [k_param_50];",
         "ld.param.b64 %rd1, [k_param_51];", "backward"),
        ("another number for all", MAIN, "named_barrier_wrong", "bar.sync 0, 256;", "bar.sync 1, 256;", "backward"),
        ("all lanes of a row have it", ROW, "guarded_dropped", "@%p1 bra $L__BB0_1;", ";", "preprocess"),
        ("a mask that hides nothing", END_OF_KEYS, "compare_shifted", "setp.gt.s32 %p1, %r1, %r3;",
         "setp.ge.s32 %p1, %r1, %r3;", "forward"),
        ("the lanes have met", TWICE, "barrier_dropped", "bar.warp.sync -1;", ";", "backward"),
        ("the lanes have met at a shuffle", SHUFFLED, "barrier_dropped", "bar.warp.sync -1;", ";", "forward"),
        ("a truth value", TRUTH, "immediate_off_by_one", "selp.b32 %r1, 1, 0, %p1;", "selp.b32 %r1, 2, 0, %p1;",
         "forward"),
        ("bits that nobody reads", VOTES, "sign_changed", "shr.u32 %r4, %r2, %r5;", "shr.s32 %r4, %r2, %r5;",
         "backward"),
        ("it adds to the accumulators", SCALE, "bound_shifted", "setp.ne.b32 p, %r1, 0;", "setp.ne.b32 p, %r1, -1;",
         "forward"),
        ("floor division", REMAINDER, "instruction_dropped", "mul.lo.s32 %r7, %r5, %r6;", ";", "backward"),
        ("another thread clears", CLEARED, "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, 1;",
         "preprocess"),
        ("times zero", ZEROS, "immediate_off_by_one", "mov.b32 %r14, 0;", "mov.b32 %r14, 1;", "preprocess"),
        ("once more", MASKED, "compare_flipped", *ONCE_MORE, "forward"),
        ("nobody counts", COUNTER, "store_dropped", "st.global.b32 [%rd1], 0;", ";", "preprocess"),
        ("zeros either way", ZERO_MATRICES, "transposed", STORED, TRANSPOSED, "backward"),
    ],
)  # fmt: skip
def test_an_argument_needs_its_instruction_and_the_evidence(rule, text, operator, before, after, kind):
    assert status(text, operator, before, after, kind) == ("equivalent", rule)
    assert status(text, operator, before, after, kind, same_bits=False)[0] == "missed"


@pytest.mark.parametrize(
    ("text", "operator", "before", "after", "kind"),
    [
        (DIVISION, "compare_shifted", "setp.lt.s32 %p4, %r5, 1;", "setp.le.s32 %p4, %r5, 1;", "forward"),
        (LANE.replace("laneid", "tid.x"), "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, 1;",
         "forward"),
        (LANE, "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, -1;", "forward"),
        # a register of the product is written on one of the two ways, or read
        (FENCE.replace("%r1, %r2, 512", "%r13, %r2, 512"), "product_order_dropped", "wgmma.fence.sync.aligned;", ";",
         "backward"),
        (FENCE.replace("%r1, %r2, 512", "%r1, %r12, 512"), "product_order_dropped", "wgmma.fence.sync.aligned;", ";",
         "backward"),
        # accumulators of another shape; A in registers that are written
        (FENCE.replace(FIRST, FIRST.replace("n16", "n32").replace("%r10", "%r12")), "product_order_dropped",
         "wgmma.fence.sync.aligned;", ";", "backward"),
        (FENCE.replace(SECOND, WGMMA.format(d="%r12, %r13", a="{%r1, %r5}")), "product_order_dropped",
         "wgmma.fence.sync.aligned;", ";", "backward"),
        # no fence before it on one of the ways
        ("\t@%p2 bra \t$L__BB0_1;\n" + FENCE, "product_order_dropped", "wgmma.fence.sync.aligned;", ";", "backward"),
        # the buffer is read by lanes before they have met; nobody has waited for the copies
        (MEET.replace("\tbar.warp", "\tld.shared.b32 \t%r1, [%r2];\n\tbar.warp"), "barrier_dropped",
         "bar.warp.sync -1;", ";", "forward"),
        (REDUCED.replace("wait_group", "wait_group.read"), "barrier_dropped", "fence.proxy.async.global;", ";",
         "backward"),
        # the barrier's number is used again
        (AT_REST.replace("ret;", "bar.sync \t1, 160;"), "named_barrier_wrong", "bar.sync 0, 256;", "bar.sync 1, 256;",
         "backward"),
        # Q's buffer is asked for later, or for another phase, or released before the products are done
        *((RING.replace(old, new), *rest)
          for old, new in (("%r9, 700", "%r9, 900"), ("[%r20], %r30", "[%r20], %r31"), ("aligned \t0", "aligned \t1"),
                           ("@%p5 bra \t$L__BB0_2", "@%p6 bra \t$L__BB0_2"))
          for rest in (("phase_not_awaited", DO_WAIT, "setp.eq.s32 P1, 0, 0;", "backward"),)),
        (RING.replace("aligned \t0", "aligned \t2"), "product_wait_weakened", "wgmma.wait_group.sync.aligned 1;",
         "wgmma.wait_group.sync.aligned 2;", "backward"),
        (ADDRESS.replace("-16", "-8"), "immediate_off_by_one", "add.s64 %rd1, %rd2, 14;", "add.s64 %rd1, %rd2, 13;",
         "preprocess"),
        # shared memory is written between the two; V's mbarrier is another one; no more bytes are said to come
        (ELECTED.replace("ld.shared.b32 \t%r3, [%r1+231680]", "st.shared.b32 \t[%r1], %r3"), "barrier_dropped",
         "bar.warp.sync -1;", ";", "backward"),
        (TAIL_OF_V.replace("216656", "216664"), "commit_dropped", "cp.async.commit_group;", ";", "backward"),
        (TAIL_OF_DO.replace("216712", "216744"), "wait_weakened", "cp.async.wait_group 0;", "cp.async.wait_group 1;",
         "backward"),
        # another count than 1; another pointer; a number that is in use; a sum that is stored before it is complete
        (TAIL_OF_V.replace("%r5, 1;", "%r5, 2;"), "guard_negated", "@%p1 bra $L__BB0_1;", "@!%p1 bra $L__BB0_1;",
         "backward"),
        (STARTS, "parameter_wrong", "ld.param.b64 %rd1, [k_param_50];", "ld.param.b64 %rd1, [k_param_53];",
         "backward"),
        (MAIN.replace("ret;", "bar.arrive \t1, 160;"), "named_barrier_wrong", "bar.sync 0, 256;", "bar.sync 1, 256;",
         "backward"),
        (ROW.replace("add.f32", "mul.f32"), "guarded_dropped", "@%p1 bra $L__BB0_1;", ";", "preprocess"),
        (END_OF_KEYS, "compare_shifted", "setp.gt.s32 %p1, %r1, %r3;", "setp.lt.s32 %p1, %r1, %r3;", "forward"),
        # lanes read on one of the ways; only some lanes are elected among; an ordinary copy
        *((TWICE.replace(old, new), "barrier_dropped", "bar.warp.sync -1;", ";", "backward")
          for old, new in (("and.b32", "ld.shared.b32"), ("%p1, -1;", "%p1, 15;"), ("cp.async.bulk", "cp.async.cg"))),
        # another register is shuffled, or by some lanes; a load behind that; a store before it; no barrier before
        *((SHUFFLED.replace(old, new), "barrier_dropped", "bar.warp.sync -1;", ";", "forward")
          for old, new in (("%r3, %r1, 0", "%r3, %r9, 0"), ("31, -1", "31, 15"), ("add.s32 \t", "ld.shared.b32 \t"),
                           ("\tld.shared", "\tst.shared.b32 \t[%r2], %r5;\n\tld.shared"), ("bar.sync", "bar.arrive"))),
        # compared with 2; a vote that is no word
        (TRUTH.replace("%r2, 1;", "%r2, 2;"), "immediate_off_by_one", "selp.b32 %r1, 1, 0, %p1;",
         "selp.b32 %r1, 2, 0, %p1;", "forward"),
        (VOTES.replace("ballot", "any"), "sign_changed", "shr.u32 %r4, %r2, %r5;", "shr.s32 %r4, %r2, %r5;",
         "backward"),
        (SCALE.replace(", 1;", ", 0;"), "bound_shifted", "setp.ne.b32 p, %r1, 0;", "setp.ne.b32 p, %r1, -1;",
         "forward"),
        # the product is subtracted too; what a thread stores is no zero; a word beside those of O and dO
        (REMAINDER + "\tsub.s32 \t%r4, %r1, %r7;\n", "instruction_dropped", "mul.lo.s32 %r7, %r5, %r6;", ";",
         "backward"),
        (CLEARED.replace("], 0;", "], %r1;"), "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, 1;",
         "preprocess"),
        (CLEARED.replace("tid.x", "ctaid.x"), "bound_shifted", "setp.ne.b32 %p1, %r1, 0;", "setp.ne.b32 %p1, %r1, 1;",
         "preprocess"),
        (ZEROS.replace("%r17, 0", "%r17, 1"), "immediate_off_by_one", "mov.b32 %r14, 0;", "mov.b32 %r14, 1;",
         "preprocess"),
        # a step that changes something the second time: a word, a mask, a score; what is no step of registers; no truth
        # value; a loop that is entered without a count, or again, or whose counter is read, or begins elsewhere
        *((MASKED.replace(old, new), "compare_flipped", *ONCE_MORE, "forward")
          for old, new in (("and.b32 \t%r4, %r9", "shl.b32 \t%r4, %r9"), ("and.b32 \t%r5", "xor.b32 \t%r9"),
                           ("selp.f32 \t%r6, 0fFF800000, %r6, %p3", "add.f32 \t%r6, %r6, %r8"),
                           ("add.s32 \t%r3", "st.shared.b32 \t[%r8], %r4;\n\tadd.s32 \t%r3"),
                           ("selp.b32 \t%r1, 1, 0", "selp.b32 \t%r1, 2, 0"), ("@%p2 bra", "@!%p2 bra"),
                           ("mov.b32 \t%r3, 0;", "mov.b32 \t%r3, 0;\n$L__BB0_7:"), ("%r6, %r8;", "%r6, %r3;"),
                           ("%r6, %r8;", "%r6, %r8;\n\tbra.uni \t$L__BB0_1;"), ("\t%r3, 0;", "\t%r3, 1;"))),
        # another value, one more, and one where a predicate says so; another register
        *((ZERO_MATRICES.replace(old, new), "transposed", *(one.replace(old, new) for one in (STORED, TRANSPOSED)),
           "backward")
          for old, new in (("%r1, 0;", "%r1, 1;"), ("\tstmatrix", "\tadd.s32 \t%r1, %r1, %r3;\n\tstmatrix"),
                           ("\tstmatrix", "\t@%p1 mov.b32 \t%r1, 1;\n\tstmatrix"), ("%r1}", "%r4}"))),
        # a kernel that counts; another parameter
        (COUNTER + "\tatom.global.add.u32 \t%r4, [%rd2], 1;\n", "store_dropped", "st.global.b32 [%rd1], 0;", ";",
         "preprocess"),
        (COUNTER.replace("17", "18"), "store_dropped", "st.global.b32 [%rd1], 0;", ";", "preprocess"),
    ],
)  # fmt: skip
def test_a_near_miss_is_missed(text, operator, before, after, kind):
    assert status(text, operator, before, after, kind)[0] == "missed"


def test_a_loop_runs_where_that_was_asked():
    changed = ("compare_shifted", "setp.ge.s32 %p2, %r2, %r3;", "setp.gt.s32 %p2, %r2, %r3;", "backward")
    assert status(LOOP, *changed, same_values=True) == ("equivalent", "a loop that runs")
    assert status(LOOP, *changed)[0] == "missed"
    assert status(LOOP.replace("%r1, 1;", "%r1, 0;"), *changed, same_values=True)[0] == "missed"


@pytest.mark.parametrize(
    ("text", "change", "rule", "misses"),
    [
        (UNROLLED, ("compare_shifted", "setp.lt.u32 %p3, %r2, 4;", "setp.le.u32 %p3, %r2, 4;", "forward"),
         "a truth value",
         (("%r2, 4;", "%r2, 1;"), ("mov.b32 %r2, %r1", "mov.b32 %r2, %r9"), ("1, 0, %p1", "4, 0, %p1"),
          ("@%p3", "add.s32 \t%r2, %r2, 3;\n\t@%p3"))),
        (UNROLLED, ("guard_dropped", "@%p3 bra $L__BB0_1;", "bra $L__BB0_1;", "forward"), "a truth value",
         (("%r2, 4;", "%r2, 1;"), ("lt.u32", "gt.u32"), ("mov.b32 %r2, %r1", "mov.b32 %r2, %r9"), ("@%p3", "@!%p3"))),
        (NEXT_TILE, ("guard_dropped", "@%p1 bra $L__BB0_1;", "bra $L__BB0_1;", "forward"),
         "all tiles of an order have rows",
         (("_63", "_61"), ("setp.eq.b64", "setp.ne.b64"), ("atom.global.add", "atom.global.max"),
          ("setp.ge.s32", "ld.global.b32 \t%r1, [%rd3];\n\tsetp.ge.s32"))),
        (DOUBLED, ("compare_shifted", "setp.lt.s32 %p2, %r2, 1;", "setp.le.s32 %p2, %r2, 1;", "backward"),
         "twice a positive number",
         (("%r1, 1;\n\t@", "%r1, 0;\n\t@"), ("shl.b32", "shr.s32"), ("shl.b32 \t%r2, %r1", "shl.b32 \t%r2, %r3"),
          ("\tshl", "$L__BB0_7:\n\tshl"), ("%r2, 1;", "%r2, 2;"))),
        (FALLS_BEHIND, ("compare_shifted", "setp.gt.f32 %p1, %r3, 0f41000000;", "setp.ge.f32 %p1, %r3, 0f41000000;",
                        "forward"),
         "a threshold",
         (("41000000", "00000000"), ("gt.f32", "lt.f32"), ("vote.sync.any", "vote.sync.all"))),
        (OF_TWO_BYTES, ("immediate_off_by_one", "and.b64 %rd4, %rd3, -16;", "and.b64 %rd4, %rd3, -15;", "preprocess"),
         "rounded to 16 bytes",
         (("%rd5, 1", "%rd5, 0"), ("14", "15"), ("%rd2, %rd6, %rd1", "%rd2, %rd6, %rd7"))),
    ],
)  # fmt: skip
def test_a_value_that_is_the_same_wherever_it_is_asked_for(text, change, rule, misses):
    assert status(text, *change, same_values=True) == ("equivalent", rule)
    assert status(text, *change)[0] == "missed"
    for old, new in misses:
        there = text.replace(old, new)
        assert there != text
        before, after = (one.replace(old, new) for one in change[1:3])
        assert status(there, change[0], before, after, change[3], same_values=True)[0] == "missed", (old, new)


def test_a_mask_of_an_address_loses_no_other_bit():
    change = ("immediate_off_by_one", "and.b64 %rd4, %rd3, -16;", "and.b64 %rd4, %rd3, -17;", "preprocess")
    assert status(OF_TWO_BYTES, *change, same_values=True)[0] == "missed"


def test_a_persistent_cta_has_a_first_tile():
    changed = ("guarded_dropped", "@%p1 bra $L__BB0_1;", ";", "forward")
    assert status(FIRST_TILE, *changed, same_values=True) == ("equivalent", "each has a tile")
    assert status(FIRST_TILE, *changed)[0] == "missed"
    assert status(FIRST_TILE.replace("ctaid.x", "nctaid.x"), *changed, same_values=True)[0] == "missed"


def test_arguments_are_of_these_kernels_alone():
    assert all(one.targets == ("blocksparse.wgmma",) for one in WGMMA_ARGUMENTS)
