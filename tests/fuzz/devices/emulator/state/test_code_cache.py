"""The version of compiled code: every file that is compiled belongs to it, and none that only the host runs."""

import importlib.util
import os
import time

from fuzz.devices.emulator.state import code_cache
from fuzz.devices.emulator.state.code_cache import ROOT, numba_cache_in, sources

COMPILED = ("@njit", "@intrinsic", "@overload", "import ir\n")
FOLDERS = ("isa", "state", "sanitize", "execute")


def names(*modules):
    return {str(path.relative_to(ROOT)) for path in sources(*modules)}


def test_every_compiled_file_is_found_by_imports():
    compiled = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in ROOT.joinpath(folder).glob("*.py")
        if any(mark in path.read_text() for mark in COMPILED)
    }
    assert compiled <= names("execute.interpreter")


def test_what_only_the_host_runs_costs_no_compilation():
    host = {"execute/launch.py", "state/machine.py", "state/global_memory.py", "config.py", "api.py"}
    assert not host & names("execute.interpreter")
    assert not any(name.startswith(("report/", "host/", "decode/")) for name in names("execute.interpreter"))


def test_straight_line_code_does_not_depend_on_the_interpreter():
    assert all(name.startswith("isa/") or name == "reserved.py" for name in names("isa.straight_line"))


def test_copies_of_the_sources_share_their_compiled_code(tmp_path):
    """One folder for both: its name stands for the sources, wherever they lie."""
    hits = []
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        file = tmp_path / place / "doubled.py"
        file.write_text("from numba import njit\n\ndef double(x):\n    return 2 * x\n")
        spec = importlib.util.spec_from_file_location("doubled", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with numba_cache_in(tmp_path / "cache"):
            double = module.njit(cache=True)(module.double)
        assert double(21) == 42
        hits.append(sum(double.stats.cache_hits.values()))
    assert hits == [0, 1]
    assert len(list(tmp_path.glob("cache/**/*.nbc"))) == 1


def test_a_new_version_takes_the_place_of_those_that_nobody_used_for_a_month(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    month_ago, caches = time.time() - code_cache.IDLE, tmp_path / "attnfuzz" / "emulator"
    for name, used in {"0" * 16: month_ago - 60, "1" * 16: month_ago + 3600, "of others": month_ago - 60}.items():
        (caches / name).mkdir(parents=True)
        (caches / name / "code").write_text("x")
        os.utime(caches / name, (used, used))
    known = code_cache.cache_folder("programs")
    assert {path.name for path in caches.iterdir()} == {known.name, "1" * 16, "of others"}
    os.utime(known, (0, 0))
    (caches / ("2" * 16)).mkdir()
    os.utime(caches / ("2" * 16), (0, 0))
    assert code_cache.cache_folder("programs") == known and known.stat().st_mtime > month_ago
    assert (caches / ("2" * 16)).exists(), "only a new version's process looks at the others"
