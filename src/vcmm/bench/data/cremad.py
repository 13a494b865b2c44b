"""CREMA-D: six emotions, acted by 91 people, heard and seen.

Cao et al., "CREMA-D: Crowd-sourced emotional multimodal actors dataset" (IEEE TAC, 2014): 7442
clips. A clip is named by its actor, sentence, emotion and level, 1001_DFA_ANG_XX, and that is where
labels and actors are taken from. The methods compared here were published on the lists of OGM-GE
(CVPR 2022), 6698 clips and 744, where every actor is on both sides; other papers draw other lists
of the same sizes. So a list is checked, hashed, and named in results.

| split | lists |
|---|---|
| ogm | train.csv and test.csv, lines "id,LABEL", as OGM-GE publishes them; the user has them |
| stratified | made here: a tenth of every class is test, by a hash of the ids |
| actor | made here: a tenth of the actors is test, and of the others a tenth valid |

What differs from published loaders: they open the first files of a folder in the order of the file
system, whatever index they drew; here frames are sorted. They skip a clip whose files lack; here it
is listed. Sound is resampled by a polyphase filter instead of librosa's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from ..holdout import hold_out
from ..media import folders
from ..media.assembled import assembled, chosen_ids
from ..media.clips import Sound, decoded
from ..media.collection import Collection, Found, Item, Parameters
from ..media.lists import add, apart, checked, first_of, list_hash, rows
from ..types import Array, Data, SplitName

Audio = Literal["stft-3s", "stft-20s", "fbank"]
Pictures = Literal["auto", "frames", "video"]
SplitOf = Literal["ogm", "stratified", "actor"]
Pick = Literal["first", "uniform", "random"]

LABELS = ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")  # numbered as everybody does
NAME = re.compile(r"([0-9]{4})_[A-Z]{3}_(NEU|HAP|SAD|FEA|DIS|ANG)_(?:XX|LO|MD|HI)")
ALIASES = {"1040_ITH_SAD_X": "1040_ITH_SAD_XX"}  # misspelled in early copies
SOUNDS: dict[Audio, Sound] = {
    "stft-3s": Sound(22_050, 3),  # OGM-GE, AMSS
    "stft-20s": Sound(22_050, 20),  # LFM, AUG, BSS
    "fbank": Sound(16_000, None),  # MLA
}
ALL = 7442  # clips
TEST = 0.1  # the share of it, in the lists that are made here
SIDE = 360  # of the clips as they are
MOST = 10  # frames; the longest clip lasts 5 s
AUDIO, VIDEO, FRAMES = "AudioWAV", "VideoFlash", "Image-01-FPS"
VIDEOS = (".flv", ".mp4", ".avi", ".mkv", ".webm", ".mov")  # endings
PLACES = ("annotations/{}.csv", "data/CREMAD/{}.csv", "{}.csv")
# `list_hash` of the lists of all 7442 clips: of OGM-GE's as published, and of those made here.
KNOWN = {
    "ogm/train": "33a5f3c2cce480b29d6d15adc51e878fdcaa2a6ef7faa979e3b7d694864aaedb",
    "ogm/test": "ce027cb5d4f28b77813d5300870da24391d1a1a458d60a303864f96ee04212a7",
    "stratified/test": "6555ec90b39a67d3973cab08c890093d0111b16fbdfa10581675dc1ad7f645f5",
    "actor/test": "5e4d9e7c1137d306f3d5b1a7e91ed87cb6352ddbf0bb77b88a9688237ae9a98f",
}
LAYOUT = """\
ROOT/AudioWAV/1001_DFA_ANG_XX.wav              7442 files
ROOT/VideoFlash/1001_DFA_ANG_XX.flv            7442 files, or instead of them
ROOT/Image-01-FPS/1001_DFA_ANG_XX/00000.jpg    frames, one for each second
ROOT/annotations/train.csv, test.csv           "1001_DFA_ANG_XX,ANG" on a line
The lists may also lie in ROOT/data/CREMAD or ROOT; only split=ogm needs them.

Media: git clone https://github.com/CheyneyComputerScience/CREMA-D, and git lfs pull
within it; a .wav of about 130 bytes is a pointer that git lfs has not replaced yet.
Lists: data/CREMAD of https://github.com/GeWu-Lab/OGM-GE_CVPR2022"""


def parameters(*, audio: Audio = "stft-3s", pictures: Pictures = "auto", side: int = SIDE) -> None:
    """How clips are decoded.

    Args:
        audio: a spectrogram of 3 s or 20 s, the clip repeated, or 128 mel filters.
        pictures: ready frames or videos; auto takes what more clips have, of equals the frames.
        side: pixels of the short side, to which larger frames are shrunk.
    """
    if audio not in SOUNDS:
        raise ValueError(f"audio = {audio!r}; it is one of {', '.join(SOUNDS)}")
    if pictures not in ("auto", "frames", "video"):
        raise ValueError(f"pictures = {pictures!r}; it is one of auto, frames, video")
    if side < 1:
        raise ValueError(f"side = {side}; it is a number of pixels")


def load(
    *,
    split: SplitOf = "ogm",
    frames: int = 1,
    pick: Pick = "first",
    valid: float = 0.1,
    seed: int = 0,
    size: int = 224,
    audio: Audio = "stft-3s",
    pictures: Pictures = "auto",
    side: int = SIDE,
) -> Data:
    """The clips that `vcmm data prepare cremad` decoded with the same audio, pictures and side.

    Args:
        split: OGM-GE's lists, a stratified one, or one that keeps actors apart.
        frames: of a clip, as a model sees it.
        pick: the first ones, one from each of as many segments, or any.
        valid: the share of train that is held out for selection.
        seed: of what is held out.
        size: of a frame, in pixels.
    """
    from ..media.prepare import load_store
    from ..media.views import Frames, Spectrogram

    parameters(audio=audio, pictures=pictures, side=side)
    store = load_store(COLLECTION, {"audio": audio, "pictures": pictures, "side": side})
    if split == "ogm" and not any("ogm/train" in of for of in store.lists):
        raise ValueError(
            "split = 'ogm' needs the lists of OGM-GE, which were not there when cremad was "
            "prepared: put train.csv and test.csv into ROOT/annotations and run vcmm data prepare "
            "cremad --root ROOT again, or take split=stratified"
        )
    lists: dict[SplitName, str] = {"train": f"{split}/train", "test": f"{split}/test"}
    return assembled(
        "cremad",
        store,
        lists=lists,
        views={
            "audio": Spectrogram(shape=SOUNDS[audio].shape),
            "visual": Frames(count=frames, pick=pick, size=size),
        },
        about=f"CREMA-D, split {split}, {audio} and {frames} frames ({pick}).",
        valid=valid,
        seed=seed,
        grouped=split == "actor",
    )


@dataclass(slots=True)
class Listing:
    """What `find` gathers on its way."""

    missing: dict[str, str] = field(default_factory=dict[str, str])
    remarks: list[str] = field(default_factory=list[str])


def find(root: Path, parameters: Parameters) -> Found:
    """The clips of a folder, and in which lists they are."""
    notes = Listing()
    sound = heard(root, notes)
    frames = seen(root, parameters["pictures"], notes)
    published = ogm(root, notes)
    names = sorted({*sound, *frames, *(one for listed in published.values() for one in listed)})
    lists = {**published, **generated(names, notes)}
    notes.remarks.extend(told(lists))
    items: list[Item] = []
    for name in names:
        lacks = [what for what, has in (("sound", sound), ("frames", frames)) if name not in has]
        if name in notes.missing or lacks:
            notes.missing.setdefault(name, f"it has no {' and no '.join(lacks)}")
            continue
        items.append(
            Item(
                name,
                label_of(name),
                tuple(sorted(one for one, listed in lists.items() if name in listed)),
                {"audio": (sound[name],), "visual": frames[name]},
                group=name[:4],
            )
        )
    return Found(tuple(items), LABELS, notes.missing, tuple(notes.remarks))


def decode(root: Path, item: Item, parameters: Parameters) -> Mapping[str, Array]:
    """Audio [f, t] or [t, f] and visual [t, h, w, 3] of a clip."""
    return decoded(root, item, SOUNDS[parameters["audio"]], parameters["side"], MOST)


def label_of(name: str) -> str:
    """The emotion in a clip's name."""
    matched = NAME.fullmatch(name)
    if matched is None:
        raise ValueError(
            f"{name!r} is no clip of CREMA-D; they are named as 1001_DFA_ANG_XX is, by actor, "
            "sentence, emotion and level"
        )
    return matched[2]


def heard(root: Path, notes: Listing) -> dict[str, str]:
    """The sound of every clip that has one."""
    found: dict[str, str] = {}
    strangers: list[str] = []
    for one in folders.entries(root, AUDIO):
        name = ALIASES.get(one.stem, one.stem)
        if one.folder or one.ending != ".wav" or not NAME.fullmatch(name):
            strangers.append(one.name)
        elif one.wrong:
            notes.missing[name] = one.wrong
        elif name == one.stem or name not in found:
            found[name] = one.path
    if not found:
        notes.missing[AUDIO] = f"there are no sounds {AUDIO}/*.wav"
    passed_over(AUDIO, strangers, notes)
    return found


def seen(root: Path, wanted: Pictures, notes: Listing) -> dict[str, tuple[str, ...]]:
    """The frames of every clip that has them, or its video: of one kind for all clips."""
    kinds = {"auto": (FRAMES, VIDEO), "frames": (FRAMES,), "video": (VIDEO,)}[wanted]
    looked = {where: shown(root, where) for where in kinds}
    served = {where: len(one.files) for where, one in looked.items()}
    where = max(served, key=lambda one: served[one])  # of equals the frames
    if not served[where]:
        where = kinds[-1]
        notes.missing[where] = f"there are no frames {FRAMES}/*/*.jpg and no videos {VIDEO}/*.flv"
    else:
        others = [f"; {one} has {count}" for one, count in served.items() if count and one != where]
        notes.remarks.append(f"frames come from {where}, {served[where]} clips{''.join(others)}")
    notes.missing.update(looked[where].wrong)
    passed_over(where, looked[where].strangers, notes)
    return looked[where].files


@dataclass(slots=True)
class Shown:
    """What a folder of frames or of videos holds."""

    files: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    wrong: dict[str, str] = field(default_factory=dict[str, str])  # clip -> why it may not be read
    strangers: list[str] = field(default_factory=list[str])


def shown(root: Path, where: str) -> Shown:
    """The clips of one of the two folders."""
    ready, of = where == FRAMES, Shown()
    for one in folders.entries(root, where):
        name = one.name if ready else one.stem
        name = ALIASES.get(name, name)
        fits = one.folder if ready else not one.folder and one.ending in VIDEOS
        if not NAME.fullmatch(name) or not (fits or one.wrong):
            of.strangers.append(one.name)
        elif one.wrong:
            of.wrong[name] = one.wrong
        elif not ready:
            of.files.setdefault(name, (one.path,))
        else:
            inner = folders.pictures(root, one.path)
            if wrong := [frame.wrong for frame in inner if frame.wrong]:
                of.wrong[name] = wrong[0]
            elif inner:
                of.files.setdefault(name, tuple(frame.path for frame in inner))
    return of


def passed_over(folder: str, strangers: list[str], notes: Listing) -> None:
    """Say which files are no clips."""
    if strangers:
        shown = ", ".join(strangers[:5]) + (", ..." if len(strangers) > 5 else "")
        notes.remarks.append(f"{len(strangers)} in {folder} are no clips of CREMA-D: {shown}")


def ogm(root: Path, notes: Listing) -> dict[str, dict[str, str]]:
    """The published lists, if they are there: the label of every clip."""
    places = {
        part: first_of(root, [place.format(part) for place in PLACES]) for part in ("train", "test")
    }
    lists = {f"ogm/{part}": listed(root, place) for part, place in places.items() if place}
    if len(lists) == 1:
        for part in (part for part, place in places.items() if not place):
            notes.missing[f"{part}.csv"] = "the lists of OGM-GE are two, train.csv and test.csv"
        return {}
    if not lists:
        notes.remarks.append(
            "the lists of OGM-GE are not there: split=ogm cannot be loaded; put train.csv and "
            "test.csv into annotations"
        )
    apart(lists)
    return lists


def listed(root: Path, place: str) -> dict[str, str]:
    """The clips of a list, with the labels that it gives them."""
    found: dict[str, str] = {}
    for row in rows(root / place):
        if len(row.cells) < 2:
            said = ",".join(row.cells)
            raise ValueError(f'{row.where}: {said!r} has no label; a line is "id,LABEL"')
        name, label = checked(row.cells[0], row.where), row.cells[1]
        name = ALIASES.get(name, name)
        if not NAME.fullmatch(name) or label != label_of(name):
            raise ValueError(
                f"{row.where}: {name!r} with label {label!r}; a clip is named as 1001_DFA_ANG_XX, "
                "and its label is the emotion in its name"
            )
        add(found, name, label, row.where)
    return found


def generated(names: list[str], notes: Listing) -> dict[str, dict[str, str]]:
    """The lists that are made here: of all clips, so that one that lacks moves no other."""
    labels = {name: label_of(name) for name in names}
    target = np.array([LABELS.index(label) for label in labels.values()])
    actors = np.array([name[:4] for name in names])
    makers: dict[str, Callable[[], Iterable[str]]] = {
        "stratified": lambda: chosen_ids(names, target.tolist(), TEST, 0),
        "actor": lambda: (names[int(row)] for row in hold_out(target, TEST, 0, actors)[1]),
    }
    lists: dict[str, dict[str, str]] = {}
    for split, make in makers.items() if names else ():
        try:
            test = set(make())
        except ValueError as error:  # too few clips: then there is no such split
            notes.remarks.append(f"split {split} cannot be made: {error}")
            continue
        for part in ("train", "test"):
            lists[f"{split}/{part}"] = {
                name: label for name, label in labels.items() if (name in test) == (part == "test")
            }
    return lists


def told(lists: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for every list: its size, and whether it is the one that others use."""
    said: list[str] = []
    for name, labels in sorted(lists.items()):
        found = list_hash(labels)
        line = f"list {name} names {len(labels)} clips, sha256 {found[:16]}"
        if name in KNOWN:
            what = "the published list" if name.startswith("ogm") else f"that of all {ALL} clips"
            line += f", {'' if found == KNOWN[name] else 'not '}{what}"
        said.append(line)
    return said


COLLECTION = Collection("cremad", LAYOUT, parameters, find, decode)
