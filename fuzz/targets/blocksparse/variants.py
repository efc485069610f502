"""The kernels that a session of `blocksparse` draws: tens for a thousand cases, though thousands could be compiled.

A compile costs seconds, so dtype, head dim and softcap each bring one or two choices of tiles, mask and determinism
with them, laid out so that every pair of choices occurs up to head dim 128; the mask kind that only some problems can
have is drawn twice as often where it can be, or half as often again where bits are deterministic. Larger dims have one
kernel each: tiles of 64 keys and bits. Where every key is seen, dims 64, 128 and 256 have one more, for lists of full
blocks alone; causal masks of two tiles of queries or more have one more in float16 at head dim 128, for pairs of them.
Head dims whose products have fewer columns than the tiles (`depth_of`) have kernels of their own, one for each choice
of dtype and softcap. Wide tiles, which only forward kernels have, cost one more of these kernels: the backward pass is
that of another choice. What costs no compile (layout of the lists, schedule; on the emulator the number of resident
CTAs and the order of warps; keys in two calls) varies freely.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from fuzz.core.kernel_choice import KernelChoice
from fuzz.targets.blocksparse import nested, two_calls
from fuzz.targets.blocksparse.block_lists import HALVED, LISTS, MASKS_OF, SCHEDULES, expressible
from kernels.blocksparse.spec.variant import (
    LARGE_TILES,
    LARGEST_DIM,
    PADDED_DIMS,
    backward_products,
    depth_of,
    padded_dim,
)
from oracles.masks import Causal, Full
from oracles.problem import AnyProblem, Dtype, Problem

# Variants with keys in two calls, of a backward pass over several blocks of keys: one more for so many. It shares no
# divisor with the numbers of choices that cost no compile, so that it meets all of them.
SPLIT_SHARE = 5
# Copies of these for packed sequences: their rows of LSE are found in another way, and a row's LSE has a gradient only
# where the row sees keys of both calls.
SPLIT_PACKED = 3
MANY = 12  # copies of variants with lists of full blocks alone, of problems that few draws have
# Another mask kind than bits, by dtype and padded dim.
_SPECIAL = {
    ("bfloat16", 0): "intervals",
    ("bfloat16", 1): "intervals",
    ("bfloat16", 2): "band",
    ("bfloat16", 3): "band",
    ("float16", 0): "band",
    ("float16", 1): "intervals",
    ("float16", 3): "band",
}
# Mask kinds of the forward kernels with wide tiles, by products, and by dtype, padded dim and whether there is a
# softcap. Blocks of 64 keys and of 128 are among them for both.
_WIDE = {
    "wgmma": {
        ("bfloat16", 32, False): "intervals",
        ("bfloat16", 32, True): "bits",
        ("bfloat16", 64, False): "bits",
        ("float16", 32, False): "band",
        ("float16", 64, False): "bits",
        ("float16", 64, True): "bits",
    },
    "tcgen05": {
        ("bfloat16", 32, False): "bits",
        ("bfloat16", 64, False): "intervals",
        ("bfloat16", 96, False): "bits",
        ("bfloat16", 128, False): "band",
        ("float16", 64, True): "bits",
        ("float16", 128, False): "band",
    },
}
# Options that a kernel may have beside tiles, mask and determinism
_FURTHER = frozenset({"products", "wide"})


def kernels_for(problem: AnyProblem) -> list[dict[str, Any]]:
    """The choices of tiles, mask and determinism for a problem: each is one forward and one backward kernel.

    A dtype and a padded dim share tile_m, so that they share a preprocess kernel; a capped kernel has the tiles of the
    uncapped one, and with them its postprocess kernel.
    """
    at = PADDED_DIMS.index(padded_dim(problem.dim))
    half = problem.dtype == "float16"
    tile_m = (128, 64)[(at + half) % 2]
    if problem.dim > LARGEST_DIM[128]:
        return [_kernel(tile_m, 64, "bits", bool(problem.softcap) == half)]
    tile_n = (128, 64)[(at // 2 + half) % 2]
    capped, ordered = bool(problem.softcap), half == (at in (0, 3))
    first = _kernel(tile_m, tile_n, "bits", ordered != capped)
    special = _SPECIAL.get((problem.dtype, at))
    if capped or special is None or not expressible(problem, special):
        return [first]
    return [first, _kernel(tile_m, tile_n, special, not ordered)]


def native_masks(dtype: str, dim: int) -> tuple[str, ...]:
    """What the other mask kind than bits can express, where there is one for these; causal and windows, open or not,
    are one way."""
    special = _SPECIAL.get((dtype, PADDED_DIMS.index(padded_dim(dim))))
    if special == "band":
        return ("causal", "window", "window")
    return ("full", "causal", "window", "documents", "intervals", "per_head", "per_head", "per_batch")


def variants_for(problem: AnyProblem, *, emulated: bool, on_gpu: bool = False) -> tuple[dict[str, Any], ...]:
    """Everything that a session draws a case's variant from, more than once what is to come more often. A GPU may lack
    products by tcgen05, so that only `kernel_choices` has them there; without one they are emulated, or compiled."""
    first, *special = _with_products(problem, emulated)
    ordered = bool(special) and problem.backward and first["deterministic"]
    kernels = [first] * 2 + special * 3 if ordered else [first] + special * 2
    if depth_of(problem.dim, padded_dim(problem.dim)):
        kernels = [first]
    else:
        kernels += _with_full_lists(problem, emulated) * (MANY if has_pairs_of_tiles(problem) else 2)
        kernels += _with_nested_rows(problem, emulated) * 2
        kernels += wide_kernels(problem, "wgmma", named=emulated)
    kernels += [] if on_gpu else _on_blackwell(problem)
    kernels += [] if on_gpu else wide_kernels(problem, "tcgen05")
    found = [kernel | choice for kernel in kernels for choice in free_choices(problem, kernel, emulated)]
    may_split = [one for one in found[::SPLIT_SHARE] if not one.get("nested")]
    split = [one | {"keys": "split"} for one in may_split if two_calls.useful(problem, one["tile_n"])]
    several = problem.layout == "packed" and problem.batch > 1
    return (*found, *split * (SPLIT_PACKED if several else 1))


def free_choices(problem: AnyProblem, kernel: dict[str, Any], emulated: bool) -> list[dict[str, Any]]:
    """What costs no compile. Half of the ordered adds of three KV tiles or more come in a shuffled order: two tiles
    have no order that the other schedules do not have too. Above head dim 128 a user's lists may be over 128 keys.

    Half of the emulated ones have the PTX's products fused into their sums, as its compiler may (`contraction`).
    """
    ordered = problem.backward and kernel["deterministic"] and problem.len_k > 2 * kernel["tile_n"]
    schedules = (*SCHEDULES, "shuffled", "shuffled") if ordered else SCHEDULES
    layouts = (*LISTS, HALVED) if problem.dim > LARGEST_DIM[128] and kernel["tile_n"] == 64 else LISTS
    free: list[dict[str, Any]] = [
        {"lists": lists, "schedule": schedule} for lists, schedule in product(layouts, schedules)
    ]
    if not emulated:
        return free
    orders = ("in_order", "random", "starve_oldest", "one_first")
    fused: tuple[dict[str, str], ...] = ({}, {"contraction": "first"}, {}, {"contraction": "second"})
    return [
        choice | {"slots": slots, "warps": orders[(i + j) % 4], "seed": 7 * i + slots} | fused[(i + j // 2) % 4]
        for i, choice in enumerate(free)
        for j, slots in enumerate((1, 2, 3, 8))
    ]


def _with_products(problem: AnyProblem, emulated: bool) -> list[dict[str, Any]]:
    """The choices of kernels_for, some with products that their device would not take by itself, so that both kernels
    are seen, at no further compile: on the emulated GPU every other one with Hopper's, on a GPU capped ones with the
    portable ones, which on Hopper those of 64 queries have anyway."""
    capped = bool(problem.softcap)
    if emulated and problem.dtype == "float16" and padded_dim(problem.dim) == LARGEST_DIM[128] and not capped:
        first, *rest = kernels_for(problem)  # the one of two whose ordered adds are released by no warp of their own
        return [first | {"products": "wgmma"}, *rest]
    at = PADDED_DIMS.index(padded_dim(problem.dim)) + (problem.dtype == "float16") + capped
    if not emulated:
        return [kernel | ({"products": "mma"} if capped else {}) for kernel in kernels_for(problem)]
    return [kernel | ({"products": "wgmma"} if (at + i) % 2 else {}) for i, kernel in enumerate(kernels_for(problem))]


def _with_full_lists(problem: AnyProblem, emulated: bool) -> list[dict[str, Any]]:
    """The kernel for lists of full blocks alone, where every key is seen: of tiles for which Hopper's kernels have a
    tuning of their own there (`shares_loads`, with atomic adds `tuning_of_full`), with ordered adds in bfloat16."""
    dim = padded_dim(problem.dim)
    dims = (64, 128, 256) if problem.dtype == "bfloat16" else (64, 128)
    if not expressible(problem, "none") or dim not in dims or problem.softcap:
        return []
    keys = 128 if dim <= LARGEST_DIM[128] else 64
    return [_kernel(128, keys, "none", problem.dtype == "bfloat16") | ({"products": "wgmma"} if emulated else {})]


def _with_nested_rows(problem: AnyProblem, emulated: bool) -> list[dict[str, Any]]:
    """The kernel for pairs of nested rows (`shares_nested_loads`): of the choice with a band in float16 at head dim
    128, where rows come in pairs."""
    if padded_dim(problem.dim) != LARGEST_DIM[128] or not nested.useful(problem, 128):
        return []
    products = {"products": "wgmma"} if emulated else {}
    kernels = [one for one in kernels_for(problem) if (one["mask"], one["tile_m"]) == ("band", 128)]
    return [kernel | {"nested": True} | products for kernel in kernels]


def has_pairs_of_tiles(problem: AnyProblem) -> bool:
    """True where clusters of Hopper's forward kernel take all query tiles of a full mask in pairs: few problems."""
    alike = isinstance(problem.mask, Full) and problem.layout == "padded" and not problem.ragged
    return alike and problem.len_q > 0 and -(-problem.len_q // 128) % 2 == 0


def _on_blackwell(problem: AnyProblem) -> list[dict[str, Any]]:
    """The kernel with products by tcgen05: of the mask kind that only some problems can have, for each padded dim up to
    128; one for a larger dim and two capped ones. Few, so that each session of a few cases has several kinds of masks.

    At dims 64 and 128 tiles are 128 x 128, for which the backward pass has such products too, with ordered adds in
    bfloat16; elsewhere it is that of another choice.
    """
    *_, last = kernels = kernels_for(problem)
    padded, capped = padded_dim(problem.dim), bool(problem.softcap)
    large = padded > LARGEST_DIM[128] and not last["deterministic"]
    drawn = padded <= 64 if capped else len(kernels) > 1 or large
    if not drawn:
        return []
    if padded in (64, 128) and (not capped or last["tile_m"] == 128):
        ordered = problem.dtype == "bfloat16"
        return [_kernel(128, 128, last["mask"], ordered) | {"products": "tcgen05"}]
    return [last | {"products": "tcgen05"}] if last["tile_m"] == 128 else []


def wide_kernels(problem: AnyProblem, products: str, *, named: bool = True) -> list[dict[str, Any]]:
    """The choice of wide tiles, where there is one: of 192 queries for products by wgmma, of 256 for tcgen05. Their
    lists are beside those of the backward pass, whose kernels are those of another choice; a forward pass alone may
    have no other lists.

    named   lists beside others come with the products; else these are the device's, and wide lists are not read where
            its forward kernel has no such tiles
    """
    padded = padded_dim(problem.dim)
    mask = _WIDE[products].get((problem.dtype, padded, bool(problem.softcap)))
    # By tcgen05 the backward pass has kernels of its own at some dims, which are then those of `_on_blackwell`
    own = products == "tcgen05" and backward_products(products, 128, padded) == products
    kernels = _on_blackwell(problem) if own else kernels_for(problem)
    tile_m, _ = LARGE_TILES[products]
    ways: list[dict[str, Any]] = [{"wide": tile_m} | ({"products": products} if named else {})]
    ways += [] if problem.backward else [{"tile_m": tile_m, "products": products}]
    return [kernel | way for kernel in kernels if kernel["mask"] == mask for way in ways]


def kernel_choices(*, emulated: bool) -> tuple[KernelChoice, ...]:
    """The kernels that a session draws from where the arch has room and instructions for them, each with the cases that
    it is for; without those for head dims of fewer columns (`depth_of`), which differ from others by no option."""
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float16")
    found = list[KernelChoice]()
    for dtype, most, capped in product(dtypes, PADDED_DIMS, (False, True)):
        sample = Problem((1,), (1,), 1, 1, most, most, dtype, mask=Causal(), softcap=float(capped))
        of_dim = [dim for dim in range(8, most + 1, 8) if padded_dim(dim) == most]
        whole = [dim for dim in of_dim if not depth_of(dim, most)]
        kernels = _with_products(sample, emulated) + wide_kernels(sample, "wgmma", named=emulated)
        found += [_choice(kernel, dtype, (whole[0], most), capped) for kernel in kernels]
        kernels = _on_blackwell(sample) + wide_kernels(sample, "tcgen05")
        found += [_choice(kernel, dtype, (of_dim[0], most), capped) for kernel in kernels]
    return tuple(found)


def _choice(kernel: dict[str, Any], dtype: Dtype, dims: tuple[int, int], capped: bool) -> KernelChoice:
    """The cases that a kernel is for."""
    ordered = bool(kernel["deterministic"])  # two tiles each way: see KernelChoice
    return KernelChoice(
        kernel,
        dtype,
        dims,
        capped,
        MASKS_OF.get(kernel["mask"]),
        kernel["tile_m"] + 1 if ordered else 0,
        kernel["tile_n"] + 1 if ordered else 0,
        _FURTHER - kernel.keys(),
    )


def _kernel(tile_m: int, tile_n: int, mask: str, deterministic: bool) -> dict[str, Any]:
    return {"tile_m": tile_m, "tile_n": tile_n, "mask": mask, "deterministic": deterministic}
