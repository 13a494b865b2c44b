"""Arms and settings: who is compared with whom, and by what name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vcmm.bench.arms import Setting, settings
from vcmm.bench.records import load

from .folders import reseal, study, write


def labels(setting: Setting) -> list[str]:
    return [arm.label for arm in setting.arms]


def test_arms_gather_seeds_and_have_readable_names(tmp_path: Path) -> None:
    (setting,) = settings(load(study(tmp_path)))
    assert setting.title == "watch"
    assert labels(setting) == [
        "unimodal: accelerometer",
        "unimodal: gyroscope",
        "joint",
        "joint + vcmm",
        "ensemble",
        "multi_loss",
    ]
    assert all(list(arm.runs) == [0, 1, 2] for arm in setting.arms)
    assert setting.reference is setting.arms[2]
    assert [arm.alone for arm in setting.arms[:3]] == ["accelerometer", "gyroscope", None]
    assert len(setting.runs) == 18


def test_only_options_that_differ_are_shown(tmp_path: Path) -> None:
    write(tmp_path)
    for alpha in (0.1, 0.3):
        write(tmp_path, "ogm", options={"alpha": alpha, "mode": "ge"})
    write(tmp_path, "joint", "vcmm", control={"strength": 1.0, "exact": True})
    write(tmp_path, "joint", "vcmm", control={"strength": 1.0, "exact": False})
    write(tmp_path, "ogm", "vcmm", options={"alpha": 0.3, "mode": "ge"}, control={"exact": True})
    (setting,) = settings(load(tmp_path))
    assert sorted(labels(setting)) == [
        "joint",
        "joint + vcmm",
        "joint + vcmm (exact=false)",
        "ogm (alpha=0.1)",
        "ogm (alpha=0.3)",
        "ogm (alpha=0.3) + vcmm",
    ]


def test_vcmm_as_published_goes_without_saying(tmp_path: Path) -> None:
    plain = {"strength": 1.0, "exact": True, "gain_range": [0.01, 0.3]}
    for other in ({}, {"exact": False}, {"strength": 0.0, "gain_range": [0.1, 0.2]}):
        write(tmp_path, "joint", "vcmm", control={**plain, **other})
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == [
        "joint + vcmm",
        "joint + vcmm (exact=false)",
        "joint + vcmm (strength=0, gain_range=[0.1, 0.2])",
    ]


def test_what_most_of_them_share_goes_without_saying(tmp_path: Path) -> None:
    plain = {"alpha": 1, "mode": "ge", "ends": 3}
    for other in ({}, {"alpha": 2}, {"mode": "g"}, {"ends": 4}):
        write(tmp_path, "ogm", options={**plain, **other})
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == ["ogm", "ogm (alpha=2)", "ogm (ends=4)", "ogm (mode=g)"]


def test_a_part_of_the_modalities_is_another_arm_and_no_reference(tmp_path: Path) -> None:
    for part in (None, ["gyroscope"], ["accelerometer"]):
        write(tmp_path, chosen=part)
    write(tmp_path, "multi_loss", chosen=["gyroscope"])
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == [
        "joint",
        "joint on accelerometer",
        "joint on gyroscope",
        "multi_loss on gyroscope",
    ]
    assert setting.reference is setting.arms[0]


def test_one_choice_of_modalities_for_all_goes_without_saying(tmp_path: Path) -> None:
    for method in ("joint", "multi_loss"):
        write(tmp_path, method, chosen=["gyroscope", "accelerometer"])
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == ["joint", "multi_loss"]
    assert setting.reference is setting.arms[0]


@pytest.mark.parametrize(
    ("other", "titles"),
    [
        ({"data": {"name": "digits"}}, ["digits", "watch"]),
        ({"data": {"name": "watch", "stride": 50}}, ["watch", "watch (stride=50)"]),
        (
            {"optimizer": {"name": "sgd", "lr": 0.1}},
            ["watch, adam", "watch, sgd"],
        ),
        (
            {"optimizer": {"name": "adam", "lr": 0.01}},
            ["watch, adam (lr=0.001)", "watch, adam (lr=0.01)"],
        ),
        ({"epochs": 3}, ["watch, epochs 3", "watch, epochs 6"]),
        ({"threads": 2}, ["watch, threads 1", "watch, threads 2"]),
        ({"device": "cuda"}, ["watch, device cpu", "watch, device cuda"]),
        ({"data_hash": "e" * 64}, ["watch, content dddddddd", "watch, content eeeeeeee"]),
        ({"encoder": {"name": "mlp"}}, ["watch, auto", "watch, mlp"]),
    ],
)
def test_settings_are_never_mixed(tmp_path: Path, other: dict[str, Any], titles: list[str]) -> None:
    for options in ({}, other):
        write(tmp_path, test=0.7, **options)
        write(tmp_path, "joint", "vcmm", test=0.8, **options)
    found = settings(load(tmp_path))
    assert [setting.title for setting in found] == titles
    assert [labels(setting) for setting in found] == [["joint", "joint + vcmm"]] * 2


def test_the_same_data_in_another_place_is_the_same_setting(tmp_path: Path) -> None:
    write(tmp_path, data={"name": "/here/mine.npz"})
    write(tmp_path, seed=1, data={"name": "/there/mine.npz"})
    (setting,) = settings(load(tmp_path))
    assert setting.title == "mine.npz"
    assert list(setting.arms[0].runs) == [0, 1]


def test_without_joint_training_there_is_no_reference(tmp_path: Path) -> None:
    write(tmp_path, "joint", "vcmm")
    (setting,) = settings(load(tmp_path))
    assert setting.reference is None


def test_the_same_run_twice_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path)
    copy = tmp_path / ("0" * 16)
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    reseal(copy)
    with pytest.raises(ValueError, match="are the same run; delete one of them"):
        settings(load(tmp_path))


def test_no_runs_are_no_settings() -> None:
    assert settings([]) == []


def test_a_method_with_a_fusion_of_its_own_stands_in_the_same_table(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "mla", fusion={"name": "shared", "hidden": None})
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == ["joint", "mla by shared"]
    assert setting.reference is setting.arms[0]


def test_fusions_of_one_method_are_named_and_the_plain_one_is_the_reference(
    tmp_path: Path,
) -> None:
    for fusion in ({"name": "concat"}, {"name": "gated", "width": 64}, {"name": "mean"}):
        write(tmp_path, fusion=fusion)
    write(tmp_path, "joint", "vcmm")
    write(tmp_path, "gated", fusion={"name": "gated", "width": 64})
    (setting,) = settings(load(tmp_path))
    assert labels(setting) == [
        "joint",
        "joint by concat",
        "joint by gated",
        "joint + vcmm",
        "gated by gated",
    ]
    assert setting.reference is setting.arms[0]


def test_an_arm_is_compared_with_joint_training_by_its_fusion(tmp_path: Path) -> None:
    concat = {"name": "concat"}
    write(tmp_path)
    write(tmp_path, fusion=concat)
    write(tmp_path, fusion=concat, chosen=["gyroscope"])
    write(tmp_path, "joint", "vcmm")
    write(tmp_path, "ogm", fusion=concat)
    write(tmp_path, "ogm", "vcmm", fusion=concat)
    write(tmp_path, "mla", fusion={"name": "shared", "hidden": None})
    (setting,) = settings(load(tmp_path))
    against = {
        arm.label: None if (other := setting.reference_of(arm)) is None else other.label
        for arm in setting.arms
    }
    assert against == {
        "joint": None,
        "joint by concat": "joint",
        "joint by concat on gyroscope": "joint by concat",
        "joint + vcmm": "joint",
        "ogm by concat": "joint by concat",
        "ogm by concat + vcmm": "joint by concat",
        "mla by shared": "joint",  # joint training by that fusion is not there
    }
