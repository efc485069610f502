"""The life of a signature: each state, and a state machine against a model that counts differently."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.life import Expected, Replayed, Seen, Unexpected, check_arch, covers, life
from fuzz.ledger.rate import MOST_PASSES, PASSES, Rate

DAY = 86400.0
FIRST = Seen(1.0, "night0", "sm_90a", 5, 5)


def state(*history, now: float = 100 * DAY, newest: str = "night9") -> str:
    return life(history, now, newest).state


def test_a_signature_is_new_in_the_night_that_met_it_first_and_open_after() -> None:
    assert state(FIRST, newest="night0") == "new"
    assert state(FIRST, newest="night1") == "open"
    again = Seen(DAY, "night1", "sm_90a", 5, 5)
    assert state(FIRST, again, newest="night1") == "open"


def test_a_signature_that_fails_in_some_runs_is_flaky_with_its_interval() -> None:
    found = life([Seen(1.0, "night0", "sm_90a", 3, 12)], 2.0, "night1")
    assert found.state == "flaky" and found.rate == Rate(3, 12)
    below, above = found.rate.interval
    assert 0.08 < below < 0.25 < above < 0.54
    assert str(found.rate) == "3 of 12 (9–53 %)"


def test_a_signature_that_one_arch_has_no_longer_is_not_flaky_on_the_other() -> None:
    other = Seen(2.0, "night1", "sm_100a", 5, 5)
    passes = Replayed(3.0, "sm_90a", 0, PASSES)
    found = life([FIRST, other, passes, Seen(4.0, "night2", "sm_100a", 5, 5)], 5.0, "")
    assert found.state == "open" and found.rates == {"sm_90a": Rate(5, 5), "sm_100a": Rate(10, 10)}


def test_passes_after_the_last_failure_are_no_part_of_the_rate_until_it_fails_again() -> None:
    passes = Replayed(2.0, "sm_90a", 0, 4)
    assert life([FIRST, passes], 3.0, "").rate == Rate(5, 5)
    assert life([FIRST, passes, Replayed(3.0, "sm_90a", 1, 1)], 4.0, "").rate == Rate(6, 10)


@pytest.mark.parametrize(("passes", "expected"), [(PASSES - 1, "open"), (PASSES, "fixed")])
def test_a_signature_is_fixed_after_enough_passes(passes: int, expected: str) -> None:
    assert state(FIRST, Replayed(2.0, "sm_90a", 0, passes)) == expected


def test_passes_count_on_every_arch_that_it_failed_on_and_after_its_last_failure() -> None:
    other = Seen(2.0, "night1", "sm_100a", 5, 5)
    first, second = Replayed(3.0, "sm_90a", 0, PASSES), Replayed(4.0, "sm_100a", 0, PASSES)
    assert state(FIRST, other, first) == "open"
    assert state(FIRST, other, first, second) == "fixed"
    assert state(FIRST, first, Replayed(2.5, "sm_120a", 0, 500)) == "fixed"
    assert state(FIRST, other, first, Seen(3.5, "night2", "sm_100a", 1, 1), second) == "open"
    assert state(FIRST, other, Replayed(5.0, "host", 0, 1000)) == "open"


def test_a_rare_failure_needs_more_passes() -> None:
    rare = Seen(1.0, "night0", "sm_90a", 1, 100)
    needed = life([rare], 2.0, "").passes_needed
    assert PASSES < needed <= MOST_PASSES
    assert state(rare, Replayed(2.0, "sm_90a", 0, needed - 1)) == "flaky"
    assert state(rare, Replayed(2.0, "sm_90a", 0, needed)) == "fixed"


@given(st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=50)
def test_enough_passes_are_seldom_those_of_a_failure_that_is_still_there(failed: int, passed: int) -> None:
    rate = Rate(failed, failed + passed)
    missed = (1 - rate.interval[0]) ** rate.passes_needed
    assert missed <= 0.01 or rate.passes_needed == MOST_PASSES


def test_a_signature_that_fails_again_is_regressed() -> None:
    fixed = [FIRST, Replayed(2.0, "sm_90a", 0, PASSES)]
    found = life([*fixed, Seen(3.0, "night3", "host", 1, 4)], 4.0, "night3")
    assert found.state == "regressed" and found.archs == ("host",) and found.rate == Rate(1, 4)
    assert found.fixes == (2.0,) and found.first == 1.0 and found.since == 3.0
    assert state(*fixed, Replayed(3.0, "sm_90a", 1, 20)) == "regressed"


def test_what_is_expected_is_so_on_its_archs_and_until_its_day() -> None:
    said = Expected(2.0, "issues/1", ("sm_90..sm_103",), "1970-01-05")
    found = life([FIRST, said], 4.9 * DAY, "")
    assert (found.state, found.link, found.until, found.failing) == ("expected", "issues/1", "1970-01-05", False)
    assert state(FIRST, said, now=5.1 * DAY) == "open"
    assert state(FIRST, said, Seen(3.0, "n", "host"), now=1.0 * DAY) == "open"
    assert state(FIRST, said, Unexpected(3.0), now=1.0 * DAY) == "open"


def test_a_fix_ends_what_was_expected_before_it() -> None:
    said, fix = Expected(2.0, "issues/1"), Replayed(3.0, "sm_90a", 0, PASSES)
    assert state(FIRST, said, fix) == "fixed"
    assert state(FIRST, said, fix, Seen(4.0, "n", "sm_90a")) == "regressed"
    assert state(FIRST, said, fix, Seen(4.0, "n", "sm_90a"), Expected(5.0, "issues/2")) == "expected"


def test_a_failure_that_the_corpus_explains_is_expected() -> None:
    known = Seen(1.0, "night0", "sm_90a", known=True, link="corpus/x.json")
    assert life([known], 2.0, "night0").link == "corpus/x.json"
    assert state(known) == "expected" and state(known, Unexpected(2.0)) == "open"


def test_a_history_without_a_failure_is_none() -> None:
    with pytest.raises(ValueError, match="has no failure"):
        life([Replayed(1.0, "host", 0, 5)], 2.0, "")


@pytest.mark.parametrize(
    ("archs", "arch", "expected"),
    [
        ((), "host", True),
        (("sm_90a",), "sm_90a", True),
        (("sm_90a",), "sm_100a", False),
        (("emulated-*",), "emulated-sm_90a", True),
        (("sm_90..sm_103",), "sm_100a", True),
        (("sm_90..103",), "sm_90", True),
        (("sm_90..sm_103",), "sm_120a", False),
        (("sm_90..sm_103",), "emulated-sm_100a", False),
        (("emulated-sm_90..emulated-sm_103",), "emulated-sm_100a", True),
        (("host", "sm_80..sm_89"), "sm_90a", False),
    ],
)
def test_archs_are_names_patterns_and_ranges(archs: tuple[str, ...], arch: str, expected: bool) -> None:
    assert covers(archs, arch) is expected


def test_a_range_without_an_end_is_refused() -> None:
    check_arch("sm_90..sm_103")
    with pytest.raises(LedgerError, match="a range is"):
        check_arch("sm_90..")


ARCHS = st.sampled_from(["sm_90a", "sm_100a", "host"])


class SignatureLife(RuleBasedStateMachine):
    """Random histories beside a model that looks at the whole history again after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list = []
        self.night = 0

    @property
    def now(self) -> float:
        return float(len(self.history) + 1)

    @initialize(arch=ARCHS, failed=st.integers(1, 5), passed=st.integers(0, 5))
    def begin(self, arch: str, failed: int, passed: int) -> None:
        self.history.append(Seen(self.now, "0", arch, failed, failed + passed))

    @rule()
    def night_passes(self) -> None:
        self.night += 1

    @rule(arch=ARCHS, failed=st.integers(1, 5), passed=st.integers(0, 5))
    def session_meets_it(self, arch: str, failed: int, passed: int) -> None:
        self.history.append(Seen(self.now, str(self.night), arch, failed, failed + passed))

    @rule(arch=ARCHS, runs=st.sampled_from([1, 5, 10, 200]))
    def replay_passes(self, arch: str, runs: int) -> None:
        self.history.append(Replayed(self.now, arch, 0, runs))

    @rule(arch=ARCHS, failed=st.integers(1, 3), passed=st.integers(0, 9))
    def replay_fails(self, arch: str, failed: int, passed: int) -> None:
        self.history.append(Replayed(self.now, arch, failed, failed + passed))

    @rule(archs=st.sampled_from([(), ("sm_90a",), ("sm_*",)]), until=st.sampled_from(["", "1969-12-31", "1970-01-02"]))
    def expect(self, archs: tuple[str, ...], until: str) -> None:
        self.history.append(Expected(self.now, "link", archs, until))

    @rule()
    def unexpect(self) -> None:
        self.history.append(Unexpected(self.now))

    @invariant()
    def state_is_that_of_the_model(self) -> None:
        if not self.history:
            return
        found = life(self.history, self.now, str(self.night))
        assert (found.state, len(found.fixes)) == model(self.history, str(self.night))
        assert life(self.history[::-1], self.now, str(self.night)) == found  # times decide, not the order given
        assert 0 < found.rate.failed <= found.rate.runs
        assert set(found.passes) == set(found.archs)


def model(history: list, newest: str) -> tuple[str, int]:
    """State and number of fixes: the history is cut at its fixes, then each part is looked at by itself."""
    parts: list[list] = [[]]
    for step in history:
        parts[-1].append(step)
        if passes_enough(parts[-1]):
            parts.append([])
    failures = [step for step in parts[-1] if getattr(step, "failed", 0)]
    fixes = len(parts) - 1
    if not failures:
        return "fixed", fixes
    said = [step for step in parts[-1] if isinstance(step, Expected | Unexpected)]
    if said and isinstance(said[-1], Expected) and said[-1].until != "1969-12-31":
        names = {step.arch for step in failures}
        if said[-1].archs == () or names <= {"sm_90a", *(["sm_100a"] if said[-1].archs == ("sm_*",) else [])}:
            return "expected", fixes
    if fixes:
        return "regressed", fixes
    if isinstance(failures[0], Seen) and failures[0].night == newest:
        return "new", fixes
    return ("flaky" if any(rate.flaky for rate in rates_of(parts[-1])) else "open"), fixes


def passes_enough(part: list) -> bool:
    failures = [i for i, step in enumerate(part) if getattr(step, "failed", 0)]
    if not failures:
        return False
    after = [step for step in part[failures[-1] + 1 :] if isinstance(step, Replayed)]
    needed = max(rate.passes_needed for rate in rates_of(part))
    return all(sum(s.runs for s in after if s.arch == arch) >= needed for arch in {part[i].arch for i in failures})


def rates_of(part: list) -> list[Rate]:
    """Of the runs on each arch, from the first failure there to the last one."""
    rates = []
    for arch in {step.arch for step in part if getattr(step, "failed", 0)}:
        runs = [step for step in part if getattr(step, "arch", None) == arch]
        failures = [i for i, step in enumerate(runs) if step.failed]
        counted = runs[failures[0] : failures[-1] + 1]
        rates.append(Rate(sum(s.failed for s in counted), sum(s.runs for s in counted)))
    return rates


TestSignatureLife = SignatureLife.TestCase
TestSignatureLife.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
