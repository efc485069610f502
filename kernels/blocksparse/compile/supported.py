"""Layout of a variant, and the kernels that an arch has the shared memory for: known before anything is compiled.

A forward pass fits everywhere (tuning.py), but wgmma is sm_90a's alone; of the backward kernels the largest tiles do
not fit the 99 KiB of sm_120.
"""

from __future__ import annotations

from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.forward.hopper.tuning import HopperTuning, hopper_tuning
from kernels.blocksparse.forward.tuning import ForwardTuning, portable_tuning
from kernels.blocksparse.spec.variant import Variant


def fits(variant: Variant, arch: str) -> bool:
    """True where `variant` can be built for an arch such as "sm_90a". A postprocess kernel goes with its backward."""
    if variant.products == "wgmma" and arch != "sm_90a":
        return False
    if variant.kind not in ("backward", "postprocess"):
        return True
    try:
        choose_tiling(variant, arch)
    except ValueError:
        return False
    return True


def forward_tuning(variant: Variant) -> ForwardTuning | HopperTuning:
    """The layout that a forward kernel is built with. Raises ValueError for overrides that cannot work."""
    return hopper_tuning(variant) if variant.products == "wgmma" else portable_tuning(variant)
