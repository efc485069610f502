"""Numerics: where an implementation rounds on its way from Q, K, V to its answers. Declared per target, as data.

The error budget of a case comes from a PyTorch run that rounds at the same places, so what is declared here decides how
close an answer has to be. Declare what the kernel's source says, not what makes a failure go away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kept: TypeAlias = Literal["float32", "input"]


@dataclass(frozen=True)
class Numerics:
    """How an implementation rounds; 'input' is the dtype of q, k, v. Products always accumulate in fp32 or better.

    scores       Q K^T, and what is done to it before the softmax: kept in fp32, or rounded to the input dtype
    probs        P before P V and P^T dO
    dscores      dS before dS K and dS^T Q
    sums         dQ, dK, dV between the tiles that add to them ('input': rounded to the input dtype after each tile)
    tile         rows or keys of such a tile, the smallest one in use; only read where sums is 'input'
    scaled       where the scale goes: on the fp32 scores, or on q (rounded to the input dtype) before the product
    """

    scores: Kept = "float32"
    probs: Kept = "input"
    dscores: Kept = "input"
    sums: Kept = "float32"
    tile: int = 32
    scaled: Literal["scores", "q"] = "scores"


FUSED = Numerics()  # flash kernels: scores stay in fp32; P and dS are rounded to the input dtype before their products
EXACT = Numerics(probs="float32", dscores="float32")  # all in fp32, only the results are rounded: torch's math backend
EAGER = Numerics(scores="input")  # every intermediate in the input dtype: flex_attention without torch.compile
CPU_FLASH = Numerics(sums="input")  # torch's flash on a CPU: as FUSED, but its gradients are summed in the input dtype
