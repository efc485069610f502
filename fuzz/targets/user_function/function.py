"""@target: a user's own attention function as a target, in ten lines.

    from fuzz.targets import target

    @target("mine", dtypes=["float32"])
    def attention(q, k, v, mask, scale):
        scores = q @ k.transpose(-1, -2) * scale
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v

The names of the function's parameters say what it can express; whatever it does not take is never asked of it:
    q, k, v      (batch, heads, length, dim), or packed (total, heads, dim) with layouts=["packed"]
    mask         bool (batch or 1, heads_q or 1, len_q, len_k), True = keep; always given
    causal       bool: the mask is exactly causal, and no key is padding; where the function takes no `mask`, only full
                 and causal masks are asked. Which causal mask: causal_align
    key_padding_mask   bool (batch, 1, 1, len_k), True = keep: sequences of fewer keys than the longest. Beside `mask`,
                 which says the same, or in its place; there `causal` says nothing about padding
    scale        float
    softcap      float, 0 = none;  bias  additive, broadcastable, or None
    cu_seqlens_q, cu_seqlens_k, max_len_q, max_len_k   int32 tensors and ints of a packed problem
    problem      the whole Problem: any mask is asked, through problem.mask. It declares nothing else: bias, softcap and
                 scale are asked where they are parameters too
It returns O, or (O, LSE). Gradients come from autograd. Heads of k and v may be fewer than q's unless gqa=False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from fuzz.core.case_limits import Size
from fuzz.core.support import Rule, Support
from fuzz.core.target import Device
from fuzz.devices.emulator.config import ARCHES
from fuzz.targets.autograd import parameters
from fuzz.targets.user_function.extra_tensors import Reference, Shapes
from fuzz.targets.user_function.function_arguments import MASKS
from fuzz.targets.user_function.function_emulated import EmulatedFunctionTarget
from fuzz.targets.user_function.function_target import FunctionTarget
from oracles.masks import KINDS, Align
from oracles.numerics import FUSED, Numerics

DECLARED: list[FunctionTarget] = []
UNKNOWN_SPEED = {"host": 2e5, "cuda": 1e8, "emulator": 2e5}  # of a kernel that may run in an interpreter


def target(
    name: str,
    *,
    device: Device | Iterable[Device] = ("host", "cuda"),
    arch: str = "sm_90a",
    dtypes: Iterable[str] | None = None,
    layouts: Iterable[str] = ("padded",),
    axes: Literal["bhsd", "bshd"] = "bhsd",
    masks: Iterable[str] | None = None,
    causal_align: Align = "top_left",
    empty_rows: bool = True,
    dims: tuple[int, int, int] | list[int] | set[int] = (1, 256, 1),
    gqa: bool = True,
    dim_v_differs: bool = True,
    zero_lengths: bool = True,
    cross: bool = True,
    strides: bool = True,
    backward: bool = True,
    bias_grad: bool = True,
    bias_dtypes: Iterable[str] = ("input", "float32"),
    speed: float | None = None,
    size: Size | None = None,
    max_pairs: int = 1 << 20,
    numerics: Numerics = FUSED,
    proof: Iterable[str] = (),
    deterministic: bool = True,
    rules: Iterable[Rule] = (),
    variants: Iterable[dict[str, str | int | bool]] = ({},),
    extra: Shapes | None = None,
    reference: Reference | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the decorated function a target named `name`; the function itself is returned unchanged.

    device        'host', 'cuda', or 'emulator': its Triton kernels are compiled for `arch` and run on the emulated GPU
    axes          'bshd': q, k, v and O are (batch, length, heads, dim)
    masks         kinds of masks that `mask` may be of, by their names in a case; None: any
    causal_align  'bottom_right': `causal=True` aligns the last query with the last key
    empty_rows    False: rows that see no key are undefined, and never asked about; else O = 0 and LSE = -inf there
    dims          head dims: a list or set of them, or as a tuple (least, most, step)
    cross         False: each sequence has as many keys as queries
    bias_grad     whether the bias gets a gradient;  bias_dtypes  'input' (that of q), 'float32'
    speed         (query, key) pairs a second, for the deadline of the first cases; None: assumed to be slow
    size          limits of the cases that a session draws;  max_pairs  of those that it takes at all
    numerics      where it rounds on its way (oracles/numerics.py)
    proof         parts of the names of autograd nodes, one of which must have made O
    deterministic whether repeats must agree bit for bit
    rules         refusals beyond these: Rule(why, applies, kind), `applies` a function of the Case; kind 'cannot':
                  never asked; 'refuses': the function raises, anything at all, and not raising is a finding
    variants      dictionaries of options, one of which a case has; given as keywords
    extra         shapes of further tensors, by name: axes are numbers or 'batch', 'heads_q', 'len_k', 'dim', …; given
                  as keywords, standard normal in the dtype of q
    reference     the right answer, as a function of the same arguments in float64: for an operation that is not
                  attention. The budget follows from how it answers to inputs that are rounded

    Raises ValueError for an unknown device, dtype, mask kind, layout, order of axes or alignment.
    """
    devices: tuple[Any, ...] = (device,) if isinstance(device, str) else tuple(device)
    _known("device", devices, ("host", "cuda", "emulator"))
    if "emulator" in devices and len(devices) > 1:
        raise ValueError("device: 'emulator' stands alone; give a target on another device a declaration of its own")
    _known("arch", (arch,), ARCHES)
    _known("dtypes", dtypes or (), ("float16", "bfloat16", "float32"))
    _known("layouts", layouts, ("padded", "packed"))
    _known("axes", (axes,), ("bhsd", "bshd"))
    _known("masks", masks or (), tuple(KINDS))
    _known("causal_align", (causal_align,), ("top_left", "bottom_right"))
    _known("bias_dtypes", bias_dtypes, ("input", "float32"))
    span = _span(dims)
    if not dims:
        raise ValueError("dims: needs at least one head dim")
    allowed = None if span is not None else frozenset(int(dim) for dim in dims)

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        named = parameters(function)
        blind = not named & MASKS
        expressible: frozenset[str] | None = frozenset(masks) if masks is not None else None
        if blind:
            expressible = frozenset({"full", "causal"} if "causal" in named else {"full"})
        support = Support(
            dtypes=tuple(dtypes or ("float16", "bfloat16", "float32")),  # type: ignore[arg-type]
            layouts=tuple(layouts),  # type: ignore[arg-type]
            masks=expressible,
            causal_align=causal_align if blind else None,
            ragged=not blind or "key_padding_mask" in named,
            ragged_q=not blind,
            cross=cross,
            bias="bias" in named,
            bias_grad="bias" in named and bias_grad,
            bias_dtypes=tuple(bias_dtypes),  # type: ignore[arg-type]
            softcap="softcap" in named,
            scale="scale" in named,
            gqa=gqa,
            dim=span or (min(allowed or (1,)), max(allowed or (1,)), 1),
            dims=allowed,
            dim_v_differs=dim_v_differs,
            zero_lengths=zero_lengths,
            strides=strides,
            shared=strides,
            backward=backward,
            lse=True,
            max_pairs=max_pairs,
        )
        made_by: dict[str, Callable[..., FunctionTarget]] = {
            "host": FunctionTarget,
            "cuda": FunctionTarget,
            "emulator": partial(EmulatedFunctionTarget, arch=arch),
        }
        for where in devices:
            made = made_by[where](
                name,
                function,
                where,
                support,
                axes=axes,
                causal_align=causal_align,
                empty_rows=empty_rows,
                rules=tuple(rules),
                numerics=numerics,
                proof=tuple(proof),
                deterministic=deterministic,
                variants=tuple(variants),
                session_size=size,
                pairs_per_second=speed or UNKNOWN_SPEED[where],
                start_seconds=0.01 if speed else 0.3,
                extra=dict(extra or {}),
                reference=reference,
                attention=reference is None,
            )
            DECLARED.append(made)
        return function

    return declare


def _span(dims: tuple[int, int, int] | list[int] | set[int]) -> tuple[int, int, int] | None:
    """(least, most, step), which is a tuple; None where dims are listed one by one, in a list or set."""
    if not isinstance(dims, tuple):
        return None
    if len(dims) != 3 or not 1 <= dims[0] <= dims[1] or dims[2] < 1:
        raise ValueError(f"dims: a tuple must be (least, most, step), got {dims!r}; give single dims as a list or set")
    return dims


def _known(field: str, given: Iterable[Any], allowed: tuple[str, ...]) -> None:
    for value in given:
        if value not in allowed:
            raise ValueError(f"{field}: must be one of {', '.join(allowed)}, got {value!r}")
