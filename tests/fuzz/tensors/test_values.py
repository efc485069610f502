"""Values: the same bits for a seed, for ever and everywhere; distributions with their moments and traps."""

from __future__ import annotations

import hashlib

import pytest
import torch

from fuzz.core.case import Case, Inputs
from fuzz.tensors import values
from fuzz.tensors.values import ADVERSARIAL_GAIN, LARGE, NEEDLE_GAIN, PADDING, make_values, normal, random_bits
from oracles.masks import Blocks, Causal, PerHead, Prefix, Window
from oracles.problem import Bias, Problem, dense_mask, sequence_view, shapes

PINNED = {
    "normal": "e104427e9693829f",
    "large": "8aae9d015d570e4c",
    "needle": "6f6804906a08a140",
    "integers": "fd1e2c61dd8248d4",
    "constant": "ce83f80a5e57ebde",
    "adversarial": "73531ad602c2d82c",
    "cancelling": "b36ef95359259e3a",
    "one_hot": "224308d322529f74",
    "uniform_pow2": "3623fad49ab85582",
    "index_values": "53d0b81902cb2635",
}

WINDOW = Window(24, 0)
BLOCKS = Blocks(16, 16, ("F.F.F", ".FF..", "F...."))


def case(distribution="normal", seed=0, **changes) -> Case:
    plain = {"lengths_q": (33,), "lengths_k": (65,), "heads_q": 4, "heads_kv": 2, "dim": 16, "dim_v": 8}
    return Case("any", Problem(**{**plain, "dtype": "float32", **changes}), Inputs(seed, distribution))


def digest(made: dict[str, torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for name, x in made.items():
        whole.update(name.encode() + x.contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("distribution", PINNED)
def test_the_bits_of_a_seed_never_change(distribution):
    ragged = {"lengths_q": (9, 5), "lengths_k": (7, 12), "bias": Bias(True, True), "mask": Causal("bottom_right")}
    assert digest(make_values(case(distribution, 7, **ragged), "cpu")) == PINNED[distribution]


@pytest.mark.parametrize("distribution", PINNED)
def test_the_bits_do_not_depend_on_threads_or_on_the_generator_of_torch(distribution):
    wanted, threads = make_values(case(distribution, 3), "cpu"), torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(1)
    try:
        again = make_values(case(distribution, 3), "cpu")
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(wanted[name], again[name]) for name in wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("distribution", PINNED)
def test_a_gpu_makes_the_same_bits(distribution):
    host, cuda = (make_values(case(distribution, 7), device) for device in ("cpu", "cuda"))
    assert all(torch.equal(host[name], cuda[name].cpu()) for name in host)


@pytest.mark.parametrize("seed", [0, 255, 2**31 - 1])
def test_the_loop_and_the_definition_make_the_same_bits(seed):
    """A device other than a CPU takes PyTorch's way."""
    asked = {"q": (3, 5_000), "do": (10_000,), "v": (0, 4)}
    found = values.normals(seed, asked, "cpu")
    assert list(found) == list(asked)
    assert all(torch.equal(found[name], normal(seed, name, shape, "cpu")) for name, shape in asked.items())


@pytest.mark.parametrize("seed", [0, 255, 2**31 - 1])
@pytest.mark.parametrize("stream", ["q", "needle"])
def test_the_loop_and_the_definition_draw_the_same_bits(seed, stream):
    for count in (0, 1, 5_000):
        assert torch.equal(values.bits_at_once(seed, stream, count, "cpu"), random_bits(seed, stream, count, "cpu"))


def test_shapes_and_names():
    p = case(bias=Bias()).problem
    made = make_values(case(bias=Bias()), "cpu")
    assert list(made) == ["q", "k", "v", "do", "bias"]
    assert all(
        x.shape == shapes(p)[name] and x.dtype == torch.float32 and x.is_contiguous() for name, x in made.items()
    )
    assert list(make_values(case(backward=False), "cpu")) == ["q", "k", "v"]


def test_several_streams_at_once_have_the_bits_of_each_alone():
    shapes = {"q": (3, 5, 7), "v": (2, 1000), "do": (1,)}
    at_once = values.normals(12, shapes, "cpu")
    assert all(torch.equal(at_once[name], normal(12, name, shape, "cpu")) for name, shape in shapes.items())


def test_normal_has_the_moments_of_a_normal():
    x = normal(1, "q", (1 << 18,), "cpu").double()
    assert abs(x.mean()) < 0.01 and abs(x.var() - 1) < 0.01 and x.abs().max() < 3.47
    assert abs((x**3).mean()) < 0.03 and abs((x**4).mean() - 2.7) < 0.05  # four uniforms: 3 - 1.2 / 4
    near = (x[1:] * x[:-1]).mean()
    assert abs(near) < 0.01


def test_seeds_and_tensors_are_independent():
    streams = [
        normal(seed, name, (1 << 16,), "cpu") for seed in (0, 1, 2, 255) for name in ("q", "k", "v", "do", "bias")
    ]
    together = torch.corrcoef(torch.stack(streams)) - torch.eye(len(streams))
    assert together.abs().max() < 0.03
    assert len({digest({"x": x}) for x in streams}) == len(streams)


def test_every_bit_of_the_generator_is_fair():
    bits = random_bits(5, "q", 1 << 16, "cpu")
    ones = torch.stack([(bits >> i & 1).float().mean() for i in range(64)])
    assert (ones - 0.5).abs().max() < 0.01


def test_neighbouring_seeds_do_not_repeat_each_others_numbers():
    found = torch.cat([random_bits(seed, name, 4096, "cpu") for seed in range(8) for name in ("q", "k", "v", "do")])
    assert found.unique().numel() == found.numel()


def test_large_has_logits_that_saturate_the_softmax():
    plain, large = make_values(case(), "cpu"), make_values(case("large"), "cpu")
    assert torch.equal(large["q"], plain["q"] * LARGE["q"]) and torch.equal(large["k"], plain["k"] * LARGE["k"])
    assert torch.equal(large["v"], plain["v"])
    logits = (large["q"] @ large["k"].repeat_interleave(2, 1).mT) * 16**-0.5
    assert logits.std() > 10


def test_integers_are_exact_in_every_dtype():
    for x in make_values(case("integers"), "cpu").values():
        assert set(x.unique().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
        assert all(torch.equal(x.to(dtype).float(), x) for dtype in (torch.float16, torch.bfloat16))
        assert abs(x.mean()) < 0.2


def test_constants():
    made = make_values(case("constant"), "cpu")
    assert set(made["q"].unique().tolist()) == {0.5} and set(made["v"].unique().tolist()) == {1.0}


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_query_points_at_one_key_of_its_own_head_and_sequence(layout):
    c = case("needle", 3, lengths_q=(9, 0, 33), lengths_k=(65, 4, 20), layout=layout, dim=64)
    made = make_values(c, "cpu")
    for b in (0, 2):
        q, k = sequence_view(c.problem, "q", made["q"], b), sequence_view(c.problem, "k", made["k"], b)
        k = k.repeat_interleave(c.problem.group, 0)
        logits = q @ k.mT * c.problem.scale_value
        top = logits.topk(2, -1)
        assert (top.values[..., 0] - top.values[..., 1]).min() > 5
        assert torch.equal(q, NEEDLE_GAIN * k.gather(1, top.indices[..., :1].expand(*q.shape)))
        assert top.indices[..., 0].unique().numel() > 5


def test_needles_are_not_at_one_place_for_all_sequences():
    c = case("needle", 3, lengths_q=(33, 33), lengths_k=(65, 65), dim=64)
    made = make_values(c, "cpu")
    logits = made["q"] @ made["k"].repeat_interleave(2, 1).mT
    assert not torch.equal(logits[0].argmax(-1), logits[1].argmax(-1))


@pytest.mark.parametrize("mask", [Causal(), WINDOW, Prefix(40), BLOCKS, "heads"])
def test_what_a_mask_hides_would_win_the_softmax_if_it_leaked(mask):
    """Without the mask, more than its share of the probability goes to the keys that the mask hides."""
    mask = PerHead((Causal(), Causal(), Prefix(9), Prefix(9))) if mask == "heads" else mask
    c = case("adversarial", 1, lengths_q=(65,), lengths_k=(65,), mask=mask, dim=64)
    made = make_values(c, "cpu")
    logits = made["q"] @ made["k"].repeat_interleave(2, 1).mT * c.problem.scale_value
    hidden = (~dense_mask(c.problem)).expand(logits.shape)
    share = (logits.softmax(-1) * hidden).sum(-1).mean()
    assert share > 1.5 * hidden.float().mean() or share > 0.9
    plain = make_values(case("normal", 1, lengths_q=(65,), lengths_k=(65,), mask=mask, dim=64), "cpu")
    assert torch.equal(made["q"], plain["q"] + ADVERSARIAL_GAIN)


def test_padding_holds_large_numbers_and_only_padding_does():
    c = case(lengths_q=(9, 5), lengths_k=(7, 12))
    made = make_values(c, "cpu")
    for name, lengths in (("q", (9, 5)), ("do", (9, 5)), ("k", (7, 12)), ("v", (7, 12))):
        for b, length in enumerate(lengths):
            assert (made[name][b, :, length:] == PADDING).all() and made[name][b, :, :length].abs().max() < PADDING


def test_a_packed_problem_has_no_padding():
    made = make_values(case(lengths_q=(9, 5), lengths_k=(7, 12), layout="packed"), "cpu")
    assert all(x.abs().max() < PADDING for x in made.values())


@pytest.mark.parametrize("distribution", PINNED)
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_empty_sequences_are_no_trouble(distribution, layout):
    made = make_values(case(distribution, lengths_q=(0, 0), lengths_k=(0, 3), layout=layout), "cpu")
    assert made["q"].numel() == 0 and all(x.isfinite().all() for x in made.values())
