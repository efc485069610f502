"""Judging some CTAs of a launch, on tensors that may be far larger than the machine's memory.

A CTA-subset case (`Target.ctas_of`) is judged as follows. Its tensors are reserved, not filled: memory is
committed where it is touched. A first run, on zeros, shows which rows each CTA writes; every access is looked at there
already. Then those rows of Q, and the rows of K and V that they see, get values; the CTAs run again, `repeats` times;
and their rows are judged against the reference as a small problem of their own. So nothing here knows how a kernel
numbers its CTAs, and an index that wraps is found by what it reads.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.target import Target, Tensors
from fuzz.core.verdict import Finding, Location, Verdict
from fuzz.judging.execution import INPUTS_LIMIT, PREPARE_LIMIT, Clock, call, deadline
from fuzz.judging.verdict_builder import conclude, plan_findings, proof_findings
from fuzz.tensors.arena import strides_of
from fuzz.tensors.values import make_values
from oracles import accuracy, determinism
from oracles.error_budget.same_precision import same_precision
from oracles.masks import Tokens, keep
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, Problem, shapes
from oracles.reference.attention import reference

_NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python's mmap does not name


@dataclass(frozen=True)
class Rows:
    """Queries first … stop of one head, and the keys that they see: those between key and key_stop, with the mask."""

    batch: int
    head: int
    first: int
    stop: int
    key: int
    key_stop: int
    mask: Tokens

    def __str__(self) -> str:
        return f"rows {self.first} … {self.stop - 1} of batch {self.batch}, head {self.head}"


def judge_cta_subset(case: Case, target: Target, clock: Clock) -> Verdict:
    """The verdict of a CTA-subset case. What the target raises leaves as execution.Raised."""
    problem, ctas = case.problem, target.ctas_of(case)
    clock.start("prepare", PREPARE_LIMIT)
    call(partial(target.prepare_cta_subset, case))
    clock.start("run", deadline(target, case, 1 + case.repeats))
    given = _tensors(case)
    execution = call(lambda: target.run_cta_subset(case, given, _outputs(problem), 0))
    found = _rows_written(problem, execution.outputs, target.tile_rows(case))
    if len(found) != len(ctas):
        written = ", ".join(map(str, found)) or "none"
        message = (
            f"{len(ctas)} CTAs ran, but rows of {len(found)} tiles were written, not one tile for each CTA: {written}"
        )
        finding = Finding("memory", "missing_rows", message, "lse", Location(pattern="rows"))
        return conclude(case, [finding], clock, [execution])
    for rows in found:
        _fill(case, rows, given)
    executions = [
        call(lambda repeat=repeat: target.run_cta_subset(case, given, _outputs(problem), 1 + repeat))  # type: ignore[misc]
        for repeat in range(case.repeats)
    ]
    clock.start("judge", INPUTS_LIMIT)
    findings = proof_findings(target, executions) + plan_findings(target, case, executions[0])
    worst = None
    for rows in found:
        small, some = _excerpt(problem, rows, given)
        outputs = [_part(e.outputs, rows) for e in executions]
        judged = _judgement(small, some, outputs[0], target.numerics_of(case))
        worst = judged if worst is None or judged.ratio > worst.ratio else worst
        findings += [replace(f, message=f"{rows}: {f.message}") for f in judged.findings]
        unstable = determinism.compare(outputs)
        findings += [replace(f, message=f"{rows}: {f.message}") for f in unstable]
    return conclude(case, findings, clock, executions, judgement=worst)


def _tensors(case: Case) -> Tensors:
    """Q, K and V of zeros, laid out as the recipe says."""
    shape, p = shapes(case.problem), case.problem
    q, k, v = (reserved(shape[name], p.torch_dtype, getattr(case.inputs, name)) for name in ("q", "k", "v"))
    return Tensors(q, k, v)


def _outputs(problem: AnyProblem) -> Outputs:
    """O and LSE of zeros, contiguous."""
    shape = shapes(problem)
    return Outputs(reserved(shape["o"], problem.torch_dtype), reserved(shape["lse"], torch.float32))


def reserved(shape: Sequence[int], dtype: torch.dtype, storage: Storage | None = None) -> Tensor:
    """Zeros, of which only what is touched takes memory."""
    strides, span = strides_of(tuple(shape), storage or Storage())
    if storage is None:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        span = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    offset = storage.offset if storage is not None else 0
    owner = mmap.mmap(-1, (span + offset) * dtype.itemsize, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(owner, dtype=dtype).as_strided(shape, strides, offset)


def _rows_written(problem: AnyProblem, outputs: Outputs, tile: int) -> list[Rows]:
    """The runs of rows whose LSE is no longer 0, those of each tile for themselves. On zeros every score is 0, so LSE
    is the log of the number of keys: 0 for a row with one key, which is bridged where its neighbours were written."""
    lse = outputs.lse
    assert lse is not None
    at = lse.reshape(-1).view(torch.int32).nonzero()[:, 0]
    if not at.numel():
        return []
    tiles = at // problem.len_q * -(-problem.len_q // tile) + at % problem.len_q // tile
    cuts = ((at.diff() > 2) | (tiles.diff() > 0)).nonzero()[:, 0] + 1
    found = []
    for run in torch.tensor_split(at, cuts.tolist()):
        row, length = int(run[0]), problem.len_q
        batch, head = row // length // problem.heads_q, row // length % problem.heads_q
        first, last = row % length, int(run[-1]) % length
        found.append(seen(problem, batch, head, first - (first == 1), last + 1))
    return found


def seen(problem: AnyProblem, batch: int, head: int, first: int, stop: int) -> Rows:
    """Asks the mask which keys the rows see. It is a window (the targets' rules say so): what the first and the last of
    the rows that see anything see holds what those between them see."""

    def kept(rows: Tensor, begin: int, end: int) -> Tensor:
        cols = torch.arange(begin, end)[None, :]
        here = {"batch": batch, "head": head, "group": problem.group, "len_q": problem.len_q, "len_k": problem.len_k}
        mask = keep(problem.mask, rows[:, None], cols, **here)
        return mask.expand(rows.shape[0], end - begin)

    def ends(rows: range) -> tuple[int, int] | None:
        """The first and the last key that the first of the rows with a key sees."""
        for row in rows:
            columns = kept(torch.tensor([row]), 0, problem.len_k)[0].nonzero()[:, 0]
            if columns.numel():
                return int(columns[0]), int(columns[-1])
        return None

    one, other = ends(range(first, stop)), ends(range(stop - 1, first - 1, -1))
    if one is None or other is None:
        return Rows(batch, head, first, stop, 0, 1, Tokens(("0",) * (stop - first)))
    low, high = min(one[0], other[0]), max(one[1], other[1]) + 1
    lines = kept(torch.arange(first, stop), low, high).int().tolist()
    return Rows(batch, head, first, stop, low, high, Tokens(tuple("".join("01"[x] for x in line) for line in lines)))


def _excerpt(problem: AnyProblem, rows: Rows, given: Tensors) -> tuple[Problem, Tensors]:
    """The small problem that the rows are, with the values that stand in the large tensors."""
    at = (slice(rows.batch, rows.batch + 1), slice(rows.head, rows.head + 1))
    of_kv = (at[0], slice(rows.head // problem.group, rows.head // problem.group + 1))
    queries, keys = slice(rows.first, rows.stop), slice(rows.key, rows.key_stop)
    scale = problem.scale if problem.scale is not None else problem.dim**-0.5
    small = Problem(
        (rows.stop - rows.first,), (rows.key_stop - rows.key,), 1, 1, problem.dim, problem.dim_v, problem.dtype,
        mask=rows.mask, scale=scale, softcap=problem.softcap, backward=False,
    )  # fmt: skip
    return small, Tensors(given.q[*at, queries], given.k[*of_kv, keys], given.v[*of_kv, keys])


def _fill(case: Case, rows: Rows, given: Tensors) -> None:
    """Values for the rows and what they see; where two CTAs share keys, those of the later one."""
    small, some = _excerpt(case.problem, rows, given)
    seed = (case.inputs.seed + rows.first + rows.head) % 2**31
    recipe = Case(case.target, small, Inputs(seed=seed, distribution=case.inputs.distribution))
    for name, value in make_values(recipe, "cpu").items():
        getattr(some, name).copy_(value)


def _part(outputs: Outputs, rows: Rows) -> Outputs:
    at = (slice(rows.batch, rows.batch + 1), slice(rows.head, rows.head + 1), slice(rows.first, rows.stop))
    assert outputs.lse is not None
    return Outputs(outputs.o[at], outputs.lse[at])


def _judgement(small: Problem, some: Tensors, outputs: Outputs, numerics: Numerics) -> accuracy.Judgement:
    right: Any = reference(small, some.q, some.k, some.v)
    return accuracy.judge(small, outputs, right, same_precision(small, some.q, some.k, some.v, numerics=numerics))
