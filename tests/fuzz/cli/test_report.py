"""`attnfuzz report`: what it writes, and mistakes of users in one line."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

import dashboard_ledger as made
import pytest

from fuzz.cli.exit_codes import OK, USAGE
from fuzz.cli.main import main


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    made.fill(path)
    return str(path)


def test_the_site_and_the_checks_are_written(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("of a step before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    site, junit = tmp_path / "site", tmp_path / "results.xml"
    assert main(["report", "--ledger", ledger, "--out", str(site), "--junit", str(junit), "--github"]) == OK
    out = capsys.readouterr().out
    assert f"night {made.NIGHTS[3]}, 7 signatures" in out and "::error title=" in out
    assert (site / "index.html").is_file() and (site / "data" / "news.json").is_file()
    assert Xml.parse(junit).getroot().get("failures") == "4"
    assert summary.read_text().startswith("of a step before\n## attnfuzz, night")


def test_timelines_of_a_build_before_are_shown(ledger: str, tmp_path: Path) -> None:
    picture = tmp_path / "timelines" / f"{made.case_of(made.LOCK).id}.svg"
    picture.parent.mkdir()
    (tmp_path / ".attnfuzz-site").touch()
    picture.write_text("<svg/>")
    assert main(["report", "--ledger", ledger, "--out", str(tmp_path)]) == OK
    page = (tmp_path / "signature" / f"{made.HANG.id}.html").read_text()
    assert f'src="../timelines/{picture.name}"' in page and picture.is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "needs --out, --junit or --github"),
        (("--github", "--ledger", "none"), "this command needs one"),
        (("--github", "--ledger", "nowhere.sqlite"), "there is none"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == USAGE
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_folder_that_is_not_a_site_is_a_mistake(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert main(["report", "--ledger", ledger, "--out", str(tmp_path)]) == USAGE
    assert "holds something else" in capsys.readouterr().err
