"""The data in which a target declares what it takes: Support, and Rules beyond it. `refusal.py` reads them.

Two kinds of "no":
    cannot express   the kernel's interface has no such option; the harness never asks
    refuses          the kernel declares that it raises; the harness asks now and then, and silent acceptance is a
                     finding
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fuzz.core.case import Case
from oracles.masks import Align
from oracles.problem import Dtype, Layout


@dataclass(frozen=True)
class Support:
    """What a target's interface can express. Masks None: any predicate (as a dense or block mask)."""

    dtypes: tuple[Dtype, ...] = ("float16", "bfloat16", "float32")
    layouts: tuple[Layout, ...] = ("padded",)
    masks: frozenset[str] | None = None
    causal_align: Align | None = None  # of causal masks; None: any
    ragged: bool = True
    ragged_q: bool = True  # padded sequences of different numbers of queries
    cross: bool = True  # sequences of fewer or more keys than queries
    bias: bool = False
    bias_grad: bool = False
    bias_kv_heads: bool = False  # a bias per KV head
    bias_dtypes: tuple[Literal["input", "float32"], ...] = ("input", "float32")
    softcap: bool = False
    scale: bool = True
    gqa: bool = True
    dim: tuple[int, int, int] = (1, 256, 1)  # least, most, step
    dims: frozenset[int] | None = None  # of these only
    dim_often: int = 256  # larger ones are drawn about once in 16
    dim_v_differs: bool = True
    zero_lengths: bool = True
    strides: bool = True  # anything but contiguous, aligned tensors
    shared: bool = True  # axes of stride 0, as Tensor.expand makes them
    lse: bool = False
    backward: bool = True
    block_step: int = 1  # what the compressed blocks of native sparse attention are a multiple of, and its tiles
    tile_step: int = 1
    max_pairs: int = 1 << 24

    def takes_dim(self, dim: int) -> bool:
        """True for a head dim, of q and k or of v, that it can have."""
        least, most, step = self.dim
        return least <= dim <= most and dim % step == 0 and (self.dims is None or dim in self.dims)


@dataclass(frozen=True)
class Rule:
    """A declared refusal beyond `support`: when `applies`, the kernel raises (`refuses`) or is not asked (`cannot`)."""

    why: str
    applies: Callable[[Case], bool]
    kind: Literal["cannot", "refuses"] = "cannot"


@dataclass(frozen=True)
class Refusal:
    """Reason why a target does not take a case."""

    kind: Literal["cannot", "refuses"]
    why: str
