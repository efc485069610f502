"""Parameters of cudnn.block_sparse_attention's two functions (1.32.0), and why some are never given."""

from __future__ import annotations

from fuzz.core.surface import Apart, Surface

_COUNTS = Apart(
    ("block_sparse_num",), ("q2k_block_nums",), "one number for all query blocks, or one for each: the latter overrides"
)
_APART = (_COUNTS,)
FORWARD = Surface.declared(
    "block_sparse_attention_forward(q_tensor, k_tensor, v_tensor, q2k_block_index, block_sparse_num=None, "
    "block_sizes=None, q2k_block_nums=None, *, sparse_block_size=None, allow_empty_block_nums=False, "
    "softmax_scale=None, pack_gqa=None, layout='bhsd', kv_splits=1, use_clc=None)",
    never={"use_clc": "sm_100 with blocks of 64 alone, whose products the emulated GPU does not have"},
    apart=(
        _COUNTS,
        Apart(("pack_gqa",), ("kv_splits",), "pack_gqa is of sm_100 with blocks of 128, kv_splits of sm_90"),
    ),
)
BACKWARD = Surface.declared(
    "block_sparse_attention_backward(do_tensor, q_tensor, k_tensor, v_tensor, o_tensor, lse_tensor, q2k_block_index, "
    "block_sparse_num=None, block_sizes=None, q2k_block_nums=None, *, softmax_scale=None, dq_tensor=None, "
    "dk_tensor=None, dv_tensor=None, bucket_size_blocks=None, sparse_block_size=None, layout='bhsd')",
    apart=_APART,
)
