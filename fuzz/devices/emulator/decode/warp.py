"""Decodes barriers and of instructions that carry values between lanes."""

from __future__ import annotations

import re
from dataclasses import replace

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.clusters import ClusterFamilies
from fuzz.devices.emulator.decode.wgmma_hazards import names
from fuzz.devices.emulator.ptx import Address, Instruction

LEAST_REGISTERS, MOST_REGISTERS = 24, 256  # of setmaxnreg
WORDS = ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")  # types that take registers of 32 bits of their own


class WarpFamilies(ClusterFamilies):
    """The methods named `op_…` handle one family each."""

    def op_bar(self, i: Instruction) -> None:
        if i.name.startswith("barrier.cluster"):
            return self.cluster_barrier(i)
        parts = [p for p in i.name.split(".")[1:] if p not in ("cta", "aligned")]
        if parts[:2] == ["warp", "sync"]:
            return self.emit(op.WARP_BARRIER, self.value(i.operands[0], 32))
        kinds = {"sync": op.SYNC, "arrive": op.ARRIVE}
        reductions = {"and": op.RED_AND, "or": op.RED_OR, "popc": op.RED_POPC}
        x = list(i.operands)
        if parts[0] in kinds:
            count = self.value(x[1], 32) if len(x) > 1 else op.ABSENT
            return self.emit(op.BARRIER, kinds[parts[0]], self.value(x[0], 32), count, op.ABSENT, 0, op.ABSENT)
        if parts[0] == "red" and parts[1] in reductions:
            predicate = str(x[-1])
            negated = predicate.startswith("!")
            width = 1 if parts[2] == "pred" else 32
            count = self.value(x[2], 32) if len(x) == 4 else op.ABSENT
            return self.emit(op.BARRIER, reductions[parts[1]], self.value(x[1], 32), count,
                             self.register(predicate.lstrip("!"), 1), int(negated),
                             self.register(str(x[0]), width))  # fmt: skip
        raise self.fail()

    op_barrier = op_bar

    def op_shfl(self, i: Instruction) -> None:
        m = re.fullmatch(r"shfl\.sync\.(up|down|bfly|idx)\.b32", i.name)
        if not m:
            raise self.fail()
        d = i.operands[0]
        target, predicate = d if isinstance(d, tuple) else (d, None)
        mode = {"up": op.UP, "down": op.DOWN, "bfly": op.BFLY, "idx": op.IDX}[m.group(1)]
        self.emit(op.SHUFFLE, mode, self.register(str(target), 32),
                  op.ABSENT if predicate in (None, "_") else self.register(str(predicate), 1),
                  *(self.value(x, 32) for x in i.operands[1:5]))  # fmt: skip

    def op_vote(self, i: Instruction) -> None:
        m = re.fullmatch(r"vote\.sync\.(all|any|uni|ballot)\.(pred|b32)", i.name)
        if not m:
            raise self.fail()
        mode = {"all": op.ALL, "any": op.ANY, "uni": op.UNI, "ballot": op.BALLOT}[m.group(1)]
        p = str(i.operands[1])
        self.emit(op.VOTE, mode, self.register(str(i.operands[0]), 32 if mode == op.BALLOT else 1),
                  self.register(p.lstrip("!"), 1), int(p.startswith("!")), self.value(i.operands[2], 32))  # fmt: skip

    def op_redux(self, i: Instruction) -> None:
        m = re.fullmatch(r"redux\.sync\.(add|min|max|and|or|xor)\.([usb])32", i.name)
        if not m:
            raise self.fail()
        code = ["add", "min", "max", "and", "or", "xor"].index(m.group(1)) * 2 + (m.group(2) == "s")
        self.emit(op.REDUX, code, self.register(str(i.operands[0]), 32), self.value(i.operands[1], 32),
                  self.value(i.operands[2], 32))  # fmt: skip

    def op_match(self, i: Instruction) -> None:
        m = re.fullmatch(r"match\.(any|all)\.sync\.b(32|64)", i.name)
        if not m:
            raise self.fail()
        d = i.operands[0]
        target, predicate = d if isinstance(d, tuple) else (d, None)
        width = int(m.group(2))
        self.emit(op.MATCH, int(m.group(1) == "all"), self.register(str(target), 32),
                  op.ABSENT if predicate in (None, "_") else self.register(str(predicate), 1),
                  self.value(i.operands[1], width), int(width == 64), self.value(i.operands[2], 32))  # fmt: skip

    def op_mbarrier(self, i: Instruction) -> None:
        """mbarrier objects, of the own CTA or of another one of the cluster."""
        words = i.name.split(".")[1:]
        known = ("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait",
                 "parity", "b64", "shared", "shared::cta", "shared::cluster", "acquire", "release", "relaxed", "cta",
                 "cluster")  # fmt: skip
        if not set(words) <= set(known):
            raise self.fail()
        x = list(i.operands)
        returns = not isinstance(x[0], Address)
        d = x.pop(0) if returns else "_"
        place, immediate, wide = self.address(x[0])
        space = op.SHARED if {"shared", "shared::cta"} & set(words) else op.GENERIC
        if "shared::cluster" in words:
            space = self.shared_cluster()
        flags = wide | space << op.SPACE | (op.MB_RELAXED if "relaxed" in words else 0)
        self.granule = min(self.granule, 4)
        if words[0] in ("test_wait", "try_wait"):
            parity = "parity" in words
            kind = op.MB_TEST_PARITY if parity else op.MB_TEST_STATE
            return self.emit(op.MBARRIER, kind | flags, place, immediate, self.register(str(d), 1),
                             self.value(x[1], 32 if parity else 64))  # fmt: skip
        kinds = {"init": op.MB_INIT, "arrive": op.MB_ARRIVE, "arrive_drop": op.MB_DROP, "expect_tx": op.MB_EXPECT,
                 "inval": op.MB_INVALIDATE, "complete_tx": op.MB_COMPLETE}  # fmt: skip
        kind = kinds[words[0]]
        if kind != op.MB_EXPECT and "expect_tx" in words:
            if kind != op.MB_ARRIVE:
                raise self.fail()
            kind = op.MB_ARRIVE_EXPECT
        return self.emit(op.MBARRIER, kind | flags, place, immediate,
                         op.ABSENT if d == "_" else self.register(str(d), 64),
                         self.value(x[1], 32) if len(x) > 1 else op.ABSENT)  # fmt: skip

    def op_griddepcontrol(self, i: Instruction) -> None:
        """Does nothing: a launch begins when the one before it has finished."""
        self.emit(op.NOTHING)

    def op_setmaxnreg(self, i: Instruction) -> None:
        """setmaxnreg.inc and .dec: registers that a warp may use."""
        m = re.fullmatch(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32", i.name)
        count = i.operands[0] if len(i.operands) == 1 else None
        if not m:
            raise self.fail()
        if not isinstance(count, int) or count % 8 or not LEAST_REGISTERS <= count <= MOST_REGISTERS:
            raise self.fail("has a count that PTX does not allow: it must be a multiple of 8 from 24 to 256")
        return self.emit(op.REGISTERS, int(m[1] == "inc"), count)

    def registers_used(self, i: Instruction) -> None:
        """Emits the number of registers that the next instruction names, where a warp may have fewer."""
        named = set(names(i.operands))
        count = sum(max(1, self.width_of(name) // 32) for name in named if self.kernel.registers.get(name) in WORDS)
        if count > LEAST_REGISTERS:
            self.emit(op.REGISTERS_USED, count)

    def note_undefined(self, register: str) -> None:
        """Emits that the next instruction reads a register that nothing has given a value: under the instruction's
        guard, where that is another one."""
        i = self.now
        self.now = replace(i, guard=None) if i.guard == register else i
        self.emit(op.UNDEFINED, list(self.kernel.registers).index(register))
        self.now = self.source[-1] = i

    def op_activemask(self, i: Instruction) -> None:
        self.emit(op.ACTIVE_MASK, self.register(str(i.operands[0]), 32))

    def op_elect(self, i: Instruction) -> None:
        d = i.operands[0]
        if not isinstance(d, tuple):
            raise self.fail()
        target = op.ABSENT if d[0] == "_" else self.register(str(d[0]), 32)
        self.emit(op.ELECT, target, self.register(str(d[1]), 1), self.value(i.operands[1], 32))
