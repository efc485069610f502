"""Case: JSON both ways, ids, and malformed input of every kind: one line that names the field, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fuzz.core.case import Case, CaseError, Inputs, Storage, from_json, load, to_json
from oracles.masks import And, Causal, Not, PerHead, Tokens, Window
from oracles.problem import Bias, Problem

PLAIN = {
    "target": "torch.sdpa.math",
    "problem": {
        "op": "attention",
        "lengths_q": [3],
        "lengths_k": [4],
        "heads_q": 2,
        "heads_kv": 1,
        "dim": 8,
        "dim_v": 8,
        "dtype": "float32",
    },
}


def changed(path: str, value: object) -> str:
    """PLAIN's JSON with the field at `path` (a.b.c) set to `value`."""
    whole = json.loads(json.dumps(PLAIN))
    *folders, last = path.split(".")
    at = whole
    for folder in folders:
        at = at.setdefault(folder, {})
    at[last] = value
    return json.dumps(whole)


def without(path: str) -> str:
    whole = json.loads(json.dumps(PLAIN))
    *folders, last = path.split(".")
    at = whole
    for folder in folders:
        at = at[folder]
    del at[last]
    return json.dumps(whole)


def said(text: str | bytes) -> str:
    """The message of the CaseError that `text` raises; one line."""
    with pytest.raises(CaseError) as error:
        from_json(text, where="x.json")
    message = str(error.value)
    assert message.startswith("x.json: ") and "\n" not in message and len(message) < 400
    return message


def rich() -> Case:
    mask = PerHead((And((Causal("bottom_right"), Window(3, None))), Not(Tokens(("101", "")))))
    problem = Problem((3, 0), (5, 7), 4, 2, 8, 16, "bfloat16", "packed", mask, 0.5, 30.0, Bias(True, dtype="float32"))
    inputs = Inputs(7, "needle", q=Storage("bshd", 1, 3), do=Storage("expanded"))
    return Case("mine", problem, inputs, {"tile": 64, "split": True, "name": "x"}, 5)


def test_json_both_ways():
    for case in (rich(), from_json(json.dumps(PLAIN))):
        text = to_json(case)
        assert from_json(text) == case and from_json(text).id == case.id and hash(from_json(text)) == hash(case)
        assert to_json(from_json(text)) == text and text.endswith("\n") and "\n  " in text


def test_defaults_are_left_out():
    text = to_json(from_json(json.dumps(PLAIN)))
    assert json.loads(text) == PLAIN


def test_the_id_is_the_contents():
    case = rich()
    assert len(case.id) == 12 and int(case.id, 16) >= 0
    turned = msgspec.structs.replace(case, variant=dict(reversed(list(case.variant.items()))))
    assert turned.id == case.id
    others = [
        msgspec.structs.replace(case, repeats=4),
        msgspec.structs.replace(case, target="other"),
        msgspec.structs.replace(case, inputs=Inputs(8, "needle")),
        msgspec.structs.replace(case, variant=case.variant | {"tile": 65}),
    ]
    assert len({case.id, *(other.id for other in others)}) == 5


def test_the_id_of_a_case_never_changes():
    """Corpus files and reports name cases by it."""
    assert from_json(json.dumps(PLAIN)).id == "e4147596dcb5"


def test_a_case_is_a_frozen_key():
    assert {rich(): 1}[rich()] == 1
    with pytest.raises(AttributeError):
        rich().repeats = 2  # type: ignore[misc]


WRONG_TYPES = [
    ("target", 3),
    ("target", None),
    ("problem", []),
    ("problem", None),
    ("problem.lengths_q", 3),
    ("problem.lengths_q", ["3"]),
    ("problem.lengths_k", [3.5]),
    ("problem.heads_q", "two"),
    ("problem.heads_q", 2.5),
    ("problem.heads_q", True),
    ("problem.dim", None),
    ("problem.dtype", "float64"),
    ("problem.dtype", 16),
    ("problem.layout", "ragged"),
    ("problem.scale", "big"),
    ("problem.softcap", None),
    ("problem.backward", "yes"),
    ("problem.bias.rows", 1),
    ("problem.bias.dtype", "float16"),
    ("inputs.seed", "0"),
    ("inputs.distribution", "gauss"),
    ("inputs.q.order", "dshb"),
    ("inputs.q.pad", "1"),
    ("variant", ["tile"]),
    ("variant.tile", [64]),
    ("variant.tile", 0.5),
    ("repeats", "3"),
]


@pytest.mark.parametrize("path, value", WRONG_TYPES, ids=lambda x: str(x)[:20])
def test_a_wrong_type_or_word_names_the_field(path, value):
    message = said(changed(path, value))
    where = path.removesuffix(".tile")
    assert f"x.json: {where}" in message, message


WRONG_VALUES = [
    ("problem.lengths_q", [-1], "problem: lengths_q: needs at least one length, none negative, got [-1]"),
    ("problem.lengths_q", [], "problem: lengths_q: needs at least one length"),
    ("problem.lengths_q", [3, 4], "problem: lengths_k: needs 2 lengths as lengths_q has, got 1"),
    ("problem.heads_q", 0, "problem: heads_q: must be at least 1, got 0"),
    ("problem.heads_kv", 3, "problem: heads_kv: must divide heads_q = 2, got 3"),
    ("problem.dim", -8, "problem: dim: must be at least 1, got -8"),
    ("problem.softcap", -1.0, "problem: softcap: must be 0 (none) or positive, finite in float32, got -1.0"),
    ("inputs.seed", -1, "inputs: seed: must be in [0, 2**31), got -1"),
    ("inputs.seed", 2**31, "inputs: seed: must be in [0, 2**31), got 2147483648"),
    ("inputs.q", {"pad": 5000}, "inputs.q: pad: must be between 0 and 4096 elements, got 5000"),
    ("inputs.k", {"offset": -1}, "inputs.k: offset: must be between 0 and 4096 elements, got -1"),
    ("inputs.v", {"order": "expanded"}, "inputs: v.order: 'expanded' is for do only"),
    ("problem.heads_q", 10**30, "problem: heads_q: must be at most 65536, got 1000"),
    ("problem.dim_v", 65_537, "problem: dim_v: must be at most 65536, got 65537"),
    ("problem.lengths_k", [2**31], "problem: lengths_k: must be at most 2147483647, got 2147483648"),
    ("problem.mask", {"kind": "prefix", "length": 10**30}, "problem.mask: length: must be at most 2147483647"),
    ("problem.mask", {"kind": "documents", "q_bounds": [10**30]}, "problem.mask: q_bounds: must be at most"),
    ("problem.mask", {"kind": "intervals", "rows": [[[0, 10**30]]]}, "problem.mask: rows: must be at most"),
    ("repeats", 0, "repeats: must be between 1 and 10000, got 0"),
    ("repeats", 10_001, "repeats: must be between 1 and 10000, got 10001"),
    ("version", 2, "version: this program reads version 1, got 2"),
    ("version", 0, "version: this program reads version 1, got 0"),
]


@pytest.mark.parametrize("path, value, message", WRONG_VALUES, ids=lambda x: str(x)[:24])
def test_a_wrong_value_names_the_field(path, value, message):
    assert message in said(changed(path, value))


UNKNOWN = ["retries", "problem.window", "problem.bias.cls", "inputs.generator", "inputs.q.stride", "problem.mask.tile"]


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_field_is_named(path):
    text = changed(path, 1) if ".mask." not in path else changed("problem.mask", {"kind": "causal", "tile": 1})
    message = said(text)
    assert f"unknown field `{path.rsplit('.', 1)[-1]}`" in message
    assert "." not in path or f"x.json: {path.rsplit('.', 1)[0]}: " in message


@pytest.mark.parametrize("path", ["target", "problem", "problem.lengths_q", "problem.dtype", "problem.dim_v"])
def test_a_missing_field_is_named(path):
    assert path.rsplit(".", 1)[-1] in said(without(path))


MASKS = [
    ({"kind": "spiral"}, "problem.mask.kind: Invalid value 'spiral'"),
    ({}, "problem.mask: Object missing required field `kind`"),
    ("causal", "problem.mask: Expected `object"),
    ({"kind": "prefix"}, "problem.mask: Object missing required field `length`"),
    ({"kind": "prefix", "length": -1}, "problem.mask: length: must be at least 0, got -1"),
    ({"kind": "causal", "align": "left"}, "problem.mask.align: Invalid enum value 'left'"),
    ({"kind": "documents", "q_bounds": [3, 1]}, "problem.mask: q_bounds: must ascend, got [3, 1]"),
    ({"kind": "intervals", "rows": [[[1]]]}, "problem.mask.rows[0][0]: Expected `array` of length 2"),
    ({"kind": "blocks", "tile_m": 0, "tile_n": 1, "rows": []}, "problem.mask: tile_m: must be at least 1, got 0"),
    ({"kind": "blocks", "tile_m": 1, "tile_n": 1, "rows": ["FX"]}, "problem.mask: rows: a block row holds only"),
    ({"kind": "tokens", "rows": ["10a"]}, "problem.mask: rows: a token row holds only '0' and '1', got '10a'"),
    ({"kind": "and", "of": []}, "problem.mask: of: must name at least one mask"),
    ({"kind": "not", "of": [{"kind": "full"}]}, "problem.mask.of: Expected `object"),
    ({"kind": "or", "of": [{"kind": "full"}, {"kind": "nope"}]}, "problem.mask.of[1].kind: Invalid value 'nope'"),
]


@pytest.mark.parametrize("mask, message", MASKS, ids=lambda x: str(x)[:24])
def test_a_wrong_mask_names_the_field(mask, message):
    assert message in said(changed("problem.mask", mask))


def nested(depth: int) -> str:
    inner = '{"kind":"not","of":' * depth + '{"kind":"full"}' + "}" * depth
    return changed("problem.mask", "MASK").replace('"MASK"', inner)


def test_nesting():
    assert from_json(nested(20)).problem.lengths_q == (3,)
    for depth in (10_000, 1_000_000):
        assert "nested too deeply" in said(nested(depth))


NOT_JSON = {
    "empty": b"",
    "space": b" \n\t",
    "binary": bytes(range(256)) * 8,
    "zeros": b"\0" * 4096,
    "utf16": json.dumps(PLAIN).encode("utf-16"),
    "bad_utf8": json.dumps(PLAIN).replace("math", "m\xff").encode("latin-1"),
    "cut": json.dumps(PLAIN)[:-7].encode(),
    "twice": json.dumps(PLAIN).encode() * 2,
    "nan": changed("problem.scale", float("nan")).encode(),
    "infinity": changed("problem.softcap", float("inf")).encode(),
    "python": repr(PLAIN).encode(),
    "comment": b"// a case\n" + json.dumps(PLAIN).encode(),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_json_is_said_so(name):
    assert "not JSON" in said(NOT_JSON[name])


@pytest.mark.parametrize("text", ["[]", "3", "null", '"case"', "true", "[[[[]]]]"])
def test_json_that_is_no_object(text):
    assert "Expected `object`" in said(text)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400, "1" + "0" * 30])
@pytest.mark.parametrize("path", ["problem.scale", "problem.softcap", "problem.heads_q", "inputs.seed", "repeats"])
def test_huge_numbers(path, number):
    text = changed(path, "NUMBER").replace('"NUMBER"', number)
    try:
        case = from_json(text, where="x.json")
    except CaseError as error:
        assert "\n" not in str(error) and str(error).startswith("x.json: ") and len(str(error)) < 900
    else:  # a large float is a legal scale or softcap
        assert path in ("problem.scale", "problem.softcap") and case.problem is not None


def test_files(tmp_path):
    file = tmp_path / "case.json"
    file.write_text(to_json(rich()))
    assert load(file) == load(str(file)) == rich()
    for path, why in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "Is a directory"),
        (file / "x", "Not a dir"),
    ):
        with pytest.raises(CaseError, match=f"{path}: cannot be read: {why}"):
            load(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /proc")
def test_a_file_that_may_not_be_read(tmp_path):
    with pytest.raises(CaseError, match=r"cannot be read|not JSON"):
        load("/proc/self/mem")


def test_a_name_with_a_null_byte_is_one_line():
    with pytest.raises(CaseError, match="cannot be read"):
        load("a\0b.json")


@pytest.mark.parametrize("bad", [3, "yes", [1]], ids=str)
def test_every_field_refuses_garbage(bad):
    """No field of the schema takes a value of any type."""
    for name in ("problem", "inputs", "inputs.q", "problem.mask", "problem.bias"):
        message = said(changed(name, bad))
        assert f"x.json: {name}" in message
