"""The argument for a fence.mbarrier_init of a CTA that shares its mbarriers with no other: the text that its proof is
read off, and near misses."""

import pytest

from fuzz.score.ptx_mutants.equivalence import judged
from fuzz.score.ptx_mutants.operators import lines
from fuzz.score.ptx_mutants.results import PtxMutant, Result

FENCE = "fence.mbarrier_init.release.cluster;"
RULE = ("equivalent", "seen at the CTA's barrier")
# one thread initialises mbarriers; one loads into shared memory, and others wait for it
ALONE = """
.visible .entry k(
	.param .u64 k_param_0
)
.reqntid 384, 1, 1
{
	mov.u32 	%r2, %tid.x;
	setp.ne.b32 	%p1, %r2, 0;
	@%p1 bra 	$L__BB0_2;
	mov.b32 	%r3, 1;
	mbarrier.init.shared.b64 	[%r1+600], %r3;
	mbarrier.init.shared.b64 	[%r1+608], %r3;
	fence.mbarrier_init.release.cluster;
$L__BB0_2:
	bar.sync 	0;
	setp.gt.s32 	%p2, %r2, 31;
	@%p2 bra 	$L__BB0_3;
	mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r1+600], %r14;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%rd3], 512, [%r13];
	bra.uni 	$L__BB0_4;
$L__BB0_3:
	mbarrier.try_wait.parity.shared.b64 P1, [%r1+600], %r21, 10000000;
	bar.sync 	0;
$L__BB0_4:
	ret;
}
"""


def status(text: str, target: str = "blocksparse.wgmma", kind: str = "forward", **seen: bool) -> tuple[str, str]:
    """Status and rule of a result that is missed, of the mutant that has no fence."""
    line = next(one.number for one in lines(text) if one.text == FENCE)
    bug = PtxMutant("fp16_d64_intervals_atomic_wgmma", kind, "barrier_dropped", line, FENCE, ";", target=target)
    found = judged(Result(bug.id, bug, "missed", looked=True, **({"same_bits": True} | seen)), lambda bug: text)
    return found.status, found.rule


def test_the_barrier_of_a_cta_alone_orders_what_the_fence_does():
    assert status(ALONE) == status(ALONE, kind="backward") == RULE
    assert status(ALONE, same_bits=False)[0] == status(ALONE, target="dynamic_mask")[0] == "missed"
    # a thread may initialise one behind the fence, and a comment is no cluster
    later = ALONE.replace("$L__BB0_2:\n", "\tmbarrier.init.shared.b64 \t[%r1+616], %r3;\n$L__BB0_2:\n")
    assert status(later) == status(ALONE.replace("%tid.x;", "%tid.x; // %cluster_ctarank")) == RULE
    # threads come to the barrier again
    assert status(ALONE.replace("bra.uni \t$L__BB0_4", "bra.uni \t$L__BB0_2")) == RULE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # CTAs in a cluster, by what the kernel says, asks, or does
        (".reqntid 384, 1, 1", ".reqntid 384, 1, 1\n.reqnctapercluster 2, 1, 1"),
        (".reqntid 384, 1, 1", ".reqntid 384, 1, 1\n.explicitcluster"),
        ("%tid.x", "%cluster_ctarank"),
        ("%tid.x", "%nclusterid.x"),
        ("\tbar.sync \t0;\n\tsetp",
         "\tbar.sync \t0;\n\tbarrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;\n\tsetp"),
        ("\tmbarrier.arrive", "\tmapa.shared::cluster.u32 \t%r13, %r1, 1;\n\tmbarrier.arrive"),
        ("complete_tx::bytes [%r12], [%rd3], 512, [%r13]",
         "complete_tx::bytes.multicast::cluster [%r12], [%rd3], 512, [%r13], %rs1"),
        # no barrier, one of some threads, or one that some threads pass by
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n"),
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n\tbar.sync \t0, 256;\n"),
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n\tbar.sync \t1;\n"),
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n\t@%p3 bra \t$L__BB0_4;\n\tbar.sync \t0;\n"),
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n\t@%p3 bra \t$L__BB0_3;\n\tbar.sync \t0;\n"),
        ("$L__BB0_2:\n\tbar.sync \t0;\n", "$L__BB0_2:\n\t@%p3 bar.sync \t0;\n"),
        # something uses an mbarrier before it, or one is initialised behind it
        ("$L__BB0_2:\n", "$L__BB0_2:\n\tmbarrier.arrive.shared.b64 %rd5, [%r1+608];\n"),
        ("$L__BB0_2:\n",
         "$L__BB0_2:\n\tcp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r12], [%rd3], 16, [%r13];\n"),
        ("$L__BB0_3:\n", "$L__BB0_3:\n\tmbarrier.init.shared.b64 \t[%r1+616], %r3;\n"),
        # threads have met once before
        ("\tmov.b32 \t%r3, 1;", "\tbar.sync \t0;\n\tmov.b32 \t%r3, 1;"),
    ],
)  # fmt: skip
def test_mbarriers_that_others_may_use_too_early_are_missed(old, new):
    there = ALONE.replace(old, new)
    assert there != ALONE and status(there)[0] == "missed"


# the same of CTAs in clusters, whose threads meet at the barrier of the cluster
MEET = "\tbarrier.cluster.arrive;\n\tbarrier.cluster.wait;\n"
CLUSTER = ALONE.replace("\tbar.sync \t0;\n\tsetp", f"{MEET}\tsetp").replace(
    "\tbar.sync \t0;\n$L__BB0_4", "\tmapa.shared::cluster.u32 \t%r13, %r1, 1;\n$L__BB0_4"
)


def test_the_barrier_of_a_cluster_orders_what_the_fence_does():
    assert status(CLUSTER) == RULE
    for written in ("arrive.aligned", "arrive.release", "arrive.release.aligned"):
        assert status(CLUSTER.replace("cluster.arrive", f"cluster.{written}")) == RULE
    assert status(CLUSTER, same_bits=False)[0] == "missed"


@pytest.mark.parametrize(
    "instead",
    [
        "\tbarrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;\n",
        "\tbarrier.cluster.arrive;\n",
        "\tbar.sync \t0;\n",
        "\tbarrier.cluster.arrive;\n\tmbarrier.arrive.shared.b64 %rd5, [%r1+608];\n\tbarrier.cluster.wait;\n",
        "\tmbarrier.arrive.shared.b64 %rd5, [%r1+608];\n" + MEET,
        "\t@%p3 bra \t$L__BB0_4;\n" + MEET,
    ],
)
def test_arrivals_that_are_relaxed_need_the_fence(instead):
    there = CLUSTER.replace(MEET, instead)
    assert there != CLUSTER and status(there)[0] == "missed"
