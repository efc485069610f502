"""Claims: one process looks into a cause at a time, and what a killed one has left is taken over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzz.session.failures import claims
from fuzz.session.failures.claims import Claims

KEY = "0123abcd"


@pytest.fixture
def killed(tmp_path: Path) -> Claims:
    """Claims of a session whose worker was killed while it looked into a cause."""
    made = Claims(tmp_path)
    assert made.take(KEY)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    path = tmp_path / "claims" / KEY
    claim = msgspec.json.decode(path.read_bytes(), type=claims.Claim)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(claim, pid=process.pid)))
    return made


def test_one_worker_looks_into_a_cause_and_the_others_leave_it(tmp_path):
    made = Claims(tmp_path)
    assert made.take(KEY) and not Claims(tmp_path).take(KEY)
    made.release(KEY)
    assert Claims(tmp_path).take(KEY), "another failure of the same raw cause may come"


def test_a_claim_of_a_process_that_is_gone_is_taken_over(killed):
    assert killed.take(KEY) and not killed.take(KEY)


def test_another_process_with_the_same_number_is_not_the_owner(killed, tmp_path):
    claim = msgspec.json.decode((tmp_path / "claims" / KEY).read_bytes(), type=claims.Claim)
    assert msgspec.structs.replace(claim, pid=1, born=claim.born - 3600).abandoned
