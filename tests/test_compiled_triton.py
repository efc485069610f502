"""Tests that need compiled Triton run in a process of their own where this one interprets."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start

from fuzz.process.triton_mode import VARIABLE

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

SET_BETWEEN = """
import os
import pytest

def test_sets():
    os.environ["TRITON_INTERPRET"] = "1"

@pytest.mark.compiled_triton
def test_sent():
    assert "TRITON_INTERPRET" not in os.environ
"""
IMPORTED_BETWEEN = """
import os
import pytest

def test_imports(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    import triton.language

@pytest.mark.compiled_triton
def test_sent():
    from fuzz.process.triton_mode import interprets
    import triton.language
    assert not interprets()
"""


@pytest.fixture
def run(tmp_path):
    """One run of these tests where TRITON_INTERPRET has a value, or is not set."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = compiled_triton\naddopts = -ra\ntimeout = 60\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent / "support"), *sys.path))

    def run(value, tests=TESTS):
        (tmp_path / "test_it.py").write_text(tests)
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


def test_a_test_before_them_may_set_the_mode_in_the_midst_of_a_run(run):
    assert "2 passed" in run("", SET_BETWEEN)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_a_test_before_them_may_import_triton_in_that_mode(run):
    assert "2 passed" in run("", IMPORTED_BETWEEN)
