"""dynamic_mask: the bundled attention that skips empty tiles of its mask, and its mutants. What is common to all
devices stands here; the files beside this one run the kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Tensors, Variant
from fuzz.targets import merge_by_lse
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.dynamic_mask import sequences_alone, two_calls
from fuzz.targets.dynamic_mask.call import OPTIONS, SHAPES, by_a_flag, calls, mixed_tiles, says, useful
from fuzz.targets.dynamic_mask.counters import check_tiles
from fuzz.targets.dynamic_mask.long_lists import SHARE
from fuzz.targets.dynamic_mask.script import call_text
from fuzz.targets.options import Value
from oracles.metamorphic.relations import Equality
from oracles.numerics import TENSOR_CORES, Numerics
from oracles.problem import AnyProblem, Bias, Dtype

if TYPE_CHECKING:
    from kernels.sdpa.launch import Launch

ROOT = Path(__file__).resolve().parents[3]
# One tile's arithmetic depends on its own rows and keys alone, and powers of two scale exactly. Where K and V are
# repeated, a bias may have as many heads as they: its gradient is then summed beside dK, in another order.
_RELATIONS: dict[str, Equality] = dict.fromkeys(
    ("permuted_sequences", "permuted_heads", "scaled_q", "doubled_v"), "bitwise"
)
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    bias=True,
    bias_grad=True,
    bias_kv_heads=True,
    softcap=True,
    lse=True,
    max_pairs=1 << 24,
)
SPLIT_WEIGHT = 6  # of keys in two calls among the ways of a call, of which each other one has 1
_SURFACE = Surface.declared(
    "dynamic_mask_answer(query, key, value, mask=None, bias=None, *, causal=None, scale=None, softcap=0.0, "
    "cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, deterministic=True, num_splits=0)"
)


class BundledDynamicMask(AutogradTarget):
    """kernels.dynamic_mask, or one of its mutants (named dynamic_mask!MUTANT). Subclasses run them."""

    proof: tuple[str, ...] = ("dynamic_mask_forward",)
    support = SUPPORT
    numerics = TENSOR_CORES
    relations = _RELATIONS
    native_biases = (Bias(rows=False, kv_heads=True), Bias(rows=False))  # summed beside dK, over the axes they lack
    clears_padding = True
    long_lists_share = SHARE
    any_length_share = 2
    ordered_share = 3
    script_setup = ""  # lines of a script before it imports the kernel

    def __init__(self, mutant: str = "") -> None:
        self.name = "dynamic_mask" + f"!{mutant}" * bool(mutant)
        self.mutant = mutant
        self.summary = "kernels.dynamic_mask" + (f" with the mutant {mutant}" if mutant else "")
        self.rules = (
            OPTIONS.rule(),
            Rule("options that the problem has no use for", lambda c: not useful(c.problem, OPTIONS.of(c))),
            Rule("keys in two calls, of inputs that may have an exact answer", two_calls.inexact),
        )

    @property
    def pinned(self) -> str:
        """The operator has no other implementation."""
        return "attnfuzz::dynamic_mask_forward"

    def missing(self) -> str | None:
        """See Target."""
        return "needs triton (pip install triton)" if find_spec("triton") is None else super().missing()

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target: masks with empty tiles, which is what the kernel is for, causal ones, and padding to the left."""
        sparse = ("top_k", "top_k", "top_k", "blocks", "pairs", "pairs", "window")
        return (*sparse, "causal", "full", "left_padded", "left_padded", "per_head", "per_batch_and_head")

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: every way to say the mask, in every shape; parts of the sums of dK and dV."""
        said = says(problem)
        offered: dict[str, tuple[Value, ...]] = {"mask": said}
        if problem.bias is not None or not by_a_flag(problem):
            offered["shape"] = SHAPES[1:]
        if problem.bias is not None and not by_a_flag(problem):
            offered["hidden"] = ("nan", "keys") if problem.bias.cols else ("nan",)
        if problem.backward:
            offered |= {"splits": (2, 3), "deterministic": (False,), "keys": ("split",) * SPLIT_WEIGHT}
        if sequences_alone.useful(problem):
            offered["sequences"] = ("alone",)
        ways, defaults = OPTIONS.draws(**offered), OPTIONS.defaults
        return tuple(way for way in map(_split, ways) if useful(problem, defaults | way, said))

    def climbs(self, case: Case) -> Mapping[str, float]:
        """See Target: tiles that are skipped, and as many that are not, as a share of all of them: what the kernel
        counts, as `check_tiles` sees to, told of the case alone."""
        return {"skipped beside visited tiles": mixed_tiles(case.problem)}

    def may_differ(self, case: Case) -> frozenset[str]:
        """See Target: sums that programs add to in any order."""
        given = OPTIONS.of(case)
        return frozenset() if given["deterministic"] or given["splits"] == 1 else frozenset({"dk", "dv"})

    def compile(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches, for Triton's active device."""
        from kernels.sdpa.launch import compile_launches

        compile_launches(self.launches(case, tensors))

    def launches(self, case: Case, tensors: Tensors) -> list[Launch]:
        """Every launch of the case's calls; none is made."""
        from kernels.dynamic_mask.api import checked, launches_of

        p, bias = case.problem, tensors.bias
        if bias is not None:
            bias = bias.detach().requires_grad_(bool(p.bias and p.bias.grad))
        if self.mutant:
            kernel_of(self.mutant)
        injection = f"dynamic_mask!{self.mutant}" if self.mutant else ""
        found = []
        how, whole = OPTIONS.of(case), replace(tensors, bias=bias)
        for of, part in sequences_alone.parts_of(p, whole) if how["sequences"] == "alone" else ((p, whole),):
            for given in calls(of, part.bias, part.q.device, how):
                settings = {name: given.pop(name) for name in ("deterministic", "num_splits") if name in given}
                call = checked(part.q, part.k, part.v, **given, injection=injection)
                found += launches_of(call, p.backward, part.do, **settings)
        return found

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE. Raises DeviceError where the kernel's counts of tiles are not those of the mask."""
        how = OPTIONS.of(case)

        def call(problem: AnyProblem, part: Tensors) -> tuple[Tensor, Tensor]:
            parts = []
            for given in calls(problem, part.bias, part.q.device, how):
                answer = _SURFACE.call(kernel_of(self.mutant), part.q, part.k, part.v, **given)
                check_tiles(answer.tiles, problem, given, *_tile_sizes(problem))
                parts.append((answer.out, answer.lse))
            return parts[0] if len(parts) == 1 else merge_by_lse.merged(parts)

        if how["sequences"] == "alone":
            return sequences_alone.joined(case.problem, tensors, call)
        return call(case.problem, tensors)

    def numerics_of(self, case: Case) -> Numerics:
        """See Target: where keys are in two calls, more is rounded."""
        split = OPTIONS.of(case)["keys"] == "split"
        return replace(self.numerics, merged=two_calls.TILE) if split else self.numerics

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_SURFACE,)

    def script_call(self, case: Case) -> Text:
        """`forward` as text."""
        kernel = f'MUTANTS["{self.mutant}"]' if self.mutant else "dynamic_mask_answer"
        source = "mutants.dynamic_mask.table import MUTANTS" if self.mutant else f"dynamic_mask import {kernel}"
        path = f"sys.path.insert(0, {str(ROOT)!r})  # the folder that holds `kernels`"
        return call_text(case, kernel, [path, f"from kernels.{source}  # noqa: E402"], self.script_setup)


def _tile_sizes(problem: AnyProblem) -> tuple[int, int]:
    """Queries and keys of a tile of scores in the forward pass, in this process."""
    from kernels.dynamic_mask.config import block_d, find_config
    from kernels.sdpa.launch import INTERPRETED

    tiles = find_config(block_d(problem.dim, problem.dim_v), INTERPRETED).forward
    return tiles.tile_m, tiles.tile_n


def _split(way: Variant) -> Variant:
    """Sums in any order need several programs for a tile of keys."""
    return {**{"splits": 2}, **way} if way.get("deterministic") is False else way


@functools.cache
def kernel_of(mutant: str) -> Callable[..., Any]:
    """The public function, or that of a mutant. Its import decides how Triton runs in this process."""
    if mutant:
        from kernels.mutants.dynamic_mask.table import MUTANTS as mutants

        return mutants[mutant]
    from kernels.dynamic_mask import dynamic_mask_answer

    return dynamic_mask_answer
