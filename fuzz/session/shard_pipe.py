"""A pipe from which the workers of a session take shards. One that is killed while it takes one holds nobody up.

A queue of multiprocessing's is guarded by a lock, which a process that is killed with it never gives back. Here the
kernel is the guard: every message has one size, and a read of that size takes a whole one.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import msgspec

from fuzz.session.plan import Shard

SLOT = 1024  # bytes of a message; a write of at most PIPE_BUF (4,096) bytes is whole
TICK = 0.5  # seconds between two looks at the time
ROOM = 1 << 20  # bytes that the pipe is to hold, where the system lets it


class ShardWriter:
    """The writing end, in the process that hands the shards out; several threads may."""

    def __init__(self, end: Connection) -> None:
        self._end, self._lock = end, threading.Lock()
        with suppress(OSError):
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, ROOM)

    def put(self, shard: Shard) -> None:
        """Hands a shard out; waits while the pipe is full. Raises BrokenPipeError where no worker is left."""
        message = msgspec.json.encode(shard)
        if len(message) > SLOT:
            raise ValueError(f"target: needs a name of less than {SLOT - 100} characters, got {shard.target[:100]!r}…")
        with self._lock:
            os.write(self._end.fileno(), message.ljust(SLOT))

    @property
    def closed(self) -> bool:
        """True once there are no more."""
        return self._end.closed

    def close(self) -> None:
        """There are no more."""
        with self._lock:
            if not self._end.closed:
                self._end.close()


def take(end: Connection, late: Callable[[], bool] = lambda: False) -> Shard | None:
    """The next shard, once there is one; None: there are no more, or it is `late`."""
    os.set_blocking(end.fileno(), False)  # another worker may take what this one has been told of
    while not late():
        if wait([end], TICK):
            with suppress(BlockingIOError):
                message = os.read(end.fileno(), SLOT)
                return msgspec.json.decode(message, type=Shard) if message else None
    return None
