"""The environment of a session, as session.json keeps it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

from fuzz.session.environment import ROOT, environment
from fuzz.session.plan import archs
from fuzz.session.records import Session, add_machine, machine, write_session
from fuzz.session.settings import Settings


def test_the_environment_has_packages_revision_and_archs(tmp_path: Path) -> None:
    settings = Settings(targets=("torch.sdpa.math", "blocksparse"), device="host")
    found = environment(archs(settings.targets, settings))
    assert found.packages["torch"] == version("torch") and found.packages["python"].startswith("3.")
    assert "nvidia-cutlass-dsl" in found.packages and found.host
    if (ROOT / ".git").exists():
        said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True)
        assert found.commit == said.stdout.strip() and found.at > 1.7e9
    assert found.archs["torch.sdpa.math"] == "host" and found.archs["blocksparse"].startswith("emulated-sm_")


def test_a_resumed_session_keeps_its_id_and_its_night(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ATTNFUZZ_NIGHT", "monday")
    session = write_session(tmp_path, Settings())
    monkeypatch.setenv("ATTNFUZZ_NIGHT", "tuesday")
    add_machine(tmp_path, session, {"t": "host"})
    kept = msgspec.json.decode((tmp_path / "session.json").read_bytes(), type=Session)
    assert (kept.id, kept.night, kept.environment.archs) == (session.id, "monday", {"t": "host"})
    assert session.id != write_session(tmp_path, Settings()).id


def test_a_password_of_the_command_line_is_not_kept(monkeypatch) -> None:
    url = "postgresql://fuzz:secret@db/ledger"
    monkeypatch.setattr(sys, "argv", ["/bin/attnfuzz", "run", "--ledger", url, f"--ledger={url}"])
    said = "postgresql://fuzz:***@db/ledger"
    assert machine()["command"] == f"attnfuzz run --ledger {said} --ledger={said}"
