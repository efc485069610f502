"""The first bytes of shared memory are the system's: where a CTA's own begins, and that nothing else is touched."""

import pytest
import torch
from ptx_tools import run


def test_a_ctas_own_memory_begins_behind_them():
    out = torch.zeros(1, dtype=torch.int32)
    assert run("mov.u32 %r0, s; st.global.b32 [%p0], %r0;", out, block=1, shared=64).ok
    assert out.item() == 1024


@pytest.mark.parametrize("checks", [frozenset(), frozenset({"races", "uninitialised"})])
@pytest.mark.parametrize("access", ["st.shared.b32 [s-4], %t;", "ld.shared.b32 %r0, [s-4];", "st.shared.b32 [0], %t;"])
def test_an_access_to_them_is_out_of_bounds(access, checks):
    report = run(access, block=1, shared=64, checks=checks)
    assert {f.kind for f in report.findings} == {"out of bounds of shared memory"}
    at = -1024 if "[0]" in access else -4
    assert f"at byte {at} of shared memory, of which the CTA has 64 bytes" in str(report)


@pytest.mark.parametrize("checks", [frozenset(), frozenset({"races"})])
@pytest.mark.parametrize(
    "access",
    [
        "st.shared.v4.b32 [%r0], {%t, %t, %t, %t};",
        "ld.shared.b32 %r1, [%r0];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r0];",
    ],
)
def test_lanes_before_the_first_byte_are_found_and_others_not(access, checks):
    """Lanes are 16 bytes apart."""

    def seen(before: int) -> list[int]:
        place = f"shl.b32 %r1, %t, 4; mov.u32 %r0, s; add.s32 %r0, %r0, %r1; sub.s32 %r0, %r0, {before};"
        report = run(f"{place} {access}", block=32, shared=512, checks=checks)
        return [f.lane for f in report.findings if f.kind == "out of bounds of shared memory"]

    assert seen(16) and not seen(0)
