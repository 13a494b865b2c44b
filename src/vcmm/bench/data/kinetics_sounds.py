"""Kinetics-Sounds: the clips of Kinetics that can be told by eye and by ear, 10 s each.

Arandjelovic and Zisserman (ICCV 2017) chose 34 classes. Kinetics has since renamed some and lost
clips, and groups publish lists of 31 to 34 classes. So classes and lists are part of the result:
they are checked against the known ones, and hashed.

| split | lists |
|---|---|
| ogm | my_train.txt and my_test.txt of OGM-GE, lines "id,10,number": 14799 and 2597 clips of 31
        classes that are numbered, not named |
| csv | train.csv and test.csv with columns youtube_id and label (AMSS, BSS, LFM) |

What differs from published loaders: they take the first files of a folder in the order of the file
system; here frames are sorted. They number classes in the order in which a list shows them; here
in the order of their names. They skip a clip whose files lack or that has 3 frames or fewer; here
it is listed, or kept, see `least`. An empty sound is silence to them; here it does not decode.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ..media.assembled import assembled
from ..media.clips import Sound, decoded
from ..media.collection import Collection, Found, Item, Parameters, Undecodable
from ..media.index import Index, Named, indexed, nearest
from ..media.lists import add, apart, checked, first_of, list_hash, rows
from ..types import Array, Data, SplitName

Audio = Literal["stft-10s", "fbank"]
Pictures = Literal["auto", "frames", "video"]
SplitOf = Literal["ogm", "csv"]
Pick = Literal["first", "uniform", "random"]

SOUNDS: dict[Audio, Sound] = {
    "stft-10s": Sound(35_400, 10),  # AMSS, BSS
    "fbank": Sound(16_000, None),  # OGM-GE, with its mean and deviation
}
SCALE: dict[Audio, tuple[float, float]] = {
    "stft-10s": (0.0, 1.0),
    "fbank": (-4.503877, 2 * 5.141276),
}
SIDE = 256
MOST = 10  # frames; a clip lasts 10 s
SHOWN = 5  # names of classes in a line
FEW = 3  # frames; published loaders skip clips that have no more
PLACES: dict[SplitOf, dict[str, tuple[str, ...]]] = {
    "ogm": {
        part: tuple(
            f"{folder}my_{part}.txt" for folder in ("", "annotations/", "data/KineticSound/")
        )
        for part in ("train", "test")
    },
    "csv": {part: (f"annotations/{part}.csv", f"{part}.csv") for part in ("train", "test")},
}
KNOWN = {  # `list_hash` of the lists of OGM-GE
    "ogm/train": "7dded03fa610168c7c1737a03fce3abd33ef48b16c6cc61c6b38e33fdced2095",
    "ogm/test": "58cfbca79252ea8c5fe9c990d0dd68df7e2fdc29f5a0f133bb9fae32c88f99fa",
}
# The 31 classes of AdaMML (ICCV 2021); others have these too, and more.
CLASSES = (
    "blowing nose, blowing out candles, bowling, chopping wood, dribbling basketball, laughing, "
    "mowing lawn, playing accordion, playing bagpipes, playing bass guitar, playing clarinet, "
    "playing drums, playing guitar, playing harmonica, playing keyboard, playing organ, "
    "playing piano, playing saxophone, playing trombone, playing trumpet, playing violin, "
    "playing xylophone, ripping paper, shoveling snow, shuffling cards, singing, stomping grapes, "
    "tap dancing, tapping guitar, tapping pen, tickling"
)
LAYOUT = """\
ROOT/my_train.txt, my_test.txt           "CLIP,10,number" on a line, for split=ogm
ROOT/annotations/train.csv, test.csv     columns youtube_id,label, for split=csv
and anywhere below ROOT, for every CLIP of the lists,
  CLIP.mp4                               the clip with its sound, or
  Image-01-FPS/CLIP/frame_00001.jpg      frames, one for each second, and
  CLIP.wav                               its sound
AMSS and BSS have train_img/Image-01-FPS, train_wav, test_img/Image-01-FPS, test_wav.
A CLIP is VIDEO_000010_000020, VIDEO_10, or VIDEO if it is the only one of its video,
where VIDEO is the 11 letters of YouTube; files may be named in another of these ways.
Folders that are links, hidden or below 8 others are not looked into.

Lists: data/KineticSound of https://github.com/GeWu-Lab/OGM-GE_CVPR2022
Media: clips of Kinetics-400, https://github.com/cvdfoundation/kinetics-dataset
Some clips are gone; compare the lists of what you have with what a paper had."""


def parameters(
    *,
    split: SplitOf = "ogm",
    audio: Audio = "stft-10s",
    pictures: Pictures = "auto",
    side: int = SIDE,
    least: int = 1,
) -> None:
    """Which clips are decoded, and how.

    Args:
        split: whose lists: numbers for classes (ogm), or names (csv).
        audio: a spectrogram of 10 s, or 128 mel filters.
        pictures: ready frames or videos; auto takes what more clips have, of equals frames.
        side: pixels of the short side, to which larger frames are shrunk.
        least: clips with fewer frames are listed as unusable; 4 is what published loaders keep.
    """
    if split not in PLACES:
        raise ValueError(f"split = {split!r}; it is ogm or csv")
    if audio not in SOUNDS:
        raise ValueError(f"audio = {audio!r}; it is one of {', '.join(SOUNDS)}")
    if pictures not in ("auto", "frames", "video"):
        raise ValueError(f"pictures = {pictures!r}; it is one of auto, frames, video")
    if side < 1:
        raise ValueError(f"side = {side}; it is a number of pixels")
    if not 1 <= least <= MOST:
        raise ValueError(f"least = {least}; it is a number of frames, 1 to {MOST}")


def load(
    *,
    frames: int = 3,
    pick: Pick = "first",
    valid: float = 0.1,
    seed: int = 0,
    size: int = 224,
    split: SplitOf = "ogm",
    audio: Audio = "stft-10s",
    pictures: Pictures = "auto",
    side: int = SIDE,
    least: int = 1,
) -> Data:
    """The clips that `vcmm data prepare kinetics_sounds` decoded with the same parameters.

    Args:
        frames: of a clip, as a model sees it.
        pick: the first ones, one from each of as many segments, or any.
        valid: the share of train that is held out for selection.
        seed: of what is held out.
        size: of a frame, in pixels.
    """
    from ..media.prepare import load_store
    from ..media.views import Frames, Spectrogram

    given = {"split": split, "audio": audio, "pictures": pictures, "side": side, "least": least}
    store = load_store(COLLECTION, given)
    lists: dict[SplitName, str] = {"train": f"{split}/train", "test": f"{split}/test"}
    mean, std = SCALE[audio]
    return assembled(
        "kinetics_sounds",
        store,
        lists=lists,
        views={
            "audio": Spectrogram(shape=SOUNDS[audio].shape, mean=mean, std=std),
            "visual": Frames(count=frames, pick=pick, size=size),
        },
        about=(
            f"Kinetics-Sounds, split {split}, {audio} and {frames} frames ({pick}); "
            f"{len(store.labels)} classes, sha256 {class_hash(store.labels)[:16]}."
        ),
        valid=valid,
        seed=seed,
    )


def find(root: Path, parameters: Parameters) -> Found:
    """The clips of the lists, as far as their files are there."""
    split: SplitOf = parameters["split"]
    lists, missing = read(root, split)
    if missing:
        return Found((), (), missing)
    labels = classes(split, lists)
    index = indexed(root)
    wanted = {one: label for listed in lists.values() for one, label in listed.items()}
    visual, sounds, taken = sources(index, wanted, parameters["pictures"])
    missing.update(index.wrong)
    items: list[Item] = []
    several = 0
    for name in sorted(wanted):
        part = "train" if name in lists[f"{split}/train"] else "test"
        found = {"frames": visual.get(name), "sound": sounds.get(name)}
        lacks = [what for what, places in found.items() if not places]
        if lacks:
            missing[name] = f"it has no {' and no '.join(lacks)}"
            continue
        several += any(len(places) > 1 for places in found.values())
        seen, heard = nearest(found["frames"], part), nearest(found["sound"], part)
        files = {"audio": (heard,), "visual": tuple(index.inner.get(seen, [seen]))}
        items.append(Item(name, wanted[name], (f"{split}/{part}",), files))
    remarks = [
        *taken,
        *told(split, lists, labels),
        *few(items, visual is index.frames),
    ]
    if index.passed:
        passed = [f"{folder} ({why})" for folder, why in sorted(index.passed.items())]
        remarks.append(f"{len(passed)} folders are not looked into: {some(passed)}")
    if several:
        remarks.append(
            f"{several} clips lie in several places; a folder named after their list is taken, "
            "train_img for train, and then the first by name"
        )
    items = unshared(items, missing)
    return Found(tuple(items), labels, missing, tuple(remarks))


def unshared(items: Sequence[Item], missing: dict[str, str]) -> list[Item]:
    """The items whose files are theirs alone; of others nobody knows which clip they are."""
    owners: dict[str, list[str]] = {}
    for item in items:
        for path in {*item.files["audio"], item.files["visual"][0]}:
            owners.setdefault(path, []).append(item.id)
    for path, names in owners.items():
        if len(names) > 1:
            for name in names:
                missing[name] = f"{path} is found for {' and for '.join(names)}; name it after one"
    return [item for item in items if item.id not in missing]


def decode(root: Path, item: Item, parameters: Parameters) -> Mapping[str, Array]:
    """Audio [f, t] or [t, f] and visual [t, h, w, 3] of a clip."""
    made = decoded(root, item, SOUNDS[parameters["audio"]], parameters["side"], MOST)
    if len(made["visual"]) < parameters["least"]:
        raise Undecodable(
            f"{item.files['visual'][0]}: the clip has {len(made['visual'])} frames, and "
            f"least={parameters['least']} are asked for"
        )
    return made


def read(root: Path, split: SplitOf) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """(lists, missing): the label of every clip in train and test, or which list is not there."""
    places = {part: first_of(root, options) for part, options in PLACES[split].items()}
    missing = {
        PLACES[split][part][0]: f"the list of {part} for split={split} is not there"
        for part, place in places.items()
        if place is None
    }
    if missing:
        for other in PLACES:
            if other != split and all(first_of(root, PLACES[other][part]) for part in places):
                hint = f"; those for split={other} are, so say --split {other}"
                missing = {name: why + hint for name, why in missing.items()}
        return {}, missing
    reader = numbered if split == "ogm" else titled
    lists = {f"{split}/{part}": reader(root / str(place)) for part, place in places.items()}
    apart(lists)
    return lists, {}


def numbered(path: Path) -> dict[str, str]:
    """A list of lines "id,10,number"."""
    found: dict[str, str] = {}
    for row in rows(path):
        if len(row.cells) != 3 or not re.fullmatch("[0-9]{1,3}", row.cells[2]):
            raise ValueError(
                f'{row.where}: {",".join(row.cells)!r}; a line is "id,10,number", the number being '
                "that of the class"
            )
        add(found, checked(row.cells[0], row.where), str(int(row.cells[2])), row.where)
    return found


def titled(path: Path) -> dict[str, str]:
    """A csv with columns youtube_id and label, among others."""
    found: dict[str, str] = {}
    lines = rows(path)
    head = next(lines, None)
    if head is None or not {"youtube_id", "label"} <= set(head.cells):
        raise ValueError(f"{path.name} must begin with a line of columns, youtube_id and label")
    name, label = head.cells.index("youtube_id"), head.cells.index("label")
    for row in lines:
        if len(row.cells) != len(head.cells) or not row.cells[label]:
            raise ValueError(
                f"{row.where}: {','.join(row.cells)!r} does not fit the columns "
                f"{','.join(head.cells)}"
            )
        add(found, checked(row.cells[name], row.where), row.cells[label], row.where)
    return found


def classes(split: SplitOf, lists: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The classes of train in order; an error if test has others."""
    train, test = (set(lists[f"{split}/{part}"].values()) for part in ("train", "test"))
    if test - train:
        raise ValueError(f"class {min(test - train)!r} is in the list of test, and not of train")
    return tuple(sorted(train, key=int if split == "ogm" else None))


def sources(
    index: Index, wanted: Iterable[str], pictures: Pictures
) -> tuple[Named, Named, list[str]]:
    """(frames, sounds, remarks): each from one kind of file for all clips, that most have."""
    names = list(wanted)
    kinds = {"folders of pictures": index.frames, "videos": index.videos}
    if pictures != "auto":
        only = "videos" if pictures == "video" else "folders of pictures"
        kinds = {only: kinds[only]}
    visual, seen = most(kinds, names)
    sounds, heard = most({"wav files": index.sounds, "videos": index.videos}, names)
    return visual, sounds, [f"frames come from {seen}", f"sound comes from {heard}"]


def most(kinds: Mapping[str, Named], names: Sequence[str]) -> tuple[Named, str]:
    """The kind of file that most clips have, of equals the first; and how many have which."""
    served = {kind: sum(bool(of.get(name)) for name in names) for kind, of in kinds.items()}
    best = max(served, key=lambda kind: served[kind])
    others = [f"; {count} have {kind}" for kind, count in served.items() if count and kind != best]
    return kinds[best], f"{best}, {served[best]} clips{''.join(others)}"


def told(
    split: SplitOf, lists: Mapping[str, Mapping[str, str]], labels: Sequence[str]
) -> list[str]:
    """The lists and the classes, and whether they are the known ones."""
    said: list[str] = []
    for name, listed in sorted(lists.items()):
        found = list_hash(listed)
        said.append(f"list {name} names {len(listed)} clips, sha256 {found[:16]}")
        if name in KNOWN:
            said[-1] += f", {'' if found == KNOWN[name] else 'not '}the published list"
    line = f"{len(labels)} classes, sha256 {class_hash(labels)[:16]}"
    if split == "ogm":
        return [*said, f"{line}, by number: which they are was not published"]
    known = set(CLASSES.split(", "))
    plain = {label.lower().replace("_", " ") for label in labels}
    parts = [
        f"{what} {some(sorted(differ))}"
        for what, differ in (
            ("without", known - plain),
            ("with", plain - known),
        )
        if differ
    ]
    return [*said, f"{line}: the 31 of AdaMML{' ' + ' and '.join(parts) if parts else ''}"]


def some(names: Sequence[str]) -> str:
    """A few of many names."""
    rest = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *rest])


def few(items: Sequence[Item], ready: bool) -> list[str]:
    """A line about clips that published loaders skip in silence."""
    counts = Counter(len(item.files["visual"]) for item in items) if ready else Counter[int]()
    short = sum(count for frames, count in counts.items() if frames <= FEW)
    if not short:
        return []
    return [
        f"{short} clips have {FEW} frames or fewer; published loaders skip them in silence, and "
        f"least={FEW + 1} lists them as unusable"
    ]


def class_hash(labels: Sequence[str]) -> str:
    """sha256 of the classes, in the order of their numbers."""
    return hashlib.sha256(json.dumps(list(labels)).encode()).hexdigest()


COLLECTION = Collection("kinetics_sounds", LAYOUT, parameters, find, decode)
