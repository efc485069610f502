"""The process that may die: `python -m fuzz.runner.child CONNECTION LIFELINE STACKS` (descriptors).

Imports, opens its device, then judges one case after the other until its parent is gone. It holds no state worth
saving, so it never has to end in good order. Standard output and error belong to the target.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from fuzz.runner import lifeline
from fuzz.runner.wire import (
    Answer,
    Connection,
    Entered,
    Failed,
    Gone,
    Open,
    Opened,
    Ready,
    Refused,
    Run,
    Start,
    ToChild,
)


def main(arguments: list[str]) -> None:
    """Serves one client until it is gone."""
    connection_fd, life_fd, stacks_fd = map(int, arguments)
    lifeline.tie(life_fd)
    lifeline.allow_tracing()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # never swallowed as a KeyboardInterrupt by a target
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=stacks_fd, all_threads=True)
    os.set_inheritable(stacks_fd, False)
    sock = socket.socket(fileno=connection_fd)
    sock.set_inheritable(False)
    connection = Connection(sock, ToChild)
    with contextlib.suppress(Gone):
        _serve(connection)
    os._exit(0)


def _serve(connection: Connection) -> None:
    start = connection.receive()
    try:
        worker = _Worker(start, connection)
    except BaseException as error:
        connection.send(_refused(error))
        return
    connection.send(Ready())
    while True:
        message = connection.receive()
        if isinstance(message, Open):
            connection.send(worker.open())
        else:
            assert isinstance(message, Run)
            connection.send(worker.run(message.case))


class _Worker:
    """The judge, the targets loaded so far, and the device."""

    def __init__(self, start: Start, connection: Connection) -> None:
        import torch

        from fuzz.case import Case

        torch.set_num_threads(start.threads)
        self._start = start
        self._connection = connection
        self._decode = importlib.import_module("msgspec.msgpack").Decoder(Case).decode
        self._execute = _resolve(start.execute)
        self._load = _resolve(start.load)
        self._targets: dict[str, Any] = {}
        for name in start.targets:
            self._find(name)

    def open(self) -> Opened | Refused:
        """Proves the device."""
        try:
            if self._start.device != "host":
                _prove_cuda()
        except Exception as error:
            return _refused(error)
        return Opened()

    def run(self, data: bytes) -> Answer | Refused | Failed:
        """Judges one case. Only what is no fault of the target is Refused or Failed."""
        case = self._decode(data)
        if case.target not in self._targets:
            self._enter("load", 0.0)  # the client has a limit of its own for it
            try:
                self._find(case.target)
            except BaseException as error:
                return _refused(error)
        try:
            return Answer(self._execute(case, self._targets[case.target], self._enter))
        except Exception:
            return Failed(traceback.format_exc())
        except BaseException as error:
            return Answer(_left(case.id, error))

    def _find(self, name: str) -> None:
        self._targets[name] = self._load(name, self._start.files, self._start.device.partition(":")[0])

    def _enter(self, phase: str, limit: float) -> None:
        self._connection.send(Entered(phase, limit))


def _left(case_id: str, error: BaseException) -> Any:
    """The verdict on a target that raised SystemExit or its like."""
    from fuzz.verdict import Finding, Verdict

    message = f"the target tried to leave the interpreter: {type(error).__name__}({error})"
    trace = "".join(traceback.format_exception(error))
    finding = Finding(oracle="runner", kind="crash", message=message)
    return Verdict(case_id, "crash", (finding,), evidence={"python_stack": trace, "exit": type(error).__name__})


def _prove_cuda() -> None:
    """Allocates, runs a tiny kernel, compares. Raises RuntimeError where that does not work."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
    numbers = torch.arange(4096, device="cuda", dtype=torch.float64)
    found = (numbers * numbers + 1).sum().item()
    wanted = 4095 * 4096 * 8191 / 6 + 4096
    if found != wanted:
        raise RuntimeError(f"{torch.cuda.get_device_name()} computes {found} where {wanted} is right")


def _resolve(name: str) -> Callable[..., Any]:
    """'package.module:function'."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _refused(error: BaseException) -> Refused:
    return Refused(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
