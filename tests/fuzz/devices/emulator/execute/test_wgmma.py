"""Products of a warpgroup (wgmma): right results from every layout, and a finding for each way to use them wrongly.

test_micro_kernels.py holds each form to what a GPU answered.
"""

import pytest
import torch
from ptx_tools import kinds

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import DEFAULT_CHECKS
from fuzz.devices.emulator.conformance import wgmma as micro_wgmma

PROXY = "shared memory read by wgmma without fence.proxy.async"
EARLY = "register of a wgmma used before wait_group"
UNFENCED = "register of a wgmma used without wgmma.fence"
TOGETHER = "warps of a warpgroup at different wgmma"
LANES = "operand of a wgmma differs between lanes"
FENCE, COMMIT, WAIT = (f"wgmma.{what};" for what in ("fence.sync.aligned", "commit_group.sync.aligned",
                                                     "wait_group.sync.aligned 0"))  # fmt: skip
PRODUCT = micro_wgmma.kernel("product", micro_wgmma.Wgmma(16))
BEGIN = "setp.ne.b32 %q, %x, 0;"  # what comes right before the fence


def run(*changes, kernel=PRODUCT, **options):
    """The kernel with pieces of its text replaced: each (old, new), old being there once."""
    text = kernel.text
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    given = torch.from_numpy(kernel.inputs[0].reshape(-1).view("int32"))
    out = torch.zeros(kernel.threads * kernel.words, dtype=torch.int32)
    emulator = Emulator(**{"strict": False, **options})
    return emulator.load_ptx(text).launch("k", (1,), (128,), [given, out])


def found(*changes, **options):
    return kinds(run(*changes, **options))


def test_a_product_that_keeps_the_rules_is_no_finding():
    assert run().ok


@pytest.mark.parametrize("schedule", ["in_order", "random", "greedy"])
def test_shared_memory_written_without_a_proxy_fence(schedule):
    gone = ("fence.proxy.async;", "")
    assert found(gone, warp_schedule=schedule) == {PROXY}
    assert run(gone, checks=DEFAULT_CHECKS - {"races"}).ok


def test_a_proxy_fence_before_the_last_write_does_not_cover_it():
    assert found(("bar.sync 0;", "st.shared.b32 [%sp], %x; bar.sync 0;")) == {PROXY}


def test_a_proxy_fence_after_the_barrier_covers_all_that_it_orders():
    assert run(("fence.proxy.async; bar.sync 0;", "bar.sync 0; fence.proxy.async.shared::cta;")).ok


def test_a_proxy_fence_of_global_memory_is_none_of_shared():
    assert found(("fence.proxy.async;", "fence.proxy.async.global;")) == {PROXY}


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last"])
def test_shared_memory_written_without_a_barrier(schedule):
    assert "race: read of an unordered write" in found(("bar.sync 0;", ""), warp_schedule=schedule) | found(
        ("bar.sync 0;", ""), warp_schedule="greedy"
    )


@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_a_product_of_the_whole_warpgroup_needs_no_barrier(schedule):
    """Without the check wgmma_warps it begins when all warps have executed wgmma.fence, and ends for all at once."""
    together = {"checks": DEFAULT_CHECKS - {"wgmma_warps"}, "warp_schedule": schedule}
    assert run(("bar.sync 0;", ""), **together).ok
    overwritten = (WAIT, f"{WAIT} st.shared.b32 [%sp], %x;")
    assert run(overwritten, **together).ok
    assert found(("bar.sync 0;", ""), (WAIT, f"st.shared.b32 [%sp], %x; {WAIT}"), **together)


def test_a_warp_that_its_warpgroup_waits_for():
    away = ("wgmma.fence.sync.aligned;", "setp.lt.u32 %q0, %thread, 96; @!%q0 bra.uni $L; wgmma.fence.sync.aligned;")
    end = (WAIT, f"{WAIT} $L: bar.sync 0;")
    changes = (away, end, (".reg .pred %q;", ".reg .pred %q, %q0;"))
    report = run(*changes, checks=DEFAULT_CHECKS - {"wgmma_warps"})
    assert report.status == "deadlock"
    assert "for the products of its warpgroup's other warps" in str(report.deadlock)
    assert run(*changes).status == "finished"


@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_shared_memory_overwritten_before_the_group_is_waited_for(barrier):
    write = f"{barrier} st.shared.b32 [%sp], %x; {WAIT}"
    assert found((WAIT, write)) & {"race: write over an unordered read", "race: read of an unordered write"}
    after = f"{WAIT} bar.sync 0; st.shared.b32 [%sp], %x;"
    assert run((WAIT, after)).ok


def test_a_warp_overwrites_what_its_own_product_reads():
    """Only the first warp, of memory that holds its own rows of A."""
    write = f"setp.eq.b32 %q, %thread, 0; @%q st.shared.b32 [%sp], %x; {WAIT}"
    (seen,) = run((WAIT, write)).findings
    assert (
        seen.kind == "race: write over an unordered read"
        and seen.warp == 0
        and "a wgmma of the same warp" in seen.detail
    )
    assert run((WAIT, write), checks=DEFAULT_CHECKS - {"races"}).ok


def test_an_asynchronous_copy_into_what_a_product_reads():
    copy = f"cp.async.ca.shared.global [%sp], [%a], 4; {WAIT} cp.async.wait_all;"
    assert "race: write over an unordered read" in found((WAIT, copy))


def test_shared_memory_that_nothing_has_written():
    one = micro_wgmma.kernel("moved", micro_wgmma.Wgmma(16, b=micro_wgmma.Matrix(start=1024)))
    first = one.text.index("st.shared.b32")
    text = one.text[first : one.text.index(";", first) + 1]
    assert "read of uninitialised memory" in found((text, ""), kernel=one)


def test_a_descriptor_that_leads_out_of_shared_memory():
    assert "out of bounds of shared memory" in found(("add.s32 %x, %sa, 8192;", "add.s32 %x, %sa, 15360;"))


def test_accumulators_used_before_the_wait():
    early = f"add.f32 %x, %r0, %r0; {WAIT}"
    (seen,) = run((WAIT, early)).findings[:1]
    assert seen.kind == EARLY and seen.instruction.startswith("add.f32")
    assert found((WAIT, "")) == {EARLY}
    assert run((WAIT, early), checks=DEFAULT_CHECKS - {"warpgroups"}).ok
    assert found((COMMIT, "")) == {EARLY}  # the wait is for groups that were committed


def test_registers_of_a_used_before_the_wait():
    one = micro_wgmma.kernel("registers", micro_wgmma.Wgmma(8, a=None))
    a = "%r4"  # after the four accumulators
    assert found((WAIT, f"mov.b32 {a}, 0; {WAIT}"), kernel=one) == {EARLY}
    assert run((WAIT, f"{WAIT} mov.b32 {a}, 0;"), kernel=one).ok


def test_a_move_in_flight_takes_the_wait_with_it():
    declare = (".reg .pred %q;", ".reg .pred %q; .reg .b32 %y;")
    assert run(declare, (WAIT, f"mov.b32 %y, %r0; {WAIT} add.f32 %y, %y, %y;")).ok
    assert found(declare, (WAIT, f"mov.b32 %y, %r0; add.f32 %y, %y, %y; {WAIT}")) == {EARLY}
    unpacked = (".reg .pred %q;", ".reg .pred %q; .reg .b16 %y, %z;")
    assert run(unpacked, (WAIT, f"mov.b32 {{%y, %z}}, %r0; {WAIT} add.s16 %y, %y, %z;")).ok
    assert found(unpacked, (WAIT, f"mov.b32 {{%y, %z}}, %r0; add.s16 %y, %y, %z; {WAIT}")) == {EARLY}


def test_a_wait_leaves_the_last_groups_in_flight():
    again = PRODUCT.text[PRODUCT.text.index("wgmma.mma") : PRODUCT.text.index(COMMIT) + len(COMMIT)]
    other = again.replace("{%r0", "{%y").replace("%r1,", "%r9,", 1)
    declare = (".reg .pred %q;", ".reg .pred %q; .reg .b32 %y, %r9;")
    wait = WAIT.replace(" 0", " 1")
    use = "add.f32 %x, {}, {};"
    assert run(declare, (WAIT, f"{FENCE} {other} {wait} {use.format('%r0', '%r0')} {WAIT}")).ok
    assert found(declare, (WAIT, f"{FENCE} {other} {wait} {use.format('%y', '%y')} {WAIT}")) == {EARLY}


def test_a_path_that_is_not_taken_is_no_finding():
    skipped = f"setp.gt.u32 %q, %thread, 500; @!%q bra OVER; add.f32 %x, %r0, %r0; OVER: {WAIT}"
    assert run((WAIT, skipped)).ok
    taken = skipped.replace("gt.u32 %q, %thread, 500", "lt.u32 %q, %thread, 500")
    assert found((WAIT, taken)) == {EARLY}


def test_the_first_product_wants_a_fence():
    assert found((FENCE, "")) == {UNFENCED}
    assert run((FENCE, ""), checks=DEFAULT_CHECKS - {"warpgroups"}).ok


def test_accumulators_written_after_the_fence():
    late = f"{FENCE} mov.b32 %r0, 0;"
    assert found((FENCE, late)) == {UNFENCED}
    assert run((FENCE, f"mov.b32 %r0, 0; {FENCE}")).ok
    skipped = f"{FENCE} setp.gt.u32 %q, %thread, 500; @!%q bra OVER; mov.b32 %r0, 0; OVER: {BEGIN}"
    assert run((f"{BEGIN} {FENCE}", skipped)).ok


def test_a_move_after_the_fence_of_what_was_set_before_it():
    declare = (".reg .pred %q;", ".reg .pred %q; .reg .b32 %y;")
    assert run(declare, (FENCE, f"mov.b32 %y, 0; {FENCE} mov.b32 %r0, %y;")).ok
    assert found(declare, (FENCE, f"mov.b32 %y, 0; {FENCE} mov.b32 %y, 1; mov.b32 %r0, %y;")) == {UNFENCED}
    assert found(declare, (FENCE, f"mov.b32 %y, 0; {FENCE} add.s32 %y, %y, 1; mov.b32 %r0, %y;")) == {UNFENCED}
    assert found(declare, (WAIT, f"mov.b32 %y, 0; mov.b32 %r0, %y; {WAIT}")) == {EARLY}


def test_products_of_one_shape_into_the_same_accumulators_want_no_fence_in_between():
    again = PRODUCT.text[PRODUCT.text.index("wgmma.mma") : PRODUCT.text.index(COMMIT)]
    assert run((COMMIT, f"{again} {COMMIT}")).ok


@pytest.mark.parametrize("schedule", ["in_order", "oldest_last"])
def test_a_warp_that_leaves_a_product_out(schedule):
    skip = (FENCE, f"setp.gt.u32 %q, %thread, 95; @%q ret; {BEGIN} {FENCE}")
    seen = run(skip, warp_schedule=schedule).findings
    assert {f.kind for f in seen} == {TOGETHER} and "warp 3 of its warpgroup never issues" in seen[0].detail
    assert run(skip, checks=DEFAULT_CHECKS - {"warpgroups"}).ok


def test_warps_of_a_warpgroup_with_other_descriptors():
    other = "setp.gt.u32 %q, %thread, 95; selp.b64 %db, %da, %db, %q;"
    assert TOGETHER in found((f"{BEGIN} {FENCE}", f"{other} {BEGIN} {FENCE}"))


def test_lanes_of_a_warp_with_other_descriptors():
    other = "setp.eq.b32 %q, %thread, 5; selp.b64 %db, %da, %db, %q;"
    assert LANES in found((f"{BEGIN} {FENCE}", f"{other} {BEGIN} {FENCE}"))


def test_a_product_by_some_lanes_is_a_finding():
    some = f"{BEGIN} {FENCE}"
    assert "lanes missing at a .sync instruction" in found((some, f"setp.eq.b32 %q, %thread, 7; @%q ret; {some}"))


# ---- as CuTe DSL compiles them


@pytest.fixture(scope="module")
def multiply(tmp_path_factory):
    """Compiles a matrix product, runs it on small integers, and returns (report, result, what it should be)."""
    pytest.importorskip("cutlass")
    from cutlass import Float32, cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr
    from wgmma_gemm import Gemm

    from kernels.blocksparse.compile.build import _compiling_for as compiling_for

    folder = tmp_path_factory.mktemp("products")  # the compiler leaves its PTX there

    def run_one(dtype, m, n, k, **options):
        gemm = Gemm(dtype, m, n, k, **options)
        pointers = [make_ptr(t, 0, cute.AddressSpace.gmem, assumed_align=16)
                    for t in (gemm.dtype, gemm.dtype, Float32)]  # fmt: skip
        with compiling_for("sm_90a"):
            compiled = cute.compile(gemm, *pointers, make_fake_stream(), options=f"--keep-ptx --dump-dir={folder}")
        generator = torch.Generator().manual_seed(1)
        a, b = (torch.randint(-5, 6, (rows, k), generator=generator).to(dtype) for rows in (m, n))
        out = torch.full((m, n), float("nan"))
        report = Emulator(strict=False).load(compiled)(a, b, out)
        return report, out, a.float() @ b.float().T

    return run_one


@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_layouts_that_cute_makes(multiply, swizzle, major):
    options = {"a_major": major, "b_major": major, "a_swizzle": swizzle, "b_swizzle": swizzle}
    report, out, expected = multiply(torch.bfloat16, 64, 64, 64, **options)
    assert report.ok and torch.equal(out, expected)


@pytest.mark.parametrize(
    "dtype,shape,options",
    [
        (torch.float16, (64, 128, 32), {"a_registers": True, "b_major": "mn"}),
        (torch.bfloat16, (128, 256, 64), {}),  # two warpgroups
        (torch.bfloat16, (64, 8, 16), {"b_swizzle": "INTER", "a_swizzle": "INTER"}),
        (torch.float16, (64, 96, 64), {"a_major": "mn"}),
    ],
)
def test_products_that_cute_makes(multiply, dtype, shape, options):
    report, out, expected = multiply(dtype, *shape, **options)
    assert report.ok and torch.equal(out, expected)


def test_sums_in_half_precision_that_cute_makes(multiply):
    from cutlass import Float16

    report, out, expected = multiply(torch.float16, 64, 32, 32, sums=Float16)
    assert report.ok and torch.equal(out, expected)  # the compiler unpacks accumulators in flight
