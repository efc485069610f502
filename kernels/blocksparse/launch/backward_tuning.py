"""The tuning of Hopper's backward kernel for a problem, where the caller gives none: which of its main loops runs.

From shapes and lists alone; nothing here looks at values on the device. Measured on an H200: docs/performance/log.md.
"""

from __future__ import annotations

from torch import Tensor

from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.types import OPEN, Band, Bits, BlockMask, BlockSparse
from kernels.blocksparse.spec.variant import depth_of

Tuning = tuple[tuple[str, int], ...]

CAPPED: Tuning = (("step_m", 64),)  # at head dim 64 with a soft cap: steps of 128 queries would spill registers
RUNS: Tuning = (("runs", 1),)  # which masks that are rows of adjacent blocks have by default, with atomic adds
UNEXCHANGED = 208  # depth at which atomic adds are faster without an exchange of dS: docs/performance/log.md
NARROW = 1024  # keys of a window: of wider ones runs of tiles in steps of 80 queries are faster


def backward_tuning(
    blocks: BlockSparse, padded: int, dim: int, softcap: bool, ordered: bool, keys: int | None
) -> Tuning:
    """The tuning of a kernel by wgmma. padded: its head dim, `backward_dim` of the problem's, `dim`; ordered: adds to
    dQ are; keys: as `keys_of` says."""
    found = tuning_of_loop(blocks, padded, softcap, ordered, keys)
    depth = depth_of(dim, padded)
    if exchanges_ds(blocks, padded, depth, softcap, ordered):
        found = (*found, ("exchanges", 1))
    return tuple(sorted((*found, ("depth", depth)))) if depth else found


def exchanges_ds(blocks: BlockSparse, padded: int, depth: int, softcap: bool, ordered: bool) -> bool:
    """True where the two CTAs with the halves of a tile of keys exchange dS. depth: as `depth_of` says; the others as
    for `backward_tuning`."""
    pays = (depth or padded) > 128 and (ordered or depth != UNEXCHANGED)
    return padded == 256 and pays and may_exchange(blocks) and not softcap


def may_exchange(blocks: BlockSparse) -> bool:
    """True where the halves of a tile of keys have the same blocks, and are launched one after the other."""
    neighbours = blocks.schedule.positions is None or blocks.schedule.halves
    return blocks.backward is not None and blocks.backward.halves and neighbours


def tuning_of_loop(blocks: BlockSparse, padded: int, softcap: bool, ordered: bool, keys: int | None) -> Tuning:
    """The entries that say which main loop runs."""
    if (blocks.tile_m, blocks.tile_n) != (128, 128):
        return ()
    if softcap:
        return CAPPED if padded == 64 else ()
    if padded != 128:
        return ()
    if blocks.mask is None and has_runs(blocks, ordered, keys):
        return tuning_of_full(padded, ordered)
    if blocks.mask is None or isinstance(blocks.mask, Bits):
        return () if ordered else RUNS
    width = window_width(blocks.mask)
    return (("delays", 1), ("runs", 0)) if width is not None and width <= NARROW and not ordered else ()


def tuning_of_full(padded: int, ordered: bool) -> Tuning:
    """The tuning for full masks without a soft cap, of a padded head dim: at 128 steps of 80 queries, and with atomic
    adds tiles that may be split."""
    if padded != 128:
        return ()
    return RUNS if ordered else (*RUNS, ("splits", 1))


def has_runs(blocks: BlockSparse, ordered: bool, keys: int | None) -> bool:
    """True where rows that are alike are those of a full mask, and where adds are ordered `has_ordered_runs`."""
    return has_ordered_runs(blocks, keys) if ordered else blocks.schedule.alike


def has_ordered_runs(blocks: BlockSparse, keys: int | None) -> bool:
    """True where all tiles of keys that have blocks have the same, in the same order, and none is cut off: then all of
    them have the same steps, and ordered adds may have runs. keys: as `keys_of` says."""
    return blocks.schedule.alike and blocks.mask is None and keys is not None and keys % blocks.tile_n == 0


def keys_of(sequences: Sequences) -> int | None:
    """Keys of every sequence, where these are padded and no tensor says how long they are."""
    return None if isinstance(sequences.k_length, Tensor) else sequences.k_length


def window_width(mask: BlockMask) -> int | None:
    """Keys that a query sees of a window; None for other masks."""
    if not isinstance(mask, Band) or OPEN in (mask.left, mask.right):
        return None
    return mask.left + mask.right + 1
