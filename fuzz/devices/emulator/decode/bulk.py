"""Decodes bulk copies (cp.async.bulk and cp.reduce.async.bulk, with tensor maps or without) and tensormap.* ."""

from __future__ import annotations

import re

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.decode.operands import BITS, SPACES, Operands
from fuzz.devices.emulator.ptx import Instruction

LOADS = ("shared::cluster.global", "shared::cta.global")
LOCAL = "shared::cluster.shared::cta"
GROUPS = ("cta_group::1", "cta_group::2")
STORES = ("global.shared::cta",)
REDUCTIONS = {"add": op.ADD, "min": op.MIN, "max": op.MAX, "inc": op.INC, "dec": op.DEC, "and": op.AND, "or": op.OR,
              "xor": op.XOR}  # fmt: skip
TYPES = {"u32": op.T_U32, "b32": op.T_U32, "s32": op.T_S32, "u64": op.T_U64, "s64": op.T_S64, "b64": op.T_U64,
         "f32": op.T_F32, "f64": op.T_F64, "f16": op.T_F16, "bf16": op.T_BF16}  # fmt: skip
_BITS, _HALVES = ("b32", "b64"), ("f16", "bf16")
# types of each reduction without a tensor map
REDUCED = {"add": ("u32", "s32", "u64", "f32", "f64", *_HALVES), "min": ("u32", "s32", "u64", "s64", *_HALVES),
           "max": ("u32", "s32", "u64", "s64", *_HALVES), "inc": ("u32",), "dec": ("u32",), "and": _BITS, "or": _BITS,
           "xor": _BITS}  # fmt: skip
# the same for a reduction of another CTA's shared memory
REDUCED_LOCAL = {"add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
                 "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",)}  # fmt: skip
COPY = re.compile(
    r"cp\.(?P<reduce>reduce\.)?async\.bulk\.(?:tensor\.(?P<rank>[1-5])d\.)?(?P<spaces>[\w:]+\.[\w:]+)"
    r"(?:\.(?P<first>mbarrier::complete_tx::bytes|bulk_group))?(?:\.(?P<operation>add|min|max|inc|dec|and|or|xor))?"
    r"(?:\.noftz)?(?:\.(?P<type>[usbf]+(?:16|32|64)))?(?:\.tile)?"
    r"(?:\.(?P<second>mbarrier::complete_tx::bytes|bulk_group))?(?P<hint>\.L2::cache_hint)?"
)
# field of tensormap.replace → (offset of its word, first bit, bits, what its value is less by)
_WORD = tm.PROPERTIES
FIELDS = {
    "global_address": (tm.ADDRESS, 0, 64, 0),
    "rank": (_WORD, tm.RANK_BIT, tm.RANK_BITS, 0),
    "elemtype": (_WORD, tm.ELEMENT_BIT, tm.ELEMENT_BITS, 0),
    "interleave_layout": (_WORD, tm.INTERLEAVE_BIT, tm.INTERLEAVE_BITS, 0),
    "swizzle_mode": (_WORD, tm.SWIZZLE_BIT, tm.SWIZZLE_BITS, 0),
    "fill_mode": (_WORD, tm.FILL_BIT, tm.FILL_BITS, 0),
}

ROUNDING = (_WORD, tm.ROUND_BIT, tm.ROUND_BITS, 0)  # what elemtype writes besides


def list_field(name: str, dimension: int) -> tuple[int, int, int, int] | None:
    """The same for a field that has an entry for each dimension; None where there is no such field."""
    box = tm.BOX + dimension
    return {
        "box_dim": (box & ~3, box % 4 * 8, 8, 1),
        "global_dim": (tm.SIZES + 4 * dimension, 0, 32, 1),
        "element_stride": (tm.ELEMENT_STRIDES, 3 * dimension, 3, 1),
        "global_stride": (tm.STRIDES + 4 * dimension, 0, 64, 0),
    }.get(name)


class BulkFamilies(Operands):
    """`bulk`, to which `op_cp` goes for its bulk forms, and `op_tensormap`."""

    def bulk(self, i: Instruction) -> None:
        """Any instruction cp.async.bulk… or cp.reduce.async.bulk…."""
        if i.name.startswith("cp.async.bulk.prefetch"):
            return self.emit(op.NOTHING)
        if i.name == "cp.async.bulk.commit_group":
            return self.emit(op.BULK_COMMIT)
        if i.name in ("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read"):
            return self.emit(op.BULK_WAIT, int(i.operands[0]), int(i.name.endswith("read")))  # type: ignore[call-overload]
        words = i.name.split(".")
        m = COPY.fullmatch(".".join(word for word in words if word not in (*GROUPS, "multicast::cluster")))
        if not m or m["spaces"] not in (*LOADS, LOCAL, *STORES) or bool(m["reduce"]) != bool(m["operation"]):
            raise self.fail()
        load = m["spaces"] in (*LOADS, LOCAL)
        signal = m["first"] or m["second"]
        if (signal == "bulk_group") == load or (m["reduce"] and m["spaces"] in LOADS):
            raise self.fail()
        x = list(i.operands[: len(i.operands) - bool(m["hint"])])
        if load:
            return self.bulk_load(m, x, words)
        return self.bulk_store(i, m, x)

    def bulk_load(self, m: re.Match[str], x: list[object], words: list[str]) -> None:
        """To shared memory. The last operand of one to several CTAs is the mask of their ranks."""
        rank = int(m["rank"] or 0)
        mask = op.ABSENT
        if "multicast::cluster" in words:
            mask = self.value(x.pop(), 16)
        if len(x) != (3 if rank else 4) or (m["spaces"] == LOCAL and (rank or mask != op.ABSENT)):
            raise self.fail("has another number of operands than its form")
        to = self.address(x[0])
        source, coordinates = self.tensor(x[1], rank) if rank else (self.address(x[1]), [self.value(x[2], 32)])
        kind, operation = op.BULK_LOCAL if m["spaces"] == LOCAL else op.BULK_LOAD, 0
        if m["reduce"]:
            if m["type"] not in REDUCED_LOCAL[m["operation"]]:
                raise self.fail()
            operation = op.BULK_REDUCES | REDUCTIONS[m["operation"]] << 8 | TYPES[m["type"]]
        kind |= op.BULK_PAIR if "cta_group::2" in words else 0
        kind |= op.BULK_OWN if m["spaces"].startswith("shared::cta.") else 0
        self.bulk_copy(kind, rank, to, source, self.address(x[-1]), coordinates, operation, mask)

    def bulk_store(self, i: Instruction, m: re.Match[str], x: list[object]) -> None:
        rank = int(m["rank"] or 0)
        if len(x) != (2 if rank else 3):
            raise self.fail("has another number of operands than its form")
        to, coordinates = self.tensor(x[0], rank) if rank else (self.address(x[0]), [self.value(x[2], 32)])
        operation = 0
        if m["reduce"]:
            if rank == 0 and m["type"] not in REDUCED[m["operation"]]:
                raise self.fail()
            operation = REDUCTIONS[m["operation"]] << 8 | TYPES.get(m["type"], 0)
        elif m["type"]:
            raise self.fail()
        kind = op.BULK_REDUCE if m["reduce"] else op.BULK_STORE
        self.bulk_copy(kind, rank, self.address(x[1]), to, None, coordinates, operation)

    def tensor(self, x: object, rank: int) -> tuple[tuple[int, int, int], list[int]]:
        """[map, {coordinates}]: the map's address, and the places of the coordinates."""
        if not isinstance(x, tuple) or len(x) != 2:
            raise self.fail("has no tensor map with coordinates")
        given = x[1] if isinstance(x[1], tuple) else (x[1],)
        if len(given) != rank:
            raise self.fail("has another number of coordinates than dimensions")
        return self.address(x[0]), [self.value(one, 32) for one in given]

    def bulk_copy(
        self,
        kind: int,
        rank: int,
        shared: tuple[int, int, int],
        there: tuple[int, int, int],
        barrier: tuple[int, int, int] | None,
        coordinates: list[int],
        operation: int,
        mask: int = op.ABSENT,
    ) -> None:
        if not there[2] and kind & 15 != op.BULK_LOCAL:
            raise self.fail("has a global address of 32 bits")
        flags = kind | rank << op.BULK_RANK | (op.BULK_WIDE_SHARED if shared[2] else 0)
        flags |= op.BULK_WIDE_BARRIER if barrier and barrier[2] else 0
        flags |= op.BULK_WIDE_SOURCE if there[2] else 0
        self.granule = min(self.granule, 4)
        self.smallest = min(self.smallest, 4)
        self.emit(op.BULK, flags, shared[0], shared[1], there[0], there[1], barrier[0] if barrier else op.ABSENT,
                  barrier[1] if barrier else 0, *coordinates, *[0] * (5 - len(coordinates)), operation,
                  mask)  # fmt: skip

    def op_tensormap(self, i: Instruction) -> None:
        """tensormap.replace and tensormap.cp_fenceproxy."""
        if i.name.startswith("tensormap.cp_fenceproxy.global.shared::cta."):
            to, source = self.address(i.operands[0]), self.address(i.operands[1])
            if i.operands[2] != tm.SIZE:
                raise self.fail("copies another number of bytes than a tensor map has")
            widths = bool(to[2]) | bool(source[2]) << 1
            return self.emit(op.TENSOR_MAP_COPY, widths, to[0], to[1], source[0], source[1])
        m = re.fullmatch(r"tensormap\.replace\.tile\.(\w+)(?:\.(global|shared::cta))?\.b1024\.(b32|b64)", i.name)
        if not m:
            raise self.fail()
        if m[1] == "swizzle_atomicity" and i.operands[-1] == 0:
            return self.emit(op.NOTHING)
        field = list_field(m[1], int(i.operands[1])) if len(i.operands) == 3 else FIELDS.get(m[1])  # type: ignore[call-overload]
        if field is None:
            raise self.fail()
        x = i.operands[-1]
        if m[1] == "elemtype":
            if not isinstance(x, int):
                raise self.fail("wants its type as a number")
            x, rounds = tm.held_element(x)
            self.replace(i, m, ROUNDING, rounds)
        return self.replace(i, m, field, x)

    def replace(self, i: Instruction, m: re.Match[str], field: tuple[int, int, int, int], x: object) -> None:
        """Writes the value `x` to a field of the map."""
        place, immediate, wide = self.address(i.operands[0])
        space = SPACES[m[2]] if m[2] else op.GENERIC
        self.granule = min(self.granule, 4)
        value = self.value(x, BITS[m[3]])
        self.emit(op.TENSOR_MAP, field[0], place, immediate, wide | space << op.SPACE, value, *field[1:])
