"""Each thing that the emulator looks for is found where it is, and not in the right version of the same kernel."""

import pytest
import torch
from ptx_tools import EmulationError, Emulator, kernel, kinds, own_word, run

from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.state.global_memory import reserve

STORE_T = own_word() + "st.global.b32 [%d0], %t;"
SHARED_WORD = "shl.b32 %r0, %t, 2; mov.b32 %r1, s; add.s32 %r0, %r0, %r1;"


def words(n, fill=0):
    return torch.full((n,), fill, dtype=torch.int32)


def test_a_right_kernel_has_no_findings():
    out = words(64)
    report = run(STORE_T, out, block=64)
    assert report.ok and out.tolist() == list(range(64))


def test_out_of_bounds_names_the_tensor_and_touches_nothing():
    out = words(40)
    report = run(STORE_T, out[:32], block=64)
    (found,) = report.findings
    assert found.kind == "out of bounds" and "argument 0, 0 bytes past its end" in found.detail
    assert (found.warp, found.lane, found.line) == (1, 0, found.line) and "st.global" in found.instruction
    assert out.tolist() == [*range(32), *[0] * 8]


def test_far_out_of_bounds_and_null_are_findings_not_crashes():
    far = "mov.b64 %d1, 0x7fffffff000; add.s64 %d0, %p0, %d1; ld.global.b32 %r0, [%d0];"
    assert kinds(run(far, words(4))) == {"address of no tensor"}
    assert kinds(run("mov.b64 %d0, 0; ld.global.b32 %r0, [%d0];", words(4))) == {"address of no tensor"}


def test_neighbouring_tensors_do_not_stand_in_for_each_other():
    both = words(64)
    report = run(own_word() + "ld.global.b32 %r0, [%d0]; ld.global.b32 %r0, [%d0+128];", both[:32], both[32:])
    assert kinds(report) == {"out of bounds"}


def test_misaligned_access():
    assert "misaligned access" in kinds(run("ld.global.b32 %r0, [%p0+2];", words(4)))
    assert "misaligned access" in kinds(run("ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%p0+8];", words(16)))


def test_shared_memory_has_bounds():
    assert kinds(run("st.shared.b32 [s+64], %t;", words(1), shared=64, block=1)) == {"out of bounds of shared memory"}
    assert run("st.shared.b32 [s+60], %t;", words(1), shared=64, block=1).ok


def test_uninitialised_shared_memory():
    read = SHARED_WORD + "ld.shared.b32 %r2, [%r0];"
    assert kinds(run(read, words(1), shared=128)) == {"read of uninitialised memory"}
    assert run(SHARED_WORD + "st.shared.b32 [%r0], %t;" + "ld.shared.b32 %r2, [%r0];", words(1), shared=128).ok
    assert run(read, words(1), shared=128, checks=frozenset()).ok


ZERO_THEN_READ = SHARED_WORD + (
    "st.shared.b32 [%r0], %t; {barrier} xor.b32 %r3, %r0, 128; ld.shared.b32 %r2, [%r3];"
    + own_word()
    + "st.global.b32 [%d0], %r2;"
)


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_a_missing_barrier_is_a_race(schedule):
    out = words(64)
    report = run(ZERO_THEN_READ.format(barrier=""), out, block=64, shared=256, warp_schedule=schedule)
    assert kinds(report) & {"race: read of an unordered write", "read of uninitialised memory"}
    right = run(ZERO_THEN_READ.format(barrier="bar.sync 0;"), out, block=64, shared=256, warp_schedule=schedule)
    assert right.ok and out.tolist() == [*range(32, 64), *range(32)]


def test_reusing_shared_memory_without_a_barrier_is_a_race():
    body = ZERO_THEN_READ.format(barrier="bar.sync 0;") + "{barrier} st.shared.b32 [%r0], 7;"
    wrong = run(body.replace("{barrier}", ""), words(64), block=64, shared=256)
    assert kinds(wrong) & {"race: write over an unordered read", "race: read of an unordered write"}
    assert run(body.replace("{barrier}", "bar.sync 0;"), words(64), block=64, shared=256).ok


def test_named_barriers_order_only_those_who_meet():
    halves = "setp.lt.s32 %q0, %t, 64; @!%q0 bra $other; bar.sync 1, 64; bra.uni $on; $other: bar.sync 2, 64; $on:"
    body = SHARED_WORD + "st.shared.b32 [%r0], %t;" + halves + "xor.b32 %r3, %r0, {mask}; ld.shared.b32 %r2, [%r3];"
    assert run(body.format(mask=128), words(1), block=128, shared=512).ok
    assert kinds(run(body.format(mask=256), words(1), block=128, shared=512)) & {
        "race: read of an unordered write",
        "read of uninitialised memory",
    }


def test_two_ctas_writing_one_word_is_a_race():
    assert kinds(run("st.global.b32 [%p0], %c;", words(1), grid=2, block=1)) == {"race: two writes"}
    assert run("red.global.add.u32 [%p0], 1;", words(1), grid=2, block=1).ok


HANDOVER = """
setp.ne.s32 %q0, %c, 0;
@%q0 bra $second;
st.global.b32 [%p0], 42;
{release}
bra.uni $end;
$second:
{acquire} %r0, [%p0+4];
setp.eq.s32 %q1, %r0, 0;
@%q1 bra $second;
{fence}
ld.global.b32 %r1, [%p0];
st.global.b32 [%p0+8], %r1;
$end:
"""
RELEASE = "mov.b32 %r9, 1; st.release.gpu.global.b32 [%p0+4], %r9;"
RELAXED = "mov.b32 %r9, 1; st.relaxed.gpu.global.b32 [%p0+4], %r9;"


@pytest.mark.parametrize(
    "release,acquire,fence,right",
    [
        (RELEASE, "ld.acquire.gpu.global.b32", "", True),
        ("fence.acq_rel.gpu;" + RELAXED, "ld.relaxed.gpu.global.b32", "fence.acq_rel.gpu;", True),
        ("mov.b32 %r9, 1; red.release.gpu.global.add.u32 [%p0+4], %r9;", "ld.acquire.gpu.global.b32", "", True),
        (RELAXED, "ld.acquire.gpu.global.b32", "", False),
        (RELEASE, "ld.relaxed.gpu.global.b32", "", False),
    ],
)
@pytest.mark.parametrize("resident_ctas,dispatch", [(2, "in_order"), (2, "reversed"), (1, "in_order")])
def test_a_handover_needs_release_and_acquire(release, acquire, fence, right, resident_ctas, dispatch):
    memory = words(4)
    body = HANDOVER.format(release=release, acquire=acquire, fence=fence)
    report = run(body, memory, grid=2, block=1, resident_ctas=resident_ctas, dispatch=dispatch)
    assert report.status == "finished" and memory[2] == 42
    assert kinds(report) == (set() if right else {"race: read of an unordered write"})


def test_a_release_by_one_thread_needs_the_barrier_before_it():
    body = """
setp.ne.s32 %q0, %c, 0;
@%q0 bra $second;
mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0;
st.global.b32 [%d0], %t;
{barrier}
setp.ne.s32 %q1, %t, 0;
@%q1 bra $end;
mov.b32 %r9, 1;
red.release.gpu.global.add.u32 [%p1], %r9;
bra.uni $end;
$second:
setp.ne.s32 %q1, %t, 0;
@%q1 bra $wait;
$spin:
ld.acquire.gpu.global.b32 %r0, [%p1];
setp.eq.s32 %q2, %r0, 0;
@%q2 bra $spin;
$wait:
bar.sync 0;
mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0;
ld.global.b32 %r1, [%d0];
$end:
"""
    assert run(body.format(barrier="bar.sync 0;"), words(64), words(1), grid=2, block=64).ok
    found = kinds(run(body.format(barrier=""), words(64), words(1), grid=2, block=64))
    assert found == {"race: read of an unordered write"}


def test_a_spin_that_nobody_ends_is_a_deadlock_with_its_graph():
    body = "$spin: ld.acquire.gpu.global.b32 %r0, [%p0]; setp.eq.s32 %q0, %r0, 0; @%q0 bra $spin;"
    report = run(body, words(4), grid=3, block=32, resident_ctas=2)
    assert report.status == "deadlock" and report.deadlock is not None
    assert (report.deadlock.resident, report.deadlock.not_started, report.deadlock.finished) == (2, 1, 0)
    assert len(report.deadlock.waiting) == 2
    assert report.deadlock.waiting[0].what == "for argument 0[0] = 0 to change"
    assert str(report.deadlock).startswith(
        "deadlock: argument 0[0] is 0; CTAs (0, 0, 0) and (1, 0, 0) wait for another value; "
        "none of the 1 CTAs that have not started would write it before waiting itself\n"
        "  2 CTAs are resident (at most 2 at once) and none can go on; 0 have finished, 1 have not started\n"
    )
    with pytest.raises(EmulationError, match="deadlock"):
        Emulator().load_ptx(kernel(body)).launch(None, (1,), (32,), [words(4)])


ORDERED = """
$spin:
ld.acquire.gpu.global.b32 %r0, [%p0];
{turn}
setp.ne.s32 %q0, %r0, %r1;
@%q0 bra $spin;
mul.wide.u32 %d0, %c, 4; add.s64 %d0, %p1, %d0;
st.global.b32 [%d0], %r0;
mov.b32 %r2, 1;
red.release.gpu.global.add.u32 [%p0], %r2;
"""


def test_a_wrong_order_deadlocks_only_when_not_all_ctas_are_resident():
    backwards = ORDERED.format(turn="sub.s32 %r1, %n, %c; sub.s32 %r1, %r1, 1;")
    assert run(backwards, words(1), words(8), grid=8, block=1, resident_ctas=8).ok
    stuck = run(backwards, words(1), words(8), grid=8, block=1, resident_ctas=4)
    assert stuck.status == "deadlock"
    assert {w.writer for w in stuck.deadlock.waiting} == {(7, 0, 0)}
    assert stuck.deadlock.cause == (
        "argument 0[0] is 0; CTA (0, 0, 0) waits for 7, CTA (1, 0, 0) for 6, CTA (2, 0, 0) for 5, "
        "CTA (3, 0, 0) for 4; CTA (7, 0, 0) would write it, but it cannot start while 4 CTAs are resident"
    )
    assert {(w.location, w.value, w.wanted) for w in stuck.deadlock.waiting} == {
        ("argument 0[0]", 0, wanted) for wanted in (4, 5, 6, 7)
    }
    assert run(backwards, words(1), words(8), grid=8, block=1, resident_ctas=1, dispatch="reversed").ok
    forwards = ORDERED.format(turn="mov.b32 %r1, %c;")
    for schedule in ("in_order", "random", "oldest_last", "greedy"):
        assert run(forwards, words(1), words(8), grid=8, block=1, resident_ctas=2, warp_schedule=schedule).ok


def test_a_wait_with_nanosleep_in_it_is_a_spin_too():
    body = "$spin: nanosleep.u32 100; ld.acquire.gpu.global.b32 %r0, [%p0]; setp.eq.s32 %q0, %r0, 0; @%q0 bra $spin;"
    assert run(body, words(1), block=1).status == "deadlock"


def test_lanes_of_one_warp_can_wait_for_each_other():
    body = """
setp.eq.s32 %q0, %t, 5;
@%q0 bra $writer;
$spin: ld.volatile.global.b32 %r0, [%p0]; setp.eq.s32 %q1, %r0, 0; @%q1 bra $spin;
bra.uni $end;
$writer: mov.b32 %r1, 1; st.volatile.global.b32 [%p0], %r1;
$end:
"""
    assert run(body, words(1)).ok


def test_a_barrier_in_a_divergent_branch():
    body = "setp.lt.s32 %q0, %t, 7; @%q0 bra $in; bra.uni $end; $in: bar.sync 0; $end: mov.b32 %r0, 0; bar.sync 1;"
    assert "barrier in a divergent branch" in kinds(run(body, words(1)))


def test_a_barrier_that_one_warp_skips_is_a_deadlock():
    body = "setp.lt.s32 %q0, %t, 32; @%q0 bra $end; bar.sync 0, 64; $end: bar.sync 1;"
    report = run(body, words(1), block=64)
    assert report.status == "deadlock"
    assert {w.what for w in report.deadlock.waiting} == {
        "at barrier 0, where 32 of 64 threads have arrived",
        "at barrier 1, where 32 of 64 threads have arrived",
    }


def test_a_barrier_with_different_counts():
    body = "setp.lt.s32 %q0, %t, 32; @%q0 bra $one; bar.sync 0, 64; bra.uni $end; $one: bar.sync 0, 96; $end:"
    assert "barrier with a wrong count" in kinds(run(body, words(1), block=96))


def test_a_shuffle_that_lanes_never_reach():
    body = "setp.lt.s32 %q0, %t, 7; @!%q0 bra $end; shfl.sync.idx.b32 %r0, %t, 0, 31, -1; $end: bar.warp.sync -1;"
    assert kinds(run(body, words(1))) == {"lanes missing at a .sync instruction"}
    assert run(body.replace("31, -1", "31, 127"), words(1)).ok


def test_wrapped_index_arithmetic_is_found_before_it_strays():
    index = "mul.lo.s32 %r0, %r1, {stride}; mul.wide.s32 %d0, %r0, 4; add.s64 %d0, %p0, %d0; ld.global.b32 %r2, [%d0];"
    wraps = "mov.b32 %r1, 65536;" + index.format(stride=65536)
    assert kinds(run(wraps, words(4))) == {"32-bit arithmetic wrapped in an address"}  # it lands on element 0
    assert run("mov.b32 %r1, 3;" + index.format(stride=1), words(4)).ok
    hashed = "mov.b32 %r1, 65537;" + index.format(stride="65536; and.b32 %r0, %r0, 3")
    assert run(hashed, words(4)).ok  # bits taken on purpose
    aligned = wraps.replace("ld.global", "add.s64 %d0, %d0, 14; and.b64 %d0, %d0, -16; ld.global")
    assert kinds(run(aligned, words(4))) == {"32-bit arithmetic wrapped in an address"}


def test_copies_arrive_only_when_they_are_waited_for():
    copy = "cp.async.ca.shared.global [s], [%p0], 16; cp.async.commit_group; {wait} ld.shared.b32 %r0, [s];"
    body = copy + "st.global.b32 [%p1], %r0;"
    out = words(1)
    assert run(body.format(wait="cp.async.wait_group 0;"), words(4, 9), out, block=1).ok and out[0] == 9
    late = run(body.format(wait="cp.async.wait_group 1;"), words(4, 9), out, block=1)
    assert out[0] != 9 or not late.ok


IN_FLIGHT = "shared memory used while a cp.async is under way to it"
COPY = "cp.async.ca.shared.global [{to}], [%p0], {size}; cp.async.commit_group;"


@pytest.mark.parametrize(
    "use,what",
    [
        ("ld.shared.b32 %r0, [s];", "reads"),
        ("st.shared.b32 [s], 7;", "writes"),
        ("cp.async.ca.shared.global [s], [%p0+16], 16;", "issues a cp.async to"),
        ("cp.async.ca.shared.global [s+8], [%p0], 4;", "issues a cp.async to"),
        ("atom.shared.add.u32 %r0, [s+12], 1;", "updates"),
    ],
)
def test_memory_that_a_copy_of_the_same_thread_is_under_way_to(use, what):
    """PTX orders a thread's copies with nothing, other copies included, until it waits for them."""
    body = COPY.format(to="s", size=16) + "{wait}" + use + "cp.async.wait_all;"
    (found,) = run(body.format(wait=""), words(16, 9), block=1, shared=64).findings
    assert found.kind == IN_FLIGHT and found.detail.startswith(f"{what} shared memory byte ")
    assert "to which a cp.async of the same warp is under way" in found.detail
    assert run(body.format(wait="cp.async.wait_group 0;"), words(16, 9), block=1, shared=64).ok
    elsewhere = use.replace("[s+8]", "[s+40]").replace("[s+12]", "[s+44]").replace("[s]", "[s+32]")
    assert IN_FLIGHT not in kinds(run(body.format(wait="").replace(use, elsewhere), words(16, 9), block=1, shared=64))


def test_a_pipeline_waits_for_the_copy_before_the_last():
    """Two buffers: the wait that leaves one group pending is right before the older one's buffer is filled again."""
    first, second = COPY.format(to="s", size=16), COPY.format(to="s+16", size=16)
    body = first + second + "cp.async.wait_group {keep};" + first + "cp.async.wait_all; ld.shared.b32 %r0, [s];"
    assert run(body.format(keep=1), words(4, 9), block=1, shared=64).ok
    assert kinds(run(body.format(keep=2), words(4, 9), block=1, shared=64)) == {IN_FLIGHT}


def test_a_barrier_does_not_stand_in_for_the_wait_of_a_copy():
    """Each warp reads what the other one copies: after the wait, and the barrier after that."""
    body = (
        SHARED_WORD + own_word() + "cp.async.ca.shared.global [%r0], [%d0], 4; {before} bar.sync 0; {after}"
        "xor.b32 %r3, %r0, 128; ld.shared.b32 %r2, [%r3]; bar.sync 0; cp.async.wait_all;"
    )
    wait = "cp.async.wait_all;"
    assert run(body.format(before=wait, after=""), words(64), block=64, shared=256).ok
    (found,) = run(body.format(before="", after=""), words(64), block=64, shared=256).findings
    assert found.kind == IN_FLIGHT and "of CTA (0, 0, 0) warp" in found.detail
    assert kinds(run(body.format(before="", after=wait), words(64), block=64, shared=256)) <= {
        IN_FLIGHT,
        "race: read of an unordered write",
    }
    assert not run(body.format(before="", after=wait), words(64), block=64, shared=256).ok


def test_lanes_that_copy_to_one_place_together():
    """A copy of one instruction is no second copy: all lanes bring the same 16 bytes."""
    body = COPY.format(to="s", size=16) + "cp.async.wait_all; bar.warp.sync -1; ld.shared.b32 %r0, [s];"
    assert run(body, words(4, 9), block=32, shared=64).ok
    assert run(body.replace("16;", "4;"), words(4, 9), block=32, shared=64).ok


def test_a_copy_of_more_bytes_than_its_size_is_undefined():
    copy = "mov.b32 %r1, {have}; cp.async.cg.shared.global [s], [%p0], 16, %r1; cp.async.wait_all;"
    body = copy + "ld.shared.b32 %r0, [s]; st.global.b32 [%p1], %r0;"
    out = words(1)
    assert run(body.format(have=16), words(8, 9), out, block=1).ok and out[0] == 9
    (found,) = run(body.format(have=17), words(8, 9), out, block=1).findings
    assert found.kind == "copy of more bytes than its size"
    assert found.detail == "copies 17 bytes of argument 0[0] with a copy of 16 bytes"


def test_an_unknown_instruction_is_an_error_with_its_place():
    with pytest.raises(Unimplemented, match=r"tcgen05.shift.*PTX line \d+, kernel k"):
        run("tcgen05.shift.cta_group::1.down [%r0];", words(1))


def test_a_launch_of_some_ctas_in_memory_that_does_not_exist():
    owner, _ = reserve(1 << 38)
    memory = torch.frombuffer(owner, dtype=torch.int32)
    body = "mul.wide.u32 %d0, %c, {rows}; add.s64 %d0, %p0, %d0; ld.global.b32 %r0, [%d0]; st.global.b32 [%d0], %c;"
    report = run(body.format(rows=1 << 22), memory, grid=60_000, block=1, only=[7, 9_000, 59_999])
    assert report.ok
    assert [int(memory[c << 20]) for c in (7, 9_000, 59_999)] == [7, 9_000, 59_999]
    wrong = "mul.lo.s32 %r1, %c, {rows}; cvt.s64.s32 %d0, %r1; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %c;"
    assert run(wrong.format(rows=1 << 22), memory, grid=60_000, block=1, only=[7]).ok
    found = kinds(run(wrong.format(rows=1 << 22), memory, grid=60_000, block=1, only=[9_000]))
    assert "32-bit arithmetic wrapped in an address" in found


def test_races_are_looked_for_however_many_words_are_added_to():
    add = "mad.lo.s32 %r0, %c, 32, %t; mul.wide.u32 %d0, %r0, 4; add.s64 %d0, %p0, %d0;"
    add += "red.relaxed.gpu.global.add.u32 [%d0], 1;"
    report = run(add + "st.global.b32 [%p1], %c;", words(9600), words(1), grid=300)
    assert kinds(report) == {"race: two writes"} and not report.notes
