"""What flash_attn.cute's two functions take (4.0.0b36), and why some of it is never given."""

from __future__ import annotations

from fuzz.core.surface import Surface

DENSE = Surface.declared(
    "flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, "
    "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, "
    "block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False, "
    "gather_bwd_token_chunk=None)"
)
VARLEN = Surface.declared(
    "flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
    "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, "
    "softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
    "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, "
    "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, "
    "seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False, "
    "gather_bwd_token_chunk=None)"
)
