"""Targets that answer rightly and take more than they give back, or more than they promise."""

from __future__ import annotations

import subprocess
import sys
import threading

import torch
from honest import Result, attention, fake

_KEPT: list[object] = []


@fake("leaks_files")
def leaks_files(*arguments) -> Result:
    """Opens a file in each run and keeps it open."""
    _KEPT.append(open("/dev/null"))  # noqa: SIM115
    return attention(*arguments)


@fake("leaks_processes")
def leaks_processes(*arguments) -> Result:
    """Starts a process in each run and leaves it; it ends by itself."""
    _KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]))
    return attention(*arguments)


@fake("leaks_threads")
def leaks_threads(*arguments) -> Result:
    """Starts a thread in each run that waits for ever."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return attention(*arguments)


@fake("fills_a_cache")
def fills_a_cache(*arguments) -> Result:
    """Takes 32 MiB, a file and a thread in its first run, and nothing more."""
    if not _KEPT:
        _KEPT.append((torch.ones(32 << 20, dtype=torch.uint8), open("/dev/null")))  # noqa: SIM115
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return attention(*arguments)
