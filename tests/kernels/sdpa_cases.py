"""The reference of the tests of kernels.sdpa, inputs, and what counts as right.

Right means: no further from a float64 run of plain PyTorch than a few times the distance of the same plain PyTorch run
in the inputs' own dtype (its products and softmax rounded to that dtype), plus what rounding alone explains: two units
in the last place of the result, and, because exp(score - LSE) is recomputed from float32 scores, a relative error of
|LSE| units in the last place of float32.
"""

import math

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FACTOR = 3.0


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """(out, lse) in plain PyTorch; the shapes of the public call, rows without keys are 0 and -inf."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    group = query.shape[-3] // max(key.shape[-3], 1)
    key, value = (x.repeat_interleave(group, dim=-3) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if scores.shape[-1] == 0:
        empty = query.sum() * 0 + value.sum() * 0
        return scores @ value + empty, scores.sum(-1) - math.inf
    keyless = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(keyless, 0.0)
    out = (torch.softmax(scores, -1) @ value).masked_fill(keyless, 0.0)
    return out, torch.logsumexp(scores, -1).masked_fill(keyless[..., 0], -math.inf)


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def qkv(batch=1, heads_q=2, heads_kv=2, len_q=70, len_k=70, dim=16, dim_v=None, dtype=torch.float32):
    """Query, key and value, which require gradients."""
    shapes = ((heads_q, len_q, dim), (heads_kv, len_k, dim), (heads_kv, len_k, dim_v or dim))
    return [random(batch, *shape, dtype=dtype, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def converted(x, dtype):
    """A leaf of that dtype, where x is a floating tensor."""
    if x is None or not x.is_floating_point():
        return x
    return x.detach().to(dtype).requires_grad_(x.requires_grad)


def run(call, inputs, dtype=None, with_lse_gradient=True, **options):
    """{name: tensor}: outputs of call(*inputs) and gradients of inputs; dtype converts floating inputs first."""
    leaves = [
        x
        if x is None or dtype is None or not x.is_floating_point()
        else x.detach().to(dtype).requires_grad_(x.requires_grad)
        for x in inputs
    ]
    out, lse = call(*leaves, **options)
    grad_out = random(*out.shape, seed=7).to(out.dtype)
    total = (out * grad_out).sum()
    if with_lse_gradient:
        grad_lse = random(*lse.shape, seed=8).to(lse.dtype)
        total = total + (torch.where(lse == -math.inf, 0.0, lse) * grad_lse).sum()
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    grads = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else []
    names = ["dquery", "dkey", "dvalue", "dmask"][: len(wanted)]
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(names, grads, strict=True))}


def assert_right(got, inputs, factor=FACTOR, with_lse_gradient=True, only=None, **options):
    """got, the results of `run`, against PyTorch in float64, measured by PyTorch in theirs; `only` names one result."""
    options = {k: v for k, v in options.items() if k not in ("enable_gqa", "return_lse")}
    dtype = inputs[0].dtype
    exact = run(attention, inputs, torch.float64, with_lse_gradient, **options)
    plain = run(attention, inputs, dtype, with_lse_gradient, **options)
    recomputed = torch.finfo(torch.float32).eps * largest(exact["lse"])
    for name, wanted in exact.items() if only is None else [(only, exact[only])]:
        measured, result = plain[name], got[name]
        assert result.shape == wanted.shape, f"{name}: {result.shape}, not {wanted.shape}"
        infinite = torch.isinf(wanted)
        assert torch.equal(torch.isinf(result), infinite), f"{name}: infinite in other places"
        assert not torch.isnan(result).any(), f"{name}: NaN"
        limit = factor * distance(measured, wanted) + 2 * torch.finfo(result.dtype).eps + recomputed
        assert distance(result, wanted) <= limit, f"{name}: {distance(result, wanted):.2e} over {limit:.2e}"


def distance(result, wanted):
    """Largest absolute difference, relative to the largest finite entry of wanted."""
    difference = largest(torch.where(torch.isinf(wanted), 0.0, result.double() - wanted))
    size = largest(wanted)
    return difference / size if size > 0 else difference


def largest(tensor):
    """Largest finite absolute value, 0 where there is none."""
    finite = torch.where(torch.isinf(tensor), 0.0, tensor).abs()
    return float(finite.max()) if finite.numel() else 0.0
