"""A GPU in a process of its own: a kernel that ends the context, or that never ends, costs that process alone.

The next question starts another process. It is a fork, so this process must not have used a GPU.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fuzz.devices.emulator.conformance.driver import ContextLostError, Gpu

BEGIN_S = 120  # until the driver has started; it also ends what a killed process left running


class GpuProcess:
    """Asks the GPU that `open_gpu` opens. limit_s: seconds for an answer, then the process is killed."""

    def __init__(self, open_gpu: Callable[[], Any] = Gpu, limit_s: float = 10) -> None:
        self.open_gpu, self.limit_s = open_gpu, limit_s
        self.process: Any = None
        self.begun = 0  # processes so far
        self.start()

    def start(self) -> None:
        """Starts a process; `name` and `arch` of its GPU. Raises RuntimeError where the GPU cannot be opened."""
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.open_gpu), daemon=True)
        self.process.start()
        theirs.close()
        self.begun += 1
        self.name, self.arch = self.answer(BEGIN_S)

    def ask(self, method: str, argument: Any) -> Any:
        """The result of the GPU's method. Raises RuntimeError with its words: "hang: …" after `limit_s`."""
        if self.process is None:
            self.start()
        self.pipe.send((method, argument))
        return self.answer(self.limit_s)

    def answer(self, limit_s: float) -> Any:
        try:
            kind, what = self.pipe.recv() if self.pipe.poll(limit_s) else ("lost", f"hang: no answer in {limit_s:g} s")
        except (EOFError, ConnectionResetError):
            kind, what = "lost", "the process that used the GPU ended"
        if kind == "lost":
            self.close()
        if kind != "answer":
            raise RuntimeError(what)
        return what

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def _serve(pipe: Connection, open_gpu: Callable[[], Any]) -> None:
    try:
        gpu = open_gpu()
    except (RuntimeError, OSError) as error:
        pipe.send(("lost", str(error)))
        return
    pipe.send(("answer", (gpu.name, gpu.arch)))
    while True:
        try:
            method, argument = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("answer", getattr(gpu, method)(argument)))
        except ContextLostError as error:
            pipe.send(("lost", str(error)))
        except RuntimeError as error:
            pipe.send(("refused", str(error)))
