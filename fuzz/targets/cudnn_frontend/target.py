"""cudnn.sdpa: scaled dot product attention of cuDNN, through its own front end (PyPI nvidia-cudnn-frontend).

Written from the signatures and checks of 1.32.0, and not yet run on a GPU. A forward and a backward graph for each
case; sequences are padded, with the lengths of each where they differ.

What its words leave open, and what its source says:

left bound  "An integer >= 1 specifying the offset to the left of the main diagonal to attend to", without saying
            whether the diagonal counts. Its PyTorch provider (cudnn/torch/sdpa_provider.py) says that bound b masks
            j <= i - b: b keys are seen, the diagonal's among them. So a window of `left` keys has the bound left + 1.
flags       use_causal_mask, use_causal_mask_bottom_right and sliding_window_length are deprecated, and "can cause
            undetermined behavior when combined with the preferred masking args": they are given alone.
no keys     nothing is said about rows without keys; they are asked as everywhere.
"""

from __future__ import annotations

from importlib.util import find_spec

from fuzz.core.case import Case
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Surface
from fuzz.core.target import Device, Execution, Target, Tensors, Variant
from fuzz.targets.autograd import cuda_present
from fuzz.targets.cudnn_frontend.arguments import OPTIONS, by_bias, says, side_inputs, useful
from fuzz.targets.cudnn_frontend.graphs import planned
from fuzz.targets.cudnn_frontend.surface import BACKWARD, FORWARD
from fuzz.targets.options import Value
from oracles.masks import Full
from oracles.numerics import CUDNN
from oracles.outputs import Outputs
from oracles.problem import AnyProblem

SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    bias=True,
    bias_grad=False,
    dim=(8, 128, 8),
    zero_lengths=False,
    strides=False,
    shared=False,
    lse=True,
)


class CudnnFrontend(Target):
    """pygraph.sdpa and pygraph.sdpa_backward."""

    name = "cudnn.sdpa"
    device: Device = "cuda"
    summary = "cuDNN's attention through its own front end (not yet run on a GPU)"
    support = SUPPORT
    numerics = CUDNN
    proof: tuple[str, ...] = ("cudnn sdpa",)
    pairs_per_second = 1e9

    def __init__(self) -> None:
        self.rules = (
            OPTIONS.rule(),
            Rule("options that say nothing of the problem's mask", lambda c: not useful(c.problem, OPTIONS.of(c))),
            Rule("a bias of another dtype than the inputs", _other_bias),
            Rule("bottom right, or a left bound, with more queries than keys and no lengths", _long, "refuses"),
            Rule("a bias with a mask at the bottom right", _bias_and_bottom, "refuses"),
        )

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if find_spec("cudnn") is None:
            return "needs nvidia-cudnn-frontend (pip install nvidia-cudnn-frontend)"
        return None if cuda_present() else "needs a CUDA device"

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return FORWARD, BACKWARD

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target."""
        ways = [how for how in ("flags", "bias") if says(problem, how)]
        offered: dict[str, tuple[Value, ...]] = {"mask": tuple(ways)}
        offered["lengths"] = () if problem.ragged else ("given",)
        offered["ordered"] = (True,) if problem.backward else ()
        return OPTIONS.draws(**offered)

    def may_differ(self, case: Case) -> frozenset[str]:
        """The backward pass adds dQ in any order, unless asked for otherwise."""
        return frozenset() if OPTIONS.of(case)["ordered"] else frozenset({"dq", "dk", "dv"})

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Builds the plans of both graphs. Raises NotImplementedError where cuDNN has no plan."""
        planned(case, tensors.q.device)

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Forward and, where asked for, backward. Raises NotImplementedError where cuDNN has no plan."""
        p = case.problem
        forward, backward = planned(case, tensors.q.device)
        given = {"q": tensors.q, "k": tensors.k, "v": tensors.v, **side_inputs(case, tensors.bias, tensors.q.device)}
        found = forward.run(given)
        outputs = Outputs(found["o"], found["stats"].squeeze(-1))
        if backward is not None:
            assert tensors.do is not None
            gradients = backward.run(given | found | {"dO": tensors.do})
            outputs = Outputs(outputs.o, outputs.lse, *(gradients[name] for name in ("dQ", "dK", "dV")))
        return Execution(outputs, f"cudnn sdpa{' and sdpa_backward' if p.backward else ''}")


def targets() -> list[CudnnFrontend]:
    """The one."""
    return [CudnnFrontend()]


def _other_bias(case: Case) -> bool:
    p = case.problem
    return p.bias is not None and p.bias.dtype == "float32" and p.dtype != "float32"


def _long(case: Case) -> bool:
    p, options = case.problem, OPTIONS.of(case)
    if by_bias(p, options["mask"]) or p.mask == Full() or p.ragged or options["lengths"] == "given":
        return False
    bottom = getattr(p.mask, "align", "") == "bottom_right"
    return (bottom or getattr(p.mask, "left", None) is not None) and p.len_q > p.len_k


def _bias_and_bottom(case: Case) -> bool:
    p = case.problem
    bottom = getattr(p.mask, "align", "") == "bottom_right"
    return bottom and p.bias is not None and not by_bias(p, OPTIONS.of(case)["mask"])
