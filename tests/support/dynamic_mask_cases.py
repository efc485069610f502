"""The reference of the tests of kernels.dynamic_mask, calls as values, and what counts as right: as sdpa_cases says."""

import math
from dataclasses import dataclass

import torch
from sdpa_cases import DEVICE, FACTOR, difference, grouped, largest, random, softmax

from kernels.dynamic_mask import dynamic_mask_answer, pack_mask


@dataclass(frozen=True)
class Call:
    """One call. mask, bias: for each of the four axes 'f' (full), 'k' (as many heads as KV heads) or '1'; "": none."""

    lengths_q: tuple[int, ...] = (70,)
    lengths_k: tuple[int, ...] = (100,)
    heads_q: int = 2
    heads_kv: int = 1
    dim: int = 16
    dim_v: int = 16
    dtype: torch.dtype = torch.float16
    mask: str = ""
    bias: str = ""
    kept: float = 0.5
    bits: bool = False
    causal: str | None = None
    scale: float | None = None
    softcap: float = 0.0
    packed: bool = False
    num_splits: int = 0
    deterministic: bool = True
    bias_dtype: torch.dtype | None = None
    seed: int = 0

    @property
    def sizes(self):
        return len(self.lengths_q), self.heads_q, max(self.lengths_q), max(self.lengths_k)

    def plane(self, axes):
        batch, heads, rows, columns = self.sizes
        full = (batch, {"k": self.heads_kv}.get(axes[1], heads), rows, columns)
        return tuple(1 if axis == "1" else size for axis, size in zip(axes, full, strict=True))


def tensors_of(call):
    """(query, key, value, mask, bias), sequences padded to the longest; whole tiles of the mask are empty."""
    batch, _, len_q, len_k = call.sizes
    shapes = ((call.heads_q, len_q, call.dim), (call.heads_kv, len_k, call.dim), (call.heads_kv, len_k, call.dim_v))
    leaves = [random(batch, *s, dtype=call.dtype, seed=call.seed + i).requires_grad_() for i, s in enumerate(shapes)]
    mask = bias = None
    if call.mask:
        mask = random(*call.plane(call.mask), seed=call.seed + 3) < math.erfc(2 * (1 - call.kept)) * 2 - 1
        if call.kept < 1 and mask.shape[3] > 64:
            mask[:, ::2, : max(1, mask.shape[2] // 2), :64] = False
    if call.bias:
        dtype = call.dtype if call.bias_dtype is None else call.bias_dtype
        bias = random(*call.plane(call.bias), dtype=dtype, seed=call.seed + 4).requires_grad_()
    return *leaves, mask, bias


def kept_pairs(call, mask):
    """bool (batch, heads_q, len_q, len_k): lengths, mask and causality together."""
    _, heads, len_q, len_k = call.sizes
    keep = torch.zeros(call.sizes, dtype=torch.bool, device=DEVICE)
    q, k = torch.arange(len_q, device=DEVICE)[:, None], torch.arange(len_k, device=DEVICE)
    for b, (n_q, n_k) in enumerate(zip(call.lengths_q, call.lengths_k, strict=True)):
        seen = (q < n_q) & (k < n_k)
        if call.causal is not None:
            seen = seen & (k <= q + (n_k - n_q if call.causal == "bottom_right" else 0))
        keep[b] = seen
    return keep if mask is None else keep & by_head(mask, heads)


def by_head(plane, heads):
    """A mask or bias for each query head, or for all."""
    return plane if plane.shape[1] in (1, heads) else plane.repeat_interleave(heads // plane.shape[1], 1)


def dense(query, key, value, bias, keep, call):
    """(out, lse) in plain PyTorch."""
    scale = 1 / math.sqrt(query.shape[-1]) if call.scale is None else call.scale
    scores = query @ grouped(key, query).transpose(-1, -2) * scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + by_head(torch.where(torch.isnan(bias), 0.0, bias), query.shape[1]).to(scores.dtype)
    probabilities, lse = softmax(scores.masked_fill(~keep, -math.inf))
    return probabilities @ grouped(value, query), lse


def kernel(query, key, value, bias, mask, call):
    """(out, lse) of kernels.dynamic_mask in the padded form, whatever the call's layout."""
    options = {"causal": call.causal, "scale": call.scale, "softcap": call.softcap}
    options |= {"num_splits": call.num_splits, "deterministic": call.deterministic}
    mask = pack_mask(mask) if call.bits and mask is not None else mask
    if not call.packed:
        answer = dynamic_mask_answer(query, key, value, mask, bias, **options)
        return answer.out, answer.lse
    for name, lengths in (("q", call.lengths_q), ("k", call.lengths_k)):
        starts = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
        options |= {f"cu_seqlens_{name}": starts.int(), f"max_seqlen_{name}": max(lengths)}
    answer = dynamic_mask_answer(
        *(packed(x, n) for x, n in ((query, call.lengths_q), (key, call.lengths_k), (value, call.lengths_k))),
        mask,
        bias,
        **options,
    )
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    lse = torch.full(query.shape[:3], -math.inf, device=DEVICE)
    first = 0
    for b, length in enumerate(call.lengths_q):
        out[b, :, :length] = answer.out[first : first + length].transpose(0, 1)
        lse[b, :, :length] = answer.lse[:, first : first + length]
        first += length
    return out, lse


def packed(x, lengths):
    """(total, heads, dim) of (batch, heads, longest, dim)."""
    return torch.cat([x[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)])


def results(function, leaves, grad_out, grad_lse, dtype=None):
    """{name: tensor}: outputs of function(query, key, value, bias) and gradients."""
    made = [None if x is None else x.detach().to(dtype or x.dtype).requires_grad_(x.requires_grad) for x in leaves]
    out, lse = function(*made)
    total = (out * grad_out).sum() + (torch.where(lse == -math.inf, 0.0, lse) * grad_lse).sum()
    names = [n for n, x in zip(("dquery", "dkey", "dvalue", "dbias"), made, strict=True) if x is not None]
    asked = {n: x for n, x in zip(names, [x for x in made if x is not None], strict=True) if x.requires_grad}
    grads = torch.autograd.grad(total, list(asked.values()), materialize_grads=True)
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(asked, grads, strict=True))}


def got_and_wanted(call, tensors=None):
    """(results of the kernel, of a float64 run, of a run in the call's dtype)."""
    query, key, value, mask, bias = tensors_of(call) if tensors is None else tensors
    keep = kept_pairs(call, mask)
    batch, heads, len_q, _ = call.sizes
    grad_out = random(batch, heads, len_q, call.dim_v, dtype=call.dtype, seed=7)
    grad_lse = random(batch, heads, len_q, seed=8)
    leaves = (query, key, value, bias)
    got = results(lambda q, k, v, b: kernel(q, k, v, b, mask, call), leaves, grad_out, grad_lse)
    plain = (lambda q, k, v, b: dense(q, k, v, b, keep, call), leaves, grad_out, grad_lse)
    return got, results(*plain, torch.float64), results(*plain, call.dtype)


def delta_rounding(call, out):
    """Three standard deviations of the error of delta = rowsum(O ∘ dO) where O is rounded, as the kernel has it."""
    grad_out = random(*out.shape[:3], call.dim_v, dtype=call.dtype, seed=7).double()
    return 3 * torch.finfo(call.dtype).eps / 4 * math.sqrt(largest((out * grad_out).pow(2).sum(-1)))


def complaints(call, tensors=None):
    """{name: what is wrong with it}; empty where all is right."""
    got, exact, plain = got_and_wanted(call, tensors)
    found = {}
    rounded = delta_rounding(call, exact["out"])
    for name, wanted in exact.items():
        result = got[name]
        more = rounded * math.sqrt(math.prod(call.sizes) / max(wanted.numel(), 1)) if name == "dbias" else 0.0
        sums = 2**-22 * (1 + largest(exact["lse"])) * sum(largest(x) for n, x in exact.items() if n != "lse")
        limit = (
            FACTOR * difference(plain[name], wanted) + 2 * torch.finfo(result.dtype).eps * largest(wanted) + sums + more
        )
        if result.shape != wanted.shape:
            found[name] = f"shape {tuple(result.shape)}, not {tuple(wanted.shape)}"
        elif not torch.equal(torch.isinf(result), torch.isinf(wanted)) or torch.isnan(result).any():
            found[name] = "NaN, or infinite in other places"
        elif not difference(result, wanted) <= limit:
            found[name] = f"off by {difference(result, wanted):.2e}, limit {limit:.2e}, largest {largest(wanted):.2e}"
    return found


def drawn(rng, longest=300):
    """A random call, biased to boundaries: everything that the kernel takes."""
    lengths = [n for n in (0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 200, 257, 384, 513) if n <= longest]
    packed, batch = rng.random() < 0.4, rng.choice((1, 1, 2, 3))
    lengths_q = tuple(rng.choice(lengths) for _ in range(batch if packed else 1)) * (1 if packed else batch)
    lengths_k = tuple(rng.choice(lengths) for _ in range(batch if packed else 1)) * (1 if packed else batch)
    heads_kv = rng.choice((1, 1, 2, 3))
    dim = rng.choice((8, 16, 24, 32, 32, 40, 64, 64, 96, 128, 100, 192, 256))
    axes = [
        "".join(rng.choice(values) for values in ("f1", "fk1", "fff1", "fff1")) if rng.random() < 0.7 else ""
        for _ in range(2)
    ]
    bits = rng.random() < 0.4 and axes[0][-1:] == "f"
    splits = rng.choice((0, 0, 1, 2, 3))
    return Call(
        lengths_q,
        lengths_k,
        heads_kv * rng.choice((1, 1, 2, 4)),
        heads_kv,
        dim,
        rng.choice((dim, dim, dim, 16, 72)),
        rng.choice((torch.float16, torch.bfloat16)),
        axes[0],
        axes[1],
        rng.choice((0.02, 0.3, 0.7, 1.0)),
        bits,
        rng.choice((None, None, "top_left", "bottom_right")),
        rng.choice((None, None, None, 0.3, -0.2, 0.0)),
        rng.choice((0.0, 0.0, 0.0, 2.0, 30.0)),
        packed,
        splits,
        splits != 3,
        rng.choice((None, None, torch.float32)),
        rng.randrange(100),
    )
