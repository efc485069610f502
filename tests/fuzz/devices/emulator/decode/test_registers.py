"""Registers: what they hold before anything is written, and the special ones in every thread of a launch."""

import pytest
import torch
from ptx_tools import kernel, kinds, run

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.devices.emulator.decode.special_registers import SPECIAL_REGISTERS


def test_a_register_that_nothing_wrote_is_no_number_in_every_cta():
    out = torch.zeros(4, dtype=torch.int32)
    body = "mul.wide.u32 %d0, %c, 4; add.s64 %d0, %p0, %d0; st.global.b32 [%d0], %r9; mov.b32 %r9, 7;"
    assert kinds(run(body, out, grid=4, block=1, resident_ctas=2)) == {"register without a value"}
    assert out.tolist() == [-1] * 4
    assert torch.isnan(out.view(torch.float32)).all()


def test_a_predicate_that_nothing_wrote_is_true():
    out = torch.zeros(1, dtype=torch.int32)
    body = "mov.b32 %r0, 0; @%q7 mov.b32 %r0, 1; st.global.b32 [%p0], %r0;"
    run(body, out, block=1)
    assert out.item() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("cvt.s64.s32", -2), ("cvt.u64.u32", 2**32 - 2), ("cvt.s64.s16", -2), ("cvt.u64.u16", 2**16 - 2)],
)
def test_a_conversion_takes_the_low_bits_of_a_wider_register(name, value):
    out = torch.zeros(1, dtype=torch.int64)
    assert run(f"mov.b64 %d0, {2**33 - 2}; {name} %d1, %d0; st.global.b64 [%p0], %d1;", out, block=1).ok
    assert out.item() == value


GRID, BLOCK, SHARED, DYNAMIC, RESIDENT = (3, 2, 2), (5, 4, 3), 64, 256, 2
THREADS, CTAS = 5 * 4 * 3, 3 * 2 * 2


def every_special_register() -> dict[str, list[int]]:
    """What each register holds in every thread of the launch, CTA after CTA, from the geometry alone."""
    threads = [(x, y, z) for z in range(BLOCK[2]) for y in range(BLOCK[1]) for x in range(BLOCK[0])]
    ctas = [(x, y, z) for z in range(GRID[2]) for y in range(GRID[1]) for x in range(GRID[0])]
    lanes = [t % 32 for t in range(THREADS)]
    same: dict[str, int] = {
        "nwarpid": 2, "nsmid": RESIDENT, "dynamic_smem_size": DYNAMIC, "total_smem_size": SHARED + 64 + DYNAMIC,
        "aggr_smem_size": 1024 + SHARED + 64 + DYNAMIC, "cluster_ctarank": 0, "cluster_nctarank": 1, "gridid": 0,
    }  # fmt: skip
    by_thread = {
        "laneid": lanes,
        "warpid": [t // 32 for t in range(THREADS)],
        "lanemask_eq": [1 << lane for lane in lanes],
        "lanemask_lt": [sum(1 << i for i in range(lane)) for lane in lanes],
        "lanemask_le": [sum(1 << i for i in range(lane + 1)) for lane in lanes],
        "lanemask_gt": [sum(1 << i for i in range(lane + 1, 32)) for lane in lanes],
        "lanemask_ge": [sum(1 << i for i in range(lane, 32)) for lane in lanes],
    }
    found = {name: [value] * THREADS * CTAS for name, value in same.items()}
    found |= {name: row * CTAS for name, row in by_thread.items()}
    for axis, x in enumerate("xyz"):
        found[f"tid.{x}"] = [t[axis] for t in threads] * CTAS
        found[f"ntid.{x}"] = [BLOCK[axis]] * THREADS * CTAS
        found[f"ctaid.{x}"] = found[f"clusterid.{x}"] = [cta[axis] for cta in ctas for _ in threads]
        found[f"nctaid.{x}"] = found[f"nclusterid.{x}"] = [GRID[axis]] * THREADS * CTAS
        found[f"cluster_ctaid.{x}"] = [0] * THREADS * CTAS
        found[f"cluster_nctaid.{x}"] = [1] * THREADS * CTAS
    for name in sorted({name.partition(".")[0] for name in found if "." in name}):
        found[f"{name}.w"] = [0] * THREADS * CTAS
    return found


EXPECTED = every_special_register()


def read_special_register(name: str) -> list[int]:
    """Its low 32 bits in every thread of the launch; `dynamic` shared memory follows the kernel's own."""
    body = f"""mov.u32 %r0, %ctaid.z; mov.u32 %r1, %ctaid.y; mad.lo.s32 %r0, %r0, {GRID[1]}, %r1;
mov.u32 %r1, %ctaid.x; mad.lo.s32 %r0, %r0, {GRID[0]}, %r1;
mov.u32 %r2, %tid.z; mov.u32 %r1, %tid.y; mad.lo.s32 %r2, %r2, {BLOCK[1]}, %r1;
mov.u32 %r1, %tid.x; mad.lo.s32 %r2, %r2, {BLOCK[0]}, %r1;
mad.lo.s32 %r0, %r0, {THREADS}, %r2; mul.wide.u32 %d0, %r0, 4; add.s64 %d0, %p0, %d0;
"""
    body += "mov.u64 %d1, %gridid; cvt.u32.u64 %r3, %d1;" if name == "gridid" else f"mov.u32 %r3, %{name};"
    text = kernel(body + "st.global.b32 [%d0], %r3;", shared=SHARED).replace(
        "\n.visible", "\n.extern .shared .align 128 .b8 dynamic[];\n.visible"
    )
    out = torch.full((THREADS * CTAS,), -7, dtype=torch.int32)
    assert Emulator(resident_ctas=RESIDENT).load_ptx(text).launch(None, GRID, BLOCK, [out], shared=DYNAMIC).ok
    return [value % (1 << 32) for value in out.tolist()]


def test_every_special_register_is_in_the_test():
    """is_explicit_cluster, and shared_base that PTX does not have, are in execute/test_clusters.py."""
    assert {f"%{name}" for name in [*EXPECTED, "smid", "is_explicit_cluster", "shared_base"]} == set(SPECIAL_REGISTERS)


@pytest.mark.parametrize("name", EXPECTED)
def test_special_registers_follow_from_the_geometry_of_the_launch(name):
    assert read_special_register(name) == EXPECTED[name]


def test_smid_says_where_a_cta_is_resident():
    """All threads of a CTA agree, and no more values occur than CTAs can be resident."""
    found = read_special_register("smid")
    per_cta = [set(found[i : i + THREADS]) for i in range(0, len(found), THREADS)]
    assert all(len(values) == 1 for values in per_cta) and set(found) == set(range(RESIDENT))


def test_registers_begin_with_zero_where_nothing_is_looked_for():
    out = torch.ones(1, dtype=torch.int32)
    run("st.global.b32 [%p0], %r9;", out, block=1, checks=DEFAULT_CHECKS - {"uninitialised"})
    assert out.item() == 0
