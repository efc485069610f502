"""The loops of the oracles over elements, compiled by numba: one pass over memory for many of PyTorch's.

A case is small, and its oracles are some hundreds of PyTorch operations on tensors of a few thousand elements, each of
which costs its dispatch and goes through memory once. These loops do the same arithmetic in the same order, but for
sums, which are kept in fp64 here. The definitions are the PyTorch expressions beside which each loop is called: they
serve a GPU, and tests/oracles/reference/test_numba_loops.py compares the two. numba keeps the compiled code on disk;
where there is none yet, importing this module takes some seconds, so it is imported where it is needed only.

An array that a case has no use for is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit as _njit

from oracles.reference.compiled_code import CheckedCode, folder_of

_LARGEST = np.float32(np.finfo(np.float32).max)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_SIZE, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_DEEPEST = np.float32(-100.0)
_FARTHEST = np.float32(1e15)
_LEAST_SQUARES = np.float32(1e-30)
_LEAST_FOURTHS = np.float32(1e-37)
_LEAST_MEAN = 1e-30
_UNIT2 = np.float32(2.0**-48)  # 1 / BASE of oracles/error_budget/rounding_units.py, squared

_PAIRS, _ROWS = "float32[:, :, ::1]", "float32[:, ::1]"  # (sequences * heads, rows, len_k) and without the last axis


def njit(*arguments: str, returns: str = "void") -> Any:
    """Compiled for one signature, kept on disk where there is a folder for it; a division by zero is what it is in
    PyTorch, sums have any order."""
    options: Any = {"cache": _FOLDER is not None, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc"}}
    return _njit(f"{returns}({', '.join(arguments)})", **options)


_FOLDER = folder_of(njit)
_CODE = CheckedCode(_FOLDER, "numba_loops.*.nb?") if _FOLDER is not None else None


@njit("uint64", "int64[::1]")
def random_bits(start: Any, out: Any) -> None:
    """`random_bits` of fuzz/tensors/values.py, counted from `start`."""
    s29, s31, s32 = np.uint64(29), np.uint64(31), np.uint64(32)
    f1, f2, f3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    for i in range(len(out)):
        x = start + np.uint64(i)
        x = (x ^ (x >> s31)) * f1
        x = (x ^ (x >> s29)) * f2
        x = (x ^ (x >> s32)) * f3
        out[i] = np.int64(x ^ (x >> s32))


@njit("int64[::1]", "float32[::1]")
def threes(x: Any, out: Any) -> None:
    """-1, 0, 1: x % 3 - 1. The divisor is a constant, as to divide by a variable takes many times as long."""
    for i in range(len(x)):
        out[i] = np.float32(x[i] % 3 - 1)


@njit("int64[::1]", "float32[::1]")
def fives(x: Any, out: Any) -> None:
    """-2 to 2: x % 5 - 2."""
    for i in range(len(x)):
        out[i] = np.float32(x[i] % 5 - 2)


@njit("boolean[:, ::1]", "int64[::1]", "boolean", "int64[::1]", "int64[::1]")
def blocks(kept: Any, pick: Any, largest: Any, centre: Any, level: Any) -> None:
    """`_block` of fuzz/tensors/coded_values.py: fills centre and level, (rows,); kept (rows, keys)."""
    rows, keys = kept.shape
    count, bits = np.zeros(max(keys, 1), np.int64), 1
    while 1 << bits < keys:
        bits += 1
    for r in range(rows):
        for k in range(keys):
            count[k] = 1 if kept[r, k] else 0
        centre[r], level[r], left = 0, 0, keys
        for at in range(bits + 1):
            good = 0
            for block in range(left):
                good += 1 if count[block] > 0 and count[block] & (count[block] - 1) == 0 else 0
            if good > 0 and (largest or at == 0 or (pick[r] >> at) % 3 > 0):
                nth, block = pick[r] % good, 0
                while not (count[block] > 0 and count[block] & (count[block] - 1) == 0 and nth == 0):
                    nth -= 1 if count[block] > 0 and count[block] & (count[block] - 1) == 0 else 0
                    block += 1
                centre[r], level[r] = block << at, at
            for block in range((left + 1) // 2):
                count[block] = count[2 * block] + (count[2 * block + 1] if 2 * block + 1 < left else 0)
            left = (left + 1) // 2


@njit("uint64[::1]", "int64[::1]", "float32", "float32[::1]")
def normals(starts: Any, counts: Any, unit: Any, out: Any) -> None:
    """`normal` of fuzz/tensors/values.py for several streams, one after the other: `counts` numbers from each of
    `starts`."""
    at, low = 0, np.uint64(0xFFFF)
    s16, s29, s31, s32, s48 = np.uint64(16), np.uint64(29), np.uint64(31), np.uint64(32), np.uint64(48)
    f1, f2, f3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    for stream in range(len(starts)):
        for i in range(counts[stream]):
            x = starts[stream] + np.uint64(i)
            x = (x ^ (x >> s31)) * f1
            x = (x ^ (x >> s29)) * f2
            x = (x ^ (x >> s32)) * f3
            x = x ^ (x >> s32)
            total = (x & low) + ((x >> s16) & low) + ((x >> s32) & low) + (x >> s48)
            out[at] = np.float32(np.int64(total) - 131070) * unit
            at += 1


@njit("float32[::1]", returns="float32")
def largest(x: Any) -> Any:
    """The largest finite |x|, 0 where there is none."""
    bits, most = x.view(np.int32), np.int32(0)
    for i in range(len(bits)):  # of fp32 without its sign, integers have the same order
        size = bits[i] & _SIZE
        size = size if size < _INFINITY else np.int32(0)
        most = size if size > most else most
    found = np.empty(1, np.int32)
    found[0] = most
    return found.view(np.float32)[0]


@njit("float32", "float32", returns="float32")
def share(value2: Any, squares: Any) -> Any:
    """`share` of oracles/error_budget/rounding_units.py; `squares` times the number of terms. NaN stays NaN."""
    x = value2 / (_LEAST_SQUARES if squares < _LEAST_SQUARES else squares)
    x = _ONE if x > _ONE else x
    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    return x8 * x8


@njit("float32[::1]", "float32[::1]", "float32[::1]", "float32[::1]")
def equal_terms(value2: Any, squares: Any, fourths: Any, out: Any) -> None:
    """`equal_terms` of oracles/error_budget/rounding_units.py. NaN stays NaN."""
    for i in range(len(out)):
        square, fourth = squares[i], fourths[i]
        count = value2[i] / (_LEAST_SQUARES if square < _LEAST_SQUARES else square)
        sized = square * square / (_LEAST_FOURTHS if fourth < _LEAST_FOURTHS else fourth)
        small = count if count < sized or count != count else sized
        large = count if count > sized or count != count else sized
        x = small / (_LEAST_SQUARES if large < _LEAST_SQUARES else large)
        x2 = x * x
        x4 = x2 * x2
        x8 = x4 * x4
        out[i] = count * (x8 * x8)


@njit(
    *[_PAIRS] * 3, _ROWS, "boolean[:, :, :, ::1]", *[_PAIRS] * 2, *[_ROWS] * 2, *["int64"] * 2, *["float32"] * 9,
    *[_PAIRS] * 5, _ROWS,
)  # fmt: skip
def scores(
    raw: Any, p: Any, below: Any, top: Any, keep: Any, chain: Any, squares: Any, q2: Any, k2: Any, heads: Any,
    group: Any, times: Any, summed: Any, terms: Any, alike: Any, bent: Any, shifted: Any, exp: Any, least: Any,
    step: Any, p2: Any, rel2: Any, wide: Any, rounded: Any, alike2: Any, total: Any,
) -> None:  # fmt: skip
    """`Scores` of oracles/error_budget/pair_variance.py: fills p2, rel2, wide, rounded, alike2 and total."""
    fine, bending, stepping, masked = len(squares) > 0, len(chain) > 0, len(rounded) > 0, len(keep) > 0
    count, rows, keys = raw.shape
    for n in range(count):
        s, h = n // heads, n % heads
        kv = n // group
        ks, kh = (s if keep.shape[0] > 1 else 0), (h if keep.shape[1] > 1 else 0)
        for r in range(rows):
            shift = min(max(top[n, r], -_FARTHEST), _FARTHEST)
            shift2, sum_ = shift * shift, 0.0
            for k in range(keys):
                own = p[n, r, k]
                own = least if own < least else own
                own = own * own
                if masked and not keep[ks, kh, r, k]:
                    own = _ZERO
                raw2 = raw[n, r, k] * raw[n, r, k]
                square = squares[n, r, k] * times if fine else q2[n, r] * k2[kv, k] * times
                found = (raw2 + square) * summed
                if fine:
                    equal = raw2 * share(raw2, terms * square) * alike
                    alike2[n, r, k] = equal
                    found += equal
                if bending:
                    found = found * (chain[n, r, k] * chain[n, r, k]) + bent
                under = below[n, r, k]
                under = _DEEPEST if under < _DEEPEST else under
                found = found + (under * under + shift2) * shifted + exp
                p2[n, r, k], rel2[n, r, k], wide[n, r, k] = own, found, own * found
                sum_ += np.float64(own * found)
                if stepping:
                    rounded[n, r, k] = own + (step if own > _ZERO else _ZERO)
            total[n, r] = np.float32(sum_)


@njit(
    *[_PAIRS] * 9, *[_ROWS] * 6, "int64", *["float32"] * 12, *[_PAIRS] * 7,
)  # fmt: skip
def gradients(
    p: Any, p2: Any, rel2: Any, rounded: Any, alike2: Any, chain: Any, ds: Any, dp: Any, squares: Any, delta: Any,
    delta2: Any, lse2: Any, alike_sum: Any, do2: Any, v2: Any, group: Any, times: Any, both: Any, summed: Any,
    terms: Any, alike: Any, weights: Any, slope: Any, seen: Any, into_q: Any, into_k: Any, into_v: Any, into_bias: Any,
    to_q: Any, to_k: Any, to_v: Any, p2_chain: Any, pulled: Any, together: Any, to_bias: Any,
) -> None:  # fmt: skip
    """`Gradients` of oracles/error_budget/pair_variance.py: fills to_q, to_k, to_v and, where they are not empty, the
    rest."""
    both2 = slope * _UNIT2
    fine, bending, weighing, biased = len(alike2) > 0, len(chain) > 0, weights > _ZERO, len(to_bias) > 0
    count, rows, keys = p.shape
    for n in range(count):
        kv = n // group
        for r in range(rows):
            for k in range(keys):
                own_p2, relative, d = p2[n, r, k], rel2[n, r, k], dp[n, r, k] / both
                ds2, dp2 = ds[n, r, k] / both, d * d
                ds2 = ds2 * ds2
                square = squares[n, r, k] * times if fine else do2[n, r] * v2[kv, k] * times
                of_dp2 = (dp2 + square) * summed
                if fine:
                    of_dp2 += dp2 * share(dp2, terms * square) * alike
                own = ds2 * (relative + lse2[n, r]) + own_p2 * of_dp2
                if weighing:
                    apart = (dp[n, r, k] - delta[n, r]) / both
                    own += rounded[n, r, k] * weights * (apart * apart)
                own_raw, draw2, kept2 = own, ds2, own_p2
                if bending:
                    c = chain[n, r, k]
                    c2 = c * c
                    own_raw, draw2, kept2 = own * (c2 + both2) + ds2 * slope, ds2 * c2, own_p2 * c2
                    p2_chain[n, r, k], pulled[n, r, k] = kept2, p[n, r, k] * c
                least = seen if own_p2 > _ZERO else _ZERO
                to_q[n, r, k] = own_raw + draw2 * into_q + least
                to_k[n, r, k] = own_raw + draw2 * into_k + least + kept2 * delta2[n, r]
                to_v[n, r, k] = rounded[n, r, k] * into_v + own_p2 * (relative + lse2[n, r])
                if fine:
                    together[n, r, k] = p[n, r, k] * np.sqrt(alike2[n, r, k] + alike_sum[n, r])
                if biased:
                    to_bias[n, r, k] = own + ds2 * into_bias + least


@njit("float32[::1]", "float32[::1]", "float32", "float32", "float32", "boolean", "float32[::1]")
def noise(variance: Any, run: Any, unit: Any, last: Any, least: Any, lse: Any, out: Any) -> None:
    """One tensor of `_noise` of oracles/error_budget/same_precision.py: its variance is in units of `unit`, squared; a
    result of 1 is rounded with a standard deviation of `last`, one that is not 0 by `least` at least."""
    for i in range(len(run)):
        value = variance[i]
        own = np.sqrt(_ZERO if value < _ZERO else value) * unit
        rounding = abs(run[i]) * last
        whole = np.float32(np.sqrt(np.float64(own) * np.float64(own) + np.float64(rounding) * np.float64(rounding)))
        if lse:
            out[i] = whole if rounding <= _LARGEST else _ZERO
        else:
            out[i] = whole if rounding == _ZERO else whole + least


@njit("float64[::1]", "float32[:, ::1]", "int64", "float32[::1]", "boolean", "boolean", "float32[::1]")
def _sigma_of_numbers(want: Any, runs: Any, first: Any, noise: Any, exactly: Any, lse: Any, out: Any) -> None:
    """`sigma` of rows of one number."""
    for i in range(len(want)):
        worst, right = _ZERO, want[i] if exactly else np.float64(np.float32(want[i]))
        for run in range(len(runs)):
            own = np.float64(runs[run, first + i]) - right
            own2 = np.float32(own * own)
            own2 = np.float32(np.inf) if np.isnan(own2) else own2
            worst = own2 if own2 > worst else worst
        worst = np.sqrt(_ZERO if lse and want[i] == np.float64(runs[0, first + i]) else worst)
        out[i] = worst if noise[i] < worst else noise[i]  # NaN stays


@njit(
    "float64[::1]", "float32[:, ::1]", "int64", "float32[::1]", "int64", "boolean", "boolean", "float32", "float32[::1]"
)
def sigma(
    want: Any, runs: Any, first: Any, noise: Any, dim: Any, exactly: Any, lse: Any, here: Any, out: Any
) -> None:  # fmt: skip
    """`_sigma` of oracles/error_budget/budget.py: want (elements,), runs (RUNS, more) from `first` on, in rows of
    `dim`.

    exactly  whether a run is compared with `want` itself, and not with its fp32
    here     how much of its own error an element may make: 1 / HERE
    """
    if dim == 1:
        _sigma_of_numbers(want, runs, first, noise, exactly, lse, out)
        return
    for row in range(len(want) // dim):
        start = row * dim
        right, least, found = want[start : start + dim], noise[start : start + dim], out[start : start + dim]
        found[:] = -1.0  # of the worst run at that place, squared; NaN where a run is
        worst = _ZERO  # mean square over the row, of the worst run
        for run in range(len(runs)):
            given, total = runs[run, first + start : first + start + dim], 0.0
            if exactly:
                for i in range(dim):
                    own = np.float64(given[i]) - right[i]
                    total += own * own
                    found[i] = found[i] if own * own <= found[i] else np.float32(own * own)
            else:
                for i in range(dim):
                    own = np.float64(given[i]) - np.float64(np.float32(right[i]))
                    total += own * own
                    found[i] = found[i] if own * own <= found[i] else np.float32(own * own)
            mean = np.float32(total / dim)
            mean = np.float32(np.inf) if np.isnan(mean) else mean
            worst = mean if mean > worst else worst
        worst = np.sqrt(worst)
        for i in range(dim):
            one, most = np.sqrt(found[i]) * here, worst if least[i] < worst else least[i]  # NaN stays
            found[i] = one if one > most or most != most else most


@njit("float64", returns="float64")
def _limit(rows: Any) -> Any:
    """`limit` of oracles/accuracy.py."""
    return 2.0 + 4.0 * rows**-0.5


@njit(
    "float32[::1]", "float32[::1]", "float64[::1]", "float32[::1]", "float32[::1]", "boolean[::1]", *["int64"] * 4,
    "float64[:, ::1]", *["float64"] * 3, "float64[::1]", returns="int64",
)  # fmt: skip
def worst(
    got: Any, low: Any, want: Any, sigma: Any, checked: Any, reaches: Any, heads: Any, rows: Any, dim: Any, tile: Any,
    there: Any, element: Any, normal: Any, huge: Any, ratios: Any,
) -> Any:  # fmt: skip
    """`_Rows.worst` of oracles/accuracy.py of one tensor (heads of all sequences, rows, dim): fills the ratios by
    element, row, tile and tensor; the flat index of the row of the worst element.

    there  1 for the rows that are judged, else 0, (sequences or 1, rows); empty: all are
    """
    count = len(got) // max(rows * dim, 1)
    means, sums, row_z = np.zeros((count, rows)), np.zeros(dim), np.zeros(dim, np.float32)
    most, at, over, alike, total = -1.0, 0, 0.0, 0.0, 0.0
    has_checked, reaching = len(checked) > 0, len(reaches) > 0
    for n in range(count):
        sums[:] = 0.0
        for r in range(rows):
            start = (n * rows + r) * dim
            value, right, unit = got[start : start + dim], want[start : start + dim], sigma[start : start + dim]
            near = low[start : start + dim]
            for i in range(dim):
                z = np.float32(np.float64(value[i]) - right[i]) / unit[i]
                row_z[i] = _ZERO if value[i] == near[i] else z
            if has_checked:
                for i in range(dim):
                    row_z[i] = _ZERO if checked[start + i] == _ZERO else row_z[i]
            if reaching:
                for i in range(dim):
                    if reaches[start + i] and np.isinf(value[i]) and (value[i] > _ZERO) == (right[i] > 0):
                        row_z[i] = _ZERO
            sizes, sum2, largest2 = 0.0, 0.0, 0.0
            for i in range(dim):
                z2 = np.float64(row_z[i] * row_z[i])
                z2 = z2 if z2 <= huge else huge
                sizes += abs(np.float64(row_z[i]))
                sum2 += z2
                sums[i] += np.float64(row_z[i])
                largest2 = z2 if z2 > largest2 else largest2
            if largest2 > most:
                most, at = largest2, n * rows + r
            mean, size_z = sum2 / dim, sizes / dim
            means[n, r] = mean
            total += mean
            together = (size_z * size_z / max(mean, _LEAST_MEAN) - normal) / (1.0 - normal)
            together = max(together if together < 1.0 else 1.0, 0.0)
            row = np.sqrt(mean) / (_limit(1.0) + (element - _limit(1.0)) * together)
            over = max(over, row)
        for i in range(dim):
            alike += sums[i] * sums[i]
    equal = alike / rows / max(total * dim, _LEAST_MEAN)
    equal = 0.0 if np.isnan(equal) else min(equal, 1.0)
    ratios[0], ratios[1], ratios[2] = np.sqrt(max(most, 0.0)) / element, over, 0.0
    judged = 0.0
    for n in range(count):
        for first in range(0, rows, tile):
            sum2, size = 0.0, 0.0
            for r in range(first, min(first + tile, rows)):
                sum2 += means[n, r]
                size += 1.0 if len(there) == 0 else there[n // heads if len(there) > 1 else 0, r]
            judged += size
            size = max(size, 1.0)
            ratios[2] = max(ratios[2], np.sqrt(sum2 / size) / _limit(size ** (1.0 - equal)))
    judged = max(judged, 1.0)
    ratios[3] = np.sqrt(total / judged) / _limit(judged ** (1.0 - equal))
    return at


if _CODE is not None:
    _CODE.seal()
