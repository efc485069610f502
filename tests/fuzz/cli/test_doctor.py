"""The doctor's table: every probe answers, a broken one is a line and no traceback, and every remedy a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fuzz.cli import doctor
from fuzz.cli.doctor import TABLE, Check, Machine, checks, render


@pytest.fixture(scope="module")
def found():
    return checks()


def test_every_line_of_the_table_is_answered(found):
    assert [check.name for check in found] == [name for name, _, _ in TABLE]
    assert all(check.value for check in found)
    assert all(check.remedy for check in found if check.status != "ok")


def test_what_the_tests_run_on_is_not_missing(found):
    wanted = {"Python", "torch", "triton", "hypothesis", "import kernels", "import oracles", "corpus"}
    assert {check.name for check in found if check.status == "missing"} & wanted == set()


def test_the_text_has_a_line_per_check_and_remedies_below():
    text = render([Check("torch", "missing", "not installed", "pip install torch"), Check("disk", "ok", "1 GiB free")])
    assert text.splitlines() == [
        "MISSING  torch  not installed",
        "                → pip install torch",
        "ok       disk   1 GiB free",
        "missing: torch",
    ]


def test_a_probe_that_raises_is_a_warning():
    def broken(_):
        raise RuntimeError("no such thing")

    check = doctor._check("x", broken, "mend it", Machine({}, [], ""))
    assert check == Check("x", "warning", "could not be looked at: RuntimeError: no such thing", "mend it")


def test_a_cpu_build_of_torch_beside_a_gpu_is_missing():
    machine = Machine({"version": "2", "cuda": None, "threads": 2, "devices": []}, ["NVIDIA X, 9.0, 1 MiB, 570"], "")
    assert doctor._torch(machine)[0] == "missing"
    assert doctor._devices(machine) == ("missing", "torch sees none of 1 GPUs")
    assert doctor._driver(machine) == ("ok", "driver 570")


@pytest.mark.parametrize(("installed", "status"), [("3.6.0", "warning"), ("3.9.0", "ok"), ("3.60.0", "ok")])
def test_a_triton_that_makes_wrong_kernels_is_a_warning(monkeypatch, installed, status):
    monkeypatch.setattr(doctor, "version", lambda name: installed)
    found = doctor._triton(Machine({}, ["NVIDIA X, 9.0, 1 MiB, 570"], ""))
    assert (found[0], "on the GPU" in found[1], "wrong kernels" in found[1]) == (status, True, status == "warning")


def test_a_torch_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    machine = Machine.look()
    status, text = doctor._torch(machine)
    assert status == "missing" and "libcudart.so.13" in text


def test_a_probe_has_a_limit():
    text, error = doctor._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert text == "" and "timed out" in error


def test_the_doctor_does_not_import_torch():
    code = "import sys, fuzz.cli.doctor; fuzz.cli.doctor.Machine; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
