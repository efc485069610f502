"""What the adapter of cudnn.block_sparse does, as lines of a script: the forward pass, on a GPU."""

from __future__ import annotations

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.targets.cudnn_block_sparse.arguments import OPTIONS, Call


def text_of(case: Case, call: Call) -> Text:
    """The call as lines of a script. Raises ScriptError for a backward pass, which is no autograd function, and for
    lists that lie otherwise in memory."""
    if case.problem.backward:
        raise ScriptError(f"{case.target}: a script has its forward pass alone: set backward to false")
    if OPTIONS.of(case)["lists"] != "plain":
        raise ScriptError(f"{case.target}: a script has lists=plain alone")
    setup, given = [], []
    for name, value in call.forward.items():
        if isinstance(value, Tensor):
            setup.append(f'{name} = torch.tensor({value.tolist()}, dtype=torch.int32, device="cuda")')
            given.append(f"{name}={name}")
        else:
            given.append(f"{name}={value!r}")
    turned = "" if call.layout == "bhsd" else ".transpose(1, 2)"
    tensors = [f"{x}{turned}" for x in ("q", "k", "v")]
    lines = [f"o, lse = BSA.block_sparse_attention_forward({', '.join([*tensors, *given])})"]
    if turned:
        lines.append(f"o = o{turned}")
    return Text(tuple(lines), ("from cudnn import BSA",), "\n".join(setup), lse=True)
