"""Numbers of names: targets, features, machines, toolchains, revisions. Read once, and added where they are new.

A number that a transaction added counts for others once it is committed: `Numbers` of a transaction are kept by
`Names` only then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select

from fuzz.core.features import FEATURES
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.locks import one_writer
from fuzz.ledger.tables.rows import Hardware, Revision, content_id


class Names:
    """Numbers of names in one ledger, as far as they were asked for. Used within one writing transaction at a time."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def forget(self) -> None:
        """After a transaction that was rolled back: its numbers may be another's."""
        self._known.clear()

    def targets(self, connection: Connection, names: Iterable[str]) -> dict[str, int]:
        """Numbers of targets."""
        return self._numbers(connection, schema.target, "name", {name: {} for name in names})

    def features(self, connection: Connection, names: Iterable[str]) -> dict[str, int]:
        """Bits of features; those of every case come first, so that bit sets are short."""
        known = self._known.setdefault("feature", {})
        if not known:
            names = [*(feature.name for feature in FEATURES), *names]
        return self._numbers(connection, schema.feature, "name", {name: {} for name in names}, dense=True)

    def hardware(self, connection: Connection, found: Hardware) -> int:
        """Number of a machine."""
        values = {
            "host": found.host,
            "cpu": found.cpu,
            "cpus": found.cpus,
            "machine": found.machine,
            "gpu": found.gpu,
        }
        uid = content_id(values)
        return self._numbers(connection, schema.hardware, "uid", {uid: values})[uid]

    def revision(self, connection: Connection, found: Revision) -> int:
        """Number of a revision."""
        values = {"commit": found.commit, "changed": found.changed, "at": found.at}
        uid = content_id(values)
        return self._numbers(connection, schema.revision, "uid", {uid: values})[uid]

    def toolchain(self, connection: Connection, packages: dict[str, str]) -> int:
        """Number of a set of versions."""
        uid = content_id(packages)
        if uid not in self._known.get("toolchain", {}):
            one_writer(connection)
            found = connection.scalar(select(schema.toolchain.c.id).where(schema.toolchain.c.uid == uid))
            if found is None:
                found = connection.execute(
                    insert(schema.toolchain).values(uid=uid).returning(schema.toolchain.c.id)
                ).scalar_one()
                rows = [{"toolchain_id": found, "name": name, "version": v} for name, v in sorted(packages.items())]
                if rows:
                    connection.execute(insert(schema.package), rows)
            self._known.setdefault("toolchain", {})[uid] = found
        return self._known["toolchain"][uid]

    def _numbers(
        self, connection: Connection, table: Table, key: str, rows: dict[str, dict[str, Any]], *, dense: bool = False
    ) -> dict[str, int]:
        """Numbers of the rows by their key; those that are missing are added. dense: numbers without gaps, from 0."""
        known = self._known.setdefault(table.name, {})
        if missing := [name for name in rows if name not in known]:
            known |= self._read(connection, table, key)
            missing = [name for name in rows if name not in known]
        if missing:
            one_writer(connection)
            known |= self._read(connection, table, key)
            missing = list(dict.fromkeys(name for name in rows if name not in known))
            if dense and missing:
                first = connection.scalar(select(func.coalesce(func.max(table.c.id) + 1, 0)))
                added = [{"id": first + i, key: name, **rows[name]} for i, name in enumerate(missing)]
            else:
                added = [{key: name, **rows[name]} for name in missing]
            if added:
                connection.execute(insert(table), added)
                known |= self._read(connection, table, key)
        return {name: known[name] for name in rows}

    def _read(self, connection: Connection, table: Table, key: str) -> dict[str, int]:
        return {row[0]: row[1] for row in connection.execute(select(table.c[key], table.c.id))}
