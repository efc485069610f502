"""The bundled Hopper forward kernel on the emulated GPU: good as it is, and a finding for each safeguard taken out."""

import re
from dataclasses import replace

import pytest
from covering import daily

pytest.importorskip("cutlass")

from forward_cases import Case, errors, problem

from fuzz.compiling import obtain
from fuzz.core.target import DeviceError
from fuzz.devices.cuda import build_of
from fuzz.devices.emulated import EmulatedDevice
from fuzz.devices.emulator import Emulator
from kernels.blocksparse.compile import runtime
from kernels.blocksparse.spec.variant import NO_INJECTION

CASE = Case(
    *((150,), (400,), 1, 1), dim=64, mask="dense", tile_m=128, tile_n=64, products="wgmma", tuning=(("splits", 0),)
)  # fmt: skip
WHOLE = replace(CASE, lengths_k=(384,))
CASES = {"keys end inside a block": CASE, "keys end with a block": WHOLE}  # steps with a mask, and steps without one
PROXY = "shared_memory_read_by_wgmma_without_fence.proxy.async"
RACES = {"race_read_of_an_unordered_write", "race_write_over_an_unordered_read", "race_two_writes"}
EARLY, UNFENCED = "register_of_a_wgmma_used_before_wait_group", "register_of_a_wgmma_used_without_wgmma.fence"


@pytest.fixture(scope="module")
def device():
    made = EmulatedDevice("sm_90a", Emulator(resident_ctas=2, strict=False))
    before = runtime._elsewhere
    runtime.launch_elsewhere(made)
    yield made
    runtime.launch_elsewhere(before)


def run(device, change=None, case=CASE, **options):
    """Kinds of what is seen in a run of a case, its PTX changed by a function; and how far its results are off."""
    device.begin(Emulator(**{"resident_ctas": 2, "strict": False, **options}))
    device.instead.clear()
    one = problem(case)
    if change:
        build = build_of(one.variant, "sm_90a", NO_INJECTION)
        (text,) = (path.read_text() for path in obtain(build).folder.glob("*.ptx"))
        device.instead[build.key] = device.emulator.load_ptx(change(text))
    try:
        one.run()
    except DeviceError as error:
        return {f.kind for f in error.findings}, None
    return set(), max(errors(one))


def without(pattern, which=None):
    """Takes out the instructions that match, or one of them."""

    def change(text):
        found = list(re.finditer(rf"^\s*{pattern}[^;]*;", text, re.MULTILINE))
        assert found, pattern
        for m in [found[which]] if which is not None else reversed(found):
            text = text[: m.start()] + text[m.end() :]
        return text

    return change


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("schedule", ["in_order", "random", "oldest_last", "greedy"])
def test_it_is_right_and_nothing_is_seen(device, schedule, case):
    seen, off = run(device, case=case, warp_schedule=schedule)
    assert not seen and off <= 1


def test_without_proxy_fences(device):
    assert run(device, without(r"fence\.proxy\.async"))[0] == {PROXY}


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_proxy_fence_is_missed(device, which):
    assert run(device, without(r"fence\.proxy\.async", which))[0] == {PROXY}


def test_without_the_fences_of_registers(device):
    assert run(device, without(r"wgmma\.fence"))[0] == {UNFENCED}


@pytest.mark.parametrize("which", daily(range(6), [0, 5]))
def test_each_wait_for_products_is_missed(device, which):
    seen = set()
    for schedule in ("in_order", "random"):
        for case in CASES.values():
            seen |= run(device, without(r"wgmma\.wait_group", which), case=case, warp_schedule=schedule)[0]
    assert seen & ({EARLY} | RACES)


def test_a_wait_that_leaves_a_group_too_many(device):
    def longer(text):
        return text.replace("wgmma.wait_group.sync.aligned \t0", "wgmma.wait_group.sync.aligned \t1")

    assert EARLY in run(device, longer)[0]


@pytest.mark.parametrize("which", [0, 1])
def test_copies_that_are_not_waited_for(device, which):
    seen = set()
    for schedule in ("in_order", "random"):
        seen |= run(device, without(r"cp\.async\.wait_group", which), warp_schedule=schedule)[0]
    assert seen & (RACES | {"read_of_uninitialised_memory"})


def test_arrivals_that_are_left_out_end_in_a_deadlock(device):
    assert "hang" in run(device, without(r"mbarrier\.arrive\.shared\.b64"))[0]


def test_buffers_that_are_refilled_at_once(device):
    """The loading warps do not wait for `empty`: they overtake the others, which then wait for a phase that is gone."""

    def hasty(text):
        first, second = list(re.finditer(r"mbarrier\.try_wait\.parity[^;]*, (%r\d+), 10000000;", text))[:2]
        for m in (second, first):
            wait = re.search(r"P1, \[(%r\d+)\]", m.group(0)).group(0)
            text = text[: m.start()] + f"setp.eq.b32 {wait.split(',')[0]}, 0, 0;" + text[m.end() :]
        return text

    seen = set()
    for schedule in ("in_order", "random", "oldest_last"):
        seen |= run(device, hasty, warp_schedule=schedule)[0]
    assert seen & {*RACES, "hang"}
