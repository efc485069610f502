"""A session's shards: every shard is one target, a number of cases and a seed of its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from fuzz.compiling.build_key import Compiled
from fuzz.core.target import Device, Target
from fuzz.session.environment import gpu_arch
from fuzz.session.settings import Settings
from fuzz.targets.registry import TargetError, load, targets

SHARD_CASES = 25  # the least, and the most, cases of a shard: the unit of work that a worker takes
MOST_SHARD_CASES = 500
SHARDS = 128  # at least as many where there are cases enough, so that no worker waits long for the last ones
KERNEL_CASES = 5  # cases of each kernel in a session that has too few for all kernels of a target
LEAST_KERNELS = 8


class Shard(msgspec.Struct, frozen=True):
    """A share of a session: `cases` cases of one target from one seed; `start` of them are in the shards before.

    kernels  number of the target's kernels that the session's cases have; 0: any number
    """

    target: str
    index: int
    cases: int
    seed: int
    start: int = 0
    kernels: int = 0

    @property
    def name(self) -> str:
        """As it stands in test ids and records."""
        return f"{self.target}-{self.index}"


def runnable(device: Device, files: tuple[str, ...] = ()) -> dict[str, Target]:
    """The targets of `device` that this machine can run."""
    return {name: t for name, t in targets(files, device).items() if t.missing() is None}


def runnable_here(settings: Settings) -> None:
    """Raises TargetError for a target of the session that is unknown, or cannot run on this machine, and where none
    can."""
    for name in settings.targets:
        if (why := load(name, settings.files, settings.device).missing()) is not None:
            raise TargetError(f"{name} cannot run here: {why}")
    if not settings.targets and not runnable(settings.device, settings.files):
        raise TargetError(f"no target runs on {settings.device} here; `attnfuzz targets` says why")


def plan(settings: Settings) -> list[Shard]:
    """The shards of a session, in the order in which they are to be run: first those whose target needs no compiling
    and is quick, last those of the emulated GPU, which compiles itself when it is first used.

    The cases are shared equally among the targets. Raises TargetError for an unknown target."""
    if settings.targets:
        names = [load(name, settings.files, settings.device).name for name in settings.targets]
    else:
        names = list(runnable(settings.device, settings.files))
    shards = []
    for i, name in enumerate(names):
        left = whole = settings.cases // len(names) + (i < settings.cases % len(names))
        index, kernels = 0, _kernels(load(name, settings.files, settings.device), whole)
        while left > 0:
            count = min(left, max(SHARD_CASES, min(settings.cases // SHARDS, MOST_SHARD_CASES)))
            shards.append(Shard(name, index, count, _seed(settings.seed, name, index), whole - left, kernels))
            left, index = left - count, index + 1
    start = {name: _start(name, settings) for name in names}
    return sorted(shards, key=lambda shard: (start[shard.target], shard.index, shard.target))


def compiled(name: str, settings: Settings) -> Compiled | None:
    """The target `name` of a session where its kernels are compiled ahead, else None."""
    target = load(name, settings.files, settings.device)
    return target if isinstance(target, Compiled) else None


def archs(names: Iterable[str], settings: Settings) -> dict[str, str]:
    """What each target's kernels are compiled for here, as `Environment.archs` has it."""
    return {name: _arch(load(name, settings.files, settings.device)) for name in dict.fromkeys(names)}


def _arch(target: Target) -> str:
    own = getattr(target, "arch", "")
    try:
        arch = str(own() if callable(own) else own)
    except ValueError:  # a GPU for which the target has no kernels
        arch = ""
    if target.device == "emulator":
        return f"emulated-{arch}" if arch else "emulated"
    if target.device == "cuda":
        return arch or gpu_arch() or "cuda"
    return "host"


def _start(name: str, settings: Settings) -> tuple[bool, bool, bool]:
    """Sorts targets by what stands before their first verdict: compiled kernels, the emulator, slow cases."""
    target = load(name, settings.files, settings.device)
    return compiled(name, settings) is not None, target.device == "emulator", target.session_size is not None


def _kernels(target: Target, cases: int) -> int:
    """Number of a target's kernels, or of families of them, that its cases of a session have; 0: any number.

    A kernel costs seconds to compile, on two cores a hundred of them minutes: more than all cases of a session that
    has not even one for each."""
    known = len(target.kernel_choices()) if isinstance(target, Compiled) else target.kernel_families
    return max(cases // KERNEL_CASES, LEAST_KERNELS) if cases < known else 0


def _seed(session: int, name: str, index: int) -> int:
    return zlib.crc32(f"{session}/{name}/{index}".encode())
