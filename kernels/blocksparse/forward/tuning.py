"""Layout of the forward kernel on an SM: warps, inner steps and stages, by head dim and query tile.

A table, so that another architecture or a faster shape is one more row; `Variant.tuning` overrides single entries.
"""

from dataclasses import dataclass, fields

from kernels.blocksparse.spec.variant import Variant


@dataclass(frozen=True)
class ForwardTuning:
    """Resources of an SM that the forward kernel uses; NOTE [steps] of mainloop.py.

    warps            over the query tile
    step             keys at a time, a divisor of tile_n
    stages           tiles of K and of V in shared memory, 1 or 2
    q_in_registers   Q's fragments are kept (1) or re-read by ldmatrix (0)
    pipelined        the next step's scores are computed during this one's softmax (1); needs two stages, and two steps
                     in a block
    ctas             of an SM for which registers are limited
    """

    warps: int
    step: int
    stages: int
    q_in_registers: int
    pipelined: int = 0
    ctas: int = 1

    def threads(self, variant: Variant) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    def shared_bytes(self, variant: Variant) -> int:
        """Shared memory of one CTA."""
        return 2 * variant.dim_padded * (variant.tile_m + 2 * self.stages * self.step)


# (dim_padded, tile_m) → warps, step, stages, q_in_registers: the fastest measured on an H100 for dims 64, 128 and for
# (96, 128); the others by analogy. Above 128 a warp has 16 rows, as O takes dim / 2 registers of a thread for each 16;
# steps are such that one stage fits the least shared memory of an arch, 99 KiB
_FORWARD = {
    (32, 64): (4, 64, 2, 1),
    (64, 64): (4, 64, 2, 1),
    (96, 64): (4, 64, 2, 1),
    (128, 64): (4, 64, 2, 1),
    (32, 128): (4, 64, 2, 1),
    (64, 128): (4, 64, 2, 1),
    (96, 128): (4, 64, 1, 0),
    (128, 128): (4, 64, 1, 0),
    (160, 64): (4, 64, 1, 0),
    (192, 64): (4, 64, 1, 0),
    (256, 64): (4, 64, 1, 0),
    (160, 128): (8, 64, 1, 0),
    (192, 128): (8, 64, 1, 0),
    (256, 128): (8, 32, 1, 0),
}
# The same for masks that are computed in the kernel: shorter steps take 0 to 9 % less time on an H100
_COMPUTED = {(128, 128): (4, 32, 2, 0)}


def portable_tuning(variant: Variant) -> ForwardTuning:
    """The layout that `variant` is built with. Raises ValueError for overrides that cannot work."""
    names = [field.name for field in fields(ForwardTuning)]
    shape = variant.dim_padded, variant.tile_m
    row = _COMPUTED.get(shape, _FORWARD[shape]) if variant.mask in ("band", "intervals") else _FORWARD[shape]
    values = dict(zip(names, row, strict=False))
    overrides = dict(variant.tuning)
    if unknown := sorted(set(overrides) - set(names)):
        raise ValueError(f"variant.tuning has {unknown}; the forward kernel knows {names}")
    tuning = ForwardTuning(**{**values, **overrides})
    if (
        variant.tile_m % (16 * tuning.warps)
        or variant.tile_n % tuning.step
        or tuning.step % 32
        or tuning.stages not in (1, 2)
    ):
        raise ValueError(f"variant.tuning {tuning} does not fit tiles {variant.tile_m} × {variant.tile_n}")
    if tuning.pipelined and (tuning.stages != 2 or variant.tile_n % (2 * tuning.step)):
        raise ValueError(f"variant.tuning {tuning}: a pipeline needs two stages, and two steps in tile_n")
    return tuning
