"""The options of the commands about the ledger; what they do stands in ledger.py."""

from __future__ import annotations

import argparse
import datetime
from typing import Any

from fuzz.cli import ledger
from fuzz.cli.command import command
from fuzz.ledger import place
from fuzz.session import settings

STATES = ("regressed", "new", "open", "flaky", "expected", "fixed")  # those of fuzz.ledger.life.STATES


def _ledger(sub: Any) -> None:
    summary = "look at the signatures of the ledger, and say what is known of them"
    made = command(sub, "ledger", ledger.list_, summary, "attnfuzz ledger list")
    own = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_list, _show, _expect, _unexpect, _replay, _measure):
        add(own)


def _list(sub: Any) -> None:
    made = command(
        sub,
        "list",
        ledger.list_,
        "list the signatures, each with its state, rate, age and archs",
        "attnfuzz ledger list --state new --state regressed",
    )
    made.add_argument("--state", action="append", choices=STATES, help="these only; may be repeated (all but fixed)")
    made.add_argument("--all", action="store_true", help="fixed ones too")
    made.add_argument("--json", action="store_true", help="print JSON")
    place.add_option(made.add_argument)


def _show(sub: Any) -> None:
    made = command(
        sub,
        "show",
        ledger.show,
        "print one signature: its life, its history, its saved case",
        "attnfuzz ledger show 6beb2dae --case case.json && attnfuzz repro case.json",
    )
    made.add_argument("signature", metavar="SIGNATURE", help="its id, or the beginning of it")
    made.add_argument("--case", metavar="OUT.json", help="write the saved case, for `attnfuzz repro`")
    place.add_option(made.add_argument)


def _expect(sub: Any) -> None:
    made = command(
        sub,
        "expect",
        ledger.expect,
        "say that a signature is known to fail: why, where, until when",
        "attnfuzz ledger expect 6beb2dae --link https://example.org/issues/12 --arch sm_90..sm_103 --until 2027-03-31",
    )
    made.add_argument("signature", metavar="SIGNATURE", help="its id, or the beginning of it")
    made.add_argument("--link", required=True, metavar="URL", help="where it is explained: an issue, a commit")
    made.add_argument(
        "--arch",
        action="append",
        default=[],
        metavar="ARCH",
        help="on which it is expected: a name, a pattern ('emulated-*') or a range (sm_90..sm_103); "
        "may be repeated (all)",
    )
    made.add_argument("--until", type=_date, metavar="DATE", help="the last day, as 2027-03-31 (for good)")
    place.add_option(made.add_argument)


def _unexpect(sub: Any) -> None:
    made = command(
        sub,
        "unexpect",
        ledger.unexpect,
        "take back what `expect` said",
        "attnfuzz ledger unexpect 6beb2dae",
    )
    made.add_argument("signature", metavar="SIGNATURE", help="its id, or the beginning of it")
    place.add_option(made.add_argument)


def _replay(sub: Any) -> None:
    made = command(
        sub,
        "replay",
        ledger.replay,
        "run the saved cases of signatures again; enough passes on every arch close one, a failure opens it again",
        "attnfuzz ledger replay",
        "attnfuzz ledger replay 6beb2dae --runs 200 --device cuda",
    )
    made.add_argument(
        "signature", nargs="*", metavar="SIGNATURE", help="ids, or beginnings of them (all but those that are fixed)"
    )
    made.add_argument(
        "--runs", type=settings.positive, metavar="N", help="runs of each case (as many as its fix needs, 10 at least)"
    )
    made.add_argument("--fixed", action="store_true", help="without a SIGNATURE: those that are fixed too")
    settings.add_options(made.add_argument, only=("device", "target-file"))
    place.add_option(made.add_argument)


def _measure(sub: Any) -> None:
    made = command(
        sub,
        "measure",
        ledger.measure,
        "keep a figure of this machine and revision, as one point of a series",
        "attnfuzz ledger measure 'blocksparse forward causal 4096' 512.5 TFLOP/s",
    )
    made.add_argument("series", metavar="SERIES", help="the name that all its points have")
    made.add_argument("value", type=float, metavar="VALUE", help="a number")
    made.add_argument("unit", metavar="UNIT", help="of the number")
    place.add_option(made.add_argument)


def _export(sub: Any) -> None:
    made = command(
        sub,
        "export",
        ledger.export,
        "write the ledger, or some nights of it, as JSON Lines",
        "attnfuzz export night.jsonl.gz --night 2026-11-23",
    )
    made.add_argument("out", metavar="OUT.jsonl", help="the file, compressed if it ends with .gz; '-': standard output")
    made.add_argument("--night", action="append", default=[], metavar="NIGHT", help="these nights; may be repeated")
    made.add_argument("--session", action="append", default=[], metavar="ID", help="these sessions; may be repeated")
    made.add_argument("--no-runs", action="store_true", help="findings and sums alone, without a row for each case")
    place.add_option(made.add_argument)


def _import(sub: Any) -> None:
    made = command(
        sub,
        "import",
        ledger.import_,
        "take sessions' folders and exported files into the ledger; what is in it already counts once",
        "attnfuzz import .attnfuzz/sessions/*",
        "attnfuzz import night.jsonl.gz --ledger postgresql://fuzz@db/ledger",
    )
    made.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a session's folder, or a file of `attnfuzz export`; '-': standard input",
    )
    place.add_option(made.add_argument)


def _date(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a date as 2027-03-31, got {text!r}") from None


COMMANDS = (_ledger, _export, _import)
