"""Pictures and films: RGB arrays from any file, frames at times or by number, and optical flow."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from .codec import MOST_PIXELS, complete, decodable, decoded, decoding, opened
from .collection import Undecodable

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

# Simple ones, whatever the file's name says. Pillow has more, and starts programs for some.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
MOST_BYTES = 2 << 30  # of the frames that are kept of one film
LEAST_SIDE = 12  # of a frame, for the patches that are searched
JITTER = Fraction(1, 1000)  # s; a container rounds the times of its frames to this, or better


def picture(path: Path, *, side: int | None = None, pixels: int = MOST_PIXELS) -> Pixels:
    """An image [h, w, 3], upright, shrunk to `side`.

    More `pixels` than that are refused by the header, before any is decoded.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    with decoding(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; what counts is whether it decodes
        try:
            with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
                _bearable(image.width, image.height, pixels)
                array = _rgb(ImageOps.exif_transpose(image))
        except UnidentifiedImageError as problem:
            raise Undecodable(f"it is no image of the kinds {', '.join(FORMATS)}") from problem
        except Image.DecompressionBombError as problem:
            raise Undecodable(f"its header is absurd: {problem}") from problem
        return array if side is None else shrunk(array, side)


def shrunk(array: Pixels, side: int) -> Pixels:
    """A picture [h, w] or [h, w, c] whose short side is at most `side`, by averaging areas."""
    import cv2

    if side < 1:
        raise ValueError(f"side = {side}; it is pixels, 1 at least")
    height, width = array.shape[:2]
    share = side / min(height, width)
    if share >= 1:
        return array
    # The short side exactly, the other rounded.
    size = (max(side, round(width * share)), max(side, round(height * share)))
    return np.asarray(cv2.resize(array, size, interpolation=cv2.INTER_AREA), np.uint8)


def frames(path: Path, *, fps: float = 1.0, side: int | None = None, most: int = 64) -> Pixels:
    """The frames [t, h, w, 3] that a film shows at 0, 1/fps, 2/fps, ... seconds after its first.

    A frame is shown until the next one, so a frame may come twice where a film has fewer of them,
    and a film has one at least. The first `most` are read, and no more of the film than they need.
    """
    if not 0 < fps < np.inf or most < 1:
        raise ValueError(f"fps = {fps}, most = {most}; fps is above 0, and most 1 at least")
    with decoding(path), opened(path) as container:
        stream = _film(container)
        chosen = _shown(container, stream, Fraction(fps), most)
        return _stacked((_pixels(frame, 3) for frame in chosen), side)


def window(path: Path, start: int, stop: int, *, channels: int = 3) -> Pixels:
    """Frames start, ..., stop - 1 of a film, counted from 0: [t, h, w, channels], RGB or grey.

    A film that ends before `stop` is `Undecodable`.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels = {channels}; it is 3 for RGB, or 1 for grey")
    with decoding(path), opened(path) as container:
        if not 0 <= start < stop:
            raise Undecodable(f"frames {start} to {stop} are no range")
        stream = _film(container)
        made = _stacked(
            (_pixels(frame, channels) for frame in _numbered(container, stream, start, stop)), None
        )
        if len(made) < stop - start:
            raise Undecodable(f"it has {start + len(made)} frames; {start} to {stop} are asked for")
        return made


def flow(frames: Pixels, *, bound: float = 20.0) -> npt.NDArray[np.float16]:
    """Where everything moves from each frame to the next: [t, h, w, 2], to the right and down.

    In units of `bound` pixels and cut at ±1, the scale I3D was trained with. The last frame has no
    next one, so its flow is that before it; that of a single frame is 0. By dense inverse search
    (Kroeger et al. 2016), between frames [t, h, w, 3] in RGB or [t, h, w, 1].
    """
    import cv2

    if frames.ndim != 4 or frames.shape[3] not in (1, 3) or not len(frames):
        raise ValueError(f"frames of shape {frames.shape}; they are [t, h, w, 3] or [t, h, w, 1]")
    if min(frames.shape[1:3]) < LEAST_SIDE:
        raise ValueError(f"frames of shape {frames.shape}; flow needs {LEAST_SIDE} pixels a side")
    grey: Any = frames[..., 0]
    if frames.shape[3] == 3:
        grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    made = np.zeros((*frames.shape[:3], 2), np.float16)
    for i, (here, there) in enumerate(pairwise(map(np.ascontiguousarray, grey))):
        moved: Any = search.calc(here, there, cast(Any, None))
        made[i] = np.clip(moved / bound, -1, 1)
    if len(made) > 1:
        made[-1] = made[-2]
    return made


def _rgb(image: Image) -> Pixels:
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip at 255
        grey = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    return np.array(image.convert("RGB"), np.uint8)


def _bearable(width: int, height: int, pixels: int = MOST_PIXELS) -> None:
    if width * height > pixels:
        raise Undecodable(f"its header says {width} x {height}; at most {pixels} pixels are read")
    if not width * height:
        raise Undecodable(
            f"its pictures have no size that can be read, which is {pixels} pixels at most"
        )


def _film(container: InputContainer) -> VideoStream:
    if not container.streams.video:
        raise Undecodable("it has no pictures")
    stream = container.streams.video[0]
    decodable(stream)
    _bearable(stream.codec_context.width, stream.codec_context.height)
    return stream


def _shown(
    container: InputContainer, stream: VideoStream, fps: Fraction, most: int
) -> Iterator[VideoFrame]:
    made, now, span = 0, Fraction(0), Fraction(0)
    first: Fraction | None = None
    shown: VideoFrame | None = None
    for count, frame in enumerate(decoded(container, stream)):
        time, span = _timed(frame, stream, count)
        first = time if first is None else first
        now = max(now, time - first)
        while shown is not None and made < most and made / fps < now - JITTER:
            yield shown
            made += 1
        if made == most:
            return
        shown = frame
    if shown is None:
        raise Undecodable("it has no frame")
    complete(now + span, container, stream)
    while made < most and (made == 0 or made / fps < now + span - JITTER):
        yield shown
        made += 1


def _timed(frame: VideoFrame, stream: VideoStream, count: int) -> tuple[Fraction, Fraction]:
    """When a frame is shown, and for how long."""
    rate, base = stream.average_rate, frame.time_base
    span = 1 / rate if rate else Fraction(0)
    if base is not None and frame.duration:
        span = frame.duration * base
    return (count * span if frame.pts is None or base is None else frame.pts * base), span


def _numbered(
    container: InputContainer, stream: VideoStream, start: int, stop: int
) -> Iterator[VideoFrame]:
    for number, frame in enumerate(decoded(container, stream)):
        if number >= start:
            yield frame
        if number + 1 == stop:
            return


def _pixels(frame: VideoFrame, channels: int) -> Pixels:
    """A frame [h, w, channels], turned as the file says."""
    _bearable(frame.width, frame.height)
    array: Any = frame.to_ndarray(format="rgb24" if channels == 3 else "gray", threads=1)
    turned = np.rot90(array, round(frame.rotation / 90))
    return np.ascontiguousarray(turned).reshape(*turned.shape[:2], channels)


def _stacked(made: Iterable[Pixels], side: int | None) -> Pixels:
    kept: list[Pixels] = []
    total = 0
    for array in made:
        small = array if side is None else shrunk(array, side)
        if kept and small.shape != kept[0].shape:
            raise Undecodable(f"its frames change from {kept[0].shape} to {small.shape}")
        total += small.nbytes
        if total > MOST_BYTES:
            raise Undecodable(f"its frames are larger than {MOST_BYTES} bytes; give a smaller side")
        kept.append(small)
    if not kept:
        raise Undecodable("it has no frame")
    return np.stack(kept)
