"""sdpa: the bundled dense attention in Triton, and its mutants. What is common to all devices stands here; the files
beside this one run the kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import Text, options
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Tensors, Variant
from fuzz.targets import merge_by_lse
from fuzz.targets.autograd import FLAGGED, AutogradTarget
from fuzz.targets.mask_tensors import SAID, SHAPES, expanded_heads, mask_arguments, mask_text, says, shaped
from fuzz.targets.options import Options, Value
from fuzz.targets.sdpa import split_keys
from oracles.masks import Causal
from oracles.metamorphic.relations import Equality
from oracles.numerics import TENSOR_CORES
from oracles.problem import AnyProblem, Dtype

ROOT = Path(__file__).resolve().parents[3]
# One tile's arithmetic depends on its own rows and keys alone, and powers of two scale exactly.
_RELATIONS: dict[str, Equality] = dict.fromkeys(
    ("permuted_sequences", "permuted_heads", "repeated_kv", "scaled_q", "doubled_v"), "bitwise"
)
_SUPPORT = Support(bias=True, bias_grad=True, lse=True, max_pairs=1 << 24)

_SURFACE = Surface.declared(
    "scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, "
    "enable_gqa=False, *, return_lse=False)",
    never={"dropout_p": "0 is all that it takes"},
)
OPTIONS = Options(
    mask=SAID, shape=SHAPES, gqa=("auto", "always", "expanded"), lse=(True, False), keys=("whole", "split")
)
SPLIT_SHARE = 2  # float32 cases: one way in so many and one is in two calls, so that one case of all in 25 is


class BundledSdpa(AutogradTarget):
    """kernels.sdpa, or one of its mutants (named sdpa!MUTANT). Subclasses run them."""

    proof: tuple[str, ...] = ("sdpa_forward",)
    support = _SUPPORT
    numerics = TENSOR_CORES
    relations = _RELATIONS
    clears_padding = True
    script_setup = ""  # lines of a script before it imports the kernel

    def __init__(self, mutant: str = "") -> None:
        self.name = "sdpa" + f"!{mutant}" * bool(mutant)
        self.mutant = mutant
        self.summary = "kernels.sdpa" + (f" with the mutant {mutant}" if mutant else "")
        self.rules = (
            Rule("a bias of another dtype than the inputs", _other_bias),
            OPTIONS.rule(),
            Rule("options that the problem has no use for", lambda c: not _useful(c.problem, OPTIONS.of(c))),
            Rule("keys in two calls, of inputs that may have an exact answer", _inexact_split),
            Rule("attn_mask beside is_causal", lambda c: OPTIONS.of(c)["mask"] == "both", "refuses"),
        )

    @property
    def pinned(self) -> str:
        """The operator has no other implementation."""
        return "attnfuzz::sdpa_forward"

    def missing(self) -> str | None:
        """See Target."""
        return "needs triton (pip install triton)" if find_spec("triton") is None else super().missing()

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target: what a flag says, or none."""
        return FLAGGED

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: every way to say the mask, in every shape; heads in another way; without LSE; in two calls."""
        offered: dict[str, tuple[Value, ...]] = {"mask": says(problem), "shape": SHAPES[1:], "lse": (False,)}
        # Heads that are expanded leave the kernel no group: with gradients its sums over a group are what is looked at.
        heads = "always" if problem.group == 1 or problem.backward else "expanded"
        offered["gqa"] = (heads,) if _useful(problem, OPTIONS.defaults | {"gqa": heads}) else ()
        ways = OPTIONS.draws(**offered)
        split: Variant = {"keys": "split"}
        return ways + (split,) * (len(ways) // SPLIT_SHARE if _useful(problem, OPTIONS.defaults | split) else 0)

    def compile(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches, for Triton's active device."""
        if OPTIONS.of(case)["mask"] == "both":
            return  # refused by the call
        from kernels.sdpa import prepare

        if self.mutant:
            from kernels.mutants.sdpa import registration

            kernel_of(self.mutant)
            prepare = partial(registration.prepare, f"sdpa!{self.mutant}")
        p = case.problem
        k, v, mask, said = _arguments(case, tensors, _leaf(tensors.bias, p.bias is not None and p.bias.grad))
        split = OPTIONS.of(case)["keys"] == "split"
        for part_k, part_v, part in split_keys.parts_of(k, v, mask) if split else [(k, v, mask)]:
            prepare(tensors.q, part_k, part_v, part, **said, backward=p.backward, grad_out=tensors.do)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE."""
        k, v, mask, said = _arguments(case, tensors, tensors.bias)
        wanted = OPTIONS.of(case)["lse"]
        if OPTIONS.of(case)["keys"] == "split":
            call = partial(_SURFACE.call, kernel_of(self.mutant), tensors.q)
            parts = split_keys.parts_of(k, v, mask)
            return merge_by_lse.merged([call(*part, **said, return_lse=True) for part in parts])
        answer = _SURFACE.call(kernel_of(self.mutant), tensors.q, k, v, mask, **said, return_lse=wanted)
        return answer if wanted else (answer, None)

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_SURFACE,)

    def script_call(self, case: Case) -> Text:
        """`forward` as text."""
        p, given = case.problem, OPTIONS.of(case)
        lines, mask, reads = mask_text(p, given["mask"], given["shape"])
        said = options(p)
        if given["gqa"] == "expanded":
            said.remove("enable_gqa=True")
            lines += tuple(f"{x} = {x}[:, :, None].expand(-1, -1, {p.group}, -1, -1).flatten(1, 2)" for x in ("k", "v"))
        elif given["gqa"] == "always":
            said.append("enable_gqa=True")
        kernel = f'MUTANTS["{self.mutant}"]' if self.mutant else "scaled_dot_product_attention"
        arguments = ["q", "k", "v", *mask, *said, *["return_lse=True"] * given["lse"]]
        source = "kernels.mutants.sdpa.table import MUTANTS" if self.mutant else f"kernels.sdpa import {kernel}"
        path = f"sys.path.insert(0, {str(ROOT)!r})  # the folder that holds `kernels`"
        setup = f"{self.script_setup}{path}\nfrom {source}  # noqa: E402"
        imports = (*["import os"] * ("os." in setup), "import sys")
        answer = "o, lse" if given["lse"] else "o"
        call = (*lines, f"{answer} = {kernel}({', '.join(arguments)})")
        if given["keys"] == "split":
            call = (*lines, *split_keys.text(kernel, mask, said))
        return Text(call, imports, setup, reads, lse=given["lse"])


def _other_bias(case: Case) -> bool:
    p = case.problem
    return p.bias is not None and p.bias.dtype == "float32" and p.dtype != "float32"


def _inexact_split(case: Case) -> bool:
    return OPTIONS.of(case)["keys"] == "split" and merge_by_lse.exact(case)


def _useful(problem: AnyProblem, given: dict[str, Any]) -> bool:
    """True if the problem can be said so; dK and dV of expanded heads are summed by autograd, in their dtype."""
    exact = not problem.backward or problem.dtype == "float32"
    heads = {"auto": True, "always": problem.group == 1, "expanded": problem.group > 1 and exact}
    by_a_flag = problem.mask == Causal() and problem.bias is None and not problem.ragged
    split = split_keys.takes(problem) and given["lse"] and not (by_a_flag and given["mask"] in ("auto", "both"))
    whole = given["keys"] == "whole"
    return given["mask"] in ("auto", *says(problem)) and heads[given["gqa"]] and (whole or split)


def _arguments(
    case: Case, tensors: Tensors, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """key, value, attn_mask, and the keyword arguments."""
    p, given = case.problem, OPTIONS.of(case)
    mask, causal = mask_arguments(p, bias, tensors.q.device, given["mask"])
    if mask is not None:
        mask = shaped(mask, p, given["shape"])
    k, v, gqa = tensors.k, tensors.v, p.group > 1 or given["gqa"] == "always"
    if given["gqa"] == "expanded":
        k, v, gqa = expanded_heads(k, p.group), expanded_heads(v, p.group), False
    return k, v, mask, {"is_causal": causal, "scale": p.scale, "enable_gqa": gqa}


def _leaf(bias: Tensor | None, grad: bool) -> Tensor | None:
    return None if bias is None else bias.detach().requires_grad_(grad)


@functools.cache
def kernel_of(mutant: str) -> Callable:
    """The public function, or that of a mutant. Its import decides how Triton runs in this process."""
    if mutant:
        from kernels.mutants.sdpa.table import MUTANTS as mutants

        return mutants[mutant]
    from kernels.sdpa import scaled_dot_product_attention

    return scaled_dot_product_attention
