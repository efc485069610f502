"""Micro-kernels of clusters: shared memory of other CTAs, their mbarriers, multicast copies, the cluster's barrier.

Every kernel is one cluster of 2 to 8 CTAs of 128 threads. CTA r works on the shared memory of CTA r+1 (modulo the
cluster's size), unless a form says otherwise, and each thread shows words of its own CTA's shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.bulk import text as t
from fuzz.devices.emulator.conformance.kernel import THREADS, MapArgument, MicroKernel, entry

REGISTERS = """.reg .b32 %x, %y, %z, %rank, %next, %peer, %mine, %told, %r<8>;
.reg .b16 %h<4>;
.reg .f32 %f<4>;
.reg .b64 %o, %a, %g, %d<8>;
.reg .pred %first, %done, %other;"""
SHARED = 8448  # bytes of a CTA: words of its threads, then an mbarrier
BARRIER = 8192
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
INITIALISED = "fence.mbarrier_init.release.cluster; " + MEET
BULK = "cp.async.bulk.shared::cluster.{source}.mbarrier::complete_tx::bytes"


REDUCTIONS = ("add.u32", "add.s32", "add.u64", "min.u32", "min.s32", "max.u32", "max.s32", "inc.u32", "dec.u32",
                    "and.b32", "or.b32", "xor.b32")  # fmt: skip


def begin(ctas: int, words: int, slot: int = 16) -> str:
    """%mine and %peer: this thread's `slot` bytes of shared memory, here and in the next CTA, which hold words that
    differ from one thread to the next; %told: the next CTA's mbarrier; %o: the thread's place of the output."""
    fill = "".join(f"mad.lo.u32 %y, %index, 0x01030507, {i * 0x11111111 & 0x7FFFFFFF}; st.shared.b32 [%mine+{4 * i}], "
                   "%y;\n" for i in range(slot // 4))  # fmt: skip
    return f"""mov.u32 %rank, %cluster_ctarank; add.u32 %next, %rank, 1; rem.u32 %next, %next, {ctas};
mov.b32 %sa, s; mad.lo.u32 %mine, %thread, {slot}, %sa; mapa.shared::cluster.u32 %peer, %mine, %next;
add.u32 %x, %sa, {BARRIER}; mapa.shared::cluster.u32 %told, %x, %next;
mul.wide.u32 %at, %index, {4 * words}; add.s64 %o, %out, %at; setp.eq.u32 %first, %thread, 0;
{fill}{MEET}"""


def cluster(form: str, body: str, ctas: int, words: int, inputs: tuple[np.ndarray, ...] = (),
            maps: tuple[MapArgument, ...] = (), version: str = "8.1") -> MicroKernel:  # fmt: skip
    """The kernel of one cluster."""
    text = entry(body, len(inputs), REGISTERS, "sm_90a", version, SHARED, 1024, len(maps))
    text = text.replace(")\n{", f")\n.reqnctapercluster {ctas}, 1, 1\n.maxntid {THREADS}\n{{", 1)
    return MicroKernel(f"cluster of {ctas}: {form}", text, inputs, THREADS * ctas, words, True, maps)


def show(words: int, at: str = "%mine", load: str = "ld.shared.b32") -> str:
    return "".join(f"{load} %x, [{at}+{4 * i}]; st.global.b32 [%o+{4 * i}], %x;\n" for i in range(words))


# type → (register, how its value goes to the output, words)
LOADED = {
    "u8": ("%x", "st.global.b32 [%o], %x;", 1),
    "s8": ("%x", "st.global.b32 [%o], %x;", 1),
    "u16": ("%h0", "cvt.u32.u16 %x, %h0; st.global.b32 [%o], %x;", 1),
    "s16": ("%x", "st.global.b32 [%o], %x;", 1),
    "b32": ("%x", "st.global.b32 [%o], %x;", 1),
    "f32": ("%f0", "st.global.f32 [%o], %f0;", 1),
    "b64": ("%d0", "st.global.b64 [%o], %d0;", 2),
    "v2.b32": ("{%x, %y}", "st.global.v2.b32 [%o], {%x, %y};", 2),
    "v4.f32": ("{%f0, %f1, %f2, %f3}", "st.global.v4.f32 [%o], {%f0, %f1, %f2, %f3};", 4),
    "v2.b64": ("{%d0, %d1}", "st.global.v2.b64 [%o], {%d0, %d1};", 4),
}
STORED = {
    "b8": ("mov.b32 %x, %index;", "%x"),
    "b16": ("cvt.u16.u32 %h0, %index;", "%h0"),
    "b32": ("mul.lo.u32 %x, %index, 0x10305;", "%x"),
    "b64": ("mul.wide.u32 %d0, %index, 0x70503011;", "%d0"),
    "v2.b32": ("mul.lo.u32 %x, %index, 0x10305; not.b32 %y, %x;", "{%x, %y}"),
    "v4.b32": ("mul.lo.u32 %x, %index, 0x10305; not.b32 %y, %x;", "{%x, %y, %index, %thread}"),
    "v2.b64": ("mul.wide.u32 %d0, %index, 0x70503011; not.b64 %d1, %d0;", "{%d0, %d1}"),
}


def _accesses() -> Iterator[MicroKernel]:
    """Loads and stores, by addresses of shared::cluster and generic ones."""
    for kind, (register, shown, words) in LOADED.items():
        body = f"{begin(4, words)}ld.shared::cluster.{kind} {register}, [%peer]; {shown}\n{MEET}"
        yield cluster(f"ld.shared::cluster.{kind}", body, 4, words)
    for strength in ("relaxed.cluster", "acquire.cluster", "volatile"):
        body = f"{begin(2, 1)}ld.{strength}.shared::cluster.b32 %x, [%peer+4]; st.global.b32 [%o], %x;\n{MEET}"
        yield cluster(f"ld.{strength}.shared::cluster.b32", body, 2, 1)
    for kind, (made, given) in STORED.items():
        body = f"{begin(4, 4)}{made} st.shared::cluster.{kind} [%peer], {given};\n{MEET}{show(4)}"
        yield cluster(f"st.shared::cluster.{kind}", body, 4, 4)
    for strength in ("relaxed.cluster", "release.cluster", "volatile"):
        body = f"{begin(2, 1)}st.{strength}.shared::cluster.b32 [%peer], %index;\n{MEET}{show(1)}"
        yield cluster(f"st.{strength}.shared::cluster.b32", body, 2, 1)
    own = f"{begin(2, 4)}{show(4, load='ld.shared::cluster.b32')}{MEET}"
    yield cluster("ld.shared::cluster of the own CTA", own, 2, 4)
    generic = "cvt.u64.u32 %d0, %mine; cvta.shared.u64 %d0, %d0; mapa.u64 %g, %d0, %next;\n"
    body = f"{begin(4, 4)}{generic}ld.v4.b32 {{%x, %y, %z, %r0}}, [%g]; st.global.v4.b32 [%o], {{%x, %y, %z, %r0}};"
    yield cluster("generic ld.v4.b32", f"{body}\n{MEET}", 4, 4)
    yield cluster("generic st.b64", f"{begin(4, 4)}{generic}mul.wide.u32 %d1, %index, 77; st.b64 [%g+8], %d1;\n{MEET}"
                  f"{show(4)}", 4, 4)  # fmt: skip
    yield cluster("generic atom.add.u32", f"{begin(4, 2)}{generic}atom.add.u32 %x, [%g], %index;\n"
                  f"st.global.b32 [%o+4], %x;\n{MEET}{show(1)}", 4, 2)  # fmt: skip
    address = "cvt.u64.u32 %d0, %peer; cvta.shared::cluster.u64 %g, %d0; ld.b32 %x, [%g+8]; st.global.b32 [%o], %x;\n"
    yield cluster("cvta.shared::cluster.u64", f"{begin(4, 1)}{address}{MEET}", 4, 1)
    address = "cvt.u64.u32 %d0, %peer; cvta.shared::cluster.u64 %g, %d0; isspacep.{space} %done, %g;"
    for space in ("shared::cluster", "shared::cta"):
        asked = f"{address.format(space=space)} selp.b32 %x, 1, 0, %done; st.global.b32 [%o], %x;\n"
        yield cluster(f"isspacep.{space} of the next CTA's", f"{begin(2, 1)}{asked}{MEET}", 2, 1)


ATOMIC = {
    "u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max", "exch", "cas"),
    "s64": ("min", "max"),
    "f32": ("add",),
}


def _atomics() -> Iterator[MicroKernel]:
    """Read-modify-writes of the next CTA's words: each thread its own, then many threads the same."""
    for kind, operations in ATOMIC.items():
        wide = kind.endswith("64")
        for operation in operations:
            name = kind if operation in ("add", "min", "max", "inc", "dec") else "b" + kind[1:]
            full = f"{operation}.{name}"
            old, value = ("%d1", "%d0") if wide else ("%f1", "%f0") if kind == "f32" else ("%y", "%z")
            made = "mul.wide.u32 %d0, %index, 0x0103050B;" if wide else "mul.lo.u32 %z, %index, 0x01030508;"
            if kind == "f32":
                made = "cvt.rn.f32.u32 %f0, %index; mov.b32 %x, 0x40490FDB; st.shared.b32 [%mine], %x;\n" + MEET
            if operation == "cas":  # a value that is there in every other thread, and another
                made += f"""ld.shared::cluster.b{64 if wide else 32} {old}, [%peer]; and.b32 %r0, %thread, 1;
{"cvt.u64.u32 %d2, %r0; add.u64 %d1, %d1, %d2;" if wide else "add.u32 %y, %y, %r0;"}"""
                value = f"{old}, {value}"
            body = f"{made} atom.shared::cluster.{full} {old}, [%peer], {value};\n"
            size = "b64" if wide else "f32" if kind == "f32" else "b32"
            words = 4 if wide else 2
            body += f"st.global.{size} [%o+{2 * words}], {old};\n{MEET}{show(words // 2)}"
            yield cluster(f"atom.shared::cluster.{full}", begin(4, words) + body, 4, words)
    for how in ("add.u32", "max.u32", "or.b32", "and.b32", "min.s32"):
        body = f"{begin(4, 1)}mapa.shared::cluster.u32 %r0, %sa, 0;\n"
        body += f"red.shared::cluster.{how} [%r0], %index;\n{MEET}{show(1)}"
        yield cluster(f"red.shared::cluster.{how} of all threads at CTA 0", body, 4, 1)
    for how in ("relaxed.cluster", "acq_rel.cluster", "release.gpu"):
        body = f"{begin(2, 2)}atom.{how}.shared::cluster.add.u32 %y, [%peer], 5; st.global.b32 [%o+4], %y;\n"
        yield cluster(f"atom.{how}.shared::cluster.add.u32", f"{body}{MEET}{show(1)}", 2, 2)


def _init(count: int | str) -> str:
    return f"@%first mbarrier.init.shared::cta.b64 [s+{BARRIER}], {count};\n{INITIALISED}"


def _phase(word: int) -> str:
    """Bit 0: phase 0 of the own mbarrier is complete; bit 1: phase 1 is."""
    return f"""mbarrier.test_wait.parity.shared::cta.b64 %done, [s+{BARRIER}], 0; selp.b32 %x, 1, 0, %done;
mbarrier.test_wait.parity.shared::cta.b64 %done, [s+{BARRIER}], 1; selp.b32 %y, 2, 0, %done;
add.s32 %x, %x, %y; st.global.b32 [%o+{4 * word}], %x;
"""


def _wait(parity: int = 0, name: str = "W") -> str:
    return (f"{name}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [s+{BARRIER}], {parity}; "
            f"@!%done bra {name};\n")  # fmt: skip


def _mbarriers() -> Iterator[MicroKernel]:
    """Arrivals at the mbarrier of another CTA."""
    remote = "mbarrier.{}.shared::cluster.b64 {}[%told]{};"
    steps = {
        "arrive": (1, remote.format("arrive", "_, ", "")),
        "arrive.release.cluster": (1, remote.format("arrive.release.cluster", "_, ", "")),
        "arrive.release.cluster of 3": (3, remote.format("arrive.release.cluster", "_, ", ", 3")),
        "arrive.release.cluster, one too few": (3, remote.format("arrive.release.cluster", "_, ", ", 2")),
        "arrive_drop.release.cluster": (2, 2 * remote.format("arrive_drop.release.cluster", "_, ", "")),
        "arrive.expect_tx, its bytes to come": (1, remote.format("arrive.expect_tx.release.cluster", "_, ", ", 64")),
        "arrive.expect_tx of no bytes": (1, remote.format("arrive.expect_tx.release.cluster", "_, ", ", 0")),
        "expect_tx, then arrive": (1, remote.format("expect_tx.relaxed.cluster", "", ", 32")
                                   + remote.format("arrive.release.cluster", "_, ", "")),
        "expect_tx and complete_tx": (1, remote.format("expect_tx.relaxed.cluster", "", ", 32")
                                      + remote.format("arrive.release.cluster", "_, ", "")
                                      + remote.format("complete_tx.relaxed.cluster", "", ", 32")),
    }  # fmt: skip
    for form, (count, text) in steps.items():
        predicated = " ".join(f"@%first {one.strip()};" for one in text.split(";") if one.strip())
        body = f"{begin(2, 1)}{_init(count)}{predicated}\n{MEET}{_phase(0)}"
        yield cluster(f"mbarrier.{form}", body, 2, 1)
    for ctas in (2, 4, 8):
        body = f"""{begin(ctas, 2)}{_init(ctas * THREADS)}add.u32 %x, %sa, {BARRIER};
mapa.shared::cluster.u32 %told, %x, 0;
st.shared::cluster.b32 [%peer], %index; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%told];
setp.ne.u32 %other, %rank, 0; @%other bra END;
{_wait()}END: {MEET}{_phase(0)}ld.shared.b32 %x, [%mine]; st.global.b32 [%o+4], %x;
"""
        yield cluster("every thread arrives at CTA 0", body, ctas, 2)
    generic = f"add.u32 %x, %sa, {BARRIER}; cvt.u64.u32 %d0, %x; cvta.shared.u64 %d0, %d0; mapa.u64 %g, %d0, %next;\n"
    body = f"{begin(2, 1)}{_init(1)}{generic}@%first mbarrier.arrive.release.cluster.b64 _, [%g];\n{MEET}{_phase(0)}"
    yield cluster("mbarrier.arrive by a generic address", body, 2, 1)


def _stores_async() -> Iterator[MicroKernel]:
    """st.async and red.async: each thread sends words to the next CTA, whose mbarrier counts their bytes."""
    told = "mbarrier::complete_tx::bytes"
    made = "mul.lo.u32 %x, %index, 0x10305; not.b32 %y, %x; mov.b64 %d0, {%x, %y}; mov.b64 %d1, {%y, %index};\n"
    sent = {"b32": ("%x", 4), "u64": ("%d0", 8), "v2.b32": ("{%x, %y}", 8), "v4.b32": ("{%x, %y, %index, %rank}", 16),
            "v2.s64": ("{%d0, %d1}", 16), "f32": ("%f0", 4)}  # fmt: skip
    for kind, (given, size) in sent.items():
        vector, _, scalar = kind.rpartition(".")
        name = f"st.async.weak.shared::cluster.{told}.{vector + '.' if vector else ''}{scalar}"
        body = f"""{begin(4, 4)}{_init(1)}{made}cvt.rn.f32.u32 %f0, %index;
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+{BARRIER}], {size * THREADS};
{name} [%peer], {given}, [%told];
{_wait()}{show(4)}{MEET}"""
        yield cluster(name, body, 4, 4)
    reduced = {"add.u32": 4, "add.s32": 4, "add.u64": 8, "min.u32": 4, "max.s32": 4, "inc.u32": 4, "dec.u32": 4,
               "and.b32": 4, "or.b32": 4, "xor.b32": 4}  # fmt: skip
    for words, size in reduced.items():
        name = f"red.async.relaxed.cluster.shared::cluster.{told}.{words}"
        body = f"""{begin(4, 2)}{_init(1)}{made}
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+{BARRIER}], {size * THREADS};
{name} [%peer], {"%d0" if size == 8 else "%x"}, [%told];
{_wait()}{show(2)}{MEET}"""
        yield cluster(name, body, 4, 2)


def _copies() -> Iterator[MicroKernel]:
    """Bulk copies between CTAs, and those that write to several."""
    for size, source, to in ((16, 0, 0), (48, 32, 64), (1040, 16, 16), (2048, 0, 0)):
        name = BULK.format(source="shared::cta")
        body = f"""{begin(4, 8, 32)}{_init(1)}fence.proxy.async; {MEET}
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+{BARRIER}], {size};
add.u32 %x, %sa, {4096 + to}; mapa.shared::cluster.u32 %r0, %x, %next;
add.u32 %mine, %mine, 4096; {"".join(f"st.shared.b32 [%mine+{4 * i}], {t.FILLER:#x};" for i in range(8))}
fence.proxy.async; {MEET}
@%first {name} [%r0], [s+{source}], {size}, [%told];
{_wait()}{show(8)}{MEET}"""
        yield cluster(f"{name} {size} from {source} to {to}", body, 4, 8)
    for how in REDUCTIONS:
        name = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{how}"
        body = f"""{begin(4, 4)}{_init(1)}@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+{BARRIER}], 1024;
shl.b32 %mine, %thread, 3; add.u32 %mine, %mine, %sa; mul.lo.u32 %x, %index, 0x1030509; not.b32 %y, %x;
st.shared.v2.b32 [%mine+4096], {{%x, %y}}; add.u32 %x, %sa, 64; mapa.shared::cluster.u32 %r0, %x, %next;
fence.proxy.async; {MEET}
@%first {name} [%r0], [s+4096], 1024, [%told];
{_wait()}shl.b32 %mine, %thread, 4; add.u32 %mine, %mine, %sa;
{show(4)}{MEET}"""
        yield cluster(name, body, 4, 4)
    given = t.pattern(8192)
    for ctas, masks in ((2, (1, 2, 3)), (4, (0b1111, 0b1010, 0b0110, 0b1000)), (8, (0xFF, 0x81))):
        for mask in masks:
            name = BULK.format(source="global") + ".multicast::cluster"
            copy = f"{name} [s+64], [%in0+{64}], 1024, [s+{BARRIER}], %h0;"
            yield _multicast(f"{name} to {mask:#b}", copy, 1024, ctas, mask, (given,))
    for rank, box, swizzle in (
        (1, (64,), 0),
        (2, (32, 8), 0),
        (2, (64, 8), 3),
        (3, (16, 4, 4), 1),
        (5, (8, 2, 2, 2, 2), 0),
    ):
        sizes = tuple(n + 8 * (i == 0) + (i > 0) for i, n in enumerate(box))
        m = t.tensor(tm.BF16, sizes, box, swizzle=swizzle)
        name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        name += ".multicast::cluster"
        at = t.coordinates((8, *[1] * (rank - 1)))
        copy = f"{name} [s], [%d7, {at}], [s+{BARRIER}], %h0;"
        made = t.pattern(t.tensor_bytes(m))
        yield _multicast(f"{name} {t.named(m)}", copy, t.box_bytes(m), 4, 0b1011, (made,), (MapArgument(m),))


def _multicast(form: str, copy: str, size: int, ctas: int, mask: int, inputs: tuple[np.ndarray, ...],
               maps: tuple[MapArgument, ...] = ()) -> MicroKernel:  # fmt: skip
    """CTA 0 copies `size` bytes to the CTAs of `mask`. All show 2,048 bytes, and the phases of their mbarriers."""
    found = "mov.b64 %d7, map0; cvta.param.u64 %d7, %d7;" if maps else ""
    body = f"""{begin(ctas, 5)}{_init(1)}{found} mov.b16 %h0, {mask};
shr.u32 %x, {mask}, %rank; and.b32 %x, %x, 1; setp.eq.u32 %other, %x, 0;
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+{BARRIER}], {size};
fence.proxy.async; {MEET}
or.b32 %y, %thread, %rank; setp.ne.u32 %done, %y, 0; @%done bra COPIED;
{copy}
COPIED: @%other bra SHOW;
{_wait()}SHOW: {MEET}{show(4)}{_phase(4)}"""
    return cluster(form, body, ctas, 5, inputs, maps)


def _barriers() -> Iterator[MicroKernel]:
    """Ways to say the cluster's barrier; threads that have exited; ranks and sizes."""
    exchanged = "st.shared::cluster.b32 [%peer], %index;\n"
    ways = {
        "arrive.release and wait.acquire": "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        "arrive.relaxed behind a fence": "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
        "work between arrive and wait": "barrier.cluster.arrive; add.u32 %x, %x, 1; bar.sync 0; barrier.cluster.wait;",
        "three in a row": 3 * MEET,
        "threads arrive on two paths": """and.b32 %x, %thread, 1; setp.eq.u32 %other, %x, 0; @%other bra EVEN;
barrier.cluster.arrive; bra.uni ON;
EVEN: barrier.cluster.arrive;
ON: barrier.cluster.wait;""",
    }
    for form, meet in ways.items():
        yield cluster(f"barrier.cluster: {form}", f"{begin(4, 1)}{exchanged}{meet}\n{show(1)}{MEET}", 4, 1)
    body = f"""{begin(4, 1)}setp.gt.u32 %other, %thread, 63; @%other exit;
{exchanged}barrier.cluster.arrive; barrier.cluster.wait;
{show(1)}barrier.cluster.arrive; barrier.cluster.wait;"""
    yield cluster("barrier.cluster: half of the threads have exited", body, 4, 1)
    names = ("cluster_ctarank", "cluster_nctarank", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_nctaid.x",
             "clusterid.x", "nclusterid.x", "nclusterid.y")  # fmt: skip
    for ctas in (2, 4, 8):
        lines = [f"mov.u32 %x, %{name}; st.global.b32 [%o+{4 * i}], %x;" for i, name in enumerate(names)]
        lines.append("mov.pred %done, %is_explicit_cluster; selp.b32 %x, 1, 0, %done; st.global.b32 [%o+32], %x;")
        yield cluster("special registers", begin(ctas, 9) + "\n".join(lines) + "\n" + MEET, ctas, 9)
    body = begin(8, 10)
    for i in range(8):
        body += f"mapa.shared::cluster.u32 %r0, %mine, {i}; getctarank.shared::cluster.u32 %x, %r0;\n"
        body += f"st.global.b32 [%o+{4 * i}], %x;\n"
    body += "cvt.u64.u32 %d0, %mine; cvta.shared.u64 %d0, %d0; mapa.u64 %g, %d0, %next; getctarank.u64 %x, %g;\n"
    body += "st.global.b32 [%o+32], %x; getctarank.u64 %x, %d0; st.global.b32 [%o+36], %x;\n"
    yield cluster("getctarank of mapa", body + MEET, 8, 10)


def cluster_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from _accesses()
    yield from _atomics()
    yield from _mbarriers()
    yield from _stores_async()
    yield from _copies()
    yield from _barriers()
