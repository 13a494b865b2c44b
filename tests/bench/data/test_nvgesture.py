"""NVGesture: the official lists, frames of .avi files, motion, and training from the files on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench import signature
from vcmm.bench.data import DATA, load
from vcmm.bench.data.nvgesture import COLLECTION, parsed, read
from vcmm.bench.media.collection import Item, Undecodable
from vcmm.bench.media.pictures import window
from vcmm.bench.media.prepare import load_store, prepare, settled
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.types import Data

from ..media import makers_nvgesture as makers
from ..media.training import trained

SMALL: dict[str, Any] = {"frames": makers.FRAMES, "side": 40}
# As one finds them, of the official lists: blanks at the end, and windows that differ by a frame.
OFFICIAL = """\
path:./Video_data/class_01/subject3_r0 depth:sk_depth:146:226 color:sk_color:146:226 \
duo_left:duo_left:170:263 label:1 \n\
path:./Video_data/class_01/subject4_r2 depth:sk_depth:144:224 color:sk_color:144:224 \
duo_left:duo_left:169:262 label:2 \n\
path:./Video_data/class_23/subject18_r1 depth:sk_depth:160:240 color:sk_color:161:241 \
duo_left:duo_left:186:279 label:23 \n\
path:./Video_data/class_25/subject12_r2 depth:sk_depth:90:170 color:sk_color:90:170 \
duo_left:duo_left:105:198 label:25 \n"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return makers.make(tmp_path_factory.mktemp("nvgesture") / "root")


@pytest.fixture
def own(root: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(root, tmp_path / "own"))


@pytest.fixture(scope="module")
def prepared(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the store lies; its cache is the one that is used."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VCMM_CACHE", str(cache))
        yield prepare(COLLECTION, root, SMALL, workers=1)


def find(root: Path, **parameters: Any) -> Any:
    return COLLECTION.find(root, settled(COLLECTION, {**SMALL, **parameters}))


def decoded(root: Path, item: Item, **parameters: Any) -> Any:
    return COLLECTION.decode(root, item, settled(COLLECTION, {**SMALL, **parameters}))


# Lists


def test_lines_of_the_official_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.lst"
    path.write_text(OFFICIAL)
    first, corrected, apart, last = read(path)
    assert (first.id, first.subject, first.label) == ("class_01/subject3_r0", "subject3", 1)
    assert first.files == {
        "rgb": "Video_data/class_01/subject3_r0/sk_color.avi",
        "depth": "Video_data/class_01/subject3_r0/sk_depth.avi",
    }
    assert first.windows == {"rgb": (146, 226), "depth": (146, 226)}
    assert (corrected.folder, corrected.label) == ("01", 2)
    assert apart.windows == {"rgb": (161, 241), "depth": (160, 240)}
    assert (last.subject, last.label) == ("subject12", 25)


GOOD = makers.line("Video_data/class_01/subject3_r0", 1, 3, 11)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("label:1", "label:0", r"here: label '0'; the official lists count from 1 to 25"),
        ("label:1", "label:26", r"label '26'"),
        ("label:1", "label:one", r"label 'one'"),
        ("label:1", f"label:{'1' * 5000}", r"label '1{40}'; the official"),
        ("label:1", "label:١", r"label '١'"),
        ("color:sk_color:3:11", f"color:sk_color:3:{'1' * 5000}", r"color:sk_color:3:1+ is no"),
        ("class_01", f"class_{'1' * 5000}", r"path './Video_data/class_1+' is not like"),
        ("label:1", "", r"here lacks label:"),
        ("color:sk_color:3:11", "", r"here lacks color:"),
        ("color:sk_color:3:11", "color:sk_color:3", r"color:sk_color:3 is no window"),
        ("color:sk_color:3:11", "color:sk_color:11:3", r"color:sk_color:11:3 is no window"),
        ("color:sk_color:3:11", "color:sk_color:-3:11", r"is no window"),
        ("./Video_data/class_01", "../Video_data/class_01", r"path '\.\./Video_data"),
        ("./Video_data/class_01", "./Video_data/../class_01", r"path '\./Video_data/\.\."),
        ("./Video_data", "/Video_data", r"path '/Video_data"),
        ("subject3_r0", "me", r"path './Video_data/class_01/me' is not like"),
        ("path:", "", r"here lacks path:"),
    ],
)
def test_a_bad_line_is_named(old: str, new: str, why: str) -> None:
    assert parsed(GOOD, "here").label == 1
    assert old in GOOD
    with pytest.raises(ValueError, match=why):
        parsed(GOOD.replace(old, new), "here")


def test_a_list_that_counts_from_0_is_refused_even_without_a_0(tmp_path: Path) -> None:
    folders = [f"Video_data/class_{number:02d}/subject1_r0" for number in (2, 3, 25)]
    text = "\n".join(makers.line(folder, int(folder[17:19]) - 1, 0, 80) for folder in folders)
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(ValueError, match="3 of 3 labels are not the number of their folder"):
        read(tmp_path / "a.lst")


def test_nothing_is_named_twice(own: Path) -> None:
    train, test = (own / makers.NAMES[part] for part in ("train", "test"))
    whole = train.read_text()
    train.write_text(whole + whole.splitlines()[0])
    with pytest.raises(ValueError, match=r"names class_01/subject1_r0 more than once"):
        find(own)
    train.write_text(whole)
    test.write_text(whole)
    with pytest.raises(ValueError, match=r"class_01/subject1_r0 is in the lists train and test"):
        find(own)


# What a folder holds


def test_everything_is_found(root: Path) -> None:
    found = find(root)
    assert Counter(item.lists for item in found.items) == {
        ("official/train",): 16,
        ("official/test",): 8,
    }
    assert len(found.labels) == 25
    assert found.missing == {}
    assert "nvgesture_test_correct_v2.lst has 8 lines; the official one 482" in found.remarks
    assert any(": 1 labels are not the number of their folder" in one for one in found.remarks)
    corrected = next(item for item in found.items if item.id == "class_24/subject2_r0")
    assert (corrected.label, corrected.group) == ("gesture 11", "subject2")
    assert corrected.more == {"rgb": [3, 11], "depth": [3, 11]}


def test_what_lacks_is_listed(own: Path) -> None:
    (own / "Video_data/class_01/subject1_r0/sk_depth.avi").unlink()
    (own / makers.NAMES["test"]).unlink()
    found = find(own)
    assert found.missing == {
        "class_01/subject1_r0": "Video_data/class_01/subject1_r0/sk_depth.avi is not there",
        "nvgesture_test_correct_cvpr2016_v2.lst": "the list is not there; see the layout",
    }
    assert len(found.items) == 15
    assert any("cannot be loaded; put it below the root" in line for line in found.remarks)


def test_a_window_of_another_length_is_left_out(root: Path) -> None:
    found = find(root, frames=80)
    assert found.items == ()
    assert found.missing["class_01/subject1_r0"] == ("its window 3:11 in rgb has 8 frames, not 80")


def test_subjects_of_both_lists_are_remarked(own: Path) -> None:
    path = own / makers.NAMES["test"]
    folder = "Video_data/class_01/subject1_r9"
    path.write_text(f"{path.read_text()}{makers.line(folder, 1, 3, 11)}\n")
    assert "in train and in test: subject1" in find(own).remarks


def test_a_link_out_of_the_root_is_listed_and_not_followed(own: Path, tmp_path: Path) -> None:
    place = own / "Video_data/class_01/subject1_r0/sk_color.avi"
    shutil.move(place, tmp_path / "outside.avi")
    place.symlink_to(tmp_path / "outside.avi")
    found = find(own)
    assert list(found.missing) == ["class_01/subject1_r0"]
    assert "leads out" in found.missing["class_01/subject1_r0"]


def test_a_name_that_no_disk_takes_is_listed(own: Path) -> None:
    path = own / makers.NAMES["test"]
    path.write_text(path.read_text().replace("sk_color", "a" * 300, 1))
    found = find(own)
    assert list(found.missing) == ["class_01/subject5_r0"]
    assert "File name too long" in found.missing["class_01/subject5_r0"]


# What is stored


def test_frames_of_the_windows_alone(root: Path) -> None:
    item = find(root).items[0]
    made = decoded(root, item, side=makers.HEIGHT)
    assert {m: (a.shape, a.dtype.name) for m, a in made.items()} == {
        "rgb": ((8, 48, 48, 3), "uint8"),
        "depth": ((8, 48, 48, 1), "uint8"),
        "flow": ((8, 48, 48, 2), "float16"),
    }
    # The square is 14 wide, is squeezed by 64 / 48, and goes 3 pixels to the right in a frame.
    drawn = makers.colour(1)[makers.START : makers.START + makers.FRAMES]
    for frame, true in zip(made["rgb"], drawn, strict=True):
        columns = np.flatnonzero(frame[12, :, 0] > 170)
        seen = np.flatnonzero(true[12, :, 0] > 170)
        assert abs(columns.mean() - seen.mean() * 48 / 64) < 1
    grey = window(root / item.files["depth"][0], *item.more["depth"], channels=1)
    assert abs(made["depth"].mean() - grey.mean()) < 1


def test_motion_is_where_the_square_goes(root: Path) -> None:
    items = {item.label: item for item in find(root).items if item.group == "subject1"}
    right = decoded(root, items["gesture 01"])["flow"].astype(np.float32)
    down = decoded(root, items["gesture 02"])["flow"].astype(np.float32)
    # The mean over where something moves; units do not matter here.
    sideways, downwards = (
        flow[np.abs(flow).max(axis=3) > 0.01].mean(axis=0) for flow in (right, down)
    )
    assert sideways[0] > 3 * abs(sideways[1])
    assert downwards[1] > 3 * abs(downwards[0])
    assert "flow" not in decoded(root, items["gesture 01"], flow="none")


def flows(own: Path, shape: tuple[int, ...], **change: Any) -> np.ndarray:
    """Files of motion for all gestures, as the released code has them."""
    for part in ("train", "test"):
        for number, (folder, _) in enumerate(makers.gestures(part)):
            motion = np.full(shape, number / 8, np.float32)
            path = own / f"Video_data/flow_data/{part}/{number}.npy"
            if part in change:
                path = own / folder / "flow.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, motion)
    return motion


@pytest.mark.parametrize("shape", [(40, 40, 2, 8), (8, 40, 40, 2)])
def test_motion_out_of_files(own: Path, shape: tuple[int, ...]) -> None:
    flows(own, shape, test=True)
    found = find(own, flow="npy")
    assert found.missing == {}
    items = {item.id: item for item in found.items}
    assert items["class_01/subject2_r0"].files["flow"] == ("Video_data/flow_data/train/4.npy",)
    assert items["class_02/subject5_r0"].files["flow"] == (
        "Video_data/class_02/subject5_r0/flow.npy",
    )
    motion = decoded(own, items["class_01/subject2_r0"], flow="npy")["flow"]
    assert (motion.shape, motion.dtype) == ((8, 40, 40, 2), np.float16)
    assert (motion == 0.5).all()
    (own / "Video_data/flow_data/train/4.npy").unlink()
    assert find(own, flow="npy").missing["class_01/subject2_r0"] == (
        "neither Video_data/class_01/subject2_r0/flow.npy nor Video_data/flow_data/train/4.npy "
        "is there"
    )


def test_motion_that_cannot_be_used(own: Path) -> None:
    flows(own, (40, 40, 2, 8))
    item = next(item for item in find(own, flow="npy").items if "subject1_" in item.id)
    path = own / item.files["flow"][0]
    good = np.zeros((40, 40, 2, 8), np.float32)
    bad: list[tuple[Any, str]] = [
        (good[:20], r"shape \(20, 40, 2, 8\)"),
        (np.full_like(good, np.nan), "not finite"),
        (np.full_like(good, 1e6), "above 65504"),
        (good.astype("S1"), "not numbers"),
    ]
    for array, why in bad:
        np.save(path, array)
        with pytest.raises(Undecodable, match=why):
            decoded(own, item, flow="npy")
    np.save(path, np.array([object()] * 4), allow_pickle=True)
    with pytest.raises(Undecodable, match=r"is no \.npy file"):
        decoded(own, item, flow="npy")
    with path.open("wb") as file:
        np.savez(file, good)
    with pytest.raises(Undecodable, match=r"is no \.npy file"):
        decoded(own, item, flow="npy")
    np.save(path, good)
    for content in (b"", path.read_bytes()[:500], b"\0" * 200):
        path.write_bytes(content)
        with pytest.raises(Undecodable, match=rf"{path.name} is no \.npy file"):
            decoded(own, item, flow="npy")


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "header", "short"])
def test_a_video_that_does_not_decode(own: Path, kind: str) -> None:
    item = find(own).items[0]
    path = own / item.files["rgb"][0]
    whole = path.read_bytes()
    if kind == "short":
        makers.film(path, makers.colour(1, makers.START + makers.FRAMES - 1))
    else:
        spoilt = {
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "text": b"<html>not found</html>",
            "header": b"\0" * 400 + whole[400:],
        }
        path.write_bytes(spoilt[kind])
    with pytest.raises(Undecodable, match=r"sk_color\.avi"):
        decoded(own, item)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"frames": 0}, "frames is 0"),
        ({"side": 0}, "side is 0"),
        ({"frames": 1}, "no motion in less than 2"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settled(COLLECTION, parameters)


def test_decoding_and_loading_have_the_same_defaults() -> None:
    loading = signature.parameters(DATA["nvgesture"])
    for option, of in signature.parameters(COLLECTION.parameters).items():
        assert (loading[option].default, loading[option].annotation) == (of.default, of.annotation)


# From the files to a trained model


def loaded(**options: Any) -> Data:
    return load("nvgesture", **{**SMALL, "length": 6, "crop": 32, **options})


def test_prepared_and_loaded(prepared: Path) -> None:
    data = loaded()
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 12,
        "valid": 4,
        "test": 8,
    }
    who = {name: set(split.group.tolist()) for name, split in data.splits.items()}
    assert who["test"] == {"subject5", "subject8"}
    assert len(who["valid"]) == 1
    assert not who["train"] & who["valid"]
    assert {m: (form.kind, form.shape[0]) for m, form in data.forms.items()} == {
        "rgb": ("video", 3),
        "depth": ("video", 1),
        "flow": ("video", 2),
    }
    judged = data.batch("test", np.arange(2))
    assert {m: tuple(x.shape) for m, x in judged.inputs.items()} == {
        "rgb": (2, 3, 8, 32, 32),
        "depth": (2, 1, 8, 32, 32),
        "flow": (2, 2, 8, 32, 32),
    }
    # Labels are the official ones less 1; rows are sorted by their folder.
    assert data.batch("test", np.arange(8)).target.tolist() == [0, 0, 1, 1, 10, 10, 24, 24]
    random = loaded(by_subject=False, valid=0.25)
    assert {name: len(split) for name, split in random.splits.items()} == {
        "train": 12,
        "valid": 4,
        "test": 8,
    }
    assert random.hash != data.hash


def test_colour_and_depth_are_cropped_alike_in_training(prepared: Path) -> None:
    data = loaded()
    batch = data.batch("train", np.arange(4), draw=3)
    assert batch.inputs["rgb"].shape == (4, 3, 6, 32, 32)
    assert batch.inputs["depth"].shape == (4, 1, 6, 32, 32)
    assert batch.inputs["flow"].shape == (4, 2, 8, 32, 32)  # as in the released code
    assert loaded(cut_flow=True).batch("train", np.arange(4), 3).inputs["flow"].shape[2] == 6
    red = batch.inputs["rgb"][:, 0] * 0.229 + 0.485
    depth = batch.inputs["depth"][:, 0]
    for one, other in zip(red.numpy(), depth.numpy(), strict=True):  # drawn in the same red
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9
    again = data.batch("train", np.arange(4), draw=4)
    assert not np.array_equal(again.inputs["rgb"], batch.inputs["rgb"])


def test_motion_can_be_left_out_or_scaled(prepared: Path) -> None:
    flow, halved = (
        loaded(flow_scale=scale).batch("test", np.arange(2)).inputs["flow"] for scale in (1.0, 2.0)
    )
    assert np.allclose(flow, 2 * halved)
    assert 0 < flow.abs().max() <= 1
    with pytest.raises(FileNotFoundError, match=r"prepare nvgesture --root DIR .*--flow none"):
        loaded(flow="none")


@pytest.mark.slow
def test_broken_videos_are_listed_and_the_rest_is_prepared(own: Path, tmp_path: Path) -> None:
    color, depth = (
        own / f"Video_data/class_01/subject{n}_r0/sk_{what}.avi"
        for n, what in ((1, "color"), (5, "depth"))
    )
    color.write_bytes(color.read_bytes()[:3000])
    depth.write_bytes(b"")
    prepare(COLLECTION, own, {**SMALL, "flow": "none"}, cache=tmp_path / "cache", workers=1)
    store = load_store(COLLECTION, {**SMALL, "flow": "none"}, cache=tmp_path / "cache")
    assert list(store.manifest["failed"]) == ["class_01/subject1_r0", "class_01/subject5_r0"]
    assert len(store) == 22
    assert set(store.arrays) == {"rgb", "depth"}


@pytest.mark.slow
def test_two_epochs_with_three_i3ds(prepared: Path, tmp_path: Path) -> None:
    spec = Spec(
        data=Choice("nvgesture", **SMALL, length=6, crop=32),
        encoder=Choice("i3d", width=0.05),
        controller=Choice("vcmm"),
        epochs=2,
        batch_size=4,
    )
    last = trained(spec, tmp_path)
    assert set(last) == {"valid", "test"}
    assert {"rgb/accuracy", "depth/accuracy", "flow/accuracy"} <= last["test"].keys()
