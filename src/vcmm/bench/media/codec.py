"""What decoders share: which files they may open, and that a failure is `Undecodable`.

No sample is damaged in silence: a packet that does not decode, or that is cut off, is an error, and
so is a file much shorter than it says. Containers are those of the four benchmarks, and are
read from this one file; a playlist in disguise opens no other.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .collection import Undecodable

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

LFS = b"version https://git-lfs"
# By the names of their readers; a wav or mp3 in disguise may pass for its sound.
CONTAINERS = "flv,live_flv,mov,mp4,m4a,avi,matroska,webm,mpeg,mpegts,asf,wav,mp3,flac,ogg,aac"
MOST_PIXELS = 64_000_000  # of one picture; about eight times a frame of 4K
# The part of the declared time that must be there. A stream often ends a little earlier than the
# file says, by a frame or by the delay of a codec.
ENOUGH = Fraction(3, 4)
UNKNOWN = 0xFFFF_FF00  # from here on, what recorders write that do not know a length yet

# What decoders raise for a file that is not what it claims to be.
FAILURES: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    SyntaxError,  # Pillow's word for a broken PNG
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    LookupError,
    TypeError,
    ArithmeticError,
)


def named(path: Path) -> str:
    """A file as errors name it: with its folder, but not where the root lies."""
    name = "/".join(path.parts[-2:])
    return name.encode("utf-8", "backslashreplace").decode("utf-8")  # so that it can be printed


@contextmanager
def decoding(path: Path) -> Generator[None]:
    """Make whatever a decoder raises for a file `Undecodable`, which names it.

    What is no medium at all is found before it is opened.
    """
    try:
        _look(path)
        yield
    except Undecodable as problem:
        raise Undecodable(f"{named(path)}: {problem}") from problem.__cause__
    except FAILURES as problem:
        said = str((isinstance(problem, OSError) and problem.strerror) or problem)
        said = said.replace(str(path), named(path)) or type(problem).__name__
        raise Undecodable(f"{named(path)} does not decode: {said}") from problem


@contextmanager
def installed() -> Generator[None]:
    """Make whatever an import raises an ImportError: a library that lacks is an OSError to some."""
    try:
        yield
    except OSError as problem:
        raise ImportError(str(problem)) from problem


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def lasting(error: BaseException) -> bool:
    """Whether it is of what a file holds, and not of the machine and the moment."""
    for cause in causes(error):
        system = isinstance(cause, OSError) and cause.errno in errno.errorcode
        if system or isinstance(cause, ImportError | MemoryError):
            return False
    return isinstance(error, FAILURES)


def _look(path: Path) -> None:
    if not path.exists():
        raise Undecodable("there is no such file")
    if not path.is_file():  # a pipe would be waited for
        raise Undecodable("it is not a file")
    with path.open("rb") as file:
        start = file.read(len(LFS))
    if not start:
        raise Undecodable("it is empty")
    if start == LFS:
        raise Undecodable("it is a pointer of git-lfs; run `git lfs pull` in its repository")


@contextmanager
def opened(path: Path) -> Generator[InputContainer]:
    """A container of sound or film, its codecs bound to pictures of bearable size."""
    import av
    from av.error import FFmpegError

    _whole_avi(path)
    options = {
        "format_whitelist": CONTAINERS,
        "protocol_whitelist": "file",
        "max_pixels": str(MOST_PIXELS),
        "threads": "1",  # files are decoded side by side, by processes
    }
    try:
        # An absolute path cannot be taken for a protocol.
        with av.open(str(path.absolute()), "r", options=options) as container:
            yield container
    except FFmpegError as problem:
        raise Undecodable(f"it does not decode: {problem.strerror}") from problem


def _whole_avi(path: Path) -> None:
    """Raise if an avi file is much shorter than its header says, for which FFmpeg makes up."""
    with path.open("rb") as file:
        head = file.read(12)
    size = int.from_bytes(head[4:8], "little")
    if head[:4] == b"RIFF" and head[8:] == b"AVI " and size < UNKNOWN:
        there = path.stat().st_size
        if there < ENOUGH * size:
            raise Undecodable(f"it is cut off: {there} of its {size} bytes are there")


def decoded(container: InputContainer, stream: AudioStream | VideoStream) -> Iterator[Any]:
    """All frames of a stream, in the order they are shown in.

    A film whose pictures are damaged is damaged, also if only its sound is asked for.
    """
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}  # as pictures may grow later
    for packet in container.demux():
        if packet.is_corrupt:
            raise Undecodable(f"it is cut off or damaged (byte {packet.pos})")
        if packet.stream.index == stream.index:
            yield from packet.decode()


def declared(container: InputContainer, stream: AudioStream | VideoStream) -> Fraction | None:
    """How long a stream should be, in seconds; `None` if the file does not say."""
    if stream.duration and stream.time_base:
        return stream.duration * stream.time_base
    return Fraction(container.duration, 1_000_000) if container.duration else None


def decodable(stream: AudioStream | VideoStream) -> None:
    """Raise if FFmpeg has nothing to decode a stream with."""
    if cast(Any, stream).codec_context is None:
        raise Undecodable(f"its {stream.type} is in no format that is known")


def complete(
    seconds: Fraction | float, container: InputContainer, stream: AudioStream | VideoStream
) -> None:
    """Raise if what was decoded of a stream is much shorter than the file says."""
    whole = declared(container, stream)
    if whole is not None and seconds < ENOUGH * whole:
        raise Undecodable(
            f"it is cut off: {float(seconds):.2f} s of its {float(whole):.2f} s are there"
        )


def within(seconds: Fraction | float | None, limit: float) -> None:
    """Raise if something is longer than is decoded."""
    if seconds is not None and seconds > limit:
        raise Undecodable(f"it lasts {float(seconds):.0f} s, and {limit:g} s are decoded at most")
