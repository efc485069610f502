"""Registers that share a place: only where their values are never needed at the same time."""

import torch
from ptx_tools import kernel, run

from fuzz.devices.emulator import Emulator


def places(body):
    """Place by register of a kernel with this body."""
    return Emulator().load_ptx(kernel(body)).programs.get("k").places


def test_a_value_that_is_over_leaves_its_place_to_the_next():
    found = places("mov.b32 %r0, 1; mov.b32 %r1, %r0; mov.b32 %r2, %r1; st.global.b32 [%p0], %r2;")
    assert found["%r2"] == found["%r0"] != found["%r1"]


def test_what_a_stretch_reads_of_before_it_stays_to_its_end():
    """Lanes run a stretch again when another of their warp wakes up."""
    body = "mov.b32 %r0, 1; st.global.b32 [%p0], %r0; mov.b32 %r1, %r0; add.s32 %r2, %r1, 5; st.global.b32 [%p0], %r2;"
    found = places(body)
    assert found["%r2"] != found["%r0"]


def test_a_result_does_not_share_with_an_operand_of_its_instruction():
    found = places("mov.b32 %r0, 1; add.s32 %r1, %r0, %r0; st.global.b32 [%p0], %r1;")
    assert found["%r0"] != found["%r1"]


def test_a_value_that_a_loop_needs_again_lives_through_all_of_it():
    found = places("""mov.b32 %r0, 3; mov.b32 %r1, 0;
    $loop: add.s32 %r1, %r1, %r0; mov.b32 %r2, %r1; st.global.b32 [%p0], %r2;
    setp.lt.s32 %q0, %r1, 9; @%q0 bra $loop;""")
    assert len({found["%r0"], found["%r1"], found["%r2"]}) == 3


def test_a_register_that_may_be_read_unwritten_keeps_what_it_began_with():
    out = torch.zeros(2, dtype=torch.int32)
    body = """mov.b32 %r0, 7; st.global.b32 [%p0], %r0; setp.ne.s32 %q0, %t, 0;
    @%q0 mov.b32 %r1, 5; st.global.b32 [%p0+4], %r1;"""
    run(body, out, block=1)
    assert out.tolist() == [7, -1]


def test_a_guarded_write_does_not_end_a_value():
    found = places("""mov.b32 %r0, 1; setp.eq.s32 %q0, %t, 0; mov.b32 %r1, 2; st.global.b32 [%p0], %r1;
    @%q0 mov.b32 %r0, 3; st.global.b32 [%p0], %r0;""")
    assert found["%r0"] != found["%r1"]


def test_floats_and_integers_do_not_share():
    """A float's taint is never written: an integer's, left in its place, would be taken for it."""
    found = places("""mov.b32 %r0, 1; st.global.b32 [%p0], %r0;
    add.f32 %r1, 0f3F800000, 0f3F800000; st.global.b32 [%p0], %r1;""")
    assert found["%r0"] != found["%r1"]


def test_a_register_written_both_ways_shares_with_none():
    found = places("""mov.b32 %r0, 1; add.f32 %r0, %r0, %r0; st.global.b32 [%p0], %r0;
    mov.b32 %r1, 1; st.global.b32 [%p0], %r1; add.f32 %r2, 0f3F800000, 0f3F800000; st.global.b32 [%p0], %r2;""")
    assert len({found["%r0"], found["%r1"], found["%r2"]}) == 3


def test_what_a_loop_compares_stays_where_it_is_through_all_of_the_loop():
    filler = "mov.b32 %r3, 1; st.global.b32 [%p0], %r3;" * 40
    found = places(f"""mov.b32 %r1, 0;
    $loop: add.s32 %r1, %r1, 1; add.s32 %r2, %r1, 5; setp.lt.s32 %q0, %r2, 9; {filler} @%q0 bra $loop;""")
    assert found["%r2"] != found["%r3"]
