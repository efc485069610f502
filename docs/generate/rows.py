"""The measurements, by theme: what each figure is, and how it is read from its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from docs.generate.results import Row

BLOCKSPARSE = ("kernels/blocksparse",)
# A path is the code's folder today and, for results that are older than that folder, where the code lay before.
HARNESS = (
    "fuzz/*.py",
    "fuzz/core",
    "fuzz/generate",
    "fuzz/judging",
    "fuzz/runner",
    "fuzz/session",
    "fuzz/tensors",
    "oracles",
)
EMULATOR = ("fuzz/devices",)
ORACLES = ("fuzz/*.py", "oracles", "fuzz/judging", "fuzz/generate")


def spread(ratios: Iterable[float]) -> str:
    """'least to most'."""
    found = sorted(ratios)
    return f"{found[0]:.2f} to {found[-1]:.2f}"


def speed(direction: str, ratio: Callable[[dict[str, Any]], float], dim: int = 0) -> Callable[[dict[str, Any]], str]:
    """The spread of a ratio over the rows of a direction and a head dim (0: all)."""

    def value(result: dict[str, Any]) -> str:
        rows = [row for row in result["rows"] if row["direction"] == direction and dim in (0, row["dim"])]
        return spread(ratio(row) for row in rows)

    return value


def over_flex(way: str) -> Callable[[dict[str, Any]], float]:
    """Speed of a way of the bundled kernels, as a multiple of compiled FlexAttention's."""
    return lambda row: row["flex_ms"] / row["ms"][way]


def ordered_over_atomic(row: dict[str, Any]) -> float:
    """Time of the deterministic backward pass over the atomic one's, in the better of default and planned order."""
    return min(row["ms"][way] for way in ("default", "planned") if way in row["ms"]) / row["ms"]["atomic"]


def ordered_over_flex(row: dict[str, Any]) -> float:
    """Speed of the deterministic backward pass as a multiple of compiled FlexAttention's."""
    return over_flex("atomic")(row) / ordered_over_atomic(row)


SPEEDS = (
    ("forward", "forward", over_flex("forward")),
    ("backward, atomic", "backward", over_flex("atomic")),
    ("backward, deterministic, better of default and planned order", "backward", ordered_over_flex),
    ("time of deterministic over atomic (less is better)", "backward", ordered_over_atomic),
    ("portable kernels, forward", "forward", over_flex("portable")),
    ("portable kernels, backward, atomic", "backward", over_flex("portable")),
)


def over_flash_4(result: dict[str, Any]) -> str:
    """Rates of the bundled kernels over FlashAttention-4's, forward and backward, where that has the problem."""
    parts = [
        spread(rates["ours"] / rates["FlashAttention-4"] for rates in found if "FlashAttention-4" in rates)
        for found in ([row["tflops"][way] for row in result["rows"]] for way in ("forward", "backward"))
    ]
    return f"forward {parts[0]}, backward {parts[1]}"


def both(direction: str, way: str) -> Callable[[dict[str, Any]], str]:
    """The spreads at head dims 64 and 128."""
    parts = [speed(direction, over_flex(way), dim) for dim in (64, 128)]
    return lambda result: f"{parts[0](result)} at head dim 64, {parts[1](result)} at 128"


def over_flash_2(direction: str) -> Callable[[dict[str, Any]], str]:
    """Speed of the portable kernels, as a multiple of PyTorch's FlashAttention 2's."""

    def value(result: dict[str, Any]) -> str:
        rows = [row for row in result["rows"] if "flash_2_ms" in row and row["direction"] == direction]
        return spread(row["flash_2_ms"] / row["ms"]["portable"] for row in rows)

    return value


def over_flash(direction: str) -> Callable[[dict[str, Any]], str]:
    """Speed of `kernels/sdpa`, as a multiple of PyTorch's flash backend's."""
    key = f"{direction}_ms"
    return lambda result: spread(row[key]["flash"] / row[key]["ours"] for row in result["settings"])


def false_alarm_free(result: dict[str, Any]) -> str:
    """Cases without a false alarm, of the batches that followed the last one with any."""
    batches = result["later"]
    begin = max((at for at, batch in enumerate(batches) if batch.get("false_alarms") or batch.get("new")), default=-1)
    return f"none in {sum(batch['cases'] for batch in batches[begin + 1 :]):,} cases"


def outcomes(counts: dict[str, int]) -> str:
    """'4,702 pass, 298 reject'."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def largest_ratio(result: dict[str, Any]) -> str:
    """Largest error / budget of answers that are right, and the cases of known bugs of PyTorch's."""
    ratios = [near[0] for kernel in result["kernels"] for near in kernel["nearest"] if near[0] <= 1]
    bugs = sum(sum(kernel["known_bugs"].values()) for kernel in result["kernels"])
    return f"{max(ratios):.2f}, without {bugs:,} cases of known bugs of PyTorch's"


def rates(key: str, count: str) -> Callable[[dict[str, Any]], str]:
    """'57 / 206 / 388' for 1 / 4 / 8 workers."""

    def value(result: dict[str, Any]) -> str:
        rows = sorted(result["sessions" if "sessions" in result else "rate"], key=lambda row: row[count])
        workers = " / ".join(str(row[count]) for row in rows)
        return f"{' / '.join(f'{row[key]:.0f}' for row in rows)} with {workers} workers"

    return value


def run_times(result: dict[str, Any]) -> str:
    """Minutes of each command, the least and the most of its runs, without and with cached kernels apart."""
    minutes: dict[tuple[str, bool], list[float]] = {}
    for run in result["runs"]:
        minutes.setdefault((run["command"], "kernels" not in run["caches"]), []).append(run["seconds"] / 60)
    wanted = (("make test", True), ("make test", False), (".ci/run", False), ("make fuzz", True))
    shown = (sorted({f"{m:.1f}" for m in minutes[key]}, key=float) for key in wanted)
    return "; ".join(" to ".join(dict.fromkeys((each[0], each[-1]))) + " min" for each in shown)


def found_within(bug: dict[str, Any], generator: str, rule: str, cases: int, seed: int) -> bool:
    """True if a mutant was found in the first `cases` cases of a seed."""
    (seen,) = (row for row in bug["seen"] if (row["generator"], row["rule"]) == (generator, rule))
    found = dict(zip(seen["seeds"], seen["cases"], strict=True)).get(seed)
    return found is not None and found <= cases


def _asked(seen: dict[str, Any], seed: int) -> bool:
    """True if another project's rule judged the mutant's trial of this seed."""
    return seen["generator"] == "ours" and seen["rule"] != "ours" and seed in seen["seeds"]


def by_rule(result: dict[str, Any]) -> str:
    """Mutants found in the same few cases of one seed, by this project's rules and by other projects'."""
    cases, seed = result["settings"]["peer_cases"], result["settings"]["seeds"] - 1
    bugs = [bug for bug in result["bugs"] if any(_asked(seen, seed) for seen in bug["seen"])]
    rules = sorted({name.partition("/")[2] for name in result["by"]} - {"ours"})
    ours = sum(found_within(bug, "ours", "ours", cases, seed) for bug in bugs)
    theirs = [sum(found_within(bug, "ours", rule, cases, seed) for bug in bugs) for rule in rules]
    return f"{ours} of {len(bugs)} by this project's rules, {min(theirs)} to {max(theirs)} by four others'"


def labelled(counts: dict[str, dict[str, int]]) -> str:
    """'found of labelled, false alarms' of each kind of bug."""
    return "; ".join(f"{c['found']} of {c['buggy']}, {c['alarms']} of {c['correct']}" for c in counts.values())


def worst_of(score: dict[str, Any]) -> str:
    """The most cases until a mutant was found; 'more than' a trial's cases where one was not."""
    limit = score["settings"]["cases"]
    return f"more than {limit}" if score["worst"] > limit else str(score["worst"])


SECTIONS: dict[str, tuple[Row, ...]] = {
    "Finding bugs": (
        Row(
            "mutants found, one to five seeds each; cases until found, median of the bugs' medians, and worst",
            lambda r: (
                f"{r['found']} of {r['mutants']}, in all {sum(bug['found'] for bug in r['bugs']):,} of "
                f"{sum(bug['trials'] for bug in r['bugs']):,} trials; {r['median']:g} cases, worst {worst_of(r)}"
            ),
            "score_host",
            (*ORACLES, "kernels"),
            commit="ebd74a9",
        ),
        Row(
            "mutants found in 20 cases of one seed, the same answers judged by other projects' rules too",
            by_rule,
            "score_host",
            (*ORACLES, "kernels"),
            commit="ebd74a9",
        ),
        Row(
            "one-line changes of the kernels' PTX (mutants) found on the emulated GPU, of those that change any result",
            lambda r: (
                f"{r['found']} of {r['found'] + r['missed']}; "
                f"median {r['median_cases']:g} cases, worst {r['worst_cases']}"
            ),
            "ptx_mutants_host",
            (*ORACLES, *EMULATOR, *BLOCKSPARSE),
        ),
        Row(
            "the same for Hopper's kernels of `blocksparse`",
            lambda r: "{found} of {0}".format(
                sum(r["targets"]["blocksparse.wgmma"][name] for name in ("found", "missed")),
                **r["targets"]["blocksparse.wgmma"],
            ),
            "ptx_mutants_hopper_host",
            (*ORACLES, *EMULATOR, *BLOCKSPARSE),
            commit="0450d539",
            machine="2 cores",
            date="2026-11-30",
            command="python -m fuzz.score.ptx_mutants --target blocksparse.wgmma --count 205 --seed 4 --jobs 2",
        ),
        Row(
            "the same for Triton's kernels of `nsa` and `dynamic_mask`",
            lambda r: "; ".join(
                f"{name} {one['found']} of {one['found'] + one['missed']}"
                for name in ("nsa", "dynamic_mask")
                for one in [r["targets"][name]]
            ),
            "ptx_mutants_sparse_host",
            (*ORACLES, *EMULATOR, "fuzz/targets", "kernels/dynamic_mask", "kernels/nsa"),
            commit="9472f1a3",
            machine="2 cores, `nsa` 16",
            date="2026-11-26",
            command="python -m fuzz.score.ptx_mutants --target nsa --count 130 --seed 20",
        ),
        Row(
            "FlashAttention-4 4.0.0b36: bugs found, cases run",
            lambda r: (
                f"{len([c for c in r['bad_cases_by_cause'] if not c.startswith('ours')])} bugs in "
                f"{sum(session['cases'] for session in r['sessions'].values()):,} cases"
            ),
            "flash_attention_4_h100",
            (*ORACLES, "fuzz/targets"),
        ),
        Row(
            "false alarms since the last one",
            false_alarm_free,
            "no_false_alarm_host",
            ORACLES,
            commit="12d6551",
            machine="2 cores",
            date="2026-11-24",
        ),
        Row(
            "`blocksparse` on a GPU, deterministic cases 20 times each",
            lambda r: f"no finding: {outcomes(r['sessions'][0]['outcomes'])}" if not r["findings"] else "findings",
            "blocksparse_session_h200",
            (*ORACLES, *BLOCKSPARSE),
        ),
        Row(
            "`blocksparse` on the emulated GPU, random schedules",
            lambda r: f"no finding in {r['later'][-1]['cases']:,} cases: {outcomes(r['later'][-1]['outcomes'])}",
            "emulator_no_false_alarm_host",
            (*ORACLES, *EMULATOR, *BLOCKSPARSE),
            commit="b0398a2",
            date="2026-11-22",
        ),
        Row(
            "published configurations, `blocksparse`",
            lambda r: outcomes(r["counts"]),
            "blocksparse_conformance_h200",
            (*ORACLES, *BLOCKSPARSE),
        ),
    ),
    "Error budget": (
        Row(
            "largest error / budget of PyTorch's CPU kernels, 20,000 cases",
            largest_ratio,
            "accuracy_cpu_20000",
            ORACLES,
        ),
        Row(
            "largest error / budget of PyTorch's CUDA kernels, 20,000 cases",
            largest_ratio,
            "accuracy_h100_20000",
            ORACLES,
        ),
    ),
    "Harness": (
        Row(
            "overhead of a small case, median, one worker",
            lambda r: f"{r['sessions'][0]['overhead_ms_median']:.1f} ms",
            "harness_host",
            HARNESS,
        ),
        Row("small `torch.sdpa` cases a second", rates("cases_per_s", "workers"), "harness_host", HARNESS),
        Row("small `torch.sdpa` cases a second, on a GPU", rates("cases_per_s", "workers"), "harness_h100", HARNESS),
        Row(
            "small cases a second with 16 workers, start included: `torch.sdpa`; `blocksparse`, kernels in the cache",
            lambda r: "; ".join(f"{r['sessions'][i]['cases_per_s_start_included']:.0f}" for i in (0, 2)),
            "throughput_h200",
            HARNESS,
        ),
        Row(
            "seconds until the first verdict, the same sessions: `torch.sdpa`; `blocksparse`, kernels in the cache",
            lambda r: "; ".join(f"{r['sessions'][i]['first_verdict_s']:.1f} s" for i in (0, 2)),
            "throughput_h200",
            HARNESS,
        ),
        Row(
            "`make test` in a fresh clone; with caches of former runs; all of `.ci/run`; `make fuzz` in a fresh clone",
            run_times,
            "run_times_host",
            ("tests", "fuzz", "Makefile"),
        ),
        Row(
            "`attnfuzz report` over 200 resampled nights of 20,000 cases: processor time; site; its signatures",
            lambda r: f"{r['processor_seconds']:.0f} s; {r['bytes'] / 1e6:.1f} MB; {r['signatures']}",
            "report_host",
            ("fuzz/dashboard", "fuzz/ledger"),
        ),
        Row(
            "a hang: until the verdict; with the restart and the next case",
            lambda r: f"{r['hang']['verdict_s']:.1f} s; {r['hang']['with_next_case_s']:.1f} s",
            "harness_host",
            ("fuzz/runner", "fuzz/process"),
        ),
        Row(
            "a hang on a GPU: with a core dump; without",
            lambda r: f"{r['spins']['seconds']:.1f} s; {r['spins, no core dump']['seconds']:.1f} s",
            "gpu_hang_h100",
            ("fuzz/runner", "fuzz/process"),
            machine="H100 80GB HBM3",
        ),
        Row(
            "kernels compiled a minute, `sm_90a`", rates("keys_per_minute", "jobs"), "compile_h100", ("fuzz/compiling",)
        ),
        Row(
            "kernels compiled a minute, `sm_100a`",
            rates("keys_per_minute", "jobs"),
            "compile_host",
            ("fuzz/compiling",),
        ),
        Row(
            "share of compiling in a session of 60 cases: cold cache; warm",
            lambda r: f"{r['session']['cold']['share']:.0%}; {r['session']['warm']['share']:.0%}",
            "compile_host",
            ("fuzz/compiling", "fuzz/session"),
        ),
        Row(
            "a session, a process killed every ten seconds, resumed: cases, kills; lost; run twice; false findings",
            lambda r: (
                f"{r['result']['recorded']:,} cases, {sum(r['result']['kills'].values())} kills: "
                f"{r['result']['missing']}; {r['result']['twice']}; {len(r['result']['false_findings'])}"
            ),
            "soak_host",
            HARNESS,
        ),
        Row(
            "cases that 16 processes at once write into a ledger, a second: SQLite; PostgreSQL",
            lambda r: "; ".join(
                f"{max(found['runs_per_s'] for found in r[name]['writers']):,}" for name in ("sqlite", "postgresql")
            ),
            "ledger_host",
            ("fuzz/ledger",),
        ),
        Row(
            "the writers' processor seconds for a million cases: SQLite; PostgreSQL, without its server's",
            lambda r: "; ".join(
                f"{min(found['cpu_s_per_million'] for found in r[name]['writers']):.0f}"
                for name in ("sqlite", "postgresql")
            ),
            "ledger_host",
            ("fuzz/ledger",),
        ),
        Row(
            "bytes of a ledger, a case: SQLite; PostgreSQL",
            lambda r: "; ".join(f"{r[name]['nights']['bytes_per_run']:.0f}" for name in ("sqlite", "postgresql")),
            "ledger_host",
            ("fuzz/ledger",),
        ),
        Row(
            "cases on a cluster of which a node is killed: lost; counted twice; with a verdict unlike one machine's",
            lambda r: (
                f"{r['one']['records']:,} cases: "
                + "; ".join(str(r["fleets"][0][name]) for name in ("lost", "counted twice", "other verdicts"))
            ),
            "fleet_host",
            ("fuzz/fleet", "fuzz/session"),
        ),
        Row(
            "cases a second on one GPU, by a fleet on it, by a fleet on two, with the start; lost; other verdicts",
            lambda r: (
                f"{r['one']['records']:,} cases: {r['one']['records a second']:.0f}, "
                + ", ".join(f"{one['records a second']:.0f}" for one in r["fleets"])
                + "; "
                + "; ".join(str(sum(one[name] for one in r["fleets"])) for name in ("lost", "other verdicts"))
            ),
            "fleet_h200",
            ("fuzz/fleet", "fuzz/session"),
        ),
        Row(
            "processor seconds of a fleet's one process for a million cases: no ledger; SQLite; PostgreSQL",
            lambda r: "; ".join(
                f"{r['driver'][name]['cpu_s_per_million']:.0f}" for name in ("none", "sqlite", "postgresql")
            ),
            "fleet_driver_host",
            ("fuzz/fleet", "fuzz/session", "fuzz/ledger"),
        ),
        Row(
            "processor seconds of writing a million cases into a ledger, its server's too: SQLite; PostgreSQL",
            lambda r: "; ".join(
                f"{sum(r[name][-1]['cpu_s_per_million']):.0f} at {r[name][-1]['runs']:,}"
                for name in ("sqlite", "postgresql")
            ),
            "ledger_growth_host",
            ("fuzz/ledger",),
        ),
    ),
    "Deadlocks": (
        Row(
            "planted deadlock on a GPU: reduced to",
            lambda r: f"{r['minimised']['case']['problem']['lengths_q'][0]} tokens, one head",
            "blocksparse_hang_h200",
            ("fuzz/runner", "fuzz/process", "fuzz/minimize", "fuzz/targets"),
        ),
        Row(
            "steps with mutants and correct kernels on a GPU; wrong ones",
            lambda r: f"{len(r['bugs'])} steps, {len(r['wrong'])} wrong",
            "blocksparse_hang_h200",
            ("fuzz/runner", "fuzz/process", "fuzz/targets"),
        ),
        Row(
            "nine mutants on the emulated GPU: case that found each, seconds, seconds to minimise",
            lambda r: (
                f"case {min(b['cases'] for b in r['bugs'])} to {max(b['cases'] for b in r['bugs'])}, "
                f"{min(b['seconds'] for b in r['bugs']):.0f} to {max(b['seconds'] for b in r['bugs']):.0f} s, "
                f"{min(b['minimised'] for b in r['bugs']):.0f} to {max(b['minimised'] for b in r['bugs']):.0f} s"
            ),
            "planted_emulator_host",
            (*EMULATOR, "fuzz/minimize"),
        ),
    ),
    "Emulated GPU": (
        Row(
            "instruction forms compared with an H100 and an H200: bit for bit the same",
            lambda r: f"{r['ptx_sm_90']['bitwise']:,}",
            "ptx_agreement",
            EMULATOR,
            machine="H100 80GB HBM3, H200",
            command="ci/emulator_vs_gpu.py --agreement",
        ),
        Row(
            "cases of `blocksparse` with the same verdict on an H100 and emulated; largest error / budget",
            lambda r: (
                f"{r['summary']['same_verdict']} of {r['summary']['compared']}; "
                f"{max(t['largest_ratio'] for t in r['summary']['tensors'].values()):.2f}"
            ),
            "emulator_vs_sm_90",
            (*EMULATOR, *BLOCKSPARSE),
        ),
        Row(
            "cases of FlashAttention-4 for `sm_90a` with the same verdict on an H200 and emulated",
            lambda r: f"{r['summary']['same_verdict']} of {r['summary']['compared']}",
            "emulator_vs_sm_90_flash_attn_cute",
            (*EMULATOR, "fuzz/targets/flash_attention_4"),
        ),
        Row(
            "FlashAttention-4's known bugs for `sm_90` that are found without a GPU",
            lambda r: f"{r['found']} of {r['of']}",
            "flash_attention_4_emulated_host",
            (*EMULATOR, "fuzz/targets/flash_attention_4"),
        ),
        Row(
            "races found in 590 labelled CUDA kernels (Indigo), false alarms; accesses out of bounds, false alarms",
            lambda r: labelled(r["suites"]["Indigo, with the checks lanes and equal_writes"]["counts"]),
            "race_suites_host",
            EMULATOR,
        ),
        Row(
            "races found in 32 labelled CUDA kernels that use scopes (ScoR), false alarms",
            lambda r: labelled(r["suites"]["ScoR, volatile as in C++"]["counts"]),
            "race_suites_host",
            EMULATOR,
        ),
        Row(
            "tile pairs of 64 × 64 × 64 a second, one core: without checks; with all",
            lambda r: f"{r['tile_pairs_per_second_off']:,}; {r['tile_pairs_per_second_all']:,}",
            "emulator_host",
            EMULATOR,
            machine="2 cores",
            command="ci/benchmarks/emulator_speed.py",
        ),
        Row(
            "FlashAttention-4's forward pass for `sm_90a`, checks on: 4,096 tokens, 8 heads, head dim 128, causal",
            lambda r: f"{r['seconds']} s",
            "flash_attention_4_emulated_speed_host",
            (*EMULATOR, "fuzz/targets/flash_attention_4"),
            machine="2 cores",
            command="ci/benchmarks/flash_attention_4_emulated.py",
        ),
        Row(
            "first result of a fresh process: warm cache; cold",
            lambda r: f"{min(r['seconds_to_first_result_warm']):.1f} s; {min(r['seconds_to_first_result_cold']):.0f} s",
            "emulator_host",
            EMULATOR,
            machine="2 cores",
            command="ci/benchmarks/emulator_speed.py",
        ),
    ),
    "Bundled kernels": (
        Row(
            "`blocksparse` forward, speed as a multiple of compiled FlexAttention's",
            both("forward", "forward"),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "backward, atomic, likewise",
            both("backward", "atomic"),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "time of the deterministic backward pass, as a multiple of the atomic one's",
            speed("backward", ordered_over_atomic),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "`blocksparse` over FlashAttention-4's speed, in one run",
            over_flash_4,
            "blocksparse_beside_h200",
            BLOCKSPARSE,
        ),
        Row(
            "portable kernels (mma.sync), forward, over FlexAttention's speed",
            both("forward", "portable"),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "portable kernels, backward, likewise",
            both("backward", "portable"),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "portable kernels over FlashAttention 2's speed, full and causal masks: forward; backward",
            lambda r: f"{over_flash_2('forward')(r)}; {over_flash_2('backward')(r)}",
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "memory beyond inputs at 131,072 tokens, window: forward; forward and backward",
            lambda r: "; ".join(
                f"{row['bytes'][way] / 2**20:,.0f} MiB"
                for row in r["rows"]
                if row["direction"] == "memory"
                for way in ("forward", "forward_backward")
            ),
            "blocksparse_speed_h200",
            BLOCKSPARSE,
        ),
        Row(
            "block lists of 1,000,000 tokens and 32 heads on a GPU: build, transpose, rank",
            lambda r: " / ".join(
                f"{r['cases']['window_32_heads']['steps'][step]['seconds'] * 1000:.1f} ms"
                for step in ("forward lists", "transpose", "write order, descending")
            ),
            "metadata_h200",
            ("kernels/blocksparse/*.py", "kernels/blocksparse/lists"),
            machine="H200",
        ),
        Row(
            "`kernels/sdpa` over PyTorch's flash backend, 8,192 tokens: forward; backward",
            lambda r: f"{over_flash('forward')(r)}; {over_flash('backward')(r)}",
            "sdpa_h200",
            ("kernels/sdpa",),
            machine="H200",
        ),
    ),
}


def row(result: str, what: str) -> Row:
    """The row of a result whose text begins with `what`. Raises StopIteration where there is none."""
    return next(r for rows in SECTIONS.values() for r in rows if r.result == result and r.what.startswith(what))
