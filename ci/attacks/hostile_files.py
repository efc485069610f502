"""Files that no program should choke on: each is refused in one line, soon, and in little memory.

python -m attacks.hostile_files COMMAND…    # what tests and ci/attack.py measure, in a process of its own
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.cli.main import main

SECONDS, MEMORY = 2.0, 200 << 20
PROBLEM = {"op": "attention", "lengths_q": [5], "lengths_k": [7], "heads_q": 1, "heads_kv": 1, "dim": 8, "dim_v": 8}
PROBLEM |= {"dtype": "float32"}


def case(target: str = "torch.sdpa.math", **changed: Any) -> str:
    """JSON of a case whose problem has these fields."""
    return json.dumps({"target": target, "problem": PROBLEM | changed})


def nested(depth: int) -> str:
    """A mask in `depth` negations."""
    return '{"kind": "not", "of": ' * depth + '{"kind": "causal"}' + "}" * depth


def intervals(rows: int, each: int) -> str:
    """A case whose mask has so many rows of so many intervals each; without making them as objects."""
    row = f"[{', '.join(['[0, 1]'] * each)}]"
    mask = f'{{"kind": "intervals", "rows": [{", ".join([row] * rows)}]}}'
    return case(mask=0).replace('"mask": 0', f'"mask": {mask}')


TEXTS: dict[str, Callable[[], str]] = {
    "empty": lambda: "",
    "not JSON": lambda: "{" * 100,
    "a list": lambda: "[]",
    "a hundred thousand brackets": lambda: "[" * 100_000,
    "not, 900 deep": lambda: case(mask=0).replace('"mask": 0', '"mask": ' + nested(900)),
    "not, 100,000 deep": lambda: case(mask=0).replace('"mask": 0', '"mask": ' + nested(100_000)),
    "lengths of 2**31 - 1": lambda: case(lengths_q=[2**31 - 1], lengths_k=[2**31 - 1]),
    "a million sequences of 2**31 - 1": lambda: case(lengths_q=[2**31 - 1] * 10**6, lengths_k=[2**31 - 1] * 10**6),
    "65,536 heads of 65,536 dims": lambda: case(heads_q=65536, heads_kv=65536, dim=65536, dim_v=65536),
    "a million intervals": lambda: intervals(1000, 1000),
    "ten million intervals": lambda: intervals(1000, 10_000),
    "an and of a million masks": lambda: case(mask={"kind": "and", "of": [{"kind": "causal"}] * 10**6}),
    "a mask of a million heads": lambda: case(mask={"kind": "per_head", "of": [{"kind": "causal"}] * 10**6}),
    "tokens of 100 MB": lambda: case(mask={"kind": "tokens", "rows": ["1" * 10**6] * 100}),
    "an and of 50,000 masks": lambda: case(mask={"kind": "and", "of": [{"kind": "causal"}] * 50_000}),
    "half a million intervals": lambda: intervals(1000, 500),
    "300,000 documents": lambda: case(mask={"kind": "documents", "q_bounds": list(range(300_000))}),
    "a key twice": lambda: case().replace('"target"', '"target": "torch.sdpa.flash", "target"'),
    "a key twice, deep": lambda: case().replace('"dim":', '"dim": 16, "dim":'),
    "a lone surrogate": lambda: case().replace("torch.sdpa.math", "\\ud800"),
    "colours": lambda: case("\x1b[31mred\x1b[0m\x1b]0;title\x07"),
    "a line break": lambda: case("one\nattnfuzz: two"),
    "a number of 10,000 digits": lambda: case(heads_q=0).replace('"heads_q": 0', '"heads_q": ' + "9" * 10_000),
    "not a number": lambda: case(scale=float("nan")),
}


def write(folder: Path) -> dict[str, Path]:
    """The files in `folder` by name, with a FIFO, devices, a folder, a link to itself and bytes that are no text."""
    found = {}
    for number, (name, text) in enumerate(TEXTS.items()):
        found[name] = folder / f"{number}.json"
        found[name].write_text(text())
    found["a FIFO"] = folder / "fifo.json"
    os.mkfifo(found["a FIFO"])
    found["a link to itself"] = folder / "link.json"
    found["a link to itself"].symlink_to("link.json")
    found["a folder"] = folder / "folder.json"
    found["a folder"].mkdir()
    found["bytes"] = folder / "bytes.json"
    found["bytes"].write_bytes(bytes(range(256)) * 100)
    found["a sparse terabyte"] = folder / "sparse.json"
    with found["a sparse terabyte"].open("wb") as file:
        file.truncate(1 << 40)
    for device in ("/dev/zero", "/dev/urandom", "/dev/stdin"):
        found[device] = Path(device)
    return found


def measure(command: str, path: Path) -> str:
    """Faults of `attnfuzz command path`, in words; '' without any."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os.write(writing, json.dumps(_run(command, path)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not said:
        return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
    code, lines, seconds, memory = json.loads(said)
    wrong = [f"exit code {code}"] * (code != 2) + [f"{len(lines)} lines"] * (len(lines) != 1)
    wrong += [f"{seconds:.1f} s"] * (seconds > SECONDS) + [f"{memory >> 20} MiB"] * (memory > MEMORY)
    wrong += ["a control code"] * any(not line.isprintable() for line in lines)
    return ", ".join(wrong)


def _run(command: str, path: Path) -> tuple[Any, list[str], float, int]:
    """Exit code, lines on standard error, seconds, and bytes of memory beyond those at the start."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    Path("/proc/self/clear_refs").write_text("5")
    before, errors, began = _peak(), io.StringIO(), time.perf_counter()
    code: Any = None
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main([command, str(path), "--device", "host"])
    return code, errors.getvalue().splitlines(), time.perf_counter() - began, _peak() - before


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
