"""Finding: one oracle's complaint, with numbers and a place. A value; every oracle returns a list of them, empty when
all is well."""

from __future__ import annotations

import msgspec


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place where a tensor is wrong. Half-open ranges; None where it does not apply."""

    batch: int | None = None
    head: int | None = None
    rows: tuple[int, int] | None = None
    cols: tuple[int, int] | None = None
    tile: tuple[int, int] | None = None
    pattern: str = ""  # the normalised place: 'first rows', 'last tile', 'one head', 'all' …; part of the signature
    source: str = ""  # 'file.py:12' of the kernel, where it is known; part of the signature


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One oracle's complaint.

    oracle   accuracy, determinism, memory, protocol, coverage, runner …
    kind     wrong, nan, nondeterministic, wrote_outside, changed_input, unproven, accepted, refused, hang, crash,
             out_of_memory …
    tensor   the tensor that it is about, or ''
    message  one line for users
    numbers  what was measured, e.g. {"error": 0.1, "budget": 0.001, "ratio": 100.0}
    """

    oracle: str
    kind: str
    message: str
    tensor: str = ""
    place: Location = Location()
    numbers: dict[str, float] = {}
