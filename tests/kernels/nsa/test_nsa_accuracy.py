"""kernels.nsa beside plain attention on boolean matrices in float64: output, selection, every gradient."""

import pytest
import torch
from covering import daily, nightly_unless
from nsa_cases import Call, check
from nsa_formula import Setting

from kernels.nsa import native_sparse_answer

ALL = ("w_k", "w_v", "w_gate")


@pytest.mark.parametrize("weights", daily([(), ("w_k",), ("w_v",), ("w_gate",), ALL], [ALL]), ids="+".join)
def test_weights_each_by_itself(weights):
    check(Call(weights=weights), native_sparse_answer)


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [False, "strict"])
def test_other_rules_of_causality(causal):
    check(Call((330,), weights=ALL).with_setting(causal=causal, num_selected_blocks=3), native_sparse_answer)


@pytest.mark.parametrize(
    ("size", "tile", "chosen"),
    [
        nightly_unless(one[0] == 96, *one)
        for one in ((16, 192, 5), (48, 64, 3), (64, 64, 2), (96, 64, 2), (128, 128, 1), (256, 256, 1))
    ],
)
def test_blocks_smaller_and_larger_than_a_tile_of_keys(size, tile, chosen):
    """A selected block is never widened: the tokens beside it in its tile of keys stay unseen."""
    setting = Setting(compress_block_size=size, q_tile_size=tile, num_selected_blocks=chosen)
    check(Call((410,), weights=("w_gate",), setting=setting), native_sparse_answer)


@pytest.mark.nightly
def test_at_dim_128_a_tile_of_keys_is_a_block_of_64_backward():
    setting = Setting(compress_block_size=64, q_tile_size=128, num_selected_blocks=2)
    check(Call((280,), 2, 1, 128, setting=setting), native_sparse_answer)


@pytest.mark.nightly
def test_published_sizes():
    setting = Setting(compress_block_size=64, num_selected_blocks=16, window_size=512, q_tile_size=256)
    check(Call((600,), 4, 1, 64, weights=ALL, setting=setting), native_sparse_answer)


@pytest.mark.parametrize("heads", daily([(4, 4), (4, 2), (3, 1)], [(4, 2)]))
def test_query_heads_share_kv_heads(heads):
    check(Call((130,), *heads, weights=ALL), native_sparse_answer)


@pytest.mark.nightly
@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.float16), (128, torch.bfloat16), (40, torch.float16)])
def test_head_dims_and_dtypes(dim, dtype):
    check(Call((150,), dim=dim, dtype=dtype, weights=ALL), native_sparse_answer)


@pytest.mark.nightly
def test_above_dim_128_backward_takes_smaller_tiles_of_keys():
    check(Call((80,), dim=160, weights=ALL), native_sparse_answer)


@pytest.mark.nightly
def test_padded_batches_have_selections_of_their_own():
    check(Call((130, 130), weights=ALL), native_sparse_answer)


@pytest.mark.parametrize("causal", daily([True, False, "strict"], ["strict"]))
def test_packed_sequences_of_any_length(causal):
    call = Call((70, 0, 1, 129, 64), 2, 1, packed=True, weights=ALL).with_setting(causal=causal)
    check(call, native_sparse_answer)


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [True, False, "strict"])
@pytest.mark.parametrize("lengths", [(2100,), (2100, 300, 0)])
def test_groups_of_compressed_blocks(causal, lengths):
    """132 blocks of 16 tokens are two groups, of which one is seen; the shorter sequences have one, and see it."""
    call = Call(lengths, 1, 1, packed=len(lengths) > 1, weights=("w_gate",))
    check(call.with_setting(causal=causal, num_cmp_selected_blocks=1, q_tile_size=128), native_sparse_answer)
