"""Speed of the block-sparse kernels beside compiled FlexAttention, in one run; peak memory; alternatives of the layout.

    python ci/benchmarks/blocksparse_speed.py --seconds 150 --out ci/results/blocksparse_speed_h100.json [--tune]
    [--ncu]
    python ci/benchmarks/blocksparse_speed.py --dry --out /tmp/x.json        the same on the emulated GPU, tiny, to try
    the script

Masks causal, window of 2,048, documents, random blocks at 10 and 50 %; 8,192 and 32,768 tokens; dims 64 and 128; 16
query heads on 16 and on 2 KV heads. Forward; backward with atomic adds, and deterministic under the default schedule
and a computed one; on Hopper the portable kernels too, and where the mask is full or causal PyTorch's FlashAttention 2,
which is made for mma.sync as those are. The most important entries come first; what there is no time for is listed as
left out. Results are written as they come. Kernels are compiled ahead, and every entry is a process of its own
(bench_blocksparse_entry.py), so that compiling FlexAttention runs in parallel. Exits with 1 where an entry failed or
results disagree with FlexAttention's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from blocksparse_bounds import ALTERNATIVES  # noqa: E402
from blocksparse_entry import emit_line, run  # noqa: E402
from blocksparse_masks import TILE, Entry  # noqa: E402

HEADS = ((16, 16), (16, 2))
MASKS = ("causal", "window", "documents", "10%", "50%")
DISAGREE = 0.02  # of relative differences; two correct bfloat16 kernels are within 0.01
COUNTERS = (
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "gpu__time_duration.sum",
)


def planned(options: argparse.Namespace) -> list[Entry]:
    """All entries, the most important first."""
    if options.dry:
        small = [Entry("pair", mask, 256, 64, 2, heads, "emulator") for mask, heads in (("causal", 2), ("50%", 1))]
        return [*small, Entry("tune", "causal", 256, 64, 1, 1, "emulator")][: 3 if options.tune else 2]
    first = [Entry("pair", mask, 8192, dim, *HEADS[0]) for dim in (128, 64) for mask in MASKS]
    memory = [Entry("memory", "window", 131072, 128, *HEADS[0])]
    tuned = [Entry("tune", mask, 8192, dim, *HEADS[0]) for dim in (128, 64) for mask in ("causal", "window")]
    rest = [Entry("pair", mask, 32768, dim, *HEADS[0]) for dim in (128, 64) for mask in MASKS]
    rest += [Entry("pair", mask, 8192, dim, *HEADS[1]) for dim in (128, 64) for mask in MASKS]
    rest += [Entry("pair", "full", 8192, dim, *HEADS[0]) for dim in (128, 64)]
    rest += [Entry("pair", mask, 32768, dim, *HEADS[1]) for dim in (128, 64) for mask in MASKS]
    if options.forward:
        return [replace(entry, kind="forward") for entry in [*first, *rest] if (options.only or "") in entry.name]
    entries = [*first, *memory, *(tuned if options.tune else []), *rest]
    return [entry for entry in entries if options.only is None or options.only in entry.name]


class Results:
    """Rows as they come, on disk after each one. line: a row of the table."""

    def __init__(self, out: Path | None, line: Callable[[dict[str, Any]], str] | None = None) -> None:
        self.out, self.rows, self.notes = out, [], {}  # type: tuple[Path | None, list[dict[str, Any]], dict[str, Any]]
        self.line = line or as_line
        self._lock = threading.Lock()

    def add(self, row: dict[str, Any]) -> None:
        """One more row."""
        with self._lock:
            self.rows.append(row)
            print(self.line(row), flush=True)
            self._write()

    def note(self, **notes: Any) -> None:
        """Adds to the fields before the rows."""
        with self._lock:
            self.notes |= notes
            self._write()

    def _write(self) -> None:
        if self.out:
            part = self.out.with_suffix(".part")
            part.write_text(json.dumps({**self.notes, "rows": self.rows}, indent=1) + "\n")
            part.replace(self.out)


def as_line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "trouble" in row:
        return f"FAILED {row['entry']}: {row['trouble']}"
    head = f"{row['direction']:14} {row['mask']:9} {row['tokens']:6} dim {row['dim']:3}"
    if row["direction"] == "memory":
        mib = {name: f"{size / 2**20:.0f} MiB" for name, size in row["bytes"].items()}
        return f"{head} {mib}, {row['bytes_per_token']} bytes a token"
    if row["direction"].startswith("tune"):
        tiles = "x".join(map(str, row["tiles"]))
        return f"{head} {tiles} {row['tuning']}: " + (f"{row['ms']:.3f} ms" if "ms" in row else row["error"][:100])
    times = " ".join(f"{name} {at:.3f}" for name, at in row["ms"].items())
    flex = f"{row['flex_ms']:.3f}"
    ordered = f", det/atomic {row['deterministic_over_atomic']:.2f}" if "best_schedule" in row else ""
    if "flash_2_ms" in row:
        ordered += f", portable {row['portable_over_flash_2']:.2f} x flash 2 ({row['flash_2_ms']:.3f} ms)"
    found = row["bounds"]
    heads = "/".join(map(str, row["heads"]))
    return (
        f"{head} {heads:5} {times} ms, flex {flex} ms: {row['speed_ratio']:.2f} x flex{ordered}; "
        f"{found['tflops']:.0f} TFLOP/s, {found['nearest']} {max(found['share_of_time'].values()):.0%}"
    )


class Child:
    """One entry's process, in a group of its own, so that it can be ended with what it started."""

    def __init__(self, entry: Entry, folder: Path, results: Results, script: Path) -> None:
        self.entry, self.results, self.began = entry, results, time.monotonic()
        self.log = folder / (entry.name.replace(" ", "_").replace("/", "-").replace(",", "") + ".log")
        command = [sys.executable, str(script), "--entry", json.dumps(asdict(entry))]
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--lock", str(folder / "lock")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **threads},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ROW "):
                self.results.add(json.loads(line[4:]))

    def ended(self, limit: float) -> bool:
        """True if it is over; it is ended after `limit` seconds, and what went wrong becomes a row."""
        spent = time.monotonic() - self.began
        if self.process.poll() is None and spent < limit:
            return False
        trouble = ""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            trouble = f"ended after {spent:.0f} s"
        code = self.process.wait()
        self._reader.join(5)
        if trouble or code:
            lines = self.log.read_text().strip().splitlines()
            last = next((line for line in reversed(lines) if line.strip() and not line.startswith(" ")), "")
            self.results.add({"entry": self.entry.name, "trouble": trouble or f"exit {code}: {last[:300]}"})
        return True


def run_all(
    entries: list[Entry],
    folder: Path,
    results: Results,
    options: argparse.Namespace,
    until: float,
    script: Path = HERE / "blocksparse_speed.py",
) -> None:
    """Runs the entries in order, `jobs` at a time, each and all within their limits. script: what takes --entry."""
    running: list[Child] = []
    todo = list(entries)
    while todo or running:
        while todo and len(running) < options.jobs and time.monotonic() < until - options.least:
            running.append(Child(todo.pop(0), folder, results, script))
        limit = options.entry_seconds if time.monotonic() < until else 0.0
        running = [child for child in running if not child.ended(limit)]
        if not running and time.monotonic() >= until - options.least:
            break
        time.sleep(0.1)
    results.note(left_out=[entry.name for entry in todo])


def build_ahead(entries: list[Entry], jobs: int) -> threading.Thread:
    """Compiles every kernel of the entries in the background; entries that need one sooner wait for it."""
    import torch

    from fuzz.compiling import Cache, Pool
    from fuzz.devices.cuda import build_of
    from kernels.blocksparse.compile.runtime import arch_of
    from kernels.blocksparse.spec.variant import NO_INJECTION

    arch = arch_of(torch.device("cuda", 0))
    builds = [build_of(variant, arch, NO_INJECTION) for variant in variants(entries, arch)]

    def build() -> None:
        with Pool(Cache(), jobs=jobs) as pool:
            for ended in pool.build(builds):
                if ended.status == "failed":
                    print(f"not built: {ended.why}", file=sys.stderr)

    thread = threading.Thread(target=build, daemon=True)
    thread.start()
    return thread


def variants(entries: list[Entry], arch: str) -> list[Any]:
    """The kernels that the entries need, each once, in the order of the entries."""
    from kernels.blocksparse.spec.variant import Variant, backward_products, forward_products, padded_dim

    kinds = {"causal": "band", "window": "band", "documents": "intervals"}
    found: dict[Variant, None] = {}
    for entry in entries:
        dim, mask = padded_dim(entry.dim), kinds.get(entry.mask, "none")
        directions = DIRECTIONS[:1] if entry.kind == "forward" else DIRECTIONS
        layouts: list[tuple[str, tuple[int, int], dict[str, int]]] = [(d, (TILE, TILE), {}) for d in directions]
        if entry.kind == "tune":
            layouts = ALTERNATIVES[entry.dim]
        for direction, tiles, tuning in layouts:
            options = tuple(sorted((name, value) for name, value in tuning.items() if name != "pairs"))
            ordered = (True, False) if direction == "backward" and entry.kind != "tune" else (False,)
            if direction == "forward":
                found[Variant(direction, "bfloat16", dim, *tiles, mask, tuning=options)] = None
            if direction == "forward" and entry.kind != "tune":
                fastest = forward_products(arch, tiles[0])
                found[Variant(direction, "bfloat16", dim, *tiles, mask, products=fastest)] = None
            if direction == "backward":
                fastest = backward_products("wgmma" if arch == "sm_90a" else "mma", tiles[1], dim)
                found[Variant("preprocess", "bfloat16", dim, tile_m=tiles[0])] = None
                for products in {"mma"} if entry.kind == "tune" else {fastest, "mma"}:
                    for det in ordered if products == fastest else (False,):
                        found[Variant(direction, "bfloat16", dim, *tiles, mask, det, False, products, options)] = None
                    found[Variant("postprocess", "bfloat16", dim, *tiles, products=products, tuning=options)] = None
    return list(found)


DIRECTIONS = ("forward", "backward")


def counted(entry: Entry, lock: Path) -> dict[str, Any]:
    """Counts of ncu in the kernels of one entry's first calls; without it, that."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {"missing": "ncu is not installed here; see bounds in each row"}
    command = [ncu, "--csv", "--metrics", ",".join(COUNTERS), "--kernel-name", "regex:cutlass"]
    child = [sys.executable, str(HERE / "blocksparse_speed.py"), "--entry", json.dumps(asdict(entry))]
    try:
        done = subprocess.run(
            [*command, *child, "--lock", str(lock)], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return {"missing": "ncu took more than 60 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    return {"csv": lines} if lines else {"missing": (done.stdout + done.stderr)[-500:]}


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="in all, but for ncu")
    parser.add_argument("--entry-seconds", type=float, default=110, help="of one entry, compiling included")
    parser.add_argument("--least", type=float, default=40, help="start nothing in the last so many seconds")
    parser.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 3)))
    parser.add_argument("--forward", action="store_true", help="forward passes only")
    parser.add_argument("--tune", action="store_true", help="also time the alternative layouts")
    parser.add_argument("--ncu", action="store_true", help="also count with ncu, where it is installed")
    parser.add_argument("--only", help="entries whose name has this")
    parser.add_argument("--dry", action="store_true", help="on the emulated GPU, tiny")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--entry", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.entry:
        run(Entry(**json.loads(options.entry)), options.lock, emit_line)
        return 0

    import tempfile

    from fuzz.session.records import machine

    until = time.monotonic() + options.seconds
    if options.dry:
        options.least = min(options.least, 1.0)
    entries, results = planned(options), Results(options.out)
    results.note(machine=machine(), device="emulator" if options.dry else "cuda", tile=TILE, jobs=options.jobs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lock").touch()
        if not options.dry:
            build_ahead(entries, max(2, options.jobs // 2))
        run_all(entries, folder, results, options, until)
        if options.ncu and not options.dry:
            results.note(ncu=counted(Entry("once", "causal", 8192, 128, *HEADS[0]), folder / "lock"))
    wrong = [row for row in results.rows if "trouble" in row or disagrees(row)]
    for row in wrong:
        print("WRONG " + json.dumps(row), file=sys.stderr)
    left = results.notes["left_out"]
    print(f"{len(results.rows)} rows, {len(wrong)} wrong, {len(left)} entries left out: {', '.join(left)[:600]}")
    return 1 if wrong else 0


def disagrees(row: dict[str, Any]) -> bool:
    """True if a row's results are not those of FlexAttention, or of the default layout; or nothing was measured."""
    differences = row.get("difference", {})
    values = differences.values() if isinstance(differences, dict) else [differences]
    return "error" in row or any(not value < DISAGREE for value in values)


if __name__ == "__main__":
    sys.exit(main())
