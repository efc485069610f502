"""How target files need Triton, told from their text; and targets of the emulated GPU in a session."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_start
from msgspec.structs import replace
from sdpa_shown import SHOWN

from fuzz.core.case import to_json
from fuzz.core.target import Device
from fuzz.process import triton_mode
from fuzz.process.triton_mode import VARIABLE, environment, mode_of
from fuzz.targets import target
from fuzz.targets.registry import TargetError, load, targets

ROOT = Path(__file__).resolve().parents[3]
INTERPRETED = "import triton.language as tl\n"
EMULATED = """\
import torch
import triton
import triton.language as tl

from fuzz.targets import Size, target


@triton.jit
def kernel(q, k, v, o, room, len_q, len_k, scale, DIM: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    rows, dims, columns = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, DIM), tl.arange(0, N)
    at_q = (tl.program_id(1) * len_q + rows[:, None]) * DIM + dims
    queries = tl.load(q + at_q, mask=rows[:, None] < len_q, other=0.0)
    top, total = tl.full([N], float("-inf"), tl.float32), tl.zeros([N], tl.float32)
    out = tl.zeros([N, DIM], tl.float32)
    for start in range(0, len_k, N):
        keys = start + columns
        at_k = (tl.program_id(1) * len_k + keys[:, None]) * DIM + dims
        there = keys[:, None] < (len_k + 1 if BUG == "past the end" else len_k)
        scores = tl.dot(queries, tl.trans(tl.load(k + at_k, mask=there, other=0.0))) * scale
        scores = tl.where(keys[None, :] < len_k, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - new[:, None]), tl.exp(top - new)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(v + at_k, mask=keys[:, None] < len_k, other=0.0)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype.element_ty), values)
        top = new
    if BUG == "unwritten":
        total = tl.where(tl.load(room + columns) == 12345.0, 0.0, total)
    tl.store(o + at_q, (out / total[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < len_q)


def attention(q, k, v, scale, bug):
    q, k, v = (x.contiguous() for x in (q, k, v))
    o, room = torch.empty_like(q), torch.empty(64)
    grid = (triton.cdiv(q.shape[2], 64), q.shape[0] * q.shape[1])
    kernel[grid](q, k, v, o, room, q.shape[2], k.shape[2], scale, q.shape[3], 64, bug)
    return o


def declared(name):
    return target(
        name, device="emulator", dtypes=["float16", "bfloat16"], dims={16, 64}, gqa=False, dim_v_differs=False,
        zero_lengths=False, backward=False, size=Size(pairs=1 << 13, rows=2),
    )  # fmt: skip


@declared("right")
def right(q, k, v, scale):
    return attention(q, k, v, scale, "")


@declared("reads_past_the_end")
def reads_past_the_end(q, k, v, scale):
    return attention(q, k, v, scale, "past the end")


@declared("reads_unwritten")
def reads_unwritten(q, k, v, scale):
    return attention(q, k, v, scale, "unwritten")
"""


def test_the_text_of_a_file_says_how_it_needs_triton(tmp_path: Path) -> None:
    texts = {
        "import torch\n": None,
        INTERPRETED: "interpreted",
        "from triton import jit\n": "interpreted",
        "from tritonclient import x\n": None,
        EMULATED: "emulated",
        'import triton\n@fuzz.targets.target("x", device="emulator")\ndef x(q, k, v): ...\n': "emulated",
        "not Python": None,
    }
    for text, mode in texts.items():
        (tmp_path / "x.py").write_text(text)
        assert mode_of(str(tmp_path / "x.py")) == mode, text
    assert mode_of(str(tmp_path / "none.py")) is None


def test_a_session_has_the_interpreter_or_the_emulated_gpu(tmp_path: Path) -> None:
    for name, text in (("one.py", EMULATED), ("other.py", INTERPRETED)):
        (tmp_path / name).write_text(text)
    with pytest.raises(TargetError, match=r"one\.py has a target for the emulated GPU, .*other\.py one for Triton's"):
        targets((str(tmp_path / "one.py"), str(tmp_path / "other.py")))


def test_a_process_starts_in_the_mode_of_its_device_and_files(tmp_path: Path) -> None:
    for name, text in (("one.py", EMULATED), ("other.py", INTERPRETED)):
        (tmp_path / name).write_text(text)
    one, other = (str(tmp_path / name) for name in ("one.py", "other.py"))
    (tmp_path / "plain.py").write_text("import torch\n")
    plain = str(tmp_path / "plain.py")  # what it imports may import Triton
    expected = {((), "host"): "0", ((one,), "host"): "0", ((other,), "host"): "1", ((plain,), "host"): "1"}
    expected |= {((), "emulator"): "0", ((other,), "emulator"): "0"}
    expected |= {((), "interpreter"): "1", ((other,), "interpreter"): "1", ((plain,), "interpreter"): "1"}
    assert {key: environment(*key)[VARIABLE] for key in expected} == expected


def test_a_device_has_its_own_target_of_a_name() -> None:
    assert {target.device for target in targets((), "emulator").values()} == {"emulator"}
    for device in ("host", "interpreter"):
        assert targets((), device)["torch.flex"].device == "host"
        assert targets((), device)["blocksparse"].device == "emulator"  # the host has none of this name


@pytest.mark.parametrize("name", ["sdpa", "sdpa!tail_keys_not_masked"])
def test_the_bundled_triton_kernel_runs_on_the_emulated_gpu_unless_the_interpreter_is_asked_for(name: str) -> None:
    devices: tuple[Device, ...] = ("host", "emulator", "interpreter")
    assert [load(name, (), device).device for device in devices] == ["emulator", "emulator", "interpreter"]


def test_the_bundled_triton_kernel_runs_as_the_users_files_need_triton(tmp_path: Path) -> None:
    """One process has one of the two."""
    texts = {
        "emulated.py": ("emulator", "import triton\nfrom fuzz.targets import target\n", ', device="emulator"'),
        "interpreted.py": ("interpreter", "from fuzz.targets import target\n", ""),
    }
    for file, (device, imports, where) in texts.items():
        (tmp_path / file).write_text(f'{imports}@target("mine"{where})\ndef mine(q, k, v): ...\n')
        known = targets((str(tmp_path / file),), "host")
        assert known["sdpa"].device == device and known["mine"].device == ("emulator" if where else "host")
    with pytest.raises(TargetError, match="has a target for the emulated GPU: leave out --device interpreter"):
        targets((str(tmp_path / "emulated.py"),), "interpreter")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_a_target_of_the_interpreter_is_missing_in_a_session_on_the_emulated_gpu(monkeypatch) -> None:
    """Whoever imported Triton in this process: kernels run in a child, which has the interpreter."""
    monkeypatch.setattr(triton_mode, "_chosen", None)
    assert triton_mode.missing("interpreted") is None
    monkeypatch.setattr(triton_mode, "_chosen", "emulated")
    assert "runs Triton on the emulated GPU" in (triton_mode.missing("interpreted") or "")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_repro_finds_a_race_by_default_which_the_interpreter_cannot_see(tmp_path: Path) -> None:
    """The mutant stores LSE of rows beyond the tile, which another program writes too. The interpreter runs one program
    after the other: it shows the write outside of the tensor alone."""
    case = replace(SHOWN["unmasked_row_statistics"][0], target="sdpa!unmasked_row_statistics")
    (tmp_path / "case.json").write_text(to_json(case))
    command = ["-m", "fuzz.cli.main", "repro", "case.json", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kinds = {}
    for device in ("host", "interpreter"):
        done = warm_start.run([*command, "--device", device], cwd=tmp_path, env=environment, timeout=280)
        assert done.returncode == 1, done.stdout + done.stderr
        kinds[device] = {finding["kind"] for finding in json.loads(done.stdout)["findings"]}
    assert "race_two_writes" in kinds["host"] and "race_two_writes" not in kinds["interpreter"]


def test_a_declaration_for_the_emulated_gpu_stands_alone() -> None:
    with pytest.raises(ValueError, match="device: 'emulator' stands alone"):
        target("x", device=("host", "emulator"))
    with pytest.raises(ValueError, match="arch: must be one of sm_80, sm_90a, sm_100a, got 'sm_70'"):
        target("x", device="emulator", arch="sm_70")


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_a_session_on_the_emulated_gpu_finds_what_is_read_past_the_end_and_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EMULATED)
    command = ["-m", "fuzz.cli.main", "run", "--target-file", "mine.py", "--jobs", "1", "--seed", "1"]
    command += ["--cases", "24", "--output-dir", "session"]
    command += [word for name in ("right", "reads_past_the_end", "reads_unwritten") for word in ("--target", name)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment.pop("TRITON_INTERPRET", None)
    done = warm_start.run(command, cwd=tmp_path, env=environment, timeout=280)
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("NEW "))
    assert done.returncode == 1 and len(found) == 2, done.stdout + done.stderr
    told = (
        ("reads_past_the_end: out of bounds on k, in the kernel kernel", "tl.load(k + at_k"),
        ("reads_unwritten: read of uninitialised memory on room", "tl.load(room"),
    )
    for finding, (what, code) in zip(found, told, strict=True):
        line = next(n for n, text in enumerate(EMULATED.splitlines(), 1) if code in text)
        assert finding.startswith(f"NEW {what}") and f"at mine.py:{line}," in finding
