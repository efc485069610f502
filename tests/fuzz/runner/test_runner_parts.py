"""The runner's parts that need no process."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest

from fuzz.core.verdict import Finding, Verdict
from fuzz.process.exits import exit_name, innermost, last_line
from fuzz.process.tool import Tool
from fuzz.runner import Limits, gpu
from fuzz.runner.wire import Answer, Connection, Entered, FromWorker, Gone, Opened

PY_SPY = """Process 7: python
Python v3.11.7

Thread 8 (idle): "worker"
    wait (threading.py:1)
Thread 7 (active): "MainThread"
    kernel (mine.py:12)
    main (child.py:3)
"""
FAULTHANDLER = """Thread 0x00007f1 (most recent call first):
  File "threading.py", line 1 in wait

Current thread 0x00007f2 (most recent call first):
  Garbage-collecting
  File "mine.py", line 12 in kernel
  File "child.py", line 3 in main
"""


@pytest.mark.parametrize("dump", [PY_SPY, FAULTHANDLER])
def test_the_innermost_frame_is_the_main_thread_s(dump):
    assert innermost(dump) == "kernel (mine.py:12)"


def test_no_stack_has_no_innermost_frame():
    assert innermost("") == innermost("py-spy: not installed") == ""


def test_exits_have_names():
    assert [exit_name(code) for code in (3, -11, -250)] == ["exit code 3", "SIGSEGV (signal 11)", "signal 250"]


def test_the_last_line_comes_before_faulthandler_s():
    assert last_line("a\nb\n\nFatal Python error: Aborted\n\nCurrent thread") == "b"
    assert last_line("Fatal Python error: Aborted\n\nCurrent thread") == "Fatal Python error: Aborted"
    assert last_line("") == ""


def ends() -> tuple[Connection, socket.socket]:
    mine, theirs = socket.socketpair()
    return Connection(mine, FromWorker), theirs


def test_messages_arrive_whole_and_in_order():
    ours, theirs = ends()
    verdict = Verdict(
        "0", "fail", (Finding("runner", "hang", "x" * 100_000),), ratio=float("inf"), evidence={"gpu": {"a": 1}}
    )
    sent = [Opened(), Entered("run", 0.5), Answer(verdict)]
    for message in sent:
        data = msgspec.msgpack.encode(message)
        theirs.sendall(struct.pack("<I", len(data)) + data)
    assert [ours.receive(1.0) for _ in sent] == sent
    assert ours.receive(0.01) is None


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1", b"\x02\x00\x00\x00\x81\xa1"])
def test_nonsense_on_the_connection_is_its_end(nonsense):
    ours, theirs = ends()
    theirs.sendall(nonsense)
    with pytest.raises(Gone):
        ours.receive(1.0)


def test_a_closed_connection_is_gone():
    ours, theirs = ends()
    theirs.close()
    with pytest.raises(Gone):
        ours.receive(1.0)


def test_limits_refuse_what_makes_no_sense():
    for wrong in ({"floor": 0.0}, {"confirm": 0.5}, {"tick": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


def test_a_device_is_bound_by_what_the_child_may_see(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    host = gpu.environment("host")
    assert gpu.environment("emulator") == host and host.pop("CUDA_VISIBLE_DEVICES") == ""
    assert host == {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.tcache_count=0"}
    assert gpu.environment("cuda:2")["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert gpu.environment("cuda:1")["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    for wrong in ("cuda:2", "gpu", "cuda:x"):
        with pytest.raises(ValueError, match="device: "):
            gpu.environment(wrong)


def test_a_tool_has_a_limit_of_its_own():
    assert Tool(["sleep", "100"], 0.05).result() == (False, "sleep: not done after 0.05 s")
    assert Tool(["echo", "yes"], 5.0).result() == (True, "yes")
    assert Tool(["sh", "-c", "echo no; exit 3"], 5.0).result() == (False, "sh: no")
