"""Surface: what a call gave is noted as it was made; what was never given, and why, follows from it."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
import torch

from fuzz.core.surface import REQUIRED, Apart, Given, NotRun, Surface, kind, recording


def attend(q, k, mask=None, causal=False, scale=None, window=(-1, -1), *, lse=False):
    return q


ATTEND = Surface.of(attend, never={"lse": "not looked at"}, apart=(Apart(("causal",), ("mask", "window"), "open"),))
Q = torch.zeros(1, 2, 4, 8)


class Request(NamedTuple):
    lse: bool = False
    most: bool = False


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        (True, "True"),
        (0, "zero"),
        (0.0, "zero"),
        (-2.5, "negative"),
        (3, "positive"),
        ("bits", "bits"),
        ((None, 0), "None+zero"),
        ({"BLOCK_M": 16, "BLOCK_N": 32}, "BLOCK_M+BLOCK_N"),
        (Request(lse=True), "lse"),
        (attend, "function"),
        (Q, "f32+4d+contiguous"),
        (Q.transpose(1, 2), "f32+4d+strided"),
        (Q[:, :1].expand(1, 2, 4, 8), "f32+4d+expanded"),
        (Q[:, :0], "f32+4d+empty"),
        (Q.to(torch.bfloat16).requires_grad_(), "bf16+4d+contiguous+grad"),
        (torch.zeros(9, dtype=torch.float16)[1:], "f16+1d+contiguous+unaligned"),
        (torch.zeros(1, 3, 1, 5)[:, :, :, :5], "f32+4d+contiguous"),
    ],
)
def test_the_kind_of_a_value(value, words):
    assert kind(value) == words


def test_an_axis_of_one_has_no_layout():
    assert kind(Q[:, :1, :1].as_strided((1, 1, 1, 8), (7, 0, 99, 1))) == "f32+4d+contiguous"


def test_a_call_is_noted_as_it_was_made_and_once():
    with recording() as calls:
        assert ATTEND.call(attend, Q, Q, scale=0.5, causal=False, window=(-1, -1)) is Q
        ATTEND.call(attend, Q, Q, scale=0.25)
    assert list(calls) == ["attend q=f32+4d+contiguous k=f32+4d+contiguous scale=positive"]
    ATTEND.call(attend, Q, Q)  # nothing records
    assert len(calls) == 1


def test_a_dry_call_runs_no_kernel():
    helper = Surface.of(attend, "helper", kernel=False)
    ran = []
    with recording(dry=True) as calls, pytest.raises(NotRun):
        helper.call(lambda *x: ran.append("helper"), Q, Q)
        ATTEND.call(lambda *x: ran.append("kernel"), Q, Q)
    assert ran == ["helper"] and [text.split()[0] for text in calls] == ["helper", "attend"]


def test_a_declared_signature_is_that_of_the_function():
    text = "attend(q, k, mask=None, causal=False, scale=None, window=(-1, -1), *, lse=False)"
    assert Surface.declared(text).defaults == ATTEND.defaults == Surface.of(attend).defaults
    assert ATTEND.defaults["q"] is REQUIRED and ATTEND.optional == ("mask", "causal", "scale", "window", "lse")


def test_a_reason_for_a_parameter_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no parameter 'page_table'"):
        Surface.declared("attend(q, k, v, scale=None)", never={"page_table": "why"})


def test_what_was_never_given_is_unexplained_unless_the_adapter_says_why():
    given = Given(ATTEND)
    for arguments in ({"mask": Q, "scale": 0.5}, {"causal": True, "scale": 0}, {}):
        with recording() as calls:
            ATTEND.call(attend, Q, Q, **arguments)
        given.add(calls)
    given.add(["other q=f32"])
    assert given.cases == 3
    assert given.never() == ["window", "lse"] and given.unexplained() == ["window"]
    assert ("mask", "causal") in given.never_together() and given.unexplained_pairs() == []
    assert given.kinds["scale"] == {"positive": 1, "zero": 1, "None": 1}
    assert given.missing_kinds("scale") == ["negative"] and given.missing_kinds("causal") == []
    assert given.missing_kinds("q") == ["strided", "expanded"]
    assert given.stale() == []


def test_a_reason_that_is_not_true_is_stale():
    given = Given(ATTEND)
    with recording() as calls:
        ATTEND.call(attend, Q, Q, mask=Q, causal=True, lse=True)
    given.add(calls)
    assert given.stale() == ["lse", "mask + causal"]


def test_a_note_costs_less_than_a_tenth_of_a_millisecond_a_case():
    """A case makes about five calls."""
    best = float("inf")
    with recording():
        for _ in range(20):
            began = time.process_time()
            for _ in range(50):
                ATTEND.call(attend, Q, Q, mask=Q, scale=0.5)
            best = min(best, (time.process_time() - began) / 50)
    assert best < 20e-6


def test_a_reason_for_a_parameter_of_another_version_is_left_out() -> None:
    surface = Surface.of(lambda q, scale=None: None, "attend", never={"scale": "never", "dropout_p": "never"})
    assert dict(surface.never) == {"scale": "never"}
    assert surface.elsewhere == ("dropout_p",)
