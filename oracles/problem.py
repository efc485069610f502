"""The question: shapes, lengths, heads, dtype, mask, bias. Everything that decides the right answer except the numbers.

    S = softcap(scale * Q K^T) + bias,  softcap(x) = cap * tanh(x / cap)
    P = softmax of S over the keys that the mask keeps
    O = P V,  LSE = log sum exp S (natural);   a row without keys has O = 0, LSE = -inf and zero gradients.

Two layouts of the same question:
    padded   q (batch, heads_q, len_q, dim), k (batch, heads_kv, len_k, dim), v (…, dim_v); len_q and len_k are the
             longest sequence's; what lies past a sequence's own length is padding: rows there have no keys, keys there
             are masked
    packed   q (total_q, heads_q, dim), k (total_k, heads_kv, dim), v (…, dim_v): sequences one after the other (varlen)
Query head h reads KV head h // (heads_q // heads_kv).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import torch
from torch import Tensor

from oracles.masks import LONGEST, Full, Mask, keep, varies_by_batch, varies_by_head

Dtype: TypeAlias = Literal["float16", "bfloat16", "float32"]
Layout: TypeAlias = Literal["padded", "packed"]
Shapes: TypeAlias = dict[str, tuple[int, ...]]
MOST = 1 << 16  # heads, head dims
SMALL_MASK = 1 << 20  # pairs of all heads up to which a mask is kept
LARGEST = torch.finfo(torch.float32).max  # scale, softcap


class Bias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Additive bias (batch or 1, heads_q or 1, len_q or 1, len_k or 1): each flag says whether that axis is there in
    full or broadcast. Padded shape in both layouts; in a packed problem axis 0 is the sequence. With kv_heads axis 1 is
    there once for each KV head, whose query heads share it, whatever `heads` says."""

    batch: bool = False
    heads: bool = False
    rows: bool = True
    cols: bool = True
    dtype: Literal["input", "float32"] = "input"
    grad: bool = True
    kv_heads: bool = False


class AnyProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the problem of every operation says of itself, as a field or as a property, so that what is common to all of
    them asks no operation's name. Each is a subclass with a tag `op` of its own: docs/how_to/add_an_operation.md."""

    if TYPE_CHECKING:  # fields of a subclass, or properties

        @property
        def lengths_q(self) -> tuple[int, ...]: ...
        @property
        def lengths_k(self) -> tuple[int, ...]: ...
        @property
        def heads_q(self) -> int: ...
        @property
        def heads_kv(self) -> int: ...
        @property
        def dim(self) -> int: ...
        @property
        def dim_v(self) -> int: ...
        @property
        def dtype(self) -> Dtype: ...
        @property
        def layout(self) -> Layout: ...
        @property
        def mask(self) -> Mask: ...
        @property
        def scale(self) -> float | None: ...
        @property
        def softcap(self) -> float: ...
        @property
        def bias(self) -> Bias | None: ...
        @property
        def backward(self) -> bool: ...

    @property
    def op(self) -> str:
        """The operation's name, which is its tag in a file."""
        return str(self.__struct_config__.tag)

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.lengths_q)

    @property
    def len_q(self) -> int:
        """The longest query sequence; the padded length."""
        return max(self.lengths_q)

    @property
    def len_k(self) -> int:
        """The longest key sequence; the padded length."""
        return max(self.lengths_k)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads_q // self.heads_kv

    @property
    def scale_value(self) -> float:
        """The scale as a number."""
        return self.dim**-0.5 if self.scale is None else self.scale

    @property
    def ragged(self) -> bool:
        """True if sequences differ in length, so that a padded layout holds padding."""
        return len(set(self.lengths_q)) > 1 or len(set(self.lengths_k)) > 1

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs over all sequences and query heads, masked or not: the size of a problem."""
        return self.heads_q * sum(q * k for q, k in zip(self.lengths_q, self.lengths_k, strict=True))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of q, k, v, o."""
        return getattr(torch, self.dtype)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the inputs beyond q, k, v and a bias, each with a gradient."""
        return ()

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the answers that say what the operation chose, such as blocks of keys; integers."""
        return ()

    def shapes(self) -> Shapes:
        """See `shapes`."""
        raise NotImplementedError

    def edited(self, **changes: object) -> AnyProblem:
        """A copy with other values of attention's fields, or of its own. Raises ValueError where it has no such field
        and the value is another one than its own."""
        return msgspec.structs.replace(self, **changes)


class Problem(AnyProblem, frozen=True, tag_field="op", tag="attention"):
    """One attention problem. `scale` None means dim ** -0.5; `softcap` 0 means none."""

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads_q: int
    heads_kv: int
    dim: int
    dim_v: int
    dtype: Dtype
    layout: Layout = "padded"
    mask: Mask = Full()
    scale: float | None = None
    softcap: float = 0.0
    bias: Bias | None = None
    backward: bool = True

    def __post_init__(self) -> None:
        for name in ("heads_q", "heads_kv", "dim", "dim_v"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
            if getattr(self, name) > MOST:
                raise ValueError(f"{name}: must be at most {MOST}, got {getattr(self, name)}")
        for name in ("lengths_q", "lengths_k"):
            if not getattr(self, name) or min(getattr(self, name)) < 0:
                raise ValueError(f"{name}: needs at least one length, none negative, got {list(getattr(self, name))}")
            if max(getattr(self, name)) > LONGEST:
                raise ValueError(f"{name}: must be at most {LONGEST}, got {max(getattr(self, name))}")
        if len(self.lengths_q) != len(self.lengths_k):
            raise ValueError(
                f"lengths_k: needs {len(self.lengths_q)} lengths as lengths_q has, got {len(self.lengths_k)}"
            )
        if self.heads_q % self.heads_kv:
            raise ValueError(f"heads_kv: must divide heads_q = {self.heads_q}, got {self.heads_kv}")
        if self.scale is not None and not abs(self.scale) <= LARGEST:
            raise ValueError(f"scale: must be finite in float32, got {self.scale}")
        if not 0 <= self.softcap <= LARGEST:
            raise ValueError(f"softcap: must be 0 (none) or positive, finite in float32, got {self.softcap}")

    def shapes(self) -> Shapes:
        """See `shapes`."""
        p = self
        q: tuple[int, ...]
        k: tuple[int, ...]
        if p.layout == "padded":
            q, k, v = (p.batch, p.heads_q, p.len_q, p.dim), (p.batch, p.heads_kv, p.len_k, p.dim), p.dim_v
            lse: tuple[int, ...] = (p.batch, p.heads_q, p.len_q)
        else:
            q, k, v = (sum(p.lengths_q), p.heads_q, p.dim), (sum(p.lengths_k), p.heads_kv, p.dim), p.dim_v
            lse = (p.heads_q, sum(p.lengths_q))
        o = (*q[:-1], v)
        found: Shapes = {"q": q, "k": k, "v": (*k[:-1], v), "o": o, "do": o, "lse": lse}
        found |= {"dq": q, "dk": k, "dv": (*k[:-1], v)}
        if p.bias is not None:
            b = p.bias
            heads = (True, p.heads_kv) if b.kv_heads else (b.heads, p.heads_q)
            full = ((b.batch, p.batch), heads, (b.rows, p.len_q), (b.cols, p.len_k))
            found["bias"] = found["dbias"] = tuple(size if there else 1 for there, size in full)
        return found


def shapes(problem: AnyProblem) -> Shapes:
    """Shape of every tensor by name: q, k, v, o, do, dq, dk, dv and, where the operation has them, lse, a bias and
    dbias, its weights and their gradients, its choices."""
    return problem.shapes()


def sequence_view(problem: AnyProblem, name: str, tensor: Tensor, batch: int) -> Tensor:
    """Sequence `batch` of a tensor in the problem's layout, without padding, as a view.

    name    one of the names of `shapes`, except bias and dbias
    returns (heads, length, dim), or (heads_q, len_q) for lse
    """
    lengths = problem.lengths_k if name in ("k", "v", "dk", "dv") else problem.lengths_q
    length = lengths[batch]
    if problem.layout == "padded":
        return tensor[batch, :, :length]
    start = sum(lengths[:batch])
    if name == "lse":
        return tensor[:, start : start + length]
    return tensor[start : start + length].transpose(0, 1)


def bias_view(problem: Problem, bias: Tensor, batch: int) -> Tensor:
    """The part of a bias (or of its gradient) that sequence `batch` adds to: (heads or 1, len_q or 1, len_k or 1)."""
    assert problem.bias is not None
    part = bias[batch if problem.bias.batch else 0]
    if problem.bias.rows:
        part = part[:, : problem.lengths_q[batch]]
    if problem.bias.cols:
        part = part[:, :, : problem.lengths_k[batch]]
    return part


def bias_by_query(bias: Tensor, heads_q: int) -> Tensor:
    """A bias (…, heads, rows, cols) that broadcasts against (…, heads_q, len_q, len_k): heads of KV heads repeated."""
    heads = bias.shape[-3]
    return bias if heads in (1, heads_q) else bias.repeat_interleave(heads_q // heads, dim=-3)


def mask_tile(
    problem: AnyProblem, batch: int, head: int, rows: tuple[int, int], cols: tuple[int, int], device: torch.device | str
) -> Tensor:
    """The token predicate on a tile: bool (rows, cols) of positions [start, stop) inside sequence `batch`."""
    q = torch.arange(*rows, device=device)[:, None]
    k = torch.arange(*cols, device=device)[None, :]
    lengths = {"len_q": problem.lengths_q[batch], "len_k": problem.lengths_k[batch]}
    return keep(problem.mask, q, k, batch=batch, head=head, group=problem.group, **lengths)


def dense_mask(problem: AnyProblem, device: torch.device | str = "cpu") -> Tensor:
    """The whole predicate, padding excluded: bool (batch or 1, heads_q or 1, len_q, len_k), True = keep.

    An axis is 1 where nothing varies along it. Meant for problems small enough to hold it. A tensor of its own at every
    call: a small one is made on the CPU, once, and copied, where each of its operations would be a launch on a device.
    """
    if problem.batch * problem.heads_q * problem.len_q * problem.len_k <= SMALL_MASK:
        return _small_mask(problem).to(device, copy=True)
    return _made_mask(problem, device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # it is kept, and a reference with gradients may be next
def _small_mask(problem: AnyProblem) -> Tensor:
    return _made_mask(problem, "cpu")


def _made_mask(problem: AnyProblem, device: torch.device | str) -> Tensor:
    heads = problem.heads_q if varies_by_head(problem.mask) else 1
    batch = problem.batch if varies_by_batch(problem.mask) or problem.ragged else 1
    whole = torch.zeros((batch, heads, problem.len_q, problem.len_k), dtype=torch.bool, device=device)
    for b, h in _grid(batch, heads):
        n_q, n_k = problem.lengths_q[b], problem.lengths_k[b]
        whole[b, h, :n_q, :n_k] = mask_tile(problem, b, h, (0, n_q), (0, n_k), device)
    return whole


def cumulative(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Starts of the packed sequences and their total: (0, l0, l0 + l1, …), as cu_seqlens."""
    total = [0]
    for length in lengths:
        total.append(total[-1] + length)
    return tuple(total)


def _grid(batch: int, heads: int) -> Iterator[tuple[int, int]]:
    return ((b, h) for b in range(batch) for h in range(heads))
