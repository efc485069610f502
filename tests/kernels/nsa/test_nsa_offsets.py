"""Offsets beyond 2 ** 31 elements: one CTA of the window of 2,200,000 tokens, on the emulated GPU."""

from __future__ import annotations

import mmap

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")


from fuzz.devices.emulator import EmulationError, Emulator
from fuzz.targets.blocksparse.devices import connect, emulated
from kernels.mutants.nsa.table import MUTANTS
from kernels.nsa.api import checked
from kernels.nsa.branches import Branch
from kernels.nsa.operands import readable_operands
from kernels.nsa.selection import Selection

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
LENGTH, HEADS, DIM, WINDOW = 2_200_000, 8, 128, 70  # rows of 1,024 elements: 2 ** 31 lies before the last 102,848
NORESERVE = 0x4000  # MAP_NORESERVE of Linux: memory is committed where it is touched
SHAPE = (1, LENGTH, HEADS, DIM)


def reserved(*shape, dtype=torch.bfloat16):
    """Zeros that take no memory until they are written."""
    size = torch.Size(shape).numel() * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype).view(shape)


def last_rows(injection):
    """(rows that the first CTA of the last head wrote, their output, and what the formula says)."""
    q, k, v = (reserved(*SHAPE) for _ in range(3))
    first = LENGTH - 2 * 128
    generator = torch.Generator().manual_seed(0)
    for x in (q, k, v):
        x[0, first:, -1] = torch.randn(LENGTH - first, DIM, generator=generator).to(x.dtype)
    operands, _ = checked(q, k, v, window_size=WINDOW, q_tile_size=128, injection=injection)
    branch = Branch("window", readable_operands(operands), Selection(torch.empty(0)), k, v)
    blocks = branch.lists(backward=False)
    out, lse = reserved(*SHAPE), reserved(1, HEADS, LENGTH, dtype=torch.float32)
    emulated().begin(Emulator(), only=((HEADS - 1) * blocks.m_blocks,))  # the longest rows come first
    operands.launcher.forward(
        (q, k, v), (out, lse), branch.sequences(), blocks, operands.settings.scale, operands.settings.steps.attention
    )
    rows = int((lse[0, -1, first:] != 0).sum())
    near_q, near_k, near_v = (x[0, first:, -1].double() for x in (q, k, v))
    away = torch.arange(LENGTH - first)[:, None] - torch.arange(LENGTH - first)
    scores = (near_q @ near_k.T * DIM**-0.5).masked_fill((away < 0) | (away >= WINDOW), -torch.inf)
    return rows, out[0, -rows:, -1].double(), (scores.softmax(-1) @ near_v)[-rows:]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    from kernels.blocksparse.compile import runtime
    from kernels.blocksparse.launch import forward

    monkeypatch.setattr(forward, "UNEVEN_L2_BYTES", 1)  # the tiles of one head after those of another one

    before = runtime._elsewhere
    connect("emulator")
    runtime.launch_elsewhere(emulated())
    yield
    emulated().begin(Emulator())
    runtime.launch_elsewhere(before)


def test_rows_beyond_two_billion_elements_are_right():
    rows, got, want = last_rows("")
    assert 0 < rows <= 128
    assert float((got - want).abs().max()) < 0.01 * float(want.abs().max())


@pytest.mark.nightly
def test_an_offset_that_wraps_is_found():
    assert "row_offset_wraps" in MUTANTS
    with pytest.raises(EmulationError, match="index that overflowed 32 bits"):
        last_rows("nsa!row_offset_wraps")
