"""Registers that nothing has written hold what a kernel cannot mistake for a number."""

import torch
from ptx_tools import run

from fuzz.devices.emulator.api import DEFAULT_CHECKS


def test_a_register_that_nothing_wrote_is_no_number_in_every_cta():
    out = torch.zeros(4, dtype=torch.int32)
    body = "mul.wide.u32 %d0, %c, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r9; mov.b32 %r9, 7;"
    assert run(body, out, grid=4, block=1, slots=2).ok
    assert out.tolist() == [-1] * 4
    assert torch.isnan(out.view(torch.float32)).all()


def test_a_predicate_that_nothing_wrote_is_true():
    out = torch.zeros(1, dtype=torch.int32)
    body = "mov.b32 %r0, 0; @%q7 mov.b32 %r0, 1; st.global.b32 [%p0], %r0;"
    run(body, out, block=1)
    assert out.item() == 1


def test_special_registers_are_what_they_are():
    out = torch.zeros(1, dtype=torch.int32)
    body = "mov.u32 %r0, %tid.x; st.global.b32 [%p0], %r0;"
    assert run(body, out, block=1).ok
    assert out.item() == 0


def test_registers_begin_with_zero_where_nothing_is_looked_for():
    out = torch.ones(1, dtype=torch.int32)
    run("st.global.b32 [%p0], %r9;", out, block=1, checks=DEFAULT_CHECKS - {"uninitialised"})
    assert out.item() == 0
