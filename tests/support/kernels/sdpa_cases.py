"""The reference of the tests of kernels.sdpa, inputs, and what counts as right.

Right means: no further from a float64 run of plain PyTorch than a few times the distance of the same plain PyTorch run
in the inputs' own dtype (its products and softmax rounded to that dtype), plus what rounding alone explains, `slack`.
"""

import math

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FACTOR = 3.0


def scores_of(query, key, attn_mask=None, is_causal=False, scale=None):
    """(batch, heads_q, len_q, len_k) scores; -inf where a key is not seen."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def softmax(scores):
    """(probabilities, LSE) of each row; rows without keys give 0 and -inf."""
    if scores.shape[-1] == 0:
        return scores, scores.sum(-1) - math.inf
    keyless = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(keyless, 0.0)
    lse = torch.logsumexp(scores, -1).masked_fill(keyless[..., 0], -math.inf)
    return torch.softmax(scores, -1).masked_fill(keyless, 0.0), lse


def grouped(x, query):
    """Keys or values, repeated for each query head of their group."""
    return x.repeat_interleave(query.shape[-3] // max(x.shape[-3], 1), dim=-3)


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """(out, lse) in plain PyTorch; the shapes of the public call, rows without keys are 0 and -inf."""
    probabilities, lse = softmax(scores_of(query, grouped(key, query), attn_mask, is_causal, scale))
    return probabilities @ grouped(value, query), lse


def slack(inputs, grad_out, grad_lse, is_causal=False, scale=None):
    """{name: difference that rounding in float32 alone explains}, from sums of absolute values in float64.

    exp(score - LSE) is recomputed from float32 scores: a relative error of |LSE| units in the last place. dS = P (dP -
    delta) cancels: its error comes from |dP| and |delta|, however small it is itself.
    """
    query, key, value, *mask = (x.detach().double() if x.is_floating_point() else x for x in inputs if x is not None)
    probabilities, lse = softmax(scores_of(query, grouped(key, query), *mask, is_causal=is_causal, scale=scale))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else abs(scale)
    query, key, value = query.abs(), grouped(key, query).abs(), grouped(value, query).abs()
    grad_out, grad_lse = grad_out.double().abs(), grad_lse.double().abs()
    dp = grad_out @ value.transpose(-1, -2)
    ds = probabilities * (dp + (probabilities * dp).sum(-1, keepdim=True) + grad_lse[..., None])
    group = inputs[0].shape[-3] // max(inputs[1].shape[-3], 1)
    magnitudes = {
        "out": largest(probabilities @ value),
        "lse": largest(lse),
        "dquery": largest(ds @ key) * scale,
        "dkey": largest(ds.transpose(-1, -2) @ query) * scale * group,
        "dvalue": largest(probabilities.transpose(-1, -2) @ grad_out) * group,
    }
    if mask:
        magnitudes["dmask"] = largest(ds.sum_to_size(mask[0].shape)) if mask[0].dim() <= ds.dim() else largest(ds)
    unit = torch.finfo(torch.float32).eps * (2 + largest(lse))
    return {name: unit * magnitude for name, magnitude in magnitudes.items()}


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


def gradients_of(out, lse):
    """Fixed random gradients of the two outputs."""
    return random(*out.shape, seed=7).to(out.dtype), random(*lse.shape, seed=8)


def run(call, inputs, dtype=None, **options):
    """{name: tensor}: outputs of call(*inputs) and gradients of inputs; dtype converts floating inputs first."""
    leaves = [x if dtype is None else converted(x, dtype) for x in inputs]
    out, lse = call(*leaves, **options)
    grad_out, grad_lse = gradients_of(out, lse)
    total = (out * grad_out).sum() + (torch.where(lse == -math.inf, 0.0, lse) * grad_lse).sum()
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    grads = torch.autograd.grad(total, wanted, materialize_grads=True)
    names = ["dquery", "dkey", "dvalue", "dmask"][: len(wanted)]
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(names, grads, strict=True))}


def complaints(got, inputs, **options):
    """{name: what is wrong with it}: got, the results of `run`, against plain PyTorch; empty where all is right."""
    options = {name: value for name, value in options.items() if name in ("is_causal", "scale")}
    dtype = inputs[0].dtype
    exact = run(attention, inputs, torch.float64, **options)
    plain = run(attention, inputs, dtype, **options)
    rounding = slack(inputs, *gradients_of(got["out"], got["lse"]), **options)
    found = {}
    for name, wanted in exact.items():
        result = got[name]
        limit = FACTOR * difference(plain[name], wanted) + rounding[name]
        limit += 2 * torch.finfo(result.dtype).eps * largest(wanted)
        if result.shape != wanted.shape:
            found[name] = f"shape {tuple(result.shape)}, not {tuple(wanted.shape)}"
        elif not torch.equal(torch.isinf(result), torch.isinf(wanted)) or torch.isnan(result).any():
            found[name] = "NaN, or infinite in other places"
        elif not difference(result, wanted) <= limit:
            found[name] = f"off by {difference(result, wanted):.2e}, limit {limit:.2e}, largest {largest(wanted):.2e}"
    return found


def assert_right(got, inputs, **options):
    """Fails where `complaints` has any."""
    found = complaints(got, inputs, **options)
    assert not found, found


def difference(result, wanted):
    """Largest absolute difference of finite entries."""
    return largest(torch.where(torch.isinf(wanted), 0.0, result.double() - wanted))


def largest(tensor):
    """Largest finite absolute value, 0 where there is none."""
    finite = torch.where(torch.isinf(tensor), 0.0, tensor.detach()).abs()
    return float(finite.max()) if finite.numel() else 0.0
