"""Surface coverage of a session: counted from the calls in its records, said in a few lines, explained by adapters."""

from __future__ import annotations

from fuzz.session.records import Record
from fuzz.session.summary.surface_coverage import declared_lines, surface_lines
from fuzz.targets.registry import load

MATH = "torch.sdpa.math"


def record(*calls: str, target: str = MATH) -> Record:
    return Record("w0", "s", target, "0" * 12, "pass", {}, calls=calls)


def test_a_parameter_that_no_case_gave_is_named_at_the_end_of_a_session():
    base = "scaled_dot_product_attention query=f32 key=f32 value=f32"
    lines = surface_lines([record(base), record(f"{base} is_causal=True scale=zero")], (), "host")
    assert lines[0].startswith("Parameters given (pairs of them): torch.sdpa.math 5 of 8 (1 of ")
    assert any(line.startswith("Never given: torch.sdpa.math: attn_mask, enable_gqa") for line in lines)
    assert any("dropout_p (" in line for line in lines)


def test_a_session_without_calls_says_so():
    assert "Never given: torch.sdpa.math: was not called" in surface_lines([record()], (), "host")
    assert surface_lines([], (), "host") == []


def test_a_target_shows_its_parameters_and_reasons():
    lines = declared_lines(load(MATH))
    assert lines[0].startswith("calls: scaled_dot_product_attention(query, key, value, attn_mask, dropout_p")
    assert any(line.startswith("never gives dropout_p: ") for line in lines)
