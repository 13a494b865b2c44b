"""What is done to a picture on its way into a batch: cropped, resized, flipped, distorted, scaled.

Pictures are bytes [h, w, c], and what is random comes from a generator that is handed in. OpenCV
does the work, and the definitions are those that the papers used:

- `crop_box` is RandomResizedCrop of torchvision: ten tries for an area and an aspect, else the
  largest crop in the middle that keeps the aspect.
- `resized` averages over what a new pixel covers where a side shrinks, and interpolates where one
  grows. Pillow's BILINEAR, which torchvision takes, is a little softer when it shrinks.
- `randaugment` is the form of RandAugment that came with ALBEF (Li et al. 2021): ten operations,
  `ops` of them drawn with replacement, each applied with a probability, all at one magnitude of 10.
  Autocontrast, equalize, brightness and sharpness are Pillow's; what comes in from outside when a
  picture is moved is grey. Rotation is around the middle of the pixels, half a pixel from ALBEF's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats32 = npt.NDArray[np.float32]
Chance = np.random.Generator
Interpolation = Literal["linear", "cubic"]  # where a picture grows
RATIO = (3 / 4, 4 / 3)  # of width to height of a crop
GREY = (128.0, 128.0, 128.0)


class Box(NamedTuple):
    """A part of a picture."""

    top: int
    left: int
    height: int
    width: int

    def of(self, picture: Bytes) -> Bytes:
        """A view of this part."""
        return picture[self.top : self.top + self.height, self.left : self.left + self.width]


def crop_box(
    height: int,
    width: int,
    chance: Chance,
    *,
    area: tuple[float, float],
    ratio: tuple[float, float] = RATIO,
) -> Box:
    """A random part with some share of the area and some ratio of width to height."""
    least, most = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        share, slant = chance.random(2).tolist()
        wanted = height * width * (area[0] + share * (area[1] - area[0]))
        aspect = math.exp(least + slant * (most - least))
        w, h = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < w <= width and 0 < h <= height:
            down, right = chance.random(2).tolist()
            return Box(int(down * (height - h + 1)), int(right * (width - w + 1)), h, w)
    h = min(height, round(width / ratio[0]))
    w = min(width, round(height * ratio[1]))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def resized(picture: Bytes, size: int, interpolation: Interpolation = "linear") -> Bytes:
    """The picture as a square, whatever its sides were."""
    import cv2

    height, width = picture.shape[:2]
    less = min(height, size), min(width, size)
    if less != (height, width):
        picture = bytes_of(cv2.resize(picture, less[::-1], interpolation=cv2.INTER_AREA))
    if less != (size, size):
        way = cv2.INTER_LINEAR if interpolation == "linear" else cv2.INTER_CUBIC
        picture = bytes_of(cv2.resize(picture, (size, size), interpolation=way))
    return picture


def flipped(picture: Bytes) -> Bytes:
    """Left and right exchanged."""
    import cv2

    return bytes_of(cv2.flip(picture, 1))


@lru_cache(maxsize=64)
def levels(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Floats32, ...]:
    """What each of the 256 values of a byte becomes, for every channel: (v / 255 - mean) / std."""
    values = np.arange(256) / 255
    return tuple(((values - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True))


def standardize(
    picture: Bytes, mean: tuple[float, ...], std: tuple[float, ...], out: Floats32
) -> None:
    """Write the picture to `out` [c, h, w], scaled."""
    import cv2

    planes = cv2.split(picture)
    for plane, table, into in zip(planes, levels(mean, std), out, strict=True):
        into[...] = cv2.LUT(plane, table)


def randaugment(
    picture: Bytes, chance: Chance, *, ops: int = 2, magnitude: float = 7, probability: float = 0.5
) -> Bytes:
    """Some operations one after the other, each applied with a probability."""
    for _ in range(ops):
        which, applied, side = chance.random(3).tolist()
        if applied < probability:
            operation = OPERATIONS[int(which * len(OPERATIONS))]
            picture = operation(picture, magnitude / 10 if side < 0.5 else -magnitude / 10)
    return picture


# Each operation takes the picture and a strength of -1 to 1. Where it has no two sides, its
# absolute value counts.


def identical(picture: Bytes, strength: float) -> Bytes:
    """As it is."""
    return picture


def autocontrast(picture: Bytes, strength: float) -> Bytes:
    """Every channel is stretched until it holds both 0 and 255."""
    tables: list[Bytes] = []
    for plane in np.moveaxis(picture, 2, 0):
        low, high = int(plane.min()), int(plane.max())
        scale = 255 / (high - low) if high > low else 1.0
        offset = -low * scale if high > low else 0.0
        tables.append(truncated(np.arange(256) * scale + offset))
    return looked_up(picture, tables)


def equalize(picture: Bytes, strength: float) -> Bytes:
    """Every channel is stretched until all values are about equally frequent."""
    tables: list[Bytes] = []
    for plane in np.moveaxis(picture, 2, 0):
        counts = np.bincount(plane.ravel(), minlength=256)
        step = int(counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        if step == 0:
            tables.append(np.arange(256, dtype=np.uint8))
            continue
        below = np.cumsum(counts) - counts
        tables.append(truncated((below + step // 2) // step))
    return looked_up(picture, tables)


def brightness(picture: Bytes, strength: float) -> Bytes:
    """Every value is multiplied by 0.1 to 1.9."""
    table = truncated(np.arange(256) * enhancement(strength))
    return looked_up(picture, [table] * picture.shape[2])


def sharpness(picture: Bytes, strength: float) -> Bytes:
    """Moved away from, or towards, a smoothed copy; the outermost pixels stay."""
    import cv2

    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = bytes_of(cv2.filter2D(picture, -1, kernel)).astype(np.float32)
    made = truncated(smooth + np.float32(enhancement(strength)) * (picture - smooth))
    made[[0, -1]] = picture[[0, -1]]
    made[:, [0, -1]] = picture[:, [0, -1]]
    return made


def shear_x(picture: Bytes, strength: float) -> Bytes:
    """Rows are shifted, by up to 0.3 pixels more for each row further down."""
    return moved(picture, [[1, 0.3 * strength, 0], [0, 1, 0]])


def shear_y(picture: Bytes, strength: float) -> Bytes:
    """Columns are shifted, by up to 0.3 pixels more for each column further right."""
    return moved(picture, [[1, 0, 0], [0.3 * strength, 1, 0]])


def translate_x(picture: Bytes, strength: float) -> Bytes:
    """Up to 10 pixels to the left or the right."""
    return moved(picture, [[1, 0, 10 * strength], [0, 1, 0]])


def translate_y(picture: Bytes, strength: float) -> Bytes:
    """Up to 10 pixels up or down."""
    return moved(picture, [[1, 0, 0], [0, 1, 10 * strength]])


def rotate(picture: Bytes, strength: float) -> Bytes:
    """By up to 30 degrees around the middle, counterclockwise if the strength is positive."""
    import cv2

    height, width = picture.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    return moved(picture, cv2.getRotationMatrix2D(middle, 30 * strength, 1).tolist())


OPERATIONS: tuple[Callable[[Bytes, float], Bytes], ...] = (
    identical,
    autocontrast,
    equalize,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
)


def enhancement(strength: float) -> float:
    """The factor of brightness and sharpness; 1 changes nothing."""
    return abs(strength) * 1.8 + 0.1


def moved(picture: Bytes, matrix: list[list[float]]) -> Bytes:
    """Pixel (x, y) goes to matrix (x, y, 1); grey comes in from outside."""
    import cv2

    height, width = picture.shape[:2]
    return bytes_of(
        cv2.warpAffine(
            picture,
            np.array(matrix, np.float64),
            (width, height),
            flags=cv2.INTER_LINEAR,
            borderValue=GREY,
        )
    )


def looked_up(picture: Bytes, tables: list[Bytes]) -> Bytes:
    """Every channel through a table of its own."""
    import cv2

    return bytes_of(cv2.LUT(picture, np.stack(tables, axis=-1)[None]))


def truncated(values: npt.NDArray[np.generic]) -> Bytes:
    """As bytes, cut off towards zero like Pillow's."""
    return np.clip(values, 0, 255).astype(np.uint8)


def bytes_of(array: npt.NDArray[np.generic]) -> Bytes:
    """What OpenCV gives, whose stubs do not say that bytes stay bytes."""
    return array.astype(np.uint8, copy=False)
