"""Every second run is beside a load; on the emulated GPU none is."""

from __future__ import annotations

import pytest
import torch

from fuzz.judging import perturb


@pytest.mark.parametrize(("repeat", "emulated", "loaded"), [(0, False, False), (1, False, True), (1, True, False)])
def test_a_core_is_kept_busy(repeat: int, emulated: bool, loaded: bool) -> None:
    cpu = torch.device("cpu")
    perturb.ready(cpu)
    wanted = perturb._background_load()._wanted
    with perturb.perturbed(repeat, cpu, emulated=emulated):
        assert wanted.is_set() == loaded
    assert not wanted.is_set()
