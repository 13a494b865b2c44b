"""CREMA-D: what is found in a folder, what it is decoded to, and what is made of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import soundfile

from vcmm.bench.data import COLLECTIONS, cremad, load
from vcmm.bench.media.check import inspect
from vcmm.bench.media.collection import Found, Undecodable
from vcmm.bench.media.lists import list_hash, rows
from vcmm.bench.media.prepare import load_store, prepare
from vcmm.bench.run import run
from vcmm.bench.spec import Choice, Spec

from ..media import makers_cremad as makers
from ..media.makers import cut

LISTS = Path(__file__).parents[4] / "shared" / "data" / "lists" / "cremad"
ID = "1001_DFA_HAP_XX"


def usual(**options: Any) -> dict[str, Any]:
    return {"audio": "stft-3s", "pictures": "auto", "side": 360, **options}


def found(root: Path, **options: Any) -> Found:
    return cremad.find(root, usual(**options))


def item(root: Path, name: str = ID) -> Any:
    return next(one for one in found(root).items if one.id == name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set with videos. Nobody changes it."""
    return makers.cremad(tmp_path_factory.mktemp("videos"))


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(whole, tmp_path / "root")


def test_clips_are_found_with_what_their_names_say(whole: Path) -> None:
    of = found(whole)
    assert [one.id for one in of.items] == sorted(makers.IDS)
    assert of.labels == ("NEU", "HAP", "SAD", "FEA", "DIS", "ANG")
    assert not of.missing
    one = item(whole)
    assert (one.label, one.group) == ("HAP", "1001")
    assert one.files == {"audio": (f"AudioWAV/{ID}.wav",), "visual": (f"VideoFlash/{ID}.flv",)}
    test = {one.id for one in of.items if "ogm/test" in one.lists}
    assert test == {name for name in makers.IDS if name.startswith("1091")}
    assert sum("ogm/train" in one.lists for one in of.items) == 18
    assert "frames come from VideoFlash, 24 clips" in of.remarks


def test_the_lists_that_are_made_here(whole: Path) -> None:
    items = found(whole).items
    for split in ("stratified", "actor"):
        parts = [{f"{split}/train", f"{split}/test"} & set(one.lists) for one in items]
        assert all(len(part) == 1 for part in parts)
    who = {
        part: {one.group for one in items if f"actor/{part}" in one.lists}
        for part in ("train", "test")
    }
    assert who["test"]
    assert not who["train"] & who["test"]


def test_ready_frames_are_taken_in_the_order_of_their_numbers(root: Path) -> None:
    makers.jpgs(root / "Image-01-FPS" / ID, ID)
    folder = root / "Image-01-FPS" / ID
    (folder / "00060.jpg").rename(folder / "100.jpg")
    (folder / "00030.jpg").rename(folder / "20.jpg")
    (folder / "notes.txt").write_text("no frame")
    of = found(root, pictures="frames")
    assert [one.id for one in of.items] == [ID]  # one kind of source for all
    assert [Path(one).name for one in of.items[0].files["visual"]] == [
        "00000.jpg",
        "20.jpg",
        "100.jpg",
    ]
    assert len(of.missing) == 23
    assert of.missing["1002_DFA_SAD_XX"] == "it has no frames"
    made = cremad.decode(root, of.items[0], usual())["visual"]
    assert made.shape == (3, 48, 64, 3)
    assert np.abs(made.mean(axis=(1, 2, 3)) - [70, 80, 90]).max() < 3
    assert len(found(root, pictures="video").items) == 24


def test_what_more_clips_have_is_taken(root: Path) -> None:
    frames = root / "Image-01-FPS"
    frames.mkdir()
    assert len(found(root).items) == 24  # an empty folder
    makers.jpgs(frames / ID, ID)
    (frames / "notes.txt").touch()
    of = found(root)
    assert len(of.items) == 24
    assert not of.missing
    assert "frames come from VideoFlash, 24 clips; Image-01-FPS has 1" in of.remarks
    for name in makers.IDS:
        makers.jpgs(frames / name, name)
    assert "frames come from Image-01-FPS, 24 clips; VideoFlash has 24" in found(root).remarks


def test_a_file_beside_a_video_does_not_take_its_place(root: Path) -> None:
    for ending in ("csv", "aaa", "flv.part"):
        (root / "VideoFlash" / f"{ID}.{ending}").write_bytes(b"no video")
    assert item(root).files["visual"] == (f"VideoFlash/{ID}.flv",)
    assert any(line.startswith("3 in VideoFlash are no clips") for line in found(root).remarks)


def test_videos_give_a_frame_for_every_second(whole: Path) -> None:
    made = cremad.decode(whole, item(whole), usual())["visual"]
    assert made.shape == (2, 48, 64, 3)
    assert made.dtype == np.uint8
    assert np.abs(made.mean(axis=(1, 2, 3)) - [70, 80]).max() < 3
    assert cremad.decode(whole, item(whole), usual(side=24))["visual"].shape == (2, 24, 32, 3)


@pytest.mark.parametrize(("audio", "times", "seconds"), [("stft-3s", 3, 3), ("stft-20s", 20, 20)])
def test_spectrograms_are_those_of_the_published_loaders(
    root: Path, audio: str, times: int, seconds: int
) -> None:
    path = root / "AudioWAV" / f"{ID}.wav"
    wave = np.random.default_rng(0).normal(0, 0.6, 30_000).astype(np.float32)
    soundfile.write(path, wave, 22_050, subtype="FLOAT")
    made = cremad.decode(root, item(root), usual(audio=audio))["audio"]
    tiled = np.clip(np.tile(wave, times)[: 22_050 * seconds], -1, 1)
    theirs = np.log(np.abs(librosa.stft(tiled, n_fft=512, hop_length=353)) + 1e-7)
    assert made.shape == theirs.shape == cremad.SOUNDS[audio].shape
    # librosa computes in float32, whose error shows where the logarithm is steep
    assert np.abs(np.exp(made) - np.exp(theirs)).max() < 1e-4


def test_the_filter_bank_is_padded_with_zeros(whole: Path) -> None:
    made = cremad.decode(whole, item(whole), usual(audio="fbank"))["audio"]
    assert made.shape == (1024, 128) == cremad.SOUNDS["fbank"].shape
    assert not made[148:].any()  # 1.5 s are 1 + (24000 - 400) // 160 windows
    assert (made[:148] != 0).all()


def test_mono_stereo_and_other_rates_are_the_same_sound(root: Path) -> None:
    path = root / "AudioWAV" / f"{ID}.wav"
    made = [cremad.decode(root, item(root), usual())["audio"]]
    for rate, channels in ((16_000, 2), (44_100, 1)):
        makers.wav(path, ID, rate=rate, channels=channels)
        made.append(cremad.decode(root, item(root), usual())["audio"])
    assert np.abs(made[0] - made[1]).max() < 1e-5
    assert made[2].shape == (257, 188)
    peak = slice(5, 20)  # 400 Hz is in bin 9
    assert np.abs(made[0][peak, 10:50] - made[2][peak, 10:50]).mean() < 0.3


def test_what_lacks_is_listed_and_moves_no_other_clip(root: Path) -> None:
    before = {one.id: one.lists for one in found(root).items}
    os.unlink(root / "AudioWAV" / f"{ID}.wav")
    os.unlink(root / "VideoFlash" / "1002_DFA_SAD_XX.flv")
    for folder, ending in (("AudioWAV", "wav"), ("VideoFlash", "flv")):
        os.unlink(root / folder / f"1003_DFA_FEA_XX.{ending}")
    of = found(root)
    assert of.missing == {
        ID: "it has no sound",
        "1002_DFA_SAD_XX": "it has no frames",
        "1003_DFA_FEA_XX": "it has no sound and no frames",
    }
    after = {one.id: one.lists for one in of.items}
    assert after == {name: before[name] for name in after}
    assert len(after) == 21


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    of = found(tmp_path)
    assert not of.items
    assert set(of.missing) == {"AudioWAV", "VideoFlash"}
    with pytest.raises(FileNotFoundError, match=r"git lfs pull") as error:
        prepare(cremad.COLLECTION, tmp_path, {}, cache=tmp_path / "cache")
    assert "there are no sounds AudioWAV/*.wav" in str(error.value)


def test_without_lists_the_others_are_there(root: Path) -> None:
    shutil.rmtree(root / "annotations")
    of = found(root)
    assert {name for one in of.items for name in one.lists} == {
        "actor/test",
        "actor/train",
        "stratified/test",
        "stratified/train",
    }
    assert any("split=ogm cannot be loaded" in line for line in of.remarks)
    makers.lists(root / "data" / "CREMAD")  # where OGM-GE has them
    assert any("ogm/train" in one.lists for one in found(root).items)
    os.unlink(root / "data" / "CREMAD" / "test.csv")
    of = found(root)
    assert of.missing["test.csv"] == "the lists of OGM-GE are two, train.csv and test.csv"
    assert not any("ogm/train" in one.lists for one in of.items)


def test_strangers_are_told_and_passed_over(root: Path) -> None:
    (root / "AudioWAV" / "größe 音.wav").write_bytes(b"")
    (root / "AudioWAV" / ".DS_Store").write_bytes(b"")
    (root / "VideoFlash" / f"{ID}.txt").write_bytes(b"")
    of = found(root)
    assert len(of.items) == 24
    assert "1 in AudioWAV are no clips of CREMA-D: größe 音.wav" in of.remarks


def test_the_misspelt_clip_of_early_copies(root: Path) -> None:
    for folder, name in (("AudioWAV", f"{ID}.wav"), ("VideoFlash", f"{ID}.flv")):
        path = root / folder / name
        path.rename(path.with_name(name.replace(ID, "1040_ITH_SAD_X")))
    one = item(root, "1040_ITH_SAD_XX")
    assert one.files["audio"] == ("AudioWAV/1040_ITH_SAD_X.wav",)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("../../etc/passwd,NEU", r"train.csv, line 1: '../../etc/passwd' is no name of a clip"),
        ("/etc/passwd,NEU", r"'/etc/passwd' is no name of a clip"),
        (f"{ID},SAD", r"with label 'SAD'; .* its label is the emotion in its name"),
        (f"{ID}.wav,HAP", r"a clip is named as 1001_DFA_ANG_XX"),
        (ID, r"has no label"),
        ("1091_DFA_HAP_XX,HAP", r"is in ogm/train and in ogm/test"),
        ('"unfinished,HAP', r"train.csv, line 1: .* is no csv"),
    ],
)
def test_a_list_that_is_wrong_is_refused(root: Path, line: str, why: str) -> None:
    (root / "annotations" / "train.csv").write_text(line + "\n")
    with pytest.raises(ValueError, match=why):
        found(root)


def test_a_link_out_of_the_root_is_not_followed(root: Path, tmp_path: Path) -> None:
    path = root / "AudioWAV" / f"{ID}.wav"
    path.rename(tmp_path / "outside.wav")
    path.symlink_to(tmp_path / "outside.wav")
    of = found(root)
    assert len(of.items) == 23
    assert "is a link that leads out of the data's folder" in of.missing[ID]
    folder = root / "AudioWAV"
    folder.rename(tmp_path / "sounds")
    folder.symlink_to(tmp_path / "sounds")
    with pytest.raises(ValueError, match="'AudioWAV' is a link that leads out"):
        found(root)


def test_a_file_that_does_not_decode_is_named(root: Path) -> None:
    one, sound = item(root), root / "AudioWAV" / f"{ID}.wav"
    video = root / "VideoFlash" / f"{ID}.flv"
    good = sound.read_bytes()
    for bad in (
        b"",
        good[: len(good) // 2],
        b"version https://git-lfs.github.com/spec/v1\n",
        b"x" * 99,
    ):
        sound.write_bytes(bad)
        with pytest.raises(Undecodable, match=f"AudioWAV/{ID}.wav"):
            cremad.decode(root, one, usual())
    sound.write_bytes(good)
    video.write_bytes(cut(video, 0.4).read_bytes())
    with pytest.raises(Undecodable, match=f"VideoFlash/{ID}.flv"):
        cremad.decode(root, one, usual())


def test_frames_of_a_clip_have_one_size_and_a_sane_one(root: Path) -> None:
    folder = root / "Image-01-FPS" / ID
    makers.jpgs(folder, ID)
    shutil.rmtree(root / "VideoFlash")
    one, path = item(root), folder / "00030.jpg"
    jpeg = bytearray(path.read_bytes())
    at = jpeg.index(b"\xff\xc0") + 5  # height and width in the frame header
    jpeg[at : at + 4] = (65_000).to_bytes(2, "big") * 2
    path.write_bytes(jpeg)
    with pytest.raises(Undecodable, match=f"{ID}/00030.jpg"):
        cremad.decode(root, one, usual())
    from PIL import Image

    Image.new("RGB", (10, 10)).save(path)
    with pytest.raises(Undecodable, match=r"00030.jpg is 10 x 10, and .*00000.jpg 64 x 48"):
        cremad.decode(root, one, usual())


@pytest.mark.parametrize("option", [{"audio": "mp3"}, {"pictures": "flv"}, {"side": 0}])
def test_parameters_are_checked(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} = "):
        cremad.parameters(**option)


@pytest.mark.skipif(not LISTS.exists(), reason="the published lists are not here")
def test_the_published_lists_are_read_and_known(tmp_path: Path) -> None:
    shutil.copytree(LISTS, tmp_path / "annotations")
    notes = cremad.Listing()
    lists = cremad.ogm(tmp_path, notes)
    assert {name: len(listed) for name, listed in lists.items()} == {
        "ogm/train": 6698,
        "ogm/test": 744,
    }
    names = sorted({one for listed in lists.values() for one in listed})
    made = lists | cremad.generated(names, notes)
    assert {name: list_hash(made[name]) for name in cremad.KNOWN} == cremad.KNOWN
    assert [len(made[name]) for name in ("stratified/test", "actor/test")] == [744, 732]
    assert sum("the published list" in line for line in cremad.told(made)) == 2
    assert not [line for line in cremad.told(made) if ", not " in line]
    assert len({one.cells[0][:4] for one in rows(LISTS / "train.csv")}) == 91


# What is prepared

LOAD = {"size": 32, "side": 48}


@pytest.fixture(scope="module")
def prepared(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The data set in a cache, all but two clips that are broken."""
    base = tmp_path_factory.mktemp("prepared")
    root = shutil.copytree(whole, base / "root")
    (root / "AudioWAV" / "1001_DFA_NEU_XX.wav").write_bytes(b"")
    video = root / "VideoFlash" / "1002_DFA_NEU_XX.flv"
    video.write_bytes(cut(video, 0.4).read_bytes())
    os.unlink(video.with_name(f"cut-{video.name}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VCMM_CACHE", str(base / "cache"))
        prepare(COLLECTIONS["cremad"], root, {"side": 48}, workers=1)
        yield root


@pytest.mark.slow
def test_what_is_broken_is_listed_and_the_rest_prepared(prepared: Path) -> None:
    store = load_store(cremad.COLLECTION, {"side": 48})
    assert len(store) == 22
    assert set(store.manifest["failed"]) == {"1001_DFA_NEU_XX", "1002_DFA_NEU_XX"}
    assert store.arrays["visual"][0].shape == (2, 48, 64, 3)
    seen = inspect(cremad.COLLECTION, prepared, {"side": 48}, workers=1)
    assert dict(seen.unreadable) == store.manifest["failed"]
    assert seen.lists["ogm/test"]["samples"] == 6
    assert not seen.complete


@pytest.mark.slow
def test_the_splits_of_what_was_prepared(prepared: Path) -> None:
    data = load("cremad", **LOAD)
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 14,
        "valid": 2,
        "test": 6,
    }
    assert data.labels == cremad.LABELS
    assert "2 did not decode" in data.about
    apart = load("cremad", split="actor", valid=0.3, **LOAD)
    who = {
        name: set(part.group.tolist())
        for name, part in apart.splits.items()
        if part.group is not None
    }
    assert sum(map(len, who.values())) == len(set.union(*who.values())) == 4
    assert data.hash != load("cremad", split="stratified", **LOAD).hash
    assert data.hash != load("cremad", frames=2, **LOAD).hash
    assert len({load("cremad", seed=seed, **LOAD).hash for seed in range(4)}) > 1
    batch = load("cremad", frames=3, pick="uniform", **LOAD).batch("test", np.arange(6))
    assert batch.inputs["audio"].shape == (6, 1, 257, 188)
    assert batch.inputs["visual"].shape == (6, 3, 3, 32, 32)
    trained = data.batch("train", np.arange(4), draw=7).inputs
    again = data.batch("train", np.array([2, 0]), draw=7).inputs
    assert (again["visual"][1] == trained["visual"][0]).all()
    assert (trained["visual"] != data.batch("train", np.arange(4)).inputs["visual"]).any()


@pytest.mark.slow
def test_what_is_not_prepared_says_how(prepared: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"vcmm data prepare cremad --root DIR --audio fbank"
    ):
        load("cremad", audio="fbank")
    with pytest.raises(ValueError, match=r"fraction = 1\.5"):
        load("cremad", valid=1.5, **LOAD)


@pytest.mark.slow
def test_without_its_lists_ogm_says_what_to_do(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = shutil.copytree(prepared.with_name("cache"), tmp_path / "cache")
    monkeypatch.setenv("VCMM_CACHE", str(cache))
    root = shutil.copytree(prepared, tmp_path / "root")
    shutil.rmtree(root / "annotations")
    prepare(cremad.COLLECTION, root, {"side": 48})  # nothing is decoded again
    with pytest.raises(ValueError, match=r"put train\.csv and test\.csv into ROOT/annotations"):
        cremad.load(side=48)
    assert cremad.load(side=48, split="stratified").splits["test"]


RESUMED = """
import json, os, signal, sys
from vcmm.bench.run import run
from vcmm.bench.spec import Spec
if __name__ == "__main__":
    steps = 0
    def watch(event):
        global steps
        steps += event.kind == "step"
        if steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    run(Spec.from_json(json.loads(sys.argv[1])), sys.argv[2], checkpoint_every=0.0, watch=watch)
"""


@pytest.mark.slow
def test_two_resnets_train_and_go_on_after_a_kill(prepared: Path, tmp_path: Path) -> None:
    spec = Spec(
        data=Choice("cremad", frames=2, pick="random", **LOAD),
        encoder=Choice("resnet18", width=4),
        controller=Choice("vcmm"),
        epochs=2,
        batch_size=4,
    )
    whole = run(spec, tmp_path / "whole")
    assert {line["split"] for line in lines(whole / "evals.jsonl")} == {"valid", "test"}
    again = tmp_path / "killed"
    command = [sys.executable, "-c", RESUMED, json.dumps(spec.to_json()), str(again)]
    assert subprocess.run(command, check=False).returncode == -9
    assert list((again / ".work").glob("*/checkpoint.pt"))
    made = run(spec, again)
    for name in ("steps.jsonl", "evals.jsonl", "spec.json"):
        assert (made / name).read_bytes() == (whole / name).read_bytes()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
