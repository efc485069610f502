"""Machine code of kernels on disk: kept whole, found again, compiled once it pays."""

import pytest
import torch
from ptx_tools import kernel

from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.translate import compiled

BODY = (
    "mul.wide.u32 %d0, %t, 4; add.s64 %d0, %p0, %d0; mov.b32 %r0, 5; mul.lo.s32 %r0, %r0, %t; st.global.b32 [%d0], %r0;"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    return tmp_path


def launch(translate):
    """(a fresh module that has run the kernel once, its result)"""
    module = Emulator(translate=translate).load_ptx(kernel(BODY))
    out = torch.zeros(32, dtype=torch.int32)
    module.launch(None, (1,), (32,), [out])
    return module, out


def table(module):
    return module.programs.translation("k").tables[1]


def test_machine_code_is_kept_and_found_again(folder):
    launch("always")
    (file,) = folder.glob("*.o")
    module, out = launch("auto")
    assert table(module).any()
    assert out.tolist() == [5 * i for i in range(32)]
    assert [*folder.glob("*.o")] == [file]


def test_a_file_that_is_not_whole_is_not_loaded(folder):
    launch("always")
    (file,) = folder.glob("*.o")
    file.write_bytes(file.read_bytes()[:-100])
    module, out = launch("auto")
    assert table(module) is None
    assert not file.exists()
    assert out.tolist() == [5 * i for i in range(32)]


def test_a_kernel_is_translated_when_it_has_run_for_longer_than_that_takes(folder, monkeypatch):
    module, out = launch("auto")
    assert table(module) is None
    monkeypatch.setattr(compiled, "SECONDS_EACH", 0.0)
    module.launch(None, (1,), (32,), [out])
    assert table(module).any()
    assert len([*folder.glob("*.o")]) == 1


def test_never_means_never(folder):
    launch("always")
    module, _ = launch("never")
    assert table(module) is None


def test_another_kernel_has_another_file(folder):
    launch("always")
    module = Emulator(translate="always").load_ptx(kernel(BODY.replace("5", "6")))
    module.launch(None, (1,), (32,), [torch.zeros(32, dtype=torch.int32)])
    assert len([*folder.glob("*.o")]) == 2


def test_of_a_large_kernel_the_runs_that_ran_most_are_translated(folder, monkeypatch):
    monkeypatch.setattr(compiled, "LARGEST", 4)
    monkeypatch.setattr(compiled, "SECONDS_EACH", 0.0)
    body = """mov.b32 %r1, 0; mov.b32 %r3, 0; mov.b32 %r4, 0; mov.b32 %r5, 0;
    $loop: add.s32 %r1, %r1, 1; setp.lt.s32 %q0, %r1, 9; @%q0 bra $loop;
    add.s32 %r3, %r3, %r4; add.s32 %r5, %r5, %r3;"""
    module = Emulator(translate="auto").load_ptx(kernel(body))
    for _ in range(2):
        module.launch(None, (1,), (32,), [torch.zeros(1)])
    translated = table(module)
    (loop,) = (int(row[2]) for row in module.programs.get("k").code if row[0] == op.BRANCH)
    assert translated[loop]
    assert 0 < (translated != 0).sum() < 3
