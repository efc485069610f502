"""From a Case to the arguments of cudnn.NSA's selection attention: options, lists, offsets; imports nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.target import Tensors
from fuzz.targets.cudnn_cute.lists import UNUSED, WIDE, index_tensor
from fuzz.targets.cudnn_nsa.block_lists import BLOCKS, SelectedBlocks, lists_of
from fuzz.targets.options import Options
from oracles.problem import AnyProblem, cumulative

# ends, room and exits hide what every other case would show: with ends=whole no list has a block that the end of the
# sequence cuts, unless causal hides the rest; room=True has memory behind the lists, which the kernel reads past their
# end; without exits bulk copies in flight when a CTA exits are no findings.
OPTIONS = Options(
    block=BLOCKS,
    causal=(False, True),
    later=(False, True),
    order=("ascending", "descending", "shuffled"),
    lists=("plain", "wide", "shared"),
    api=("wrapper", "class", "reused"),
    keys=("given", "none"),
    longest=("given", "asked", "larger"),
    offsets=("int32", "int64"),
    sums=("3d", "2d"),
    ends=("whole", "cut"),
    room=(True, False),
    exits=(False, True),
)
MORE = 3  # tokens that longest=larger says beyond the longest sequence


@dataclass(frozen=True)
class Call:
    """One call: tensors as the package takes them, and how it is made.

    index    int32 (total, heads_kv, width), the first rows of `room` where there is more memory behind it
    counts   int32 (total, heads_kv)
    offsets  int32 or int64 (batch + 1)
    longest  max_s_q; None: the package asks the offsets
    scale    of the softmax; None: the package's default
    """

    q: Tensor
    k: Tensor
    v: Tensor
    index: Tensor
    room: Tensor
    counts: Tensor
    offsets: Tensor
    longest: int | None
    scale: float | None
    options: dict[str, Any]


def blocks(case: Case) -> SelectedBlocks | None:
    """The case's mask as its lists say it; None where they cannot."""
    options = OPTIONS.of(case)
    return lists_of(case.problem, int(options["block"]), bool(options["causal"]))


def call_of(case: Case, tensors: Tensors) -> Call:
    """The call of a case on its tensors' device."""
    p, options, found = case.problem, OPTIONS.of(case), blocks(case)
    assert found is not None, "the rules let no other case through"
    listed = found.listed | found.later if options["later"] else found.listed
    device = tensors.q.device
    index, room = _index(p, listed, options, case.inputs.seed, device)
    return Call(
        tensors.q,
        tensors.k,
        tensors.v,
        index,
        room,
        listed.sum(-1, dtype=torch.int32).to(device),
        torch.tensor(cumulative(p.lengths_q), dtype=getattr(torch, options["offsets"]), device=device),
        {"given": p.len_q, "larger": p.len_q + MORE, "asked": None}[options["longest"]],
        p.scale,
        options,
    )


def _index(p: AnyProblem, listed: Tensor, options: dict[str, Any], seed: int, device: Any) -> tuple[Tensor, Tensor]:
    """The lists, and the tensor whose first rows they are: with room one with a row for every CTA of the launch."""
    width = max(int(listed.sum(-1).max()), 1)
    wide = WIDE * (options["lists"] == "wide")
    index = index_tensor(listed, options["order"], seed, width + wide)
    more = p.len_q + MORE if options["room"] else 0
    room = torch.cat((index, index.new_full((more, *index.shape[1:]), UNUSED))).to(device)
    if options["lists"] == "shared":
        room = room[:, :1].expand(room.shape)
    elif options["lists"] == "wide":  # rows of a larger tensor
        room = torch.cat((room, torch.full_like(room, UNUSED)), -1)[..., : width + WIDE]
    return room[: index.shape[0]], room
