"""The plan for a B200: its commands exist, with these options; a machine without such a GPU is refused."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fuzz.cli.parsers import parser
from fuzz.corpus.store import load_all

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "ci" / "b200.py"


def b200(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("options", [(), ("--emulated",), ("--cases", "40", "--jobs", "2", "--arch", "sm_103a")])
def test_the_plan_is_of_commands_that_exist(options: tuple[str, ...]) -> None:
    shown = b200("--dry-run", *options)
    assert shown.returncode == 0, shown.stderr
    commands = [shlex.split(line.split(" > ")[0]) for line in shown.stdout.splitlines() if not line.startswith("#")]
    subcommands = []
    for command in commands:
        assert command[0] == "python"
        if command[1:3] == ["-m", "fuzz.cli.main"]:
            subcommands.append(parser().parse_args(command[3:]))
        elif command[1] == "-m":
            assert (ROOT / command[2].replace(".", "/")).with_suffix(".py").exists()
        else:
            assert (ROOT / command[1]).exists()
    assert len(commands) == (11 if "--emulated" in options else 12) and len(subcommands) == len(commands) - 3
    # every session's kernels are compiled, for the cases that it draws
    drawn: dict[str, set[tuple]] = {"compile": set(), "run": set()}
    named = [command[3] for command in commands if command[1:3] == ["-m", "fuzz.cli.main"]]
    for name, given in zip(named, subcommands, strict=True):
        if name in drawn:
            drawn[name].add((*given.target, given.cases, given.seed, given.size, *given.target_file))
    assert len(drawn["run"]) == 3 and drawn["compile"] == drawn["run"]
    cases = {target: number for target, number, *_ in drawn["run"]}
    main = cases.pop("blocksparse.tcgen05")
    assert cases == {f"blocksparse.tcgen05_{name}": -(-main // 10) for name in ("pairs", "cta_pairs")}
    assert "b200/b200.jsonl.gz" in shown.stdout.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_refused(tmp_path: Path) -> None:
    refused = b200("--out", str(tmp_path / "out"))
    assert refused.returncode == 2 and "no CUDA GPU" in refused.stderr and not (tmp_path / "out").exists()


def test_the_list_is_of_published_configurations_by_tcgen05(tmp_path: Path) -> None:
    assert b200("--write-list", str(tmp_path)).returncode == 0
    entries = load_all(tmp_path)
    assert len(entries) > 80 and {entry.case.variant["products"] for entry in entries} == {"tcgen05"}
    assert {entry.name for entry in entries} <= {path.name for path in (ROOT / "corpus" / "must_pass").glob("*.json")}
