"""Gates: O = Σ_b g_b · O_b with g = sigmoid(Q · W_gate[head, b]), each by itself; without W_gate exactly 1/3 each.

Kernels hold tiles of rows of one head, of one batch entry: (entries, length) rows follow one another in what the
branches write, (rows, heads, dim) contiguous; Q may have any strides between rows. A packed call has one entry. Gates
are not kept: backward computes them once more.
"""

import triton
import triton.language as tl

from kernels.nsa.rows import columns_inside, row_pointers, tile_of
from kernels.sdpa.strides import stride_names
from kernels.sdpa.tiles import narrow, wide_product, widen

_ROWS = ["rows", "length", "heads", "dim"]
_COMBINE = ["mQ", *stride_names("Q"), "mW", "mA", "mB", "mC", "mOut", *_ROWS]
_SPLIT = ["mQ", "mW", "mO", "mdO", *stride_names("Q", "dO"), "mOut", "mLogit", *_ROWS]
_SUM = ["mA", "mB", "mC", "mW", "mLogit", "mOut", *_ROWS]
_WEIGHT = ["mQ", *stride_names("Q"), "mLogit", "mOut", *_ROWS]


@triton.jit
def gate_row(branch: tl.constexpr):
    """The row of W_gate[head] that a branch has: 0 compressed, 1 selected, 2 window."""
    return branch


@triton.jit
def gate_of(rLogit):
    """sigmoid, which no other gate of the row changes."""
    return 1.0 / (1.0 + tl.exp(-rLogit))


@triton.jit
def add(rSum, rPart, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """A branch's part added to a gradient, in float32."""
    return rSum + rPart


@triton.jit
def logit_gradient(rGate, rGradient):
    """Gradient of a gate's logit from that of the gate."""
    return rGradient * rGate * (1.0 - rGate)


@triton.jit
def _tile(length, heads, dim, TILE: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """((batch entry, head, rows in it), which elements of the tile exist) of this program."""
    entry, tile, head = tile_of(tl.cdiv(length, TILE), heads)
    row = tile * TILE + tl.arange(0, TILE)
    inside = (row < length)[:, None] & columns_inside(dim, BLOCK_D, ALIGNED)
    return (entry, head, row), inside


@triton.jit
def _line(where, length):
    """Rows of all entries before each of the tile's."""
    entry, _, row = where
    return wide_product(entry, length) + row


@triton.jit
def _contiguous(mX, where, length, heads, dim, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to the tile's rows of a contiguous tensor."""
    offsets = wide_product(wide_product(_line(where, length), heads) + where[1], dim)
    return row_pointers(mX, offsets[:, None], BLOCK_D, ALIGNED)


@triton.jit
def _strided(mX, tX, where, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to the tile's rows of a tensor with strides (batch, row, head) between them."""
    entry, head, row = where
    offsets = wide_product(entry, tX[0]) + wide_product(head, tX[2]) + wide_product(row, tX[1])
    return row_pointers(mX, offsets[:, None], BLOCK_D, ALIGNED)


@triton.jit
def _load(mRows, inside):
    """Rows as float32, 0 where nothing is."""
    return widen(tl.load(mRows, mask=inside, other=0.0))


@triton.jit
def _weight(mW, head, dim, branch, gate_row: tl.constexpr, BLOCK_D: tl.constexpr):
    """W_gate[head, branch], float32 (1, BLOCK_D), of any alignment. Loaded as a vector, it does not decide the layout
    of the rows, as a tile of one row would."""
    d = tl.arange(0, BLOCK_D)
    rW = tl.load(mW + (head * 3 + gate_row(branch)) * dim + d, mask=d < dim, other=0.0)
    return widen(rW)[None, :]


@triton.jit(do_not_specialize=_COMBINE, do_not_specialize_on_alignment=_COMBINE)
def combine_kernel(
    mQ,
    tQ_0,
    tQ_1,
    tQ_2,
    mW,
    mA,
    mB,
    mC,
    mOut,
    rows,
    length,
    heads,
    dim,
    gate_row: tl.constexpr,
    gate_of: tl.constexpr,
    GATED: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut = Σ gate · branch, in float32, rounded once; A, B, C are the branches in their order."""
    tQ = (tQ_0, tQ_1, tQ_2)
    where, inside = _tile(length, heads, dim, TILE, BLOCK_D, ALIGNED)
    rA = _load(_contiguous(mA, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    rB = _load(_contiguous(mB, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    rC = _load(_contiguous(mC, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    if GATED:
        head = where[1]
        rQ = _load(_strided(mQ, tQ, where, BLOCK_D, ALIGNED), inside)
        rOut = gate_of(tl.sum(rQ * _weight(mW, head, dim, 0, gate_row, BLOCK_D), 1))[:, None] * rA
        rOut += gate_of(tl.sum(rQ * _weight(mW, head, dim, 1, gate_row, BLOCK_D), 1))[:, None] * rB
        rOut += gate_of(tl.sum(rQ * _weight(mW, head, dim, 2, gate_row, BLOCK_D), 1))[:, None] * rC
    else:
        rOut = (rA + rB + rC) / 3.0
    mTile = _contiguous(mOut, where, length, heads, dim, BLOCK_D, ALIGNED)
    tl.store(mTile, narrow(rOut, DTYPE, INTERPRETED), mask=inside)


@triton.jit(do_not_specialize=_SPLIT, do_not_specialize_on_alignment=_SPLIT)
def split_kernel(
    mQ,
    tQ_0,
    tQ_1,
    tQ_2,
    mW,
    mO,
    mdO,
    tdO_0,
    tdO_1,
    tdO_2,
    mOut,
    mLogit,
    rows,
    length,
    heads,
    dim,
    gate_row: tl.constexpr,
    gate_of: tl.constexpr,
    logit_gradient: tl.constexpr,
    BRANCH: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Of one branch, whose output is mO: mOut = gate · dO, its gradient; mLogit (heads, rows) the logit's."""
    tQ = (tQ_0, tQ_1, tQ_2)
    tdO = (tdO_0, tdO_1, tdO_2)
    where, inside = _tile(length, heads, dim, TILE, BLOCK_D, ALIGNED)
    _, head, row = where
    rO = _load(_contiguous(mO, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    rdO = _load(_strided(mdO, tdO, where, BLOCK_D, ALIGNED), inside)
    rQ = _load(_strided(mQ, tQ, where, BLOCK_D, ALIGNED), inside)
    rGate = gate_of(tl.sum(rQ * _weight(mW, head, dim, BRANCH, gate_row, BLOCK_D), 1))
    mTile = _contiguous(mOut, where, length, heads, dim, BLOCK_D, ALIGNED)
    tl.store(mTile, narrow(rGate[:, None] * rdO, DTYPE, INTERPRETED), mask=inside)
    rLogit = logit_gradient(rGate, tl.sum(rO * rdO, 1))
    tl.store(mLogit + wide_product(head, rows) + _line(where, length), rLogit, mask=row < length)


@triton.jit(do_not_specialize=[*_SUM, "factor"], do_not_specialize_on_alignment=_SUM)
def query_gradient_kernel(
    mA,
    mB,
    mC,
    mW,
    mLogit,
    mOut,
    rows,
    length,
    heads,
    dim,
    factor,
    gate_row: tl.constexpr,
    add: tl.constexpr,
    GATED: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut = factor · (A + B + C) + Σ_b dlogit_b · W_gate[head, b], in float32, rounded once."""
    where, inside = _tile(length, heads, dim, TILE, BLOCK_D, ALIGNED)
    _, head, row = where
    rSum = _load(_contiguous(mA, where, length, heads, dim, BLOCK_D, ALIGNED), inside) * factor
    rB = _load(_contiguous(mB, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    rSum = add(rSum, rB * factor, DTYPE, INTERPRETED)
    rC = _load(_contiguous(mC, where, length, heads, dim, BLOCK_D, ALIGNED), inside)
    rSum = add(rSum, rC * factor, DTYPE, INTERPRETED)
    if GATED:
        for branch in tl.static_range(3):
            rW = _weight(mW, head, dim, branch, gate_row, BLOCK_D)
            logits = mLogit + wide_product(branch * heads + head, rows) + _line(where, length)
            rLogit = tl.load(logits, mask=row < length, other=0.0)
            rSum = add(rSum, rLogit[:, None] * rW, DTYPE, INTERPRETED)
    mTile = _contiguous(mOut, where, length, heads, dim, BLOCK_D, ALIGNED)
    tl.store(mTile, narrow(rSum, DTYPE, INTERPRETED), mask=inside)


@triton.jit(do_not_specialize=[*_WEIGHT, "part"], do_not_specialize_on_alignment=_WEIGHT)
def gate_weight_kernel(
    mQ,
    tQ_0,
    tQ_1,
    tQ_2,
    mLogit,
    mOut,
    rows,
    length,
    heads,
    dim,
    part,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut (parts, heads, 3, dim) float32: Σ dlogit_b · Q over `part` rows, of each branch b."""
    tQ = (tQ_0, tQ_1, tQ_2)
    index = tl.program_id(0)
    head = index % heads
    number = index // heads
    d = tl.arange(0, BLOCK_D)
    last = tl.minimum((number + 1) * part, rows)
    rA = tl.zeros([BLOCK_D], tl.float32)
    rB = tl.zeros([BLOCK_D], tl.float32)
    rC = tl.zeros([BLOCK_D], tl.float32)
    for start in range(number * part, last, TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < last)[:, None] & (d < dim)[None, :]
        place = wide_product(row // length, tQ[0]) + wide_product(row % length, tQ[1]) + wide_product(head, tQ[2])
        rQ = widen(tl.load(mQ + place[:, None] + d[None, :], mask=inside, other=0.0))
        logits = mLogit + wide_product(head, rows) + row
        plane = wide_product(heads, rows)
        rA += tl.sum(rQ * tl.load(logits, mask=row < last, other=0.0)[:, None], 0)
        rB += tl.sum(rQ * tl.load(logits + plane, mask=row < last, other=0.0)[:, None], 0)
        rC += tl.sum(rQ * tl.load(logits + 2 * plane, mask=row < last, other=0.0)[:, None], 0)
    mPart = mOut + wide_product(number * heads + head, 3 * dim) + d
    tl.store(mPart, rA, mask=d < dim)
    tl.store(mPart + dim, rB, mask=d < dim)
    tl.store(mPart + 2 * dim, rC, mask=d < dim)
