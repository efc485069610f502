"""Mutants of how `kernels.blocksparse` masks partial blocks: the order of packed bits, a band's edges, intervals'
ends. None needs a kernel of its own; a mask of another kind stays right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from kernels.blocksparse.lists.bitmask import pack, unpack
from kernels.blocksparse.lists.types import OPEN, Band, Bits, BlockSparse, Intervals
from kernels.mutants.blocksparse.registration import register_list_mutant

INT32_MAX = 2**31 - 1


def _bytes_reversed(blocks: BlockSparse) -> BlockSparse:
    if not isinstance(blocks.mask, Bits):
        return blocks
    tiles = unpack(blocks.mask.words).unflatten(-1, (-1, 8)).flip(-1).flatten(-2)
    return replace(blocks, mask=replace(blocks.mask, words=pack(tiles)))


register_list_mutant(
    "bits_of_bytes_reversed",
    "Packed masks have the first key of eight in the highest bit.",
    "invented, after numpy.packbits, whose default order that is",
    _bytes_reversed,
)


def _banded(change: Callable[[Band], Band]) -> Callable[[BlockSparse], BlockSparse]:
    return lambda blocks: replace(blocks, mask=change(blocks.mask)) if isinstance(blocks.mask, Band) else blocks


register_list_mutant(
    "window_one_short",
    "A window's first key is not seen.",
    "invented, after Meta's NSA, whose window of W keys is q - W + 1 … q",
    _banded(lambda band: replace(band, left=band.left - (band.left < OPEN))),
)
register_list_mutant(
    "window_one_long",
    "A causal mask, or a window, sees one key too far on its right.",
    "Meta's NSA: a causal rule with > for >=",
    _banded(lambda band: replace(band, right=band.right + (band.right < OPEN))),
)
register_list_mutant(
    "alignment_mirrored",
    "A causal mask aligned at the bottom right is shifted by len_q - len_k instead of len_k - len_q.",
    "FlashAttention 2.1 changed the alignment of causal masks",
    _banded(lambda band: replace(band, offset=-band.offset)),
)


register_list_mutant(
    "open_window_overflows",
    "A side without a limit is the largest int32: the sum with a position overflows, and nothing is seen.",
    "FlashAttention-4 2e6ae05b: a window's limit overflows where it is clamped",
    _banded(
        lambda band: replace(
            band,
            left=INT32_MAX if band.left >= OPEN else band.left,
            right=INT32_MAX if band.right >= OPEN else band.right,
        )
    ),
)


def _bounded(change: Callable[[Tensor], Any]) -> Callable[[BlockSparse], BlockSparse]:
    def of(blocks: BlockSparse) -> BlockSparse:
        if not isinstance(blocks.mask, Intervals):
            return blocks
        bounds = blocks.mask.bounds.clone()
        change(bounds)
        return replace(blocks, mask=Intervals(bounds))

    return of


def _ends_included(bounds: Tensor) -> None:
    bounds[:, :, 0] += bounds[:, :, 0] > 0
    bounds[:, :, 2::2] += bounds[:, :, 2::2] > bounds[:, :, 1::2]


register_list_mutant(
    "first_interval_ignored",
    "The keys from the first one on, F[0], are not seen.",
    "HSTU masks: F0 ignored",
    _bounded(lambda bounds: bounds[:, :, 0].zero_()),
)
register_list_mutant(
    "last_interval_lost",
    "Rows lose the last of their key intervals.",
    "HSTU masks: an even number of bounds, n_func, read as pairs",
    _bounded(lambda bounds: bounds[:, :, -2:].zero_() if bounds.shape[2] > 1 else bounds),
)
register_list_mutant(
    "interval_ends_included",
    "Key intervals include their end.",
    "HSTU masks: <= at an end bound",
    _bounded(_ends_included),
)
