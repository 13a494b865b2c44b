"""NVGesture: 25 hand gestures in a car, in colour, in depth and as motion (Molchanov et al. 2016).

The official lists name for each gesture a folder, for each sensor the frames in which it happens,
80 of them, and a label from 1 to 25. The label is what counts: some were corrected and are not the
number of the folder any more. A list numbered from 0 is refused. No subject is in both lists.

Frames are stored squeezed to a square of `side`, as the released code of AMSS and BSS does it.
Motion is

    computed  optical flow between frames of the colour window that is stored, by OpenCV
    npy       from a file: flow.npy in the gesture's folder, or Video_data/flow_data/<train or test>
              /<n>.npy for line n of the list, counted from 0, as in the released code. Either
              [h, w, 2, frames], as there, or [frames, h, w, 2]
    none      left out

Training sees `length` frames in a row, and a crop of `crop` pixels; all modalities of a sample see
the same ones, but that motion is not cut in time unless `cut_flow` says so, because the released
code does not. Judged is the whole window, its centre.

Deviations: where a video ends before its window, the released code adds black frames; here the
gesture is listed and left out. Depth is the luma of its video; the released code takes blue, which
is the same where a video is grey.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from ..media.assembled import assembled
from ..media.collection import Collection, Found, Item, Parameters, Undecodable
from ..media.folders import astray, lacking
from ..media.lists import first_of, without
from ..media.paths import inside, lines
from ..media.pictures import flow as flow_of
from ..media.pictures import window
from ..media.views import IMAGENET_MEAN, IMAGENET_STD, Clip
from ..signature import require_positive
from ..types import Array, Data

Frames = npt.NDArray[np.uint8]
Flow = Literal["computed", "npy", "none"]

CLASSES = 25
LABELS = tuple(f"gesture {number:02d}" for number in range(1, CLASSES + 1))
SENSORS = {"rgb": "color", "depth": "depth"}  # modality -> its word in the lists
FILES = {
    part: (f"nvgesture_{part}_correct_cvpr2016_v2.lst", f"nvgesture_{part}_correct_v2.lst")
    for part in ("train", "test")
}
COUNTS = {"train": 1050, "test": 482}
LINE = (
    "path:./Video_data/class_01/subject3_r0 depth:sk_depth:146:226 color:sk_color:146:226 label:1"
)
FOLDER = re.compile(r"(?:\./)?Video_data/(class_([0-9]{1,9})/(subject[0-9]{1,9})_r[0-9]{1,9})")
LAYOUT = f"""\
nvgesture/
  {FILES["train"][0]}    or {FILES["train"][1]}
  {FILES["test"][0]}     or {FILES["test"][1]}
  Video_data/class_01/subject3_r0/sk_color.avi, sk_depth.avi, ...
  Video_data/flow_data/train/0.npy, ...           only for --flow npy

Ask NVIDIA for nvGesture_v1: research.nvidia.com/publication/2016-06_online-detection-and-\
classification-dynamic-hand-gestures-recurrent-3d
Unpack with: 7z x nvGesture_v1.7z.001
The lists have {COUNTS["train"]} and {COUNTS["test"]} lines such as
  {LINE}"""


@dataclass(frozen=True, slots=True)
class Line:
    """A gesture in a list."""

    id: str  # its folder below Video_data
    folder: str  # the number there
    subject: str
    label: int  # from 1
    files: Mapping[str, str]  # modality -> its video, below the root
    windows: Mapping[str, tuple[int, int]]  # modality -> first frame, and the one after the last


def read(path: Path) -> list[Line]:
    """The gestures of a list."""
    read: list[Line] = []
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            read.append(parsed(line, f"{path}, line {number}"))
    twice = [one for one, count in Counter(line.id for line in read).items() if count > 1]
    if twice:
        raise ValueError(f"{path} names {', '.join(sorted(twice)[:3])} more than once")
    agree = sum(line.label == int(line.folder) for line in read)
    if agree < len(read) / 2:
        raise ValueError(
            f"{path}: {len(read) - agree} of {len(read)} labels are not the number of their "
            "folder. The official lists count labels from 1, and few were corrected; if these "
            "count from 0, get the official ones"
        )
    return read


def parsed(line: str, where: str) -> Line:
    """One line of a list; `where` it stands is for errors."""
    fields = {key: rest for key, _, rest in (part.partition(":") for part in line.split())}
    lacking = [key for key in ("path", *SENSORS.values(), "label") if key not in fields]
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(lacking)}:; a line is like {LINE!r}")
    place = FOLDER.fullmatch(fields["path"])
    if place is None:
        raise ValueError(f"{where}: path {fields['path'][:80]!r} is not like that in {LINE!r}")
    label = fields["label"]
    if not re.fullmatch("[0-9]{1,9}", label) or not 1 <= int(label) <= CLASSES:
        raise ValueError(
            f"{where}: label {label[:40]!r}; the official lists count from 1 to {CLASSES}, so "
            "get them if these count from 0"
        )
    files: dict[str, str] = {}
    windows: dict[str, tuple[int, int]] = {}
    for modality, sensor in SENSORS.items():
        said = re.fullmatch(r"([^:]+):([0-9]{1,9}):([0-9]{1,9})", fields[sensor])
        if said is None or int(said[2]) >= int(said[3]):
            raise ValueError(
                f"{where}: {sensor}:{fields[sensor][:80]} is no window; one is like "
                "sk_color:146:226"
            )
        files[modality] = f"Video_data/{place[1]}/{said[1]}.avi"
        windows[modality] = int(said[2]), int(said[3])
    return Line(place[1], place[2], place[3], int(label), files, windows)


def parameters(*, frames: int = 80, side: int = 256, flow: Flow = "computed") -> None:
    """What of a gesture is stored.

    Args:
        frames: of a window; a gesture with another number is left out.
        side: of a frame in pixels.
        flow: where motion comes from: computed, npy, or none.
    """
    require_positive("nvgesture", frames=frames, side=side)
    if frames < 2 and flow == "computed":
        raise ValueError(f"nvgesture: frames is {frames}; there is no motion in less than 2")


def find(root: Path, parameters: Parameters) -> Found:
    """What a folder holds of the data set."""
    items: list[Item] = []
    missing: dict[str, str] = {}
    remarks: list[str] = []
    named: dict[str, str] = {}
    subjects: dict[str, set[str]] = {}
    for part, files in FILES.items():
        listed = first_of(root, files)
        if listed is None:
            missing[files[0]] = "the list is not there; see the layout"
            remarks.append(without(files[0]))
            continue
        read_lines = read(inside(root, listed))
        subjects[part] = {line.subject for line in read_lines}
        remarks += remarked(listed, read_lines, COUNTS[part])
        for index, line in enumerate(read_lines):
            if line.id in named:
                raise ValueError(f"{line.id} is in the lists {named[line.id]} and {part}; in one")
            named[line.id] = part
            found = item(root, part, index, line, parameters)
            if isinstance(found, Item):
                items.append(found)
            else:
                missing[line.id] = found
    both = sorted(subjects.get("train", set()) & subjects.get("test", set()))
    if both:
        remarks.append(f"in train and in test: {', '.join(both)}")
    return Found(tuple(sorted(items, key=lambda one: one.id)), LABELS, missing, tuple(remarks))


def remarked(name: str, read_lines: list[Line], expected: int) -> list[str]:
    """What a person should know of a list."""
    said: list[str] = []
    if len(read_lines) != expected:
        said.append(f"{name} has {len(read_lines)} lines; the official one {expected}")
    if corrected := sum(line.label != int(line.folder) for line in read_lines):
        said.append(f"{name}: {corrected} labels are not the number of their folder; they count")
    return said


def item(root: Path, part: str, index: int, line: Line, parameters: Parameters) -> Item | str:
    """A gesture with all its files, or what it lacks."""
    files = {modality: (file,) for modality, file in line.files.items()}
    for modality, (start, stop) in line.windows.items():
        if stop - start != parameters["frames"]:
            return (
                f"its window {start}:{stop} in {modality} has {stop - start} frames, "
                f"not {parameters['frames']}"
            )
    for file in line.files.values():
        if wrong := lacking(root, file):
            return wrong
    if parameters["flow"] == "npy":
        places = (f"Video_data/{line.id}/flow.npy", f"Video_data/flow_data/{part}/{index}.npy")
        if wrong := astray(root, places[0]) or astray(root, places[1]):
            return wrong
        found = first_of(root, places)
        if found is None:
            return f"neither {places[0]} nor {places[1]} is there"
        files["flow"] = (found,)
    return Item(
        id=line.id,
        label=LABELS[line.label - 1],
        lists=(f"official/{part}",),
        files=files,
        group=line.subject,
        more={modality: list(frames) for modality, frames in line.windows.items()},
    )


def decode(root: Path, item: Item, parameters: Parameters) -> Mapping[str, Array]:
    """Frames of colour [t, s, s, 3] and depth [t, s, s, 1], and motion [t, s, s, 2]."""
    side = parameters["side"]
    read = {
        modality: window(inside(root, item.files[modality][0]), *item.more[modality], channels=c)
        for modality, c in (("rgb", 3), ("depth", 1))
    }
    squares = {modality: squeezed(frames, side) for modality, frames in read.items()}
    made: dict[str, Array] = {**squares}
    if parameters["flow"] == "computed":
        made["flow"] = flow_of(squares["rgb"])
    elif parameters["flow"] == "npy":
        made["flow"] = stored_flow(inside(root, item.files["flow"][0]), parameters["frames"], side)
    return made


def squeezed(frames: Frames, side: int) -> Frames:
    """Frames [t, h, w, c] as squares, whatever their shape was."""
    import cv2

    made = np.empty((len(frames), side, side, frames.shape[3]), np.uint8)
    for frame, into in zip(frames, made, strict=True):
        square = cast(Frames, cv2.resize(frame, (side, side), interpolation=cv2.INTER_LINEAR))
        into[...] = square.reshape(into.shape)  # OpenCV drops an axis of one channel
    return made


def stored_flow(path: Path, frames: int, side: int) -> npt.NDArray[np.float16]:
    """Motion [t, side, side, 2] from a file."""
    try:
        found = cast("npt.NDArray[Any]", np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, EOFError, OverflowError) as error:
        raise Undecodable(f"{path.name} is no .npy file: {error}") from error
    if found.shape == (side, side, 2, frames):
        found = found.transpose(3, 0, 1, 2)
    elif found.shape != (frames, side, side, 2):
        raise Undecodable(
            f"{path.name} has shape {found.shape}; motion has {(side, side, 2, frames)} or "
            f"{(frames, side, side, 2)}"
        )
    if found.dtype.kind not in "fiu":
        raise Undecodable(f"{path.name} holds {found.dtype}, not numbers")
    with np.errstate(over="ignore"):
        motion = found.astype(np.float16)
    if not np.isfinite(motion).all():
        raise Undecodable(f"{path.name} holds numbers that are not finite, or above 65504")
    return motion


def load(
    *,
    frames: int = 80,
    side: int = 256,
    flow: Flow = "computed",
    length: int | None = 64,
    crop: int = 224,
    cut_flow: bool = False,
    flow_scale: float = 1.0,
    valid: float = 0.1,
    by_subject: bool = True,
    seed: int = 0,
) -> Data:
    """Gestures in colour, depth and motion, as they were prepared with the first three options.

    Args:
        frames: see `parameters`.
        side: see `parameters`.
        flow: see `parameters`.
        length: frames in a row that training sees; none: all.
        crop: pixels of a side in a batch.
        cut_flow: whether motion is cut to `length` too.
        flow_scale: what motion is divided by; computed motion is stored in units of 20 pixels.
        valid: share of train that is held out.
        by_subject: whether subjects are held out whole, as they are in test.
        seed: of what is held out.
    """
    from ..media.prepare import load_store

    options = {"frames": frames, "side": side, "flow": flow}
    views = {
        "rgb": Clip(length=length, frames=frames, crop=crop, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        "depth": Clip(length=length, frames=frames, crop=crop, mean=(0.0,), std=(1.0,)),
    }
    if flow != "none":
        views["flow"] = Clip(
            length=length if cut_flow else None,
            frames=frames,
            crop=crop,
            mean=(0.0, 0.0),
            std=(flow_scale, flow_scale),
        )
    return assembled(
        "nvgesture",
        load_store(COLLECTION, options),
        lists={"train": "official/train", "test": "official/test"},
        views=views,
        about=ABOUT,
        valid=valid,
        seed=seed,
        grouped=by_subject,
    )


ABOUT = "Hand gestures in a car in colour, depth and motion (Molchanov et al., CVPR 2016)."
COLLECTION = Collection("nvgesture", LAYOUT, parameters, find, decode)
