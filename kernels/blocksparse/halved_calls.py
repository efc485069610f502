"""Halved block lists of a call, made once for each BlockSparse, schedule and set of lengths: `halve_keys` is some 80
small operations.

Remembered as call_checks.py remembers what it checked: by identity and version of the tensors, and forgotten with the
BlockSparse. Made anew under torch.compile and CUDA-graph capture, whose graphs own what they read, and for tensors that
were made in inference mode, which have no version. Each stream has its own.
"""

from __future__ import annotations

import weakref
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.blocksparse.call_checks import KEPT, same_tensors
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.types import BlockSparse

_Made: TypeAlias = list[tuple[tuple, list[tuple[weakref.ref, int]], BlockSparse]]
_made: weakref.WeakKeyDictionary[BlockSparse, _Made] = weakref.WeakKeyDictionary()


def halved_for_call(blocks: BlockSparse, rescheduled: BlockSparse, k: Tensor, lengths: list[Tensor]) -> BlockSparse:
    """The blocks over tiles of half as many keys; the device is asked nothing.

    blocks     what the user gave; rescheduled: the same under the schedule that is asked for
    k          (batch, heads, length, dim), or (total, heads, dim) where `lengths` are cu_seqlens
    lengths    none, or of q and of k
    """
    schedule = rescheduled.schedule
    tensors = lengths if schedule.positions is None else [*lengths, schedule.positions]
    capturing = k.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or capturing or any(x.is_inference() for x in tensors):
        return _halved(rescheduled, k, lengths)
    stream = torch.cuda.current_stream(k.device).cuda_stream if k.is_cuda else 0
    key = (
        *(k.dim(), k.shape[2] if k.dim() == 4 else 0, stream, len(lengths)),
        *(schedule.kind, schedule.pairs, schedule.group_split, schedule.alike, rescheduled.order is None),
    )
    made = _made.setdefault(blocks, [])
    for before, refs, halved in made:
        if before == key and same_tensors(refs, tensors):
            return halved
    halved = _halved(rescheduled, k, lengths)
    del made[: 1 - KEPT]
    made.append((key, [(weakref.ref(x), x._version) for x in tensors], halved))
    return halved


def _halved(blocks: BlockSparse, k: Tensor, lengths: list[Tensor]) -> BlockSparse:
    if k.dim() == 3:
        assert blocks.backward is not None
        return halve_keys(blocks, lengths[1].diff(), longest=blocks.backward.rows * blocks.tile_n)
    length = k.shape[2]
    one = torch.full((1,), length, dtype=torch.int64, device=k.device)
    return halve_keys(blocks, lengths[1] if lengths else one, longest=length)
