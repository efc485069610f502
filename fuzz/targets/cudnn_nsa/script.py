"""Lines of a script for a GPU, which do as the adapter of cudnn.nsa_selection does."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fuzz.core.case import Case
from fuzz.core.script_call import ScriptError, Text
from fuzz.targets.cudnn_nsa.arguments import Call


def text_of(case: Case, call: Call) -> Text:
    """The call as lines of a script. Raises ScriptError for the class, and for lists that lie otherwise in memory."""
    if call.options["api"] != "wrapper" or call.options["lists"] != "plain":
        raise ScriptError(f"{case.target}: a script has api=wrapper and lists=plain alone")
    setup = [
        _tensor("index", call.room if call.options["room"] else call.index) + f"[:{call.index.shape[0]}]",
        _tensor("counts", call.counts),
        _tensor("offsets", call.offsets),
    ]
    given: dict[str, Any] = {}
    if call.longest is not None:
        given |= {"max_s_q": call.longest, "max_s_k": call.longest}
    given |= {"block_size": call.options["block"], "is_causal": call.options["causal"], "scale_softmax": call.scale}
    keys = ", offsets" if call.options["keys"] == "given" else ""
    more = ", ".join(f"{name}={value!r}" for name, value in given.items())
    lines = (
        f"o, sums, maxima = NSA.selection_attention_wrapper(q, k, v, index, counts, offsets{keys}, {more})",
        "lse = (maxima + sums.log())[..., 0].T",
    )
    return Text(lines, ("from cudnn import NSA",), "\n".join(setup), lse=True)


def _tensor(name: str, x: Tensor) -> str:
    return f'{name} = torch.tensor({x.tolist()}, dtype={x.dtype}, device="cuda")'
