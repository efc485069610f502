"""Soak: one long session whose processes are killed at random, and which is resumed until it is complete.

What must hold: every case was run and recorded once, they are the cases of an uninterrupted session, no target that is
right has a finding, no process is left, and none of them grows.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import psutil

from fuzz.session.plan import plan
from fuzz.session.records import Reader, Record, machine, settlement
from fuzz.session.resume import already_ran, read_session
from fuzz.session.worker import run

ROOT = Path(__file__).parents[2]
FAKES = tuple(str(ROOT / "tests" / "fakes" / f"{name}.py") for name in ("honest", "lies", "state"))
RIGHT = ("torch.sdpa.math", "fake.honest")
WRONG = ("fake.ignores_scale",)
ROLES = ("controller", "worker", "zygote", "child")  # by their depth in the tree of processes
MARK = "ATTNFUZZ_SOAK"
LONGEST = 1.25  # a process's memory in the last third of the soak, over that in the first
SLACK = 64 << 20
SAY_EVERY = 10.0  # seconds
FAULT = 3  # exit code of a session that broke
PATIENCE = 5  # of them, one after the other, without a case


@dataclass
class Soak:
    """Figures of a soak. `kills` by role; `rss` is MiB of the largest process of each role."""

    cases: int
    workers: int
    seed: int
    kill_every: float
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    recorded: int = 0
    missing: int = 0
    twice: int = 0
    other_cases: int = 0
    compared: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    false_findings: list[str] = field(default_factory=list)
    wrong_targets_without_a_finding: list[str] = field(default_factory=list)
    left_processes: int = 0
    rss_first: dict[str, int] = field(default_factory=dict)
    rss_last: dict[str, int] = field(default_factory=dict)
    grown: list[str] = field(default_factory=list)
    gave_up: str = ""

    @property
    def failures(self) -> list[str]:
        """Faults of the soak, a line each."""
        found = {
            "cases were not run": 0 if self.gave_up else self.missing,
            "cases were recorded twice": self.twice,
            "cases are others than in an uninterrupted session": self.other_cases,
            "findings of targets that are right": len(self.false_findings),
            "wrong targets without a finding": len(self.wrong_targets_without_a_finding),
            "processes were left": self.left_processes,
            "kinds of process grew": len(self.grown),
        }
        return [f"{count} {text}" for text, count in found.items() if count] + [self.gave_up] * bool(self.gave_up)


class _SoFar(msgspec.Struct):
    """A soak that was stopped. memory: (seconds, role, resident bytes)."""

    seconds: float = 0.0
    kills: dict[str, int] = {}
    resumes: int = 0
    memory: list[tuple[float, str, int]] = []


def soak(
    cases: int,
    workers: int,
    seed: int,
    kill_every: float,
    folder: Path,
    roles: tuple[str, ...],
    *,
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda line: None,
) -> Soak:
    """Runs the session in `folder`, killing one process of a random role every `kill_every` seconds in the mean.

    folder   of the session; a soak that was stopped there goes on, and the figures are those of both
    seconds  the session is stopped after so many, and judged by what it has run until then
    say      is told now and then how far it is
    """
    before = _before(folder)
    draw, done = random.Random(f"{seed} {before.seconds}"), Soak(cases, workers, seed, kill_every)
    done.resumes = before.resumes
    mark = secrets.token_hex(8)
    kills, memory = Counter(before.kills), before.memory
    now = time.monotonic()
    began, ends = now - before.seconds, now + seconds
    session = _start(folder, cases, workers, seed, mark, resume=(folder / "session.json").is_file())
    next_kill, next_line = now + draw.expovariate(1 / kill_every), now
    broke, lines = 0, 0
    while True:
        time.sleep(0.25)
        if time.monotonic() > next_line:
            next_line = time.monotonic() + SAY_EVERY
            say(f"{_lines(folder)} of {cases} cases, {sum(kills.values())} kills, {done.resumes} resumes")
        if time.monotonic() > ends:
            session.terminate()
            session.wait()
            if _lines(folder) < cases:
                done.gave_up = f"the time was up after {_lines(folder)} of {cases} cases"
            break
        if session.poll() is not None:
            if session.returncode in (0, 1) and len(read_session(folder).records) >= cases:
                break
            if session.returncode not in (-signal.SIGKILL, 0, 1, 3) or done.resumes > cases:
                done.gave_up = f"the session ended with exit code {session.returncode}"
                break
            begun = (folder / "session.json").is_file()
            broke = broke + 1 if session.returncode == FAULT and _lines(folder) == lines else 0
            lines = _lines(folder)
            if broke == PATIENCE:
                done.gave_up = f"the session broke {broke} times without a case: see {folder.with_suffix('.log')}"
                break
            done.resumes += begun
            session = _start(folder, cases, workers, seed, mark, resume=begun)
            continue
        tree = _tree(session.pid)
        memory += [(time.monotonic() - began, role, rss) for role, (_, rss) in tree]
        if time.monotonic() > next_kill:
            next_kill = time.monotonic() + draw.expovariate(1 / kill_every)
            role = draw.choice(roles)
            there = [pid for name, (pid, _) in tree if name == role]
            if there:
                with_signal(draw.choice(there))
                kills[role] += 1
    done.seconds, done.kills = round(time.monotonic() - began, 1), dict(kills)
    so_far = _SoFar(done.seconds, done.kills, done.resumes, _thinned(memory))
    _so_far_file(folder).write_bytes(msgspec.json.encode(so_far))
    if (folder / "session.json").is_file():
        _read(folder, done, draw)
    done.left_processes = _left(mark)
    _memory(memory, done)
    return done


def _so_far_file(folder: Path) -> Path:
    return folder.with_suffix(".soak.json")


def _before(folder: Path) -> _SoFar:
    file = _so_far_file(folder)
    return msgspec.json.decode(file.read_bytes(), type=_SoFar) if file.is_file() else _SoFar()


def _thinned(memory: list[tuple[float, str, int]]) -> list[tuple[float, str, int]]:
    """The largest process of each role in every ten seconds."""
    largest: dict[tuple[int, str], tuple[float, str, int]] = {}
    for at, role, rss in memory:
        key = int(at / 10), role
        largest[key] = max(largest.get(key, (at, role, 0)), (at, role, rss), key=lambda one: one[2])
    return list(largest.values())


def _lines(folder: Path) -> int:
    """Records of a session that runs, roughly: one that is being written counts too."""
    count = 0
    for path in folder.glob("records-*.jsonl"):
        with open(path, "rb") as file:
            count += sum(1 for _ in file)
    return count


def with_signal(pid: int) -> None:
    """SIGKILL, to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def result(done: Soak) -> dict[str, object]:
    """The soak as JSON, with the machine."""
    return {"machine": machine(), "result": asdict(done), "failures": done.failures}


def _start(folder: Path, cases: int, workers: int, seed: int, mark: str, *, resume: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fuzz.cli.main", "run", "--jobs", str(workers)]
    if resume:
        command += ["--resume", str(folder)]
    else:
        command += ["--cases", str(cases), "--seed", str(seed), "--size", "small", "--output-dir", str(folder)]
        corpus = folder.parent / "corpus"  # a copy: the findings of this session are not to stay
        shutil.copytree(ROOT / "corpus" / "regressions", corpus, dirs_exist_ok=True)
        command += ["--device", "host", "--corpus", str(corpus)]
        command += [word for name in (*RIGHT, *WRONG) for word in ("--target", name)]
        command += [word for file in FAKES for word in ("--target-file", file)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | {MARK: mark})


def _tree(pid: int) -> list[tuple[str, tuple[int, int]]]:
    """(role, (pid, resident bytes)) of a session's processes."""
    found: list[tuple[str, tuple[int, int]]] = []

    def walk(process: psutil.Process, depth: int) -> None:
        if depth >= len(ROLES):
            return
        try:
            if "resource_tracker" not in " ".join(process.cmdline()):
                found.append((ROLES[depth], (process.pid, process.memory_info().rss)))
                for child in process.children():
                    walk(child, depth + 1)
        except psutil.Error:
            pass

    with suppress(psutil.Error):
        walk(psutil.Process(pid), 0)
    return found


def _read(folder: Path, done: Soak, draw: random.Random) -> None:
    """Figures from the records alone."""
    kept = read_session(folder)
    shards = {shard.name: shard for shard in plan(kept.settings)}
    places = Counter((record.shard, record.index) for record in kept.records)
    wanted = {(shard.name, index) for shard in shards.values() for index in range(shard.cases)}
    done.recorded = len(kept.records)
    done.missing = len(wanted - places.keys())
    done.twice = sum(count - 1 for count in places.values())
    records = settlement(folder).apply(kept.records)
    news = [record for record in records if record.status == "new"]
    done.findings = dict(Counter(record.target for record in news))
    bad = [record for record in records if record.status in ("met", "new", "again") and record.target in RIGHT]
    done.false_findings = [f"{record.target}: {record.message[:160]}" for record in bad][:20]
    done.wrong_targets_without_a_finding = [name for name in WRONG if not done.findings.get(name)]
    _compare(folder, [shards[name] for name in draw.sample(sorted(shards), min(2, len(shards)))], done)


def _compare(folder: Path, chosen: list, done: Soak) -> None:
    """Runs some shards once more, uninterrupted, and compares the cases."""
    kept = read_session(folder)
    again = msgspec.structs.replace(kept.settings, folder=str(folder) + "-again", minimize_runs=0)
    run(again, chosen, "w0")
    ids: dict[tuple[str, int], list[Record]] = {}
    for record in (*kept.records, *Reader(Path(again.folder)).new()):
        ids.setdefault((record.shard, record.index), []).append(record)
    ran = already_ran(kept)
    for shard in chosen:
        for index in ran.get(shard.name, {}):
            both = ids[shard.name, index]
            done.compared += 1
            done.other_cases += len({record.case_id for record in both}) > 1 or len(both) < 2


def _left(mark: str) -> int:
    """Processes of the soak that are still there, after a moment to end."""
    until = time.monotonic() + 5
    while True:
        count = 0
        for process in psutil.process_iter():
            try:
                count += process.environ().get(MARK) == mark
            except psutil.Error:
                continue
        if not count or time.monotonic() > until:
            return count
        time.sleep(0.2)


def _memory(memory: list[tuple[float, str, int]], done: Soak) -> None:
    """The largest process of each role in the first and in the last third."""
    for role in ROLES:
        first, last = (
            max((rss for at, name, rss in memory if name == role and low <= at <= high), default=0)
            for low, high in ((0, done.seconds / 3), (2 * done.seconds / 3, done.seconds))
        )
        done.rss_first[role], done.rss_last[role] = first >> 20, last >> 20
        if first and last > LONGEST * first + SLACK:
            done.grown.append(role)
