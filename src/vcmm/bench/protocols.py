"""Protocols: how groups of papers train on a benchmark. Results of two are never in one table.

| protocol | where it comes from |
|---|---|
| `ogm22`  | OGM-GE and those who took over its code: one frame, 3 s of sound, SGD at 1e-3 |
| `lfm24`  | LFM, AUG, AMSS, BSS: 20 s of sound, SGD at 1e-2 |
| `vcmm26` | the paper of VCMM: Adam at 1e-2. What it leaves open is taken from `lfm24`; for the
  Twitters it is its released example |

They fix data, encoders, optimizer, schedule, epochs and batch size. All choose the epoch on valid,
a tenth of train, where the papers chose it on test; a report can show both. Where papers start from
pretrained weights, give their files: --encoders.text.weights PATH. Without, networks start at
random, and the record says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .spec import Choice, Spec

RESNET, I3D = Choice("resnet18"), Choice("i3d")
CREMAD = {"audio": RESNET, "visual": RESNET}
TWITTER = {"image": Choice("resnet50", classifier=1000), "text": Choice("bert")}
TWITTERS = ("twitter15", "twitter17")
PAPERS = ("cremad", "kinetics_sounds", "nvgesture")  # where vcmm26 takes after lfm24


def ogm22(data: str) -> Spec:
    """OGM-GE's: SGD at 1e-3, a tenth of it after 70 of 100 epochs."""
    settings = {
        "cremad": Choice("cremad", split="ogm", audio="stft-3s", frames=1, pick="first"),
        "kinetics_sounds": Choice(
            "kinetics_sounds", split="ogm", audio="fbank", frames=3, pick="uniform"
        ),
    }
    return Spec(
        data=chosen("ogm22", settings, data),
        encoders=CREMAD,
        optimizer=Choice("sgd", lr=1e-3, momentum=0.9, weight_decay=1e-4),
        schedule=Choice("step", every=70, factor=0.1),
        epochs=100,
        batch_size=64,
    )


def lfm24(data: str) -> Spec:
    """That of LFM, AUG, AMSS and BSS."""
    shared = {
        "optimizer": Choice("sgd", lr=1e-2, momentum=0.9, weight_decay=1e-4),
        "schedule": Choice("step", every=70, factor=0.1),
    }
    amss = {
        "encoders": {"image": Choice("resnet50"), "text": Choice("bert", pooled=True)},
        "optimizer": Choice("adam", lr=2e-6, betas=(0.9, 0.99), weight_decay=1e-4),
        "schedule": Choice("step", every=40, factor=0.1),
        "epochs": 50,
        "batch_size": 16,
    }
    settings: dict[str, dict[str, Any]] = {
        "cremad": {**shared, "data": seen(20), "encoders": CREMAD, "epochs": 200},
        "kinetics_sounds": {**shared, "data": sounds(), "encoders": CREMAD, "epochs": 120},
        "nvgesture": {**shared, **gestures(), "epochs": 120, "batch_size": 2},
        **{name: {**amss, "data": tweets(name)} for name in TWITTERS},
    }
    return Spec(**chosen("lfm24", settings, data))


def vcmm26(data: str) -> Spec:
    """The paper's: Adam with momentum .9, learning rate 1e-2 and weight decay 1e-4."""
    adam = Choice("adam", lr=1e-2, weight_decay=1e-4)
    example: dict[str, Any] = {
        "encoders": TWITTER,
        "optimizer": Choice("adam", lr=2e-5, weight_decay=2e-4),
        "schedule": Choice("step", every=20, factor=0.1),
        "epochs": 50,
        "batch_size": 32,
    }
    settings: dict[str, Callable[[], Spec]] = {
        **dict.fromkeys(PAPERS, lambda: replace(lfm24(data), optimizer=adam)),
        **dict.fromkeys(TWITTERS, lambda: Spec(data=Choice(data), **example)),
    }
    return chosen("vcmm26", settings, data)()


def seen(seconds: int) -> Choice:
    """CREMA-D with one frame and so much sound."""
    return Choice("cremad", split="ogm", audio=f"stft-{seconds}s", frames=1, pick="first")


def sounds() -> Choice:
    """Kinetics-Sounds with three frames."""
    return Choice("kinetics_sounds", split="ogm", audio="stft-10s", frames=3, pick="first")


def tweets(name: str) -> Choice:
    """A Twitter with whole sentences, and pictures as they are."""
    return Choice(name, text="sentence", tokens=128, augment=False, colours="imagenet")


def gestures() -> dict[str, Any]:
    """NVGesture by three I3D."""
    encoders = {"depth": I3D, "flow": I3D, "rgb": I3D}
    return {"data": Choice("nvgesture", by_subject=False), "encoders": encoders}


def chosen(protocol: str, settings: dict[str, Any], data: str) -> Any:
    """What a protocol says of a data set, or that it says nothing."""
    if data not in settings:
        raise ValueError(
            f"protocol {protocol!r} says nothing of data {data!r}; it is for "
            f"{', '.join(sorted(settings))}"
        )
    return settings[data]


PROTOCOLS: dict[str, Callable[[str], Spec]] = {"lfm24": lfm24, "ogm22": ogm22, "vcmm26": vcmm26}
PUBLISHED = "vcmm26"  # what a table of the paper's benchmarks follows if nothing else is said
FOR: dict[str, tuple[str, ...]] = {  # the data that each says something of
    "lfm24": (*PAPERS, *TWITTERS),
    "ogm22": ("cremad", "kinetics_sounds"),
    "vcmm26": (*PAPERS, *TWITTERS),
}


def fitting(data: str, decoded: Mapping[str, Any]) -> str | None:
    """The protocol that asks for what was decoded, or for the most of it; vcmm26 before others."""

    def differences(name: str) -> int:
        wanted = PROTOCOLS[name](data).data.options
        return sum(wanted[option] != value for option, value in decoded.items())

    names = [name for name in sorted(PROTOCOLS, reverse=True) if data in FOR[name]]
    return min(names, key=differences, default=None)
