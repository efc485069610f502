"""The question of native sparse attention (NSA), for each sequence of N tokens and each query head h:

    O = sum over branches b of g_b * O_b,   g = sigmoid(Q W_gate[h, b]), each by itself; without W_gate 1/3

    compressed  keys and values are K^ and V^, the means of blocks of c tokens (the last block: of the tokens that it
                has), times W_k and W_v where given; row i sees block j if j c <= i
    selected    row i sees the tokens of the blocks that its tile of queries has chosen
    window      row i sees the tokens of i - W < k <= i, none where W is 0; not causal: |k - i| <= W // 2

A tile (q_tile rows of queries) chooses the num_selected_blocks allowed blocks of the largest score, scale * mean(Q of
the tile) . K^_j; with num_cmp_selected_blocks, where there are more groups of 128 blocks than that, also the groups of
the largest mean score, and its rows see no other block in the compressed branch. Equal scores: the lower index. Fewer
allowed ones: a shorter list. What is chosen has no gradient. Query head h reads KV head h // (heads_q // heads_kv).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from oracles.masks import LONGEST, Causal, Full, Mask
from oracles.problem import LARGEST, MOST, AnyProblem, Bias, Dtype, Layout, Shapes

Causality: TypeAlias = bool | Literal["strict"]
GROUP = 128  # compressed blocks of a group
BRANCHES = ("compressed", "selected", "window")  # in the order of the gates
_FIELDS = ("compress_block_size", "num_selected_blocks", "window_size", "q_tile")


class NativeSparse(AnyProblem, frozen=True, tag_field="op", tag="native_sparse_attention"):
    """One problem of native sparse attention; `scale` None means dim ** -0.5.

    causal  True: a block is allowed to a tile if it begins before the tile's end, so that its first rows may see later
            tokens through a mean; 'strict': no row depends on a later token, see rules.py; False: all blocks
    """

    lengths: tuple[int, ...]
    heads_q: int
    heads_kv: int
    dim: int
    dtype: Dtype
    layout: Layout = "padded"
    compress_block_size: int = 64
    num_selected_blocks: int = 16
    window_size: int = 512
    num_cmp_selected_blocks: int | None = None
    causal: Causality = True
    q_tile: int = 256
    w_k: bool = False
    w_v: bool = False
    w_gate: bool = False
    scale: float | None = None
    backward: bool = True

    def __post_init__(self) -> None:
        for name in ("heads_q", "heads_kv", "dim", *_FIELDS):
            least, most = int(name != "window_size"), LONGEST if name in _FIELDS else MOST
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name}: must be between {least} and {most}, got {getattr(self, name)}")
        if not self.lengths or min(self.lengths) < 0 or max(self.lengths) > LONGEST:
            got = list(self.lengths)
            raise ValueError(f"lengths: needs at least one length, none negative or over {LONGEST}, got {got}")
        if self.heads_q % self.heads_kv:
            raise ValueError(f"heads_kv: must divide heads_q = {self.heads_q}, got {self.heads_kv}")
        if self.num_cmp_selected_blocks is not None and not 1 <= self.num_cmp_selected_blocks <= LONGEST:
            raise ValueError(f"num_cmp_selected_blocks: must be at least 1, got {self.num_cmp_selected_blocks}")
        if self.scale is not None and not abs(self.scale) <= LARGEST:
            raise ValueError(f"scale: must be finite in float32, got {self.scale}")

    @property
    def lengths_q(self) -> tuple[int, ...]:
        """As many queries as keys."""
        return self.lengths

    @property
    def lengths_k(self) -> tuple[int, ...]:
        """As many keys as queries."""
        return self.lengths

    @property
    def dim_v(self) -> int:
        """The head dim of V is that of K."""
        return self.dim

    @property
    def mask(self) -> Mask:
        """What a row can see at most, of tokens themselves: all up to its own, or all."""
        return Causal() if self.causal else Full()

    @property
    def softcap(self) -> float:
        """None."""
        return 0.0

    @property
    def bias(self) -> Bias | None:
        """None."""
        return None

    @property
    def weights(self) -> tuple[str, ...]:
        """See AnyProblem."""
        return tuple(name for name in ("w_k", "w_v", "w_gate") if getattr(self, name))

    @property
    def choices(self) -> tuple[str, ...]:
        """See AnyProblem: 'blocks' (batch, heads_q, tiles, most): the blocks that each tile has selected, int32,
        ascending, -1 in unused places; 'groups', where some sequence has more groups than it may see."""
        return ("blocks", "groups") if any(map(self.selects_groups, self.lengths)) else ("blocks",)

    def blocks(self, length: int) -> int:
        """Compressed blocks of a sequence."""
        return -(-length // self.compress_block_size)

    def groups(self, length: int) -> int:
        """Groups of compressed blocks of a sequence."""
        return -(-self.blocks(length) // GROUP)

    def tiles(self, length: int) -> int:
        """Tiles of queries of a sequence."""
        return -(-length // self.q_tile)

    def selects_groups(self, length: int) -> bool:
        """True if the compressed branch of a sequence of that length sees some of its groups only."""
        most = self.num_cmp_selected_blocks
        return most is not None and self.groups(length) > most

    def shapes(self) -> Shapes:
        """See `oracles.problem.shapes`."""
        p, n = self, self.len_q
        q: tuple[int, ...]
        k: tuple[int, ...]
        if p.layout == "padded":
            q, k = (p.batch, p.heads_q, n, p.dim), (p.batch, p.heads_kv, n, p.dim)
        else:
            q, k = (sum(p.lengths), p.heads_q, p.dim), (sum(p.lengths), p.heads_kv, p.dim)
        found: Shapes = {"q": q, "k": k, "v": k, "o": q, "do": q, "dq": q, "dk": k, "dv": k}
        square = (p.heads_kv, p.dim, p.dim)
        sizes = {"w_k": square, "w_v": square, "w_gate": (p.heads_q, len(BRANCHES), p.dim)}
        for name in p.weights:
            found[name] = found[f"d{name}"] = sizes[name]
        tiles = (p.batch, p.heads_q, p.tiles(n))
        found["blocks"] = (*tiles, min(p.num_selected_blocks, p.blocks(n)))
        if "groups" in p.choices:
            found["groups"] = (*tiles, p.num_cmp_selected_blocks or 0)
        return found

    def edited(self, **changes: object) -> NativeSparse:
        """See AnyProblem. Lengths of queries and of keys must be equal, and head dims; no mask means not causal."""
        own = {name: value for name, value in changes.items() if name in self.__struct_fields__}
        for one, other in (("lengths_q", "lengths_k"), ("dim", "dim_v")):
            if changes.get(one, getattr(self, one)) != changes.get(other, getattr(self, other)):
                raise ValueError(f"{other}: must be {one}, got {changes.get(other, getattr(self, other))}")
        if "lengths_q" in changes:
            own["lengths"] = changes["lengths_q"]
        for name, value in changes.items():
            if name in own or name in ("lengths_q", "lengths_k", "dim_v") or value == getattr(self, name, None):
                continue
            if name != "mask" or value not in (Full(), Causal()):
                raise ValueError(f"{name}: native sparse attention has none, got {value!r}")
            own["causal"] = value == Causal()
        return msgspec.structs.replace(self, **own)
