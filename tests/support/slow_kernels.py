"""The block-sparse launches on the CPU, in plain PyTorch: what the compiled kernels do with the same arguments.

Reads block lists entry by entry, and masks from bits, intervals or bands, so a wrong list is a wrong result here too.
For testing operators and metadata where there is no GPU.
"""

import torch


def listed_mask(blocks, sequence, head, len_q, len_k):
    """bool (len_q, len_k): what the forward lists and the mask let through for one sequence and head."""
    keep = torch.zeros(blocks.m_blocks * blocks.tile_m, (len_k // blocks.tile_n + 1) * blocks.tile_n, dtype=torch.bool)
    for lists, masked in ((blocks.forward.partial, True), (blocks.forward.full, False)):
        b, h = sequence % lists.batch, head % lists.heads
        for m in range(lists.rows):
            begin = int(lists.begin[b, h, m])
            for place in range(begin, begin + int(lists.count[b, h, m])):
                n = int(lists.index[place])
                q = m * blocks.tile_m + torch.arange(blocks.tile_m)[:, None]
                k = n * blocks.tile_n + torch.arange(blocks.tile_n)[None]
                tile = token_mask(blocks, sequence, head, q, k, place) if masked else True
                assert not keep[q, k].any()
                keep[q, k] = tile
    return keep[:len_q, :len_k]


def token_mask(blocks, sequence, head, q, k, place):
    """What the mask of a partial block says of queries q and keys k."""
    mask = blocks.mask
    if mask is None:
        return torch.ones(len(q), k.shape[1], dtype=torch.bool)
    if hasattr(mask, "words"):
        words = mask.words[int(mask.slot[place])]
        bit = torch.arange(32, dtype=torch.int32)
        return (words[:, :, None] >> bit & 1).flatten(1).bool()
    if hasattr(mask, "bounds"):
        bounds = mask.bounds[sequence % mask.bounds.shape[0], head % mask.bounds.shape[1]]
        row = bounds[:, q[:, 0].clamp(max=bounds.shape[1] - 1), None]
        kept = k < row[0]
        for i in range(1, len(row), 2):
            kept |= (row[i] <= k) & (k < row[i + 1])
        return kept
    at = q + int(mask.offset[sequence % len(mask.offset)])
    return (k >= at - mask.left) & (k <= at + mask.right)


def per_sequence(x, begin, length):
    """Rows of one sequence of (rows, heads, dim), as float64 (heads, rows, dim)."""
    return x[begin : begin + length].transpose(0, 1).double()


def probabilities(q, k, blocks, sequence, scale, softcap):
    """(P, lse, derivative of the soft cap) of one sequence: q, k float64 (heads, rows, dim)."""
    scores = q @ k.transpose(1, 2) * scale
    slope = torch.ones_like(scores)
    if softcap:
        slope = 1 - torch.tanh(scores / softcap) ** 2
        scores = softcap * torch.tanh(scores / softcap)
    keep = torch.stack([listed_mask(blocks, sequence, h, q.shape[1], k.shape[1]) for h in range(len(q))])
    scores = scores.masked_fill(~keep, -float("inf"))
    lse = scores.logsumexp(-1) if scores.shape[-1] else torch.full(scores.shape[:2], -float("inf"), dtype=scores.dtype)
    return torch.exp(scores - lse.masked_fill(lse == -float("inf"), 0.0)[..., None]), lse, slope


def place(begin, length, b):
    """(first row, rows) of a sequence."""
    return (0, length) if begin is None else (int(begin[b]), int(length[b]))


def sequences_of(x, sequences, b):
    """(batch entry of padded x, or x packed)."""
    return x[b] if x.dim() == 4 else x


def forward(
    q, k, v, o, lse, sequences, blocks, *, scale, softcap=None, injection=None, host=None, tuning=(), products=None
):  # fmt: skip
    """launch.forward."""
    for b in range(sequences.batch):
        at_q, n_q = place(sequences.q_begin, sequences.q_length, b)
        at_k, n_k = place(sequences.k_begin, sequences.k_length, b)
        rows_q = per_sequence(sequences_of(q, sequences, b), at_q, n_q)
        rows_k, rows_v = (per_sequence(sequences_of(x, sequences, b), at_k, n_k) for x in (k, v))
        group = len(rows_q) // len(rows_k)
        p, stats, _ = probabilities(rows_q, rows_k.repeat_interleave(group, 0), blocks, b, scale, softcap)
        out = p @ rows_v.repeat_interleave(group, 0)
        sequences_of(o, sequences, b)[at_q : at_q + n_q] = out.transpose(0, 1).to(o.dtype)
        target = lse[b] if lse.dim() == 3 else lse
        target[:, at_q : at_q + n_q] = stats.float()


def backward_pass(
    dq, dk, dv, q, k, v, o, lse, do, sequences, blocks, *, grad_lse, scale, softcap, deterministic, injection,
    host=None, products=None,
):  # fmt: skip
    """lse_gradient.backward_pass."""
    assert blocks.backward is not None
    for b in range(sequences.batch):
        at_q, n_q = place(sequences.q_begin, sequences.q_length, b)
        at_k, n_k = place(sequences.k_begin, sequences.k_length, b)
        rows_q, rows_do = (per_sequence(sequences_of(x, sequences, b), at_q, n_q) for x in (q, do))
        rows_k, rows_v = (per_sequence(sequences_of(x, sequences, b), at_k, n_k) for x in (k, v))
        group = len(rows_q) // len(rows_k)
        rows_k, rows_v = rows_k.repeat_interleave(group, 0), rows_v.repeat_interleave(group, 0)
        p, _, slope = probabilities(rows_q, rows_k, blocks, b, scale, softcap)
        delta = (rows_do * (p @ rows_v)).sum(-1)
        if grad_lse is not None:
            delta = delta - (grad_lse[b] if grad_lse.dim() == 3 else grad_lse)[:, at_q : at_q + n_q]
        ds = p * (rows_do @ rows_v.transpose(1, 2) - delta[..., None]) * slope * scale
        of_heads = [
            x.unflatten(0, (-1, group)).sum(1) for x in (ds.transpose(1, 2) @ rows_q, p.transpose(1, 2) @ rows_do)
        ]
        sequences_of(dq, sequences, b)[at_q : at_q + n_q] = (ds @ rows_k).transpose(0, 1).to(dq.dtype)
        for target, grad in zip((dk, dv), of_heads, strict=True):
            sequences_of(target, sequences, b)[at_k : at_k + n_k] = grad.transpose(0, 1).to(target.dtype)
