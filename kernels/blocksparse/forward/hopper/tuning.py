"""Layout of the Hopper forward kernel on an SM; `Variant.tuning` overrides single entries.

NOTE [narrow tiles] Tiles of 64 queries have one multiplying warp for each scheduler, so CTAs share an SM: two, or three
up to head dim 64. Their steps are short: what a tile needs is fetched from the tile before's start on.

NOTE [wide tiles] At head dim 64 a block's products and its exponentials take the same time, and two multiplying warps
for each scheduler leave half of the issue slots empty. Tiles of 192 queries have three, on the same K and V. Their
threads have 160 registers: 64 scores, 32 probabilities that the last product still reads, 32 sums of O, and few more.
So the loading ones have 32, which is enough by TMA. K and V have three stages: of two, the last warpgroup would release
one of V shortly before the first one needs what comes into it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from kernels.blocksparse.spec.variant import WIDE, Variant

WARPGROUP = 128  # threads
ROWS = 64  # of a tile that one warpgroup multiplies
MOST = 248  # registers of a thread; 255, but in steps of 8
SHARED = 232448  # bytes of shared memory that a CTA of sm_90 can have
REGISTERS = 65536  # of a multiprocessor
# registers of a thread that loads, where those that multiply take more than their share: by cp.async, by TMA
LOADING = (56, 32)
BARRIERS = 512  # bytes set aside for the barriers of the buffers and the announced tiles


@dataclass(frozen=True)
class HopperTuning:
    """Resources of an SM that the kernel uses; NOTE [buffers] of forward/loads.py.

    step        keys at a time, a divisor of tile_n
    stages      tiles of K and of V in shared memory, 1 or 2: as many pairs of loading warps; by TMA up to 4
    tiles       of Q in shared memory, 1 or 2: with two the next one's is loaded while this one's is multiplied
    ctas        of an SM for which registers are limited
    registers   of a thread that multiplies; 0: all threads keep those of the launch, else loading ones keep `loading`
    loading     registers of a thread that loads
    tma         1: Q, K and V are loaded by TMA, NOTE [whole tiles] of tma_loads.py; 0: by cp.async
    turns       1: warpgroups issue their products one after the other, NOTE [turns] of hopper/mainloop.py
    rescale     1: O follows the rows' maxima in every step; 0: where one has fallen behind, mainloop.rescale
    held        1: in steps without a mask K is released after the exponentials; 0: as soon as it has been multiplied
    lead        steps of a tile whose K is still to be loaded when the CTA takes its next one, NOTE [tiles] of
                tile_scheduler.py; 0: it takes it at the tile's start, as it does without TMA
    cluster     CTAs that load K and V for each other, 1 or 2: NOTE [tiles of a cluster] of tile_scheduler.py
    splits      1: tiles may be split, NOTE [split tiles] of common/split_tiles.py
    nested      1: rows of a cluster are nested, not alike, NOTE [nested rows] of tile_scheduler.py
    depth       columns of Q and K that scores are products over, and of V and O that products have, as those behind
                are zeros: a multiple of 16 and at least the head dim; 0: all
    q_columns   columns of Q that stay in registers for a tile, a multiple of 16; products read the others from
                shared memory in each step
    """

    step: int
    stages: int
    tiles: int
    ctas: int = 1
    registers: int = 0
    loading: int = 0
    tma: int = 0
    turns: int = 0
    rescale: int = 0
    held: int = 0
    lead: int = 0
    cluster: int = 1
    splits: int = 0
    nested: int = 0
    depth: int = 0
    q_columns: int = 0

    def warpgroups(self, variant: Variant) -> int:
        """Those that multiply; one more loads."""
        return variant.tile_m // ROWS

    def threads(self, variant: Variant) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.warpgroups(variant))

    def shared_bytes(self, variant: Variant) -> int:
        """Shared memory of one CTA."""
        return 2 * variant.dim_padded * (self.tiles * variant.tile_m + 2 * self.stages * self.step) + BARRIERS


def hopper_tuning(variant: Variant) -> HopperTuning:
    """The layout that `variant` is built with. Raises ValueError for overrides that cannot work."""
    overrides = dict(variant.tuning)
    narrow, dim = variant.tile_m == ROWS, variant.dim_padded
    # what loads by cp.async takes more registers
    most_ctas = 3 if dim <= 64 and overrides.get("tma", 1) else 2
    values = {
        "step": 64 if dim > 160 or narrow else variant.tile_n,
        "stages": 3 if variant.tile_m == WIDE and overrides.get("tma", 1) else 2,
        "tiles": 1 if dim > 128 or narrow else 2,
        "ctas": most_ctas if narrow and dim <= 128 else 1,
        "tma": 1,
        "lead": 0 if narrow else 2 if dim == 96 else 4,
        "turns": int(variant.tile_m == WIDE or (not narrow and dim in (128, 160))),
        "rescale": int(variant.tile_m == WIDE),
        "held": int(variant.tile_m != WIDE),
    }
    names = [field.name for field in fields(HopperTuning)]
    if unknown := sorted(set(overrides) - set(names)):
        raise ValueError(f"variant.tuning has {unknown}; the Hopper forward kernel knows {names}")
    tuning = HopperTuning(**{**values, **overrides})
    if "q_columns" not in overrides:
        tuning = replace(tuning, q_columns=_q_columns(variant, tuning))
    if not {tuning.tma, tuning.turns, tuning.rescale, tuning.held} <= {0, 1} or tuning.lead not in range(256):
        raise ValueError(f"variant.tuning {tuning}: tma, turns, rescale and held must be 0 or 1, lead from 0 to 255")
    # what a CTA's threads are launched with is all that they can share out: one that asks for more waits forever
    if "loading" not in overrides:
        tuning = replace(tuning, loading=LOADING[tuning.tma])
    groups, threads = tuning.warpgroups(variant), tuning.threads(variant)
    launched = min(REGISTERS // (threads * tuning.ctas) // 8 * 8, MOST)
    most = min(((groups + 1) * launched - tuning.loading) // groups // 8 * 8, MOST)
    if "registers" not in overrides and launched < MOST:
        tuning = replace(tuning, registers=most)
    if tuning.registers % 8 or tuning.loading % 8 or not tuning.loading >= 24 or not 0 <= tuning.registers <= most:
        raise ValueError(f"variant.tuning {tuning}: registers must be multiples of 8, from 24 and up to {most}")
    if tuning.cluster not in (1, 2) or (tuning.cluster > 1 and not tuning.tma):
        raise ValueError(f"variant.tuning {tuning}: cluster must be 1 or, with tma, 2")
    if tuning.splits not in (0, 1) or (tuning.splits and not tuning.tma):
        raise ValueError(f"variant.tuning {tuning}: splits must be 0 or, with tma, 1")
    if tuning.nested not in (0, 1) or (tuning.nested and (tuning.cluster == 1 or tuning.splits)):
        raise ValueError(f"variant.tuning {tuning}: nested must be 0 or, in clusters without splits, 1")
    if tuning.nested and variant.mask != "band":
        raise ValueError(f"variant.tuning {tuning}: nested is for bands, not for {variant.mask}")
    if tuning.depth % 16 or not 0 <= tuning.depth <= variant.dim_padded:
        raise ValueError(f"variant.tuning {tuning}: depth must be a multiple of 16, up to {variant.dim_padded}")
    if tuning.q_columns % 16 or not 0 <= tuning.q_columns <= (tuning.depth or variant.dim_padded):
        raise ValueError(f"variant.tuning {tuning}: q_columns must be a multiple of 16, up to the depth")
    stages = range(1, 5 if tuning.tma else 3)
    if variant.tile_n % tuning.step or tuning.step % 32 or tuning.stages not in stages or tuning.tiles not in (1, 2):
        raise ValueError(f"variant.tuning {tuning} does not fit tiles {variant.tile_m} × {variant.tile_n}")
    if (size := tuning.ctas * tuning.shared_bytes(variant)) > SHARED:
        raise ValueError(f"variant.tuning {tuning}: {size} bytes of shared memory; there are {SHARED}")
    return tuning


def _q_columns(variant: Variant, tuning: HopperTuning) -> int:
    """Columns of Q that registers hold where that is faster: with head dims 81 to 96, tiles of 128 queries and steps of
    128 keys, by CTAs without a cluster or split tiles. None under a soft cap."""
    dims = variant.dim_padded == 96 and not tuning.depth and not variant.softcap
    tiles = (variant.tile_m, tuning.step, tuning.tma, tuning.cluster, tuning.splits) == (128, 128, 1, 1, 0)
    return 80 if dims and tiles else 0
