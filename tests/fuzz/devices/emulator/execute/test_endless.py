"""Loops that do not end are named; long ones that do are left alone. Seconds are scaled down by a small patience."""

import math

import pytest
import torch
from ptx_tools import Emulator, run

WRITES = "st.global.b32 [%p0], %r0;"
COUNTED = f"mov.b32 %r0, 0;\n$again: {WRITES} add.s32 %r0, %r0, 1;\nsetp.{{compare}} %q0, %r0, %r1;\n@%q0 bra $again;"


def endless(body, *tensors, patience=0.2, **options):
    """The endless loop of a launch."""
    report = run(body, *tensors, patience=patience, **options)
    assert report.status == "endless" and not report.ok
    return report.endless


def is_left_alone(body, *tensors, **options):
    """True where a launch takes five times the patience, and finishes."""
    patience = 0.004
    report = run(body, *tensors, patience=patience, **options)
    assert report.seconds > 5 * patience, "the loop is too short to show it"
    return (report.status, report.endless) == ("finished", None)


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_a_loop_without_a_way_out_is_endless(schedule):
    found = endless(f"$again: add.s32 %r0, %r0, 1; {WRITES} bra $again;", torch.zeros(1), warp_schedule=schedule)
    assert "nothing leaves it" in str(found) and found.instruction == "bra $again"
    assert (found.cta, found.warp) == ((0, 0, 0), 0) and found.trips > 100


def test_a_loop_whose_condition_nothing_changes_is_endless():
    body = "ld.global.b32 %r1, [%p0];\n$again: add.s32 %r0, %r0, 1; st.global.b32 [%p0+4], %r0;\n"
    body += "setp.eq.s32 %q0, %r1, 0; @%q0 bra $again;"
    found = endless(body, torch.zeros(2))
    assert "nothing in it changes %r1 = 0 or 0, by which it would be left" in str(found)


def test_a_counter_that_comes_to_a_wrong_bound_in_hours_only_is_endless():
    """A count of 2**30 where the tensors have a few elements; the report says where it was loaded."""
    body = "ld.global.b32 %r1, [%p1];\n" + COUNTED.format(compare="lt.s32")
    slow = "setp.lt.s32 %q0, %r0, %r1;"
    body = body.replace(slow, "bar.sync 0;\n" * 60 + slow)  # a trip that takes a while
    count = torch.tensor([1 << 30], dtype=torch.int32)
    found = endless(body, torch.zeros(1, dtype=torch.int32), count, block=1024)
    assert "goes on by 1 in each trip and comes to %r1 = 1,073,741,824 (loaded at PTX line" in str(found)
    assert "2 elements of 4 bytes" in str(found)


def test_a_counter_that_has_gone_past_its_bound_comes_back_when_it_wraps():
    body = "mov.b64 %d1, 1;\nmov.b64 %d0, 0;\n$again: add.s64 %d0, %d0, 2;\n" + WRITES
    body += "setp.ne.s64 %q0, %d0, %d1; @%q0 bra $again;"
    assert "%d1 = 1 in" in str(endless(body, torch.zeros(1)))


def test_a_loop_that_no_counter_ends_is_endless_when_nothing_else_goes_on():
    body = f"$again: xor.b32 %r0, %r0, 5; {WRITES}\nld.global.b32 %r1, [%p0+4];\n"
    body += "setp.eq.s32 %q0, %r1, 0; @%q0 bra $again;"
    found = endless(body, torch.zeros(2, dtype=torch.int32))
    assert "no counter ends it" in str(found) and found.trips > 1 << 16


def test_an_endless_loop_in_which_no_tensor_changes_says_so():
    body = "$again: add.s32 %r0, %r0, 1; st.shared.b32 [s], %r0; bra $again;"
    assert "meanwhile no tensor changes" in str(endless(body, torch.zeros(1)))


def test_a_long_loop_with_a_counter_is_left_alone():
    """Many more trips than elements, and many times the patience, but its counter says when it ends."""
    body = f"mov.b32 %r1, {1 << 20};\n" + COUNTED.format(compare="lt.s32")
    assert is_left_alone(body, torch.zeros(1, dtype=torch.int32))


def test_a_loop_that_goes_through_its_data_once_is_left_alone():
    """No counter: the data says where it ends."""
    data = torch.zeros(1 << 20, dtype=torch.int32)
    data[-1] = 1
    body = "$again: ld.global.b32 %r1, [%p0]; add.s64 %p0, %p0, 4; st.shared.b32 [s], %r1;\n"
    body += "setp.eq.s32 %q0, %r1, 0; @%q0 bra $again;"
    assert is_left_alone(body, data, block=1)


@pytest.mark.parametrize("step", [1, 1 / 1024])
def test_a_loop_that_takes_numbers_until_one_says_the_end_is_left_alone(step):
    """Numbers that rise, as those of the tiles that a persistent CTA takes, or the sequence that these are of, are no
    counter: they come from memory."""
    data = (torch.arange(1 << 12) * step).to(torch.int32)
    data[-1] = -1
    body = "$again: ld.global.b32 %r1, [%p0]; add.s64 %p0, %p0, 4; mov.b32 %r2, %r1;\n"
    body += "bar.sync 0;\n" * 60 + "setp.ne.s32 %q0, %r2, -1; @%q0 bra $again;"  # a trip takes a while
    assert is_left_alone(body, data, block=128)


def test_a_loop_that_polls_and_counts_is_left_alone_while_another_warp_works():
    """CTA 0 asks for a flag, more often than the tensors have elements; CTA 1 counts, then sets the flag."""
    body = f"""setp.eq.s32 %q1, %c, 1; @%q1 bra $work;
$poll: add.s32 %r0, %r0, 1; ld.relaxed.gpu.global.b32 %r1, [%p0+4]; {WRITES}
setp.eq.s32 %q0, %r1, 0; @%q0 bra $poll; bra $end;
$work: mov.b32 %r0, 0;
$count: add.s32 %r0, %r0, 1; st.shared.b32 [s], %r0;
setp.lt.s32 %q0, %r0, {1 << 20}; @%q0 bra $count;
mov.b32 %r1, 1; st.relaxed.gpu.global.b32 [%p0+4], %r1;
$end:"""
    assert is_left_alone(body, torch.zeros(2, dtype=torch.int32), grid=2, block=1, checks=frozenset())


def test_the_pauses_change_nothing_about_a_random_schedule():
    body = "mov.b32 %r0, 0;\n$again: atom.global.add.u32 %r2, [%p0], %c; st.global.b32 [%p0+4], %r2;\n"
    body += "add.s32 %r0, %r0, 1; setp.lt.s32 %q0, %r0, 5000; @%q0 bra $again;"

    def ran(patience):
        memory = torch.zeros(2, dtype=torch.int32)
        report = run(body, memory, grid=3, block=64, patience=patience, warp_schedule="random", checks=frozenset())
        return report.executed, memory.tolist()

    assert ran(1e-6) == ran(math.inf)


def test_what_follows_an_access_out_of_bounds_gets_the_patience_only():
    body = "st.global.b32 [%p0+64], %t; mov.b32 %r1, 0x7FFFFFFF;\n" + COUNTED.format(compare="lt.s32")
    report = run(body, torch.zeros(1), patience=0.1)
    assert report.status == "stopped"
    assert report.notes == ["stopped a while after its first access out of bounds, before it ended"]
    assert [one.kind for one in report.findings] == ["out of bounds"]


def test_a_budget_that_ends_a_launch_names_the_loop_that_it_was_in():
    report = run(f"$again: add.s32 %r0, %r0, 1; {WRITES} bra $again;", torch.zeros(1), budget=10_000)
    assert report.status == "budget"
    assert "the launch has come to its budget of 10,000 micro-operations" in str(report.endless)


def test_a_patience_below_zero_is_refused():
    with pytest.raises(ValueError, match="patience: must be a positive number of seconds, not -1"):
        Emulator(patience=-1)
