"""The planted bugs of kernels.sdpa, found and minimised on a CPU by a session as users run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuzz.corpus.store import load_all
from fuzz.session.plan import plan
from fuzz.session.records import Reader
from fuzz.session.settings import Settings
from fuzz.session.worker import run


def session(folder: Path, target: str, cases: int, device: Any = "host") -> tuple[list, list]:
    """The records and the new entries of a small session."""
    (folder / "corpus").mkdir()
    wanted = Settings(
        targets=(target,),
        device=device,
        cases=cases,
        seed=3,
        size="small",
        folder=str(folder / "session"),
        corpus=str(folder / "corpus"),
    )
    run(wanted, plan(wanted), "w0")
    return list(Reader(folder / "session").new()), load_all(folder / "corpus")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_unmasked_row_statistics_store_is_found_and_minimised(tmp_path: Path) -> None:
    records, entries = session(tmp_path, "sdpa!unmasked_row_statistics", 8, "interpreter")
    assert any(record.outcome == "fail" for record in records)
    (entry,) = entries
    p = entry.case.problem
    assert entry.signature.kind == "wrote_outside"
    assert entry.runs <= 60
    assert p.batch == 1 and p.heads_q <= 2 and p.len_q <= 128 and p.len_k <= 128


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # 25 cases, with their kernels to compile: minutes on a machine that does other things too
@pytest.mark.parametrize(
    "name",
    [
        "kv_head_modulo",
        "tail_keys_not_masked",
        "causal_mask_missing_in_backward",
        "causal_off_by_one",
        "dq_scaled_twice",
    ],
)
def test_every_planted_bug_is_found_within_25_cases(tmp_path: Path, name: str) -> None:
    records, entries = session(tmp_path, f"sdpa!{name}", 25)
    assert any(record.outcome == "fail" for record in records)
    assert all(entry.case.problem.batch <= 2 and entry.runs <= 60 for entry in entries)
