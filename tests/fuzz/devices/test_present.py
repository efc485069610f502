"""fuzz/devices/present.py: whether there is a CUDA device, asked for beside the imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fuzz.devices import present


@pytest.fixture(autouse=True)
def unasked():
    present.ask.cache_clear()
    present._answer.cache_clear()
    yield
    present.ask.cache_clear()
    present._answer.cache_clear()


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(present, "_COUNT", f"print({text!r}, end='')")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("text", "there"), [("1", True), ("0", False), ("", False)])
def test_the_driver_says_how_many_devices_there_are(monkeypatch, text: str, there: bool) -> None:
    answers(monkeypatch, text)
    assert present.cuda_present() is there


def test_a_pytorch_without_cuda_uses_none(monkeypatch) -> None:
    answers(monkeypatch, "1")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not present.cuda_present()


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_devices_are_not_asked_for(monkeypatch, hidden: str) -> None:
    answers(monkeypatch, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert present.ask() is None
    assert not present.cuda_present()


def test_asking_imports_no_torch() -> None:
    code = "import sys; from fuzz.devices.present import ask; ask(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
