"""The README holds true: its kernel is wrong as it says, its case is a case, its commands and make targets exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from fuzz.case import Case, from_json
from fuzz.cli import _parser
from fuzz.judge import execute
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


def test_the_narrower_target_of_the_readme_is_a_target(tmp_path):
    file = tmp_path / "narrow.py"
    file.write_text(script("narrow.py"))
    assert load("flash_attn.cute", (str(file),), "cuda").support.dim == (64, 128, 64)


def test_the_case_of_the_readme_is_a_case():
    (block,) = blocks("json")
    case = from_json(block)
    assert run(case, load(case.target)).outcome == "pass"  # on any machine


COMMANDS = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("attnfuzz")])
def test_commands_of_the_readme_parse(command):
    parsed = _parser().parse_args(shlex.split(command)[1:])
    assert callable(parsed.command)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pytest")])
def test_pytest_options_of_the_readme_exist(command, pytestconfig):
    for option in re.findall(r"--fuzz-[a-z-]+", command):
        assert option in {name for o in _options(pytestconfig) for name in o}, option


def _options(config) -> list[list[str]]:
    return [option.names() for group in config._parser._groups for option in group.options]


MAKE = re.findall(r"`make ([a-z]+)", README) + re.findall(r"^step ([a-z]+)", (ROOT / ".ci/run").read_text(), re.M)
MAKE += [command.split()[1] for command in COMMANDS if command.startswith("make ")]


@pytest.mark.parametrize("target", sorted(set(MAKE)))
def test_make_targets_that_are_named_exist(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.M)


def test_every_make_target_is_in_its_help():
    phony = next(line for line in MAKEFILE.splitlines() if line.startswith(".PHONY:")).split()[1:]
    assert all(re.search(rf"^{target}:.*## \S", MAKEFILE, re.M) for target in phony)


def test_files_that_are_named_exist():
    for name in re.findall(r"`((?:fuzz|oracles|kernels|corpus|ci|tests)/[\w./]*)`", README):
        assert (ROOT / name).exists() or "FILE" in name, name
