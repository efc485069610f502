"""Varies what a deterministic kernel must not depend on: addresses and the machine's load.

Run r of a case gets other addresses (a spacer of another size is held while it runs) and, every second time, background
load: on a GPU a matrix product on another stream, on a CPU a thread that keeps a core busy without holding the GIL. The
emulated GPU, whose order of warps and CTAs its own settings decide, gets none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_SPACERS = (0, 3_329, 70_001, 1_100_017)


@contextmanager
def perturbed(repeat: int, device: torch.device, *, emulated: bool = False) -> Iterator[None]:
    """Context of the `repeat`-th run: 0 is not perturbed."""
    spacer = torch.empty(_SPACERS[repeat % len(_SPACERS)], dtype=torch.uint8, device=device)
    load = _load(device) if repeat % 2 and not emulated else None
    try:
        yield
    finally:
        if load is not None:
            load()
        del spacer


def _load(device: torch.device):
    """Starts background work; returns the function that ends it."""
    if device.type == "cuda":
        return _cuda_load(device)
    return _background_load().burn()


class _BackgroundLoad:
    """A thread that keeps a core busy now and then. It is started once and waits in between: to start one for a run
    and to wait for its end would take as long as a small case's kernel does."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def burn(self) -> Callable[[], None]:
        """From now on, until what is returned is called."""
        self._wanted.set()
        return self._wanted.clear

    def _work(self) -> None:
        a = torch.ones(128, 128)  # so long that this thread hardly ever holds the GIL, so short that it soon ends
        while True:
            self._wanted.wait()
            a @ a


@functools.cache
def _background_load() -> _BackgroundLoad:
    return _BackgroundLoad()


def ready(device: torch.device) -> None:
    """Starts what `perturbed` needs, so that it is there before a case's resources and time are counted: on a GPU the
    first stream of a process can take seconds, as some versions of PyTorch import much for it."""
    if device.type == "cpu":
        _background_load()
    else:
        _stream(device)


_streams: dict[int, tuple[torch.cuda.Stream, torch.Tensor]] = {}


def _cuda_load(device: torch.device):
    stream, a = _stream(device)
    with torch.cuda.stream(stream):
        for _ in range(2):
            a @ a
    return lambda: None


def _stream(device: torch.device) -> tuple[torch.cuda.Stream, torch.Tensor]:
    """A stream of that device and a matrix, used once when they are made."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _streams:
        made = torch.device("cuda", index)
        _streams[index] = (torch.cuda.Stream(made), torch.ones(1024, 1024, dtype=torch.bfloat16, device=made))
        _cuda_load(made)
    return _streams[index]
