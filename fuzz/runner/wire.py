"""What client and child say to each other: length-prefixed MessagePack over a socket. Values only, no torch in here.

with the zygote: Start → (imports) → Ready;  a request for a worker → Forked … Ended
with a worker: Open → (device) → Opened;  Run → Entered … Entered → Answer
Refused instead of Ready, Forked, Opened or Answer: imports, target or device do not work; Failed: the judge raised
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from time import monotonic
from typing import Any, TypeAlias

import msgspec

from fuzz.core.verdict import Verdict

_HEAD = struct.Struct("<I")
_MOST = 256 << 20


class Start(msgspec.Struct, frozen=True, tag=True):
    """First message: what to import, and for which device."""

    device: str
    threads: int
    files: tuple[str, ...]
    execute: str
    load: str


class Open(msgspec.Struct, frozen=True, tag=True):
    """Take the device and prove that it computes. `env` is set before the device's libraries start."""

    env: dict[str, str]


class Run(msgspec.Struct, frozen=True, tag=True):
    """One case, as MessagePack within MessagePack, so that only the child needs its type. trace: a file for the
    timeline of its run, where that is wanted (Target.trace_to)."""

    case: bytes
    trace: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Imports are done."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Here is a worker; where it is the zygote itself, the zygote is spent."""

    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A worker has ended; negative codes are signals. May be said more than once."""

    pid: int
    code: int


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The device is proven."""


class Entered(msgspec.Struct, frozen=True, tag=True):
    """A phase begins; the client's clock runs from here with this limit."""

    phase: str
    limit: float


class Observed(msgspec.Struct, frozen=True, tag=True):
    """What the child saw of its device while a run went on; evidence, should this be a hang. The later one counts."""

    evidence: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The case is done. lost: state of the process that could not be put back, so that it is to judge no other case."""

    verdict: Verdict
    lost: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Cannot work: the last line for people, and the whole traceback."""

    line: str
    trace: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The judge raised: a bug of the harness; where `machine` is given, that kept the case from being run."""

    trace: str
    machine: str = ""


ToWorker: TypeAlias = Open | Run
FromZygote: TypeAlias = Ready | Forked | Ended | Refused
FromWorker: TypeAlias = Opened | Entered | Observed | Answer | Refused | Failed


class Gone(Exception):
    """The other side has closed its end, or does not speak this protocol any more."""


class Connection:
    """One end. `kind` is the union of messages that this end receives. It belongs to the process that made it: a fork
    of that one, such as a target may make and come back in, cannot speak in its place."""

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        self._sock, self._owner = sock, os.getpid()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._bytes = bytearray()
        self._sending = threading.Lock()
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: msgspec.Struct) -> None:
        """Raises Gone when nobody reads, and in any other process than the one that it belongs to."""
        if os.getpid() != self._owner:
            raise Gone("this process is a copy")
        data = self._encode(message)
        try:
            with self._sending:  # a child has two threads that speak
                self._sock.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, or None after `seconds`. Raises Gone at the end of the stream or on nonsense."""
        until = None if seconds is None else monotonic() + seconds
        while (message := self._next()) is None:
            wait = None if until is None else max(0.0, until - monotonic()) * 1000
            if not self._poll.poll(wait):
                return None
            self._fill()
        return message

    def close(self) -> None:
        """Closes this end."""
        self._sock.close()

    def _next(self) -> Any:
        if len(self._bytes) < 4:
            return None
        (size,) = _HEAD.unpack_from(self._bytes)
        if size > _MOST:
            raise Gone(f"a message of {size} bytes")
        if len(self._bytes) < 4 + size:
            return None
        data = bytes(self._bytes[4 : 4 + size])
        del self._bytes[: 4 + size]
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise Gone(f"nonsense: {error}") from None

    def _fill(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            raise Gone(str(error)) from None
        if not data:
            raise Gone("closed")
        self._bytes += data
