from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from PIL import Image

from vcmm.bench.media.collection import Undecodable
from vcmm.bench.media.pictures import flow, frames, picture, shrunk, window

from .makers import cut, film, grey, patched, written

RED, GREEN, BLUE = (250, 10, 10), (10, 250, 10), (10, 10, 250)
FILMS = [
    ("a.flv", "flv", "yuv420p"),
    ("a.mp4", "libx264", "yuv420p"),
    ("a.avi", "mjpeg", "yuvj420p"),
    ("b.avi", "mpeg4", "yuv420p"),
]


def quarters(height=48, width=64):
    """Red and green above, blue and black below: each corner says which it is."""
    image = np.zeros((height, width, 3), np.uint8)
    image[: height // 2, : width // 2] = RED
    image[: height // 2, width // 2 :] = GREEN
    image[height // 2 :, : width // 2] = BLUE
    return image


def corners(image):
    return [tuple(image[y, x] > 128) for y in (4, -5) for x in (4, -5)]


UPRIGHT = corners(quarters())


def saved(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


# Pictures


def test_a_jpg_is_what_pillow_makes_of_it(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.fromarray(quarters()))
    made = picture(path)
    assert made.dtype == np.uint8
    with Image.open(path) as image:
        np.testing.assert_array_equal(made, np.asarray(image.convert("RGB")))
    assert corners(made) == UPRIGHT


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.bmp", "a.webp", "png.jpg"])
def test_other_kinds_whatever_the_name_says(tmp_path, name):
    path = saved(
        tmp_path / name, Image.fromarray(quarters()), format="PNG" if "png" in name else None
    )
    assert corners(picture(path)) == UPRIGHT


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_any_mode_becomes_rgb(tmp_path, mode):
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    if mode == "I;16":
        image = Image.fromarray(np.full((48, 64), 200 << 8, np.uint16))
    else:
        image = Image.new("L", (64, 48), 200).convert("RGB").convert(mode)
    made = picture(saved(tmp_path / "a.jpg", image, format=kind))
    assert made.shape == (48, 64, 3)
    expected = 255 if mode == "1" else 200  # dithered, or of a palette
    assert np.abs(np.median(made) - expected) <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_was(tmp_path, orientation):
    lying = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: np.rot90(x, 2),
        4: lambda x: x[::-1],
        5: lambda x: np.rot90(x, 1)[::-1],
        6: lambda x: np.rot90(x, 1),
        7: lambda x: np.rot90(x, 1)[:, ::-1],
        8: lambda x: np.rot90(x, -1),
    }[orientation](quarters())
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.jpg", Image.fromarray(np.ascontiguousarray(lying)), exif=exif)
    made = picture(path)
    assert made.shape == (48, 64, 3)
    assert corners(made) == UPRIGHT


def test_shrunk_averages_and_never_enlarges(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    half = shrunk(image, 20)
    means = image.reshape(20, 2, 30, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(half, means, atol=0.51)
    assert shrunk(image, 40) is image
    assert shrunk(image, 99) is image
    assert shrunk(image[:, :, 0], 7).shape == (7, 10)
    assert shrunk(np.zeros((1000, 3, 3), np.uint8), 1).shape == (333, 1, 3)
    assert shrunk(np.zeros((33, 100, 1), np.uint8), 32).shape[:2] == (32, 97)
    path = saved(tmp_path / "a.png", Image.fromarray(image))
    np.testing.assert_array_equal(picture(path, side=20), half)
    with pytest.raises(ValueError, match="side = 0"):
        shrunk(image, 0)


def refused(call, path, why):
    with pytest.raises(Undecodable, match=f"{path.parent.name}/{path.name}.*{why}"):
        call(path)


def jpg(width=64, height=48):
    """Bytes of a jpg, of another size by its header than in truth."""
    buffer = io.BytesIO()
    Image.fromarray(quarters()).save(buffer, "JPEG")
    content = bytearray(buffer.getvalue())
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def png(width, height):
    """The same of a png, whose header holds larger numbers."""
    buffer = io.BytesIO()
    Image.fromarray(quarters()).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (jpg(65535, 65535), "absurd: Image size .4294836225 pixels"),
        (jpg(10000, 10000), "10000 x 10000; at most 64000000"),
        (png(100_000, 100_000), "absurd: Image size .10000000000 pixels"),
        (png(2**31 - 1, 1), "absurd"),
        (png(12000, 8000), "12000 x 8000; at most"),
    ],
)
def test_an_absurd_size_is_refused_by_the_header(tmp_path, content, why, monkeypatch):
    def load(self):
        raise AssertionError("it was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    refused(picture, written(tmp_path / "a.jpg", content), why)


def test_the_limit_of_pixels_is_the_callers(tmp_path):
    path = written(tmp_path / "a.jpg", jpg())
    assert picture(path, pixels=64 * 48).shape == (48, 64, 3)
    refused(lambda path: picture(path, pixels=64 * 48 - 1), path, "64 x 48; at most 3071")


def test_broken_pictures(tmp_path):
    path = tmp_path / "a.jpg"
    refused(picture, path, "no such file")
    refused(picture, written(path, b""), "empty")
    refused(picture, written(path, b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull")
    refused(picture, written(path, b"<html>404</html>"), "no image of the kinds JPEG, PNG")
    refused(
        picture, written(path, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "no image"
    )
    for share in (0.3, 0.6, 0.9):
        refused(picture, cut(written(path, jpg()), share), "")
        refused(
            picture, cut(saved(tmp_path / "a.png", Image.effect_noise((64, 48), 50)), share), ""
        )
    refused(picture, written(path, jpg(64, 0)), "")
    refused(picture, written(path, b"\xff\xd8\xff\xe0" + bytes(100)), "")
    refused(picture, tmp_path, "not a file")


def test_odd_metadata_does_not_warn(tmp_path):
    content = jpg()
    torn = content[:2] + b"\xff\xe1\x00\x10Exif\x00\x00MM\x00*\x00\x00\xff\xff" + content[2:]
    assert corners(picture(written(tmp_path / "фото 📷.jpg", torn))) == UPRIGHT


# Films


@pytest.mark.parametrize(("name", "codec", "pixels"), FILMS)
def test_frames_at_times(tmp_path, name, codec, pixels):
    path = film(tmp_path / name, codec=codec, pixels=pixels, count=60, fps=30)
    made = frames(path, fps=3)
    assert made.dtype == np.uint8
    assert made.shape == (6, 48, 64, 3)
    for number, frame in zip(range(0, 60, 10), made, strict=True):
        np.testing.assert_allclose(frame, grey(number), atol=3)
    assert len(frames(path)) == 2
    assert len(frames(path, fps=3, most=4)) == 4
    assert len(frames(path, fps=30)) == 60
    assert frames(path, side=24).shape == (2, 24, 32, 3)
    np.testing.assert_array_equal(frames(path, fps=0.01), made[:1])


@pytest.mark.parametrize("fps", [7, 24, 25, 29])
@pytest.mark.parametrize("name", ["a.flv", "a.mp4"])
def test_a_film_of_another_rate(tmp_path, name, fps):
    path = film(tmp_path / name, codec="flv" if "flv" in name else "mpeg4", fps=fps, count=3 * fps)
    made = frames(path, fps=2)
    assert len(made) == 6
    for moment, frame in enumerate(made):  # the frame that is shown then
        np.testing.assert_allclose(frame, grey(moment * fps // 2), atol=3)


def test_a_film_with_fewer_frames_than_are_asked_for_repeats_them(tmp_path):
    path = film(tmp_path / "a.mp4", fps=2, count=3)
    made = frames(path, fps=4)
    assert len(made) == 6
    for moment, frame in enumerate(made):
        np.testing.assert_allclose(frame, grey(moment // 2), atol=3)
    assert len(frames(film(tmp_path / "b.mp4", count=1))) == 1


def test_a_film_whose_frames_come_at_odd_times(tmp_path):
    path = tmp_path / "a.mkv"
    times = [0, 400, 1100, 1900, 2001]  # ms
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(
                np.full((48, 64, 3), grey(10 * number), np.uint8), format="rgb24"
            )
            frame.pts = 500 + time  # which need not begin at 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    made = frames(path)[:, 20, 20, 0]
    np.testing.assert_allclose(made[:3], [grey(0), grey(10), grey(40)], atol=3)


@pytest.mark.parametrize(("name", "codec", "pixels"), FILMS)
def test_a_window_of_frames_is_what_opencv_reads(tmp_path, name, codec, pixels):
    rng = np.random.default_rng(0)
    smooth = cv2.resize(rng.integers(0, 256, (6, 8, 3)).astype(np.uint8), (64, 48))
    moving = np.stack([np.roll(smooth, 3 * i, axis=1) for i in range(20)])
    path = film(tmp_path / name, codec=codec, pixels=pixels, pictures=moving)
    capture = cv2.VideoCapture(os.fspath(path))
    read = []
    while (frame := capture.read())[0]:
        read.append(cv2.cvtColor(frame[1], cv2.COLOR_BGR2RGB))
    capture.release()
    assert len(read) == 20
    made = window(path, 5, 17)
    np.testing.assert_allclose(made, np.stack(read[5:17]), atol=1)
    depth = window(path, 5, 17, channels=1)
    assert depth.shape == (12, 48, 64, 1)
    expected = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in made]
    np.testing.assert_allclose(depth[..., 0], expected, atol=6)


def test_a_window_that_the_film_does_not_have(tmp_path):
    path = film(tmp_path / "a.avi", count=20)
    assert len(window(path, 0, 20)) == 20
    refused(lambda path: window(path, 5, 21), path, "has 20 frames; 5 to 21 are asked for")
    refused(lambda path: window(path, 30, 40), path, "no frame|20 frames")
    for start, stop in ((-1, 5), (5, 5), (9, 3)):
        refused(lambda path, a=start, b=stop: window(path, a, b), path, "no range")
    with pytest.raises(ValueError, match="channels = 2"):
        window(path, 0, 5, channels=2)
    with pytest.raises(ValueError, match="fps = 0"):
        frames(path, fps=0)
    with pytest.raises(ValueError, match="most = 0"):
        frames(path, most=0)


@pytest.mark.parametrize("matrix", [(0, 1, -1, 0), (0, -1, 1, 0), (-1, 0, 0, -1)])
def test_a_film_is_turned_as_its_camera_was(tmp_path, matrix):
    path = film(tmp_path / "a.mp4", codec="libx264", pictures=np.stack([quarters()] * 3))
    a, b, c, d = (number << 16 for number in matrix)
    at = path.read_bytes().index(b"tkhd") + 4 + 40
    turned = patched(path, "b.mp4", at, struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30))
    capture = cv2.VideoCapture(os.fspath(turned))
    expected = cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB)
    capture.release()
    assert corners(expected) != UPRIGHT
    np.testing.assert_allclose(window(turned, 0, 1)[0], expected, atol=1)
    np.testing.assert_allclose(frames(turned)[0], expected, atol=1)


@pytest.mark.parametrize("suffix", [".flv", ".mp4", ".avi"])
def test_files_that_are_no_film(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    refused(frames, path, "no such file")
    refused(frames, written(path, b""), "empty")
    refused(frames, written(path, b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull")
    refused(frames, written(path, np.random.default_rng(0).bytes(4000)), "does not decode")
    refused(frames, written(path, b"<html>404</html>" * 99), "does not decode")
    refused(frames, written(path, jpg()), "does not decode")
    path.unlink()
    os.mkfifo(path)
    refused(frames, path, "not a file")


@pytest.mark.parametrize(("name", "codec", "pixels"), FILMS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.7])
def test_a_film_that_is_cut_off(tmp_path, name, codec, pixels, share):
    path = cut(film(tmp_path / name, codec=codec, pixels=pixels), share)
    refused(lambda path: frames(path, fps=3), path, "cut off|does not decode")
    refused(lambda path: window(path, 0, 60), path, "")


@pytest.mark.parametrize(("name", "codec", "pixels"), FILMS)
def test_whatever_is_torn_a_film_decodes_or_is_refused(tmp_path, name, codec, pixels):
    path = film(tmp_path / name, codec=codec, pixels=pixels, count=20)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        torn = bytearray(content)
        for at in rng.integers(0, len(content), 5):
            torn[at] = rng.integers(0, 256)
        broken = written(path.with_name(f"torn-{name}"), bytes(torn))
        with contextlib.suppress(Undecodable):  # and nothing else, not even a warning
            made = frames(broken, fps=5)
            assert made.ndim == 4
            assert made.dtype == np.uint8


def test_no_pictures_and_no_frames(tmp_path):
    import soundfile

    path = tmp_path / "a.avi"
    soundfile.write(path, np.zeros(999), 16000, format="WAV")
    refused(frames, path, "no pictures")
    empty = film(tmp_path / "b.avi", count=0)
    refused(frames, empty, "")
    refused(lambda path: window(path, 0, 1), empty, "")


@pytest.mark.parametrize("size", [(60000, 60000), (2**31 - 1, 1), (0, 0)])
def test_a_film_of_absurd_size_in_its_header(tmp_path, size):
    path = film(tmp_path / "a.avi", codec="rawvideo", pixels="rgb24", count=3)
    at = path.read_bytes().index(b"strf") + 12
    refused(frames, patched(path, "b.avi", at, struct.pack("<ii", *size)), "size")


def test_a_film_whose_pictures_are_of_absurd_size(tmp_path):
    path = film(tmp_path / "a.avi", codec="mjpeg", pixels="yuvj420p", count=3)
    at = path.read_bytes().index(b"\xff\xc0") + 5
    refused(frames, patched(path, "b.avi", at, struct.pack(">HH", 65500, 65500)), "")


def test_pictures_larger_than_the_limit_are_not_decoded(tmp_path, monkeypatch):
    path = film(tmp_path / "a.avi", codec="mjpeg", pixels="yuvj420p", count=3)
    monkeypatch.setattr("vcmm.bench.media.codec.MOST_PIXELS", 64 * 48)
    assert frames(path).shape == (1, 48, 64, 3)
    monkeypatch.setattr("vcmm.bench.media.codec.MOST_PIXELS", 64 * 48 // 4)
    refused(frames, path, "no size that can be read")


def test_pictures_that_grow_within_a_film_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.avi"
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number, size in enumerate([(64, 48)] * 30 + [(128, 96)]):
            buffer = io.BytesIO()
            Image.new("RGB", size).save(buffer, "JPEG")
            packet = av.Packet(buffer.getvalue())
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = Fraction(1, 10), stream
            container.mux(packet)
    refused(lambda path: frames(path, fps=10), path, "frames change from .48, 64, 3. to .96, 128")
    monkeypatch.setattr("vcmm.bench.media.codec.MOST_PIXELS", 64 * 48)
    refused(lambda path: frames(path, fps=10), path, "does not decode")
    assert len(window(path, 0, 30)) == 30


def test_frames_that_fill_the_memory_are_refused(tmp_path, monkeypatch):
    path = film(tmp_path / "a.avi")
    monkeypatch.setattr("vcmm.bench.media.pictures.MOST_BYTES", 10 * 64 * 48 * 3)
    assert len(window(path, 0, 10)) == 10
    refused(lambda path: window(path, 0, 11), path, "larger than 92160 bytes")


# Flow


def test_flow_is_what_moves():
    rng = np.random.default_rng(0)
    texture = cv2.GaussianBlur(rng.integers(0, 256, (120, 140, 3)).astype(np.uint8), (0, 0), 2)
    texture = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX)
    # The camera goes up and to the left, so everything goes down and to the right.
    seen = np.stack([texture[20 - i : 100 - i, 30 - 3 * i : 120 - 3 * i] for i in range(4)])
    moved = flow(seen)
    assert moved.shape == (4, 80, 90, 2)
    assert moved.dtype == np.float16
    inner = moved[:, 20:-20, 20:-20].astype(np.float64) * 20
    np.testing.assert_allclose(inner.mean(axis=(1, 2)), [[3, 1]] * 4, atol=0.1)
    np.testing.assert_array_equal(moved[3], moved[2])
    np.testing.assert_array_equal(flow(seen), moved)
    depth = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in seen])[..., None]
    np.testing.assert_array_equal(flow(depth), moved)
    assert np.abs(flow(seen, bound=1.5)).max() == 1


def test_nothing_moves_in_one_frame_or_between_equal_ones():
    image = np.random.default_rng(0).integers(0, 256, (1, 48, 64, 3)).astype(np.uint8)
    assert not flow(image).any()
    np.testing.assert_allclose(flow(np.repeat(image, 3, axis=0)), 0, atol=1e-2)


def test_flow_names_what_it_cannot_take():
    with pytest.raises(ValueError, match=r"frames of shape \(48, 64, 3\)"):
        flow(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(ValueError, match="needs 12 pixels a side"):
        flow(np.zeros((2, 8, 64, 3), np.uint8))
