"""Reads findings and the graph of a deadlock out of a machine that has stopped."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.decoder import Program
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.ptx import Instruction
from fuzz.devices.emulator.report.deadlock import Cta, Deadlock, Waiting
from fuzz.devices.emulator.report.endless import cta_at
from fuzz.devices.emulator.report.kinds import KIND_NAMES, sentence
from fuzz.devices.emulator.report.report import Finding
from fuzz.devices.emulator.report.seen import Seen
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.global_memory import Memory
from fuzz.devices.emulator.state.machine import Machine
from fuzz.devices.emulator.state.mbarrier_word import describe, parity

LOOP = 6  # micro-operations in which a loop that waits for an mbarrier has the question
WATCHED = 4  # addresses of a spin that a report names
IN_BYTES = (st.F_SHARED_BOUNDS, st.F_BULK_FORM, st.F_ALIGN)  # findings whose sentence has the address itself


@dataclass(frozen=True)
class Stopped:
    """A launch that has stopped: its machine, and what its numbers mean."""

    m: Machine
    program: Program
    launch: Launch
    memory: Memory

    def findings(self) -> list[Finding]:
        """All findings, in the order in which they were made."""
        return [self._finding(i) for i in range(int(self.m.k[st.K_FINDINGS]))]

    def waiting(self) -> dict[int, Waiting]:
        """The warps that wait, by their index, with the values that memory holds now."""
        asleep = (st.AT_BARRIER, st.ASLEEP, st.AT_ALLOC, st.AT_REGISTERS, st.AT_PRODUCTS)
        return {w: self._waiting(w) for w in range(len(self.m.status)) if self.m.status[w] in asleep}

    def deadlock(self, waiting: dict[int, Waiting], explored: int) -> Deadlock:
        """The graph, after CTAs that had not started were run to see what they would write."""
        k = self.m.k
        rows = []
        for w, waits in waiting.items():
            number = int(self.m.writer[w])
            rows.append(replace(waits, writer=self._cta(int(self.m.order[number - 1])) if number else None))
        rows.sort(key=lambda one: (one.cta[::-1], not one.location, one.warp))
        ctas = self.m.cta[: -int(k[st.K_CLUSTER])]
        resident = int(((ctas[:, st.CTA_INDEX] >= 0) & (ctas[:, st.CTA_WARPS] > 0)).sum())
        left = int(k[st.K_CTAS] - k[st.K_NEXT])
        return Deadlock(
            tuple(rows), resident, int(k[st.K_FINISHED]), left, int(k[st.K_RESIDENT_CTAS]), explored,
            int(k[st.K_CANCELLED]),
        )  # fmt: skip

    def _cta(self, linear: int) -> Cta:
        return cta_at(linear, self.launch.grid)

    def _place(self, address: int, axes: bool = True, cta: Cta | None = None) -> str:
        """An address in words. cta: whose warp uses it."""
        if address >> op.SHIFT >= op.FIRST_SEGMENT:
            return self.memory.describe(address, axes)
        if address >> op.SHIFT == op.PARAM_WINDOW >> op.SHIFT:
            return f"byte {address - op.PARAM_WINDOW} of the kernel's parameters"
        where, owner = self._shared(address, cta)
        return f"shared memory byte {where}{f' of CTA {owner}' if owner and owner != cta else ''}"

    def _shared(self, address: int, cta: Cta | None) -> tuple[int, Cta | None]:
        """(place in a CTA's own shared memory, the CTA that has it) of an address that a warp of `cta` uses; None: its
        own. Other addresses as they are."""
        if address >> op.SHIFT == op.SHARED_WINDOW >> op.SHIFT:
            address -= op.SHARED_WINDOW
        if address >> op.SHIFT > 0:
            return address, None
        if int(self.m.k[st.K_CLUSTER]) == 1 or cta is None or not address & op.CLUSTER_FLAG:
            return address - op.RESERVED_SHARED, None
        sizes = [int(self.m.k[st.K_CLUSTER_X + axis]) for axis in range(3)]
        rank = address >> op.RANK_BIT & op.RANKS
        inside = rank % sizes[0], rank // sizes[0] % sizes[1], rank // (sizes[0] * sizes[1])
        x, y, z = (at // size * size + own for at, size, own in zip(cta, sizes, inside, strict=True))
        return (address & op.OFFSET) - op.RESERVED_SHARED, (x, y, z)

    def _finding(self, index: int) -> Finding:
        row = [int(v) for v in self.m.findings[index]]
        kind, address, size, value = row[st.C_KIND], row[st.C_ADDRESS], row[st.C_SIZE], row[st.C_VALUE]
        source = self.program.source[row[st.C_PC]]
        cta, warp = self._cta(row[st.C_CTA]), row[st.C_WARP]
        other, own = "", False
        if row[st.C_OTHER_CTA] >= 0:
            its = self._cta(row[st.C_OTHER_CTA])
            other, own = (
                self._entity(its, row[st.C_OTHER_WARP], row[st.C_OTHER_PC]),
                (its, row[st.C_OTHER_WARP]) == (cta, warp),
            )
        there, owner = self._shared(address, cta)
        if kind in IN_BYTES:
            address = there
        remote = owner not in (None, cta)
        seen = Seen(
            kind, source.text, self._place(row[st.C_ADDRESS], cta=cta), address, size, value, row[st.C_LANE],
            self.memory.shape(address),
            other, own, int(self.m.k[st.K_THREADS]),
            self.program.source[value].text if kind == st.F_WARPGROUP and value >= 0 else "", remote,
            list(self.program.kernel.registers)[value].partition("@")[0] if kind == st.F_UNDEFINED else "",
        )  # fmt: skip
        return Finding(
            KIND_NAMES[kind], self.program.kernel.name, source.text, source.line, cta, warp, row[st.C_LANE], address,
            size, self._place(row[st.C_ADDRESS], axes=False, cta=cta), sentence(seen),
            self.program.kernel.place(source),
        )  # fmt: skip

    def _entity(self, cta: Cta, local: int, pc: int) -> str:
        """A warp, or what makes bulk copies, in words. local: its number in the CTA; pc: of its last copy, or -1."""
        if local < int(self.m.k[st.K_WARPS]):
            return f"CTA {cta} warp {local}"
        if pc < 0:
            return f"a bulk copy of CTA {cta}"
        source = self.program.source[pc]
        where = self.program.kernel.place(source)
        if not source.name.startswith("cp."):
            what = ".".join(source.name.split(".")[:2])
            return f"the {what} of {f'{where}, ' if where else ''}PTX line {source.line} of CTA {cta}"
        return f"the bulk copy of {f'{where}, ' if where else ''}PTX line {source.line} of CTA {cta}"

    def _waiting(self, w: int) -> Waiting:
        m, warps = self.m, int(self.m.k[st.K_WARPS])
        slot = w // warps
        cta = self._cta(int(m.cta[slot, st.CTA_INDEX]))
        if m.status[w] == st.AT_BARRIER:
            source = self.program.source[int(m.pc[w]) - 1]
            number = int(m.barrier_at[w, st.AT_NUMBER])
            expected = int(m.expected[slot, number]) or 32 * int(m.cta[slot, st.CTA_WARPS])
            what = f"at barrier {number}, where {int(m.arrived[slot, number])} of {expected} threads have arrived"
            return Waiting(cta, w % warps, source.line, source.text, what, source=self.program.kernel.place(source))
        if m.status[w] == st.AT_ALLOC:
            source = self.program.source[int(m.pc[w])]
            taken = int((m.columns[slot // int(m.k[st.K_TENSOR_SHARE]), :, st.U_OWNER] > 0).sum())
            what = f"for columns of tensor memory, of which {32 * taken} are taken"
            if m.tensor_cta[slot, st.TC_ASKED] > m.tensor_cta[slot, st.TC_PASSED]:
                what = "for the tcgen05.alloc of the other CTA of its pair, or " + what
            return Waiting(cta, w % warps, source.line, source.text, what, source=self.program.kernel.place(source))
        if m.status[w] == st.AT_REGISTERS:
            source = self.program.source[int(m.pc[w])]
            return Waiting(
                cta, w % warps, source.line, source.text, self._missing_registers(w, source),
                source=self.program.kernel.place(source),
            )  # fmt: skip
        if m.status[w] == st.AT_PRODUCTS:
            source = self.program.source[int(m.pc[w])]
            what = "for the products of its warpgroup's other warps"
            return Waiting(cta, w % warps, source.line, source.text, what, source=self.program.kernel.place(source))
        if m.cluster[w, st.CL_WAITING] and m.status[w] == st.ASLEEP:
            lane = int(m.cluster[w, st.CL_WAITING]).bit_length() - 1
            source = self.program.source[int(m.lane_pc[w, lane])]
            what = f"at barrier.cluster, where {self._absent(slot)}"
            return Waiting(cta, w % warps, source.line, source.text, what, source=self.program.kernel.place(source))
        lane = max(int(m.asleep[w]).bit_length() - 1, 0)
        pc = int(m.lane_pc[w, lane])
        source = self.program.source[pc]
        watched = [self._watched(w, i, pc, cta) for i in range(min(int(m.watched[w]), WATCHED))]
        if len(watched) != 1:
            what = f"for a change of {', '.join(text for text, _, _ in watched)}"
            return Waiting(cta, w % warps, source.line, source.text, what, source=self.program.kernel.place(source))
        ((text, location, value),) = watched
        place = int(m.wanted[pc])
        wanted = None if place == op.ABSENT else self._register(w, lane, place)
        what = f"for {text} to {'change' if wanted is None else f'become {wanted}'}"
        return Waiting(
            cta, w % warps, source.line, source.text, what, location, value, wanted,
            source=self.program.kernel.place(source),
        )  # fmt: skip

    def _missing_registers(self, w: int, source: Instruction) -> str:
        """The registers that a warp at setmaxnreg.inc waits for, and the warps of its CTA that have them."""
        m, warps = self.m, int(self.m.k[st.K_WARPS])
        slot, now = w // warps, int(m.limits[w, st.LIM_NOW])
        has: dict[int, list[str]] = {}
        for other in range(warps):
            has.setdefault(int(m.limits[slot * warps + other, st.LIM_NOW]), []).append(str(other))
        held = "; ".join(f"warp{'s' * (len(who) > 1)} {', '.join(who)}: {n}" for n, who in has.items() if n)
        return (
            f"for {int(str(source.operands[0])) - now} more registers of each thread, of which its CTA has "
            f"{int(m.cta[slot, st.CTA_REGISTERS])} free; {held}"
        )

    def _absent(self, slot: int) -> str:
        """Who has not arrived at the barrier of a cluster."""
        m, warps = self.m, int(self.m.k[st.K_WARPS])
        first = slot - int(m.cta[slot, st.CTA_RANK])
        absent = []
        for its in range(first, first + int(m.k[st.K_CLUSTER])):
            missing = [i for i in range(warps) if m.alive[its * warps + i] & ~m.cluster[its * warps + i, st.CL_ARRIVED]]
            if missing:
                which = f"warp{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                absent.append(f"{which} of CTA {self._cta(int(m.cta[its, st.CTA_INDEX]))}")
        return f"{' and '.join(absent)} {'has' if len(absent) == 1 and ',' not in which else 'have'} not arrived"

    def _arrivals(self, slot: int, host: int) -> str:
        """Who of a cluster has arrived at the mbarrier at a host address, in a launch with clusters."""
        m, ctas = self.m, int(self.m.k[st.K_CLUSTER])
        if ctas == 1:
            return ""
        word = ctypes.c_int64.from_address(host).value
        rows = m.arrivals[slot, : int(m.cta[slot, st.CTA_ARRIVALS])]
        row = next((row for row in rows.tolist() if row[st.AR_HOST] == host), None)
        if row is None:
            return "; no CTA of the cluster has arrived at it"
        now = row[st.AR_RANKS] if row[st.AR_PHASE] == parity(word) else 0
        first = slot - int(m.cta[slot, st.CTA_RANK])
        names = [f"CTA {self._cta(int(m.cta[first + rank, st.CTA_INDEX]))}" for rank in range(ctas)]
        told = []
        for when, ranks in (("this phase", now), ("earlier ones", row[st.AR_EVER] & ~now)):
            told += [f"{name} has arrived in {when}" for rank, name in enumerate(names) if ranks >> rank & 1]
        return f"; {', '.join(told)}"

    def _watched(self, w: int, i: int, pc: int, cta: Cta) -> tuple[str, str, int | None]:
        """(with its value in words, location, value) of an address that a spin reads."""
        address, host = int(self.m.watch_virtual[w, i]), int(self.m.watch[w, i])
        name = self._place(address, cta=cta)
        loop = self.program.code[pc : pc + LOOP, 0]
        if address >> op.SHIFT < op.FIRST_SEGMENT and (loop == op.MBARRIER).any():
            state = describe(ctypes.c_int64.from_address(host).value)
            return f"{name} ({state}{self._arrivals(w // int(self.m.k[st.K_WARPS]), host)})", "", None
        value = ctypes.c_int32.from_address(host).value
        return f"{name} = {value}", name, value

    def _register(self, w: int, lane: int, place: int) -> int:
        """What the operand at `place` holds for a lane, as 32 bits with a sign."""
        k = self.m.k
        base = int(k[st.K_REGISTERS] + w * k[st.K_STRIDE]) + place if place >= 0 else int(k[st.K_CONSTANTS]) + ~place
        return ctypes.c_int32.from_address(base + 4 * lane).value
