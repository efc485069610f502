"""The call of kernels.nsa as lines of a script that needs only `kernels`."""

from __future__ import annotations

from typing import Any

from fuzz.core.case import Case
from fuzz.core.script_call import Text
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import cumulative

# Parameters of the public function, by the field of the problem.
PARAMETERS = {
    "compress_block_size": "compress_block_size",
    "num_selected_blocks": "num_selected_blocks",
    "window_size": "window_size",
    "causal": "causal",
    "q_tile": "q_tile_size",
}
WEIGHTS = {"w_k": "w_k_compress", "w_v": "w_v_compress", "w_gate": "gate_proj_weight"}


def call_text(case: Case, mutant: str, path: str, options: dict[str, Any]) -> Text:
    """Lines that make `answer`, `o` and `chosen`, the lists of the selection by name."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    lines = []
    padded = p.layout == "padded"
    given = [f"{name}.transpose(1, 2)" if padded else name for name in ("q", "k", "v")]
    given += [f"{parameter}={getattr(p, field)!r}" for field, parameter in PARAMETERS.items()]
    given += [f"{WEIGHTS[name]}={name}" for name in p.weights]
    given += [f"softmax_scale={p.scale!r}"] * (p.scale is not None)
    given += [f"num_cmp_selected_blocks={p.num_cmp_selected_blocks}"] * (p.num_cmp_selected_blocks is not None)
    given += ["deterministic=False"] * (not options["deterministic"])
    if not padded:
        lines.append(f"cu = torch.tensor({list(cumulative(p.lengths))}, dtype=torch.int32, device=DEVICE)")
        given += ["cu_seqlens=cu"] + [f"max_seqlen={p.len_q}"] * (options["max_seqlen"] == "given")
    function = f'MUTANTS["{mutant}"]' if mutant else "native_sparse_answer"
    source = "mutants.nsa.table import MUTANTS" if mutant else "nsa import native_sparse_answer"
    lines.append(f"answer = {function}({', '.join(given)})")
    if options["selection"] == "given":
        lines.append(f"answer = {function}({', '.join(given)}, selection=answer.selection)")
    lines.append("o = answer.out.transpose(1, 2)" if padded else "o = answer.out")
    chosen = ", ".join(f'"{name}": answer.selection.{name}' for name in p.choices)
    lines.append(f"chosen = {{{chosen}}}")
    return Text(tuple(lines), ("import sys",), f"{path}\nfrom kernels.{source}  # noqa: E402")
