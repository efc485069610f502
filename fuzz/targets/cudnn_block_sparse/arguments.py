"""From a Case to the arguments of cudnn's block-sparse functions: options, lists, sizes; imports nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from fuzz.targets.cudnn_block_sparse.block_lists import SparseBlocks, blocks_of, size_tensor
from fuzz.targets.cudnn_cute.lists import UNUSED, WIDE, index_tensor
from fuzz.targets.options import Options

# default: what the package takes where it is not told. Options whose value changes nothing of a problem are refused.
# Of the emulated GPU: with products=own each warp waits for its own part of a wgmma alone, with exits bulk copies in
# flight when a CTA exits are findings. Both show what would hide everything else.
OPTIONS = Options(
    block=("default", "64", "128"),
    order=("ascending", "descending", "shuffled"),
    counts=("given", "fixed"),
    sizes=("needed", "1", "2", "3"),
    lists=("plain", "wide", "shared"),
    layout=("bhsd", "bshd"),
    splits=(1, 2, 3, "auto"),
    empty=(False, True),
    pack=("default", "off", "on"),
    bucket=(0, 1, 2),
    gradients=("made", "given"),
    products=("together", "own"),
    exits=(False, True),
)


@dataclass(frozen=True)
class Call:
    """One call of the forward function, and of the backward function where there is `do`: tensors as the package takes
    them, keyword arguments of both."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor | None
    forward: dict[str, Any]
    backward: dict[str, Any]
    layout: str


def block_of(case: Case, family: int) -> int:
    """Rows and keys of a block. family: 9 or 10, the GPU's compute capability."""
    named = OPTIONS.of(case)["block"]
    return {9: 64, 10: 128}[family] if named == "default" else int(named)


def packs(case: Case, family: int) -> bool:
    """True if a KV head's query heads share the rows of a query block."""
    p, named = case.problem, OPTIONS.of(case)["pack"]
    able = family == 10 and block_of(case, family) == 128 and 128 % p.group == 0
    return able and named != "off" and (p.group > 1 or named == "on")


def blocks(case: Case, family: int) -> SparseBlocks | None:
    """The case's mask as its lists say it; None where they cannot."""
    return blocks_of(case.problem, block_of(case, family), packs(case, family))


def size_rank(case: Case, family: int) -> int:
    """Axes of the tensor of block sizes; 0 where none is given."""
    named, found = OPTIONS.of(case)["sizes"], blocks(case, family)
    assert found is not None, "the rules let no other case through"
    if named != "needed":
        return int(named)
    whole = bool(((found.keys == block_of(case, family)) | (found.keys == 0)).all())
    return 0 if whole else found.size_rank


def call_of(case: Case, tensors: Tensors, family: int) -> Call:
    """The call of a case on its tensors' device."""
    p, options, found = case.problem, OPTIONS.of(case), blocks(case, family)
    assert found is not None, "the rules let no other case through"
    device, rank, fixed = tensors.q.device, size_rank(case, family), options["counts"] == "fixed"
    width = max(int(found.counts.max()), 1)
    index = index_tensor(found.listed, options["order"], case.inputs.seed, width + WIDE * (options["lists"] == "wide"))
    index = index.to(device)
    if options["lists"] == "wide":  # rows of a larger tensor
        index = torch.cat((index, torch.full_like(index, UNUSED)), -1)[..., : width + WIDE]
    elif options["lists"] == "shared":
        index = index[:, :1].expand(index.shape)
    both: dict[str, Any] = {"q2k_block_index": index}
    if options["block"] != "default":
        both["sparse_block_size"] = int(options["block"])
    if fixed:
        both["block_sparse_num"] = found.fixed
    else:
        both["q2k_block_nums"] = found.counts.to(device)
    if rank:
        both["block_sizes"] = size_tensor(found, rank).to(device)
    if p.scale is not None:
        both["softmax_scale"] = p.scale
    if options["layout"] != "bhsd":
        both["layout"] = options["layout"]
    forward, backward = dict(both), dict(both)
    if options["splits"] != 1:
        forward["kv_splits"] = options["splits"]
    if options["empty"] or int(found.counts.min()) == 0:
        forward["allow_empty_block_nums"] = True
    if options["pack"] != "default":
        forward["pack_gqa"] = options["pack"] == "on"
    if options["bucket"]:
        backward["bucket_size_blocks"] = options["bucket"]
    q, k, v, do = (x if x is None or options["layout"] == "bhsd" else x.transpose(1, 2) for x in _given(case, tensors))
    assert q is not None and k is not None and v is not None
    return Call(q, k, v, do, forward, backward, options["layout"])


def _given(case: Case, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    return tensors.q, tensors.k, tensors.v, tensors.do if case.problem.backward else None


def given_gradients(case: Case, call: Call) -> dict[str, Tensor]:
    """Tensors for the gradients, where the case gives them: of the inputs' shapes, contiguous as the package makes
    them."""
    if OPTIONS.of(case)["gradients"] != "given":
        return {}
    return {f"d{name}_tensor": torch.empty(x.shape, dtype=x.dtype, device=x.device)
            for name, x in (("q", call.q), ("k", call.k), ("v", call.v))}  # fmt: skip
