"""cudnn.block_sparse: the block-sparse attention of cuDNN's front end (CuTe DSL), for sm_90 and sm_100.

`cudnn.BSA` (PyPI nvidia-cudnn-frontend): a forward and an explicit backward function, whose masks are lists of KV
blocks for each query block, and numbers of keys of each block (block_lists.py). Written for 1.32.0. Its kernels are
compiled before they are run, and ahead of a session with `attnfuzz compile`, which needs no GPU. What it refuses is a
table (unsupported.py).
"""

from __future__ import annotations

import os
import subprocess
import zlib
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
from msgspec.structs import replace as replace_struct
from torch import Tensor

from fuzz.compiling import Build, Compiled
from fuzz.core.case import Case, to_json
from fuzz.core.script_call import Text
from fuzz.core.support import Support
from fuzz.core.surface import NotRun, Surface
from fuzz.core.target import Device, Execution, Target, Tensors, Variant
from fuzz.devices.present import cuda_present
from fuzz.targets.cudnn_block_sparse import unsupported
from fuzz.targets.cudnn_block_sparse.arguments import OPTIONS, Call, call_of, given_gradients
from fuzz.targets.cudnn_block_sparse.block_lists import blocks_of
from fuzz.targets.cudnn_block_sparse.package import (
    LAUNCHED,
    backward,
    dry,
    forward,
    on_gpu,
    planned,
    unusable,
)
from fuzz.targets.cudnn_block_sparse.script import text_of
from fuzz.targets.cudnn_block_sparse.surface import BACKWARD, FORWARD
from fuzz.targets.cudnn_cute.host import installed
from fuzz.tensors.arena import build
from oracles.masks import Blocks, Full, Mask, PerBatch, PerHead, varies_by_batch, varies_by_head
from oracles.numerics import TENSOR_CORES, Numerics
from oracles.outputs import Outputs
from oracles.problem import AnyProblem, mask_tile, shapes

RECIPE = "fuzz.targets.cudnn_block_sparse.recipe:kernel"
SOURCES = ("cudnn.block_sparse_attention",)
ARCHS = {9: "sm_90a", 10: "sm_100a"}
DEFAULT_ARCH = "sm_90a"  # what a machine without a GPU draws and compiles for; $ATTNFUZZ_ARCH for the other
SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    ragged_q=False,
    dims=frozenset({64, 96, 128}),
    zero_lengths=False,
    lse=True,
)
# On sm_100 ex2 is a polynomial of degree 3 for a share of the elements.
NUMERICS = {9: TENSOR_CORES, 10: replace(TENSOR_CORES, exp=1e-4)}


class CudnnBlockSparse(Target, Compiled):
    """cudnn.BSA's block_sparse_attention_forward and block_sparse_attention_backward, on a GPU."""

    name = "cudnn.block_sparse"
    device: Device = "cuda"
    summary = "cuDNN front end's block-sparse attention"
    support = SUPPORT
    kernel_names = "kernel_cutlass"
    proof: tuple[str, ...] = ("fwd",)
    pairs_per_second = 1e9

    def __init__(self) -> None:
        self.rules = unsupported.rules(self.family)
        self.numerics = NUMERICS[self.family]

    @property
    def family(self) -> int:
        """9 or 10: the compute capability that its kernels are compiled for."""
        return _family()

    def arch(self) -> str:
        """The arch that its kernels are compiled for on this machine."""
        return ARCHS[self.family]

    def uncompilable(self) -> str | None:
        """See Compiled."""
        return None if installed() else "needs nvidia-cudnn-frontend (pip install nvidia-cudnn-frontend)"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if (why := self.uncompilable()) is not None:
            return why
        if not cuda_present():
            return "needs a CUDA device"
        if _capability()[:2] not in ("9.", "10"):
            return f"this adapter knows its kernels for compute capability 9.0 and 10, not {_capability()}"
        return unusable()

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return FORWARD, BACKWARD

    def with_fewer_kernels(self, problem: AnyProblem) -> AnyProblem:
        """A problem whose mask lists can say, in place of one that was drawn; see Target. One in 16 stays as it is, for
        what is refused."""
        number = zlib.crc32(repr(problem).encode())
        return problem if number % 16 == 0 else _expressible(problem, self.family, number // 16)

    def variants_for(self, problem: AnyProblem) -> tuple[Variant, ...]:
        """See Target: what the problem has a use for."""
        sm_90, p = self.family == 9, problem
        fits = {n: blocks_of(p, int(n)) is not None for n in ("64", "128")}
        sizes = tuple("123"[: 1 if not sm_90 else 2 if p.backward else 3])
        found: list[Variant] = []
        for block in ("default", "128") if sm_90 else ("default",):
            blocks = blocks_of(p, 64 if sm_90 and block == "default" else 128)
            if blocks is None:
                continue
            offered: dict[str, Any] = {
                "order": ("descending", "shuffled"),
                "sizes": tuple(n for n in sizes if int(n) >= blocks.size_rank),
                "lists": ("wide", "shared") if sm_90 else (),
                "layout": ("bshd",),
                "empty": (True,),
                "counts": ("fixed",) if blocks.fixed else (),
                "splits": _splits(int(blocks.counts.min())) if sm_90 else (),
                "pack": ("off", "on")[: 1 if sm_90 else 2] if p.group > 1 else (),
                "bucket": (1, 2) if p.backward else (),
                "gradients": ("given",) if p.backward else (),
            }
            drawn = OPTIONS.draws(**offered)
            found += [one if block == "default" else one | {"block": block} for one in drawn]
        named = [one | {"block": "64"} for one in found[:1] if fits["64"] and sm_90]
        return tuple(found + named) or ({},)

    def numerics_of(self, case: Case) -> Numerics:
        """See Target: splits are put together by their LSEs."""
        return replace(self.numerics, splits=OPTIONS.of(case)["splits"] != 1)

    def may_differ(self, case: Case) -> frozenset[str]:
        """dQ is added to in any order, and the queries of a KV block come in the order in which atomics listed them."""
        return frozenset({"dq", "dk", "dv"})

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """The kernels that a case launches, for `arch`; none where that arch refuses it."""
        family = {name: number for number, name in ARCHS.items()}.get(arch)
        if family is None or any(rule.applies(case) for rule in unsupported.rules(family)):
            return ()
        return _builds(case, arch)

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles every kernel that the case launches."""
        call = call_of(case, tensors, self.family)
        with on_gpu(launches=False):
            dry(call, given_gradients(case, call))

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """Forward and, where asked for, backward."""
        with on_gpu(launches=True):
            return self._run(case, tensors)

    def script_call(self, case: Case) -> Text:
        """See Target: the forward pass."""
        return text_of(case, dry_call(case, self.arch())[0])

    def _run(self, case: Case, tensors: Tensors) -> Execution:
        LAUNCHED.clear()
        call = call_of(case, tensors, self.family)
        try:
            o, lse = forward(call)
        except NotRun:  # of a dry run, which notes the backward pass too
            if call.do is not None:
                lse = torch.empty(shapes(case.problem)["lse"])
                backward(call, torch.empty_like(call.do), lse, given_gradients(case, call))
            raise
        outputs = Outputs(self._turned(call, o), lse)
        if call.do is not None:
            gradients = backward(call, o, lse, given_gradients(case, call))
            outputs = Outputs(outputs.o, lse, *(self._turned(call, x) for x in gradients))
        return Execution(_padded(case.problem, outputs), ", ".join(LAUNCHED))

    @staticmethod
    def _turned(call: Call, x: Tensor) -> Tensor:
        return x if call.layout == "bhsd" else x.transpose(1, 2)


def _splits(least: int) -> tuple[int | str, ...]:
    """Numbers of splits for which no query block has too few blocks."""
    return (*(n for n in (2, 3) if n <= least), *(("auto",) if least else ()))


def dry_call(case: Case, arch: str) -> tuple[Call, dict[str, Tensor]]:
    """The call of a case with tensors of its shapes and strides on the CPU, whatever their numbers, and the tensors
    that it gives for gradients."""
    p = case.problem
    names = ("q", "k", "v", "do") if p.backward else ("q", "k", "v")
    zeros = {name: torch.zeros(shape) for name, shape in shapes(p).items() if name in names}
    call = call_of(case, build(case, "cpu", zeros).tensors(), int(arch[3:-2]))
    return call, given_gradients(case, call)


_known: dict[tuple[str, str, str], Build] = {}  # one build for a kernel, whichever case it was met with first


@lru_cache(maxsize=1 << 12)
def _builds(case: Case, arch: str) -> tuple[Build, ...]:
    """Builds of kernels, equal for equal kernels within a process, so that a plan holds each once."""
    found = []
    for table, key in planned(*dry_call(case, arch), arch):
        if (table, key, arch) not in _known:
            options = {"kernel": table, "key": key, "case": to_json(case, indent=0).replace("\n", "")}
            _known[table, key, arch] = Build.of(RECIPE, options, arch, SOURCES)
        found.append(_known[table, key, arch])
    return tuple(found)


def _expressible(p: AnyProblem, family: int, number: int) -> AnyProblem:
    """The problem with the nearest mask, number of queries, dtype, dims and heads that are supported."""
    block = 64 if family == 9 and number % 2 else 128
    if p.backward:
        dim = 128 if family == 9 or p.dim != 64 else 64
        p = replace_struct(p, dtype="bfloat16", dim=dim, dim_v=dim, heads_kv=p.heads_q)
    elif family == 10:
        p = replace_struct(p, dim_v=p.dim)
    if block == 64:
        p = replace_struct(p, lengths_q=tuple(-(-n // 64) * 64 for n in p.lengths_q))
    if p.mask == Full() or blocks_of(p, block) is not None:
        return p
    return replace_struct(p, mask=_in_blocks(p, block, whole=number // 2 % 2 == 1))


def _in_blocks(p: AnyProblem, block: int, *, whole: bool) -> Mask:
    """The blocks of the problem's mask in which any query sees any key, or every one every key, as a mask of whole
    blocks."""

    def grid(sequence: int, head: int) -> Mask:
        kept = mask_tile(p, sequence, head, (0, p.lengths_q[sequence]), (0, p.lengths_k[sequence]), "cpu")
        past = (0, -kept.shape[1] % block, 0, -kept.shape[0] % block)
        padded = torch.nn.functional.pad(kept, past, value=whole)
        seen = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block)).transpose(1, 2).flatten(2)
        cells = seen.all(2) if whole else seen.any(2)
        return Blocks(block, block, tuple("".join(".F"[cell] for cell in row) for row in cells.tolist()))

    def heads(sequence: int) -> Mask:
        if not varies_by_head(p.mask):
            return grid(sequence, 0)
        return PerHead(tuple(grid(sequence, head) for head in range(p.heads_q)))

    if not varies_by_batch(p.mask) and not p.ragged:
        return heads(0)
    return PerBatch(tuple(heads(sequence) for sequence in range(p.batch)))


def _padded(p: AnyProblem, outputs: Outputs) -> Outputs:
    """What lies past a sequence's keys has gradients 0, which the kernels write where a block holds it and some key."""
    if not p.ragged or outputs.dk is None or outputs.dv is None:
        return outputs
    past = torch.arange(p.len_k)[None, :] >= torch.tensor(p.lengths_k)[:, None]
    past = past[:, None, :, None].to(outputs.dk.device)
    return replace(outputs, dk=outputs.dk.masked_fill(past, 0), dv=outputs.dv.masked_fill(past, 0))


@cache
def _family() -> int:
    named = os.environ.get("ATTNFUZZ_ARCH")
    for family, arch in ARCHS.items():
        if named == arch:
            return family
    if cuda_present():
        return {"9": 9, "10": 10}.get(_capability().partition(".")[0], 9)
    return 9


@cache
def _capability() -> str:
    """Compute capability of the first GPU, asked of the driver's tool, since CUDA must not start here; '' where that
    cannot be said."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return (said.split() or [""])[0]
