"""Options of an adapter: the ways in which it can make one and the same call, which a case's variant chooses from.

A variant holds only what is not the default, so a case without one is the plainest call. Sessions draw each way alone
and each two together (`draws`); what a problem has no use for is not offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeAlias

from fuzz.core.case import Case
from fuzz.core.support import Rule
from fuzz.core.target import Variant

Value: TypeAlias = str | int | bool


class Options:
    """The options by name, each with its values, the default first."""

    def __init__(self, **values: tuple[Value, ...]) -> None:
        self.values: Mapping[str, tuple[Value, ...]] = values

    @property
    def defaults(self) -> dict[str, Any]:
        """The plainest call."""
        return {name: known[0] for name, known in self.values.items()}

    def of(self, case: Case) -> dict[str, Any]:
        """All options of a case, with the defaults."""
        return self.defaults | case.variant

    def rule(self) -> Rule:
        """Refusal of an option, or a value, that is not known."""
        known = ", ".join(f"{name} ({', '.join(map(str, values))})" for name, values in self.values.items())
        return Rule(f"options other than {known}", self._unknown)

    def draws(self, **offered: tuple[Value, ...]) -> tuple[Variant, ...]:
        """Choices that a session draws a case's variant from: the plain call in two of five cases, else one or two
        of the values offered, which are not defaults, of different options."""
        singles = [{name: value} for name, values in offered.items() for value in values]
        pairs = [one | other for one, other in combinations(singles, 2) if not one.keys() & other.keys()]
        ways: list[Variant] = [*singles, *singles, *pairs]
        return ({},) * max(1, 2 * len(ways) // 3) + tuple(ways)

    def _unknown(self, case: Case) -> bool:
        return any(value not in self.values.get(name, ()) for name, value in case.variant.items())
