"""The files of clips of YouTube, wherever they lie in a folder, by the name of their clip."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .folders import PICTURES, tree

VIDEOS = (".mp4", ".mkv", ".webm", ".avi")
CLIP = re.compile(r"(.{11})_([0-9]{1,9})(?:_[0-9]{1,9})?")  # YouTube's id, and when the clip begins
SECONDS = 10  # of a clip of Kinetics


class Named:
    """Files of one kind by the name of their clip."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}
        self._clips: dict[str, set[str]] = {}  # of every video

    def add(self, name: str, path: str) -> None:
        """Note a file."""
        self._files.setdefault(name, []).append(path)
        if matched := CLIP.fullmatch(name):
            self._clips.setdefault(matched[1], set()).add(name)

    def get(self, name: str) -> list[str]:
        """The files of a clip. They may be named with or without its end, or by the video alone."""
        others = [name]
        if matched := CLIP.fullmatch(name):
            video, start = matched[1], int(matched[2])
            others += [f"{video}_{start:06d}_{start + SECONDS:06d}", f"{video}_{start}", video]
        elif len(clips := self._clips.get(name, set[str]())) == 1:
            others += clips
        return next((self._files[other] for other in others if other in self._files), list[str]())


@dataclass(slots=True)
class Index:
    """The files of a folder."""

    sounds: Named = field(default_factory=Named)
    videos: Named = field(default_factory=Named)
    frames: Named = field(default_factory=Named)  # folders
    inner: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # what is in one
    wrong: dict[str, str] = field(default_factory=dict[str, str])  # what may not be opened
    passed: dict[str, str] = field(default_factory=dict[str, str])  # folders not looked into


def indexed(root: Path) -> Index:
    """Read the whole folder once."""
    index = Index()
    for folder, here in tree(root, passed=index.passed):
        inner: list[str] = []
        for one in here:
            if one.wrong:
                index.wrong[one.path] = one.wrong
            elif one.folder:
                continue
            elif one.ending == ".wav":
                index.sounds.add(one.stem, one.path)
            elif one.ending in VIDEOS:
                index.videos.add(one.stem, one.path)
            elif one.ending in PICTURES:
                inner.append(one.path)
        if inner:
            index.inner[folder] = inner
            index.frames.add(folder.rpartition("/")[2], folder)
    return index


def nearest(places: Sequence[str], part: str) -> str:
    """Of several files, one below a folder that is named after the list; else the first."""

    def strange(place: str) -> bool:
        return not any(folder.startswith(part) for folder in place.split("/")[:-1])

    return min(places, key=lambda place: (strange(place), place))
