"""Shards of a session that can be run, told through its folder: from the process that compiles to those that run them.

ready/<shard>    there once the shard's kernels are compiled
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.session.plan import Shard

TICK = 0.1  # seconds between two looks


class ReadyShards:
    """The shards of the session in `folder` that can be run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ready"

    def begin(self) -> None:
        """In the process that compiles, before any other one starts: no shard is ready."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def add(self, shard: Shard) -> None:
        """Says that a shard can be run."""
        self._place(shard).touch()

    def wait(self, shard: Shard, late: Callable[[], bool]) -> None:
        """Waits until a shard can be run, the session's time is up, or the process that started this one is gone."""
        parent = os.getppid()
        while not self._place(shard).exists() and os.getppid() == parent and not late():
            time.sleep(TICK)

    def _place(self, shard: Shard) -> Path:
        return self._folder / shard.name.replace(os.sep, "_")
