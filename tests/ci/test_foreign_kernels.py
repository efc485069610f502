"""Target files for kernels of other projects: without the kernel's source they say what to fetch."""

from __future__ import annotations

import json
from pathlib import Path

import warm_start

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "ci/foreign_kernels"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "checkout.py")
# In a process of its own: the files change the environment and sys.modules, as the kernels need it.
LOAD = """
import json, os, sys
from fuzz.targets.registry import TargetError, targets

said = []
for folder in ("", "/nowhere"):
    os.environ["FOREIGN_KERNELS"] = folder
    for file in sys.argv[1:]:
        try:
            targets((file,))
        except TargetError as error:
            said.append(str(error))
print(json.dumps(said))
"""


def test_a_kernel_that_is_not_there_is_named_with_what_to_do() -> None:
    done = warm_start.run(["-c", LOAD, *map(str, FILES)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == 2 * len(FILES)
    assert all("fetch it first, see ci/foreign_kernels/README.md" in line for line in said)


def test_every_target_file_is_explained() -> None:
    text = (FOLDER / "README.md").read_text()
    assert len(FILES) == 3
    assert all(f"{path.stem}" in text for path in FILES)
