"""Lists and wheels of ci/bundle.sh."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from ci.bundle_wheels import constraints, missing, store


def test_versions_of_the_host_come_before_ours_and_what_it_has_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("# pinned\ntorch==2.13.0\nmsgspec==0.22.0\n")
    (tmp_path / "host").write_text("torch==2.11.0+cu130\ntyping_extensions==4.15.0\n")
    (tmp_path / "report").write_text(
        json.dumps(
            {
                "install": [
                    {"metadata": {"name": name, "version": "1"}}
                    for name in ("torch", "msgspec", "typing-extensions", "attnfuzz")
                ]
            }
        )
    )
    given = (str(tmp_path / "ours"), str(tmp_path / "host"))
    assert constraints(*given) == "msgspec==0.22.0\ntorch==2.11.0\ntyping-extensions==4.15.0\n"
    assert missing(str(tmp_path / "report"), given[1]) == "msgspec==1\n"
    assert missing(str(tmp_path / "report")) == "msgspec==1\ntorch==1\ntyping-extensions==1\n"


def test_a_stored_wheel_has_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.py", "x = 1\n" * 1000)
    packed = path.stat().st_size
    store(path)
    with zipfile.ZipFile(path) as again:
        assert again.read("a.py") == b"x = 1\n" * 1000 and again.testzip() is None
    assert path.stat().st_size > packed and list(tmp_path.iterdir()) == [path]
