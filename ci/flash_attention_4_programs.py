"""FlashAttention-4's bugs for sm_100a as programs for a report: runs those of corpus/regressions/README.md on the
emulated GPU, and says whether each still prints what stands below it there.

    python ci/flash_attention_4_programs.py        with flash-attn-4 (pip install '.[fa4]'); compiles 10 kernels

A program allocates on "cuda", as a reader with a B200 runs it; here its tensors are the CPU's.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cutlass._mlir.ir import MLIRError

from fuzz.devices.emulator import EmulationError, ready
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.frontends.cute_functions import Device
from fuzz.targets.flash_attention_4.emulated import taking_cpu_tensors

PAGE = Path(__file__).resolve().parent.parent / "corpus" / "regressions" / "README.md"
PART = "## FlashAttention-4 for sm_100a"
PROGRAM = re.compile(r"^### (\S+)$.*?^```python\n(.*?)^```\n```\n(.*?)^```$", re.M | re.S)
CHECKS = frozenset({"races", "uninitialised"})
ERROR = re.compile(r"^error: .*$", re.M)
FOLDERS = re.compile(r'"/[^"]*/')  # before the name of a file
WIDTH = 200  # characters of a finding that the page shows


def main() -> int:
    """Exit code 1 where a program prints something else."""
    ready()
    part = PAGE.read_text().partition(PART)[2].partition("\n## ")[0]
    programs = PROGRAM.findall(part)
    different = 0
    for name, text, shown in programs:
        said = printed(text)
        same = said.strip() == shown.strip()
        different += not same
        print(f"{name}: {'as shown' if same else 'differs; it prints'}\n{said}", flush=True)
    print(f"{len(programs) - different} of {len(programs)} programs print what is shown")
    return int(different > 0 or not programs)


def printed(text: str) -> str:
    """The output of a program, and the findings or the compiler's error that ended it."""
    said = io.StringIO()
    gpu = Device(LaunchConfig(checks=CHECKS, dispatch="in_order"), lambda report: None, None, None)
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with taking_cpu_tensors("sm_100a", gpu):
                exec(compile(text.replace('"cuda"', '"cpu"'), "program", "exec"), {"__name__": "program"})
        except EmulationError as error:
            for finding in error.report.findings:
                print(str(finding).partition(" (kernel ")[0][:WIDTH], f"({finding.source})")
        except MLIRError as error:
            print(ERROR.findall(FOLDERS.sub('"', str(error)))[0][:WIDTH])
    return said.getvalue()


if __name__ == "__main__":
    sys.exit(main())
