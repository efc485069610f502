"""Products by tcgen05 as CuTe DSL compiles them: its descriptors and layouts, and no finding in a correct kernel."""

from __future__ import annotations

import pytest
import torch

from fuzz.devices.emulator import Emulator

MOST = 4  # of the numbers in A and B, so that sums are exact in every type
RESULTS = {"Float32": torch.float32, "Float16": torch.float16, "Int32": torch.int32}


@pytest.fixture(scope="module")
def multiply(tmp_path_factory):
    """Compiles a matrix product, runs it on whole numbers, and returns (report, result, what it should be)."""
    pytest.importorskip("cutlass")
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr
    from tcgen05_gemm import Gemm

    from kernels.blocksparse.compile.build import _compiling_for as compiling_for

    folder = tmp_path_factory.mktemp("products")  # the compiler leaves its PTX there

    def run_one(dtype, m, n, k, **options):
        gemm = Gemm(dtype, m, n, k, **options)
        pointers = [make_ptr(t, 0, cute.AddressSpace.gmem, assumed_align=16)
                    for t in (gemm.dtype, gemm.dtype, gemm.sums)]  # fmt: skip
        with compiling_for("sm_100a"):
            compiled = cute.compile(gemm, *pointers, make_fake_stream(), options=f"--keep-ptx --dump-dir={folder}")
        generator = torch.Generator().manual_seed(1)
        low = 0 if dtype is torch.uint8 else -MOST
        a, b = (torch.randint(low, MOST + 1, (rows, k), generator=generator).to(dtype) for rows in (m, n))
        out = torch.full((m, n), -99).to(RESULTS[gemm.sums.__name__])
        report = Emulator(strict=False).load(compiled)(a, b, out)
        return report, out.double(), a.double() @ b.double().T

    return run_one


def check(multiply, dtype, shape, **options):
    report, out, expected = multiply(dtype, *shape, **options)
    assert report.ok, str(report)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "swizzle", ["INTER", "SW128", *(pytest.param(s, marks=pytest.mark.nightly) for s in ("SW32", "SW64"))]
)
@pytest.mark.parametrize("major", ["k", "mn"])
def test_layouts_that_cute_makes(multiply, swizzle, major):
    check(multiply, torch.bfloat16, (128, 64, 64), a_major=major, b_major=major, a_swizzle=swizzle, b_swizzle=swizzle)


@pytest.mark.parametrize("load,repeat", [("16x64b", 4), ("16x128b", 4), ("16x256b", 2), ("16x32bx2", 4)])
def test_loads_of_16_lanes_that_cute_makes(multiply, load, repeat):
    check(multiply, torch.float16, (64, 64, 64), load=load, repeat=repeat)


@pytest.mark.parametrize(
    "dtype,shape,options",
    [
        (torch.float32, (128, 64, 32), {}),
        (torch.float32, (128, 64, 32), {"a_major": "mn", "a_swizzle": "SW128_32B"}),
        (torch.float32, (128, 64, 32), {"b_major": "mn", "b_swizzle": "SW128_32B"}),
        (torch.float8_e4m3fn, (128, 64, 128), {}),
        (torch.float8_e4m3fn, (128, 64, 128), {"a_major": "mn", "b_major": "mn", "b_swizzle": "SW64"}),
        (torch.float8_e5m2, (128, 64, 64), {"a_swizzle": "SW64", "b_swizzle": "SW32"}),
        (torch.int8, (128, 64, 128), {"sums": "Int32"}),
        (torch.uint8, (128, 32, 64), {"sums": "Int32", "a_swizzle": "SW64", "b_swizzle": "SW64"}),
        (torch.float16, (128, 64, 64), {"sums": "Float16"}),
        (torch.float16, (128, 24, 32), {"a_swizzle": "SW64", "b_swizzle": "SW64"}),
        (torch.float16, (64, 40, 32), {"load": "16x64b", "repeat": 4, "a_swizzle": "SW64", "b_swizzle": "SW64"}),
    ],
)  # fmt: skip
def test_types_and_shapes_that_cute_makes(multiply, dtype, shape, options):
    pytest.importorskip("cutlass")
    import cutlass

    sums = {"sums": getattr(cutlass, options["sums"])} if "sums" in options else {}
    check(multiply, dtype, shape, **{**options, **sums})
