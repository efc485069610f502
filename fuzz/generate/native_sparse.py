"""Cases of native sparse attention, drawn inside what a target declares to support, biased to boundaries.

Lengths are multiples of a tile or of a block, one more or less, or anything; lists are short, as long as all blocks, or
longer; a window is empty, one token, ends amid a tile, or reaches over all. One case in three is plain: no weights,
causal, a length of whole tiles. NOTE [near-copies] of cases.py holds here too.

NOTE [many blocks]: of a target with `many_blocks`, whose sizes leave no more than 20 blocks to choose from, one
case in MANY_SHARE has a sequence of 33 to 64 blocks of 16 tokens, no gradients, and equal scores every other time.
NOTE [small]: of such a target, one case in SMALL_SHARE is a sequence of a head or two that ends in the first tile: what
a kernel reads past its end is past the tensor's end, or of another head.

NOTE [consecutive lengths]: a compiled kernel compares each row of its tile with a sequence's length by an instruction
of its own, and such a bound is wrong for one length in 16 to 64. One packed case in CONSECUTIVE_SHARE has sequences
of 16 or 32 consecutive lengths, so that most of these bounds are an end in one case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from fuzz.core.case import Case, Distribution, Inputs, Storage
from fuzz.core.case_limits import Size
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.support import Support
from fuzz.core.target import Target
from fuzz.generate.kernel_turns import support_of, variants_of
from fuzz.generate.masks import Draw, one_in
from fuzz.generate.recipes import draw_storage, draw_variant, odd, shared, with_relations
from oracles.native_sparse.problem import GROUP, Causality, NativeSparse

HEADS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (2, 1), (1, 2))  # KV heads, query heads for each
BLOCKS = (64, 16, 32, 64, 128, 16, 48, 256, 8, 4)
TILES = (64, 64, 128, 256, 64, 192, 32, 16)
WINDOWS = (0, 1, 2, 16, 63, 64, 65, 100, 128, 200, 512)
DIMS = (64, 32, 16, 128, 64, 48, 24, 8, 40, 80, 96)
CAUSAL: tuple[Causality, ...] = (True, True, True, "strict", "strict", False)
WEIGHTS = ("", "w_gate", "w_k w_v w_gate", "w_k w_v w_gate", "w_k", "w_v", "w_k w_v")
SCALES = (1.0, 0.5, 0.1, 0.01, 2.0)
DISTRIBUTIONS: tuple[Distribution, ...] = ("normal",) * 5 + ("adversarial", "needle", "large", "integers", "constant")
DETACHED = (("q",), ("k",), ("v",), ("q", "k"), ("q", "v"), ("k", "v"))
PLAIN_SHARE, GROUPS_SHARE, EMPTY_SHARE, LONG_SHARE, NO_ROWS_SHARE = 3, 8, 6, 12, 60  # one case in so many
MANY_SHARE, MANY_BLOCK, MANY_BLOCKS = 10, 16, (33, 64)  # NOTE [many blocks]
MANY_SIZE = Size(1 << 20, 1, 1024, 1 << 18)
MANY_SELECTED = (1, 2, 3, 8, 16, 31, 33)
EQUAL: tuple[Distribution, ...] = ("normal", "normal", "normal", "integers", "constant", "constant")
SMALL_SHARE, SMALL_LENGTH = 8, 48  # NOTE [small]
CONSECUTIVE_SHARE = 4  # one packed case in so many: NOTE [consecutive lengths]
FIRST, COUNTS = (1, 17, 33, 49), (16, 32)  # first of the consecutive lengths, and how many there are


def draw_native_sparse(
    draw: Draw, target: Target, size: Size, repeats: int, kernel: KernelChoice | None = None
) -> Case:
    """A case for `target`. Its rules may still say no to some.

    Where the target has a `long_size`, one case in LONG_SHARE is of that size: it chooses groups of blocks, computes no
    gradients, for they do not depend on how blocks were chosen, and runs once.
    """
    long = False
    if kernel is None and target.long_size is not None and one_in(draw, LONG_SHARE):
        long, size, repeats = True, target.long_size, 1
    many = kernel is None and not long and target.many_blocks and one_in(draw, MANY_SHARE)
    if many:
        size, repeats = MANY_SIZE, 1
    support = target.support if kernel is None else support_of(kernel, target.support)
    plain = not many and one_in(draw, PLAIN_SHARE)
    small = target.many_blocks and not (long or many or plain) and one_in(draw, SMALL_SHARE)
    layout = draw.choice(support.layouts)
    known = [(n, g) for n, g in HEADS if n * g <= size.rows and (g == 1 or support.gqa)]
    heads_kv, group = draw.choice(known or [(1, 1)])
    heads_q = heads_kv * group
    batch = draw.randint(1, max(1, min(3, size.rows // heads_q)))
    dim = draw.choice([dim for dim in DIMS if support.takes_dim(dim)] or [support.dim[0]])
    block = draw.choice(_steps(BLOCKS, support.block_step))
    tile = draw.choice(_steps(TILES, support.tile_step))
    longest = min(size.length, int((size.pairs / (heads_q * batch)) ** 0.5), size.elements // (batch * heads_q * dim))
    longest = max(longest, 1)
    if many:
        block = MANY_BLOCK
        lengths: tuple[int, ...] = (min(block * draw.randint(*MANY_BLOCKS) - draw.choice((0, 0, 1, 15)), longest),)
    elif small:
        lengths = (min(draw.randint(1, SMALL_LENGTH), longest),)
        heads_q, heads_kv = min(heads_q, 2), min(heads_kv, 2)
    elif (long or one_in(draw, GROUPS_SHARE)) and (
        narrow := [n for n in _steps((1, 2, 4, 16), support.block_step) if _fits(n, longest)]
    ):
        block = draw.choice(narrow)  # so many blocks that there are groups of them to choose from
        lengths = (draw.randint(GROUP * block + 1, longest),) * batch
    elif layout == "packed" and not plain and one_in(draw, CONSECUTIVE_SHARE):
        lengths = consecutive(draw, longest)
        heads_q, heads_kv = min(heads_q, 2), min(heads_kv, 2)
    else:
        lengths = _lengths(draw, support, layout, batch, longest, block, tile, whole=plain)
    few = long or many
    selected = (MANY_SELECTED if many else (1, 2, 3)) if few else ()
    problem = NativeSparse(
        lengths=lengths,
        heads_q=heads_q,
        heads_kv=heads_kv,
        dim=dim,
        dtype=draw.choice(support.dtypes),
        layout=layout,
        compress_block_size=block,
        num_selected_blocks=draw.choice(selected) if few else _selected(draw, -(-max(lengths) // block)),
        window_size=draw.choice(WINDOWS) if few else _window(draw, max(lengths)),
        num_cmp_selected_blocks=1 if long else _groups(draw, -(-max(lengths) // (block * GROUP))),
        causal=True if plain else draw.choice(CAUSAL),
        q_tile=tile,
        scale=draw.choice(SCALES) if support.scale and not plain and one_in(draw, 5) else None,
        backward=support.backward and not few and (kernel is not None or plain or not one_in(draw, 8)),
        **dict.fromkeys("" if plain else draw.choice(WEIGHTS).split(), True),
    )
    problem = target.with_fewer_kernels(problem)  # type: ignore[arg-type, assignment]
    inputs = _inputs(draw, support, problem, plain=plain)
    if many:
        inputs = structs.replace(inputs, distribution=draw.choice(EQUAL))
    variant = draw_variant(draw, variants_of(kernel, target.variants_for(problem)), plainest=plain)  # type: ignore[arg-type]
    case = Case(target.name, problem, inputs, variant=dict(variant), repeats=repeats)
    return case if few else with_relations(target, case)


def consecutive(draw: Draw, longest: int) -> tuple[int, ...]:
    """NOTE [consecutive lengths]; none is over `longest`. The longest one is the first or the last."""
    first, count = draw.choice(FIRST), draw.choice(COUNTS)
    lengths = [min(n, longest) for n in range(first, first + count)]
    return tuple(draw.choice((lengths, lengths[::-1])))


def _steps(known: Sequence[int], step: int) -> list[int]:
    return [n for n in known if n % step == 0] or [step]


def _fits(block: int, longest: int) -> bool:
    return GROUP * block < longest


def _lengths(
    draw: Draw, support: Support, layout: str, batch: int, longest: int, block: int, tile: int, *, whole: bool
) -> tuple[int, ...]:
    """Lengths of the sequences; different ones in most packed cases."""
    ragged = support.ragged if layout == "padded" else True
    count = batch if ragged and draw.choice((True, True, False)) else 1
    if support.zero_lengths and one_in(draw, NO_ROWS_SHARE):
        return (0,) * batch
    found = [_length(draw, longest, block, tile, whole=whole) for _ in range(count)]
    if count > 1 and support.zero_lengths and one_in(draw, EMPTY_SHARE):
        found[draw.randint(0, count - 1)] = 0
    return tuple(found * (batch // count))


def _length(draw: Draw, longest: int, block: int, tile: int, *, whole: bool) -> int:
    unit = draw.choice((block, tile, tile))
    most = longest // unit
    if not most:
        return draw.randint(max(longest // 2, 1), longest)
    near = unit * draw.randint(max(most // 2, 1), most)
    if whole:
        return near
    if one_in(draw, 3):
        return draw.randint(1, longest)
    return max(1, min(longest, near + draw.choice((0, 0, 1, -1, 7, -block // 2))))


def _selected(draw: Draw, blocks: int) -> int:
    return max(1, draw.choice((1, 2, 2, 3, 4, 8, blocks - 1, blocks, blocks + 3)))


def _window(draw: Draw, length: int) -> int:
    return (
        draw.choice(WINDOWS)
        if not one_in(draw, 4)
        else max(1, draw.choice((length - 1, length, length + 1, 2 * length)))
    )


def _groups(draw: Draw, groups: int) -> int | None:
    if groups > 1:
        return draw.choice((None, 1, 1, groups - 1))
    return 1 if one_in(draw, GROUPS_SHARE) else None


def _inputs(draw: Draw, support: Support, problem: NativeSparse, *, plain: bool) -> Inputs:
    stores = {name: Storage() for name in ("q", "k", "v", "do")}
    if support.strides and not plain and one_in(draw, 3):
        stores = {name: draw_storage(draw) for name in stores}
        if problem.backward and one_in(draw, 6):
            stores["do"] = Storage("expanded")
    if support.shared and not plain and one_in(draw, 12):
        stores = shared(draw, stores)
    detached: Any = draw.choice(DETACHED) if problem.backward and not plain and one_in(draw, 8) else ()
    distribution = draw.choice(DISTRIBUTIONS)
    return Inputs(seed=draw.randint(0, 255), distribution=distribution, detached=detached, **odd(stores))
