"""Fake bugs: predicates over a Case, and the probe that they make. Pure Python, microseconds per run."""

from __future__ import annotations

import random
from collections.abc import Callable

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.verdict import Finding, Outcome, Verdict
from fuzz.minimize.edits import edit, edit_inputs
from oracles.masks import And, Blocks, Causal, Documents, Intervals, Not, Or, PerHead, Prefix, Tokens, Window
from oracles.problem import Bias, Problem


class Probe:
    """run_case for a kernel whose bug is `fails`; counts its calls and remembers what it was asked."""

    def __init__(self, fails: Callable[[Case], bool], tensors=("dk", "dv"), outcome: Outcome = "fail") -> None:
        self.fails, self.tensors, self.outcome = fails, tensors, outcome
        self.asked: list[Case] = []

    @property
    def runs(self) -> int:
        return len(self.asked)

    def __call__(self, case: Case) -> Verdict:
        self.asked.append(case)
        return failure(case, self.tensors, self.outcome) if self.fails(case) else Verdict(case.id, "pass")


def failure(case: Case, tensors=("dk", "dv"), outcome: Outcome = "fail") -> Verdict:
    if outcome in ("hang", "crash"):
        return Verdict(case.id, outcome, (Finding("runner", outcome, "m"),))
    return Verdict(case.id, outcome, tuple(Finding("accuracy", "wrong", "m", tensor=name) for name in tensors))


def tail(case: Case) -> bool:
    """Rows past the end are stored into the next head's LSE: only gradients show it, and only with a second head."""
    p = case.problem
    return p.backward and p.heads_q >= 2 and any(n % 64 for n in p.lengths_q)


def plain(lengths=((447, 447),), heads=(4, 4), **changes) -> Case:
    lengths_q, lengths_k = zip(*lengths, strict=True)
    base = {"lengths_q": lengths_q, "lengths_k": lengths_k, "heads_q": heads[0], "heads_kv": heads[1]}
    base |= {"dim": 64, "dim_v": 64, "dtype": "float32"}
    return Case(target="fake", problem=Problem(**(base | changes)))


MASKS = (
    Causal(),
    Window(64, 3, "bottom_right"),
    And((Causal("bottom_right"), Documents((100, 300)))),
    Or((Prefix(7), Window(16, 0))),
    Blocks(64, 64, ("FM.F.MF.",) * 8, seed=5),
    PerHead((Causal(), Not(Causal()))),
    Intervals(tuple(((0, q + 1), (q + 9, q + 20)) for q in range(300))),
    Tokens(tuple("01" * 40 for _ in range(200))),
)

CHANGES: tuple[Callable[[Case, random.Random], Case], ...] = (
    lambda c, r: edit(c, layout="packed"),
    lambda c, r: edit(c, lengths_q=(*c.problem.lengths_q, 0, 65, 128), lengths_k=(*c.problem.lengths_k, 31, 65, 1)),
    lambda c, r: edit(c, heads_q=8, heads_kv=r.choice((1, 2, 4))),
    lambda c, r: edit(c, mask=r.choice(MASKS)),
    lambda c, r: edit(c, softcap=r.choice((1.5, 30.0))),
    lambda c, r: edit(c, scale=r.uniform(0.01, 1)),
    lambda c, r: edit(c, bias=Bias(batch=r.random() < 0.5, heads=True, dtype="float32")),
    lambda c, r: edit(c, dtype=r.choice(("float16", "bfloat16"))),
    lambda c, r: edit(c, dim=r.choice((80, 96, 128)), dim_v=r.choice((40, 80, 128))),
    lambda c, r: edit_inputs(c, q=Storage("bshd", pad=8), v=Storage("sbhd"), do=Storage(offset=1)),
    lambda c, r: edit_inputs(c, distribution=r.choice(("needle", "large"))),
    lambda c, r: edit_inputs(c, do=Storage("expanded")),
    lambda c, r: edit(c, lengths_k=tuple(n + r.choice((1, 63, 500)) for n in c.problem.lengths_k)),
)


def random_case(seed: int, features: int = 4) -> Case:
    """A case with a tail, several heads and a backward, and `features` more things switched on."""
    rng = random.Random(seed)
    n = rng.choice((65, 127, 200, 447, 1000, 2047))
    case = Case("fake", plain(((n, n),)).problem, Inputs(seed=rng.randrange(1 << 20)))
    for change in rng.sample(CHANGES, features):
        case = change(case, rng) or case
    return case
