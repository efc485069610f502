"""Micro-kernels of cp.async.bulk.tensor from global to shared memory: each brings one box and shows shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.kernel import MapArgument, MicroKernel
from fuzz.devices.emulator.tensor_map import BF16, F16, F32, F64, FILL_NAN, S32, U8, U32, TensorMap

RANKED = (F32, F16, U8, BF16, S32)  # the type of the tensors of 1 … 5 dimensions
SIZES, BOX, INSIDE = (24, 7, 5, 4, 3), (16, 4, 3, 2, 2), (4, 2, 1, 1, 0)


@dataclass(frozen=True)
class Load:
    """One box of `map` at the coordinates `at` to byte `start` of shared memory; data: the tensor's memory, by default
    t.pattern; room: bytes of shared memory that the box has, by default as many as it brings."""

    map: TensorMap
    at: tuple[int, ...]
    start: int = 0
    data: np.ndarray | None = None
    room: int = 0

    @property
    def image(self) -> int:
        return t.blocks(self.start + (self.room or t.box_bytes(self.map)) + 128)

    @property
    def memory(self) -> np.ndarray:
        return t.pattern(t.tensor_bytes(self.map)) if self.data is None else self.data


def load(mark: str, p: Load, instruction: str = "", before: str = "", version: str = "8.0",
         hint: str = "") -> MicroKernel:  # fmt: skip
    """The kernel of one load. instruction, hint: its name and last operand; before: text before it."""
    rank, image = len(p.at), p.image
    name = (instruction or t.LOAD).format(rank=rank)
    issue = f"@%first {name} [s+{p.start}], [%m, {t.coordinates(p.at)}], [s+{image}]{hint};"
    body = f"""{t.fill(image)}{t.begin_barrier(image)}{t.MAP} {before}
{t.FENCE}
{t.expect(image, t.box_bytes(p.map))}{issue}
{t.wait(image)}{t.show_image(image)}{t.show_phase(image, image)}"""
    form = f"{name} {t.named(p.map)} {mark}".strip()
    return t.copies(form, body, image + t.BLOCK, (p.memory,), image + 16, (MapArgument(p.map),), version)


def _of_types() -> Iterator[MicroKernel]:
    """Every type with every swizzle; the last rows lie past the end. Then with numbers of every kind."""
    for element in range(len(t.NAMES)):
        width = tm.ELEMENT_BYTES[element]
        for swizzle in range(4):
            row = (t.SPANS[swizzle] if swizzle else 48) // width
            m = t.tensor(element, (3 * row, 20), (row, 12), swizzle=swizzle)
            yield load("rows past the end", Load(m, (row // 2, 11)))
        if element >= F16:
            m = t.tensor(element, (64 // width, 16), (64 // width, 16))
            data = t.random_words(t.NAMES[element], t.tensor_bytes(m))
            yield load("any bits", Load(m, (0, 0), data=data))


def _at_edges() -> Iterator[MicroKernel]:
    """Boxes of 1 … 5 dimensions inside the tensor; beyond either end of each dimension, partly and wholly; beyond all
    of them at once, filled with zero and with NaN."""
    for rank in range(1, 6):
        element = RANKED[rank - 1]
        m = t.tensor(element, SIZES[:rank], BOX[:rank])
        inside = INSIDE[:rank]
        yield load("inside", Load(m, inside))
        for d in range(rank):
            n, box = m.sizes[d], m.box[d]
            for mark, x in (("below", -1), ("past", n - box + 1), ("just below", -box), ("just past", n)):
                yield load(f"dimension {d} {mark}", Load(m, (*inside[:d], x, *inside[d + 1 :])))
        for nan in (False, True):
            kind = (F32, F16, F64, BF16, F32)[rank - 1] if nan else element
            m = t.tensor(kind, SIZES[:rank], BOX[:rank], fill=int(nan))
            yield load("below all", Load(m, tuple(-(n // 2) for n in m.box)))
            yield load("past all", Load(m, tuple(n - b // 2 for n, b in zip(m.sizes, m.box, strict=True))))
    m = t.tensor(F32, SIZES[:2], BOX[:2])
    for x in (-(1 << 31), (1 << 31) - 1, -(1 << 20), 1 << 20):
        yield load(f"far {x} first", Load(m, (x, 1)))
        yield load(f"far {x} last", Load(m, (4, x)))


def _filled_with_nan() -> Iterator[MicroKernel]:
    """Loads that fill with NaN outside the tensor, for every type that has one and every swizzle."""
    for element in range(F16, len(t.NAMES)):
        width = tm.ELEMENT_BYTES[element]
        for swizzle in range(4):
            row = (t.SPANS[swizzle] if swizzle else 48) // width
            m = t.tensor(element, (2 * row, 10), (row, 8), swizzle=swizzle, fill=FILL_NAN)
            yield load("corner", Load(m, (row + row // 2 + 1, 5)))


def _swizzled() -> Iterator[MicroKernel]:
    """Swizzles at the edges, at starts that are no multiple of the pattern, and with rows shorter than their span."""
    for swizzle in (1, 2, 3):
        row = t.SPANS[swizzle] // 2
        m = t.tensor(BF16, (2 * row, 20), (row, 16), swizzle=swizzle)
        places = {"left": (-3, 2), "right": (row + 5, 2), "below": (3, -5), "corner": (row + 7, 13), "outside": (0, 20)}
        for mark, at in places.items():
            yield load(mark, Load(m, at))
        for start in (128, 256, 384, 512, 640, 896):
            yield load(f"start {start}", Load(m, (0, 0), start))
        for short in range(16, t.SPANS[swizzle], 16):
            narrow = t.tensor(BF16, (2 * row, 20), (short // 2, 16), swizzle=swizzle)
            yield load(f"rows of {short} bytes", Load(narrow, (8, 2)))
        three = t.tensor(F32, (row, 5, 4), (row // 2, 3, 3), swizzle=swizzle)
        yield load("three dimensions", Load(three, (row // 4, 1, 1)))


def _strided() -> Iterator[MicroKernel]:
    """Element strides, also past the ends and with a swizzle; global strides of odd multiples of 16 bytes, larger and
    smaller than a row, and zero."""
    for steps, box in (((1, 2), (16, 8)), ((1, 2), (16, 7)), ((1, 3), (16, 8)), ((1, 8), (16, 17)), ((1, 5), (16, 3)),
                       ((2, 1), (16, 4)), ((3, 2), (16, 4))):  # fmt: skip
        m = t.tensor(S32, (24, 20), box, steps)
        size = f"box {box[0]} {box[1]}"
        yield load(f"{size} inside", Load(m, (4, 1)))
        yield load(f"{size} below", Load(m, (4, -3)))
        yield load(f"{size} past", Load(m, (4, 17)))
    for more in ((2, 3), (1, 2), (2, 1, 2), (2, 3, 2, 2)):
        rank = 1 + len(more)
        m = t.tensor(F16, (16, 7, 7, 4, 4)[:rank], (16, 5, 4, 3, 2)[:rank], (1, *more))
        yield load("inside", Load(m, (0,) * rank))
        yield load("below all", Load(m, (-3,) * rank))
    for swizzle in (1, 2, 3):
        row = t.SPANS[swizzle] // 4
        m = t.tensor(F32, (row, 40), (row, 24), (1, 3), swizzle)
        yield load("past", Load(m, (0, 22)))
    for stride in (48, 80, 112, 16, 0):
        m = t.tensor(U32, (12, 9), (8, 6), strides=(stride,))
        data = t.pattern(9 * max(stride, 48))
        yield load(f"stride {stride}", Load(m, (2, 1), data=data))
    m = t.tensor(U32, (12, 5, 4), (8, 3, 2), strides=(208, 48))  # the second one is no multiple of the first
    yield load("strides 208 48", Load(m, (2, 1, 1), data=t.pattern(2048)))
    m = t.tensor(U8, (40, 6), (32, 4), address=48)
    yield load("tensor at byte 48", Load(m, (3, 1)))
    for sizes, box in (((264, 4), (256, 1)), ((4, 264), (4, 256)), ((8, 3), (4, 1)), ((20, 9), (12, 3))):
        yield load(f"box {box[0]} {box[1]}", Load(t.tensor(F32, sizes, box), (1, 2)))


def _forms() -> Iterator[MicroKernel]:
    """Loads of one box by every way to write the instruction, and to tell its mbarrier."""
    m = t.tensor(F16, (40, 12), (32, 8), swizzle=2)
    p = Load(m, (8, 3))
    usual = t.LOAD.format(rank=2)
    cta = usual.replace("shared::cluster", "shared::cta")
    policy = "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;"
    yield load("without tile", p, usual.replace(".tile", ""))
    yield load("cache hint", p, usual + ".L2::cache_hint", before=policy, hint=", %d1")
    yield load("shared::cta", p, cta, version="8.6")
    ahead = "mov.b64 %d2, map0; @%first prefetch.param.tensormap [%d2];"
    yield load("after prefetch.param.tensormap", p, before=ahead)
    yield load("after prefetch.tensormap", p, before="@%first prefetch.tensormap [%m];")
    ahead = "@%first cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%m, {8, 3}];"
    yield load("after its prefetch", p, before=ahead)
    for promotion in (1, 2, 3):
        promoted = t.tensor(F16, (40, 12), (32, 8), swizzle=2, promotion=promotion)
        yield load(f"promotion {promotion}", Load(promoted, (8, 3)))


def _barriers() -> Iterator[MicroKernel]:
    """Two boxes on one mbarrier; bytes expected after the copy was issued, in parts, and without an arrival; copies of
    several lanes."""
    m = t.tensor(S32, (24, 20), (16, 4))
    size, image, at = 256, 1024, 1024
    one = f"{t.LOAD.format(rank=2)} [s], [%m, {{4, 1}}], [s+{at}];"
    two = f"{t.LOAD.format(rank=2)} [s+{size}], [%m, {{4, 9}}], [s+{at}];"
    more = f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s+{at}], {size};"
    arrive = f"mbarrier.arrive.shared.b64 _, [s+{at}];"
    bodies = {
        "two copies": t.expect(at, 2 * size) + f"@%first {one}\n@%first {two}\n",
        "copies, then bytes": f"@%first {one}\n@%first {two}\n" + t.expect(at, 2 * size),
        "bytes in parts": f"@%first {more}\n@%first {one}\n@%first {more}\n@%first {two}\n@%first {arrive}\n",
        "arrival last": f"@%first {more}\n@%first {one}\n@%first {arrive}\n",
        "two lanes": t.expect(at, 2 * size) + f"""bar.sync 0; setp.lt.u32 %again, %thread, 2; mul.lo.u32 %z, %thread, 8;
mad.lo.u32 %y, %thread, {size}, %sa; add.u32 %z, %z, 1;
@%again {t.LOAD.format(rank=2)} [%y], [%m, {{4, %z}}], [s+{at}];\n""",
        "no copy yet": t.expect(at, size) + "bar.sync 0;\n" + t.show_phase(at, image + t.BLOCK) + "bar.sync 0;\n"
        + f"@%first {one}\n",
    }  # fmt: skip
    for mark, issue in bodies.items():
        body = f"""{t.fill(image)}{t.begin_barrier(at)}{t.MAP}
{t.FENCE}
{issue}{t.wait(at)}{t.show_image(image)}{t.show_phase(at, image)}"""
        shown = image + (2 if mark == "no copy yet" else 1) * t.BLOCK
        yield t.copies(f"{t.LOAD.format(rank=2)} {mark}", body, shown, (t.pattern(t.tensor_bytes(m)),), image + 16,
                       (MapArgument(m),))  # fmt: skip


def load_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _of_types()
    yield from _at_edges()
    yield from _filled_with_nan()
    yield from _swizzled()
    yield from _strided()
    yield from _forms()
    yield from _barriers()
