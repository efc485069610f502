"""Survey: what a configuration's cases do with the unchanged kernels, and which kernels they launch.

Triton compiles a kernel for each combination of its constants, so that the kernels of a configuration are known from
its cases' launches alone. A survey that has a folder keeps there what each case did, its launches (recording.py) and
the PTX of the kernels: one process runs it, all read it. It goes on on another machine that compiles the same PTX.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from fuzz.core.case import Case
from fuzz.judging.judge import execute
from fuzz.score.ptx_mutants.bench import ARCH, bench
from fuzz.score.ptx_mutants.recording import Recorded, Recorder, read

CHOOSING = 20  # cases that say which of Triton's kernels are mutated
LEAST = 7  # of these launch a kernel that is mutated; of a function's first one, FEWEST
FEWEST = 3


@dataclass(frozen=True)
class Lists:
    """How many cases of a configuration are on each list; a longer one begins with the shorter.

    cases  has to find a mutant
    wide   shows what a missed mutant does
    most   a missed mutant runs with at last, unless it is argued to be equivalent
    """

    cases: int
    wide: int
    most: int


SESSION_LISTS = Lists(40, 40, 40)  # a session of 200 cases, for five configurations: sparse_configs.py
LISTS = {
    "blocksparse": Lists(20, 20, 40),
    "blocksparse.wgmma": Lists(60, 60, 60),  # a session of 300 cases
    "dynamic_mask": SESSION_LISTS,
    "nsa": SESSION_LISTS,
}


def lists_of(target: str) -> Lists:
    """The lists of a target's configurations."""
    return LISTS[target]


class Clean(msgspec.Struct, frozen=True):
    """A case with the unchanged kernels.

    reached    lines that it comes to, by the kernel's key
    longest    micro-operations of its longest launch
    functions  names of the kernels' functions, by key; Triton's only
    fails      what the case finds, or why it is not run to its end: its verdict says nothing about a mutant
    """

    case: Case
    reached: dict[str, frozenset[int]]
    longest: int
    functions: dict[str, str] = {}
    fails: str = ""


class Kernel(msgspec.Struct, frozen=True):
    """A kernel that is mutated: its key (see bench.py), and its PTX."""

    key: str
    text: str


class KernelConfig(Protocol):
    """Kernels of one target that are mutated, and the cases that look for what is wrong with them."""

    @property
    def name(self) -> str:
        """Its name, one of all targets' configurations."""

    @property
    def target(self) -> str:
        """The target's name."""

    def cases(self, count: int, seed: int) -> list[Case]:
        """`count` cases that a seed draws. Fewer begin with the same ones."""

    def kernels(self, survey: Survey) -> dict[str, Kernel]:
        """The kernels by kind. Raises CompileError."""


class Survey:
    """Runs of the unchanged kernels. folder: where they are kept; None: in this process only. arch: of Triton's."""

    def __init__(self, seed: int, folder: Path | None = None, arch: str = ARCH) -> None:
        self.seed, self.folder, self.arch = seed, folder, arch
        self._clean: dict[tuple[str, int], Clean] = {}
        self._cases: dict[str, list[Case]] = {}
        self._kernels: dict[str, dict[str, Kernel]] = {}

    def cases(self, chosen: KernelConfig, count: int = 0) -> list[Case]:
        """The first `count` cases of a configuration (0: of its longest list), or all that there are."""
        count = count or lists_of(chosen.target).most
        if len(self._cases.get(chosen.name, [])) < count:
            path = None if self._place is None else self._place / f"{chosen.name}-cases.json"
            if path is not None and path.exists():
                self._cases[chosen.name] = msgspec.json.decode(path.read_bytes(), type=list[Case])
            else:
                self._cases[chosen.name] = chosen.cases(count, self.seed)
                _write(path, self._cases[chosen.name])
        return self._cases[chosen.name][:count]

    def clean(self, chosen: KernelConfig, number: int, count: int = 0) -> Clean:
        """Case `number` of the first `count` (0: of the longest list), run now where that was not done before."""
        known = self._clean.get((chosen.name, number)) or self._read(chosen, number)
        if known is None:
            case = self.cases(chosen, count)[number]
            unrecorded = self._place is None or chosen.target.startswith("blocksparse")
            recorder = None if unrecorded else Recorder(self._launches(case))
            known = run_clean(chosen, case, self.arch, recorder)
            if self._place is not None:
                for key, name in known.functions.items():
                    if not (path := self._ptx(key)).exists():
                        _write_bytes(path, bench(chosen.target, self.arch).text_of(key, name).encode())
                if recorder is not None:
                    recorder.close()
                _write(self._place / f"{chosen.name}-{number}.json", known)
        self._clean[chosen.name, number] = known
        return known

    def launches(self, case: Case) -> tuple[Recorded, ...] | None:
        """The launches of a case with the unchanged kernels, where they were recorded."""
        return None if self._place is None else _recorded(self._launches(case))

    def triton_kernels(self, chosen: KernelConfig, count: int = CHOOSING) -> dict[str, Kernel]:
        """Triton kernels that LEAST of the first `count` cases launch or more, by kind: the function's name, with a
        number where there are several, those that most cases launch first. Of each function the first one is taken
        where FEWEST cases launch it."""
        if chosen.name not in self._kernels:
            path = None if self._place is None else self._place / f"{chosen.name}-kernels.json"
            if path is not None and path.exists():
                found = msgspec.json.decode(path.read_bytes(), type=dict[str, Kernel])
            else:
                found = self._found(chosen, count)
                _write(path, found)
            self._kernels[chosen.name] = found
        return self._kernels[chosen.name]

    def _found(self, chosen: KernelConfig, count: int) -> dict[str, Kernel]:
        functions: dict[str, str] = {}
        launched: dict[str, int] = {}
        for number in range(len(self.cases(chosen, count))):
            clean = self.clean(chosen, number, count)
            functions |= clean.functions
            for key in clean.reached.keys() & clean.functions.keys():
                launched[key] = launched.get(key, 0) + (not clean.fails)
        found: dict[str, Kernel] = {}
        for key in sorted(launched, key=lambda key: (-launched[key], key)):
            name = functions[key]
            before = sum(kind.partition(".")[0] == name for kind in found)
            if launched[key] < (LEAST if before else FEWEST):
                continue
            path = None if self._place is None else self._ptx(key)
            text = path.read_text() if path is not None else bench(chosen.target, self.arch).text_of(key, name)
            found[f"{name}.{before + 1}" if before else name] = Kernel(key, text)
        return found

    @cached_property
    def _place(self) -> Path | None:
        return None if self.folder is None else self.folder / "survey"

    def _ptx(self, key: str) -> Path:
        assert self._place is not None
        return self._place / "ptx" / f"{key}.ptx"

    def _launches(self, case: Case) -> Path:
        assert self._place is not None
        return self._place / "launches" / case.id

    def _read(self, chosen: KernelConfig, number: int) -> Clean | None:
        path = None if self._place is None else self._place / f"{chosen.name}-{number}.json"
        return msgspec.json.decode(path.read_bytes(), type=Clean) if path is not None and path.exists() else None


def _write(path: Path | None, value: object) -> None:
    """Writes the file as a whole: another process may read it, or write the same."""
    if path is not None:
        _write_bytes(path, msgspec.json.encode(value))


def _write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


@lru_cache(maxsize=16)
def _recorded(path: Path) -> tuple[Recorded, ...] | None:
    return read(path)


def run_clean(chosen: KernelConfig, case: Case, arch: str = ARCH, recorder: Recorder | None = None) -> Clean:
    """A case with the unchanged kernels. arch: of Triton's; recorder: records their launches."""
    from fuzz.devices.emulator import Report

    reached: dict[str, set[int]] = {}
    functions: dict[str, str] = {}
    longest = 0

    def watch(key: str, name: str, report: Report) -> None:
        nonlocal longest
        reached.setdefault(key, set()).update(report.reached)
        longest = max(longest, report.executed)
        if name:
            functions[key] = name

    place = bench(chosen.target, arch)
    with place.running(watch=watch, recorder=recorder):
        verdict = execute(case, place.target, no_limit)
    what = verdict.findings or verdict.reason
    passes = verdict.outcome == "pass"
    fails = "" if passes else f"case {case.id}: the unchanged kernels give {verdict.outcome}: {what}"
    return Clean(case, {key: frozenset(found) for key, found in reached.items()}, longest, functions, fails)


def no_limit(phase: str, limit: float) -> None:
    """Phases are not limited here; the pool ends a worker that takes too long."""
