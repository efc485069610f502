"""Tool: an outside program (py-spy, nvidia-smi, cuda-gdb) with a limit of its own, started now and read later."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic


class Tool:
    """A started program. Its output goes to a file, so that it never waits for its reader."""

    def __init__(self, command: Sequence[str], limit: float) -> None:
        self._until = monotonic() + limit
        self._limit = limit
        self._name = Path(command[0]).name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by result and cancel)
        self._popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def done(self) -> bool:
        """True if it has ended, or its time is over."""
        return self._popen.poll() is not None or monotonic() > self._until

    def result(self) -> tuple[bool, str]:
        """Waits for its end or its limit. Whether it succeeded, and its output or what went wrong."""
        try:
            code = self._popen.wait(max(0.0, self._until - monotonic()))
        except subprocess.TimeoutExpired:
            self.cancel()
            return False, f"{self._name}: not done after {self._limit:g} s"
        self._output.seek(0)
        text = self._output.read().decode(errors="replace").strip()
        self._output.close()
        if code:
            return False, f"{self._name}: {_first_line(text) or f'exit code {code}'}"
        return True, text

    def cancel(self) -> None:
        """Kills it; nothing will be read."""
        self._popen.kill()
        self._popen.wait()
        self._output.close()


def find(name: str) -> str | None:
    """A program on PATH, or beside the interpreter (a virtual environment that is not activated)."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()
