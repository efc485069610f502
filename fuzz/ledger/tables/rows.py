"""Rows of the ledger as values: what a session's folder gives, what the database keeps, what JSON Lines carry.

Names stand in full here; write.py gives them numbers. Times are seconds of the epoch, durations seconds.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias

import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Outcome, Signature

# The database keeps the place in this tuple: new ones go to its end.
OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "hang", "crash", "flake", "reject", "missing", "unexpected_pass")
FAILING: frozenset[str] = frozenset({"fail", "flake", "hang", "crash"})
FindingStatus: TypeAlias = Literal["new", "known", "unconfirmed"]
EventKind: TypeAlias = Literal["expect", "unexpect"]


def content_id(value: Any) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine. gpu: name of its first GPU; '': none. cpus: processors that the session could use."""

    host: str = ""
    cpu: str = ""
    cpus: int = 0
    machine: str = ""
    gpu: str = ""


class Revision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A revision of attnfuzz: the commit's full hash and its time. changed: with edits that are not committed."""

    commit: str = ""
    changed: bool = False
    at: float = 0.0


class SessionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session.

    uid        the same wherever its folder lies, and however often it is resumed
    ended      None: it is running, or it was cut off
    night      ISO date that groups sessions: UTC date of the beginning, or what $ATTNFUZZ_NIGHT said
    planned    cases that it is to run
    archs      by target: what its kernels were compiled for ('sm_90a'), or the device where nothing is ('host')
    toolchain  versions by package, with 'python', and 'nvidia-driver' where there is a GPU
    """

    uid: str
    began: float
    night: str
    ended: float | None = None
    device: str = ""
    seed: int = 0
    planned: int = 0
    command: str = ""
    folder: str = ""
    settings: dict[str, Any] = {}
    archs: dict[str, str] = {}
    hardware: Hardware = Hardware()
    toolchain: dict[str, str] = {}
    revision: Revision = Revision()


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of a case. Within a session (target, place) is its identity.

    place      number of the shard * 65536 + place of the case in it; negative: known to older versions by order only
    ratio      largest error / budget over all tensors
    seconds    from drawing the case to its verdict
    signature  id of the Signature (`FindingRow.signature.id`) that the failure was settled as; '': none
    """

    target: str
    place: int
    case_id: str
    outcome: str
    ratio: float = 0.0
    seconds: float = 0.0
    features: tuple[str, ...] = ()
    signature: str = ""


class FindingRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signature in a session: one row however many cases it explains.

    status          'known': a case of the corpus explains it; 'unconfirmed': it did not show again
    outcome         of the case that was saved
    met             cases of the session that it explains
    failed, probed  how often the saved case failed, in how many runs in fresh processes
    case, after     the saved case, minimised if `minimal`, and the cases that have to be run before it
    evidence        Verdict of the failure as it was met, as JSON
    """

    signature: Signature
    status: FindingStatus
    outcome: str
    at: float
    met: int = 0
    failed: int = 0
    probed: int = 0
    minimal: bool = False
    message: str = ""
    note: str = ""
    file: str = ""
    case: Case | None = None
    after: tuple[Case, ...] = ()
    evidence: str = ""


class TallyRow(msgspec.Struct, frozen=True):
    """Cases of a target with one outcome, and the seconds that they took."""

    target: str
    outcome: str
    cases: int
    seconds: float


class TimingRow(msgspec.Struct, frozen=True):
    """Seconds of one phase ('draw', 'inputs', 'run', 'judge', …, 'total') over the cases of a target that had it."""

    target: str
    phase: str
    cases: int
    seconds: float
    p50: float
    p95: float
    most: float


class CoverageRow(msgspec.Struct, frozen=True):
    """Cases that had both features and were run, and those of them that failed. feature == other: of one feature."""

    feature: str
    other: str
    cases: int
    failed: int


class CompileRow(msgspec.Struct, frozen=True):
    """Kernels that a session asked for before its cases: status 'cached', 'built' or 'failed'; seconds of compiling."""

    arch: str
    status: str
    kernels: int
    seconds: float


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of a session. `runs` are those that are new or have changed; the others replace what was there, for the
    session as a whole."""

    session: SessionRow
    runs: tuple[RunRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    tallies: tuple[TallyRow, ...] = ()
    timings: tuple[TimingRow, ...] = ()
    coverage: tuple[CoverageRow, ...] = ()
    compiles: tuple[CompileRow, ...] = ()


class ReplayRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="replay"):
    """Runs of a signature's saved case after its session: `failed` of `runs` failed, on one arch.

    uid        of this row; signature: id of the Signature
    """

    uid: str
    signature: str
    at: float
    arch: str
    failed: int
    runs: int
    hardware: Hardware = Hardware()
    toolchain: dict[str, str] = {}
    revision: Revision = Revision()


class EventRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="event"):
    """A person's statement about a signature.

    kind     'expect': it is known to fail, as `link` explains, on `archs` (empty: on all), until the end of the ISO
             date `until` ('': for good). 'unexpect': takes that back
    """

    uid: str
    signature: str
    at: float
    kind: EventKind
    link: str = ""
    archs: tuple[str, ...] = ()
    until: str = ""
    author: str = ""


class BisectionRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="bisection"):
    """A search for the revision that a signature came with.

    history      'commits' or 'packages'; good, bad: revisions that are known to lack and to have it
    suspects     revisions after the good one
    first        (revision, title) of the first bad one; several where those between them could not be run
    probability  that `first` is right; confident: as probable as was asked for
    failed, runs at the bad revision
    """

    uid: str
    signature: str
    at: float
    history: str
    good: str
    bad: str
    suspects: int
    first: tuple[tuple[str, str], ...]
    probability: float
    confident: bool
    failed: int
    runs: int
    hardware: Hardware = Hardware()
    toolchain: dict[str, str] = {}
    revision: Revision = Revision()


class MeasurementRow(msgspec.Struct, frozen=True, omit_defaults=True, tag="measurement"):
    """A figure over time, as a benchmark's: `series` ('blocksparse forward causal 4096'), the value in `unit`."""

    uid: str
    series: str
    at: float
    value: float
    unit: str
    hardware: Hardware = Hardware()
    toolchain: dict[str, str] = {}
    revision: Revision = Revision()


Single: TypeAlias = ReplayRow | EventRow | BisectionRow | MeasurementRow  # rows that belong to no session
