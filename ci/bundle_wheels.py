"""Lists and wheels of ci/bundle.sh.

python ci/bundle_wheels.py constraints CONSTRAINTS.txt [FREEZE.txt]   constraints: the host's versions before ours
python ci/bundle_wheels.py missing REPORT.json [FREEZE.txt]           what a resolution needs and the host has not
python ci/bundle_wheels.py store WHEEL…                               each wheel again, without compression inside
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

OWN = "attnfuzz"


def versions(path: str) -> dict[str, str]:
    """Versions by normal name, of lines 'name==version'; without local labels as '+cu130', which no index has."""
    lines = Path(path).read_text().splitlines() if path else []
    found = (line.split("#")[0].strip().partition("==") for line in lines)
    return {normal(name): version.partition("+")[0] for name, _, version in found if version}


def normal(name: str) -> str:
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def constraints(ours: str, host: str = "") -> str:
    """Constraints with which what is packed fits to what the host has."""
    merged = versions(ours) | versions(host)
    return "".join(f"{name}=={version}\n" for name, version in sorted(merged.items()))


def missing(report: str, host: str = "") -> str:
    """Requirements of a report of pip that the host has not."""
    there = versions(host)
    needed = [one["metadata"] for one in json.loads(Path(report).read_text())["install"]]
    lines = (f"{one['name']}=={one['version']}\n" for one in needed if normal(one["name"]) not in {OWN, *there})
    return "".join(sorted(lines))


def store(path: Path) -> None:
    """Writes a wheel again with its files uncompressed: an archive of wheels then compresses better."""
    beside = path.with_suffix(".tmp")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = old.read(info)
            info.compress_type = zipfile.ZIP_STORED
            new.writestr(info, content)
    beside.replace(path)


def main(command: str, *arguments: str) -> None:
    """Prints a list, or stores wheels."""
    if command == "store":
        for path in arguments:
            store(Path(path))
    else:
        print({"constraints": constraints, "missing": missing}[command](*arguments), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
