"""Programs in the cache folder: found again as they were decoded, decoded anew where a file is not whole."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ptx_tools import kernel

from fuzz.devices.emulator import Emulator, programs, ptx
from fuzz.devices.emulator.programs import Programs

TEXT = kernel("add.s32 %r0, %t, 5; st.global.b32 [%p0], %r0;")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_folder", lambda: tmp_path)
    monkeypatch.setattr(programs, "SECONDS", 0.0)
    return tmp_path


@pytest.fixture
def nothing_is_decoded(folder, monkeypatch):
    """Once called, reading and decoding fail."""

    def refuse(*_):
        raise AssertionError("decoded")

    def begin():
        monkeypatch.setattr(ptx, "parse", refuse)
        monkeypatch.setattr(programs, "decode", refuse)

    return begin


def test_another_process_finds_what_was_decoded(nothing_is_decoded):
    first = Programs(TEXT).get("k")
    nothing_is_decoded()
    found = Programs(TEXT).get("k")
    assert np.array_equal(found.code, first.code)
    assert np.array_equal(found.constants, first.constants)
    assert [i.text for i in found.source] == [i.text for i in first.source]
    assert (found.kernel, found.registers, found.places) == (first.kernel, first.registers, first.places)


def test_a_program_that_was_found_runs(nothing_is_decoded):
    Programs(TEXT).get("k")
    nothing_is_decoded()
    out = torch.full((1,), -1, dtype=torch.int32)
    report = Emulator(strict=False).load_ptx(TEXT).launch(None, (1,), (1,), [out])
    assert report.ok
    assert out.tolist() == [5]


def test_further_forms_of_a_kernel_come_into_the_same_file(folder, nothing_is_decoded):
    forms = [("k", False, "as_written"), ("k", True, "as_written"), ("k", False, "first")]
    for form in forms:
        Programs(TEXT).get(*form)
    assert len([*folder.glob("*.program")]) == 1
    nothing_is_decoded()
    found = Programs(TEXT)
    assert [found.get(*form).clustered for form in forms] == [False, True, False]


def test_further_names_of_kernels_are_not_kept(folder):
    """C++ has names of its own for kernels: those that one user gives are none of the text's."""
    first = Programs(TEXT)
    first.module.kernels["f"] = replace(first.kernel("k"), name="f")
    first.get("f")
    assert not [*folder.glob("*.program")]
    first.get("k")
    found = Programs(TEXT)
    assert list(found.module.kernels) == ["k"] and {name for name, *_ in found.decoded} == {"k"}


def test_another_text_has_another_file(folder):
    for text in (TEXT, TEXT.replace("add.s32", "sub.s32")):
        Programs(text).get("k")
    assert len([*folder.glob("*.program")]) == 2


def test_a_file_that_is_not_whole_is_decoded_anew(folder):
    first = Programs(TEXT).get("k")
    (file,) = folder.glob("*.program")
    file.write_bytes(file.read_bytes()[:-50])
    assert np.array_equal(Programs(TEXT).get("k").code, first.code)
    assert [*folder.glob("*.program")] == [file]


def test_what_takes_no_time_to_decode_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(programs, "SECONDS", 60.0)
    Programs(TEXT).get("k")
    assert not [*folder.glob("*.program")]


def test_mutants_are_not_kept(folder):
    Programs(TEXT, kept=False).get("k")
    assert not [*folder.iterdir()]
