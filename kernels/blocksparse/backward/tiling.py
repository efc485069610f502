"""Tiling of the backward kernel: warps, steps and shared memory, chosen from the tile sizes and what an arch has.

A tile of the block lists has tile_m queries; the kernel works through it in steps of step_m, so that accumulators fit
into registers and Q, dO, P and dS into shared memory. The sizes here also fix the layout of the dQ accumulator, which
backward, postprocess and the launcher share: NOTE [dQ accumulator].

NOTE [large dims] dK and dV of a tile of keys stay in registers for the whole row of blocks: tile_n * dim / 128 of each
of 256 threads, beside S and dP with step_m * tile_n / 128. Of 255 registers some 60 are addresses and fragments. Tiles
of 128 keys end at dim 128: 128 + 64; dim 160 would need 160 + 32 at steps of 32 queries, and dim 256 all of them. With
64 keys dim 256 takes 128 + 32 at steps of 64. Shared memory there, in KiB: K and V 64, one stage of Q and dO 64, P and
dS 16: 145 of the 163 to 227 that A100, H100 and B200 have; two stages, 209, fit the last two. sm_120's 99 hold 64 + 32
+ 8 at steps of 32 no more: dim 192 (80) is its last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from kernels.blocksparse.spec.variant import LARGEST_DIM, Variant, backward_products

THREADS = 256
WARPS = THREADS // 32
# Entries of the block lists in a circular buffer in shared memory: half of it is filled while the other is worked on.
ENTRY_STAGES = 64
HALF = ENTRY_STAGES // 2
TILE_STAGES = 2  # of announced tiles of a persistent CTA
RUN_TILES, RUN_STEP = 5, 80  # tiles of 128 queries that are worked through in steps of 80
OF_RUNS = ("band", "intervals")  # masks whose rows are runs of blocks; others' are for the launcher to know
STEP_GROUPS = 2  # alike with 1 where units are few, slower for short rows: docs/performance/log.md
MMA_REGISTERS, SEMAPHORE_REGISTERS = 240, 24  # of a thread, beside semaphore warps; launched with 168
HELD = {96: 64, 128: 32}  # depth → columns of K and V that registers have room for, in the kernel of 128
HELD_BESIDE_EXCHANGE = 96, 64  # the same where CTAs exchange dS, up to head dim 192 and beyond
DQ_COLUMNS = 64  # of a piece of dQ where each warpgroup has a gradient

# Shared memory that one CTA may have, in bytes (CUDA C++ programming guide, compute capabilities).
SHARED_MEMORY = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
}


@dataclass(frozen=True)
class Tiling:
    """Layout of one CTA's work on (tile_m x tile_n) blocks.

    step_m    queries per iteration, a divisor of tile_m
    stages    buffers for Q and dO: 2 loads the next step while this one is computed
    stages_ds buffers for dS: 2 saves a barrier per step; by mma.sync, one more than a block has steps lets dQ of the
              whole block be computed at once, so that K is read once for it
    warps_s   (m, n) warps over S and dP (step_m x tile_n)
    warps_dkv (n, dim) warps over dK and dV (tile_n x dim)
    warps_dq  (m, dim) warps over dQ (step_m x dim)
    vector    floats of one thread that are adjacent in the dQ accumulator: 4 where the arch adds four at once
    wide_stores  results go to shared memory by stmatrix, where the arch has it
    stages_p  buffers for P: by wgmma, where warpgroups read each other's keys of P, 2 save a barrier per step
    wgmma        two warpgroups multiply (wgmma.py); else warps, by mma.sync
    wait_warp    a warp of a third warpgroup acquires the semaphores of ordered adds: NOTE [semaphore-wait warp] of
                 warpgroups/semaphore_warps.py
    release_warp another one releases blocks as soon as they are added: NOTE [semaphore-release warp]; it pays at dim 64
                 (docs/performance/log.md). The tuning key is "releaser"
    transposed   the main loop of transposed/kernel.py: S and dP have keys as rows, a warpgroup loads and adds dQ
    step_groups  where dQ is another kernel's, the main loop of transposed/mainloop_dkdv.py: so many warpgroups, 1 or 2,
                 take whole steps in turns; 0: another loop
    runs         runs of unmasked tiles are worked through in steps of RUN_STEP queries: transposed/runs_kernel.py
    by_gradient  a transposed loop whose warpgroups have dV and dK: by_gradient/kernel.py
    stages_dq    buffers for dQ of each multiplying warpgroup of a transposed loop, until its dQ warp has added it
    delays_dq    a step of the transposed loop computes dQ of the step before: NOTE [delayed dQ] of
                 transposed/mainloop.py; with runs, in their steps. The tuning key is "delays"
    splits       tiles may be split, NOTE [split tiles] of common/split_tiles.py: of the transposed loop
    takes_late   persistent CTAs take the next tile when all steps of theirs are loaded: ordered adds of bands,
                 intervals and full masks beyond head dim 64. Blocks at random, whose rows are short, are faster where
                 the tile is taken early (docs/performance/log.md)
    depth        by wgmma: columns of Q, K, V and dO that S and dP are products over, as those behind are zeros, and in
                 the loops with keys as rows columns of dK and dV, at head dim 256 of dQ too. 0: all
    held_columns columns of K and V that stay in registers for a tile: NOTE [held keys] of transposed/mainloop.py
    exchanges    by_gradient, and the two CTAs that have the halves of a tile of keys exchange dS: NOTE [exchanged dS]
                 of by_gradient/exchange.py
    """

    tile_m: int
    tile_n: int
    dim: int
    step_m: int
    stages: int
    stages_ds: int
    warps_s: tuple[int, int]
    warps_dkv: tuple[int, int]
    warps_dq: tuple[int, int]
    vector: int
    wide_stores: bool
    stages_p: int = 1
    wgmma: bool = False
    wait_warp: bool = False
    release_warp: bool = False
    transposed: bool = False
    stages_q: int = 2
    step_groups: int = 0
    runs: bool = False
    by_gradient: bool = False
    takes_late: bool = False
    delays_dq: bool = False
    stages_dq: int = 1
    splits: bool = False
    depth: int = 0
    held_columns: int = 0
    exchanges: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA: those that multiply, and a warpgroup for other roles."""
        if self.step_groups:
            return 128 * (1 + self.step_groups)
        return THREADS + 128 * (self.wait_warp or self.transposed)

    @property
    def persistent(self) -> bool:
        """True where a CTA takes one tile after the other: NOTE [tiles of keys] of transposed/tile_scheduler.py."""
        return self.transposed and not self.by_gradient

    @property
    def reading_warps(self) -> int:
        """Warps that read a stage of Q or dO of a transposed loop."""
        return 4 if self.step_groups else WARPS

    @property
    def dq_threads(self) -> int:
        """Threads whose values are interleaved in the dQ accumulator: all, or a warpgroup's."""
        return THREADS // 2 if self.transposed else THREADS

    @property
    def dq_by_dim(self) -> bool:
        """True where dQ is computed transposed, a warpgroup having half of its columns: NOTE [dQ by dim] of
        dq_accumulator.py."""
        return self.transposed and self.dim == 128

    @property
    def dq_at_once(self) -> bool:
        """True where each warpgroup with a gradient of its own may hand over all its dQ of a step at once: NOTE [dQ at
        once] of by_gradient/mainloop.py."""
        return self.by_gradient and not self.exchanges and 0 < self.depth <= self.dim - DQ_COLUMNS

    @property
    def dq_in_p(self) -> bool:
        """True where the warpgroup of dV leaves its dQ of a step in P's buffer: CTAs that exchange dS beyond head dim
        192. NOTE [exchanged dS] of by_gradient/exchange.py."""
        return self.exchanges and (self.depth or self.dim) > self.dim - DQ_COLUMNS

    @property
    def steps(self) -> int:
        """Iterations per block."""
        return self.tile_m // self.step_m

    @property
    def stage_rows(self) -> int:
        """Queries that a stage of Q, dO or dS has room for."""
        return RUN_STEP if self.runs else self.step_m

    @property
    def adds_late(self) -> bool:
        """True where warpgroups add dQ while dP is multiplied, and not before. Needs registers for the sums of both."""
        return not self.wait_warp or self.dim <= 64

    @property
    def steps_dq(self) -> int:
        """Steps whose dQ is computed at once: 1, or all of a block."""
        return self.steps if self.stages_ds > self.steps > 1 and not self.wgmma else 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the kernel asks for, in bytes."""
        sums = 4 * self.stage_rows * self.dim * self.stages_dq * self.transposed
        # a piece of dQ for each warpgroup, or one and columns of the peer's K; P; Q's second stage beside one of dO
        if self.by_gradient:
            sums = 4 * self.step_m * (2 * DQ_COLUMNS + self.tile_n) + 2 * self.step_m * (self.dim + 2)
            sums += 2 * self.step_m * self.tile_n * self.dq_in_p  # the peer's dS
        if self.persistent or self.step_groups:
            sums += 2 * self.stage_rows * (self.dim + 2) * (self.stages_q - self.stages)
        scores = self.stages_p * (not self.transposed) + self.stages_ds
        return _shared_bytes(self.stage_rows, self.tile_n, self.dim, self.stages, scores) + sums

    @property
    def groups(self) -> int:
        """Groups of neighbouring warps that share no keys of P and dS: NOTE [groups] of mainloop_mma.py."""
        return min(self.warps_s[1], self.warps_dkv[0] // 4 if self.wgmma else self.warps_dkv[0])


def groups_of_gradients(tiling: Tiling) -> tuple[int, int]:
    """The numbers of the multiplying warpgroups of dV and of dK, where each has a gradient. Up to depth 208 the first
    one has far more columns of dQ: that of dK, which otherwise waits for P."""
    return (1, 0) if 4 * columns_of_dq(tiling, 1) < 3 * columns_of_dq(tiling, 0) else (0, 1)


def columns_of_dq(tiling: Tiling, group: int) -> int:
    """Columns of dQ that a multiplying warpgroup computes, of its half of them, where each has a gradient: those that
    the head dim has. Of CTAs that exchange dS: those of one CTA."""
    if tiling.exchanges:
        return 64 if tiling.dq_in_p else (64, 32)[group]
    half = tiling.dim // 2
    return max(0, min(half, (tiling.depth or tiling.dim) - group * half))


def pieces_of_dq(tiling: Tiling, group: int) -> int:
    """Pieces of DQ_COLUMNS columns in which it hands them over."""
    return -(-columns_of_dq(tiling, group) // DQ_COLUMNS)


def floats_of_piece(tiling: Tiling, group: int, piece: int) -> int:
    """Floats of a piece of a step: the last one may have fewer columns."""
    return tiling.step_m * min(DQ_COLUMNS, columns_of_dq(tiling, group) - piece * DQ_COLUMNS)


@lru_cache
def choose_tiling(variant: Variant, arch: str) -> Tiling:
    """The tiling of a backward or postprocess variant on an arch such as "sm_90a".

    `variant.tuning` may set step_m, stages, stages_ds and wide_stores (0 or 1); by mma.sync the m warps of each product
    too: warps_s, warps_dkv, warps_dq. By wgmma it may also set
    transposed  0: the straight loop, where tiles have 128 keys
    runs        0: steps of 64 queries alone; 1: runs whatever the mask, with atomic adds
    delays      1: dQ of the step before; 0: that of the step itself
    stages_dq   1 or 2 buffers of dQ, at head dim 128 without runs
    splits      1: tiles of the transposed loop may be split, with atomic adds
    depth       by wgmma: `Tiling.depth`, a multiple of 16 and at least the head dim
    held_columns  `Tiling.held_columns`, a multiple of 16
    exchanges   1: `Tiling.exchanges`, for a depth of 144 to 256 without a soft cap
    stages_p    1 or 2 buffers of P in the straight loop, for tiles of 64 keys
    releaser    which warp releases the straight loop's semaphores: one of the third warpgroup (1), or of those that
                multiply (0)
    Raises ValueError for a tiling that does not fit (registers and shared memory: NOTE [large dims]; warps; wgmma) and
    for unknown names.
    """
    tile_n, dim = variant.tile_n, variant.dim_padded
    capacity = SHARED_MEMORY.get(_number_of(arch))
    if capacity is None:
        raise ValueError(f"arch: need one of {sorted(SHARED_MEMORY)}, got {arch!r}")
    overrides = dict(variant.tuning)
    if unknown := sorted(
        set(overrides)
        - {"step_m", "stages", "stages_ds", "stages_p", "wide_stores", "releaser", "warps_s", "warps_dkv", "warps_dq"}
        - {"transposed", "step_groups", "runs", "delays", "stages_dq", "splits", "depth", "held_columns", "exchanges"}
    ):
        raise ValueError(f"variant.tuning has {unknown}, which the backward kernel does not know")
    wgmma = variant.products == "wgmma"
    if wgmma and (arch != "sm_90a" or backward_products("wgmma", tile_n, dim) != "wgmma"):
        raise ValueError(
            f"variant.products is 'wgmma': the backward kernel needs sm_90a, dim 64 or 128 and tile_n 128, or dim 128 "
            f"or 256 and tile_n 64 for it, got {arch}, {dim} and {tile_n}"
        )
    if (depth := overrides.pop("depth", 0)) % 16 or not 0 <= depth <= dim or (depth and not wgmma):
        raise ValueError(f"variant.tuning: depth needs a multiple of 16 up to {dim}, and products 'wgmma', got {depth}")
    held = overrides.pop("held_columns", None)
    exchanges = overrides.pop("exchanges", 0)
    tiling = replace(_tiling_of(variant, overrides, arch, capacity), exchanges=bool(exchanges), depth=depth)
    if exchanges not in (0, 1) or (exchanges and not may_exchange(variant, depth)):
        raise ValueError(
            "variant.tuning: exchanges is 0 or 1, and needs products 'wgmma', tiles of 64 keys, a depth of 144 to 256 "
            f"and no soft cap, got {exchanges}, {variant.products!r}, {variant.tile_n}, {depth} and "
            f"{'a' if variant.softcap else 'no'} soft cap"
        )
    may_hold = (tiling.persistent or tiling.exchanges) and variant.kind == "backward"
    if held is not None and (held % 16 or not 0 <= held <= (depth or dim) or not may_hold):
        raise ValueError(
            "variant.tuning: held_columns needs the transposed loop, or exchanges, and a multiple of 16 up to the "
            f"depth, got {held}"
        )
    if held is None:
        held = _held_columns(variant, tiling, depth or dim) if may_hold else 0
    return replace(tiling, held_columns=held)


def may_exchange(variant: Variant, depth: int) -> bool:
    """True where a kernel of this depth may have `Tiling.exchanges`."""
    by_gradient = variant.products == "wgmma" and (variant.dim_padded, variant.tile_n) == (256, 64)
    deep = (depth or variant.dim_padded) > LARGEST_DIM[128]
    return by_gradient and variant.kind == "backward" and deep and not variant.softcap


def _number_of(arch: str) -> int:
    """The number of an arch such as "sm_90a"."""
    return int("".join(c for c in arch if c.isdigit()))


def _tiling_of(variant: Variant, overrides: dict[str, int], arch: str, capacity: int) -> Tiling:
    """The tiling for these entries of the tuning, without its depth. capacity: bytes of shared memory that a
    CTA can have. Raises ValueError as `choose_tiling` does."""
    tile_m, tile_n, dim, wgmma = variant.tile_m, variant.tile_n, variant.dim_padded, variant.products == "wgmma"
    number = _number_of(arch)
    if wgmma and dim > LARGEST_DIM[128]:
        return _by_gradient(variant, overrides)
    if overrides.get("transposed", int(wgmma and tile_n == 128 and not variant.separate_dq)):
        return _transposed(variant, overrides)
    if overrides.get("step_groups", default_step_groups(variant)):
        return _by_steps(variant, overrides)
    buffers_p = (2, 1) if wgmma and tile_n == 64 else (1,)
    stages_p = overrides.get("stages_p", buffers_p[0])
    for step_m, stages, stages_ds in [(64, 3, 2)] if wgmma else _preferences(tile_m, tile_n, dim):
        chosen = {"step_m": step_m, "stages": stages, "stages_ds": stages_ds}
        if stages_p not in buffers_p or any(overrides.get(name, value) != value for name, value in chosen.items()):
            continue
        if _shared_bytes(step_m, tile_n, dim, stages, stages_p + stages_ds) <= capacity:
            # a warpgroup's four warps share its rows; it has half of the keys in S and dP, and in dK and dV half of
            # 128 keys, else all keys and half of the columns
            splits = ((4, 2), (8, 1) if tile_n == 128 else (4, 2), (4, 2))
            if not wgmma:
                splits = (
                    _split_warps(step_m, tile_n, overrides.get("warps_s"), by_rows=False),
                    _split_warps(tile_n, dim, overrides.get("warps_dkv"), by_rows=False),
                    _split_warps(step_m, dim, overrides.get("warps_dq")),
                )
            return Tiling(
                tile_m,
                tile_n,
                dim,
                step_m,
                stages,
                stages_ds,
                *splits,
                vector=4 if number >= 90 else 1,
                wide_stores=bool(overrides.get("wide_stores", 1)) and number >= 90,
                stages_p=stages_p,
                wgmma=wgmma,
                wait_warp=wgmma and variant.deterministic,
                release_warp=wgmma and variant.deterministic and bool(overrides.get("releaser", dim <= 64)),
            )
    if dim > LARGEST_DIM[tile_n]:
        raise ValueError(
            f"tile_n is {tile_n}: at head dim {dim} dK and dV alone would take {tile_n * dim // 128} of a thread's 255 "
            f"registers; the backward pass needs tiles of 64 keys above dim {LARGEST_DIM[128]}"
        )
    least = _shared_bytes(32, tile_n, dim, 1, 2)
    raise ValueError(
        f"tiles {tile_m} x {tile_n} at head dim {dim} with tuning {overrides} do not fit {arch}: it has "
        f"{capacity} bytes of shared memory for a CTA, and steps of 32 queries in one stage take {least}"
    )


def _transposed(variant: Variant, overrides: dict[str, int]) -> Tiling:
    """The tiling of Hopper's transposed main loop: steps of 64 queries, or where dK and dV leave registers of 128; a
    warpgroup has half of the keys in S, dP, dK and dV, and in dQ half of the queries or of the columns."""
    tile_m, tile_n, dim = variant.tile_m, variant.tile_n, variant.dim_padded
    step_m = overrides.get("step_m", 128) if dim == 64 and tile_m == 128 else 64
    may_run = (dim, tile_m) == (128, 128) and not variant.softcap
    may_run = may_run and (variant.mask == "none" or not variant.deterministic)
    runs = overrides.get("runs", int(variant.mask in OF_RUNS and not variant.deterministic)) if may_run else 0
    delays = bool(overrides.get("delays", _delays_dq(variant, bool(runs))))
    stages_dq = overrides.get("stages_dq", _stages_dq(variant)) if dim == 128 and not runs else 1
    chosen = {"transposed": 1, "step_m": step_m, "stages": 2, "stages_ds": 2, "wide_stores": 1, "runs": runs}
    splits = overrides.get("splits", 0) if not variant.deterministic else 0
    chosen |= {"delays": int(delays), "stages_dq": stages_dq, "splits": splits}
    wrong = {name: value for name, value in overrides.items() if chosen.get(name) != value}
    if (
        variant.products != "wgmma"
        or tile_n != 128
        or wrong
        or step_m not in (64, 128)
        or stages_dq not in (1, 2)
        or splits not in (0, 1)
    ):
        raise ValueError(
            f"variant.tuning has transposed: it needs products 'wgmma', tile_n 128 and no values but {chosen}, "
            f"got {variant.products!r}, {tile_n} and {overrides}"
        )
    warps_dq = (8, 1) if step_m == 128 else (4, 2)
    return Tiling(
        tile_m,
        tile_n,
        dim,
        step_m,
        2,
        2,
        (8, 1),
        (8, 1),
        warps_dq,
        4,
        True,
        wgmma=True,
        transposed=True,
        runs=bool(runs) and variant.kind == "backward",
        stages_q=3 if dim == 64 else 2,
        takes_late=variant.deterministic and dim > 64 and (bool(runs) or variant.mask in OF_RUNS),
        delays_dq=delays,
        stages_dq=stages_dq,
        splits=bool(splits),
    )


def _delays_dq(variant: Variant, runs: bool) -> bool:
    """True where steps compute dQ of the step before: with ordered adds; with atomic ones at head dim 64 or with runs,
    as elsewhere shared memory is the bound already."""
    return variant.deterministic or runs or variant.dim_padded == 64


def _stages_dq(variant: Variant) -> int:
    """Buffers of dQ at head dim 128 without runs: two for ordered adds of blocks at random, whose CTAs wait at times
    that nobody can tell."""
    return 2 if variant.deterministic and variant.mask not in OF_RUNS else 1


def _by_gradient(variant: Variant, overrides: dict[str, int]) -> Tiling:
    """The tiling of Hopper's loop whose warpgroups have a gradient each: steps of 64 queries, two stages of Q and one
    of dO, which is read earlier. Postprocess reads dQ, dK and dV as if each warpgroup had half of their columns."""
    chosen = {"step_m": 64, "stages": 1, "stages_ds": 1, "wide_stores": 1}
    wrong = {name: value for name, value in overrides.items() if chosen.get(name) != value}
    if variant.separate_dq or wrong:
        raise ValueError(
            f"variant.products is 'wgmma' at head dim {variant.dim_padded}: there is no separate dQ, and tuning has no "
            f"other values than {chosen}, got {overrides}"
        )
    halves = (4, 2)
    return Tiling(
        variant.tile_m,
        64,
        256,
        64,
        1,
        1,
        halves,
        halves,
        halves,
        4,
        True,
        stages_p=0,
        wgmma=True,
        transposed=True,
        by_gradient=True,
    )


def _held_columns(variant: Variant, tiling: Tiling, depth: int) -> int:
    """`Tiling.held_columns` of the transposed loop. None where a soft cap needs the registers, or at head dim 128 steps
    of 80 queries; of its other kernels those with ordered adds are faster with some."""
    if tiling.exchanges:
        return HELD_BESIDE_EXCHANGE[tiling.dq_in_p]
    if tiling.dim != 128 or variant.softcap or (depth == 128 and (tiling.runs or not variant.deterministic)):
        return 0
    return HELD.get(depth, 0)


def default_step_groups(variant: Variant) -> int:
    """STEP_GROUPS for a backward kernel without dQ that may have them, else 0."""
    fits = variant.separate_dq and variant.kind == "backward" and variant.products == "wgmma"
    return STEP_GROUPS if fits and (variant.tile_n, variant.dim_padded) == (64, 128) else 0


def _by_steps(variant: Variant, overrides: dict[str, int]) -> Tiling:
    """The tiling of Hopper's main loop for dK and dV alone: steps of 64 queries, each a warpgroup's, and stages that
    fit, an even number for two warpgroups: NOTE [whole steps]. Postprocess reads sums of dK and dV as it does those of
    the loop that dQ belongs to."""
    groups = overrides.get("step_groups", STEP_GROUPS)
    stages, stages_q = {1: (2, 2), 2: (4, 6)}.get(groups, (0, 0))
    chosen = {"step_groups": groups, "step_m": 64, "stages": stages, "stages_ds": 0, "wide_stores": 1}
    wrong = {name: value for name, value in overrides.items() if chosen.get(name) != value}
    separate = variant.separate_dq or variant.kind == "postprocess"
    fits = variant.products == "wgmma" and (variant.tile_n, variant.dim_padded) == (64, 128)
    if not (separate and fits and stages) or wrong:
        raise ValueError(
            f"variant.tuning has step_groups: it needs a separate dQ, products 'wgmma', tile_n 64, head dim 128, 1 "
            f"or 2 groups and of {chosen} no other values, got {variant.products!r}, {variant.tile_n}, "
            f"{variant.dim_padded} and {overrides}"
        )
    return Tiling(
        variant.tile_m,
        64,
        128,
        64,
        stages,
        0,
        (4, 2),
        (4, 2),
        (4, 2),
        4,
        True,
        stages_p=0,
        wgmma=True,
        stages_q=stages_q,
        step_groups=groups,
    )


def _preferences(tile_m: int, tile_n: int, dim: int) -> list[tuple[int, int, int]]:
    """(step_m, stages, stages_ds), best first. Registers of a thread: dK and dV tile_n*dim/128, S and dP
    step_m*tile_n/128."""
    if dim > LARGEST_DIM[tile_n]:
        return []
    smallest = 64 if dim in (96, 160) else 32  # eight warps cannot share 32 x 96, nor 32 x 160
    fits = [s for s in (128, 64, 32) if smallest <= s <= tile_m and (tile_n * dim + s * tile_n) // 128 <= 192]
    # dQ of a whole block at once: its sums take tile_m*dim/256 registers, while there is no S nor dP
    whole = (tile_n * dim + tile_m * dim // 2) // 128 <= 192
    two = [
        (step, 2, stages_ds)
        for step in fits
        if step >= 64
        for stages_ds in (*([tile_m // step + 1] if whole and step < tile_m else []), 2, 1)
    ]
    return two + [(step, 1, stages_ds) for step in fits for stages_ds in (2, 1)]


def _shared_bytes(step_m: int, tile_n: int, dim: int, stages: int, scores: int) -> int:
    """scores: buffers for P and dS together."""
    elements = 2 * tile_n * dim + 2 * stages * step_m * dim + scores * step_m * tile_n
    statistics = 2 * stages * step_m * 4
    return 2 * elements + statistics + 16 * ENTRY_STAGES + 16


def _split_warps(rows: int, columns: int, warps_m: int | None = None, by_rows: bool = True) -> tuple[int, int]:
    """The split of eight warps that reads least shared memory for a (rows x columns) product: whole 16 x 16 pieces. Of
    equal ones that with more warps by rows, or by columns."""
    splits = [(m, WARPS // m) for m in (1, 2, 4, 8) if warps_m in (None, m)]
    possible = [(m, n) for m, n in splits if rows % (16 * m) == 0 and columns % (16 * n) == 0]
    if not possible:
        raise ValueError(f"eight warps, {warps_m} by rows, cannot share {rows} x {columns}")
    return min(possible, key=lambda s: (rows // s[0] + columns // s[1], s[1] if by_rows else s[0]))
