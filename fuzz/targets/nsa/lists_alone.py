"""Block lists by themselves: the kernels that make those of a call run, and no attention does.

Such lists may be of sizes whose attention would take too long: the kernels work on up to 1,024 rows in a program. They
are compared with those that tensor operations make (list_facts.py); sessions of blocksparse compare these with a mask.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Location
from fuzz.targets.nsa.list_facts import drawn, expected_lists, facts
from fuzz.tensors.guard_bands import Guarded
from kernels.blocksparse.lists.types import BlockSparse
from kernels.nsa.branches import BRANCHES
from kernels.nsa.lists.build import branch_lists
from kernels.nsa.operands import CAUSAL, Operands, Settings
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import cumulative


def check(case: Case, injection: str, device: str, *, deterministic: bool) -> list[Finding]:
    """Finding for the first of the call's lists that differs, with the selection that the case's seed draws."""
    operands = operands_of(case, injection, device, deterministic=deterministic)
    selection = drawn(operands, case.inputs.seed)
    for backward in (False, True) if case.problem.backward else (False,):
        for name in BRANCHES:
            with Guarded() as guard:
                made = branch_lists(name, operands, selection, backward)
                made = operands.settings.steps.lists(made, name, backward)
            found = guard.check() or _differences(
                made, expected_lists(name, operands, selection, backward), name, backward, deterministic
            )
            if found:
                return found
    return []


def operands_of(case: Case, injection: str, device: str, *, deterministic: bool) -> Operands:
    """Operands of the case's call, whose tensors take no memory."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    packed = p.layout == "packed"
    rows = (sum(p.lengths),) if packed else (len(p.lengths), p.len_q)
    one = torch.zeros(1, dtype=p.torch_dtype, device=device)
    q, k = (one.expand(*rows, heads, p.dim) for heads in (p.heads_q, p.heads_kv))
    cu = torch.tensor(cumulative(p.lengths), dtype=torch.int32, device=device) if packed else None
    groups = p.num_cmp_selected_blocks or 0
    numbers: Any = (p.compress_block_size, p.num_selected_blocks, p.window_size, groups, CAUSAL[p.causal], p.q_tile)
    return Operands(q, k, k, None, None, None, cu, Settings(*numbers, p.len_q, 1.0, deterministic, injection))


def _differences(
    made: BlockSparse, wanted: BlockSparse, name: str, backward: bool, deterministic: bool
) -> list[Finding]:
    lists = wanted.backward if backward else wanted.forward
    assert lists is not None
    width = 1 + max((int(one.count.max()) for one in (lists.partial, lists.full) if one.count.numel()), default=0)
    got, want = (facts(one, backward, deterministic, width) for one in (made, wanted))
    for fact in want:
        if got[fact].shape != want[fact].shape or not torch.equal(got[fact].long(), want[fact].long()):
            which = f"{'backward' if backward else 'forward'} lists of the {name} branch"
            where = Location(pattern=f"{name} {fact}")
            return [Finding("block_lists", "lists", f"{fact} of the {which} is not that of the mask", place=where)]
    return []
