"""Writes fuzz/core/case.schema.json, the published JSON Schema of a case: python -m fuzz.core.schema."""

from __future__ import annotations

import json

from fuzz.core.case import SCHEMA_PATH, schema


def text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(text())
