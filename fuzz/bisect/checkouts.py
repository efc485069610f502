"""The revisions of a git repository: each is checked out into a temporary worktree, and removed after its runs.

The suspects are `git rev-list GOOD..BAD`: with branches and merges too, since which commit is an ancestor of which is
known. The repository's own working tree, index and HEAD stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuzz.bisect.revisions import BisectError, History, Place, Revision, Untestable

HARNESS = Path(__file__).resolve().parents[2]  # what holds `fuzz`, `oracles` and `kernels`
OWN = ("fuzz/runner/client.py", "fuzz/corpus/store.py")  # a repository with these is the harness's own
MOST = 5000  # suspects


@dataclass(frozen=True)
class Checkouts:
    """A repository between two revisions.

    files  target files: one inside the repository is taken from each revision, another as it lies
    build  a shell command that is run in each worktree first; one that fails makes the revision untestable
    limit  seconds that it may take
    """

    repository: Path
    good: str
    bad: str
    files: tuple[str, ...] = ()
    build: str = ""
    limit: float = 3600.0

    def history(self) -> History:
        """The commits that are in `bad` and not in `good`. Raises BisectError."""
        good, bad = self._commit(self.good, "--good"), self._commit(self.bad, "--bad")
        listed = self._git("rev-list", "--topo-order", "--reverse", "--parents", f"{good}..{bad}").split("\n")
        parents = {name: rest for name, *rest in (line.split() for line in listed if line)}
        if not parents:
            raise BisectError(f"--good {self.good}, --bad {self.bad}: no commit is in the second and not in the first")
        if len(parents) > MOST:
            raise BisectError(f"{len(parents)} commits lie between --good and --bad; at most {MOST} can be searched")
        titles = dict(
            line.split(" ", 1)
            for line in self._git("log", "--format=%H %s", f"{good}..{bad}").split("\n")
            if " " in line
        )
        suspects = tuple(Revision(name, titles.get(name, "")) for name in parents)
        return History(Revision(good, self._git("log", "-1", "--format=%s", good)), suspects, _descends(parents))

    @contextmanager
    def prepare(self, revision: Revision) -> Iterator[Place]:
        """A worktree of the revision, built. Raises Untestable."""
        folder = Path(tempfile.mkdtemp(prefix="attnfuzz-bisect-"))
        tree = folder / "tree"
        try:
            try:
                self._git("worktree", "add", "--detach", "--force", str(tree), revision.name)
            except BisectError as error:
                raise Untestable(str(error)) from error
            self._build(tree)
            yield Place(sys.executable, _paths(tree), tree, tuple(self._file(tree, file) for file in self.files))
        finally:
            with suppress(BisectError):
                self._git("worktree", "remove", "--force", "--force", str(tree))
            shutil.rmtree(folder, ignore_errors=True)

    def _build(self, tree: Path) -> None:
        if not self.build:
            return
        try:
            done = subprocess.run(
                self.build, shell=True, cwd=tree, capture_output=True, text=True, timeout=self.limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise Untestable(f"--build took more than {self.limit:g} s") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).split("\n")[-1]
            raise Untestable(f"--build ended with {done.returncode}: {last}")

    def _file(self, tree: Path, file: str) -> str:
        """A target file, in the worktree if the repository holds it."""
        top = Path(self._git("rev-parse", "--show-toplevel")).resolve()
        path = (top / file).resolve() if not Path(file).exists() else Path(file).resolve()
        if not path.is_relative_to(top):
            return str(path)
        inside = tree / path.relative_to(top)
        if not inside.is_file():
            raise Untestable(f"has no {path.relative_to(top)}")
        return str(inside)

    def _commit(self, name: str, option: str) -> str:
        try:
            return self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except BisectError:
            raise BisectError(f"{option} {name}: no commit of {self.repository}") from None

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.repository), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BisectError(f"git: {error.strerror}") from error
        if done.returncode:
            raise BisectError(f"git {arguments[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        return done.stdout.strip()


def _paths(tree: Path) -> tuple[Path, ...]:
    """PYTHONPATH of a worktree: the harness that runs is the worktree's own where it holds it, and this one otherwise,
    before a worktree that may have a folder `kernels` too."""
    return (tree,) if all((tree / name).is_file() for name in OWN) else (HARNESS, tree)


def _descends(parents: dict[str, list[str]]) -> NDArray[np.bool_]:
    """[f, r]: whether f is r or one of its ancestors. parents: by commit, each after its own parents."""
    number = {name: place for place, name in enumerate(parents)}
    found = np.eye(len(parents), dtype=bool)
    for name, its in parents.items():
        for parent in its:
            if parent in number:
                found[:, number[name]] |= found[:, number[parent]]
    return found
