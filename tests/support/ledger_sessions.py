"""Sessions' folders put together by hand, for tests of the ledger."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Outcome, Signature, Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import save
from fuzz.session.environment import Environment
from fuzz.session.records import Record, Recorder, Session, Settled
from oracles.problem import Problem

DAY = 86400.0
BEGAN = 1_700_000_000.0
DQ = Signature("t", "wrong", "accuracy", ("dq",), features=("softcap",))
ENVIRONMENT = Environment("host", {"python": "3.11", "torch": "2.13.0"}, "c0ffee", False, 1.0, {"t": "sm_90a"})


def case_of(index: int, target: str = "t") -> Case:
    """A case that no other index has."""
    return Case(target, Problem((8 + index,), (8,), 1, 1, 8, 8, "float32"))


class SessionFolder:
    """A session of target `t`, one shard, in a folder.

    day  begins so many days after the first one
    """

    def __init__(self, path: Path, day: int = 0, cases: int = 10, **changed: object) -> None:
        self.path, self.began = path, BEGAN + day * DAY
        settings = {"targets": ["t"], "device": "host", "cases": cases, "seed": 7, "folder": str(path), "corpus": ""}
        session = Session(settings, {"cpu": "model", "cpus": 2}, self.began, {}, f"id{day}", f"night{day}", ENVIRONMENT)
        path.mkdir(parents=True, exist_ok=True)
        session = msgspec.structs.replace(session, **changed)
        (path / "session.json").write_bytes(msgspec.json.encode(session))

    def passes(self, *indices: int, worker: str = "w0") -> None:
        """Cases that pass."""
        self._add([self._record(index, "pass", worker) for index in indices], worker)

    def fails(self, index: int, signature: Signature = DQ, outcome: Outcome = "fail", **changed: object) -> Record:
        """A case that fails, as it was met."""
        verdict = Verdict(case_of(index).id, outcome, reason="why", evidence={"gpu": "busy"})
        record = self._record(index, outcome, "w0")
        record = msgspec.structs.replace(
            record, signature=signature, status="met", case=case_of(index), verdict=verdict, at=self.began + 1
        )
        record = msgspec.structs.replace(record, **changed)
        self._add([record], "w0")
        return record

    def settles(self, record: Record, signature: Signature = DQ, **changed: object) -> None:
        """A failure that was looked into: saved, and minimised."""
        assert record.case is not None and record.signature is not None
        entry = Entry.as_met(record.case, record.outcome, signature, device="host")
        where = str(save(entry, self.path / "findings"))
        one = Settled(
            "w0", record.shard, record.case_id, "new", record.signature, signature, where, "dQ is wrong",
            failed=5, probed=5, minimal=True, at=self.began + 2,
        )  # fmt: skip
        recorder = Recorder(self.path, "w0", "settled")
        recorder.add(msgspec.structs.replace(one, **changed))
        recorder.close()

    def _record(self, index: int, outcome: Outcome, worker: str) -> Record:
        seconds = {"draw": 0.25, "run": 0.5, "total": 1.0}
        features = ("gqa", "softcap") if index % 2 else ("gqa",)
        return Record(
            worker, "t-0", "t", case_of(index).id, outcome, seconds, index, features, ratio=0.125 * (index % 8)
        )

    def _add(self, records: list[Record], worker: str) -> None:
        recorder = Recorder(self.path, worker)
        for record in records:
            recorder.add(record)
        recorder.close()
