"""The session's settings: one set of options for the command line and for pytest."""

from __future__ import annotations

import argparse

import pytest

from fuzz.generate import cases
from fuzz.session.settings import OPTIONS, SIZES, Settings, add_options, from_options


def test_the_sizes_are_the_generator_s() -> None:
    assert tuple(cases.SIZES) == SIZES


@pytest.mark.parametrize("prefix", ["", "fuzz-"])
def test_options_that_nobody_gives_are_the_defaults(prefix: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser.add_argument, prefix)
    parsed = parser.parse_args([f"--{prefix}device", "host"])
    assert from_options(lambda name: getattr(parsed, f"{prefix}{name}".replace("-", "_"))) == Settings()


def test_every_option_sets_its_field() -> None:
    given = {"target": ["a", "b"], "cases": 7, "seed": 3, "max-time": 2.5, "output-dir": "x", "no-minimize": True}
    settings = from_options(given.get, device="cuda")
    assert (settings.targets, settings.cases, settings.seed, settings.seconds) == (("a", "b"), 7, 3, 2.5)
    assert (settings.folder, settings.minimize_runs, settings.device) == ("x", 0, "cuda")
    assert {option.field for option in OPTIONS} <= set(Settings.__struct_fields__)
