"""Instructions that CuTe DSL has no function for, or whose memory order the protocol of the dQ adds relies on."""

from cutlass import Float32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op
def add_four(pointer: cute.Pointer, a, b, c, d, *, loc=None, ip=None) -> None:
    """Adds four floats to the four at `pointer` (aligned to 16 bytes), each atomically; sm_90 and later."""
    address = pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip)
    values = [Float32(value).ir_value(loc=loc, ip=ip) for value in (a, b, c, d)]
    llvm.inline_asm(
        None,
        [address, *values],
        "red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};",
        "l,f,f,f,f",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


@cute.jit
def add_one(pointer: cute.Pointer, value: Float32):
    """Adds a float to the one at `pointer`, atomically."""
    cute.arch.red(pointer, value, op="add", dtype="f32", sem="relaxed", scope="gpu")
