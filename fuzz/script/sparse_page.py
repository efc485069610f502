"""The script of a case of native sparse attention: the right answer follows with the selection that the kernel made,
which is looked at by itself."""

from __future__ import annotations

import inspect

import fuzz.script.sparse_formula as formulas
from fuzz.script import inputs, masks
from fuzz.script.page import Page
from fuzz.targets.user_function.source_excerpt import excerpt
from oracles.native_sparse.problem import NativeSparse

FIELDS = ("compress_block_size", "num_selected_blocks", "window_size", "causal", "q_tile")
RUNS = 12

_JUDGE = """\
# The right answer in float64, with the blocks that were chosen, and what rounding alone does.
given = {given}
chosen = {{name: got[name] for name in {choices}}}
wrong = ["the selection"] if wrong_selection(given, chosen, SETTINGS) else []
want = answers(given, chosen, SETTINGS, exactly)
runs = [answers(given, chosen, SETTINGS, rounding) for _ in range({runs})]
for name, x in got.items():
    if name not in chosen and compare(name, x, want[name], [run[name] for run in runs]):
        wrong.append(name)"""


class SparsePage(Page):
    """See Page."""

    def functions(self) -> list[str]:
        """See Page."""
        p = self.p
        assert isinstance(p, NativeSparse)
        found = [self.call.setup] if self.call.setup else []
        found += inputs.helpers(self.case, self.guard)
        if inputs.reads_mask(self.case):
            helpers, self.mask_lines = masks.dense(p)
            found += helpers
        settings = {name: getattr(p, name) for name in FIELDS}
        settings |= {"scale": p.scale_value, "groups": p.num_cmp_selected_blocks, "lengths": list(p.lengths)}
        found.append(f"SETTINGS = {settings | {'packed': p.layout == 'packed'}!r}")
        names = ["rounding", "exactly", "answers", "wrong_selection"]
        found.append(excerpt(_without_constants(inspect.getsource(formulas)), names))
        return ["\n" + text for text in [*found, self.compare()]]

    def judge(self) -> str:
        """See Page."""
        return _JUDGE.format(given=self.by_name(self.names), choices=list(self.p.choices), runs=RUNS)


def _without_constants(source: str) -> str:
    """The module without EPS and FP32, which a script has for its own dtype."""
    return "\n".join(line for line in source.split("\n") if not line.startswith(("EPS =", "FP32 =")))
