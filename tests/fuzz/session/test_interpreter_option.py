"""`--device interpreter` in `attnfuzz run` and `--fuzz-device interpreter` in pytest, from outside."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start

from fuzz.session.records import Reader

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = {"target": "sdpa!falls_back", "cases": "2", "repeats": "1", "size": "small", "corpus": ""}


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (["-m", "fuzz.cli.main", "run", "--jobs", "1"], "--"),
        pytest.param(["-m", "pytest", "-p", "no:cacheprovider", "fuzz"], "--fuzz-", marks=pytest.mark.nightly),
    ],
    ids=["run", "pytest"],
)
def test_a_session_runs_in_the_interpreter_where_it_is_asked_to(
    tmp_path: Path, command: list[str], prefix: str
) -> None:
    """The mutant launches no kernel of its own, so that this costs little."""
    options = OPTIONS | {"device": "interpreter", "output-dir": str(tmp_path)}
    given = [f"{prefix}{name}={value}" for name, value in options.items()] + [f"{prefix}no-minimize"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm_start.run([*command, *given], cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads((tmp_path / "session.json").read_text())["settings"]["device"] == "interpreter"
    assert "fail" in {record.outcome for record in Reader(tmp_path).new()}
