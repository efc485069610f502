"""Reference of the command line and of pytest's options, from the parsers."""

from __future__ import annotations

import argparse

from docs.generate.prose import cell
from fuzz import pytest_plugin
from fuzz.cli.parsers import parser as whole_parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _option(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else None
    value = metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    return f"`{', '.join(action.option_strings)}{f' {value}' if action.nargs != 0 else ''}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if not action.help or "%" not in action.help:
        return action.help or ""
    return argparse.HelpFormatter(parser.prog)._expand_help(action)


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    lines = [f"## {name}", "", (parser.description or "").strip(), "", "```text", _usage(parser), "```", ""]
    actions = [a for a in parser._actions if a.help != argparse.SUPPRESS and a.dest != "help"]
    if actions:
        lines += ["| option | meaning |", "| --- | --- |"]
        lines += [f"| {cell(_option(a))} | {cell(_help(parser, a))} |" for a in actions]
    examples = (parser.epilog or "").partition("exit codes:")[0].strip()
    if examples:
        lines += ["", "```text", examples, "```"]
    return "\n".join(lines).rstrip()


def commands() -> str:
    """A section for each command of attnfuzz, and for each of its own."""
    sections = []
    for name, parser in _subparsers(whole_parser()).items():
        nested = _subparsers(parser)
        sections += [_section(f"{name} {own}", its) for own, its in nested.items()] or [_section(name, parser)]
    return "\n\n".join(sections)


class _Options:
    """Stand-in for pytest's parser, which keeps what a plugin adds."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(prog="pytest fuzz", add_help=False)

    def getgroup(self, *_: str) -> _Options:
        """Every group is this one."""
        return self

    def addoption(self, *names: str, **settings: object) -> None:
        """Keeps an option."""
        self.parser.add_argument(*names, **settings)  # type: ignore[arg-type]


def pytest_options() -> str:
    """The options that the plugin adds to pytest."""
    found = _Options()
    pytest_plugin.pytest_addoption(found)  # type: ignore[arg-type]
    rows = [f"| {cell(_option(a))} | {cell(_help(found.parser, a))} |" for a in found.parser._actions]
    return "\n".join(["| option | meaning |", "| --- | --- |", *rows])
