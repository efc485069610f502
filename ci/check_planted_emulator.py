"""Nine mutants of the block-sparse kernels on the emulated GPU: python ci/check_planted_emulator.py --json FILE.

With --tcgen05 instead those of kernels by tcgen05, with --cta-pairs those of the backward kernel of pairs of CTAs, in
60 cases each of ci/blocksparse_tcgen05.py's targets.
Each is fuzzed as `attnfuzz run --target blocksparse!BUG --device host --seed SEED --jobs 1` does, from the first
case on, until a case is bad; that case is minimised. Reported are the check that named the mutant, the cases and the
seconds until then (compiling included), and the minimised case. Exits with 1 where a mutant is not found and minimised
within --limit seconds (five minutes), or not by the check that should see it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzz.core.case import Case, to_json
from fuzz.core.features import features, ordered
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict, summary
from fuzz.minimize import minimize
from fuzz.runner import Runner
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import plan
from fuzz.session.records import machine
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse import cta_pairs
from fuzz.targets.registry import load

CASES = 300  # of a session
HANG, RACE = ("hang",), ("race_two_writes", "race_read_of_an_unordered_write", "race_write_over_an_unordered_read")
# The mutants that the emulated GPU is to find, and the names of the checks that should see each.
BUGS: dict[str, tuple[str, ...]] = {
    # of semaphores that are waited for in the wrong order the prediction for one resident CTA tells before a launch
    "lock_is_n_block": (*HANG, "semaphore_order: hang"),
    "rank_direction": (*HANG, "semaphore_order: hang"),
    "release_missing": HANG,
    "semaphores_not_cleared": ("read_of_uninitialised_memory",),
    "barrier_before_reuse_missing": RACE,
    "barrier_diverges": ("barrier_in_a_divergent_branch",),
    "tail_keys_read": ("out_of_bounds",),
    "dq_not_zeroed": ("read_of_uninitialised_memory",),
    "key_offset_wraps": ("32-bit_arithmetic_wrapped_in_an_address",),
}
TARGET_FILE, TCGEN05_CASES = str(Path(__file__).with_name("blocksparse_tcgen05.py")), 60
EARLY = ("tensor_memory_used_before_a_tcgen05.commit_was_waited_for", "race_tensor_memory")
WRONG = tuple(f"accuracy: {kind}" for kind in ("wrong", "nan"))
# Those of the kernel with two query tiles
PAIRS = frozenset(
    (
        *("keys_released_by_first_tile", "barriers_of_first_tile", "output_of_both_tiles"),
        *("rows_left_of_both_tiles", "columns_freed_by_first_tile"),
    )
)
# Those of the backward kernel by tcgen05, of exponentials and the store of O by the forward one, of two query tiles,
# and of arithmetic and protocol that it shares with the others
TCGEN05: dict[str, tuple[str, ...]] = {
    "dp_read_before_commit": EARLY,
    "dq_read_before_commit": EARLY,
    "dq_overwritten_before_read": ("race_tensor_memory",),
    "ds_not_waited_for": ("tensor_memory_used_before_tcgen05.wait::st",),
    "dq_not_waited_for": ("tensor_memory_overwritten_before_tcgen05.wait::ld",),
    "ds_without_proxy_fence": ("shared_memory_read_by_tcgen05_without_fence.proxy.async",),
    "product_fence_missing": ("tensor_memory_used_without_tcgen05.fence::after_thread_sync",),
    "queries_released_when_issued": ("shared_memory_overwritten_before_a_tcgen05.commit_was_waited_for",),
    "dq_of_wrong_columns": (*WRONG, "read_of_uninitialised_memory"),
    "last_block_not_released": HANG,
    "keys_not_waited_for": RACE,
    "statistics_not_counted": (*HANG, *RACE, "mbarrier_misused"),
    "gradient_tail_by_bulk_copy": ("out_of_bounds", "read_of_uninitialised_memory", *WRONG),
    "dq_without_proxy_fence": ("shared_memory_accessed_by_a_bulk_copy_without_fence.proxy.async",),
    "dq_buffer_reused_before_read": RACE,
    "dq_released_before_added": ("floating-point_adds_in_no_fixed_order",),
    "output_tail_by_bulk_store": ("out_of_bounds", *RACE, *WRONG),
    "output_without_proxy_fence": ("shared_memory_accessed_by_a_bulk_copy_without_fence.proxy.async",),
    "output_store_not_waited_for": ("bulk_copy_in_flight_when_its_CTA_exits",),
    "exponent_of_forbidden_keys_wraps": WRONG,
    "keys_released_by_first_tile": (
        "shared_memory_overwritten_before_a_tcgen05.commit_was_waited_for",
        *("race_read_of_an_unordered_write", "mbarrier_misused"),
    ),
    "barriers_of_first_tile": EARLY,
    "output_of_both_tiles": EARLY,
    "rows_left_of_both_tiles": ("out_of_bounds", *RACE, *WRONG),
    "columns_freed_by_first_tile": (*EARLY, "tensor_memory_that_is_not_allocated"),
    "delta_added": WRONG,
    "dk_not_scaled": WRONG,
    "dq_not_scaled": WRONG,
    "wait_missing": ("floating-point_adds_in_no_fixed_order", "determinism: different_bits"),
}
ACCESSED_EARLY = (*RACE, "read_of_uninitialised_memory", "mbarrier_misused")
UNORDERED = ("floating-point_adds_in_no_fixed_order", "determinism: different_bits", *RACE)
# Those of the backward kernel of pairs of CTAs
CTA_PAIRS: dict[str, tuple[str, ...]] = {
    "peer_ds_not_waited_for": (*EARLY, *ACCESSED_EARLY, *HANG),
    "peer_probabilities_not_waited_for": (*EARLY, *ACCESSED_EARLY, *HANG),
    "peer_dq_not_waited_for": (*EARLY, *HANG),
    "ds_sent_to_other_cta": WRONG,
    "ds_fenced_in_own_memory": ("shared_memory_read_by_tcgen05_without_fence.proxy.async",),
    "queries_of_other_cta": WRONG,
    "peer_loads_not_waited_for": ACCESSED_EARLY,
    "peer_keys_not_waited_for": ACCESSED_EARLY,
    "loads_handed_on_early": (*ACCESSED_EARLY, *HANG),
    "commit_in_leader_alone": HANG,
    "stages_released_in_leader_alone": HANG,
    "ranks_of_one_cta": UNORDERED,
    "added_after_one_cta": UNORDERED,
    "released_for_both_ctas": UNORDERED,
    "released_by_leader_alone": HANG,
    "released_before_all_warps_added": UNORDERED,
    "keys_left_of_pair": ("out_of_bounds",),
    "gradients_left_of_pair": ("out_of_bounds", *RACE, *WRONG),
    "pair_not_met_at_start": ACCESSED_EARLY,
    "pair_exits_apart": ("tensor_memory_that_is_not_allocated", "race_tensor_memory"),
}


@dataclass
class Row:
    """Result of one mutant: the checks that named the first bad case, and the minimised one.

    seconds from the start of its session, `compiling` of them; `minimised` those of minimising alone. The kernels that
    the mutant leaves alone come from the artifact cache where it has them.
    """

    bug: str
    named: bool
    checks: list[str]
    checks_minimised: list[str]
    cases: int
    seconds: float
    compiling: float
    minimised: float
    runs: int
    features: list[str]
    message: str
    case: dict


def main() -> int:
    """Runs the mutants that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BUGS)}; none: all")
    kernels = parser.add_mutually_exclusive_group()
    kernels.add_argument("--tcgen05", action="store_true", help="those of kernels by tcgen05")
    kernels.add_argument("--cta-pairs", action="store_true", help="those of the backward kernel of pairs of CTAs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a mutant's session (300)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    bugs = CTA_PAIRS if given.cta_pairs else TCGEN05 if given.tcgen05 else BUGS
    for name in given.names or bugs:
        target = f"{target_of(name, given)}!{name}"
        narrow = {} if bugs is BUGS else {"cases": TCGEN05_CASES, "size": "small", "files": (TARGET_FILE,)}
        settings = Settings(**{"targets": (target,), "cases": CASES, "seed": given.seed, **narrow})
        rows.append(one(name, bugs[name], settings, given.limit))
        print(line(rows[-1]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(result(rows, given), indent=1) + "\n")
    return 0 if all(row.named and row.seconds + row.minimised <= given.limit for row in rows) else 1


def target_of(name: str, given: argparse.Namespace) -> str:
    """The target whose sessions have the mutant's kernel."""
    if given.cta_pairs:
        return cta_pairs.TARGET
    if given.tcgen05:
        return "blocksparse.tcgen05_pairs" if name in PAIRS else "blocksparse.tcgen05"
    return "blocksparse"


def result(rows: list[Row], given: argparse.Namespace) -> dict[str, Any]:
    """The result that --json writes."""
    return {
        "machine": machine(),
        "load": [round(x, 1) for x in os.getloadavg()],  # of 1, 5 and 15 minutes: others may use the machine too
        "seed": given.seed,
        "limit_seconds": given.limit,
        "bugs": [asdict(row) for row in rows],
    }


def one(bug: str, wanted: tuple[str, ...], settings: Settings, limit: float) -> Row:
    """A session with one mutant, up to its first bad case. wanted: the checks of which one should see it."""
    target = load(settings.targets[0], settings.files)
    began = time.monotonic()
    with Runner(files=settings.files) as runner:
        case, verdict, count, compiling = first_bad(runner, target, settings, began + limit)
        seconds = time.monotonic() - began
        if case is None or verdict is None:
            return Row(bug, False, [], [], count, round(seconds, 1), round(compiling, 1), 0.0, 0, [], "not found", {})
        smallest = minimize(
            case,
            runner.run,
            verdict=verdict,
            max_runs=settings.minimize_runs,
            max_seconds=settings.minimize_seconds,
            allowed=lambda candidate: refusal(target, candidate) is None,
        )
    checks, still = checks_of(verdict), checks_of(smallest.verdict)
    return Row(
        bug,
        bool(set(checks) & set(wanted)) and bool(set(still) & set(wanted)),
        checks,
        still,
        count,
        round(seconds, 1),
        round(compiling, 1),
        round(time.monotonic() - began - seconds, 1),
        smallest.runs,
        list(ordered(features(smallest.case))),
        summary(smallest.verdict)[:400],
        json.loads(to_json(smallest.case)),
    )


def checks_of(verdict: Verdict) -> list[str]:
    """Names of the checks that complained; those of the emulated GPU without its name."""
    return sorted({f.kind if f.oracle == "emulator" else f"{f.oracle}: {f.kind}" for f in verdict.findings})


def first_bad(
    runner: Runner, target: Target, settings: Settings, until: float
) -> tuple[Case | None, Verdict | None, int, float]:
    """(the case, its verdict, its number in the session, seconds of compiling until then)."""
    found: list[tuple[Case, Verdict]] = []
    count, compiling = 0, 0.0

    def each(case: Case) -> None:
        nonlocal count, compiling
        if found or time.monotonic() > until:
            return
        count += 1
        if refusal(target, case) is not None:
            return
        verdict = runner.run(case)
        compiling += verdict.seconds.get("prepare", 0.0)
        if verdict.bad:
            found.append((case, verdict))

    for shard in plan(settings):
        if not found and time.monotonic() < until:
            explore(shard, drawer_of(target, settings), each, seed_cases(shard, target, settings))
    return *(found[0] if found else (None, None)), count, compiling


def line(row: Row) -> str:
    """A row of the table."""
    p = row.case.get("problem", {})
    size = f"q {p.get('lengths_q')} k {p.get('lengths_k')}, {p.get('heads_q')} heads, dim {p.get('dim')}" if p else "-"
    sign = "found" if row.named else "MISSED"
    return (
        f"{row.bug:30} {sign:6} case {row.cases:3}  {row.seconds:6.1f} s ({row.compiling:5.1f} compiling), minimised "
        f"in {row.minimised:5.1f} s, {row.runs} runs: {size}; {', '.join(row.checks)}"
    )


if __name__ == "__main__":
    sys.exit(main())
