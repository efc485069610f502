"""Full and read-only disks: small tmpfs mounts in place of the corpus and the cache. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.session.resume import read_session

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"


@contextmanager
def mounted(folder: Path, *, read_only: bool) -> Iterator[Path]:
    """A tmpfs of 1 MiB in `folder`: filled to its last byte, or read-only."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "attnfuzz", str(folder)], check=True)
    try:
        if read_only:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        else:
            with open(folder / "filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def corpus(folder: Path, *, read_only: bool) -> list[str]:
    """Faults of a session with a new finding whose corpus cannot be written, in words."""
    with mounted(folder / "corpus", read_only=read_only) as corpus:
        said, code = _session(folder, ["lies"], "fake.ignores_scale", "--corpus", str(corpus))
    kept = list((folder / "session" / "findings").glob("*.json"))
    wrong = [f"exit code {code}"] * (code != 1) + ["the finding is not kept"] * (not kept)
    wrong += ["not said once"] * (said.count("the session keeps its findings in") != 1)
    return wrong + _complete(folder) + (["a traceback"] if "Traceback" in said else [])


def cache(folder: Path, *, read_only: bool) -> list[str]:
    """Faults of a session that compiles, and whose cache cannot be written, in words."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    with mounted(folder / "cache", read_only=read_only) as place:
        env = {"ATTNFUZZ_CACHE": str(place), "TMPDIR": str(temporary)}
        said, code = _session(folder, ["recipes/compiled_target"], "fake.compiled", "--corpus", "", **env)
    # Head dims above 192 fail to compile on purpose, which is a finding of that target.
    kept = read_session(folder / "session").records
    wrong = [
        f"finding: {r.message[:120]}" for r in kept if r.outcome == "fail" and "must be 64 or 128" not in r.message
    ]
    wrong += ["not said once"] * (said.count("kernels that it lacks are compiled into") != 1)
    return wrong + _complete(folder) + [f"exit code {code}"] * (code not in (0, 1))


def _session(folder: Path, files: list[str], target: str, *more: str, **env: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "fuzz.cli.main", "run", "--target", target, "--cases", "20", "--size", "small"]
    command += ["--jobs", "1", "--device", "host", "--output-dir", str(folder / "session"), *more]
    command += [word for name in files for word in ("--target-file", str(FAKES / f"{name}.py"))]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | env, check=False)
    (folder / "log").write_text(ran.stdout + ran.stderr)
    return ran.stdout + ran.stderr, ran.returncode


def _complete(folder: Path) -> list[str]:
    count = len(read_session(folder / "session").records)
    return [f"{count} of 20 cases"] * (count != 20)


ATTACKS: dict[str, Callable[[Path], list[str]]] = {
    "a full corpus": lambda folder: corpus(folder, read_only=False),
    "a read-only corpus": lambda folder: corpus(folder, read_only=True),
    "a full cache": lambda folder: cache(folder, read_only=False),
    "a read-only cache": lambda folder: cache(folder, read_only=True),
}
