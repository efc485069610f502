"""Target: the adapter to one kernel under test, with what it supports as data.

A target never decides at run time what it can do: `support` and `rules` say it, `refusal` reads them, the strategies
draw from them, and `attnfuzz targets` prints them. Everything beyond `run` has a default that says "I have none".
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.verdict import Finding, Outcome
from oracles.metamorphic.relations import Equality
from oracles.numerics import FUSED, Numerics
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, Bias, Dtype

METADATA_ONLY = "run"  # the option of a variant that is False where the metadata alone is judged
CALLS = "keys"  # the option of a variant by which its keys are in two calls
DEAR = "dear"  # see Target.kernel_family
Device: TypeAlias = Literal["host", "cuda", "emulator", "interpreter"]
Variant: TypeAlias = dict[str, str | int | bool]


class DeviceError(Exception):
    """A device that sees what happens on it (the emulated GPU) ended the run: outcome 'hang' or 'fail', its findings,
    and evidence as JSON values."""

    def __init__(self, outcome: Outcome, findings: tuple[Finding, ...], evidence: dict[str, Any]) -> None:
        super().__init__(findings[0].message if findings else outcome)
        self.outcome, self.findings, self.evidence = outcome, findings, evidence


@dataclass(frozen=True)
class Tensors:
    """A Case's inputs, in the problem's layout and the recipe's strides. `bias` is None without one, `do` without
    backward, the weights (`problem.weights`) where the problem has none of that name."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor | None = None
    bias: Tensor | None = None
    w_k: Tensor | None = None
    w_v: Tensor | None = None
    w_gate: Tensor | None = None

    def by_name(self) -> dict[str, Tensor]:
        """Those that are there."""
        return {field.name: x for field in fields(self) if (x := getattr(self, field.name)) is not None}


@dataclass(frozen=True)
class Execution:
    """The result of a run: the answers, and the proof of what ran (an autograd node's or kernel's name, with its
    variant)."""

    outputs: Outputs
    kernel: str


class Target:
    """One kernel under test. Built-in ones are in fuzz/targets; a user's come through @target or an entry point.

    name              as it stands in a Case, e.g. 'torch.sdpa.flash'
    device            where it runs
    operation         the tag `op` of the problems that it is for
    summary           one line for `attnfuzz targets`
    support, rules    what it takes; fuzz/core/refusal.py
    numerics          how it rounds on the way, which decides the error budget; see `numerics_of`
    proof             a run's `kernel` must contain one of these; empty: the target cannot prove what ran
    deterministic     whether repeats must agree bit for bit (a declared exception is printed, not hidden)
    variants          a case has one of these dictionaries of options, unless `variants_for` says more
    parameters        further options, which a case's variant may give a value whether or not `variants` does
    session_size      limits of the cases that a session draws, for a target that is slow where it runs
    long_size         limits of the few long cases of a session where the operation has such; None: it draws none
    many_blocks       whether some cases choose among more blocks than its session_size has room for
    ordered_share     one case in so many has its tensors in orders of axes of their own, whatever its options; 0: none
    pairs_per_second  (query, key) pairs that a run handles, for the deadline only
    start_seconds     what a run takes at least, for the deadline only
    attention         False: its answer to an attention problem is another one, which `right` gives, and there are no
                      follow-up cases
    executable        False: there is no device for it here; its cases are compiled and inspected only
    native_biases     biases that the kernels have a way of their own for: sessions draw a bias more often, and half of
                      them are of these; (): none are drawn more often
    clears_padding    whether rows of padding hold what rows without keys do: O = 0, LSE = -inf
    kernel_names      a part of its kernels' names, by which a sanitizer picks them; "": all kernels
    relations         the equality that each metamorphic relation requires of it, by the relation's name; others have
                      the relation's default
    same_options      names of those of its options that must not change a single bit
    follow_ups        one case in so many has follow-up cases; 0: every one, or on the emulated GPU one in four
    oversubscribed    number of tiles of 128 keys, over all sequences and KV heads, that makes more CTAs than the device
                      holds at once: some cases have as many where CTAs wait for one another; 0: no such cases
    long_lists_share  one case in so many has long block lists, where `draw_long_lists` makes such cases
    kernel_families   number of values that `kernel_family` has, about; 0: it has none
    any_length_share  one case in so many without an aim has lengths that are any numbers, each as often, up to some
                      tiles: for kernels that compare each row of a tile by an instruction of its own; 0: none more
                      than others
    """

    name: str = ""
    device: Device = "host"
    operation: str = "attention"
    summary: str = ""
    support: Support = Support()
    rules: tuple[Rule, ...] = ()
    numerics: Numerics = FUSED
    proof: tuple[str, ...] = ()
    deterministic: bool = True
    variants: tuple[Variant, ...] = ({},)
    parameters: frozenset[str] = frozenset()
    session_size: Size | None = None
    long_size: Size | None = None
    many_blocks: bool = False
    ordered_share: int = 0
    pairs_per_second: float = 2e7
    start_seconds: float = 0.01
    attention: bool = True
    executable: bool = True
    native_biases: tuple[Bias, ...] = ()
    clears_padding: bool = False
    kernel_names: str = ""
    relations: Mapping[str, Equality] = {}
    same_options: frozenset[str] = frozenset()
    follow_ups: int = 0
    oversubscribed: int = 0
    long_lists_share: int = 20
    kernel_families: int = 0
    any_length_share: int = 0

    # Set for each subclass, by the methods that it has of its own.
    chooses_variants: ClassVar[bool] = False  # variants_for
    inspects: ClassVar[bool] = False  # inspect
    interleaves: ClassVar[bool] = False  # run_around
    looks: ClassVar[bool] = False  # look
    traces: ClassVar[bool] = False  # trace_to
    draws_cta_subsets: ClassVar[bool] = False  # draw_cta_subset
    draws_long_lists: ClassVar[bool] = False  # draw_long_lists

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for flag, method in _FLAGS.items():
            setattr(cls, flag, getattr(cls, method) is not getattr(Target, method))

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None. Must not start CUDA."""
        return None

    def surfaces(self) -> tuple[Surface, ...]:
        """The functions that it calls, each through Surface.call, with the reasons for what it never gives them. Must
        neither start CUDA nor take seconds to import what it calls."""
        return ()

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """What a session draws the variant of a case of `problem` from; at least one."""
        return self.variants

    def kernel_choices(self) -> tuple[KernelChoice, ...]:
        """The kernels that this machine can run, each of which gets its share of a session; (): one kernel, or they are
        not told apart."""
        several = len(self.variants) > 1 and not self.chooses_variants
        return tuple(KernelChoice(variant) for variant in self.variants) if several else ()

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """The problem that a session draws in place of this one, where kernels are dear to compile: in another dtype,
        so that several cases share them."""
        return problem

    def kernel_family(self, case: Case) -> Hashable:
        """Value that cases with mostly the same compiled kernels share: a session of few cases draws cases of few
        values. DEAR: the value of cases with so many kernels that such a session draws none. None: nothing is compiled
        for a case, or kernels are not told apart."""
        return None

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """Kinds of masks that the kernels have a way of their own for: sessions draw them more often, each as often as
        it is named; 'causal_top_left' is what a flag for causal masks says, whatever the lengths. (): those of most
        kernels."""
        return ()

    def climbs(self, case: Case) -> Mapping[str, float]:
        """Numbers of a case, by label, that a session climbs on beside the error over the budget: larger ones lead into
        paths of the kernel's own."""
        return {}

    def may_differ(self, case: Case) -> frozenset[str]:
        """The tensors that repeats of `case` may give different bits of, where the target is `deterministic`."""
        return frozenset()

    def inspect(self, case: Case) -> list[Finding]:
        """Findings without a run, of oracles 'metadata' and 'protocol'. With the former the case is not run; a
        predicted hang is run all the same."""
        return []

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles whatever `run` will launch. Its time never counts against the deadline."""

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Forward and, when the problem asks for it, backward. May return before a GPU has finished."""
        raise NotImplementedError(f"{type(self).__name__} has no method run(case, tensors)")

    def blind(self) -> AbstractContextManager[None]:
        """Block in which a run gives its answers back whatever its device has seen, as a GPU does."""
        return nullcontext()

    def right(self, case: Case, tensors: Tensors, precision: torch.dtype) -> Outputs | None:
        """The right answer, computed in `precision`, of an operation that is not attention; None: it is attention."""
        return None

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """As `run` on `tensors`, with a forward of `others` between forward and backward and its backward at the
        end."""
        raise NotImplementedError(f"{self.name} has no run_around")

    def numerics_of(self, case: Case) -> Numerics:
        """How it rounds on the way in a case: `numerics`, unless an option of the case adds roundings."""
        return self.numerics

    def reads_values(self, case: Case) -> bool:
        """True where a call's options depend on the inputs' values, so that a follow-up case with others may have other
        bits."""
        return False

    def planned(self, case: Case) -> frozenset[str] | None:
        """The kernels that `prepare` compiles for a case, as Execution.kernel names what was launched: those of a case
        are separated by ', '. None: not known; otherwise nothing may be compiled after `prepare`."""
        return None

    def compiled(self) -> int | None:
        """Number of kernels that this process has compiled for it so far. None: it does not count them."""
        return None

    def expected_seconds(self, case: Case) -> float:
        """A rough time of one run; the deadline is about ten times that, with a floor. From the number of (query, key)
        pairs, padding's too, and the head dim, by this target's own speed. A token is as much work as 64 pairs: it is
        read and written where there are no keys too."""
        p = case.problem
        packed = p.layout == "packed"
        pairs = p.pairs if packed else p.batch * p.heads_q * p.len_q * p.len_k
        tokens = sum(p.lengths_q) + sum(p.lengths_k) if packed else p.batch * (p.len_q + p.len_k)
        pairs += 64 * p.heads_q * tokens
        return self.start_seconds + pairs * (p.dim + p.dim_v) / 128 / self.pairs_per_second

    def script_call(self, case: Case) -> Text:
        """The call as text for `attnfuzz repro --script`. Raises ScriptError where there is none."""
        raise ScriptError(f"target {self.name!r} cannot be written as a script: it has no method script_call(case)")

    def look(self) -> dict[str, Any]:
        """What the device's memory shows while a run does not end, as evidence of a hang: JSON values by name;
        "explained", if there, begins with one line that says why.

        Called from a thread of its own (fuzz/runner/device_probe.py) while `run`, or the wait after it, blocks without
        holding the GIL; more than once. On a GPU it must neither synchronise nor allocate: see fuzz/devices/cuda.py.
        """
        return {}

    def trace_to(self, path: str) -> None:
        """From now on, the timeline of a case's first run (who ran when, and waited for what) goes to `path`, and that
        of a run which ends in a finding replaces it; a picture beside it, with the ending .svg. "": no more."""

    def runs(self, case: Case) -> bool:
        """False: of this case the metadata alone is judged, which `inspect` looks at; nothing is compiled."""
        return True

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """A case with long block lists, for a strategy; None where there are no block lists."""
        return None

    # Cases that run some CTAs of a forward kernel only, on tensors that may be larger than the machine's memory:
    # fuzz/judging/cta_subset.py.

    def ctas_of(self, case: Case) -> tuple[int, ...]:
        """The CTAs that a case runs, by their linear index in the grid; () where all of them run."""
        return ()

    def tile_rows(self, case: Case) -> int:
        """Rows of queries that a CTA works on."""
        raise NotImplementedError(f"{self.name} runs no subset of its CTAs")

    def prepare_cta_subset(self, case: Case) -> None:
        """Compiles what `run_cta_subset` launches, and makes its block lists."""
        raise NotImplementedError(f"{self.name} runs no subset of its CTAs")

    def run_cta_subset(self, case: Case, tensors: Tensors, into: Outputs, repeat: int) -> Execution:
        """Runs those CTAs; O and LSE go to `into`, of the whole problem's shapes."""
        raise NotImplementedError(f"{self.name} runs no subset of its CTAs")

    def draw_cta_subset(self, draw: random.Random, repeats: int) -> Case | None:
        """One such case, for a strategy; None where there is none on this device."""
        return None

    def seed_cases(self) -> tuple[Case, ...]:
        """Cases that every session begins with."""
        return ()


_FLAGS = {
    "chooses_variants": "variants_for",
    "inspects": "inspect",
    "interleaves": "run_around",
    "looks": "look",
    "traces": "trace_to",
    "draws_cta_subsets": "draw_cta_subset",
    "draws_long_lists": "draw_long_lists",
}
