"""Recorded launches: what a case's unchanged kernels were given and left, so that a changed kernel runs on the same.

A changed kernel that finds nothing on any of a case's launches, and leaves every byte as the unchanged one does, gives
the case's verdict, by induction over the launches. So the case need not run with it: the other kernels, the inputs and
the reference are most of a case's time.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fuzz.devices.emulator import Report, Unimplemented
from fuzz.devices.emulator.api import run
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.state.global_memory import Memory, Segment, Written

LARGEST = 1 << 28  # bytes of a case's launches; of a larger case none is kept
_PAGE = 4096


class _Part(NamedTuple):
    """A segment of memory: its number, name, addresses of the kernel, its place in the process; the tensor's dtype."""

    number: int
    name: str
    low: int
    high: int
    host: int
    dtype: torch.dtype


class _State(NamedTuple):
    """Bytes of a block of memory, and which of them have been written; None: all."""

    data: np.ndarray
    written: np.ndarray | None

    def same(self, other: _State) -> bool:
        """True if both are the same."""
        both = self.written is None or other.written is None or np.array_equal(self.written, other.written)
        return both and np.array_equal(self.data, other.data)


@dataclass(frozen=True)
class Recorded:
    """One launch: what it was given, and what it left.

    key      of its kernel
    blocks   places in the process and sizes of the memory that its tensors lie in
    after    what the launch left in each; None: what was there before
    reached  lines of the PTX that it came to
    ok       it ended, and nothing was found
    """

    key: str
    config: LaunchConfig
    launch: Launch
    parts: tuple[_Part, ...]
    blocks: tuple[tuple[int, int], ...]
    before: tuple[_State, ...]
    after: tuple[_State | None, ...]
    reached: frozenset[int]
    ok: bool

    def run(self, programs: Programs, budget: int) -> tuple[Report | None, bool]:
        """Report of a launch of other programs on the same memory, within `budget` micro-operations, and whether it
        left every byte as the recorded one did. The report is None where an instruction is not emulated."""
        copies = [_copied(low, state) for (low, _), state in zip(self.blocks, self.before, strict=True)]
        memory = Memory()
        for part in self.parts:
            end = part.host + part.high - part.low
            place = next(i for i, (low, size) in enumerate(self.blocks) if low <= part.host and end <= low + size)
            state, written = copies[place]
            host = state.data.ctypes.data + part.host - self.blocks[place][0]
            tensor = torch.empty(0, dtype=part.dtype)
            memory.segments[part.number] = Segment(part.name, part.low, part.high, host, tensor, written)
        memory.next = 1 + max(memory.segments, default=memory.next)
        try:
            report = run(replace(self.config, strict=False, budget=budget), programs, [self.launch], memory)
        except Unimplemented:
            return None, False
        same = all(
            (before if after is None else after).same(state)
            for before, after, (state, _) in zip(self.before, self.after, copies, strict=True)
        )
        return report, same

    def differs(self, programs: Programs, budget: int) -> bool:
        """True if the programs find something there, do not end, or leave other bytes; also where the recorded launch
        itself found something."""
        report, same = self.run(programs, budget)
        return not (self.ok and report is not None and report.ok and same)


class Recorder:
    """Writes launches into a file as they come, each between `launching` and `launched`: kept in this process they
    would look like a leak of the case."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._draft = path.with_suffix(f".{os.getpid()}")
        self._file = gzip.GzipFile(self._draft, "wb", 1)
        self._left = LARGEST
        self._given: tuple[LaunchConfig, Launch, Memory, list[tuple[int, int]], list[_State]] | None = None

    def launching(self, config: LaunchConfig, launch: Launch, memory: Memory) -> None:
        """Keeps what a launch is given."""
        blocks = _blocks(memory)
        self._left -= 2 * sum(size for _, size in blocks)
        if self._left >= 0:
            self._given = (config, launch, memory, blocks, [_state(memory, *block) for block in blocks])

    def launched(self, key: str, report: Report) -> None:
        """Writes it down with what it left."""
        if self._given is None:
            return
        config, launch, memory, blocks, before = self._given
        self._given = None
        after = [
            None if (now := _state(memory, *at)).same(was) else now for at, was in zip(blocks, before, strict=True)
        ]
        parts = tuple(
            _Part(number, one.name, one.low, one.high, one.host, one.tensor.dtype)
            for number, one in memory.segments.items()
        )
        state = (parts, tuple(blocks), tuple(before), tuple(after))
        pickle.dump(Recorded(key, config, launch, *state, report.reached, report.ok), self._file)

    def close(self) -> None:
        """The file is whole then: all launches, or none where they are too large."""
        self._file.close()
        if self._left < 0:
            self._draft.write_bytes(b"")
        self._draft.replace(self.path)


def read(path: Path) -> tuple[Recorded, ...] | None:
    """The launches that a file holds; None where they were not kept."""
    if not path.exists() or not path.stat().st_size:
        return None
    found = []
    with gzip.open(path) as file, suppress(EOFError):
        while True:
            found.append(pickle.load(file))
    return tuple(found)


def _blocks(memory: Memory) -> list[tuple[int, int]]:
    """Place and size of the memory that tensors lie in: those that overlap are in one block."""
    found: list[tuple[int, int]] = []
    for low, high in sorted((one.host, one.host + one.high - one.low) for one in memory.segments.values()):
        if found and low < sum(found[-1]):
            found[-1] = (found[-1][0], max(high, sum(found[-1])) - found[-1][0])
        else:
            found.append((low, high - low))
    return found


def _state(memory: Memory, low: int, size: int) -> _State:
    """A block of memory as it is."""
    inside = [
        one for one in memory.segments.values() if low <= one.host and one.host + one.high - one.low <= low + size
    ]
    data = np.empty(size, np.uint8)
    for one in inside:
        at, length = one.host - low, one.high - one.low
        data[at : at + length] = _bytes_at(one.host, length)
    kept = next((one.written for one in inside if one.written is not None and size), None)
    return _State(data, None if kept is None else kept.map()[low - kept.low :][:size].copy())


def _bytes_at(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _copied(low: int, state: _State) -> tuple[_State, Written | None]:
    """A copy of a block, at the same place in a page, and the map of what is written of it."""
    room = np.empty(len(state.data) + 2 * _PAGE, np.uint8)
    first = (low - room.ctypes.data) % _PAGE
    data = room[first : first + len(state.data)]
    data[:] = state.data
    if state.written is None:
        return _State(data, None), None
    written = Written(data.ctypes.data, len(data))
    written.map()[:] = state.written
    return _State(data, written.map()), written
