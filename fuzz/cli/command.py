"""A command of `attnfuzz` as argparse has it: one summary, options, examples, exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from fuzz.cli.exit_codes import SUMMARY


def command(
    sub: Any, name: str, action: Callable[[argparse.Namespace], int], summary: str, *examples: str
) -> argparse.ArgumentParser:
    """A command with its one-line summary; `examples` stand at the end of its help."""
    shown = "\n".join(["example:" if len(examples) == 1 else "examples:", *(f"  {line}" for line in examples)])
    made = sub.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"{shown}\n\n{SUMMARY}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.set_defaults(command=action)
    return made


def every(sub: Any) -> Iterator[argparse.ArgumentParser]:
    """The commands of `sub`, and theirs."""
    for one in sub.choices.values():
        yield one
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from every(action)
