"""Sound: one channel at a given rate from any file, and the two spectrograms of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .codec import UNKNOWN, complete, decodable, decoded, decoding, installed, opened, within
from .collection import Undecodable

Wave = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

SOUND_FILES = (".wav", ".flac", ".ogg")  # read by libsndfile; all others by FFmpeg
RATES = (1_000, 384_000)  # of any recorder
MOST_CHANNELS = 64
BLOCK = 1 << 18  # samples that are read at a time
FLOOR = 1e-7  # under the logarithm of a magnitude
EPSILON = float(np.finfo(np.float32).eps)  # Kaldi's, under the logarithm of an energy
LOWEST = 20.0  # Hz, where Kaldi's filters begin
PREEMPHASIS = 0.97


def waveform(path: Path, rate: int, *, limit_seconds: float = 600) -> Wave:
    """The sound of a file, or the first sound track of a film: [n] at `rate`, mostly within ±1.

    Channels are averaged. `Undecodable` if there is no sound, or a number in it is not finite.
    """
    if rate < 1:
        raise ValueError(f"rate = {rate}; it is samples in a second")
    with decoding(path):
        read = _sound_file if path.suffix.lower() in SOUND_FILES else _container
        wave, own_rate = read(path, limit_seconds)
        if not len(wave):
            raise Undecodable("it has no sound")
        if not np.isfinite(wave).all():
            raise Undecodable("its sound holds numbers that are not finite")
        return resampled(wave, own_rate, rate)


def resampled(wave: Wave, own_rate: int, rate: int) -> Wave:
    """The same sound at another rate, through a polyphase low-pass filter."""
    from scipy import signal  # pyright: ignore[reportMissingTypeStubs]

    if own_rate == rate:
        return wave
    common = gcd(own_rate, rate)
    made: Any = signal.resample_poly(wave, rate // common, own_rate // common)
    return np.asarray(made, np.float32)


def tiled(wave: Wave, samples: int) -> Wave:
    """A sound repeated until it is long enough, and cut to `samples`."""
    if not len(wave):
        raise ValueError("a sound without samples cannot be repeated")
    return np.resize(wave, samples)


def log_stft(wave: Wave, *, n_fft: int = 512, hop: int = 353) -> Wave:
    """log(|S| + 1e-7) of the short-time Fourier transform, [1 + n_fft // 2, 1 + n // hop].

    As `librosa.stft` makes it: a periodic Hann window, frames centred, zeros beyond the ends.
    """
    padded = np.pad(wave.astype(np.float64), n_fft // 2)
    frames = framed(padded, n_fft, hop)
    window = np.hanning(n_fft + 1)[:-1]
    magnitude = np.abs(np.fft.rfft(frames * window, axis=1))
    return np.log(magnitude + FLOOR).T.astype(np.float32)


def fbank(wave: Wave, rate: int, *, mels: int = 128, frames: int = 1024) -> Wave:
    """Kaldi's log-mel filter bank [frames, mels], cut or filled with zeros, as AST takes it.

    Windows of 25 ms every 10 ms, of the wave less its mean. Nothing is normalized; a filling of
    zeros is what the papers' own normalization expects.
    """
    size, shift = int(rate * 0.025), int(rate * 0.010)
    if len(wave) < size:
        raise Undecodable(f"its sound lasts {len(wave) / rate * 1000:.1f} ms, less than one window")
    centred = wave - wave.mean(dtype=np.float64)
    windows = framed(centred.astype(np.float64), size, shift)[:frames]
    windows = windows - windows.mean(axis=1, keepdims=True)
    before = np.concatenate([windows[:, :1], windows[:, :-1]], axis=1)
    windows = (windows - PREEMPHASIS * before) * np.hanning(size)
    points = 1 << (size - 1).bit_length()
    energy = np.abs(np.fft.rfft(windows, points, axis=1)) ** 2
    logs = np.log(np.maximum(energy @ filters(rate, points, mels), EPSILON))
    filled = np.zeros((frames, mels), np.float32)
    filled[: len(logs)] = logs
    return filled


def framed(wave: Floats, size: int, hop: int) -> Floats:
    """All whole windows of a wave, [count, size], without copying it."""
    return np.lib.stride_tricks.sliding_window_view(wave, size)[::hop]


@lru_cache(maxsize=8)
def filters(rate: int, points: int, mels: int) -> Floats:
    """Kaldi's triangles [1 + points // 2, mels]: evenly spaced, and straight, on the mel scale."""
    edges: Floats = np.linspace(mel(LOWEST), mel(rate / 2), mels + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    at = mel(np.arange(1 + points // 2) * rate / points)[:, None]
    rising, falling = (at - left) / (centre - left), (right - at) / (right - centre)
    return np.maximum(0.0, np.minimum(rising, falling))


def mel(hertz: npt.ArrayLike) -> Floats:
    """Kaldi's mel scale."""
    return 1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0)


def _sound_file(path: Path, limit: float) -> tuple[Wave, int]:
    with installed():
        import soundfile  # pyright: ignore[reportMissingTypeStubs]

    if path.suffix.lower() == ".wav":
        _whole_wav(path)
    with soundfile.SoundFile(path) as file:
        rate, channels, count = int(file.samplerate), int(file.channels), int(file.frames)
        _plausible(rate, channels)
        within(count / rate, limit)
        parts: list[Wave] = []
        while len(block := file.read(BLOCK // channels + 1, dtype="float32", always_2d=True)):
            parts.append(block.mean(axis=1))
    wave = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if len(wave) < count:
        raise Undecodable(f"it is cut off: {len(wave)} of its {count} samples are there")
    return wave, rate


def _whole_wav(path: Path) -> None:
    """Raise if a wav file is shorter than its header says, which libsndfile passes over."""
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return
        while len(chunk := file.read(8)) == 8:
            size = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"data":
                there = path.stat().st_size - file.tell()
                if there < size < UNKNOWN:
                    raise Undecodable(f"it is cut off: {there} of its {size} bytes are there")
                return
            file.seek(size + size % 2, 1)


def _container(path: Path, limit: float) -> tuple[Wave, int]:
    import av

    with opened(path) as container:
        if not container.streams.audio:
            raise Undecodable("it has no sound track")
        stream = container.streams.audio[0]
        decodable(stream)
        rate = int(stream.rate or 0)
        _plausible(rate, stream.channels)
        planar = av.AudioResampler(format="fltp")  # another layout in memory, the same numbers
        wave = np.concatenate(list(_heard(decoded(container, stream), planar, rate, limit)))
        complete(len(wave) / rate, container, stream)
    return wave, rate


def _heard(frames: Iterator[Any], planar: Any, rate: int, limit: float) -> Iterator[Wave]:
    heard = 0
    yield np.zeros(0, np.float32)
    for frame in frames:
        for part in planar.resample(frame):
            if part.sample_rate != rate:
                raise Undecodable(f"its rate changes from {rate} to {part.sample_rate} Hz")
            heard += part.samples
            within(heard / rate, limit)
            yield part.to_ndarray().mean(axis=0)


def _plausible(rate: int, channels: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise Undecodable(f"its header says {rate} Hz; sound has {RATES[0]} to {RATES[1]}")
    if not 1 <= channels <= MOST_CHANNELS:
        raise Undecodable(f"its header says {channels} channels; at most {MOST_CHANNELS} are read")
