"""Block lists by themselves: the kernels that make those of a call run, and no attention does.

Such lists may be of sizes whose attention would take too long: the kernels work on up to 1,024 rows in a program. They
are compared with those that tensor operations make (list_facts.py); sessions of blocksparse compare these with a mask.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Location
from fuzz.targets.nsa.list_facts import drawn, expected_lists, facts
from fuzz.tensors.guard_bands import Guarded
from kernels.blocksparse.lists.types import BlockSparse
from kernels.nsa.branches import BRANCHES
from kernels.nsa.lists.build import branch_lists
from kernels.nsa.operands import CAUSAL, Operands, Settings
from kernels.nsa.selection import Selection
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import cumulative


def check(case: Case, injection: str, device: str) -> list[Finding]:
    """Finding for the first list that differs, with the selection that the case's seed draws: of the case's call, and
    of those that differ from it in causality, tiles of queries or order of adds. All are made by kernels of their own,
    and what takes time is the selection."""
    own = operands_of(case, injection, device)
    for q_tile in sorted({64, 128, own.settings.tile}):
        operands = replace(own, settings=replace(own.settings, tile=q_tile))
        selection = drawn(operands, case.inputs.seed)
        for causal, ordered in product(CAUSAL.values(), (True, False)):
            settings = replace(operands.settings, causal=causal, deterministic=ordered)
            found = _check(replace(operands, settings=settings), selection, backward=case.problem.backward)
            if found:
                return found
    return []


def _check(operands: Operands, selection: Selection, *, backward: bool) -> list[Finding]:
    """Finding for the first list of a call that differs. Forward ones do not depend on the order of adds."""
    ordered = operands.settings.deterministic
    for name, back in product(BRANCHES, (False, True) if backward and ordered else (backward,)):
        with Guarded() as guard:
            made = branch_lists(name, operands, selection, back)
            made = operands.settings.steps.lists(made, name, back)
        wanted = expected_lists(name, operands, selection, back)
        found = guard.check() or _differences(made, wanted, name, back, ordered)
        if found:
            return found
    return []


def operands_of(case: Case, injection: str, device: str) -> Operands:
    """Operands of the case's call, whose tensors take no memory."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    packed = p.layout == "packed"
    rows = (sum(p.lengths),) if packed else (len(p.lengths), p.len_q)
    one = torch.zeros(1, dtype=p.torch_dtype, device=device)
    q, k = (one.expand(*rows, heads, p.dim) for heads in (p.heads_q, p.heads_kv))
    cu = torch.tensor(cumulative(p.lengths), dtype=torch.int32, device=device) if packed else None
    groups = p.num_cmp_selected_blocks or 0
    settings = Settings(
        block=p.compress_block_size,
        chosen=p.num_selected_blocks,
        window=p.window_size,
        groups=groups,
        causal=CAUSAL[p.causal],
        tile=p.q_tile,
        longest=p.len_q,
        scale=1.0,
        deterministic=True,
        injection=injection,
    )
    return Operands(q, k, k, None, None, None, cu, settings)


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
