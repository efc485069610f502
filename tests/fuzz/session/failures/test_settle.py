"""Settling: each cause once, confirmed and minimised after the cases; nothing is lost, whatever ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from runner_tools import FAKES

from fuzz.core.case import Case
from fuzz.core.signature import signature
from fuzz.core.verdict import Finding, Signature, Verdict
from fuzz.corpus.store import load_all
from fuzz.runner import HarnessError
from fuzz.session.failures.claims import Claims
from fuzz.session.failures.look_into import NOT_LOOKED_INTO, Investigator
from fuzz.session.failures.settle import Settler, save_rest
from fuzz.session.records import Reader, Record, Recorder, Settled, Settlement, settlement
from fuzz.session.settings import Settings
from oracles.masks import Causal, Window
from oracles.problem import Problem


def case(**changed) -> Case:
    plain = Problem((24,), (24,), 2, 1, 16, 16, "float32")
    return Case("fake.honest", msgspec.structs.replace(plain, **changed))


CAPPED = [case(softcap=30.0, heads_q=heads, mask=mask) for heads in (2, 4) for mask in (Causal(), Window(3, 0))]
SCALED = [case(scale=0.5, lengths_q=(length,)) for length in (24, 17)]


class Session:
    """A session's folder with what one worker has met, and a kernel that is wrong where `wrong` says so."""

    def __init__(self, folder: Path, wrong: Callable[[Case], str]) -> None:
        (folder / "corpus").mkdir(parents=True)
        self.folder, self.wrong = folder / "session", wrong
        self.settings = Settings(
            targets=("fake.honest",), files=FAKES, folder=str(self.folder), corpus=str(folder / "corpus")
        )
        self.runs, self.faults = list[Case](), list[Exception]()
        self.seconds: float | None = None
        self.raises: BaseException | None = None
        self.after = 0  # runs until it is raised

    def verdict(self, one: Case) -> Verdict:
        tensor = self.wrong(one)
        finding = Finding("accuracy", "wrong", f"{tensor} is wrong", tensor)
        return Verdict(one.id, "fail", (finding,)) if tensor else Verdict(one.id, "pass")

    def meet(self, *cases: Case, before: tuple[Case, ...] = ()) -> None:
        recorder = Recorder(self.folder, "w0")
        for one in cases:
            found = self.verdict(one)
            record = Record("w0", "shard", one.target, one.id, found.outcome, {})
            if found.bad:
                record = msgspec.structs.replace(
                    record, status="met", signature=signature(one, found), case=one, verdict=found, before=before
                )
            recorder.add(record)
        recorder.close()

    def run(self, one: Case) -> Verdict:
        self.runs.append(one)
        if self.raises is not None and len(self.runs) > self.after:
            raise self.raises
        return self.verdict(one)

    def settle(self, name: str = "w0") -> list[Settled]:
        return self.settler(name).work()

    def settler(self, name: str = "w0") -> Settler:
        return Settler(
            self.settings,
            name,
            run=self.run,
            fresh=lambda: None,
            corpus=[],
            seconds=lambda: self.seconds,
            fault=lambda _, error: self.faults.append(error),
        )

    def statuses(self) -> list[str]:
        return [record.status for record in settlement(self.folder).apply(Reader(self.folder).new())]


def softcap_or_scale(one: Case) -> str:
    return "o" if one.problem.softcap or one.problem.scale is not None else ""


def softcap(one: Case) -> str:
    return "o" if one.problem.softcap else ""


def test_the_failures_of_one_cause_are_minimised_once(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED, case())
    (one,) = session.settle()
    assert session.statuses() == ["new", "again", "again", "again", ""]
    assert one.status == "new" and (one.failed, one.probed) == (5, 5) and "softcap" in one.signature.features
    (entry,) = load_all(tmp_path / "corpus")
    assert entry.case.problem.lengths_q[0] < 24 and one.finding == str(tmp_path / "corpus" / entry.name)
    spent = len(session.runs)
    assert session.settle("w1") == [] and len(session.runs) == spent, "the next worker has nothing left to do"


def test_two_causes_with_one_root_tensor_stay_two(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap_or_scale)
    session.meet(*CAPPED, *SCALED)
    found = [one for one in session.settle() if one.status == "new"]
    needs = [set(one.signature.features) & {"softcap", "scale"} for one in found]
    assert sorted(map(sorted, needs)) == [["scale"], ["softcap"]]
    assert session.statuses().count("new") == 2


def test_the_masks_kind_tells_no_two_causes_apart(tmp_path: Path) -> None:
    """A kernel that is wrong for any mask: one finding, whose mask is written out."""
    masks = (Causal(), Window(3, 0), Causal("bottom_right"))
    session = Session(tmp_path, lambda one: "o" if "full" not in str(one.problem.mask).lower() else "")
    session.meet(*(case(mask=mask) for mask in masks))
    found = session.settle()
    assert [one.status for one in found].count("new") == 1 and set(session.statuses()) == {"new", "again"}
    (entry,) = load_all(tmp_path / "corpus")
    assert type(entry.case.problem.mask).__name__ == "Tokens" and "masked" in entry.signature.features


def test_a_failure_that_does_not_show_again_goes_to_quarantine(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED)
    session.wrong = lambda one: ""
    (one,) = session.settle()
    assert one.status == "unconfirmed" and one.note == "failed in 1 of 5 runs: not seen again in a fresh process"
    assert not load_all(tmp_path / "corpus") and not (session.folder / "findings").exists()
    assert [entry.case for entry in load_all(session.folder / "quarantine")] == [session.runs[0]]
    assert set(session.statuses()) == {"unconfirmed"}


def test_a_failure_that_needs_a_case_before_it_is_saved_with_it(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    culprit, others = case(heads_q=8), (case(dim=32, dim_v=32), case(dim=8, dim_v=8))
    session.meet(CAPPED[0], before=(others[0], culprit, others[1]))
    ran: list[Case] = []
    session.wrong = lambda one: "o" if one.problem.softcap and culprit in ran else ""

    def run(one: Case) -> Verdict:
        found = session.verdict(one)
        ran.append(one)
        return found

    settler = Settler(session.settings, "w0", run, ran.clear, [], lambda: None, lambda *_: None)
    (one,) = settler.work()
    assert one.status == "new" and one.note == "fails only after 1 other case in the same process, not alone"
    (entry,) = load_all(tmp_path / "corpus")
    assert entry.after == (culprit,) and entry.case == CAPPED[0]


def test_what_is_not_looked_into_in_time_is_saved_as_it_was_met(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED)
    session.seconds = 0.0
    assert session.settle() == [] and not session.runs
    (one,) = save_rest(session.folder, "host", list(Reader(session.folder).new()))
    assert (one.status, one.note) == ("new", NOT_LOOKED_INTO)
    (entry,) = load_all(session.folder / "findings")
    assert entry.source.endswith("not minimised") and entry.case in CAPPED
    assert sorted(session.statuses()) == ["again"] * 3 + ["new"]
    assert save_rest(session.folder, "host", list(Reader(session.folder).new())) == []


@pytest.mark.parametrize("after", [0, 5], ids=["confirming", "minimising"])
def test_ctrl_c_saves_the_failure_at_hand_and_ends(tmp_path: Path, after: int) -> None:
    session = Session(tmp_path, softcap_or_scale)
    session.meet(*CAPPED, *SCALED)
    session.raises, session.after = KeyboardInterrupt(), after
    with pytest.raises(KeyboardInterrupt):
        session.settle()
    assert session.statuses().count("new") == 1 and not list((session.folder / "claims").iterdir())
    save_rest(session.folder, "host", list(Reader(session.folder).new()))
    assert "met" not in session.statuses()


def test_a_fault_of_the_harness_saves_the_failure_as_it_was_met(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED)
    session.raises = HarnessError("KeyError: 'x'")
    (one,) = session.settle()
    assert one.note.startswith("saved as it was met: the harness failed") and len(session.faults) == 1


def test_a_cause_that_another_worker_looks_into_is_left_to_it(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED)
    for record in Reader(session.folder).new():
        assert record.signature is not None
        key = msgspec.structs.replace(record.signature, features=(), place="").id
    assert Claims(session.folder).take(key)
    assert session.settle() == [] and set(session.statuses()) == {"met"}


def test_what_a_session_before_settled_hides_nothing_of_the_next_one(tmp_path: Path) -> None:
    session = Session(tmp_path, softcap)
    session.meet(*CAPPED)
    session.settle()
    (session.folder / "session.json").write_text(f'{{"settings": {{}}, "machine": {{}}, "since": {time.time()}}}')
    recorder = Recorder(session.folder, "w1")
    for record in list(Reader(session.folder).new()):
        recorder.add(msgspec.structs.replace(record, worker="w1", shard="other", at=time.time()))
    recorder.close()
    (one,) = session.settle("w1")
    assert (one.shard, one.status) == ("other", "new")


def test_a_failure_that_is_one_with_two_findings_makes_them_one(tmp_path: Path) -> None:
    """Out of bounds on k and a race on dk look apart, until dk is met out of bounds too."""

    def told(at: int, status: str, finding: str, joins: tuple[str, ...] = ()) -> Settled:
        found = Signature("fake.honest", "wrong", "accuracy", ("o",), features=(f"f{at}",))
        return Settled("w0", "shard", f"case{at}", status, found, found, finding, joins=joins, at=float(at))

    ended = Settlement([told(1, "new", "k"), told(2, "new", "race"), told(3, "again", "k", ("race",))])
    assert [(one.status, one.finding) for one in ended.settled] == [("new", "k"), ("again", "k"), ("again", "k")]


def test_only_the_failure_in_hand_is_held_with_its_verdict(tmp_path, monkeypatch):
    session = Session(tmp_path, lambda one: "o" if one.problem.softcap else "")
    session.meet(*CAPPED)
    seen = []
    look_into = Investigator.look_into

    def looked(self, record):
        seen.append(record)
        return look_into(self, record)

    monkeypatch.setattr(Investigator, "look_into", looked)
    settler = session.settler()
    assert settler.work()
    assert [record.verdict for record in settler._met] == [None] * len(CAPPED)
    assert seen and all(record.verdict == session.verdict(record.case) for record in seen)
