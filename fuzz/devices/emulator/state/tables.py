"""The state of a running launch: tables of int64 that compiled code shares with Python.

Compiled code gets one address, that of a list of the tables' addresses, and reads them as `m.pc[w]`, `m.lane_pc[w,
lane]`: two loads, no array objects and no reference counts. Python sees them as numpy arrays (machine.py). A warp's
index is row of `cta` * warps per CTA + warp. Scalars of the launch live in `k`.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

intrinsic: Any = _intrinsic
WATCHED = 256  # addresses that a spinning warp is watched for
COPIES = 16384  # asynchronous copies in flight, per warp
FINDINGS = 256
WGMMAS = 256  # wgmma in flight, per warp
TENSOR_ACCESSES = 256  # tcgen05.ld and .st in flight, per warp
PRINTS = 1 << 12  # texts that lanes print in a launch
PRINTED_WORDS = 31  # of 8 bytes, of the arguments of each
ISSUES = 64  # wgmma of a warpgroup that are remembered for its slower warps
BULKS = 256  # bulk copies in flight, per CTA
MOST_CTAS = 16  # of a cluster
AGENTS = 24  # that make a CTA's bulk copies, see sanitize/bulk_clocks.py
ARRIVALS = 64  # mbarriers of a CTA whose arrivals are remembered, in a launch with clusters

# name → inner dimensions; the outermost one is free: W resident warps, S resident CTAs, n micro-operations
TABLES: dict[str, tuple[int, ...]] = {
    "k": (),  # launch constants and counters, see below
    "segments": (8,),  # by number of the segment
    "pc": (),  # (W) where the running lanes are
    "mask": (),  # (W) the lanes that run
    "stop": (),  # (W) the next place where other lanes wait to run
    "alive": (),  # (W) lanes that have not exited
    "parked": (),  # (W) lanes that wait for others of the warp at a .sync instruction
    "asleep": (),  # (W) lanes that spin on unchanged memory
    "status": (),  # (W)
    "slot": (),  # (W) row of `cta` of its CTA
    "lane_pc": (32,),  # (W)
    "barrier_at": (3,),  # (W) what the warp waits for at a barrier, columns AT_…
    "arrived": (16,),  # (S) threads at each barrier
    "expected": (16,),  # (S) threads; 0: all that live
    "gathered": (16, 3),  # (S) a barrier's reductions so far, columns RED_…
    "cta": (22,),  # (S) the resident CTA, columns CTA_…
    "cluster_inits": (),  # (W) clock of the last mbarrier.init that a fence.mbarrier_init has made visible, 0: none
    "cluster": (3,),  # (W) lanes at the barrier of the cluster, columns CL_…
    "arrivals": (ARRIVALS, 4),  # (S) who of the cluster has arrived at an mbarrier, columns AR_…
    "bulk": (BULKS + 1, 24),  # (S) bulk copies in flight, columns B_…; the last is one that is being issued
    "bulk_groups": (32,),  # (W) bulk groups that each lane has committed
    "agents": (AGENTS, 3),  # (S) see sanitize/bulk_clocks.py, columns AGENT_…
    "wrote": (),  # (W) has it written since its spin began to be counted
    "spin": (4,),  # (W) columns SPIN_…
    "watch": (WATCHED,),  # (W) host addresses read since the copy
    "watch_value": (WATCHED,),  # (W) what was read there, see addressing.value_at
    "watch_virtual": (WATCHED,),  # (W) the same as the kernel knows them
    "watched": (),  # (W) how many, -1: too many
    "writer": (),  # (W) 1 + the position of a CTA that would end the warp's wait, see interpreter.explore
    "groups": (32,),  # (W) cp.async groups that each lane has committed
    "copies": (COPIES, 8),  # (W) pending cp.async, columns COPY_…
    "pending": (),  # (W) how many
    "group": (8,),  # (W) groups of wgmma, columns G_…
    "lanes": (6 + MOST_CTAS,),  # (W) its lanes since they were last in step, columns LANES_…
    "limits": (6,),  # (W) registers of a thread, columns LIM_…
    "wgmmas": (WGMMAS, 12),  # (W) in flight, columns W_…
    "issues": (ISSUES, 4),  # (first warp of a warpgroup) the last wgmma issued, columns I_…
    "columns": (16, 5),  # (S) 32 columns of tensor memory each: whose they are, columns U_…
    "tensor_cta": (5,),  # (S) columns TC_…
    "tensor_warp": (2,),  # (W) columns TW_…
    "tensor_accesses": (TENSOR_ACCESSES, 5),  # (W) tcgen05.ld and .st that no wait has covered, columns TA_…
    "findings": (12,),  # (FINDINGS) columns C_…
    "seen": (64,),  # (n) findings made already, by kind
    "reached": (),  # (n + 1) how often a warp came here, as differences: a stretch of micro-operations is two additions
    "order": (),  # linear indices of the CTAs in the order of dispatch
    "special": (3,),  # a special register that the kernel reads, columns SR_…
    "wanted": (),  # (n) place of what a spin compares with what it reads, see decode/spins.py
    "printed": (1 + 31,),  # (PRINTS) the address of a format, PRINTED_WORDS of arguments
    "trace": (10,),  # (K_TRACE_SIZE) slices of the timeline, columns T_…
}
PLACES = {name: place for place, name in enumerate(TABLES)}

# columns of `cta`: linear index in the grid or -1 where none is resident; its place in the grid; warps that have not
# exited; age; position in the order of dispatch; the clock that the last CTA here came to; the row's own number; bulk
# copies in flight; agents that have made any; its cluster's place among the clusters, its own in the cluster; its rank
# there; address of byte 0 of its shared memory; number of mbarriers in `arrivals`; a failed try_cancel: 0 none, the
# host address of its mbarrier once the response is there, 1 when a wait has seen it; free registers, of a thread each
(CTA_INDEX, CTA_X, CTA_Y, CTA_Z, CTA_WARPS, CTA_AGE, CTA_POSITION, CTA_CLOCK, CTA_SLOT, CTA_BULKS,
 CTA_AGENTS, CTA_CLUSTER_X, CTA_CLUSTER_Y, CTA_CLUSTER_Z, CTA_IN_CLUSTER_X, CTA_IN_CLUSTER_Y, CTA_IN_CLUSTER_Z,
 CTA_RANK, CTA_BASE, CTA_ARRIVALS, CTA_REFUSAL, CTA_REGISTERS) = range(22)  # fmt: skip

# columns of `cluster`: lanes that have arrived in this phase; lanes whose phase has completed, and that have not waited
# for it yet; lanes that sleep in the wait
CL_ARRIVED, CL_PASSED, CL_WAITING = range(3)

# columns of `arrivals`: host address of the mbarrier; its phase; ranks of CTAs, as masks, that have arrived in it, and
# ever
AR_HOST, AR_PHASE, AR_RANKS, AR_EVER = range(4)

# columns of `trace`: when it began and how long it ran, in micro-operations; the CTA's position in the order of
# dispatch; warp; its status afterwards, the barrier or address that it waits for, the value there; accesses to memory;
# is the value known that would end the wait, or AT_CLUSTER: it waits for the barrier of its cluster; and which it is
(T_START, T_LENGTH, T_POSITION, T_WARP, T_STATUS, T_AWAITED, T_VALUE, T_MEMORY, T_KNOWN, T_WANTED) = range(10)
AT_CLUSTER = 2

# columns of `spin`: backward branches so far; how many of them until the registers are copied; the branch that they
# were copied at (-1: not copied), the lanes that took it
SPIN_BRANCHES, SPIN_COPY_AT, SPIN_PC, SPIN_MASK = range(4)

# columns of `barrier_at`: the barrier's number; where a reduction's result goes; kind, see opcodes.py
AT_NUMBER, AT_DESTINATION, AT_KIND = range(3)

RED_ALL, RED_ANY, RED_COUNT = range(3)  # columns of `gathered`: and, or, popc

# columns of `special`: the register's place in a warp's registers; the column of `cta` that it shows, -1: a value that
# is the same for all CTAs; 1: 64 bits, 2: a predicate
SR_REGISTER, SR_CTA_COLUMN, SR_WIDE = range(3)

# columns of `copies`: lane; its group; host addresses; bytes; bytes that the source has; address in shared memory; pc
COPY_LANE, COPY_GROUP, COPY_TO, COPY_FROM, COPY_BYTES, COPY_HAVE, COPY_ADDRESS, COPY_PC = range(8)

# columns of `wgmmas`: group; pc; descriptors of A and B; flags; n; the warp's releases when it was issued; the bytes of
# shared memory that it reads of A and of B
(W_GROUP, W_PC, W_A, W_B, W_FLAGS, W_N, W_CLOCK, W_SPARE, W_A_LOW, W_A_HIGH, W_B_LOW, W_B_HIGH) = range(12)

# columns of `bulk`: kind, see opcodes.py; issuing warp and lane; pc; its bulk group; address in shared memory, and in
# global memory without a map; host address of the mbarrier, and the kernel's; bytes; dimensions, 0 without a map;
# coordinates; host address of the map; a reduction's operation and type; agent and clock of its accesses to shared
# memory, and of its writes to global memory; host address of the CTA's shared memory; have its sources been read
(B_KIND, B_WARP, B_LANE, B_PC, B_GROUP, B_SHARED, B_GLOBAL, B_BARRIER, B_BARRIER_AT, B_BYTES, B_RANK, B_X, B_X1, B_X2,
 B_X3, B_X4, B_MAP, B_OPERATION, B_AGENT, B_CLOCK, B_WRITER, B_WRITER_CLOCK, B_HOST, B_READ) = range(24)  # fmt: skip

AGENT_KEY, AGENT_CLOCK, AGENT_PC = range(3)  # columns of `agents`

I_NUMBER, I_PC, I_A, I_B = range(4)  # columns of `issues`: 1 + the wgmma's number, pc, descriptors

# columns of `group`: wgmma in flight; groups committed, known to be done; wgmma issued, the last one's pc; fences
G_PENDING, G_COMMITTED, G_DONE, G_ISSUED, G_PC, G_FENCES = range(6)

# columns of `columns`: 1 + position of the CTA that has them, 0: free, negative: free again; first unit and number of
# units of the allocation; the warp that made it, its pc
U_OWNER, U_FIRST, U_UNITS, U_WARP, U_PC = range(5)
# columns of `tensor_cta`: 1 + pc of the relinquish; columns of the last alloc; allocs together with the other CTA of a
# pair that the CTA has come to, that have given it columns, that both CTAs have behind them
TC_RELINQUISHED, TC_COLUMNS, TC_ASKED, TC_GIVEN, TC_PASSED = range(5)
TW_ISSUED, TW_PENDING = range(2)  # columns of `tensor_warp`: mma and cp so far; entries of tensor_accesses
# columns of `tensor_accesses`: is it a store; groups of 16 lanes, as a mask; first column; columns; pc
TA_STORE, TA_GROUPS, TA_COLUMN, TA_COUNT, TA_PC = range(5)

# columns of `lanes`: those that have used shared memory, and those that did an access or a .sync instruction without
# others, since the last .sync instruction of all; the warp's clock at that; those that have cp.async under way; how
# often the clock was advanced for lanes; those that have arrived at an mbarrier since they used shared memory
LANES_USED, LANES_ALONE, LANES_CLOCK, LANES_COPIES, LANES_TICKS, LANES_ARRIVED, LANES_FENCED = range(7)

# columns of `limits`, of setmaxnreg: registers that a thread has; how many the warp has executed; its clock at the
# last; what that asked for, 2 * registers + grows; its pc; 1 while it waits for registers
LIM_NOW, LIM_COUNT, LIM_CLOCK, LIM_WHAT, LIM_PC, LIM_WAITS = range(6)

# entries of `k`
(K_CODE, K_CONSTANTS, K_REGISTERS, K_STRIDE, K_WARPS, K_RESIDENT_CTAS, K_SHARED, K_SHARED_SIZE, K_SHARED_STRIDE,
 K_PARAMS, K_PARAMS_SIZE, K_LOCAL, K_LOCAL_SIZE, K_THREADS, K_GRID_X, K_GRID_Y, K_GRID_Z, K_BLOCK_X, K_BLOCK_Y,
 K_BLOCK_Z, K_CTAS,
 K_NEXT, K_FINISHED, K_SLEEPERS, K_FINDINGS, K_POLICY, K_SEED, K_QUANTUM, K_BUDGET, K_EXECUTED, K_CHECKS, K_DYNAMIC,
 K_SNAPSHOTS, K_LAST, K_CODE_SIZE, K_AGE, K_SEGMENTS, K_TRACE, K_SCRATCH, K_SPECIALS, K_ROWS, K_ROW_SIZE, K_KEYS,
 K_DROPPED, K_SHARED_GRANULE, K_SHARED_WRITES, K_SHARED_READS, K_SHARED_CELLS, K_LAUNCH, K_TAINTS, K_TRACE_SIZE,
 K_MEMORY, K_EXPLORE, K_WRITER, K_PROXY, K_TRACKED, K_TRACKED_REGISTERS, K_SPECIAL_VALUES,
 K_ENTITIES, K_READERS,
 K_TENSOR_MEMORY, K_TENSOR_SCRATCH, K_TENSOR_ROWS, K_TENSOR_FENCES, K_TENSOR_CELLS, K_TENSOR_READS, K_TENSOR_SHARE,
 K_REFUSED, K_REFUSED_VALUE,
 K_VERSIONS, K_SCOPED, K_PRINTED, K_FAULTED,
 K_CLUSTER, K_CLUSTER_X, K_CLUSTER_Y, K_CLUSTER_Z, K_CLUSTER_BARRIER, K_VISITS,
 K_CANCELLED, K_ENTRY_REGISTERS, K_REFUSED_WHY,
 K_PAUSE, K_TRIPS, K_LOOPS, K_LINE_WRITES, K_LINE_READS, K_LINES, K_KNOWN, K_TRANSLATED, K_GLOBAL_PROXY,
 K_PROXY_STEP, K_SHARED_LANES, K_SIZE) = range(94)  # fmt: skip

# AT_ALLOC: waits for columns of tensor memory; AT_REGISTERS: for registers (setmaxnreg.inc); AT_PRODUCTS: for the
# products of its warpgroup's other warps
RUNNING, AT_BARRIER, ASLEEP, DONE, EMPTY, AT_ALLOC, AT_REGISTERS, AT_PRODUCTS = range(8)

# bits of K_CHECKS; bounds, alignment, barriers and deadlocks are always seen
CHECK_RACES, CHECK_UNINITIALISED, CHECK_WRAPPED, CHECK_ORDER, CHECK_WARPGROUP, CHECK_EQUAL = 1, 2, 4, 8, 16, 32
CHECK_TENSOR_FENCES, CHECK_VOLATILE, CHECK_TENSOR_WAITS, CHECK_EXITS, CHECK_LANES = 64, 128, 256, 512, 1024
CHECK_REGISTERS, CHECK_PRODUCTS = 2048, 4096

# columns of `segments`; S_WRITTEN: a byte for each of its bytes (global_memory.Written), 0 where all count as written
S_LOW, S_HIGH, S_HOST, S_WRITTEN, S_WRITE, S_READ, S_GRANULE, S_LINES = range(8)

# what a finding is; users read report/kinds.py
(F_BOUNDS, F_ALIGN, F_UNMAPPED, F_SHARED_BOUNDS, F_BARRIER_DIVERGED, F_BARRIER_COUNT, F_SYNC_MISSING, F_TRAP, F_COPIES,
 F_UNINITIALISED, F_RACE_WW, F_RACE_WR, F_RACE_RW, F_WRAPPED, F_PARAM, F_UNCONVERGED,
 F_BARRIER_ID, F_UNORDERED, F_PROXY, F_IN_FLIGHT, F_NO_FENCE, F_WARPGROUP, F_DESCRIPTOR,
 F_MBARRIER, F_COPY_SIZE, F_TENSOR_MAP, F_BULK_PROXY, F_BULK_LEFT, F_BULK_FORM,
 F_BULK_COORDINATE) = range(30)  # fmt: skip
# of clusters; users read report/cluster_kinds.py
F_CLUSTER_BARRIER, F_CLUSTER_RANK, F_CLUSTER_SPACE, F_CLUSTER_EXITED, F_CLUSTER_MBARRIER = range(30, 35)
F_CLC_AGAIN, F_REGISTERS = range(35, 37)  # of cluster launch control; of setmaxnreg, see report/launch_kinds.py
F_COPY_IN_FLIGHT, F_GLOBAL_PROXY = range(37, 39)  # of cp.async and bulk copies, see report/launch_kinds.py
F_UNDEFINED = 39  # of a register without a value, see report/launch_kinds.py
# of tensor memory; users read report/tensor_memory_kinds.py
(F_TC_COLUMNS, F_TC_LANES, F_TC_ALLOC, F_TC_LEAK, F_TC_RELINQUISHED, F_TC_UNWRITTEN, F_TC_STORE, F_TC_LOAD,
 F_TC_COMMIT, F_TC_RACE, F_TC_FENCE, F_TC_PROXY, F_TC_OVERWRITTEN, F_TC_DESCRIPTOR,
 F_TC_COPIES) = range(40, 55)  # fmt: skip
OTHER_LANE = 32  # value of a race of two lanes of one warp: this, and the other lane
# columns of a finding
(C_KIND, C_PC, C_CTA, C_WARP, C_LANE, C_ADDRESS, C_SIZE, C_OTHER_CTA, C_OTHER_WARP, C_OTHER_PC, C_VALUE,
 C_SPARE) = range(12)  # fmt: skip

# results of `run`
FINISHED, DEADLOCK, OUT_OF_BUDGET, TOO_MANY, PAUSED = range(5)

IN_ORDER, RANDOM, OLDEST_LAST, GREEDY = range(4)


# ---- how compiled code sees the tables ----------------------------------------------------------------------
class MachineType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="EmulatorMachine")


class TableType(types.Type):
    """A table with its inner dimensions; its value is the table's address."""

    def __init__(self, inner: tuple[int, ...]) -> None:
        self.inner = inner
        super().__init__(name=f"EmulatorTable{inner}")


@register_model(MachineType)
@register_model(TableType)
class _Address(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.IntType(64))


_machine_type = MachineType()


@intrinsic
def machine(typingctx, address):  # type: ignore[no-untyped-def]
    """The machine whose list of tables is at `address`."""
    return _machine_type(types.int64), lambda context, b, signature, args: args[0]


@intrinsic
def address_of(typingctx, table, index):  # type: ignore[no-untyped-def]
    """The address of number `index` of a table, all its dimensions counted as one."""

    def code(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.add(args[0], b.shl(args[1], ir.Constant(ir.IntType(64), 3)))

    return types.int64(table, types.int64), code


@infer_getattr
class _Tables(AttributeTemplate):
    key = MachineType

    def generic_resolve(self, typ: Any, attr: str) -> Any:  # type: ignore[override]
        return TableType(TABLES[attr]) if attr in TABLES else None


@lower_getattr_generic(MachineType)
def _table(context: Any, b: Any, typ: MachineType, value: Any, attr: str) -> Any:
    place = b.add(value, ir.Constant(ir.IntType(64), 8 * PLACES[attr]))
    return b.load(b.inttoptr(place, ir.IntType(64).as_pointer()))


def _element(b: Any, table: TableType, base: Any, index: Any, index_type: Any) -> Any:
    """Pointer to an element; the index is one integer or a tuple of them."""
    i64 = ir.IntType(64)
    parts = []
    if isinstance(index_type, types.BaseTuple):
        kinds = [*index_type]  # type: ignore[misc]
        values = [b.extract_value(index, i) for i in range(len(kinds))]
    else:
        kinds, values = [index_type], [index]
    assert len(kinds) == 1 + len(table.inner), (kinds, table)
    for kind, value in zip(kinds, values, strict=True):
        wide = value if kind.bitwidth == 64 else (b.sext(value, i64) if kind.signed else b.zext(value, i64))
        parts.append(wide)
    place = parts[0]
    for size, part in zip(table.inner, parts[1:], strict=True):
        place = b.add(b.mul(place, ir.Constant(i64, size)), part)
    return b.inttoptr(b.add(base, b.shl(place, ir.Constant(i64, 3))), i64.as_pointer())


@infer_global(operator.getitem)
class _Getitem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        table, index = args
        return signature(types.int64, table, index) if isinstance(table, TableType) else None


@lower_builtin(operator.getitem, TableType, types.Any)
def _read(context: Any, b: Any, sig: Any, args: Any) -> Any:
    table, index = sig.args
    return b.load(_element(b, table, args[0], args[1], index))


@infer_global(operator.setitem)
class _Setitem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        table, index, value = args
        return signature(types.none, table, index, value) if isinstance(table, TableType) else None


@lower_builtin(operator.setitem, TableType, types.Any, types.Any)
def _write(context: Any, b: Any, sig: Any, args: Any) -> Any:
    table, index, value = sig.args
    wide = context.cast(b, args[2], value, types.int64)
    b.store(wide, _element(b, table, args[0], args[1], index))
    return context.get_dummy_value()
