"""Micro-kernels of tensor maps that kernels write themselves: tensormap.replace, field by field, and copies that use
what it wrote.

A kernel copies its map to shared memory, replaces a field, and shows the map. The first eight bytes of it, an address,
differ from run to run; they are shown as zero unless they were replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.kernel import MapArgument, MicroKernel

VERSION = "8.3"
# the lanes of warp 0 have a word each of the map at %m
TAKE = """cvta.param.u64 %m, map0; add.s64 %d2, %m, %at; setp.lt.u32 %again, %thread, 32;
@%again ld.b32 %x, [%d2]; @%again st.shared.b32 [%sp], %x; bar.sync 0;
"""
REPLACE = "tensormap.replace.tile.{field}.{space}.b1024.{width} [{at}], {operands};"
# field → (bits of the value, has a dimension, values)
FIELDS: dict[str, tuple[int, bool, tuple[int, ...]]] = {
    "global_address": (64, False, (0x123456789AB0, 0x10)),
    "rank": (32, False, (0, 1, 2, 3, 4)),
    "box_dim": (32, True, (1, 2, 77, 256)),
    "global_dim": (32, True, (1, 77, 0x12345678, 0xFFFFFFFF)),
    "global_stride": (64, True, (16, 48, 1 << 20, (1 << 36) + 48, (1 << 40) - 16)),
    "element_stride": (32, True, (1, 2, 5, 8)),
    "elemtype": (32, False, tuple(range(13))),
    "interleave_layout": (32, False, (0, 1, 2)),
    "swizzle_mode": (32, False, (0, 1, 2, 3)),
    "fill_mode": (32, False, (0, 1)),
}
IMMEDIATE = ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode")  # PTX wants immediates
FIVE = t.tensor(tm.F32, (24, 7, 5, 4, 3), (16, 4, 3, 2, 2), (1, 2, 1, 2, 3))


def replace(field: str, value: str, dimension: int | None = None, space: str = "shared::cta", at: str = "s") -> str:
    operands = value if dimension is None else f"{dimension}, {value}"
    return "@%first " + REPLACE.format(field=field, space=space, width=f"b{FIELDS[field][0]}", at=at, operands=operands)


def show_map(to: int, whole: bool = False) -> str:
    """The map in shared memory goes to byte `to` of the output, a word per lane of warp 0; zeros of the others."""
    hide = "" if whole else "setp.lt.u32 %done, %thread, 2; @%done mov.b32 %x, 0;"
    return f"""bar.sync 0; mov.b32 %x, 0; setp.lt.u32 %again, %thread, 32; @%again ld.shared.b32 %x, [%sp];
{hide} st.global.b32 [%o+{to}], %x; bar.sync 0;
"""


def _fields() -> Iterator[MicroKernel]:
    """Each value of a field in turn, in a map of five dimensions, shown after each."""
    memory = t.pattern(t.tensor_bytes(FIVE))
    for field, (width, listed, values) in FIELDS.items():
        dimensions = range(4 if field == "global_stride" else 5) if listed else (None,)
        for dimension in dimensions:
            body, to = TAKE, 0
            for value in values:
                register = "%d1" if width == 64 else "%z"
                operand = str(value) if field in IMMEDIATE else register
                body += "" if field in IMMEDIATE else f"mov.b{width} {register}, {value:#x};\n"
                body += replace(field, operand, dimension) + "\n" + show_map(to, field == "global_address")
                to += t.BLOCK
            name = REPLACE.split(" ")[0].format(field=field, space="shared::cta", width=f"b{width}")
            form = f"{name} {'' if dimension is None else dimension}".strip()
            yield t.copies(form, body, to, (memory,), 128, (MapArgument(FIVE),), VERSION)


def _everything() -> str:
    """Replaces of every field that make a map the same as USED."""
    m = USED
    lines = [f"mov.b64 %d1, %in0; {replace('global_address', '%d1')}"]
    lines.append(f"mov.b32 %z, {len(m.sizes) - 1}; {replace('rank', '%z')}")
    for d, (size, box) in enumerate(zip(m.sizes, m.box, strict=True)):
        lines.append(f"mov.b32 %z, {size}; {replace('global_dim', '%z', d)}")
        lines.append(f"mov.b32 %z, {box}; {replace('box_dim', '%z', d)}")
        lines.append(f"mov.b32 %z, 1; {replace('element_stride', '%z', d)}")
    for d, stride in enumerate(m.strides):
        lines.append(f"mov.b64 %d1, {stride}; {replace('global_stride', '%d1', d)}")
    for field, code in (("elemtype", m.element), ("interleave_layout", 0), ("swizzle_mode", m.swizzle),
                        ("fill_mode", m.fill)):  # fmt: skip
        lines.append(replace(field, str(code)))
    return "\n".join(lines) + "\n"


USED = t.tensor(tm.BF16, (70, 20), (32, 8), swizzle=tm.SWIZZLE_64, fill=tm.FILL_NAN)
PUBLISH = """setp.lt.u32 %again, %thread, 32; @!%again bra PUBLISHED;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%b], [s], 128;
PUBLISHED: bar.sync 0;
"""
IMAGE, BARRIER = 1024, 2048  # bytes of shared memory: the box, the mbarrier


def _load_with(mark: str, write: str, start: tm.TensorMap) -> MicroKernel:
    """`write` leaves a map at %b, in the second input; the kernel loads a box at (48, 15) with it."""
    image, size = 1024, t.box_bytes(USED)
    body = f"""{t.fill(IMAGE + image)}{t.begin_barrier(BARRIER)}add.s64 %b, %in1, 127; and.b64 %b, %b, -128; bar.sync 0;
{write}
fence.proxy.tensormap::generic.acquire.gpu [%b], 128;
{t.FENCE}
{t.expect(BARRIER, size)}@%first {t.LOAD.format(rank=2)} [s+{IMAGE}], [%b, {{48, 15}}], [s+{BARRIER}];
{t.wait(BARRIER)}add.u32 %sp, %sp, {IMAGE};
{t.show_image(image)}{t.show_phase(BARRIER, image)}"""
    inputs = (t.pattern(t.tensor_bytes(USED) + 1024), np.zeros(256, np.uint32))
    return t.copies(f"tensor map {mark}", body, image + t.BLOCK, inputs, BARRIER + 16, (MapArgument(start),), VERSION)


def _used() -> Iterator[MicroKernel]:
    """Loads with maps that the kernel wrote: each field replaced, some, all; copied as it is."""
    clear = "mov.b32 %x, 0; setp.lt.u32 %again, %thread, 32; @%again st.shared.b32 [%sp], %x; bar.sync 0;\n"
    yield _load_with("of nothing but replaced fields", clear + _everything() + "bar.sync 0;\n" + PUBLISH, USED)
    yield _load_with("with all fields replaced", TAKE + _everything() + "bar.sync 0;\n" + PUBLISH, FIVE)
    yield _load_with("copied by tensormap.cp_fenceproxy", TAKE + PUBLISH, USED)
    some = f"mov.b32 %z, 60; {replace('global_dim', '%z', 0)} mov.b32 %z, 17; {replace('global_dim', '%z', 1)}\n"
    yield _load_with("with smaller sizes", TAKE + some + "bar.sync 0;\n" + PUBLISH, USED)
    some = f"mov.b64 %d1, 176; {replace('global_stride', '%d1', 0)} add.s64 %d1, %in0, 64; "
    some += replace("global_address", "%d1") + "\n"
    start = t.tensor(tm.BF16, (50, 20), (32, 8), swizzle=tm.SWIZZLE_64, strides=(144,))
    yield _load_with("with another address and stride", TAKE + some + "bar.sync 0;\n" + PUBLISH, start)
    there = "add.s64 %d3, %b, %at; setp.lt.u32 %again, %thread, 32; @%again ld.shared.b32 %x, [%sp];\n"
    there += "@%again st.global.b32 [%d3], %x; bar.sync 0;\n"
    release = "fence.proxy.tensormap::generic.release.gpu; bar.sync 0;\n"
    yield _load_with("written by stores", TAKE + there + release, USED)
    mode = replace("fill_mode", "0", space="global", at="%b") + "\n"
    yield _load_with("replaced in global memory", TAKE + there + mode + release, USED)


def map_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _fields()
    yield from _used()
