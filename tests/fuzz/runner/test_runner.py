"""What a target can do to its process, each through a real Runner. It costs one case, and leaves evidence."""

from __future__ import annotations

import re
import time

import pytest
from runner_tools import case, gone, kind, runner

from fuzz.runner import Limits, deadline


@pytest.fixture(scope="module")
def shared():
    with runner() as found:
        found.start()
        yield found


def test_a_case_may_be_handed_over_and_its_verdict_fetched_later(shared):
    with pytest.raises(RuntimeError, match="no case was submitted"):
        shared.collect()
    shared.submit(case("honest"))
    with pytest.raises(RuntimeError, match="one case at a time"):
        shared.submit(case("honest"))
    time.sleep(0.2)  # the child needs nobody to ask for it
    assert shared.collect().outcome == "pass"
    shared.submit(case("segfaults"))
    assert shared.collect().outcome == "crash"
    assert shared.run(case("honest")).outcome == "pass"


def test_a_case_that_nobody_fetches_does_not_keep_the_runner():
    with runner() as found:
        found.submit(case("sleeps"))
        found.close()
        assert found.run(case("honest")).outcome == "pass"


HANG_SECONDS = 60.0  # what a hang may cost: seconds on a quiet machine, and never the hour that the fakes sleep
HANGS = {  # innermost frame, whether it burns CPU
    "sleeps": ("sleeps", False),
    "spins_in_python": ("spins_in_python", True),
    "spins_holding_the_gil": ("_spin", True),
    "spins_without_the_gil": ("_spin", True),
    "hangs_in_backward": ("backward", False),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_confirmed_explained_and_costs_one_case(shared, name, record_property):
    assert shared.run(case("honest")).outcome == "pass"
    began = time.monotonic()
    verdict = shared.run(case(name))
    after = shared.run(case("honest"))
    cost = time.monotonic() - began
    record_property("seconds", round(cost, 2))
    print(f"{name}: {cost:.2f} s")
    frame, spins = HANGS[name]
    assert kind(verdict) == "hang: hang"
    assert (after.outcome, after.evidence) == ("pass", {})
    assert cost < HANG_SECONDS
    seen = verdict.evidence
    assert frame in verdict.findings[0].message
    assert frame in seen["python_stack"]
    assert frame in seen["python_stack_later"]
    assert (seen["cpu_share"] > 0.1) == spins
    assert (seen["phase"], seen["limit_seconds"]) == ("run", 0.5)
    assert 1.5 <= seen["elapsed_seconds"] == verdict.findings[0].numbers["elapsed"]


def test_a_hang_of_some_sizes_only_is_a_hang_of_those(shared):
    assert shared.run(case("hangs_above_100_keys", len_k=100)).outcome == "pass"
    assert kind(shared.run(case("hangs_above_100_keys", len_k=101))) == "hang: hang"


def test_a_slow_run_is_not_a_hang_and_is_expected_the_next_time(shared):
    first, second = shared.run(case("slow")), shared.run(case("slow"))
    assert first.outcome == second.outcome == "pass"
    assert re.fullmatch(r"slow: the kernel's run took \d\.\d\d s, its limit is 0\.5 s", first.reason)
    assert second.reason == ""


@pytest.mark.nightly
def test_a_run_that_ends_while_its_hang_is_looked_at_was_slow(monkeypatch):
    take = deadline.Sampler.take

    def slow_to_look(sampler):
        time.sleep(0.7)
        return take(sampler)

    monkeypatch.setattr(deadline.Sampler, "take", slow_to_look)
    with runner(execute="runner_judge:goes_on") as found:
        verdict = found.run(case("honest"))
    assert verdict.outcome == "pass"
    assert re.fullmatch(r"slow: the kernel's run took 2\.\d\d s, its limit is 0\.5 s", verdict.reason)


CRASHES = {
    "segfaults": ("crash: crash", "SIGSEGV (signal 11)", "string_at"),
    "aborts": ("crash: crash", "SIGABRT (signal 6)", "assertion `m_block < num_m_blocks' failed"),
    "exits": ("crash: crash", "exit code 3", ""),
    "killed": ("crash: killed", "SIGKILL (signal 9)", ""),
    "dies_before_its_grandchild": ("crash: killed", "SIGKILL (signal 9)", "grandchild"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_costs_one_case_and_says_how_it_ended(shared, name):
    verdict = shared.run(case(name))
    what, ended, said = CRASHES[name]
    assert kind(verdict) == what
    assert verdict.evidence["exit"] == ended
    assert verdict.evidence["phase"] == "run"
    assert said in verdict.evidence.get("stderr", "")
    assert shared.run(case("honest")).outcome == "pass"


def test_the_last_line_of_an_abort_is_the_target_s_own(shared):
    verdict = shared.run(case("aborts"))
    assert verdict.evidence["last_line"] == "fake.cu:12: assertion `m_block < num_m_blocks' failed"


def test_sys_exit_ends_the_case_and_not_the_child(shared):
    shared.start()
    pid = shared.pid
    verdict = shared.run(case("calls_sys_exit"))
    assert kind(verdict) == "crash: crash"
    assert "SystemExit(4)" in verdict.findings[0].message
    assert "calls_sys_exit" in verdict.evidence["python_stack"]
    assert shared.pid == pid


def test_memory_above_the_cap_ends_the_case_and_a_leak_the_child(record_property):
    with runner(limits=Limits(memory=768 << 20, floor=30.0)) as small:
        verdict = small.run(case("allocates_without_end"))
        record_property("resident_mib", verdict.evidence["resident_bytes"] >> 20)
        assert kind(verdict) == "crash: out_of_memory"
        assert (768 << 20) < verdict.evidence["resident_bytes"] < (3 << 30)
        # A leak stays below the cap: whoever comes next is not charged for it.
        leaks = [small.run(case("leaks")) for _ in range(14)]
        assert {verdict.outcome for verdict in leaks} == {"pass"}
        (note,) = [v.evidence["between_cases"] for v in leaks if v.evidence]
        assert "was replaced; its last case was " in note


def test_megabytes_of_output_do_not_block(shared):
    verdict = shared.run(case("prints_megabytes"))
    assert verdict.outcome == "pass"
    assert shared.run(case("honest")).outcome == "pass"


def test_grandchildren_that_hold_the_connection_are_killed_with_the_child(shared):
    assert shared.run(case("leaves_a_grandchild")).outcome == "pass"
    grandchild = int(shared._child.zygote.output().split("grandchild")[1])
    assert not gone(grandchild, 0.1)
    assert shared.run(case("honest")).outcome == "pass"
    shared.close()
    assert gone(grandchild)


PY_SPIES = {"missing": (None, "py-spy: not installed"), "not allowed": ("false", "false: exit code 1")}


@pytest.mark.parametrize("state", PY_SPIES)
def test_without_py_spy_faulthandler_tells_even_when_the_gil_is_held(shared, monkeypatch, state):
    program, trouble = PY_SPIES[state]
    monkeypatch.setattr("fuzz.runner.stack_dump.find", lambda name: program)
    verdict = shared.run(case("spins_holding_the_gil"))
    assert kind(verdict) == "hang: hang"
    assert verdict.evidence["stack_source"] == "faulthandler"
    assert verdict.evidence["stack_trouble"] == trouble
    assert "spins_holding_the_gil" in verdict.evidence["python_stack"]
    assert ", in _spin (" in verdict.findings[0].message
