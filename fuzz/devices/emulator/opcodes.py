"""Numbers of the micro-operations that the interpreter runs itself (memory, control flow, everything across lanes), and
the layout of their words. Those below 1 << 20 belong to the form table (`isa/straight_line.py`).

A micro-operation is 16 int32: number, guard, then the words named here. Word values that are operands are byte offsets,
see `isa/straight_line.py`. The constants are plain ints because numba freezes them into the compiled interpreter.
"""

from __future__ import annotations

from fuzz.devices.emulator import reserved

BASE = 1 << 20
BRANCH = BASE + 0  # 2 target; of one that goes back: 3 number of its loop, 4 of the first loop inside of it
EXIT = BASE + 1
LOAD = BASE + 2  # 2 flags, 3 address, 4 immediate, 5… destinations
STORE = BASE + 3  # 2 flags, 3 address, 4 immediate, 5… sources
ATOMIC = BASE + 4  # 2 flags, 3 address, 4 immediate, 5 destination or -, 6 operand, 7 operand (cas), 8 operation
LDMATRIX = BASE + 5  # 2 flags, 3 address, 4 immediate, 5… destinations, 9 count, 10 transposed
STMATRIX = BASE + 6  # the same with sources
CP_ASYNC = BASE + 7  # 2 flags, 3 shared address, 4 immediate, 5 global address, 6 immediate, 7 size, 8 source size or -
CP_COMMIT = BASE + 8
CP_WAIT = BASE + 9  # 2 groups that may stay pending, -1: all that were issued
BARRIER = BASE + 10  # 2 kind, 3 id operand, 4 count operand or -, 5 reduction's predicate, 6 negated, 7 destination
WARP_BARRIER = BASE + 11  # 2 mask operand
SHUFFLE = BASE + 12  # 2 mode, 3 destination, 4 predicate or -, 5 value, 6 lane, 7 clamp, 8 mask operand
VOTE = BASE + 13  # 2 mode, 3 destination, 4 predicate, 5 negated, 6 mask operand
REDUX = BASE + 14  # 2 operation, 3 destination, 4 value, 5 mask operand
ACTIVE_MASK = BASE + 15  # 2 destination
ELECT = BASE + 16  # 2 destination or -, 3 predicate, 4 mask operand
FENCE = BASE + 17  # 2 scope: 0 cta, 1 gpu, 2 system
SLEEP = BASE + 18
CLOCK = BASE + 19  # 2 destination, 3 wide, 4 high half
TRAP = BASE + 20
MATCH = BASE + 21  # 2 mode (0 any, 1 all), 3 destination, 4 predicate or -, 5 value, 6 wide, 7 mask operand
NOTHING = BASE + 22
WGMMA = BASE + 23  # wgmma: 2 table of D's and A's registers, 3 n, 4 flags, 5 scale-d, 6 and 7 descriptors of A and B,
# 8 table of tracked registers or -, 9 how many
WGMMA_FENCE = BASE + 24
WGMMA_COMMIT = BASE + 25
WGMMA_WAIT = BASE + 26  # 2 groups that may stay pending
# 2 spaces: 1 the CTA's shared memory, 2 global memory, 4 shared memory of its cluster's other CTAs; generic accesses
# before it are seen by asynchronous ones after it
PROXY_FENCE = BASE + 27
REGISTER_USE = BASE + 28  # 2 sources, if a move, 3… numbers of tracked registers, -1 at the end

ABSENT = -(1 << 31)  # an operand that is not there

# flags of memory operations
COUNT = 0  # bits 0-7: elements of the vector
SIZE = 8  # bits 8-15: bytes of one element
SPACE = 16  # bits 16-19
SIGNED = 20  # loads narrower than a register are sign-extended
WIDE = 21  # registers of 64 bits
ADDRESS64 = 22  # the address register has 64 bits
STRONG = 23  # relaxed, volatile, acquire, release: not racing with other strong accesses
ACQUIRE = 24
RELEASE = 25
HALF = 26  # 16-bit registers (kept zero-extended)
CTA_SCOPE = 27  # of a strong access: it orders, and is ordered with, threads of its own CTA only
VOLATILE = 28

MBARRIER = BASE + 29  # 2 kind and flags, 3 address, 4 immediate, 5 destination or -, 6 count, bytes, parity, state or -
(MB_INIT, MB_ARRIVE, MB_DROP, MB_EXPECT, MB_ARRIVE_EXPECT, MB_TEST_PARITY, MB_TEST_STATE, MB_INVALIDATE,
 MB_COMPLETE) = range(9)  # fmt: skip
MB_RELAXED = 1 << 8  # orders nothing
# flags of a product
WGMMA_KIND = 0  # bits 0-1: bf16, f16, f16 with sums in f16
A_REGISTERS, A_TRANSPOSED, B_TRANSPOSED, A_NEGATED, B_NEGATED = (1 << i for i in range(2, 7))

BULK = BASE + 30  # 2 kind, dimensions and flags, 3 shared address, 4 immediate, 5 address of the tensor map or of
# global memory, 6 immediate, 7 mbarrier or -, 8 immediate, 9-13 coordinates, 9 bytes without a map,
# 14 a reduction's operation, 15 mask of CTAs of the cluster or -
BULK_COMMIT = BASE + 31
BULK_WAIT = BASE + 32  # 2 groups that may stay pending, 3 only until they have read their sources
TENSOR_MAP = BASE + 33  # 2 offset of the field's word, 3 address, 4 immediate, 5 flags, 6 value, 7 … the field, see
# execute/bulk/tensor_maps.py
TENSOR_MAP_COPY = BASE + 34  # 2 address widths, 3 global address, 4 immediate, 5 shared address, 6 immediate
PRINT = BASE + 35  # 2 and 3 places in local memory of the addresses of a format and its arguments
CLUSTER = BASE + 36  # 2 kind
CLUSTER_ALIGNED = BASE + 37  # the same by all lanes of a warp together
STORE_ASYNC = BASE + 38  # 2 flags, 3 address, 4 immediate, 5 mbarrier, 6 immediate, 7 its address has 64 bits,
# 8 operation or -, 9… sources
CLC = BASE + 39  # 2 flags, 3 address, 4 immediate, 5 mbarrier, 6 immediate
REGISTERS = BASE + 40  # 2 grows, 3 registers of a thread
REGISTERS_USED = BASE + 41  # 2 registers of a thread that the next instruction names
UNDEFINED = BASE + 42  # 2 number of a register that the next instruction reads and that nothing has given a value
CLC_WIDE, CLC_WIDE_BARRIER, CLC_ALL = (
    1,
    2,
    4,
)  # flags of CLC: addresses of 64 bits; a response for each CTA of the cluster
(CLUSTER_ARRIVE, CLUSTER_ARRIVE_RELAXED, CLUSTER_WAIT, CLUSTER_FENCE_INITS) = range(4)  # kinds of CLUSTER
# kinds of bulk copies, bits 0-3 of word 2; from the CTA's shared memory to another's; st.async, red.async; responses of
# clusterlaunchcontrol.try_cancel
(BULK_LOAD, BULK_STORE, BULK_REDUCE, BULK_LOCAL, BULK_WORDS, BULK_WORDS_REDUCE, BULK_RESPONSE) = range(7)
BULK_RANK = 4  # bits 4-7: dimensions of the tensor, 0 without a map
BULK_WIDE_SHARED, BULK_WIDE_BARRIER, BULK_WIDE_SOURCE = 1 << 8, 1 << 9, 1 << 10  # addresses in registers of 64 bits
BULK_PAIR = 1 << 11  # the mbarrier may be that of the other CTA of a pair (.cta_group::2)
BULK_OWN = 1 << 12  # to the CTA's own shared memory only (.shared::cta)
BULK_REDUCES = 1 << 16  # of a reduction's operation and type: BULK_LOCAL combines

GLOBAL, SHARED, LOCAL, PARAM, GENERIC, CONST, SHARED_CLUSTER = range(7)

# Addresses of shared memory in a launch with clusters: an offset alone is the CTA's own memory; with the flag, bits 24
# to 29 have the rank of the CTA that has it
CLUSTER_FLAG = 1 << 30
RANK_BIT, RANKS = 24, 63
OFFSET = (1 << RANK_BIT) - 1

# tcgen05: instructions of one thread, then those of a warp
TC_USED = BASE + 59  # 2… micro-operations of loads whose registers are used next, -1 at the end
TC_MMA = BASE + 60  # 2 kind and flags, 3 D's address, 4 immediate, 5 A's descriptor or address, 6 immediate,
# 7 B's descriptor, 8 instruction descriptor, 9 predicate enable-input-d, 10 scale-input-d, 11-14 disable-output-lane;
# with block scales: 11 -, 12 address of A's scale factors, 13 immediate, 14 and 15 those of B
TC_COMMIT = BASE + 61  # 2 flags, 3 address, 4 immediate, 5 mask of CTAs of the cluster or -
TC_CP = BASE + 62  # 2 shape, 3 address in tensor memory, 4 immediate, 5 descriptor, 6 bits of packed numbers or 0, 7 of
# two CTAs
TC_FENCE = BASE + 63  # 2 after_thread_sync
TC_ALLOC = BASE + 64  # 2 flags, 3 address, 4 immediate, 5 columns
TC_DEALLOC = BASE + 65  # 2 address in tensor memory, 3 columns
TC_RELINQUISH = BASE + 66
TC_LD = BASE + 67  # 2 table of registers, 3 how many, 4 shape, 5 address, 6 immediate, 7 immHalfSplitoff, 8 packed
TC_ST = BASE + 68  # the same
TC_WAIT = BASE + 69  # 2 for stores
# kinds and flags of TC_MMA
TC_F16, TC_TF32, TC_F8F6F4, TC_I8, TC_MXF8F6F4, TC_MXF4, TC_MXF4NVF4 = range(7)  # the last three with block scales
TC_KIND = 7  # bits 0-2
TC_A_IN_TENSOR_MEMORY = 8
TC_FACTORS = 8  # bits 8-10: scale factors of a row of A
TC_PAIR = 16  # of two CTAs (.cta_group::2); word 11 is then a table of eight disable-output-lane, or -
TC_ALLOC_PAIR = 1 << 8  # flag of TC_ALLOC: with the other CTA of the pair
# shapes of TC_LD and TC_ST
TC_32X32, TC_16X64, TC_16X128, TC_16X256, TC_16X32X2 = range(5)
# shapes of TC_CP
TC_CP_128X256, TC_CP_4X256, TC_CP_128X128, TC_CP_64X128_02, TC_CP_64X128_01, TC_CP_32X128 = range(6)

# shuffle and vote modes
UP, DOWN, BFLY, IDX = range(4)
ALL, ANY, UNI, BALLOT = range(4)
# barrier kinds
SYNC, ARRIVE, RED_AND, RED_OR, RED_POPC = range(5)
# atomic operations; the type is in the low bits of word 8, the operation above it
ADD, MIN, MAX, INC, DEC, AND, OR, XOR, EXCH, CAS = range(10)
T_U32, T_S32, T_U64, T_S64, T_F32, T_F64, T_F16, T_BF16, T_F16X2, T_BF16X2 = range(10)

# addresses: an allocation's number times 1 << SHIFT, its first byte in the middle of that range
SHIFT = 40
MIDDLE = 1 << 39
RESERVED_SHARED = reserved.RESERVED_SHARED
SHARED_WINDOW = 1 << SHIFT
LOCAL_WINDOW = 2 << SHIFT
PARAM_WINDOW = 3 << SHIFT
FIRST_SEGMENT = 16
GLOBALS = 64  # segments from there on that are kept for module variables
