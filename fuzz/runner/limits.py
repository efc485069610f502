"""Every time and size that the runner lives by, in one place."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes. A phase's own limit is announced by the judge (about ten times the expected time), and
    follows what the kernel's runs took (pace.py).

    floor     no phase is suspected earlier than this, whatever was announced
    confirm   a suspect is called hung at this many times its limit
    patience  while the child waits for a CPU the clock stands still, up to this many times the limit
    start     from the start of the process to the end of its imports, and to a forked worker
    load      loading a target in a worker
    open      opening the device and proving its health
    reap      from SIGKILL to the end of the process
    stack     hard limit of one py-spy call;  signal: of one faulthandler dump
    gpu       of one nvidia-smi call;  core: of writing a GPU core dump;  debugger: of cuda-gdb reading it
    tick      how often the client looks at the child's memory and exit while it waits
    memory    resident bytes of the child above which it is killed; None: a quarter of the machine's, at least 2 GiB
    log       bytes of the child's output kept as evidence;  spill: bytes of output after which it is thrown away
    """

    floor: float = 0.5
    confirm: float = 10.0
    patience: float = 3.0
    start: float = 120.0
    load: float = 120.0
    open: float = 60.0
    reap: float = 10.0
    stack: float = 10.0
    signal: float = 0.5
    gpu: float = 2.0
    core: float = 5.0
    debugger: float = 10.0
    tick: float = 0.05
    memory: int | None = None
    log: int = 1 << 14
    spill: int = 64 * MIB

    def __post_init__(self) -> None:
        for name in ("floor", "start", "load", "open", "reap", "stack", "signal", "gpu", "core", "debugger", "tick"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be a positive number of seconds, got {getattr(self, name)}")
        for name in ("confirm", "patience"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")


HOST = Limits()
CUDA = Limits(floor=1.0)


def for_device(device: str) -> Limits:
    """The defaults of 'host' or 'cuda:N'."""
    return HOST if device in ("host", "emulator", "interpreter") else CUDA
