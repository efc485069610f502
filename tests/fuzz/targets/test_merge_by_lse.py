"""Two calls put together by their LSEs: padded and packed answers, and the lines of a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz.targets.merge_by_lse import lines, merged


@pytest.mark.parametrize("packed", [False, True])
def test_the_lines_of_a_script_merge_as_the_function_does(packed: bool) -> None:
    o, lse = torch.randn(2, 7, 3, 4).bfloat16(), torch.randn(2, 3, 7)
    if not packed:
        o, lse = o.transpose(1, 2)[:, None], lse[:, None]
    lse[1, ..., 2] = -torch.inf
    parts = list(zip(o, lse, strict=True))
    names: dict[str, Any] = {"torch": torch, "parts": parts, "q": o[0]}
    exec("\n".join(lines(packed=packed)), names)
    found = merged(parts)
    assert torch.equal(names["o"], found[0]) and torch.equal(names["lse"], found[1])
    assert found[0].dtype == torch.bfloat16 and found[0].shape == o[0].shape


def test_rows_without_keys_in_either_call_stay_so() -> None:
    o, lse = torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), -torch.inf)
    found = merged([(o, lse), (o, lse)])
    assert not bool(found[0].any()) and bool((found[1] == -torch.inf).all())
