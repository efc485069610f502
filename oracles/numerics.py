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
    """Rounding of an implementation; 'input' is the dtype of q, k, v. Products always accumulate in fp32 or better.

    scores       Q K^T, and what is done to it before the softmax: kept in fp32, or rounded to the input dtype
    scaled       where the scale goes: on the fp32 scores, on q (rounded to the input dtype) before the product, its
                 root on both q and k (in fp32: a rounding of k that all the rows of queries share), or with log2(e)
                 on k, kept as `folded` says
    rescored     'k': the backward pass works its scores out from a k that scale * log2(e) is folded into, wherever the
                 forward pass has the scale; '': as the forward pass does
    folded       k times scale * log2(e), where there is one: in fp32, or rounded to the input dtype; dQ is made of it
    probs        P before P V and P^T dO
    dscores      dS before dS K and dS^T Q
    weights      P in dS = P * (dP - delta): in fp32, or as rounded for P V
    dscaled      where the scale of dQ and dK goes: on their sums, or on dS before it is rounded
    delta        O in delta = sum(O * dO): as stored ('input'), or not needed because P dP is summed in fp32 ('float32')
    heads        dK, dV of the query heads that share a KV head, before they are summed
    dbias        dS before it is summed over the axes along which the bias is broadcast: in fp32, or in the bias's dtype
    sums         dQ, dK, dV between the tiles that add to them ('input': rounded to the input dtype after each tile)
    tile         rows of such a tile, the smallest one in use; only read where sums is 'input' or renormalised 'tiles'
    renormalised O is normalised by its LSE, not by a sum (''): 'end' once, times exp(max - LSE); 'tiles' with each tile
                 of keys, by the LSE so far, before P is rounded. O of more than one key is no exact sum
    splits       keys are split between CTAs whose O are put together by their LSEs, logarithms: O of more than one
                 key is no exact sum
    merged       keys are in two calls, the even blocks of so many keys in one, the odd ones in the other, whose O are
                 put together by their LSEs: O, dO and dQ of each are rounded to the input dtype; 0: one call
    exp          relative error of the exponential (ex2.approx: 2^-22; a polynomial may be worse)
    tanh         absolute error of the softcap's tanh (tanh.approx.f32: about 2^-10.9)
    dot          relative error of one step of an fp32 sum of half precision products (2^-24; tensor cores that cut
                 instead of rounding: 2^-22). Sums of fp32 products are taken to round
    """

    scores: Kept = "float32"
    scaled: Literal["scores", "q", "both", "k"] = "scores"
    rescored: Literal["", "k"] = ""
    folded: Kept = "input"
    probs: Kept = "input"
    dscores: Kept = "input"
    weights: Kept = "float32"
    dscaled: Literal["sums", "dscores"] = "sums"
    delta: Kept = "input"
    heads: Kept = "float32"
    dbias: Kept = "input"
    sums: Kept = "float32"
    tile: int = 32
    renormalised: Literal["", "end", "tiles"] = ""
    splits: bool = False
    merged: int = 0
    exp: float = 2.0**-22
    tanh: float = 2.0**-22
    dot: float = 2.0**-24

    @property
    def scales_q_of_dk(self) -> bool:
        """True if dK is made of the q that the scale is on; not where the backward pass has the scale on k or dS."""
        return self.scaled == "q" and self.rescored != "k" and self.dscaled == "sums"

    @property
    def folds_k(self) -> bool:
        """True if scale * log2(e) is folded into k anywhere."""
        return "k" in (self.scaled, self.rescored)


# Flash kernels: scores stay in fp32; P and dS are rounded to the input dtype before their products.
FUSED = Numerics()
# The same on an NVIDIA GPU: wgmma and mma cut the low bits of their fp32 sums. On an H200 a sum of fp16 products of one
# sign falls short by 1.05 * 2^-24 of itself with every 16 terms (ci/results/tensor_core_sums_h200.json).
TENSOR_CORES = Numerics(dot=2.0**-22)
# All in fp32, only the results are rounded: torch's math backend, which scales q and k each by the root of the scale.
EXACT = Numerics(scaled="both", probs="float32", dscores="float32", delta="float32")
# flex_attention without torch.compile: fused's roundings, dK and dV per query head.
FLEX_EAGER = Numerics(heads="input")
# Every intermediate in the input dtype: a plain matmul-softmax-matmul.
EAGER = Numerics(scores="input", heads="input")
# torch's flash on a CPU: as fused, but its gradients are summed in the input dtype.
CPU_FLASH = Numerics(sums="input", heads="input")
# FlashAttention 2, torch's flash on CUDA: dK and dV per query head (dk_expanded), few queries split their keys.
FLASH_2 = Numerics(heads="input", splits=True)
# torch's memory-efficient kernel (xFormers): P comes back from shared memory; accum * scale, then to the input dtype
EFFICIENT = Numerics(weights="input", dscaled="dscores")
# cuDNN's graph multiplies dS by the scale before the last two products; dK and dV per query head (dK_fullhead).
CUDNN = Numerics(dscaled="dscores", heads="input")
