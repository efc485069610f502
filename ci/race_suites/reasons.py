"""Why label and findings differ, for kernels whose difference was examined to its cause."""

from __future__ import annotations

from fnmatch import fnmatch

_VOLATILE = (
    "The conflicting accesses are volatile, or one is and the other is atomic. By PTX both are strong: they do not "
    "race, whatever orders them. The view of C++ finds the race."
)
_BLOCK_SCOPE = (
    "A thread of block 1 updates data by an atomic of block scope after block 0 has updated it. It has seen block 0's "
    "flag, but no fence of its own follows: by PTX nothing orders the two, and the scope does not include block 0."
)
REASONS = (  # suite, kernel, label, reason
    ("ScoR, volatile as in PTX", "race_*", True, _VOLATILE),
    ("ScoR, volatile as in PTX", "norace_interwarp-block_fence-atom_hrd-indirect", False, _BLOCK_SCOPE),
)


def reason(suite: str, kernel: str, label: bool) -> str:
    """The reason of a difference; '' where it was not examined."""
    found = (
        why for title, name, labelled, why in REASONS if (title, labelled) == (suite, label) and fnmatch(kernel, name)
    )
    return next(found, "")
