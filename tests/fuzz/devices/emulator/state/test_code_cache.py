"""The version of compiled code: every file that is compiled belongs to it, and none that only the host runs."""

from fuzz.devices.emulator.state.code_cache import ROOT, sources

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
    assert all(name.startswith("isa/") for name in names("isa.straight_line"))
