"""Records wait until a health check was right; what a broken device has said since the last one is forgotten."""

from __future__ import annotations

import pytest
from scripted_cluster import record

from fuzz.core.case import Case
from fuzz.core.target import Device
from fuzz.core.verdict import Finding, Verdict
from fuzz.fleet.health import Health, Unfit, cases
from fuzz.fleet.outbox import Outbox
from fuzz.runner import RunnerError
from fuzz.session.plan import Shard

SHARD = Shard("t", 0, 10, 0)


def right(case: Case) -> Verdict:
    return Verdict(case.id, "pass")


def wrong(case: Case) -> Verdict:
    return Verdict(case.id, "fail", (Finding("accuracy", "wrong", "O is wrong", "O"),))


def test_records_go_once_the_device_was_found_right() -> None:
    outbox = Outbox()
    health = Health("torch.sdpa.math", outbox, "host", every=0.0)
    assert not health.due, "nothing waits"
    outbox.add(record("w0", SHARD, 0))
    assert health.due and outbox.take() == ((), ())
    health.look(right)
    records, faults = outbox.take()
    assert [one.index for one in records] == [0] and not faults
    assert outbox.take() == ((), ()) and not health.due


def test_a_wrong_answer_and_none_at_all_are_reasons_and_cost_what_waits() -> None:
    def none(case: Case) -> Verdict:
        raise RunnerError("cuda:0: not done opening cuda:0 after 60 s\nand more")

    outbox = Outbox()
    health = Health("torch.sdpa.math", outbox, "cuda")
    outbox.add(record("w0", SHARD, 0, fails=True))
    outbox.add(record("w0", SHARD, 1))
    with pytest.raises(Unfit, match="a wrong answer to the health check: fail: O is wrong"):
        health.look(wrong)
    with pytest.raises(Unfit, match=r"no answer to the health check: cuda:0: not done opening cuda:0 after 60 s$"):
        health.look(none)
    dropped, suspect = outbox.drop()
    assert dropped == 2 and suspect is not None and suspect.index == 0
    assert outbox.take() == ((), ())


def test_a_crash_makes_a_check_due_at_once() -> None:
    outbox = Outbox()
    health = Health("torch.sdpa.math", outbox, "host", every=1000.0)
    outbox.add(record("w0", SHARD, 0, fails=True))
    assert not health.due
    crashed = record("w0", SHARD, 1, fails=True)
    outbox.add(
        type(crashed)(**{name: getattr(crashed, name) for name in crashed.__struct_fields__} | {"outcome": "crash"})
    )
    assert health.due


def test_a_fleet_without_a_check_sends_records_all_the_same() -> None:
    outbox = Outbox()
    outbox.add(record("w0", SHARD, 0))
    Health("", outbox, "emulator").look(wrong)
    assert len(outbox.take()[0]) == 1


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_the_checks_cases_are_ones_that_the_target_takes(device: Device) -> None:
    from fuzz.core.refusal import refusal
    from fuzz.targets.registry import load

    target = load("torch.sdpa.math", (), device)
    found = cases("torch.sdpa.math", device)
    assert found and all(refusal(target, case) is None for case in found)
