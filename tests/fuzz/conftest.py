"""Fixtures of every test of the harness: a cache of its own, builds of the toy recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.compiling import Build, Cache

RECIPES = Path(__file__).parents[1] / "fakes" / "recipes"


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def toy():
    def build(name: str, arch: str = "sm_100a", **options) -> Build:
        return Build.of(f"toy_kernels:{name}", options, arch)

    return build
