"""Views: forms, what is drawn and what is not, and which pixels and frames are taken."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vcmm.bench.media.source import View, Viewed
from vcmm.bench.media.views import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Clip,
    Frames,
    Picture,
    Spectrogram,
    Tokens,
    picked,
)
from vcmm.bench.types import Data, Form, Split

FLOW: dict[str, Any] = {"mean": (0.0, 0.0), "std": (1.0, 1.0)}
DEPTH: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}
VIEWS: dict[str, View] = {
    "first": Frames(count=2, size=32),
    "uniform": Frames(count=3, pick="uniform", size=32, together=True),
    "random": Frames(count=3, pick="random", size=32),
    "picture": Picture(size=32, mean=CLIP_MEAN, std=CLIP_STD),
    "plain": Picture(size=32, randaugment=None, interpolation="linear"),
    "spectrogram": Spectrogram(shape=(20, 30), mean=-5.0, std=2.0),
    "tokens": Tokens(length=9),
    "rgb": Clip(length=6, frames=10, crop=24),
    "depth": Clip(length=6, frames=10, crop=24, **DEPTH),
    "flow": Clip(length=None, frames=10, crop=24, **FLOW),
}
FIXED = {"spectrogram", "tokens"}  # where nothing is random


def stored(name: str, samples: int = 6) -> Sequence[Any]:
    """What a store holds for these views; videos and pictures have sizes of their own."""
    chance = np.random.default_rng(0)
    if name == "spectrogram":
        return chance.standard_normal((samples, 20, 30)).astype(np.float16)
    if name == "tokens":
        return [chance.integers(1, 900, 4 + n) for n in range(samples)]
    if name in ("rgb", "depth"):
        channels = 3 if name == "rgb" else 1
        return chance.integers(0, 256, (samples, 10, 30, 36, channels), np.uint8)
    if name == "flow":
        return chance.standard_normal((samples, 10, 30, 36, 2)).astype(np.float16)
    sizes = [(40 + 5 * n, 70 - 6 * n, 3) for n in range(samples)]
    if name in ("first", "uniform", "random"):
        sizes = [(1 + n, *size) for n, size in enumerate(sizes)]
    return [chance.integers(0, 256, size, np.uint8) for size in sizes]


def viewed(name: str, rows: Sequence[int] = range(6)) -> Viewed:
    return Viewed(stored(name), np.array(rows, np.int64), VIEWS[name])


def every(count: int = 6) -> Any:
    return np.arange(count)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("draw", [None, 0])
def test_a_batch_has_the_form_that_the_view_says(name: str, draw: int | None) -> None:
    source, form = viewed(name), VIEWS[name].form
    length = form.shape[0] if form.kind == "tokens" else None
    shape = form.shape
    if draw is None and name in ("rgb", "depth"):
        shape = (shape[0], 10, *shape[2:])  # it is judged on all frames
    batch = source.read(every(), draw)
    assert batch.shape == (6, *shape)
    assert batch.dtype == (torch.int64 if length else torch.float32)
    assert batch.is_contiguous()
    assert (form.mean == 0).all()
    assert (form.scale == 1).all()
    assert len(form.mean) == (1 if form.kind == "tokens" else form.shape[0])


@pytest.mark.parametrize("name", VIEWS)
def test_a_row_depends_on_the_draw_and_the_row_and_not_on_the_batch(name: str) -> None:
    source = viewed(name)
    together = source.read(every(), 3)
    for row in reversed(range(6)):
        assert torch.equal(source.read(np.array([row]), 3)[0], together[row])
    mixed = source.read(np.array([4, 1, 4]), 3)
    assert torch.equal(mixed, together[[4, 1, 4]])
    assert torch.equal(viewed(name).read(every(), 3), together)


@pytest.mark.parametrize("name", VIEWS)
def test_another_draw_and_another_row_have_other_chances(name: str) -> None:
    source = viewed(name)
    changed = not torch.equal(source.read(every(), 3), source.read(every(), 4))
    assert changed == (name not in FIXED)
    same = viewed(name, [2] * 6).read(every(), 3)  # the same sample in six rows
    assert (len({one.numpy().tobytes() for one in same}) > 1) == (name not in FIXED)


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_drawn_where_a_model_is_judged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a generator was made")

    source = viewed(name)
    expected = source.read(every(), None)
    monkeypatch.setattr(np.random, "default_rng", refuse)
    assert torch.equal(source.read(every(), None), expected)
    monkeypatch.undo()
    source.read(every(), 3)  # neither does what was drawn before matter
    assert torch.equal(source.read(every(), None), expected)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_stored_is_only_read(name: str, tmp_path: Path) -> None:
    kept = stored(name)
    if isinstance(kept, np.ndarray):
        np.save(tmp_path / "kept.npy", kept)
        kept = np.load(tmp_path / "kept.npy", mmap_mode="r")
    else:
        for one in kept:
            one.flags.writeable = False
    source = replace(viewed(name), stored=kept)
    assert torch.equal(source.read(every(), 1), viewed(name).read(every(), 1))
    made = source.read(every(), 1)
    made.zero_()
    assert torch.equal(source.read(every(), 1), viewed(name).read(every(), 1))


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_a_value(name: str) -> None:
    """It is compared, sent to other processes, and hashed as JSON with the data."""
    view: Any = VIEWS[name]
    again = pickle.loads(pickle.dumps(view))
    assert again == view
    assert hash(again) == hash(view)
    assert type(view)(**asdict(view)) == view
    assert json.dumps(asdict(view))


def test_neither_pillow_nor_torchvision_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("PIL", "PIL.Image", "torchvision", "av"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it is an error
    for name in VIEWS:
        viewed(name).read(every(), 0)


def test_rows_are_those_of_the_split() -> None:
    source = viewed("tokens", [5, 0])
    assert len(source) == 2
    assert torch.equal(source.read(np.array([1]), None), viewed("tokens").read(every(1), None))


def test_a_batch_of_nothing_has_the_form_too() -> None:
    assert viewed("rgb").read(every(0), 3).shape == (0, 3, 6, 24, 24)


@dataclass(frozen=True)
class Bare:
    """A view that forgets to make samples alike."""

    form: Form

    def __call__(self, sample: Any, chance: Any) -> Any:
        return sample


def test_samples_of_two_shapes_are_an_error_and_not_stretched() -> None:
    kept = [np.zeros((3, 4)), np.ones((1, 4))]
    source = Viewed(kept, np.arange(2), Bare(VIEWS["spectrogram"].form))
    with pytest.raises(ValueError, match=r"made \(1, 4\) of row 1 and \(3, 4\) of row 0"):
        source.read(every(2), None)


def test_a_batch_of_data_has_every_modality() -> None:
    names = ("first", "rgb", "spectrogram", "tokens")
    sources = {name: viewed(name) for name in names}
    forms = {name: VIEWS[name].form for name in names}
    part = Split({}, every() % 2, sources=sources)
    data = Data("own", {"train": part}, forms, ("no", "yes"), False, "h")
    batch = data.batch("train", np.array([3, 0]), draw=5)
    assert batch.inputs.keys() == set(names)
    assert batch.target.tolist() == [1, 0]
    for name in names:
        assert torch.equal(batch.inputs[name], viewed(name).read(np.array([3, 0]), 5))


# --- frames ---


@pytest.mark.parametrize(
    ("pick", "count", "frames"),
    [
        ("first", 1, [0]),
        ("first", 3, [0, 1, 2]),
        ("uniform", 1, [5]),
        ("uniform", 3, [1, 5, 8]),  # the middles of 0 - 3.3, 3.3 - 6.7 and 6.7 - 10
        ("random", 3, [1, 5, 8]),
        ("random", 10, list(range(10))),
    ],
)
def test_the_frames_that_a_model_is_judged_on(pick: Any, count: int, frames: list[int]) -> None:
    assert picked(10, count, pick, None) == frames


@pytest.mark.parametrize("pick", ["first", "uniform", "random"])
@pytest.mark.parametrize("judged", [True, False])
def test_a_short_video_ends_in_its_last_frame(pick: Any, judged: bool) -> None:
    chance = None if judged else np.random.default_rng(0)
    assert picked(2, 4, pick, chance) == [0, 1, 1, 1]
    assert picked(1, 1, pick, chance) == [0]


def test_the_frames_that_training_sees() -> None:
    chance = np.random.default_rng(0)
    assert {tuple(picked(10, 3, "first", chance)) for _ in range(50)} == {(0, 1, 2)}
    uniform = np.array([picked(10, 3, "uniform", chance) for _ in range(400)])
    # Segments end within frames 3 and 6, which so belong to two of them.
    assert [set(column.tolist()) for column in uniform.T] == [
        {0, 1, 2, 3},
        {3, 4, 5, 6},
        {6, 7, 8, 9},
    ]
    random = np.array([picked(10, 3, "random", chance) for _ in range(400)])
    assert set(random.ravel().tolist()) == set(range(10))
    assert (np.diff(random, axis=1) > 0).all()  # in their order, none twice


def ramp(frames: int = 1, height: int = 64, width: int = 80) -> Any:
    """Red says how far right, green how far down, blue which frame."""
    made = np.zeros((frames, height, width, 3), np.uint8)
    made[..., 0] = np.linspace(0, 255, width)
    made[..., 1] = np.linspace(0, 255, height)[:, None]
    made[..., 2] = 10 * np.arange(frames)[:, None, None]
    return made


BYTES: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}


def test_without_chance_the_whole_frame_is_squashed() -> None:
    made = Frames(size=32, **BYTES)(ramp(), None)[:, 0]
    assert made[0, 0, 0] < 4
    assert made[0, 0, -1] > 251
    assert made[1, 0, 0] < 4
    assert made[1, -1, 0] > 251


def parts(video: Any, view: Frames, draws: int = 300) -> Any:
    """(right, down, mirrored) of the crop of every frame in many draws."""
    made = np.stack([view(video, np.random.default_rng(n)) for n in range(draws)])
    columns, rows = made[:, 0].mean(axis=2), made[:, 1].mean(axis=3)
    mirrored = columns[..., 0] > columns[..., -1]
    return np.stack([columns.mean(axis=-1), rows.mean(axis=-1), mirrored], axis=-1)


def test_frames_are_cropped_each_by_itself_or_together() -> None:
    view = Frames(count=3, size=16, crop=(0.2, 0.5), **BYTES)
    alone = parts(ramp(3), view)
    assert (alone[:, 0] != alone[:, 1]).any(axis=1).mean() > 0.95
    together = parts(ramp(3), replace(view, together=True))
    assert np.array_equal(together[:, 0], together[:, 1])
    assert np.array_equal(together[:, 0], together[:, 2])
    assert len(np.unique(together[:, 0], axis=0)) > 250
    # Half of all are mirrored; 4.9 standard errors of 300 are 0.14.
    for found in (alone[:, 0, 2], alone[:, 2, 2], together[:, 0, 2]):
        assert abs(found.mean() - 0.5) < 0.14


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_flipping_can_be_sure(flip: float) -> None:
    view = Frames(size=16, crop=(0.5, 1.0), flip=flip, **BYTES)
    assert (parts(ramp(), view, 20)[..., 2] == flip).all()


def test_a_crop_of_everything_without_flip_is_the_frame() -> None:
    square = ramp(height=64, width=64)
    view = Frames(size=32, crop=(1.0, 1.0), flip=0.0, **BYTES)
    made = [view(square, np.random.default_rng(n)) for n in range(40)]
    # An aspect other than 1 does not fit, and after ten tries the whole is taken.
    assert all(np.array_equal(one, view(square, None)) for one in made)


def test_frames_and_pictures_are_standardized() -> None:
    plain = np.full((1, 40, 50, 3), (10, 100, 200), np.uint8)
    expected = (np.array([10, 100, 200]) / 255 - IMAGENET_MEAN) / np.array(IMAGENET_STD)
    for chance in (None, np.random.default_rng(0)):
        frame = Frames(size=8)(plain, chance)
        picture = Picture(size=8, randaugment=None)(plain[0], chance)
        for made in (frame.reshape(3, -1), picture.reshape(3, -1)):
            assert np.array_equal(made, np.repeat(expected.astype(np.float32)[:, None], 64, 1))


# --- pictures ---


def test_a_picture_is_cropped_flipped_and_augmented_in_training_alone() -> None:
    picture = ramp()[0]
    chances = [np.random.default_rng(n) for n in range(40)]
    full = Picture(size=24, randaugment=(2, 7, 1.0), **BYTES)
    crop = replace(full, randaugment=None)
    made = [full(picture, chance).tobytes() for chance in chances]
    bare = [crop(picture, np.random.default_rng(n)).tobytes() for n in range(40)]
    assert len(set(made)) == len(set(bare)) == 40
    assert sum(a != b for a, b in zip(made, bare, strict=True)) > 35  # two are rarely identities
    never = replace(full, randaugment=(2, 7, 0.0))
    assert [never(picture, np.random.default_rng(n)).tobytes() for n in range(40)] == bare
    assert np.array_equal(full(picture, None), crop(picture, None))


def test_a_small_picture_grows_as_it_is_told() -> None:
    picture = ramp(height=10, width=12)[0]
    cubic, linear = Picture(size=24, **BYTES), Picture(size=24, interpolation="linear", **BYTES)
    assert not np.array_equal(cubic(picture, None), linear(picture, None))


# --- spectrograms and words ---


def test_a_spectrogram_is_standardized_in_single_precision() -> None:
    sample = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float16)
    made = VIEWS["spectrogram"](sample, None)
    assert np.array_equal(made[0], (sample.astype(np.float32) + 5) / 2)


def test_a_spectrogram_of_another_length_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"shape \(20, 31\), not \(20, 30\).*shape=\(20, 31\)"):
        VIEWS["spectrogram"](np.zeros((20, 31), np.float32), None)


@pytest.mark.parametrize(
    ("length", "expected"), [(5, [7, 8, 9, 0, 0]), (3, [7, 8, 9]), (2, [7, 8])]
)
def test_words_are_cut_or_filled_up(length: int, expected: list[int]) -> None:
    made = Tokens(length=length)(np.array([7, 8, 9], np.int32), np.random.default_rng(0))
    assert made.tolist() == expected
    assert made.dtype == np.int64


# --- what cannot be ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Frames(count=0), "Frames: count = 0"),
        (lambda: Frames(pick="last"), "pick = 'last'"),  # type: ignore[arg-type]
        (lambda: Frames(crop=(0.5, 0.1)), r"crop = \(0.5, 0.1\)"),
        (lambda: Frames(flip=1.5), "flip = 1.5"),
        (lambda: Frames(mean=(0.0,)), r"mean = \(0.0,\) and std"),
        (lambda: Frames(std=(1.0, 0.0, 1.0)), "std is positive"),
        (lambda: Picture(size=0), "Picture: size = 0"),
        (lambda: Picture(crop=(0.0, 1.0)), "crop"),
        (lambda: Picture(randaugment=(2, 11, 0.5)), r"randaugment = \(2, 11, 0.5\)"),
        (lambda: Picture(randaugment=(2, 7, -1)), "probability = -1"),
        (lambda: Picture(interpolation="lanczos"), "lanczos"),  # type: ignore[arg-type]
        (lambda: Spectrogram(shape=(0, 3)), "bins = 0"),
        (lambda: Spectrogram(std=float("nan")), "std is positive"),
        (lambda: Tokens(length=0), "length = 0"),
        (lambda: Clip(length=81), "length = 81; it is 1 to frames = 80"),
        (lambda: Clip(length=0), "length = 0"),
        (lambda: Clip(crop=-1), "crop = -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
