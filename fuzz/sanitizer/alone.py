"""`python -m fuzz.sanitizer.alone CASE.json OUT.json FILE…`: one run of a case's target, and nothing else.

What compute-sanitizer instruments: no reference, no repeats, no poison (which would count as initialised), no child.
OUT.json says how it ended: {"kernel": …} or {"raised": …}; absent where the process died.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from fuzz.core import case as cases
from fuzz.core.target import Tensors
from fuzz.process.imports import end_without_collecting
from fuzz.targets.registry import load
from fuzz.tensors.arena import ALIGNMENT, Arena, build


def main(arguments: list[str]) -> int:
    """Runs the case on cuda where its target does, else on the CPU."""
    file, out, device, *files = arguments
    case = cases.load(file)
    target = load(case.target, tuple(files), "cuda" if device == "cuda" else "host")
    tensors = apart(build(case, torch.device("cuda" if device == "cuda" else "cpu")))
    try:
        target.prepare(case, tensors)
        kernel = target.run(case, tensors).kernel
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        Path(out).write_text(json.dumps({"raised": f"{type(error).__name__}: {error}"}))
        return 1
    Path(out).write_text(json.dumps({"kernel": kernel}))
    return 0


def apart(arena: Arena) -> Tensors:
    """An arena's tensors, each in an allocation of its own that ends with its last element: to the sanitizer what lies
    between tensors of one buffer is as good as they are. What lies before a tensor's first element stays before it."""
    found = {}
    for slot in arena.slots:
        start = slot.start // ALIGNMENT * ALIGNMENT
        own = arena.buffer[start : slot.stop].clone()[slot.start - start :].view(slot.dtype)
        found[slot.name] = own.as_strided(slot.shape, slot.strides, own.storage_offset())
    return Tensors(**found)


if __name__ == "__main__":
    end_without_collecting()
    sys.exit(main(sys.argv[1:]))
