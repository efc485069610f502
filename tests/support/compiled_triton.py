"""Tests marked `compiled_triton` need Triton without its interpreter, which a process has or has not for its life.

The kernels' own tests set TRITON_INTERPRET when they are collected. In a process with it, a marked test runs in a
process of its own, which is one of pytest for this one test; elsewhere it runs as any other. A test that loads targets
for the emulated GPU unsets the variable: every test leaves it as it was. The plugin is part of tests/conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import warm_start

from fuzz.process import triton_mode
from fuzz.process.triton_mode import VARIABLE

MARK = "compiled_triton"
_SKIPPED = "SKIPPED ["


def send_away(items: Iterable[pytest.Item]) -> None:
    """Marked tests of a process that interprets run, with their fixtures, in processes of their own."""
    if os.environ.get(VARIABLE, "0") == "0":
        return
    for item in items:
        if item.get_closest_marker(MARK):
            item.setup = lambda: None  # type: ignore[method-assign]
            item.runtest = partial(_run_elsewhere, item)  # type: ignore[method-assign]


@contextmanager
def mode_kept() -> Iterator[None]:
    """The variable, and what was chosen by loading targets, are afterwards what they were."""
    kept, chosen = os.environ.get(VARIABLE), triton_mode._chosen
    yield
    triton_mode._chosen = chosen
    os.environ.pop(VARIABLE, None)
    os.environ.update({} if kept is None else {VARIABLE: kept})


def _run_elsewhere(item: pytest.Item) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment.pop(VARIABLE, None)  # a fixture of a wider scope may have unset it
    limit = float(item.config.getini("timeout") or 300)
    done = warm_start.run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", item.nodeid],
        cwd=item.config.rootpath,
        env=environment,
        timeout=limit,
    )
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout}\n{done.stderr}", pytrace=False)
    if _SKIPPED in done.stdout:
        pytest.skip(done.stdout.partition(_SKIPPED)[2].splitlines()[0].partition("] ")[2])
