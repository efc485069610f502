"""Gates: O = Σ_b g_b · O_b with g = sigmoid(Q · W_gate[head, b]), each by itself; without W_gate exactly 1/3 each.

Kernels hold tiles of rows of one head. Rows of all sequences follow one another in what the branches write, (rows,
heads, dim) contiguous; Q may have any strides between rows. Gates are not kept: backward computes them once more.
"""

import triton
import triton.language as tl

from kernels.sdpa.tiles import narrow, wide_product, widen

_ROWS = ["rows", "length", "heads", "dim"]
_COMBINE = ["mQ", "tQ", "mW", "mA", "mB", "mC", "mOut", *_ROWS]
_SPLIT = ["mQ", "tQ", "mW", "mO", "mdO", "tdO", "mOut", "mLogit", *_ROWS]
_SUM = ["mA", "mB", "mC", "mW", "mLogit", "mOut", *_ROWS]
_WEIGHT = ["mQ", "tQ", "mLogit", "mOut", *_ROWS]


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
def _tile(rows, heads, dim, TILE: tl.constexpr, BLOCK_D: tl.constexpr):
    """(head, row, offsets in what is contiguous, which of them are inside) of this program."""
    index = tl.program_id(0)
    head = index % heads
    row = (index // heads) * TILE + tl.arange(0, TILE)
    d = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < rows)[:, None] & (d < dim)
    place = wide_product(wide_product(row, heads) + head, dim)[:, None] + d
    return head, row, place, inside


@triton.jit
def _strided(mX, tX, row, head, length, inside, BLOCK_D: tl.constexpr):
    """Rows of a head of a tensor with strides (batch, row, head) between them, as float32."""
    d = tl.arange(0, BLOCK_D)[None, :]
    place = wide_product(row // length, tX[0]) + wide_product(row % length, tX[1]) + wide_product(head, tX[2])
    return widen(tl.load(mX + place[:, None] + d, mask=inside, other=0.0))


@triton.jit
def _logit(rQ, mW, head, dim, branch: tl.constexpr, gate_row: tl.constexpr, BLOCK_D: tl.constexpr):
    """Q · W_gate[head, branch] of each row."""
    d = tl.arange(0, BLOCK_D)
    rW = widen(tl.load(mW + (head * 3 + gate_row(branch)) * dim + d, mask=d < dim, other=0.0))
    return tl.sum(rQ * rW[None, :], 1)


@triton.jit(do_not_specialize=_COMBINE, do_not_specialize_on_alignment=_COMBINE)
def combine_kernel(
    mQ,
    tQ,
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
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut = Σ gate · branch, in float32, rounded once; A, B, C are the branches in their order."""
    head, row, place, inside = _tile(rows, heads, dim, TILE, BLOCK_D)
    rA = widen(tl.load(mA + place, mask=inside, other=0.0))
    rB = widen(tl.load(mB + place, mask=inside, other=0.0))
    rC = widen(tl.load(mC + place, mask=inside, other=0.0))
    if GATED:
        rQ = _strided(mQ, tQ, row, head, length, inside, BLOCK_D)
        rOut = gate_of(_logit(rQ, mW, head, dim, 0, gate_row, BLOCK_D))[:, None] * rA
        rOut += gate_of(_logit(rQ, mW, head, dim, 1, gate_row, BLOCK_D))[:, None] * rB
        rOut += gate_of(_logit(rQ, mW, head, dim, 2, gate_row, BLOCK_D))[:, None] * rC
    else:
        rOut = (rA + rB + rC) / 3.0
    tl.store(mOut + place, narrow(rOut, DTYPE, INTERPRETED), mask=inside)


@triton.jit(do_not_specialize=_SPLIT, do_not_specialize_on_alignment=_SPLIT)
def split_kernel(
    mQ,
    tQ,
    mW,
    mO,
    mdO,
    tdO,
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
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Of one branch, whose output is mO: mOut = gate · dO, its gradient; mLogit (heads, rows) the logit's."""
    head, row, place, inside = _tile(rows, heads, dim, TILE, BLOCK_D)
    rO = widen(tl.load(mO + place, mask=inside, other=0.0))
    rdO = _strided(mdO, tdO, row, head, length, inside, BLOCK_D)
    rQ = _strided(mQ, tQ, row, head, length, inside, BLOCK_D)
    rGate = gate_of(_logit(rQ, mW, head, dim, BRANCH, gate_row, BLOCK_D))
    tl.store(mOut + place, narrow(rGate[:, None] * rdO, DTYPE, INTERPRETED), mask=inside)
    rLogit = logit_gradient(rGate, tl.sum(rO * rdO, 1))
    tl.store(mLogit + wide_product(head, rows) + row, rLogit, mask=row < rows)


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
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut = factor · (A + B + C) + Σ_b dlogit_b · W_gate[head, b], in float32, rounded once."""
    head, row, place, inside = _tile(rows, heads, dim, TILE, BLOCK_D)
    rSum = widen(tl.load(mA + place, mask=inside, other=0.0)) * factor
    rSum = add(rSum, widen(tl.load(mB + place, mask=inside, other=0.0)) * factor, DTYPE, INTERPRETED)
    rSum = add(rSum, widen(tl.load(mC + place, mask=inside, other=0.0)) * factor, DTYPE, INTERPRETED)
    if GATED:
        d = tl.arange(0, BLOCK_D)
        for branch in tl.static_range(3):
            rW = widen(tl.load(mW + (head * 3 + gate_row(branch)) * dim + d, mask=d < dim, other=0.0))
            logits = mLogit + wide_product(branch * heads + head, rows) + row
            rLogit = tl.load(logits, mask=row < rows, other=0.0)
            rSum = add(rSum, rLogit[:, None] * rW[None, :], DTYPE, INTERPRETED)
    tl.store(mOut + place, narrow(rSum, DTYPE, INTERPRETED), mask=inside)


@triton.jit(do_not_specialize=[*_WEIGHT, "part"], do_not_specialize_on_alignment=_WEIGHT)
def gate_weight_kernel(
    mQ,
    tQ,
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
        rQ = _strided(mQ, tQ, row, head, length, inside, BLOCK_D)
        logits = mLogit + wide_product(head, rows) + row
        plane = wide_product(heads, rows)
        rA += tl.sum(rQ * tl.load(logits, mask=row < last, other=0.0)[:, None], 0)
        rB += tl.sum(rQ * tl.load(logits + plane, mask=row < last, other=0.0)[:, None], 0)
        rC += tl.sum(rQ * tl.load(logits + 2 * plane, mask=row < last, other=0.0)[:, None], 0)
    mPart = mOut + wide_product(number * heads + head, 3 * dim) + d
    tl.store(mPart, rA, mask=d < dim)
    tl.store(mPart + dim, rB, mask=d < dim)
    tl.store(mPart + 2 * dim, rC, mask=d < dim)
