"""Parameters of pygraph.sdpa and pygraph.sdpa_backward (1.32.0), and why some are never given."""

from __future__ import annotations

from fuzz.core.surface import Apart, Surface

_RANDOM = "dropout's result is random, and the reference knows none"
_GRAPH = "a graph of operations in place of masks, not written here"
_PACKED = "packed and paged keys are not written here"
_EXTRA = "another output, or another implementation of the same"
_NEVER = {
    "use_alibi_mask": "no Problem has slopes of its own; a bias says the same",
    "dropout": _RANDOM,
    "rng_dump": _RANDOM,
    "score_mod": _GRAPH,
    "max_total_seq_len_q": _PACKED,
    "max_total_seq_len_kv": _PACKED,
    "sink_token": "no Problem has sinks",
}
_MASKING = Apart(
    ("use_causal_mask", "use_causal_mask_bottom_right", "sliding_window_length"),
    ("diagonal_alignment", "diagonal_band_left_bound", "diagonal_band_right_bound"),
    "'undetermined behavior when combined'",
)
_ONE = Apart(("use_causal_mask",), ("use_causal_mask_bottom_right",), "two alignments of one mask")
_BOTTOM = Apart(
    ("bias",), ("use_causal_mask_bottom_right",), "'Bottom right causal mask is only supported with is_bias=False'"
)
_WINDOWS = Apart(("bias",), ("sliding_window_length",), "windows are given by the band where there is a bias")
_APART = (_MASKING, _ONE, _BOTTOM, _WINDOWS)
FORWARD = Surface.declared(
    "sdpa(q, k, v, is_inference=None, attn_scale=None, bias=None, block_mask=None, use_alibi_mask=False, "
    "use_padding_mask=False, seq_len_q=None, seq_len_kv=None, use_causal_mask=False, "
    "use_causal_mask_bottom_right=False, sliding_window_length=None, diagonal_alignment='TOP_LEFT', "
    "diagonal_band_left_bound=None, diagonal_band_right_bound=None, dropout=None, rng_dump=None, "
    "paged_attention_k_table=None, paged_attention_v_table=None, paged_attention_max_seq_len_kv=None, "
    "max_total_seq_len_q=None, max_total_seq_len_kv=None, compute_data_type='NOT_SET', name='', score_mod=None, "
    "generate_stats=None, implementation='AUTO', score_max=None, score_sum_exp=None, sink_token=None, "
    "unfuse_fma=False, cu_seq_len_q=None, cu_seq_len_kv=None, stats_use_log2=False)",
    never=_NEVER
    | {
        "is_inference": "deprecated: generate_stats says it",
        "block_mask": "needs the UNIFIED implementation of Blackwell; the package's block-sparse attention is its own",
        "paged_attention_k_table": _PACKED,
        "paged_attention_v_table": _PACKED,
        "paged_attention_max_seq_len_kv": _PACKED,
        "compute_data_type": "the graph has it",
        "name": "a label",
        "implementation": _EXTRA,
        "score_max": _EXTRA,
        "score_sum_exp": _EXTRA,
        "unfuse_fma": _EXTRA,
        "cu_seq_len_q": _PACKED,
        "cu_seq_len_kv": _PACKED,
        "stats_use_log2": "the LSE in another base, of cuDNN 9.27 on",
    },
    apart=_APART,
)
BACKWARD = Surface.declared(
    "sdpa_backward(q, k, v, o, dO, stats, attn_scale=None, bias=None, dBias=None, use_alibi_mask=False, "
    "use_padding_mask=False, seq_len_q=None, seq_len_kv=None, max_total_seq_len_q=None, max_total_seq_len_kv=None, "
    "use_causal_mask=False, use_causal_mask_bottom_right=False, sliding_window_length=None, "
    "diagonal_alignment='TOP_LEFT', diagonal_band_left_bound=None, diagonal_band_right_bound=None, dropout=None, "
    "rng_dump=None, use_deterministic_algorithm=False, compute_data_type='NOT_SET', name='', score_mod=None, "
    "score_mod_bprop=None, sink_token=None, dSink_token=None)",
    never=_NEVER
    | {
        "dBias": "not written here: the bias's gradient is not asked for",
        "compute_data_type": "the graph has it",
        "name": "a label",
        "score_mod_bprop": _GRAPH,
        "dSink_token": "no Problem has sinks",
    },
    apart=_APART,
    kernel=False,  # built before the forward graph, whose call is a case's last one before anything runs
)
