"""Why a backward pass of blocksparse hangs: what its semaphores say, beside what its metadata foretell."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from fuzz.targets.target import DeviceError
from oracles import protocol


def hanging_on_gpu(visits: protocol.Visits | None) -> dict[str, Any]:
    """Evidence of the kernel that hangs on the GPU, its semaphores read while it does. visits: those of the case."""
    from fuzz.devices import cuda
    from fuzz.devices.deadlock import explain

    stuck = cuda.LAUNCHES.hanging()
    if stuck is None:
        return {"explained": "every kernel that was launched has ended"}
    found: dict[str, Any] = {"kernel": stuck.variant.name, "arch": stuck.arch}
    if stuck.semaphores is None:
        return found | {"explained": f"{stuck.variant.name} does not end; it waits on no semaphore"}
    seen = cuda.semaphores(stuck)
    flat = seen.flatten().tolist()
    found |= {"semaphores": flat[:4096], "shape": list(seen.shape)}
    if visits is None or visits.tiles != len(flat):
        return found | {"explained": f"{stuck.variant.name} does not end; its semaphores are in the evidence"}
    why = explain(visits, flat, torch.cuda.get_device_properties(0).multi_processor_count)
    return found | {"explained": f"{why.line}\n{why.text}", "resident_ctas": why.slots or 0}


def hanging_emulated(error: DeviceError, visits: protocol.Visits | None, slots: int) -> DeviceError:
    """What the emulated GPU says of a deadlock, beside what was foretold for so many resident CTAs."""
    if error.outcome != "hang" or visits is None:
        return error
    foretold = protocol.predict(visits, slots)
    first, *more = error.findings
    if foretold.ends != "always":
        lines = " ".join(foretold.text.splitlines()[:2])
        first = msgspec.structs.replace(first, message=f"{first.message}; as foretold, {lines}")
    return DeviceError(error.outcome, (first, *more), error.evidence | {"foretold": foretold.text})
