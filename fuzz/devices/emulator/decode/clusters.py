"""Decodes what CTAs of a cluster share: its barrier, and addresses of each other's shared memory."""

from __future__ import annotations

import re

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.operands import Operands
from fuzz.devices.emulator.ptx import Instruction

BARRIERS = {("arrive",): op.CLUSTER_ARRIVE, ("arrive", "release"): op.CLUSTER_ARRIVE,
            ("arrive", "relaxed"): op.CLUSTER_ARRIVE_RELAXED, ("wait",): op.CLUSTER_WAIT,
            ("wait", "acquire"): op.CLUSTER_WAIT}  # fmt: skip
OF_RANK = op.RANKS << op.RANK_BIT


class ClusterFamilies(Operands):
    """The methods named `op_…` handle one family each; `op_barrier` goes to `cluster_barrier`."""

    def cluster_barrier(self, i: Instruction) -> None:
        """barrier.cluster.arrive and .wait."""
        words = tuple(word for word in i.name.split(".")[2:] if word != "aligned")
        if words not in BARRIERS:
            raise self.fail()
        self.emit(op.CLUSTER_ALIGNED if i.name.endswith(".aligned") else op.CLUSTER, BARRIERS[words])

    def op_mapa(self, i: Instruction) -> None:
        """mapa: an address of shared memory, as it is in the CTA of a rank. Where every CTA is a cluster of its own, it
        is the address."""
        m = re.fullmatch(r"mapa(?:\.shared::cluster)?\.u(32|64)", i.name)
        if not m:
            raise self.fail()
        d, address, rank = i.operands
        kind = f"b{m[1]}"
        if not self.clustered:
            return self.form(f"mov.{kind}", d, address)
        shifted, kept = self.temporary(kind), self.temporary(kind) + "_mapa"
        self.kernel.registers.setdefault(kept, kind)
        if m[1] == "64" and not isinstance(rank, int):
            self.form("cvt.u64.u32", shifted, rank)
            rank = shifted
        self.form(f"shl.{kind}", shifted, rank, op.RANK_BIT)
        self.form(f"or.{kind}", shifted, shifted, op.CLUSTER_FLAG)
        self.form(f"and.{kind}", kept, address, ~OF_RANK)
        return self.form(f"or.{kind}", d, kept, shifted)

    def op_getctarank(self, i: Instruction) -> None:
        """getctarank: the rank of the CTA that has an address of shared memory."""
        m = re.fullmatch(r"getctarank(?:\.shared::cluster)?\.u(32|64)", i.name)
        if not m:
            raise self.fail()
        d, address = i.operands
        if not self.clustered:
            return self.form("mov.b32", d, 0)
        if m[1] == "64":
            self.form("low.b64", low := self.temporary("b32"), address)
            address = low
        self.form("shr.u32", d, address, op.RANK_BIT)
        return self.form("and.b32", d, d, op.RANKS)

    def is_own_shared(self, i: Instruction) -> None:
        """isspacep.shared: is a generic address in the CTA's own shared memory?"""
        base, high = self.temporary("b64"), self.temporary("b64") + "_window"
        self.kernel.registers.setdefault(high, "b64")
        self.form("cvt.u64.u32", base, "%shared_base")
        self.form("or.b64", base, base, op.SHARED_WINDOW)
        self.form("and.b64", high, i.operands[1], ~op.OFFSET)
        self.form("setp.eq.b64", i.operands[0], high, base)
