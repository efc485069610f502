"""A kernel of a user's, in PyTorch. $OWN_BUGS names the bugs that it has, as they come and go in its history:
nan_rows (rows that see no key are NaN), dv_unscaled (dV lacks the weights of the last key)."""

import os

from fuzz.targets import target

BUGS = os.environ.get("OWN_BUGS", "").split(",")


@target("own", dtypes=["float32"])
def attention(q, k, v, mask, scale):
    """O (batch, heads_q, len_q, dim_v)."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    weights = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf")).softmax(-1)
    if "nan_rows" not in BUGS:
        weights = weights.nan_to_num(0.0)
    if "dv_unscaled" in BUGS and v.shape[2] > 1:
        return weights[..., :-1] @ v[:, :, :-1] + weights[..., -1:] @ v[:, :, -1:].detach()
    return weights @ v
