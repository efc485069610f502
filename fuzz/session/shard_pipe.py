"""A pipe from which the workers of a session take shards. One that is killed while it takes one holds nobody up.

A queue of multiprocessing's is guarded by a lock, which a process that is killed with it never gives back. Here the
kernel is the guard: every message has one size, and a read of that size takes a whole one.

Only AHEAD shards lie in the pipe, the others wait here. They go in the order in which they were put; in a session that
ends by time first those of the target that has cost the least. So a target whose kernels are compiled meanwhile comes
to its turn as soon as they are, and one whose cases take long does not take all of the workers' time: of such a
session's shards a worker runs a time slice, and what is left of them when there is no other.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import msgspec

from fuzz.session.plan import Shard

SLOT = 1024  # bytes of a message; a write of at most PIPE_BUF (4,096) bytes is whole
TICK = 0.5  # seconds between two looks at the time
LOOK = 0.02  # between two looks at how many shards lie in the pipe
AHEAD = 2
EACH = 10.0  # seconds that a shard counts for beside its cases, none of which has ended when it is handed out


class ShardWriter:
    """The writing end, in the process that hands the shards out; several threads may.

    seconds  of workers for a target's cases that have ended, where that decides which shard goes first; None: shards
             go in their order
    """

    def __init__(self, end: Connection, seconds: Callable[[str], float] | None = None) -> None:
        self._end, self._seconds = end, seconds
        self._given: Counter[str] = Counter()  # shards, by target
        self._changed = threading.Condition()
        self._waiting: list[tuple[Shard, bytes]] = []  # in the order in which they were put; each with its message
        self._finishing = False
        self._thread: threading.Thread | None = None

    def put(self, shard: Shard) -> None:
        """Hands a shard out, when its turn comes. Where no worker is left, nothing."""
        message = msgspec.json.encode(shard)
        if len(message) > SLOT:
            raise ValueError(f"target: needs a name of less than {SLOT - 100} characters, got {shard.target[:100]!r}…")
        with self._changed:
            self._waiting.append((shard, message.ljust(SLOT)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="shards", daemon=True)
                self._thread.start()
            self._changed.notify()

    @property
    def closed(self) -> bool:
        """True once there are no more."""
        return self._end.closed

    def finish(self) -> None:
        """There are no more than those that were put."""
        with self._changed:
            self._finishing = True
            if self._thread is None:
                self._end.close()
            self._changed.notify()

    def close(self) -> None:
        """There are no more than those in the pipe."""
        with self._changed:
            if not self._end.closed:
                self._end.close()
            self._changed.notify()

    def _write(self) -> None:
        """Keeps the pipe filled, in a thread of its own."""
        with self._changed, suppress(OSError):  # all workers have died
            while not self._end.closed:
                if self._waiting and self._unread() < AHEAD * SLOT:
                    shard, message = self._waiting.pop(self._next())
                    self._given[shard.target] += 1
                    os.write(self._end.fileno(), message)
                elif self._waiting:
                    self._changed.wait(LOOK)
                elif self._finishing:
                    self._end.close()
                else:
                    self._changed.wait()
        self.close()

    def _next(self) -> int:
        """The place of the shard that goes first."""
        if self._seconds is None:
            return 0
        names = {shard.target for shard, _ in self._waiting}
        costs = {name: self._seconds(name) + EACH * self._given[name] for name in names}
        return min(range(len(self._waiting)), key=lambda i: costs[self._waiting[i][0].target])

    def _unread(self) -> int:
        """Bytes that lie in the pipe."""
        found = array.array("i", [0])
        fcntl.ioctl(self._end.fileno(), termios.FIONREAD, found)
        return found[0]


def take(end: Connection, late: Callable[[], bool] = lambda: False, waits: bool = True) -> Shard | None:
    """The next shard, once there is one; None: there are no more, or it is `late`. waits: False: if there is one."""
    os.set_blocking(end.fileno(), False)  # another worker may take what this one has been told of
    while not late():
        if wait([end], TICK if waits else 0.0):
            with suppress(BlockingIOError):
                message = os.read(end.fileno(), SLOT)
                return msgspec.json.decode(message, type=Shard) if message else None
        if not waits:
            break
    return None
