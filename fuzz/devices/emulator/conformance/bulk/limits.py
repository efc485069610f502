"""Micro-kernels at the limits of what a GPU takes: boxes that take more shared memory than their bytes, rows that end
within 16 bytes, reductions that PTX does not name, numbers that tf32 rounds, maps as CuTe DSL writes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.bulk.loads import Load, load
from fuzz.devices.emulator.conformance.bulk.maps import PUBLISH, TAKE, VERSION
from fuzz.devices.emulator.conformance.bulk.reductions import TENSOR, reduce_tensor, special
from fuzz.devices.emulator.conformance.bulk.stores import GUARD, Store, store, tensor
from fuzz.devices.emulator.conformance.kernel import MapArgument, MicroKernel
from fuzz.devices.emulator.tensor_map import (
    BF16,
    ELEMENT_BYTES,
    F16,
    F32,
    F32_FTZ,
    F64,
    S64,
    TF32,
    TF32_FTZ,
    U8,
    U16,
    U32,
    U64,
)

UNNAMED = (("add", S64), ("add", U16), ("min", F32), ("max", F64), ("inc", U64), ("and", F32), ("add", F32_FTZ),
           ("add", TF32), ("add", TF32_FTZ))  # fmt: skip
# numbers next to ties of tf32, subnormal ones, infinities, NaNs, the largest number
PATTERNS = (0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0x3F802FFF, 0x00001000, 0x00000FFF, 0x00003000, 0x007FFFFF,
            0x00400000, 0x007FF000, 0x7F7FFFFF, 0x7F7FF000, 0x7F7FEFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF,
            0x7FFFE000, 0x00000000, 0x3F80FFFF, 0x00800000, 0x00800FFF, 0x7FA12345)  # fmt: skip


def _short_rows() -> Iterator[MicroKernel]:
    """Rows shorter than their swizzle's span, in a box with room for whole spans."""
    for swizzle in (1, 2, 3):
        span = t.SPANS[swizzle]
        for short in range(16, span, 16):
            narrow = t.tensor(BF16, (span, 20), (short // 2, 16), swizzle=swizzle)
            yield load(f"rows of {short} bytes, whole spans", Load(narrow, (8, 2), room=16 * span))
            narrow = tensor(BF16, (span // 2 + 8, 18), (short // 2, 16), swizzle=swizzle)
            yield store(f"rows of {short} bytes, whole spans", Store(narrow, (8, 1), room=16 * span))
    yield load("more than shared memory", Load(t.tensor(F32, (32, 64), (32, 64)), (0, 0), room=1024))


def _ends_of_rows() -> Iterator[MicroKernel]:
    """Tensors whose rows end within 16 bytes, at a coordinate that is a multiple of 16 bytes."""
    for element, size in ((U8, 24), (U8, 17), (U16, 13), (F16, 12), (F32, 7), (F32, 6), (F64, 3)):
        width = ELEMENT_BYTES[element]
        m = tensor(element, (size, 6), (32 // width, 4))
        for mark, x in (("whole", 0), ("last 16 bytes", 16 // width)):
            yield store(f"rows end at {size * width} {mark}", Store(m, (x, 1)))
        if element in (F16, F32, F64):
            before = t.random_words("ends", t.tensor_bytes(m) + GUARD) & np.uint32(0x3FFF3FFF)
            image = t.random_words("image", t.box_bytes(m)) & np.uint32(0x3FFF3FFF)
            p = Store(m, (0, 1), image=image, before=before)
            yield store(f"rows end at {size * width}", p, TENSOR % "add")
        plain = t.tensor(element, (size, 6), (32 // width, 4))
        yield load(f"rows end at {size * width}", Load(plain, (0, 3)))


def _numbers() -> Iterator[MicroKernel]:
    """Loads of PATTERNS and of their negatives."""
    x = np.array([*PATTERNS, *(v | 1 << 31 for v in PATTERNS)], np.uint32)
    data = np.resize(x, 128)
    for element in (F32_FTZ, TF32, TF32_FTZ):
        yield load("special", Load(t.tensor(element, (16, 8), (16, 8)), (0, 0), data=data))


def _unnamed_reductions() -> Iterator[MicroKernel]:
    """Reductions of element types that PTX does not name for them."""
    image, before = (t.random_words(f"unnamed {x}", 1024) & np.uint32(0x3FFF3FFF) for x in ("image", "before"))
    for operation, element in UNNAMED:
        yield reduce_tensor(operation, element, "unnamed", image, before)
    for element in (F32_FTZ, TF32, TF32_FTZ):
        yield reduce_tensor("add", element, "special", *special(F32))


def _maps_of_cute_dsl() -> Iterator[MicroKernel]:
    """Loads with bit 1 of word 2 set and words 16 and 18 zero, at coordinates that are multiples of 16 bytes or not."""
    m = t.tensor(U32, (24, 12), (16, 4))
    size, image, barrier = t.box_bytes(m), 1024, 2048
    for mark, change in (("as the driver encodes it", ""), ("as CuTe DSL encodes it", "or.b32 %x, %x, 2;")):
        for x in (4, 3):
            body = f"""{t.fill(1024 + image)}{t.begin_barrier(barrier)}{TAKE}
setp.eq.u32 %again, %thread, 2; @%again ld.shared.b32 %x, [%sp]; {"@%again " + change if change else ""}
@%again st.shared.b32 [%sp], %x;
setp.gt.u32 %again, %thread, 15; setp.lt.and.u32 %again, %thread, 32, %again; mov.b32 %x, 0;
{"@%again st.shared.b32 [%sp], %x;" if change else ""}
add.s64 %b, %in1, 127; and.b64 %b, %b, -128; bar.sync 0;
{PUBLISH}
fence.proxy.tensormap::generic.acquire.gpu [%b], 128;
{t.FENCE}
{t.expect(barrier, size)}@%first {t.LOAD.format(rank=2)} [s+1024], [%b, {{{x}, 1}}], [s+{barrier}];
{t.wait(barrier)}add.u32 %sp, %sp, 1024;
{t.show_image(image)}{t.show_phase(barrier, image)}"""
            inputs = (t.pattern(t.tensor_bytes(m)), np.zeros(256, np.uint32))
            yield t.copies(f"tensor map {mark} at {x}", body, image + t.BLOCK, inputs, barrier + 16,
                           (MapArgument(m),), VERSION)  # fmt: skip


def limit_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _short_rows()
    yield from _ends_of_rows()
    yield from _numbers()
    yield from _unnamed_reductions()
    yield from _maps_of_cute_dsl()
