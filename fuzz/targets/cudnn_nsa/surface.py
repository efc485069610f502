"""Parameters of the selection attention of cudnn.NSA (1.32.0), and why some are never given."""

from __future__ import annotations

from fuzz.core.surface import Surface

_ONE_VALUE = {"acc_dtype": "float32 is its only value (api.py:155)"}
_STREAM = "one stream: the emulated GPU runs one kernel after the other"
WRAPPER = Surface.declared(
    "selection_attention_wrapper(q_tensor, k_tensor, v_tensor, block_indices_tensor, block_counts_tensor, "
    "cum_seqlen_q_tensor=None, cum_seqlen_k_tensor=None, block_size=64, scale_softmax=None, o_dtype=None, "
    "acc_dtype=None, max_s_q=None, max_s_k=None, stream=None, *, is_causal=False)",
    never=_ONE_VALUE | {"o_dtype": "that of Q is its only value (api.py:154)", "stream": _STREAM},
)
CLASS = Surface.declared(
    "SelectionAttention(sample_q, sample_k, sample_v, sample_o, sample_l, sample_m, sample_block_indices, "
    "sample_block_counts, sample_cum_seqlen_q=None, sample_cum_seqlen_k=None, max_s_q=1024, max_s_k=1024, "
    "acc_dtype=None, block_size=64, scale_softmax=None, *, is_causal=False)",
    never=_ONE_VALUE,
)
EXECUTE = Surface.declared(
    "execute(q_tensor, k_tensor, v_tensor, o_tensor, l_tensor, m_tensor, block_indices_tensor, "
    "block_counts_tensor, cum_seqlen_q_tensor=None, cum_seqlen_k_tensor=None, scale_softmax=None, current_stream=None)",
    never={"current_stream": _STREAM},
)
