"""setmaxnreg: registers move between warps and the pool of their CTA."""

import pytest
import torch
from ptx_tools import Emulator, kernel, kinds

from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.ptx import parse

ALL = "warpgroup_registers"
MISUSED = "setmaxnreg misused"
SPLIT = "setp.lt.u32 %q0, %t, 128;"  # the first warpgroup
DEC = "setmaxnreg.dec.sync.aligned.u32 {};"
INC = "setmaxnreg.inc.sync.aligned.u32 {};"
ROLES = f"{SPLIT} @%q0 bra A; {INC} bra.uni END; A: {DEC} END:"


def text_of(body, directives=".maxntid 256, 1, 1"):
    return kernel(body, 1, 4096).replace("\n{\n.reg .pred", f"\n{directives}\n{{\n.reg .pred", 1)


def launch(body, directives=".maxntid 256, 1, 1", block=256, checks=(), **options):
    from fuzz.devices.emulator.config import DEFAULT_CHECKS

    emulator = Emulator(**{"strict": False, "checks": DEFAULT_CHECKS | set(checks), **options})
    return emulator.load_ptx(text_of(body, directives)).launch(
        None, (1,), (block,), [torch.zeros(1, dtype=torch.int32)]
    )


@pytest.mark.parametrize(
    ("directives", "registers"),
    [
        ("", 0), (".maxnreg 100", 96), (".reqntid 384, 1, 1", 168), (".maxntid 128", 256),
        (".reqntid 512, 1, 1 .minnctapersm 1", 128), (".maxntid 256, 1, 1 .minnctapersm 2", 128),
    ],
)  # fmt: skip
def test_the_registers_that_a_kernel_starts_with(directives, registers):
    assert parse(text_of("", directives)).kernels["k"].entry_registers == registers


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_registers_that_one_warpgroup_gives_the_other(schedule):
    """2 × 256 = 24 + 488: whatever comes first, the .inc waits for the .dec."""
    report = launch(ROLES.format(232, 24), ".maxnreg 128", checks=[ALL], warp_schedule=schedule)
    assert report.ok, str(report)


def test_registers_that_nobody_gives():
    report = launch(ROLES.format(240, 40) + "bar.sync 0;", ".maxnreg 128")
    assert report.status == "deadlock"
    text = str(report.deadlock)
    assert "waits for 112 more registers of each thread, of which its CTA has" in text
    assert "setmaxnreg.inc.sync.aligned.u32 240" in text
    traced = launch(ROLES.format(240, 40) + "bar.sync 0;", ".maxnreg 128", trace=True)
    assert any(s.open and s.label == "waits for registers" for s in traced.timelines[0].slices)


def test_registers_of_a_warp_that_exits_are_free():
    assert launch(f"{SPLIT} @%q0 ret; {INC.format(240)}", ".maxnreg 128").ok


@pytest.mark.parametrize(
    ("body", "said"),
    [(DEC.format(200), "asks for 200 registers for each thread, which is above the 128 that its warp has"),
     (INC.format(64), "asks for 64 registers for each thread, which is below the 128 that its warp has")],
)  # fmt: skip
def test_a_count_on_the_wrong_side(body, said):
    report = launch(body, ".maxnreg 128")
    assert kinds(report) == {MISUSED} and said in str(report)


def test_a_count_that_is_what_the_warp_has():
    assert launch(DEC.format(128) + "bar.sync 0;" + INC.format(128), ".maxnreg 128", checks=[ALL]).ok


@pytest.mark.parametrize("count", [20, 16, 264])
def test_counts_that_ptx_does_not_allow(count):
    with pytest.raises(Unimplemented, match="multiple of 8 from 24 to 256"):
        launch(DEC.format(count))


def test_an_instruction_of_more_registers_than_the_warp_has():
    names = ", ".join(f"%v{i}" for i in range(32))
    body = f"""{{ .reg .b32 %v<32>; setp.lt.u32 %q1, %t, 32;
@%q1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32; bar.sync 0; ld.shared.b32 %r10, [s];
and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11; {DEC.format("COUNT")}
tcgen05.st.sync.aligned.32x32b.x32.b32 [%r11], {{{names}}}; tcgen05.wait::st.sync.aligned; bar.sync 0;
@%q1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32; }}"""
    few = launch(body.replace("COUNT", "32"), block=128, checks=[ALL])
    assert kinds(few) == {MISUSED}
    assert "names 33 registers, but its warp has 32 for each thread since its last setmaxnreg" in str(few)
    assert launch(body.replace("COUNT", "40"), block=128).ok


def test_a_load_of_many_registers_is_complete_where_one_is_used():
    """The note of how many it names stands before the load; the note that one is used means the load itself."""
    loaded, stored = (", ".join(f"%{letter}{i}" for i in range(32)) for letter in "vw")
    store = f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r11], {{{stored}}}; tcgen05.wait::st.sync.aligned;"
    body = f"""{{ .reg .b32 %v<32>, %w<32>; setp.lt.u32 %q1, %t, 32;
@%q1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32; bar.sync 0; ld.shared.b32 %r10, [s];
and.b32 %r11, %t, 96; shl.b32 %r11, %r11, 16; add.u32 %r11, %r10, %r11; {DEC.format(64)} {store}
tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{loaded}}}, [%r11]; USE {store} bar.sync 0;
@%q1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32; }}"""
    assert launch(body.replace("USE", "add.u32 %r12, %v3, 1;"), block=128).ok
    found = kinds(launch(body.replace("USE", ""), block=128))
    assert found == {"tensor memory overwritten before tcgen05.wait::ld"}


def test_without_a_number_of_registers_it_has_no_effect():
    report = launch(ROLES.format(240, 40), "")
    assert report.ok
    assert report.notes == ["setmaxnreg has no effect here: the kernel has neither .maxnreg nor .maxntid"]


# ---- warps of a warpgroup, with the check


ONE_WARP = "setp.lt.u32 %q1, %t, 32;"


def test_warps_of_a_warpgroup_with_different_counts():
    body = f"{ONE_WARP} @%q1 bra A; {DEC.format(64)} bra.uni END; A: {DEC.format(40)} END:"
    assert launch(body).ok
    report = launch(body, checks=[ALL])
    assert kinds(report) == {MISUSED}
    assert "executes another setmaxnreg than warp 0 of its warpgroup, which executes setmaxnreg.dec 40" in str(report)


def test_a_warp_that_leaves_it_out():
    report = launch(f"{ONE_WARP} @%q1 bra END; {DEC.format(64)} END:", checks=[ALL])
    assert kinds(report) == {MISUSED}
    assert "a setmaxnreg that warp 0 of its warpgroup never executes" in str(report)


@pytest.mark.parametrize("schedule", ["in_order", "greedy"])
def test_a_second_one_without_a_barrier(schedule):
    body = DEC.format(64) + "{}" + INC.format(128)
    report = launch(body.format(""), checks=[ALL], warp_schedule=schedule)
    assert "executes its next setmaxnreg with no barrier after that of warp" in str(report)
    assert launch(body.format("bar.sync 0;"), checks=[ALL], warp_schedule=schedule).ok
