"""Target files for kernels of other projects: without the kernel's source they say what to fetch."""

from pathlib import Path

import pytest

from fuzz.targets.registry import TargetError, targets

FOLDER = Path(__file__).parents[2] / "ci/foreign_kernels"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "checkout.py")


@pytest.mark.parametrize("folder", ["", "/nowhere"], ids=["unset", "no_folder"])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_kernel_that_is_not_there_is_named_with_what_to_do(file, folder, monkeypatch):
    monkeypatch.setenv("FOREIGN_KERNELS", folder)
    with pytest.raises(TargetError, match=r"fetch it first, see ci/foreign_kernels/README.md"):
        targets((str(file),))


def test_every_target_file_is_explained():
    text = (FOLDER / "README.md").read_text()
    assert len(FILES) == 3
    assert all(f"{path.stem}" in text for path in FILES)
