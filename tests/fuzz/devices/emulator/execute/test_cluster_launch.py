"""clusterlaunchcontrol: persistent kernels that take clusters out of the grid before they start, and its misuse."""

import re

import pytest
import torch
from ptx_tools import Emulator, kernel, kinds, run

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]
QUERY = "clusterlaunchcontrol.query_cancel"
INIT = """setp.eq.u32 %q0, %t, 0; mov.u32 %r10, 0; mov.u32 %r1, %c; mov.u32 %r20, %ctaid.y; mov.u32 %r21, %ctaid.z;
@%q0 mbarrier.init.shared::cta.b64 [s+16], 1; fence.proxy.async.shared::cta; bar.sync 0;"""
EXPECT = "@%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+16], 16;"
TRY = "@%q0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [s], [s+16];"
# each thread adds one to the words of the CTA that its turn stands for: nothing else may write them
WORK = """mov.u32 %r5, %nctaid.y; mad.lo.u32 %r2, %r21, %r5, %r20; mad.lo.u32 %r2, %r2, %n, %r1;
mad.lo.u32 %r2, %r2, 32, %t; mul.wide.u32 %d1, %r2, 4; add.s64 %d1, %p0, %d1;
ld.global.b32 %r3, [%d1]; add.u32 %r3, %r3, 1; st.global.b32 [%d1], %r3;"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %q1, [s+16], %r10; @!%q1 bra W; xor.b32 %r10, %r10, 1;"
READ = "ld.shared.b128 %w0, [s];"
ANSWER = f"""{QUERY}.is_canceled.pred.b128 %q2, %w0; {QUERY}.get_first_ctaid.v4.b32.b128 {{%r1, %r20, %r21, _}}, %w0;
bar.sync 0; @%q2 bra NEXT;"""
PIECES = (".reg .b128 %w<2>;", INIT, "NEXT:", EXPECT, TRY, WORK, WAIT, READ, ANSWER)
PERSISTENT = "\n".join(PIECES)
TAKEN = "mul.wide.u32 %d2, %c, 4; add.s64 %d2, %p1, %d2; @%q0 red.global.add.u32 [%d2], 1;"


def changed(*changes):
    text = PERSISTENT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dispatch", ["in_order", "permuted"])
def test_every_cta_of_the_grid_is_done_once(schedule, dispatch):
    """By whoever: the CTAs that start do those that they cancel, which then never run."""
    done, started = torch.zeros(24 * 32, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    text = kernel(changed(("NEXT:", TAKEN + "NEXT:")), 2, 32)
    emulator = Emulator(warp_schedule=schedule, dispatch=dispatch, resident_ctas=3)
    report = emulator.load_ptx(text).launch(None, (4, 3, 2), (32,), [done, started])
    assert report.ok and not report.checked_on_hardware
    assert (done == 1).all()
    assert started.sum() == 3 if schedule != "random" else 3 <= started.sum() <= 24


def test_a_request_may_fail_though_clusters_are_left():
    """With the random schedule; what was not cancelled starts as usual."""
    starts = set()
    for seed in range(6):
        done, started = torch.zeros(16 * 32, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
        text = kernel(changed(("NEXT:", TAKEN + "NEXT:")), 2, 32)
        emulator = Emulator(warp_schedule="random", seed=seed, resident_ctas=2)
        assert emulator.load_ptx(text).launch(None, (16,), (32,), [done, started]).ok and (done == 1).all()
        starts.add(int(started.sum()))
    assert max(starts) > 2


def test_single_coordinates():
    one = "".join(
        f"{QUERY}.get_first_ctaid::{axis}.b32.b128 %r{r}, %w0;" for axis, r in zip("xyz", (1, 20, 21), strict=True)
    )
    text = changed((f"{QUERY}.get_first_ctaid.v4.b32.b128 {{%r1, %r20, %r21, _}}, %w0;", one),
                   (READ, "ld.shared.v2.b64 {%d5, %d6}, [s]; mov.b128 %w1, {%d5, %d6};"
                           "mov.b128 %w0, %w1;"))  # fmt: skip
    done = torch.zeros(24 * 32, dtype=torch.int32)
    report = Emulator(resident_ctas=2).load_ptx(kernel(text, 1, 32)).launch(None, (2, 4, 3), (32,), [done])
    assert report.ok and (done == 1).all()


# clusters of two: rank 0 asks, and each CTA gets the response
MANY = f""".reg .b128 %w<2>; {INIT} mov.u32 %r30, %cluster_ctarank; setp.eq.u32 %q3, %r30, 0; and.pred %q3, %q3, %q0;
barrier.cluster.arrive.aligned;
NEXT: barrier.cluster.wait.aligned; {EXPECT}
@%q3 {TRY.removeprefix("@%q0 ").replace(".b128", ".multicast::cluster::all.b128")}
{WORK} {WAIT} {READ} {QUERY}.is_canceled.pred.b128 %q2, %w0;
{QUERY}.get_first_ctaid::x.b32.b128 %r1, %w0; add.u32 %r1, %r1, %r30;
barrier.cluster.arrive.aligned; @%q2 bra NEXT; barrier.cluster.wait.aligned;"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_clusters_of_two(schedule):
    done = torch.zeros(12 * 32, dtype=torch.int32)
    report = run(MANY, done, grid=12, cluster=(2,), shared=32, warp_schedule=schedule, resident_ctas=4)
    assert report.ok, str(report)
    assert (done == 1).all()


def test_a_persistent_kernel_that_cute_dsl_compiles(tmp_path):
    pytest.importorskip("cutlass")
    from clc_persistent import Persistent
    from cutlass import Int32, cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    from kernels.blocksparse.compile.build import _compiling_for as compiling_for

    pointer = make_ptr(Int32, 0, cute.AddressSpace.gmem, assumed_align=16)
    with compiling_for("sm_100a"):
        options = f"--keep-ptx --dump-dir={tmp_path}"
        compiled = cute.compile(Persistent(16), pointer, make_fake_stream(), options=options)
    for schedule in SCHEDULES:
        words = torch.zeros(16, dtype=torch.int32)
        report = Emulator(warp_schedule=schedule, resident_ctas=3).load(compiled)(words)
        assert report.ok and (words == 1).all() and not report.checked_on_hardware


# ---- what goes wrong


def test_the_response_read_before_its_mbarrier_completes():
    for schedule in SCHEDULES:
        report = run(changed((WAIT, "")), torch.zeros(8 * 32, dtype=torch.int32), grid=8, shared=32,
                     warp_schedule=schedule, resident_ctas=2)  # fmt: skip
        assert kinds(report) & {"race: read of an unordered write", "read of uninitialised memory"}, str(report)
    assert "which the clusterlaunchcontrol.try_cancel of PTX line" in str(report)


def test_the_next_request_before_all_have_read_the_response():
    late = ANSWER.replace("bar.sync 0; ", "")
    for schedule in SCHEDULES:
        report = run(changed((ANSWER, late)), torch.zeros(8 * 64, dtype=torch.int32), grid=8, block=64, shared=32,
                     warp_schedule=schedule, resident_ctas=2)  # fmt: skip
        assert "race: write over an unordered read" in kinds(report), str(report)


def test_a_buffer_that_was_written_without_a_proxy_fence():
    report = run(changed((EXPECT, f"@%q0 st.shared.b64 [s], 0; {EXPECT}")), torch.zeros(8 * 32, dtype=torch.int32),
                 grid=8, shared=32)  # fmt: skip
    assert kinds(report) == {"shared memory accessed by a bulk copy without fence.proxy.async"}
    assert "asks for a response into shared memory byte 0, which CTA (0, 0, 0) warp 0 writes" in str(report)


def test_a_request_after_one_that_failed():
    """PTX: undefined. Seen by a loop that asks once more than it has to."""
    again = changed((ANSWER, ANSWER + f"{EXPECT} {TRY} {WAIT.replace('W', 'V')}"))
    for schedule in SCHEDULES:
        report = run(again, torch.zeros(8 * 32, dtype=torch.int32), grid=8, shared=32, warp_schedule=schedule)
        assert kinds(report) == {"try_cancel after a failed one"}, str(report)
    assert "after its CTA has seen such a request fail" in str(report)


def test_two_requests_in_flight_are_no_misuse():
    """The second is issued before anybody sees that the first has failed."""
    second = TRY.replace("[s], [s+16]", "[s+32], [s+48]")
    wait = WAIT.replace("W", "V").replace("s+16", "s+48").replace("%r10;", "0;", 1)
    text = f""".reg .b128 %w<2>; {INIT} @%q0 mbarrier.init.shared::cta.b64 [s+48], 1; bar.sync 0; {EXPECT} {TRY}
{EXPECT.replace("s+16", "s+48")} {second} {WAIT} {wait}"""
    assert run(text, torch.zeros(32, dtype=torch.int32), shared=64).ok


def test_a_response_that_nobody_expects():
    """No expect_tx: the phase completes by the arrival alone, and the bytes of the response belong to no phase."""
    less = changed((EXPECT, "@%q0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+16], 32;"))
    report = run(less, torch.zeros(8 * 32, dtype=torch.int32), grid=8, shared=32, resident_ctas=2)
    assert report.status == "deadlock"
    assert "mbarrier with 1 of 1 arrivals and 16 bytes to come" in str(report.deadlock)
    assert re.search(r"0 have finished, \d have not started, 2 were cancelled", str(report.deadlock))


def test_a_response_for_a_cta_that_has_exited():
    """PTX: undefined for .multicast::cluster::all."""
    ask = TRY.removeprefix("@%q0 ").replace(".b128", ".multicast::cluster::all.b128")
    body = f"""{INIT} mov.u32 %r30, %cluster_ctarank; setp.eq.u32 %q3, %r30, 1; @%q3 ret; {EXPECT} nanosleep.u32 100;
@%q0 {ask} {WAIT}"""
    report = run(body, torch.zeros(1), grid=4, cluster=(2,), shared=32, warp_schedule="oldest_last", resident_ctas=2)
    assert "shared memory of a CTA that has exited" in kinds(report)
    assert "one of which has exited: 16 bytes at shared memory byte 0 of CTA (1, 0, 0)" in str(report)


def test_a_response_for_another_cta():
    """Both addresses have to be in the CTA's own shared memory."""
    body = f"""{INIT} mov.u32 %r30, %cluster_ctarank; xor.b32 %r30, %r30, 1; mov.u32 %r31, s; barrier.cluster.arrive;
barrier.cluster.wait; mapa.shared::cluster.u32 %r32, %r31, %r30; {TRY.replace("[s], [s+16]", "[%r32], [%r32+16]")}
barrier.cluster.arrive; barrier.cluster.wait;"""
    report = run(body, torch.zeros(1), grid=4, cluster=(2,), shared=32)
    assert kinds(report) == {"shared memory of another CTA accessed as .shared::cta"}


def test_a_response_in_flight_when_its_cta_exits():
    text = f".reg .b128 %w<2>; {INIT} {EXPECT} {TRY}"
    assert kinds(run(text, torch.zeros(32, dtype=torch.int32), grid=4, shared=32)) == {
        "bulk copy in flight when its CTA exits"
    }
