"""Sessions of several processes from the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_session_that_is_killed(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "session"
    options = ["--target", "torch.sdpa.math", "--device", "host", "--workers", "2", "--cases", "5000"]
    with (tmp_path / "log").open("w") as log:
        session = subprocess.Popen(
            [sys.executable, "-m", "fuzz.cli", "run", *options, "--corpus", "", "--folder", str(folder)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 120
        while sum(file.stat().st_size > 0 for file in folder.glob("records-*")) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        family = psutil.Process(session.pid).children(recursive=True)
        assert len(family) >= 6, (tmp_path / "log").read_text()  # a worker, a stem and a child each
    finally:
        session.send_signal(number)
        session.wait(10)
    gone, alive = psutil.wait_procs(family, 5)
    for process in alive:
        process.kill()
    assert gone and not alive
