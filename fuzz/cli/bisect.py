"""`attnfuzz bisect`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.cli.command import command
from fuzz.cli.exit_codes import FINDINGS, OK
from fuzz.ledger import place
from fuzz.session import settings

if TYPE_CHECKING:
    from fuzz.bisect.journal import Journal
    from fuzz.bisect.revisions import History
    from fuzz.bisect.search import Answer
    from fuzz.corpus.entry import Entry

STATES = Path(".attnfuzz/bisect")


def add(sub: Any) -> None:
    """Adds the command."""
    made = command(
        sub,
        "bisect",
        bisect,
        "find the revision that a failure came with, in a git history or a list of package versions",
        "attnfuzz bisect corpus/regressions/CASE.json --good v1.2 --bad HEAD",
        "attnfuzz bisect 6beb2dae --repo ~/kernels --target-file attention.py --good 1f3a9c2 --bad main",
        "attnfuzz bisect CASE.json --versions 'torch==2.11.0,torch==2.12.1,torch==2.13.0'",
    )
    option = made.add_argument
    option("case", metavar="CASE|SIGNATURE", help="a case, an entry of the corpus, or a signature of the ledger")
    option("--good", default="", metavar="REV", help="a revision without the bug (of --versions: the first)")
    option("--bad", default="", metavar="REV", help="a revision with the bug (HEAD; of --versions: the last)")
    option("--repo", default=".", metavar="DIR", help="the git repository (this folder's)")
    option(
        "--versions",
        metavar="LIST",
        help="instead of commits: requirements of pip, oldest first, comma-separated; each goes into a venv of its own",
    )
    option("--build", default="", metavar="COMMAND", help="run in each revision's tree first; a failure skips it")
    option(
        "--runs", type=settings.positive, default=0, metavar="N", help="runs of a revision at most (from the rate; 500)"
    )
    option(
        "--confidence", type=_probability, default=0.99, metavar="P", help="stop when the answer is so probable (0.99)"
    )
    option("--any-failure", action="store_true", help="count every failure, not only those of the signature")
    option(
        "--state",
        metavar="DIR",
        help=f"folder of the search's runs, where it goes on after it was cut off ({STATES}/<id of the question>)",
    )
    option("--json", action="store_true", help="print the answer as JSON")
    settings.add_options(option, only=("device", "target-file"))
    place.add_option(option)


def bisect(options: argparse.Namespace) -> int:
    """Exit code 0 if the answer is as probable as was asked for, else 1."""
    from fuzz.bisect.checkouts import Checkouts
    from fuzz.bisect.journal import Journal, Question
    from fuzz.bisect.packages import Packages
    from fuzz.bisect.revisions import BisectError, Revisions
    from fuzz.bisect.search import search
    from fuzz.bisect.trial import Trials
    from fuzz.corpus.store import encode

    files = tuple(options.target_file)
    revisions: Revisions
    if options.versions:
        listed = tuple(" ".join(one.split()) for one in options.versions.split(",") if one.strip())
        if len(listed) < 2:
            raise BisectError(f"--versions: needs two or more, got {options.versions!r}")
        revisions = Packages(listed, options.good, options.bad, files)
        where = "packages"
    else:
        if not options.good:
            raise BisectError("--good: which revision has not got the bug? (or --versions)")
        revisions = Checkouts(Path(options.repo), options.good, options.bad or "HEAD", files, options.build)
        where = str(Path(options.repo).resolve())
    entry = _entry(options)
    history = revisions.history()
    device = settings.from_options(lambda name: getattr(options, name.replace("-", "_"), None)).device
    question = Question(
        case=hashlib.sha256(encode(entry).encode()).hexdigest()[:12],
        where=where,
        revisions=(history.good.name, *(one.name for one in history.revisions)),
        device=device,
        signature=None if options.any_failure else entry.signature,
    )
    folder = Path(options.state or STATES / _id(question))
    with Journal(folder, question) as journal:
        if journal.tried:
            _say(f"goes on with the runs of {folder}")
        file = folder / "case.json"
        file.write_text(encode(entry))
        trials = Trials(revisions, file, entry.case, question.signature, device)
        _say(f"{len(history.revisions)} suspects after {history.good}")
        answer = search(history, trials, journal, confidence=options.confidence, most_runs=options.runs, say=_say)
        print(_json(answer, history, journal) if options.json else _text(answer, journal))
        _keep(options, answer, history)
    return OK if answer.confident else FINDINGS


def _keep(options: argparse.Namespace, answer: Answer, history: History) -> None:
    """Writes the answer into the ledger that the signature came from."""
    from fuzz.cli.ledger import _open
    from fuzz.ledger.ingest.environment import here
    from fuzz.ledger.ingest.write import write_single
    from fuzz.ledger.query.signatures import signature
    from fuzz.ledger.tables.rows import BisectionRow

    if _is_file(options.case):
        return
    with _open(options, create=False) as ledger:
        row = BisectionRow(
            uid=uuid.uuid4().hex,
            signature=signature(ledger, options.case).uid,
            at=time.time(),
            history="packages" if options.versions else "commits",
            good=history.good.name,
            bad=history.revisions[-1].name,
            suspects=len(history.revisions),
            first=tuple((one.name, one.title) for one in answer.first),
            probability=answer.probability,
            confident=answer.confident,
            failed=answer.failed,
            runs=answer.runs,
            **here(),
        )
        write_single(ledger, [row])


def _is_file(case: str) -> bool:
    """True for a case's file, False for a signature of the ledger. Raises FileNotFoundError for a file that is none."""
    path = Path(case)
    if not path.is_file() and path.suffix == ".json":
        raise FileNotFoundError(f"{path}: no such file")
    return path.is_file()


def _entry(options: argparse.Namespace) -> Entry:
    """The case with what it needs before it, and its signature, where one is known."""
    from fuzz.cli.ledger import _open
    from fuzz.corpus.entry import VERSION, Entry
    from fuzz.corpus.store import load, load_before, load_case
    from fuzz.ledger.errors import LedgerError
    from fuzz.ledger.query.signatures import signature

    path = Path(options.case)
    if _is_file(options.case):
        case, after = load_case(path), load_before(path)
        kept = load(path) if _is_entry(path) else None
        if kept is not None and kept.signature is not None:
            return kept
        return Entry(version=VERSION, expect="pass", case=case, after=after)
    with _open(options, create=False) as ledger:
        known = signature(ledger, options.case)
    if known.best.case is None:
        raise LedgerError(f"signature {known.uid}: the ledger has no case of it that this version can read")
    return Entry.as_met(
        known.best.case, "fail", known.signature, device=known.life.archs[0] if known.life.archs else "",
        after=known.best.after,
    )  # fmt: skip


def _is_entry(path: Path) -> bool:
    from fuzz.corpus.store import _holds_entry

    return _holds_entry(path.read_bytes())


def _text(answer: Answer, journal: Journal) -> str:
    """The answer in words."""
    runs = sum(tried.runs for tried in journal.tried.values())
    skipped = [name[:12] for name, tried in journal.tried.items() if tried.skipped]
    among = "first bad revision" if len(answer.first) == 1 else "the first bad revision is one of these"
    lines = [
        f"{among}, with probability {answer.probability:.4f}:",
        *(f"  {one}" for one in answer.first),
        f"fails in {answer.failed} of {answer.runs} runs at --bad; {runs} runs of {len(journal.tried)} revisions",
    ]
    if skipped:
        lines.append(f"skipped: {', '.join(skipped)}")
    if not answer.confident:
        lines.append("that is less than asked for: more --runs a revision, or other revisions that can be run, help")
    return "\n".join(lines)


def _json(answer: Answer, history: History, journal: Journal) -> str:
    from fuzz.core.case import to_json

    def told(name: str) -> dict[str, Any]:
        tried = journal.tried[name]
        return {
            "failed": tried.failed,
            "clean": tried.clean,
            "other": tried.other,
            "skipped": tried.skipped,
        }

    return to_json(
        {
            "first_bad": [{"revision": one.name, "title": one.title} for one in answer.first],
            "probability": answer.probability,
            "confident": answer.confident,
            "rate": {"failed": answer.failed, "runs": answer.runs},
            "clean_runs_of_a_good_revision": answer.per_revision,
            "good": history.good.name,
            "suspects": len(history.revisions),
            "tried": {name: told(name) for name in journal.tried},
        }
    ).rstrip()


def _id(question: Any) -> str:
    import msgspec

    return hashlib.sha256(msgspec.json.encode(question)).hexdigest()[:12]


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0.5 to below 1, got {text}")
    return value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
