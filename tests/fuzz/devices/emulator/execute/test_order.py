"""Sums of floats whose order nothing fixes; which lines were reached; other PTX in a kernel's place; endless loops."""

import pytest
import torch
from ptx_tools import Emulator, kernel, kinds, run

from fuzz.devices.emulator.config import ALL_CHECKS, DEFAULT_CHECKS

UNORDERED = {"floating-point adds in no fixed order"}
ADD = "mov.b32 %r1, 0f3F800000; red.relaxed.gpu.global.add.f32 [%p0], %r1;"
TURNS = """
$spin: ld.{acquire}.gpu.global.b32 %r0, [%p0+4]; setp.ne.s32 %q0, %r0, %c; @%q0 bra $spin;
mov.b32 %r1, 0f3F800000; red.relaxed.gpu.global.add.f32 [%p0], %r1;
red.{release}.gpu.global.add.s32 [%p0+4], 1;
"""


def sums(body, grid=3, **options):
    """Each CTA's one thread adds 1.0 to the first word; the second is a semaphore."""
    memory = torch.zeros(2)
    report = run(body, memory, grid=grid, block=1, resident_ctas=grid, **options)
    assert memory[0] == grid
    return report


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last"])
@pytest.mark.parametrize(
    ("acquire", "release", "expected"),
    [
        ("acquire", "release", set()),
        ("relaxed", "release", UNORDERED),
        ("acquire", "relaxed", UNORDERED),
    ],
)
def test_adds_by_turns_need_release_and_acquire(acquire, release, expected, schedule):
    body = TURNS.format(acquire=acquire, release=release)
    assert kinds(sums(body, checks=ALL_CHECKS, warp_schedule=schedule)) == expected


def test_adds_without_turns_are_found_where_an_order_is_promised_only():
    assert kinds(sums(ADD, checks=ALL_CHECKS)) == UNORDERED
    assert sums(ADD, checks=DEFAULT_CHECKS).ok
    assert sums(ADD).ok
    assert sums(ADD, grid=1, checks=ALL_CHECKS).ok


def test_integers_may_be_added_in_any_order():
    ticket = "mov.b32 %r1, 1; red.relaxed.gpu.global.add.s32 [%p0], %r1;"
    memory = torch.zeros(1, dtype=torch.int32)
    assert run(ticket, memory, grid=3, block=1, resident_ctas=3, checks=ALL_CHECKS).ok
    assert memory.item() == 3


def test_lines_that_no_warp_comes_to_are_not_reached():
    body = "setp.eq.s32 %q0, %t, 40;\n@%q0 bra $there;\nbra $end;\n$there: mov.b32 %r0, 1;\n$end: mov.b32 %r1, 2;"
    text = kernel(body)
    first = text.splitlines().index("setp.eq.s32 %q0, %t, 40;") + 1

    def reached(block):
        report = Emulator(strict=False).load_ptx(text).launch(None, (1,), (block,), [torch.zeros(1)])
        return {line - first for line in report.reached if 0 <= line - first < 5}

    assert reached(32) == {0, 1, 2, 4}
    assert reached(64) == {0, 1, 2, 3, 4}


def test_how_often_a_loop_was_run_is_counted():
    body = "mov.b32 %r0, 0;\n$again: add.s32 %r0, %r0, 1;\nsetp.lt.s32 %q0, %r0, 5;\n@%q0 bra $again;"
    report = run(body, torch.zeros(1), block=64)
    (source, counts), *rest = report.executions
    assert not rest
    assert [int(n) for i, n in zip(source, counts, strict=False) if i.name == "add.s32"] == [10]


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_an_endless_loop_ends_with_the_budget(schedule):
    body = "$again: add.s32 %r0, %r0, 1; bra $again;"
    report = run(body, torch.zeros(1), warp_schedule=schedule, budget=10_000)
    assert report.status == "budget"
    assert report.executed < 100_000
