"""What a target can say of its device while its run hangs ends up in the verdict."""

from __future__ import annotations

from pathlib import Path

from runner_tools import case, runner

FILES = (str(Path(__file__).parents[2] / "fakes" / "hangs_seen.py"),)


def test_what_is_seen_of_a_hang_is_evidence_and_explains_it() -> None:
    with runner(files=FILES) as hands:
        verdict = hands.run(case("hangs_seen"))
    assert verdict.outcome == "hang"
    assert verdict.evidence["looks"] >= 2
    assert verdict.evidence["semaphores"] == {"m3": 2, "look": verdict.evidence["looks"]}
    assert verdict.findings[0].message.endswith(": m_block 3 stands at 2; n_blocks 2, 3 wait there")
    assert "and more" in verdict.evidence["explained"]


def test_a_target_that_cannot_look_hangs_all_the_same() -> None:
    with runner(files=FILES) as hands:
        verdict = hands.run(case("hangs_unseen"))
        assert verdict.outcome == "hang"
        assert verdict.evidence["look_trouble"] == "RuntimeError: blind"


def test_a_run_that_is_slow_and_ends_is_no_worse_for_being_looked_at() -> None:
    with runner(files=FILES) as hands:
        for _ in range(2):  # longer than its limit of 0.1 s, shorter than the floor
            verdict = hands.run(case("slow_seen"))
            assert verdict.outcome == "pass" and "semaphores" not in verdict.evidence


def test_what_was_seen_of_a_slow_run_does_not_explain_a_later_hang() -> None:
    with runner(files=FILES, execute="runner_judge:hangs_after_a_slow_run") as hands:
        verdict = hands.run(case("slow_seen"))
    assert verdict.outcome == "hang" and verdict.evidence["phase"] == "judge"
    assert "explained" not in verdict.evidence and "m_block" not in verdict.findings[0].message
