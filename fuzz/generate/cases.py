"""Hypothesis strategies that draw Cases for a target, inside what it declares to support, biased to boundaries.

Sizes obey a budget of (query, key) pairs over all heads and sequences: lengths are drawn from what is left of it.
NOTE [near-copies]: cases are built from `st.randoms()` and not from many small strategies. After each example
Hypothesis tries five more, in which a drawn value is copied to another place of the same strategy; what follows such a
place is mostly the least of every choice. `draw.sample` is made of such strategies: with one call of it two in five
cases were near-copies that ended in zeros, so draw by `choice` and `randint` alone.
Long random material (token rows, block grids, intervals) comes from one drawn seed: Hypothesis's bytes are mostly zero.

NOTE [focus]: a case uses a few of the target's options, mostly one, and each of those for certain; three in five masks
are native to the target (Target.native_masks), and half of those beside a bias are none. Kernels have paths of their
own for just these, and one option too many leads around them: with each option left to chance, one case in thirteen
reached a causal path, half of those with a few tokens, and hardly one in a hundred the gradient of a bias that is
broadcast.
NOTE [budget]: what is spent on heads is not left for tokens. Half of the cases have few heads and long sequences, which
several tiles in both directions need; the other half have many heads and sequences.
NOTE [aims]: four cases in 24 are plain, five have a native mask, no option and lengths that differ, three have rows
whose first tile of keys is empty: see aims.py. Half of the plain and of the native ones are made by the plainest call
that the target has: another way to say a mask is another path. So a case without an aim has an option or two.
A target with biases of its own (Target.native_biases) has a bias beside half of its native masks.
NOTE [turns]: a session begins with a case for each kernel of a target: see kernel_turns.py, fuzz/session/turns.py. Such
a case has an option or two, and half of its inputs are FLOWING: a kernel's only turn is not spent on a case that hides
most errors.
NOTE [several]: with few heads × sequences to spend, heads drawn first leave one sequence. So ragged cases and three of
four of those with a bias keep room for a second one. One in five ragged cases has a sequence that is empty. Half of the
packed cases, and one padded case in five, are ragged even where that is not in focus: lengths meet every option but a
bias, which padding would join.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from hypothesis import strategies as st
from msgspec import structs

from fuzz.core.case import CODED, Case, Distribution, Inputs, Storage
from fuzz.core.case_limits import Size
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.refusal import refusal
from fuzz.core.support import Support
from fuzz.core.target import CALLS, Target
from fuzz.generate.aims import AIMS, TILE, Aim, aimed_lengths, late_mask
from fuzz.generate.grid import Grid
from fuzz.generate.kernel_turns import draw_meeting, support_of, variants_of
from fuzz.generate.masks import LENGTHS, NATIVE, Draw, Sizes, draw_mask, native_mask, one_in
from fuzz.generate.native_sparse import draw_native_sparse
from fuzz.generate.oversubscribed import draw_oversubscribed
from fuzz.generate.recipes import ORDERS, draw_storage, draw_variant, in_one_call, odd, shared, with_relations
from oracles.masks import Causal, Full, Mask
from oracles.problem import Bias, Problem

LONG = (384, 509, 511, 512, 513, 521, 1021, 1023, 1024, 1025, 2048, 2049, 4096, 4099, 8192)
DIMS = (64, 128, 16, 32, 96, 1, 8, 24, 40, 48, 72, 80, 100, 112, 160, 192, 256)
SCALES = (1.0, 0.5, 0.1, 0.01, 2.0, -0.25, 0.0, 0.0, 0.0)
EXACT_SCALES = (1.0, 0.25, 0.0625)  # powers of four: a root of them, put on Q and K, is exact too
SOFTCAPS = (50.0, 30.0, 15.0, 1.0)
DISTRIBUTIONS: tuple[Distribution, ...] = (
    "normal",
    "normal",
    "normal",
    "adversarial",
    "needle",
    "large",
    "integers",
    "constant",
    *CODED,
)
SUMS_CODED = {"plain": (True, False, False), "": (True, False)}  # sums over a group's heads; by aim
FLOWING: tuple[Distribution, ...] = ("normal", "normal", "adversarial", "integers")  # no P near one-hot: dS is not 0
INEXACT = tuple(name for name in DISTRIBUTIONS if name not in CODED)
DETACHED = (("q",), ("k",), ("v",), ("q", "k"), ("q", "v"), ("k", "v"), ("q", "k", "v"))  # the last with a bias only
# Keys beside queries: self-attention, some more or fewer (a cache, a chunk), anything; for one length, for several.
ALONE_AS = ("same", "same", "near", "any", "any", "any")
PACKED_AS = ("same", "near", "near", "any", "any", "any")
NEAR = (-65, -64, -17, -1, 1, 17, 64, 65)
FEW_HEADS = ((1, 1), (2, 2), (1, 2), (2, 1), (1, 2), (2, 2), (1, 4), (2, 2), (1, 2))  # KV heads, query heads for each
HEADS_KV, GROUPS = (1, 2, 3, 4), (1, 1, 2, 2, 3, 4, 8)  # of the other half: NOTE [budget]
TWO_TILES = 90  # tokens on both sides; heads that leave pairs for fewer come less often
PARTLY = 16  # one case in so many has huge tensors, of which a part is computed, where the target can
OPTIONS = (1, 1, 1, 2, 2)  # numbers of options in focus: of most cases, of a kernel's turn
TURN_OPTIONS = (1, 1, 2, 2)
RAGGED_SHARE = {"packed": 2, "padded": 5}  # one case in so many of those without an aim; NOTE [several]
_MEETING_AIMS: tuple[Aim, ...] = ("plain", "native", "late", *("",) * 4)  # of a case in which CTAs are to wait
OVERSUBSCRIBED_SHARE = 8  # one case in so many has an oversubscribed grid, where the target knows them


SMALL = Size(1 << 15, 8, elements=1 << 19)
MEDIUM = Size()
LARGE = Size(1 << 22, 32, elements=1 << 25)
SIZES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}


def drawer(target: Target, size: Size = MEDIUM, repeats: int = 3) -> Callable[[Draw], Case]:
    """Function that draws a case for `target`, within what it declares to support; its rules may still say no to
    some."""
    within = _within(target, size)

    def one(draw: Draw) -> Case:
        part = target.draw_cta_subset(draw, repeats) if target.draws_cta_subsets and one_in(draw, PARTLY) else None
        if part is None and target.draws_long_lists and one_in(draw, target.long_lists_share):
            part = target.draw_long_lists(draw, repeats)
        return part or CASES[target.operation](draw, target, within, repeats, None)

    return one


def strategy(drawn: Callable[[Draw], Case]) -> st.SearchStrategy[Case]:
    """Cases of a `drawer`, drawn by Hypothesis."""
    return st.randoms(use_true_random=False).map(drawn)


def cases(target: Target, size: Size = MEDIUM, repeats: int = 3) -> st.SearchStrategy[Case]:
    """Cases of `drawer`, drawn by Hypothesis."""
    return strategy(drawer(target, size, repeats))


def kernel_case(draw: random.Random, target: Target, size: Size, repeats: int, kernel: KernelChoice) -> Case:
    """A case of this kernel of a target: with a backward pass, and where its CTAs wait for one another, one in which
    they do."""
    return CASES[target.operation](draw, target, _within(target, size), repeats, kernel)


def _within(target: Target, size: Size) -> Size:
    return size.within(target.session_size).within(replace(size, pairs=target.support.max_pairs))


def _case(draw: Draw, target: Target, size: Size, repeats: int, kernel: KernelChoice | None = None) -> Case:
    support = target.support if kernel is None else support_of(kernel, target.support)
    layout = draw.choice(support.layouts)
    focus = _focus(draw, target, support, TURN_OPTIONS if kernel is not None else OPTIONS)
    aim = draw.choice(AIMS)
    meets = kernel if kernel is not None and kernel.least_q else None
    aim = draw.choice(_MEETING_AIMS) if meets is not None else aim
    focus = frozenset() if aim in ("plain", "native") else focus - {"ragged"} if aim == "late" else focus
    focus |= {"bias"} if aim == "native" and target.native_biases and draw.choice((True, False)) else set()
    focus |= {"softcap"} if kernel is not None and kernel.softcap else set()
    crowded = bool(target.oversubscribed) and not aim and kernel is None and one_in(draw, OVERSUBSCRIBED_SHARE)
    long = aim != "" or draw.choice((True, False))  # NOTE [budget]
    ragged = "ragged" in focus or (_may_be_ragged(support, layout, focus, aim) and one_in(draw, RAGGED_SHARE[layout]))
    several = ragged or ("bias" in focus and not one_in(draw, 4))  # NOTE [several]
    room = replace(size, rows=max(size.rows // 2, 1)) if several else size
    batch, heads_q, heads_kv = _few_heads(draw, support, room) if long else _heads(draw, support, room)
    if several and 2 * heads_q <= size.rows:
        batch = max(batch, 2)
    dim, dim_v = _dims(draw, support, "dim_v" in focus)
    longest = min(size.length, max(size.elements // (batch * heads_q * max(dim, dim_v)), 1))
    lengths_q, lengths_k = _lengths(draw, support, layout, ragged, batch, size.pairs // heads_q, longest)
    if support.cross and not ragged:
        aimed = aimed_lengths(draw, aim, lengths_k[0], size.pairs // (heads_q * batch), longest)
        if aimed is not None:
            lengths_q, lengths_k = (aimed[0],) * batch, (aimed[1],) * batch
    if target.any_length_share and not (aim or ragged) and one_in(draw, target.any_length_share):
        len_q, len_k = _any_lengths(draw, size.pairs // (heads_q * batch), longest)
        lengths_q, lengths_k = (len_q,) * batch, (len_k if support.cross else len_q,) * batch
    grid = _grid(draw, target, size, meets, oversubscribed=crowded, ragged=ragged)
    if grid is not None:
        heads_q, heads_kv, lengths_q, lengths_k = grid.heads_q, grid.heads_kv, grid.lengths_q, grid.lengths_k
    sizes = Sizes(lengths_q, lengths_k, heads_q)
    dtype = draw.choice(support.dtypes)
    native = target.native_masks(dtype, dim) or NATIVE
    problem = Problem(
        lengths_q=lengths_q,
        lengths_k=lengths_k,
        heads_q=heads_q,
        heads_kv=heads_kv,
        dim=dim,
        dim_v=dim_v,
        dtype=dtype,
        layout=layout,
        mask=_mask(draw, support, native, sizes, aim, bias="bias" in focus),
        scale=draw.choice(SCALES) if "scale" in focus else None,
        softcap=draw.choice(SOFTCAPS) if "softcap" in focus else 0.0,
        bias=_bias(draw, support, target.native_biases) if "bias" in focus else None,
        backward=support.backward and (kernel is not None or aim == "plain" or not one_in(draw, 10)),
    )
    problem = target.with_fewer_kernels(problem)  # type: ignore[assignment]
    inputs = _inputs(draw, support, problem, focus, aim, turn=kernel is not None)
    if target.ordered_share and "strides" not in focus and one_in(draw, target.ordered_share):
        inputs = _ordered(draw, inputs)
    if inputs.distribution in CODED and support.scale:
        problem = structs.replace(problem, scale=draw.choice(EXACT_SCALES))
    variants = variants_of(kernel, target.variants_for(problem))
    plainest = aim in ("plain", "native") and {} in variants and draw.choice((True, False))
    variant = draw_variant(draw, variants, plainest=plainest)
    if inputs.distribution in CODED or meets is not None:  # an answer may be exact, or CTAs are to wait
        variant = in_one_call(variant, variants)
    case = Case(target=target.name, problem=problem, inputs=inputs, variant=dict(variant), repeats=repeats)
    if CALLS in variant and refusal(target, case) is not None:  # for some kernels of other inputs too
        case = structs.replace(case, variant=dict(in_one_call(variant, variants)))
    return with_relations(target, case)


def _grid(
    draw: Draw, target: Target, size: Size, meets: KernelChoice | None, *, oversubscribed: bool, ragged: bool
) -> Grid | None:
    """Heads and lengths of a case in which CTAs are to meet; None where it has those that were drawn."""
    if meets is not None:
        return draw_meeting(draw, meets, gqa=target.support.gqa, ragged=ragged, rows=size.rows, pairs=size.pairs)
    if oversubscribed:
        return draw_oversubscribed(draw, target.oversubscribed, gqa=target.support.gqa, ragged=ragged)
    return None


def _may_be_ragged(support: Support, layout: str, focus: frozenset[str], aim: Aim) -> bool:
    """True if sequences may differ in length where that is not in focus. With a bias padded ones do not: kernels that
    say padding by a mask join the two."""
    return support.ragged and not aim and not (layout == "padded" and "bias" in focus)


def _focus(draw: Draw, target: Target, support: Support, counts: Sequence[int]) -> frozenset[str]:
    """The options of a case; as many as one of `counts`. NOTE [focus]"""
    able = [name for name in ("scale", "softcap", "bias", "ragged", "strides") if getattr(support, name)]
    able += ["dim_v"] if support.dim_v_differs else []
    able += ["bias"] if support.bias and support.bias_grad else []  # twice: it has a gradient, and shapes of its own
    able += ["bias"] if support.bias and target.native_biases else []
    count = min(draw.choice(counts), len(able))
    chosen: set[str] = set()
    for last in range(len(able) - count, len(able)):  # Floyd's sample; for `draw.sample` see NOTE [near-copies]
        name = able[draw.randint(0, last)]
        chosen.add(able[last] if name in chosen else name)
    return frozenset(chosen)


def _mask(draw: Draw, support: Support, native: Sequence[str], sizes: Sizes, aim: Aim, *, bias: bool) -> Mask:
    """The mask of a case with this aim. A kernel that has no full mask has no plain case."""
    if aim == "plain" and (support.masks is None or "full" in support.masks):
        return Full()
    if aim == "late" and sizes.len_q > 1 and sizes.len_k > TILE:
        late = late_mask(draw, support.masks, sizes.len_q, sizes.len_k)
        if late is not None:
            return late
    ways = [kind for kind in native if kind != "full"]
    mask = native_mask(draw, support.masks, ways, sizes) if aim == "native" else None
    if mask is None:
        mask = draw_mask(draw, support.masks, native, sizes, bias=bias)
    if support.causal_align is not None and isinstance(mask, Causal):
        return Causal(support.causal_align)
    return mask


def _heads(draw: Draw, support: Support, size: Size) -> tuple[int, int, int]:
    known = [(n, g) for n in HEADS_KV for g in GROUPS if n * g <= max(size.rows, 1) and (g == 1 or support.gqa)]
    heads_kv, group = draw.choice(known)
    batch = draw.randint(1, max(1, min(4, size.rows // (heads_kv * group))))
    return batch, heads_kv * group, heads_kv


def _few_heads(draw: Draw, support: Support, size: Size) -> tuple[int, int, int]:
    known = [(n, g) for n, g in FEW_HEADS if n * g <= size.rows and (g == 1 or support.gqa)]
    roomy = [(n, g) for n, g in known if n * g * TWO_TILES**2 <= size.pairs] or known[:1]
    heads_kv, group = draw.choice(draw.choice((known, roomy)))
    batch = 2 if 2 * heads_kv * group <= min(4, size.rows) and draw.choice((True, False)) else 1
    return batch, heads_kv * group, heads_kv


def _lengths(
    draw: Draw, support: Support, layout: str, ragged: bool, batch: int, pairs: int, longest: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of the sequences within `pairs` in all, where padding counts; equal ones unless ragged."""
    each = max(pairs // batch, 1)
    least = 0 if support.zero_lengths else 1
    if ragged and layout == "padded":
        longest = min(longest, int(each**0.5))
    how = draw.choice(PACKED_AS if ragged else ALONE_AS) if support.cross else "same"
    found_q, found_k = [], []
    for _ in range(batch if ragged else 1):
        square = int(each**0.5)
        most_q = square if how != "any" else draw.choice((each, max(each // 64, 1), square))
        len_q = _length(draw, least, min(most_q, longest))
        most_k = min(max(each // max(len_q, 1), 1), longest)
        match how:
            case "same":
                len_k = len_q
            case "near":
                len_k = max(1, min(len_q + draw.choice(NEAR), most_k))
            case _:
                len_k = _length(draw, least, most_k)
        found_q.append(len_q)
        found_k.append(len_k)
    if len(found_q) > 1 and not least and one_in(draw, 5):
        gone = draw.randint(0, len(found_q) - 1)
        for lengths in draw.choice(((found_q,), (found_k,), (found_q, found_k))):
            lengths[gone] = 0
    if layout == "padded" and not support.ragged_q:
        found_q = [max(found_q)] * len(found_q)
    times = 1 if ragged else batch
    return tuple(found_q * times), tuple((found_k if support.cross else found_q) * times)


def _any_lengths(draw: Draw, pairs: int, longest: int) -> tuple[int, int]:
    """Queries and keys, any numbers; at most `pairs` together, and neither far more than the other."""
    square = max(int(pairs**0.5), 1)
    len_q = draw.randint(1, min(3 * square // 2, longest))
    return len_q, draw.randint(1, max(min(pairs // len_q, 2 * square, longest), 1))


def _length(draw: Draw, least: int, most: int) -> int:
    """A boundary (most often), a long one, or anything in between; within [least, most]."""
    most = max(least, most)
    known = [n for n in LENGTHS if max(least, 1) <= n <= most] or [most]
    long = [n for n in LONG if least <= n <= most] or known[-len(known) // 3 :]
    kind = draw.randint(0, 39)
    if kind < 14:
        return draw.choice(long)
    if kind < 27:
        return draw.choice(known)
    if kind < 34:
        return draw.randint(max(least, most // 2), max(most, 1))
    if kind < 37:
        return draw.randint(max(least, 1), max(most, 1))
    return least


def _dims(draw: Draw, support: Support, differ: bool) -> tuple[int, int]:
    least, most, step = support.dim
    known = [d for d in DIMS if d <= support.dim_often and support.takes_dim(d)] or [least]

    def one() -> int:
        if support.dims is not None:
            return draw.choice(sorted(support.dims))
        if support.dim_often < most:
            if one_in(draw, 16):
                return draw.randint(support.dim_often // step + 1, most // step) * step
            if one_in(draw, 8):
                return draw.randint(-(-least // step), support.dim_often // step) * step
            return draw.choice(known)
        if one_in(draw, 8):
            return draw.randint(-(-least // step), most // step) * step
        return draw.choice(known)

    dim = one()
    return dim, one() if differ else dim


def _bias(draw: Draw, support: Support, native: Sequence[Bias]) -> Bias:
    """The bias of a case. With native ones every other is of these, in any dtype."""
    batch = one_in(draw, 3)  # a bias of positions is the same for all sequences
    heads, rows = draw.choice((True, False)), draw.choice((True, False))
    cols = not one_in(draw, 8)  # one number for a row of scores changes no weight, and its gradient is 0
    grad = support.bias_grad and not one_in(draw, 5)
    dtype: Literal["input", "float32"] = "float32" if one_in(draw, 8) else "input"
    dtype = dtype if dtype in support.bias_dtypes else support.bias_dtypes[0]
    kv_heads = support.bias_kv_heads and draw.choice((True, False))
    if bool(native) and draw.choice((True, False)):
        return structs.replace(draw.choice(native), dtype=dtype, grad=grad)
    return Bias(batch, heads and not kv_heads, rows, cols, dtype, grad, kv_heads)


def _inputs(draw: Draw, support: Support, problem: Problem, focus: frozenset[str], aim: Aim, *, turn: bool) -> Inputs:
    """Exact inputs choose the scale themselves, and take no softcap: not where one of those is looked at."""
    stores = {name: Storage() for name in ("q", "k", "v", "do")}
    if "strides" in focus:
        stores = {name: draw_storage(draw) for name in stores}
        if problem.backward and one_in(draw, 6):
            stores["do"] = Storage("expanded")
    known = INEXACT if focus & {"scale", "softcap"} else DISTRIBUTIONS
    sums = problem.backward and problem.group > 1 and problem.dtype != "float32"
    if known is DISTRIBUTIONS and sums and draw.choice(SUMS_CODED["plain" if aim == "plain" else ""]):
        known = CODED  # digits that a sum over a group's heads loses are within any budget
    if ("bias" in focus and draw.choice((True, True, True, False))) or (turn and draw.choice((True, False))):
        known = FLOWING
    distribution = draw.choice(known)
    if support.shared and distribution not in CODED and one_in(draw, 12):
        stores = shared(draw, stores)
    detached: tuple[Any, ...] = ()
    if problem.backward and one_in(draw, 8):
        detached = draw.choice(DETACHED if problem.bias and problem.bias.grad else DETACHED[:-1])
    return Inputs(seed=draw.randint(0, 255), distribution=distribution, detached=detached, **odd(stores))


def _ordered(draw: Draw, inputs: Inputs) -> Inputs:
    """The inputs, each tensor in an order of its own, where none has axes of stride 0."""
    stores = {name: getattr(inputs, name) for name in ("q", "k", "v", "do")}
    if any(store.shared for store in stores.values()):
        return inputs
    return structs.replace(inputs, **{name: Storage(draw.choice(ORDERS)) for name in stores})


# By operation: (draw, target, limits, repeats, kernel or None) -> a case. A new operation is a row here.
CASES: dict[str, Callable[[Draw, Target, Size, int, KernelChoice | None], Case]] = {
    "attention": _case,
    "native_sparse_attention": draw_native_sparse,
}
