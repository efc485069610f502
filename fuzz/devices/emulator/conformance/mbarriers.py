"""Micro-kernels of mbarriers: one thread runs a sequence of operations and shows after each which phases are complete;
then of cluster instructions in a launch without clusters, and of others that a kernel for Hopper needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator.conformance.kernel import MicroKernel, entry

AT = "[s]"
ARRIVE, DROP = f"mbarrier.arrive.shared.b64 %d0, {AT};", f"mbarrier.arrive_drop.shared.b64 %d0, {AT};"
PLACE = "mul.wide.u32 %at, %index, {}; add.s64 %o, %out, %at;"
BEGIN = PLACE + " setp.ne.u32 %other, %thread, 0; @%other bra END;"
TESTS = f"""mbarrier.test_wait.parity.shared.b64 %q, {AT}, 0; selp.b32 %x, 1, 0, %q;
mbarrier.test_wait.parity.shared.b64 %q, {AT}, 1; selp.b32 %y, 2, 0, %q; add.s32 %x, %x, %y;"""
EXPECT = "arrive.expect_tx.release.cta"


def arrive(count: int, form: str = "arrive.release.cta") -> str:
    return f"mbarrier.{form}.shared::cta.b64 %d0, {AT}, {count};"


def expect(size: int) -> str:
    return f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 {AT}, {size};"


def brought(size: int, to: int = 64) -> str:
    """A copy of `size` bytes that completes as many of the mbarrier."""
    return f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+{to}], [%in0], {size}, {AT};"


def wait(parity: int) -> str:
    return f"WAIT{parity}: mbarrier.try_wait.parity.shared.b64 %q, {AT}, {parity}; @!%q bra WAIT{parity};"


# what it shows → arrivals of a phase, and what the thread does: it looks at the phases after each step
SEQUENCES: dict[str, tuple[int, tuple[str, ...]]] = {
    "one arrival a phase": (1, (ARRIVE, ARRIVE, ARRIVE)),
    "three arrivals a phase": (3, (ARRIVE,) * 7),
    "arrivals by count": (5, (arrive(2), arrive(3), arrive(5), arrive(4), arrive(1))),
    "the largest count": ((1 << 20) - 1, (arrive((1 << 20) - 2), ARRIVE, arrive((1 << 20) - 1))),
    "drops": (3, (ARRIVE, DROP, ARRIVE, ARRIVE, ARRIVE, DROP, ARRIVE, ARRIVE, ARRIVE)),
    "drops by count": (5, (arrive(2, "arrive_drop.release.cta"), arrive(3), arrive(3), arrive(2), ARRIVE)),
    "the last arrival dropped": (2, (ARRIVE, DROP, ARRIVE, ARRIVE)),
    "arrivals that release to the cluster": (2, (arrive(1, "arrive.release.cluster"),) * 3),
    "initialised again": (2, (ARRIVE, ARRIVE, f"mbarrier.inval.shared.b64 {AT};\nmbarrier.init.shared.b64 {AT}, 1;",
                              ARRIVE)),
    "bytes, then the arrival": (1, (expect(64), brought(64) + ARRIVE + wait(0))),
    "bytes that two copies bring": (1, (arrive(96, EXPECT), brought(32) + brought(64, 128) + wait(0))),
    "two phases of bytes": (2, (arrive(64, EXPECT), ARRIVE + brought(64) + wait(0), ARRIVE, arrive(16, EXPECT)
                                + brought(16, 128) + wait(1))),
    "bytes in the first phase alone": (1, (arrive(64, EXPECT) + brought(64) + wait(0), ARRIVE, ARRIVE)),
    "bytes expected after their copy": (1, (brought(64) + arrive(64, EXPECT) + wait(0), ARRIVE)),
    "no bytes expected": (1, (arrive(0, EXPECT), ARRIVE)),
}  # fmt: skip


def sequence(form: str, count: int, steps: tuple[str, ...]) -> MicroKernel:
    """The kernel of a sequence: a word per step of thread 0, with the bits 0 and 1 for phases 0 and 1."""
    lines = [BEGIN.format(4 * (len(steps) + 1)), f"mbarrier.init.shared.b64 {AT}, {count}; fence.proxy.async;", TESTS,
             "st.global.b32 [%o], %x;"]  # fmt: skip
    for i, step in enumerate(steps, 1):
        lines += [step, TESTS, f"st.global.b32 [%o+{4 * i}], %x;"]
    text = "\n".join([*lines, "END: bar.sync 0;"])
    return warp(f"mbarrier {form}", text, len(steps) + 1)


def warp(form: str, body: str, words: int) -> MicroKernel:
    """The kernel of one warp; 64 words of input."""
    registers = ".reg .b64 %o, %d<4>; .reg .b32 %x, %y, %z; .reg .pred %q, %other;"
    text = entry(body, 1, registers, "sm_90a", "8.0", 256, 128)
    return MicroKernel(form, text, (np.arange(64, dtype=np.uint32),), 32, words)


def _states() -> Iterator[MicroKernel]:
    """Waits for the phase that an arrival returned the state of."""
    steps = ["mbarrier.init.shared.b64 [s], 2;"]
    asked = "mbarrier.test_wait.shared.b64 %q, [s], {}; selp.b32 %x, 1, 0, %q; st.global.b32 [%o+{}], %x;"
    for i, d in enumerate(("%d0", "%d1", "%d2", "%d3")):
        steps.append(f"mbarrier.arrive.shared.b64 {d}, [s];")
        steps += [asked.format(seen, 16 * i + 4 * j) for j, seen in enumerate(("%d0", "%d1", "%d2", "%d3")[: i + 1])]
    text = "\n".join([BEGIN.format(64), *steps, "END: bar.sync 0;"])
    yield warp("mbarrier.test_wait of states", text, 16)


def _cluster_of_one() -> Iterator[MicroKernel]:
    """Special registers and addresses of clusters where the launch has none; programmatic launches; elect.sync."""
    names = ["%cluster_ctarank", "%cluster_nctarank", "%cluster_ctaid.x", "%cluster_nctaid.x", "%clusterid.x",
             "%nclusterid.x"]  # fmt: skip
    lines = [f"mov.u32 %x, {name}; st.global.b32 [%o+{4 * i}], %x;" for i, name in enumerate(names)]
    yield warp("special registers of clusters", "\n".join([PLACE.format(4 * len(names)), *lines]), len(names))
    body = f"""{PLACE.format(4)} mov.b32 %x, s; mapa.shared::cluster.u32 %y, %x, 0; sub.u32 %y, %y, %x;
st.global.b32 [%o], %y;"""
    yield warp("mapa of the own CTA, less its address", body, 1)
    for mask in (0xFFFFFFFF, 0x0000FF00, 0x80000000):
        body = f"""{PLACE.format(8)} mov.b32 %z, {mask:#x}; shr.u32 %y, %z, %thread; and.b32 %y, %y, 1;
setp.eq.u32 %other, %y, 0; @%other bra END;
elect.sync %x|%q, %z; selp.b32 %y, 1, 0, %q; st.global.v2.b32 [%o], {{%x, %y}};
END: bar.warp.sync -1;"""
        yield warp(f"elect.sync {mask:#x}", body, 2)
    body = f"""{PLACE.format(4)} griddepcontrol.launch_dependents; griddepcontrol.wait; st.global.b32 [%o], %thread;"""
    yield warp("griddepcontrol", body, 1)


def mbarrier_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    for form, (count, steps) in SEQUENCES.items():
        yield sequence(form, count, steps)
    yield from _states()
    yield from _cluster_of_one()
