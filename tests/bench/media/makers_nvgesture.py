"""A small copy of NVGesture: the official lists, and .avi files of both sensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

FRAMES = 8  # of a window; of a video, START + FRAMES + 2
START = 3
WIDTH, HEIGHT = 64, 48
SUBJECTS = {"train": (1, 2, 3, 4), "test": (5, 8)}
LABELS = (1, 2, 11, 25)
NAMES = {
    "train": "nvgesture_train_correct_cvpr2016_v2.lst",
    "test": "nvgesture_test_correct_v2.lst",
}


def make(root: Path) -> Path:
    """24 gestures below a root, which is returned."""
    for part in SUBJECTS:
        lines = list(gestures(part))
        (root / NAMES[part]).parent.mkdir(parents=True, exist_ok=True)
        (root / NAMES[part]).write_text("".join(f"{text} \n" for _, text in lines))
        for number, (folder, _) in enumerate(lines):
            label = LABELS[number % len(LABELS)]
            film(root / folder / "sk_color.avi", colour(label))
            film(root / folder / "sk_depth.avi", depth(label), codec="mjpeg")
    return root


def gestures(part: str) -> Iterator[tuple[str, str]]:
    """(folder, line) of each gesture of a list. One label was corrected."""
    for subject in SUBJECTS[part]:
        for label in LABELS:
            number = 24 if (subject, label) == (2, 11) else label
            folder = f"Video_data/class_{number:02d}/subject{subject}_r0"
            yield folder, line(folder, label, START, START + FRAMES)


def line(folder: str, label: int | str, start: int, stop: int) -> str:
    """As the official lists have it."""
    within = f"{start}:{stop}"
    return (
        f"path:./{folder} depth:sk_depth:{within} color:sk_color:{within} "
        f"duo_left:duo_left:{start + 20}:{stop + 33} label:{label}"
    )


def colour(label: int, count: int = START + FRAMES + 2) -> npt.NDArray[np.uint8]:
    """A square that moves to the right or down, over noise; how far says the label."""
    drawn = np.random.default_rng(label).integers(60, 90, (HEIGHT, WIDTH, 3), np.uint8)
    frames = np.repeat(drawn[None], count, axis=0)
    for k, frame in enumerate(frames):
        left, top = (3 * k, 8) if label % 2 else (8, 2 * k)
        frame[top : top + 14, left : left + 14] = (240, 10 * label % 256, 30)
    return frames


def depth(label: int, count: int = START + FRAMES + 2) -> npt.NDArray[np.uint8]:
    """The same, in grey."""
    return np.repeat(colour(label, count)[..., :1], 3, axis=3)


def film(
    path: Path,
    frames: Sequence[npt.NDArray[np.uint8]] | npt.NDArray[np.uint8],
    codec: str = "mpeg4",
) -> None:
    """A real .avi of 30 frames a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="avi") as container:
        stream = container.add_stream(codec, rate=30)
        stream.width, stream.height = frames[0].shape[1], frames[0].shape[0]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.bit_rate = 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
