"""Plainer options: what a Case asks for beyond q, k and v is switched off, all at once, in groups, then one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fuzz.core.case import Case, Storage
from fuzz.core.target import METADATA_ONLY
from fuzz.minimize.deletion import delete
from fuzz.minimize.edits import edit, edit_inputs, pairs, replace, with_lengths
from fuzz.minimize.kinds import Attempts, Options
from fuzz.minimize.shape import one_sequence, tiled
from oracles.masks import Full
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import Bias

Off = Callable[[Case], Case | None]


def _store(name: str) -> Off:
    return lambda case: edit_inputs(case, **{name: Storage()})


def _plain_numbers(case: Case) -> Case | None:
    plain = case.inputs.distribution in ("normal", "integers", "constant")
    return case if plain else edit_inputs(case, distribution="normal")


def _sparse(**changes: Any) -> Off:
    """Fields of native sparse attention; of another operation nothing changes."""
    return lambda case: edit(case, **changes) if isinstance(case.problem, NativeSparse) else case


OFF: dict[str, Off] = {
    "distribution": _plain_numbers,
    "q": _store("q"),
    "k": _store("k"),
    "v": _store("v"),
    "do": _store("do"),
    "detached": lambda case: edit_inputs(case, detached=()),
    "scale": lambda case: edit(case, scale=None),
    "softcap": lambda case: edit(case, softcap=0.0),
    "bias": lambda case: edit(case, bias=None),
    "mask": lambda case: edit(case, mask=Full()),
    "relations": lambda case: replace(case, relations=()),
    "w_k": _sparse(w_k=False),
    "w_v": _sparse(w_v=False),
    "w_gate": _sparse(w_gate=False),
    "groups": _sparse(num_cmp_selected_blocks=None),
    "strict": lambda case: edit(case, causal=True) if getattr(case.problem, "causal", True) == "strict" else case,
    "layout": lambda case: edit(case, layout="padded"),
    "backward": lambda case: edit(case, backward=False),
}
USUAL_REPEATS = {field.name: field.default for field in msgspec.structs.fields(Case)}["repeats"]
KEPT_WHEN_BOLD = frozenset({"backward"})


def bold(case: Case) -> Options:
    """Everything at once: plain, one sequence, one or two heads, one or two tiles; then plain or small alone."""
    plain = _switch_off(case, [name for name in OFF if name not in KEPT_WHEN_BOLD])
    if plain is not None:
        yield from (_small(plain, heads, tiles) for heads, tiles in ((1, 1), (2, 1), (2, 2)))
        yield plain
    yield _small(case, 2, 2)
    yield next(iter(one_sequence(case)), None)


def features(case: Case) -> Attempts:
    """Options deleted as a list is, so that those that the failure needs are found in few runs."""
    on = [name for name, off in OFF.items() if off(case) != case]
    yield from delete(on, lambda kept: _switch_off(case, [name for name in on if name not in kept]))


def bias(case: Case) -> Options:
    """A bias that is still there: the plainest one, then one flag at a time."""
    if case.problem.bias is None:
        return
    plain = Bias(grad=False)
    yield edit(case, bias=plain)
    for name in ("dtype", "batch", "kv_heads", "heads", "rows", "cols", "grad"):
        yield edit(case, bias=replace(case.problem.bias, **{name: getattr(plain, name)}))


def storage(case: Case) -> Options:
    """Tensors that still lie oddly: aligned, without padding, in the plain order, one property at a time."""
    for tensor in ("q", "k", "v", "do"):
        store = getattr(case.inputs, tensor)
        for name in ("shared", "offset", "pad", "order"):
            changed = {name: getattr(Storage(), name)}
            yield edit_inputs(case, **{tensor: replace(store, **changed)})


def scores(case: Case) -> Options:
    """Rounder numbers for a scale or a softcap that is still there."""
    p = case.problem
    if p.scale is not None:
        yield from (edit(case, scale=value) for value in _rounder(p.scale, (1.0, 0.0)))
    if p.softcap:
        yield from (edit(case, softcap=value) for value in _rounder(p.softcap, (1.0, 10.0)))


def variant(case: Case) -> Options:
    """The target's own options left at their defaults: all of them, then each."""
    kept = {name: value for name, value in case.variant.items() if name == METADATA_ONLY}
    if case.variant != kept:
        yield replace(case, variant=kept)
    for name in (name for name in case.variant if name not in kept):
        yield replace(case, variant={key: value for key, value in case.variant.items() if key != name})


def relations(case: Case) -> Options:
    """One way of asking again alone."""
    if len(case.relations) > 1:
        yield from (replace(case, relations=(name,)) for name in case.relations)


def dtype(case: Case) -> Options:
    """float32, where the failure does not need its 16 bits."""
    yield edit(case, dtype="float32")


def data(case: Case) -> Options:
    """Numbers that can be read: integers, then one constant; seed 0; no more repeats than usual."""
    plainer: dict[str, tuple[str, ...]] = dict.fromkeys(("large", "needle", "adversarial", "cancelling"), ("normal",))
    plainer |= {"one_hot": ("normal", "integers"), "uniform_pow2": ("normal",), "index_values": ("normal",)}
    plainer |= {"normal": ("constant", "integers"), "integers": ("constant",)}
    for name in plainer.get(case.inputs.distribution, ()):
        yield edit_inputs(case, distribution=name)
    if case.inputs.seed:
        yield edit_inputs(case, seed=0)
    if case.repeats > USUAL_REPEATS:
        yield replace(case, repeats=USUAL_REPEATS)


def _small(case: Case, heads: int, tiles: int) -> Case | None:
    """The oddest sequence alone, with at most `heads` heads and lengths of at most `tiles` tiles, class kept."""
    one = next(iter(one_sequence(case)), None)
    short = one and with_lengths(one, [(tiled(q, tiles), tiled(k, tiles)) for q, k in pairs(one)])
    if short is None or heads > case.problem.heads_q:
        return None
    return edit(short, heads_q=heads, heads_kv=min(heads, case.problem.heads_kv))


def _switch_off(case: Case, names: Sequence[str]) -> Case | None:
    found: Case | None = case
    for name in names:
        found = OFF[name](found) if found is not None else None
    return found


def _rounder(value: float, tried: tuple[float, ...]) -> list[float]:
    """Plainer values than `value`: none of them where it is one itself."""
    return [] if value in tried else list(tried)
