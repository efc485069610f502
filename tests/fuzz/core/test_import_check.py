"""The guard of imports: another package named `kernels` is one clear line at the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fuzz.core import import_check

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
from fuzz.core.import_check import GuardError, check_packages
try:
    check_packages()
except GuardError as error:
    raise SystemExit(str(error))
"""


def run(first: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(first), str(ROOT)])
    command = [sys.executable, "-c", CHECK]
    return subprocess.run(
        command, cwd=first, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_our_own_folders_pass():
    import_check.check_packages()


def test_a_package_of_the_same_name_is_one_line(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("raise RuntimeError('imported')")
    ran = run(tmp_path)
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1
    assert f"`import kernels` finds {tmp_path / 'kernels'}, not attnfuzz's own {ROOT / 'kernels'}" in ran.stderr


def test_a_module_of_the_same_name_is_one_line(tmp_path):
    (tmp_path / "oracles.py").write_text("")
    ran = run(tmp_path)
    assert ran.returncode == 1 and "`import oracles` finds" in ran.stderr


def test_an_empty_folder_on_the_path_does_not_hide_ours(tmp_path):
    (tmp_path / "kernels").mkdir()  # a namespace package: ours, with an __init__, wins
    assert run(tmp_path).returncode == 0
