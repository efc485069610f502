"""Tests that need compiled Triton run in a process of their own where this one interprets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm_start
from compiled_triton import mode_kept

from fuzz.process import triton_mode
from fuzz.process.triton_mode import VARIABLE
from fuzz.targets.registry import targets

GENERATED = str(Path(__file__).resolve().parents[1] / "ci" / "blocksparse_tcgen05.py")
CONFTEST = "from compiled_triton import send_away\ndef pytest_collection_modifyitems(items): send_away(items)\n"
TESTS = """
import os
import pytest

@pytest.fixture
def made():
    return os.environ.get("TRITON_INTERPRET", "")

@pytest.mark.compiled_triton
@pytest.mark.parametrize("expected", ["", "1"])
def test_sent(made, expected):
    assert made == expected

@pytest.mark.compiled_triton
def test_skipped():
    pytest.skip("for a reason")

def test_stays(made):
    assert made == "1"
"""


@pytest.fixture
def run(tmp_path):
    """One run of these four tests where TRITON_INTERPRET has a value, or is not set."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = compiled_triton\naddopts = -ra\ntimeout = 60\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent / "support"), *sys.path))

    def run(value):
        environment.pop(VARIABLE, None)
        environment.update({VARIABLE: value} if value else {})
        done = warm_start.run(["-m", "pytest", "-p", "no:xdist", str(tmp_path)], cwd=tmp_path, env=environment)
        return done.stdout

    return run


def test_marked_tests_and_their_fixtures_have_no_interpreter(run):
    out = run("1")
    assert "1 failed, 2 passed, 1 skipped" in out
    assert "for a reason" in out and "in a process of its own" in out


def test_they_stay_where_nothing_interprets(run):
    out = run("")
    assert "2 failed, 1 passed, 1 skipped" in out  # of the two that fail one wants the interpreter
    assert "in a process of its own" not in out


@pytest.mark.parametrize("value", ["0", "1", None])
def test_targets_of_the_emulated_gpu_change_the_mode_of_one_test_alone(value, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value:
        monkeypatch.setenv(VARIABLE, value)
    before = triton_mode._chosen
    with mode_kept():
        targets((GENERATED,), "emulator")
        assert VARIABLE not in os.environ and triton_mode._chosen == "emulated"
    assert os.environ.get(VARIABLE) == value and triton_mode._chosen == before
