"""Seven shoulder exercises, seen by the accelerometer and the gyroscope of a smartwatch.

The recordings of Burns et al., "Shoulder physiotherapy exercise recognition: machine learning the
inertial signals from a smartwatch" (arXiv:1802.01489), as the PyPI package seglearn 1.2.5 publishes
them under the BSD licence (WATCH_LICENSE): 10 subjects, both arms, 50 Hz. They are shipped with
vcmm; `tools/make_watch.py` made the file.

Windows of 2 s do not cross recordings, and whole subjects go to train, valid or test.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt

from ..types import Data, Split, SplitName
from .assemble import assemble

WINDOW = 100  # samples at 50 Hz: 2 s
SENSORS = ("accelerometer", "gyroscope")
SUBJECTS: dict[SplitName, tuple[int, ...]] = {
    "train": (1, 2, 3, 4, 5, 6),
    "valid": (7,),
    "test": (8, 9, 10),
}
ABOUT = (
    "Accelerometer and gyroscope of a smartwatch at 50 Hz during 7 shoulder exercises of 10 "
    "subjects (seglearn 1.2.5, BSD-3-Clause; arXiv:1802.01489), in windows of 2 s. "
    "Subjects 1-6 are train, 7 is valid, 8-10 are test."
)


def load(*, stride: int = 50) -> Data:
    """Windows that start every `stride` samples of a recording; 50 samples are one second."""
    if stride < 1:
        raise ValueError(f"stride = {stride}; windows start every 1 or more samples")
    with (
        resources.files("vcmm.bench.data").joinpath("watch.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        stored = {name: archive[name] for name in archive.files}
    starts, recording = windows(stored["length"], stride)
    exercise = stored["exercise"][recording].astype(np.int64)
    subject = stored["subject"][recording].astype(np.int64)
    inputs = {
        sensor: cut(stored[sensor], starts) / np.float32(stored[f"{sensor}_steps"])
        for sensor in SENSORS
    }
    splits: dict[SplitName, Split] = {}
    for name, subjects in SUBJECTS.items():
        here = np.isin(subject, subjects)
        splits[name] = Split({m: inputs[m][here] for m in SENSORS}, exercise[here], subject[here])
    return assemble(
        "watch", splits, labels=tuple(map(str, stored["exercises"].tolist())), about=ABOUT
    )


def windows(
    lengths: npt.NDArray[np.int32], stride: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first sample, recording) of every window that lies within one recording."""
    starts: list[int] = []
    recording: list[int] = []
    first = 0
    for number, length in enumerate(lengths.tolist()):
        inside = range(first, first + length - WINDOW + 1, stride)
        starts.extend(inside)
        recording.extend([number] * len(inside))
        first += length
    return np.array(starts, np.int64), np.array(recording, np.int64)


def cut(samples: npt.NDArray[np.int16], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
    """Windows [n, t, c] of samples [total, c]."""
    return samples[starts[:, None] + np.arange(WINDOW)]
