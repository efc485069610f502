"""`attnfuzz repro --trace`: a case's timeline comes back from the process that ran it, also where it deadlocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.cli.exit_codes import FINDINGS, OK, USAGE
from fuzz.cli.main import main
from fuzz.core.case import Case, Inputs, to_json
from fuzz.targets.blocksparse.devices import emulator_there
from oracles.masks import Causal
from oracles.problem import Problem

PROBLEM = Problem((260,), (260,), 1, 1, 64, 64, "float16", mask=Causal())
needs_emulator = pytest.mark.skipif(not emulator_there(), reason="needs the emulated GPU")


def repro(folder: Path, target: str, *more: str, **variant) -> tuple[int, Path]:
    """Exit code of repro --trace, and where the trace went."""
    case, trace = folder / "case.json", folder / "trace.json"
    case.write_text(to_json(Case(target, PROBLEM, Inputs(), variant, repeats=2)))
    return main(["repro", str(case), "--device", "host", "--trace", str(trace), *more]), trace


@pytest.mark.nightly
@needs_emulator
def test_a_deadlock_s_picture_says_who_waits_for_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, trace = repro(tmp_path, "blocksparse!rank_direction", tile_m=64, tile_n=64, slots=2)
    assert code == FINDINGS and "trace.json" in capsys.readouterr().err
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.partition("_")[0] for name in kernels] == ["forward", "preprocess", "backward"]
    stuck = {e["name"] for e in events if "forever" in e["name"] and e["cat"] == "wait"}
    # n_block 2 should come first to m_block 2, and has no slot; what n_block 1 added to m_block 1 is released
    first = "waits for semaphores[b 0, h 0, m 2] = 0 to become 1, forever"
    assert stuck == {first, "waits for semaphores[b 0, h 0, m 2] = 0 to become 2, forever"}
    picture = trace.with_suffix(".svg").read_text()
    assert first in picture and "3 CTAs never started" in picture


@pytest.mark.nightly
@needs_emulator
def test_of_a_case_that_passes_the_first_run_is_kept(tmp_path: Path) -> None:
    code, trace = repro(tmp_path, "blocksparse", tile_m=64, tile_n=64, slots=2)
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [e["args"]["name"].partition("_")[0] for e in events if e["name"] == "process_name"]
    assert code == OK and kernels == ["forward", "preprocess", "backward", "postprocess"]
    assert not any("forever" in e["name"] for e in events)


@pytest.mark.parametrize(("target", "why"), [("sdpa", "launched by Triton"), ("torch.sdpa.math", "runs on host")])
def test_other_targets_keep_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, why: str):
    code, trace = repro(tmp_path, target)
    assert code == USAGE and not trace.exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and why in error and "on the emulated GPU" in error
