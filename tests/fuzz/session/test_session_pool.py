"""Sessions of several processes from the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import psutil
import pytest
from covering import nightly_unless

ROOT = Path(__file__).parents[3]


SESSION = ["run", "--target", "torch.sdpa.math", "--jobs", "2", "--cases", "5000", "--corpus", ""]
SCORE = ["mutation-score", "--filter", "sdpa!*", "--jobs", "2"]


@pytest.mark.parametrize(
    ("command", "number"),
    [
        nightly_unless(at == 0, *case)
        for at, case in enumerate(product([SESSION, SCORE], [signal.SIGTERM, signal.SIGKILL]))
    ],
)
def test_no_process_outlives_a_command_that_is_killed(tmp_path: Path, command: list[str], number: int) -> None:
    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fuzz.cli.main",
                *command,
                "--device",
                "host",
                "--output-dir",
                str(tmp_path / "folder"),
            ],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    family: dict[int, psutil.Process] = {}
    try:
        until = time.monotonic() + 120
        while len(family) < 6 and time.monotonic() < until:  # a worker, a zygote and a child each
            family = {process.pid: process for process in psutil.Process(killed.pid).children(recursive=True)}
            time.sleep(0.1)
        assert len(family) >= 6, (tmp_path / "log").read_text()
    finally:
        killed.send_signal(number)
        killed.wait(10)
    gone, alive = psutil.wait_procs(list(family.values()), 5)
    for process in alive:
        process.kill()
    assert gone and not alive


def test_what_is_imported_before_the_workers_are_forked_leaves_triton_and_torch_compile_alone() -> None:
    """Triton decides at its import whether it interprets; torch.compile takes seconds."""
    code = (
        "import sys, fuzz.session.preload; from fuzz.targets.registry import targets\n"
        "[(target.missing(), target.surfaces()) for target in targets().values()]\n"
        "sys.exit(str({'triton', 'torch._dynamo', 'sympy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert said.strip() == "set()"
