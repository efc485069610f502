"""torch.nn.attention.varlen: PyTorch's attention over packed sequences, and the same with an output given to it.

PyTorch 2.11 has windows and scales, 2.12 query heads that share a KV head, pages and splits too: cases ask for what the
version has. What the documentation (PyTorch 2.13) leaves open, and how it is read here:

window_size   "(-1, 0) for causal attention", without a word on sequences with other numbers of queries and keys. The
              kernels (FlashAttention-2) align at the bottom right, and so does this adapter.
return_aux    "lse … shape (T_q, H_q)", but the operator's own shape function says (H_q, T_q), which is what is checked.
seqused_k     "only the first seqused_k[i] tokens … participate": cu_seq_k then says where a sequence's slot begins.
block_table   pages of a pool, for inference only; the page size that kernels take is not said: PAGE tokens.
num_splits    1 "disables split-KV": more are not drawn, since they round otherwise than declared.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Tensors, Variant
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.options import Options, Value
from oracles.masks import Causal, Full, Window
from oracles.numerics import FLASH_2
from oracles.problem import AnyProblem, cumulative

PAGE = 256  # tokens, which FlashAttention-2's kernels need a multiple of
GAP = 5  # unused tokens after each sequence's own in its slot
PADDING = 100.0
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("packed",),
    masks=frozenset({"full", "causal", "window"}),
    dim=(8, 256, 8),
    dim_v_differs=False,
    zero_lengths=True,
    strides=False,
    lse=True,
)
OPTIONS = Options(
    window=("auto", "wide"),
    aux=("lse", "none"),
    gqa=("auto", "always"),
    keys=("packed", "slots", "paged"),
    splits=("auto", "one"),
    out=(False, True),
)


@cache
def _module() -> Any:
    """torch.nn.attention.varlen, or None before PyTorch 2.10; not before a case needs it, since its import takes
    torch.compile and Triton along."""
    return import_module(_NAME) if find_spec(_NAME) is not None else None


@cache
def _surfaces() -> tuple[Surface, ...]:
    module = _module()
    functions = [getattr(module, name, None) for name in ("varlen_attn", "varlen_attn_out")]
    return tuple(Surface.of(function) for function in functions if function is not None)


class TorchVarlen(AutogradTarget):
    """torch.nn.attention.varlen.varlen_attn and, forward only, varlen_attn_out."""

    name = "torch.nn.attention.varlen"
    summary = "varlen_attn: packed sequences, pages, windows"
    support = SUPPORT
    numerics = FLASH_2
    proof: tuple[str, ...] = ("varlen_attn",)
    deterministic = False  # the backward pass of FlashAttention-2 adds dQ with atomics

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pairs_per_second = 1e9
        self.rules = (
            OPTIONS.rule(),
            Rule("masks aligned at the top left, where a sequence has more queries than keys, or fewer", _top_left),
            Rule("options that the problem has no use for", lambda c: not _useful(c.problem, OPTIONS.of(c))),
            Rule("what this version of varlen_attn has no parameter for", lambda c: not self._expressible(c)),
        )

    @property
    def pinned(self) -> str:
        """The operator has one implementation."""
        return "torch_attn::_varlen_attn"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if self.device == "host":
            return "its kernels (aten::_flash_attention_forward) run on a GPU only"
        if (absent := super().missing()) is not None:
            return absent
        if not _surfaces():
            return f"torch {torch.__version__} has no {_NAME}"
        lacks = [name for name in _NEEDED if not _has(name)]
        return f"torch {torch.__version__}: varlen_attn has no parameter {', '.join(lacks)}" if lacks else None

    def _expressible(self, case: Case) -> bool:
        """True where varlen_attn has the parameters that a case needs; only asked where it can run."""
        options = OPTIONS.of(case)
        if self.device == "host":
            return True
        return all(
            _has(name)
            for name, needed in {
                "enable_gqa": case.problem.group > 1 or options["gqa"] == "always",
                "num_splits": options["splits"] == "one",
                "seqused_k": options["keys"] != "packed",
                "block_table": options["keys"] == "paged",
            }.items()
            if needed
        )

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return _surfaces() if self.device == "cuda" else ()

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target."""
        offered: dict[str, tuple[Value, ...]] = {"window": ("wide",), "aux": ("none",)}
        offered["splits"] = ("one",) if _has("num_splits") else ()
        offered["gqa"] = ("always",) if problem.group == 1 and _has("enable_gqa") else ()
        if not problem.backward:
            paged = _has("seqused_k") and _has("block_table")
            offered["keys"] = ("slots", "paged") if paged and min(problem.lengths_k) else ()
            offered["out"] = (True,) if len(_surfaces()) > 1 else ()
            ways = OPTIONS.draws(**offered)  # forward alone is one case in ten: most are of what backward cannot ask
            odd = tuple(way for way in ways if way.get("keys") or way.get("out"))
            three = tuple(way | {"splits": "one"} for way in odd if way.get("keys") and way.get("out"))
            return (*ways, *odd, *odd, *odd, *three, *three, *three)
        return OPTIONS.draws(**offered)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and, unless it is not asked for, LSE (heads_q, total_q)."""
        p, options = case.problem, OPTIONS.of(case)
        device = tensors.q.device
        given = self._arguments(p, options)
        k, v, more, max_k = _keys(p, options["keys"], tensors.k, tensors.v)
        cu_k = more.pop("cu_seq_k")
        arguments = (tensors.q, k, v, _int32(cumulative(p.lengths_q), device), cu_k, p.len_q, max_k)
        if options["out"]:
            o = torch.empty(*tensors.q.shape[:2], p.dim_v, dtype=tensors.q.dtype, device=device)
            answer = _surfaces()[1].call(_module().varlen_attn_out, o, *arguments, **given, **more)
        else:
            answer = _surfaces()[0].call(_module().varlen_attn, *arguments, **given, **more)
        return answer if options["aux"] == "lse" else (answer, None)

    def _arguments(self, p: AnyProblem, options: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "scale": p.scale,
            "window_size": window_of(p, wide=options["window"] == "wide"),
        }
        if _has("enable_gqa"):
            found["enable_gqa"] = p.group > 1 or options["gqa"] == "always"
        if options["aux"] == "lse":
            found["return_aux"] = _module().AuxRequest(lse=True)
        if options["splits"] == "one":
            found["num_splits"] = 1
        return found

    def script_call(self, case: Case) -> Text:
        """`forward` as text, for the plain call."""
        if case.variant:
            raise ScriptError(f"{self.name}: no script for the options {case.variant}")
        p = case.problem
        cu = {name: list(cumulative(x)) for name, x in (("q", p.lengths_q), ("k", p.lengths_k))}
        setup = [f"cu_{n} = torch.tensor({x}, dtype=torch.int32, device=DEVICE)" for n, x in cu.items()]
        given = f"scale={p.scale}, window_size={window_of(p)}" + (", enable_gqa=True" if p.group > 1 else "")
        call = (
            f"o, lse = varlen_attn(q, k, v, cu_q, cu_k, {p.len_q}, {p.len_k}, {given}, return_aux=AuxRequest(lse=True))"
        )
        return Text((*setup, call), ("from torch.nn.attention.varlen import AuxRequest, varlen_attn",), lse=True)


_NAME = "torch.nn.attention.varlen"
_NEEDED = ("return_aux", "scale", "window_size")


def _has(name: str) -> bool:
    """True where varlen_attn has a parameter."""
    return bool(_surfaces()) and name in _surfaces()[0].names


def targets() -> list[TorchVarlen]:
    """On a GPU; on the host it only says why not."""
    return [TorchVarlen("host"), TorchVarlen("cuda")]


def window_of(problem: AnyProblem, *, wide: bool = False) -> tuple[int, int]:
    """window_size of the problem's mask. wide: open sides as numbers that no position reaches past."""
    open_side = max(problem.len_q, problem.len_k) if wide else -1
    match problem.mask:
        case Causal():
            return open_side, 0
        case Window(left, right, _):
            return open_side if left is None else left, open_side if right is None else right
    return open_side, open_side


def _keys(p: AnyProblem, how: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, dict[str, Any], int]:
    """K and V, the arguments that say where sequences lie in them, and max_k.

    packed  one after another; slots: each in a slot with room after it, and its used length; paged: in the pages of a
            pool in no order, and a table of them
    """
    device = k.device
    if how == "packed":
        return k, v, {"cu_seq_k": _int32(cumulative(p.lengths_k), device)}, p.len_k
    used = _int32(p.lengths_k, device)
    room = GAP if how == "slots" else -p.len_k % PAGE
    k, v = (_slots(x, p, p.len_k + room) for x in (k, v))
    if how == "slots":
        starts = _int32(tuple(range(0, (p.batch + 1) * (p.len_k + room), p.len_k + room)), device)
        return k.flatten(0, 1), v.flatten(0, 1), {"cu_seq_k": starts, "seqused_k": used}, p.len_k + room
    table = _int32(tuple(reversed(range(p.batch * k.shape[1] // PAGE))), device).view(p.batch, -1)
    pages = [torch.empty_like(x.reshape(-1, PAGE, *x.shape[2:])) for x in (k, v)]
    for made, x in zip(pages, (k, v), strict=True):
        made[table.flatten().long()] = x.reshape(made.shape)
    more = {"cu_seq_k": _int32(cumulative(p.lengths_k), device), "seqused_k": used, "block_table": table}
    return pages[0], pages[1], more, p.len_k


def _slots(x: Tensor, p: AnyProblem, size: int) -> Tensor:
    """(batch, size, heads, dim): each sequence, then PADDING."""
    return torch.stack(
        [F.pad(part, (0, 0, 0, 0, 0, size - len(part)), value=PADDING) for part in x.split(list(p.lengths_k))]
    )


def _int32(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _top_left(case: Case) -> bool:
    p = case.problem
    return p.mask != Full() and getattr(p.mask, "align", "") == "top_left" and p.lengths_q != p.lengths_k


def _useful(p: AnyProblem, options: dict[str, Any]) -> bool:
    if options["gqa"] == "always" and p.group > 1:
        return False
    odd = options["keys"] != "packed" or options["out"]
    return not odd or (not p.backward and min(p.lengths_k) > 0)
