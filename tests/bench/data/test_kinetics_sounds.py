"""Kinetics-Sounds: lists of both forms, what is found in a folder, and what is made of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import librosa
import numpy as np
import pytest
import soundfile

from vcmm.bench.data import COLLECTIONS, load
from vcmm.bench.data import kinetics_sounds as ks
from vcmm.bench.media.audio import fbank, waveform
from vcmm.bench.media.check import inspect
from vcmm.bench.media.collection import Found, Undecodable
from vcmm.bench.media.index import CLIP, Named
from vcmm.bench.media.lists import list_hash
from vcmm.bench.media.prepare import load_store, prepare
from vcmm.bench.spec import Choice, Spec

from ..media import makers_kinetics_sounds as makers
from ..media.makers import cut
from ..media.training import trained

LISTS = Path(__file__).parents[4] / "shared" / "data" / "lists" / "kinetics_sounds"
VIDEO = makers.VIDEOS[5]  # of train, "playing bass guitar"


def usual(**options: Any) -> dict[str, Any]:
    given = {"split": "ogm", "audio": "stft-10s", "pictures": "auto", "side": 256, "least": 1}
    return {**given, **options}


def found(root: Path, **options: Any) -> Found:
    return ks.find(root, usual(**options))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mp4 clips and OGM-GE's lists. Nobody changes them."""
    return makers.ogm(tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames, wav files and csv lists. Nobody changes them."""
    return makers.titled(tmp_path_factory.mktemp("ready"))


@pytest.fixture
def root(ready: Path, tmp_path: Path) -> Path:
    """A copy of `ready` that may be changed."""
    return shutil.copytree(ready, tmp_path / "root")


def test_clips_are_found_by_the_ids_of_ogms_lists(clips: Path) -> None:
    of = found(clips)
    assert not of.missing
    assert [one.id for one in of.items] == sorted(map(makers.name, makers.VIDEOS))
    assert of.labels == ("0", "1", "2", "3")
    one = next(one for one in of.items if one.id == makers.name(VIDEO))
    assert (one.label, one.lists) == ("1", ("ogm/train",))
    path = f"videos/playing_bass_guitar/{makers.file(VIDEO)}.mp4"
    assert one.files == {"audio": (path,), "visual": (path,)}
    assert sum(one.lists == ("ogm/test",) for one in of.items) == 8
    assert of.remarks[:2] == (
        "frames come from videos, 24 clips",
        "sound comes from videos, 24 clips",
    )
    assert any("4 classes, sha256" in line and "not published" in line for line in of.remarks)


def test_ready_frames_and_sounds_are_found_by_the_csv(ready: Path) -> None:
    of = found(ready, split="csv")
    assert not of.missing
    assert of.labels == tuple(sorted(makers.CLASSES))
    one = next(one for one in of.items if one.id == VIDEO)
    assert one.label == "playing bass guitar"
    assert one.files["audio"] == (f"train_wav/{VIDEO}.wav",)
    folder = f"train_img/Image-01-FPS/{VIDEO}"
    assert one.files["visual"] == tuple(f"{folder}/frame_{k}.jpg" for k in range(8, 13))
    assert of.remarks[:2] == (
        "frames come from folders of pictures, 24 clips",
        "sound comes from wav files, 24 clips",
    )


def test_videos_give_frames_and_sound(clips: Path) -> None:
    one = next(one for one in found(clips).items if one.id == makers.name(VIDEO))
    made = ks.decode(clips, one, usual())
    assert made["audio"].shape == (257, 1003)
    assert made["visual"].shape == (4, 48, 64, 3)
    assert np.abs(made["visual"].mean(axis=(1, 2, 3)) - [80, 85, 90, 95]).max() < 3
    assert ks.decode(clips, one, usual(side=24))["visual"].shape == (4, 24, 32, 3)
    with pytest.raises(Undecodable, match=r"has 4 frames, and least=5 are asked for"):
        ks.decode(clips, one, usual(least=5))


def test_the_spectrogram_is_that_of_the_published_loaders(root: Path) -> None:
    wave = np.random.default_rng(0).normal(0, 0.6, 100_000).astype(np.float32)
    soundfile.write(root / "train_wav" / f"{VIDEO}.wav", wave, 35_400, subtype="FLOAT")
    one = next(one for one in found(root, split="csv").items if one.id == VIDEO)
    made = ks.decode(root, one, usual(split="csv"))["audio"]
    sample = wave
    while len(sample) / 35_400 < 10:
        sample = np.tile(sample, 2)
    cut_ = np.clip(sample[: 35_400 * 10], -1, 1)
    theirs = np.log(np.abs(librosa.stft(cut_, n_fft=512, hop_length=353)) + 1e-7)
    assert made.shape == theirs.shape == ks.SOUNDS["stft-10s"].shape
    # librosa computes in float32, whose error shows where the logarithm is steep
    assert np.abs(np.exp(made) - np.exp(theirs)).max() < 1e-4


def test_one_kind_of_file_is_used_for_all(clips: Path, tmp_path: Path) -> None:
    root = shutil.copytree(clips, tmp_path / "root")
    makers.jpgs(root / "Image-01-FPS" / makers.file(VIDEO), VIDEO)
    makers.wav(root / f"{makers.file(VIDEO)}.wav", VIDEO)
    of = found(root)  # what most clips have
    assert len(of.items) == 24
    assert not of.missing
    assert of.remarks[:2] == (
        "frames come from videos, 24 clips; 1 have folders of pictures",
        "sound comes from videos, 24 clips; 1 have wav files",
    )
    of = found(root, pictures="frames")
    assert [one.id for one in of.items] == [makers.name(VIDEO)]
    assert of.missing[makers.name(makers.VIDEOS[0])] == "it has no frames"


def test_names_with_and_without_the_end_of_a_clip() -> None:
    files = Named()
    for number, name in enumerate(
        ["aaaaaaaaaaa_000010_000020", "bbbbbbbbbbb_3", "ccccccccccc", "ddddddddddd_000001_000011"]
    ):
        files.add(name, f"{number}")
    files.add("ddddddddddd_000050_000060", "4")
    assert files.get("aaaaaaaaaaa_10") == files.get("aaaaaaaaaaa_000010_000020") == ["0"]
    assert files.get("aaaaaaaaaaa") == ["0"]
    assert files.get("aaaaaaaaaaa_11") == []
    assert files.get("bbbbbbbbbbb_000003_000013") == ["1"]
    assert files.get("ccccccccccc_000003_000013") == ["2"]
    assert files.get("ddddddddddd") == []  # which of the two is not said
    assert files.get("ddddddddddd_1") == ["3"]


def test_a_name_with_a_number_that_is_none_is_listed(clips: Path, tmp_path: Path) -> None:
    root = shutil.copytree(clips, tmp_path / "root")
    name = f"{VIDEO}_{'1' * 5000}"
    with (root / "my_test.txt").open("a") as file:
        file.write(f"{name},10,1\n")
    of = found(root)
    assert of.missing == {name: "it has no frames and no sound"}
    assert len(of.items) == 24


def test_a_file_that_two_ids_find_is_neither(clips: Path, tmp_path: Path) -> None:
    """Lists that write ids in two ways could train on what they judge."""
    root = shutil.copytree(clips, tmp_path / "root")
    with (root / "my_test.txt").open("a") as file:
        file.write(f"{VIDEO}_5,10,1\n")
    of = found(root)
    assert set(of.missing) == {makers.name(VIDEO), f"{VIDEO}_5"}
    assert "is found for" in of.missing[f"{VIDEO}_5"]
    assert len(of.items) == 23


def test_of_several_files_the_one_below_its_list_is_taken(root: Path) -> None:
    makers.wav(root / "a" / f"{VIDEO}.wav", VIDEO)
    of = found(root, split="csv")
    one = next(one for one in of.items if one.id == VIDEO)
    assert one.files["audio"] == (f"train_wav/{VIDEO}.wav",)
    assert any(line.startswith("1 clips lie in several places") for line in of.remarks)


def test_clips_that_published_loaders_skip_are_counted(root: Path) -> None:
    folder = root / "train_img" / "Image-01-FPS" / VIDEO
    for number in (8, 9):
        os.unlink(folder / f"frame_{number}.jpg")
    os.unlink(root / "test_wav" / f"{makers.VIDEOS[20]}.wav")
    shutil.rmtree(root / "train_img" / "Image-01-FPS" / makers.VIDEOS[0])
    of = found(root, split="csv")
    assert of.missing == {
        makers.VIDEOS[20]: "it has no sound",
        makers.VIDEOS[0]: "it has no frames",
    }
    assert any(line.startswith("1 clips have 3 frames or fewer") for line in of.remarks)
    one = next(one for one in of.items if one.id == VIDEO)
    assert len(ks.decode(root, one, usual(split="csv", least=3))["visual"]) == 3
    with pytest.raises(Undecodable, match=f"{VIDEO}/frame_10.jpg: the clip has 3 frames"):
        ks.decode(root, one, usual(split="csv", least=4))


def test_classes_are_compared_with_those_that_are_known(root: Path) -> None:
    lists = {"csv/train": {}, "csv/test": {}}
    known = ks.CLASSES.split(", ")
    assert len(known) == 31
    assert ks.told("csv", lists, known)[-1].endswith(": the 31 of AdaMML")
    spelled = [name.replace(" ", "_").title() for name in known]
    assert ks.told("csv", lists, spelled)[-1].endswith(": the 31 of AdaMML")
    other = [*known[1:], "strumming guitar"]
    assert ks.told("csv", lists, other)[-1].endswith(
        "the 31 of AdaMML without blowing nose and with strumming guitar"
    )
    assert ks.class_hash(known) != ks.class_hash(other)
    told = found(root, split="csv").remarks[-1]
    assert "without blowing nose, blowing out candles" in told
    assert told.endswith("laughing, and 22 more")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("../../../etc/passwd,10,3\n", r"my_train.txt, line 1: '../../../etc/passwd' is no name"),
        ("a\\b,10,3\n", r"is no name of a clip"),
        ("abc,10\n", r'a line is "id,10,number"'),
        ("abc,10,bowling\n", r'a line is "id,10,number"'),
        ("abc,10,1\nabc,10,2\n", r"line 2: 'abc' is '2', and '1' further up"),
        (f"{makers.name(makers.VIDEOS[20])},10,0\n", r"is in ogm/train and in ogm/test"),
        ("abc,10,0\n", r"class '1' is in the list of test, and not of train"),
    ],
)
def test_a_list_of_ogms_form_that_is_wrong_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "my_train.txt").write_text(text)
    here = [v for v in makers.VIDEOS if makers.part(v) == "test"]
    (tmp_path / "my_test.txt").write_text(
        "".join(f"{makers.name(v)},10,{makers.label(v)}\n" for v in here)
    )
    with pytest.raises(ValueError, match=why):
        found(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must begin with a line of columns"),
        ("id,label\nabc,bowling\n", "must begin with a line of columns, youtube_id and label"),
        ("youtube_id,label\n..,bowling\n", r"train.csv, line 2: '..' is no name"),
        ("youtube_id,label\nabc\n", r"line 2: 'abc' does not fit the columns youtube_id,label"),
        ("youtube_id,label\nabc,\n", r"does not fit"),
    ],
)
def test_a_csv_that_is_wrong_is_refused(root: Path, text: str, why: str) -> None:
    (root / "annotations" / "train.csv").write_text(text)
    with pytest.raises(ValueError, match=why):
        found(root, split="csv")


def test_a_csv_may_have_more_columns_in_any_order(root: Path) -> None:
    (root / "annotations" / "train.csv").write_text(
        "\ufefflabel,youtube_id,time_start\n"
        + "".join(
            f'"{name}",{video},0\n'
            for name, video in zip(makers.CLASSES, makers.VIDEOS, strict=False)
        ),
        encoding="utf-8",
    )
    of = found(root, split="csv")
    assert sum("csv/train" in one.lists for one in of.items) == 4


def test_lists_that_lack_are_told(tmp_path: Path) -> None:
    of = found(tmp_path)
    assert set(of.missing) == {"my_train.txt", "my_test.txt"}
    with pytest.raises(
        FileNotFoundError, match=r"annotations/train.csv: the list of train"
    ) as error:
        prepare(ks.COLLECTION, tmp_path, {"split": "csv"}, cache=tmp_path / "cache")
    assert "cvdfoundation/kinetics-dataset" in str(error.value)
    makers.titled(tmp_path)
    assert found(tmp_path).missing["my_test.txt"].endswith("split=csv are, so say --split csv")


def test_links_are_not_followed_out_of_the_root(root: Path, tmp_path: Path) -> None:
    sound = root / "train_wav" / f"{VIDEO}.wav"
    sound.rename(tmp_path / "outside.wav")
    sound.symlink_to(tmp_path / "outside.wav")
    (root / "test_wav").rename(tmp_path / "test_wav")
    (root / "test_wav").symlink_to(tmp_path / "test_wav")
    (root / "loop").symlink_to(root)
    of = found(root, split="csv")
    assert len(of.items) == 15
    assert "leads out" in of.missing[f"train_wav/{VIDEO}.wav"]
    assert "leads out" in of.missing["test_wav"]
    assert of.missing[VIDEO] == "it has no sound"
    assert "1 folders are not looked into: loop (a link)" in of.remarks


def test_a_clip_without_sound_or_frames_does_not_decode(clips: Path, tmp_path: Path) -> None:
    root = shutil.copytree(clips, tmp_path / "root")
    one = next(one for one in found(root).items if one.id == makers.name(VIDEO))
    path = root / one.files["visual"][0]
    whole = path.read_bytes()
    for bad in (b"", whole[: len(whole) // 2], b"\0" * 5000):
        path.write_bytes(bad)
        with pytest.raises(Undecodable, match=f"{path.name}"):
            ks.decode(root, one, usual())
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for picture in makers.shades(VIDEO, 10):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with pytest.raises(Undecodable, match="no sound track"):
        ks.decode(root, one, usual())


@pytest.mark.parametrize(
    "option", [{"split": "own"}, {"audio": "mp3"}, {"pictures": "mp4"}, {"side": 0}, {"least": 11}]
)
def test_parameters_are_checked(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} = "):
        ks.parameters(**option)


@pytest.mark.skipif(not LISTS.exists(), reason="the published lists are not here")
def test_the_published_lists_are_read_and_known() -> None:
    lists, missing = ks.read(LISTS, "ogm")
    assert not missing
    assert {name: len(listed) for name, listed in lists.items()} == {
        "ogm/train": 14799,
        "ogm/test": 2597,
    }
    assert {name: list_hash(listed) for name, listed in lists.items()} == ks.KNOWN
    labels = ks.classes("ogm", lists)
    assert labels == tuple(map(str, range(31)))
    assert sum(", the published list" in line for line in ks.told("ogm", lists, labels)) == 2
    for listed in lists.values():
        assert all(CLIP.fullmatch(name) for name in listed)


# What is prepared

CSV = {"split": "csv", "audio": "fbank", "side": 48}
LOAD = {**CSV, "size": 32}


@pytest.fixture(scope="module")
def prepared(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Frames and sounds in a cache, all but two clips that are broken."""
    base = tmp_path_factory.mktemp("prepared")
    root = shutil.copytree(ready, base / "root")
    sound = root / "train_wav" / f"{makers.VIDEOS[0]}.wav"
    sound.write_bytes(cut(sound, 0.4).read_bytes())
    os.unlink(sound.with_name(f"cut-{sound.name}"))
    frame = root / "train_img" / "Image-01-FPS" / makers.VIDEOS[1] / "frame_9.jpg"
    frame.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VCMM_CACHE", str(base / "cache"))
        prepare(COLLECTIONS["kinetics_sounds"], root, CSV, workers=1)
        yield root


@pytest.mark.slow
def test_what_is_broken_is_listed_and_the_rest_prepared(prepared: Path) -> None:
    store = load_store(ks.COLLECTION, CSV)
    assert len(store) == 22
    assert set(store.manifest["failed"]) == set(makers.VIDEOS[:2])
    seen = inspect(ks.COLLECTION, prepared, CSV, workers=1)
    assert dict(seen.unreadable) == store.manifest["failed"]
    assert {name: listed["samples"] for name, listed in seen.lists.items()} == {
        "csv/test": 8,
        "csv/train": 14,
    }


@pytest.mark.slow
def test_batches_of_what_was_prepared(prepared: Path) -> None:
    data = load("kinetics_sounds", **LOAD)
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 13,
        "valid": 1,
        "test": 8,
    }
    assert "4 classes, sha256" in data.about
    assert "2 did not decode" in data.about
    batch = data.batch("test", np.arange(8))
    assert batch.inputs["audio"].shape == (8, 1, 1024, 128)
    assert batch.inputs["visual"].shape == (8, 3, 3, 32, 32)
    path = prepared / "test_wav" / f"{min(makers.VIDEOS[16:])}.wav"
    raw = fbank(waveform(path, 16_000), 16_000)
    normal = (raw + 4.503877) / (2 * 5.141276)  # of OGM-GE's script, zeros of the filling too
    assert np.abs(batch.inputs["audio"][0, 0].numpy() - normal).max() < 1e-6
    assert data.hash != load("kinetics_sounds", pick="uniform", **LOAD).hash


@pytest.mark.slow
def test_two_resnets_train_and_go_on_after_an_interruption(prepared: Path, tmp_path: Path) -> None:
    spec = Spec(
        data=Choice("kinetics_sounds", pick="random", **LOAD),
        encoder=Choice("resnet18", width=2),
        epochs=2,
        batch_size=4,
    )
    assert set(trained(spec, tmp_path)) == {"valid", "test"}
