"""Kernels of dynamic_mask and nsa that are mutated, and the cases that look for what is wrong with them.

Triton compiles a kernel for each dtype, head dim and way to say a mask. A configuration keeps to a few of these, so
that its cases launch the same kernels. Its cases are drawn as a session draws them (fuzz/generate/cases.py), from the
emulated target narrowed to the configuration. Kernels of kernels.blocksparse that nsa launches are not changed: they
are blocksparse's (configs.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice, zip_longest
from typing import Any, Literal

from msgspec import structs

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.core.support import Support
from fuzz.generate import cases as strategies
from fuzz.score.ptx_mutants.survey import Kernel, Survey
from fuzz.targets.dynamic_mask.call import OPTIONS, by_a_flag, way_of
from fuzz.targets.dynamic_mask.emulated import EmulatedDynamicMask
from fuzz.targets.nsa.emulated import EmulatedNativeSparse
from fuzz.tensors.arena import build as build_inputs
from oracles.masks import Causal, Full
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import AnyProblem, Dtype, Layout

REPEATS = 2  # of every case: in order, and with warps and CTAs at random
TILE, LONG_LIST = 64, 8  # queries and keys of a tile; tiles
_DRAWS = 40_000  # at most, for the cases of a configuration
_POOL = 80  # cases to choose among
_FORMS_POOL, _MORE = 160, 1500  # of dynamic_mask, to find the form that most have; more of that form, from so many
_ATTENTION = ("forward_kernel", "dq_kernel", "dkdv_kernel")  # of dynamic_mask
_LONG = 5  # of them at most have a long list: 15 of a session's 300 do
MANY, _MANY = 16, 10  # sequences; and of the cases, at most so many have as many
_DRAWN_MANY = 16  # such cases to choose among


@dataclass(frozen=True)
class DynamicMaskConfig:
    """Calls of dynamic_mask: mask as none (a flag says it), bool or bits; bias as none, row or whole."""

    name: str
    dtype: Dtype
    dims: tuple[int, ...]
    layout: Layout
    mask: Literal["none", "bool", "bits"]
    bias: Literal["none", "row", "whole"] = "none"
    softcap: bool = False

    @property
    def target(self) -> str:
        """The target's name."""
        return "dynamic_mask"

    def cases(self, count: int, seed: int) -> list[Case]:
        """See KernelConfig. Three in four have the form that most have, calls of sequences alone beside others: theirs
        are the kernels that are mutated."""
        drawn = self._drawn(seed)
        first = [(case, _form(case)) for case in islice(drawn, _FORMS_POOL)]
        ((common, _),) = Counter(form for _, form in first).most_common(1)
        same = chain(first, ((case, _form(case)) for case in islice(drawn, _MORE)))
        usual = iter(_by_size(islice((case for case, form in same if form >= common), _POOL)))
        others = iter(_by_size(case for case, form in first if not form >= common))
        turns = cycle((usual, usual, usual, others))
        return [case for turn in islice(turns, count) if (case := next(turn, None)) is not None]

    def kernels(self, survey: Survey) -> dict[str, Kernel]:
        """See KernelConfig."""
        return survey.triton_kernels(self)

    def _drawn(self, seed: int) -> Iterator[Case]:
        target = _DynamicMask(_narrowed(EmulatedDynamicMask.support, self, bias=self.bias != "none"))
        return _cases(target, self.name, seed, strategies.MEDIUM, self._takes)

    def _takes(self, case: Case) -> bool:
        p, given = case.problem, OPTIONS.of(case)
        how, alone = way_of(p, given), given["sequences"] == "alone"
        flag = isinstance(p.mask, Full | Causal) if alone else by_a_flag(p)
        unsaid = how in ("bias", "columns") or (how == "auto" and flag)
        mask = "none" if unsaid else "bits" if how == "bits" else "bool"
        bias = "none" if p.bias is None else "whole" if p.bias.rows else "row"
        return mask == self.mask and bias == self.bias and bool(p.softcap) == self.softcap


@dataclass(frozen=True)
class NativeSparseConfig:
    """Calls of nsa of both layouts, which share kernels, with gates or without."""

    name: str
    dtype: Dtype
    dims: tuple[int, ...]
    gates: bool

    @property
    def target(self) -> str:
        """The target's name."""
        return "nsa"

    def cases(self, count: int, seed: int) -> list[Case]:
        """See KernelConfig."""
        target = _NativeSparse(_narrowed(EmulatedNativeSparse.support, self, bias=False))
        drawn = _cases(target, self.name, seed, strategies.SMALL, self._takes)
        return _by_size(islice(drawn, _POOL))[:count]

    def kernels(self, survey: Survey) -> dict[str, Kernel]:
        """See KernelConfig."""
        return survey.triton_kernels(self)

    def _takes(self, case: Case) -> bool:
        return isinstance(case.problem, NativeSparse) and case.problem.w_gate == self.gates


DYNAMIC_MASK = (
    DynamicMaskConfig("bf16_d32_bool", "bfloat16", (8, 16, 24, 32), "padded", "bool"),
    DynamicMaskConfig("fp16_d64_bits_row", "float16", (40, 48, 56, 64), "padded", "bits", "row"),
    DynamicMaskConfig("bf16_d64_bool_whole", "bfloat16", (40, 48, 56, 64), "padded", "bool", "whole"),
    DynamicMaskConfig("fp16_d32_flag_packed_cap", "float16", (8, 16, 24, 32), "packed", "none", softcap=True),
    DynamicMaskConfig("bf16_d32_flag_row", "bfloat16", (24, 32), "padded", "none", "row"),
)
NSA = (
    NativeSparseConfig("bf16_d32_gates", "bfloat16", (8, 16, 24, 32), gates=True),
    NativeSparseConfig("bf16_d32", "bfloat16", (8, 16, 24, 32), gates=False),
    NativeSparseConfig("fp16_d64", "float16", (40, 48, 64), gates=False),
    NativeSparseConfig("fp16_d64_gates", "float16", (40, 48, 64), gates=True),
)


class _DynamicMask(EmulatedDynamicMask):
    def __init__(self, support: Support) -> None:
        super().__init__()
        self.support = support

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """The problem: its configuration has one dtype."""
        return problem


class _NativeSparse(EmulatedNativeSparse):
    long_size = None

    def __init__(self, support: Support) -> None:
        super().__init__()
        self.support = support

    def with_fewer_kernels(self, problem: Any) -> Any:
        """The problem with tiles of 64 or 128 queries: its configuration has one dtype and head dim."""
        return structs.replace(problem, q_tile=64 if problem.q_tile % 128 else 128)


def _narrowed(support: Support, chosen: DynamicMaskConfig | NativeSparseConfig, *, bias: bool) -> Support:
    cap = isinstance(chosen, DynamicMaskConfig) and chosen.softcap
    return replace(
        support,
        dtypes=(chosen.dtype,),
        layouts=(chosen.layout,) if isinstance(chosen, DynamicMaskConfig) else support.layouts,
        dims=frozenset(chosen.dims),
        dim=(min(chosen.dims), max(chosen.dims), support.dim[2]),
        bias=bias,
        softcap=cap,
    )


def _cases(target: Any, name: str, seed: int, size: Size, takes: Callable[[Case], bool]) -> Iterator[Case]:
    """Different cases that the target and the configuration take, and that have a row and a key."""
    draw = random.Random(f"{name} {seed}")
    drawn = strategies.drawer(target, size, REPEATS)
    met: set[str] = set()
    many = 0
    for _ in range(_DRAWS):
        case = drawn(draw)
        if not (case.problem.len_q and case.problem.len_k and takes(case)):
            continue
        if case.id not in met and refusal(target, case) is None and (many < _DRAWN_MANY or not _many(case)):
            met.add(case.id)
            many += _many(case)
            yield case


def _form(case: Case) -> frozenset[tuple[Any, ...]]:
    """What says which compiled kernels of attention a dynamic_mask case launches."""
    target, tensors = EmulatedDynamicMask(), build_inputs(case, "cpu").tensors()
    with target.compiling():
        launches = target.launches(case, tensors)
    return frozenset(launch.compile_key for launch in launches if launch.kernel.__name__ in _ATTENTION)


def _many(case: Case) -> bool:
    return len(case.problem.lengths_q) >= MANY and bool(case.variant.get("run", True))


def _by_size(cases: Iterable[Case]) -> list[Case]:
    """The cases by turns of more than three tiles of scores, of two or three, of one, of many sequences, and of a long
    list of tiles, which takes longest; of these at most _LONG, and of those before at most _MANY."""
    sizes: list[list[Case]] = [[], [], [], [], []]
    for case in cases:
        p = case.problem
        tiles = [(-(-n_q // TILE), -(-n_k // TILE)) for n_q, n_k in zip(p.lengths_q, p.lengths_k, strict=True)]
        most = max(rows * columns for rows, columns in tiles)
        long = max(map(max, tiles)) >= LONG_LIST and case.variant.get("run", True)
        sizes[3 if long else 4 if _many(case) else (most > 1) + (most > 3)].append(case)
    turns = zip_longest(*reversed(sizes[:3]), sizes[4][:_MANY], sizes[3][:_LONG])
    return [case for turn in turns for case in turn if case is not None]
