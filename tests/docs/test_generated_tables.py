"""Generated tables: every row reads its result; the age of a result follows from git, or is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import git_history, measurements
from docs.generate.__main__ import main
from docs.generate.prose import prose
from docs.generate.registry import GENERATORS, fill
from docs.generate.rows import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for rows in SECTIONS.values() for row in rows]


@pytest.fixture
def fresh():
    """No answer of git is remembered, before and after."""
    for function in (git_history.commits_since, git_history.ignored, git_history.last_change):
        function.cache_clear()
    yield
    for function in (git_history.commits_since, git_history.ignored, git_history.last_change):
        function.cache_clear()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.result}: {row.what[:40]}")
def test_a_row_reads_a_figure_and_measures_code_that_exists(row):
    assert any(character.isdigit() for character in row.shown)
    assert row.measured_machine != "unknown"
    for path in row.paths:
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_generator_gives_text(name):
    assert len(GENERATORS[name]()) > 200


def test_without_git_ages_are_unknown_and_nothing_fails(fresh, monkeypatch):
    monkeypatch.setattr(git_history, "git", lambda *arguments: None)
    assert {row.age for row in ROWS} == {"unknown"}
    assert "unknown" in measurements.page()


def test_without_a_git_command_there_is_no_output(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_history.git("status") is None


def test_code_that_changed_since_makes_a_row_older(fresh, monkeypatch):
    moved = "a" * 40
    monkeypatch.setattr(git_history, "git", lambda *arguments: f"{moved}\n{'b' * 40}\n")
    monkeypatch.setattr(git_history, "ignored", lambda: frozenset([moved]))
    assert ROWS[0].age == "older: 1 commit since"
    git_history.commits_since.cache_clear()
    monkeypatch.setattr(git_history, "git", lambda *arguments: f"{moved}\n")
    assert ROWS[0].age == "current"


def test_text_outside_of_the_marks_stays():
    page = "before\n<!-- generate: headlines -->\nold\n<!-- end -->\nafter\n"
    filled = fill(page)
    assert filled.startswith("before\n<!--") and filled.endswith("-->\nafter\n") and "old" not in filled
    assert fill(filled) == filled


def test_a_file_that_is_not_up_to_date_is_an_error(tmp_path, capsys):
    file = tmp_path / "page.md"
    file.write_text("<!-- generate: headlines -->\n<!-- end -->\n")
    assert main(["--check", str(file)]) == 1 and "not up to date" in capsys.readouterr().out
    assert main(["--write", str(file)]) == 0 and main(["--check", str(file)]) == 0


def test_columns_of_a_docstring_are_kept():
    shown = prose("First line.\n\n    name    what it is\n    other   another\n\nLast line.")
    assert shown == "First line.\n\n```text\nname    what it is\nother   another\n```\n\nLast line."
