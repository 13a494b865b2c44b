"""Clips: which frames and which square of them are taken, alike in all modalities of a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vcmm.bench.media.views import Clip

BYTES: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
FLOW: dict[str, Any] = {"mean": (0.0, 0.0), "std": (1.0, 1.0)}


def places(channels: int, dtype: Any, frames: int = 10) -> Any:
    """A video [frames, 30, 36, channels] whose numbers say frame, row and column, if it has 3."""
    grid = np.meshgrid(np.arange(frames), np.arange(30), np.arange(36), indexing="ij")
    return np.stack([*grid[-channels:]], axis=-1).astype(dtype)


def windows(view: Clip, video: Any, draws: int = 200) -> list[Any]:
    return [view(video, np.random.default_rng((n, 5))) for n in range(draws)]


def test_modalities_of_a_sample_are_cropped_alike() -> None:
    rgb = Clip(length=6, frames=10, crop=24, **BYTES)
    flow = Clip(length=None, frames=10, crop=24, **FLOW)
    depth = Clip(length=6, frames=10, crop=24, mean=(0.0,), std=(1 / 255,))
    seen: set[tuple[int, int, int]] = set()
    for a, b, c in zip(
        windows(rgb, places(3, np.uint8)),
        windows(flow, places(2, np.float16)),
        windows(depth, places(1, np.uint8)),
        strict=True,
    ):
        start, top, left = np.rint(a[:, 0, 0, 0]).astype(int).tolist()
        assert np.array_equal(np.rint(a[0, :, 0, 0]), start + np.arange(6))
        assert np.array_equal(np.rint(a[1, 0, :, 0]), top + np.arange(24))
        assert np.array_equal(np.rint(a[2, 0, 0]), left + np.arange(24))
        assert b[:, 0, 0, 0].tolist() == [top, left]
        assert b.shape == (2, 10, 24, 24)
        assert round(float(c[0, 0, 0, 0])) == left
        seen.add((start, top, left))
    starts, tops, lefts = map(set, zip(*seen, strict=True))
    assert starts == set(range(5))
    assert tops == set(range(7))
    assert lefts == set(range(13))


def test_a_clip_is_judged_on_the_middle_of_all_frames() -> None:
    made = Clip(length=6, frames=10, crop=24, **BYTES)(places(3, np.uint8), None)
    assert made.shape == (3, 10, 24, 24)
    assert np.rint(made[:, 0, 0, 0]).tolist() == [0, 3, 6]
    assert np.rint(made[:, -1, -1, -1]).tolist() == [9, 26, 29]


def test_a_short_clip_is_filled_up_and_a_long_one_cut() -> None:
    view = Clip(length=6, frames=10, crop=24, **BYTES)
    short = view(places(3, np.uint8, 7), None)
    assert np.rint(short[0, :, 0, 0]).tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6]
    long = view(places(3, np.uint8, 14), None)
    assert np.rint(long[0, :, 0, 0]).tolist() == list(range(10))
    ends = {round(float(one[0, -1, 0, 0])) for one in windows(view, places(3, np.uint8, 14))}
    assert ends == {5, 6, 7, 8, 9}


def test_bytes_are_shares_and_other_numbers_are_what_they_are() -> None:
    view = Clip(length=2, frames=2, crop=4, mean=(0.5, 1.0), std=(2.0, 0.25))
    video = np.zeros((2, 4, 4, 2), np.int8)
    video[...] = (-7, 100)
    expected = np.array([-3.75, 396], np.float32)
    for dtype in (np.int8, np.float16, np.float32):
        made = view(video.astype(dtype), None)
        assert made.dtype == np.float32
        assert np.array_equal(made[:, 1, 2, 3], expected)
    video = np.full((2, 4, 4, 2), 51, np.uint8)
    assert view(video, None)[:, 0, 0, 0] == pytest.approx([-0.15, -3.2], abs=1e-6)


def test_a_clip_that_is_too_small_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"30 x 36, too small for crop = 32; say crop=30"):
        Clip(length=6, frames=10, crop=32)(places(3, np.uint8), None)
