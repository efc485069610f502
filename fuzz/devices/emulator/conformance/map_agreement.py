"""Tensor maps as a GPU's driver encodes or refuses them (ci/emulator_vs_gpu.py records it), against the emulator's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fuzz.devices.emulator.conformance.kernel import MicroKernel
from fuzz.devices.emulator.conformance.tensor_maps import tensor_maps
from fuzz.devices.emulator.state import tensor_map as st
from fuzz.devices.emulator.tensor_map import TensorMap

# maps that a GPU can use and the emulator cannot
LIMITS = {st.NO_INTERLEAVE: "interleaved"}
REFUSALS = {st.BAD_RANK: "BAD_RANK", st.BAD_ELEMENT: "BAD_ELEMENT", st.BAD_ADDRESS: "BAD_ADDRESS",
            st.BAD_ROW: "BAD_ROW", st.BAD_FILL: "BAD_FILL", st.BAD_SPAN: "BAD_SPAN"}  # fmt: skip


def judged(m: TensorMap) -> tuple[bytes | None, str, str]:
    """(the map's bytes with an address of zero, None where no host can encode it; why a copy refuses it, or ""; why it
    is not emulated, or "")."""
    try:
        data = m.encode()
    except ValueError as error:
        return None, str(error), ""
    held = np.frombuffer(data, np.uint8).copy()
    code = int(st.refusal(held.ctypes.data, len(m.sizes)))
    return bytes(8) + data[8:], REFUSALS.get(code, ""), LIMITS.get(code, "")


def measure(recorded: dict[str, Any], kernels: Iterable[MicroKernel]) -> dict[str, Any]:
    """recorded: by the map's description, hexadecimal without zeros at the end, or {"refused": the driver's words}.

    Returns {alike: maps with the same bytes, refused: maps that both refuse, not_emulated: {why: how many of those that
    the driver takes}, differ: {map: both}}.
    """
    known = tensor_maps(kernels)
    result: dict[str, Any] = {"alike": 0, "refused": 0, "not_emulated": {}, "differ": {}}
    for name, theirs in recorded.items():
        if name not in known:
            continue
        data, refusal, limit = judged(known[name])
        taken, same = isinstance(theirs, str), data is not None and data.rstrip(b"\0").hex() == theirs
        if not taken and (refusal or limit):
            result["refused"] += 1
        elif taken and same and not refusal:
            result["alike"] += 1
            if limit:
                result["not_emulated"][limit] = result["not_emulated"].get(limit, 0) + 1
        else:
            ours = refusal or (data.rstrip(b"\0").hex() if data else "")
            result["differ"][name] = {"driver": theirs, "emulator": ours}
    return result
