"""A function and all that it calls, compiled as one program by another process, and loaded here."""

from __future__ import annotations

import importlib
import sys

import pytest

from fuzz.devices.emulator.state.whole_program import compile_apart, is_cached

MODULE = '''
from numba import njit

@njit
def half(x):
    return x // 2 if x else 0

@njit
def steps(x):
    n = 0
    while x > 1:
        x = half(x) if x % 2 == 0 else 3 * x + 1
        n += 1
    return n

@njit
def both(x):
    return 1000 * half(x) + steps(x)

def run(x):
    """Callers come before and after what they call in the order in which numba meets them."""
    return both(x) + half(x)

run = njit(cache=True)(run)
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"collatz_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    yield name
    for made in (name, f"{name}_copy"):
        sys.modules.pop(made, None)


def test_another_process_leaves_the_whole_program_in_the_cache(module, tmp_path):
    assert compile_apart(module, "run")
    assert len(list(tmp_path.glob("cache/**/*.nbc"))) == 1
    from numba import config

    before, config.CACHE_DIR = config.CACHE_DIR, str(tmp_path / "cache")
    try:
        run = importlib.import_module(module).run
        (tmp_path / f"{module}_copy.py").write_text(MODULE)
        copy = importlib.import_module(f"{module}_copy").run
    finally:
        config.CACHE_DIR = before
    assert is_cached(run) and not is_cached(copy), "numba keeps code by the file's path"
    assert run(27) == 1000 * 13 + 111 + 13
    assert sum(run.stats.cache_hits.values()) == 1, "it was compiled here"


def test_what_cannot_be_compiled_is_told(module):
    assert not compile_apart(module, "no_such_function")
    assert not compile_apart("no_such_module", "run")


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_without_another_process_nothing_is_compiled(module, executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    assert not compile_apart(module, "run")
