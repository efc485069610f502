"""The manual: its commands parse, its code runs, and its pages build without a warning."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzz.cli.parsers import parser
from fuzz.core.case import Case, from_json
from fuzz.judging.judge import execute
from fuzz.runner import Runner
from fuzz.targets.registry import load
from oracles.masks import Full, Mask, Tokens
from oracles.numerics import EAGER
from oracles.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FULL = Full()
TUTORIAL = {"mine": "pytorch", "fixed": "pytorch", "half": "pytorch", "triton": "triton", "cute": "cute_dsl"}


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands() -> list[str]:
    lines = (
        line.split("  #")[0].strip()
        for page in PAGES
        for kind in ("sh", "yaml")
        for b in blocks(page, kind)
        for line in b.replace("\\\n", " ").splitlines()
    )
    found = (re.search(r"(?:^|/)(attnfuzz .*)", line) for line in lines)
    return sorted({match[1] for match in found if match})


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_manual_parse(command):
    assert callable(parser().parse_args(shlex.split(command)[1:]).command)


def tutorial(name: str, folder: Path) -> Path:
    """The file of the tutorial that declares target `name`, written into `folder`."""
    page = DOCS / "tutorial" / f"{TUTORIAL[name]}.md"
    (text,) = (block for block in blocks(page, "python") if re.search(rf'@target\(\s*"{name}"', block))
    file = folder / f"{name}_attention.py"
    file.write_text(text)
    return file


def outcome(name: str, folder: Path, lengths: tuple[int, int], backward: bool = True, mask: Mask = FULL) -> str:
    """The verdict's outcome for a case with two heads."""
    dtype = "bfloat16" if name == "half" else "float32"
    problem = Problem((lengths[0],), (lengths[1],), 2, 2, 16, 16, dtype, mask=mask, backward=backward)
    with Runner("host", files=(str(tutorial(name, folder)),)) as runner:
        return runner.run(Case(name, problem, repeats=1)).outcome


@pytest.mark.parametrize("name", ["mine", "fixed", "half"])
def test_functions_of_the_tutorial_are_right_where_rows_have_keys(name, tmp_path):
    assert outcome(name, tmp_path, (5, 9)) == "pass"


def test_the_function_that_the_tutorial_corrects_is_wrong_where_rows_have_no_key(tmp_path):
    assert outcome("mine", tmp_path, (5, 0)) == "pass"  # a softmax over nothing: the rows below are what is wrong
    masked = Tokens(("110", "000", "011"))
    assert outcome("mine", tmp_path, (3, 3), mask=masked) == "fail"
    assert outcome("fixed", tmp_path, (3, 3), mask=masked) == "pass"


def test_the_tutorials_half_precision_function_declares_how_it_rounds(tmp_path):
    assert load("half", (str(tutorial("half", tmp_path)),)).numerics == EAGER


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["triton", "cute"])
def test_kernels_of_the_tutorial_are_right_but_without_keys(name, tmp_path, monkeypatch):
    """In Triton's interpreter and on the emulated GPU, as on a machine without a GPU."""
    pytest.importorskip({"triton": "triton", "cute": "cutlass"}[name])
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    if name == "cute":
        load(name, (str(tutorial(name, tmp_path)),))  # as `attnfuzz run` does: what is compiled once is not timed
    assert outcome(name, tmp_path, (20, 33), backward=False) == "pass"
    assert outcome(name, tmp_path, (20, 0), backward=False) == "fail"


def test_the_narrower_target_of_the_manual_is_a_target(tmp_path):
    (text,) = blocks(DOCS / "how_to/flash_attention_4.md", "python")
    file = tmp_path / "narrow.py"
    file.write_text(text)
    assert load("flash_attn.cute", (str(file),), "cuda").support.dim == (64, 128, 64)


def test_the_case_of_the_manual_is_a_case():
    (text,) = blocks(DOCS / "reference/case_format.md", "json")
    case = from_json(text)
    assert execute(msgspec.structs.replace(case, repeats=1), load(case.target), lambda p, s: None).outcome == "pass"


def test_files_that_the_manual_names_exist():
    for page in (page for page in PAGES if page.name != "log.md"):
        for name in re.findall(r"`((?:fuzz|oracles|kernels|corpus|ci|tests)/[\w./]*)`", page.read_text()):
            assert (ROOT / name).exists() or "FILE" in name, f"{page.relative_to(ROOT)} names {name}"


@pytest.mark.nightly
def test_the_manual_builds_without_a_warning(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site/measurements.html").read_text()
    assert "prints this table" not in page and "ci/results/" in page
    for file in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', file.read_text())
        assert not fetched, f"{file.name} fetches from outside"
