"""Results of measurements (ci/results/*.json) and what a table says about one: machine, commit, date, command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from docs.generate.git_history import ROOT, commits_since, last_change


@cache
def load(name: str) -> dict[str, Any]:
    """Content of ci/results/NAME.json."""
    return json.loads((ROOT / "ci/results" / f"{name}.json").read_text())


@dataclass(frozen=True)
class Row:
    """One line of the table of measurements.

    what      the quantity, with its unit or its population
    value     reads the figure from the result; a change of the result's format is a KeyError, never an old figure
    result    name of the file in ci/results, without .json
    paths     folders (or .py files) of the code that was measured
    commit    the measured commit, where the file does not have it under `commit`
    machine   likewise; date and command too
    """

    what: str
    value: Callable[[dict[str, Any]], str]
    result: str
    paths: tuple[str, ...]
    commit: str = ""
    machine: str = ""
    date: str = ""
    command: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """The result's content."""
        return load(self.result)

    @property
    def shown(self) -> str:
        """The figure."""
        return self.value(self.data)

    @property
    def file(self) -> str:
        """Path of the result."""
        return f"ci/results/{self.result}.json"

    def _machine(self) -> dict[str, Any]:
        found = self.data.get("machine")
        return found if isinstance(found, dict) else {}

    @property
    def measured_commit(self) -> str:
        """Short hash: as declared, as the file says, or the commit that last changed the file; else 'unknown'."""
        found = self.commit or self.data.get("commit") or self._machine().get("commit")
        if not found:
            change = last_change(self.file)
            found = change[0] if change else "unknown"
        return str(found).split(",")[0]

    @property
    def measured_date(self) -> str:
        """Day of the measurement, or of the commit that added the result."""
        found = self.date or self.data.get("date") or self._machine().get("date")
        if not found:
            change = last_change(self.file)
            found = change[1] if change else "unknown"
        return str(found)[:10]

    @property
    def measured_machine(self) -> str:
        """GPU, or processor and number of cores."""
        machine = self._machine()
        gpu = machine.get("gpu") or self.data.get("gpu")
        if self.machine or gpu:
            return self.machine or str(gpu).split(",")[0].removeprefix("NVIDIA ")
        if "cpus" in machine:
            return f"{machine['cpus']} cores ({machine.get('cpu', machine.get('machine', ''))})"
        found = self.data.get("machine") or self.data.get("device") or "unknown"
        return str(found if isinstance(found, str) else found.get("device", "unknown")).removeprefix("NVIDIA ")

    @property
    def measured_command(self) -> str:
        """The command, as it was called at that commit."""
        found = self.command or self._machine().get("command") or self.data.get("command") or self.data.get("session")
        return str(found[0] if isinstance(found, list) else found or "not recorded")

    @property
    def age(self) -> str:
        """'current', 'older: N commits since' (of the measured code), or 'unknown'."""
        count = commits_since(self.measured_commit, self.paths)
        if count is None:
            return "unknown"
        return "current" if count == 0 else f"older: {count} commit{'s' * (count > 1)} since"
