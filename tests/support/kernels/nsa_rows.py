"""Launches of the kernels of kernels.nsa that hold tiles of rows, with tensors on and off alignment.

Off alignment, a tensor begins 2 bytes after a multiple of 16, and its rows lie an odd number of elements apart.
"""

import torch
from nsa_cases import DEVICE

from kernels.nsa import launches
from kernels.nsa.operands import Operands, Settings
from kernels.sdpa.launch import INTERPRETED

LENGTH, HEADS, DIM = 70, 2, 32


def off_alignment(x, strided):
    """x's values at addresses that no load of 16 bytes may have."""
    shape = (*x.shape[:-1], x.shape[-1] + 1) if strided else x.shape
    room = torch.full((torch.Size(shape).numel() + 1,), float("nan"), dtype=x.dtype, device=x.device)
    moved = room[1:].view(shape)[..., : x.shape[-1]]
    return moved.copy_(x)


def launched(strided, contiguous):
    """(ALIGNED, results) of every kernel that holds tiles of rows. `strided` lays out Q, K and dO, `contiguous` what
    has to be contiguous."""
    draw = torch.Generator().manual_seed(3)

    def new(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=draw).to(dtype).to(DEVICE)

    q, grad_out = (strided(new(2, LENGTH, HEADS, DIM)) for _ in range(2))
    k, w = strided(new(2, LENGTH, 1, DIM)), contiguous(new(HEADS, 3, DIM))
    settings = Settings(48, 2, 40, 0, 1, 64, LENGTH, 0.2, True)
    o = Operands(q, k, k, None, None, w, None, settings)
    parts = [contiguous(new(*q.shape)) for _ in range(3)]
    of_keys = [contiguous(new(*k.shape)) for _ in range(2)]
    mean = contiguous(new(2, settings.blocks, 1, DIM, dtype=torch.float32))
    logits = new(3, HEADS, 2 * LENGTH, dtype=torch.float32)
    outs = [contiguous(torch.zeros(q.shape, dtype=q.dtype, device=DEVICE)) for _ in range(3)]
    outs.append(contiguous(torch.zeros(k.shape, dtype=k.dtype, device=DEVICE)))
    made = (
        launches.combine(o, parts, outs[0]),
        launches.split(o, 1, parts[0], grad_out, outs[1], logits[1]),
        launches.query_gradient(o, parts, logits, outs[2], 0.5),
        launches.key_gradient(o, of_keys, mean, outs[3], 0.5),
    )
    for launch in made:
        launch.run()
    return [launch.constants["ALIGNED"] for launch in made], [*outs, logits]


def on_alignment():
    """Answers of kernels whose loads are 16 bytes wide."""
    return launched(lambda x: x, lambda x: x)


def beside_alignment():
    """Answers of kernels that read an element at a time."""
    return launched(lambda x: off_alignment(x, True), lambda x: off_alignment(x, False))


def check_results(wide, narrow):
    """Compares the results of `on_alignment` and `beside_alignment`. Interpreted, they are the same bits; compiled, the
    sums of a row are added in another order."""
    (wide_flags, ones), (narrow_flags, others) = wide, narrow
    assert wide_flags == [True] * 4 and narrow_flags == [False] * 4
    for one, other in zip(ones, others, strict=True):
        assert one.isfinite().all() and one.count_nonzero()
        if INTERPRETED:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=0.01, atol=1e-4)
