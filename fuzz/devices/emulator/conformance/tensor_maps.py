"""Tensor maps that a GPU's driver is asked to encode: those of the micro-kernels, and others at and beyond the limits
that cuTensorMapEncodeTiled documents. ci/emulator_vs_gpu.py records its bytes, or that it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk.text import NAMES, SPANS, SWIZZLES
from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.tensor_map import BF16, F32, U8, TensorMap

USUAL = TensorMap(0, F32, (64, 48, 20), (256, 12288), (16, 8, 4))


def described(m: TensorMap) -> str:
    """All of a map in a line."""
    lists = {"sizes": m.sizes, "strides": m.strides, "box": m.box, "steps": m.element_strides}
    words = [NAMES[m.element], *(f"{name} {' '.join(map(str, x))}" for name, x in lists.items() if x)]
    codes = {"at byte": m.address, "interleave": m.interleave, "promotion": m.promotion}
    words += [f"{name} {code}" for name, code in codes.items() if code]
    return ", ".join([*words, *([SWIZZLES[m.swizzle]] if m.swizzle else []), *(["nan"] if m.fill else [])])


def _each(name: str, values: Iterable[object], of: TensorMap = USUAL) -> Iterator[TensorMap]:
    return (replace(of, **{name: v}) for v in values)  # type: ignore[arg-type]


def _at_limits() -> Iterator[TensorMap]:
    yield from _each("element", range(len(NAMES)))
    yield from _each("promotion", range(4))
    for n in (1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 0):
        yield from _each("sizes", ((n, 48, 20), (64, n, 20), (64, 48, n)))
    for stride in (0, 16, 48, 8, 24, 240, 1 << 35, 1 << 36, 1 << 39, (1 << 40) - 16, 1 << 40):
        yield from _each("strides", ((stride, 12288), (256, stride)))
    for n in (1, 4, 255, 256, 257, 0):
        yield from _each("box", ((n, 8, 4), (16, n, 4), (16, 8, n)))
    yield from _each("box", ((256, 256, 256), (64, 48, 20), (2, 8, 4), (3, 8, 4), (6, 8, 4)))
    for n in (2, 3, 8, 9, 0):
        yield from _each("element_strides", ((n, 1, 1), (1, n, 1), (1, 1, n)))
    yield from _each("address", (16, 32, 8, 4))
    for rank in (1, 2, 4, 5, 6):
        sizes = (64, 8, 8, 8, 8, 8)[:rank]
        yield TensorMap(0, F32, sizes, tuple(256 * 8**i for i in range(rank - 1)), (16, 2, 2, 2, 2, 2)[:rank])


def _layouts() -> Iterator[TensorMap]:
    """Fills of every type; rows of a box against the swizzle's span; interleaved layouts."""
    for element in range(len(NAMES)):
        yield TensorMap(0, element, (64, 8), (512,), (16, 8), fill=tm.FILL_NAN)
    for swizzle in range(4):
        for size in (8, 16, 24, 32, 48, 64, 96, 112, 128, 144, 256):
            yield TensorMap(0, U8, (512, 8), (512,), (size, 8), swizzle=swizzle)
            yield TensorMap(0, BF16, (512, 8), (1024,), (size // 2, 8), (1, 2), swizzle=swizzle)
    for interleave in (1, 2):
        for swizzle in range(4):
            for rank in (2, 3, 5):
                channels = 8 * interleave
                sizes, strides = (channels, 16, 8, 4, 2)[:rank], tuple(16 * interleave * 8**i for i in range(rank - 1))
                for row in (channels, channels // 2, SPANS[swizzle] // 2):
                    box = (row, 4, 2, 2, 2)[:rank]
                    yield TensorMap(0, BF16, sizes, strides, box, (), swizzle, interleave)
        for stride in (16, 48):
            yield TensorMap(0, BF16, (16, 8, 8), (stride, 1024), (8 * interleave, 4, 2), interleave=interleave)
        yield TensorMap(16, BF16, (16, 8, 8), (128, 1024), (8 * interleave, 4, 2), interleave=interleave)


def tensor_maps(kernels: Iterable[MicroKernel]) -> dict[str, TensorMap]:
    """Every map to be encoded, by its description."""
    given = [a.map for k in kernels for a in k.maps]
    return {described(m): m for m in [*given, *_at_limits(), *_layouts()]}
