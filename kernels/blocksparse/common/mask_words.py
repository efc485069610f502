# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Masks as 32-bit words: bit j of word w of a row says whether the row's query may attend key 32·w + j of the tile.

Every kind of mask (packed bits, intervals per row, a band, the end of the sequence) becomes words first, before the
product that needs them, and is applied to the scores by one function. Queries are the accumulator's rows, keys its
columns.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, cute

from kernels.blocksparse.common.list_reader import read


class Mask(NamedTuple):
    """Parameters of all kinds of masks; a kernel built for one kind reads only its own.

    bits       words (slots, tile_m, tile_n / 32), slot parallel to the partial list's index
    intervals  bounds (batch|1, heads|1, n_func, rows), n_func odd: row q keeps key k where k < F0, or
               F(2i+1) <= k < F(2i+2)
    band       keys q + offset[batch] - left … q + offset[batch] + right; |left|, |right| <= 2^30;
               band_stride 0 where one offset serves all
    """

    words: cute.Pointer
    slot: cute.Pointer
    bounds: cute.Pointer
    bounds_stride_batch: Int64
    bounds_stride_head: Int64
    bounds_stride_func: Int64
    n_func: Int32
    band_offset: cute.Pointer
    band_stride: Int32
    band_left: Int32
    band_right: Int32


class MaskRows:
    """The words of one thread's rows of an accumulator tile: registers (rows of this thread, columns / 32).

    mma, thread    the product's warps
    tile           (rows, columns) of the accumulator; columns is a multiple of 32
    """

    def __init__(self, mma: cute.TiledMma, thread: Int32, tile: tuple[int, int]) -> None:
        coordinates = mma.get_slice(thread).partition_C(cute.make_identity_tensor(tile))
        (columns, rows), atoms_m, atoms_n = coordinates.layout.shape
        self.rows, self.columns = rows * atoms_m, columns * atoms_n
        # rows of this thread: two per atom, 8 apart
        self.row = [coordinates[(0, i % rows), i // rows, 0][0] for i in range(self.rows)]
        # columns: this thread's first, less than 32, and compile-time steps from it (tiled_mma says which)
        self.first = coordinates[(0, 0), 0, 0][1]
        step = tile[1] // atoms_n
        self.offset = [c % 2 + c // 2 * step for c in range(self.columns)]
        self.n_words = tile[1] // 32
        self.words = cute.make_rmem_tensor(
            cute.make_layout((self.rows, self.n_words), stride=(self.n_words, 1)), Uint32
        )


@cute.jit
def fill_with(rows: MaskRows, word: Uint32) -> None:
    """Fills all words with one: 0 forbids, 0xFFFFFFFF allows all."""
    for i in cutlass.range_constexpr(rows.rows):
        for w in cutlass.range_constexpr(rows.n_words):
            rows.words[i, w] = word


@cute.jit
def keep_before(rows: MaskRows, end: Int32) -> None:
    """Forbid the columns from `end` on: the end of the keys."""
    for w in cutlass.range_constexpr(rows.n_words):
        kept = low_bits(end - 32 * w)
        for i in cutlass.range_constexpr(rows.rows):
            rows.words[i, w] = rows.words[i, w] & kept


@cute.jit
def keep_rows_before(rows: MaskRows, end: Int32) -> None:
    """Forbid the rows from `end` on: the end of the queries."""
    for i in cutlass.range_constexpr(rows.rows):
        kept = Uint32(0xFFFFFFFF) if rows.row[i] < end else Uint32(0)
        for w in cutlass.range_constexpr(rows.n_words):
            rows.words[i, w] = rows.words[i, w] & kept


@cute.jit
def load_bits(
    rows: MaskRows, mask: Mask, slot: Int32, tile_m: cutlass.Constexpr, tile_n: cutlass.Constexpr, first: Int32
) -> None:
    """Packed words of a slot from column `first` of its block on, a multiple of 32."""
    for i in cutlass.range_constexpr(rows.rows):
        at = (Int64(slot) * tile_m + rows.row[i]) * (tile_n // 32) + first // 32
        for w in cutlass.range_constexpr(rows.n_words):
            rows.words[i, w] = read(mask.words, at + w).to(Uint32)


@cute.jit
def load_intervals(
    rows: MaskRows, mask: Mask, batch: Int32, head: Int32, first_row: Int32, rows_left: Int32, first_column: Int32
) -> None:
    """Words of the tile at (first_row, first_column) of its sequence; rows from `rows_left` on get the last one's."""
    start = mask.bounds + (batch * mask.bounds_stride_batch + head * mask.bounds_stride_head + first_row)
    row = [Int64(cutlass.min(rows.row[i], rows_left - 1)) for i in range(rows.rows)]
    fill_with(rows, Uint32(0))
    for i in cutlass.range_constexpr(rows.rows):
        _add_interval(rows, i, Int32(0), read(start, row[i]) - first_column)
    # all rows' bounds of a pair are on their way together
    for pair in cutlass.range((mask.n_func - 1) // 2):
        at = (2 * pair + 1) * mask.bounds_stride_func
        begin = [read(start, at + row[i]) for i in range(rows.rows)]
        end = [read(start, at + mask.bounds_stride_func + row[i]) for i in range(rows.rows)]
        for i in cutlass.range_constexpr(rows.rows):
            _add_interval(rows, i, begin[i] - first_column, end[i] - first_column)


@cute.jit
def load_band(rows: MaskRows, mask: Mask, offset: Int32, first_row: Int32, first_column: Int32) -> None:
    """Words of the tile at (first_row, first_column); `offset` is the sequence's entry of mask.band_offset."""
    for i in cutlass.range_constexpr(rows.rows):
        diagonal = first_row + rows.row[i] + offset - first_column
        begin, end = diagonal - mask.band_left, diagonal + mask.band_right + 1
        for w in cutlass.range_constexpr(rows.n_words):
            rows.words[i, w] = low_bits(end - 32 * w) & ~low_bits(begin - 32 * w)


@cute.jit
def apply(rows: MaskRows, acc_mn: cute.Tensor, forbidden: Float32) -> None:
    """Replace the forbidden scores. acc_mn: the accumulator as (rows, columns) of this thread."""
    for i in cutlass.range_constexpr(rows.rows):
        for w in cutlass.range_constexpr(rows.n_words):
            word = rows.words[i, w] >> Uint32(rows.first)
            for c in cutlass.range_constexpr(rows.columns):
                if cutlass.const_expr(rows.offset[c] // 32 == w):
                    bit = word & Uint32(1 << (rows.offset[c] % 32))
                    acc_mn[i, c] = acc_mn[i, c] if bit != Uint32(0) else forbidden


@cute.jit
def _add_interval(rows: MaskRows, i: cutlass.Constexpr, begin: Int32, end: Int32) -> None:
    for w in cutlass.range_constexpr(rows.n_words):
        rows.words[i, w] = rows.words[i, w] | (low_bits(end - 32 * w) & ~low_bits(begin - 32 * w))


@cute.jit
def branch(condition: Boolean) -> Int32:
    """1 or 0, as the trip count of a loop that is a branch.

    A plain `if` around the selects of a tile becomes two hundred predicated instructions that every block pays for;
    a loop whose trip count the compiler cannot see stays a jump.
    """
    count = Int32(1) if condition else Int32(0)
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[count])


@cute.jit
def low_bits(count: Int32) -> Uint32:
    """A word whose lowest `count` bits are set: none for count <= 0, all for count >= 32."""
    # shl clamps its amount to 32 in PTX, and 0 - 1 is then all ones
    shifted = cute.arch.inline_ptx(
        "shl.b32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Uint32],
        read_only_args=[Uint32(1), Uint32(cutlass.max(count, 0))],
    )
    return shifted - Uint32(1)


@cute.jit
def load_partial(
    kind: cutlass.Constexpr,
    rows: MaskRows,
    mask: Mask,
    tiles: cutlass.Constexpr,
    slot: Int32,
    batch: Int32,
    head: Int32,
    band_offset: Int32,
    first_row: Int32,
    rows_left: Int32,
    first_key: Int32,
    first_column: Int32,
) -> None:
    """Words of one partial block, whatever the kind of mask; the ends of the sequence are not in them.

    tiles         (tile_m, tile_n) of the lists
    slot          of its packed bits
    first_row     of the accumulator tile in its sequence, a multiple of tile_m; rows_left: rows from there to the end
    first_key     of the accumulator tile in its sequence; first_column: of it in the block, a multiple of 32
    """
    if cutlass.const_expr(kind == "bits"):
        load_bits(rows, mask, slot, tiles[0], tiles[1], first_column)
    elif cutlass.const_expr(kind == "intervals"):
        load_intervals(rows, mask, batch, head, first_row, rows_left, first_key)
    elif cutlass.const_expr(kind == "band"):
        load_band(rows, mask, band_offset, first_row, first_key)
    else:
        fill_with(rows, Uint32(0xFFFFFFFF))
