"""Places: the same bug at another size has the same pattern."""

from __future__ import annotations

import pytest
import torch

from oracles.location import locate, pattern

SIZES = [(1, 2, 130), (2, 4, 258), (3, 8, 400)]
ALL = slice(None)


def marked(size: tuple[int, int, int], *at: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """bad with True at the indices, and all rows valid."""
    bad = torch.zeros(size, dtype=torch.bool)
    for index in at:
        bad[index] = True
    return bad, torch.ones(size, dtype=torch.bool)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((), "all"),
        ((ALL, 0), "first head"),
        ((ALL, slice(1, None)), "later heads"),
        ((ALL, slice(1, None), slice(0, 30)), "later heads"),
        ((ALL, ALL, slice(0, 20)), "first rows"),
        ((ALL, ALL, slice(128, None)), "last tile"),
        ((ALL, ALL, 0), "one row"),
        ((ALL, ALL, -1), "last row"),
        ((ALL, ALL, slice(None, None, 3)), "scattered"),
    ],
    ids=str,
)
def test_patterns_do_not_depend_on_the_size(size: tuple[int, int, int], index: tuple, expected: str) -> None:
    if expected == "last tile":
        index = (*index[:2], slice((size[2] - 2) // 64 * 64, None))
    assert pattern(*marked(size, index)) == expected


def test_sequences_are_named_when_every_head_is_wrong() -> None:
    assert pattern(*marked((3, 2, 9), (0,))) == "first sequence"
    assert pattern(*marked((3, 2, 9), (slice(1, None),))) == "later sequences"
    assert pattern(*marked((4, 2, 9), (slice(0, 2),))) == "some sequences"


def test_one_head_and_one_sequence_have_no_later_ones() -> None:
    assert pattern(*marked((1, 1, 9), ())) == "all"


def test_padding_is_not_a_row() -> None:
    bad, valid = marked((2, 2, 130), (0, ALL, 64), (1, ALL, 129))
    valid[0, :, 65:] = False
    assert pattern(bad, valid) == "last row"
    bad, valid = marked((2, 2, 130), (0,))
    valid[1] = False
    assert pattern(bad, valid) == "all"


def test_ends_of_the_head_dim() -> None:
    bad, valid = marked((1, 2, 40), ())
    cols = torch.zeros(72, dtype=torch.bool)
    cols[64:] = True
    assert pattern(bad, valid, cols) == "all, dim tail"
    assert pattern(bad, valid, torch.ones(72, dtype=torch.bool)) == "all"


def test_nothing_wrong_has_no_pattern() -> None:
    assert pattern(*marked((2, 2, 9), (0, 0, slice(0, 0)))) == "scattered"


def test_locate_gives_the_numbers_of_the_worst_row() -> None:
    bad, valid = marked((2, 4, 130), (1, 2, slice(64, 128)))
    place = locate(bad, valid, (1, 2, 100))
    assert (place.batch, place.head, place.rows, place.tile) == (1, 2, (64, 128), (64, 128))
    assert place.pattern == "some heads"
