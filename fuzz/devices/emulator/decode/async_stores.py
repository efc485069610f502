"""Decodes st.async and red.async: words for a CTA of the cluster, which tell an mbarrier there when they arrive."""

from __future__ import annotations

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import BITS, Operands
from fuzz.devices.emulator.ptx import Instruction

TOLD = "mbarrier::complete_tx::bytes"
OPERATIONS = {"add": op.ADD, "min": op.MIN, "max": op.MAX, "inc": op.INC, "dec": op.DEC, "and": op.AND, "or": op.OR,
              "xor": op.XOR}  # fmt: skip
TYPES = {"u32": op.T_U32, "b32": op.T_U32, "s32": op.T_S32, "u64": op.T_U64}


class AsyncStoreFamilies(Operands):
    """`store_async` and `reduce_async`, to which `op_st` and `op_red` go."""

    def store_async(self, i: Instruction) -> None:
        """st.async [a], b, [mbar]."""
        words = [word for word in i.name.split(".")[2:] if word not in ("weak", "cluster", "shared::cluster")]
        count = int(words.pop(1)[1]) if words[1:2] in (["v2"], ["v4"]) else 1
        if len(words) != 2 or words[0] != TOLD or words[1] not in BITS or BITS[words[1]] < 32:
            raise self.fail()
        x = i.operands[1]
        given = x if isinstance(x, tuple) and x[0] not in ("f32", "f64") else (x,)
        if len(given) != count:
            raise self.fail("has another number of registers than elements")
        self.words_async(i, BITS[words[1]], given, op.ABSENT)

    def reduce_async(self, i: Instruction) -> None:
        """red.async [a], b, [mbar]."""
        skipped = ("relaxed", "cluster", "shared::cluster")
        words = [word for word in i.name.split(".")[2:] if word not in skipped]
        if len(words) != 3 or words[0] != TOLD or words[1] not in OPERATIONS or words[2] not in TYPES:
            raise self.fail()
        if words[2] == "u64" and words[1] != "add":
            raise self.fail()
        self.words_async(i, BITS[words[2]], (i.operands[1],), OPERATIONS[words[1]] << 8 | TYPES[words[2]])

    def words_async(self, i: Instruction, bits: int, values: tuple[object, ...], operation: int) -> None:
        to, to_immediate, to_wide = self.address(i.operands[0])
        told, told_immediate, told_wide = self.address(i.operands[2])
        size = bits // 8
        self.granule = min(self.granule, 4)
        flags = len(values) << op.COUNT | size << op.SIZE | self.shared_cluster() << op.SPACE | to_wide
        flags |= (bits == 64) << op.WIDE
        self.emit(op.STORE_ASYNC, flags, to, to_immediate, told, told_immediate, int(bool(told_wide)), operation,
                  *(self.value(v, bits) for v in values))  # fmt: skip
