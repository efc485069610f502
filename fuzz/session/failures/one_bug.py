"""Which findings of one session are one bug: what a later one is compared with, and which of them stays."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fuzz.core.signature import explains, look_alike, needs
from fuzz.session.records import Settled


def one_bug(before: Settled, now: Settled) -> bool:
    """True if two findings of a session are one, whichever was settled first. One whose minimising was cut short needs
    perhaps less than it has: it is one with a finding that needs a part of that."""
    one, other = before.signature, now.signature
    if explains(one, other) or explains(other, one):
        return True
    if not now.minimal and set(one.features) <= set(other.features):
        other = replace(other, features=one.features)
    return look_alike(one, other, in_session=True)


def merge(now: Settled, before: Iterable[Settled]) -> Settled:
    """`now`, a new failure, beside what was settled before in the session.

    'again' where it is one with a finding; it joins the others that it is one with to that. But the plainer of two is
    the finding: where `now` is that, it stays 'new', and the others are joined to it.
    """
    alike = [one for one in before if one.status in ("new", "again") and one_bug(one, now)]
    files = tuple(dict.fromkeys(one.finding for one in alike))
    if not alike:
        return now
    if all(_plainer(now, one) for one in alike):
        return replace(now, joins=files)
    return replace(now, status="again", finding=files[0], joins=files[1:])


def _plainer(now: Settled, before: Settled) -> bool:
    """True if `now` makes the better finding: its minimising was not cut short, or it needs fewer options."""
    if now.minimal != before.minimal:
        return now.minimal
    return needs(now.signature) < needs(before.signature)
