"""Micro-kernels of cp.reduce.async.bulk, with tensor maps and without: every operation on every type that PTX allows,
on usual numbers and on special ones. Each shows what its second input has become."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.bulk.stores import GUARD, Store, store, tensor
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.tensor_map import BF16, F16, F32, F64, S32, S64, U32, U64

TENSOR = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.%s.tile.bulk_group"
PLAIN = "cp.reduce.async.bulk.global.shared::cta.bulk_group.%s"
INTEGERS, BITS, FLOATS = (U32, S32, U64, S64), (U32, S32, U64), (F16, BF16, F32, F64)
# operation → element types of tensors that it combines
TYPES = {
    "add": (U32, S32, U64, *FLOATS), "min": (*INTEGERS, F16, BF16), "max": (*INTEGERS, F16, BF16), "inc": (U32,),
    "dec": (U32,), "and": BITS, "or": BITS, "xor": BITS,
}  # fmt: skip
SIZE = 1024  # bytes that each combines


def usual(element: int, seed: str) -> np.ndarray:
    """SIZE bytes of numbers of which many are equal, of either sign, at the ends of the type's range."""
    rng, n = np.random.default_rng([*seed.encode(), element]), SIZE // tm.ELEMENT_BYTES[element]
    if element in FLOATS:
        return words(element, np.round(rng.standard_normal(n) * 8, 2 if element == F64 else 1))
    x = rng.integers(0, 1 << 63, n, dtype=np.uint64) * 2 + rng.integers(0, 2, n, dtype=np.uint64)
    few = rng.choice(np.array([0, 1, 2, -1, -2, 1 << 31, (1 << 31) - 1, -(1 << 63), (1 << 63) - 1], np.int64), n)
    x = np.where(rng.random(n) < 0.4, few.view(np.uint64), x)
    return (x if tm.ELEMENT_BYTES[element] == 8 else x.astype(np.uint32)).view(np.uint32)


def words(element: int, x: np.ndarray) -> np.ndarray:
    """Numbers as words of an element type; those of bf16 are cut off."""
    if element == BF16:
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    return x.astype({F16: np.float16, F32: np.float32, F64: np.float64}[element]).view(np.uint32)


def special(element: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of sixteen numbers: zeros, 1.5, infinities, NaN, the largest, the least normal and subnormal ones."""
    digits, low, high = {F16: (10, -14, 15), BF16: (7, -126, 127), F32: (23, -126, 127), F64: (52, -1022, 1023)}[
        element
    ]
    ends = (2.0**low, 2.0 ** (low - 1), 2.0 ** (low - digits), (2 - 2.0**-digits) * 2.0**high)
    x = np.array([sign * v for v in (0.0, 1.5, np.inf, np.nan, *ends) for sign in (1.0, -1.0)])
    return words(element, np.repeat(x, 16)), words(element, np.tile(x, 16))


def with_guards(before: np.ndarray) -> np.ndarray:
    guard = np.full(GUARD // 4, 0xDDDDDDDD, np.uint32)
    whole = np.concatenate([guard, before, guard])
    return np.concatenate([whole, np.full(t.blocks(whole.nbytes) // 4 - len(whole), 0xDDDDDDDD, np.uint32)])


def reduce_tensor(operation: str, element: int, mark: str, image: np.ndarray, before: np.ndarray) -> MicroKernel:
    """A tensor of rows of 64 bytes, all of it combined with the image."""
    row = 64 // tm.ELEMENT_BYTES[element]
    m = tensor(element, (row, image.nbytes // 64), (row, image.nbytes // 64))
    return store(mark, Store(m, (0, 0), image=image, before=with_guards(before)), TENSOR % operation)


def reduce_plain(operation: str, kind: str, mark: str, image: np.ndarray, before: np.ndarray) -> MicroKernel:
    """As many bytes at GUARD in the second input, without a tensor map."""
    given, target, size = image, with_guards(before), image.nbytes
    if size % t.BLOCK:
        given = np.concatenate([image, np.zeros((t.blocks(size) - size) // 4, np.uint32)])
    name = PLAIN % f"{operation}.{kind}"
    body = f"""{t.bring(given.nbytes)}add.s64 %b, %in1, {GUARD};
{t.FENCE}
@%first {name} [%b], [s], {size};
{t.DONE}
{t.show_input(1, target.nbytes)}"""
    return t.copies(f"{name} {mark}".strip(), body, target.nbytes, (given, target), given.nbytes)


def _of_tensors() -> Iterator[MicroKernel]:
    for operation, elements in TYPES.items():
        for element in elements:
            yield reduce_tensor(operation, element, "", usual(element, operation), usual(element, "before"))
            if element in FLOATS:
                yield reduce_tensor(operation, element, "special", *special(element))
    for operation in ("and", "or", "xor"):  # of elements that they do not combine
        yield reduce_tensor(operation, S64, "", usual(S64, operation), usual(S64, "before"))
    for swizzle in (1, 2, 3):
        row = t.SPANS[swizzle] // 4
        m = tensor(U32, (row + 4, 18), (row, 16), swizzle=swizzle)
        before = t.random_words("clipped", t.tensor_bytes(m) + GUARD)
        for mark, at in (("left", (-3, 2)), ("right", (7, 0)), ("past all", (6, 11)), ("below", (0, -5))):
            yield store(mark, Store(m, at, before=before), TENSOR % "add")
    m = tensor(F16, (11, 6, 3), (8, 4, 2))
    before = with_guards(usual(F16, "before"))
    yield store("left", Store(m, (-3, 3, 2), image=usual(F16, "image"), before=before), TENSOR % "add")


def _of_plain_bytes() -> Iterator[MicroKernel]:
    for operation, elements in TYPES.items():
        bits = operation in ("and", "or", "xor")
        for element in (U32, U64) if bits else elements:
            kind = t.NAMES[element].replace("u", "b") if bits else t.NAMES[element]
            kind = f"noftz.{kind}" if operation == "add" and element in (F16, BF16) else kind
            yield reduce_plain(operation, kind, "", usual(element, operation), usual(element, "before"))
            if element in FLOATS:
                yield reduce_plain(operation, kind, "special", *special(element))
    for size in (16, 48, 272):
        image, before = (usual(U32, x)[: size // 4] for x in ("image", "before"))
        yield reduce_plain("add", "u32", f"{size} bytes", image, before)


def reduction_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _of_tensors()
    yield from _of_plain_bytes()
