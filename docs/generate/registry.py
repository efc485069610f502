"""Names of the generated tables, and their place in a page."""

from __future__ import annotations

import re
from collections.abc import Callable

from docs.generate import (
    beside_others,
    case_format,
    command_line,
    docstrings,
    ledger,
    measurements,
    race_suites,
    site_data,
    source_mutants,
    surface_coverage,
    units,
)

GENERATORS: dict[str, Callable[[], str]] = {
    "headlines": measurements.headlines,
    "measurements": measurements.page,
    "speed": measurements.speed,
    "beside-others": beside_others.table,
    "units": units.table,
    "command-line": command_line.commands,
    "pytest-options": command_line.pytest_options,
    "case-format": case_format.fields,
    "targets": docstrings.targets,
    "oracles": docstrings.oracles,
    "ledger-tables": ledger.tables,
    "ledger-reads": ledger.reads,
    "site-data": site_data.structs,
    "race-suites": race_suites.suites,
    "race-inputs": race_suites.inputs,
    "race-differences": race_suites.differences,
    "source-mutants": source_mutants.table,
    "source-mutant-readings": source_mutants.readings,
    "surface-coverage": surface_coverage.table,
    "surface-reasons": surface_coverage.reasons,
}
_PLACE = re.compile(r"(<!-- generate: ([a-z-]+) -->\n).*?(<!-- end -->)", re.S)


def fill(text: str) -> str:
    """`text` with every marked place filled by its generator. Raises KeyError on a name that has none."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{GENERATORS[found[2]]()}\n\n{found[3]}", text)
