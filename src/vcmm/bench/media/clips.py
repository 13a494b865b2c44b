"""What clips with sound and frames are decoded to, in the ways of the papers.

A spectrogram is made of the clip repeated until it lasts `seconds` and cut there, within ±1; a
filter bank of the clip as it is. Frames are those of a video at whole seconds, or ready pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..types import Array
from .audio import fbank, log_stft, tiled, waveform
from .collection import Item, Undecodable
from .folders import PICTURES
from .paths import inside

N_FFT, HOP = 512, 353
MELS, STEPS = 128, 1024


@dataclass(frozen=True, slots=True)
class Sound:
    """A way to make a picture of sound."""

    rate: int  # Hz
    seconds: int | None  # of the spectrogram; None for a filter bank

    @property
    def shape(self) -> tuple[int, int]:
        if self.seconds is None:
            return STEPS, MELS
        return 1 + N_FFT // 2, 1 + self.rate * self.seconds // HOP

    def of(self, path: Path) -> Array:
        """float32, of this shape."""
        wave = waveform(path, self.rate)
        if self.seconds is None:
            return fbank(wave, self.rate, mels=MELS, frames=STEPS)
        wave = np.clip(tiled(wave, self.rate * self.seconds), -1, 1)
        return log_stft(wave, n_fft=N_FFT, hop=HOP)


def seen(root: Path, paths: Sequence[str], side: int, most: int) -> Array:
    """Frames [t, h, w, 3]: of the one video, one for each second, or the pictures themselves."""
    from .pictures import frames, picture

    if len(paths) == 1 and not paths[0].lower().endswith(PICTURES):
        return frames(inside(root, paths[0]), fps=1.0, side=side, most=most)
    made = [picture(inside(root, path), side=side) for path in paths[:most]]
    for path, one in zip(paths, made, strict=False):
        if one.shape != made[0].shape:
            raise Undecodable(
                f"{path} is {one.shape[1]} x {one.shape[0]}, and {paths[0]} "
                f"{made[0].shape[1]} x {made[0].shape[0]}; frames of a clip have one size"
            )
    return np.stack(made)


def decoded(root: Path, item: Item, sound: Sound, side: int, most: int) -> dict[str, Array]:
    """Audio and visual of a clip."""
    return {
        "audio": sound.of(inside(root, item.files["audio"][0])),
        "visual": seen(root, item.files["visual"], side, most),
    }
