"""Small sounds, films and pictures, made with real codecs."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

RATE = 22050
SIZE = 64, 48  # width, height


def tone(seconds: float, rate: int = RATE, *, hertz: float = 440.0) -> npt.NDArray[np.float32]:
    """A sine of amplitude one half."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(
        np.float32
    )


def grey(number: int) -> int:
    """What frame `number` of `film` is filled with."""
    return 4 * number % 256


def film(
    path: Path,
    *,
    count: int = 60,
    fps: int = 30,
    size: tuple[int, int] = SIZE,
    codec: str = "mpeg4",
    pixels: str = "yuv420p",
    audio: str | None = None,
    rate: int = RATE,
    layout: str = "mono",
    pictures: npt.NDArray[np.uint8] | None = None,
) -> Path:
    """A film whose frames tell their number by their grey, or of `pictures` [t, h, w, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if pictures is not None:
        count, size = len(pictures), (pictures.shape[2], pictures.shape[1])
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.bit_rate = 400_000
        sound = container.add_stream(audio, rate=rate) if audio else None
        if sound:
            sound.layout = layout
        for number in range(count):
            picture = (
                np.full((size[1], size[0], 3), grey(number), np.uint8)
                if pictures is None
                else pictures[number]
            )
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
        if sound:
            channels = 2 if layout == "stereo" else 1
            wave = np.repeat(tone(count / fps, rate)[None], channels, axis=0)
            frame = av.AudioFrame.from_ndarray(wave, format="fltp", layout=layout)
            frame.sample_rate = rate
            container.mux(sound.encode(frame))
            container.mux(sound.encode())
    return path


def patched(path: Path, name: str, at: int, bytes_: bytes) -> Path:
    """A copy whose bytes from `at` are others."""
    content = bytearray(path.read_bytes())
    content[at : at + len(bytes_)] = bytes_
    return written(path.with_name(name), bytes(content))


def cut(path: Path, share: float) -> Path:
    """A copy of the first part of a file."""
    content = path.read_bytes()
    return written(path.with_name(f"cut-{path.name}"), content[: int(share * len(content))])


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
