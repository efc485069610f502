"""A user's file as a whole in a script, where an excerpt will not do: kernels that functions of the file make, and
names that statements such as `try` and `if` bind.

The script writes it to a file, since compilers such as Triton's read a function's source from its file. What it imports
of the harness is replaced by a stand-in, so that the script needs nothing of attnfuzz.
"""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.targets.user_function.source_excerpt import binds, excerpt

_STAND_IN = '''\
class _Harness(types.ModuleType):
    """Stands in for what the file imports of attnfuzz: whatever it declares there does nothing here."""

    __path__ = []

    def __getattr__(self, name):
        if name == "target":
            return lambda name, **options: lambda function: kernels.setdefault(name, function)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing:
    def __init__(self, *arguments, **options):
        pass

    def __class_getitem__(cls, item):
        return cls


kernels = {}
for name in %s:
    sys.modules[name] = _Harness(name)
'''
_MODULE = """\
SOURCE = {text}
path = os.path.join(tempfile.mkdtemp(), "source.py")
with open(path, "w") as file:
    file.write(SOURCE)
spec = importlib.util.spec_from_file_location("source", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)"""


def needs_whole_file(source: str, function: Callable[..., Any]) -> bool:
    """True if `function` is no function at the top of `source`, or uses a name that an excerpt would not bind."""
    tree = ast.parse(source)
    if function.__name__ not in {name for node in tree.body for name in binds(node)}:
        return True
    if function.__qualname__ != function.__name__:
        return True
    hidden = {name for node in tree.body if not binds(node) for name in _bound_within(node)}
    used = {node.id for node in ast.walk(ast.parse(excerpt(source, [function.__name__], typing=True)))
            if isinstance(node, ast.Name)}  # fmt: skip
    return bool(hidden & used)


def _bound_within(node: ast.stmt) -> set[str]:
    """Names that a compound statement such as `try` binds."""
    found = {name for inner in ast.walk(node) if isinstance(inner, ast.stmt) for name in binds(inner)}
    return found | {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and _stored(inner)}


def _stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def whole_file(source: str, name: str) -> str:
    """Text that runs the whole file and leaves the function of target `name` behind as `kernel`."""
    ours = sorted({top for top in _modules(source) if top.split(".")[0] in ("fuzz", "oracles")})
    parents = {".".join(top.split(".")[:n]) for top in ours for n in range(1, top.count(".") + 2)}
    return f"{_STAND_IN % sorted(parents)}\n{module_of(source)}\nkernel = kernels[{name!r}]"


def module_of(source: str) -> str:
    """Text that leaves behind the module `module` whose source is `source`, from a file of its own."""
    quoted = f"r'''\n{source}\n'''" if "'''" not in source and not source.endswith("\\") else repr(source)
    return _MODULE.format(text=quoted)


def imports(source: str, package: str) -> bool:
    """True if `source` imports `package` or a part of it, at any depth."""
    return any(name.split(".")[0] == package for name in _modules(source))


def search_path(source: str, file: Path) -> str:
    """Lines that let the script find what `source` imports from folders that are neither the standard library's nor
    installed: those beside the user's `file`, and those that it put on sys.path."""
    folders = []
    for name in dict.fromkeys(name.split(".")[0] for name in _modules(source)):
        if name in sys.stdlib_module_names or name in ("fuzz", "oracles", "torch"):
            continue
        beside = file.parent
        if (beside / f"{name}.py").exists() or (beside / name).is_dir():
            folders.append(str(beside))
        elif (folder := _folder_of(name)) is not None:
            folders.append(folder)
    if not folders:
        return ""
    lines = [f"sys.path.insert(0, {folder!r})" for folder in dict.fromkeys(folders)]
    return "\n".join(lines) + "\n\n"


def _folder_of(name: str) -> str | None:
    """Folder from which a module was imported; None for installed ones, and for those that are not imported."""
    found = getattr(sys.modules.get(name), "__file__", None)
    if found is None:
        return None
    path = Path(found).resolve()
    folder = path.parent.parent if path.name == "__init__.py" else path.parent
    installed = {Path(p).resolve() for p in (*site.getsitepackages(), site.getusersitepackages())}
    installed |= {Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if folder in installed else str(folder)


def _modules(source: str) -> list[str]:
    """Full names of all modules that `source` imports, at any depth."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(node.module or "")
    return [name for name in found if name]
