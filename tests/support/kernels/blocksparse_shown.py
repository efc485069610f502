"""For each mutant of kernels.blocksparse a small case that shows it, and what the harness then says. Those of the
kernels' arithmetic and protocol, and of what only a machine sees, are shown in
tests/fuzz/targets/blocksparse/test_blocksparse_target.py.

Cases share few kernels: float16, head dim 64, tiles of 64 x 64."""

from fuzz.core.case import Case, Inputs, Storage
from oracles.masks import Causal, Full, Intervals, PerHead, Window
from oracles.problem import Problem

WRONG = {"o wrong", "o nan"}
GRADIENTS = {f"{x} {kind}" for x in ("dq", "dk", "dv") for kind in ("wrong", "nan")}
UNWRITTEN = {"read_of_uninitialised_memory"}  # the emulated GPU tells before any number is looked at


def _of(q=150, k=150, heads=(2, 1), mask=None, inputs=None, relations=(), repeats=2, variant=None, **problem):
    lengths = [x if isinstance(x, tuple) else (x,) for x in (q, k)]
    dim = problem.pop("dim", 64)
    asked = Problem(*lengths, *heads, dim, dim, "float16", mask=Causal() if mask is None else mask, **problem)
    options = {"tile_m": 64, "tile_n": 64, "slots": 3, **(variant or {})}
    return Case("blocksparse", asked, inputs or Inputs(), options, repeats, relations)


BAND, INTERVALS = {"mask": "band"}, {"mask": "intervals"}
TWO_RUNS = Intervals((((0, 9), (20, 30), (40, 50)),) * 70)
FORWARD = {"backward": False, "repeats": 1}

# Bugs of the metadata, which run the correct kernels: (case, findings of which at least one must be there)
LISTS: dict[str, tuple[Case, set[str]]] = {
    "partial_called_full": (_of(), WRONG),
    "full_listed_with_stale_slot": (_of(), WRONG),
    "block_listed_twice": (_of(70, 150, mask=Full(), **FORWARD), WRONG),
    "longest_row_cut": (_of(70, 150, mask=Full(), **FORWARD), WRONG),
    "lists_not_transposed": (_of(), GRADIENTS | {"hang"}),
    "unused_entries_transposed": (_of(), GRADIENTS | {"hang"}),
    "last_row_not_transposed": (_of(), GRADIENTS),
    "slots_not_transposed": (_of(mask=Window(70, 3)), GRADIENTS),
    "sequence_ignored": (_of((150, 70), (150, 70)), WRONG | UNWRITTEN),
    "heads_and_sequences_swapped": (
        _of((150, 70), (150, 150), heads=(2, 2), mask=PerHead((Causal(), Window(10, 10)))),
        WRONG | UNWRITTEN,
    ),
    "empty_sequence_not_counted": (_of((70, 0, 150), (70, 20, 150)), WRONG | UNWRITTEN),
    "bits_of_bytes_reversed": (_of(**FORWARD), WRONG),
    "window_one_short": (_of(70, 70, mask=Window(20, 0), variant=BAND, **FORWARD), WRONG),
    "window_one_long": (_of(70, 70, variant=BAND, **FORWARD), WRONG),
    "alignment_mirrored": (_of(70, 100, mask=Causal("bottom_right"), variant=BAND, **FORWARD), WRONG),
    "open_window_overflows": (_of(70, 70, mask=Window(20, None), variant=BAND, **FORWARD), WRONG),
    "first_interval_ignored": (_of(70, 70, mask=TWO_RUNS, variant=INTERVALS, **FORWARD), WRONG),
    "last_interval_lost": (_of(70, 70, mask=TWO_RUNS, variant=INTERVALS, **FORWARD), WRONG),
    "interval_ends_included": (_of(70, 70, mask=TWO_RUNS, variant=INTERVALS, **FORWARD), WRONG),
    "rank_over_all_heads": (_of(mask=PerHead((Causal(), Window(10, 10)))), {"hang"}),
    "rank_groups_collide": (_of(150, 70, mask=PerHead((Causal(), Full()))), {"hang"}),
    "permutation_inverted": (_of(70, 300, mask=Full(), variant={"schedule": "shuffled", "slots": 1}), {"hang"}),
    "tile_launched_twice": (_of(), {"race_two_writes", "dk nan"}),
    "full_not_shifted_in_merge": (_of(150, 150), WRONG),
    "partial_list_right_to_left": (_of(150, 150, mask=Window(70, 3)), GRADIENTS | {"hang"}),
    "last_query_tile_called_full": (_of(), GRADIENTS),
    "bounds_padding_not_skipped": (_of(70, 70, mask=TWO_RUNS, variant=INTERVALS, **FORWARD), WRONG),
    "compact_order_refused": (_of(70, 70), {"refused"}),
}

PACKED = {"layout": "packed"}
# Bugs of the host, which run the correct kernels
HOST: dict[str, tuple[Case, set[str]]] = {
    "packed_keys_begin_with_queries": (_of((70, 80), (30, 90), **PACKED, **FORWARD), WRONG | {"out_of_bounds"}),
    "query_strides_of_contiguous": (_of(70, 70, inputs=Inputs(q=Storage("bshd")), **FORWARD), WRONG),
    "padded_offset_of_128": (_of(150, 150, **PACKED), GRADIENTS | {"race_two_writes"}),
    "lse_stride_of_the_longest": (_of((70, 150), (70, 150), **PACKED), GRADIENTS),
    "padded_dim_for_dim": (_of(70, 70, dim=40, **FORWARD), WRONG | {"out_of_bounds"}),
    "padding_unknown_to_backward": (_of((70, 70), (100, 70), mask=Full()), GRADIENTS),
    "key_tiles_of_queries": (_of(64, 150, mask=Full()), {"dk nan", "hang"}),
    "padding_not_cleared": (_of((70, 9), (70, 70), **FORWARD), {"o nan", "lse nan"}),
    "bounds_of_the_first_head": (_of(70, 70, mask=PerHead((Causal(), Window(9, 9))), variant=INTERVALS), GRADIENTS),
    "band_offset_of_the_first_sequence": (
        _of((70, 70), (100, 70), mask=Causal("bottom_right"), variant=BAND, **FORWARD),
        WRONG,
    ),
    "window_unknown_to_backward": (_of(70, 70, mask=Window(9, 9), variant=BAND), GRADIENTS),
    "dq_not_scaled": (_of(70, 70), GRADIENTS),
    "scale_of_the_first_launch": (_of(70, 70, relations=("scaled_q",), **FORWARD), {"o scaled_q", *WRONG}),
    "length_in_the_key": (_of(70, 70, **FORWARD), {"compiles"}),
    "schedule_ignored": (_of(70, 300, mask=Full(), variant={"schedule": "descending", "slots": 1}), {"hang"}),
    "full_ranks_forgotten": (_of(), {"hang"}),
    "partial_contributors_forgotten": (_of(variant={**BAND, "schedule": "descending"}), {"hang"}),
    "sequence_order_inverted": (_of((70, 10, 200), (70, 10, 200), **PACKED), GRADIENTS | UNWRITTEN),
    "last_sequence_left_out": (_of((70, 10, 200), (70, 10, 200), **PACKED), GRADIENTS),
}

CAPPED = {"softcap": 2.0}
TENSOR_MEMORY = _of(130, 300, heads=(1, 1), mask=Full(), variant={"tile_m": 128, "products": "tcgen05"}, **FORWARD)
TWO_QUERY_TILES = _of(400, 400, heads=(1, 1), mask=Full(), variant={"tile_m": 256, "products": "tcgen05"}, **FORWARD)
# Several tiles for each of the emulated GPU's persistent CTAs, of an odd number of steps; and some without blocks
PERSISTENT = _of(600, 300, heads=(4, 1), mask=Full(), variant={"tile_m": 256, "products": "tcgen05"}, **FORWARD)
EMPTY_TILES = _of(
    *(900, 200), heads=(4, 1), mask=Causal("bottom_right"), variant={"tile_m": 256, "products": "tcgen05"}, **FORWARD
)
THREE_STAGES_OF_Q = _of(  # for two query tiles
    *(600, 300),
    heads=(4, 1),
    mask=Full(),
    dim=128,
    variant={"tile_m": 256, "tile_n": 128, "products": "tcgen05"},
    **FORWARD,
)
WITH_GRADIENTS = _of(
    300, 300, mask=Full(), variant={"tile_m": 128, "tile_n": 128, "mask": "intervals", "products": "tcgen05"}
)
ORDERED_GRADIENTS = _of(
    300,
    300,
    mask=Full(),
    variant={"tile_m": 128, "tile_n": 128, "mask": "intervals", "products": "tcgen05", "deterministic": True},
)
# Two pairs of CTAs, the second with a tail in its second CTA; three blocks for each, more than Q has stages
OF_CTA_PAIRS = _of(
    *((300, 20), (456, 40)),
    heads=(1, 1),
    mask=Full(),
    layout="packed",
    variant={"tile_m": 128, "tile_n": 128, "mask": "intervals", "products": "tcgen05", "paired": 256},
)
ORDERED_CTA_PAIRS = _of(  # three pairs, all resident, which add to the same tiles of dQ
    *(300, 712),
    heads=(1, 1),
    mask=Full(),
    repeats=4,
    variant={
        **{"tile_m": 128, "tile_n": 128, "mask": "intervals", "products": "tcgen05", "paired": 256},
        **{"slots": 8, "warps": "random"},
    },
)
UNORDERED = {"floating-point_adds_in_no_fixed_order", "race_read_of_an_unordered_write"}
ACCESSED_EARLY = {"race_read_of_an_unordered_write", "read_of_uninitialised_memory", "mbarrier_misused"}
EARLY = {"tensor_memory_used_before_a_tcgen05.commit_was_waited_for", "race_tensor_memory"}
# 128 steps in which no row's maximum moves
LONG_ROWS = _of(
    *(64, 8192),
    heads=(1, 1),
    mask=Full(),
    dim=8,
    inputs=Inputs(117, "large"),
    variant={"tile_m": 192, "mask": "band", "products": "wgmma", "contraction": "first"},
    **FORWARD,
)
# Bugs of the kernels, which are compiled
KERNELS: dict[str, tuple[Case, set[str]]] = {
    "maxima_scaled_apart": (LONG_ROWS, {"lse wrong"}),
    "tail_words_not_clamped": (_of(70, 70, mask=Full(), **FORWARD), WRONG),
    "kv_head_modulo": (_of(70, 70, heads=(4, 2), **FORWARD), WRONG),
    "lse_in_log2": (_of(70, 70, **FORWARD), {"lse wrong"}),
    "lse_without_maximum": (_of(70, 70, **FORWARD), {"lse wrong"}),
    "empty_rows_divided_by_zero": (_of(70, 30, mask=Causal("bottom_right"), **FORWARD), WRONG),
    "nothing_seen_yet_is_nan": (_of(70, 30, mask=Causal("bottom_right"), **FORWARD), WRONG),
    "mask_carried_over": (_of(130, 150, mask=Window(100, None), **FORWARD), WRONG),
    "softcap_slope_missing": (_of(70, 70, **CAPPED), GRADIENTS),
    "softcap_slope_not_squared": (_of(70, 70, **CAPPED), GRADIENTS),
    "delta_added": (_of(70, 70), GRADIENTS),
    "dk_not_scaled": (_of(70, 70), {"dk wrong"}),
    "first_head_of_a_group_alone": (_of(70, 70), {"dk wrong"}),
    "semaphore_of_kv_heads": (_of(70, 150, mask=Full()), {"hang"}),
    "unvisited_dq_read": (_of(260, 70, mask=Window(20, 0)), UNWRITTEN),
    "scores_read_before_commit": (TENSOR_MEMORY, EARLY),
    "output_rescaled_before_commit": (TENSOR_MEMORY, EARLY),
    "phase_not_flipped": (TENSOR_MEMORY, EARLY),
    "probabilities_not_waited_for": (TENSOR_MEMORY, {"tensor_memory_used_before_tcgen05.wait::st"}),
    "scores_not_waited_for": (TENSOR_MEMORY, {"tensor_memory_overwritten_before_tcgen05.wait::ld"}),
    "tensor_fence_missing": (TENSOR_MEMORY, {"tensor_memory_used_without_tcgen05.fence::after_thread_sync"}),
    "queries_without_proxy_fence": (TENSOR_MEMORY, {"shared_memory_read_by_tcgen05_without_fence.proxy.async"}),
    "keys_released_when_issued": (
        TENSOR_MEMORY,
        {"shared_memory_overwritten_before_a_tcgen05.commit_was_waited_for"},
    ),
    "columns_never_freed": (TENSOR_MEMORY, {"tensor_memory_never_freed"}),
    "bytes_of_half_a_tile": (TENSOR_MEMORY, {"hang"}),
    "bytes_that_never_come": (TENSOR_MEMORY, {"hang"}),
    "first_filling_of_a_buffer": (TENSOR_MEMORY, {"race_read_of_an_unordered_write"}),
    "buffer_refilled_before_read": (TENSOR_MEMORY, {"race_two_writes", "mbarrier_misused"}),
    "tail_by_bulk_copy": (TENSOR_MEMORY, {"out_of_bounds"}),
    "output_tail_by_bulk_store": (TENSOR_MEMORY, {"out_of_bounds"}),
    "output_without_proxy_fence": (
        TENSOR_MEMORY,
        {"shared_memory_accessed_by_a_bulk_copy_without_fence.proxy.async"},
    ),
    "output_store_not_waited_for": (TENSOR_MEMORY, {"bulk_copy_in_flight_when_its_CTA_exits"}),
    "exponent_of_forbidden_keys_wraps": (TENSOR_MEMORY, WRONG | {"lse wrong", "lse nan"}),
    "keys_released_by_first_tile": (
        TWO_QUERY_TILES,
        {"shared_memory_overwritten_before_a_tcgen05.commit_was_waited_for"},
    ),
    "barriers_of_first_tile": (TWO_QUERY_TILES, EARLY),
    "output_of_both_tiles": (TWO_QUERY_TILES, EARLY),
    "rows_left_of_both_tiles": (TWO_QUERY_TILES, {"out_of_bounds"}),
    "columns_freed_by_first_tile": (TWO_QUERY_TILES, EARLY | {"tensor_memory_that_is_not_allocated"}),
    "scores_counted_by_tile": (PERSISTENT, EARLY | {"hang"}),
    "additions_counted_by_tile": (PERSISTENT, EARLY | {"hang"}),
    "tile_read_before_announced": (PERSISTENT, {"race_read_of_an_unordered_write"}),
    "tile_replaced_before_read": (EMPTY_TILES, {"race_write_over_an_unordered_read"}),
    "queries_over_output": (THREE_STAGES_OF_Q, {"race_two_writes"}),
    "output_added_to_last_tile": (PERSISTENT, WRONG),
    "queries_of_empty_tiles_skipped": (EMPTY_TILES, {"hang", "race_read_of_an_unordered_write"}),
    "columns_freed_by_each_tile": (PERSISTENT, {"tensor_memory_that_is_not_allocated"}),
    "dp_read_before_commit": (WITH_GRADIENTS, EARLY),
    "dq_read_before_commit": (WITH_GRADIENTS, EARLY),
    "dq_overwritten_before_read": (WITH_GRADIENTS, {"race_tensor_memory"}),
    "ds_not_waited_for": (WITH_GRADIENTS, {"tensor_memory_used_before_tcgen05.wait::st"}),
    "dq_not_waited_for": (WITH_GRADIENTS, {"tensor_memory_overwritten_before_tcgen05.wait::ld"}),
    "ds_without_proxy_fence": (WITH_GRADIENTS, {"shared_memory_read_by_tcgen05_without_fence.proxy.async"}),
    "product_fence_missing": (WITH_GRADIENTS, {"tensor_memory_used_without_tcgen05.fence::after_thread_sync"}),
    "queries_released_when_issued": (
        WITH_GRADIENTS,
        {"shared_memory_overwritten_before_a_tcgen05.commit_was_waited_for"},
    ),
    "dq_of_wrong_columns": (WITH_GRADIENTS, {"read_of_uninitialised_tensor_memory"}),
    "last_block_not_released": (WITH_GRADIENTS, {"hang"}),
    "keys_not_waited_for": (WITH_GRADIENTS, {"race_read_of_an_unordered_write"}),
    "statistics_not_counted": (WITH_GRADIENTS, {"hang", "race_read_of_an_unordered_write", "mbarrier_misused"}),
    "gradient_tail_by_bulk_copy": (WITH_GRADIENTS, {"out_of_bounds"}),
    "dq_without_proxy_fence": (
        ORDERED_GRADIENTS,
        {"shared_memory_accessed_by_a_bulk_copy_without_fence.proxy.async"},
    ),
    "dq_buffer_reused_before_read": (ORDERED_GRADIENTS, {"race_write_over_an_unordered_read"}),
    "dq_released_before_added": (ORDERED_GRADIENTS, {"floating-point_adds_in_no_fixed_order"}),
    "peer_ds_not_waited_for": (OF_CTA_PAIRS, EARLY | ACCESSED_EARLY | {"hang"}),
    "peer_probabilities_not_waited_for": (OF_CTA_PAIRS, EARLY | ACCESSED_EARLY | {"hang"}),
    "peer_dq_not_waited_for": (OF_CTA_PAIRS, EARLY | {"hang"}),
    "ds_sent_to_other_cta": (OF_CTA_PAIRS, {"dq wrong"}),
    "ds_fenced_in_own_memory": (OF_CTA_PAIRS, {"shared_memory_read_by_tcgen05_without_fence.proxy.async"}),
    "queries_of_other_cta": (OF_CTA_PAIRS, GRADIENTS),
    "peer_loads_not_waited_for": (OF_CTA_PAIRS, ACCESSED_EARLY),
    "peer_keys_not_waited_for": (OF_CTA_PAIRS, ACCESSED_EARLY),
    "loads_handed_on_early": (OF_CTA_PAIRS, ACCESSED_EARLY | {"hang"}),
    "commit_in_leader_alone": (OF_CTA_PAIRS, {"hang"}),
    "stages_released_in_leader_alone": (OF_CTA_PAIRS, {"hang"}),
    "ranks_of_one_cta": (ORDERED_CTA_PAIRS, UNORDERED),
    "added_after_one_cta": (ORDERED_CTA_PAIRS, UNORDERED),
    "released_for_both_ctas": (ORDERED_CTA_PAIRS, UNORDERED),
    "released_by_leader_alone": (OF_CTA_PAIRS, {"hang"}),
    "released_before_all_warps_added": (ORDERED_CTA_PAIRS, UNORDERED),
    "keys_left_of_pair": (OF_CTA_PAIRS, {"out_of_bounds"}),
    "gradients_left_of_pair": (OF_CTA_PAIRS, {"out_of_bounds", "race_two_writes"} | GRADIENTS),
    "pair_not_met_at_start": (OF_CTA_PAIRS, ACCESSED_EARLY),
    "pair_exits_apart": (OF_CTA_PAIRS, {"tensor_memory_that_is_not_allocated"}),
    "mask_of_the_first_step": (_of(130, 130, heads=(1, 1), dim=128, variant={"tile_m": 128, "tile_n": 128}), GRADIENTS),
}
