"""sdpa: the bundled dense attention in Triton, in the interpreter on a CPU and natively on a GPU; and its
mutants."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import Text, options
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.devices.present import cuda_present
from fuzz.targets import triton_interpreter, triton_mode
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.mask_tensors import SAID, SHAPES, expanded_heads, mask_arguments, mask_text, says, shaped
from fuzz.targets.options import Options, Value
from kernels.mutants.names import SDPA as MUTANTS
from oracles.metamorphic.relations import Equality
from oracles.numerics import FUSED, TENSOR_CORES
from oracles.problem import Problem

_ROOT = Path(__file__).resolve().parents[2]
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
OPTIONS = Options(mask=SAID, shape=SHAPES, gqa=("auto", "always", "expanded"), lse=(True, False))


class BundledSdpa(AutogradTarget):
    """kernels.sdpa, or one of its mutants (named sdpa!MUTANT)."""

    proof: tuple[str, ...] = ("sdpa_forward",)

    def __init__(self, device: Device, mutant: str = "") -> None:
        self.name = "sdpa" + f"!{mutant}" * bool(mutant)
        self.device = device
        self.mutant = mutant
        self.summary = "kernels.sdpa" + (f" with the mutant {mutant}" if mutant else "")
        self.support = _SUPPORT
        self.rules = (
            Rule("a bias of another dtype than the inputs", _other_bias),
            OPTIONS.rule(),
            Rule("options that the problem has no use for", lambda c: not _useful(c.problem, OPTIONS.of(c))),
            Rule("attn_mask beside is_causal", lambda c: OPTIONS.of(c)["mask"] == "both", "refuses"),
        )
        self.numerics = TENSOR_CORES if device == "cuda" else FUSED
        self.relations = _RELATIONS
        self.clears_padding = True
        self.pairs_per_second = 2e4 if device == "host" else 1e9
        if device == "host":
            self.session_size = Size(1 << 14, 6, 320)  # the interpreter takes some 0.04 s for each tile of 64 x 64

    @property
    def pinned(self) -> str:
        """The operator has no other implementation."""
        return "attnfuzz::sdpa_forward"

    def missing(self) -> str | None:
        """Triton itself may be missing; without a GPU it needs its interpreter."""
        if find_spec("triton") is None:
            return "needs triton (pip install triton)"
        if self.device == "host" and cuda_present():
            return "Triton's interpreter is used on machines without a GPU"
        if self.device == "host" and (why := triton_mode.missing("interpreted")):
            return why
        return super().missing()

    def variants_for(self, problem: Problem) -> tuple[Variant, ...]:
        """See Target: every way to say the mask, in every shape; heads in another way; without LSE."""
        offered: dict[str, tuple[Value, ...]] = {"mask": says(problem), "shape": SHAPES[1:], "lse": (False,)}
        # Heads that are expanded leave the kernel no group: with gradients its sums over a group are what is looked at.
        heads = "always" if problem.group == 1 or problem.backward else "expanded"
        offered["gqa"] = (heads,) if _useful(problem, {"mask": "auto", "gqa": heads}) else ()
        return OPTIONS.draws(**offered)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches (nothing in the interpreter)."""
        p = case.problem
        _kernel(self.mutant, self.device)
        if self.device == "cuda":
            from kernels.sdpa import prepare

            if self.mutant:
                from kernels.mutants.sdpa import registration

                prepare = partial(registration.prepare, f"sdpa!{self.mutant}")

            bias = _leaf(tensors.bias, p.bias is not None and p.bias.grad)
            k, v, mask, said = _arguments(case, tensors, bias)
            prepare(
                tensors.q,
                k,
                v,
                mask,
                **said,
                backward=p.backward,
                grad_out=tensors.do,
            )

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE."""
        k, v, mask, said = _arguments(case, tensors, tensors.bias)
        wanted = OPTIONS.of(case)["lse"]
        kernel = _kernel(self.mutant, self.device)
        answer = _SURFACE.call(kernel, tensors.q, k, v, mask, **said, return_lse=wanted)
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
        first = "" if self.device == "cuda" else 'os.environ["TRITON_INTERPRET"] = "1"  # no GPU\n'
        setup = (
            f"{first}sys.path.insert(0, {str(_ROOT)!r})  # the folder that holds `kernels`\nfrom {source}  # noqa: E402"
        )
        imports = ("import os", "import sys") if first else ("import sys",)
        answer = "o, lse" if given["lse"] else "o"
        call = (*lines, f"{answer} = {kernel}({', '.join(arguments)})")
        return Text(call, imports, setup, reads, lse=given["lse"])

    def expected_seconds(self, case: Case) -> float:
        """The interpreter's time goes with the number of tiles, however few tokens they hold."""
        if self.device == "cuda":
            return super().expected_seconds(case)
        p = case.problem
        tiles = p.batch * p.heads_q * (p.len_q // 64 + 1) * (p.len_k // 64 + 1)  # padding's too
        return 0.05 + 0.05 * tiles


def targets() -> list[BundledSdpa]:
    """The kernel on both devices."""
    return [BundledSdpa("host"), BundledSdpa("cuda")]


def mutants() -> list[BundledSdpa]:
    """The mutants on both devices: never part of a session unless named."""
    return [BundledSdpa(device, name) for device in ("host", "cuda") for name in MUTANTS]


def _other_bias(case: Case) -> bool:
    p = case.problem
    return p.bias is not None and p.bias.dtype == "float32" and p.dtype != "float32"


def _useful(problem: Problem, given: dict[str, Any]) -> bool:
    """True if the problem can be said so; dK and dV of expanded heads are summed by autograd, in their dtype."""
    exact = not problem.backward or problem.dtype == "float32"
    heads = {"auto": True, "always": problem.group == 1, "expanded": problem.group > 1 and exact}
    return given["mask"] in ("auto", *says(problem)) and heads[given["gqa"]]


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
def _kernel(mutant: str, device: Device) -> Callable:
    if device == "host":
        os.environ["TRITON_INTERPRET"] = "1"
        triton_interpreter.patch_interpreter()
    if mutant:
        from kernels.mutants.sdpa.table import MUTANTS as mutants

        return mutants[mutant]
    from kernels.sdpa import scaled_dot_product_attention

    return scaled_dot_product_attention
