"""The wheels that a host lacks: what ci/bundle.sh packs beside kernels and cases.

    python ci/bundle_wheels.py PROJECT.whl --host HOST.txt --out WHEELS [--python 3.12] [--without NAME] [--add WHAT]

pip resolves for the host: each package that the host has stands there as a wheel without content and without
requirements, whose local version ('2.11.0+host') no index has. So the versions that are packed fit to the host's, and
what only the host's packages need is not looked for. A package of the host that is too old for the project is packed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCAL = "host"
HEAVY = re.compile(r"torch|triton|nvidia-(?!cutlass-dsl).*|cuda-toolkit")  # installed with the host's driver in mind
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)  # minor versions; pip takes those that are named
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"


def listed(text: str) -> dict[str, str]:
    """Versions by normal name, of lines 'name==version' as `pip list --format=freeze` prints them, without local
    labels ('+cu130'). Raises ValueError for a line of another form."""
    found: dict[str, str] = {}
    for line in (one.partition("#")[0].strip() for one in text.splitlines()):
        name, equal, version = line.partition("==")
        if line and not equal:
            raise ValueError(f"--host: must have lines as 'name==version' (pip list --format=freeze), got {line!r}")
        if line:
            found[canonicalize_name(name.strip())] = Version(version.strip()).public
    return found


def needs(wheel: Path) -> list[Requirement]:
    """Requirements of a wheel, without those of its extras."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(packed.read(name).decode()).get_all("Requires-Dist", [])
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def fitting(host: Mapping[str, str], wanted: Iterable[Requirement]) -> dict[str, str]:
    """The host's packages but those that are too old for the project."""
    old = {
        canonicalize_name(one.name)
        for one in wanted
        if (version := host.get(canonicalize_name(one.name))) and not one.specifier.contains(version, prereleases=True)
    }
    return {name: version for name, version in host.items() if name not in old}


def constraints(ours: Mapping[str, str], host: Mapping[str, str]) -> str:
    """Constraints: the host's stand-ins, and of all else the versions that this project is tested with."""
    given = {name: f"{version}+{LOCAL}" for name, version in host.items()}
    return "".join(f"{name}=={version}\n" for name, version in sorted((dict(ours) | given).items()))


def stand_in(folder: Path, name: str, version: str) -> Path:
    """Wheel of a package that the host has: its name and version alone."""
    stem = f"{name.replace('-', '_')}-{version}+{LOCAL}"
    path, info = folder / f"{stem}-py3-none-any.whl", f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}+{LOCAL}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: bundle\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")
    return path


def store(path: Path) -> None:
    """Writes a wheel again with its files uncompressed: an archive of wheels then compresses better."""
    beside = path.with_suffix(".tmp")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = old.read(info)
            info.compress_type = zipfile.ZIP_STORED
            new.writestr(info, content)
    beside.replace(path)


def download(wheel: Path, host: Mapping[str, str], out: Path, python: str, add: Iterable[str]) -> list[Path]:
    """Wheels that the host lacks, in `out`, the project's own too. Raises SystemExit where pip finds none that fit, or
    where torch, Triton or CUDA would be among them."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "stand-ins").mkdir()
        for package, version in host.items():
            stand_in(work / "stand-ins", package, version)
        (work / "constraints.txt").write_text(constraints(listed(CONSTRAINTS.read_text()), host))
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
        command = [
            sys.executable, "-m", "pip", "download", "-qq", "--only-binary=:all:", "--implementation", "cp",
            "--python-version", python, *(part for one in platforms for part in ("--platform", one)),
            "--find-links", str(work / "stand-ins"), "-c", str(work / "constraints.txt"), "-d", str(work / "wheels"),
            str(wheel), *add,
        ]  # fmt: skip
        if code := subprocess.run(command, check=False).returncode:
            raise SystemExit(f"bundle: pip found no wheels that fit to the host (exit code {code})")
        found = [one for one in sorted((work / "wheels").iterdir()) if f"+{LOCAL}-" not in one.name]
        if heavy := [one.name for one in found if HEAVY.fullmatch(canonicalize_name(one.name.split("-")[0]))]:
            raise SystemExit(f"bundle: install these on the host first, and name them in --host: {', '.join(heavy)}")
        out.mkdir(parents=True, exist_ok=True)
        for one in found:
            (out / one.name).write_bytes(one.read_bytes())
    return [out / one.name for one in found]


def main() -> None:
    """Downloads, and lists the wheels on standard output."""
    parser = argparse.ArgumentParser(description="download the wheels that a host lacks")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--host", required=True, type=Path, help="`pip list --format=freeze` of the host")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--python", default="3.12", help="of the host (3.12)")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave out, with what it needs")
    parser.add_argument("--add", action="append", default=[], metavar="WHAT", help="pack too")
    parser.add_argument("--store", action="store_true", help="without compression: for an archive that is compressed")
    given = parser.parse_args()
    try:
        there = listed(given.host.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"bundle: {error}") from None
    host = fitting(there, needs(given.wheel))
    for name in sorted(there.keys() - host.keys()):
        print(f"bundle: the host's {name} {there[name]} is too old and is packed", file=sys.stderr)
    pinned = listed(CONSTRAINTS.read_text())
    left = {canonicalize_name(name): pinned.get(canonicalize_name(name), "999") for name in given.without}
    for path in download(given.wheel, left | host, given.out, given.python, given.add):
        if given.store:
            store(path)
        print(path.name)


if __name__ == "__main__":
    main()
