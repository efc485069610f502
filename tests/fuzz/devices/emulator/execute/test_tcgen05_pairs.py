"""Products of a pair of CTAs by tcgen05 (.cta_group::2) as CuTe DSL compiles them, and with planted bugs."""

from __future__ import annotations

import re

import pytest
import torch

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.decode.decoder import Unimplemented

SCHEDULES = ["in_order", "random", "oldest_last", "greedy"]
K = 64


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a product once; `compiled(dtype, m, n, …)` is the kernel as CuTe DSL gives it."""
    pytest.importorskip("cutlass")
    from cutlass import Float32, cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr
    from tcgen05_pair_gemm import PairGemm

    from kernels.blocksparse.compile.build import _compiling_for as compiling_for

    folder = tmp_path_factory.mktemp("pairs")  # the compiler leaves its PTX there
    known = {}

    def compile_one(*settings):
        if settings not in known:
            dtype, m, n, *others = settings
            gemm = PairGemm(dtype, m, n, K, *others)
            pointers = [make_ptr(t, 0, cute.AddressSpace.gmem, assumed_align=16)
                        for t in (gemm.dtype, gemm.dtype, Float32)]  # fmt: skip
            with compiling_for("sm_100a"):
                known[settings] = cute.compile(
                    gemm, *pointers, make_fake_stream(), options=f"--keep-ptx --dump-dir={folder}"
                )
        return known[settings]

    return compile_one


def multiply(kernel, dtype, m, n, change=None, **options):
    """(report, result, what it should be) of the product, with its PTX changed by a function."""
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, (rows, K), generator=draw).to(dtype) for rows in (m, n))
    out = torch.full((m, n), -99.0)
    emulator = Emulator(strict=False, **options)
    instead = emulator.load_ptx(change(str(kernel.artifacts.PTX))) if change else None
    return emulator.load(kernel)(a, b, out, instead=instead), out, a.float() @ b.float().T


@pytest.mark.parametrize(
    ("dtype", "m", "n", "majors"),
    [
        (torch.bfloat16, 256, 128, ()),
        (torch.float16, 256, 64, ("mn", "mn")),
        (torch.bfloat16, 128, 128, ()),
        (torch.float16, 128, 64, ("k", "mn")),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_of_two_ctas(compiled, dtype, m, n, majors, schedule):
    report, out, expected = multiply(compiled(dtype, m, n, *majors), dtype, m, n, warp_schedule=schedule)
    assert report.ok, str(report)
    assert torch.equal(out, expected)


def without(text, which=0):
    """Takes out the lines that have a text, or the one of that number."""

    def change(ptx):
        lines = ptx.split("\n")
        found = [i for i, line in enumerate(lines) if text in line]
        assert found, text
        del lines[found[which]]
        return "\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda ptx: ptx.replace("barrier.cluster.arrive", "barrier.cluster.arrive.relaxed", 1).replace(
            "relaxed.release", "relaxed"), {"race: read of an unordered write"}),
        (without("fence.proxy.async"), {"shared memory read by tcgen05 without fence.proxy.async"}),
        (without("tcgen05.dealloc"), {"tensor memory never freed"}),
    ],
)  # fmt: skip
def test_a_safeguard_that_is_taken_out(compiled, change, kinds):
    for schedule in SCHEDULES:
        report, _, _ = multiply(
            compiled(torch.bfloat16, 256, 128), torch.bfloat16, 256, 128, change, warp_schedule=schedule
        )
        assert {f.kind for f in report.findings} & kinds, str(report)


def test_a_commit_that_tells_one_cta_only(compiled):
    def change(ptx):
        changed, n = re.subn(r"(mov\.b16\s+%rs\d+, )3;(\s+tcgen05\.commit)", r"\g<1>1;\2", ptx)
        assert n == 1
        return changed

    report, _, _ = multiply(compiled(torch.bfloat16, 256, 128), torch.bfloat16, 256, 128, change)
    assert report.status == "deadlock"
    assert "no CTA of the cluster has arrived at it" in str(report.deadlock)


def test_a_kernel_with_instructions_of_one_cta_and_of_two(compiled):
    def change(ptx):
        return ptx.replace("tcgen05.dealloc.cta_group::2", "tcgen05.dealloc.cta_group::1")

    with pytest.raises(Unimplemented, match=r"tcgen05\.dealloc.*in a kernel with others of \.cta_group::2"):
        multiply(compiled(torch.bfloat16, 256, 128), torch.bfloat16, 256, 128, change)


def test_a_pair_that_does_nothing_after_one_that_multiplied(compiled):
    """In the places of the first pair: what that one did is no access to the memory of the second."""

    def change(ptx):
        text, n = re.subn(
            r"(\s)(ld\.param)",
            r"\1{ .reg .pred %later; .reg .b32 %own; mov.u32 %own, %clusterid.x; setp.gt.u32 %later, %own, 0;"
            r" @%later ret; } \2",
            ptx,
            count=1,
        )
        assert n == 1
        return text

    kernel = compiled(torch.bfloat16, 256, 128, "k", "k", 3)
    for schedule in SCHEDULES:
        report, out, expected = multiply(
            kernel, torch.bfloat16, 256, 128, change, resident_ctas=2, warp_schedule=schedule
        )
        assert report.ok, str(report)
        assert torch.equal(out, expected)


def test_an_alloc_that_the_other_cta_does_not_come_to(compiled):
    """The warp of the odd CTA leaves before its alloc."""

    def change(ptx):
        text, n = re.subn(
            r"(\s)(tcgen05\.alloc)",
            r"\1{ .reg .pred %odd; .reg .b32 %own; mov.u32 %own, %cluster_ctarank; setp.eq.u32 %odd, %own, 1;"
            r" @%odd ret; } \2",
            ptx,
        )
        assert n == 1
        return text

    report, _, _ = multiply(compiled(torch.bfloat16, 256, 128), torch.bfloat16, 256, 128, change)
    assert report.status == "deadlock"
    assert "for the tcgen05.alloc of the other CTA of its pair" in str(report.deadlock)
