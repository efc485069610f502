"""Report of a backward pass of blocksparse that hangs: its semaphores, beside the prediction from its block lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from fuzz.core.target import DeviceError
from oracles import dq_visits, semaphore_order


def hanging_on_gpu(visits: dq_visits.Visits | None, ctas_of_tile: int = 1) -> dict[str, Any]:
    """Evidence of the kernel that hangs on the GPU, its semaphores read while it does. visits: those of the case, or of
    the correct kernels where a mutant makes something else of them that cannot be predicted; ctas_of_tile: CTAs that
    each add 1 to a semaphore, for each visit."""
    from fuzz.devices import cuda

    stuck = cuda.LAUNCHES.hanging()
    if stuck is None:
        return {"explained": "every kernel that was launched has ended; the wait is not for one of them"}
    found: dict[str, Any] = {"kernel": stuck.variant.name, "arch": stuck.arch}
    if stuck.semaphores is None:
        return found | {"explained": f"kernel {stuck.variant.name} does not end; it has no semaphore to wait on"}
    seen = cuda.semaphores(stuck)
    found |= {"semaphores": seen.flatten().tolist()[:4096], "shape": list(seen.shape)}
    resident = torch.cuda.get_device_properties(0).multi_processor_count
    values = (seen.flatten() // ctas_of_tile).tolist()  # visits that are done
    return found | semaphores_explained(stuck.variant.name, values, visits, max(resident // ctas_of_tile, 1))


def semaphores_explained(
    kernel: str, seen: Sequence[int], visits: dq_visits.Visits | None, resident: int
) -> dict[str, Any]:
    """Explanation of semaphores that no longer change, beside the prediction. seen: flat; resident: CTAs that the
    device holds at least."""
    from fuzz.devices.deadlock import explain

    if visits is None:
        why = "its semaphores are in the evidence, and nothing is predicted for them"
        return {"explained": f"{kernel} does not end; {why}"}
    if visits.tiles != len(seen):
        why = f"its launch has {len(seen)} semaphores, its block lists {visits.tiles} dQ tiles"
        return {"explained": f"{kernel} does not end; {why}"}
    found = explain(visits, seen, resident)
    return {"explained": f"{found.line}\n{found.text}", "resident_ctas": found.resident_ctas or 0}


def hanging_emulated(error: DeviceError, visits: dq_visits.Visits | None, slots: int) -> DeviceError:
    """A deadlock on the emulated GPU, beside the prediction for so many resident CTAs."""
    if error.outcome != "hang" or visits is None:
        return error
    predicted = semaphore_order.predict(visits, slots)
    first, *more = error.findings
    if predicted.ends != "always":
        lines = "; ".join(predicted.text.splitlines()[:2])
        first = msgspec.structs.replace(first, message=f"{first.message}; as predicted from the block lists: {lines}")
    return DeviceError(error.outcome, (first, *more), error.evidence | {"predicted": predicted.text})
