"""Masks of the backward kernel: for each row that a thread holds, a bit per key, whatever the mask comes from.

A warp's columns of the scores are adjacent (`Product.columns_together`), so that one row of a packed mask is one or two
words, and an interval of keys is a run of bits: a quarter of the words that common/mask_words.py needs for warps whose
columns interleave.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernels.blocksparse.backward.mma import ThreadProduct, coordinates
from kernels.blocksparse.backward.tile_iterator import Block
from kernels.blocksparse.common.layouts import rows_columns
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.mask_words import Mask, low_bits


@cute.jit
def tail_mask(keys_left: Int32) -> Uint32:
    """The word whose first key has `keys_left` keys from it to the sequence's end."""
    return low_bits(keys_left)


@cute.jit
def row_of_step(step: Int32, step_m: cutlass.Constexpr) -> Int32:
    """A step's first row in its block."""
    return step * step_m


class Words:
    """Positions of a thread's bits: its rows of the scores' tile, its warp's first column, its own first column
    there."""

    def __init__(self, product: ThreadProduct) -> None:
        (_, tile_n, _), (_, warps_n) = product.product.shape, product.product.warps
        where: Any = rows_columns(coordinates(product))
        self.columns = tile_n // warps_n
        self.row = [where[i, 0][0] for i in range(cute.size(where, mode=[0]))]
        self.first = where[0, 0][1] // self.columns * self.columns
        self.lane = where[0, 0][1] % 8
        self.per_row = (self.columns + 31) // 32


@cute.jit
def find_words(
    variant: cutlass.Constexpr,
    tail: cutlass.Constexpr,
    words: Words,
    mask: Mask,
    batch: Int32,
    band_offset: Int32,
    block: Block,
    n_block: Int32,
    step_row: Int32,
    rows_left: Int32,
    keys_left: Int32,
) -> cute.Tensor:
    """Bits of a thread's rows, (rows, words) registers; all set where the block is full and ends before the keys do.

    tail         `tail_mask` or its replacement
    band_offset  of this sequence
    step_row     the step's first row in its block
    rows_left    queries from the block's first to the sequence's end; keys_left: keys likewise
    """
    rWords = cute.make_rmem_tensor((len(words.row), words.per_row), Uint32)
    for i in cutlass.range_constexpr(len(words.row)):
        for w in cutlass.range_constexpr(words.per_row):
            rWords[i, w] = tail(keys_left - (words.first + 32 * w))
    if cutlass.const_expr(variant.mask != "none"):  # noqa: SIM102 (one is for the compiler)
        if block.partial != 0:
            keep_partial(variant, words, rWords, mask, batch, band_offset, block, n_block, step_row, rows_left)
    for i in cutlass.range_constexpr(len(words.row)):
        for w in cutlass.range_constexpr(words.per_row):
            rWords[i, w] = rWords[i, w] >> Uint32(words.lane)
    return rWords


@cute.jit
def apply_words(rP: Any, rWords: Any) -> None:
    """Sets the elements of (rows, columns) to zero whose bit is not set."""
    for i in cutlass.range_constexpr(cute.size(rWords, mode=[0])):
        for c in cutlass.range_constexpr(cute.size(rP, mode=[1])):
            bit = rWords[i, c // 8] & Uint32(1 << (8 * (c // 2 % 4) + c % 2))
            rP[i, c] = rP[i, c] if bit != Uint32(0) else Float32(0.0)


@cute.jit
def keep_partial(
    variant: cutlass.Constexpr,
    words: Words,
    rWords: Any,
    mask: Mask,
    batch: Int32,
    band_offset: Int32,
    block: Block,
    n_block: Int32,
    step_row: Int32,
    rows_left: Int32,
) -> None:
    """Clears the bits of what a partial block's mask forbids. Rows past the sequence's end have the last one's mask."""
    if cutlass.const_expr(variant.mask == "bits"):
        keep_bits(variant, words, rWords, mask, Int64(block.slot), step_row)
    else:
        query = [
            block.m_block * variant.tile_m + cutlass.min(step_row + words.row[i], rows_left - 1)
            for i in range(len(words.row))
        ]
        first = n_block * variant.tile_n + words.first
        if cutlass.const_expr(variant.mask == "intervals"):
            keep_intervals(rWords, mask, batch, block.head, query, first)
        else:
            keep_band(rWords, mask, query, first - band_offset)


@cute.jit
def keep_bits(variant: cutlass.Constexpr, words: Words, rWords: Any, mask: Mask, slot: Int64, step_row: Int32) -> None:
    """Bits from packed words; a thread's first key may be the middle of a word, whose other half is then not used."""
    for i in cutlass.range_constexpr(len(words.row)):
        for w in cutlass.range_constexpr(words.per_row):
            key = words.first + 32 * w
            place = (slot * variant.tile_m + step_row + words.row[i]) * (variant.tile_n // 32) + key // 32
            rWords[i, w] = rWords[i, w] & (read(mask.words, place).to(Uint32) >> Uint32(key % 32))


@cute.jit
def keep_intervals(rWords: Any, mask: Mask, batch: Int32, head: Int32, query: list[Int32], first: Int32) -> None:
    """Bits from the bounds of each row's query, for the keys of its sequence from `first` on. All rows' bounds are on
    their way together: one after the other, they were most of what a partial block cost."""
    start = mask.bounds + (batch * mask.bounds_stride_batch + head * mask.bounds_stride_head)
    row = [Int64(number) for number in query]
    rKept = cute.make_rmem_tensor_like(rWords)
    end = [read(start, at) for at in row]
    for i in cutlass.range_constexpr(len(row)):
        for w in cutlass.range_constexpr(cute.size(rWords, mode=[1])):
            rKept[i, w] = low_bits(end[i] - (first + 32 * w))
    for pair in cutlass.range((mask.n_func - 1) // 2, unroll=1):
        at = (2 * pair + 1) * mask.bounds_stride_func
        begin = [read(start, at + number) for number in row]
        end = [read(start, at + mask.bounds_stride_func + number) for number in row]
        for i in cutlass.range_constexpr(len(row)):
            for w in cutlass.range_constexpr(cute.size(rWords, mode=[1])):
                key = first + 32 * w
                rKept[i, w] = rKept[i, w] | (low_bits(end[i] - key) & ~low_bits(begin[i] - key))
    for i in cutlass.range_constexpr(len(row)):
        for w in cutlass.range_constexpr(cute.size(rWords, mode=[1])):
            rWords[i, w] = rWords[i, w] & rKept[i, w]


@cute.jit
def keep_band(rWords: Any, mask: Mask, query: list[Int32], first: Int32) -> None:
    """Bits from the band, for the keys from `first` on, less the sequence's offset."""
    for i in cutlass.range_constexpr(len(query)):
        for w in cutlass.range_constexpr(cute.size(rWords, mode=[1])):
            diagonal = query[i] - (first + 32 * w)
            kept = low_bits(diagonal + mask.band_right + 1) & ~low_bits(diagonal - mask.band_left)
            rWords[i, w] = rWords[i, w] & kept
