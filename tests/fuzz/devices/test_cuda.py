"""The CUDA device, as far as it goes without one: what a launch was given, and which launch hangs."""

from __future__ import annotations

import ast
import ctypes
import json
from dataclasses import dataclass
from pathlib import Path

from fuzz.compiling import Build
from fuzz.devices.cuda import RECIPE, SOURCES, Launch, _Launches, build_of, unpacked
from kernels.blocksparse.spec.signature import ARGUMENTS
from kernels.blocksparse.spec.variant import Injection, Variant

BACKWARD = Variant("backward", "float16", 64, 64, 64, "bits", deterministic=True)
_TYPES = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float}


@dataclass
class Event:
    """As torch.cuda.Event, with its answer."""

    over: bool

    def query(self) -> bool:
        return self.over


def packed(values: dict) -> tuple:
    """The array of addresses that a compiled function takes, and what keeps its values alive."""
    cells = [_TYPES.get(kind, ctypes.c_uint64)(values.get(name, 0)) for name, kind in ARGUMENTS["backward"]]
    return (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells)), cells


def launch(over: bool, variant: Variant = BACKWARD, **values) -> Launch:
    given, _alive = packed({"batch": 2, "heads_q": 3, "m_blocks": 5, "semaphores": 1 << 45, **values})
    return Launch(variant, "sm_90a", "kernel", unpacked(variant, given), Event(over))  # type: ignore[arg-type]


def test_a_launch_knows_its_arguments_by_name() -> None:
    one = launch(True, scale=0.125, band_left=-3, q_stride_batch=1 << 40)
    assert one.values["scale"] == 0.125 and one.values["band_left"] == -3
    assert one.values["q_stride_batch"] == 1 << 40 and one.values["semaphores"] == 1 << 45
    assert one.semaphores == (2, 3, 5)


def test_only_ordered_adds_have_semaphores() -> None:
    assert launch(True, Variant("backward", "float16", 64, 64, 64, "bits")).semaphores is None


def test_the_first_launch_that_has_not_ended_is_the_one_that_hangs() -> None:
    launches = _Launches()
    assert launches.hanging() is None
    for over in (True, True, False, False):
        launches.add(launch(over, n_blocks=len(launches.since_mark())))
    stuck = launches.hanging()
    assert stuck is not None and stuck.values["n_blocks"] == 2
    launches.mark()
    assert launches.since_mark() == []
    launches.add(launch(True, n_blocks=9))
    assert [one.values["n_blocks"] for one in launches.since_mark()] == [9]


def test_a_build_holds_the_whole_variant_and_the_injection() -> None:
    plain = build_of(BACKWARD, "sm_90a", Injection())
    planted = build_of(BACKWARD, "sm_90a", Injection("blocksparse!x", {"wait": json.dumps}))
    assert isinstance(plain, Build) and plain.recipe == RECIPE
    assert '"deterministic":true' in plain.options and '"mutant":"blocksparse!x"' in planted.options
    assert plain.sources == SOURCES and planted.sources == (*SOURCES, "json")


def test_what_is_compiled_imports_nothing_of_the_kernels_beside_its_sources() -> None:
    """Else a change there would leave a compiled kernel valid that it changes."""
    root = Path(__file__).resolve().parents[3]
    files = [file for name in SOURCES for file in (root / name.replace(".", "/")).rglob("*.py")]
    imported = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level
            imported |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    ours = {name for name in imported if name.split(".")[0] in ("kernels", "fuzz", "oracles")}
    assert len(files) > 30 and len(ours) > 30
    assert not [name for name in ours if not name.startswith(tuple(f"{source}." for source in SOURCES))]
