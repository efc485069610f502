"""Signatures: one bug is one signature, and look-alikes are not swallowed."""

import msgspec
import pytest

from fuzz.core.case import Case
from fuzz.core.signature import (
    ANY_RELATION,
    Signature,
    cause,
    explains,
    look_alike,
    probably_one,
    same_failure,
    signature,
    tensors,
)
from fuzz.core.verdict import Finding, Location, Verdict
from oracles.masks import Causal, Full, Not, Window
from oracles.problem import Problem


def make(**problem):
    base = {
        "lengths_q": (65,),
        "lengths_k": (65,),
        "heads_q": 2,
        "heads_kv": 2,
        "dim": 16,
        "dim_v": 16,
        "dtype": "float32",
    }
    return Case(target="t", problem=Problem(**(base | problem)))


def wrong(*names, kind="wrong", oracle="accuracy", place=""):
    return tuple(Finding(oracle, kind, "m", tensor=name, place=Location(pattern=place)) for name in names)


def fail(*findings, outcome="fail"):
    return Verdict(case_id="0", outcome=outcome, findings=findings)


SMALL, LARGE = make(), make(heads_q=8, lengths_q=(447,), lengths_k=(447,), softcap=3.0, mask=Causal())


def test_a_minimised_failure_explains_the_raw_one_with_more_features_and_tensors():
    known = signature(SMALL, fail(*wrong("dv", place="all")))
    found = signature(LARGE, fail(*wrong("dq", "dk", "dv", place="first rows")))
    assert explains(known, found)
    assert not explains(found, known)


def test_the_signature_of_a_wrong_output_ignores_the_gradients_that_follow_from_it():
    assert tensors(fail(*wrong("dq", "o", "lse", "dv"))) == ("o",)
    assert tensors(fail(*wrong("dq", "lse"))) == ("lse",)
    assert tensors(fail(*wrong("dq", "dbias"))) == ("dbias", "dq")


@pytest.mark.parametrize(
    "found",
    [
        signature(LARGE, fail(*wrong("o"))),
        signature(LARGE, fail(*wrong("dv", kind="nan"))),
        signature(LARGE, fail(*wrong("dv", oracle="determinism"))),
        signature(LARGE, fail(outcome="hang")),
        signature(LARGE, fail(*wrong("dv", "dk", kind="wrote_outside", oracle="memory"))),
        signature(LARGE, fail(*wrong("dbias"))),
        signature(msgspec.structs.replace(LARGE, target="u"), fail(*wrong("dv"))),
        signature(make(heads_q=1, heads_kv=1), fail(*wrong("dv"))),
    ],
    ids=["tensor", "kind", "oracle", "hang", "memory", "dbias", "target", "features"],
)
def test_look_alikes_are_not_explained(found):
    assert not explains(signature(SMALL, fail(*wrong("dv", place="first rows"))), found)


def test_only_the_ends_of_long_sequences_contradict():
    first, last = (signature(case, fail(*wrong("dv", place="first rows"))) for case in (SMALL, LARGE))
    tail = signature(LARGE, fail(*wrong("dv", place="last tile")))
    assert not explains(last, tail)
    assert not explains(tail, last)
    small = msgspec.structs.replace(first, features=("heads",))
    assert explains(small, tail)
    assert explains(msgspec.structs.replace(last, place="later heads"), tail)


def test_two_sides_of_one_bug_look_alike():
    capped, masked = make(softcap=3.0), make(softcap=3.0, mask=Causal())
    one = signature(capped, fail(*wrong("o")))
    assert look_alike(one, signature(make(softcap=3.0, lengths_q=(64,)), fail(*wrong("lse"))))
    assert not look_alike(one, signature(masked, fail(*wrong("lse"))))
    assert not look_alike(one, signature(capped, fail(*wrong("dq"))))
    assert not look_alike(signature(SMALL, fail(*wrong("o"))), signature(make(lengths_q=(64,)), fail(*wrong("o"))))


def test_rows_without_keys_are_one_bug_whichever_mask_made_them():
    nan = fail(*wrong("o", kind="nan"))
    window = signature(make(mask=Window(left=0, right=0)), nan, features=("window", "rows_without_keys"))
    tokens = signature(make(mask=Not(Full())), nan, features=("full", "not", "rows_without_keys"))
    assert look_alike(window, tokens)
    assert not look_alike(window, signature(make(), nan, features=("window",)))
    assert not look_alike(window, signature(make(), nan, features=("window", "rows_without_keys", "softcap")))
    number = signature(make(), fail(*wrong("o")), features=("window", "rows_without_keys"))
    assert not look_alike(window, number) and look_alike(window, number, in_session=True)


def test_errors_of_different_types_are_different_bugs():
    one, other = (
        fail(*wrong("", kind="raised", oracle="protocol", place=name)) for name in ("TypeError", "RuntimeError")
    )
    assert not explains(signature(SMALL, one), signature(LARGE, other))
    assert not same_failure(one, other)
    assert explains(signature(SMALL, one), signature(LARGE, one))


def test_causes_stand_before_their_consequences():
    findings = (*wrong("o", "dq"), *wrong("dv", kind="wrote_outside", oracle="memory"))
    assert signature(SMALL, fail(*findings)).kind == "wrote_outside"
    findings = (*wrong("dq", kind="nondeterministic", oracle="determinism"), *wrong("o"))
    assert signature(SMALL, fail(*findings)).tensors == ("o",)
    findings = (*wrong("dq", kind="wrong"), *wrong("dq", kind="nondeterministic", oracle="determinism"))
    assert signature(SMALL, fail(*findings)).oracle == "determinism"


def test_hangs_and_crashes_are_signed_without_findings():
    for outcome in ("hang", "crash"):
        found = signature(SMALL, fail(outcome=outcome))
        assert (found.kind, found.oracle, found.tensors) == (outcome, "runner", ())


def test_the_features_that_the_failure_needs_may_be_given():
    assert signature(LARGE, fail(*wrong("o")), features={"softcap", "heads"}).features == ("heads", "softcap")


def test_equal_failures_have_equal_ids_whatever_the_order_of_findings():
    one, two = wrong("dq", "dk"), wrong("dk", "dq")
    assert signature(SMALL, fail(*one)).id == signature(SMALL, fail(*two)).id


def test_same_failure_needs_a_failure_and_a_common_root_tensor():
    assert same_failure(fail(*wrong("dq", "dk")), fail(*wrong("dk")))
    assert not same_failure(fail(*wrong("dq")), fail(*wrong("dk")))
    assert not same_failure(fail(*wrong("dq")), fail(outcome="pass"))
    assert not same_failure(fail(outcome="hang"), fail(outcome="crash"))


def test_a_pass_has_no_signature():
    with pytest.raises(ValueError, match="verdict: needs a failure"):
        signature(SMALL, fail(outcome="pass"))


def test_a_known_bug_of_some_head_dims_explains_no_others():
    known = Signature("t", "wrong", "accuracy", ("dq",), "", ("dim:pads_apart",))

    def raw(dim):
        case = make(dim=dim, dim_v=dim)
        return signature(case, Verdict(case.id, "fail", wrong("dq", place="all")))

    assert [dim for dim in range(8, 136, 8) if explains(known, raw(dim))] == [8, 16, 40, 48, 72, 80, 104, 112]


def test_a_known_bug_of_some_lengths_explains_no_others():
    known = Signature("t", "nan", "accuracy", ("dq",), "", ("len_k:half_tile",))

    def raw(*lengths):
        case = make(lengths_q=lengths, lengths_k=lengths)
        return signature(case, Verdict(case.id, "fail", wrong("dq", kind="nan", place="all")))

    assert [n for n in range(0, 400, 32) if explains(known, raw(n))] == [64, 192, 320]
    assert explains(known, raw(7, 64)), "padded to 64"


def test_a_known_cause_of_any_relation_explains_each_but_no_other_failure():
    known = Signature("t", ANY_RELATION, "metamorphic", ("dk", "dq"), "", ("backward",))
    for relation in ("permuted_sequences", "doubled_v"):
        found = Signature("t", relation, "metamorphic", ("dq",), "bits", ("backward", "batch"))
        assert explains(known, found) and not explains(found, known)
    assert not explains(known, Signature("t", "wrong", "accuracy", ("dq",), "", ("backward",)))
    assert not explains(known, Signature("t", "doubled_v", "metamorphic", ("o",), "", ("backward",)))


def emulated(kind, tensor="", kernel="backward", case=SMALL, features=None):
    finding = Finding("emulator", kind, "m", tensor, Location(pattern=kernel))
    return signature(case, fail(finding, outcome="hang" if kind == "hang" else "fail"), features)


def test_races_are_one_whatever_their_addresses_and_their_order():
    one = emulated("race_two_writes", "lse[0, 0]")
    assert one == emulated("race_two_writes", "lse[0, 97]")
    assert (one.kind, one.tensors, one.kernel) == ("race", ("lse",), "backward")
    assert cause(one) == cause(emulated("race_read_of_an_unordered_write", "lse[3, 1]", case=LARGE))
    assert explains(one, emulated("race_two_writes", "lse[1, 5]", features=())), "features are evidence"
    assert not explains(one, emulated("race_two_writes", "dq_sum[2560]"))
    assert not explains(one, emulated("race_two_writes", "lse[0, 0]", kernel="forward"))
    assert emulated("out_of_bounds", "k, 64 bytes past its end").tensors == ("k",)
    assert emulated("race_two_writes", "shared memory byte 2048").tensors == ("shared memory",)


def test_what_a_kernel_does_on_the_way_to_a_deadlock_is_the_cause():
    hang = Finding("emulator", "hang", "m", place=Location(pattern="backward"))
    unwritten = Finding("emulator", "read_of_uninitialised_memory", "m", "semaphores[0, 2, 0]", Location(pattern="x"))
    found = signature(SMALL, fail(hang, unwritten, outcome="hang"))
    assert (found.kind, found.tensors, found.kernel) == ("read_of_uninitialised_memory", ("semaphores",), "")


def test_accesses_that_need_the_same_options_are_one():
    k, v = (emulated("out_of_bounds", name, "forward", features=("packed", "batch")) for name in "kv")
    race = emulated("race_two_writes", "dk[0]", features=("packed",))
    assert look_alike(k, v) and not look_alike(k, race)
    assert look_alike(race, emulated("out_of_bounds", "dk", features=("packed",)))
    assert not look_alike(k, emulated("out_of_bounds", "v", "forward", features=("gqa",)))
    assert not look_alike(*(emulated("out_of_bounds", name, features=("batch",)) for name in "kv"))


def test_deadlocks_of_one_kernel_are_one_unless_each_needs_its_own_option():
    plain, packed, heads = (emulated("hang", features=f) for f in (("backward",), ("packed",), ("per_head",)))
    assert look_alike(plain, packed) and look_alike(heads, plain) and not look_alike(packed, heads)
    assert not look_alike(plain, emulated("hang", kernel="forward", features=("backward",)))


def test_signatures_that_were_stored_before_still_match():
    stored = Signature("t", "race_two_writes", "emulator", ("lse[0, 0]",), "backward", ("heads",))
    assert explains(stored, emulated("race_two_writes", "lse[0, 97]"))
    nan = Signature("t", "nan", "accuracy", ("o",), features=("causal", "scale"))
    raw = signature(make(mask=Causal(), scale=0.5), fail(*wrong("o", kind="nan")))
    assert explains(nan, raw) and "masked" in raw.features


TRACEBACK = """Traceback (most recent call last):
  File "/x/fuzz/judging/execution.py", line 12, in call
  File "/home/me/my_attention.py", line 9, in attention
  File "/x/site-packages/torch/nn/functional.py", line 99, in softmax
RuntimeError: no
"""


def test_an_exception_is_told_apart_by_the_line_of_the_kernel_that_raised_it():
    def raised(text):
        findings = wrong("", kind="raised", oracle="protocol", place="RuntimeError")
        return signature(SMALL, Verdict("0", "fail", findings, evidence={"traceback": text}))

    one = raised(TRACEBACK)
    assert one.line == "my_attention.py:9"
    assert not explains(one, raised(TRACEBACK.replace("line 9,", "line 11,")))
    assert explains(msgspec.structs.replace(one, line=""), one), "of a signature that was stored without"


def test_findings_that_stay_apart_say_why_they_may_be_one():
    dq, dk = (signature(SMALL, fail(*wrong(name)), features=("softcap",)) for name in ("dq", "dk"))
    assert probably_one(dq, dk) == "both need softcap"
    assert probably_one(dq, msgspec.structs.replace(dk, tensors=("dk", "dq"))) == "same tensor, dq"
    race, other = emulated("race_two_writes", "lse[0]"), emulated("out_of_bounds", "lse")
    assert probably_one(race, other) == "same tensor, lse of the backward kernel"
    assert probably_one(dq, msgspec.structs.replace(dk, features=())) == ""
