"""nsa: kernels.nsa and its mutants. What is common to all devices stands here; the files beside this one run the
kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Tensors, Variant
from fuzz.core.verdict import Finding
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.nsa.script import call_text
from fuzz.targets.options import Options, Value
from oracles.metamorphic.relations import Equality
from oracles.native_sparse.problem import NativeSparse
from oracles.numerics import TENSOR_CORES
from oracles.outputs import Outputs
from oracles.problem import cumulative

ROOT = Path(__file__).resolve().parents[3]
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    ragged=False,
    cross=False,
    dim=(8, 128, 8),
    dim_v_differs=False,
    block_step=16,
    tile_step=64,
    max_pairs=1 << 24,
)
_RELATIONS: dict[str, Equality] = {
    "options": "off",  # none changes a problem's answer beyond its bits
    # A row's rescaling waits for its warp's other rows, whose keys may be later ones: same value, other rounding.
    "sparse_future_changed": "within_budget",
}
_SURFACE = Surface.declared(
    "native_sparse_answer(q, k, v, *, compress_block_size=64, num_selected_blocks=16, window_size=512, "
    "w_k_compress=None, w_v_compress=None, gate_proj_weight=None, causal=True, softmax_scale=None, q_tile_size=256, "
    "num_cmp_selected_blocks=None, cu_seqlens=None, max_seqlen=None, deterministic=True, selection=None)"
)
OPTIONS = Options(
    deterministic=(True, False), selection=("chosen", "given"), max_seqlen=("given", "asked"), run=(True, False)
)


class BundledNativeSparse(AutogradTarget):
    """kernels.nsa, or one of its mutants."""

    operation = "native_sparse_attention"
    proof = ("NativeSparse", "native_sparse_forward")
    support = SUPPORT
    numerics = TENSOR_CORES
    relations = _RELATIONS
    deterministic = True
    many_blocks = True
    long_lists_share = 6  # half of its kernels make lists

    def __init__(self, mutant: str = "") -> None:
        self.name = "nsa" + f"!{mutant}" * bool(mutant)
        self.mutant = mutant
        self.summary = "kernels.nsa" + (f" with the mutant {mutant}" if mutant else "")
        self.rules = (
            OPTIONS.rule(),
            Rule(
                "a scale that is not positive",
                lambda c: c.problem.scale is not None and c.problem.scale <= 0,
                "refuses",
            ),
            Rule("options that the problem has no use for", lambda c: not _useful(c)),
        )

    @property
    def pinned(self) -> str:
        """The operator has no other implementation."""
        return "attnfuzz::native_sparse_forward"

    def missing(self) -> str | None:
        """See Target."""
        for package, name in (("triton", "triton"), ("cutlass", "nvidia-cutlass-dsl")):
            if find_spec(package) is None:
                return f"needs {name} (pip install {name})"
        return super().missing()

    def variants_for(self, problem: Any) -> tuple[Variant, ...]:
        """See Target: a selection that is frozen; gradients that are added in any order; a longest length that the
        device is asked for."""
        offered: dict[str, tuple[Value, ...]] = {"selection": ("given",)}
        offered |= {"deterministic": (False,)} if problem.backward else {}
        return OPTIONS.draws(**offered, **({"max_seqlen": ("asked",)} if problem.layout == "packed" else {}))

    def runs(self, case: Case) -> bool:
        """See Target: without `run` block lists are made, lists_alone.py, and blocks chosen, choice_alone.py."""
        return bool(OPTIONS.of(case)["run"])

    def inspect(self, case: Case) -> list[Finding]:
        """See Target: of a case that is not run, its block lists and choices of blocks."""
        if self.runs(case):
            return []
        from fuzz.targets.nsa import choice_alone, lists_alone

        if self.mutant:
            kernel_of(self.mutant)
        injection = f"nsa!{self.mutant}" if self.mutant else ""
        device = "cuda" if self.device == "cuda" else "cpu"
        return lists_alone.check(case, injection, device) or choice_alone.check(case, injection, device)

    def may_differ(self, case: Case) -> frozenset[str]:
        """See Target: sums that CTAs add to in any order."""
        gradients = frozenset({"dq", "dk", "dv", "dw_k", "dw_v"})
        return frozenset() if OPTIONS.of(case)["deterministic"] else gradients

    def answered(self, case: Case, tensors: Tensors) -> tuple[Tensor, Outputs]:
        """See AutogradTarget. With selection=given the answer is asked for twice, the second time with the selection of
        the first."""
        given, function, tokens = arguments(case, tensors), kernel_of(self.mutant), self.tokens(case, tensors)
        answer = _SURFACE.call(function, *tokens, **given)
        if OPTIONS.of(case)["selection"] == "given":
            answer = _SURFACE.call(function, *tokens, **given, selection=answer.selection)
        o = _as_call(case, answer.out)
        chosen = {"blocks": answer.selection.blocks}
        if answer.selection.groups is not None:
            chosen["groups"] = answer.selection.groups
        return o, Outputs(o.detach(), **chosen)

    @staticmethod
    def tokens(case: Case, tensors: Tensors) -> list[Tensor]:
        """Q, K and V as the call takes them."""
        return [_as_call(case, x) for x in (tensors.q, tensors.k, tensors.v)]

    def settings(self, case: Case, tensors: Tensors) -> dict[str, Any]:
        """The options by which `kernels.nsa.plan` and `prepare` know the kernels that a case launches."""
        if self.mutant:
            kernel_of(self.mutant)  # which registers its steps
        return arguments(case, tensors) | {"injection": f"nsa!{self.mutant}" if self.mutant else ""}

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_SURFACE,)

    def script_call(self, case: Case) -> Text:
        """`answered` as text. Raises ScriptError for a case that is not run."""
        if not self.runs(case):
            raise ScriptError(f"{case.target}: no script for block lists alone")
        path = f"sys.path.insert(0, {str(ROOT)!r})  # the folder that holds `kernels`"
        return call_text(case, self.mutant, path, OPTIONS.of(case))


def arguments(case: Case, tensors: Tensors) -> dict[str, Any]:
    """The keyword arguments of a case's call, but a frozen selection."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    given: dict[str, Any] = {
        "compress_block_size": p.compress_block_size,
        "num_selected_blocks": p.num_selected_blocks,
        "window_size": p.window_size,
        "w_k_compress": tensors.w_k,
        "w_v_compress": tensors.w_v,
        "gate_proj_weight": tensors.w_gate,
        "causal": p.causal,
        "softmax_scale": p.scale,
        "q_tile_size": p.q_tile,
        "num_cmp_selected_blocks": p.num_cmp_selected_blocks,
    }
    options = OPTIONS.of(case)
    if not options["deterministic"]:
        given["deterministic"] = False
    if p.layout == "packed":
        given["cu_seqlens"] = torch.tensor(cumulative(p.lengths), dtype=torch.int32, device=tensors.q.device)
        if options["max_seqlen"] == "given":
            given["max_seqlen"] = p.len_q
    return given


def _as_call(case: Case, x: Tensor) -> Tensor:
    """(batch, heads, length, dim) as (batch, length, heads, dim), and back; packed tensors as they are."""
    return x.transpose(1, 2) if case.problem.layout == "padded" else x


def _useful(case: Case) -> bool:
    options = OPTIONS.of(case)
    if not options["run"] and (options["selection"], options["max_seqlen"]) != ("chosen", "given"):
        return False
    packed = case.problem.layout == "packed" or options["max_seqlen"] == "given"
    return packed and (case.problem.backward or options["deterministic"])


@functools.cache
def kernel_of(mutant: str) -> Callable[..., Any]:
    """The public function, or that of a mutant. Its import decides how Triton runs in this process."""
    if mutant:
        from kernels.mutants.nsa.table import MUTANTS as mutants

        return mutants[mutant]
    from kernels.nsa import native_sparse_answer

    return native_sparse_answer
