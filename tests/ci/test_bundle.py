"""The wheels of ci/bundle.sh: what a host lacks, in versions that fit to what it has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ci.bundle_wheels import constraints, download, fitting, listed, needs, stand_in, store


def wheel(folder: Path, name: str, version: str, *needed: str) -> Path:
    """A pure wheel."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in needed)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(f"{name}.py", "x = 1\n" * 1000)
        made.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return path


def test_the_hosts_list_is_read_without_local_labels_and_other_lines_are_refused() -> None:
    found = listed("torch==2.11.0+cu130\n# a note\n\ntyping_extensions==4.15.0\nJinja2==3.1.6\n")
    assert found == {"torch": "2.11.0", "typing-extensions": "4.15.0", "jinja2": "3.1.6"}
    with pytest.raises(ValueError, match=r"--host: must have lines as 'name==version'.*'numpy'"):
        listed("numpy\n")


def test_versions_of_the_host_come_before_the_projects() -> None:
    assert constraints({"torch": "2.13.0", "msgspec": "0.22.0"}, {"torch": "2.11.0"}) == (
        "msgspec==0.22.0\ntorch==2.11.0+host\n"
    )


def test_a_package_of_the_host_that_is_too_old_counts_as_missing(tmp_path: Path) -> None:
    project = wheel(tmp_path, "project", "1.0", "torch>=2.11", "pandas>=2.2", "psycopg>=3; extra == 'postgres'")
    wanted = needs(project)
    assert [str(one) for one in wanted] == ["torch>=2.11", "pandas>=2.2"]
    assert fitting({"torch": "2.11.0", "pandas": "2.1.0", "six": "1"}, wanted) == {"torch": "2.11.0", "six": "1"}


def test_a_stand_in_has_a_version_that_meets_requirements_and_needs_nothing(tmp_path: Path) -> None:
    path = stand_in(tmp_path, "typing-extensions", "4.15.0")
    assert path.name == "typing_extensions-4.15.0+host-py3-none-any.whl" and not needs(path)
    assert Requirement("typing-extensions>=4.12,==4.15.0").specifier.contains("4.15.0+host")


def test_a_stored_wheel_has_the_same_files(tmp_path: Path) -> None:
    path = wheel(tmp_path, "a", "1")
    packed = path.stat().st_size
    store(path)
    with zipfile.ZipFile(path) as again:
        assert again.read("a.py") == b"x = 1\n" * 1000 and again.testzip() is None
    assert path.stat().st_size > packed and list(tmp_path.iterdir()) == [path]


@pytest.mark.nightly
def test_what_the_host_has_is_not_packed_and_torch_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = wheel(tmp_path, "project", "1.0", "torch>=2.11", "small>=1")
    index = tmp_path / "index"
    for made in (("small", "1.5", "deep"), ("deep", "2.0"), ("torch", "2.12.0", "nowhere==7")):
        wheel(index, *made)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def names(host: dict[str, str]) -> list[str]:
        return [path.name for path in download(project, host, tmp_path / f"out{len(host)}", "3.12", ())]

    project_, deep, small = (f"{name}-py3-none-any.whl" for name in ("project-1.0", "deep-2.0", "small-1.5"))
    assert names({"torch": "2.11.0"}) == [deep, project_, small]  # and not what the index's torch needs
    assert names({"torch": "2.11.0", "deep": "9"}) == [project_, small]
    wheel(index, "nowhere", "7")
    monkeypatch.setattr("ci.bundle_wheels.CONSTRAINTS", Path("/dev/null"))
    with pytest.raises(SystemExit, match=r"install these on the host first.*torch-2\.12\.0"):
        names({})
    with pytest.raises(SystemExit, match="no wheels that fit"):
        names({"torch": "2.11.0", "deep": "1", "small": "0.5"})
