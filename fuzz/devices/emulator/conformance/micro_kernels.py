"""Micro-kernels of every instruction form but wgmma's: arithmetic, matrices, exchanges between lanes, memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from fuzz.devices.emulator.conformance.inputs import CASES, WIDTHS, nan_patterns, tiny_products, values
from fuzz.devices.emulator.conformance.kernel import MicroKernel, entry
from fuzz.devices.emulator.isa.all_forms import FORMS, Form

BYTES = ("cvt.rn.bf16.s8", "cvt.rn.bf16.u8")  # ptxas wants registers of 8 bits for these, unlike for cvt.rn.f16.s8
INTERNAL = ("low.", "high.", "join.", "carry.", "max3", "min3")  # names of the table that are not PTX's
STORE = {"b16": "u16", "f16": "b16", "bf16": "b16", "b32": "b32", "f32": "b32", "b64": "b64", "f64": "b64", "p": "b32"}


def _form_kernel(form: Form, mark: str = "", inputs: tuple[np.ndarray, ...] | None = None) -> MicroKernel:
    """Loads the operands, runs the instruction, stores the result; on `inputs`, or on those that its name draws."""
    sizes = {"b16": 2, "f16": 2, "bf16": 2, "b64": 8, "f64": 8, "f32x2": 8}
    target, version = needs(form.name)
    seed = zlib.crc32(form.name.encode())
    declared, lines, drawn = [], [], []

    def register(name: str, kind: str) -> None:
        declared.append(f".reg .{'pred' if kind == 'p' else f'b{8 * sizes.get(kind, 4)}'} {name};")

    for i, kind in enumerate(form.operands):
        size = sizes.get(kind, 4)
        lines.append(f"mul.wide.u32 %at, %index, {size}; add.s64 %at, %in{i}, %at;")
        if kind == "p":
            register(f"%x{i}", kind)
            declared.append(f".reg .b32 %y{i};")
            lines.append(f"ld.global.b32 %y{i}, [%at]; setp.ne.b32 %x{i}, %y{i}, 0;")
        elif form.name in BYTES:
            declared.append(f".reg .b8 %x{i};")
            lines.append(f"ld.global.u8 %x{i}, [%at];")
        else:
            register(f"%x{i}", kind)
            lines.append(f"ld.global.b{8 * size} %x{i}, [%at];")
        drawn.append(values(kind, seed, i) if inputs is None else inputs[i])
    register("%d", form.result)
    size = sizes.get(form.result, 4)
    operands = ", ".join(["%d", *(f"%x{i}" for i in range(len(form.operands)))])
    lines.append(f"{form.name} {operands};")
    stride = max(size, 4)
    lines.append(f"mul.wide.u32 %at, %index, {stride}; add.s64 %at, %out, %at;")
    if form.result == "p":
        declared.append(".reg .b32 %z;")
        lines.append("selp.b32 %z, 1, 0, %d; st.global.b32 [%at], %z;")
    elif size == 2:
        declared.append(".reg .b32 %z;")
        lines.append("cvt.u32.u16 %z, %d; st.global.b32 [%at], %z;")
    else:
        lines.append(f"st.global.b{8 * size} [%at], %d;")
    text = entry("\n".join(lines), len(drawn), "\n".join(declared), target, version)
    exact = ".approx" not in form.name and ".full" not in form.name
    return MicroKernel(form.name + mark, text, tuple(drawn), len(drawn[0]), stride // 4, exact)


def _logic_kernel() -> MicroKernel:
    """lop3, whose table is an immediate: the eight of one bit, which make up every other, and four usual ones."""
    tables = [*(1 << i for i in range(8)), 0x96, 0xE8, 0xFE, 0xCA]
    loads = [f"mul.wide.u32 %at, %index, 4; add.s64 %at, %in{i}, %at; ld.global.b32 %x{i}, [%at];" for i in range(3)]
    place = f"mul.wide.u32 %at, %index, {4 * len(tables)}; add.s64 %at, %out, %at;"
    body = [f"lop3.b32 %d, %x0, %x1, %x2, {t}; st.global.b32 [%at+{4 * i}], %d;" for i, t in enumerate(tables)]
    text = entry("\n".join([*loads, place, *body]), 3, ".reg .b32 %x<3>, %d;")
    seed = zlib.crc32(b"lop3.b32")
    return MicroKernel("lop3.b32", text, tuple(values("b32", seed, i) for i in range(3)), CASES, len(tables))


def needs(name: str) -> tuple[str, str]:
    """(target, PTX version) of a form: the least that its instruction asks for."""
    mixed = name.startswith(("fma.rn.f32.", "add.rn.f32.", "sub.rn.f32.")) and name.endswith("f16")
    if "f32x2" in name or mixed:
        return "sm_100", "8.8"
    if "e4m3x2" in name or "e5m2x2" in name:
        return "sm_89", "8.1"
    if name.endswith(("s16x2", "u16x2", "relu.s32")):
        return "sm_90", "8.0"
    if "bf16" in name and not name.startswith(("cvt.rn.bf16.f32", "cvt.rz.bf16.f32", "cvt.rn.bf16x2", "cvt.rz.bf16x2",
                                                "cvt.rn.relu", "cvt.rz.relu", "fma", "max", "min",
                                                "neg", "abs")):  # fmt: skip
        return "sm_90", "8.0"
    return "sm_80", "8.0"


def form_kernels() -> Iterator[MicroKernel]:
    """One kernel per row of the form table that PTX has under that name."""
    for form in FORMS.values():
        if form.name == "lop3.b32":
            yield _logic_kernel()
        elif not form.name.startswith(INTERNAL):
            yield _form_kernel(form)


def nan_kernels() -> Iterator[MicroKernel]:
    """Every form whose operands are all floating-point numbers once more, on NaNs of every kind."""
    for form in FORMS.values():
        if not form.name.startswith(INTERNAL) and all(k.removesuffix("x2") in WIDTHS for k in form.operands):
            yield _form_kernel(form, " nan", nan_patterns(form.operands))


def tiny_kernels() -> Iterator[MicroKernel]:
    """Products, sums of them and quotients in f32 whose result is next to the least normal number, 2**-126."""
    a, b, c = tiny_products()
    for form in FORMS.values():
        name = form.name.split(".")[0]
        if form.name.endswith(".f32") and name in ("mul", "fma", "mad", "div") and set(form.operands) == {"f32"}:
            given = (a, (np.float32(1) / b).astype(np.float32)) if name == "div" else (a, b, c)
            yield _form_kernel(form, " tiny", tuple(v.view(np.uint32) for v in given[: len(form.operands)]))


def _words(seed: str, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    return rng.integers(0, 1 << 32, (rows, columns), dtype=np.uint64).astype(np.uint32)


def warp_kernel(form: str, body: str, registers: str, words: int, columns: int = 1, shared: int = 0, exact: bool = True,
                inputs: np.ndarray | None = None, target: str = "sm_80",
                version: str = "8.0") -> MicroKernel:  # fmt: skip
    """One warp; %a is the address of the lane's `columns` input words, %o of its output words."""
    start = f"""mul.wide.u32 %at, %index, {4 * columns}; add.s64 %a, %in0, %at;
mul.wide.u32 %at, %index, {4 * words}; add.s64 %o, %out, %at;"""
    if shared:
        start += "mov.b32 %sa, s;"
    text = entry(f"{start}\n{body}", 1, f".reg .b64 %a, %o;\n{registers}", target, version, shared)
    data = _words(form, 32, columns) if inputs is None else inputs
    return MicroKernel(form, text, (data,), 32, words, exact)


def _group(names: list[str]) -> str:
    return "{" + ", ".join(names) + "}"


def matrix_kernels() -> Iterator[MicroKernel]:
    """mma with small numbers whose sums are exact whatever the order, then with random ones; ldmatrix and stmatrix."""
    for k, kinds in ((16, (("bf16", "f32"), ("f16", "f32"), ("f16", "f16"))), (8, (("bf16", "f32"), ("f16", "f32")))):
        for kind, sums in kinds:
            n_a, n_b, n_c = k // 4, k // 8, 4 if sums == "f32" else 2
            columns = n_a + n_b + n_c
            name = f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{kind}.{kind}.{sums}"
            r = [f"%r{i}" for i in range(columns + n_c)]
            loads = "".join(f"ld.global.b32 {r[i]}, [%a+{4 * i}];" for i in range(columns))
            groups = [r[columns:], r[:n_a], r[n_a : n_a + n_b], r[n_a + n_b : columns]]
            stores = "".join(f"st.global.b32 [%o+{4 * i}], {x};" for i, x in enumerate(groups[0]))
            body = loads + f"{name} {', '.join(_group(g) for g in groups)};" + stores
            for exact in (True, False):
                rng = np.random.default_rng(k + len(kind))
                if exact:
                    ab = rng.integers(-3, 4, (32, 2 * (n_a + n_b))).astype(np.float32)
                    c = rng.integers(-9, 10, (32, 4)).astype(np.float32)
                else:
                    ab = rng.standard_normal((32, 2 * (n_a + n_b))).astype(np.float32)
                    c = rng.standard_normal((32, 4)).astype(np.float32)
                half = (
                    (ab.view(np.uint32) >> 16).astype(np.uint16)
                    if kind == "bf16"
                    else ab.astype(np.float16).view(np.uint16)
                )
                pairs = half.reshape(32, -1, 2).astype(np.uint32)
                packed = pairs[:, :, 0] | pairs[:, :, 1] << 16
                last = c.view(np.uint32)
                if sums == "f16":
                    h = c.astype(np.float16).view(np.uint16).astype(np.uint32)
                    last = np.stack([h[:, 0] | h[:, 1] << 16, h[:, 2] | h[:, 3] << 16], 1)
                inputs = np.ascontiguousarray(np.concatenate([packed, last], 1))
                yield warp_kernel(f"{name} {'small' if exact else 'random'}", body, f".reg .b32 %r<{len(r)}>;", n_c,
                                  columns, exact=exact, inputs=inputs)  # fmt: skip
    fill = "shl.b32 %r9, %thread, 4; add.s32 %r9, %sa, %r9; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%a];"
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = [f"%r{4 + i}" for i in range(count)]
            stores = "".join(f"st.global.b32 [%o+{4 * i}], {x};" for i, x in enumerate(names))
            # rows in another order than the lanes
            place = "xor.b32 %r8, %thread, 5; shl.b32 %r8, %r8, 4; add.s32 %r8, %sa, %r8;"
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            written = f"{fill} st.shared.v4.b32 [%r9], {{%r0, %r1, %r2, %r3}}; bar.sync 0;"
            body = f"{written} {place} {name} {_group(names)}, [%r8];"
            yield warp_kernel(name, body + stores, ".reg .b32 %r<10>;", count, 4, 512)
            name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            zero = "st.shared.v4.b32 [%r9], {0, 0, 0, 0}; bar.sync 0;"
            after = (
                "bar.sync 0; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r9]; st.global.v4.b32 [%o], {%r4, %r5, %r6, %r7};"
            )
            names = [f"%r{i}" for i in range(count)]
            body = f"{fill} {zero} {place} {name} [%r8], {_group(names)}; {after}"
            yield warp_kernel(name, body, ".reg .b32 %r<10>;", 4, 4, 512, target="sm_90")


def exchange_kernels() -> Iterator[MicroKernel]:
    """shfl in every mode, by several distances, segments and clamps; votes; reductions; matches."""
    for mode in ("up", "down", "bfly", "idx"):
        for by in (0, 1, 3, 16, 31):
            for clamp in (0, 31, 0x1C03, 0x181F, 0x1800):
                body = f"""ld.global.b32 %r0, [%a]; shfl.sync.{mode}.b32 %r1|%q, %r0, {by}, {clamp}, -1;
selp.b32 %r2, 1, 0, %q; st.global.v2.b32 [%o], {{%r1, %r2}};"""
                yield warp_kernel(f"shfl.sync.{mode}.b32 {by} {clamp:#x}", body, ".reg .b32 %r<3>; .reg .pred %q;", 2)
    for mask in (0x00000000, 0xFFFFFFFF, 0x00010000, 0xAAAAAAAA):
        ask = f"mov.b32 %r0, {mask}; shr.u32 %r0, %r0, %thread; and.b32 %r0, %r0, 1; setp.ne.b32 %q0, %r0, 0;"
        for mode in ("all", "any", "uni"):
            body = ask + f"vote.sync.{mode}.pred %q1, %q0, -1; selp.b32 %r1, 1, 0, %q1; st.global.b32 [%o], %r1;"
            yield warp_kernel(f"vote.sync.{mode}.pred {mask:#x}", body, ".reg .b32 %r<3>; .reg .pred %q<2>;", 1)
        body = ask + "vote.sync.ballot.b32 %r1, !%q0, -1; st.global.b32 [%o], %r1;"
        yield warp_kernel(f"vote.sync.ballot.b32 {mask:#x}", body, ".reg .b32 %r<3>; .reg .pred %q<2>;", 1)
        for kind in ("and", "or"):
            body = ask + f"bar.red.{kind}.pred %q1, 0, %q0; selp.b32 %r1, 1, 0, %q1; st.global.b32 [%o], %r1;"
            yield warp_kernel(f"bar.red.{kind}.pred {mask:#x}", body, ".reg .b32 %r<3>; .reg .pred %q<2>;", 1)
        body = ask + "bar.red.popc.u32 %r1, 0, %q0; st.global.b32 [%o], %r1;"
        yield warp_kernel(f"bar.red.popc.u32 {mask:#x}", body, ".reg .b32 %r<3>; .reg .pred %q<2>;", 1)
    for kind in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"):
        body = f"ld.global.b32 %r0, [%a]; redux.sync.{kind} %r1, %r0, -1; st.global.b32 [%o], %r1;"
        yield warp_kernel(f"redux.sync.{kind}", body, ".reg .b32 %r<2>;", 1)
    few = np.array([[i % 3 * 7] for i in range(32)], dtype=np.uint32)
    body = "ld.global.b32 %r0, [%a]; match.any.sync.b32 %r1, %r0, -1; st.global.b32 [%o], %r1;"
    yield warp_kernel("match.any.sync.b32", body, ".reg .b32 %r<2>;", 1, inputs=few)
    for same in (False, True):
        body = """ld.global.b32 %r0, [%a]; match.all.sync.b32 %r1|%q, %r0, -1; selp.b32 %r2, 1, 0, %q;
st.global.v2.b32 [%o], {%r1, %r2};"""
        yield warp_kernel(f"match.all.sync.b32 {same}", body, ".reg .b32 %r<3>; .reg .pred %q;", 2,
                          inputs=few * (not same))  # fmt: skip


def _addresses_kernel() -> MicroKernel:
    """Where static and dynamic shared memory begin."""
    body = """mov.u32 %r0, s; mov.u32 %r1, d; mad.wide.u32 %at, %index, 8, %out; st.global.v2.b32 [%at], {%r0, %r1};"""
    text = entry(body, 0, ".reg .b32 %r<2>;", shared=96, align=16)
    dynamic = ".extern .shared .align 256 .b8 d[];\n"
    return MicroKernel("address of shared memory", text.replace(".visible", dynamic + ".visible"), (), 32, 2)


def memory_kernels() -> Iterator[MicroKernel]:
    """Loads and stores of every width and vector, sign extension, shared memory, asynchronous copies, atomics."""
    for kind, width in (("u8", 32), ("s8", 32), ("u16", 32), ("s16", 32), ("u8", 64), ("s8", 64), ("s16", 64),
                        ("s32", 64),                         ("u32", 64), ("u8", 16), ("s8", 16)):  # fmt: skip
        to = {
            16: "cvt.u32.u16 %z, %x; st.global.b32 [%o], %z;",
            32: "st.global.b32 [%o], %x;",
            64: "st.global.b64 [%o], %x;",
        }
        yield warp_kernel(f"ld.global.{kind} {width}", f"ld.global.{kind} %x, [%a];" + to[width],
                          f".reg .b{width} %x; .reg .b32 %z;", max(width, 32) // 32)  # fmt: skip
    for space in ("shared", "global"):
        for n, kind in ((2, "b32"), (4, "b32"), (2, "b64"), (4, "b16"), (2, "b16"), (4, "b8")):
            size = n * int(kind[1:]) // 8
            width = max(int(kind[1:]), 16)
            names = _group([f"%x{i}" for i in range(n)])
            where = {"shared": ("%r0", f"mad.lo.s32 %r0, %thread, {size}, %sa;"), "global": ("%o", "")}[space]
            body = where[1] + f"ld.global.v{n}.{kind} {names}, [%a]; st.{space}.v{n}.{kind} [{where[0]}], {names};"
            if space == "shared":
                body += f"ld.shared.v{n}.{kind} {names}, [%r0]; st.global.v{n}.{kind} [%o], {names};"
            yield warp_kernel(
                f"st.{space}.v{n}.{kind}", body, f".reg .b{width} %x<{n}>; .reg .b32 %r0;", size // 4, size // 4, 512
            )
    yield _addresses_kernel()
    for how, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for have in (None, 0, size // 2, size):
            last = "" if have is None else f", {have}"
            body = f"""shl.b32 %r0, %thread, 4; add.s32 %r0, %sa, %r0; st.shared.v4.b32 [%r0], {{-1, -1, -1, -1}};
bar.sync 0;
cp.async.{how}.shared.global [%r0], [%a], {size}{last}; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%r0]; st.global.v4.b32 [%o], {{%r1, %r2, %r3, %r4}};"""
            yield warp_kernel(f"cp.async.{how}.shared.global {size} {have}", body, ".reg .b32 %r<5>;", 4, 4, 512)
    integer = [(o, t) for o in ("add", "min", "max") for t in ("u32", "s32", "u64", "s64") if (o, t) != ("add", "s64")]
    integer += [(o, t) for o in ("and", "or", "xor", "exch") for t in ("b32", "b64")] + [("inc", "u32"), ("dec", "u32")]
    for operation, kind in [*integer, ("add", "f32"), ("add", "f64")]:
        width = int(kind[1:])
        step = width // 8
        body = f"""ld.global.b{width} %x, [%a]; ld.global.b{width} %y, [%a+{step}]; st.global.b{width} [%o], %x;
atom.global.{operation}.{kind} %z, [%o], %y; st.global.b{width} [%o+{step}], %z;"""
        rows = _words(f"atom{kind}", 32, 2 * step // 4)
        if kind[0] == "f":
            floats = np.random.default_rng(1).standard_normal((32, 2))
            rows = floats.astype(np.float32 if width == 32 else np.float64).view(np.uint32)
        yield warp_kernel(f"atom.global.{operation}.{kind}", body, f".reg .b{width} %x, %y, %z;", 2 * step // 4,
                          2 * step // 4, inputs=rows)  # fmt: skip
        if operation != "exch":
            red = body.replace(f"atom.global.{operation}.{kind} %z,", f"red.global.{operation}.{kind}").replace(
                ", %z;", ", %y;"
            )
            yield warp_kernel(f"red.global.{operation}.{kind}", red, f".reg .b{width} %x, %y, %z;", 2 * step // 4,
                              2 * step // 4, inputs=rows)  # fmt: skip
    for kind in ("b32", "b64"):
        width = int(kind[1:])
        for hit in (True, False):
            compare = "%x" if hit else "%y"
            body = f"""ld.global.b{width} %x, [%a]; ld.global.b{width} %y, [%a+{width // 8}];
st.global.b{width} [%o], %x;
atom.global.cas.{kind} %z, [%o], {compare}, %y; st.global.b{width} [%o+{width // 8}], %z;"""
            yield warp_kernel(
                f"atom.global.cas.{kind} {hit}", body, f".reg .b{width} %x, %y, %z;", width // 16, width // 16
            )
