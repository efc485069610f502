"""Mutants of `kernels.sdpa`: each replaces one step, written as it was written in a project, or as it might be.

Importing this file registers those of the files beside it too.
"""

import importlib
import pkgutil

import triton
import triton.language as tl

import kernels.mutants.sdpa
from kernels.mutants import steps
from kernels.mutants.sdpa.registration import MUTANTS, register_mutant

__all__ = ["MUTANTS"]


register_mutant(
    "unmasked_row_statistics",
    "LSE is stored without the row mask: rows beyond len_q of the last tile land in the next head's first rows (or "
    "beyond the buffer), so O is right and the gradients of those rows are wrong, at len_q that fills no whole tile.",
    "FlagGems pull request on SDPA backward, August 2025: tl.store(m_ptrs, m_i), found in review by tongxin",
    store_row_statistics=steps.lse_unmasked,
)


register_mutant(
    "kv_head_modulo",
    "Query heads take KV heads round-robin instead of in groups: wrong wherever 1 < heads_kv < heads_q.",
    "FlagGems 33e4cda7: kv_head_id = off_hz % kv_numhead",
    kv_head_of=steps.kv_head_modulo,
)


@triton.jit
def _leave_tail_keys(rS, n, len_k):
    return rS


register_mutant(
    "tail_keys_not_masked",
    "Keys beyond len_k of the last tile count with score 0: wrong where len_k fills no whole tile.",
    "FlagGems SDPA forward: the mask of the keys computed once, outside of the loop",
    mask_tail_keys=_leave_tail_keys,
)


@triton.jit
def _no_causal_mask(rS, m, n, len_q, len_k):
    return rS


register_mutant(
    "causal_mask_missing_in_backward",
    "Backward treats the tiles on the diagonal as unmasked: O is right, causal gradients are wrong.",
    "invented",
    mask_causal_backward=_no_causal_mask,
)


@triton.jit
def _causal_one_too_many(rS, m, n, len_q, len_k):
    return tl.where(n <= m + 1, rS, -float("inf"))


register_mutant(
    "causal_off_by_one",
    "Each query sees one key after its own, apart from the last query of a tile.",
    "invented",
    mask_causal_forward=_causal_one_too_many,
    mask_causal_backward=_causal_one_too_many,
)


@triton.jit
def _scale_dq_twice(rdQ, scale):
    return rdQ * scale * scale


register_mutant(
    "dq_scaled_twice",
    "dQ is multiplied by the scale twice: wrong unless the scale is 0 or 1.",
    "flash-dmattn 4291d01, c49dead: dQ from a K that is scaled already, and scaled again",
    finish_dq=_scale_dq_twice,
)


for _neighbour in sorted(module.name for module in pkgutil.iter_modules(kernels.mutants.sdpa.__path__)):
    importlib.import_module(f"kernels.mutants.sdpa.{_neighbour}")
