"""A score's settings and trials, as values; importing them brings neither torch nor a kernel."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Device: TypeAlias = Literal["host", "cuda", "emulator", "interpreter"]
Generator: TypeAlias = Literal["ours", "uniform"]


class Settings(msgspec.Struct, frozen=True):
    """Settings of a score.

    pattern     of the mutants' names, as in a shell: 'blocksparse!*'
    seeds       trials of each mutant; cases: the most of a trial
    peer_seeds, peer_cases  so many of the seeds, the last ones, have a second trial, which goes on after the mutant was
                found, until every other project's rule and ours has seen it or so many cases are done; as many trials
                draw uniformly
    keys        kernels of each target that a score may compile (each takes seconds): cases that need others are drawn
                again. 160 are all that sessions of `blocksparse` draw, some 140
    minimize_runs  of each mutant's last trial, if it finds it; 0: none are minimised
    skip        mutants that are not looked for
    limits, starts, first  fewer cases, another first seed, for some mutants; in which order they are looked for, before
                others (the short form)
    """

    pattern: str = "*"
    seeds: int = 10
    cases: int = 200
    seed: int = 0
    repeats: int = 2
    peer_seeds: int = 3
    peer_cases: int = 40
    keys: int = 160
    minimize_runs: int = 40
    minimize_seconds: float = 60.0
    device: Device = "host"
    skip: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    starts: dict[str, int] = {}
    first: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "cases", "repeats", "keys"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("peer_seeds", "peer_cases", "minimize_runs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be negative, got {getattr(self, name)}")


class Trial(msgspec.Struct, frozen=True):
    """One mutant, looked for once.

    seed       of its cases
    cases      ends it
    peers      until how many cases the other projects' criteria judge too (0: only until ours find it)
    minimize   whether what is found is made smaller
    """

    bug: str
    generator: Generator
    seed: int
    cases: int
    peers: int = 0
    minimize: bool = False

    @property
    def name(self) -> str:
        """Name of it in the records."""
        judged = " peers" if self.peers and self.generator == "ours" else ""
        return f"{self.generator} {self.bug} {self.seed}{judged}"
