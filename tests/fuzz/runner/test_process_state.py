"""Global state: what a target changes is put back before the next one, and the target that did it is named."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from runner_tools import FAKES, case, gone
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.runner import Runner, process_state, torch_settings
from fuzz.runner.process_state import CHANGED_STATE, ProcessState


def set_precision():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def replace_softmax():
    torch.nn.functional.softmax = lambda x, dim: x


def hide_an_inherited_method():
    torch.Tensor.softmax = lambda x, dim: x


CHANGES = {
    "grad mode": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "autocast on cpu": lambda: torch.autocast("cpu").__enter__(),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "fp32_precision": set_precision,
    "hook of saved tensors": lambda: torch.autograd.graph.save_on_cpu().__enter__(),
    "torch dispatch modes": lambda: TorchDispatchMode().__enter__(),
    "torch function modes": lambda: TorchFunctionMode().__enter__(),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "denormal numbers": lambda: torch.set_flush_denormal(True),
    "rounding to nearest": lambda: ctypes.CDLL("libm.so.6").fesetround(0x400),
    "flash backend of SDPA": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "NumPy's errors": lambda: np.seterr(all="ignore"),
    "torch.nn.functional.softmax": replace_softmax,
    "torch.Tensor.softmax": hide_an_inherited_method,
    "working directory": lambda: os.chdir("/"),
}


@pytest.fixture
def state():
    return ProcessState()


@pytest.fixture(scope="module")
def shared():
    with Runner("host", files=FAKES) as found:
        yield found


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_changes_is_named_and_put_back(name, state):
    before = torch_settings.read(), os.getcwd(), torch.nn.functional.softmax, torch.Tensor.softmax
    state.begin()
    process_state.call(CHANGES[name])
    changes = state.end()
    assert any(name in change.name for change in changes) and not any(change.lost for change in changes), changes
    assert (torch_settings.read(), os.getcwd(), torch.nn.functional.softmax, torch.Tensor.softmax) == before
    assert state.end() == []


def test_settings_are_put_back_after_each_call_also_where_it_raises(state):
    def fails():
        torch.set_grad_enabled(False)
        raise KeyError("in the call")

    state.begin()
    with pytest.raises(KeyError):
        process_state.call(fails)
    assert torch.is_grad_enabled()
    assert [change.text for change in state.end()] == ["grad mode was on and is off"]


def test_random_numbers_begin_with_the_same_ones_in_every_case(state):
    drawn = []
    for count in (1, 5):
        state.begin()
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        torch.rand(count)
        assert state.end() == []
    assert drawn[0] == drawn[1]


def test_environment_and_search_path_are_put_back_without_a_finding():
    state = ProcessState()
    path, filters = list(sys.path), list(warnings.filters)
    state.begin()
    os.environ["FAKE_VARIABLE"] = "1"
    sys.path.insert(0, "/late")
    warnings.simplefilter("error")
    assert state.end() == [] and state.aside[:2] == ["FAKE_VARIABLE", "sys.path"]
    assert "FAKE_VARIABLE" not in os.environ and warnings.filters == filters
    assert sys.path == [*path, "/late"], "modules that lie there are still found, and hide no others"
    sys.path[:] = path


def test_a_case_reads_each_setting_twice_a_call_and_once_at_its_end(state):
    """The cost of a case is counted in calls of functions, which no other load of the machine changes;
    ci/benchmarks/harness.py measures microseconds."""
    settings, calls = len(torch_settings.SETTINGS), 8  # calls of a case with three repeats and some follow-up cases
    _case(state, calls)  # the first one imports modules
    assert _functions_called(torch_settings.read) < settings + 5
    assert _functions_called(lambda: _case(state, calls)) < (2 * calls + 1) * (settings + 5) + 150


def _case(state: ProcessState, calls: int) -> None:
    state.begin()
    for _ in range(calls):
        process_state.call(int)
    state.end()


def _functions_called(work: Callable[[], object]) -> int:
    """How many functions, of Python and of C, `work` calls."""
    events: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        work()
    finally:
        sys.setprofile(before)
    return sum(event in ("call", "c_call") for event in events)


@pytest.mark.parametrize("name", ["turns_gradients_off", "sets_the_default_dtype", "replaces_a_function"])
def test_the_target_that_changed_state_is_named_and_the_next_one_is_not_touched(name, shared):
    shared.run(case("honest"))
    pid = shared.pid
    verdict = shared.run(case(name))
    assert verdict.outcome == "fail" and CHANGED_STATE in {found.kind for found in verdict.findings}, verdict
    assert shared.run(case("honest")).outcome == "pass" and shared.pid == pid


def test_state_that_cannot_be_put_back_costs_the_child(shared):
    shared.run(case("honest"))
    pid = shared.pid
    verdict = shared.run(case("leaves_inference_mode_on"))
    assert any("inference mode was off and is on" in found.message for found in verdict.findings), verdict
    assert gone(pid) and shared.run(case("honest")).outcome == "pass"


def test_random_numbers_and_variables_of_the_environment_are_no_finding(shared):
    assert shared.run(case("draws_random_numbers")).outcome == "pass"


def test_state_that_an_import_changes_does_not_reach_other_targets(tmp_path):
    file = tmp_path / "changes.py"
    file.write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\nTARGETS = [1]\n"
    )
    file.write_text(file.read_text().replace("[1]", "[]") + "from fuzz.targets import target\n"
                    "@target('late')\ndef late(q, k, v, mask, scale):\n    return q\n")  # fmt: skip
    with Runner("host", files=(*FAKES, str(file))) as found:
        assert found.run(case("honest")).outcome == "pass"
