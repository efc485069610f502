"""The targets whose kernels are mutated, and their configurations."""

from __future__ import annotations

from fuzz.score.ptx_mutants.configs import CONFIGS, WGMMA
from fuzz.score.ptx_mutants.sparse_configs import DYNAMIC_MASK, NSA
from fuzz.score.ptx_mutants.survey import KernelConfig

TARGETS: dict[str, tuple[KernelConfig, ...]] = {
    "blocksparse": CONFIGS,
    "blocksparse.wgmma": WGMMA,
    "dynamic_mask": DYNAMIC_MASK,
    "nsa": NSA,
}


def config(target: str, name: str) -> KernelConfig:
    """The configuration of that name. Raises ValueError."""
    found = next((one for one in configs(target) if one.name == name), None)
    if found is None:
        raise ValueError(f"config: must be one of {', '.join(one.name for one in TARGETS[target])}, got {name!r}")
    return found


def configs(target: str) -> tuple[KernelConfig, ...]:
    """The configurations of a target. Raises ValueError."""
    if target not in TARGETS:
        raise ValueError(f"target: must be one of {', '.join(TARGETS)}, got {target!r}")
    return TARGETS[target]
