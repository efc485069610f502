"""Verdicts of launches on the emulated GPU that do not end."""

from fuzz.devices.emulated_verdict import verdict_of
from fuzz.devices.emulator import Report
from fuzz.devices.emulator.report.endless import Endless

LOOP = Endless(
    "k", (2, 0, 0), 3, "forward.py:88", (466, 1307), "@%p97 bra $L14", 4626, 1.1, "%r55 comes to %r7 in 3 days"
)


def test_an_endless_loop_is_a_hang_of_its_own_kind_at_its_source_line():
    outcome, (finding,), evidence = verdict_of("forward", Report(status="endless", endless=LOOP))
    assert (outcome, finding.oracle, finding.kind) == ("hang", "emulator", "endless")
    assert finding.message == (
        "forward: endless: CTA (2, 0, 0) warp 3 of kernel k does not leave its loop (forward.py:88, "
        "PTX lines 466 to 1307: @%p97 bra $L14): 4,626 trips in 1.1 s; %r55 comes to %r7 in 3 days"
    )
    assert finding.place is not None and finding.place.source == "forward.py:88"
    assert "does not leave its loop" in evidence["emulator"]


def test_a_launch_that_its_budget_ended_outside_of_loops_is_a_hang():
    outcome, (finding,), _ = verdict_of("forward", Report(status="budget"))
    assert (outcome, finding.kind) == ("hang", "hang")
    assert finding.message == "forward: the kernel does not end within its budget"
