"""Mutant: a bug put into a kernel and where it comes from, callable like the kernel that it breaks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A bug that is put into a kernel.

    name      unique among one kernel's mutants
    summary   what is wrong, and what shows it, in one sentence
    source    where the bug was seen for real, or "invented"
    point     the kernel's injection point that is replaced, or several, joined by commas
    call      the public function of the kernel, with the bug in it
    """

    name: str
    summary: str
    source: str
    point: str
    call: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)
