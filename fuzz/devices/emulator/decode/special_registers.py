"""PTX's special registers in one table: how wide each is, and what it holds in every thread of a launch.

A register is the same for all CTAs (`value`, computed once per launch from its geometry), or it is a fact of the CTA
that runs (`of_cta`, filled in when the CTA starts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fuzz.devices.emulator import opcodes as op

ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True)
class Geometry:
    """Facts of a launch that special registers tell: sizes in CTAs, threads and bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    resident_ctas: int
    dynamic_shared: int
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    explicit_cluster: bool = False

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)


Value = Callable[[Geometry, np.ndarray], np.ndarray | int]  # from a thread's linear index in its CTA


@dataclass(frozen=True)
class SpecialRegister:
    """One row of the table. of_cta: what of the CTA it tells, a column CTA_… of state/tables.py. bits: 1 for a
    predicate."""

    value: Value | None = None
    of_cta: str = ""
    bits: int = 32


def _table() -> dict[str, SpecialRegister]:
    zero = SpecialRegister(lambda g, t: 0)
    rows = {
        "%tid.x": SpecialRegister(lambda g, t: t % g.block[0]),
        "%tid.y": SpecialRegister(lambda g, t: t // g.block[0] % g.block[1]),
        "%tid.z": SpecialRegister(lambda g, t: t // (g.block[0] * g.block[1])),
        "%laneid": SpecialRegister(lambda g, t: t % 32),
        "%warpid": SpecialRegister(lambda g, t: t // 32),
        "%nwarpid": SpecialRegister(lambda g, t: g.warps),
        "%smid": SpecialRegister(of_cta="SLOT"),
        "%nsmid": SpecialRegister(lambda g, t: g.resident_ctas),
        "%gridid": SpecialRegister(lambda g, t: 0, bits=64),
        "%dynamic_smem_size": SpecialRegister(lambda g, t: g.dynamic_shared),
        "%total_smem_size": SpecialRegister(lambda g, t: g.shared - op.RESERVED_SHARED),
        "%aggr_smem_size": SpecialRegister(lambda g, t: g.shared),
        "%lanemask_eq": SpecialRegister(lambda g, t: 1 << t % 32),
        "%lanemask_lt": SpecialRegister(lambda g, t: (1 << t % 32) - 1),
        "%lanemask_le": SpecialRegister(lambda g, t: (2 << t % 32) - 1),
        "%lanemask_gt": SpecialRegister(lambda g, t: ALL_LANES & ~((2 << t % 32) - 1)),
        "%lanemask_ge": SpecialRegister(lambda g, t: ALL_LANES & ~((1 << t % 32) - 1)),
        "%cluster_ctarank": SpecialRegister(of_cta="RANK"),
        "%cluster_nctarank": SpecialRegister(lambda g, t: g.cluster[0] * g.cluster[1] * g.cluster[2]),
        "%is_explicit_cluster": SpecialRegister(lambda g, t: g.explicit_cluster, bits=1),
        "%shared_base": SpecialRegister(of_cta="BASE"),  # the emulator's own: address of byte 0 of shared memory
    }
    for axis, x in enumerate("xyz"):
        rows[f"%ntid.{x}"] = SpecialRegister(lambda g, t, axis=axis: g.block[axis])  # type: ignore[misc]
        rows[f"%nctaid.{x}"] = SpecialRegister(lambda g, t, axis=axis: g.grid[axis])  # type: ignore[misc]
        rows[f"%nclusterid.{x}"] = SpecialRegister(lambda g, t, axis=axis: g.grid[axis] // g.cluster[axis])  # type: ignore[misc]
        rows[f"%cluster_nctaid.{x}"] = SpecialRegister(lambda g, t, axis=axis: g.cluster[axis])  # type: ignore[misc]
        rows[f"%ctaid.{x}"] = SpecialRegister(of_cta=x.upper())
        rows[f"%clusterid.{x}"] = SpecialRegister(of_cta=f"CLUSTER_{x.upper()}")
        rows[f"%cluster_ctaid.{x}"] = SpecialRegister(of_cta=f"IN_CLUSTER_{x.upper()}")
    fourth = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    return rows | {f"%{name}.w": zero for name in fourth}


SPECIAL_REGISTERS = _table()


def values(name: str, geometry: Geometry) -> np.ndarray:
    """int64 (warps, 32): what a register holds in each thread of any CTA; zeros where that depends on the CTA."""
    threads = np.arange(32 * geometry.warps, dtype=np.int64).reshape(-1, 32)
    value = SPECIAL_REGISTERS[name].value
    return np.broadcast_to(np.asarray(value(geometry, threads) if value else 0, dtype=np.int64), threads.shape)
