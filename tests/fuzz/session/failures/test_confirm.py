"""Confirming: in fresh processes first, then after the cases that came before."""

from __future__ import annotations

from itertools import count

from runner_tools import case

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Verdict
from fuzz.session.failures.confirm import RUNS, RUNS_FLAKY, confirm

CASE = case("wrong")
OTHERS = tuple(case(f"other{i}") for i in range(9))


class Process:
    """A process in which CASE fails as `fails` says of the cases that have run in it."""

    def __init__(self, fails) -> None:
        self.fails, self.ran, self.fresh_ones = fails, list[Case](), 0

    def fresh(self) -> None:
        self.ran, self.fresh_ones = [], self.fresh_ones + 1

    def run(self, one: Case) -> Verdict:
        wrong = one == CASE and self.fails(self.ran)
        self.ran.append(one)
        return failed(one) if wrong else Verdict(one.id, "pass")


def failed(one: Case, outcome="fail") -> Verdict:
    return Verdict(one.id, outcome, (Finding("accuracy", "wrong", "O is wrong", "o"),))


def confirmed(process: Process, before=(), verdict=None):
    return confirm(CASE, verdict or failed(CASE), before, process.run, process.fresh)


def test_a_failure_of_its_own_shows_in_the_first_fresh_process() -> None:
    process = Process(lambda ran: not ran)
    found = confirmed(process, OTHERS)
    assert found.verdict and (found.failed, found.probed, found.after) == (1, 1, ())
    assert process.fresh_ones == 1


def test_a_failure_that_shows_now_and_then_is_confirmed_with_k_of_n() -> None:
    runs = count(1)
    found = confirmed(Process(lambda ran: next(runs) == 3))
    assert found.verdict and (found.failed, found.probed) == (1, 3)


def test_what_does_not_show_again_is_not_confirmed() -> None:
    process = Process(lambda ran: False)
    assert confirmed(process, OTHERS).verdict is None and process.fresh_ones == RUNS + 1
    flaky = confirmed(Process(lambda ran: False), verdict=failed(CASE, "flake"))
    assert (flaky.failed, flaky.probed) == (0, RUNS_FLAKY)


def test_the_cases_before_it_are_cut_down_to_those_that_it_needs() -> None:
    both = {OTHERS[2], OTHERS[7]}
    found = confirmed(Process(lambda ran: both <= set(ran)), OTHERS)
    assert found.verdict and found.after == (OTHERS[2], OTHERS[7])
    one = confirmed(Process(lambda ran: OTHERS[5] in ran), OTHERS)
    assert one.after == (OTHERS[5],)


def test_nothing_begins_once_the_time_is_up() -> None:
    process = Process(lambda ran: True)
    found = confirm(CASE, failed(CASE), OTHERS, process.run, process.fresh, late=lambda: True)
    assert found.verdict is None and not process.fresh_ones
