"""Features: the named properties that a Case exercises, as one table (name, meaning, predicate).

They feed Hypothesis's `event()`, the coverage of features and of pairs of features, and signatures. An operation has
the rows that it shares with attention, and some of its own (FEATURES_OF). A feature is a switch when taking it away
makes a case simpler (softcap, packed, a tail …); the others only describe (padded, mqa …). The minimizer never adds a
switch, so the switches of a minimised case are a subset of those of the case that it came
from; `signature.explains` relies on that. Cheap: about 25 µs per case, and no tensor is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import get_args

from fuzz.core.case import CODED, Case, Distribution, Storage
from oracles.masks import KINDS, Blocks, Causal, Documents, Full, Mask, Tokens, Window, parts, tag, varies_by_head
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import AnyProblem, mask_tile

ROWS_WITHOUT_KEYS = "rows_without_keys"
MASKED = "masked"
NATIVE_SPARSE = "native_sparse"
PADS_APART = "dim:pads_apart"
HALF_TILE = "len_k:half_tile"
ALL_DETACHED = "detached:all"
TRAITS = frozenset({PADS_APART, HALF_TILE, ALL_DETACHED})
MOST_PAIRS = 1 << 24
TILE = 64  # what 'tail' and 'many_tiles' are counted in: the tile that most kernels share or divide


@dataclass(frozen=True, slots=True)
class View:
    """A Case with what several predicates need, worked out once."""

    case: Case
    p: AnyProblem
    masks: tuple[Mask, ...]
    kinds: frozenset[str]
    pairs: tuple[tuple[int, int], ...]
    stores: tuple[Storage, ...]


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the table."""

    name: str
    meaning: str
    holds: Callable[[View], bool]
    switch: bool = True


def features(case: Case) -> frozenset[str]:
    """The names of all features of `case`; for a target's option also 'variant:<name>=<value>'."""
    view = _view(case)
    found = {feature.name for feature in FEATURES_OF[case.problem.op] if feature.holds(view)}
    return frozenset(found.union(_variant(case)))


def switches(case: Case) -> frozenset[str]:
    """The features of `case` that a reduction may take away but never adds."""
    view = _view(case)
    found = {feature.name for feature in _SWITCHES[case.problem.op] if feature.holds(view)}
    return frozenset(found.union(_variant(case)))


def facts(case: Case) -> frozenset[str]:
    """Properties that an explanation may rest on though a reduction may bring them about: rows without keys, looked for
    in the token predicate itself where the case is small enough. Meant for failures, not for every case."""
    return frozenset({ROWS_WITHOUT_KEYS} if _any_row_without_keys(case.problem) else ())


def sees_nothing(case: Case, batch: int, head: int, row: int) -> bool:
    """True if a query sees no key; row is its place in its sequence, which padding may follow."""
    p = case.problem
    if batch >= p.batch or row >= p.lengths_q[batch] or not p.lengths_k[batch]:
        return True
    return not bool(mask_tile(p, batch, head, (row, row + 1), (0, p.lengths_k[batch]), "cpu").any())


def traits(case: Case) -> frozenset[str]:
    """Properties that only an explanation written by hand may rest on, since a reduction may bring them about."""
    view = _view(case)
    return TRAITS & {f.name for f in (*_LENGTHS, *_DIMS, *_RARE) if f.holds(view)}


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """`names` in the table's order; what the table does not hold comes last, alphabetically."""
    return tuple(sorted(names, key=lambda name: (_RANK.get(name, len(_RANK)), name)))


def feature_pairs(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """All pairs of `names`, each in the table's order: what pair coverage counts."""
    return tuple(combinations(ordered(names), 2))


def _view(case: Case) -> View:
    p, i = case.problem, case.inputs
    masks = tuple(_walk(p.mask))
    return View(
        case=case,
        p=p,
        masks=masks,
        kinds=frozenset(tag(mask) for mask in masks),
        pairs=tuple(zip(p.lengths_q, p.lengths_k, strict=True)),
        stores=(i.q, i.k, i.v, i.do),
    )


def _walk(mask: Mask) -> list[Mask]:
    found = [mask]
    for part in parts(mask):
        found += _walk(part)
    return found


def _variant(case: Case) -> list[str]:
    return [f"variant:{name}={value}" for name, value in sorted(case.variant.items())]


def _any(kind: type, holds: Callable[..., bool]) -> Callable[[View], bool]:
    return lambda v: any(isinstance(mask, kind) and holds(mask) for mask in v.masks)


def _bias(holds: Callable[..., bool]) -> Callable[[View], bool]:
    return lambda v: v.p.bias is not None and holds(v.p.bias)


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _any_row_without_keys(p: AnyProblem) -> bool:
    """Exact up to MOST_PAIRS pairs a head; above that only what the padding shows."""
    if p.layout == "padded" and len(set(p.lengths_q)) > 1:
        return True
    heads = range(p.heads_q) if varies_by_head(p.mask) else range(1)
    for b, (n_q, n_k) in enumerate(zip(p.lengths_q, p.lengths_k, strict=True)):
        if n_q and not n_k:
            return True
        if 0 < n_q * n_k <= MOST_PAIRS:
            kept = (mask_tile(p, b, h, (0, n_q), (0, n_k), "cpu") for h in heads)
            if any(not bool(tile.any(1).all()) for tile in kept):
                return True
    return False


def _rows_without_keys(v: View) -> bool:
    """Only what is certain at a glance; a composite mask may have such rows all the same."""
    if any(q and not k for q, k in v.pairs):
        return True
    match v.p.mask:
        case Causal(align="bottom_right") | Window(align="bottom_right"):
            return any(q > k for q, k in v.pairs)
        case Tokens(rows):
            return len(rows) < v.p.len_q or any("1" not in row for row in rows)
        case Blocks(rows=rows, tile_m=tile_m):
            return len(rows) * tile_m < v.p.len_q or any(not row.strip(".") for row in rows)
    return False


_LAYOUT = (
    Feature("padded", "padded layout", lambda v: v.p.layout == "padded", switch=False),
    Feature("packed", "packed layout (varlen)", lambda v: v.p.layout == "packed"),
    Feature("ragged", "sequences of different lengths", lambda v: v.p.ragged),
    Feature("batch", "more than one sequence", lambda v: v.p.batch > 1),
    Feature("heads", "more than one query head", lambda v: v.p.heads_q > 1),
    Feature("gqa", "several query heads per KV head", lambda v: v.p.heads_q > v.p.heads_kv),
    Feature("mqa", "gqa with one KV head", lambda v: v.p.heads_q > v.p.heads_kv == 1, switch=False),
    Feature("gqa:group_odd", "a group that is no power of two", lambda v: not _power_of_two(v.p.group)),
)

_LENGTHS = (
    Feature("len_q:0", "a sequence without queries", lambda v: 0 in v.p.lengths_q),
    Feature("len_k:0", "a sequence without keys", lambda v: 0 in v.p.lengths_k),
    Feature("len_q:1", "a sequence of one query (decoding)", lambda v: 1 in v.p.lengths_q),
    Feature("len_k:1", "a sequence of one key", lambda v: 1 in v.p.lengths_k),
    Feature("len_q:tail", "a len_q that is no multiple of 64", lambda v: any(n % TILE for n in v.p.lengths_q)),
    Feature("len_k:tail", "a len_k that is no multiple of 64", lambda v: any(n % TILE for n in v.p.lengths_k)),
    Feature("len_q<len_k", "fewer queries than keys", lambda v: any(q < k for q, k in v.pairs)),
    Feature("len_q>len_k", "more queries than keys", lambda v: any(q > k for q, k in v.pairs)),
    Feature("len_q:many_tiles", "a len_q over 64", lambda v: v.p.len_q > TILE),
    Feature("len_k:many_tiles", "a len_k over 64", lambda v: v.p.len_k > TILE),
    Feature(
        HALF_TILE, "keys, padding included, that end amid a tile of 128", lambda v: v.p.len_k % 128 == 64, switch=False
    ),
    Feature("large", "over a million (query, key) pairs", lambda v: v.p.pairs > 1 << 20, switch=False),
    Feature("rows_without_keys", "rows that certainly see no key", _rows_without_keys, switch=False),
)

_DIMS = (
    Feature("dim_v", "dim_v differs from dim", lambda v: v.p.dim_v != v.p.dim),
    Feature("dim:odd", "an odd head dim", lambda v: bool(v.p.dim % 2 or v.p.dim_v % 2)),
    Feature(
        "dim:not_multiple_of_8", "a head dim that is no multiple of 8", lambda v: bool(v.p.dim % 8 or v.p.dim_v % 8)
    ),
    Feature(
        "dim:not_power_of_two",
        "a head dim that is no power of two",
        lambda v: not (_power_of_two(v.p.dim) and _power_of_two(v.p.dim_v)),
    ),
    Feature(
        PADS_APART,
        "a dim of Q and K that fills up to another multiple of 16 than of 32",
        lambda v: 0 < v.p.dim % 32 <= 16,
        switch=False,
    ),
    Feature("dim:small", "a head dim under 16", lambda v: min(v.p.dim, v.p.dim_v) < 16),
    Feature("dim:large", "a head dim over 128", lambda v: max(v.p.dim, v.p.dim_v) > 128),
    Feature("float32", "float32", lambda v: v.p.dtype == "float32", switch=False),
    Feature("float16", "float16", lambda v: v.p.dtype == "float16"),
    Feature("bfloat16", "bfloat16", lambda v: v.p.dtype == "bfloat16"),
)

_MASKS = (
    Feature("full", "no mask at all", lambda v: isinstance(v.p.mask, Full), switch=False),
    Feature(MASKED, "a mask, of whichever kind", lambda v: not isinstance(v.p.mask, Full)),
    *(
        Feature(kind, f"a mask with a part of kind '{kind}'", lambda v, kind=kind: kind in v.kinds)  # type: ignore[misc]
        for kind in KINDS
        if kind != "full"
    ),
    Feature("causal:bottom_right", "causal at the bottom right", _any(Causal, lambda m: m.align == "bottom_right")),
    Feature("window:bottom_right", "a window at the bottom right", _any(Window, lambda m: m.align == "bottom_right")),
    Feature("window:left", "a window with a left edge", _any(Window, lambda m: m.left is not None)),
    Feature("window:right", "a window with a right edge", _any(Window, lambda m: m.right is not None)),
    Feature(
        "documents:k_bounds",
        "documents with bounds of their own for keys",
        _any(Documents, lambda m: m.k_bounds is not None),
    ),
    Feature("blocks:empty", "an empty tile in the grid", _any(Blocks, lambda m: any("." in row for row in m.rows))),
    Feature("blocks:partial", "a partial tile in the grid", _any(Blocks, lambda m: any("M" in row for row in m.rows))),
)

_SCORES = (
    Feature("scale", "a scale of one's own", lambda v: v.p.scale is not None),
    Feature("scale:zero", "scale 0", lambda v: v.p.scale == 0),
    Feature("scale:negative", "a negative scale", lambda v: (v.p.scale or 0) < 0),
    Feature("softcap", "softcap", lambda v: v.p.softcap > 0),
    Feature("bias", "an additive bias", lambda v: v.p.bias is not None),
    Feature("bias:float32", "a float32 bias beside 16-bit inputs", _bias(lambda b: b.dtype == "float32")),
    Feature("bias:batch", "a bias per sequence", _bias(lambda b: b.batch)),
    Feature("bias:heads", "a bias per head", _bias(lambda b: b.heads)),
    Feature("bias:kv_heads", "a bias per KV head", _bias(lambda b: b.kv_heads)),
    Feature("bias:broadcast_rows", "one bias for all rows", _bias(lambda b: not b.rows)),
    Feature("bias:broadcast_cols", "one bias for all columns", _bias(lambda b: not b.cols)),
    Feature(
        "bias:grad", "the bias's gradient is asked for", lambda v: v.p.backward and bool(v.p.bias and v.p.bias.grad)
    ),
    Feature("backward", "forward and backward", lambda v: v.p.backward),
)

_INPUTS = (
    Feature(
        "strides",
        "a tensor whose axes lie in another order",
        lambda v: any(s.order not in ("bhsd", "expanded") for s in v.stores),
    ),
    Feature("pad", "unused elements between runs", lambda v: any(s.pad for s in v.stores)),
    Feature("offset", "a tensor that starts off alignment", lambda v: any(s.offset for s in v.stores)),
    Feature("shared", "a tensor with an axis of stride 0", lambda v: any(s.shared for s in v.stores)),
    Feature(
        "detached",
        "gradients of some inputs only",
        lambda v: v.p.backward and bool(v.case.inputs.detached),
    ),
    Feature(
        "expanded_do",
        "the output's gradient is one value with strides 0",
        lambda v: v.case.inputs.do.order == "expanded",
    ),
    *(
        Feature(
            f"inputs:{name}",
            f"inputs of distribution '{name}'",
            lambda v, name=name: v.case.inputs.distribution == name,  # type: ignore[misc]
            switch=name not in ("normal", "integers", "constant"),
        )
        for name in get_args(Distribution)
        if name != "cancelling"  # of native sparse attention alone
    ),
)

_RARE = (  # no part of the table: no session is asked to meet it
    Feature(
        ALL_DETACHED,
        "no gradient of q, k or v is asked for, only the bias's",
        lambda v: v.p.backward and {"q", "k", "v"} <= set(v.case.inputs.detached),
        switch=False,
    ),
)

MASK_KINDS = frozenset(feature.name for feature in _MASKS) - {MASKED, "full"}  # kinds of masks, and their details
FEATURES: tuple[Feature, ...] = (*_LAYOUT, *_LENGTHS, *_DIMS, *_MASKS, *_SCORES, *_INPUTS)


def _sparse(holds: Callable[[NativeSparse], bool]) -> Callable[[View], bool]:
    return lambda v: isinstance(v.p, NativeSparse) and holds(v.p)


def _selects_all(p: NativeSparse) -> bool:
    return p.num_selected_blocks >= p.blocks(p.len_q)


def _tile_tail(p: NativeSparse) -> bool:
    return any(n % p.q_tile for n in p.lengths)


SPARSE: tuple[Feature, ...] = (
    Feature(NATIVE_SPARSE, "native sparse attention", _sparse(lambda p: True), switch=False),
    Feature("strict", "no row depends on a later token", _sparse(lambda p: p.causal == "strict")),
    Feature("w_k", "a weight of the compressed keys", _sparse(lambda p: p.w_k)),
    Feature("w_v", "a weight of the compressed values", _sparse(lambda p: p.w_v)),
    Feature("w_gate", "gates with a weight", _sparse(lambda p: p.w_gate)),
    Feature(
        "inputs:cancelling",
        "inputs of distribution 'cancelling'",
        lambda v: v.case.inputs.distribution == "cancelling",
    ),
    Feature("groups", "groups of compressed blocks are selected", _sparse(lambda p: "groups" in p.choices)),
    Feature(
        "blocks:tail",
        "a last block that is not full",
        _sparse(lambda p: any(n % p.compress_block_size for n in p.lengths)),
        switch=False,
    ),
    Feature("blocks:all", "all blocks are selected", _sparse(_selects_all), switch=False),
    Feature("tiles:tail", "a last tile that is not full", _sparse(_tile_tail), switch=False),
    Feature("tiles:several", "several tiles of queries", _sparse(lambda p: p.len_q > p.q_tile), switch=False),
    Feature("reach:all", "a window over all tokens", _sparse(lambda p: p.window_size >= p.len_q), switch=False),
    Feature("reach:one", "a window of one token", _sparse(lambda p: p.window_size == 1), switch=False),
)


_OF_ATTENTION = frozenset({"dim_v", "softcap", "len_q<len_k", "len_q>len_k", "rows_without_keys"})
_SHARED = tuple(
    feature
    for feature in (*_LAYOUT, *_LENGTHS, *_DIMS, *_SCORES, *_INPUTS)
    if feature.name not in _OF_ATTENTION
    and not feature.name.startswith("bias")
    and feature.name.removeprefix("inputs:") not in CODED
)
_ANY_MASK = tuple(feature for feature in _MASKS if feature.name in ("full", MASKED, "causal"))
FEATURES_OF: dict[str, tuple[Feature, ...]] = {
    "attention": FEATURES,
    "native_sparse_attention": (*_SHARED, *_ANY_MASK, *SPARSE),
}
_SWITCHES = {op: tuple(feature for feature in table if feature.switch) for op, table in FEATURES_OF.items()}
_RANK = {feature.name: rank for rank, feature in enumerate((*FEATURES, *SPARSE))}
