"""The views: how what is stored of a sample becomes what an encoder takes.

Each is a `View`, see `source`: a few settings, and a function of a stored sample and of chance.
Where there is no chance, as when a model is judged, nothing is drawn. Bytes are taken as 0 to 1 and
then standardized, (v / 255 - mean) / std; other numbers are standardized as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from ..types import Array, Form, Kind
from .augment import (
    Box,
    Bytes,
    Chance,
    Floats32,
    Interpolation,
    crop_box,
    flipped,
    randaugment,
    resized,
    standardize,
)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
Pick = Literal["first", "uniform", "random"]
Channels = tuple[float, ...]  # a number for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Some frames of a video, bytes [t, h, w, c] -> [c, count, size, size].

    In training a frame is cropped at random, resized and flipped; each by itself, as in the papers,
    or all of a clip `together`. Otherwise it is resized, whatever its sides were.

    `pick` is which frames, in their order: the `first` ones; one of each of `count` equally long
    segments (`uniform`), the middle one, or any one in training; or any at all (`random`) in
    training, and uniform ones otherwise. If a video is too short, its last frame is repeated.
    """

    count: int = 1
    pick: Pick = "first"
    size: int = 224
    crop: tuple[float, float] = (0.08, 1.0)  # the share of the area
    flip: float = 0.5
    together: bool = False
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def __post_init__(self) -> None:
        require_counts(self, count=self.count, size=self.size)
        require_crop(self.crop)
        require_share(flip=self.flip)
        require_scale(self.mean, self.std)
        if self.pick not in ("first", "uniform", "random"):
            raise ValueError(f"pick = {self.pick!r}; it is 'first', 'uniform' or 'random'")

    @property
    def form(self) -> Form:
        return form("video", (len(self.mean), self.count, self.size, self.size))

    def __call__(self, sample: Array, chance: Chance | None) -> Array:
        video = cast(Bytes, sample)
        height, width = video.shape[1:3]
        made = np.empty(self.form.shape, np.float32)
        box, mirrored = Box(0, 0, height, width), False
        for k, frame in enumerate(picked(len(video), self.count, self.pick, chance)):
            if chance is not None and (k == 0 or not self.together):
                box = crop_box(height, width, chance, area=self.crop)
                mirrored = chance.random() < self.flip
            picture = resized(box.of(video[frame]), self.size)
            standardize(flipped(picture) if mirrored else picture, self.mean, self.std, made[:, k])
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture, bytes [h, w, c] -> [c, size, size].

    In training it is cropped at random, resized, flipped, and put through RandAugment. Otherwise it
    is resized, whatever its sides were. `interpolation` is for where it grows.
    """

    size: int = 224
    crop: tuple[float, float] = (0.5, 1.0)  # the share of the area
    flip: float = 0.5
    randaugment: tuple[int, float, float] | None = (2, 7, 0.5)  # operations, magnitude, probability
    interpolation: Interpolation = "cubic"
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def __post_init__(self) -> None:
        require_counts(self, size=self.size)
        require_crop(self.crop)
        require_share(flip=self.flip)
        require_scale(self.mean, self.std)
        if self.interpolation not in ("linear", "cubic"):
            raise ValueError(f"interpolation = {self.interpolation!r}; it is 'linear' or 'cubic'")
        if self.randaugment is not None:
            ops, magnitude, probability = self.randaugment
            require_share(probability=probability)
            if ops < 0 or not 0 <= magnitude <= 10:
                raise ValueError(
                    f"randaugment = {self.randaugment}; it is some operations, a magnitude of 0 to "
                    "10, and the probability of each"
                )

    @property
    def form(self) -> Form:
        return form("image", (len(self.mean), self.size, self.size))

    def __call__(self, sample: Array, chance: Chance | None) -> Array:
        picture = cast(Bytes, sample)
        if chance is None:
            picture = resized(picture, self.size, self.interpolation)
        else:
            box = crop_box(picture.shape[0], picture.shape[1], chance, area=self.crop)
            picture = resized(box.of(picture), self.size, self.interpolation)
            if chance.random() < self.flip:
                picture = flipped(picture)
            if self.randaugment is not None:
                ops, magnitude, probability = self.randaugment
                picture = randaugment(
                    picture, chance, ops=ops, magnitude=magnitude, probability=probability
                )
        made = np.empty(self.form.shape, np.float32)
        standardize(picture, self.mean, self.std, made)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrogram:
    """A spectrogram, numbers [f, t] -> [1, f, t]; nothing of it is random."""

    shape: tuple[int, int] = (257, 188)  # STFT of 3 s at 22 050 Hz, n_fft 512, hop 353
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        require_counts(self, bins=self.shape[0], steps=self.shape[1])
        require_scale((self.mean,), (self.std,))

    @property
    def form(self) -> Form:
        return form("image", (1, *self.shape))

    def __call__(self, sample: Array, chance: Chance | None) -> Array:
        if sample.shape != self.shape:
            raise ValueError(
                f"a stored spectrogram has shape {sample.shape}, not {self.shape}; "
                f"say Spectrogram(shape={sample.shape}), or prepare the data again"
            )
        return scaled(sample[None], (self.mean,), (self.std,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Ids of words, [t] -> int64 [length]: cut, or filled up with 0. All are below `words`."""

    length: int
    words: int | None = None

    def __post_init__(self) -> None:
        require_counts(self, length=self.length)
        if self.words is not None:
            require_counts(self, words=self.words)

    @property
    def form(self) -> Form:
        return Form("tokens", (self.length,), None, np.zeros(1), np.ones(1), self.words)

    def __call__(self, sample: Array, chance: Chance | None) -> Array:
        made = np.zeros(self.length, np.int64)
        made[: len(sample)] = sample[: self.length]
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A video, or one of depths or flow, [t, h, w, c] -> [c, length, crop, crop].

    In training `length` frames in a row, or all if it is None, from a random one on, and a random
    square of them. Otherwise all `frames`, and the square in the middle. Stored samples have
    `frames` frames; what is shorter is filled up with its last one, what is longer is cut.

    Start, top and left are the first that is drawn, as shares of what is possible, whether or not
    they are needed: several modalities of a sample are cropped alike if each has a `Clip`.
    """

    length: int | None = 64
    frames: int = 80
    crop: int = 224
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def __post_init__(self) -> None:
        require_counts(self, length=self.length or 1, frames=self.frames, crop=self.crop)
        require_scale(self.mean, self.std)
        if self.length is not None and not 1 <= self.length <= self.frames:
            raise ValueError(
                f"length = {self.length}; it is 1 to frames = {self.frames}, or None for all"
            )

    @property
    def form(self) -> Form:
        return form("video", (len(self.mean), self.length or self.frames, self.crop, self.crop))

    def __call__(self, sample: Array, chance: Chance | None) -> Array:
        height, width = sample.shape[1:3]
        down, right = height - self.crop, width - self.crop
        if down < 0 or right < 0:
            raise ValueError(
                f"a stored video is {height} x {width}, too small for crop = {self.crop}; "
                f"say crop={min(height, width)}, or prepare the data with a larger side"
            )
        if chance is None:
            length, start, top, left = self.frames, 0, down // 2, right // 2
        else:
            length, shares = self.length or self.frames, chance.random(3)
            room = np.array([self.frames - length, down, right]) + 1
            start, top, left = (shares * room).astype(np.int64).tolist()
        which = np.minimum(np.arange(start, start + length), len(sample) - 1)
        return self.scaled(sample[:, top : top + self.crop, left : left + self.crop], which)

    def scaled(self, video: Array, which: npt.NDArray[np.int64]) -> Floats32:
        """These frames, standardized."""
        if video.dtype != np.uint8:
            return scaled(np.moveaxis(video[which], 3, 0), self.mean, self.std)
        made = np.empty((len(self.mean), len(which), self.crop, self.crop), np.float32)
        for k, frame in enumerate(which.tolist()):
            standardize(cast(Bytes, video[frame]), self.mean, self.std, made[:, k])
        return made


def picked(stored: int, count: int, pick: Pick, chance: Chance | None) -> list[int]:
    """Which of the stored frames are taken, see `Frames`."""
    if pick == "first" or stored <= count:
        which = np.minimum(np.arange(count), stored - 1)
    elif pick == "random" and chance is not None:
        which = np.sort(chance.choice(stored, count, replace=False))
    else:
        within = np.full(count, 0.5) if chance is None else chance.random(count)
        which = ((np.arange(count) + within) * stored / count).astype(np.int64)
    return which.tolist()


def scaled(values: Array, mean: Channels, std: Channels) -> Floats32:
    """Numbers, channels first, standardized as they are."""
    aside = (-1, *(1,) * (values.ndim - 1))
    centre, scale = (np.array(part, np.float32).reshape(aside) for part in (mean, std))
    made = np.ascontiguousarray(values, np.float32) - centre
    return np.divide(made, scale, out=made)


def form(kind: Kind, shape: tuple[int, ...]) -> Form:
    """Of numbers with channels first that need no more scaling."""
    return Form(kind, shape, 1, np.zeros(shape[0]), np.ones(shape[0]))


def require_counts(view: object, **values: int) -> None:
    """An error unless all are 1 or more."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{type(view).__name__}: {name} = {value}; it is 1 or more")


def require_crop(crop: tuple[float, float]) -> None:
    """An error unless it is a range of shares."""
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop = {crop}; it is the least and the largest share, (0.08, 1.0) say")


def require_share(**values: float) -> None:
    """An error unless all are probabilities."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} = {value}; it is a probability, 0 to 1")


def require_scale(mean: Channels, std: Channels) -> None:
    """An error unless every channel has a mean and a positive deviation."""
    if len(mean) != len(std) or not mean:
        raise ValueError(f"mean = {mean} and std = {std}; each channel has one of both")
    if not all(np.isfinite(mean)) or not all(0 < s < np.inf for s in std):
        raise ValueError(f"mean = {mean} and std = {std}; they are finite, and std is positive")
