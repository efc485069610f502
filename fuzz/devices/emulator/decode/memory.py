"""Decodes loads, stores, atomics, matrix loads, asynchronous copies and fences."""

from __future__ import annotations

import re

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.decode.async_stores import AsyncStoreFamilies
from fuzz.devices.emulator.decode.bulk import BulkFamilies
from fuzz.devices.emulator.decode.cluster_launch import ClusterLaunchFamilies
from fuzz.devices.emulator.decode.operands import BITS, CACHE, SPACES
from fuzz.devices.emulator.ptx import Instruction


class MemoryFamilies(BulkFamilies, AsyncStoreFamilies, ClusterLaunchFamilies):
    """The methods named `op_…` handle one family each."""

    def memory_flags(self, i: Instruction, parts: list[str]) -> tuple[int, int, str]:
        """(flags, vector length, type) from the words of ld, st, atom and red."""
        flags, count, kind, space = 0, 1, "", op.GENERIC
        for part in parts:
            if part in SPACES:
                space = SPACES[part]
            elif part == "shared::cluster":
                space = self.shared_cluster()
            elif part in BITS:
                kind = part
            elif part in ("v2", "v4", "v8"):
                count = int(part[1])
            elif part in ("relaxed", "mmio"):
                flags |= 1 << op.STRONG
            elif part == "volatile":
                flags |= 1 << op.STRONG | 1 << op.VOLATILE
            elif part == "cta":
                flags |= 1 << op.CTA_SCOPE
            elif part == "acquire":
                flags |= (1 << op.STRONG) | (1 << op.ACQUIRE)
            elif part == "release":
                flags |= (1 << op.STRONG) | (1 << op.RELEASE)
            elif part == "acq_rel":
                flags |= (1 << op.STRONG) | (1 << op.RELEASE) | (1 << op.ACQUIRE)
            elif part in ("gpu", "sys", "cluster") or CACHE.match(part):
                continue
            else:
                raise self.fail(f"has the unknown part {part!r}")
        if not kind:
            raise self.fail()
        size = BITS[kind] // 8
        if space in (op.SHARED, op.GENERIC, op.SHARED_CLUSTER):
            self.granule = min(self.granule, size)
        if space in (op.GLOBAL, op.GENERIC):
            self.smallest = min(self.smallest, size)
        flags |= count << op.COUNT | size << op.SIZE | space << op.SPACE | (kind[0] == "s") << op.SIGNED
        return flags, count, kind

    def op_ld(self, i: Instruction) -> None:
        i = self.wide_access(i, 0) if i.name.endswith(".b128") else i
        flags, count, _ = self.memory_flags(i, i.name.split(".")[1:])
        targets = i.operands[0] if isinstance(i.operands[0], tuple) else (i.operands[0],)
        self.transfer(op.LOAD, i, flags, count, targets, i.operands[1])

    op_ldu = op_ld

    def op_st(self, i: Instruction) -> None:
        if i.name.startswith("st.async"):
            return self.store_async(i)
        i = self.wide_access(i, 1) if i.name.endswith(".b128") else i
        flags, count, _kind = self.memory_flags(i, i.name.split(".")[1:])
        x = i.operands[1]
        vector = isinstance(x, tuple) and x[0] not in ("f32", "f64")
        return self.transfer(op.STORE, i, flags, count, x if vector else (x,), i.operands[0])  # type: ignore[arg-type]

    def transfer(
        self, number: int, i: Instruction, flags: int, count: int, registers: tuple[object, ...], at: object
    ) -> None:
        if len(registers) != count:
            raise self.fail("has another number of registers than elements")
        place, immediate, wide = self.address(at)
        size = flags >> op.SIZE & 255
        widths = {self.width_of(r) for r in registers if isinstance(r, str) and r != "_" and r not in self.variables}
        width = widths.pop() if widths else max(16, 8 * size)
        if widths or 8 * size > width:
            raise self.fail("has registers of different or too small widths")
        if width == 64:
            flags |= 1 << op.WIDE
        elif width == 16:
            flags |= 1 << op.HALF
        words = [op.ABSENT if r == "_" else self.value(r, width) for r in registers]
        self.emit(number, flags | wide, place, immediate, *words)

    def op_atom(self, i: Instruction) -> None:
        self.atomic(i, i.operands[0], i.operands[1], i.operands[2:])

    def op_red(self, i: Instruction) -> None:
        if i.name.startswith("red.async"):
            return self.reduce_async(i)
        return self.atomic(i, None, i.operands[0], i.operands[1:])

    def atomic(self, i: Instruction, d: object, at: object, values: tuple[object, ...]) -> None:
        operations = {"add": op.ADD, "min": op.MIN, "max": op.MAX, "inc": op.INC, "dec": op.DEC,
                      "and": op.AND, "or": op.OR,
                      "xor": op.XOR, "exch": op.EXCH, "cas": op.CAS}  # fmt: skip
        types = {"u32": op.T_U32, "b32": op.T_U32, "s32": op.T_S32, "u64": op.T_U64, "b64": op.T_U64, "s64": op.T_S64,
                 "f32": op.T_F32, "f64": op.T_F64, "f16": op.T_F16, "bf16": op.T_BF16, "f16x2": op.T_F16X2,
                 "bf16x2": op.T_BF16X2}  # fmt: skip
        parts = [p for p in i.name.split(".")[1:] if p != "noftz"]
        operation = [p for p in parts if p in operations]
        if len(operation) != 1:
            raise self.fail()
        rest = [p for p in parts if p not in operations]
        flags, count, kind = self.memory_flags(i, rest)
        flags |= 1 << op.STRONG
        if kind not in types or (types[kind] > op.T_F64 and operation != ["add"]):
            raise self.fail()
        place, immediate, wide = self.address(at)
        width = max(BITS[kind], 16)
        flags |= (width == 64) << op.WIDE
        if count > 1:
            self.atomic_vector(d, values, flags | wide, place, immediate, count, kind, width, operations[operation[0]])
            return
        target = op.ABSENT if d in (None, "_") else self.register(str(d), width)
        words = [self.value(v, width) for v in values] + [op.ABSENT]
        self.emit(op.ATOMIC, flags | wide, place, immediate, target, words[0], words[1],
                  operations[operation[0]] << 8 | types[kind])  # fmt: skip

    def atomic_vector(self, d: object, values: tuple[object, ...], flags: int, place: int, immediate: int,
                      count: int, kind: str, width: int, operation: int) -> None:  # fmt: skip
        """A vector atomic is one atomic per element (PTX promises no more), the first carrying the vector's order."""
        types = {"f32": op.T_F32, "f16": op.T_F16, "bf16": op.T_BF16, "f16x2": op.T_F16X2, "bf16x2": op.T_BF16X2}
        if kind not in types or not isinstance(values[0], tuple):
            raise self.fail()
        for n, v in enumerate(values[0]):
            target = op.ABSENT if d is None else self.register(str(d[n]), width)  # type: ignore[index]
            single = flags & ~(255 << op.COUNT) | 1 << op.COUNT
            self.emit(op.ATOMIC, single, place, immediate + n * BITS[kind] // 8, target, self.value(v, width),
                      op.ABSENT,                       operation << 8 | types[kind])  # fmt: skip

    def op_ldmatrix(self, i: Instruction) -> None:
        m = re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", i.name)
        self.matrix(op.LDMATRIX, i, m, i.operands[0], i.operands[1])

    def op_stmatrix(self, i: Instruction) -> None:
        m = re.fullmatch(r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", i.name)
        self.matrix(op.STMATRIX, i, m, i.operands[1], i.operands[0])

    def matrix(self, number: int, i: Instruction, m: re.Match[str] | None, registers: object, at: object) -> None:
        if m is None or i.guard:
            raise self.fail()
        count = int(m.group(1))
        names = registers if isinstance(registers, tuple) else (registers,)
        if len(names) != count:
            raise self.fail("has another number of registers than matrices")
        place, immediate, wide = self.address(at)
        words = [self.value(r, 32) for r in names] + [op.ABSENT] * (4 - count)
        self.emit(number, op.SHARED << op.SPACE | wide, place, immediate, *words, count, int(m.group(2) is not None))

    def op_cp(self, i: Instruction) -> None:
        name = i.name
        if name.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
            return self.bulk(i)
        if name == "cp.async.commit_group":
            return self.emit(op.CP_COMMIT)
        if name == "cp.async.wait_group":
            return self.emit(op.CP_WAIT, int(i.operands[0]))  # type: ignore[call-overload]
        if name == "cp.async.wait_all":
            return self.emit(op.CP_WAIT, -1)
        if name.startswith("cp.async.mbarrier.arrive"):
            return self.arrive_after_copies(i)
        m = re.fullmatch(r"cp\.async\.(ca|cg)\.shared(?:::cta)?\.global((?:\.L2::\w+)*)", name)
        if not m:
            raise self.fail()
        size = int(i.operands[2])  # type: ignore[call-overload]
        if size not in (4, 8, 16):
            raise self.fail(f"copies {size} bytes")
        to, to_immediate, to_wide = self.address(i.operands[0])
        at, at_immediate, at_wide = self.address(i.operands[1])
        rest = list(i.operands[3:])
        if ".L2::cache_hint" in m.group(2):
            rest = rest[:-1]
        source = self.value(rest[0], 32) if rest else op.ABSENT
        if not at_wide:
            raise self.fail("has a global address of 32 bits")
        return self.emit(op.CP_ASYNC, to_wide, to, to_immediate, at, at_immediate, size, source)

    def arrive_after_copies(self, i: Instruction) -> None:
        """cp.async.mbarrier.arrive: an arrival when the thread's copies are done. They are done at once, which PTX
        allows. Without .noinc the arrival is one more than the mbarrier counts: nothing is left of both."""
        m = re.fullmatch(r"cp\.async\.mbarrier\.arrive(\.noinc)?((?:\.shared(?:::cta)?)?)\.b64", i.name)
        if not m:
            raise self.fail()
        self.emit(op.CP_WAIT, -1)
        place, immediate, wide = self.address(i.operands[0])
        space = op.SHARED if m[2] else op.GENERIC
        self.granule = min(self.granule, 4)
        self.emit(op.MBARRIER, op.MB_ARRIVE | wide | space << op.SPACE, place, immediate, op.ABSENT,
                  self.value(int(m[1] is not None), 32))  # fmt: skip

    def op_prefetch(self, i: Instruction) -> None:
        self.emit(op.NOTHING)

    op_prefetchu = op_prefetch
    op_applypriority = op_prefetch
    op_discard = op_prefetch

    def op_createpolicy(self, i: Instruction) -> None:
        """A cache policy changes no result."""
        self.form("mov.b64", i.operands[0], 0)

    def op_fence(self, i: Instruction) -> None:
        parts = i.name.split(".")[1:]
        if parts == ["mbarrier_init", "release", "cluster"]:
            return self.emit(op.CLUSTER, op.CLUSTER_FENCE_INITS) if self.clustered else self.emit(op.NOTHING)
        if parts[:2] == ["proxy", "async"] and parts[2:] in ([], ["global"], ["shared::cta"], ["shared::cluster"]):
            spaces = {"": 7, "global": 2, "shared::cta": 1, "shared::cluster": 5}
            return self.emit(op.PROXY_FENCE, spaces["".join(parts[2:])])
        if parts[:2] == ["proxy", "tensormap::generic"]:  # a tensor map is read when the copy is issued
            return self.emit(op.NOTHING)
        if "proxy" in parts or not set(parts) <= {
            "acq_rel",
            "sc",
            "acquire",
            "release",
            "cta",
            "gpu",
            "sys",
            "cluster",
            "fence",
        }:
            raise self.fail()
        return self.emit(op.FENCE, 0 if "cta" in parts else (2 if "sys" in parts else 1))

    def op_membar(self, i: Instruction) -> None:
        self.emit(op.FENCE, {"cta": 0, "gl": 1, "sys": 2}[i.name.split(".")[-1]])
