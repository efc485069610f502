"""What the judge asks of an operation, as one table: its reference and budget, before a run and after it.

An operation that chooses something, such as blocks of keys, has that judged as an answer of its own; the numbers are
then judged with what was chosen frozen. A new operation is a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from oracles.error_budget.budget import Budget
from oracles.error_budget.same_precision import Same, same_precision
from oracles.finding import Finding
from oracles.native_sparse.budget import budget as budget_of_native_sparse
from oracles.native_sparse.selection import differing, malformed, wrong_choices
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.reference.attention import reference

Book: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Operation:
    """One row.

    budget   (problem, inputs, numerics, padding, book) -> the budget of its true answer. `book` names the phase that
             the time of what follows counts to
    choices  (problem, inputs, outputs of every repeat) -> findings about what they chose, and whether the first one's
             choice can be frozen
    frozen   (budget, inputs, outputs, numerics) -> the budget with the choice of these outputs frozen
    under    (budget, inputs, numerics, padding) -> the budget of the same answer under other numerics
    exact    whether there are inputs with exact answers (fuzz/tensors/coded_values.py), and other numerics are proposed
             where they would explain a failure
    """

    budget: Callable[[Any, Tensors, Numerics, bool, Book], Budget]
    choices: Callable[[Any, Tensors, Sequence[Outputs]], tuple[list[Finding], bool]]
    frozen: Callable[[Budget, Tensors, Outputs, Numerics], Budget]
    under: Callable[[Budget, Tensors, Numerics, bool], Budget]
    exact: bool


def operation_of(case: Case) -> Operation:
    """The row of a case's problem."""
    return OPERATIONS[case.problem.op]


def _attention_budget(problem: Any, given: Tensors, numerics: Numerics, padding: bool, book: Book) -> Budget:
    right = reference(problem, given.q, given.k, given.v, bias=given.bias, do=given.do)
    book("same_precision")
    same = _same(problem, given, numerics)
    book("judge")
    return Budget.of(problem, right, same, padding=padding)


def _attention_under(budget: Budget, given: Tensors, numerics: Numerics, padding: bool) -> Budget:
    problem: Any = budget.problem
    return Budget.of(problem, budget.reference, _same(problem, given, numerics), padding=padding)


def _same(problem: Any, given: Tensors, numerics: Numerics) -> Same:
    return same_precision(problem, given.q, given.k, given.v, bias=given.bias, do=given.do, numerics=numerics)


def _sparse_budget(problem: Any, given: Tensors, numerics: Numerics, padding: bool, book: Book) -> Budget:
    found = budget_of_native_sparse(problem, given.by_name(), numerics=numerics, padding=padding)
    book("judge")
    return found


def _sparse_under(budget: Budget, given: Tensors, numerics: Numerics, padding: bool) -> Budget:
    return _with_choices(budget, given, budget.choices, numerics, padding)


def _selections(problem: Any, given: Tensors, runs: Sequence[Outputs]) -> tuple[list[Finding], bool]:
    first = runs[0].choices()
    if found := malformed(problem, first):
        return found, False
    found = wrong_choices(problem, given.by_name(), first)
    return found + differing([run.choices() for run in runs]), True


def _with_selection(budget: Budget, given: Tensors, outputs: Outputs, numerics: Numerics) -> Budget:
    choices = outputs.choices()
    if all(torch.equal(x, budget.choices[name]) for name, x in choices.items()):
        return budget
    return _with_choices(budget, given, choices, numerics, budget.padding)


def _with_choices(budget: Budget, given: Tensors, choices: Any, numerics: Numerics, padding: bool) -> Budget:
    problem: Any = budget.problem
    return budget_of_native_sparse(problem, given.by_name(), choices, numerics=numerics, padding=padding)


OPERATIONS: dict[str, Operation] = {
    "attention": Operation(
        budget=_attention_budget,
        choices=lambda problem, given, runs: ([], False),
        frozen=lambda budget, given, outputs, numerics: budget,
        under=_attention_under,
        exact=True,
    ),
    "native_sparse_attention": Operation(
        budget=_sparse_budget, choices=_selections, frozen=_with_selection, under=_sparse_under, exact=False
    ),
}
