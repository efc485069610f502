"""CUDA C++ kernels on the emulated GPU: what they compute, what is found, and what is refused."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzz.devices.emulator import Cuda, CudaCompileError, Report, Unimplemented, emulated

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia.cu13") is None, reason="needs NVRTC: pip install 'attnfuzz[cuda]'"
)
AXPY = """
__device__ int calls = 5;
__constant__ float bias[2] = {0.5f, 0.25f};

__global__ void axpy(const float* __restrict__ x, float* y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
    if (i == 0) { atomicAdd(&calls, 1); y[0] += bias[1]; }
}
"""


def launch(
    source: str, *args: Any, grid: Any = 1, block: Any = 32, name: str | None = None, shared: int = 0, **more: Any
) -> Report:
    """One launch in a block of its own; what it finds is in the report."""
    with emulated("sm_90a", triton=False, strict=False, **more):
        return Cuda(source).kernel(grid, block, name=name, shared=shared)(*args)


def test_tensors_and_numbers_reach_the_kernel() -> None:
    x, y = torch.randn(100), torch.randn(100)
    want = 2 * x + y
    want[0] += 0.25
    report = launch(AXPY, x, y, np.float32(2), np.int64(100), grid=4)
    assert report.ok and report.kernel == "axpy" and torch.equal(y, want)


def test_variables_keep_their_values_between_launches() -> None:
    cuda, y = Cuda(AXPY), torch.zeros(4)
    with emulated("sm_90a", triton=False):
        for _ in range(2):
            cuda.kernel(1, 4)(torch.ones(4), y, 1.0, 4)
        assert cuda.variable("calls", torch.int32).tolist() == [7]
        cuda.variable("bias", torch.float32)[1] = 100
        cuda.kernel(1, 4)(torch.ones(4), y, 0, 4)
    assert y[0] == 2 + 0.5 + 100
    with pytest.raises(ValueError, match=r"no variable 'bios'; it has .*calls"):
        cuda.variable("bios")


def test_a_finding_names_parameter_source_line_and_kernel() -> None:
    report = launch(AXPY, torch.zeros(10), torch.zeros(12), 1.0, 12)
    (found,) = report.findings
    assert "lane 10 reads 4 bytes at x, 0 bytes past its end (40 bytes long)" in str(found)
    assert "(kernel axpy, kernel.cu:8, PTX line" in str(found)


def test_an_access_out_of_bounds_is_dropped_reads_zero_and_the_kernel_goes_on() -> None:
    y = torch.ones(12)
    report = launch(AXPY, torch.ones(10), y, 1.0, 12)
    assert report.status == "finished" and y.tolist() == [2.25, *[2] * 9, 1, 1]


def test_a_kernel_of_several_is_named_and_templates_are_instantiated() -> None:
    source = """
    namespace ns { template <typename T, int N> __global__ void fill(T* x, T value) { x[threadIdx.x] = value * N; } }
    __global__ void one(int* x) { *x = 1; }
    __global__ void two(int* x) { *x = 2; }
    """
    x = torch.zeros(1, dtype=torch.int32)
    assert launch(source, x, block=1, name="two").ok and x.item() == 2
    y = torch.zeros(8, dtype=torch.float64)
    assert launch(source, y, 1.5, block=8, name="ns::fill<double, 4>").ok and y.tolist() == [6.0] * 8
    with pytest.raises(ValueError, match=r"kernel\.cu: name the kernel; it has one, two"):
        launch(source, x)
    with pytest.raises(CudaCompileError, match="three"):
        launch(source, x, name="three")


def test_dynamic_shared_memory_and_barriers() -> None:
    source = """
    extern __shared__ int held[];
    __global__ void reversed(int* x) {
        held[threadIdx.x] = x[threadIdx.x];
        BARRIER
        x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
    }
    """
    x = torch.arange(64, dtype=torch.int32)
    assert launch(source.replace("BARRIER", "__syncthreads();"), x, block=64, shared=256).ok
    assert x.tolist() == list(range(63, -1, -1))
    without = launch(source.replace("BARRIER", ""), x, block=64, shared=256).findings
    assert "race: read of an unordered write" in {one.kind for one in without if one.source == "kernel.cu:6"}
    with pytest.raises(ValueError, match="shared: 300000 bytes"):
        launch(source, x, shared=300000)


def test_functions_that_the_compiler_calls() -> None:
    source = """
    __device__ __noinline__ float horner(float x, const float* c, int n) {
        float r = 0;
        for (int i = 0; i < n; i++) r = r * x + c[i];
        return r;
    }
    struct Pair { float a, b; };
    __device__ __noinline__ Pair both(Pair p) { return {p.b, horner(p.a, &p.b, 1)}; }
    __global__ void f(float* x, const float* c, double* d) {
        int i = threadIdx.x;
        float v = x[i];
        if (i & 1) { Pair p = both({v, 2.0f}); v = p.a + p.b; } else v = horner(v, c, 3);
        x[i] = v;
        d[i] = sin(d[i]);  // libdevice: a function for large arguments
    }
    """
    x, c, d = torch.arange(8.0), torch.tensor([1.0, 2, 3]), 1e9 * torch.arange(8, dtype=torch.float64)
    want = [float(i * i + 2 * i + 3) if i % 2 == 0 else 4.0 for i in range(8)]
    turns = torch.sin(d)
    assert launch(source, x, c, d, block=8).ok and x.tolist() == want
    assert torch.allclose(d, turns, rtol=0, atol=1e-15)


def test_a_finding_in_a_function_names_the_line_of_its_call() -> None:
    source = """
    __device__ __noinline__ void called(float* x, int i) {
        x[i] = 1;
    }
    __device__ void inlined(float* x, int i) {
        x[i] = 2;
    }
    __global__ void f(float* x) {
        called(x, 4);
        inlined(x, 5);
    }
    """
    report = launch(source, torch.zeros(4), block=1)
    places = ["kernel.cu:3 inlined at kernel.cu:9", "kernel.cu:6 inlined at kernel.cu:10"]
    assert [one.source for one in report.findings] == places


def test_what_a_kernel_prints_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    source = """
    #include <cstdio>
    __global__ void f(const double* x) {
        if (threadIdx.x < 2) printf("%d: %6.2f %s %lld %c 100%%\\n", threadIdx.x, x[threadIdx.x], "text", -1LL, 'c');
        if (threadIdx.x == 2) printf("plain %*d|%-6x|\\n", 5, 42, 255u);
    }
    """
    report = launch(source, torch.tensor([1.5, -2.25], dtype=torch.float64))
    assert report.printed == "0:   1.50 text -1 c 100%\n1:  -2.25 text -1 c 100%\nplain    42|ff    |\n"
    assert capsys.readouterr().out == report.printed


def test_a_failed_assertion_is_a_finding() -> None:
    source = "#include <cassert>\n__global__ void f(int* x) {\n  assert(x[threadIdx.x] == 0);\n}"
    report = launch(source, torch.arange(4, dtype=torch.int32), block=4)
    (found,) = report.findings
    assert found.kind == "trap" and "fails an assertion" in found.detail and found.source == "kernel.cu:3"


def test_structs_halves_and_null_pointers() -> None:
    class Shape(ctypes.Structure):
        _fields_ = (("rows", ctypes.c_int), ("scale", ctypes.c_double), ("name", ctypes.c_char * 3))

    source = """
    #include <cuda_fp16.h>
    struct Shape { int rows; double scale; char name[3]; };
    extern "C" __global__ void f(float* x, Shape s, __half h, const float* nothing, bool flag) {
        x[0] = s.rows * s.scale + s.name[1] + __half2float(h) + (nothing == nullptr) * 100 + flag * 1000;
    }
    """
    x = torch.zeros(1)
    assert launch(source, x, Shape(3, 0.5, b"abc"), 0.25, None, True, block=1).ok
    assert x.item() == 1.5 + ord("b") + 0.25 + 100 + 1000
    with pytest.raises(ValueError, match="s: is Shape, 24 bytes, got 3 bytes"):
        launch(source, x, b"abc", 0.25, None, True)
    with pytest.raises(ValueError, match="s: is a struct of 24 bytes, got 1"):
        launch(source, x, 1, 0.25, None, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.zeros(2), torch.zeros(2), 1.0), r"takes 4 arguments \(float\* x, float\* y, float a, int n\), got 3"),
        ((torch.zeros(2), torch.zeros(2).int(), 1.0, 2), r"y: is float\*, got a tensor of torch.int32; wants torch"),
        ((torch.zeros(2), 7, 1.0, 2), r"y: is float\*, wants a CPU tensor or None, got int"),
        ((torch.zeros(2), torch.zeros(2), torch.zeros(2), 2), "a: is float, got a tensor"),
        ((torch.zeros(2), torch.zeros(2), 1.0, 2.5), "n: is int, got 2.5"),
        ((torch.zeros(2), torch.zeros(2), 1.0, 1 << 40), "n: is int, 4 bytes, which 1099511627776 does not fit"),
        ((torch.zeros(2), torch.zeros(2), "1", 2), "a: is float, got str"),
        ((torch.zeros(2, device="meta"), torch.zeros(2), 1.0, 2), "x: the emulator runs on CPU tensors, got one on m"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launch(AXPY, *args)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for grid, block, what in ((0, 1, "grid"), (1, (1, 1, 1, 1), "block"), (1, 2.0, "block")):
        with pytest.raises(ValueError, match=f"{what}: wants one to three positive integers"):
            Cuda(AXPY).kernel(grid, block)


def test_kernels_run_inside_a_block_only() -> None:
    with pytest.raises(ValueError, match=r"Cuda: kernels run inside a block `with emulated\(\"sm_90a\"\):`"):
        Cuda(AXPY).kernel(1, 1)(None, None, 1.0, 0)


def test_errors_of_the_compiler_have_the_lines_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("\n__global__ void f(float* x) {\n  *x = y;\n}\n")
    with emulated("sm_90a", triton=False), pytest.raises(CudaCompileError) as raised:
        Cuda(file).kernel(1, 1)(torch.zeros(1))
    assert 'mine.cu(3): error: identifier "y" is undefined' in str(raised.value)


def test_options_headers_and_arch() -> None:
    source = '#include "size.h"\n__global__ void f(int* x) { *x = SIZE * TILE + __CUDA_ARCH__; }'
    x = torch.zeros(1, dtype=torch.int32)
    with emulated("sm_90a", triton=False):
        Cuda(source, arch="sm_80", options=["-DTILE=7"], headers={"size.h": "#define SIZE 6"}).kernel(1, 1)(x)
    assert x.item() == 42 + 800


def test_what_is_not_emulated_says_so() -> None:
    recursion = "__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
    with pytest.raises(Unimplemented, match=r"calls a function that cannot be put in place of the call.*fib"):
        launch(recursion + "__global__ void f(int* x) { *x = fib(*x); }", torch.ones(1, dtype=torch.int32))
    pointer = "__device__ int g(int a) { return a; }\n__global__ void f(int* x, int (*h)(int)) { *x = h(*x); }"
    with pytest.raises(Unimplemented, match="calls through a pointer"):
        launch(pointer, torch.ones(1, dtype=torch.int32), None)


@pytest.mark.parametrize(("contraction", "sign"), [("as_written", 0), ("first", 1), ("second", -1)])
def test_a_difference_of_equal_products_is_0_where_none_of_them_is_fused(contraction: str, sign: int) -> None:
    source = """
    __global__ void squares(const float* x, float* y)
    {
        y[0] = x[0] * x[0] - x[1] * x[1];
        y[1] = __fsub_rn(__fmul_rn(x[0], x[0]), __fmul_rn(x[1], x[1]));  // never fused
    }
    """
    x, y = torch.tensor([0.3, 0.3]), torch.full((2,), 7.0)
    launch(source, x, y, block=1, contraction=contraction)
    rounding = float(x[0].double() ** 2 - (x[0] * x[0]).double())
    assert rounding and y.tolist() == [sign * rounding, 0.0]
