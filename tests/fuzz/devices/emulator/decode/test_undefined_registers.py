"""Registers that are read where no instruction on any way there has given them a value."""

import pytest
import torch
from ptx_tools import kernel, kinds, run

from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.devices.emulator.decode.undefined_registers import undefined_reads
from fuzz.devices.emulator.ptx import parse

WITHOUT = "register without a value"
SET = "setp.lt.u32 %q0, %t, 7;"
GUARDED = "@%q7 mov.b32 %r0, 1;"


def findings(body, **options):
    return run(f"mov.b32 %r0, 0; {body}", torch.zeros(64, dtype=torch.int32), **options)


def test_a_predicate_without_a_value_is_found_with_its_name_and_line():
    (found,) = findings(f"{SET}\n{GUARDED}").findings
    (line,) = (i for i, text in enumerate(kernel(f"mov.b32 %r0, 0; {SET}\n{GUARDED}").splitlines(), 1) if "%q7" in text)
    assert (found.kind, found.line, found.lane) == (WITHOUT, line, 0)
    assert "reads register %q7, which has no value" in str(found)


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
    assert found.kind == WITHOUT and found.instruction.endswith("%r0, 2") and "register p," in str(found)
    assert list(undefined_reads(parse(kernel(text)).kernels["k"]).values()) == ["p@2"]


@pytest.mark.parametrize(
    "read",
    [
        "and.b32 %r0, %t, %r5;", "add.u32 %r0, %r5, 1;", "setp.lt.u32 %q0, %r5, 7;", "selp.b32 %r0, %r5, 2, %q1;",
        "shfl.sync.idx.b32 %r0, %r5, 0, 31, -1;", "mov.b32 %r6, %r5; mov.b32 %r7, %r6; neg.s32 %r0, %r7;",
        "mov.b64 {%r6, %r7}, %d5; add.u32 %r0, %r7, 1;", "ld.global.b32 %r0, [%d5];", "st.global.b32 [%d5+4], %t;",
        "st.global.b32 [%p0], %r5;", "bar.sync %r5, 32;",
    ],
)  # fmt: skip
def test_other_registers_without_a_value_are_found(read):
    before = "setp.lt.u32 %q1, %t, 7; "
    there = undefined_reads(parse(kernel(f"mov.b32 %r0, 0; {before}{read}")).kernels["k"])
    assert len(there) == 1 and set(there.values()) <= {"%r5", "%r7", "%d5"}
    assert not undefined_reads(parse(kernel(f"mov.b32 %r5, 0; mov.b64 %d5, 0; {before}{read}")).kernels["k"])


def test_a_register_without_a_value_is_found_where_it_runs():
    """A dropped negation of 1, whose register holds -1 on the emulated GPU anyway."""
    (found,) = findings("and.b32 %r0, %t, %r5;").findings
    assert found.kind == WITHOUT and "reads register %r5, which has no value" in str(found)
    assert findings("ret; and.b32 %r0, %t, %r5;").ok


@pytest.mark.parametrize(
    "body",
    [
        # moved and not used, put together with another one, or of which the compiler says that it has any value
        "mov.b32 %r6, %r5;",
        "mov.b64 %d5, {%r0, %r5}; cvt.u32.u64 %r0, %d5;",
        "prmt.b32 %r6, %t, %r5, 0x3340; add.u32 %r0, %r6, 1;",
        "st.global.v2.b32 [%p0], {%t, %r5};",
        "\n// implicit-def: %r5\nadd.u32 %r0, %r5, 1;",
        # given a value on another way, a move of one that has one there, or a loop's trip before
        f"{SET} @%q0 bra $there; mov.b32 %r5, 3; $there: add.u32 %r0, %r5, 1;",
        f"{SET} @%q0 bra $there; mov.b32 %r5, 3; $there: mov.b32 %r6, %r5; add.u32 %r0, %r6, 1;",
        "$again: add.u32 %r0, %r0, 1; setp.gt.u32 %q2, %r0, 1; @!%q2 bra $first; add.u32 %r1, %r6, 1; "
        "$first: mov.b32 %r5, 2; mov.b32 %r6, %r5; setp.lt.u32 %q1, %r0, 5; @%q1 bra $again;",
    ],
)
def test_other_registers_that_may_have_a_value_or_are_not_used_are_none(body):
    assert findings(body).ok
