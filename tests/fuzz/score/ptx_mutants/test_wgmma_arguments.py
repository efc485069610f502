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
FENCE = "\twgmma.commit_group.sync.aligned;\n\tadd.s32 \t%r1, %r2, 512;\n\twgmma.fence.sync.aligned;\n"
ADDRESS = "\tadd.s64 \t%rd1, %rd2, 14;\n\tand.b64 \t%rd3, %rd1, -16;\n"
SCALE = "\tmov.b32 \t%r1, 1;\n\tsetp.ne.b32 \tp, %r1, 0;\n"


def status(text: str, operator: str, before: str, after: str, kind: str, **seen: bool) -> tuple[str, str]:
    """Status of the mutant of the line `before`, and the argument that gives it."""
    (line,) = [x for x in lines(text) if x.text == before]
    bug = PtxMutant("c", kind, operator, line.number, before, after, target="blocksparse.wgmma")
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
        ("rounded to 16 bytes", ADDRESS, "immediate_off_by_one", "add.s64 %rd1, %rd2, 14;", "add.s64 %rd1, %rd2, 13;",
         "preprocess"),
        ("it adds to the accumulators", SCALE, "bound_shifted", "setp.ne.b32 p, %r1, 0;", "setp.ne.b32 p, %r1, -1;",
         "forward"),
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
        (FENCE.replace("add.s32", "mul.f32"), "product_order_dropped", "wgmma.fence.sync.aligned;", ";", "backward"),
        (ADDRESS.replace("-16", "-8"), "immediate_off_by_one", "add.s64 %rd1, %rd2, 14;", "add.s64 %rd1, %rd2, 13;",
         "preprocess"),
        (SCALE.replace(", 1;", ", 0;"), "bound_shifted", "setp.ne.b32 p, %r1, 0;", "setp.ne.b32 p, %r1, -1;",
         "forward"),
    ],
)  # fmt: skip
def test_a_near_miss_is_missed(text, operator, before, after, kind):
    assert status(text, operator, before, after, kind)[0] == "missed"


def test_arguments_are_of_these_kernels_alone():
    assert all(one.targets == ("blocksparse.wgmma",) for one in WGMMA_ARGUMENTS)
