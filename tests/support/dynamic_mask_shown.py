"""For each planted bug of kernels.dynamic_mask a small case that shows it, and what the harness then says."""

from fuzz.core.case import Case, Inputs
from oracles.masks import Blocks, Causal, TopK
from oracles.problem import Bias, Problem


def _of(q=40, k=40, heads=(2, 2), dim=16, inputs=None, variant=None, **problem):
    lengths = [x if isinstance(x, tuple) else (x,) for x in (q, k)]
    asked = Problem(*lengths, *heads, dim, dim, "float16", **problem)
    return Case("dynamic_mask", asked, inputs or Inputs(), variant or {}, repeats=1)


EMPTY_FIRST = Blocks(64, 64, (".F", ".F"))
LAST_ROWS = Blocks(32, 64, (".", "F"))
HALVES = Blocks(64, 64, (".F", "F."))

# name: (case, findings of which at least one must be there)
SHOWN: dict[str, tuple[Case, set[str]]] = {
    "flag_carried_over": (_of(40, 100, (1, 1), mask=EMPTY_FIRST), {"o wrong"}),
    "flag_carried_over_in_backward": (_of(70, 100, (1, 1), mask=HALVES), {"dq wrong", "dk wrong"}),
    "flag_of_the_first_warp": (_of(60, 40, (1, 1), mask=LAST_ROWS), {"o wrong"}),
    "tiles_of_each_warp": (_of(60, 140, (1, 1), mask=EMPTY_FIRST), {"barrier_divergence"}),
    "never_skips": (_of(40, 100, (1, 1), mask=EMPTY_FIRST), {"tiles"}),
    "dq_scaled_twice": (_of(), {"dq wrong"}),
    "group_updates_lost": (_of(heads=(2, 1)), {"dk wrong"}),
    "row_state_of_kv_heads": (_of(heads=(2, 1)), {"dq nan"}),
    "dbias_of_one_sequence": (_of((9, 9), (9, 9), (1, 1), bias=Bias()), {"dbias wrong"}),
    "dbias_of_one_head": (_of(9, 9, (2, 1), bias=Bias()), {"dbias wrong"}),
    "dbias_not_summed": (_of(9, 9, (2, 1), bias=Bias(heads=True, rows=False)), {"dbias wrong"}),
    "dbias_of_one_row_not_summed": (_of((9, 9), (9, 9), (1, 1), bias=Bias(rows=False)), {"dbias wrong"}),
    "dbias_of_one_part": (_of(70, 9, (1, 1), variant={"splits": 2}), {"dk wrong"}),
    "mask_strides_kept": (_of((9, 9), (9, 9), mask=TopK(2, Causal(), sequence=0)), {"o wrong", "o nan"}),
    "mask_tail_read": (_of(9, 20, (1, 1), mask=TopK(2)), {"o wrong", "mMask read"}),
    "delta_missing": (_of(), {"dq wrong"}),
    "kv_head_modulo": (_of(heads=(4, 2)), {"o wrong"}),
    "next_keys_copied_early": (_of(64, 192, (1, 1), 32), {"race"}),
    "next_queries_copied_early": (_of(192, 64, (1, 1), 32), {"race"}),
    "dbias_without_a_bias": (_of(9, 9, (1, 1)), {"raised"}),
    "lse_gradient_dropped": (_of(9, 130, (1, 1), variant={"keys": "split"}), {"dq wrong", "dk wrong"}),
    "unmasked_row_statistics": (_of(40, 9, (3, 3)), {"lse wrong", "dq wrong", "output wrote_outside"}),
}
