"""Decodes Blackwell's tensor core and tensor memory instructions (tcgen05.*), of one CTA or of a pair."""

from __future__ import annotations

import re

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Operands
from fuzz.devices.emulator.ptx import Instruction

MMA = re.compile(
    r"tcgen05\.mma\.cta_group::([12])\.kind::(f16|tf32|f8f6f4|i8)(?:\.collector::a::(?:fill|use|lastuse|discard))?"
)
GROUP = re.compile(r"\.cta_group::([12])\b")
KINDS = {"f16": op.TC_F16, "tf32": op.TC_TF32, "f8f6f4": op.TC_F8F6F4, "i8": op.TC_I8}
SCALED = re.compile(
    r"tcgen05\.mma\.cta_group::([12])\.kind::(mxf8f6f4|mxf4|mxf4nvf4)\.block_scale(?:\.(scale_vec::[124]X|block16|block32))?"
    r"(?:\.collector::a::(?:fill|use|lastuse|discard))?"
)
SCALED_KINDS = {"mxf8f6f4": op.TC_MXF8F6F4, "mxf4": op.TC_MXF4, "mxf4nvf4": op.TC_MXF4NVF4}
# scale factors of a row by kind and qualifier
FACTORS = {("mxf8f6f4", None): 1, ("mxf8f6f4", "scale_vec::1X"): 1, ("mxf8f6f4", "block32"): 1, ("mxf4", None): 2,
           ("mxf4", "scale_vec::2X"): 2, ("mxf4", "block32"): 2, ("mxf4nvf4", "scale_vec::2X"): 2,
           ("mxf4nvf4", "block32"): 2, ("mxf4nvf4", "scale_vec::4X"): 4, ("mxf4nvf4", "block16"): 4}  # fmt: skip
COPY = re.compile(r"tcgen05\.cp\.cta_group::([12])\.(.*?)(?:\.b8x16\.b([46])x16_p(?:32|64))?")
MOVE = re.compile(
    r"tcgen05\.(ld|st)\.sync\.aligned\.(32x32b|16x64b|16x128b|16x256b|16x32bx2)\.x(\d+)(?:\.(pack|unpack)::16b)?\.b32"
)
SHAPES = {"32x32b": (op.TC_32X32, 1), "16x64b": (op.TC_16X64, 1), "16x128b": (op.TC_16X128, 2),
          "16x256b": (op.TC_16X256, 4), "16x32bx2": (op.TC_16X32X2, 1)}  # fmt: skip
COPIES = {"128x256b": op.TC_CP_128X256, "4x256b": op.TC_CP_4X256, "128x128b": op.TC_CP_128X128,
          "64x128b.warpx2::02_13": op.TC_CP_64X128_02, "64x128b.warpx2::01_23": op.TC_CP_64X128_01,
          "32x128b.warpx4": op.TC_CP_32X128}  # fmt: skip
MOST_REGISTERS = 128
LOADS_AT_ONCE = 12
MOST_SCALE = 15


class TensorMemoryFamilies(Operands):
    """`op_tcgen05`."""

    cta_group = ""  # of the kernel's tcgen05 instructions so far

    def op_tcgen05(self, i: Instruction) -> None:
        group_of = GROUP.search(i.name)
        if group_of and self.cta_group not in ("", group_of[1]):
            raise self.fail(f"is in a kernel with others of .cta_group::{self.cta_group}, which PTX does not allow")
        self.cta_group = group_of[1] if group_of else self.cta_group
        words = i.name.split(".")[1:]
        if words[0] == "mma":
            return self.tensor_product(i)
        if words[0] in ("ld", "st"):
            return self.tensor_move(i)
        if words in (["fence::before_thread_sync"], ["fence::after_thread_sync"]):
            return self.emit(op.TC_FENCE, int(words[0].startswith("fence::after")))
        if words in (["wait::ld", "sync", "aligned"], ["wait::st", "sync", "aligned"]):
            return self.emit(op.TC_WAIT, int(words[0] == "wait::st"))
        if words[0] == "cp":
            return self.tensor_copy(i)
        group, rest = words[1:2], words[2:]
        if group not in (["cta_group::1"], ["cta_group::2"]):
            raise self.fail()
        if words[0] == "commit":
            return self.tensor_commit(i, rest)
        if words[0] == "alloc" and rest in (["sync", "aligned", "shared::cta", "b32"], ["sync", "aligned", "b32"]):
            place, immediate, wide = self.address(i.operands[0])
            space = op.SHARED if "shared::cta" in rest else op.GENERIC
            pair = op.TC_ALLOC_PAIR if group == ["cta_group::2"] else 0
            return self.emit(
                op.TC_ALLOC, space << op.SPACE | wide | pair, place, immediate, self.value(i.operands[1], 32)
            )
        if words[0] == "dealloc" and rest == ["sync", "aligned", "b32"]:
            return self.emit(op.TC_DEALLOC, *(self.value(x, 32) for x in i.operands))
        if words[0] == "relinquish_alloc_permit" and rest == ["sync", "aligned"]:
            return self.emit(op.TC_RELINQUISH)
        raise self.fail()

    def tensor_product(self, i: Instruction) -> None:
        """tcgen05.mma: [d], a-desc or [a], b-desc, idesc, {disable-output-lane}, enable-input-d, scale-input-d."""
        if ".block_scale" in i.name:
            return self.scaled_product(i)
        m = MMA.fullmatch(i.name)
        if not m:
            raise self.fail()
        to, a, b, descriptor, *rest = i.operands
        lanes: tuple[object, ...] = ()
        pair, kind = m.group(1) == "2", m.group(2)
        if rest and isinstance(rest[0], tuple):
            lanes = rest.pop(0)  # type: ignore[assignment]
            if len(lanes) != (8 if pair else 4):
                raise self.fail("has a vector disable-output-lane of another length than 4, or 8 for two CTAs")
        scale = 0
        if len(rest) == 2:
            last = rest.pop()
            if not isinstance(last, int) or not 0 <= last <= MOST_SCALE or kind not in ("f16", "tf32"):
                raise self.fail("scales its input by another number than 0 to 15, or a kind that has no scale")
            scale = last
        if len(rest) != 1:
            raise self.fail("has another number of operands than its form")
        off = [self.value(x, 32) for x in lanes] or [op.ABSENT] * 4
        if pair and lanes:
            off = [self.table(off)]
        flags = KINDS[kind] | (op.TC_PAIR if pair else 0)
        return self.product_of(flags, to, a, b, descriptor, rest[0], scale, *off)

    def scaled_product(self, i: Instruction) -> None:
        """tcgen05.mma with block scales: [d], a-desc or [a], b-desc, idesc, [scale-A], [scale-B], enable-input-d."""
        m = SCALED.fullmatch(i.name)
        factors = FACTORS.get((m[2], m[3])) if m else None
        if m is None or factors is None:
            raise self.fail()
        if len(i.operands) != 7:
            raise self.fail("has another number of operands than its form")
        to, a, b, descriptor, a_scales, b_scales, enable = i.operands
        flags = SCALED_KINDS[m[2]] | factors << op.TC_FACTORS | (op.TC_PAIR if m[1] == "2" else 0)
        scales = (*self.address(a_scales)[:2], *self.address(b_scales)[:2])
        self.product_of(flags, to, a, b, descriptor, enable, 0, op.ABSENT, *scales)

    def product_of(
        self, flags: int, to: object, a: object, b: object, descriptor: object, enable: object, scale: int, *rest: int
    ) -> None:
        """Emits a product. rest: the last words of its micro-operation."""
        if isinstance(enable, int):
            self.form("mov.pred", predicate := self.temporary("pred"), enable)
        elif str(enable).startswith("!"):
            self.form("not.pred", predicate := self.temporary("pred"), str(enable)[1:])
        else:
            predicate = str(enable)
        place, immediate, _ = self.address(to)
        in_memory = not isinstance(a, str | int)
        if in_memory:
            flags |= op.TC_A_IN_TENSOR_MEMORY
            a_place, a_immediate, _ = self.address(a)
        else:
            a_place, a_immediate = self.value(a, 64), 0
        self.granule = min(self.granule, 4)
        self.emit(
            op.TC_MMA, flags, place, immediate, a_place, a_immediate, self.value(b, 64), self.value(descriptor, 32),
            self.register(predicate, 1), scale, *rest,
        )  # fmt: skip

    def tensor_copy(self, i: Instruction) -> None:
        """tcgen05.cp: [taddr], s-desc."""
        m = COPY.fullmatch(i.name)
        if not m or m[2] not in COPIES or i.name.endswith(("b6x16_p64", "b4x16_p32")):
            raise self.fail()
        to, immediate, _ = self.address(i.operands[0])
        self.granule = min(self.granule, 4)
        descriptor = self.value(i.operands[1], 64)
        self.emit(op.TC_CP, COPIES[m[2]], to, immediate, descriptor, int(m[3] or 0), int(m[1] == "2"))

    def tensor_move(self, i: Instruction) -> None:
        """tcgen05.ld and .st."""
        m = MOVE.fullmatch(i.name)
        if not m or m.group(4) not in (None, "pack" if m.group(1) == "ld" else "unpack"):
            raise self.fail()
        shape, registers = SHAPES[m.group(2)]
        count = registers * int(m.group(3))
        if count > MOST_REGISTERS or int(m.group(3)) & int(m.group(3)) - 1:
            raise self.fail("has another count than PTX knows for its shape")
        operands = list(i.operands)
        split = 0
        if shape == op.TC_16X32X2:
            split = operands.pop(2 if m.group(1) == "ld" else 1)  # type: ignore[assignment]
            if not isinstance(split, int):
                raise self.fail("has no number immHalfSplitoff")
        if len(operands) != 2:
            raise self.fail("has another number of operands than its form")
        data, at = operands if m.group(1) == "ld" else operands[::-1]
        data = data if isinstance(data, tuple) else (data,)
        if len(data) != count:
            raise self.fail("has another number of registers than its shape")
        loads = m.group(1) == "ld"
        table = self.table([self.register(str(x), 32) if loads else self.value(x, 32) for x in data])
        place, immediate, _ = self.address(at)
        self.emit(op.TC_LD if loads else op.TC_ST, table, count, shape, place, immediate, split, int(bool(m.group(4))))

    def note_loads_used(self, loads: list[int]) -> None:
        """Emits the note that the next instruction uses registers of these loads, given as micro-operations."""
        for at in range(0, len(loads), LOADS_AT_ONCE):
            some = loads[at : at + LOADS_AT_ONCE]
            self.emit(op.TC_USED, *some, *[-1] * (LOADS_AT_ONCE - len(some)))

    def tensor_commit(self, i: Instruction, words: list[str]) -> None:
        """tcgen05.commit on an mbarrier of the own CTA, or at its place in several CTAs of the cluster."""
        if words[0] != "mbarrier::arrive::one" or words[-1] != "b64":
            raise self.fail()
        where = [word for word in words[1:-1] if word != "multicast::cluster"]
        if where not in ([], ["shared::cluster"], ["shared::cta"]):
            raise self.fail()
        several = "multicast::cluster" in words
        if len(i.operands) != 1 + several:
            raise self.fail("has another number of operands than its form")
        place, immediate, wide = self.address(i.operands[0])
        space = (self.shared_cluster() if where == ["shared::cluster"] else op.SHARED) if where else op.GENERIC
        mask = self.value(i.operands[1], 16) if several else op.ABSENT
        self.emit(op.TC_COMMIT, space << op.SPACE | wide, place, immediate, mask)
