"""The right answer of native sparse attention, and what rounding alone does to it: functions that scripts take along.

`r(x, eps, back)` leaves x alone, or errs by a relative eps in the forward pass and back in its gradient, at random. A
selection is given: bool (heads, tiles, blocks), and groups likewise or None. `s` are the parameters of the call.
"""

import torch

# In a script these are its own; here they are so that the functions can be run.
EPS = 2.0**-7
FP32 = 2.0**-21


class Rounded(torch.autograd.Function):
    """x times 1 + eps * noise, its gradient times 1 + back * noise."""

    @staticmethod
    def forward(ctx, x, eps, back):
        ctx.back = back
        return x * (1 + eps * (torch.rand_like(x) - 0.5))

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.back * (torch.rand_like(grad) - 0.5)), None, None


def rounding(x, eps=EPS, back=EPS):
    """What rounding does to x and to its gradient: a relative error of at most half a unit in the last place."""
    return Rounded.apply(x, eps, back)


def exactly(x, eps=EPS, back=EPS):
    return x


def block_means(x, size):
    """Means of blocks of tokens, (heads, length, dim) to (heads, blocks, dim); the last block has what is left."""
    return torch.stack([part.mean(1) for part in x.split(size, 1)], 1)


def attend(q, k, v, keep, scale, r):
    """Attention of one branch; rows without keys are 0."""
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
    rows = keep.any(-1, keepdim=True)
    scores = r(q @ k.mT * scale, FP32).masked_fill(~keep, float("-inf")).masked_fill(~rows, 0.0)
    probs = torch.softmax(scores, -1).masked_fill(~rows, 0.0)
    return r(r(probs, EPS, FP32) @ v)


def sparse(q, k, v, w_k, w_v, w_gate, blocks, groups, s, r):
    """O of one sequence, (heads, length, dim)."""
    length, size = q.shape[1], s["compress_block_size"]
    mean_k, mean_v = (r(block_means(x, size)) for x in (k, v))
    mean_k = mean_k if w_k is None else r(mean_k @ w_k)
    mean_v = mean_v if w_v is None else r(mean_v @ w_v)
    row, key = torch.arange(length, device=q.device)[:, None], torch.arange(length, device=q.device)
    tile, block = row // s["q_tile"], torch.arange(mean_k.shape[1], device=q.device)
    if s["causal"] == "strict":
        pooled = (block + 1) * size <= row + 1
    else:
        pooled = block * size <= (row if s["causal"] else length)
    pooled = pooled.expand(q.shape[0], length, -1)
    if groups is not None:
        pooled = pooled & groups[:, tile, block // 128]
    selected = blocks[:, tile, key // size]
    if s["causal"]:
        window = (row - s["window_size"] < key) & (key <= row)
        selected = selected & (key <= row)
    else:
        window = (key - row).abs() <= s["window_size"] // 2
    window = window.expand_as(selected)
    branches = ((mean_k, mean_v, pooled), (k, v, selected), (k, v, window))
    outputs = torch.stack([attend(q, *branch, s["scale"], r) for branch in branches])
    if w_gate is None:
        return r(outputs.sum(0) / 3)
    gates = torch.sigmoid(q @ w_gate.mT)
    return r((gates.permute(2, 0, 1)[..., None] * outputs).sum(0))


def flags(listed, count):
    """Lists of indices, -1 in unused places, as bool (…, count)."""
    found = torch.zeros((*listed.shape[:-1], count + 1), dtype=torch.bool, device=listed.device)
    return found.scatter_(-1, torch.where(listed < 0, count, listed).long(), True)[..., :count]


def sequences(x, s):
    """The sequences of a tensor, each (heads, length, dim)."""
    if s["packed"]:
        return [part.transpose(0, 1) for part in x.split(s["lengths"])]
    return [part[:, :n] for part, n in zip(x, s["lengths"], strict=True)]


def chosen_of(chosen, b, s):
    """Blocks and groups of sequence b as flags; groups None where all are seen."""
    length = s["lengths"][b]
    tiles, count = -(-length // s["q_tile"]), -(-length // s["compress_block_size"])
    blocks = flags(chosen["blocks"][b, :, :tiles], count)
    number = -(-count // 128)
    if s["groups"] is None or number <= s["groups"]:
        return blocks, None
    return blocks, flags(chosen["groups"][b, :, :tiles], number)


def answers(given, chosen, s, r):
    """O and, where `do` is given, the gradients, in float64, with that selection."""
    leaves = {name: x.double().requires_grad_() for name, x in given.items() if name != "do"}
    w_k, w_v, w_gate = (leaves.get(name) for name in ("w_k", "w_v", "w_gate"))
    parts = []
    for b, (q, k, v) in enumerate(zip(*(sequences(leaves[name], s) for name in ("q", "k", "v")), strict=True)):
        blocks, groups = chosen_of(chosen, b, s)
        parts.append(sparse(q, k, v, w_k, w_v, w_gate, blocks, groups, s, r) if q.shape[1] else q * 1)
    if s["packed"]:
        o = torch.cat([part.transpose(0, 1) for part in parts])
    else:
        longest = leaves["q"].shape[2]
        o = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])
    found = {"o": o.detach()}
    if "do" in given:
        grads = torch.autograd.grad(o, list(leaves.values()), given["do"].double(), materialize_grads=True)
        found |= {f"d{name}": r(grad) for name, grad in zip(leaves, grads, strict=True)}
    return found


def wrong_selection(given, chosen, s):
    """Prints the tiles whose blocks are not the ones of the largest score; returns whether there are any."""
    wrong = 0
    size, tile, w_k = s["compress_block_size"], s["q_tile"], given.get("w_k")
    each = (sequences(given[name].double(), s) for name in ("q", "k"))
    for b, (q, k) in enumerate(zip(*each, strict=True)):
        if not q.shape[1]:
            continue
        length = q.shape[1]
        means = block_means(k, size)
        means = means if w_k is None else means @ w_k.double()
        means = means.repeat_interleave(q.shape[0] // k.shape[0], 0)
        blocks = chosen_of(chosen, b, s)[0]
        index = torch.arange(means.shape[1], device=q.device)
        for t, start in enumerate(range(0, length, tile)):
            strict = s["causal"] == "strict"
            rows = slice(max(0, start - tile + 1), start + 1) if strict else slice(start, start + tile)
            mean = q[:, rows].mean(1)[:, None]
            scores = (mean @ means.mT)[:, 0] * s["scale"]
            unsure = (mean.abs() @ means.abs().mT)[:, 0] * abs(s["scale"]) * 4 * EPS
            allowed = index >= 0
            if s["causal"]:
                allowed = (index + 1) * size <= start + 1 if strict else index * size < start + tile
            here = blocks[:, t]
            low = torch.where(here, scores + unsure, float("inf")).amin(1)
            high = torch.where(allowed & ~here, scores - unsure, float("-inf")).amax(1)
            due = min(int(allowed.sum()), s["num_selected_blocks"])
            bad = (low < high) | (here & ~allowed).any(1) | (here.sum(1) != due)
            for head in bad.nonzero()[:, 0].tolist()[: 3 if wrong < 3 else 0]:
                best = torch.where(allowed, scores[head], float("-inf")).topk(due).indices.sort().values
                listed = here[head].nonzero()[:, 0].tolist()
                print(f"blocks of sequence {b}, head {head}, tile {t}: {listed}, right {best.tolist()}  WRONG")
            wrong += int(bad.sum())
    return wrong > 0
