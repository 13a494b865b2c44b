"""Crops, sizes and distortions of pictures; Pillow has another opinion on most of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vcmm.bench.media import augment
from vcmm.bench.media.augment import Box, crop_box, flipped, randaugment, resized, standardize
from vcmm.bench.media.views import IMAGENET_MEAN, IMAGENET_STD


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = cv2.getNumThreads()
    yield cv2.setNumThreads
    cv2.setNumThreads(before)


def photo(height: int = 120, width: int = 160, seed: int = 0) -> Any:
    """Coloured blobs of all sizes, a little dull so that there is something to stretch."""
    chance = np.random.default_rng(seed)
    made = np.zeros((height, width, 3))
    for cells in (3, 8, 24, 60):
        noise = chance.standard_normal((cells, cells, 3))
        made += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) / math.sqrt(cells)
    made = (made - made.min()) / (made.max() - made.min())
    return (30 + 190 * made).astype(np.uint8)


def farthest(a: Any, b: Any) -> int:
    return int(np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int)).max())


@pytest.mark.parametrize(("height", "width"), [(240, 320), (37, 224), (500, 120)])
def test_a_crop_has_the_area_and_the_aspect_that_were_asked_for(height: int, width: int) -> None:
    chance = np.random.default_rng(0)
    boxes = [crop_box(height, width, chance, area=(0.1, 0.3)) for _ in range(500)]
    for box in boxes:
        assert 0 <= box.top <= box.top + box.height <= height
        assert 0 <= box.left <= box.left + box.width <= width
        # Sides are rounded to whole pixels, each by half a one at most.
        slack = (0.5 * (box.height + box.width) + 0.25) / (height * width)
        assert 0.1 - slack <= box.height * box.width / (height * width) <= 0.3 + slack
        assert (box.width - 0.5) / (box.height + 0.5) <= 4 / 3
        assert (box.width + 0.5) / (box.height - 0.5) >= 3 / 4
    assert len(set(boxes)) > 400


def test_areas_are_uniform_and_aspects_uniform_in_the_logarithm() -> None:
    chance = np.random.default_rng(1)
    boxes = [crop_box(4000, 4000, chance, area=(0.1, 0.3)) for _ in range(4000)]
    areas = np.array([box.height * box.width / 4000**2 for box in boxes])
    aspects = np.log([box.width / box.height for box in boxes])
    # 4.9 standard errors: a sound generator fails once in a million runs, and this one has a seed.
    for values, low, high in ((areas, 0.1, 0.3), (aspects, math.log(3 / 4), math.log(4 / 3))):
        deviation = (high - low) / math.sqrt(12)
        assert abs(values.mean() - (low + high) / 2) < 4.9 * deviation / math.sqrt(4000)
        assert abs(values.std() / deviation - 1) < 0.05
    tops = np.array([box.top / (4000 - box.height) for box in boxes])
    assert abs(tops.mean() - 0.5) < 4.9 / math.sqrt(12 * 4000)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (100, 1000, Box(0, 433, 100, 133)),
        (1000, 100, Box(433, 0, 133, 100)),
    ],
)
def test_what_is_too_long_for_any_crop_is_cropped_in_the_middle(
    height: int, width: int, expected: Box
) -> None:
    assert crop_box(height, width, np.random.default_rng(0), area=(1.0, 1.0)) == expected


def test_a_crop_of_everything_is_everything_even_of_one_pixel() -> None:
    chance = np.random.default_rng(0)
    whole: dict[str, Any] = {"area": (1.0, 1.0), "ratio": (1.0, 1.0)}
    assert crop_box(64, 64, chance, **whole) == Box(0, 0, 64, 64)
    assert crop_box(1, 1, chance, area=(0.08, 1.0)) == Box(0, 0, 1, 1)


def averages(size: int, into: int) -> Any:
    """How much of every pixel [size] lies in each of the new ones [into], which are larger."""
    edges = np.arange(into + 1) * (size / into)
    low = np.maximum(edges[:-1, None], np.arange(size))
    high = np.minimum(edges[1:, None], np.arange(size) + 1)
    return np.clip(high - low, 0, None) * (into / size)


@pytest.mark.parametrize(("height", "width"), [(240, 320), (113, 97), (64, 200), (65, 448)])
def test_shrinking_averages_over_what_a_pixel_covers(height: int, width: int) -> None:
    picture = photo(height, width)
    exact = np.einsum(
        "ih,hwc,jw->ijc", averages(height, 64), picture, averages(width, 64), optimize=True
    )
    made = resized(picture, 64)
    # OpenCV sums in float32 and rounds.
    assert np.abs(made - exact).max() < 0.502
    other = Image.fromarray(picture).resize((64, 64), Image.Resampling.BILINEAR)
    # What torchvision takes. 0.57 levels were the most that was seen.
    assert np.abs(made.astype(int) - np.asarray(other).astype(int)).mean() < 0.7


@pytest.mark.parametrize(("height", "width"), [(40, 50), (64, 20), (7, 7)])
def test_growing_is_pillows_bilinear(height: int, width: int) -> None:
    picture = photo(height, width)
    other = Image.fromarray(picture).resize((64, 64), Image.Resampling.BILINEAR)
    assert farthest(resized(picture, 64), other) <= 1


def test_cubic_growing_is_near_pillows_which_has_another_parameter() -> None:
    picture = photo(40, 50)
    other = Image.fromarray(picture).resize((64, 64), Image.Resampling.BICUBIC)
    made = resized(picture, 64, "cubic")
    # -0.75 of OpenCV against -0.5: 3 levels were seen.
    assert 1 < farthest(made, other) <= 4
    assert farthest(made, other) < farthest(made, resized(picture, 64, "linear"))


def test_a_side_that_grows_while_the_other_shrinks_is_done_as_either_would_be() -> None:
    picture = photo(32, 128)
    image = Image.fromarray(picture).resize((64, 32), Image.Resampling.BOX)
    other = image.resize((64, 64), Image.Resampling.BILINEAR)
    assert farthest(resized(picture, 64), other) <= 2


def test_what_has_the_size_stays_as_it_is() -> None:
    picture = photo(64, 64)
    assert np.array_equal(resized(picture, 64), picture)


def test_sizes_do_not_depend_on_the_threads_of_opencv(threads: Callable[[int], None]) -> None:
    picture = photo(480, 640)
    made: list[Any] = []
    for count in (1, 2):
        threads(count)
        made.append((resized(picture, 224), resized(picture, 700, "cubic")))
        made.append(tuple(operation(picture, 0.7) for operation in augment.OPERATIONS[:2]))
    assert all(np.array_equal(a, b) for a, b in zip(made[0], made[2], strict=True))


def test_flipping_twice_is_nothing() -> None:
    picture = photo()
    assert np.array_equal(flipped(picture), picture[:, ::-1])


def test_standardizing_is_the_formula() -> None:
    picture = photo()
    made = np.empty((3, 120, 160), np.float32)
    standardize(picture, IMAGENET_MEAN, IMAGENET_STD, made)
    exact = (picture / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    assert np.array_equal(made, np.moveaxis(exact, 2, 0).astype(np.float32))


def test_every_operation_leaves_its_input_alone_and_gives_a_picture() -> None:
    picture = photo()
    before = picture.copy()
    picture.flags.writeable = False
    for operation in augment.OPERATIONS:
        for strength in (-0.7, 0.0, 1.0):
            made = operation(picture, strength)
            assert made.shape == picture.shape
            assert made.dtype == np.uint8
    assert np.array_equal(picture, before)


@pytest.mark.parametrize("seed", [0, 1])
def test_autocontrast_and_equalize_are_pillows(seed: int) -> None:
    picture = photo(seed=seed)
    image = Image.fromarray(picture)
    assert np.array_equal(augment.autocontrast(picture, 1), ImageOps.autocontrast(image))
    assert np.array_equal(augment.equalize(picture, 1), ImageOps.equalize(image))
    assert not np.array_equal(augment.equalize(picture, 1), picture)


def test_autocontrast_and_equalize_of_one_colour_change_nothing() -> None:
    plain = np.full((20, 20, 3), (0, 77, 255), np.uint8)
    assert np.array_equal(augment.autocontrast(plain, 1), plain)
    assert np.array_equal(augment.equalize(plain, 1), plain)


@pytest.mark.parametrize("strength", [-0.7, 0.0, 0.3, 0.7, 1.0])
def test_brightness_and_sharpness_are_pillows(strength: float) -> None:
    picture, factor = photo(), 0.1 + 1.8 * abs(strength)
    image = Image.fromarray(picture)
    bright = ImageEnhance.Brightness(image).enhance(factor)
    assert np.array_equal(augment.brightness(picture, strength), bright)
    sharp = ImageEnhance.Sharpness(image).enhance(factor)
    assert farthest(augment.sharpness(picture, strength), sharp) <= 1  # sums of floats


@pytest.mark.parametrize(
    ("operation", "matrix"),
    [
        # Where a pixel of the result comes from, in continuous coordinates, as Pillow has it. A
        # shear leaves the middle of the first row, half a pixel down, where it is.
        (augment.translate_x, (1, 0, -7, 0, 1, 0)),
        (augment.translate_y, (1, 0, 0, 0, 1, -7)),
        (augment.shear_x, (1, -0.21, 0.105, 0, 1, 0)),
        (augment.shear_y, (1, 0, 0, -0.21, 1, 0.105)),
    ],
)
def test_moves_are_pillows_and_let_grey_in(operation: Any, matrix: Any) -> None:
    picture = photo()
    made = operation(picture, 0.7)
    image = Image.fromarray(picture)
    bilinear, grey = Image.Resampling.BILINEAR, (128, 128, 128)
    other = image.transform(image.size, Image.Transform.AFFINE, matrix, bilinear, fillcolor=grey)
    inside = image.transform(
        image.size, Image.Transform.AFFINE, matrix, bilinear, fillcolor=(0, 0, 0)
    )
    known = np.asarray(inside).any(axis=2)  # no pixel of the picture is black
    known = cv2.erode(known.astype(np.uint8), np.ones((3, 3))) > 0  # edges are blended with grey
    # OpenCV places pixels on a grid of 1/32.
    assert farthest(made[known], np.asarray(other)[known]) <= 8
    assert np.abs(made[known].astype(int) - np.asarray(other)[known].astype(int)).mean() < 0.5
    outside = cv2.dilate(np.asarray(inside).any(axis=2).astype(np.uint8), np.ones((3, 3))) == 0
    assert (made[outside] == 128).all()
    assert outside.any()


def test_rotation_is_pillows() -> None:
    picture = photo(121, 161)
    made = augment.rotate(picture, 0.7)
    other = np.asarray(Image.fromarray(picture).rotate(21, Image.Resampling.BILINEAR))
    middle = np.s_[45:75, 40:120]
    assert np.abs(made[middle].astype(int) - other[middle].astype(int)).mean() < 0.5
    assert (made[0, 0] == 128).all()
    turned = augment.rotate(augment.rotate(picture, 0.7), -0.7)[middle]
    assert np.abs(turned.astype(int) - picture[middle].astype(int)).mean() < 4


def test_randaugment_applies_operations_with_its_probability() -> None:
    picture, chance = photo(32, 32), np.random.default_rng(0)

    def share(**options: Any) -> float:
        same = [
            np.array_equal(randaugment(picture, chance, **options), picture) for _ in range(1000)
        ]
        return 1 - sum(same) / 1000

    assert share(probability=0.0) == 0
    assert share(ops=0) == 0
    # An operation is not the identity in 9 of 10 draws. 4.9 standard errors are 0.08.
    assert abs(share(ops=1, probability=1.0) - 0.9) < 0.08
    assert abs(share(ops=1, probability=0.5) - 0.45) < 0.08
    assert abs(share(ops=2, probability=0.5) - (1 - 0.55**2)) < 0.08


def test_randaugment_draws_the_same_whatever_it_applies() -> None:
    """What comes after it does not depend on which operations were applied."""
    after: set[float] = set()
    for probability in (0.0, 0.5, 1.0):
        chance = np.random.default_rng(7)
        randaugment(photo(32, 32), chance, ops=3, probability=probability)
        after.add(chance.random())
    assert len(after) == 1


def test_every_operation_comes_up_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, float]] = set()

    def noted(operation: Any) -> Any:
        def called(picture: Any, strength: float) -> Any:
            seen.add((operation.__name__, strength))
            return operation(picture, strength)

        return called

    monkeypatch.setattr(augment, "OPERATIONS", tuple(map(noted, augment.OPERATIONS)))
    names = {operation.__name__ for operation in (augment.OPERATIONS)}
    chance = np.random.default_rng(0)
    for _ in range(400):
        randaugment(photo(8, 8), chance, magnitude=4, probability=1.0)
    assert names == {"called"}
    assert len(seen) == 20
    assert {strength for _, strength in seen} == {-0.4, 0.4}
