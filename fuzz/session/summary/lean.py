"""Records as the end of a session needs them: 97,000 of them take 115 MB of memory, 735 as they are read.

Names, features and calls are the same in thousands of records, and are kept once. Of the seconds by phase the table
adds up two. A failure's verdict, and the cases before it, are for looking into it, which is done with the first few of
each cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from fuzz.core.signature import cause
from fuzz.session.records import MOST, Record

SECONDS = ("total", "draw")  # phases that the table by target adds up

T = TypeVar("T", bound=Hashable)


class Lean:
    """Makes records lean, and keeps what they have in common."""

    def __init__(self) -> None:
        self._shared: dict[Any, Any] = {}
        self._failures: Counter[str] = Counter()

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records, each with what the end of a session reads of it."""
        return map(self._lean, records)

    def _lean(self, record: Record) -> Record:
        lean = replace(
            record,
            worker=self._once(record.worker),
            shard=self._once(record.shard),
            target=self._once(record.target),
            outcome=self._once(record.outcome),
            reason=self._once(record.reason),
            features=self._once(tuple(map(self._once, record.features))),
            calls=self._once(tuple(map(self._once, record.calls))),
            seconds={name: record.seconds[name] for name in SECONDS if name in record.seconds},
        )
        if record.signature is None or record.status == "":
            return lean
        key = cause(record.signature).id
        self._failures[key] += 1
        return lean if self._failures[key] <= MOST else replace(lean, verdict=None, before=())

    def _once(self, value: T) -> T:
        """The first value that was equal to this one."""
        return self._shared.setdefault(value, value)
