"""Twitter-15 and 17: lists of both headers, text in three ways, and training from the files on."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcmm.bench.build import build
from vcmm.bench.data import COLLECTIONS, DATA, load
from vcmm.bench.data.twitter import TWITTER15, TWITTER17, Row, compared, read, rows_hash, written
from vcmm.bench.media.collection import Item, Undecodable
from vcmm.bench.media.prepare import load_store, prepare, settled
from vcmm.bench.signature import parameters
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.types import Data

from ..media import makers_twitter as makers
from ..media.training import trained

LISTS = Path(__file__).parents[4] / "shared/data/lists/twitter2015"
SMALL: dict[str, Any] = {"side": 48, "tokens": 12}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return makers.make(tmp_path_factory.mktemp("twitter") / "root")


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
        yield prepare(TWITTER15, root, SMALL, workers=1)


def find(root: Path, **parameters: Any) -> Any:
    return TWITTER15.find(root, settled(TWITTER15, parameters))


def decoded(root: Path, item: Item, **parameters: Any) -> Any:
    return TWITTER15.decode(root, item, settled(TWITTER15, parameters))


# Lists


@pytest.mark.skipif(not LISTS.exists(), reason="needs the published lists in ../shared")
@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("train.tsv", {0: 368, 1: 1883, 2: 928}),
        ("dev.tsv", {0: 149, 1: 670, 2: 303}),
        ("test.tsv", {0: 113, 1: 607, 2: 317}),
    ],
)
def test_the_published_lists(file: str, counts: dict[int, int]) -> None:
    rows = read(LISTS / file)
    assert Counter(row.label for row in rows) == counts
    assert all(row.sentence.count("$T$") == 1 and row.image.endswith(".jpg") for row in rows)
    assert [row.index for row in rows] == [str(n + 1) for n in range(len(rows))]


@pytest.mark.skipif(not LISTS.exists(), reason="needs the published lists in ../shared")
def test_published_lists_are_known_and_share_no_picture(tmp_path: Path) -> None:
    makers.vocab(tmp_path / "vocab.txt")
    for file in LISTS.glob("*.tsv"):
        shutil.copy(file, tmp_path)
    found = find(tmp_path)
    assert found.remarks == ()
    assert found.items == ()
    assert len(found.missing) == 3179 + 1122 + 1037
    text = (tmp_path / "dev.tsv").read_text("utf-8")
    (tmp_path / "dev.tsv").write_text(text.replace("Tyga", "Tiger", 1), "utf-8")
    assert find(tmp_path).remarks == (
        "dev.tsv has as many rows as the published list, but other ones",
    )


def test_both_headers_and_quotation_marks(root: Path) -> None:
    train, test = read(root / "train.tsv"), read(root / "test.tsv")
    assert (train[2].index, train[2].label, train[2].image) == ("3", 2, "train_2.jpg")
    assert (test[0].label, test[0].target) == (0, "Chuck Bass")
    assert test[0].sentence == 'RT @ Me : "$T$ is awful" # MCM'


def test_a_bom_carriage_returns_and_odd_separators(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    row = "1\t0\ta.jpg\tso\u2028it \x85 goes , $T$\tme"
    path.write_bytes(b"\xef\xbb\xbf" + f"{makers.TRAIN}\r\n{row}\r\n\r\n".encode())
    assert [(one.sentence, one.target) for one in read(path)] == [
        ("so\u2028it \x85 goes , $T$", "me")
    ]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2\t1\ta.jpg\ttext", r"line 3: 4 columns; there must be 5"),
        ("2\t3\ta.jpg\ttext\tme", r"line 3: label '3'; labels are 0, 1 and 2"),
        ("2\tneutral\ta.jpg\ttext\tme", r"line 3: label 'neutral'"),
        ("1\t1\ta.jpg\ttext\tme", r"line 3: index '1' is that of line 2 too"),
        ("2\t1\t../../a.jpg\ttext\tme", r"line 3: '../../a.jpg' is no name"),
        ("2\t1\t/etc/passwd\ttext\tme", r"line 3: '/etc/passwd' is no name"),
        ("2\t1\t..\ttext\tme", r"line 3: '..' is no name"),
        ("2\t1\t\ttext\tme", r"line 3: '' is no name"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, why: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(f"{makers.TRAIN}\n1\t0\ta.jpg\ttext $T$\tme\n{row}\n", "utf-8")
    with pytest.raises(ValueError, match=why):
        read(path)


@pytest.mark.parametrize("header", ["", "index\tlabel\tImageID", "1\t0\ta.jpg\ttext\tme"])
def test_another_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "train.tsv").write_text(header)
    with pytest.raises(ValueError, match=r"line 1: the header is .*#1 Label"):
        read(tmp_path / "train.tsv")


# What a folder holds


def test_everything_is_found(root: Path) -> None:
    found = find(root)
    assert Counter(item.lists for item in found.items) == {
        ("tombert/train",): 12,
        ("tombert/dev",): 6,
        ("tombert/test",): 6,
    }
    assert found.labels == ("negative", "neutral", "positive")
    assert found.missing == {}
    item = next(item for item in found.items if item.id == "train/2")
    assert (item.label, item.group) == ("neutral", "größe_train.jpg")
    assert item.files == {
        "image": ("twitter2015_images/größe_train.jpg",),
        "text": ("vocab.txt",),
    }


def test_lists_elsewhere_and_by_other_names(own: Path) -> None:
    before = find(own).items
    (own / "annotations").mkdir()
    for old, new in {"train": "train_data", "dev": "valid_data", "test": "test_data"}.items():
        (own / f"{old}.tsv").rename(own / f"annotations/{new}.tsv")
    assert find(own).items == before


def test_what_lacks_is_listed(own: Path) -> None:
    (own / "dev.tsv").unlink()
    (own / "twitter2015_images/train_4.jpg").unlink()
    found = find(own)
    assert found.missing == {
        "dev.tsv": "the list is not there; see the layout",
        "train/5": "twitter2015_images/train_4.jpg is not there",
    }
    assert len(found.items) == 17
    assert any("dev.tsv is not there: what is prepared" in line for line in found.remarks)


def test_without_a_vocabulary_nothing_can_be_used(own: Path) -> None:
    (own / "vocab.txt").unlink()
    found = find(own)
    assert found.items == ()
    assert "without the vocabulary" in found.missing["vocab.txt"]
    assert "vocab.txt" in TWITTER15.layout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["[UNK]", "[PAD]", "[CLS]", "[SEP]"], r"line 1 is '\[UNK\]', not \[PAD\]"),
        (["[PAD]", "[UNK]", "[SEP]"], r"it lacks \[CLS\]"),
        (["{"], r"it lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        ([], r"it lacks"),
    ],
)
def test_a_file_that_is_no_vocabulary(own: Path, words: list[str], why: str) -> None:
    makers.vocab(own / "vocab.txt", words)
    with pytest.raises(ValueError, match=why):
        find(own)


def test_the_vocabulary_lies_below_the_root(own: Path, tmp_path: Path) -> None:
    makers.vocab(tmp_path / "outside.txt")
    for bad in ("../outside.txt", str(tmp_path / "outside.txt")):
        with pytest.raises(ValueError, match="outside"):
            find(own, vocab=bad)


def test_a_link_out_of_the_root_is_listed_and_not_followed(own: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    makers.draw(secret, 0, (20, 20))
    place = own / "twitter2015_images/train_0.jpg"
    place.unlink()
    place.symlink_to(secret)
    found = find(own)
    assert set(found.missing) == {"train/1", "train/4"}  # which share it
    assert "leads out" in found.missing["train/1"]


def test_a_name_that_no_disk_takes_is_listed(own: Path) -> None:
    rows = makers.cells("dev", 6)
    rows[0] = (*rows[0][:2], "a" * 300 + ".jpg", *rows[0][3:])
    makers.write(own / "dev.tsv", rows)
    found = find(own)
    assert list(found.missing) == ["dev/1"]
    assert "cannot be looked for: File name too long" in found.missing["dev/1"]
    assert find(own, vocab="a" * 300).items == ()


def test_pictures_of_two_lists_are_remarked(own: Path) -> None:
    rows = makers.cells("dev", 6)
    rows[0] = (*rows[0][:2], "train_0.jpg", *rows[0][3:])
    makers.write(own / "dev.tsv", rows)
    assert "1 pictures are in train and in dev" in find(own).remarks


def test_twitter_17_has_its_own_folder(tmp_path: Path) -> None:
    root = makers.make(tmp_path, "twitter2017")
    found = TWITTER17.find(root, settled(TWITTER17, {}))
    assert len(found.items) == 24
    assert "twitter2017_images/" in found.items[0].files["image"][0]
    assert (TWITTER15.name, TWITTER17.name) == ("twitter15", "twitter17")
    assert "twitter2017_images/" in TWITTER17.layout
    assert "3562, 1176, 1234" in TWITTER17.layout


def test_what_is_compared_with_the_published_lists() -> None:
    rows = [Row("1", 0, "a.jpg", "text $T$", "me")]
    assert compared("dev.tsv", rows, 2, "") == ["dev.tsv has 1 rows; the published list 2"]
    assert compared("dev.tsv", rows, 1, rows_hash(rows)) == []
    assert compared("dev.tsv", rows, 1, "") == [
        "dev.tsv has as many rows as the published list; what they say is not compared"
    ]


# What is stored


def test_the_text_in_three_ways() -> None:
    sentence, target = 'RT @ a_b : "$T$ \'s 3rd" caf\u00e9 # GO', "Chuck Bass"
    given = {"words": 30}
    assert written(sentence, target, {"text": "words", **given}) == "rt a b t s rd caf go"
    assert written(sentence, target, {"text": "words", "words": 3}) == "rt a b"
    assert written(sentence, target, {"text": "sentence", **given}) == sentence
    assert written(sentence, target, {"text": "target", **given}) == sentence.replace(
        "$T$", "Chuck Bass"
    )


def test_ids_are_those_of_berts_tokenizer(root: Path) -> None:
    item = next(item for item in find(root).items if item.id == "train/2")
    assert item.more == {"sentence": 'RT @ Me : "$T$ said" # MCM', "target": "Oklahoma"}

    def words(**parameters: Any) -> list[str]:
        ids = decoded(root, item, **parameters)["text"]
        assert ids.dtype == np.int32
        return [makers.VOCAB[one] for one in ids]

    assert words() == ["[CLS]", "rt", "[UNK]", "t", "said", "[UNK]", "[SEP]"]
    assert words(tokens=4) == ["[CLS]", "rt", "[UNK]", "[SEP]"]
    assert words(text="target", tokens=50)[1:9] == [
        *("rt", "@", "[UNK]", "[UNK]", "[UNK]", "okla", "##homa", "said")
    ]
    assert words(text="sentence", tokens=50)[6:9] == ["$", "t", "$"]


def test_another_vocabulary_in_the_same_place_is_read(own: Path) -> None:
    item = find(own).items[0]
    before = decoded(own, item)["text"].tolist()
    makers.vocab(own / "vocab.txt", ["[PAD]", "new", *makers.VOCAB[1:]])
    after = decoded(own, item)["text"].tolist()
    assert after == [one + 1 for one in before]


def test_pictures_are_shrunk_and_never_enlarged(root: Path) -> None:
    shapes = {
        item.id: decoded(root, item, side=48)["image"].shape
        for item in find(root).items
        if item.id.startswith("test")
    }
    assert shapes["test/1"] == (48, 72, 3)  # 90 x 60
    assert shapes["test/2"] == (77, 48, 3)  # 50 x 80
    assert shapes["test/3"] == (30, 20, 3)


def spoilt(kind: str, path: Path) -> None:
    whole = path.read_bytes()
    if kind == "huge":  # the header of a jpg says 65500 x 65500
        place = whole.index(b"\xff\xc0") + 5
        whole = whole[:place] + b"\xff\xdc\xff\xdc" + whole[place + 4 :]
    made = {
        "truncated": whole[: len(whole) // 3],
        "empty": b"",
        "text": b"<html>not found</html>",
        "header": b"\0" * 40 + whole[40:],
        "huge": whole,
    }
    path.write_bytes(made[kind])


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "header", "huge"])
def test_a_picture_that_does_not_decode(own: Path, kind: str) -> None:
    item = next(item for item in find(own).items if item.id == "test/1")
    path = own / item.files["image"][0]
    spoilt(kind, path)
    with pytest.raises(Undecodable, match=r"test_0\.jpg"):
        decoded(own, item)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"tokens": 2}, "tokens is 2; BERT takes 3 to 512"),
        ({"tokens": 513}, "tokens is 513"),
        ({"side": 0}, "side is 0"),
        ({"vocab": ""}, "vocab is empty"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settled(TWITTER15, parameters)


@pytest.mark.parametrize("name", ["twitter15", "twitter17"])
def test_decoding_and_loading_have_the_same_defaults(name: str) -> None:
    loading = parameters(DATA[name])
    for option, of in parameters(COLLECTIONS[name].parameters).items():
        assert (loading[option].default, loading[option].annotation) == (of.default, of.annotation)


# From the files to a trained model


def loaded(**options: Any) -> Data:
    return load("twitter15", **{**SMALL, "size": 32, **options})


def test_prepared_and_loaded(prepared: Path) -> None:
    data = loaded()
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 12,
        "valid": 6,
        "test": 6,
    }
    assert data.labels == ("negative", "neutral", "positive")
    assert {m: (form.kind, form.shape) for m, form in data.forms.items()} == {
        "image": ("image", (3, 32, 32)),
        "text": ("tokens", (12,)),
    }
    assert data.forms["text"].words == 1 + max(
        int(data.batch(split, np.arange(len(data.splits[split]))).inputs["text"].max())
        for split in data.splits
    )
    batch = data.batch("test", np.arange(6))
    assert batch.target.tolist() == [0, 1, 2, 0, 1, 2]
    words = [makers.VOCAB[one] for one in batch.inputs["text"][0]]
    assert words == ["[CLS]", "rt", "[UNK]", "t", "is", "awful", "[UNK]", "[SEP]", *["[PAD]"] * 4]
    # The class is the colour of the picture.
    assert batch.inputs["image"].mean(dim=(2, 3)).argmax(dim=1).tolist() == [0, 1, 2, 0, 1, 2]


def test_training_sees_other_pictures_in_every_draw_unless_told_not_to(prepared: Path) -> None:
    def pictures(data: Data, draw: int | None) -> np.ndarray:
        return data.batch("train", np.arange(4), draw).inputs["image"].numpy()

    data = loaded()
    assert np.array_equal(pictures(data, 1), pictures(data, 1))
    assert not np.array_equal(pictures(data, 1), pictures(data, 2))
    still = loaded(augment=False)
    assert np.array_equal(pictures(still, 1), pictures(still, None))
    assert np.array_equal(pictures(still, None), pictures(data, None))


def test_options_of_pictures_change_the_hash_and_nothing_is_decoded_again(prepared: Path) -> None:
    made = [loaded(), loaded(augment=False), loaded(colours="none"), loaded(size=40)]
    assert len({data.hash for data in made}) == len(made)
    plain = made[2].batch("test", np.arange(6)).inputs["image"]
    assert 0 <= plain.min() < plain.max() <= 1
    with pytest.raises(FileNotFoundError, match="vcmm data prepare twitter15 --root DIR --tokens"):
        loaded(tokens=20)


def test_the_manifest_knows_the_vocabulary_by_its_bytes(root: Path, prepared: Path) -> None:
    store = load_store(TWITTER15, SMALL)
    source = next(iter(store.sources()))
    stamps = {stamp[0]: stamp[3] for stamp in source["stamps"]}
    assert stamps["vocab.txt"] == hashlib.sha256((root / "vocab.txt").read_bytes()).hexdigest()
    assert str(root) not in (prepared / "manifest.json").read_text()
    assert prepare(TWITTER15, root, SMALL, workers=1) == prepared


def test_too_few_words_are_refused_before_the_first_step(prepared: Path) -> None:
    spec = Spec(
        data=Choice("twitter15", **SMALL, size=32),
        encoders={
            "image": Choice("resnet18", width=4),
            "text": Choice("bert", layers=1, width=16, heads=2, words=9),
        },
    )
    with pytest.raises(ValueError, match=r"modality 'text': bert: words is 9, and the texts have"):
        build(spec, loaded())


@pytest.mark.slow
def test_another_vocabulary_and_a_broken_picture_are_prepared_anew(
    own: Path, prepared: Path, tmp_path: Path
) -> None:
    (own / "twitter2015_images/test_5.jpg").write_bytes(b"")
    makers.vocab(own / "vocab.txt", ["[PAD]", "new", *makers.VOCAB[1:]])
    before = sorted(path for path in own.rglob("*"))
    stamps = [os.stat(path).st_mtime_ns for path in before]
    path = prepare(TWITTER15, own, SMALL, cache=tmp_path / "cache", workers=1)
    store = load_store(TWITTER15, SMALL, cache=tmp_path / "cache")
    assert list(store.manifest["failed"]) == ["test/6"]
    assert "test_5.jpg" in store.manifest["failed"]["test/6"]
    assert len(store) == 23
    assert store.digest != load_store(TWITTER15, SMALL).digest
    assert path.name == prepared.name
    assert sorted(path for path in own.rglob("*")) == before  # nothing is written there
    assert [os.stat(path).st_mtime_ns for path in before] == stamps


@pytest.mark.slow
def test_two_epochs_with_bert_and_a_resnet_50(prepared: Path, tmp_path: Path) -> None:
    spec = Spec(
        data=Choice("twitter15", **SMALL, size=32),
        encoders={
            "image": Choice("resnet50", width=4, classifier=10),
            "text": Choice("bert", layers=1, width=16, heads=2, words=len(makers.VOCAB)),
        },
        controller=Choice("vcmm"),
        epochs=2,
        batch_size=4,
    )
    last = trained(spec, tmp_path)
    assert set(last) == {"valid", "test"}
    assert all(0 <= values["accuracy"] <= 1 for values in last.values())
    assert {"image/accuracy", "text/accuracy"} <= last["test"].keys()
