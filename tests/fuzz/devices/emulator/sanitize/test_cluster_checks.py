"""Findings in kernels with clusters: races between CTAs, CTAs that exit too early, waits without an end."""

import re

import pytest
import torch
from ptx_tools import kinds, run

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
NEXT = """mov.u32 %r70, %cluster_ctarank; xor.b32 %r71, %r70, 1; mov.u32 %r72, s;
mapa.shared::cluster.u32 %r73, %r72, %r71; setp.ne.u32 %q0, %t, 0; setp.ne.u32 %q9, %r70, 0;"""
ARRIVE = "barrier.cluster.arrive.aligned;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned;"
WAIT = "barrier.cluster.wait.aligned;"
TRY = "W{n}: mbarrier.try_wait.parity.shared::cta.b64 %q1, [s], {parity}; @!%q1 bra W{n};"
RACE = {"race: two writes", "race: read of an unordered write", "race: write over an unordered read",
        "read of uninitialised memory"}  # fmt: skip
EXITED = "shared memory of a CTA that has exited"
SPACE = "shared memory of another CTA accessed as .shared::cta"
RANK = "address of no CTA of the cluster"
MISUSED = "barrier.cluster misused"
LEFT = "bulk copy in flight when its CTA exits"


def launch(body, schedule="in_order", tensors=(), block=32, **options):
    given = {"grid": 2, "shared": 1024, "cluster": (2,), "block": block} | options
    return run(NEXT + body, torch.zeros(64, dtype=torch.int32), *tensors, warp_schedule=schedule, **given)


def found(body, **options):
    """The kinds that the schedules find, each of them."""
    return [kinds(launch(body, schedule, **options)) for schedule in SCHEDULES]


HAND_OVER = "@!%q0 st.shared.b32 [s], 5; {before} {arrive} {wait} ld.shared::cluster.b32 %r1, [%r73];" + SYNC


def test_the_barrier_orders_what_ctas_have_written():
    assert found(HAND_OVER.format(before="", arrive=ARRIVE, wait=WAIT)) == [set()] * 4


def test_without_the_barrier_it_is_a_race():
    for each in found(HAND_OVER.format(before="", arrive="", wait="")):
        assert each & RACE


def test_a_relaxed_arrival_orders_nothing():
    for each in found(HAND_OVER.format(before="", arrive=RELAXED, wait=WAIT)):
        assert each == {"race: read of an unordered write"}


@pytest.mark.parametrize("fence", ["fence.acq_rel.cluster;", "fence.sc.cluster;", "fence.acq_rel.gpu;"])
def test_a_fence_before_a_relaxed_arrival_orders(fence):
    assert found(HAND_OVER.format(before=fence, arrive=RELAXED, wait=WAIT)) == [set()] * 4


def test_fence_mbarrier_init_orders_mbarriers_only():
    fence = "fence.mbarrier_init.release.cluster;"
    for each in found(HAND_OVER.format(before=fence, arrive=RELAXED, wait=WAIT)):
        assert each == {"race: read of an unordered write"}


def test_a_race_names_the_cta_that_has_the_memory():
    report = launch(HAND_OVER.format(before="", arrive=RELAXED, wait=WAIT))
    found = re.search(r"reads shared memory byte 0 of (CTA .*), which (CTA .*) warp 0 writes", str(report))
    assert found and found[1] == found[2] in ("CTA (0, 0, 0)", "CTA (1, 0, 0)")


def test_two_ctas_that_write_to_a_third():
    body = f"""setp.eq.u32 %q2, %r70, 0; mapa.shared::cluster.u32 %r5, %r72, 0;
@%q2 bra END; st.shared::cluster.b32 [%r5+64], %r70; END: {SYNC}"""
    for schedule in SCHEDULES:
        report = launch(body, schedule, grid=4, cluster=(4,), block=1)
        assert kinds(report) == {"race: two writes"}
        assert "shared memory byte 64 of CTA (0, 0, 0)" in str(report)


# thread 0 initialises an mbarrier for one arrival of the other CTA, which arrives
REMOTE = """@!%q0 mbarrier.init.shared::cta.b64 [s], 1; {before} {arrive} {wait}
@!%q0 mbarrier.arrive.shared::cluster.b64 _, [%r73]; """ + TRY.format(n=0, parity=0)


@pytest.mark.parametrize(
    ("before", "arrive"),
    [("", ARRIVE), ("fence.mbarrier_init.release.cluster;", RELAXED), ("fence.acq_rel.cluster;", RELAXED)],
)
def test_an_mbarrier_that_the_other_cta_knows(before, arrive):
    assert found(REMOTE.format(before=before, arrive=arrive, wait=WAIT)) == [set()] * 4


def test_an_mbarrier_that_was_initialised_without_a_fence():
    for each in found(REMOTE.format(before="", arrive=RELAXED, wait=WAIT)):
        assert each == {"race: read of an unordered write"}
    report = launch(REMOTE.format(before="", arrive=RELAXED, wait=WAIT))
    assert "the mbarrier.init of PTX line" in str(report)


def test_an_arrival_at_an_mbarrier_that_may_not_be_initialised():
    for each in found(REMOTE.format(before="", arrive="", wait="")):
        assert each & (RACE | {"mbarrier misused"})


def test_a_relaxed_arrival_at_an_mbarrier_orders_nothing():
    body = f"""@!%q0 mbarrier.init.shared::cta.b64 [s], 1; {SYNC} @!%q0 st.shared::cluster.b32 [%r73+16], 7; {{fence}}
@!%q0 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r73];
{TRY.format(n=0, parity=0)} ld.shared.b32 %r0, [s+16]; {SYNC}"""
    for each in found(body.format(fence="")):
        assert each & RACE
    assert found(body.format(fence="fence.acq_rel.cluster;")) == [set()] * 4


# ---- CTAs that exit


def test_a_cta_that_does_not_wait_for_those_who_read_its_memory():
    """Found whether the other CTA reads before or after the exit."""
    for each in found(f"@!%q0 st.shared.b32 [s], 5; {SYNC} ld.shared::cluster.b32 %r1, [%r73];"):
        assert each == {EXITED}


def test_an_access_after_the_exit_says_so():
    body = f"@!%q0 st.shared.b32 [s], 5; {SYNC} @!%q9 ret; ld.shared::cluster.b32 %r1, [%r73];"
    report = launch(body, "greedy")
    assert kinds(report) == {EXITED}
    assert "CTA (1, 0, 0) warp 0" in str(report)
    assert "shared memory byte 0 of CTA (0, 0, 0)" in str(report)


@pytest.mark.parametrize("late", ["in_order", "oldest_last"])
def test_the_last_arrival_at_an_mbarrier_of_a_cta_that_has_gone(late):
    """A consumer releases a stage of a producer that does not wait for it: the end of a pipeline without a tail."""
    body = f"""@!%q0 mbarrier.init.shared::cta.b64 [s], 1; {SYNC} @!%q9 bra END;
@!%q0 mbarrier.arrive.shared::cluster.b64 _, [%r73]; END: """
    assert kinds(launch(body, late)) == {EXITED}
    tail = body + "@%q9 bra OUT; " + TRY.format(n=0, parity=0) + "OUT:"
    assert launch(tail, late).ok


def test_another_warp_of_the_cta_may_wait_for_them():
    body = f"""@!%q0 st.shared.b32 [s], 5; {SYNC} ld.shared::cluster.b32 %r1, [%r73];
barrier.cluster.arrive; setp.lt.u32 %q2, %t, 32; @%q2 ret; barrier.cluster.wait;"""
    assert found(body, block=64) == [set()] * 4


COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r73+256], [s+128], 128, [%r73];"
MULTICAST = """cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
[s+256], [%p0], 128, [s], %h0;"""
STORE = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r73+256], 1, [%r73];"
PREPARED = f"""@!%q0 mbarrier.init.shared::cta.b64 [s], 1; mov.b16 %h0, 3; shl.b32 %r1, %t, 2; add.u32 %r2, %r72, %r1;
st.shared.b32 [%r2+128], %t; fence.proxy.async; {SYNC}
@!%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], {{count}};"""


@pytest.mark.parametrize(("copy", "count"), [(COPY, 128), (MULTICAST, 256), (STORE, 4)])
def test_a_copy_that_its_destination_does_not_wait_for(copy, count):
    if copy == MULTICAST:  # from each of the two CTAs into the same place
        copy, count = MULTICAST.replace("cp.async", "@%q9 bra SENT; @!%q0 cp.async", 1) + "SENT:", 128
    else:
        copy = f"@!%q0 {copy}"
    prepared = PREPARED.format(count=count)
    wait = TRY.format(n=0, parity=0) + SYNC
    assert found(prepared + copy + wait) == [set()] * 4
    reports = [launch(prepared + copy, schedule) for schedule in SCHEDULES]
    for report in reports:
        assert kinds(report) and kinds(report) <= {LEFT, EXITED}  # EXITED where it was issued after the exit
    assert LEFT in kinds(reports[0])
    if copy.endswith(STORE):
        assert re.search(r"of CTA \(., 0, 0\) that is in flight when that CTA exits", str(reports[0]))


# every thread writes a word to the other CTA's shared memory, which that CTA copies to global memory
BY_THE_OTHER = f"""shl.b32 %r1, %t, 2; add.u32 %r2, %r73, %r1; add.u32 %r3, %r72, %r1; st.shared.b32 [%r3], 0;
st.shared::cluster.b32 [%r2+128], %t; {{writer}} {SYNC} {{reader}} add.u32 %r5, %r72, 128;
mul.wide.u32 %d0, %r70, 128; add.s64 %d0, %p0, %d0;
@!%q0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r5], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
UNFENCED = "shared memory accessed by a bulk copy without fence.proxy.async"


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        ("", "", {UNFENCED}),
        (".shared::cta", "", {UNFENCED}),  # the writer's own shared memory
        (".global", "", {UNFENCED}),
        (".shared::cluster", "", set()),
        (" ", "", set()),  # all spaces
        ("", ".shared::cta", set()),
        ("", ".shared::cluster", set()),
    ],
)
def test_a_proxy_fence_concerns_the_shared_memory_of_its_space(writer, reader, expected):
    fences = {at: f"fence.proxy.async{space.strip()};" if space else ""
              for at, space in (("writer", writer), ("reader", reader))}  # fmt: skip
    assert found(BY_THE_OTHER.format(**fences)) == [expected] * 4


def test_a_copy_whose_source_exits():
    """The destination waits for it, the CTA that sends it does not."""
    body = PREPARED.format(count=128) + f"@!%q9 bra SEND; {TRY.format(n=0, parity=0)} ret; SEND: @!%q0 {COPY}"
    for schedule in SCHEDULES:
        assert kinds(launch(body, schedule)) <= {LEFT}
    assert kinds(launch(body, "greedy")) == {LEFT}


def test_a_multicast_to_a_cta_that_has_exited():
    body = f"""@!%q0 mbarrier.init.shared::cta.b64 [s], 1; mov.b16 %h0, 3; fence.proxy.async; {SYNC} @%q9 ret;
mov.u32 %r5, 0; LOOP: add.u32 %r5, %r5, 1; setp.lt.u32 %q3, %r5, 9000; @%q3 bra LOOP;
@!%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 128; @!%q0 {MULTICAST} {TRY.format(n=0, parity=0)}"""
    report = launch(body)
    assert kinds(report) == {EXITED}
    assert "one of which has exited: 128 bytes at shared memory byte 256 of CTA (1, 0, 0)" in str(report)


def test_a_multicast_over_memory_that_another_cta_still_reads():
    body = PREPARED.format(count=128) + f"""ld.shared.b32 %r6, [%r2+256]; {{between}} @%q9 bra SENT; @!%q0 {MULTICAST}
SENT: {TRY.format(n=0, parity=0)} {SYNC}"""  # fmt: skip
    body = body.replace("st.shared.b32 [%r2+128]", "st.shared.b32 [%r2+256]", 1)
    each = found(body.format(between=""))
    assert all(kinds & RACE for kinds in each) and {"race: write over an unordered read"} in each
    assert found(body.format(between=SYNC)) == [set()] * 4


def test_words_sent_over_memory_that_is_still_read():
    body = (
        PREPARED.format(count=4)
        + f"@!%q0 st.shared.b32 [s+256], 3; {{between}} @!%q0 {STORE} {TRY.format(n=0, parity=0)}"
    )
    for each in found(body.format(between="")):
        assert each & {"race: two writes"}
    assert found(body.format(between=SYNC)) == [set()] * 4


def test_words_are_there_only_after_the_wait():
    body = PREPARED.format(count=4) + f"@!%q0 {STORE} {{wait}} ld.shared.b32 %r3, [s+256]; {TRY.format(n=1, parity=0)}"
    for each in found(body.format(wait="")):
        assert each & RACE
    assert found(body.format(wait=TRY.format(n=0, parity=0))) == [set()] * 4


# ---- addresses and operands


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("ld.shared.b32 %r1, [%r73];", SPACE),
        ("st.shared::cta.b32 [%r73], 1;", SPACE),
        ("mapa.shared::cluster.u32 %r3, %r72, 2; ld.shared::cluster.b32 %r1, [%r3];", RANK),
        ("ld.shared::cluster.b32 %r1, [%r73+1024];", "out of bounds of shared memory"),
        ("ld.shared::cluster.b32 %r1, [%r73+2];", "misaligned access"),
        (COPY.replace("[%r73];", "[s];"), "mbarrier of another CTA than the destination"),
        (STORE.replace("[%r73];", "[s];"), "mbarrier of another CTA than the destination"),
        (MULTICAST.replace("%h0", "4"), RANK),
        (ARRIVE + ARRIVE + WAIT, MISUSED),
        (WAIT, MISUSED),
    ],
)
def test_operands_that_cannot_be(instruction, kind):
    body = f"@!%q0 mbarrier.init.shared::cta.b64 [s], 1; mov.b16 %h0, 3; fence.proxy.async; {SYNC} {instruction} {SYNC}"
    assert kind in kinds(launch(body, block=1))


# ---- deadlocks


def test_a_cta_that_never_arrives_at_the_barrier():
    """CTA 1 waits for what CTA 0 would write only behind the barrier."""
    body = f"""@!%q9 bra ARRIVE; SPIN: ld.relaxed.gpu.global.b32 %r1, [%p0]; setp.eq.u32 %q1, %r1, 0; @%q1 bra SPIN;
ARRIVE: {SYNC}"""
    for schedule in SCHEDULES:
        report = launch(body, schedule, block=64)
        assert report.status == "deadlock"
        assert "at barrier.cluster, where warps 0, 1 of CTA (1, 0, 0) have not arrived" in str(report.deadlock)
        assert "argument 0[0] is 0" in report.deadlock.cause


def test_an_mbarrier_that_another_cta_does_not_arrive_at():
    init = f"@!%q0 mbarrier.init.shared::cta.b64 [s], 2; {SYNC}"
    arrive = "@!%q0 mbarrier.arrive.shared::cluster.b64 _, [%r73]; @!%q0 mbarrier.arrive.shared::cta.b64 %d1, [s];"
    late = (
        f"@%q9 bra WAIT; @!%q0 mbarrier.arrive.shared::cluster.b64 _, [%r73]; WAIT: {TRY.format(n=1, parity=1)} {SYNC}"
    )
    body = init + arrive + TRY.format(n=0, parity=0) + "@!%q0 mbarrier.arrive.shared::cta.b64 %d1, [s];" + late
    for schedule in SCHEDULES:
        report = launch(body, schedule)
        assert report.status == "deadlock"
        text = str(report.deadlock)
        assert (
            "mbarrier with 1 of 2 arrivals, phase 1; CTA (0, 0, 0) has arrived in this phase, CTA (1, 0, 0) has "
            "arrived in earlier ones"
        ) in text
        assert "warp 0 of CTA (0, 0, 0) has not arrived" in text


def test_ctas_that_have_not_started_are_run_as_clusters_after_a_deadlock():
    """The first cluster waits for a value that the third would write."""
    body = f"""mov.u32 %r0, %clusterid.x; setp.ne.u32 %q2, %r0, 0; {SYNC} @%q2 bra LATER;
SPIN: ld.acquire.gpu.global.b32 %r1, [%p0]; setp.ne.u32 %q1, %r1, 1; @%q1 bra SPIN; bra END;
LATER: setp.ne.u32 %q3, %r0, 2; @!%q3 st.release.gpu.global.b32 [%p0], 1; bar.sync 0; END:"""
    report = launch(body, grid=6, resident_ctas=2)
    assert report.status == "deadlock"
    assert "CTA (4, 0, 0) would write it, but it cannot start while 2 CTAs are resident" in str(report.deadlock)
    assert launch(body, grid=6, resident_ctas=4).ok
