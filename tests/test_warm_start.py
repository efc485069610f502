"""tests/support/warm_start.py: programs and servers that are forks behave as fresh processes do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest
import warm_start

from fuzz.process import fork_server


def test_a_program_has_its_own_arguments_environment_folder_and_streams(tmp_path):
    code = "import os, sys; print(sys.argv, os.environ['ONE'], os.getcwd()); print('no', file=sys.stderr); sys.exit(3)"
    ran = warm_start.run(["-c", code, "x"], cwd=tmp_path, env={"ONE": "1"})
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, f"['-c', 'x'] 1 {tmp_path}\n", "no\n")


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [("import sys; sys.exit('why')", 1, "why"), ("1 / 0", 1, "ZeroDivisionError: division by zero"), ("", 0, "")],
)
def test_it_ends_as_python_does(program, code, said):
    ran = warm_start.run(["-c", program])
    assert (ran.returncode, ran.stderr.strip().split("\n")[-1]) == (code, said)


def test_an_isolated_program_sees_only_what_is_installed(tmp_path):
    (tmp_path / "only_here.py").write_text("")
    (tmp_path / "program.py").write_text("import only_here\n")
    seen = {**os.environ, "PYTHONPATH": str(tmp_path)}
    codes = [warm_start.run([*more, str(tmp_path / "program.py")], env=seen).returncode for more in ([], ["-I"])]
    assert codes == [0, 1]


def test_one_that_does_not_end_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        warm_start.run(["-c", "import time; time.sleep(60)"], timeout=0.2)


@pytest.mark.skipif(not warm_start.POSSIBLE, reason="needs Linux")
def test_a_server_is_a_child_that_dies_with_its_pipe():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = fork_server.start("fuzz.compiling.server", [theirs.fileno()], os.environ, numbers=[0])
        assert isinstance(server.popen, warm_start.Process)
        server.parent_pipe.close()
        assert server.popen.wait(5.0) in (1, -signal.SIGKILL)  # 1: it was gone before the kernel was asked to kill it
