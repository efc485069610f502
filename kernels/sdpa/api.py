"""What users call: attention with the arguments of torch.nn.functional.scaled_dot_product_attention, and LSE."""

from collections.abc import Sequence

from torch import Tensor

from kernels.sdpa.checks import Call, check_call
from kernels.sdpa.launch import Launch, compile_launches
from kernels.sdpa.ops import empty_bias_gradient, empty_gradients, empty_outputs, sdpa_forward
from kernels.sdpa.plans import Attention, backward_launches, bias_gradient_launches, forward_launches


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(query @ key^T * scale + mask) @ value, differentiable in all its tensors.

    query       (..., heads_q, len_q, dim) float16, bfloat16 or float32, any strides; dims 1 to 256; lengths may be 0
    key         (..., heads_kv, len_k, dim), of query's dtype and device
    value       (..., heads_kv, len_k, dim_v); leading dimensions broadcast
    attn_mask   broadcasts to (..., heads_q, len_q, len_k). bool: True keeps a score. Float: added to it, and may
                require a gradient
    dropout_p   0
    is_causal   query i sees keys 0 … i, counted from the top left as PyTorch does; not together with attn_mask
    scale       any finite number, 1 / sqrt(dim) by default
    enable_gqa  lets heads_q be a multiple of heads_kv; consecutive query heads share a KV head
    return_lse  also return LSE, the natural logarithm of the sum of exponentials of each row's scores
    returns     out (..., heads_q, len_q, dim_v) of query's dtype, contiguous; with return_lse (out, lse), lse
                (..., heads_q, len_q) float32, differentiable too

    A row that may see no key has out 0, lse -inf and gradients 0. Scores and sums are float32, probabilities are
    rounded to query's dtype before they meet value, float32 inputs are multiplied as float32. Gradients are bitwise the
    same in every run. Raises ValueError for arguments outside of the above, RuntimeError for CPU tensors without
    TRITON_INTERPRET=1. FlashAttention-2's algorithm (Dao, arXiv:2307.08691).
    """
    call = check_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return attention(call, query.shape[-3:-2], return_lse)


def attention(
    call: Call, heads: Sequence[int], return_lse: bool, injection: str = ""
) -> Tensor | tuple[Tensor, Tensor]:
    """A checked call's outputs. heads: of its query, or nothing where query has two dimensions; injection: a name known
    to kernels.sdpa.injection, a mutant's."""
    out, lse = sdpa_forward(call.query, call.key, call.value, call.attn_mask, call.is_causal, call.scale, injection)
    out = out.reshape(*call.leading, *heads, *out.shape[2:])
    if not return_lse:
        return out
    return out, lse.reshape(*call.leading, *heads, *lse.shape[2:])


def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backward: bool = True,
    grad_out: Tensor | None = None,
    grad_lse: Tensor | None = None,
) -> list[Launch]:
    """Every launch that the call (and its backward pass, given the gradients of its outputs) consists of.

    grad_out is taken to be contiguous where it is None: another layout may need another compilation.
    """
    call = check_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return launches_of(call, backward, grad_out, grad_lse)


def launches_of(
    call: Call, backward: bool, grad_out: Tensor | None, grad_lse: Tensor | None, injection: str = ""
) -> list[Launch]:
    """`plan` of a checked call. injection: a name known to kernels.sdpa.injection, a mutant's."""
    attention = Attention(call.query, call.key, call.value, call.attn_mask, call.is_causal, call.scale, injection)
    out, lse = empty_outputs(call.query, call.value)
    launches = forward_launches(attention, out, lse)
    if not backward:
        return launches
    grad_out = out if grad_out is None else grad_out.reshape(out.shape)
    grad_lse = None if grad_lse is None else grad_lse.reshape(lse.shape)
    *grads, state = empty_gradients(call.query, call.key, call.value)
    launches += backward_launches(attention, grad_out, grad_lse, out, lse, state, grads)
    if call.attn_mask is not None and call.attn_mask.requires_grad:
        launches += bias_gradient_launches(attention, grad_out, state, empty_bias_gradient(call.attn_mask))
    return launches


def prepare(*args, **kwargs) -> int:
    """Compiles and loads every kernel that `plan` of the same arguments names, and launches none of them.

    returns     how many launches there are. Does nothing under Triton's interpreter, which compiles nothing.
    """
    return compile_launches(plan(*args, **kwargs))
