"""JUnit XML of the newest night: a suite for each target, a test case for each signature that it has.

A signature that was met and is not expected is a failure; one that is expected, or was not met this night, is skipped;
one that is fixed passes. A target has one more test case, which passes: its cases that show no signature.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from fuzz.dashboard.collect.news import OPEN
from fuzz.dashboard.model import SignatureItem, Site, TargetRan
from fuzz.dashboard.render.reproduce import command

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(site: Site, files: tuple[str, ...] = ()) -> bytes:
    """The report. files: of users' own targets, for the commands."""
    root = Xml.Element("testsuites", name=_text(f"attnfuzz, night {site.news.night}"))
    for ran in site.news.targets:
        bugs = [bug for bug in site.signatures if bug.target == ran.target]
        _suite(root, site.news.night, ran, bugs, files)
    for name in ("tests", "failures", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True)


def met_in(bug: SignatureItem, night: str) -> int:
    """Cases of a night that it explains."""
    return sum(one.met for one in bug.met_in if one.night == night)


def _suite(root: Xml.Element, night: str, ran: TargetRan, bugs: list[SignatureItem], files: tuple[str, ...]) -> None:
    suite = Xml.SubElement(root, "testsuite", name=_text(ran.target), time=f"{ran.seconds:.3f}", errors="0")
    rest = f"{ran.cases - ran.failing} of {ran.cases} cases without a failure"
    Xml.SubElement(suite, "testcase", classname=_class(ran.target), name=rest, time=f"{ran.seconds:.3f}")
    failures = skipped = 0
    for bug in bugs:
        case = Xml.SubElement(suite, "testcase", classname=_class(bug.target), name=_text(f"{bug.title} [{bug.uid}]"))
        met = met_in(bug, night)
        if bug.state in OPEN and met:
            failures += 1
            failure = Xml.SubElement(case, "failure", type=_text(bug.kind), message=_text(bug.message))
            failure.text = _text(_details(bug, met, files))
        elif bug.state != "fixed":
            skipped += 1
            why = f"expected: {bug.link}" if bug.state == "expected" else f"{bug.state}, not met in night {night}"
            Xml.SubElement(case, "skipped", message=_text(why))
    suite.set("tests", str(len(bugs) + 1))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))


def _details(bug: SignatureItem, met: int, files: tuple[str, ...]) -> str:
    lines = [
        f"{bug.state}; met by {met} cases of this night; its saved case fails in {bug.failed} of {bug.runs} runs",
        f"on {', '.join(bug.archs)}",
        f"needs {', '.join(bug.needs)}" if bug.needs else "",
        command(bug, files),
    ]
    return "\n".join(line for line in lines if line)


def _class(target: str) -> str:
    return _text(f"attnfuzz.{target}")


def _text(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
