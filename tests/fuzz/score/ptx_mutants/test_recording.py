"""Recorded launches: a kernel that does the same to the byte, and kernels that do not."""

import pytest
import torch

from fuzz.devices.emulator.api import run
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.state.global_memory import Memory, Written
from fuzz.score.ptx_mutants.recording import Recorder, read
from fuzz.targets.blocksparse.devices import emulator_there

pytestmark = pytest.mark.skipif(not emulator_there(), reason="needs the emulator")
BUDGET = 1000
PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.b32 %r1, 7;
    ld.global.b32 %r3, [%rd1+128];
    LOOP:
    st.global.b32 [%rd1], %r1;
    ret;
}
"""


@pytest.fixture
def launches(tmp_path):
    """A launch that writes 32 words of 7 where they are already, but count as unwritten; reads 32 others."""
    tensor = torch.full((64,), 7, dtype=torch.int32)
    written = Written(tensor.data_ptr(), 256)
    written.map()[128:] = 1
    memory = Memory()
    address = memory.add("x", tensor, written)
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, address.to_bytes(8, "little"))
    recorder = Recorder(tmp_path / "case")
    for _ in range(2):
        recorder.launching(LaunchConfig(), launch, memory)
        recorder.launched("key", run(LaunchConfig(), Programs(PTX), [launch], memory))
    recorder.close()
    return read(tmp_path / "case")


def test_a_launch_is_replayed_as_it_was(launches):
    assert [one.key for one in launches] == ["key", "key"]
    assert not any(one.differs(Programs(PTX), BUDGET) for one in launches)
    report, same = launches[0].run(Programs(PTX), BUDGET)
    assert same
    assert report.reached == launches[0].reached


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%r1, 7;", "%r1, 8;"),
        ("[%rd1], %r1", "[%rd1+132], %r1"),
        ("[%rd1+128];", "[%rd1+4];"),
        ("ret;", "bra LOOP;"),
    ],
    ids=["another value", "out of bounds", "uninitialised", "endless"],
)
def test_a_launch_that_does_something_else_differs(launches, before, after):
    assert before in PTX
    assert all(one.differs(Programs(PTX.replace(before, after)), BUDGET) for one in launches[:1])


def test_a_store_that_is_missing_differs_though_the_bytes_are_the_same(launches):
    dropped = Programs(PTX.replace("st.global.b32 [%rd1], %r1;", ""))
    first, second = launches
    assert first.differs(dropped, BUDGET)
    assert not second.differs(dropped, BUDGET)  # the words are written already


def test_launches_that_are_too_large_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.score.ptx_mutants.recording.LARGEST", 100)
    memory = Memory()
    memory.add("x", torch.zeros(64, dtype=torch.int32))
    recorder = Recorder(tmp_path / "case")
    recorder.launching(LaunchConfig(), Launch("k", (1, 1, 1), (32, 1, 1), 0, b""), memory)
    recorder.close()
    assert read(tmp_path / "case") is None
    assert read(tmp_path / "another") is None
