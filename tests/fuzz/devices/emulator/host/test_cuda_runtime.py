"""The way in: compiled CuTe DSL functions, exported folders, and PTX text."""

import struct

import pytest
import torch
from ptx_tools import HEADER, Emulator

from fuzz.devices.emulator import ptx
from fuzz.devices.unwritten import Unwritten
from fuzz.tensors.guard_bands import Guarded

pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_ptr

from kernels.blocksparse.compile.build import _compiling_for as compiling_for


@cute.kernel
def scale_kernel(x: cute.Pointer, y: cute.Pointer, n: cutlass.Int32, by: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 64 + thread
    if i < n:
        cute.make_tensor(y, cute.make_layout(n))[i] = cute.make_tensor(x, cute.make_layout(n))[i] * by


@cute.jit
def scale(x: cute.Pointer, y: cute.Pointer, n: cutlass.Int32, by: cutlass.Float32, stream: cuda.CUstream):
    scale_kernel(x, y, n, by).launch(grid=[(n + 63) // 64, 1, 1], block=[64, 1, 1], stream=stream)
    scale_kernel(y, y, n, by).launch(grid=[(n + 63) // 64, 1, 1], block=[64, 1, 1], stream=stream)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    pointer = make_ptr(cutlass.Float32, 0, cute.AddressSpace.gmem, assumed_align=4)
    arguments = pointer, pointer, cutlass.Int32(1), cutlass.Float32(1), make_fake_stream()
    with compiling_for("sm_80"):
        folder = tmp_path_factory.mktemp("scale")  # the compiler leaves its PTX there
        return cute.compile(scale, *arguments, options=f"--keep-ptx --dump-dir={folder}")


def test_the_host_function_launches_its_kernels_in_order(compiled):
    kernel = Emulator().load(compiled)
    x, y = torch.arange(200.0), torch.zeros(200)
    report = kernel(x, y, 200, 3.0)
    assert report.launches == 2 and torch.equal(y, x * 9)
    kernel(x, y, 200, 2.0, 0)  # the stream may be given
    assert torch.equal(y, x * 4)


def test_what_is_never_written_is_seen_when_it_is_said(compiled):
    kernel = Emulator(strict=False).load(compiled)
    x, y = torch.zeros(100), torch.empty(100)
    assert kernel(x, y, 100, 1.0, uninitialised=("y",)).ok  # the first launch writes what the second one reads
    (found,) = kernel(x, y, 100, 1.0, uninitialised=("x",)).findings
    assert found.kind == "read of uninitialised memory" and found.tensor == "x[0]"


def test_what_is_allocated_counts_as_unwritten_until_torch_or_a_kernel_writes_it(compiled):
    kernel, written = Emulator(strict=False).load(compiled), Unwritten()
    with Guarded():
        x, y, z = torch.empty(100), torch.empty(100), torch.empty(100)
        assert kernel(x, y, 100, 1.0).ok  # nobody says that it is new
        (found,) = kernel(x, y, 100, 1.0, written=written).findings
        assert found.tensor == "x[0]"
        x[:50] = 1.0
        (found,) = kernel(x, z, 100, 1.0, written=written).findings
        assert found.tensor == "x[50]"
        x[50:] = float("nan")  # a number like any other
        assert kernel(x, z, 100, 1.0, written=written).ok
        assert kernel(z[10:], x, 90, 1.0, written=written).ok  # the launch before wrote it
    with Guarded():
        (found,) = kernel(torch.empty(100), torch.empty(100), 100, 1.0, written=written).findings


def test_of_other_memory_nothing_is_known() -> None:
    written = Unwritten()
    assert written(torch.empty(9)) is None
    with Guarded(poison=0):  # which numbers look like
        assert written(torch.empty(9)) is None
    with Guarded():
        assert written(torch.zeros(9)) is None
        (kept,) = {written(x) for x in torch.empty(9, dtype=torch.int16).split(3)}
        assert kept is not None and not kept.map().any()


def test_a_tensor_that_is_too_short_is_named(compiled):
    report = Emulator(strict=False).load(compiled)(torch.zeros(100), torch.zeros(90), 100, 1.0)
    assert {f.tensor.split(",")[0] for f in report.findings} == {"y"}


def test_an_exported_folder_is_loaded(compiled, tmp_path):
    compiled.export_to_c(str(tmp_path), "scale", "scale")
    with pytest.raises(ValueError, match=r"one \.ptx file, has 0"):
        Emulator().load(tmp_path)
    (tmp_path / "scale.ptx").write_text(compiled.artifacts.PTX)
    x, y = torch.arange(10.0), torch.zeros(10)
    Emulator().load(tmp_path)(x, y, 10, 2.0)
    assert torch.equal(y, x * 4)


def test_wrong_arguments_are_refused_by_name(compiled):
    kernel = Emulator().load(compiled)
    with pytest.raises(ValueError, match=r"takes 4 arguments \(x, y, n, by\), got 2"):
        kernel(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="x: wants a CPU tensor"):
        kernel(3.5, torch.zeros(1), 1, 1.0)
    with pytest.raises(ValueError, match="no argument is called 'z'"):
        kernel(torch.zeros(1), torch.zeros(1), 1, 1.0, uninitialised=("z",))
    with pytest.raises(ValueError, match="CTA 9 is not in the grid of 1"):
        kernel(torch.zeros(1), torch.zeros(1), 1, 1.0, only=[9])
    with pytest.raises(ValueError, match="resident_ctas"):
        Emulator(resident_ctas=0)


def test_registers_of_an_inner_scope_are_its_own():
    text = f"""{HEADER}
.visible .entry k(.param .u64 out) {{
.reg .b32 %r; .reg .b64 %p;
ld.param.b64 %p, [out];
mov.b32 %r, 1;
{{ .reg .b32 %r; mov.b32 %r, 2; }}
st.global.b32 [%p], %r;
ret; }}"""
    out = torch.zeros(1, dtype=torch.int32)
    Emulator().load_ptx(text).launch("k", (1,), (1,), [out])
    assert out[0] == 1


def test_module_variables_and_parameter_structs():
    text = f"""{HEADER}
.global .align 4 .b32 table[4] = {{10, 20, 30, 40}};
.visible .entry k(.param .u64 out, .param .align 4 .b8 both[8]) {{
.reg .b32 %r<4>; .reg .b64 %p, %t, %u;
ld.param.b64 %p, [out]; ld.param.b32 %r0, [both+4];
mov.b64 %u, table;
mad.wide.u32 %t, %r0, 4, %u;
ld.global.b32 %r1, [%t]; st.global.b32 [%p], %r1;
ret; }}"""
    assert [(p.offset, p.size) for p in ptx.parse(text).kernels["k"].params] == [(0, 8), (8, 8)]
    out = torch.zeros(1, dtype=torch.int32)
    Emulator().load_ptx(text).launch("k", (1,), (1,), [out, struct.pack("<ii", 9, 2)])
    assert out[0] == 30


def test_ptx_that_cannot_be_read_names_its_line():
    with pytest.raises(ptx.PtxError, match="line 5"):
        ptx.parse(HEADER + ".visible .entry k() {\nadd.s32 [a b c], 1;\n}")


@cute.kernel
def swap_kernel(x: cute.Pointer, y: cute.Pointer, ctas: cutlass.Constexpr):
    """Thread t of a CTA sends its element to thread t of the next CTA of its cluster."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    allocator = cutlass.utils.SmemAllocator()
    memory, barrier = allocator.allocate_array(cutlass.Int32, 64), allocator.allocate_array(cutlass.Int64, 1)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, 256)
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()
    mine = cute.make_tensor(x, cute.make_layout(1 << 16))[block * 64 + thread]
    cute.arch.store_async_dsmem(memory + thread, mine, barrier, (rank + 1) % ctas)
    cute.arch.mbarrier_wait(barrier, 0)
    cute.make_tensor(y, cute.make_layout(1 << 16))[block * 64 + thread] = cute.make_tensor(
        memory, cute.make_layout(64)
    )[thread]


@cute.jit
def swap(x: cute.Pointer, y: cute.Pointer, n: cutlass.Int32, stream: cuda.CUstream):
    swap_kernel(x, y, 4).launch(grid=[n // 64, 1, 1], block=[64, 1, 1], cluster=[4, 1, 1], stream=stream)


def test_a_launch_with_clusters(tmp_path):
    pointer = make_ptr(cutlass.Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
    with compiling_for("sm_90a"):
        arguments = pointer, pointer, cutlass.Int32(1), make_fake_stream()
        kernel = Emulator().load(cute.compile(swap, *arguments, options=f"--keep-ptx --dump-dir={tmp_path}"))
    for schedule in ("in_order", "random", "oldest_last"):
        x, y = torch.arange(512, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
        report = kernel(x, y, 512, emulator=Emulator(warp_schedule=schedule, strict=False))
        assert report.ok, str(report)
        assert torch.equal(y, x.view(2, 4, 64).roll(1, 1).flatten())
    with pytest.raises(ValueError, match=r"grid: \(3, 1, 1\) is no multiple of the cluster"):
        kernel(x, y, 192)
