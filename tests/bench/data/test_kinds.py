"""What shapes are taken for, and how that is corrected."""

import numpy as np
import pytest

from vcmm.bench.data.kinds import layout, shape_of

FIRST, LAST = ("image", 1), ("image", 3)


@pytest.mark.parametrize(
    ("shape", "dtype", "spelling", "read", "sample"),
    [
        ((5, 7), "f4", None, ("vector", 1), (7,)),
        ((5, 7), "f4", "sequence", ("sequence", None), (1, 7)),
        ((5, 100, 3), "f4", None, ("sequence", 2), (3, 100)),
        ((5, 28, 28), "f4", None, ("image", None), (1, 28, 28)),
        ((5, 8, 8), "f8", None, ("image", None), (1, 8, 8)),
        ((5, 7, 7), "f4", None, ("sequence", 2), (7, 7)),
        ((5, 20, 30), "u1", None, ("image", None), (1, 20, 30)),
        ((5, 20, 30), "f4", None, ("sequence", 2), (30, 20)),
        ((5, 100, 3), "u1", None, ("sequence", 2), (3, 100)),
        ((5, 28, 28), "f4", "sequence", ("sequence", 2), (28, 28)),
        ((5, 20, 30), "f4", "image", ("image", None), (1, 20, 30)),
        ((5, 20, 30, 3), "u1", None, LAST, (3, 20, 30)),
        ((5, 3, 20, 30), "u1", None, FIRST, (3, 20, 30)),
        ((5, 20, 30, 1), "f4", None, LAST, (1, 20, 30)),
        ((5, 1, 20, 30), "f4", None, FIRST, (1, 20, 30)),
        ((5, 4, 20, 3), "f4", None, LAST, (3, 4, 20)),
        ((5, 4, 20, 3), "f4", "image-first", FIRST, (4, 20, 3)),
        ((5, 13, 20, 30), "f4", "image-first", FIRST, (13, 20, 30)),
        ((5, 20, 30, 13), "f4", "image-last", LAST, (13, 20, 30)),
    ],
)
def test_layouts(shape, dtype, spelling, read, sample):
    array = np.zeros(shape, dtype)
    found = layout("x_a_train", array, spelling)
    assert found == read
    assert shape_of(found, array) == sample


def test_unusual_channels_have_to_be_spelled_out():
    with pytest.raises(ValueError, match=r"x_big_scan_train has shape \(5, 13, 20, 30\)") as error:
        layout("x_big_scan_train", np.zeros((5, 13, 20, 30)))
    assert "kinds={'big_scan': 'image-last'} or 'image-first'" in str(error.value)


@pytest.mark.parametrize("shape", [(), (5,), (5, 2, 2, 2, 2)])
def test_other_ranks_are_refused(shape):
    with pytest.raises(ValueError, match=r"x_a_train has shape .*; it must be \[n, d\]"):
        layout("x_a_train", np.zeros(shape))


@pytest.mark.parametrize(
    ("shape", "spelling"),
    [
        ((5, 7, 3), "vector"),
        ((5, 7, 3, 3), "sequence"),
        ((5, 7), "image"),
        ((5, 7, 7), "image-last"),
    ],
)
def test_a_spelling_has_to_fit_the_rank(shape, spelling):
    with pytest.raises(ValueError, match=f"x_a_train has shape .*; {spelling} needs"):
        layout("x_a_train", np.zeros(shape), spelling)
