"""Command line: print a generated table, or renew or check those of a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docs.generate.registry import GENERATORS, fill


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 1 where `--check` finds a table that is not up to date."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(GENERATORS), help="print this table")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="renew the tables of a file")
    parser.add_argument("--check", type=Path, metavar="FILE.md", help="fail where a table of a file is not up to date")
    options = parser.parse_args(arguments)
    if options.name:
        print(GENERATORS[options.name]())
    elif options.write:
        options.write.write_text(fill(options.write.read_text()))
    elif options.check:
        text = options.check.read_text()
        if fill(text) != text:
            print(f"{options.check} is not up to date: python -m docs.generate --write {options.check}")
            return 1
    else:
        parser.error("a name, --write or --check")
    return 0


if __name__ == "__main__":
    sys.exit(main())
