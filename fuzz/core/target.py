"""What a target is: an adapter to one kernel under test, with what it supports as data.

A target never decides at run time what it can do: `support` and `rules` say it, `refusal` reads them, the strategies
draw from them, and `attnfuzz targets` prints them. Two kinds of "no":
    cannot express   the kernel's interface has no such option; the harness never asks
    refuses          the kernel declares that it raises; the harness asks now and then, and silent acceptance is a
                     finding
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.verdict import Finding, Outcome
from oracles.masks import kinds
from oracles.metamorphic.relations import RELATIONS, Demand
from oracles.numerics import Numerics
from oracles.outputs import Answers
from oracles.problem import Dtype, Layout, Problem

T = TypeVar("T")

Device: TypeAlias = Literal["host", "cuda", "emulator"]


class DeviceError(Exception):
    """A device that sees what happens on it (the emulated GPU) ended the run: outcome 'hang' or 'fail', its findings,
    and evidence as JSON values."""

    def __init__(self, outcome: Outcome, findings: tuple[Finding, ...], evidence: dict[str, Any]) -> None:
        super().__init__(findings[0].message if findings else outcome)
        self.outcome, self.findings, self.evidence = outcome, findings, evidence


@dataclass(frozen=True)
class Tensors:
    """A Case's inputs, in the problem's layout and the recipe's strides. `bias` is None without one, `do` without
    backward."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Execution:
    """What a run gave: the answers, and the proof of what ran (an autograd node's or kernel's name, with its
    variant)."""

    answers: Answers
    kernel: str


@dataclass(frozen=True)
class Support:
    """What a target's interface can express. Masks None: any predicate (as a dense or block mask)."""

    dtypes: tuple[Dtype, ...] = ("float16", "bfloat16", "float32")
    layouts: tuple[Layout, ...] = ("padded",)
    masks: frozenset[str] | None = None
    ragged: bool = True
    bias: bool = False
    bias_grad: bool = False
    softcap: bool = False
    scale: bool = True
    gqa: bool = True
    dim: tuple[int, int, int] = (1, 256, 1)  # least, most, step
    dim_often: int = 256  # larger ones are drawn about once in 16
    dim_v_differs: bool = True
    zero_lengths: bool = True
    strides: bool = True  # anything but contiguous, aligned tensors
    lse: bool = False
    backward: bool = True
    max_pairs: int = 1 << 24


@dataclass(frozen=True)
class Rule:
    """A declared refusal beyond `support`: when `applies`, the kernel raises (`refuses`) or is not asked (`cannot`)."""

    why: str
    applies: Callable[[Case], bool]
    kind: Literal["cannot", "refuses"] = "cannot"


@dataclass(frozen=True)
class Refusal:
    """Why a target does not take a case."""

    kind: Literal["cannot", "refuses"]
    why: str


class Target(Protocol):
    """One kernel under test. Built-in ones are in this folder; a user's come through @target or an entry point.

    name       as it stands in a Case, e.g. 'torch.sdpa.flash'
    device     where it runs
    numerics   how it rounds on the way, which decides the error budget
    proof      a run's `kernel` must contain one of these; empty: the target cannot prove what ran
    session_size   limits of the cases that a session draws, for a target that is slow where it runs
    deterministic  whether repeats must agree bit for bit (a declared exception is printed, not hidden)
    """

    name: str
    device: Device
    summary: str
    support: Support
    rules: tuple[Rule, ...]
    numerics: Numerics
    proof: tuple[str, ...]
    deterministic: bool
    session_size: Size | None
    variants: tuple[dict[str, str | int | bool], ...]

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None. Must not start CUDA."""

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles whatever `run` will launch. Its time never counts against the deadline."""

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Forward and, when the problem asks for it, backward. May return before a GPU has finished."""

    def expected_seconds(self, case: Case) -> float:
        """A rough time of one run; the deadline is about ten times that, with a floor."""


@runtime_checkable
class Inspected(Protocol):
    """A target whose metadata can be checked without running it."""

    def inspect(self, case: Case) -> list[Finding]:
        """Findings of oracles 'metadata' and 'protocol'. With the former the case is not run; a foretold hang is
        run all the same."""


@runtime_checkable
class Tuned(Protocol):
    """A target whose sensible variants depend on the problem: `variants` is not drawn from then."""

    def variants_for(self, problem: Problem) -> tuple[dict[str, str | int | bool], ...]:
        """What a session draws the variant of a case of `problem` from; at least one."""


@runtime_checkable
class Asking(Protocol):
    """A target whose options are arguments.

    asked  names of the parameters, which a case's variant may give a value whether or not `variants` does
    """

    asked: frozenset[str]


@runtime_checkable
class Native(Protocol):
    """A target whose kernels have ways of their own for other masks than most kernels have."""

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """Kinds of masks that sessions draw more often, each as often as it is named."""


@runtime_checkable
class Crowded(Protocol):
    """A target whose CTAs wait for one another: some cases of a session need more of them than are resident at once.

    crowd  so many tiles of 128 keys, over all sequences and KV heads, are more than the device holds; 0: no such cases
    """

    crowd: int


@runtime_checkable
class Varying(Protocol):
    """A target of which some variants are not deterministic."""

    def may_differ(self, case: Case) -> frozenset[str]:
        """The tensors that repeats of `case` may give different bits of."""


@runtime_checkable
class Planned(Protocol):
    """A target whose kernels are compiled by `prepare`, and by nothing after it."""

    def planned(self, case: Case) -> frozenset[str]:
        """The kernels that `prepare` compiles for a case, as Execution.kernel names what was launched: those of a case
        are separated by ', '."""


@runtime_checkable
class Interleaved(Protocol):
    """A target whose forward and backward can be run apart."""

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """As `run` on `tensors`, with a forward of `others` between forward and backward and its backward at the
        end."""


@runtime_checkable
class Owing(Protocol):
    """A target that declares what it owes where a question is asked otherwise.

    relations     by the relation's name: 'bitwise', 'budget', 'off' (not asked); others have the relation's default
    same_options  names of those of its options that must not change a single bit
    """

    relations: Mapping[str, Demand]
    same_options: frozenset[str]


@lru_cache(maxsize=1024)
def _offers(target: object, protocol: type) -> bool:
    return isinstance(target, protocol)


def offers(target: object, protocol: Callable[..., T]) -> TypeGuard[T]:
    """isinstance for the protocols above and their like: Python looks at every attribute each time, which takes a
    noticeable part of a small case. A target offers what it offered when it was first asked."""
    assert isinstance(protocol, type)
    return _offers(target, protocol) if isinstance(target, Hashable) else isinstance(target, protocol)


def demand(target: Target, relation: str) -> Demand:
    """What `target` owes to a relation of that name. Two runs of one that adds in any order never owe bits."""
    declared = target.relations if offers(target, Owing) else {}
    found = declared.get(relation, RELATIONS[relation].default)
    return "budget" if found == "bitwise" and not target.deterministic else found


@runtime_checkable
class Partial(Target, Protocol):
    """A target that can run some CTAs of its forward kernel, so that a case may be larger than the machine's memory:
    fuzz/judging/cta_subset.py."""

    def ctas_of(self, case: Case) -> tuple[int, ...]:
        """The CTAs that a case names, by their linear index in the grid; none where all of them run."""

    def tile_rows(self, case: Case) -> int:
        """How many rows of queries a CTA works on."""

    def prepare_part(self, case: Case) -> None:
        """Compiles what `run_part` launches, and makes its metadata."""

    def run_part(self, case: Case, tensors: Tensors, into: Answers, repeat: int) -> Execution:
        """Runs those CTAs; O and LSE go to `into`, of the whole problem's shapes."""

    def standing(self) -> tuple[Case, ...]:
        """Cases that every session begins with."""

    def draw_part(self, draw: random.Random, repeats: int) -> Case | None:
        """One such case, for a strategy; None where there is none on this device."""


@dataclass(frozen=True)
class _Check:
    why: Callable[[Support], str]
    bad: Callable[[Support, Case], bool]
    kind: str = field(default="cannot")


def _dims(s: Support, c: Case) -> bool:
    least, most, step = s.dim
    return any(not least <= d <= most or d % step for d in (c.problem.dim, c.problem.dim_v))


def _plain(c: Case) -> bool:
    stores = (c.inputs.q, c.inputs.k, c.inputs.v, c.inputs.do)
    return all(x.order == "bhsd" and not x.pad and not x.offset for x in stores)


_PAIRS = _Check(lambda s: f"more than {s.max_pairs} (query, key) pairs", lambda s, c: c.problem.pairs > s.max_pairs)
_CHECKS: tuple[_Check, ...] = (
    _Check(lambda s: f"dtype is not one of {', '.join(s.dtypes)}", lambda s, c: c.problem.dtype not in s.dtypes),
    _Check(lambda s: f"layout is not {' or '.join(s.layouts)}", lambda s, c: c.problem.layout not in s.layouts),
    _Check(
        lambda s: f"masks other than {', '.join(sorted(s.masks or ()))}",
        lambda s, c: s.masks is not None and not kinds(c.problem.mask) <= s.masks,
    ),
    _Check(
        lambda s: "padded sequences of different lengths",
        lambda s, c: not s.ragged and c.problem.layout == "padded" and c.problem.ragged,
    ),
    _Check(lambda s: "no bias", lambda s, c: not s.bias and c.problem.bias is not None),
    _Check(
        lambda s: "no gradient of the bias",
        lambda s, c: bool(not s.bias_grad and c.problem.bias and c.problem.bias.grad and c.problem.backward),
    ),
    _Check(lambda s: "no softcap", lambda s, c: not s.softcap and c.problem.softcap > 0),
    _Check(lambda s: "no scale of one's own", lambda s, c: not s.scale and c.problem.scale is not None),
    _Check(lambda s: "heads_q must equal heads_kv", lambda s, c: not s.gqa and c.problem.group > 1),
    _Check(lambda s: "head dims outside {} … {} in steps of {}".format(*s.dim), _dims),
    _Check(lambda s: "dim_v must equal dim", lambda s, c: not s.dim_v_differs and c.problem.dim != c.problem.dim_v),
    _Check(
        lambda s: "sequences of length 0",
        lambda s, c: not s.zero_lengths and 0 in (*c.problem.lengths_q, *c.problem.lengths_k),
    ),
    _Check(lambda s: "contiguous, aligned tensors only", lambda s, c: not s.strides and not _plain(c)),
    _Check(lambda s: "no backward", lambda s, c: not s.backward and c.problem.backward),
    _PAIRS,
)


def refusal(target: Target, case: Case) -> Refusal | None:
    """Why `target` does not take `case`, or None. Reads only the declared data. The number of pairs of a case of which
    only a part is run does not matter."""
    for check in _CHECKS:
        if check.bad(target.support, case) and not (check is _PAIRS and _partly(target, case)):
            return Refusal("cannot", check.why(target.support))
    for rule in target.rules:
        if rule.applies(case):
            return Refusal(rule.kind, rule.why)
    strange = _strange_options(target, case)
    return Refusal("cannot", f"no option of its is named {', '.join(sorted(strange))}") if strange else None


def _strange_options(target: Target, case: Case) -> frozenset[str]:
    """Options that would change nothing. Targets whose options depend on the problem say so by their rules."""
    if not case.variant or offers(target, Tuned):
        return frozenset()
    asked = target.asked if offers(target, Asking) else frozenset()
    return frozenset(case.variant) - asked.union(*target.variants)


def _partly(target: Target, case: Case) -> bool:
    return offers(target, Partial) and bool(target.ctas_of(case))


def limits(target: Target) -> list[str]:
    """Everything that `target` declares not to take, as lines for people: the reasons that `refusal` can give."""
    s = target.support
    plain = Support()
    lines = []
    for check, shown in zip(_CHECKS, _shown(s, plain), strict=True):
        if shown:
            lines.append(check.why(s))
    return lines + [f"{rule.why} ({rule.kind})" for rule in target.rules]


def _shown(s: Support, plain: Support) -> list[bool]:
    return [
        s.dtypes != plain.dtypes,
        len(s.layouts) < 2,
        s.masks is not None,
        not s.ragged,
        not s.bias,
        s.bias and not s.bias_grad,
        not s.softcap,
        not s.scale,
        not s.gqa,
        True,
        not s.dim_v_differs,
        not s.zero_lengths,
        not s.strides,
        not s.backward,
        True,
    ]
