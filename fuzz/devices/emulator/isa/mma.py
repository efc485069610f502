"""mma.sync m16n8k16 and m16n8k8 on the registers of a warp, sixteen accumulators to a vector.

The 32 lanes of a fragment register, read as memory, are eight rows of four lanes: a row of A or D, a column of B. A
vector is four such rows. A row of A has two neighbouring columns in each lane, a row of D every second column, a column
of B two neighbouring rows. So a term of the sums is a lane of A spread over its row, times a lane of each of four
columns of B in every row, and D and C are used as they lie in the registers.

Products are exact in f32; sums are f32 with one rounding per term, in the order of k (tensor cores add several terms at
once and truncate, see ci/emulator_vs_gpu.py for the measured distance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llvmlite import ir

from fuzz.devices.emulator.isa.vectors import (
    FLOAT,
    I16,
    I32,
    I64,
    Value,
    canonical,
    f16_to_f32,
    f32_to_f16,
    intrinsic,
    splat,
    vec,
)

# name: (type of A and B, type of C and D, k)
MATRIX = {
    f"mma.sync.aligned.m16n8k{k}.row.col.{c}.{a}.{a}.{c}": (a, c, k)
    for k in (8, 16)
    for a, c in (("bf16", "f32"), ("f16", "f32"), ("f16", "f16"))
}
FLOATS, WORDS = vec(FLOAT, 16), vec(I32, 16)  # four rows


def _at(b: ir.IRBuilder, register: Value, half: int, t: ir.VectorType) -> Value:
    """Pointer to rows 4 half … 4 half + 3 of the register at an address."""
    return b.inttoptr(b.add(register, ir.Constant(I64, 64 * half)), t.as_pointer())


def _part(b: ir.IRBuilder, words: Value, part: int, kind: str) -> Value:
    """The low (0) or high (1) 16 bits of each lane as floats."""
    if kind == "bf16":
        word = b.and_(words, splat(WORDS, 0xFFFF0000)) if part else b.shl(words, splat(WORDS, 16))
        return b.bitcast(word, FLOATS)
    return f16_to_f32(b, b.trunc(b.lshr(words, splat(WORDS, 16 * part)), vec(I16, 16)))


def _pick(b: ir.IRBuilder, x: Value, y: Value, lanes: Iterable[int]) -> Value:
    return b.shuffle_vector(x, y, ir.Constant(WORDS, [ir.Constant(I32, i) for i in lanes]))


def _accumulators(b: ir.IRBuilder, registers: list[Value], sums: str) -> dict[tuple[int, int, int], Value]:
    """C by block of eight rows, half of it, and columns: even ones (0) or odd ones (1)."""
    found = {}
    for block in range(2):
        for half in range(2):
            if sums == "f32":
                for odd in range(2):
                    found[block, half, odd] = b.load(_at(b, registers[2 * block + odd], half, FLOATS), align=64)
            else:
                pairs = b.load(_at(b, registers[block], half, WORDS), align=64)
                for odd in range(2):
                    found[block, half, odd] = _part(b, pairs, odd, "f16")
    return found


def write_mma(b: ir.IRBuilder, name: str, address: Callable[[int], Value]) -> None:
    """D = A B + C; operands in the order of the PTX instruction: D, A, B, C."""
    kind, sums, k = MATRIX[name]
    steps = k // 8
    n_d = 4 if sums == "f32" else 2
    d, c = ([address(first + i) for i in range(n_d)] for first in (0, n_d + 3 * steps))
    a = [address(n_d + i) for i in range(2 * steps)]
    total = _accumulators(b, c, sums)
    for step in range(steps):
        left = {
            (block, half): b.load(_at(b, a[2 * step + block], half, WORDS), align=64)
            for block in range(2) for half in range(2)
        }  # fmt: skip
        low, high = (b.load(_at(b, address(n_d + 2 * steps + step), half, WORDS), align=64) for half in range(2))
        # the even columns of B, and the odd ones
        right = [_pick(b, low, high, (4 * n + t for n in range(odd, 8, 2) for t in range(4))) for odd in range(2)]
        lefts = [{at: _part(b, words, part, kind) for at, words in left.items()} for part in range(2)]
        rights = [[_part(b, words, part, kind) for words in right] for part in range(2)]
        for term in range(8):
            lane, part = divmod(term, 2)
            columns = [_pick(b, x, x, (4 * n + lane for _ in range(4) for n in range(4))) for x in rights[part]]
            for (block, half), x in lefts[part].items():
                rows = _pick(b, x, x, (4 * row + lane for row in range(4) for _ in range(4)))
                for odd, column in enumerate(columns):
                    at = block, half, odd
                    total[at] = intrinsic(b, "fma", rows, column, total[at])
    # D may be the same registers as A or C: nothing is written before everything is read
    for block in range(2):
        for half in range(2):
            even, odd_ = (canonical(b, total[block, half, odd]) for odd in range(2))
            if sums == "f32":
                b.store(even, _at(b, d[2 * block], half, FLOATS), align=64)
                b.store(odd_, _at(b, d[2 * block + 1], half, FLOATS), align=64)
            else:
                pair = b.zext(f32_to_f16(b, even), WORDS)
                pair = b.or_(pair, b.shl(b.zext(f32_to_f16(b, odd_), WORDS), splat(WORDS, 16)))
                b.store(pair, _at(b, d[block], half, WORDS), align=64)
