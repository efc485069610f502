"""Reference of the case format, from the published JSON Schema."""

from __future__ import annotations

import json
from typing import Any

from docs.generate.prose import cell, prose
from fuzz.core.case import schema

_FIRST = ("Case", "Problem", "Inputs", "Storage", "Bias")


def kind(schema_of: dict[str, Any]) -> str:
    """The type of a field in words, e.g. 'list of integer' or 'one of `a`, `b`'."""
    if "$ref" in schema_of:
        name = schema_of["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema_of:
        return ", ".join(f"`{value}`" for value in schema_of["enum"])
    if "anyOf" in schema_of:
        parts = [kind(part) for part in schema_of["anyOf"]]
        return "a [mask](#masks)" if len(parts) > 6 else " or ".join(parts)
    if schema_of.get("type") == "array":
        items = schema_of.get("prefixItems") or [schema_of.get("items") or {}]
        return "list of " + kind(items[0])
    if schema_of.get("type") == "object":
        return "object"
    return str(schema_of.get("type", "any"))


def _section(name: str, definition: dict[str, Any], depth: int) -> str:
    required = definition.get("required", ())
    lines = [f"{'#' * depth} {name}", "", prose(definition.get("description")), ""]
    fields = definition.get("properties", {})
    if set(fields) != {"kind"}:
        lines += ["| field | type | default |", "| --- | --- | --- |"]
    for field, of in fields.items():
        if field == "kind" and len(fields) == 1:
            lines.append(f"Written as `{json.dumps({'kind': of['enum'][0]})}`.")
            continue
        default = "required" if field in required else f"`{json.dumps(of.get('default'))}`"
        lines.append(f"| `{field}` | {cell(kind(of))} | {cell(default)} |")
    return "\n".join(lines)


def fields() -> str:
    """One section for each structure, then the masks."""
    definitions: dict[str, Any] = schema()["$defs"]
    masks = {name: of for name, of in definitions.items() if "kind" in of.get("properties", {})}
    others = [name for name in definitions if name not in masks and name not in _FIRST]
    parts = [_section(name, definitions[name], 2) for name in (*_FIRST, *others) if name in definitions]
    parts.append("## Masks\n\nA mask is an object with a `kind`; masks are joined by `and`, `or` and `not`.")
    parts += [_section(name, of, 3) for name, of in masks.items()]
    return "\n\n".join(parts)
