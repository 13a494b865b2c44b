"""CREMA-D in miniature, in its own layout and with real codecs: 24 clips of 4 actors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from .makers import film

LABELS = ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")
ACTORS = ("1001", "1002", "1003", "1091")
IDS = tuple(f"{actor}_{'DFA'}_{label}_XX" for actor in ACTORS for label in LABELS)
RATE = 16_000


def wav(
    path: Path, name: str, *, rate: int = RATE, channels: int = 1, seconds: float = 1.5
) -> Path:
    """A tone whose height is the emotion's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hertz = 200 * (1 + LABELS.index(name.split("_")[2]))
    time = np.arange(int(rate * seconds)) / rate
    wave = 0.5 * np.sin(2 * np.pi * hertz * time) + 0.01 * np.cos(2 * np.pi * int(name[:4]) * time)
    soundfile.write(path, np.repeat(wave[:, None], channels, 1), rate, subtype="PCM_16")
    return path


def shades(name: str, count: int = 3) -> np.ndarray:
    """Frames as bright as the emotion's number, each 10 brighter than the one before."""
    level = 40 + 30 * LABELS.index(name.split("_")[2])
    slope = np.linspace(-20, 20, 64)[:, None] * np.ones(3)  # so that a crop can be told
    frames = [np.broadcast_to(level + 10 * k + slope, (48, 64, 3)) for k in range(count)]
    return np.stack(frames).astype(np.uint8)


def flv(path: Path, name: str, *, seconds: int = 2, fps: int = 10) -> Path:
    """Flash video, as in VideoFlash; each second shows one frame of `shades`."""
    pictures = np.repeat(shades(name, seconds), fps, axis=0)
    return film(path, fps=fps, codec="flv", audio="libmp3lame", pictures=pictures)


def jpgs(folder: Path, name: str, count: int = 3) -> None:
    """Frames as OGM-GE's script names them: by their number in the video."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, frame in enumerate(shades(name, count)):
        Image.fromarray(frame).save(folder / f"{30 * k:05d}.jpg", quality=95)


def lists(folder: Path, ids: tuple[str, ...] = IDS) -> None:
    """OGM-GE's csv; one sample of every class is test. The first has a BOM, as stat.csv has."""
    folder.mkdir(parents=True, exist_ok=True)
    test = {name for name in ids if name.startswith("1091")}
    for part, bom in (("train", "\ufeff"), ("test", "")):
        here = [name for name in reversed(ids) if (name in test) == (part == "test")]
        text = bom + "".join(f"{name},{name.split('_')[2]}\r\n" for name in here)
        (folder / f"{part}.csv").write_bytes(text.encode())


def cremad(root: Path, *, frames: bool = False, listed: bool = True) -> Path:
    """The whole data set, with videos or with ready frames."""
    for name in IDS:
        wav(root / "AudioWAV" / f"{name}.wav", name)
        if frames:
            jpgs(root / "Image-01-FPS" / name, name)
        else:
            flv(root / "VideoFlash" / f"{name}.flv", name)
    if listed:
        lists(root / "annotations")
    return root
