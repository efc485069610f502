"""What the cases of every operation share: strides of their tensors, and their follow-up cases."""

from __future__ import annotations

import random

from msgspec import structs

from fuzz.core.case import Case, Order, Storage
from fuzz.core.relations import relations_for
from fuzz.core.target import CALLS, Target, Variant
from fuzz.generate.masks import Draw, one_in

ORDERS: tuple[Order, ...] = ("bshd", "bhsd", "sbhd", "bhds")
# Axes of stride 0. Keys, or values, that are all one make O the same whatever the scores: of k and v the first three.
SHARED_AXES = ("b", "h", "bh", "s", "hs", "bhs")


def draw_storage(draw: Draw) -> Storage:
    """Another order of axes, gaps, an offset; each now and then."""
    order = draw.choice(ORDERS)
    return Storage(order, draw.choice((0, 0, 1, 8)), draw.choice((0, 0, 1, 8)))


def odd(stores: dict[str, Storage]) -> dict[str, Storage]:
    """Those that are not the plain one."""
    return {name: store for name, store in stores.items() if store != Storage()}


def shared(draw: Draw, stores: dict[str, Storage]) -> dict[str, Storage]:
    """The tensors' storage, one of them with axes of stride 0."""
    name = draw.choice([name for name, store in stores.items() if store.order != "expanded"])
    axes = draw.choice(SHARED_AXES[: 3 if name in ("k", "v") else None])
    return stores | {name: structs.replace(stores[name], shared=axes)}


def with_relations(target: Target, case: Case) -> Case:
    """The case with one follow-up case, now and then two; on a device that is slow mostly none. They follow from the
    case: drawn as the rest is they would double the choices of an example, and with them the number of its
    near-copies."""
    draw = random.Random(case.id)
    known = relations_for(target, case)
    share = target.follow_ups or (4 if target.device == "emulator" else 1)
    if not known or (share > 1 and not one_in(draw, share)):
        return case
    count = min(2 if one_in(draw, 4) else 1, len(known))
    return structs.replace(case, relations=tuple(draw.sample(known, count)))


def draw_variant(draw: Draw, variants: tuple[Variant, ...], *, plainest: bool = False) -> Variant:
    """One of a problem's variants; plainest: the one without options, if there is one."""
    if plainest and {} in variants:
        return {}
    return draw.choice(variants) if len(variants) > 1 else variants[0]


def in_one_call(variant: Variant, variants: tuple[Variant, ...]) -> Variant:
    """The variant with all keys in one call, where it is one of `variants`. The answers of two calls are rounded before
    they are put together, and tiles of keys that are in two calls do not wait for one another."""
    rest = {name: value for name, value in variant.items() if name != CALLS}
    return rest if rest in variants else variant
