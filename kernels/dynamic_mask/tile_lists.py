"""Lists of the mask's tiles that hold a key, made before each pass.

NOTE [lists] One kernel reads the mask once, all of it at a time, and marks each tile that holds a pair: one number for
the whole CTA. Another makes of the marks the list of each tile of queries, or of keys. The kernels of attention walk
along lists: an empty tile costs them nothing, and what they load next is known ahead, so that loads overlap products.
Lists have one entry for a tile: 1 / 4,096 of the scores at tiles of 64 x 64. Causality and the ends of sequences are in
the lists; a call without a mask has none, and its kernels count.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dynamic_mask.attention import Attention
from kernels.dynamic_mask.config import Tiles
from kernels.dynamic_mask.tiles import first_query, last_key, sequence
from kernels.sdpa.launch import INTERPRETED, Launch

CHUNK = 8  # tiles that a program marks, one after another
BLOCK = 256  # marks that a program takes in at a time

MASK_RUNTIME = ["mMask", "mask_0", "mask_1", "mask_2"]
MARKS_RUNTIME = [*MASK_RUNTIME, "mMarks", "heads", "len_q", "len_k"]
LISTS_RUNTIME = ["mMarks", "marks_batch", "mList", "mCount", "mCuQ", "mCuK", "heads", "len_q", "len_k", "align"]


@triton.jit(do_not_specialize=MARKS_RUNTIME, do_not_specialize_on_alignment=[*MARKS_RUNTIME, "mask_3"])
def marks_kernel(
    mMask,
    mask_0,
    mask_1,
    mask_2,
    mask_3,
    mMarks,
    heads,
    len_q,
    len_k,
    MASK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    CHUNK: tl.constexpr,
    load_mask: tl.constexpr,
    any_key: tl.constexpr,
):
    """mMarks (batches, heads, tiles of queries, tiles of keys) uint8 of a mask (batches, heads, len_q, len_k): 1 where
    a tile holds a pair."""
    mask = (mMask, (mask_0, mask_1, mask_2, mask_3), 1)
    m_blocks = tl.cdiv(len_q, TILE_M)
    n_blocks = tl.cdiv(len_k, TILE_N)
    chunks = tl.cdiv(n_blocks, CHUNK)
    program = tl.program_id(0)
    chunk = program % chunks
    line = program // chunks  # a tile of queries, of a head, of a batch
    m_start = line % m_blocks * TILE_M
    plane = line // m_blocks
    place = (plane // heads, plane % heads, len_q, len_k, 0)
    mLine = mMarks + line.to(tl.int64) * n_blocks
    active = True
    for n_block in range(chunk * CHUNK, tl.minimum(n_blocks, chunk * CHUNK + CHUNK)):
        rMask = load_mask(mask, place, m_start, n_block * TILE_N, MASK, ALIGNED, TILE_M, TILE_N)
        active = any_key(rMask, active)
        tl.store(mLine + n_block, active.to(tl.uint8))


@triton.jit(do_not_specialize=LISTS_RUNTIME, do_not_specialize_on_alignment=LISTS_RUNTIME)
def lists_kernel(
    mMarks,
    marks_batch,
    mList,
    mCount,
    mCuQ,
    mCuK,
    heads,
    len_q,
    len_k,
    align,
    CAUSAL: tl.constexpr,
    PACKED: tl.constexpr,
    OF_KEYS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """mList (batches, heads, tiles, tiles of the other side) int32: the marked tiles of keys of a tile of queries, or
    OF_KEYS those of queries of a tile of keys, ascending; mCount (batches, heads, tiles) int32: how many."""
    m_blocks = tl.cdiv(len_q, TILE_M)
    n_blocks = tl.cdiv(len_k, TILE_N)
    lines = m_blocks
    steps = n_blocks
    pitch = n_blocks
    stride = len_q * 0 + 1
    if OF_KEYS:
        lines = n_blocks
        steps = m_blocks
        pitch = stride
        stride = n_blocks
    program = tl.program_id(0)
    line = program % lines
    head = program // lines % heads
    batch = program // lines // heads
    _, _, n_q, n_k = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
    shift = align * (n_k - n_q)
    if OF_KEYS:
        first = first_query(line * TILE_N, shift, TILE_M, CAUSAL) // TILE_M
        last = tl.where(line * TILE_N < n_k, tl.cdiv(n_q, TILE_M), 0)
    else:
        first = line * 0
        last = tl.cdiv(tl.maximum(last_key(line * TILE_M, n_k, shift, TILE_M, CAUSAL), 0), TILE_N)
        last = tl.where(line * TILE_M < n_q, last, 0)
    mLine = mMarks + batch.to(tl.int64) * marks_batch + head.to(tl.int64) * m_blocks * n_blocks + line * pitch
    mOut = mList + program.to(tl.int64) * steps
    count = line * 0
    for start in range(first, last, BLOCK):
        step = start + tl.arange(0, BLOCK)
        rMark = tl.load(mLine + step.to(tl.int64) * stride, mask=step < last, other=0).to(tl.int32)
        tl.store(mOut + count + tl.cumsum(rMark, 0) - 1, step, mask=rMark != 0)
        count += tl.sum(rMark, 0)
    tl.store(mCount + program, count)


@dataclass(frozen=True)
class TileLists:
    """Lists of one pass, and the launches that make them. Without a mask: no launches.

    arguments  kernel arguments of forward.LISTS, see `tiles.list_of`
    """

    launches: list[Launch]
    arguments: dict[str, Any]


class Marks:
    """The mask's marks for one size of tiles, made when a list first asks for them."""

    def __init__(self, attention: Attention, any_key: Any) -> None:
        self._attention, self._any_key = attention, any_key
        self._made: dict[tuple[int, int], Tensor] = {}

    def lists(self, tiles: Tiles, *, of_keys: bool = False) -> TileLists:
        """The lists of tiles of queries, or `of_keys`, for a kernel with these tiles."""
        attention, mask = self._attention, self._attention.mask
        if mask is None:
            unused = attention.query
            return TileLists([], {"mList": unused, "mCount": unused, "list_batch": 0, "list_heads": 1, "list_share": 1})
        blocks = -(-attention.max_q // tiles.tile_m), -(-attention.max_k // tiles.tile_n)
        lines, steps = reversed(blocks) if of_keys else blocks
        launches = []
        if blocks not in self._made:
            self._made[blocks], launch = self._marks(mask, tiles, blocks)
            launches.append(launch)
        marks = self._made[blocks]
        batches = attention.batches if attention.packed else mask.shape[0]
        listed = torch.empty((batches, mask.shape[1], lines, steps), dtype=torch.int32, device=mask.device)
        count = torch.empty((batches, mask.shape[1], lines), dtype=torch.int32, device=mask.device)
        sizes = attention.sizes()
        launch = Launch(
            lists_kernel,
            count.numel(),
            {
                "mMarks": marks,
                "marks_batch": marks.stride(0) if marks.shape[0] > 1 else 0,
                "mList": listed,
                "mCount": count,
                "heads": mask.shape[1],
                "mCuQ": count if attention.cu_q is None else attention.cu_q,
                "mCuK": count if attention.cu_k is None else attention.cu_k,
                **{name: sizes[name] for name in ("len_q", "len_k", "align")},
            },
            {
                "CAUSAL": attention.causal > 0,
                "PACKED": attention.packed,
                "OF_KEYS": of_keys,
                "TILE_M": tiles.tile_m,
                "TILE_N": tiles.tile_n,
                "BLOCK": BLOCK,
            },
            {"num_warps": 4},
        )
        arguments = {
            "mList": listed,
            "mCount": count,
            "list_batch": int(batches > 1),
            "list_heads": mask.shape[1],
            "list_share": attention.heads_q // max(mask.shape[1], 1) or 1,
        }
        return TileLists([*launches, launch], arguments)

    def _marks(self, mask: Tensor, tiles: Tiles, blocks: tuple[int, int]) -> tuple[Tensor, Launch]:
        attention = self._attention
        marks = torch.empty((*mask.shape[:2], *blocks), dtype=torch.uint8, device=mask.device)
        planes, sizes = attention.planes(), attention.sizes()
        launch = Launch(
            marks_kernel,
            mask.shape[0] * mask.shape[1] * blocks[0] * -(-blocks[1] // CHUNK),
            {
                **{name: planes[name] for name in (*MASK_RUNTIME, "mask_3")},
                "mMarks": marks,
                "heads": mask.shape[1],
                "len_q": sizes["len_q"],
                "len_k": sizes["len_k"],
            },
            {
                "MASK": attention.mask_kind,
                "ALIGNED": attention.aligned(),
                "TILE_M": tiles.tile_m,
                "TILE_N": tiles.tile_n,
                "CHUNK": CHUNK,
                "load_mask": attention.steps.load_mask,
                "any_key": self._any_key,
            },
            {"num_warps": 4, "num_stages": 1 if INTERPRETED else 3},
        )
        return marks, launch
