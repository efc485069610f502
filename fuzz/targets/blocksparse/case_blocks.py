"""CaseBlocks: what a case's block lists say without a run, each thing worked out once, when it is first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from fuzz.core.case import Case
from fuzz.targets.blocksparse.block_lists import blocks_of, calls_on, options_of
from fuzz.targets.blocksparse.static_checks import visits_of
from fuzz.targets.blocksparse.two_calls import splits
from kernels.blocksparse.lists.types import BlockSparse
from oracles.dq_visits import Visits


@dataclass(frozen=True)
class CaseBlocks:
    """Block lists of `case`, for the correct kernels or for those with the mutant `mutant` ("": none)."""

    case: Case
    mutant: str

    @property
    def lists(self) -> BlockSparse:
        """What the kernels are called with, on the CPU; where keys are in two calls, of both together."""
        return blocks_of(self.case)

    @cached_property
    def launched(self) -> BlockSparse:
        """What the kernels are launched with, on the CPU: `lists`, as a bug in the metadata changes them."""
        if not self.mutant:
            return self.lists
        from kernels.mutants.blocksparse.table import MUTANTS as mutants

        return mutants[self.mutant].blocks(self.lists)

    @cached_property
    def visits(self) -> Visits | None:
        """The ordered adds of the backward pass; None where there are none or two passes, or nothing is known of a
        mutant's."""
        if not self.case.problem.backward or not options_of(self.case)["deterministic"] or splits(self.case):
            return None
        return visits_of(self.case, self.lists.paired or self.lists, self.mutant)

    @property
    def ctas_of_tile(self) -> int:
        """CTAs of the backward pass that a tile of keys has: of a pair each adds 1 to the semaphore."""
        return 1 if self.lists.paired is None else 2

    @cached_property
    def expected_visits(self) -> Visits | None:
        """`visits`, or where nothing is known of them, those of the correct kernels: what a hang is explained by."""
        return self.visits or (CaseBlocks(self.case, "").visits if self.mutant else None)

    def calls(self, device: torch.device) -> tuple[BlockSparse, ...]:
        """Lists of each call, one or two, on `device`: the same tensors in every run of the case, so that their
        contents are checked once."""
        return calls_on(self.case, device)


@lru_cache(maxsize=1)
def case_blocks(case: Case, mutant: str = "") -> CaseBlocks:
    """The CaseBlocks of the case at hand, the same object for all that a target does with it."""
    return CaseBlocks(case, mutant)
