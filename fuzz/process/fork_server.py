"""A fork server: a process that is started fresh, imports its modules once, and forks a child for each job.

The runner's zygote (fuzz/runner/zygote.py) and the compile server (fuzz/compiling/server.py) are two of them; this is
what they share. From outside: `start` begins the process in a session and process group of its own, tied to this one's
life by a pipe. Inside: `begin` in the server, `begin_child` in each process that it forks. A fork costs milliseconds,
the imports seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fuzz.process import parent_death
from fuzz.process.forked import ForkedProcess


@dataclass(frozen=True)
class ForkServer:
    """A running server. It dies, with its children, as soon as `parent_pipe` is closed in every process that has it."""

    popen: subprocess.Popen[bytes] | ForkedProcess
    parent_pipe: IO[bytes]


def start(
    module: str,
    descriptors: Sequence[int],
    environment: Mapping[str, str],
    *,
    numbers: Sequence[int] = (),
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int | None = None,
) -> ForkServer:
    """Starts `python -m module PARENT_PIPE DESCRIPTOR… NUMBER…`, which imports what this process would import.

    descriptors  stay open in the server, under the same numbers
    Raises OSError where no process can be started.
    """
    reading, writing = pipe()
    given = (reading.fileno(), *descriptors)
    try:
        popen: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", module, *map(str, (*given, *numbers))],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=given,
            env={**environment, "PYTHONPATH": search_path()},
            start_new_session=True,
        )
    except BaseException:
        writing.close()
        raise
    finally:
        reading.close()
    return ForkServer(popen, writing)


def start_as_fork(
    main: Callable[[list[str]], object], descriptors: Sequence[int], environment: Mapping[str, str], output: IO[bytes]
) -> ForkServer:
    """`start`, of a module whose `main` is this one, as a fork of this process: it has imported all that the server
    imports, and must have a single thread (forked.may_fork). Raises OSError where no process can be started."""
    reading, writing = pipe()
    given = (reading.fileno(), *descriptors)
    environment = {**environment, "PYTHONPATH": search_path()}
    try:
        arguments = list(map(str, given))
        process = ForkedProcess(lambda: main(arguments), keep=given, output=output.fileno(), env=environment)
    except BaseException:
        writing.close()
        raise
    finally:
        reading.close()
    return ForkServer(process, writing)


def begin(arguments: Sequence[str]) -> list[int]:
    """In the server, first of all: ties its life to the parent's. Returns the numbers of the other arguments."""
    parent_pipe, *others = map(int, arguments)
    parent_death.tie(parent_pipe)
    return [parent_pipe, *others]


def begin_child(parent_pipe: int) -> None:
    """In a forked child, first of all: leads a session and process group of its own that lives no longer than the
    process which holds the other end of `parent_pipe`."""
    os.setsid()
    parent_death.tie(parent_pipe)


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    """A pipe's reading and writing end, unbuffered and owned."""
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def search_path() -> str:
    """This process's sys.path as PYTHONPATH, so that a child imports the same code, however this process found it."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


def tail(file: IO[Any], most: int) -> str:
    """The last `most` bytes of a log, as text; '… ' before them where there is more. Leaves the file's position."""
    whole = os.fstat(file.fileno()).st_size
    data = os.pread(file.fileno(), most, max(0, whole - most))
    return ("… " if whole > most else "") + data.decode(errors="replace")
