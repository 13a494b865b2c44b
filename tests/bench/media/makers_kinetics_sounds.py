"""Kinetics-Sounds in miniature, in its layouts and with real codecs: 24 clips of 4 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from PIL import Image

from .makers import film

CLASSES = ("bowling", "playing bass guitar", "tap dancing", "tickling")
VIDEOS = tuple(f"{'-_AbcXyz'[n % 8]}id{n:03d}_kI-w" for n in range(24))  # 11 letters, as YouTube's
RATE = 16_000


def label(video: str) -> int:
    return VIDEOS.index(video) % len(CLASSES)


def part(video: str) -> Literal["train", "test"]:
    return "test" if VIDEOS.index(video) >= 16 else "train"


def name(video: str) -> str:
    """The id in OGM-GE's lists: the end of a clip is written in that of train alone."""
    start = VIDEOS.index(video)
    return f"{video}_{start}" if part(video) == "test" else f"{video}_{start:06d}_{start + 10:06d}"


def file(video: str) -> str:
    """The name of the clip's files, as those who cut Kinetics name them."""
    start = VIDEOS.index(video)
    return f"{video}_{start:06d}_{start + 10:06d}"


def shades(video: str, count: int) -> np.ndarray:
    """Frames as bright as the class's number, each 5 brighter than the one before."""
    level = 40 + 40 * label(video)
    slope = np.linspace(-20, 20, 64)[:, None] * np.ones(3)  # so that a crop can be told
    frames = [np.broadcast_to(level + 5 * k + slope, (48, 64, 3)) for k in range(count)]
    return np.stack(frames).astype(np.uint8)


def mp4(path: Path, video: str, *, seconds: int = 4, fps: int = 5) -> Path:
    """A clip with its sound; each second shows one frame of `shades`."""
    pictures = np.repeat(shades(video, seconds), fps, axis=0)
    return film(path, fps=fps, codec="mpeg4", audio="aac", pictures=pictures)


def wav(path: Path, video: str, *, rate: int = RATE, seconds: float = 4.0) -> Path:
    """A tone whose height is the class's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(rate * seconds)) / rate
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 200 * (1 + label(video)) * time), rate)
    return path


def jpgs(folder: Path, video: str, count: int = 5) -> None:
    """Frames, one for each second; 10 comes after 9."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, frame in enumerate(shades(video, count), start=8):
        Image.fromarray(frame).save(folder / f"frame_{k}.jpg", quality=95)


def ogm(root: Path) -> Path:
    """mp4 clips in folders by class, and OGM-GE's lists, whose lines end as on Windows."""
    for video in VIDEOS:
        where = root / "videos" / CLASSES[label(video)].replace(" ", "_")
        mp4(where / f"{file(video)}.mp4", video)
    for split in ("train", "test"):
        here = [video for video in VIDEOS if part(video) == split]
        text = "".join(f"{name(video)},10,{label(video)}\r\n" for video in here)
        (root / f"my_{split}.txt").write_bytes(text.encode())
    return root


def titled(root: Path, *, frames: int = 5) -> Path:
    """Frames and wav files as AMSS and BSS have them, and csv lists of videos."""
    for video in VIDEOS:
        split = part(video)
        jpgs(root / f"{split}_img" / "Image-01-FPS" / video, video, frames)
        wav(root / f"{split}_wav" / f"{video}.wav", video)
    (root / "annotations").mkdir()
    for split in ("train", "test"):
        here = [video for video in reversed(VIDEOS) if part(video) == split]
        text = "".join(f"{video},{CLASSES[label(video)]}\n" for video in here)
        path = root / "annotations" / f"{split}.csv"
        path.write_text("youtube_id,label\n" + text)
    return root
