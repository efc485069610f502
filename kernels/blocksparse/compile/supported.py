"""Layout of a variant, and the kernels that an arch has the shared memory for: known before anything is compiled.

A forward pass fits everywhere (tuning.py), but wgmma is sm_90a's alone, tcgen05 sm_100a's and sm_103a's; of the
backward kernels the largest tiles do not fit the 99 KiB of sm_120. The dQ kernel, of sm_90a alone, has tiles of 128
queries at head dims that are padded to 64 and 128; elsewhere the backward kernel adds to dQ (`has_separate_dq`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kernels.blocksparse.backward.blackwell.pairs.tuning import PairTuning, pair_tuning
from kernels.blocksparse.backward.blackwell.tuning import BlackwellBackwardTuning, blackwell_backward_tuning
from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.dq_by_queries.tuning import dq_tuning
from kernels.blocksparse.forward.blackwell.tuning import BlackwellTuning, blackwell_tuning
from kernels.blocksparse.forward.hopper.tuning import HopperTuning, hopper_tuning
from kernels.blocksparse.forward.tuning import ForwardTuning, portable_tuning
from kernels.blocksparse.spec.variant import ARCHES, ARCHES_OF, PAIR_KEYS, Variant


def fits(variant: Variant, arch: str) -> bool:
    """True where `variant` can be built for an arch such as "sm_90a". A postprocess kernel goes with its backward."""
    if arch not in ARCHES_OF.get(variant.products, ARCHES):
        return False
    if variant.kind not in ("dq", "backward", "postprocess") and variant.products != "tcgen05":
        return True
    try:
        if variant.kind == "forward":
            forward_tuning(variant)
        elif variant.kind == "dq":
            dq_tuning(variant)
        elif variant.products == "tcgen05":
            backward_tuning_of_tcgen05(variant)
        else:
            choose_tiling(variant, arch)
    except ValueError:
        return False
    return True


_TUNINGS: dict[str, Callable[[Variant], ForwardTuning | HopperTuning | BlackwellTuning]] = {
    "mma": portable_tuning,
    "wgmma": hopper_tuning,
    "tcgen05": blackwell_tuning,
}


def backward_tuning_of_tcgen05(variant: Variant) -> BlackwellBackwardTuning | PairTuning:
    """The layout that a backward kernel by tcgen05 is built with. Raises ValueError as the two that it chooses from."""
    return pair_tuning(variant) if variant.tile_n == PAIR_KEYS else blackwell_backward_tuning(variant)


@lru_cache(1024)
def forward_tuning(variant: Variant) -> ForwardTuning | HopperTuning | BlackwellTuning:
    """The layout that a forward kernel is built with. Raises ValueError for overrides that cannot work."""
    return _TUNINGS[variant.products](variant)
