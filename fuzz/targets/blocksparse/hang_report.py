"""Why a backward pass of blocksparse hangs: what its semaphores say, beside what its metadata foretell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from fuzz.core.target import DeviceError
from oracles import dq_visits, semaphore_order


def hanging_on_gpu(visits: dq_visits.Visits | None) -> dict[str, Any]:
    """Evidence of the kernel that hangs on the GPU, its semaphores read while it does. visits: those of the case, or of
    its lists where a planted bug makes something else of them that cannot be foretold."""
    from fuzz.devices import cuda

    stuck = cuda.LAUNCHES.hanging()
    if stuck is None:
        return {"explained": "every kernel that was launched has ended"}
    found: dict[str, Any] = {"kernel": stuck.variant.name, "arch": stuck.arch}
    if stuck.semaphores is None:
        return found | {"explained": f"{stuck.variant.name} does not end; it waits on no semaphore"}
    seen = cuda.semaphores(stuck)
    found |= {"semaphores": seen.flatten().tolist()[:4096], "shape": list(seen.shape)}
    resident = torch.cuda.get_device_properties(0).multi_processor_count
    return found | semaphores_explained(stuck.variant.name, seen.flatten().tolist(), visits, resident)


def semaphores_explained(
    kernel: str, seen: Sequence[int], visits: dq_visits.Visits | None, resident: int
) -> dict[str, Any]:
    """What semaphores that stand say, beside what is foretold. seen: flat; resident: CTAs that the device holds at
    least."""
    from fuzz.devices.deadlock import explain

    if visits is None:
        return {"explained": f"{kernel} does not end; its semaphores are in the evidence"}
    if visits.tiles != len(seen):
        return {"explained": f"{kernel} does not end; it has {len(seen)} semaphores for {visits.tiles} dQ tiles"}
    why = explain(visits, seen, resident)
    return {"explained": f"{why.line}\n{why.text}", "resident_ctas": why.resident_ctas or 0}


def hanging_emulated(error: DeviceError, visits: dq_visits.Visits | None, slots: int) -> DeviceError:
    """What the emulated GPU says of a deadlock, beside what was foretold for so many resident CTAs."""
    if error.outcome != "hang" or visits is None:
        return error
    foretold = semaphore_order.predict(visits, slots)
    first, *more = error.findings
    if foretold.ends != "always":
        lines = " ".join(foretold.text.splitlines()[:2])
        first = msgspec.structs.replace(first, message=f"{first.message}; as foretold, {lines}")
    return DeviceError(error.outcome, (first, *more), error.evidence | {"foretold": foretold.text})
