"""The tables, each with what its columns mean, for docs/reference/ledger.md too; migrations/ creates them.

A run is the row that there are millions of, so it holds numbers only: about 50 bytes in SQLite. Names, signatures and
environments stand once in tables of their own; sums over a session's runs (tally, timing, coverage) beside them, so
that a report over months reads no runs.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

AT = "seconds of the epoch"


def _table(name: str, meaning: str, *columns: Column[Any], rowid: bool = True) -> Table:
    """A table. rowid: False for one whose primary key is long beside the rest: SQLite then keeps the rows in its
    index."""
    return Table(name, metadata, *columns, info={"meaning": meaning}, sqlite_with_rowid=rowid)


def _column(name: str, kind: Any, meaning: str, *, null: bool = False, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=null, info={"meaning": meaning}, **options)


def _key(name: str, kind: Any, meaning: str) -> Column[Any]:
    return _column(name, kind, meaning, primary_key=True, autoincrement=False)


def _number() -> Column[Any]:
    return Column("id", Integer, primary_key=True, autoincrement=True, info={"meaning": "number in this ledger"})


def _uid(meaning: str) -> Column[Any]:
    return _column("uid", Text, meaning, unique=True)


def _to(table: str, meaning: str = "", *, name: str = "", kind: Any = Integer, **options: Any) -> Column[Any]:
    """A column that holds the number of a row of another table."""
    key = ForeignKey(f"{table}.id")
    null = options.pop("null", False)
    info = {"meaning": meaning or f"of `{table}`"}
    return Column(f"{name or table}_id", kind, key, nullable=null, autoincrement=False, info=info, **options)


def _key_to(table: str, **options: Any) -> Column[Any]:
    return _to(table, primary_key=True, **options)


def _environment() -> tuple[Column[Any], Column[Any], Column[Any]]:
    return _to("hardware"), _to("toolchain"), _to("revision")


target = _table(
    "target", "A kernel under test.", _number(), _column("name", Text, "as `attnfuzz targets` has it", unique=True)
)

feature = _table(
    "feature",
    "A property of a case (fuzz/core/features.py), or an option of its target.",
    _key("id", Integer, "its bit in `run.features`"),
    _column("name", Text, "`gqa`, `len_k:tail`, `variant:tile_m=64`", unique=True),
)

hardware = _table(
    "hardware",
    "A machine as sessions saw it.",
    _number(),
    _uid("hash of the other columns"),
    _column("host", Text, "its name"),
    _column("cpu", Text, "model"),
    _column("cpus", Integer, "processors that the session could use"),
    _column("machine", Text, "`x86_64`"),
    _column("gpu", Text, "name of the first GPU; empty: none"),
)

toolchain = _table("toolchain", "A set of versions of packages.", _number(), _uid("hash of all names and versions"))

package = _table(
    "package",
    "The versions of a toolchain.",
    _key_to("toolchain"),
    _key("name", Text, "of the distribution, in lower case; `python`; `nvidia-driver` beside a GPU"),
    _column("version", Text, "as installed"),
    rowid=False,
)

revision = _table(
    "revision",
    "A revision of attnfuzz.",
    _number(),
    _uid("hash of the other columns"),
    _column("commit", Text, "full hash; outside a checkout the version of the package; empty: not known"),
    _column("changed", Boolean, "files were edited since the commit"),
    _column("at", Double, f"time of the commit, {AT}; 0: not known"),
)

session = _table(
    "session",
    "A session: `attnfuzz run` or `pytest fuzz`, resumed or not.",
    _number(),
    _uid("id of the session, which its folder keeps too"),
    _column("night", Text, "groups sessions: `$ATTNFUZZ_NIGHT`, or the UTC date of the beginning", index=True),
    _column("began", Double, AT),
    _column("ended", Double, f"{AT} of the last record; null: it is running, or was cut off", null=True),
    _column("device", Text, "`host`, `cuda` or `emulator`"),
    _column("seed", BigInteger, "of its cases"),
    _column("planned", Integer, "cases that it is to run; those that it has run are in `tally`"),
    _column("command", Text, "command line"),
    _column("folder", Text, "its records, on its machine"),
    _column("settings", Text, "JSON of fuzz.session.settings.Settings"),
    *_environment(),
)

session_target = _table(
    "session_target",
    "What a target's kernels were compiled for in a session.",
    _key_to("session"),
    _key_to("target"),
    _column("arch", Text, "`sm_90a`; `emulated-sm_100a` on the emulated GPU; `host` where nothing is compiled"),
    rowid=False,
)

signature = _table(
    "signature",
    "A bug, as far as failures can tell: findings of all sessions that are one.",
    _number(),
    _uid("eight digits: id of the first finding's Signature (fuzz/core/signature.py)"),
    _to("target", index=True),
    _column("kind", Text, "`wrong`, `nan`, `hang`, `race`, …"),
    _column("content", Text, "JSON of that Signature: oracle, tensors, kernel, line, features that it needs"),
)

alias = _table(
    "alias",
    "Findings that are one signature, also that signature's own id.",
    _key("uid", Text, "id of a finding's Signature"),
    _to("signature", index=True),
    rowid=False,
)

run = _table(
    "run",
    "The verdict of a case.",
    _key_to("session"),
    _key_to("target", kind=SmallInteger),
    _column(
        "outcome",
        SmallInteger,
        "place in rows.OUTCOMES: 0 pass, 1 fail, 2 hang, 3 crash, 4 flake, …",
    ),
    _key("place", Integer, "number of the shard * 65536 + place in it; negative in sessions of old versions"),
    _to("signature", "what a failure was settled as; null: it passed, or is not settled yet", null=True),
    _column("case_id", BigInteger, "the case's id, twelve hexadecimal digits, as a number"),
    _column("ratio", Integer, "largest error, in thousandths of the error budget"),
    _column("duration", Integer, "from drawing the case to its verdict, in units of 0.1 ms"),
    _column("features", LargeBinary, "set of bits: `feature` n is bit n % 8 of byte n // 8"),
    rowid=False,
)
Index(
    "ix_run_signature",
    run.c.signature_id,
    sqlite_where=run.c.signature_id.is_not(None),
    postgresql_where=run.c.signature_id.is_not(None),
)

finding = _table(
    "finding",
    "A signature in a session that met it.",
    _key_to("session"),
    _key_to("signature", index=True),
    _column("status", Text, "`new`; `known`: a case of the corpus explains it; `unconfirmed`: it did not show again"),
    _column("outcome", Text, "of the saved case"),
    _column("at", Double, f"when it was met, {AT}"),
    _column("met", Integer, "cases of the session that it explains"),
    _column("failed", Integer, "runs of the saved case in fresh processes that failed, …"),
    _column("probed", Integer, "… of so many"),
    _column("minimal", Boolean, "minimising was not cut short"),
    _column("message", Text, "the worst of it, in one line"),
    _column("note", Text, "how far it was not looked into; of a known one its explanation"),
    _column("file", Text, "the saved case's file, on its machine"),
    _column("content", Text, "JSON of the finding's own Signature"),
    _column("case", Text, "JSON of the saved case", null=True),
    _column("after", Text, "JSON list of cases without which it does not fail", null=True),
    _column(
        "evidence", LargeBinary, "zlib-compressed JSON of the Verdict as it was met: hang, stacks, tensors", null=True
    ),
)

tally = _table(
    "tally",
    "Cases of a session by target and outcome.",
    _key_to("session"),
    _key_to("target"),
    _key("outcome", SmallInteger, "as in `run`"),
    _column("cases", Integer, "how many"),
    _column("seconds", Double, "that they took together"),
    rowid=False,
)

timing = _table(
    "timing",
    "Seconds of a session's cases by target and phase.",
    _key_to("session"),
    _key_to("target"),
    _key("phase", Text, "`draw`, `inputs`, `reference`, `prepare`, `run`, `judge`, …, `total` (all but `draw`)"),
    _column("cases", Integer, "that had the phase"),
    _column("seconds", Double, "sum over them"),
    _column("p50", Double, "median, seconds"),
    _column("p95", Double, "95th percentile, seconds"),
    _column("most", Double, "longest, seconds"),
    rowid=False,
)

coverage = _table(
    "coverage",
    "Pairs of features that a session's cases had; a feature with itself: that feature alone.",
    _key_to("session"),
    _key_to("feature"),
    _key_to("feature", name="other"),
    _column("cases", Integer, "that were run (not refused) and had both"),
    _column("failed", Integer, "of them failed"),
    rowid=False,
)

compiled = _table(
    "compiled",
    "Kernels that a session asked for before its cases.",
    _key_to("session"),
    _key("arch", Text, "that they are for"),
    _key("status", Text, "`cached`, `built` or `failed`"),
    _column("kernels", Integer, "how many"),
    _column("seconds", Double, "of compiling, summed over processes"),
    rowid=False,
)

replay = _table(
    "replay",
    "Runs of a signature's saved case after its session.",
    _number(),
    _uid("of this row, in every ledger"),
    _to("signature", index=True),
    _column("at", Double, AT),
    _column("arch", Text, "as in `session_target`"),
    _column("failed", Integer, "runs that failed, …"),
    _column("runs", Integer, "… of so many"),
    *_environment(),
)

event = _table(
    "event",
    "What somebody said about a signature.",
    _number(),
    _uid("of this row, in every ledger"),
    _to("signature", index=True),
    _column("at", Double, AT),
    _column("kind", Text, "`expect` or `unexpect`"),
    _column("link", Text, "why it is expected: an issue"),
    _column("archs", Text, "on which, comma-separated: names, patterns or ranges; empty: all"),
    _column("until", Text, "last day, ISO; empty: for good"),
    _column("author", Text, "who said so"),
)

bisection = _table(
    "bisection",
    "A search for the revision that a signature came with (`attnfuzz bisect`).",
    _number(),
    _uid("of this row, in every ledger"),
    _to("signature", index=True),
    _column("at", Double, AT),
    _column("history", Text, "what was searched: `commits` or `packages`"),
    _column("good", Text, "the revision that is known not to have it"),
    _column("bad", Text, "the revision that is known to have it"),
    _column("suspects", Integer, "revisions after the good one"),
    _column("first", Text, "JSON list of [revision, title]: the first bad one, or those of which one is"),
    _column("probability", Double, "that `first` is right"),
    _column("confident", Boolean, "it is as probable as was asked for"),
    _column("failed", Integer, "runs of the saved case at the bad revision that failed, …"),
    _column("runs", Integer, "… of so many"),
    *_environment(),
)

measurement = _table(
    "measurement",
    "A figure over time: a benchmark's, the scoreboard's.",
    _number(),
    _uid("of this row, in every ledger"),
    _column("series", Text, "`blocksparse forward causal 4096`", index=True),
    _column("at", Double, AT),
    _column("value", Double, "in `unit`"),
    _column("unit", Text, "`TFLOP/s`"),
    *_environment(),
)
