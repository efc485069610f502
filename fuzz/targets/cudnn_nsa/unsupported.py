"""Cases that cuDNN's selection attention refuses, and those not asked; read from nvidia-cudnn-frontend 1.32.0.

'refuses': it raises, and the harness asks now and then; accepting is a finding. 'cannot': it has no such thing, or this
adapter does not say it.
"""

from __future__ import annotations

from typing import Any

from fuzz.core.case import Case, Storage
from fuzz.core.support import Rule
from fuzz.targets.cudnn_nsa.arguments import OPTIONS, blocks

MOST_HEADS = 16  # query heads of a KV head


def _option(name: str, case: Case) -> Any:
    return OPTIONS.of(case)[name]


def _wrapped(case: Case) -> bool:
    return bool(_option("api", case) == "wrapper")


def _shared_lists(case: Case) -> bool:
    found = blocks(case)
    assert found is not None
    alike = bool((found.listed == found.listed[:, :1]).all())
    return _option("lists", case) == "shared" and (not alike or _option("order", case) == "shuffled")


def _other_ends(case: Case) -> bool:
    found = blocks(case)
    assert found is not None
    return found.cut != (_option("ends", case) == "cut")


def _stores(case: Case) -> tuple[Storage, ...]:
    return case.inputs.q, case.inputs.k, case.inputs.v


def _too_many_heads(case: Case) -> bool:
    return case.problem.group > MOST_HEADS


def raises_early(case: Case) -> bool:
    """True where the package raises before it compiles a kernel."""
    return _too_many_heads(case) or (_wrapped(case) and _option("keys", case) == "none")


RULES: tuple[Rule, ...] = (
    OPTIONS.rule(),
    Rule("no tokens", lambda c: sum(c.problem.lengths_q) == 0),
    Rule("sequences with other numbers of keys than queries", lambda c: c.problem.lengths_q != c.problem.lengths_k),
    Rule(
        "a mask that is no list of blocks for each query and KV head, whole ones or, with causal, up to the query",
        lambda c: blocks(c) is None,
    ),
    Rule("lists with a block that the end cuts, or none, as ends says", _other_ends),
    Rule("later is about causal", lambda c: bool(_option("later", c)) and not _option("causal", c)),
    Rule("sums is about the class", lambda c: _option("sums", c) != "3d" and _wrapped(c)),
    Rule("the class asks for a longest sequence", lambda c: _option("longest", c) == "asked" and not _wrapped(c)),
    Rule("api=reused is about the scale", lambda c: _option("api", c) == "reused" and c.problem.scale is None),
    Rule("lists=shared where heads have different lists", _shared_lists),
    Rule(
        "a head dim that is not contiguous: an assertion when it is compiled (NSA_select_attn_fwd_hmma.py:185)",
        lambda c: any(x.order == "bhds" for x in _stores(c)),
    ),
    Rule(
        "tensors that do not begin at 128 bytes, which its kernels are compiled for (api.py:205)",
        lambda c: any(2 * x.offset % 128 for x in _stores(c)),
        "refuses",
    ),
    Rule("more than 16 query heads for a KV head (api.py:157)", _too_many_heads, "refuses"),
)
