"""Processes that are forks of one that has imported torch: a start costs 20 ms in place of 1.3 s of processor time.

`run` takes the place of subprocess.run([sys.executable, …]), `start` that of fuzz.process.fork_server.start. A process
so started has its own arguments, environment, folder, search path, session and standard streams. It is not a fresh
Python: what tests a start itself, imports, or variables that torch reads while it is imported needs one.

One seed process for each list of imports serves a test process as long as that lives. It forks with CLONE_PARENT: what
it starts is a child of the test process, which can wait for it as for any other.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

_TORCH = ("torch",)
IMPORTS = {
    "fuzz.runner.zygote": ("fuzz.session.preload",),
    "fuzz.compiling.server": ("fuzz.compiling.server", "cutlass.cute"),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
POSSIBLE = sys.platform == "linux" and platform.machine() in _CLONE  # elsewhere all starts are fresh ones
_CLONE_PARENT = 0x8000
_MOST = 1 << 20  # bytes of a request


class Process:
    """A child of this process, as fuzz.process.fork_server knows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        until = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            else:
                time.sleep(0.003)
        return self.returncode


def run(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments, which begin with a file, -c, -m, or -I and one of them, to its end. Its input
    is empty. Raises subprocess.TimeoutExpired, after its end."""
    if not POSSIBLE:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command,
            cwd=cwd,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    (reading, writing), (errors_reading, errors_writing) = os.pipe(), os.pipe()
    request = {
        "arguments": list(arguments),
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    process = _seed(_TORCH).fork(request, [writing, errors_writing])
    os.close(writing)
    os.close(errors_writing)
    with open(reading) as out, open(errors_reading) as errors:
        texts = _read_both(out, errors, process, timeout)
    return subprocess.CompletedProcess(list(arguments), process.wait(10.0), *texts)


def start(
    module: str,
    descriptors: Sequence[int],
    environment: Mapping[str, str],
    *,
    numbers: Sequence[int] = (),
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int | None = None,
) -> Any:
    """A server of fuzz.process.fork_server, started as its `start` does."""
    from fuzz.process import fork_server

    reading, writing = fork_server.pipe()
    request = {"module": module, "numbers": list(numbers), "env": {**environment, "PYTHONPATH": _search_path()}}
    with open(os.devnull, "r+b", buffering=0) as null:
        streams = [_descriptor(to, own, null) for own, to in ((1, stdout), (2, stderr))]
        read_by_imports = tuple((name, value) for name, value in environment.items() if name.startswith("CUTE_DSL_"))
        process = _seed(IMPORTS[module], read_by_imports).fork(request, [*streams, reading.fileno(), *descriptors])
    reading.close()
    return fork_server.ForkServer(process, writing)  # type: ignore[arg-type]


def _descriptor(to: IO[bytes] | int | None, own: int, null: IO[bytes]) -> int:
    """What subprocess.Popen's stdout and stderr mean."""
    if to is None:
        return own
    if isinstance(to, int):
        return null.fileno() if to == subprocess.DEVNULL else to
    return to.fileno()


def _read_both(out: IO[str], errors: IO[str], process: Process, timeout: float) -> tuple[str, str]:
    """All that both pipes give, to their ends."""
    texts = ["", ""]

    def read(index: int, file: IO[str]) -> None:
        texts[index] = file.read()

    threads = [threading.Thread(target=read, args=one, daemon=True) for one in enumerate((out, errors))]
    until = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)
            raise subprocess.TimeoutExpired(str(process.pid), timeout)
    return texts[0], texts[1]


class _Seed:
    def __init__(self, imports: Sequence[str], settings: Iterable[tuple[str, str]]) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with there:
            self._popen = subprocess.Popen(
                [sys.executable, "-I" if imports == _TORCH else "-P", __file__, str(there.fileno()), *imports],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                env={**os.environ, **threads, **dict(settings), "PYTHONPATH": _search_path()},
                start_new_session=True,
            )

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> Process:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the process to fork from has ended: {self._popen.wait(10.0)}")
        return Process(int(answer))


@lru_cache
def _seed(imports: tuple[str, ...], settings: tuple[tuple[str, str], ...] = ()) -> _Seed:
    return _Seed(imports, settings)


def _search_path() -> str:
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


def main(number: str, *imports: str) -> None:
    """The seed process: imports, then forks for each request until the test process is gone."""
    gc.disable()
    own = list(sys.path)
    for name in imports:
        import_module(name)
    gc.freeze()
    gc.enable()
    requests = socket.socket(fileno=int(number))
    requests.set_inheritable(False)
    while True:
        data, given, _, _ = socket.recv_fds(requests, _MOST, 16)
        if not data:
            os._exit(0)
        pid = _fork_with_parent()
        if pid == 0:
            requests.close()
            _become(json.loads(data), given, own)
        for descriptor in given:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _fork_with_parent() -> int:
    """os.fork, of a child of this process's parent."""
    api, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    api.PyOS_BeforeFork()
    pid = libc.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        api.PyOS_AfterFork_Child()
    else:
        api.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _become(request: dict[str, Any], given: list[int], search_path: list[str]) -> NoReturn:
    """The new process: takes on what belongs to it, runs its program, and ends."""
    code = 1
    try:
        os.setsid()
        out, errors, *descriptors = given
        for source, number in ((out, 1), (errors, 2)):
            os.dup2(source, number)
            os.close(source)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), write_through=True) for number in (1, 2)
        )
        os.environ.clear()
        os.environ.update(request["env"])
        if "module" in request:
            sys.path[:] = request["env"]["PYTHONPATH"].split(os.pathsep)
            import_module(request["module"]).main(list(map(str, (*descriptors, *request["numbers"]))))
        else:
            os.chdir(request["cwd"])
            _execute(request["arguments"], search_path)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _execute(arguments: list[str], search_path: list[str]) -> None:
    """Python's own reading of a command line."""
    isolated = arguments[0] == "-I"
    first, *rest = arguments[isolated:]
    named = [] if isolated else [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = named + [entry for entry in search_path if entry not in named]
    if first in ("-m", "-c"):
        sys.argv = [first if first == "-c" else rest[0], *rest[1:]]
        sys.path.insert(0, "" if first == "-c" else os.getcwd())
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        names = sys.modules["__main__"].__dict__
        names.pop("__file__", None)
        exec(compile(rest[0], "<string>", "exec"), names)
    else:
        sys.argv = [first, *rest]
        if not isolated:
            sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


def _end(code: int) -> NoReturn:
    """As the interpreter ends, but for the search for garbage."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 255)


if __name__ == "__main__":
    main(*sys.argv[1:])
