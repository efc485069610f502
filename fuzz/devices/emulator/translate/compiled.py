"""Machine code of a program's runs: compiled when they have taken long enough, kept in the cache folder, linked.

A file there holds the runs of one program, or of a large one those that had run most. Its name is the program's digest.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from fuzz.devices.emulator.decode.operands import Program
from fuzz.devices.emulator.state import kept_files
from fuzz.devices.emulator.state.code_cache import cache_folder
from fuzz.devices.emulator.state.intrinsics import target_machine
from fuzz.devices.emulator.translate.runs import build, starts

SECONDS_EACH = 3e-3  # of the processor that the loop may take for each micro-operation before they are translated
LARGEST = 2500  # micro-operations that are compiled at most, in below 3 s; of a larger program those that run most


class Translation:
    """What is translated of a program: for warps with taints, and for those without."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.spent = [0.0, 0.0]  # processor seconds of launches without and with taints
        self.reached = np.zeros(len(program.code), dtype=np.int64)
        self.tables: list[np.ndarray | None] = [None, None]
        self._looked = [False, False]  # for a file
        self._engines: list[Any] = []  # own the machine code

    def table(self, with_taints: bool, when: str) -> int:
        """Address of a table of int64, with a function's address for each micro-operation, or 0; 0 where nothing is
        translated. Compiles where `when` is "always", or "auto" and the launches so far have taken long enough."""
        if when == "never":
            return 0
        if self.tables[with_taints] is None:
            due = when == "always" or self.spent[with_taints] > SECONDS_EACH * len(self.program.code)
            if due or not self._looked[with_taints]:
                self._looked[with_taints] = True
                code = kept_files.read(self._file(with_taints))
                if due and not code:
                    code = self.compile(with_taints, everything=when == "always")
                    kept_files.write(self._file(with_taints), code)
                if code:
                    self.tables[with_taints] = self._linked(code, with_taints)
        table = self.tables[with_taints]
        return 0 if table is None else table.ctypes.data

    def ran(self, reached: np.ndarray, seconds: float, with_taints: bool) -> None:
        """Notes a launch: how often each micro-operation was reached, and its seconds of the processor."""
        self.reached += reached
        self.spent[with_taints] += seconds

    def _file(self, with_taints: bool) -> Path:
        digest = hashlib.sha256(self.program.code.tobytes() + bytes(self.program.constants))
        return _folder() / f"{digest.hexdigest()[:32]}.{'taints' if with_taints else 'plain'}.o"

    def compile(self, with_taints: bool, everything: bool) -> bytes:
        """Object code of the program's runs; of a large program those that run most, unless `everything`."""
        chosen = starts(self.program, with_taints)
        if not everything and len(self.program.code) > LARGEST:
            chosen = self._busiest(chosen)
        module = llvm.parse_assembly(str(build(self.program, chosen, with_taints)))
        module.verify()
        return target_machine().emit_object(module)

    def _busiest(self, ends: dict[int, int]) -> dict[int, int]:
        """The runs in which most micro-operations ran, LARGEST of them or less."""
        found, size = {}, 0
        for start in sorted(ends, key=lambda start: -int(self.reached[start : ends[start]].sum())):
            size += ends[start] - start
            if size > LARGEST or self.reached[start] == 0:
                break
            found[start] = ends[start]
        return found

    def _linked(self, code: bytes, with_taints: bool) -> np.ndarray:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._engines.append(engine)
        table = np.zeros(len(self.program.code) + 1, dtype=np.int64)
        for start in starts(self.program, with_taints):
            table[start] = engine.get_function_address(f"run_{start}")
        return table


@lru_cache
def _folder() -> Path:
    return cache_folder("translate.compiled")
