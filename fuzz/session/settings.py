"""What a session does: settings, their defaults, and the options that set them in `attnfuzz run` and in `pytest fuzz`.

This is the one place of both. It imports nothing heavy: pytest reads the options at the start of every run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

SIZES = ("small", "medium", "large")  # the names of fuzz.generate.cases.SIZES
DEVICES = ("host", "cuda", "emulator", "interpreter")  # those of fuzz.core.target.Device


class Settings(msgspec.Struct, frozen=True):
    """What a session does. `targets` empty: every target that can run on `device` here. Raises ValueError."""

    targets: tuple[str, ...] = ()
    device: Literal["host", "cuda", "emulator", "interpreter"] = "host"
    cases: int = 300
    seed: int = 0
    size: str = "medium"
    repeats: int = 3
    repeats_deterministic: int = 0  # of cases whose target promises the same bits; 0 = as the others
    files: tuple[str, ...] = ()
    corpus: str = "corpus/regressions"
    folder: str = ""
    minimize_runs: int = 60
    minimize_seconds: float = 45.0
    seconds: float = 0.0  # stop drawing after so many; 0 = no limit

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size: must be one of {', '.join(SIZES)}, got {self.size!r}")
        if self.cases < 1:
            raise ValueError(f"cases: must be at least 1, got {self.cases}")
        if self.repeats_deterministic < 0:
            raise ValueError(f"repeats_deterministic: must be at least 0, got {self.repeats_deterministic}")


def positive(text: str) -> int:
    """A whole number of an option, at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def seconds(text: str) -> float:
    """A positive number of seconds of an option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


@dataclass(frozen=True)
class Option:
    """One option of a session: `--<name>` of `attnfuzz run`, `--fuzz-<name>` of `pytest fuzz`."""

    name: str
    field: str  # of Settings
    help: str
    kind: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    repeatable: bool = False

    def add(self, add: Callable[..., Any], prefix: str, **changed: Any) -> None:
        """Adds it through `add` (argparse's add_argument, pytest's addoption); `changed` replaces keywords."""
        default = getattr(Settings(), self.field)
        keywords: dict[str, Any] = {"help": self.help, "default": default}
        if self.repeatable:
            keywords |= {"action": "append", "default": []}
        elif self.choices:
            keywords |= {"choices": self.choices}
        else:
            keywords |= {"type": self.kind}
        if self.metavar is not None:
            keywords |= {"metavar": self.metavar}
        add(f"--{prefix}{self.name}", **keywords | changed)


_PLAIN = Settings()

OPTIONS = (
    Option(
        "target",
        "targets",
        "a target; may be repeated (default: every target that runs here)",
        metavar="NAME",
        repeatable=True,
    ),
    Option("cases", "cases", f"cases of the session, over all targets ({_PLAIN.cases})", positive, "N"),
    Option("seed", "seed", f"the same seed draws the same cases ({_PLAIN.seed})", int, "S"),
    Option("size", "size", f"sizes of the cases ({_PLAIN.size})", choices=SIZES),
    Option("repeats", "repeats", f"runs of each case that must agree bit for bit ({_PLAIN.repeats})", positive, "R"),
    Option(
        "repeats-deterministic",
        "repeats_deterministic",
        "runs of each case of a target that promises the same bits (as --repeats)",
        positive,
        "R",
    ),
    Option(
        "max-time",
        "seconds",
        "draw no further case after so many seconds, and end what still runs ten seconds later (no limit)",
        seconds,
        "SECONDS",
    ),
    Option("corpus", "corpus", f"folder of known failures; new ones are saved there ({_PLAIN.corpus})", metavar="DIR"),
    Option("output-dir", "folder", "folder of the session's records (.attnfuzz/sessions/<time>)", metavar="DIR"),
    Option(
        "target-file",
        "files",
        "a Python file with targets of your own; may be repeated",
        metavar="FILE",
        repeatable=True,
    ),
    Option(
        "device",
        "device",
        "where kernels run: cuda; host (PyTorch's kernels on the CPU, all others on the emulated GPU); interpreter (as "
        "host, but Triton's kernels in Triton's interpreter); emulator (the emulated GPU alone). Default: cuda where "
        "there is a GPU, else host",
        choices=DEVICES,
    ),
)


def add_options(add: Callable[..., Any], prefix: str = "", only: Iterable[str] = ()) -> None:
    """Adds the session's options, or those named in `only`, through `add` (argparse's or pytest's).

    prefix  before each name: '' in `attnfuzz run`, 'fuzz-' in pytest
    """
    names = set(only)
    for option in OPTIONS:
        if not names or option.name in names:
            option.add(add, prefix, **({"default": None} if option.name == "device" else {}))
    if not names:
        add(f"--{prefix}no-minimize", action="store_true", help="save failures as they were drawn")


def from_options(get: Callable[[str], Any], **changed: Any) -> Settings:
    """Settings from parsed options: `get("max-time")` gives the value of an option, None where the command has no such
    option. `changed` replaces fields. Raises ValueError."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        value = get(option.name)
        if value is not None:
            values[option.field] = tuple(value) if option.repeatable else value
    values["files"] = tuple(os.path.abspath(file) for file in values.get("files", ()))
    values.setdefault("device", _default_device())
    if get("no-minimize"):
        values["minimize_runs"] = 0
    return Settings(**values | changed)


def _default_device() -> Literal["host", "cuda"]:
    from fuzz.targets.autograd import default_device

    return "cuda" if default_device() == "cuda" else "host"
