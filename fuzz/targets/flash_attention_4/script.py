"""What the adapter of flash_attn.cute does, as lines of a script, for masks that its options can say."""

from __future__ import annotations

from typing import Any

from fuzz.core.script_call import Text
from oracles.problem import AnyProblem


def text_of(problem: AnyProblem, options: dict[str, Any], said: dict[str, Any]) -> Text:
    """The call as lines of a script. said: the keyword arguments that say the mask."""
    p = problem
    named: dict[str, Any] = {"softmax_scale": p.scale, "softcap": p.softcap or None, **said}
    named |= {"deterministic": options["deterministic"] or None}
    named |= {"pack_gqa": None if options["pack_gqa"] == "auto" else options["pack_gqa"] == "on"}
    given = [f"{name}={value!r}" for name, value in named.items() if value is not None]
    tensors = ["q", "k", "v"] if p.layout == "packed" else [f"{x}.transpose(1, 2)" for x in ("q", "k", "v")]
    setup, function = "", "flash_attn_func"
    if p.layout == "packed" or p.ragged:
        function = "flash_attn_varlen_func"
        kind = "cu_seqlens" if p.layout == "packed" else "seqused"
        ends = {"q": p.lengths_q, "k": p.lengths_k}
        lines = []
        for name, lengths in ends.items():
            values = [sum(lengths[:i]) for i in range(len(lengths) + 1)] if p.layout == "packed" else list(lengths)
            lines.append(f'{kind}_{name} = torch.tensor({values}, dtype=torch.int32, device="cuda")')
            given.append(f"{kind}_{name}={kind}_{name}")
            if p.layout == "packed":
                given.append(f"max_seqlen_{name}={max(lengths)}")
        setup = "\n".join(lines)
    call = [f"o, lse = {function}({', '.join([*tensors, *given, 'return_lse=True'])})"]
    if p.layout != "packed":
        call.append("o = o.transpose(1, 2)")
    return Text(tuple(call), (f"from flash_attn.cute import {function}",), setup, lse=True)
