"""Device helpers from raw scores to probabilities, and back.

    S = softcap(scale · q·k) + bias where a pair counts, else -inf;  softcap(x) = cap · tanh(x / cap)
    dBias = dS = P ∘ (dP - delta);  d(q·k) = dS · scale, times 1 - tanh² with a softcap

A bias is chosen away, and never added, where a pair does not count: it may be NaN there. A bias of -inf masks.
Differences of scores are taken before they are multiplied by log2(e): a bias near the end of float32's range would
overflow. Rows without keys have maximum -inf, sum 0, O 0 and LSE -inf, which backward takes for +inf.
"""

import triton
import triton.language as tl

from kernels.sdpa.scores import LOG2E


@triton.jit
def hyperbolic_tangent(rX):
    """tanh, exact to about 1e-7 absolute, for any float32."""
    return 1.0 - 2.0 / (tl.exp2(rX * (2 * LOG2E)) + 1.0)


@triton.jit
def soft_capped(rS, scale, softcap, SOFTCAP: tl.constexpr):
    """(scores from q·k, what `raw_gradient` needs of them); softcap is not read without SOFTCAP."""
    rS = rS * scale
    rBent = rS
    if SOFTCAP:
        rBent = hyperbolic_tangent(rS / softcap)
        rS = rBent * softcap
    return rS, rBent


@triton.jit
def raw_gradient(rdS, rBent, SOFTCAP: tl.constexpr):
    """The gradient of scale · q·k from that of S."""
    if SOFTCAP:
        rdS = rdS * (1.0 - rBent * rBent)
    return rdS


@triton.jit
def choose(rS, rBias, rKeep, BIAS: tl.constexpr):
    """Scores with their bias where a pair counts, else -inf."""
    if BIAS:
        rS = rS + rBias
    return tl.where(rKeep, rS, -float("inf"))


@triton.jit
def online_softmax(rS, rMax, rSum):
    """One step of the online softmax (Milakov and Gimelshein, arXiv:1805.02867): probabilities relative to the new
    maximum, the factor by which old sums shrink, the new maximum, the new sum."""
    rMaxNew = tl.maximum(rMax, tl.max(rS, 1))
    rShift = tl.where(rMaxNew == -float("inf"), 0.0, rMaxNew)
    rP = tl.exp2((rS - rShift[:, None]) * LOG2E)
    rShrink = tl.exp2((rMax - rShift) * LOG2E)
    return rP, rShrink, rMaxNew, rSum * rShrink + tl.sum(rP, 1)


@triton.jit
def probabilities(rS, rLSE):
    """exp(S - LSE); rLSE broadcasts against rS and is +inf for rows without keys."""
    return tl.exp2((rS - rLSE) * LOG2E)


@triton.jit
def score_gradient(rP, rdP, rDelta):
    """dS; rDelta broadcasts against the others."""
    return rP * (rdP - rDelta)
