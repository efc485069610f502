"""Raw memory and bit operations for the compiled interpreter: addresses are plain int64, nothing is checked here.

Also the way to `straight_line` (`isa/straight_line.py`): it is compiled once, kept as an object file in the cache
folder, and linked into what numba compiles by its symbol.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from fuzz.devices.emulator.state.code_cache import cache_folder, one_process

intrinsic: Any = _intrinsic  # numba's own types describe what it sees, not what a caller passes
I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))


WARPGROUP_MMA = ("mma_bf16", "mma_f16", "mma_f16_f16")


def target_machine(codemodel: str = "jitdefault") -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        codemodel=codemodel,
        jit=True,
    )


def _compiled() -> bytes:
    """The object code, from the cache folder where it is there whole: the file's name holds the digest of its bytes."""
    folder = cache_folder("isa.straight_line")
    with one_process(folder):
        for path in folder.glob("straight_line.*.o"):
            code = path.read_bytes()
            if path.name == _file_name(code):
                return code
            path.unlink()
        from fuzz.devices.emulator.isa import straight_line

        module = llvm.parse_assembly(str(straight_line.build()))
        module.verify()
        code = target_machine().emit_object(module)
        beside = folder / f".{os.getpid()}"
        try:
            beside.write_bytes(code)
            os.replace(beside, folder / _file_name(code))
        except OSError:  # a full disk: built again next time
            beside.unlink(missing_ok=True)
    return code


def _file_name(code: bytes) -> str:
    return f"straight_line.{hashlib.sha256(code).hexdigest()[:32]}.o"


def _link() -> Any:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(_compiled()))
    engine.finalize_object()
    for name in ("straight_line", "straight_line_tainted", "tensor_product", "ldmatrix", *WARPGROUP_MMA):
        llvm.add_symbol(f"attnfuzz_{name}", engine.get_function_address(name))
    return engine


_engine = _link()  # owns the machine code
mma_bf16, mma_f16, mma_f16_f16 = (
    types.ExternalFunction(f"attnfuzz_{name}", types.void(types.int64)) for name in WARPGROUP_MMA
)
tensor_product: Any = types.ExternalFunction("attnfuzz_tensor_product", types.void(*(types.int64,) * 6))
ldmatrix: Any = types.ExternalFunction("attnfuzz_ldmatrix", types.int64(*(types.int64,) * 5))
_words = (types.int64,) * 5
straight_line: Any = types.ExternalFunction("attnfuzz_straight_line", types.int64(*_words, types.int32))
straight_line_tainted: Any = types.ExternalFunction(
    "attnfuzz_straight_line_tainted", types.int64(*_words, types.int32, types.int64)
)


@intrinsic
def run_translated(typingctx, function, registers, constants, taints, shared, size, last):  # type: ignore[no-untyped-def]
    """Calls a function that `translate/` made of micro-operations, by its address; see `translate/runs.py`."""
    signature = types.int64(*(types.int64,) * 7)

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(I64, [I64] * 6)
        return b.call(b.inttoptr(args[0], kind.as_pointer()), args[1:])

    return signature, code


def _reader(width: ir.Type, extend: str, result: Any = types.int64) -> Any:
    @intrinsic
    def read(typingctx, address):  # type: ignore[no-untyped-def]
        def code(context, b, signature, args):  # type: ignore[no-untyped-def]
            value = b.load(b.inttoptr(args[0], width.as_pointer()), align=1)
            return value if extend == "" else getattr(b, extend)(value, I64)

        return result(types.int64), code

    return read


def _writer(width: ir.Type, source: Any = types.int64) -> Any:
    @intrinsic
    def write(typingctx, address, value):  # type: ignore[no-untyped-def]
        def code(context, b, signature, args):  # type: ignore[no-untyped-def]
            value = args[1]
            if isinstance(value.type, ir.IntType) and value.type != width:
                value = b.trunc(value, width)
            b.store(value, b.inttoptr(args[0], width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, source), code

    return write


u8, u16, u32 = (_reader(t, "zext") for t in (I8, I16, I32))
s8, s16, s32 = (_reader(t, "sext") for t in (I8, I16, I32))
i64 = _reader(I64, "")
w8, w16, w32, w64 = (_writer(t) for t in (I8, I16, I32, I64))


@intrinsic
def copy16(typingctx, to, source):  # type: ignore[no-untyped-def]
    """16 bytes from `source` to `to`, read before written."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        t = ir.VectorType(I32, 4).as_pointer()
        b.store(b.load(b.inttoptr(args[1], t), align=1), b.inttoptr(args[0], t), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def any_above(typingctx, values, bounds):  # type: ignore[no-untyped-def]
    """1 if one of the four u32 at `values` is greater than the one in its place at `bounds`, else 0."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        t = ir.VectorType(I32, 4).as_pointer()
        x, y = (b.load(b.inttoptr(address, t), align=1) for address in args)
        above = b.bitcast(b.icmp_unsigned(">", x, y), ir.IntType(4))
        return b.zext(b.icmp_unsigned("!=", above, ir.Constant(ir.IntType(4), 0)), I64)

    return types.int64(types.int64, types.int64), code


def _unary(name: str) -> Any:
    @intrinsic
    def count(typingctx, x):  # type: ignore[no-untyped-def]
        def code(context, b, signature, args):  # type: ignore[no-untyped-def]
            if name == "ctpop":
                return b.ctpop(args[0])
            return b.cttz(args[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), code

    return count


popc, ctz = _unary("ctpop"), _unary("cttz")


def _bitcast(source: Any, target: Any, t: ir.Type) -> Any:
    @intrinsic
    def cast(typingctx, x):  # type: ignore[no-untyped-def]
        def code(context, b, signature, args):  # type: ignore[no-untyped-def]
            return b.bitcast(args[0], t)

        return target(source), code

    return cast


bits_f64 = _bitcast(types.int64, types.float64, ir.DoubleType())
f64_bits = _bitcast(types.float64, types.int64, I64)


@intrinsic
def bits_f32(typingctx, x):  # type: ignore[no-untyped-def]
    """The float whose pattern is the low half of x."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.bitcast(b.trunc(args[0], I32), ir.FloatType())

    return types.float32(types.int64), code


@intrinsic
def f32_bits(typingctx, x):  # type: ignore[no-untyped-def]
    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.zext(b.bitcast(args[0], I32), I64)

    return types.int64(types.float32), code


@intrinsic
def f16_f32(typingctx, x):  # type: ignore[no-untyped-def]
    """The float equal to the binary16 whose pattern is in the low bits of x."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.fpext(b.bitcast(b.trunc(args[0], I16), ir.HalfType()), ir.FloatType())

    return types.float32(types.int64), code


@intrinsic
def f32_f16(typingctx, x):  # type: ignore[no-untyped-def]
    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.zext(b.bitcast(b.fptrunc(args[0], ir.HalfType()), I16), I64)

    return types.int64(types.float32), code


@intrinsic
def transpose16(typingctx, to, source):  # type: ignore[no-untyped-def]
    """The 8 x 8 matrix of 16-bit numbers at `source`, transposed to `to`."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        t = ir.VectorType(I16, 8)

        def at(base, row):  # type: ignore[no-untyped-def]
            return b.inttoptr(b.add(base, ir.Constant(I64, 16 * row)), t.as_pointer())

        def mix(x, y, order):  # type: ignore[no-untyped-def]
            return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 8), [ir.Constant(I32, i) for i in order]))

        rows = [b.load(at(args[1], i), align=1) for i in range(8)]
        low, high = (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)
        for _ in range(3):  # the perfect shuffle of rows i and i + 4, three times, is the transpose
            rows = [mix(rows[i], rows[i + 4], order) for i in range(4) for order in (low, high)]
        for i in range(8):
            b.store(rows[i], at(args[0], i), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def _host_addresses(wide: bool) -> Any:
    @intrinsic
    def locate(typingctx, base, immediate, low, high, below, delta, to):  # type: ignore[no-untyped-def]
        """Writes the addresses of 32 lanes (64 bits, or 32 that wrap around) plus `delta` to `to`, int64 each. Returns
        the mask of lanes whose address is below `low`, above `high`, or has a bit of `below`."""

        def code(context, b, signature, args):  # type: ignore[no-untyped-def]
            base, immediate, low, high, below, delta, to = args
            t, short = ir.VectorType(I64, 32), ir.VectorType(I32, 32)

            def spread(x, kind):  # type: ignore[no-untyped-def]
                first = b.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(I32, 0))
                return b.shuffle_vector(first, first, ir.Constant(short, [ir.Constant(I32, 0)] * 32))

            if wide:
                a = b.add(b.load(b.inttoptr(base, t.as_pointer()), align=64), spread(immediate, t))
            else:
                a = b.load(b.inttoptr(base, short.as_pointer()), align=64)
                a = b.zext(b.add(a, spread(b.trunc(immediate, I32), short)), t)
            askew = b.icmp_signed("!=", b.and_(a, spread(below, t)), ir.Constant(t, [ir.Constant(I64, 0)] * 32))
            outside = b.or_(b.icmp_signed("<", a, spread(low, t)), b.icmp_signed(">", a, spread(high, t)))
            b.store(b.add(a, spread(delta, t)), b.inttoptr(to, t.as_pointer()), align=64)
            return b.zext(b.bitcast(b.or_(askew, outside), I32), I64)

        return types.int64(*(types.int64,) * 7), code

    return locate


host_addresses32, host_addresses64 = _host_addresses(False), _host_addresses(True)
