"""Lanes of a warp are not in step: an arrival by one of them carries what the others did before they last waited for
each other, and no more."""

import pytest
import torch
from ptx_tools import kinds, run

LATE_WRITE, LATE_READ = "race: read of an unordered write", "race: write over an unordered read"
INIT = "setp.eq.b32 %q0, %t, 0; @%q0 mbarrier.init.shared.b64 [s], {count}; bar.sync 0;"
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %q1, [s], 0, 10000000; @!%q1 bra W{n};"
ONE = "and.b32 %r9, %t, 31; setp.eq.b32 %q0, %r9, 0; @%q0 mbarrier.arrive.shared.b64 _, [s];"
ALL = "mbarrier.arrive.shared.b64 _, [s];"
HALVES = """and.b32 %r9, %t, 16; setp.eq.b32 %q0, %r9, 0;
@%q0 mbarrier.arrive.shared.b64 _, [s]; @!%q0 mbarrier.arrive.shared.b64 _, [s];"""
OWN = "and.b32 %r9, %t, 31; shl.b32 %r1, %r9, 4; mov.u32 %r2, s; add.u32 %r1, %r1, %r2;"
SECOND = "setp.gt.u32 %q2, %t, 31; @%q2 bra SECOND;"
COPY = "mul.wide.u32 %d1, %r9, 16; add.s64 %d1, %d1, %p0; cp.async.cg.shared.global [%r1+16], [%d1], 16;"

# what puts the lanes of a warp in step, or does not
IN_STEP = {
    "bar.warp.sync -1;": True,
    "bar.sync 1, 32;": True,
    "shfl.sync.idx.b32 %r8, %r9, 0, 31, -1;": True,
    "vote.sync.any.pred %q3, %q2, -1;": True,
    "fence.proxy.async.shared::cta;": False,
    "membar.cta;": False,
    "": False,
}


def hand_over(writes: str, between: str, arrive: str = ONE, count: int = 1) -> str:
    """Warp 0 writes 16 bytes for each lane and arrives; warp 1 waits, and each lane reads what another lane wrote."""
    return f"""{INIT.format(count=count)} {OWN} {SECOND}
{writes} {between} {arrive} bra END;
SECOND: {WAIT.format(n=0)} xor.b32 %r3, %r1, 256; ld.shared.b32 %r4, [%r3+16]; st.global.b32 [%p0+2048], %r4; END:"""


def found(body: str) -> set[str]:
    tensor = torch.zeros(1024, dtype=torch.int32)
    return set().union(
        *(
            kinds(run(body, tensor, block=64, shared=2048, checks=CHECKS, warp_schedule=s))
            for s in ("in_order", "random")
        )
    )


CHECKS = frozenset({"races", "uninitialised"})


@pytest.mark.parametrize(("between", "ordered"), IN_STEP.items())
@pytest.mark.parametrize("writes", ["st.shared.b32 [%r1+16], 7;", COPY + "cp.async.wait_all;"])
def test_a_lane_that_arrives_for_the_others(writes, between, ordered):
    assert found(hand_over(writes, between)) == (set() if ordered else {LATE_WRITE})


def test_a_write_after_the_lanes_were_in_step():
    """Writes before and after the arrival: the mbarrier hands over the first alone."""
    twice = "st.shared.b32 [%r1+{}], 7; bar.warp.sync -1; st.shared.b32 [%r1+{}], 7;"
    assert found(hand_over(twice.format(16, 528), "")) == set()
    assert found(hand_over(twice.format(528, 16), "")) == {LATE_WRITE}


@pytest.mark.parametrize(("arrive", "count"), [(ALL, 32), (HALVES, 32)])
def test_lanes_that_all_arrive_hand_over_what_each_did(arrive, count):
    assert found(hand_over("st.shared.b32 [%r1+16], 7;", "", arrive, count)) == set()


def test_a_lane_hands_over_what_it_did_itself():
    """Lane 0 writes alone, beside what all lanes write for nobody."""
    alone = "st.shared.b32 [%r1+528], 7; setp.eq.b32 %q3, %r9, 0; @%q3 st.shared.b32 [s+16], 7;"
    body = hand_over(alone, "").replace("xor.b32 %r3, %r1, 256;", "mov.u32 %r3, s;")
    assert found(body) == set()


def test_memory_that_other_lanes_may_still_be_reading():
    """Warp 1 refills what warp 0 has read: the lane that says so does not speak for the others."""
    body = f"""{INIT.format(count=1)} {OWN} {SECOND}
st.shared.b32 [%r1+16], 7; bar.warp.sync -1; ld.shared.b32 %r4, [%r1+16]; {{}} {ONE} bra END;
SECOND: {WAIT.format(n=0)} st.shared.b32 [%r1+16], 8; END:"""
    assert found(body.format("")) == {LATE_READ}
    assert found(body.format("bar.warp.sync -1;")) == set()


def test_lanes_read_a_matrix_together():
    """ldmatrix waits for its lanes, and no lane speaks too early."""
    body = f"""{INIT.format(count=1)} {OWN} {SECOND}
st.shared.v4.b32 [%r1+16], {{%r9, %r9, %r9, %r9}}; bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r1+16]; {ONE} bra END;
SECOND: {WAIT.format(n=0)} st.shared.b32 [%r1+16], 8; END:"""
    assert found(body) == set()
