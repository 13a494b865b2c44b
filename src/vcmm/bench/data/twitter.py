"""Twitter-15 and Twitter-17: what a tweet and its picture say of a target, good or bad.

The lists are those of TomBERT (Yu and Jiang, IJCAI 2019): a row for each target of a tweet, whose
place in the text is written $T$. The files are split for good, dev.tsv is valid, and no picture of
Twitter-15 is in two of them. In test.tsv the header lacks the label; the columns are the same.
What the lists of Twitter-15 say is compared with the published ones by a hash; of those of
Twitter-17 only the numbers of rows are.

Three ways to write the text down for BERT, of at most `tokens` ids with [CLS] and [SEP]:

    words     the first `words` runs of letters, in lower case: what the paper's example does. $T$
              becomes the word t, and nothing says which target is meant but where that stands
    sentence  the text as it is, $T$ with it
    target    the text with the target put where $T$ stands, as one would read it. TomBERT itself
              keeps $T$ and gives the target in a second segment

The ids come from a vocab.txt, that of bert-base-uncased for its weights. It lies with the data, so
that a spec names no path of a machine; what it says is in the hash of the data, by the ids.

A picture is stored with a short side of `side` pixels at most: of 320, the smallest square that the
augmentation cuts, half of the area, has 226 pixels a side, and no detail of 224 is lost.

Deviations: where a picture lacks or does not decode, TomBERT shows another one, always the same;
here the sample is listed and left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..media.assembled import assembled
from ..media.collection import Collection, Found, Item, Parameters
from ..media.folders import lacking
from ..media.lists import checked, first_of, without
from ..media.paths import inside, lines
from ..media.pictures import picture
from ..media.source import View
from ..media.views import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, Picture, Tokens
from ..signature import require_positive
from ..types import Array, Data, Form

Published = tuple[int, str]  # rows of a list, and their `rows_hash` if it is known
Text = Literal["words", "sentence", "target"]
Colours = Literal["clip", "imagenet", "none"]

LABELS = ("negative", "neutral", "positive")  # 0, 1, 2 in the lists
HEADERS = (
    "index\t#1 Label\t#2 ImageID\t#3 String\t#3 String",
    "index\t#1 ImageID\t#2 String\t#2 String",  # of test.tsv; a label is there all the same
)
# How a list may be called. AMSS and BSS have the second names.
FILES = {
    "train": ("train.tsv", "train_data.tsv"),
    "dev": ("dev.tsv", "valid_data.tsv", "valid.tsv"),
    "test": ("test.tsv", "test_data.tsv"),
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
COLOURS = {
    "clip": (CLIP_MEAN, CLIP_STD),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
LAYOUT = """\
{name}/
  train.tsv, dev.tsv, test.tsv  absa_data/{source} of github.com/jefferyYu/TomBERT;
                                they may also lie in annotations/ or {name}/
  {name}_images/*.jpg      the link for each tweet's image in the README there
  vocab.txt                     huggingface.co/google-bert/bert-base-uncased

The three lists have {counts} rows. The pictures belong to those who posted them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a list."""

    index: str
    label: int
    image: str
    sentence: str
    target: str


def read(path: Path) -> list[Row]:
    """The rows of a list of either header."""
    header, *rest = lines(path) or [""]
    if header not in HEADERS:
        raise ValueError(
            f"{path}, line 1: the header is {header[:200]!r}, which is neither {HEADERS[0]!r} nor "
            f"{HEADERS[1]!r}"
        )
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(rest, 2):
        if not line.strip():
            continue
        # Quotation marks are part of a tweet here, so this is no csv.
        cells = line.split("\t")
        if len(cells) != 5:
            raise ValueError(
                f"{path}, line {number}: {len(cells)} columns; there must be 5, with tabs between: "
                "index, label, picture, text, target"
            )
        index, label, *texts = cells
        if label not in ("0", "1", "2"):
            raise ValueError(f"{path}, line {number}: label {label[:40]!r}; labels are 0, 1 and 2")
        if seen.setdefault(index, number) != number:
            raise ValueError(
                f"{path}, line {number}: index {index!r} is that of line {seen[index]} too"
            )
        image, sentence, target = texts
        checked(image, f"{path}, line {number}")
        rows.append(Row(index, int(label), image, sentence, target))
    return rows


def parameters(
    *,
    text: Text = "words",
    words: int = 30,
    tokens: int = 30,
    side: int = 320,
    vocab: str = "vocab.txt",
) -> None:
    """What of a sample is stored.

    Args:
        text: how it is written down, see above.
        words: at most so many, if `text` is words.
        tokens: at most so many ids, with the two that BERT adds.
        side: short side of a picture in pixels, at most.
        vocab: the vocabulary, a path below the root.
    """
    require_positive("twitter", words=words, side=side)
    if not 3 <= tokens <= 512:
        raise ValueError(f"twitter: tokens is {tokens}; BERT takes 3 to 512")
    if not vocab:
        raise ValueError("twitter: vocab is empty; give a path below the root, vocab.txt")


def find(
    name: str, published: Mapping[str, Published], root: Path, parameters: Parameters
) -> Found:
    """What a folder holds of one of the two data sets."""
    items: list[Item] = []
    missing: dict[str, str] = {}
    remarks: list[str] = []
    pictures: dict[str, set[str]] = {}
    for part, files in FILES.items():
        places = [f"{place}{file}" for place in ("", "annotations/", f"{name}/") for file in files]
        listed = first_of(root, places)
        if listed is None:
            missing[files[0]] = "the list is not there; see the layout"
            remarks.append(without(files[0]))
            continue
        rows = read(inside(root, listed))
        remarks += compared(listed, rows, *published[part])
        pictures[part] = {row.image for row in rows}
        for row in rows:
            shown = f"{name}_images/{row.image}"
            if wrong := lacking(root, shown):
                missing[f"{part}/{row.index}"] = wrong
            else:
                items.append(item(part, row, shown, parameters["vocab"]))
    remarks += shared(pictures)
    vocab = inside(root, parameters["vocab"])
    if not lacking(root, parameters["vocab"]):
        check_vocab(vocab)
    else:
        missing[parameters["vocab"]] = "no text can be used without the vocabulary; see the layout"
        items = []
    return Found(tuple(sorted(items, key=lambda one: one.id)), LABELS, missing, tuple(remarks))


def compared(listed: str, rows: list[Row], count: int, known: str) -> list[str]:
    """A remark on a list that is not the published one, or of which only the size is known."""
    if len(rows) != count:
        return [f"{listed} has {len(rows)} rows; the published list {count}"]
    if known and rows_hash(rows) != known:
        return [f"{listed} has as many rows as the published list, but other ones"]
    if not known:
        return [f"{listed} has as many rows as the published list; what they say is not compared"]
    return []


def rows_hash(rows: list[Row]) -> str:
    """sha256 of all that a list says."""
    said = ["\t".join(map(str, astuple(row))) for row in rows]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def item(part: str, row: Row, shown: str, vocab: str) -> Item:
    """A row whose picture is there."""
    return Item(
        id=f"{part}/{row.index}",
        label=LABELS[row.label],
        lists=(f"tombert/{part}",),
        files={"image": (shown,), "text": (vocab,)},
        group=row.image,
        more={"sentence": row.sentence, "target": row.target},
    )


def shared(pictures: Mapping[str, set[str]]) -> list[str]:
    """Remarks on pictures that are in two lists."""
    return [
        f"{count} pictures are in {one} and in {other}"
        for one, other in combinations(pictures, 2)
        if (count := len(pictures[one] & pictures[other]))
    ]


def check_vocab(path: Path) -> None:
    """An error for a vocabulary that BERT's tokenizer cannot use."""
    words = lines(path)
    lacking = [word for word in SPECIAL if word not in words]
    if lacking or words[0] != SPECIAL[0]:
        what = f"it lacks {', '.join(lacking)}" if lacking else f"line 1 is {words[0]!r}, not [PAD]"
        raise ValueError(f"{path} is no vocabulary of BERT: {what}; one of its words is on a line")


def decode(root: Path, item: Item, parameters: Parameters) -> Mapping[str, Array]:
    """The picture [h, w, 3], and the ids of the text [t]."""
    vocab = inside(root, item.files["text"][0])
    state = vocab.stat()
    encode = _tokenizer(str(vocab), state.st_mtime_ns, state.st_size)
    said = written(item.more["sentence"], item.more["target"], parameters)
    ids = encode(said, truncation=True, max_length=parameters["tokens"])["input_ids"]
    shown = inside(root, item.files["image"][0])
    return {
        "image": picture(shown, side=parameters["side"]),
        "text": np.array(ids, np.int32),
    }


def written(sentence: str, target: str, parameters: Parameters) -> str:
    """The text as the tokenizer is given it."""
    match parameters["text"]:
        case "words":
            return " ".join(re.findall("[A-Za-z]+", sentence)[: parameters["words"]]).lower()
        case "target":
            return sentence.replace("$T$", target)
        case _:
            return sentence


@lru_cache(maxsize=2)
def _tokenizer(vocab: str, *stamp: int) -> Callable[..., Any]:
    from transformers import BertTokenizer

    return BertTokenizer(vocab, do_lower_case=True)


@dataclass(frozen=True, slots=True)
class Judged:
    """A view that sees in training what it sees otherwise."""

    view: View

    @property
    def form(self) -> Form:
        return self.view.form

    def __call__(self, sample: Array, chance: np.random.Generator | None) -> Array:
        return self.view(sample, None)


def loader(collection: Collection, about: str) -> Callable[..., Data]:
    """The `load` of one of the two; their options are the same."""

    def load(
        *,
        text: Text = "words",
        words: int = 30,
        tokens: int = 30,
        side: int = 320,
        vocab: str = "vocab.txt",
        size: int = 224,
        augment: bool = True,
        crop: tuple[float, float] = (0.5, 1.0),
        flip: float = 0.5,
        randaugment: tuple[int, float, float] | None = (2, 7, 0.5),
        colours: Colours = "clip",
    ) -> Data:
        """Tweets with their pictures, as they were prepared with the first five options.

        Args:
            text: see `parameters`.
            words: see `parameters`.
            tokens: see `parameters`.
            side: see `parameters`.
            vocab: see `parameters`.
            size: of a picture in a batch, which is square.
            augment: whether training sees pictures changed, as the next three say.
            crop: smallest and largest share of the area that is seen.
            flip: how often a picture is mirrored.
            randaugment: operations, their magnitude, and how often each is done; or none.
            colours: whose mean and deviation are taken off: clip, imagenet, or none.
        """
        from ..media.prepare import load_store

        options = {"text": text, "words": words, "tokens": tokens, "side": side, "vocab": vocab}
        mean, std = COLOURS[colours]
        picture = Picture(
            size=size, crop=crop, flip=flip, randaugment=randaugment, mean=mean, std=std
        )
        store = load_store(collection, options)
        return assembled(
            collection.name,
            store,
            lists={"train": "tombert/train", "valid": "tombert/dev", "test": "tombert/test"},
            views={
                "image": picture if augment else Judged(picture),
                "text": Tokens(
                    length=tokens, words=1 + max(int(one.max()) for one in store.arrays["text"])
                ),
            },
            about=about,
        )

    return load


def collection(name: str, source: str, published: Mapping[str, Published]) -> Collection:
    """One of the two."""
    counts = ", ".join(str(count) for count, _ in published.values())
    layout = LAYOUT.format(name=name, source=source, counts=counts)
    short = name.replace("20", "", 1)
    return Collection(short, layout, parameters, partial(find, name, published), decode)


ABOUT = (
    "Sentiment towards a target in tweets with pictures (Yu and Jiang, IJCAI 2019), the published "
    "train, dev and test."
)
TWITTER15 = collection(
    "twitter2015",
    "twitter2015",
    {
        "train": (3179, "e4af37f3eb93b077e68cb93851ce59bec2ad316618a62fea84a3633d343b173c"),
        "dev": (1122, "70eb2855dd3e78612373494875696ed8a9a2ac81f44f9b85c9fea99d931bf879"),
        "test": (1037, "5df7cff77a8948088707d356e717d896e76eb459b36e98c35995c91af89b20d1"),
    },
)
TWITTER17 = collection(
    "twitter2017", "twitter", {"train": (3562, ""), "dev": (1176, ""), "test": (1234, "")}
)
load15 = loader(TWITTER15, ABOUT)
load17 = loader(TWITTER17, ABOUT)
