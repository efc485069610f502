"""Parameters of flash_attn.cute's two functions (4.0.0b36), and why some are never given, or not together."""

from __future__ import annotations

from fuzz.core.surface import Apart, Surface

_MLA = "an operation of its own (MLA with absorbed weights, on sm_100 alone), which no Problem asks"
_NEVER = {
    "qv": _MLA,
    "gather_kv_indices": _MLA,
    "gather_bwd_recompute_p": _MLA,
    "gather_bwd_token_chunk": _MLA,
}
_SPLITS = "sm_90 refuses splits whatever stands beside them"
_REFUSED = "sm_90 refuses them after seconds of tracing; on sm_100 they are given"
_APART = (
    Apart(("softcap",), ("score_mod", "score_mod_bwd"), "FlashAttention-4 refuses both at once"),
    Apart(
        ("aux_scalars",),
        ("aux_tensors", "block_sparse_tensors", "causal", "window_size"),
        "a mask_mod reads its bounds or a tensor; block lists, and flags beside it, come with the tensor",
    ),
    Apart(("causal",), ("window_size",), "a mask is said by one of them"),
    Apart(("deterministic",), ("block_sparse_tensors",), _REFUSED),
    Apart(("num_splits",), ("learnable_sink", "score_mod", "score_mod_bwd"), _SPLITS),
)
DENSE = Surface.declared(
    "flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, "
    "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, "
    "block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False, "
    "gather_bwd_token_chunk=None)",
    never=_NEVER,
    apart=(
        *_APART,
        Apart(("aux_scalars",), ("block_sparse_tensors_bwd",), "as with block_sparse_tensors"),
        Apart(("deterministic",), ("block_sparse_tensors_bwd",), _REFUSED),
    ),
)
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "min_seqlen_k")
VARLEN = Surface.declared(
    "flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
    "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, "
    "softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
    "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, "
    "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, "
    "seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False, "
    "gather_bwd_token_chunk=None)",
    never=_NEVER
    | {
        "scheduler_metadata": "a GPU computes it (get_scheduler_metadata); left out, the function does so itself",
        "seqlen_k_per_split": "for splits of sm_100, which are not drawn: they round otherwise than declared",
    },
    apart=(
        *_APART,
        Apart(
            ("block_sparse_tensors",),
            (*_LENGTHS, "page_table"),
            "lists of packed sequences have another form (cu_total_m_blocks), which this adapter does not write",
        ),
        Apart(("seqused_q",), _LENGTHS, "padded sequences have used lengths, packed ones cumulative lengths"),
        Apart(("seqused_k",), ("cu_seqlens_k",), "padded keys have used lengths, packed ones cumulative lengths"),
        Apart(("num_splits",), ("min_seqlen_k", "disable_scheduler_metadata"), _SPLITS),
        Apart(("page_table",), ("cu_seqlens_k",), "FlashAttention-4 refuses both at once"),
        Apart(
            ("page_table",),
            ("deterministic", "score_mod", "score_mod_bwd", "num_splits"),
            "pages are asked forward only, and one further way at a time",
        ),
    ),
)
