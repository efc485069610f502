"""Metamorphic relations: a follow-up case must have the answer of its source case, whatever the right answer is.

A relation turns a problem and its tensors into a variation, and the variation's outputs back into outputs of the first
problem. The required equality is data: 'bitwise' (bits equal, but for the sign of zero) or 'within_budget' (right
within the error budget of the first problem, since all that a variation changes is exact). A target declares the
equality that it keeps where that is not the default. Relations that change how a run is made and not its inputs
(poison, strides, order of calls, the target's own options) say so in fields of Variation, and the judge carries them
out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from msgspec import structs
from torch import Tensor

from oracles import accuracy
from oracles.error_budget.budget import Budget
from oracles.finding import Finding, Location
from oracles.location import position
from oracles.masks import And, Blocks, Causal, Full, Mask, Not, Or, PerBatch, PerHead, Prefix, Window
from oracles.metamorphic import native_sparse
from oracles.metamorphic.fully_masked import fully_masked, hidden_from_earlier_rows
from oracles.metamorphic.permutations import (
    Tensors,
    of_heads,
    outputs_of_heads,
    outputs_of_sequences,
    take_heads,
    take_sequences,
)
from oracles.numerics import Numerics
from oracles.outputs import TITLES, Outputs
from oracles.problem import AnyProblem, Problem, sequence_view

Equality: TypeAlias = Literal["bitwise", "within_budget", "off"]
Order: TypeAlias = Literal["bhsd", "bshd", "sbhd", "bhds"]
Draw: TypeAlias = random.Random
BITS = "bits"  # the place of a finding without a budget
FACTOR = 4.0  # of Q against the scale: its root is exact too
POISONS = (0x00, 0x3F)  # zeros; finite numbers near 1 in every format
ORDERS: tuple[Order, ...] = ("bshd", "sbhd", "bhds", "bhsd")
TINY = 2.0**-110  # of an answer; its factors may be smaller than fp32's smallest normal number, 2^-126
MOST_PAIRS = 1 << 22  # of a problem whose whole token predicate a relation looks at
_KEYS = frozenset({"dk", "dv"})


@dataclass(frozen=True)
class Variation:
    """A follow-up case.

    problem, tensors   its problem and inputs; tensors None: those of the source case
    back       (its answers, the first one's) -> answers of the first problem; what cannot be compared is the first's
    not_bitwise  the tensors whose bits may differ even where bitwise equality is required, as where a sum has another
               order
    numerics   how the target's numerics change with it
    poison     the byte that unwritten memory holds; None: as always
    order      the axes of q, k, v and do in memory, slowest first; None: as they are
    interleaved  the forward of another problem runs between its forward and its backward
    options    the target's options: 'same bits' (others that must give the same bits), 'any' (others), '' (the same)
    """

    problem: AnyProblem
    tensors: Tensors | None = None
    back: Callable[[Outputs, Outputs], Outputs] = lambda theirs, first: theirs
    not_bitwise: frozenset[str] = frozenset()
    numerics: Callable[[Numerics], Numerics] = lambda numerics: numerics
    poison: int | None = None
    order: Order | None = None
    interleaved: bool = False
    options: Literal["", "same bits", "any"] = ""

    @property
    def plain(self) -> bool:
        """True if it has other inputs and runs the target as usual."""
        return self.tensors is not None and self.order is None


@dataclass(frozen=True)
class Relation:
    """One row of the table.

    meaning  completes 'follow-up case with …'
    applies  is cheap and touches no tensor; see `holds_for`
    vary     yields variations in the order in which they are to be tried, since a target may not take the first
    operations  of whose problems it is
    """

    name: str
    meaning: str
    default: Equality
    applies: Callable[[Any], bool]
    vary: Callable[[Any, Tensors, Draw], Iterator[Variation]]
    operations: tuple[str, ...] = ("attention",)

    def holds_for(self, problem: AnyProblem) -> bool:
        """True if it is of the problem's operation, and applies."""
        return problem.op in self.operations and self.applies(problem)

    @property
    def title(self) -> str:
        """The follow-up case's name, as findings begin with it."""
        return f"follow-up case with {self.meaning}"


def compare(
    relation: Relation,
    equality: Equality,
    variation: Variation,
    problem: AnyProblem,
    first: Outputs,
    theirs: Outputs,
    budget: Callable[[], Budget],
    not_bitwise: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Findings where the variation's answers are not the first's.

    first, theirs  answers of the problem and of the variation, each in its own layout, on one device
    budget         of the first problem; asked for only where bits differ
    not_bitwise    further tensors whose bits may differ, such as those of a kernel that adds in any order
    """
    found = variation.back(theirs, first)
    mine = first.choices()
    if any(not torch.equal(x, mine[name]) for name, x in found.choices().items()):
        return []  # numbers of another choice, which is judged by itself
    compared = [name for name, x in first.items() if getattr(found, name) is not None and getattr(found, name) is not x]
    exact = [name for name in compared if equality == "bitwise" and name not in variation.not_bitwise | not_bitwise]
    changed = [name for name in exact if _changed_values(first, found, name)]
    if changed and variation.plain and variation.problem == problem:
        judged = accuracy.judge_with(budget(), Outputs(**({"o": first.o} | {n: getattr(found, n) for n in changed})))
        if judged.findings:  # wrong numbers for other inputs, which is no matter of bits
            return [_titled(relation, finding) for finding in judged.findings]
    if changed:
        return [_bits_differ(relation, first, found, name) for name in changed]
    # Values equal to the first's are as right as those, which were judged before.
    rest = {
        name: getattr(found, name) for name in compared if name not in exact and _changed_values(first, found, name)
    }
    if not rest:
        return []
    judged = accuracy.judge_with(budget(), Outputs(**({"o": first.o} | rest)))
    return [_outside(relation, finding) for finding in judged.findings]


def _changed_values(first: Outputs, found: Outputs, name: str) -> bool:
    """True if values differ anywhere; quick where none does."""
    one, other = getattr(first, name), getattr(found, name)
    if one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other):
        return False
    return bool(_differ(first, found, name).any())


def _differ(first: Outputs, found: Outputs, name: str) -> Tensor:
    """True where values differ. Below the normal numbers of fp32 a product may be flushed to zero or not."""
    one, other = getattr(first, name), getattr(found, name)
    tiny = (one.abs() < TINY) & (other.abs() < TINY)
    return (one != other) & ~(one.isnan() & other.isnan()) & ~tiny


def _bits_differ(relation: Relation, first: Outputs, found: Outputs, name: str) -> Finding:
    one, other, differs = getattr(first, name), getattr(found, name), _differ(first, found, name)
    flat = int(differs.flatten().int().argmax())
    index = [int(at) for at in torch.unravel_index(torch.tensor(flat), one.shape)]
    gap = (one.double() - other.double())[differs].abs()
    largest = float(gap.nan_to_num(nan=torch.inf).max())
    numbers = {"elements": float(differs.sum()), "total": float(one.numel()), "largest": largest}
    message = (
        f"{relation.title}: {TITLES[name]} must be bitwise equal to the source case's, but "
        f"{int(numbers['elements'])} of {one.numel()} elements differ, by at most {largest:.3g}; first at "
        f"{position(name, index)}"
    )
    place = Location(pattern=BITS)
    if len(index) == 4 or (len(index) == 3 and name == "lse"):
        place = Location(index[0], index[1], (index[2], index[2] + 1), pattern=BITS)
    return Finding("metamorphic", relation.name, message, name, place, numbers)


def _outside(relation: Relation, finding: Finding) -> Finding:
    return structs.replace(_titled(relation, finding), oracle="metamorphic", kind=relation.name)


def _titled(relation: Relation, finding: Finding) -> Finding:
    return structs.replace(finding, message=f"{relation.title}: {finding.message}")


def _reordered_sums(
    problem: Problem, *, batch: bool = False, heads: bool = False, group: bool = False
) -> frozenset[str]:
    """Sums whose order follows that of the batch, of the heads, or of a group's query heads."""
    bias = problem.bias
    over = bias is not None and (
        (batch and not bias.batch) or (heads and not bias.heads and not bias.kv_heads) or (group and bias.kv_heads)
    )
    return (frozenset({"dbias"}) if over else frozenset()) | (_KEYS if group else frozenset())


def _shuffled(draw: Draw, count: int) -> list[int]:
    """A permutation that is not the identity; count at least 2."""
    order = list(range(count))
    while order == sorted(order):
        draw.shuffle(order)
    return order


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _permuted_sequences(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    order = _shuffled(draw, p.batch)
    other, tensors = take_sequences(p, given, order)

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        return outputs_of_sequences(other, theirs, p, first, dict(enumerate(order)))

    yield Variation(other, tensors, back, _reordered_sums(p, batch=True))


def _sequence_alone(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    at = draw.randrange(p.batch)
    other, tensors = take_sequences(p, given, [at])

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        found = outputs_of_sequences(other, theirs, p, first, {0: at})
        return found if p.bias is None or p.bias.batch else replace(found, dbias=first.dbias)

    yield Variation(other, tensors, back)


def _sequence_appended(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    """The last one again, longer than all; the others get padding where the layout pads."""
    more = draw.choice((1, 64, 7))
    longer = (p.len_q + more, p.len_k + more)
    other, tensors = take_sequences(p, given, [*range(p.batch), p.batch - 1], last=longer)

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        found = outputs_of_sequences(other, theirs, p, first, {b: b for b in range(p.batch)})
        return found if p.bias is None or p.bias.batch else replace(found, dbias=first.dbias)

    yield Variation(other, tensors, back)


def _permuted_heads(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    """KV heads with their groups, and the query heads of each group."""
    kv = list(range(p.heads_kv))
    draw.shuffle(kv)
    within = [draw.sample(range(p.group), p.group) for _ in kv]
    order = [head * p.group + i for head, inside in zip(kv, within, strict=True) for i in inside]
    if order == sorted(order):
        order = order[::-1]
        kv = kv[::-1]
    other, tensors = take_heads(p, given, order, kv)

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        return outputs_of_heads(p, theirs, _inverse(order), _inverse(kv))

    yield Variation(other, tensors, back, _reordered_sums(p, heads=True, group=p.group > 1))


def _repeated_kv(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    axis = 1
    other = structs.replace(p, heads_kv=p.heads_q, mask=of_heads(p.mask, range(p.heads_q), p.group))
    names = ("k", "v", "bias") if p.bias is not None and p.bias.kv_heads else ("k", "v")
    tensors = given | {name: given[name].repeat_interleave(p.group, axis) for name in names}

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.unflatten(axis, (p.heads_kv, p.group)).double().sum(axis + 1).to(x.dtype)

        found = replace(theirs, dk=of(theirs.dk), dv=of(theirs.dv))
        return replace(found, dbias=of(found.dbias)) if "bias" in names else found

    sums = _KEYS | {"dbias"} if "bias" in names else _KEYS
    yield Variation(other, tensors, back, sums, lambda numerics: replace(numerics, heads="input"))


def _scaled_q(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    q = given["q"] * FACTOR
    if not bool(q.isfinite().all()):
        return
    other = structs.replace(p, scale=p.scale_value / FACTOR)

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        return replace(theirs, dq=None if theirs.dq is None else theirs.dq * FACTOR)

    yield Variation(other, given | {"q": q}, back, _below_normal(p, "dq"))


def _doubled_v(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    v = given["v"] * 2
    if not bool(v.isfinite().all()):
        return

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        def half(x: Tensor | None) -> Tensor | None:
            return None if x is None else x / 2

        return Outputs(theirs.o / 2, theirs.lse, half(theirs.dq), half(theirs.dk), theirs.dv, half(theirs.dbias))

    yield Variation(p, given | {"v": v}, back, _below_normal(p, "o", "dq", "dk", "dbias"))


def _below_normal(p: Problem, *names: str) -> frozenset[str]:
    """float16's subnormal numbers lose bits when they are halved or doubled on the way; the wider formats have room."""
    return frozenset(names) if p.dtype == "float16" else frozenset()


def _respelled(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    """Other masks with the same predicate, so that a target takes another way: a flag, a dense mask, block lists."""
    mask, found = p.mask, list[Mask]()
    match mask:
        case Full():
            found += [Prefix(p.len_k), Window(), Blocks(max(p.len_q, 1), max(p.len_k, 1), ("F",))]
        case Causal(align):
            found.append(Window(None, 0, align))
        case Window(left, right, align) if left is None and right == 0:
            found.append(Causal(align))
    joined: list[Mask] = [And((mask, Full())), Or((mask, mask)), Not(Not(mask)), PerHead((mask,)), PerBatch((mask,))]
    draw.shuffle(found)
    draw.shuffle(joined)
    for other in [*found, *joined]:
        yield Variation(structs.replace(p, mask=other), given)


def _masked_changed(p: Problem, given: Tensors, draw: Draw, value: float | None = None) -> Iterator[Variation]:
    """Keys that no row sees and rows that see no key, padding too: other numbers, or `value`."""
    hidden = fully_masked(p, given["q"].device)
    if not any(bool(where.any()) for where in hidden.values()):
        return
    yield Variation(p, given | {n: _changed(given[n], hidden[n], value) for n in hidden if n in given})


def _masked_nan(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    yield from _masked_changed(p, given, draw, float("nan"))


def _future(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    """Queries from a row on, and the keys that no earlier row sees, are others: earlier rows must not change."""
    cuts = [draw.randint(1, n - 1) if n > 1 else n for n in p.lengths_q]
    hidden = hidden_from_earlier_rows(p, cuts, given["q"].device)
    tensors = given | {n: _changed(given[n], hidden[n], None) for n in hidden if n in given}

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        found = {}
        for name in ("o", "lse", "dq"):
            x, y = getattr(first, name), getattr(theirs, name)
            if x is None or y is None:
                continue
            found[name] = x.clone()
            for b, cut in enumerate(cuts):
                into, of = (sequence_view(p, name, z, b) for z in (found[name], y))
                into[:, :cut] = of[:, :cut]
        return replace(first, **found)

    yield Variation(p, tensors, back)


def _changed(x: Tensor, where: Tensor, value: float | None) -> Tensor:
    """Never NaN unless `value` is; moved by much, so that a leak is no rounding."""
    return torch.where(where[..., None], 37.0 - x if value is None else value, x.float()).to(x.dtype)


def _strides(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    for order in draw.sample(ORDERS, len(ORDERS)):
        yield Variation(p, given, order=order)


def _no_grad(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    def back(theirs: Outputs, first: Outputs) -> Outputs:
        return replace(first, o=theirs.o, lse=first.lse if theirs.lse is None else theirs.lse)

    yield Variation(structs.replace(p, backward=False), back=back)


def _two_forwards(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    yield Variation(p, interleaved=True)


def _poison(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    yield Variation(p, poison=draw.choice(POISONS))


def _options(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    yield Variation(p, options="any")


def _same_options(p: Problem, given: Tensors, draw: Draw) -> Iterator[Variation]:
    yield Variation(p, options="same bits")


def _sparse(vary: Callable[..., Iterator[native_sparse.Made]]) -> Callable[[Any, Tensors, Draw], Iterator[Variation]]:
    """A variation of native_sparse.py as those of this file are."""

    def varied(p: Any, given: Tensors, draw: Draw) -> Iterator[Variation]:
        for other, tensors, back in vary(p, given, draw):
            yield Variation(other, tensors, back)

    return varied


def _always(p: Problem) -> bool:
    return True


def _hides(p: Problem) -> bool:
    """True if some key may be hidden from every row, and the problem is small enough to find out."""
    return p.pairs <= MOST_PAIRS and (p.mask != Full() or (p.ragged and p.layout == "padded"))


def _several_rows(p: Problem) -> bool:
    return p.pairs <= MOST_PAIRS and p.len_q > 1


def _several_sequences(p: Problem) -> bool:
    return p.batch > 1


SPARSE = ("native_sparse_attention",)
EVERY = ("attention", *SPARSE)
TABLE: tuple[Relation, ...] = (
    Relation("permuted_sequences", "its sequences permuted", "within_budget", _several_sequences, _permuted_sequences),
    Relation("sequence_alone", "one sequence alone", "within_budget", _several_sequences, _sequence_alone),
    Relation("sequence_appended", "a longer sequence appended", "within_budget", _always, _sequence_appended),
    Relation("permuted_heads", "its heads permuted", "within_budget", lambda p: p.heads_q > 1, _permuted_heads),
    Relation(
        "repeated_kv", "K and V repeated for every query head", "within_budget", lambda p: p.group > 1, _repeated_kv
    ),
    Relation("scaled_q", f"Q times {FACTOR:g} and the scale by as much less", "within_budget", _always, _scaled_q),
    Relation("doubled_v", "V doubled", "within_budget", _always, _doubled_v),
    Relation("respelled_mask", "its mask in other words", "within_budget", _always, _respelled),
    Relation("unseen_changed", "other numbers where the mask hides them", "bitwise", _hides, _masked_changed),
    Relation("unseen_nan", "NaN where the mask hides them", "off", _hides, _masked_nan),
    Relation("future_changed", "later queries and their keys changed", "bitwise", _several_rows, _future),
    Relation(
        "strides", "its tensors transposed in memory", "within_budget", lambda p: p.layout == "padded", _strides, EVERY
    ),
    Relation("no_grad", "no gradients", "bitwise", lambda p: p.backward, _no_grad, EVERY),
    Relation(
        "two_forwards", "another forward before its backward", "bitwise", lambda p: p.backward, _two_forwards, EVERY
    ),
    Relation("poison", "other contents in unwritten memory", "bitwise", _always, _poison, EVERY),
    Relation("options", "other options of the target", "within_budget", _always, _options, EVERY),
    Relation(
        "same_bits_options", "other options that must give the same bits", "bitwise", _always, _same_options, EVERY
    ),
    Relation(
        "sparse_alone",
        "one sequence alone, not packed",
        "within_budget",
        lambda p: p.batch > 1 or p.layout == "packed",
        _sparse(native_sparse.alone),
        SPARSE,
    ),
    Relation(
        "sparse_wider_window",
        "a wider window, where it reaches over all tokens",
        "within_budget",
        native_sparse.reaches_over_all,
        _sparse(native_sparse.wider_window),
        SPARSE,
    ),
    Relation(
        "sparse_zero_gates",
        "gates of weight 0 in place of none",
        "within_budget",
        lambda p: not p.w_gate,
        _sparse(native_sparse.zero_gates),
        SPARSE,
    ),
    Relation(
        "sparse_future_changed",
        "later tokens changed",
        "bitwise",
        native_sparse.has_future,
        _sparse(native_sparse.future),
        SPARSE,
    ),
)
RELATIONS: dict[str, Relation] = {relation.name: relation for relation in TABLE}
