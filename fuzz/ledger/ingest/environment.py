"""Environments as rows: that of a session as session.json keeps it, and that of this process."""

from __future__ import annotations

from typing import Any

from fuzz.ledger.tables.rows import Hardware, Revision
from fuzz.session.environment import Environment, environment
from fuzz.session.records import machine


def rows_of(machine: dict[str, Any], env: Environment) -> tuple[Hardware, dict[str, str], Revision]:
    """Hardware, versions by package, and revision. machine, env: as in fuzz.session.records.Session; folders of older
    versions have the first alone."""
    hardware = Hardware(
        host=env.host,
        cpu=str(machine.get("cpu", "")),
        cpus=int(machine.get("cpus", 0)),
        machine=str(machine.get("machine", "")),
        gpu=str(machine.get("gpu", "")).split(",")[0],
    )
    known: dict[str, str] = {name: str(machine[name]) for name in ("python", "torch", "triton") if name in machine}
    return hardware, env.packages or known, Revision(env.commit, env.changed, env.at)


def here() -> dict[str, Any]:
    """Fields `hardware`, `toolchain` and `revision` of a row that this process makes."""
    hardware, toolchain, revision = rows_of(machine(), environment())
    return {"hardware": hardware, "toolchain": toolchain, "revision": revision}
