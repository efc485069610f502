"""Parts of the micro-kernels of bulk copies: PTX text for one CTA of 128 threads, tensors, and their maps.

A kernel shows what a copy did byte for byte: shared memory, or the input that a copy wrote, goes to the output whole,
with the bytes around the copy's.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.kernel import THREADS, MapArgument, MicroKernel, entry
from fuzz.devices.emulator.tensor_map import TensorMap

BLOCK = 4 * THREADS  # bytes that the threads copy at a time; images are multiples of it
FILLER = 0xEEEEEEEE  # in shared memory before a load
NAMES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz")
SWIZZLES = ("none", "32B", "64B", "128B")
SPANS = (16, 32, 64, 128)
REGISTERS = """.reg .b32 %sp, %x, %y, %z, %tries;
.reg .b64 %a, %b, %o, %m, %d<4>;
.reg .pred %first, %other, %done, %again;"""

BEGIN = """mov.b32 %sa, s; shl.b32 %y, %thread, 2; add.s32 %sp, %sa, %y;
mul.wide.u32 %at, %thread, 4; add.s64 %o, %out, %at; setp.eq.u32 %first, %thread, 0;"""
MAP = "mov.b64 %m, map0; cvta.param.u64 %m, %m;"  # its generic address
FENCE = "fence.proxy.async; bar.sync 0;"
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
DONE = "@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0; bar.sync 0;"


def blocks(size: int) -> int:
    """`size` bytes rounded up to whole BLOCKs."""
    return -(-size // BLOCK) * BLOCK


def fill(image: int) -> str:
    """Every byte of the image in shared memory is that of FILLER."""
    return "".join(f"st.shared.b32 [%sp+{i}], {FILLER:#x};\n" for i in range(0, image, BLOCK))


def bring(image: int, number: int = 0) -> str:
    """An input's first bytes go to the image in shared memory."""
    lines = [f"add.s64 %a, %in{number}, %at;"]
    lines += [f"ld.global.b32 %x, [%a+{i}]; st.shared.b32 [%sp+{i}], %x;" for i in range(0, image, BLOCK)]
    return "\n".join(lines) + "\n"


def begin_barrier(at: int, count: int = 1) -> str:
    """An mbarrier at byte `at` of shared memory."""
    return f"@%first mbarrier.init.shared.b64 [s+{at}], {count};\n"


def expect(at: int, size: int) -> str:
    return f"@%first mbarrier.arrive.expect_tx.shared.b64 _, [s+{at}], {size};\n"


def wait(at: int, parity: int = 0) -> str:
    """Warp 0 waits for the phase, at most about 0.2 s; then all threads meet."""
    return f"""setp.gt.u32 %other, %thread, 31; @%other bra DONE{parity};
mov.u32 %tries, 0;
WAIT{parity}: mbarrier.try_wait.parity.shared.b64 %done, [s+{at}], {parity}, 100000; @%done bra DONE{parity};
add.u32 %tries, %tries, 1; setp.lt.u32 %again, %tries, 2000; @%again bra WAIT{parity};
DONE{parity}: bar.sync 0;
"""


def show_image(image: int, to: int = 0) -> str:
    """The image in shared memory goes to byte `to` of the output."""
    pairs = [(i, to + i) for i in range(0, image, BLOCK)]
    return "".join(f"ld.shared.b32 %x, [%sp+{i}]; st.global.b32 [%o+{j}], %x;\n" for i, j in pairs)


def show_input(number: int, size: int, to: int = 0) -> str:
    """An input, as it is at the end, goes to byte `to` of the output."""
    lines = [f"add.s64 %a, %in{number}, %at;"]
    lines += [f"ld.global.b32 %x, [%a+{i}]; st.global.b32 [%o+{to + i}], %x;" for i in range(0, size, BLOCK)]
    return "\n".join(lines) + "\n"


def show_phase(at: int, to: int) -> str:
    """A word of each thread goes to byte `to` of the output: bit 0, phase 0 is complete; bit 1, phase 1 is."""
    return f"""mbarrier.test_wait.parity.shared.b64 %done, [s+{at}], 0; selp.b32 %x, 1, 0, %done;
mbarrier.test_wait.parity.shared.b64 %done, [s+{at}], 1; selp.b32 %y, 2, 0, %done;
add.s32 %x, %x, %y; st.global.b32 [%o+{to}], %x;
"""


def copies(form: str, body: str, size: int, inputs: tuple[np.ndarray, ...], shared: int,
           maps: tuple[MapArgument, ...] = (), version: str = "8.0") -> MicroKernel:  # fmt: skip
    """A micro-kernel of one CTA that shows `size` bytes; `shared` bytes of shared memory."""
    text = entry(f"{BEGIN}\n{body}", len(inputs), REGISTERS, "sm_90a", version, shared, 1024, len(maps))
    return MicroKernel(form, text, inputs, THREADS, size // BLOCK, True, maps)


def pattern(size: int) -> np.ndarray:
    """`size` bytes (rounded up to BLOCKs) in which all 16-bit halves differ, are no zero and, up to
    60 KiB, no NaN of f16."""
    return (np.arange(blocks(size) // 2, dtype=np.uint32) + 0x0401).astype(np.uint16).view(np.uint32)


def random_words(seed: str, size: int) -> np.ndarray:
    """`size` bytes (rounded up to BLOCKs) of any value."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    return rng.integers(0, 1 << 32, blocks(size) // 4, dtype=np.uint64).astype(np.uint32)


def tensor(element: int, sizes: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...] = (), swizzle: int = 0,
           fill: int = 0, strides: tuple[int, ...] | None = None, address: int = 0,
           promotion: int = 0) -> TensorMap:  # fmt: skip
    """A tensor map; without strides, rows are as near to each other as multiples of 16 bytes allow."""
    if strides is None:
        pitch, found = -(-sizes[0] * tm.ELEMENT_BYTES[element] // 16) * 16, []
        for n in sizes[1:]:
            found.append(pitch)
            pitch *= n
        strides = tuple(found)
    return TensorMap(address, element, sizes, strides, box, steps, swizzle, fill=fill, promotion=promotion)


def tensor_bytes(m: TensorMap) -> int:
    """Bytes from the start of its input to the end of the tensor."""
    inner = m.sizes[0] * tm.ELEMENT_BYTES[m.element]
    return m.address + inner + sum((n - 1) * s for n, s in zip(m.sizes[1:], m.strides, strict=True))


def box_bytes(m: TensorMap) -> int:
    return math.prod(m.box_shape()) * tm.ELEMENT_BYTES[m.element]


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, at)) + "}"


def named(m: TensorMap) -> str:
    """The map's type, swizzle, and what else is unusual, for the name of a form."""
    words = [NAMES[m.element], SWIZZLES[m.swizzle]]
    if m.fill:
        words.append("nan")
    if m.element_strides:
        words.append("steps " + " ".join(map(str, m.element_strides)))
    return " ".join(words)
