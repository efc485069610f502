"""Predicates that are read where no instruction on any way there has given them a value."""

import pytest
import torch
from ptx_tools import kernel, kinds, run

from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.devices.emulator.decode.undefined_registers import undefined_reads
from fuzz.devices.emulator.ptx import parse

WITHOUT = "predicate without a value"
SET = "setp.lt.u32 %q0, %t, 7;"
GUARDED = "@%q7 mov.b32 %r0, 1;"


def findings(body, **options):
    return run(f"mov.b32 %r0, 0; {body}", torch.zeros(1, dtype=torch.int32), **options)


def test_a_predicate_without_a_value_is_found_with_its_name_and_line():
    (found,) = findings(f"{SET}\n{GUARDED}").findings
    (line,) = (i for i, text in enumerate(kernel(f"mov.b32 %r0, 0; {SET}\n{GUARDED}").splitlines(), 1) if "%q7" in text)
    assert (found.kind, found.line, found.lane) == (WITHOUT, line, 0)
    assert "reads predicate %q7, which has no value" in str(found)


@pytest.mark.parametrize(
    "read",
    [
        GUARDED, "@!%q7 mov.b32 %r0, 1;", "@%q7 bra $end; $end:", "selp.b32 %r0, 1, 2, %q7;", "and.pred %q1, %q0, %q7;",
        "not.pred %q1, %q7;", "setp.lt.and.u32 %q1, %t, 3, %q7;", "vote.sync.ballot.b32 %r0, %q7, -1;",
        "mov.pred %q1, %q7;", "@%q0 selp.b32 %r0, 1, 2, %q7;",
    ],
)  # fmt: skip
def test_every_way_to_read_one_is_found(read):
    assert kinds(findings(f"{SET} {read}")) == {WITHOUT}
    assert findings(f"{SET} setp.gt.u32 %q7, %t, 3; {read}").ok


@pytest.mark.parametrize(
    "body",
    [
        # given a value on another way, under a guard, as a second result, or a loop's trip before
        f"{SET} @%q0 bra $there; setp.gt.u32 %q7, %t, 3; $there: {GUARDED}",
        f"{SET} @%q0 setp.gt.u32 %q7, %t, 3; {GUARDED}",
        f"setp.lt.u32 %q1|%q7, %t, 3; {GUARDED}",
        "$again: add.u32 %r0, %r0, 1; setp.gt.u32 %q2, %r0, 1; @!%q2 bra $first; @%q7 mov.b32 %r1, 1; "
        "$first: setp.gt.u32 %q7, %r0, 3; setp.lt.u32 %q1, %r0, 5; @%q1 bra $again;",
        # where nobody comes: behind the end, behind a branch that is always taken, under a guard that is false
        f"ret; {GUARDED}",
        f"bra $end; $dead: {GUARDED} $end:",
        f"setp.gt.u32 %q1, %t, 99; @!%q1 bra $end; {GUARDED} $end:",
        "setp.gt.u32 %q1, %t, 99; @%q1 selp.b32 %r0, 1, 2, %q7;",
    ],
)
def test_one_that_may_have_a_value_or_is_not_read_is_none(body):
    assert findings(body).ok


def test_a_value_that_comes_on_no_way_or_too_late_is_none():
    assert kinds(findings(f"{GUARDED} setp.gt.u32 %q7, %t, 3;")) == {WITHOUT}
    elsewhere = f"{SET} @%q0 bra $there; setp.gt.u32 %q7, %t, 3; bra $end; $there: {GUARDED} $end:"
    assert kinds(findings(elsewhere)) == {WITHOUT}


def test_the_check_may_be_left_out():
    assert findings(GUARDED, checks=DEFAULT_CHECKS - {"uninitialised"}).ok


def test_registers_of_inline_assembly_are_those_of_their_scope():
    text = "{ .reg .pred p; setp.lt.u32 p, %t, 3; @p mov.b32 %r0, 1; } { .reg .pred p; @p mov.b32 %r0, 2; }"
    (found,) = findings(text).findings
    assert found.kind == WITHOUT and found.instruction.endswith("%r0, 2") and "predicate p," in str(found)
    assert list(undefined_reads(parse(kernel(text)).kernels["k"]).values()) == ["p@2"]
