"""Proof from a kernel's text that a barrier of a warp's lanes behind a wait for products orders nothing.

A wgmma.wait_group is executed by all lanes of a warp at once, and each of them waits for the warp's products. A
bar.warp.sync behind it orders nothing where, on every way that leads to it, with nothing but registers in between, such
a wait comes just before, and where since the lanes last met at a barrier that orders memory (bar.warp.sync, or bar.sync
of any number, at which all lanes of a warp arrive) nothing has accessed memory but products and arrivals of the warp at
barriers: a product is of all lanes at once, and the lane that goes on has waited for it itself.
"""

from __future__ import annotations

import re

from fuzz.score.ptx_mutants.register_flow import whole_flow

_LANES_MEET = re.compile(r"\s*(bar\.warp\.sync\s+-1;|bar\.sync\s+(%r\d+|\d+)(, \d+)?;)")
_WAIT = re.compile(r"\s*wgmma\.wait_group\.sync\.aligned\s+\d+;")
_PRODUCTS = re.compile(r"\s*wgmma\.(fence|mma_async|commit_group|wait_group)\.\S*")
_ARRIVES = re.compile(r"\s*bar\.arrive\s+(%r\d+|\d+), \d+;")
_ON_REGISTERS = re.compile(
    r"\s*(@!?%p\d+ )?(setp|selp|mov|add|sub|and|or|xor|not|neg|shl|shr|mul|mad|fma|min|max|ex2|cvt|cvta|mapa|bra)\b"
    r"|\s*ld\.param\."
)
_NOTHING = re.compile(r"\s*($|//|\.|[{}]|\$\w+:)")


def barrier_after_products_is_idle(text: str, number: int) -> bool:
    """True where the bar.warp.sync in line `number` (counted from 1) of a kernel's PTX orders nothing, as all lanes
    have waited for products, see above; False where that is not known."""
    flow = whole_flow(text)
    if flow is None:
        return False
    waits, meetings = ({i for i, line in enumerate(flow.lines) if one.match(line)} for one in (_WAIT, _LANES_MEET))
    behind, since = flow.since(waits, number - 1), flow.since(meetings - {number - 1}, number - 1)
    if -1 in behind | since or not behind < since or number - 1 in since:
        return False
    on_registers, others = (_ON_REGISTERS, _NOTHING), (_PRODUCTS, _ARRIVES)
    return all(any(one.match(flow.lines[i]) for one in on_registers) for i in behind) and all(
        any(one.match(flow.lines[i]) for one in (*on_registers, *others)) for i in since
    )
