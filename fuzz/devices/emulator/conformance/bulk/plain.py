"""Micro-kernels of cp.async.bulk without a tensor map: sizes, offsets, groups and prefetches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.kernel import MicroKernel

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
PLACES = ((16, 0, 0), (32, 16, 48), (48, 32, 16), (256, 0, 128), (1040, 16, 16), (2048, 0, 0), (3968, 64, 32))
POLICY = "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;"


def load(mark: str, size: int, source: int, to: int, name: str = LOAD, before: str = "", hint: str = "",
         count: str = "", version: str = "8.0") -> MicroKernel:  # fmt: skip
    """`size` bytes from byte `source` of the input to byte `to` of shared memory. count: the operand of the size."""
    image = t.blocks(to + size + 64)
    body = f"""{t.fill(image)}{t.begin_barrier(image)}{before}
{t.FENCE}
{t.expect(image, size)}@%first {name} [s+{to}], [%in0+{source}], {count or size}, [s+{image}]{hint};
{t.wait(image)}{t.show_image(image)}{t.show_phase(image, image)}"""
    given = t.pattern(source + size)
    return t.copies(f"{name} {mark}", body, image + t.BLOCK, (given,), image + 16, version=version)


def store(mark: str, size: int, source: int, to: int, name: str = STORE, before: str = "", hint: str = "",
          after: str = t.DONE) -> MicroKernel:  # fmt: skip
    """`size` bytes from byte `source` of shared memory to byte `to` of the second input."""
    image = t.blocks(source + size)
    target = np.full(t.blocks(max(to + size + 64, 1024)) // 4, 0xDDDDDDDD, np.uint32)
    body = f"""{t.bring(image)}{before}
{t.FENCE}
@%first {name} [%in1+{to}], [s+{source}], {size}{hint};
{after}
{t.show_input(1, target.nbytes)}"""
    return t.copies(f"{name} {mark}", body, target.nbytes, (t.pattern(image), target), image)


def plain_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    for size, source, to in PLACES:
        yield load(f"{size} from {source} to {to}", size, source, to)
        yield store(f"{size} from {source} to {to}", size, source, to)
    yield load("shared::cta", 512, 0, 0, LOAD.replace("cluster", "cta"), version="8.6")
    yield load("cache hint", 512, 0, 0, LOAD + ".L2::cache_hint", POLICY, ", %d1")
    yield load("size in a register", 512, 0, 0, count="%z", before="mov.b32 %z, 512;")
    yield load("after its prefetch", 512, 0, 0, before="@%first cp.async.bulk.prefetch.L2.global [%in0], 512;")
    yield store("cache hint", 512, 0, 0, STORE + ".L2::cache_hint", POLICY, ", %d1")
    commit, wait = "@%first cp.async.bulk.commit_group;", "@%first cp.async.bulk.wait_group"
    for n in (2, 3):
        more = "".join(f"@%first {STORE} [%in1+{128 * i}], [s+{64 * i}], 64; {commit}\n" for i in range(2, 2 + n))
        for kept in range(n):
            after = f"{commit} {more} {wait}.read {kept}; {wait} {kept}; {wait} 0; bar.sync 0;"
            yield store(f"{n + 1} groups, all but {kept} first", 64, 0, 64, after=after)
    after = f"{wait}.read 0; {wait} 0; {commit} {commit} {wait} 1; {wait} 0; bar.sync 0;"
    yield store("waits before its group, empty groups", 64, 0, 64, after=after)
