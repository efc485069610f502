"""The corpus: one readable JSON file per case, with what is expected of it and why (store.py, replay.py).

An Entry needs neither a generator nor its seeds. Three kinds, by `expect` and `explanation`:
    expect 'pass'                   must pass; anything else fails a run
    expect a failure, explained     known: fails as described, which is no news; passing is, and fails a run
    expect a failure, unexplained   a finding that nobody has looked at: counts as new until `explanation` is written
"""

from __future__ import annotations

import datetime
import platform
import re
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Outcome, Signature
from fuzz.minimize import Minimized

VERSION = 1
ANY_TARGET = "TARGET"  # stands for the target's name in a case that every target should pass


PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl")


class CorpusError(ValueError):
    """A file of the corpus that cannot be read, written or used; one line that names the file and the field."""


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When and where a failure was found, and how often it showed: in `failed` of `probed` runs."""

    date: str = ""
    device: str = ""
    versions: dict[str, str] = {}
    failed: int = 0
    probed: int = 0


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One file of the corpus.

    version      of the format
    expect       'pass', or the outcome that is known
    source       where the case comes from: a report, a publication, a session
    explanation  why it fails, for people; empty: nobody knows yet
    case         what to run; target ANY_TARGET: whatever target is asked about
    after        cases to run before it in the same process, without which it does not fail
    signature    of the failure; none for 'pass'
    found, runs  when and where, and how many runs the reduction took
    name         the file's name; not part of the content
    """

    version: int
    expect: Outcome
    source: str = ""
    explanation: str = ""
    case: Case
    after: tuple[Case, ...] = ()
    signature: Signature | None = None
    found: Found | None = None
    runs: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version: this program reads version {VERSION}, got {self.version}")
        if self.expect == "reject":
            raise ValueError("expect: must be 'pass' or a failure, got 'reject'")
        if self.expect == "pass" and self.signature is not None:
            raise ValueError("signature: a case that must pass has none")
        if self.expect != "pass" and self.signature is None:
            raise ValueError(f"signature: is missing, and expect is '{self.expect}'")

    @property
    def known(self) -> bool:
        """True if it is a failure that somebody has explained."""
        return self.expect != "pass" and bool(self.explanation.strip())

    @classmethod
    def of(cls, minimized: Minimized, *, device: str, source: str = "fuzzing session") -> Entry:
        """The entry of a minimised failure, not yet explained."""
        return cls(
            version=VERSION,
            expect=minimized.verdict.outcome,
            case=minimized.case,
            source=source,
            signature=minimized.signature,
            found=_found(device, minimized.failed, minimized.probed),
            runs=minimized.runs,
        )

    @classmethod
    def as_met(
        cls, case: Case, outcome: Outcome, signature: Signature, *, device: str, after: tuple[Case, ...] = ()
    ) -> Entry:
        """The entry of a failure that was met once, and is not minimised."""
        source = "fuzzing session; not minimised"
        return cls(
            version=VERSION,
            expect=outcome,
            case=case,
            after=after,
            source=source,
            signature=signature,
            found=_found(device, 1, 1),
        )


def file_name(entry: Entry) -> str:
    """`entry.name`, or a name for people that ends with the signature's id: equal findings have equal names."""
    if entry.name:
        return entry.name
    if entry.signature is None:
        return f"{_slug(entry.case.target)}_{entry.case.id}.json"
    s = entry.signature
    words = [s.target, s.kind, *s.tensors[:2], *s.features[:3]]
    return "_".join(filter(None, map(_slug, words)))[:100] + f"_{s.id}.json"


def _slug(text: str) -> str:
    """`text` as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("<", "-lt-").replace(">", "-gt-")).strip("-.")


def _found(device: str, failed: int, probed: int) -> Found:
    """A finding of today, with the versions that are installed."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Found(date=today, device=device, versions=dict(_versions()), failed=failed, probed=probed)


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)
