"""The README holds true: its commands run, its kernel is wrong as it says, its files and make targets exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import msgspec
import pytest
import warm_start

from docs.generate.registry import fill
from fuzz.cli.parsers import parser
from fuzz.core.case import Case, from_json
from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.devices import emulator_there, toolchain_there
from fuzz.targets.registry import load
from oracles.masks import Causal, Tokens
from oracles.problem import Problem

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.M | re.S)


def script(name: str) -> str:
    """The Python file that the README shows under this name."""
    (block,) = (block for block in blocks("python") if block.startswith(f"# {name}"))
    return block


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my_attention.py"
    file.write_text(script("my_attention.py"))
    return load("mine", (str(file),))


def run(case: Case, target):
    return execute(msgspec.structs.replace(case, repeats=1), target, lambda phase, seconds: None)


def test_a_kernel_of_ones_own_takes_ten_lines():
    assert len([line for line in script("my_attention.py").splitlines() if line.strip()]) <= 10


def test_the_kernel_of_the_readme_is_right_where_every_row_has_a_key(mine):
    case = Case("mine", Problem((9,), (9,), 4, 2, 16, 16, "float32", mask=Causal()))
    assert run(case, mine).outcome == "pass"


def test_the_kernel_of_the_readme_is_wrong_where_it_says(mine):
    case = Case("mine", Problem((3,), (4,), 1, 1, 8, 8, "float32", mask=Tokens(("1011", "0000", "0111"))))
    verdict = run(case, mine)
    assert verdict.outcome == "fail" and any(finding.tensor == "o" for finding in verdict.findings)


@pytest.mark.nightly
@pytest.mark.skipif(not (toolchain_there() and emulator_there()), reason="needs the toolchain and the emulator")
def test_block_sparse_attention_by_itself_runs_as_the_readme_has_it(tmp_path):
    """On the emulated GPU, and smaller."""
    text = script("attend.py")
    for large, small in (
        ('"cuda"', '"cpu"'),
        ("8192", "200"),
        ("2047", "99"),
        ("1, 16,", "1, 4,"),
        ("=16,", "=4,"),
        ("128", "64"),
    ):
        assert large in text
        text = text.replace(large, small)
    file = tmp_path / "attend.py"
    connected = "from fuzz.targets.blocksparse.devices import connect\n\nconnect('emulator')\n"
    file.write_text(connected + text + "\nprint(*out.shape, bool(q.grad.isfinite().all()))\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = warm_start.run([str(file)], env=environment)
    assert done.stdout.split() == ["1", "4", "200", "64", "True"], done.stderr


def test_the_case_of_the_readme_is_a_case():
    (block,) = blocks("json")
    case = from_json(block)
    assert run(case, load(case.target)).outcome == "pass"  # on any machine


COMMANDS = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()]
ATTNFUZZ = [command for command in COMMANDS if command.startswith("attnfuzz")]
# Where the README says FILE or CASE, and what keeps a command short here. The rest of a command runs as it stands.
STAND_INS = {
    "corpus/regressions/FILE.json": str(ROOT / "corpus/regressions/torch.sdpa.math_nan_no_keys.json"),
    "CASE.json": str(ROOT / "corpus/regressions/torch.sdpa.math_nan_no_keys.json"),
    "ci/cases/lock_is_n_block.json": str(ROOT / "ci/cases/lock_is_n_block.json"),
    "--cases 2000": "--cases 6",
    "--cases 200": "--cases 6",
    "--fuzz-cases 2000": "--fuzz-cases 6 --fuzz-size small",
    "-n auto fuzz": f"-n 0 {ROOT / 'fuzz'} -p no:cacheprovider",
    "pytest": f"{sys.executable} -m pytest",
    "attnfuzz": f"{sys.executable} -m fuzz.cli",
}


@pytest.mark.parametrize("command", ATTNFUZZ)
def test_commands_of_the_readme_parse(command):
    parsed = parser().parse_args(shlex.split(command)[1:])
    assert callable(parsed.command)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(("attnfuzz", "pytest"))])
def test_commands_of_the_readme_run(command, tmp_path):
    """Each ends with exit code 0, or with 1 where there is something to find."""
    for shown, used in STAND_INS.items():
        command = command.replace(shown, used, 1)
    (tmp_path / "my_attention.py").write_text(script("my_attention.py"))
    copytree(ROOT / "corpus", tmp_path / "corpus")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=850
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pytest")])
def test_pytest_options_of_the_readme_exist(command, pytestconfig):
    known = {name for group in pytestconfig._parser._groups for option in group.options for name in option.names()}
    for option in re.findall(r"--fuzz-[a-z-]+", command):
        assert option in known, option


MAKE = re.findall(r"`make ([a-z0-9]+)", README) + re.findall(r"^step ([a-z]+)", (ROOT / ".ci/run").read_text(), re.M)
MAKE += [command.split()[1] for command in COMMANDS if command.startswith("make ")]


@pytest.mark.parametrize("target", sorted(set(MAKE)))
def test_make_targets_that_are_named_exist(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.M)


def test_every_make_target_is_in_its_help():
    phony = next(line for line in MAKEFILE.splitlines() if line.startswith(".PHONY:")).split()[1:]
    assert all(re.search(rf"^{target}:.*## \S", MAKEFILE, re.M) for target in phony)


def test_files_that_are_named_exist():
    named = re.findall(r"`((?:fuzz|oracles|kernels|corpus|ci|tests)/[\w./]*)`", README)
    named += re.findall(r"\]\(((?!https?:)[^)#]+)", README)
    for name in named:
        assert (ROOT / name).exists() or "FILE" in name, name


def test_the_readme_takes_three_minutes():
    assert len(README.splitlines()) <= 190


def test_figures_of_the_readme_are_those_of_the_results():
    assert fill(README) == README, "python -m docs.generate --write README.md"
