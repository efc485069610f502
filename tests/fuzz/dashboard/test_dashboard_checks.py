"""The newest night as JUnit XML and for GitHub."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import dashboard_ledger as made
import msgspec

from fuzz.dashboard.checks.github import summary, workflow_commands
from fuzz.dashboard.checks.junit import junit
from fuzz.dashboard.model import Site, StageEnd


def test_each_signature_is_a_test_case_of_its_target(site: Site) -> None:
    root = Xml.fromstring(junit(site))
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {made.MATH, made.LOCK, made.HOSTILE}
    math = {case.get("name"): [part.tag for part in case] for case in suites[made.MATH]}
    assert {name.split("[")[1][:8]: parts for name, parts in math.items() if "[" in name} == {
        made.BACK.id: ["failure"],
        made.OLD.id: ["failure"],
        made.FLAKY.id: ["skipped"],  # not met in the newest night
        made.SAID.id: ["skipped"],  # expected
        made.GONE.id: [],
    }
    assert "80 of 90 cases without a failure" in math
    assert (root.get("failures"), root.get("skipped"), root.get("tests")) == ("4", "2", "10")


def test_a_failure_holds_its_message_and_the_command(site: Site) -> None:
    root = Xml.fromstring(junit(site))
    failures = {case.get("name", "").split("[")[-1][:8]: case.find("failure") for case in root.iter("testcase")}
    failure = failures[made.NEW.id]
    assert failure is not None and failure.get("message") == made.MESSAGE and failure.get("type") == "wrong"
    assert "attnfuzz repro " in (failure.text or "") and "cat > " in (failure.text or "")


def test_control_characters_do_not_spoil_the_xml(site: Site) -> None:
    bug = msgspec.structs.replace(site.signatures[0], message="a\x00b\x1b[31m\ud800")
    root = Xml.fromstring(junit(msgspec.structs.replace(site, signatures=(bug,))))
    assert any("a\ufffdb\ufffd[31m" in (failure.get("message") or "") for failure in root.iter("failure"))


def test_the_summary_is_markdown_in_which_names_stay_text(site: Site) -> None:
    text = summary(site)
    assert "**Regressed**: torch\\.sdpa" in text.replace("torch.sdpa", "torch\\.sdpa")
    assert "&lt;script&gt;" in text and "<script>" not in text and "<img" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows) and len(rows) == 1 + site.news.open
    assert "torch 2.12.0 → 2.13.0" in text


def test_a_stage_that_failed_is_in_the_summary(site: Site) -> None:
    ended = (StageEnd("tests", "failed", "exit code 1: see a_b"), StageEnd("score", "ok", ""))
    text = summary(msgspec.structs.replace(site, news=msgspec.structs.replace(site.news, stages=ended)))
    assert "**Stage tests failed**: exit code 1: see a\\_b" in text and "score" not in text


def test_annotations_are_one_line_each_that_ends_no_command_early(site: Site) -> None:
    lines = workflow_commands(site)
    levels = [line.split(" ")[0] for line in lines]
    assert levels.count("::error") == 3 and levels.count("::warning") == 1  # new, new, regressed; open and met
    hostile = next(line for line in lines if made.NEW.id in line)
    assert "\n" not in hostile and "%250A" in hostile
    assert hostile.split("::")[1].count(",") == 0  # of the title: none would be a second property
