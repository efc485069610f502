"""Read side: pandas frames for a report, one function for each question. signatures.py has the signatures.

Columns, everywhere: `night` (its name), `session` (the session's id), `target`, `arch`, times in seconds of the epoch,
durations in seconds. None of them but `runs` reads the table of runs, or only the few that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, case, func, select

from fuzz.ledger.ingest.write import DURATION, RATIO
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import FAILING, OUTCOMES

if TYPE_CHECKING:
    import pandas as pd

UP = 0.8  # share of a session's limit of time after which its last case may have been the last that it drew
_REJECT = OUTCOMES.index("reject")
_FAILING = [OUTCOMES.index(outcome) for outcome in sorted(FAILING)]


def sessions(ledger: Ledger) -> pd.DataFrame:
    """One row for each session: night, session, began, ended, device, seed, planned, cases, failing, seconds, host,
    cpu, cpus, gpu, toolchain, commit, changed, command, folder, cut. ended is NaN while it runs; cut: it was cut off,
    or is running: it has fewer cases than planned, and its time was not up."""
    import msgspec
    import numpy as np

    s, h, r, t = schema.session.c, schema.hardware.c, schema.revision.c, schema.tally.c
    sums = (
        select(
            t.session_id,
            func.sum(t.cases).label("cases"),
            func.sum(case((t.outcome.in_(_FAILING), t.cases), else_=0)).label("failing"),
            func.sum(t.seconds).label("seconds"),
        )
        .group_by(t.session_id)
        .subquery()
    )
    query = (
        select(
            s.night, s.uid.label("session"), s.began, s.ended, s.device, s.seed, s.planned,
            func.coalesce(sums.c.cases, 0).label("cases"), func.coalesce(sums.c.failing, 0).label("failing"),
            func.coalesce(sums.c.seconds, 0.0).label("seconds"), h.host, h.cpu, h.cpus, h.gpu,
            schema.toolchain.c.uid.label("toolchain"), r.commit, r.changed, s.command, s.folder, s.settings,
        )
        .join_from(schema.session, schema.hardware)
        .join(schema.toolchain)
        .join(schema.revision)
        .outerjoin(sums, sums.c.session_id == s.id)
        .order_by(s.began)
    )  # fmt: skip
    frame = _frame(ledger, query)
    frame["ended"] = frame["ended"].astype(float)  # NaN where it has none, also where none has one
    limit = np.array([float(msgspec.json.decode(text).get("seconds") or np.inf) for text in frame.pop("settings")])
    in_time = ~(frame["ended"] - frame["began"] >= UP * limit)
    frame["cut"] = (frame["cases"] < frame["planned"]) & in_time
    return frame


def tallies(ledger: Ledger) -> pd.DataFrame:
    """Cases by session, target and outcome: night, session, target, arch, outcome, cases, seconds."""
    t = schema.tally.c
    frame = _frame(ledger, _by_target(schema.tally, t.outcome, t.cases, t.seconds))
    frame["outcome"] = [OUTCOMES[number] for number in frame["outcome"]]
    return frame


def timings(ledger: Ledger) -> pd.DataFrame:
    """Seconds by session, target and phase: night, session, target, arch, phase, cases, seconds, p50, p95, most."""
    t = schema.timing.c
    return _frame(ledger, _by_target(schema.timing, t.phase, t.cases, t.seconds, t.p50, t.p95, t.most))


def compiles(ledger: Ledger) -> pd.DataFrame:
    """Kernels by session, arch and status (cached, built, failed): night, session, arch, status, kernels, seconds."""
    c, s = schema.compiled.c, schema.session.c
    query = select(s.night, s.uid.label("session"), c.arch, c.status, c.kernels, c.seconds).join(schema.session)
    return _frame(ledger, query.order_by(s.began))


def coverage(ledger: Ledger, *, by_night: bool = False) -> pd.DataFrame:
    """Features (feature == other) and pairs that cases had: feature, other, cases, failed; by_night: with night first,
    in the order of nights. Cases that were refused are left out."""
    import pandas as pd

    c, s = schema.coverage.c, schema.session.c
    columns = ["feature", "other", "cases", "failed"]
    if not by_night:
        sums = (func.sum(c.cases), func.sum(c.failed))
        keys = (c.feature_id, c.other_id)
        frame = _numbers(ledger, select(*keys, *sums).group_by(*keys).order_by(*keys), columns)
    else:  # hundreds of thousands of rows: pandas sums them in a tenth of the database's time
        with ledger.read() as connection:
            began = connection.execute(select(s.id, s.night).order_by(s.began)).all()
        nights = list(dict.fromkeys(night for _, night in began))
        order = {number: nights.index(night) for number, night in began}
        query = select(c.session_id, c.feature_id, c.other_id, c.cases, c.failed)
        frame = _numbers(ledger, query, ["night", *columns])
        frame["night"] = frame["night"].map(order)
        frame = frame.groupby(["night", "feature", "other"], as_index=False, sort=True).sum()
        frame["night"] = pd.Series(nights, dtype=object).take(frame["night"]).to_numpy()
    names = pd.Series(feature_names(ledger), dtype=object)
    for column in ("feature", "other"):
        frame[column] = names.loc[frame[column]].to_numpy()
    return frame


def findings(ledger: Ledger) -> pd.DataFrame:
    """One row for each session that met a signature: night, session, began, signature (id), target, arch, status,
    outcome, at, met, cases (of the target in the session, without those refused), failed, probed, minimal, message,
    note, file."""
    f, s, g, t = schema.finding.c, schema.session.c, schema.signature.c, schema.tally.c
    ran = (
        select(t.session_id, t.target_id, func.sum(t.cases).label("cases"))
        .where(t.outcome != _REJECT)
        .group_by(t.session_id, t.target_id)
        .subquery()
    )
    query = (
        select(
            s.night, s.uid.label("session"), s.began, g.uid.label("signature"), schema.target.c.name.label("target"),
            schema.session_target.c.arch, f.status, f.outcome, f.at, f.met,
            func.coalesce(ran.c.cases, 0).label("cases"), f.failed, f.probed, f.minimal, f.message, f.note, f.file,
        )
        .join_from(schema.finding, schema.session, s.id == f.session_id)
        .join(schema.signature, g.id == f.signature_id)
        .join(schema.target, schema.target.c.id == g.target_id)
        .outerjoin(schema.session_target, _same(schema.session_target, f.session_id, g.target_id))
        .outerjoin(ran, (ran.c.session_id == f.session_id) & (ran.c.target_id == g.target_id))
        .order_by(s.began, f.signature_id)
    )  # fmt: skip
    return _frame(ledger, query)


def packages(ledger: Ledger) -> pd.DataFrame:
    """Versions of every toolchain: toolchain (id), name, version."""
    p, t = schema.package.c, schema.toolchain.c
    return _frame(ledger, select(t.uid.label("toolchain"), p.name, p.version).join(schema.toolchain).order_by(p.name))


def changes(ledger: Ledger) -> pd.DataFrame:
    """Differences from the session before on the same host and device: night, session, host, device, name, before,
    after. name: a package, 'nvidia-driver', 'revision' (commits, with '+' where files were edited), 'gpu'."""
    import pandas as pd

    versions = {
        uid: dict(zip(rows["name"], rows["version"], strict=True))
        for uid, rows in packages(ledger).groupby("toolchain")
    }
    found: list[tuple[str, str, str, str, str, str, str]] = []
    for (host, device), rows in sessions(ledger).groupby(["host", "device"], sort=False):
        before: dict[str, str] | None = None
        for row in rows.itertuples():
            now = versions.get(row.toolchain, {}) | {"revision": row.commit + "+" * bool(row.changed), "gpu": row.gpu}
            for name in sorted(before.keys() | now.keys()) if before is not None else ():
                if before is not None and before.get(name, "") != now.get(name, ""):
                    change = (before.get(name, ""), now.get(name, ""))
                    found.append((row.night, row.session, str(host), str(device), name, *change))
            before = now
    return pd.DataFrame(found, columns=["night", "session", "host", "device", "name", "before", "after"])


def replays(ledger: Ledger) -> pd.DataFrame:
    """Runs of saved cases: signature (id), at, arch, failed, runs, commit, gpu, toolchain."""
    r = schema.replay.c
    columns = (schema.signature.c.uid.label("signature"), r.at, r.arch, r.failed, r.runs)
    return _frame(ledger, _with_environment(schema.replay, *columns).join(schema.signature).order_by(r.at))


def events(ledger: Ledger) -> pd.DataFrame:
    """People's statements: signature (id), at, kind, link, archs (comma-separated), until, author."""
    e = schema.event.c
    query = select(schema.signature.c.uid.label("signature"), e.at, e.kind, e.link, e.archs, e.until, e.author)
    return _frame(ledger, query.join_from(schema.event, schema.signature).order_by(e.at))


def bisections(ledger: Ledger) -> pd.DataFrame:
    """Searches for the revision that a signature came with: signature (id), at, history ('commits' or 'packages'),
    good, bad, suspects, first (list of [revision, title]), probability, confident, failed, runs, commit, gpu,
    toolchain."""
    import msgspec

    b = schema.bisection.c
    columns = (b.at, b.history, b.good, b.bad, b.suspects, b.first, b.probability, b.confident, b.failed, b.runs)
    query = _with_environment(schema.bisection, schema.signature.c.uid.label("signature"), *columns)
    found = _frame(ledger, query.join(schema.signature).order_by(b.at))
    found["first"] = [msgspec.json.decode(text) for text in found["first"]]
    return found


def measurements(ledger: Ledger) -> pd.DataFrame:
    """Figures over time: series, at, value, unit, commit, gpu, toolchain."""
    m = schema.measurement.c
    return _frame(ledger, _with_environment(schema.measurement, m.series, m.at, m.value, m.unit).order_by(m.at))


def runs(ledger: Ledger, session: str) -> pd.DataFrame:
    """Cases of one session: target, place, case_id, outcome, signature (id, or ''), ratio, seconds, features (bits in
    bytes, see `feature_names`)."""
    r, s = schema.run.c, schema.session.c
    query = (
        select(
            schema.target.c.name.label("target"), r.place, r.case_id, r.outcome,
            func.coalesce(schema.signature.c.uid, "").label("signature"), r.ratio, r.duration.label("seconds"),
            r.features,
        )
        .join_from(schema.run, schema.session, s.id == r.session_id)
        .join(schema.target, schema.target.c.id == r.target_id)
        .outerjoin(schema.signature, schema.signature.c.id == r.signature_id)
        .where(s.uid == session)
        .order_by(r.target_id, r.place)
    )  # fmt: skip
    frame = _frame(ledger, query)
    frame["case_id"] = [f"{number:012x}" for number in frame["case_id"]]
    frame["outcome"] = [OUTCOMES[number] for number in frame["outcome"]]
    frame["ratio"] = frame["ratio"].astype(float) / RATIO
    frame["seconds"] = frame["seconds"].astype(float) / DURATION
    return frame


def feature_names(ledger: Ledger) -> dict[int, str]:
    """Names of the bits of runs.features: bit n is bit n % 8 of byte n // 8."""
    f = schema.feature.c
    with ledger.read() as connection:
        return {row.id: row.name for row in connection.execute(select(f.id, f.name).order_by(f.id))}


def _by_target(table: Any, *columns: Any) -> Select[Any]:
    """The columns of a table by session and target, with night, session, target and arch first."""
    s, t, at = schema.session.c, table.c, schema.session_target.c
    named = (s.night, s.uid.label("session"), schema.target.c.name.label("target"), at.arch)
    return (
        select(*named, *columns)
        .join_from(table, schema.session, s.id == t.session_id)
        .join(schema.target, schema.target.c.id == t.target_id)
        .outerjoin(schema.session_target, _same(schema.session_target, t.session_id, t.target_id))
        .order_by(s.began, t.target_id, columns[0])
    )


def _with_environment(table: Any, *columns: Any) -> Select[Any]:
    environment = (schema.revision.c.commit, schema.hardware.c.gpu, schema.toolchain.c.uid.label("toolchain"))
    found = select(*columns, *environment).join_from(table, schema.revision)
    return found.join(schema.hardware, schema.hardware.c.id == table.c.hardware_id).join(
        schema.toolchain, schema.toolchain.c.id == table.c.toolchain_id
    )


def _same(table: Any, session: Any, target: Any) -> Any:
    return (table.c.session_id == session) & (table.c.target_id == target)


def _frame(ledger: Ledger, query: Select[Any]) -> pd.DataFrame:
    import pandas as pd

    with ledger.read() as connection:
        rows = connection.execute(query)
        names = list(rows.keys())
        return pd.DataFrame(rows.all(), columns=names)


def _numbers(ledger: Ledger, query: Select[Any], columns: list[str]) -> pd.DataFrame:
    """A frame of whole numbers."""
    import numpy as np
    import pandas as pd

    with ledger.read() as connection:
        rows = connection.execute(query).all()
    found = np.fromiter((tuple(row) for row in rows), dtype=(np.int64, len(columns)), count=len(rows))
    return pd.DataFrame(found, columns=columns)
