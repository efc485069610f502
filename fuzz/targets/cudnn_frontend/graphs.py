"""The graphs of a case: built, planned and run by cuDNN."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.targets.cudnn_frontend.arguments import OPTIONS, band_of, by_bias, empty_bias, flags_of, side_inputs
from fuzz.targets.cudnn_frontend.surface import BACKWARD, FORWARD


class Plan:
    """A graph with its plan, and the shapes and dtypes of its outputs."""

    def __init__(
        self, graph: Any, outputs: dict[str, tuple[Any, tuple[int, ...], torch.dtype]], device: torch.device
    ) -> None:
        import cudnn

        self.graph, self.outputs, self.device = graph, outputs, device
        for name, (tensor, shape, dtype) in outputs.items():
            tensor.set_output(True).set_dim(list(shape)).set_stride(list(_strides(shape))).set_name(name)
            tensor.set_data_type(_data_type(dtype))
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except cudnn.cudnnGraphNotSupportedError as error:
            raise NotImplementedError(str(error)) from error

    def run(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name. given: the inputs by name, and more."""
        import cudnn

        made = {name: torch.empty(x, dtype=dtype, device=self.device) for name, (_, x, dtype) in self.outputs.items()}
        handle = _handle(self.device)
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(self.device).cuda_stream)
        workspace = torch.empty(max(self.graph.get_workspace_size(), 1), dtype=torch.uint8, device=self.device)
        names = {tensor.get_name() for tensor in self.graph.get_inputs()}
        pack = {name: x for name, x in given.items() if name in names} | made
        self.graph.execute(pack, workspace, handle=handle)
        return made


@functools.lru_cache(maxsize=1)
def planned(case: Case, device: torch.device) -> tuple[Plan, Plan | None]:
    """The graphs of a case, once for all its repeats."""
    p, options = case.problem, OPTIONS.of(case)
    io = p.torch_dtype
    stats = (p.batch, p.heads_q, p.len_q, 1)
    o = (p.batch, p.heads_q, p.len_q, p.dim_v)
    shape = {"q": (p.batch, p.heads_q, p.len_q, p.dim), "k": (p.batch, p.heads_kv, p.len_k, p.dim)}
    shape["v"] = (*shape["k"][:3], p.dim_v)

    node, inputs = _new_graph(device, io, {name: shape[name] for name in ("q", "k", "v")})
    made_backward: Any = None
    if p.backward:
        other, tensors = _new_graph(device, io, {n: shape.get(n, o) for n in ("q", "k", "v", "o", "dO")})
        tensors["stats"] = _tensor(other, "stats", stats, torch.float32)
        ordered = {"use_deterministic_algorithm": True} if options["ordered"] else {}
        made_backward = BACKWARD.call(other.sdpa_backward, **tensors, **_options(other, case), **ordered)
    made = FORWARD.call(node.sdpa, **inputs, **_options(node, case), generate_stats=True)
    forward = Plan(node, {"o": (made[0], o, io), "stats": (made[1], stats, torch.float32)}, device)
    if made_backward is None:
        return forward, None
    gradients = zip(("dQ", "dK", "dV"), made_backward, ("q", "k", "v"), strict=True)
    return forward, Plan(other, {name: (x, shape[of], io) for name, x, of in gradients}, device)


def _options(graph: Any, case: Case) -> dict[str, Any]:
    """Options of the problem that both graphs take beside their tensors."""
    p, options = case.problem, OPTIONS.of(case)
    found: dict[str, Any] = {"attn_scale": p.scale_value}
    for name, x in side_inputs(case, empty_bias(p), torch.device("cpu")).items():
        found[name] = _tensor(graph, name, tuple(x.shape), x.dtype)
    if "seq_len_q" in found:
        found["use_padding_mask"] = True
    if by_bias(p, options["mask"]):
        return found
    return found | (flags_of(p) if options["mask"] == "flags" else band_of(p))


def _graph(device: torch.device, io: torch.dtype) -> Any:
    import cudnn

    wide = cudnn.data_type.FLOAT
    handle = _handle(device) if device.type == "cuda" else None
    return cudnn.pygraph(
        handle=handle, io_data_type=_data_type(io), intermediate_data_type=wide, compute_data_type=wide
    )


def _new_graph(device: torch.device, io: torch.dtype, inputs: dict[str, tuple[int, ...]]) -> tuple[Any, dict[str, Any]]:
    """A graph with its inputs, by name."""
    graph = _graph(device, io)
    return graph, {name: _tensor(graph, name, shape, io) for name, shape in inputs.items()}


def _tensor(graph: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return graph.tensor(name=name, dim=list(shape), stride=list(_strides(shape)), data_type=_data_type(dtype))


def _data_type(dtype: torch.dtype) -> Any:
    from cudnn import data_type

    names = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT", torch.int32: "INT32"}
    return getattr(data_type, names[dtype])


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@functools.cache
def _handle(device: torch.device) -> Any:
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()
