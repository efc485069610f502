"""`attnfuzz fleet`, as far as it needs no cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.cli.exit_codes import USAGE
from fuzz.cli.main import main


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fuzz.fleet.cluster", raising=False)
    assert main(["fleet", "--device", "host", "--cases", "10"]) == USAGE
    said = capsys.readouterr().err
    assert (
        said.startswith("attnfuzz: attnfuzz fleet needs Ray: pip install 'attnfuzz[fleet]'") and said.count("\n") == 1
    )


def test_resume_keeps_the_settings_of_its_session(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["fleet", "--resume", str(tmp_path), "--cases", "10"]) == USAGE
    assert "--resume goes on with the settings of its session: leave out --cases" in capsys.readouterr().err
    assert main(["fleet", "--resume", str(tmp_path)]) == USAGE
    assert "no session's folder" in capsys.readouterr().err
