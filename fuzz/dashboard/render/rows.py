"""A signature as a row of a table and as a page: its pictures, commands and evidence, made once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from markupsafe import Markup

from fuzz.core.case import Case
from fuzz.core.case_words import describe
from fuzz.dashboard.model import SignatureItem
from fuzz.dashboard.render.case_picture import case_picture
from fuzz.dashboard.render.charts import Grid
from fuzz.dashboard.render.reproduce import command
from fuzz.dashboard.render.sparkline import sparkline
from fuzz.dashboard.render.waits import Wait, waits

_UID = re.compile(r"[0-9a-f]{1,32}")
SHORT = 1200  # letters of a command that a table holds; the page of the signature has every one
_NAMES = {
    "emulator": "What the emulated GPU saw",
    "predicted": "Predicted from the block lists",
    "python_stack": "Python stack",
    "traceback": "Traceback",
    "stderr": "Standard error",
    "gpu": "GPU",
    "exit": "Exit of the process",
}


@dataclass(frozen=True)
class Row:
    """A signature with what its row and its page show. files: of users' own targets."""

    bug: SignatureItem
    files: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of its page's file without the suffix; a ledger of other machines may hold any text as an id."""
        uid = self.bug.uid
        return uid if _UID.fullmatch(uid) else hashlib.sha256(uid.encode()).hexdigest()[:8]

    @property
    def words(self) -> str:
        """The text that the filter searches."""
        b = self.bug
        return " ".join([b.uid, b.title, b.message, b.target, b.kind, b.state, *b.archs, *b.needs]).lower()

    @cached_property
    def case(self) -> Case | None:
        """The saved case."""
        return None if self.bug.case is None else msgspec.convert(self.bug.case, Case)

    @cached_property
    def mask(self) -> Markup:
        """Its picture, of the sequence and head that are wrong."""
        if self.case is None:
            return Markup("")
        problem, place = self.case.problem, self._place()
        batch = place.get("batch") or 0
        head = place.get("head") or 0
        batch, head = (batch if batch < problem.batch else 0), (head if head < problem.heads_q else 0)
        return case_picture(self.case, batch, head)

    @property
    def size(self) -> str:
        """The saved case in a few words."""
        if self.case is None:
            return "not kept"
        p = self.case.problem
        lengths = f"{sum(p.lengths_q)} × {sum(p.lengths_k)} tokens"
        heads = f"{p.heads_q}/{p.heads_kv} heads"
        return f"{lengths}, {heads}, dim {p.dim}, {p.dtype}" + ", perhaps not minimal" * (not self.bug.minimal)

    @property
    def described(self) -> str:
        """The saved case in some lines."""
        return "" if self.case is None else "\n".join(describe(self.case))

    @cached_property
    def command(self) -> str:
        """Shell lines that show it again."""
        return command(self.bug, self.files)

    @property
    def short_command(self) -> str:
        """The command, where it is short enough for a table."""
        return self.command if len(self.command) <= SHORT else ""

    @cached_property
    def spark(self) -> Markup:
        """Its nights."""
        return sparkline(self.bug.nights)

    @property
    def met(self) -> Grid:
        """Sessions that met it."""
        return Grid(
            ("night", "arch", "revision", "cases", "of", "saved case failed", "status"),
            tuple(
                (m.night, m.arch, m.commit[:12], m.met, m.cases, f"{m.failed} of {m.probed} runs", m.status)
                for m in self.bug.met_in
            ),
        )

    @property
    def places(self) -> Grid | None:
        """The worst place of each tensor; None: nothing was compared."""
        worst = (self.bug.evidence or {}).get("worst") or ()
        if not worst:
            return None
        keys = ("tensor", "ratio", "grain", "batch", "head", "row")
        columns = ("tensor", "error / budget", "over one", "sequence", "head", "row")
        return Grid(columns, tuple(tuple(one.get(key, 0) for key in keys) for one in worst))

    @property
    def waits(self) -> list[Wait]:
        """Who waits for whom, of a deadlock on the emulated GPU."""
        return waits(str(self._texts().get("emulator", "")))

    @property
    def text(self) -> list[tuple[str, str]]:
        """The evidence as named texts: the findings, then what the process and the device said."""
        found = (self.bug.evidence or {}).get("findings") or ()
        messages = "\n".join(str(one.get("message", "")) for one in found)
        texts = [("Findings", messages)] if messages else []
        for name, value in self._texts().items():
            if str(value).strip():
                texts.append((_NAMES.get(name, name.replace("_", " ")), str(value)))
        return texts

    def _texts(self) -> dict[str, Any]:
        return dict((self.bug.evidence or {}).get("evidence") or {})

    def _place(self) -> dict[str, Any]:
        found = (self.bug.evidence or {}).get("findings") or ()
        return dict(found[0].get("place") or {}) if found else {}
