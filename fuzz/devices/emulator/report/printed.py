"""Text that a kernel has printed: C's format strings and their arguments, as the launch has noted them."""

from __future__ import annotations

import ctypes
import re
import struct

import numpy as np

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state.global_memory import Memory

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|j|z|t|L)?([diouxXcspaAeEfFgG%])")
_WIDE = ("ll", "l", "j", "z", "t")


def printed(rows: np.ndarray, memory: Memory) -> str:
    """rows: int64 (prints, 1 + words): the address of a format and the bytes of its arguments."""
    return "".join(_text(_string(int(row[0]), memory), row[1:].tobytes(), memory) for row in rows)


def _text(form: str, data: bytes, memory: Memory) -> str:
    """A format with its arguments, which lie as those of a C function with `...` do: numbers of 4 or 8 bytes, each at a
    multiple of its size."""
    at = 0

    def take(code: str) -> int | float:
        nonlocal at
        size = struct.calcsize(code)
        at = -(-at // size) * size
        (value,) = struct.unpack_from(code, data, at) if at + size <= len(data) else (0,)
        at += size
        return value

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width, precision = (str(take("i")) if given == "*" else given for given in (width, precision))
        head = f"%{flags}{width or ''}" + (f".{precision}" if precision is not None else "")
        if kind == "p":
            return f"{head}s" % hex(int(take("Q")))
        if kind == "s":
            return f"{head}s" % _string(int(take("Q")), memory)
        if kind in "aA":
            return float(take("d")).hex()
        if kind in "eEfFgG":
            return f"{head}{kind}" % take("d")
        signed = kind in "dic"
        value = int(take(("q" if signed else "Q") if length in _WIDE else ("i" if signed else "I")))
        return f"{head}{'d' if kind in 'diu' else kind}" % (value & 0xFF if kind == "c" else value)

    return _CONVERSION.sub(one, form)


def _string(address: int, memory: Memory) -> str:
    """The C string at an address of global memory."""
    segment = memory.segments.get(address >> op.SHIFT)
    if segment is None or not segment.low <= address < segment.high:
        return "(null)" if address == 0 else f"({address:#x})"
    text = ctypes.string_at(segment.host + address - segment.low, segment.high - address)
    return text.split(b"\0")[0].decode(errors="replace")
