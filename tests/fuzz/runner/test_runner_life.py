"""A Runner's own life: it does not outlive its parent, loses no case that had not begun, says why it cannot start."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from runner_tools import case, gone, kill_after, kind, runner

from fuzz.core.case import Case
from fuzz.runner import HarnessError, Limits, Runner, RunnerError
from oracles.problem import Problem

ROOT = Path(__file__).parents[3]
SCRIPT = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may have it ignored
sys.path[:0] = [{root!r}, {here!r}]
from runner_tools import case, runner
from fuzz.runner import Limits
names = {names!r}
runners = [runner(limits=Limits(floor=60.0)) for name in names]
for found in runners:
    found.start()
print(*(found.pid for found in runners), flush=True)
for found, name in zip(runners[1:], names[1:]):
    threading.Thread(target=found.run, args=(case(name),), daemon=True).start()
runners[0].run(case(names[0]))
"""


@pytest.fixture(scope="module")
def shared():
    with runner() as found:
        yield found


def parent_of(*names: str) -> tuple[subprocess.Popen, list[int]]:
    """A `python -c` that owns a Runner for each of the fakes, all running, and their children's pids."""
    text = SCRIPT.format(root=str(ROOT), here=str(ROOT / "tests" / "support"), names=names)
    parent = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(0.5)
    assert not any(gone(child, 0.05) for child in children)
    return parent, children


def test_children_that_sleep_or_spin_or_are_stopped_die_with_a_parent_that_was_killed(record_property):
    parent, children = parent_of("sleeps", "spins_holding_the_gil", "spins_in_python")
    os.kill(children[0], signal.SIGSTOP)
    parent.kill()
    began = time.monotonic()
    assert all(gone(child, 2.0) for child in children)
    record_property("seconds", round(time.monotonic() - began, 3))
    parent.wait()


def test_an_interrupt_leaves_no_process_behind():
    parent, (child,) = parent_of("sleeps")
    parent.send_signal(signal.SIGINT)
    assert parent.wait(5.0) != 0
    assert gone(child, 0.5)


def test_a_child_killed_from_outside_costs_the_case_that_it_ran(shared):
    shared.run(case("honest"))
    pid = shared.pid
    began = time.monotonic()
    kill_after(pid, 0.2)
    verdict = shared.run(case("sleeps"))
    assert kind(verdict) == "crash: killed"
    assert 0 < verdict.evidence["elapsed_seconds"] < time.monotonic() - began  # it sleeps for longer
    assert shared.run(case("honest")).outcome == "pass"
    assert shared.pid != pid


def test_a_child_killed_between_cases_costs_none_and_is_not_hidden(shared):
    shared.run(case("honest"))
    os.kill(shared.pid, signal.SIGKILL)
    verdict = shared.run(case("honest"))
    assert verdict.outcome == "pass"
    assert verdict.evidence["between_cases"].startswith("the child ended between cases, SIGKILL (signal 9); ")
    assert case("honest").id in verdict.evidence["between_cases"]


def test_a_copy_that_comes_back_from_the_call_answers_for_no_case():
    """The target forks, and both processes return: the second one while the next case runs."""
    with runner() as found:
        verdict = found.run(case("forks_and_returns"))
        assert verdict.outcome == "crash" and "the copy came back" in verdict.findings[0].message
        pid = found.pid
        for length in range(4, 9):
            verdict = found.run(case("honest", len_k=length))
            assert (verdict.outcome, verdict.case_id) == ("pass", case("honest", len_k=length).id)
        assert found.pid == pid


def daemons() -> set[int]:
    return {process.pid for process in psutil.process_iter(["cmdline"]) if "1234.5" in (process.info["cmdline"] or ())}


def test_a_daemon_that_a_target_leaves_ends_with_its_child():
    before = daemons()
    with runner() as found:
        found.run(case("leaves_a_daemon"))
        (daemon,) = daemons() - before
        found.run(case("exits"))
        assert gone(daemon)
        found.run(case("leaves_a_daemon_and_exits"))
        assert all(gone(left) for left in daemons() - before)
        found.run(case("leaves_a_daemon"))
        (daemon,) = daemons() - before
    assert gone(daemon), "also where the Runner is closed"


def test_an_answer_about_another_case_is_a_crash_and_the_child_replaced():
    with runner(execute="runner_judge:answers_about_another") as found:
        found.start()
        pid = found.pid
        verdict = found.run(case("honest"))
        assert verdict.outcome == "crash" and "answered about another case" in verdict.findings[0].message
        assert verdict.case_id == case("honest").id and gone(pid)


@pytest.mark.parametrize("name", ["writes_before_an_input", "changes_the_reference"])
def test_a_child_that_wrote_outside_judges_no_other_case(name):
    with runner(execute="fuzz.judging.judge:execute") as found:
        assert found.run(case("honest")).outcome == "pass"
        pid = found.pid
        verdict = found.run(case(name))
        assert (verdict.outcome, verdict.findings[0].kind) == ("fail", "wrote_outside"), verdict
        assert gone(pid) and found.run(case("honest")).outcome == "pass"


def test_a_death_after_the_answer_is_not_blamed_on_the_next_case():
    with runner(execute="runner_judge:dies_later") as found:
        found.run(case("honest"))
        assert gone(found.pid)
        verdict = found.run(case("honest", len_k=9))
        assert (verdict.outcome, verdict.findings) == ("pass", ())
        assert "exit code 7" in verdict.evidence["between_cases"]


def test_a_lost_device_context_is_answered_and_the_child_replaced():
    with runner(execute="runner_judge:loses_its_context") as found:
        first, second = found.run(case("honest")), found.run(case("honest"))
        assert first.outcome == second.outcome == "crash"
        assert first.kernel != second.kernel
        assert gone(int(first.kernel))


def test_runners_side_by_side_do_not_disturb_each_other(shared):
    hung = []
    thread = threading.Thread(target=lambda: hung.append(shared.run(case("sleeps"))))
    with runner() as other:
        other.run(case("honest"))
        thread.start()
        while thread.is_alive():
            assert other.run(case("honest")).outcome == "pass"
    assert kind(hung[0]) == "hang: hang"
    assert shared.run(case("honest")).outcome == "pass"


def test_the_child_outlives_the_thread_that_started_it_and_is_no_fork_s():
    with runner() as found:
        thread = threading.Thread(target=found.start)
        thread.start()
        thread.join()
        pid = found.pid
        time.sleep(0.1)
        assert found.run(case("honest")).outcome == "pass"
        assert found.pid == pid
        # A fork of the client must not keep the child alive: only one process holds its parent_pipe.
        fork = os.fork()
        if fork == 0:
            time.sleep(5)
            os._exit(0)
        found._child._parent_pipe.close()
        assert gone(pid, 1.0)
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def test_a_round_trip_takes_well_under_a_millisecond(record_property):
    with runner(execute="runner_judge:only_messages") as found:
        found.run(case("honest"))
        seconds = []
        for _ in range(1000):
            began = time.perf_counter()
            found.run(case("honest"))
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    record_property("microseconds", round(median * 1e6))
    print(f"round trip: {median * 1e6:.0f} µs")
    assert median < 1e-3


def test_close_kills_and_the_next_case_starts_afresh(shared, fresh_servers):
    shared.run(case("honest"))
    pid = shared.pid
    shared.close()
    assert gone(pid, 0.5)
    verdict = shared.run(case("honest"))
    assert verdict.outcome == "pass"
    assert verdict.seconds["overhead"] > 0.2  # the start


def test_a_broken_target_file_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    with runner(files=(str(broken),)) as found, pytest.raises(RunnerError, match="No module named 'no_such_module'"):
        found.run(case("honest"))


def test_a_target_file_that_kills_the_child_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nprint('half way')\nos._exit(9)\n")
    with (
        runner(files=(str(broken),)) as found,
        pytest.raises(RunnerError, match=r"fake\.honest: the child died while loading it, exit code 9: half way"),
    ):
        found.run(case("honest"))


def test_a_target_file_that_hangs_is_named():
    with (
        runner(load="runner_judge:sleeps_in_load", limits=Limits(load=3.0)) as found,
        pytest.raises(RunnerError, match=r"fake\.honest: not loaded after 3 s, in sleeps_in_load"),
    ):
        found.run(case("honest"))


def test_a_missing_judge_is_an_error_of_the_start():
    with runner(execute="no_such_judge:execute") as found, pytest.raises(RunnerError, match="no_such_judge"):
        found.start()


def test_a_start_without_end_is_an_error(fresh_servers):
    with (
        runner(limits=Limits(start=0.05)) as found,
        pytest.raises(RunnerError, match=r"not done starting after 0\.05 s"),
    ):
        found.start()


def test_a_bug_of_the_judge_is_loud_and_not_a_verdict():
    with runner(execute="runner_judge:raises") as found:
        with pytest.raises(HarnessError, match="no such oracle"):
            found.run(case("honest"))
        with pytest.raises(HarnessError):
            found.run(case("honest"))


def test_a_gpu_that_is_not_there_is_an_error_of_the_start():
    import torch

    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    with runner(device="cuda:0") as found, pytest.raises(RunnerError, match="sees no CUDA device"):
        found.start()


def test_a_target_file_that_starts_threads_is_never_forked(tmp_path):
    threaded = tmp_path / "threaded.py"
    threaded.write_text(
        f"import sys, threading, time\nsys.path.insert(0, {str(ROOT / 'tests' / 'fakes')!r})\nimport crashes\n"
        "from fuzz.targets.user_function.function import DECLARED as TARGETS\n"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    with runner(files=(str(threaded),)) as found:
        for _ in range(2):
            assert found.run(case("honest")).outcome == "pass"
            assert kind(found.run(case("exits"))) == "crash: crash"
        assert found.run(case("honest")).outcome == "pass"
        assert found.forks is False


def test_triton_imported_before_the_bundled_kernel_still_interprets(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    early = tmp_path / "early.py"
    early.write_text(
        f"import sys\nimport triton.language\nsys.path.insert(0, {str(ROOT / 'tests' / 'fakes')!r})\nimport crashes\n"
        "from fuzz.targets.user_function.function import DECLARED as TARGETS\n"
    )
    problem = Problem((5,), (7,), 1, 1, 16, 16, "float32", scale=0.25)
    with Runner("host", files=(str(early),)) as found:
        verdict = found.run(Case("sdpa", problem, repeats=1))
    assert verdict.outcome == "pass", verdict


def test_a_stem_that_is_killed_is_replaced(shared):
    shared.run(case("honest"))
    os.kill(shared._zygote.pid, signal.SIGKILL)
    assert shared.run(case("honest")).outcome == "pass"
    assert kind(shared.run(case("exits")))
    assert shared.run(case("honest")).outcome == "pass"
