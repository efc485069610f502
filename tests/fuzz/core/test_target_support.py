"""Support as data, the registry, and @target for a user's own function."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs, Storage
from fuzz.judging.judge import execute
from fuzz.targets import Rule, limits, refusal, target
from fuzz.targets.registry import TargetError, load, targets
from oracles.masks import And, Causal, Full, Prefix
from oracles.problem import Bias, Problem

PLAIN = Problem((9,), (9,), 2, 1, 16, 16, "float32")

MINE = """
from fuzz.targets import target

@target("mine", dtypes=["float32"])
def attention(q, k, v, mask, scale):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).nan_to_num(0.0) @ v
"""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"softcap": 1.0}, "no softcap"),
        ({"bias": Bias()}, "no bias"),
        ({"dtype": "bfloat16"}, "dtype is not one of float32"),
        ({"layout": "packed"}, "layout is not padded"),
        ({"dim": 257, "dim_v": 257}, "head dims outside 1 … 256 in steps of 1"),
    ],
)
def test_a_users_function_is_never_asked_for_what_its_parameters_lack(tmp_path: Path, change: dict, why: str) -> None:
    mine = load("mine", (_file(tmp_path, MINE),))
    found = refusal(mine, Case("mine", replace(PLAIN, **change)))
    assert found is not None and (found.kind, found.why) == ("cannot", why)
    assert refusal(mine, Case("mine", PLAIN)) is None


def test_an_option_that_changes_nothing_is_no_option(tmp_path: Path) -> None:
    mine = load("mine", (_file(tmp_path, MINE.replace("mask, scale", "mask, scale, tile=64")),))
    assert refusal(mine, Case("mine", PLAIN, variant={"tile": 32})) is None
    found = refusal(mine, Case("mine", PLAIN, variant={"tile": 32, "tiel": 16}))
    assert found is not None and (found.kind, found.why) == ("cannot", "it has no option named tiel")
    found = refusal(load("mine", (_file(tmp_path, MINE),)), Case("mine", PLAIN, variant={"x": "y"}))
    assert found is not None and found.why == "it has no option named x"
    found = refusal(load("sdpa"), Case("sdpa", PLAIN, variant={"x": "y"}))
    assert found is not None and found.why.startswith("options other than mask (auto, bool, float, both)")


def test_a_users_function_passes_and_its_mask_is_the_predicate(tmp_path: Path) -> None:
    mine = load("mine", (_file(tmp_path, MINE),))
    case = Case("mine", replace(PLAIN, mask=And((Causal(), Prefix(5))), lengths_q=(9, 4), lengths_k=(9, 9)))
    verdict = execute(case, mine, lambda phase, limit: None)
    assert verdict.outcome == "pass", verdict.findings


def test_a_function_without_a_mask_is_asked_for_full_and_causal_only(tmp_path: Path) -> None:
    text = MINE.replace("mask, scale", "causal, scale")
    blind = load("mine", (_file(tmp_path, text),))
    assert refusal(blind, Case("mine", replace(PLAIN, mask=Causal()))) is None
    other = replace(PLAIN, mask=Causal("bottom_right"))
    assert refusal(blind, Case("mine", other)) is None  # as many queries as keys: both alignments are one
    assert refusal(blind, Case("mine", replace(other, lengths_k=(7,)))) is not None
    assert refusal(blind, Case("mine", replace(PLAIN, mask=Prefix(2)))) is not None
    assert refusal(blind, Case("mine", replace(PLAIN, lengths_q=(9, 4), lengths_k=(9, 9)))) is not None


def test_packed_functions_get_cu_seqlens(tmp_path: Path) -> None:
    seen = {}

    @target("packed", layouts=["packed"], masks=["full"])
    def attention(q, k, v, mask, cu_seqlens_q, cu_seqlens_k, max_len_q, max_len_k):
        seen.update(q=cu_seqlens_q.tolist(), k=cu_seqlens_k.tolist(), most=(max_len_q, max_len_k))
        return q.new_zeros(*q.shape[:2], v.shape[2]) + 0 * q.sum() + 0 * k.sum() + 0 * v.sum()

    from fuzz.targets.user_function.function import DECLARED

    made = next(t for t in reversed(DECLARED) if t.name == "packed" and t.device == "host")
    case = Case("packed", replace(PLAIN, layout="packed", lengths_q=(3, 0, 5), lengths_k=(2, 7, 1)))
    assert execute(case, made, lambda phase, limit: None).outcome == "fail"  # it answers zeros
    assert seen == {"q": [0, 3, 3, 8], "k": [0, 2, 9, 10], "most": (5, 7)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import not_there", "No module named"),
        ("def f(", "SyntaxError"),
        ("x = 1", "declares no target"),
        (MINE.replace('["float32"]', '["float8"]'), "dtypes: must be one of"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        load("mine", (_file(tmp_path, text),))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"'sdpb' is not known on host; known: torch\.sdpa\.math"):
        load("sdpb")


def test_planted_bugs_are_found_by_name_and_never_part_of_a_session() -> None:
    assert "sdpa!unmasked_row_statistics" not in targets()
    assert load("sdpa!unmasked_row_statistics").name == "sdpa!unmasked_row_statistics"


def test_the_same_names_exist_on_both_devices_where_the_kernel_does() -> None:
    emulated_alone = {"cudnn.nsa_selection"}
    assert set(targets(device="host")) - {"mine", "packed"} - emulated_alone <= set(targets(device="cuda"))


def test_limits_lists_every_reason_that_refusal_can_give() -> None:
    flash = load("torch.sdpa.flash")
    lines = "\n".join(limits(flash))
    strided = Case("torch.sdpa.flash", PLAIN, Inputs(q=Storage("bhds")))
    for case in (strided, Case("torch.sdpa.flash", replace(PLAIN, dim_v=8)), Case("", replace(PLAIN, softcap=1.0))):
        found = refusal(flash, case)
        assert found is not None and found.why in lines


def test_a_rule_of_a_users_own_refuses(tmp_path: Path) -> None:
    @target("ruled", rules=[Rule("prefixes", lambda c: c.problem.mask != Full(), "refuses")], device="host")
    def attention(q, k, v, mask):
        return q

    from fuzz.targets.user_function.function import DECLARED

    found = refusal(DECLARED[-1], Case("ruled", replace(PLAIN, mask=Prefix(1))))
    assert found is not None and (found.kind, found.why) == ("refuses", "prefixes")


def _file(folder: Path, text: str) -> str:
    path = folder / f"mine_{abs(hash(text))}.py"
    path.write_text(text)
    return str(path)
