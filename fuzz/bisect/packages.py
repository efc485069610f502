"""A list of package versions, oldest first: each is installed into a virtual environment, and removed after its runs.

The environment sees all other packages of the running interpreter; what is installed stands before them. pip is asked
as its settings say ($PIP_INDEX_URL, $PIP_FIND_LINKS, pip.conf), so an index or a folder of wheels of one's own works.
"""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz.bisect.checkouts import HARNESS
from fuzz.bisect.posterior import linear
from fuzz.bisect.revisions import BisectError, History, Place, Revision, Untestable


@dataclass(frozen=True)
class Packages:
    """Versions to try, each the requirements of one: 'torch==2.12.0', or several with blanks between.

    good, bad  of the list; '': the first, the last
    """

    versions: tuple[str, ...]
    good: str = ""
    bad: str = ""
    files: tuple[str, ...] = ()
    limit: float = 3600.0

    def history(self) -> History:
        """The versions after the good one, up to the bad one. Raises BisectError."""
        good, bad = self._place(self.good, "--good", 0), self._place(self.bad, "--bad", len(self.versions) - 1)
        if good >= bad:
            raise BisectError(f"--versions: {self.versions[good]} has to stand before {self.versions[bad]}")
        suspects = tuple(Revision(name) for name in self.versions[good + 1 : bad + 1])
        return History(Revision(self.versions[good]), suspects, linear(len(suspects)))

    @contextmanager
    def prepare(self, revision: Revision) -> Iterator[Place]:
        """A virtual environment with the version. Raises Untestable."""
        folder = Path(tempfile.mkdtemp(prefix="attnfuzz-bisect-"))
        try:
            python = folder / "venv" / "bin" / "python"
            self._ask([sys.executable, "-m", "venv", str(folder / "venv")])
            _see_others(folder / "venv")
            self._ask([str(python), "-m", "pip", "install", "--quiet", "--no-input", *revision.name.split()])
            yield Place(str(python), (HARNESS,), Path.cwd(), tuple(str(Path(file).resolve()) for file in self.files))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, command: list[str]) -> None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.limit, check=False)
        except subprocess.TimeoutExpired:
            raise Untestable(f"{' '.join(command[1:4])} took more than {self.limit:g} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")]
            raise Untestable((lines or done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])

    def _place(self, name: str, option: str, default: int) -> int:
        if not name:
            return default
        if name not in self.versions:
            raise BisectError(f"{option} {name}: is not in --versions {','.join(self.versions)}")
        return self.versions.index(name)


def _see_others(venv: Path) -> None:
    """Lets an environment see the packages of the running interpreter, after its own."""
    own = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    others = [path for path in (*site.getsitepackages(), site.getusersitepackages()) if Path(path).is_dir()]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in others)
    (own / "zz_others.pth").write_text(lines)
