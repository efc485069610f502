"""Age of a result: the commits that changed the measured code after it was measured.

Reads `git log`. Without git, without the repository's history (a shallow clone, an archive) or with a commit that it
does not know, the age is unknown, which is an answer and no error. Commits that `.git-blame-ignore-revs` lists only
moved or renamed code and do not count.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git(*arguments: str) -> str | None:
    """Output of a git command in the repository, None where it fails or git is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def ignored() -> frozenset[str]:
    """Full hashes of the commits that only moved code."""
    file = ROOT / ".git-blame-ignore-revs"
    lines = file.read_text().splitlines() if file.exists() else []
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


@cache
def commits_since(commit: str, paths: tuple[str, ...]) -> int | None:
    """How many commits after `commit` changed Python files under `paths`: folders, or patterns that end with .py. None:
    unknown."""
    patterns = [f":(glob){path}" if path.endswith(".py") else f":(glob){path}/**/*.py" for path in paths]
    found = git("log", "--format=%H", f"{commit}..HEAD", "--", *patterns)
    return None if found is None else len(set(found.split()) - ignored())


@cache
def last_change(path: str) -> tuple[str, str] | None:
    """Short hash and date of the last commit that changed a file, None where it is unknown."""
    found = git("log", "-1", "--format=%h %cs", "--", path)
    if not found or not found.strip():
        return None
    commit, date = found.split()
    return commit, date
