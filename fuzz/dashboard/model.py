"""The site's contents as values: each struct below is a file of site/data/, or a part of one. Pages show nothing else.

Times are ISO 8601 in UTC, durations seconds, shares numbers from 0 to 1. docs/reference/site_data.md is generated from
the docstrings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fuzz.ledger.life import State


class Change(msgspec.Struct, frozen=True):
    """A difference of the environment between two sessions in a row on the same host and device.

    name           'revision' (of attnfuzz), 'gpu', 'nvidia-driver', or a package
    before, after  versions; '' where there was none
    where          hosts with their devices: 'b200-1 (cuda)'
    """

    name: str
    before: str
    after: str
    where: tuple[str, ...]


class TargetRan(msgspec.Struct, frozen=True):
    """A target in the newest night. cases: run or refused; failing: of them failed; seconds: of workers."""

    target: str
    cases: int
    failing: int
    seconds: float


class StageEnd(msgspec.Struct, frozen=True):
    """How a stage of a night ended (docs/how_to/nightly.md): status 'ok', 'findings', 'failed' or 'skipped'."""

    name: str
    status: str
    note: str


class News(msgspec.Struct, frozen=True):
    """news.json: what is new since the sessions of the night before had ended.

    made                  when the report was made
    night, before         the newest night and the one before it; '' where there is none
    new, regressed, fixed ids of signatures
    open                  number of signatures that fail and are not expected
    unlisted              number of signatures that neither signatures.json nor a page has: the least urgent ones, left
                          out for the site's size
    environment           what changed, drivers and compilers first
    sessions, cases, failing  of the newest night; unfinished: sessions that were cut off or are running
    targets               that the newest night ran
    stages                of the night that made the report, as `--stages` has them; none where it was made by itself
    """

    made: str
    night: str
    before: str
    new: tuple[str, ...]
    regressed: tuple[str, ...]
    fixed: tuple[str, ...]
    open: int
    environment: tuple[Change, ...]
    sessions: int
    cases: int
    failing: int
    unfinished: int
    targets: tuple[TargetRan, ...]
    unlisted: int = 0
    stages: tuple[StageEnd, ...] = ()


class Met(msgspec.Struct, frozen=True):
    """A session that met a signature.

    met             cases that it explains, of `cases` that the target ran
    failed, probed  runs of the saved case in fresh processes that failed, of so many
    status          'new' (as the session saw it), 'known', 'unconfirmed'
    """

    night: str
    session: str
    arch: str
    commit: str
    met: int
    cases: int
    failed: int
    probed: int
    status: str


class Step(msgspec.Struct, frozen=True):
    """A moment of a signature's life, in words: 'failed in 5 of 5 runs', 'passed 10 times', 'fixed'."""

    at: str
    what: str


class Range(msgspec.Struct, frozen=True):
    """Revisions between which a failure appeared: `good` ran its target without meeting it, `bad` met it first.

    An observation, not a bisection: the session on `good` may have missed it. '' where it is not known.
    """

    good: str
    bad: str
    good_night: str
    bad_night: str


class Bisected(msgspec.Struct, frozen=True):
    """The newest search for the revision that a signature came with (`attnfuzz bisect`).

    history      'commits' or 'packages'; good, bad: revisions known to lack and to have it; suspects: those after
                 `good`
    first        (revision, title) of the first bad one; several where it is one of these
    probability  that this is right; confident: as probable as was asked for
    """

    at: str
    history: str
    good: str
    bad: str
    suspects: int
    first: tuple[tuple[str, str], ...]
    probability: float
    confident: bool


class SignatureItem(msgspec.Struct, frozen=True):
    """signatures.json holds a list of these: a bug, as far as failures can tell.

    uid          its id; title: the failure in a few words; message: the worst of it in one line
    state        fuzz.ledger.life.State; since: when it came into it
    first, last  its first and its last failure; age: days since the first
    failed, runs the saved case since it was opened; low, high: interval of the probability of failing, 95 %
    flaky        it failed in some of these runs only
    archs        on which it failed; passes: runs in a row that passed since, by arch, of passes_needed
    sessions     that met it; met: cases that it explains in all of them
    needs        features without which no smaller case fails, where the case is minimised (`minimal`)
    link, until  of an expected one
    signature    its first finding's (fuzz/core/verdict.py)
    case         the saved case as JSON; after: cases that have to be run before it
    outcome      of the saved case; commit: of the session that saved it
    nights       share of the target's cases that it explains, by night, of the last nights
    appeared     revisions between which it appeared
    bisected     the newest search for the revision that it came with, or null
    history      its life, the newest first; met_in: the newest sessions that met it
    evidence     Verdict of the failure as it was met (findings, worst places, stacks), long texts cut, or null
    page         path of its page in the site; '' for one that is short because the site would grow too large: without
                 case, nights, history, met_in and evidence, its message cut
    """

    uid: str
    title: str
    message: str
    target: str
    kind: str
    oracle: str
    tensors: tuple[str, ...]
    state: State
    since: str
    first: str
    last: str
    age: float
    failed: int
    runs: int
    low: float
    high: float
    flaky: bool
    archs: tuple[str, ...]
    passes: dict[str, int]
    passes_needed: int
    sessions: int
    met: int
    needs: tuple[str, ...]
    minimal: bool
    link: str
    until: str
    note: str
    outcome: str
    commit: str
    device: str
    signature: dict[str, Any]
    case: dict[str, Any] | None
    after: tuple[dict[str, Any], ...]
    nights: tuple[tuple[str, float], ...]
    appeared: Range | None
    history: tuple[Step, ...]
    met_in: tuple[Met, ...]
    evidence: dict[str, Any] | None
    page: str = ""
    bisected: Bisected | None = None


class Growth(msgspec.Struct, frozen=True):
    """Pairs of features covered after a night; cases: run until then."""

    night: str
    cases: int
    features: int
    pairs: int


class Coverage(msgspec.Struct, frozen=True):
    """coverage.json: cases that had both of two features.

    features  names; never: those of the harness's own table that no case had
    pairs     [place in `features`, place in `features`, cases, failed]; a feature with itself: that feature alone. What
              is not listed was never covered
    options   number of features that are options of targets ('variant:…'); left out of `features` and `pairs`
    growth    by night
    """

    features: tuple[str, ...]
    never: tuple[str, ...]
    pairs: tuple[tuple[int, int, int, int], ...]
    options: int
    growth: tuple[Growth, ...]


class Throughput(msgspec.Struct, frozen=True):
    """A night on one device.

    cases       that were run or refused; failing: of them failed
    seconds     of workers, over all cases; hang_seconds: of cases that hung
    per_second  cases in a second of one worker
    kernels     asked for ahead; cached: of them were in the cache; compile_seconds: summed over processes
    """

    night: str
    device: str
    sessions: int
    cases: int
    failing: int
    seconds: float
    per_second: float
    hangs: int
    hang_seconds: float
    kernels: int
    cached: int
    compile_seconds: float


class Flakes(msgspec.Struct, frozen=True):
    """Cases of a target in a night whose repeats did not agree, or that failed in some runs only."""

    night: str
    target: str
    flakes: int
    cases: int


class Nights(msgspec.Struct, frozen=True):
    """nights.json: what the nights cost and gave, the oldest first."""

    throughput: tuple[Throughput, ...]
    flakes: tuple[Flakes, ...]


class Point(msgspec.Struct, frozen=True):
    """A figure of a series. place: the night, or the commit that it was measured on."""

    at: str
    value: float
    place: str


class Shift(msgspec.Struct, frozen=True):
    """A change point: from point `index` on, the median of its segment is `after`, where it was `before`; p: of the
    test."""

    index: int
    before: float
    after: float
    p: float


class Series(msgspec.Struct, frozen=True):
    """A figure over time.

    group   'kernel' (seconds of a target's `run` phase in sessions, median), 'benchmark', or 'scoreboard'
    shifts  its change points, as fuzz/dashboard/change_points.py finds them
    """

    name: str
    group: str
    unit: str
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]


class Performance(msgspec.Struct, frozen=True):
    """performance.json: series of figures with their change points. rule: how those were found, in words."""

    rule: str
    series: tuple[Series, ...]


class Site(msgspec.Struct, frozen=True):
    """All of it: news.json, signatures.json, coverage.json, nights.json, performance.json."""

    news: News
    signatures: tuple[SignatureItem, ...]
    coverage: Coverage
    nights: Nights
    performance: Performance
