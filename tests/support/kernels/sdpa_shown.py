"""For each planted bug of kernels.sdpa a small case that shows it, and what the harness then says."""

from fuzz.core.case import Case, Inputs, Storage
from oracles.masks import Causal, Tokens
from oracles.problem import Bias, Problem


def _of(q=40, k=40, heads=(2, 2), dim=16, dtype="float32", inputs=None, relations=(), **problem):
    lengths = [x if isinstance(x, tuple) else (x,) for x in (q, k)]
    dim_v = problem.pop("dim_v", dim)
    asked = Problem(*lengths, *heads, dim, dim_v, dtype, **problem)
    return Case("sdpa", asked, inputs or Inputs(), repeats=1, relations=relations)


FIRST_KEYS_MASKED = Tokens(("0" * 64 + "1" * 6,) * 9)
SOME_EMPTY = Tokens(("1" * 20, "0" * 20, "1" * 20))
TRANSPOSED = Storage("bshd")

# name: (case, findings of which at least one must be there)
SHOWN: dict[str, tuple[Case, set[str]]] = {
    "unmasked_row_statistics": (_of(120, 66, (3, 3)), {"lse wrong", "dq wrong", "wrote_outside"}),
    "kv_head_modulo": (_of(heads=(4, 2)), {"o wrong"}),
    "tail_keys_not_masked": (_of(40, 70), {"o wrong"}),
    "causal_mask_missing_in_backward": (_of(mask=Causal()), {"dq wrong"}),
    "causal_off_by_one": (_of(mask=Causal()), {"o wrong"}),
    "dq_scaled_twice": (_of(), {"dq wrong"}),
    "diagonal_tile_skipped": (_of(mask=Causal()), {"dk wrong"}),
    "delta_missing": (_of(), {"dq wrong"}),
    "dk_not_scaled": (_of(), {"dk wrong"}),
    "group_updates_lost": (_of(heads=(4, 2)), {"dk wrong"}),
    "group_sums_rounded": (
        _of(70, 32, heads=(4, 1), dtype="bfloat16", inputs=Inputs(distribution="uniform_pow2")),
        {"dv wrong"},
    ),
    "row_state_tail_unwritten": (_of(), {"dk nan", "dv nan"}),
    "row_state_of_kv_heads": (_of(heads=(4, 2)), {"dq nan"}),
    "dq_tiles_of_keys": (_of(70, 40), {"dq nan"}),
    "dbias_not_summed": (_of(bias=Bias(rows=False)), {"dbias wrong"}),
    "dbias_of_one_sequence": (_of((9, 9), (9, 9), bias=Bias(heads=True)), {"dbias wrong"}),
    "dbias_of_one_head": (_of(bias=Bias()), {"dbias wrong"}),
    "dbias_scaled": (_of(bias=Bias()), {"dbias wrong"}),
    "lse_of_the_last_call": (_of(relations=("two_forwards",)), {"dq wrong", "dq two_forwards"}),
    "sums_not_rescaled": (_of(9, 200), {"o wrong"}),
    "scale_compounds": (_of(9, 70), {"o wrong"}),
    "nothing_seen_yet_is_nan": (_of(9, 70, mask=FIRST_KEYS_MASKED), {"o nan"}),
    "lse_in_log2": (_of(), {"lse wrong"}),
    "empty_rows_lse_plus_infinity": (_of(3, 20, mask=SOME_EMPTY), {"lse nan"}),
    "empty_rows_divided_by_zero": (_of(3, 20, mask=SOME_EMPTY), {"o nan"}),
    "causal_interior_past_the_keys": (_of(200, 20, mask=Causal()), {"o wrong"}),
    "causal_bottom_right": (_of(70, 40, mask=Causal()), {"o nan"}),
    "value_tail_not_cleared": (_of(9, 20, inputs=Inputs(v=Storage(pad=1)), dtype="float16"), {"o nan"}),
    "lse_offset_wraps": (_of(200, 9, (4, 4)), {"lse nan"}),
    "bias_scaled": (_of(bias=Bias()), {"o wrong"}),
    "mask_strides_kept": (_of((9, 9), (9, 9), bias=Bias(heads=True)), {"o nan", "o wrong"}),
    "grad_out_taken_for_contiguous": (_of(inputs=Inputs(do=TRANSPOSED)), {"dv wrong"}),
    "block_of_query_dim_alone": (_of(dim=16, dim_v=40), {"o nan"}),
    "every_scale_folded": (_of(scale=0.0), {"o nan"}),
    "key_scaled_in_place": (_of(), {"changed_input", "dq wrong"}),
    "scale_of_the_first_call": (_of(relations=("scaled_q",)), {"o wrong", "o scaled_q"}),
    "no_keys_divide": (_of(9, 0), {"raised"}),
    "workspace_kept": (_of(9, 9), {"leak"}),
    "falls_back": (_of(9, 9), {"unproven"}),
}
