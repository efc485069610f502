"""Work on a night's findings: minimising those that a session had no time for, and bisecting what is new."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ci.nightly import state
from ci.nightly.commands import output, run
from ci.nightly.options import Options, attnfuzz, target_files
from ci.nightly.state import Done, Night

if TYPE_CHECKING:
    from fuzz.ledger.query.signatures import Known
    from fuzz.ledger.tables.database import Ledger

MINIMISE_SECONDS = 180
BISECT_SECONDS = 1800
MOST = 5  # signatures of each kind in one night
NEWS = ("new", "regressed")


def known(options: Options) -> list[Known]:
    """All signatures of the ledger; none where there is no ledger."""
    from fuzz.ledger.errors import LedgerError
    from fuzz.ledger.query.signatures import signatures

    try:
        with _ledger(options) as ledger:
            return signatures(ledger)
    except LedgerError:
        return []


def minimise(night: Night, options: Options) -> Done:
    """Reduces the saved cases that no session reduced."""
    todo = [one for one in known(options) if one.life.state in NEWS and not one.best.minimal and one.best.case]
    folder = night.folder / "minimised"
    done = {part["uid"] for part in night.parts("minimise")}
    for one in todo[:MOST]:
        if one.uid in done:
            continue
        folder.mkdir(exist_ok=True)
        saved, out = folder / f"{one.uid}.json", folder / f"{one.uid}.min.json"
        run(night, "minimise", attnfuzz("ledger", "show", one.uid, "--case", str(saved), "--ledger", options.ledger))
        limit = ["--max-time", str(MINIMISE_SECONDS), *target_files(options)]
        code = run(night, "minimise", attnfuzz("minimize", str(saved), "--out", str(out), *limit))
        night.keep("minimise", {"uid": one.uid, "code": code, "out": str(out) if out.exists() else ""})
    reduced = sum(bool(part["out"]) for part in night.parts("minimise"))
    return Done("ok", f"{reduced} of {len(todo)} cases reduced" if todo else "every new finding is minimised")


def bisect(night: Night, options: Options) -> Done:
    """Looks for the commit that each new signature came with, after the newest session that ran its target without."""
    news = [one for one in known(options) if one.life.state in NEWS and one.best.case is not None]
    done = {part["uid"] for part in night.parts("bisect")}
    for one in news[:MOST]:
        if one.uid not in done:
            night.keep("bisect", {"uid": one.uid, **_bisected(night, options, one)})
    parts = night.parts("bisect")
    found = sum(bool(part.get("first_bad")) for part in parts)
    left = f"; {len(news) - MOST} left" if len(news) > MOST else ""
    return Done("ok", f"{found} of {len(news)} new signatures traced to a commit{left}" if news else "nothing is new")


def _bisected(night: Night, options: Options, one: Known) -> dict[str, object]:
    good = last_good(options, one, state.commits(night.folder.parent))
    if good is None:
        return {"note": "no session of another commit ran its target without it"}
    bounds = ["--good", good, "--bad", night.kept.commit]
    command = attnfuzz("bisect", one.uid, *bounds, "--json", "--ledger", options.ledger, *target_files(options))
    code, text = output(night, "bisect", command, seconds=BISECT_SECONDS)
    if code not in (0, 1):
        return {"note": f"good {good[:12]}: exit code {code}: see {night.log('bisect')}"}
    answer = json.loads(text)
    print(f"    {one.uid}: {answer['first_bad'][0]['title']} (probability {answer['probability']:.3f})", flush=True)
    return {"first_bad": answer["first_bad"], "probability": answer["probability"], "confident": answer["confident"]}


def last_good(options: Options, one: Known, commits: dict[str, str]) -> str | None:
    """Commit of the newest session that ran the target before the signature was first met; None: there is none, or it
    is the commit at which it was met.

    commits  of the repository in which the nights ran, by night; of other nights the harness's own is taken
    """
    from fuzz.ledger.query import read

    with _ledger(options) as ledger:
        sessions, tallies, findings = read.sessions(ledger), read.tallies(ledger), read.findings(ledger)
    ran = set(tallies[tallies["target"] == one.signature.target]["session"])
    met = set(findings[findings["signature"] == one.uid]["session"])
    first = sessions[sessions["session"].isin(met)]["began"].min()
    sessions["commit"] = [commits.get(row.night) or row.commit for row in sessions.itertuples()]
    met_at = commits.get(one.best.night) or one.best.commit
    clean = sessions[sessions["session"].isin(ran - met) & (sessions["began"] < first)].sort_values("began")
    found = [str(name) for name in clean["commit"] if name and name != met_at]
    return found[-1] if found else None


def _ledger(options: Options) -> Ledger:
    from fuzz.ledger.tables.database import Ledger

    return Ledger(options.ledger, create=False)
