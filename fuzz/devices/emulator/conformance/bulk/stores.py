"""Micro-kernels of cp.async.bulk.tensor from shared to global memory: each writes one box into its second input, and
shows that whole: what lies beside the box and outside the tensor must be as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.bulk.loads import BOX, INSIDE, RANKED, SIZES
from fuzz.devices.emulator.conformance.kernel import MapArgument, MicroKernel
from fuzz.devices.emulator.tensor_map import BF16, F16, S32, U32, TensorMap

GUARD = 256  # bytes before the tensor


@dataclass(frozen=True)
class Store:
    """One box from byte `start` of shared memory to the coordinates `at` of `map`; the image in shared memory and what
    the tensor's memory holds before, by default patterns; room: bytes of shared memory that the box has, by default as
    many as it takes."""

    map: TensorMap
    at: tuple[int, ...]
    start: int = 0
    image: np.ndarray | None = None
    before: np.ndarray | None = None
    room: int = 0


def store(mark: str, p: Store, instruction: str = t.STORE, after: str = t.DONE, before: str = "",
          hint: str = "") -> MicroKernel:  # fmt: skip
    """The kernel of one store. instruction, hint: its name and last operand; before, after: text around it."""
    rank, size = len(p.at), t.blocks(t.tensor_bytes(p.map) + GUARD)
    image = t.blocks(p.start + (p.room or t.box_bytes(p.map)))
    given = t.pattern(image) if p.image is None else p.image
    target = np.full(size // 4, 0xDDDDDDDD, np.uint32) if p.before is None else p.before
    name = instruction.format(rank=rank)
    body = f"""{t.bring(image)}{t.MAP} {before}
{t.FENCE}
@%first {name} [%m, {t.coordinates(p.at)}], [s+{p.start}]{hint};
{after}
{t.show_input(1, size)}"""
    form = f"{name} {t.named(p.map)} {mark}".strip()
    return t.copies(form, body, size, (given, target), image, (MapArgument(p.map, 1),))


def tensor(element: int, sizes: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...] = (), swizzle: int = 0,
           strides: tuple[int, ...] | None = None) -> TensorMap:  # fmt: skip
    return t.tensor(element, sizes, box, steps, swizzle, strides=strides, address=GUARD)


def _of_types() -> Iterator[MicroKernel]:
    """Every type, with every swizzle in turn, at a corner; then with numbers of every kind."""
    for element in range(len(t.NAMES)):
        width = tm.ELEMENT_BYTES[element]
        for swizzle in sorted({0, element % 3 + 1}):
            row = (t.SPANS[swizzle] if swizzle else 48) // width
            m = tensor(element, (row + row // 2 + 1, 12), (row, 8), swizzle=swizzle)
            yield store("corner", Store(m, (row - 1, 6)))
        if element >= F16:
            m = tensor(element, (64 // width, 16), (64 // width, 16))
            image = t.random_words(t.NAMES[element], t.box_bytes(m))
            yield store("any bits", Store(m, (0, 0), image=image))


def _at_edges() -> Iterator[MicroKernel]:
    """Boxes of 1 … 5 dimensions inside the tensor, and beyond either end of each dimension, partly and wholly."""
    for rank in range(1, 6):
        m = tensor(RANKED[rank - 1], SIZES[:rank], BOX[:rank])
        inside = INSIDE[:rank]
        yield store("inside", Store(m, inside))
        for d in range(rank):
            n, box = m.sizes[d], m.box[d]
            for mark, x in (("below", -1), ("past", n - box + 1), ("just below", -box), ("just past", n)):
                yield store(f"dimension {d} {mark}", Store(m, (*inside[:d], x, *inside[d + 1 :])))
        yield store("below all", Store(m, tuple(-(n // 2) for n in m.box)))
        yield store("past all", Store(m, tuple(n - b // 2 for n, b in zip(m.sizes, m.box, strict=True))))


def _layouts() -> Iterator[MicroKernel]:
    """Swizzles, starts that are no multiple of their pattern, rows shorter than their span; strides."""
    for swizzle in (1, 2, 3):
        row = t.SPANS[swizzle] // 2
        m = tensor(BF16, (row + 8, 18), (row, 16), swizzle=swizzle)
        for mark, at in (("inside", (0, 1)), ("left", (-3, 2)), ("right", (13, 0)), ("below", (0, -5))):
            yield store(mark, Store(m, at))
        for start in (128, 256, 512, 640):
            yield store(f"start {start}", Store(m, (0, 0), start))
        for short in range(16, t.SPANS[swizzle], 16):
            narrow = tensor(BF16, (row + 8, 18), (short // 2, 16), swizzle=swizzle)
            yield store(f"rows of {short} bytes", Store(narrow, (3, 1)))
    for stride in (48, 80, 112):
        yield store(f"stride {stride}", Store(tensor(U32, (12, 9), (8, 6), strides=(stride,)), (2, 1)))
    for steps, box in (((1, 2), (16, 8)), ((2, 1), (16, 4))):
        m = tensor(S32, (24, 20), box, steps)
        yield store("inside", Store(m, (4, 1)))


def _forms() -> Iterator[MicroKernel]:
    """Stores of one box by every way to write the instruction, and to wait for it."""
    p = Store(tensor(F16, (40, 12), (32, 8), swizzle=2), (16, 7))
    yield store("without tile", p, t.STORE.replace(".tile", ""))
    policy = "createpolicy.fractional.L2::evict_first.b64 %d1, 0.5;"
    yield store("cache hint", p, t.STORE + ".L2::cache_hint", before=policy, hint=", %d1")
    commit, wait, read = (f"@%first cp.async.bulk.{x};" for x in ("commit_group", "wait_group 0", "wait_group.read 0"))
    again = "@%first st.shared.b32 [s], 5;"
    yield store("source written after wait_group.read", p, after=f"{commit} {read} {again} {wait} bar.sync 0;")
    two = "@%first cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%m, {-16, -2}], [s];"
    yield store("two in a group", p, after=f"{two} {t.DONE}")
    yield store("two groups", p, after=f"{commit} {two} {t.DONE}")
    first = "@%first cp.async.bulk.wait_group 1;"
    yield store("two groups one after another", p, after=f"{commit} {two} {commit} {first} {wait} bar.sync 0;")
    yield store("empty groups", p, before=f"{commit} {wait} {commit} {commit} {first}")


def store_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _of_types()
    yield from _at_edges()
    yield from _layouts()
    yield from _forms()
