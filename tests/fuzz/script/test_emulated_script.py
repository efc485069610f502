"""Scripts of targets on the emulated GPU: they run the kernel there, and print what it finds."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start

from fuzz.core.case import Case, Inputs, to_json
from fuzz.core.case import load as load_case
from fuzz.script import write_script
from fuzz.targets.registry import load
from oracles.masks import Causal
from oracles.problem import Problem

ROOT = Path(__file__).resolve().parents[3]
MINE = """\
import torch
import triton
import triton.language as tl

from fuzz.targets import target


@triton.jit
def scores_of_ones(v, o, len_k, DIM: tl.constexpr, N: tl.constexpr):
    row, dims, keys = tl.program_id(0), tl.arange(0, DIM), tl.arange(0, N)
    values = tl.load(v + keys[:, None] * DIM + dims)  # not masked
    mean = tl.sum(tl.where(keys[:, None] < len_k, values, 0.0), 0) / len_k
    tl.store(o + row * DIM + dims, mean)


@target("mine", device="emulator", dtypes=["float32"], dims={16}, gqa=False, dim_v_differs=False, backward=False)
def mine(q, k, v):
    o = torch.empty_like(q)
    scores_of_ones[(q.shape[2],)](v, o, v.shape[2], 16, 16)
    return o
"""

pytestmark = pytest.mark.skipif(not find_spec("triton") or not find_spec("numba"), reason="needs triton and numba")


def started(script: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, whose working directory and search path know nothing of this repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "PYTHONPATH")}
    return warm_start.run([script.name], cwd=script.parent, env=environment, timeout=600)


def written(folder: Path, case: Case, name: str) -> Path:
    script = folder / "script.py"
    script.write_text(write_script(case, load(name, (), "emulator"), None))
    return script


def problem(dtype: str, **more) -> Problem:
    return Problem((40,), (70,), 2, 2, 16, 16, dtype, **more)  # type: ignore[arg-type]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("sdpa", 0, "passes"), ("sdpa!unmasked_row_statistics", 1, "out of bounds")],
)
def test_a_script_of_sdpa_runs_it_on_the_emulated_gpu(tmp_path: Path, name: str, code: int, said: str) -> None:
    case = Case(name, problem("float16", mask=Causal()), Inputs())
    ran = started(written(tmp_path, case, name))
    assert ran.returncode == code and said in ran.stdout.splitlines()[-1], ran.stdout + ran.stderr
    if code:
        assert "forward.py:" in ran.stdout or "table.py:" in ran.stdout  # the line of the store


def test_a_script_of_a_users_triton_function_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    case = Case("mine", Problem((3,), (10,), 1, 1, 16, 16, "float32", backward=False), Inputs(), repeats=1)
    (tmp_path / "case.json").write_text(to_json(case))
    command = ["-m", "fuzz.cli.main", "repro", "case.json", "--target-file", "mine.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    told = warm_start.run([*command, "--script", "script.py"], cwd=tmp_path, env=environment)
    assert told.returncode == 1, told.stdout + told.stderr
    ran = started(tmp_path / "script.py")
    assert ran.returncode == 1 and "out of bounds" in ran.stdout.splitlines()[-1], ran.stdout + ran.stderr
    line = next(
        n for n, text in enumerate((tmp_path / "script.py").read_text().splitlines(), 1) if "not masked" in text
    )
    assert f"script.py:{line}" in ran.stdout


@pytest.mark.nightly
@pytest.mark.skipif(not find_spec("cutlass"), reason="needs nvidia-cutlass-dsl")
@pytest.mark.parametrize("name", ["blocksparse", "blocksparse!lock_is_n_block"])
def test_a_script_of_blocksparse_runs_it_on_the_emulated_gpu(tmp_path: Path, name: str) -> None:
    case = Case(name, problem("bfloat16", mask=Causal()), Inputs())
    wrong = "!" in name
    if wrong:
        case = load_case(ROOT / "ci/cases/lock_is_n_block.json")
    ran = started(written(tmp_path, case, name))
    assert ran.returncode == int(wrong), ran.stdout + ran.stderr
    assert ("deadlock: semaphores" in ran.stdout) == wrong
