"""From tensors to launches: which kernel, which grid, which layout; a launch can be run, or only compiled.

A launch reads its tensors in one of two layouts, chosen by `fits_descriptors` and by nothing else: tensor descriptors
(on Hopper the tensor memory accelerator moves whole tiles), or pointers with every stride explicit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.sdpa.backward import dkdv_kernel, dq_kernel
from kernels.sdpa.bias_gradient import dbias_kernel
from kernels.sdpa.config import Tiles, block_d, find_config
from kernels.sdpa.forward import forward_kernel
from kernels.sdpa.row_state import ROW_TILE, row_state_kernel
from kernels.sdpa.seams import find_seams

INTERPRETED = isinstance(forward_kernel, InterpretedFunction)

_TRITON_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
_SMALLEST_FOLDED_SCALE = 1e-20


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `runtime` arguments never cause a compilation, apart from their dtypes; `constants` do."""

    kernel: Any
    programs: int
    runtime: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, int]

    def run(self) -> None:
        if self.programs > 0:
            self.kernel[(self.programs,)](**self.runtime, **self.constants, **self.options)

    def compile(self) -> None:
        """Compiles and loads what `run` would launch, and launches nothing."""
        if self.programs > 0:
            built = self.kernel.warmup(grid=(self.programs,), **self.runtime, **self.constants, **self.options)
            if hasattr(built, "_init_handles"):
                built._init_handles()

    @property
    def compile_key(self) -> tuple:
        """What decides whether two launches share one compiled kernel."""
        types = [(name, _type_key(value)) for name, value in self.runtime.items()]
        constants = [(name, getattr(value, "__name__", str(value))) for name, value in self.constants.items()]
        return (self.kernel.__name__, *types, *constants, *self.options.items())


def _type_key(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        return f"descriptor {value.base.dtype} {tuple(value.block_shape)}"
    if isinstance(value, torch.Tensor):
        return f"pointer {value.dtype}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_type_key, value))})"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return type(value).__name__


def fits_descriptors(*tensors: torch.Tensor) -> bool:
    """Whether descriptors can name all of these: nothing empty, rows contiguous, base and strides in 16 bytes."""
    return all(_fits_descriptor(tensor) for tensor in tensors)


def _fits_descriptor(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0 or tensor.data_ptr() % 16 or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return False
    return all(
        0 < stride * tensor.itemsize < 2**40 and stride * tensor.itemsize % 16 == 0 for stride in _pitches(tensor)
    )


def _pitches(tensor: torch.Tensor) -> list[int]:
    """Strides of all dimensions but the last; where a size is 1 the stride means nothing, and a valid one is put in."""
    aligned = 16 // tensor.itemsize * triton.cdiv(tensor.shape[-1], 16 // tensor.itemsize)
    return [
        aligned if size == 1 else stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    ]


def _operands(tiles: dict[str, tuple[torch.Tensor, int]], block: int, descriptor: bool) -> dict[str, Any]:
    """Kernel arguments `mX` and `tX` for each name X: (tensor, rows of its tile)."""
    arguments: dict[str, Any] = {}
    for name, (tensor, rows) in tiles.items():
        if descriptor:
            arguments[f"m{name}"] = TensorDescriptor(
                tensor, list(tensor.shape), [*_pitches(tensor), 1], [1, 1, rows, block]
            )
        else:
            arguments[f"m{name}"] = tensor
        arguments[f"t{name}"] = tuple(tensor.stride())
    return arguments


def _mask_operand(mask: torch.Tensor | None, query: torch.Tensor) -> tuple[str, dict[str, Any]]:
    """(MASK, arguments mMask and tMask); a broadcast dimension has stride 0."""
    if mask is None:
        return "none", {"mMask": query, "tMask": (0, 0, 0, 0)}
    strides = tuple(0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True))
    if mask.dtype == torch.bool:
        return "bool", {"mMask": mask.view(torch.uint8), "tMask": strides}
    return "float", {"mMask": mask, "tMask": strides}


def empty_row_state(query: torch.Tensor) -> torch.Tensor:
    """Uninitialised scratch of backward, see NOTE [row state] in row_state.py."""
    batches, heads_q, len_q, _ = query.shape
    tile = ROW_TILE.value
    rows = (len_q + tile - 1) // tile * tile
    return torch.empty((2, batches * heads_q, rows), dtype=torch.float32, device=query.device)


def _state_operand(state: torch.Tensor, rows: int, descriptor: bool) -> Any:
    if descriptor:
        return TensorDescriptor(state, list(state.shape), list(state.stride()), [1, 1, rows])
    return state


def _sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, int]:
    batches, heads_q, len_q, dim = query.shape
    _, heads_kv, len_k, dim_v = value.shape
    sizes = {"batches": batches, "heads_q": heads_q, "heads_kv": heads_kv, "len_q": len_q, "len_k": len_k}
    return {**sizes, "dim": dim, "dim_v": dim_v}


def _constants(query: torch.Tensor, block: int, tiles: Tiles, descriptor: bool) -> dict[str, Any]:
    return {
        "DTYPE": _TRITON_DTYPES[query.dtype],
        "DESCRIPTOR": descriptor,
        "INTERPRETED": INTERPRETED,
        "TILE_M": tiles.tile_m,
        "TILE_N": tiles.tile_n,
        "BLOCK_D": block,
    }


def _folds(mask_kind: str, scale: float) -> bool:
    """See NOTE [score units] in scores.py."""
    return mask_kind != "float" and scale > _SMALLEST_FOLDED_SCALE


def _options(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}


def forward_launches(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    seams: str,
) -> list[Launch]:
    """The forward kernel, writing out and lse. All tensors 4-D, lse (batch, heads_q, len_q) contiguous."""
    _require_device(query)
    steps = find_seams(seams)
    block = block_d(query.shape[-1], value.shape[-1])
    tiles = find_config(block, query.itemsize, INTERPRETED).forward
    descriptor = fits_descriptors(query, key, value, out)
    mask_kind, mask_operand = _mask_operand(mask, query)
    m, n = tiles.tile_m, tiles.tile_n
    operands = _operands({"Q": (query, m), "K": (key, n), "V": (value, n), "O": (out, m)}, block, descriptor)
    launch = Launch(
        forward_kernel,
        triton.cdiv(query.shape[2], m) * query.shape[0] * query.shape[1],
        {**operands, **mask_operand, "mLSE": lse, **_sizes(query, key, value), "scale": scale},
        {
            **_constants(query, block, tiles, descriptor),
            "MASK": mask_kind,
            "CAUSAL": is_causal,
            "FOLD": _folds(mask_kind, scale),
            "store_row_statistics": steps.store_row_statistics,
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
            "mask_causal": steps.mask_causal_forward,
        },
        _options(tiles),
    )
    return [launch]


def backward_launches(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    state: torch.Tensor,
    grads: Sequence[torch.Tensor],
    seams: str,
) -> list[Launch]:
    """The row state, then dK and dV, then dQ; grads are (dQ, dK, dV), state is `empty_row_state` of query."""
    _require_device(query)
    steps = find_seams(seams)
    dq, dk, dv = grads
    block = block_d(query.shape[-1], value.shape[-1])
    config = find_config(block, query.itemsize, INTERPRETED)
    mask_kind, mask_operand = _mask_operand(mask, query)
    sizes = _sizes(query, key, value)
    flags = {"MASK": mask_kind, "CAUSAL": is_causal, "FOLD": _folds(mask_kind, scale)}
    batch_heads = query.shape[0] * query.shape[1]

    rows = config.dq.tile_m
    descriptor = fits_descriptors(out, grad_out)
    state_launch = Launch(
        row_state_kernel,
        state.shape[2] // rows * batch_heads,
        {
            **_operands({"O": (out, rows), "dO": (grad_out, rows)}, block, descriptor),
            "mLSE": lse,
            "mState": state,
            "mdLSE": lse if grad_lse is None else grad_lse,
            "tdLSE": (0, 0, 0) if grad_lse is None else tuple(grad_lse.stride()),
            **{name: sizes[name] for name in ("batches", "heads_q", "len_q", "dim_v")},
        },
        {
            "HAS_DLSE": grad_lse is not None,
            "DESCRIPTOR": descriptor,
            "INTERPRETED": INTERPRETED,
            "TILE_M": rows,
            "BLOCK_D": block,
        },
        {"num_warps": config.dq.warps},
    )

    def reading(tiles: Tiles, **written: tuple[torch.Tensor, int]) -> tuple[dict[str, Any], bool]:
        m, n = tiles.tile_m, tiles.tile_n
        named = {"Q": (query, m), "K": (key, n), "V": (value, n), "dO": (grad_out, m), **written}
        fits = fits_descriptors(state, *(tensor for tensor, _ in named.values()))
        operands = {**_operands(named, block, fits), **mask_operand, "mState": _state_operand(state, m, fits)}
        return {**operands, **sizes, "scale": scale}, fits

    runtime, descriptor = reading(config.dkdv, dK=(dk, config.dkdv.tile_n), dV=(dv, config.dkdv.tile_n))
    dkdv_launch = Launch(
        dkdv_kernel,
        triton.cdiv(key.shape[2], config.dkdv.tile_n) * key.shape[0] * key.shape[1],
        runtime,
        {**_constants(query, block, config.dkdv, descriptor), **flags, "mask_causal": steps.mask_causal_backward},
        _options(config.dkdv),
    )
    runtime, descriptor = reading(config.dq, dQ=(dq, config.dq.tile_m))
    dq_launch = Launch(
        dq_kernel,
        triton.cdiv(query.shape[2], config.dq.tile_m) * batch_heads,
        runtime,
        {
            **_constants(query, block, config.dq, descriptor),
            **flags,
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
            "mask_causal": steps.mask_causal_backward,
            "finish_dq": steps.finish_dq,
        },
        _options(config.dq),
    )
    return [state_launch, dkdv_launch, dq_launch]


def bias_gradient_launches(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    state: torch.Tensor,
    grad_bias: torch.Tensor,
    seams: str,
) -> list[Launch]:
    """The gradient of a float mask into grad_bias (the mask's own 4-D shape, contiguous)."""
    _require_device(query)
    steps = find_seams(seams)
    block = block_d(query.shape[-1], value.shape[-1])
    tiles = find_config(block, query.itemsize, INTERPRETED).dbias
    descriptor = fits_descriptors(state, query, key, value, grad_out)
    m, n = tiles.tile_m, tiles.tile_n
    operands = _operands({"Q": (query, m), "K": (key, n), "V": (value, n), "dO": (grad_out, m)}, block, descriptor)
    names = ("mask_batches", "mask_heads", "mask_rows", "mask_columns")
    launch = Launch(
        dbias_kernel,
        triton.cdiv(bias.shape[2], m) * triton.cdiv(bias.shape[3], n) * bias.shape[0] * bias.shape[1],
        {
            **operands,
            **_mask_operand(bias, query)[1],
            "mState": _state_operand(state, m, descriptor),
            "mdMask": grad_bias,
            **_sizes(query, key, value),
            **dict(zip(names, bias.shape, strict=True)),
            "scale": scale,
        },
        {
            **_constants(query, block, tiles, descriptor),
            "MASK_DTYPE": _TRITON_DTYPES[bias.dtype],
            "BROADCAST_ROWS": bias.shape[2] == 1,
            "BROADCAST_COLUMNS": bias.shape[3] == 1,
            "kv_head_of": steps.kv_head_of,
            "mask_tail_keys": steps.mask_tail_keys,
        },
        _options(tiles),
    )
    return [launch]


def _require_device(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cpu" and not INTERPRETED:
        raise RuntimeError(
            "kernels.sdpa: got CPU tensors, but Triton compiles for a GPU here; set TRITON_INTERPRET=1 in the "
            "environment before triton is imported to run on a CPU"
        )
