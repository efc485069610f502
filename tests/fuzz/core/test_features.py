"""The feature table: names mean what they say, composites are seen through, and it stays cheap."""

import time

import pytest

from fuzz.core.case import Case, Inputs, Storage
from fuzz.core.features import FEATURES, MASKED, feature_pairs, features, ordered, switches, traits
from oracles.masks import And, Blocks, Causal, Documents, Full, Not, Or, PerHead, Tokens, TopK, Window
from oracles.problem import Bias, Problem

PLAIN_INPUTS = Inputs()


def make(inputs=PLAIN_INPUTS, variant=None, **problem):
    base = {
        "lengths_q": (64,),
        "lengths_k": (64,),
        "heads_q": 1,
        "heads_kv": 1,
        "dim": 64,
        "dim_v": 64,
        "dtype": "float32",
        "backward": False,
    }
    return Case(target="t", problem=Problem(**(base | problem)), inputs=inputs, variant=variant or {})


PLAIN = frozenset({"padded", "float32", "full", "inputs:normal", "len_k:half_tile"})

ADDED = [
    ({"layout": "packed"}, {"packed"}),
    ({"lengths_q": (64, 128), "lengths_k": (64, 128)}, {"batch", "ragged", "len_q:many_tiles", "len_k:many_tiles"}),
    ({"heads_q": 4, "heads_kv": 4}, {"heads"}),
    ({"heads_q": 4, "heads_kv": 2}, {"heads", "gqa"}),
    ({"heads_q": 3}, {"heads", "gqa", "mqa", "gqa:group_odd"}),
    ({"lengths_q": (0,)}, {"len_q:0", "len_q<len_k"}),
    ({"lengths_k": (0,)}, {"len_k:0", "len_q>len_k", "rows_without_keys"}),
    ({"lengths_q": (1,)}, {"len_q:1", "len_q:tail", "len_q<len_k"}),
    ({"lengths_k": (63,)}, {"len_k:tail", "len_q>len_k"}),
    ({"dim": 80}, {"dim_v", "dim:not_power_of_two", "dim:pads_apart"}),
    (
        {"dim": 7, "dim_v": 7},
        {"dim:odd", "dim:not_multiple_of_8", "dim:not_power_of_two", "dim:pads_apart", "dim:small"},
    ),
    ({"dim": 256, "dim_v": 256}, {"dim:large"}),
    ({"dtype": "bfloat16"}, {"bfloat16"}),
    ({"mask": Causal()}, {"causal"}),
    (
        {"mask": Causal("bottom_right"), "lengths_q": (128,)},
        {"causal", "causal:bottom_right", "rows_without_keys", "len_q>len_k", "len_q:many_tiles"},
    ),
    ({"mask": Window(3, None)}, {"window", "window:left"}),
    ({"mask": And((Causal(), Documents((3,), (4,))))}, {"and", "causal", "documents", "documents:k_bounds"}),
    ({"mask": Or((Not(Causal()), Full()))}, {"or", "not", "causal"}),
    ({"mask": PerHead((Full(), Causal()))}, {"per_head", "causal"}),
    ({"mask": Blocks(64, 64, ("M",))}, {"blocks", "blocks:partial"}),
    ({"mask": Blocks(32, 32, ("F", "."))}, {"blocks", "blocks:empty", "rows_without_keys"}),
    ({"mask": Tokens(("1",) * 64)}, {"tokens"}),
    ({"mask": TopK(3, Causal())}, {"top_k", "causal"}),
    ({"scale": 0.0}, {"scale", "scale:zero"}),
    ({"scale": -1.0}, {"scale", "scale:negative"}),
    ({"softcap": 5.0}, {"softcap"}),
    ({"bias": Bias(rows=False, dtype="float32")}, {"bias", "bias:broadcast_rows", "bias:float32"}),
    (
        {"bias": Bias(batch=True, heads=True), "backward": True},
        {"bias", "bias:batch", "bias:heads", "bias:grad", "backward"},
    ),
    ({"inputs": Inputs(distribution="needle")}, {"inputs:needle"}),
    ({"inputs": Inputs(distribution="one_hot")}, {"inputs:one_hot"}),
    ({"inputs": Inputs(distribution="uniform_pow2")}, {"inputs:uniform_pow2"}),
    ({"inputs": Inputs(distribution="index_values")}, {"inputs:index_values"}),
    ({"inputs": Inputs(q=Storage("bshd", pad=8, offset=1))}, {"strides", "pad", "offset"}),
    ({"inputs": Inputs(do=Storage("expanded")), "backward": True}, {"expanded_do", "backward"}),
    ({"inputs": Inputs(k=Storage(shared="s"))}, {"shared"}),
    ({"inputs": Inputs(detached=("q",)), "backward": True}, {"detached", "backward"}),
    ({"variant": {"tile": 64}}, {"variant:tile=64"}),
]


@pytest.mark.parametrize(("change", "added"), ADDED, ids=[" ".join(sorted(added)) for _, added in ADDED])
def test_a_change_adds_its_features(change, added):
    assert features(make(**change)) - PLAIN == added | ({MASKED} if "mask" in change else set())


def test_a_gradient_of_the_bias_alone_is_a_trait():
    def of(*names):
        return traits(make(inputs=Inputs(detached=names), bias=Bias(), backward=True))

    assert of("q", "k", "v") - of("q", "k") == {"detached:all"} and not of("q") - traits(make())


def test_a_plain_case_has_no_switches():
    assert features(make()) == PLAIN
    assert switches(make()) == frozenset()


def test_names_are_unique_and_every_feature_can_hold():
    names = [feature.name for feature in FEATURES]
    assert len(names) == len(set(names))
    shown = set().union(*(features(make(**change)) for change, _ in ADDED))
    leaves = {
        "prefix",
        "intervals",
        "per_batch",
        "window:right",
        "window:bottom_right",
        "bias:broadcast_cols",
        "large",
        "bias:kv_heads",
    }
    leaves |= {"float16", "len_k:1", "inputs:large", "inputs:integers", "inputs:constant", "inputs:adversarial"}
    assert set(names) - shown == leaves


def test_order_and_pairs_are_the_tables():
    names = {"backward", "packed", "zzz", "variant:a=1", "causal"}
    assert ordered(names) == ("packed", "causal", "backward", "variant:a=1", "zzz")
    assert ("packed", "backward") in feature_pairs(names)
    assert len(feature_pairs(names)) == 10


def test_features_of_a_large_case_take_under_a_fifth_of_a_millisecond():
    mask = Or((And((Causal(), Documents(tuple(range(0, 4096, 64))))), Not(Blocks(64, 64, ("F" * 64,) * 64))))
    case = make(lengths_q=(4096,) * 8, lengths_k=(4000,) * 8, heads_q=8, mask=mask)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        features(case)
        times.append(time.perf_counter() - start)
    assert min(times) < 200e-6
