"""Which deadlocks are run again for their timelines."""

from __future__ import annotations

from pathlib import Path

import dashboard_ledger as made
import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Verdict
from fuzz.dashboard.model import Site
from fuzz.dashboard.timelines import MOST_BYTES, timelines


class Device:
    """Writes a picture of some bytes beside the trace, as the emulated GPU does."""

    def __init__(self, size: int = 10) -> None:
        self.size, self.ran = size, list[Case]()

    def __call__(self, case: Case, trace: Path) -> Verdict:
        self.ran.append(case)
        trace.with_suffix(".svg").write_bytes(b"x" * self.size)
        return Verdict(case.id, "hang")


def test_open_deadlocks_of_the_emulated_gpu_are_drawn_once(site: Site, tmp_path: Path) -> None:
    device = Device()
    first = timelines(site, tmp_path, device, most=5)
    assert list(first) == [made.HANG.id] and (tmp_path / first[made.HANG.id]).is_file()
    assert timelines(site, tmp_path, device, most=5) == first and len(device.ran) == 1


def test_none_is_run_unless_asked_for(site: Site, tmp_path: Path) -> None:
    device = Device()
    assert timelines(site, tmp_path, device, most=0) == {} and not device.ran


def test_a_picture_that_is_too_large_for_the_site_is_left_out(site: Site, tmp_path: Path) -> None:
    assert timelines(site, tmp_path, Device(MOST_BYTES + 1), most=5) == {}


def test_hangs_of_targets_that_are_not_known_here_are_left_out(site: Site, tmp_path: Path) -> None:
    bug = next(one for one in site.signatures if one.uid == made.HANG.id)
    device = Device()
    other = msgspec.structs.replace(site, signatures=(msgspec.structs.replace(bug, target="nobody's"),))
    assert timelines(other, tmp_path, device, most=5) == {} and not device.ran
