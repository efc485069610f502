"""Block lists by themselves: the kernels that make those of a call run, and no attention does.

Such lists may be of sizes whose attention would take too long: the kernels work on up to 1,024 rows in a program. They
are compared with those that tensor operations make (list_facts.py); sessions of blocksparse compare these with a mask.

NOTE [ends] A program makes 128 rows, 16 by each of its unrolled instructions, and asks of each row whether its sequence
has it. ENDS has a sequence that ends just before a row of each instruction, for tiles of 64 and of 128 queries. One has
9 tiles of queries, of which the last sees a tile of keys more than a step of the loop over them takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from msgspec import structs

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
from oracles.problem import AnyProblem, cumulative

TILE = 128  # queries and keys of the largest tiles
UNIT = 64  # of the smallest
ENDS = (2, 9, 18, 25, 34, 36, 50, 66, 68, 82, 98, 100, 114, 132, 164, 196, 228)  # in units: NOTE [ends]


def check(case: Case, injection: str, device: str) -> list[Finding]:
    """Finding for the first list that differs, with the selection that the case's seed draws: of the case's call, and
    of those of `calls_of`."""
    for operands in calls_of(case, injection, device):
        selection = drawn(operands, case.inputs.seed)
        for ordered in (True, False):
            settings = replace(operands.settings, deterministic=ordered)
            found = _check(replace(operands, settings=settings), selection, backward=case.problem.backward)
            if found:
                return found
    return []


def calls_of(case: Case, injection: str, device: str) -> Iterator[Operands]:
    """The case's call and others like it, whose lists are made by kernels of their own or have other ends: all
    causalities and both tiles of queries, in both layouts; no window; chosen groups; sequences that end where tiles
    do; a short one."""
    own = operands_of(case.problem, injection, device)
    for like in (own, operands_of(other_layout(case.problem), injection, device)):
        for tile, causal in product(sorted({64, 128, own.settings.tile}), CAUSAL.values()):
            yield replace(like, settings=replace(like.settings, tile=tile, causal=causal))
    yield replace(own, settings=replace(own.settings, window=0))
    yield replace(own, settings=replace(own.settings, groups=1))
    yield operands_of(whole_tiles(case.problem), injection, device)
    yield operands_of(short(case.problem), injection, device)


def other_layout(problem: AnyProblem) -> NativeSparse:
    """The problem in the other layout: padded, two sequences of the longest length; packed, NOTE [ends]."""
    assert isinstance(problem, NativeSparse)
    if problem.layout == "packed":
        return structs.replace(problem, lengths=(problem.len_q,) * 2, layout="padded")
    lengths = tuple(UNIT * n for n in ENDS)
    return structs.replace(problem, lengths=lengths, layout="packed", heads_q=1, heads_kv=1)


def whole_tiles(problem: AnyProblem) -> NativeSparse:
    """The problem with lengths that are multiples of a tile; of packed sequences, NOTE [ends]."""
    assert isinstance(problem, NativeSparse)
    if problem.layout == "packed":
        return other_layout(structs.replace(problem, lengths=(problem.len_q,), layout="padded"))
    return structs.replace(problem, lengths=(max(problem.len_q // TILE, 1) * TILE,) * max(len(problem.lengths), 2))


def short(problem: AnyProblem) -> NativeSparse:
    """The problem with a padded sequence of 9 tiles, NOTE [ends], all in the window."""
    assert isinstance(problem, NativeSparse)
    length = 9 * TILE
    return structs.replace(problem, lengths=(length,), layout="padded", q_tile=TILE, window_size=length)


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


def operands_of(problem: AnyProblem, injection: str, device: str) -> Operands:
    """Operands of a problem's call, whose tensors take no memory."""
    p = problem
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
