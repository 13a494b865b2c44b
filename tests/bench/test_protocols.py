"""Protocols: each says what the papers say, and a command line may say otherwise."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from vcmm.bench.cli.errors import Mistake
from vcmm.bench.cli.protocol import expanded
from vcmm.bench.data import COLLECTIONS
from vcmm.bench.protocols import FOR, PROTOCOLS, PUBLISHED, fitting
from vcmm.bench.signature import written
from vcmm.bench.spec import Choice, Spec

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
PAIRS = [(protocol, data) for protocol, names in sorted(FOR.items()) for data in names]

# optimizer, lr, weight decay, epochs of a step, epochs, batch; and of the data, what papers name
SGD, ADAM = "sgd", "adam"
SAID: dict[tuple[str, str], tuple[str, float, float, int, int, int, dict[str, Any]]] = {
    ("ogm22", "cremad"): (
        *(SGD, 1e-3, 1e-4, 70, 100, 64),
        {"split": "ogm", "audio": "stft-3s", "frames": 1, "pick": "first"},
    ),
    ("ogm22", "kinetics_sounds"): (
        *(SGD, 1e-3, 1e-4, 70, 100, 64),
        {"split": "ogm", "audio": "fbank", "frames": 3, "pick": "uniform"},
    ),
    ("lfm24", "cremad"): (
        *(SGD, 1e-2, 1e-4, 70, 200, 64),
        {"split": "ogm", "audio": "stft-20s", "frames": 1, "pick": "first"},
    ),
    ("lfm24", "kinetics_sounds"): (
        *(SGD, 1e-2, 1e-4, 70, 120, 64),
        {"split": "ogm", "audio": "stft-10s", "frames": 3, "pick": "first"},
    ),
    ("lfm24", "nvgesture"): (
        *(SGD, 1e-2, 1e-4, 70, 120, 2),
        {"frames": 80, "length": 64, "crop": 224, "cut_flow": False, "by_subject": False},
    ),
    ("lfm24", "twitter15"): (
        *(ADAM, 2e-6, 1e-4, 40, 50, 16),
        {"text": "sentence", "tokens": 128, "augment": False, "colours": "imagenet"},
    ),
    ("vcmm26", "cremad"): (
        *(ADAM, 1e-2, 1e-4, 70, 200, 64),
        {"split": "ogm", "audio": "stft-20s", "frames": 1, "pick": "first"},
    ),
    ("vcmm26", "kinetics_sounds"): (
        *(ADAM, 1e-2, 1e-4, 70, 120, 64),
        {"split": "ogm", "audio": "stft-10s", "frames": 3, "pick": "first"},
    ),
    ("vcmm26", "nvgesture"): (
        *(ADAM, 1e-2, 1e-4, 70, 120, 2),
        {"frames": 80, "length": 64, "crop": 224, "cut_flow": False, "by_subject": False},
    ),
    ("vcmm26", "twitter15"): (
        *(ADAM, 2e-5, 2e-4, 20, 50, 32),
        {"text": "words", "words": 30, "tokens": 30, "crop": (0.5, 1.0), "colours": "clip"},
    ),
}
SAID |= {(p, "twitter17"): said for (p, data), said in SAID.items() if data == "twitter15"}


def named(spec: Spec) -> dict[str, str]:
    return {modality: choice.name for modality, choice in spec.encoders.items()}


def test_every_pair_is_here() -> None:
    assert set(SAID) == set(PAIRS)
    assert FOR.keys() == PROTOCOLS.keys()
    assert set(FOR[PUBLISHED]) == set(COLLECTIONS)


@pytest.mark.parametrize(("protocol", "data"), PAIRS)
def test_a_protocol_is_what_the_papers_say(protocol: str, data: str) -> None:
    spec = PROTOCOLS[protocol](data)
    optimizer, lr, decay, every, epochs, batch, options = SAID[protocol, data]
    assert spec.optimizer.name == optimizer
    assert spec.optimizer.options["lr"] == lr
    assert spec.optimizer.options["weight_decay"] == decay
    momentum = spec.optimizer.options.get("momentum") or spec.optimizer.options["betas"][0]
    assert momentum == 0.9
    assert spec.schedule == Choice("step", every=every, factor=0.1)
    assert (spec.epochs, spec.batch_size) == (epochs, batch)
    assert spec.data.name == data
    assert {name: spec.data.options[name] for name in options} == options
    # All else is the default: a tenth of train selects where there is no list for it.
    assert spec.data == Choice(data, **{**Spec(data=data).data.options, **options})
    assert (spec.method.name, spec.controller.name, spec.seed) == ("joint", "none", 0)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(("protocol", "data"), PAIRS)
def test_encoders_are_those_of_the_papers_and_start_at_random(protocol: str, data: str) -> None:
    spec = PROTOCOLS[protocol](data)
    text = {"image": "resnet50", "text": "bert"}
    assert (
        named(spec)
        == {
            "cremad": {"audio": "resnet18", "visual": "resnet18"},
            "kinetics_sounds": {"audio": "resnet18", "visual": "resnet18"},
            "nvgesture": {"depth": "i3d", "flow": "i3d", "rgb": "i3d"},
            "twitter15": text,
            "twitter17": text,
        }[data]
    )
    assert all(choice.options["weights"] is None for choice in spec.encoders.values())
    if data.startswith("twitter"):
        classifier = 1000 if protocol == "vcmm26" else 0
        assert spec.encoders["image"].options["classifier"] == classifier
        assert spec.encoders["text"].options["pooled"] == (protocol == "lfm24")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("data", ["watch", "mine.npz", "nvgesture"])
def test_an_unknown_pair_is_refused_with_what_there_is(protocol: str, data: str) -> None:
    if data in FOR[protocol]:
        return
    with pytest.raises(ValueError, match=f"protocol '{protocol}' says nothing of data") as error:
        PROTOCOLS[protocol](data)
    assert str(error.value).endswith(f"it is for {', '.join(sorted(FOR[protocol]))}")


@pytest.mark.parametrize(
    ("data", "decoded", "protocol"),
    [
        ("cremad", {"audio": "stft-3s", "pictures": "auto", "side": 360}, "ogm22"),
        ("cremad", {"audio": "stft-20s", "pictures": "auto", "side": 360}, "vcmm26"),
        ("cremad", {"audio": "fbank", "pictures": "auto", "side": 360}, "vcmm26"),
        ("cremad", {"audio": "stft-3s", "side": 48}, "ogm22"),
        ("kinetics_sounds", {"audio": "stft-10s"}, "vcmm26"),
        ("kinetics_sounds", {"audio": "fbank"}, "ogm22"),
        ("twitter15", {"text": "words", "tokens": 30}, "vcmm26"),
        (
            "twitter17",
            {"text": "sentence", "tokens": 128, "augment": False, "colours": "imagenet"},
            "lfm24",
        ),
        ("nvgesture", {}, "vcmm26"),
        ("watch", {}, None),
    ],
)
def test_what_was_decoded_has_its_protocol(data: str, decoded: Any, protocol: str | None) -> None:
    assert fitting(data, decoded) == protocol


def test_the_page_says_the_same() -> None:
    rows = {
        (cells[0], cells[1]): cells[2:]
        for line in PAGE.read_text("utf-8").splitlines()
        if len(cells := [cell.strip(" `") for cell in line.strip("|").split("|")]) > 8
    }
    for (protocol, data), said in SAID.items():
        if data == "twitter17":
            continue
        optimizer, lr, decay, every, epochs, batch, _ = said
        cells = rows[protocol, data]
        assert "=" in cells[0]
        assert cells[-5:] == [
            optimizer,
            f"{lr:.0e}".replace("e-0", "e-"),
            f"{decay:.0e}".replace("e-0", "e-"),
            f"{epochs}, x .1 after every {every}",
            str(batch),
        ]
        shown = PROTOCOLS[protocol](data).data.options
        for option, value in re.findall(r"(\w+)=([\w.-]+)", cells[0]):
            assert written(shown[option]) == value


# From a command line


def flags(*arguments: str) -> dict[str, str]:
    """What every flag comes to, the last time counting."""
    return {a: b for a, b in pairwise(expanded(arguments)) if a.startswith("--")}


def test_without_a_protocol_nothing_is_added() -> None:
    for line in ("run --data watch", "list methods", "", "sweep demo --data cremad", "data list"):
        assert expanded(line.split()) == line.split()


def test_a_protocol_stands_for_flags() -> None:
    found = flags("run", "--protocol", "ogm22", "--data", "cremad")
    assert found == {
        "--protocol": "ogm22",
        "--data": "cremad",
        "--encoder": "auto",
        "--encoders": "audio=resnet18,visual=resnet18",
        "--optimizer": "sgd",
        "--optimizer.lr": "0.001",
        "--schedule": "step",
        "--epochs": "100",
        "--batch-size": "64",
    }
    twitter = flags("compare", "--data=twitter15", "--protocol=lfm24")
    assert twitter["--data.text"] == "sentence"
    assert twitter["--optimizer.betas"] == "0.9,0.99"
    assert twitter["--encoders.text.pooled"] == "true"


def test_what_is_said_explicitly_counts() -> None:
    given = ["run", "--protocol", "lfm24", "--data", "cremad", "--epochs", "3", "--optimizer.lr=1"]
    found = expanded(given)
    assert found[-len(given) + 1 :] == given[1:]  # it comes last, and the last one counts
    found = flags(*given, "--data.audio", "stft-3s", "--encoders.audio.width", "8")
    assert found["--epochs"] == "3"
    assert found["--data.audio"] == "stft-3s"
    assert found["--encoders.audio.width"] == "8"
    assert found["--encoders"] == "audio=resnet18,visual=resnet18"


@pytest.mark.parametrize("axis", ["optimizer", "schedule", "encoder", "encoders"])
def test_another_choice_of_an_axis_leaves_out_the_options_of_the_protocol(axis: str) -> None:
    other = {"optimizer": "adam", "schedule": "cosine", "encoder": "resnet34"}
    value = other.get(axis, "image=resnet34,text=bert")
    for spelled in ([f"--{axis}", value], [f"--{axis}={value}"]):
        found = expanded(["run", "--protocol", "vcmm26", "--data", "twitter15", *spelled])
        owned = [flag for flag in found if flag.startswith(f"--{axis}.")]
        assert not owned
        kept = {"optimizer", "schedule"} - {axis}
        assert all(f"--{one}" in found for one in kept)
        if axis.startswith("encoder"):
            assert not [flag for flag in found if flag.startswith("--encoders.")]


def test_a_published_table_has_a_protocol_of_its_own() -> None:
    found = flags("sweep", "table1", "--data", "cremad", "--root", "DIR")
    assert found["--optimizer"] == "adam"
    assert found["--data.audio"] == "stft-20s"
    assert flags("sweep", "table1", "--data", "cremad", "--protocol", "ogm22")["--epochs"] == "100"
    for line in ("sweep table1 --data watch", "sweep table1", "sweep table1 --help"):
        assert expanded(line.split()) == line.split()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --protocol lfm25 --data cremad", "there is no protocol 'lfm25'; there are lfm24, "),
        ("run --protocol lfm24", "--protocol lfm24 needs the data that it is for: --data cremad"),
        ("run --protocol ogm22 --data nvgesture", "it is for cremad, kinetics_sounds"),
        ("compare --protocol lfm24 --data x.npz", "says nothing of data 'x.npz'"),
    ],
)
def test_a_mistake_says_what_there_is(line: str, message: str) -> None:
    with pytest.raises(Mistake, match=re.escape(message)):
        expanded(line.split())
