"""Lists of package versions: wheels made by hand stand for an index."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from fuzz.bisect.packages import Packages
from fuzz.bisect.revisions import BisectError, Untestable

VERSIONS = ("planted==1.0", "planted==1.1", "planted==1.2")


def wheel(folder: Path, version: str) -> None:
    """A wheel of a package with one module."""
    info = f"planted-{version}.dist-info"
    with zipfile.ZipFile(folder / f"planted-{version}-py3-none-any.whl", "w") as made:
        made.writestr("planted.py", f"VERSION = {version!r}\n")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: planted\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


def test_the_suspects_are_the_versions_after_the_good_one() -> None:
    history = Packages(VERSIONS).history()
    assert history.good.name == VERSIONS[0] and [str(one) for one in history.revisions] == list(VERSIONS[1:])
    assert [one.name for one in Packages(VERSIONS, bad=VERSIONS[1]).history().revisions] == [VERSIONS[1]]


@pytest.mark.parametrize("ends", [("planted==2", ""), (VERSIONS[2], VERSIONS[1]), (VERSIONS[1], VERSIONS[1])])
def test_ends_that_are_not_in_the_list_or_in_the_wrong_order_are_an_error(ends: tuple[str, str]) -> None:
    with pytest.raises(BisectError):
        Packages(VERSIONS, *ends).history()


@pytest.mark.nightly
def test_a_version_is_installed_into_an_environment_that_sees_all_else(tmp_path: Path, monkeypatch) -> None:
    for version in ("1.0", "1.1"):
        wheel(tmp_path, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    made = Packages(VERSIONS)
    first, second = made.history().revisions
    with made.prepare(first) as place:
        script = "import planted, torch; print(planted.VERSION, torch.__name__)"
        done = subprocess.run([place.python, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["1.1", "torch"]
    assert not Path(place.python).exists()
    with pytest.raises(Untestable, match=r"planted==1\.2"), made.prepare(second):
        pass
