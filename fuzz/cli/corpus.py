"""`attnfuzz corpus distil`: its options, and what it does with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.cli.command import command
from fuzz.cli.exit_codes import OK, USAGE

if TYPE_CHECKING:
    from fuzz.corpus.distil import Distilled
    from fuzz.corpus.entry import Entry

CORPUS = "corpus/regressions"


def add(sub: Any) -> None:
    """Adds the command and its own."""
    summary = "look after folders of saved cases"
    made = command(sub, "corpus", distil, summary, "attnfuzz corpus distil corpus/regressions --out small")
    own = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    one = command(
        own,
        "distil",
        distil,
        "keep the fewest cases that cover all features and signatures; duplicates from several machines merge",
        "attnfuzz corpus distil machine1/regressions machine2/regressions --out corpus/merged",
    )
    one.add_argument("folders", nargs="*", metavar="FOLDER", help=f"folders of the corpus ({CORPUS})")
    one.add_argument("--out", required=True, metavar="DIR", help="where the kept files go: a new or an empty folder")
    one.add_argument("--pairs", action="store_true", help="cover all pairs of features too")
    one.add_argument("--json", action="store_true", help="print what is kept and dropped, and why, as JSON")


def distil(options: argparse.Namespace) -> int:
    """Exit code 2 where a file could not be read; the others are written all the same."""
    from msgspec.structs import replace

    from fuzz.corpus.distil import distil
    from fuzz.corpus.entry import CorpusError
    from fuzz.corpus.store import load_good, save

    folders, out = [Path(one) for one in options.folders or [CORPUS]], Path(options.out)
    if out.exists() and any(out.iterdir()):
        raise CorpusError(f"--out {out}: is not empty")
    entries: list[Entry] = []
    bad: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise CorpusError(f"{folder}: no such folder")
        good, lines = load_good(folder)
        entries += [replace(entry, name=str(folder / entry.name)) for entry in good]
        bad += lines
    result = distil(entries, pairs=options.pairs)
    names: set[str] = set()
    for one in result.kept:
        name = Path(one.entry.name).name
        name = name if name not in names else f"{Path(name).stem}_{one.entry.case.id}.json"
        names.add(name)
        save(replace(one.entry, name=name), out)
    print(_json(result) if options.json else _text(result))
    for line in bad:
        print(f"attnfuzz: {line}", file=sys.stderr)
    return USAGE if bad else OK


def _text(result: Distilled) -> str:
    kept = [f"kept     {one.entry.name}: {one.why}" for one in result.kept]
    dropped = [
        f"dropped  {one.entry.name}: {one.why}" + f": {one.instead}" * bool(one.instead) for one in result.dropped
    ]
    return "\n".join([*kept, *dropped, str(result)])


def _json(result: Distilled) -> str:
    from fuzz.core.case import to_json

    return to_json(
        {
            "kept": [{"file": one.entry.name, "why": one.why} for one in result.kept],
            "dropped": [
                {"file": one.entry.name, "why": one.why, "instead": one.instead} for one in result.dropped
            ],
            "signatures": result.signatures,
            "features": result.covered,
            "bound": result.bound,
        }
    ).rstrip()  # fmt: skip
