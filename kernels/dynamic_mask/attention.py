"""Attention: the operands of one call as a value, and what every launch takes of them."""

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from kernels.dynamic_mask.config import Config, block_d, find_config
from kernels.dynamic_mask.injection import InjectionPoints, find_injection
from kernels.sdpa.launch import INTERPRETED, check_device
from kernels.sdpa.strides import stride_arguments

TRITON_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
CAUSAL = {None: 0, "top_left": 1, "bottom_right": 2}
BYTES = 16


@dataclass(frozen=True)
class Attention:
    """The operands of forward and backward alike.

    query, key, value    (batch, heads, length, dim), or (1, heads, total, dim) in a packed call
    mask                 None, bool, or int32 words; 4-D, each size 1 or full
    bias                 None or 4-D, each size 1 or full
    cu_q, cu_k           int32 (batch + 1) in a packed call, else None
    max_q, max_k         the longest sequences, the padded lengths
    causal               0 none, 1 top left, 2 bottom right
    injection            a mutant's name or ""
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    cu_q: Tensor | None
    cu_k: Tensor | None
    max_q: int
    max_k: int
    causal: int
    scale: float
    softcap: float
    injection: str = ""

    def __post_init__(self) -> None:
        check_device(self.query)

    @property
    def steps(self) -> InjectionPoints:
        return find_injection(self.injection)

    @property
    def packed(self) -> bool:
        return self.cu_q is not None

    @property
    def batches(self) -> int:
        return self.query.shape[0] if self.cu_q is None else self.cu_q.shape[0] - 1

    @property
    def heads_q(self) -> int:
        return self.query.shape[1]

    @property
    def heads_kv(self) -> int:
        return self.key.shape[1]

    @property
    def block(self) -> int:
        return block_d(self.query.shape[3], self.value.shape[3])

    @property
    def config(self) -> Config:
        return find_config(self.block, INTERPRETED)

    @property
    def mask_kind(self) -> str:
        if self.mask is None:
            return "none"
        return "bool" if self.mask.dtype == torch.bool else "bits"

    @property
    def one_row(self) -> bool:
        """Whether every row has the same bias."""
        return self.bias is not None and self.bias.shape[2] == 1

    def aligned(self, *others: Tensor) -> bool:
        """NOTE [aligned] in tiles.py, for a launch that also names `others`."""
        planes = [self.mask] if self.mask_kind == "bool" else []
        planes += [self.bias] if self.bias is not None else []
        return all(map(_aligned, (self.query, self.key, self.value, *others))) and all(
            plane is not None and plane.shape[-1] % BYTES == 0 and plane.shape[-1] == self.max_k and _aligned(plane)
            for plane in planes
        )

    def sizes(self) -> dict[str, Any]:
        """The sequences: kernel arguments of forward.SIZES."""
        unused = self.query
        return {
            "mCuQ": unused if self.cu_q is None else self.cu_q,
            "mCuK": unused if self.cu_k is None else self.cu_k,
            "batches": self.batches,
            "heads_q": self.heads_q,
            "heads_kv": self.heads_kv,
            "len_q": self.max_q,
            "len_k": self.max_k,
            "rows": self.query.shape[2],
            "dim": self.query.shape[3],
            "dim_v": self.value.shape[3],
            "align": int(self.causal == 2),
            "scale": self.scale,
            "softcap": self.softcap or 1.0,
        }

    def planes(self) -> dict[str, Any]:
        """The mask and the bias: kernel arguments of forward.PLANES. A launch without them names the query instead."""
        return {
            **_plane("mask", self.mask, self.query, self.heads_q, self.steps.mask_strides),
            **_plane("bias", self.bias, self.query, self.heads_q, self.steps.bias_strides),
        }

    def named(self, **tensors: Tensor) -> dict[str, Any]:
        """Kernel arguments mX and tX_0 … of each tensor X; in a packed call their batch stride is 0."""
        found: dict[str, Any] = {}
        for name, tensor in tensors.items():
            batch, *others = tensor.stride()
            found |= {f"m{name}": tensor, **stride_arguments(name, (0 if self.packed else batch, *others))}
        return found

    def flags(self, aligned: bool) -> dict[str, Any]:
        """Constants of every kernel that makes scores."""
        return {
            "DTYPE": TRITON_DTYPES[self.query.dtype],
            "MASK": self.mask_kind,
            "ONE_ROW": self.one_row,
            "CAUSAL": self.causal > 0,
            "SOFTCAP": self.softcap > 0,
            "PACKED": self.packed,
            "ALIGNED": aligned,
            "INTERPRETED": INTERPRETED,
            "BLOCK_D": self.block,
        }


def _plane(name: str, plane: Tensor | None, unused: Tensor, heads_q: int, strides_of: Any) -> dict[str, Any]:
    letter = name.capitalize()
    if plane is None:
        return {f"m{letter}": unused, f"{name}_share": 1, **{f"{name}_{axis}": 0 for axis in range(4)}}
    strides = {f"{name}_{axis}": stride for axis, stride in enumerate(strides_of(plane))}
    seen = plane.view(torch.uint8) if plane.dtype == torch.bool else plane
    return {f"m{letter}": seen, f"{name}_share": heads_q // max(plane.shape[1], 1) or 1, **strides}


def _aligned(tensor: Tensor) -> bool:
    """True if rows of the last axis are contiguous, start at multiples of 16 bytes and are multiples of 8 long."""
    sizes, strides = tensor.shape, tensor.stride()
    outer = [stride * tensor.itemsize for size, stride in zip(sizes[:-1], strides[:-1], strict=True) if size > 1]
    contiguous = strides[-1] == 1 and sizes[-1] % 8 == 0
    return contiguous and tensor.data_ptr() % BYTES == 0 and not any(pitch % BYTES for pitch in outer)
