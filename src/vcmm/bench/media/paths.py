"""Which files a list may name, and how the list itself is read.

Lists of samples are downloaded, so a path in one is a stranger's word: it stays below the root, or
it is refused before anything is opened.
"""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path, PureWindowsPath

MOST_BYTES = 10_000_000  # the longest list of the four benchmarks has half a million


def inside(root: Path, relative: str) -> Path:
    """The path `root / relative`, which may not exist; `ValueError` if it lies outside `root`.

    A symlink is followed, and may lead anywhere below the root. So may the root itself be one.
    """
    path = root / _plain(relative)
    # Resolved both, since the root may be a link; in 3.11 a loop of links is a RuntimeError.
    try:
        where, top = path.resolve(), root.resolve()
    except (OSError, RuntimeError) as problem:
        raise ValueError(f"the entry {relative!r} cannot be followed: {problem}") from None
    if not where.is_relative_to(top):
        raise ValueError(
            f"the entry {relative!r} is a link that leads out of the data's folder; copy the "
            "file into it, or give the folder that holds both"
        )
    return path


def _plain(relative: str) -> str:
    """The same words, if they say nothing but names of folders and of a file."""
    wrong = ""
    if not relative.strip() or relative.strip() == ".":
        wrong = "names no file"
    elif "\0" in relative or not _encodes(relative):
        wrong = "holds characters that no file name has"
    elif os.path.isabs(relative) or PureWindowsPath(relative).anchor:
        wrong = "is an absolute path; an entry is relative to the data's folder"
    elif ".." in re.split(r"[/\\]", relative):
        wrong = "leads out of the data's folder"
    if wrong:
        raise ValueError(f"the entry {relative!r} {wrong}")
    return relative


def _encodes(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def lines(path: Path, *, most: int = MOST_BYTES) -> list[str]:
    """The lines of a text file in utf-8, without their ends; a BOM is dropped.

    Only a newline ends a line, or one after a carriage return: a tweet may hold the other
    separators of Unicode. An error says what is wrong with the file and where.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no list {path}")
    if not path.is_file():
        raise ValueError(f"{path} is not a file; a list is a text file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} is longer than {most} bytes, so it is no list of samples")
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError(f"{path} is UTF-16; save it as UTF-8")
    content = content.removeprefix(BOM_UTF8)
    if b"\0" in content:
        raise ValueError(f"{path} is binary; a list is a text file in UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        byte = content[problem.start]
        raise ValueError(
            f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    found = [line.removesuffix("\r") for line in text.split("\n")]
    return found[:-1] if not found[-1] else found
