"""Reference of the targets' interface and of the oracles, from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import fuzz.core
import oracles as oracles_package
from docs.generate.prose import first_paragraph, prose

# The classes of fuzz/core that somebody meets who writes a target, in the order in which they meet them.
_CLASSES = ("Target", "Support", "Rule", "Refusal", "Tensors", "Execution", "DeviceError")


def _modules(package: ModuleType) -> list[ModuleType]:
    names = [found.name for found in pkgutil.iter_modules(package.__path__)]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _find(name: str) -> Any:
    """The class of that name that a module of fuzz/core defines. Raises LookupError."""
    for module in _modules(fuzz.core):
        found = getattr(module, name, None)
        if found is not None and found.__module__ == module.__name__:
            return found
    raise LookupError(f"no module of fuzz/core defines {name}")


def signature(name: str, item: Any) -> str:
    """`name(parameters)` on one line, or with a parameter a line where it is long."""
    try:
        found = inspect.signature(item)
    except (TypeError, ValueError):
        return name
    parameters = [_parameter(p) for p in found.parameters.values() if p.name != "self"]
    returns = "" if found.return_annotation in (inspect.Signature.empty, None) else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = star + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not inspect.Parameter.empty:
        default = repr(parameter.default)
        text += f" = {default if len(default) <= 40 else '…'}"
    return text


def _class(item: type) -> str:
    lines = [f"### {item.__name__}", ""]
    if not getattr(item, "_is_protocol", False) and "__init__" in vars(item):
        lines += ["```python", signature(item.__name__, item), "```", ""]
    lines += [f"`{item.__module__}`", "", prose(item.__doc__), ""]
    for name, member in vars(item).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            lines += ["```python", signature(name, member), "```", "", prose(member.__doc__), ""]
    return "\n".join(lines).rstrip()


def targets() -> str:
    """The decorator, then the classes behind it, then Numerics."""
    function = importlib.import_module("fuzz.targets.user_function.function")
    decorator = function.target
    parts = [
        "## The decorator",
        f"```python\n{signature('target', decorator)}\n```",
        prose(decorator.__doc__),
        "### Parameters of the function",
        prose((function.__doc__ or "").partition("\n")[2]),
        "## Classes",
        *(_class(_find(name)) for name in _CLASSES),
        "## Numerics",
        _class(importlib.import_module("oracles.numerics").Numerics),
    ]
    return "\n\n".join(parts)


def oracles() -> str:
    """What each module of oracles/ says of itself."""
    parts = []
    for module in _modules(oracles_package):
        name = module.__name__
        title, _, rest = (module.__doc__ or "").partition("\n\n")
        parts.append(f"### `{name}`\n\n{first_paragraph(title)}\n\n{prose(rest)}".rstrip())
    return "\n\n".join(parts)
