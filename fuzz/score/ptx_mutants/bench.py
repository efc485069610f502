"""Bench: where a configuration's kernels run on the emulated GPU, with one of them changed and every launch watched.

A launch is known by the key of its compiled kernel: of a build of kernels.blocksparse, or the digest of the PTX that
Triton has made. Triton compiles anew for what it knows of strides, and mostly makes the same PTX of it, but for what
debuggers read: names of folders, which are those of the tree that filled Triton's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Protocol

from fuzz.compiling import Build
from fuzz.core.target import Target
from fuzz.devices.emulator import PtxModule, Report
from fuzz.devices.emulator.api import Emulator
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.state.global_memory import Memory
from fuzz.score.ptx_mutants.recording import Recorder
from fuzz.targets.blocksparse.devices import connect, emulated
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.dynamic_mask.emulated import EmulatedDynamicMask
from fuzz.targets.nsa.emulated import EmulatedNativeSparse
from fuzz.targets.triton_emulated import EmulatedTriton

Watch = Callable[[str, str, Report], None]  # kernel's key, its function's name, report of a launch


@dataclass
class Running:
    """State of a block of `Bench.running`. used: whether a changed kernel was launched."""

    used: bool = False


class Bench(Protocol):
    """A target on the emulated GPU."""

    @property
    def target(self) -> Target:
        """The target, whose kernels they are."""

    def running(
        self,
        instead: Mapping[str, str] | None = None,
        budget: int | None = None,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> AbstractContextManager[Running]:
        """Inside, kernels run changed, or within limits, or watched.

        instead   PTX by the key of the kernel in whose place it runs
        budget    the most micro-operations of a launch
        watch     is called with every report
        recorder  records every launch, of Triton's kernels
        """

    def text_of(self, key: str, name: str) -> str:
        """PTX of a kernel that was launched."""


class BlockSparseBench:
    """Kernels of kernels.blocksparse."""

    def __init__(self) -> None:
        connect("emulator")
        self.target = EmulatedBlockSparse()

    @contextmanager
    def running(
        self,
        instead: Mapping[str, str] | None = None,
        budget: int | None = None,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> Iterator[Running]:
        """See Bench."""
        device, found = emulated(), Running()

        def seen(build: Build, report: Report) -> None:
            found.used |= build.key in device.instead
            if watch is not None:
                watch(build.key, "", report)

        device.instead |= {key: PtxModule(Emulator(), text, kept=False) for key, text in (instead or {}).items()}
        device.budget, device.watch = budget, seen
        try:
            yield found
        finally:
            device.budget = device.watch = None
            for key in instead or {}:
                del device.instead[key]

    def text_of(self, key: str, name: str) -> str:
        """See Bench. No launch has to be asked: a configuration's builds are known (configs.py)."""
        raise NotImplementedError


@dataclass
class _Intercept(Running):
    """Triton's launches, changed and watched."""

    changed: dict[str, Programs] = field(default_factory=dict)
    watch: Watch | None = None
    recorder: Recorder | None = None

    def programs(self, name: str, key: str) -> Programs | None:
        """See Intercept of triton_driver.py."""
        ours = digest_of(name, key)
        self.used |= ours in self.changed
        return self.changed.get(ours)

    def launching(self, config: LaunchConfig, launch: Launch, memory: Memory) -> None:
        """See Intercept of triton_driver.py."""
        if self.recorder is not None:
            self.recorder.launching(config, launch, memory)

    def launched(self, name: str, key: str, report: Report) -> None:
        """See Intercept of triton_driver.py."""
        if self.watch is not None:
            self.watch(digest_of(name, key), name, report)
        if self.recorder is not None:
            self.recorder.launched(digest_of(name, key), report)


class TritonBench:
    """Kernels of a target whose Triton kernels run on the emulated GPU."""

    def __init__(self, target: EmulatedTriton) -> None:
        self.target: Any = target

    @contextmanager
    def running(
        self,
        instead: Mapping[str, str] | None = None,
        budget: int | None = None,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> Iterator[Running]:
        """See Bench."""
        changed = {key: programs_of(text) for key, text in (instead or {}).items()}
        found = _Intercept(changed=changed, watch=watch, recorder=recorder)
        self.target.intercept, self.target.budget = found, budget
        try:
            yield found
        finally:
            self.target.intercept = self.target.budget = None

    def text_of(self, key: str, name: str) -> str:
        """See Bench. Raises KeyError for a kernel that this process has not launched."""
        return _texts[key]


_texts: dict[str, str] = {}  # PTX of the kernels that were launched, by its digest


@cache
def digest_of(name: str, key: str) -> str:
    """The digest of the PTX of a kernel that Triton has compiled, by its key in Triton's cache."""
    from fuzz.devices.emulator.frontends.triton_driver import compiled_ptx

    text = without_debug_info(compiled_ptx(name, key))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return _texts.setdefault(digest, text) and digest


def without_debug_info(text: str) -> str:
    """PTX without its end, from the first `.file` on: names of source files, and tables for debuggers."""
    return text.partition("\n\t.file\t")[0] + "\n"


@lru_cache(maxsize=8)
def programs_of(text: str) -> Programs:
    """The kernels of a PTX text, and the machine code that there is of them."""
    return Programs(text, kept=False)


ARCH = "sm_90a"  # that Triton's kernels are compiled for


@cache
def bench(target: str, arch: str = ARCH) -> Bench:
    """The bench of a target of targets.py. arch: of its Triton kernels."""
    if target.partition(".")[0] == "blocksparse":
        return BlockSparseBench()
    made = {"dynamic_mask": EmulatedDynamicMask, "nsa": EmulatedNativeSparse}[target]()
    made.arch = arch
    return TritonBench(made)
