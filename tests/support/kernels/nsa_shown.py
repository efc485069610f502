"""For each mutant of kernels.nsa a small call that shows it, and the tensors that are then wrong: of the answer ("out",
"blocks", "groups") and of the gradients."""

from __future__ import annotations

from nsa_cases import Call

ALL = ("w_k", "w_v", "w_gate")
SMALL = Call((150,), weights=ALL)

SHOWN: dict[str, tuple[Call, set[str]]] = {
    "future_block_selected": (SMALL.with_setting(num_selected_blocks=5), {"blocks"}),
    "own_tile_not_selectable": (SMALL, {"blocks"}),
    "smallest_chosen_left_out": (SMALL, {"blocks"}),
    "selection_not_sorted": (SMALL.with_setting(num_selected_blocks=5), {"blocks"}),
    "selected_block_widened": (SMALL, {"out"}),
    "transposition_ignores_counts": (Call((330,)), {"k", "v"}),
    "compressed_block_seen_late": (SMALL, {"out"}),
    "compressed_branch_not_causal": (SMALL, {"out"}),
    "window_lost_in_backward": (SMALL, {"k", "v"}),
    "window_one_key_wider": (SMALL.with_setting(window_size=3), {"out"}),
    "gates_swapped": (Call((70,), weights=("w_gate",)), {"out", "w_gate"}),
    "gate_gradient_without_slope": (Call((70,), weights=("w_gate",)), {"w_gate"}),
    "mean_gradient_not_divided": (Call((70,)), {"k", "v"}),
    "last_mean_by_the_full_size": (Call((70,)), {"out"}),
    "weight_transposed": (Call((70,), weights=("w_v",)), {"out"}),
    "weight_gradient_transposed": (Call((70,), weights=("w_v",)), {"w_v"}),
    "gradients_added_in_half": (Call((64,), 1, 1), {"v"}),
    "scores_of_other_kv_heads": (Call((150,), 4, 2), {"blocks"}),
    "strict_mean_of_the_whole_tile": (Call((200,)).with_setting(causal="strict"), {"blocks"}),
    "last_group_by_the_full_size": (
        Call((2100,), 1, 1).with_setting(num_cmp_selected_blocks=1, q_tile_size=128),
        {"groups"},
    ),
}
