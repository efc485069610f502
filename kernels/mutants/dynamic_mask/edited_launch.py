"""EditedLaunch: a launch whose kernel is compiled from PTX that was changed on its way from Triton to the assembler."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import knobs

from kernels.sdpa.launch import Launch

_BARRIER = re.compile(r"\s*(bar|barrier)\.(cta\.)?sync")
_GUARD = r"\s*(@!?%p\d+\s+)?"
_WRITE = re.compile(_GUARD + r"(st\.shared|stmatrix|cp\.async\.c[ag])")
_READ = re.compile(_GUARD + r"(ld\.shared|ldmatrix|wgmma\.mma_async)")


def without_barriers_before_writes(ptx: str) -> str:
    """PTX without the barriers whose next access to shared memory is a write: what other warps still read is
    overwritten."""
    lines = ptx.splitlines()
    for at, line in enumerate(lines):
        if _BARRIER.match(line):
            access = next((one for one in lines[at + 1 :] if _WRITE.match(one) or _READ.match(one)), "")
            if _WRITE.match(access):
                lines[at] = "\t;"
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class EditedLaunch(Launch):
    """A launch of the kernel that Triton compiles when its PTX has gone through `edit`, a function with a name."""

    edit: Callable[[str], str] = str

    def run(self) -> None:
        """See Launch."""
        with _edited(self.edit):
            super().run()

    def compile(self) -> None:
        """See Launch."""
        with _edited(self.edit):
            super().compile()


@contextmanager
def _edited(edit: Callable[[str], str]) -> Iterator[None]:
    """Block in which Triton compiles from edited PTX, under keys of their own in its caches."""
    before = knobs.runtime.add_stages_inspection_hook

    def hook(backend: Any = None, stages: dict[str, Any] | None = None, *more: Any) -> tuple[str, str] | None:
        if stages is None:
            key, number = before() if before is not None else ("", "")
            return f"{key} {edit.__name__}", f"{number} {edit.__name__}"
        if before is not None:
            before(backend, stages, *more)
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: edit(make(source, metadata))
        return None

    knobs.runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before
