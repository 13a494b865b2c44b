"""The tables of a paper: what stands in them, what is marked, and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcmm.bench.arms import Setting, settings
from vcmm.bench.records import load
from vcmm.bench.report.sheet import Cell, Column, Sheet, ranked
from vcmm.bench.report.sheets import SHEETS, SUITES, named
from vcmm.bench.report.sheets.ablation import ablation
from vcmm.bench.report.sheets.cost import cost
from vcmm.bench.report.sheets.ranking import ranking
from vcmm.bench.report.sheets.search import search
from vcmm.bench.report.sheets.sensitivity import sensitivity
from vcmm.bench.report.sheets.table1 import table1
from vcmm.bench.statistics import holm, paired, wilcoxon

from ..folders import STUDY, study, write
from .studies import ablated, arm, searched, swept


def only(root: Path) -> Setting:
    (setting,) = settings(load(root))
    return setting


def made(sheet: Sheet | None) -> Sheet:
    assert sheet is not None
    return sheet


def texts(sheet: Sheet, title: str) -> dict[str, str]:
    """A column by the first one."""
    index = [column.title for column in sheet.columns].index(title)
    return {row[0].text: row[index].text for row in sheet.rows}


def cell(sheet: Sheet, name: str, title: str) -> Cell:
    index = [column.title for column in sheet.columns].index(title)
    (found,) = [row[index] for row in sheet.rows if row[0].text == name]
    return found


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Sheet:
    return made(table1(only(study(tmp_path_factory.mktemp("runs"))), "valid"))


def test_table1_has_means_spreads_and_intervals(main: Sheet) -> None:
    assert list(texts(main, "accuracy (%)").values())[:3] == [
        "76.3 ± 1.0",
        "66.0 ± 1.0",
        "70.0 ± 1.0",
    ]
    assert cell(main, "joint", "accuracy (%)").small == "[67.5, 72.5]"
    assert cell(main, "joint", "accuracy (%)").values["mean"] == pytest.approx(0.7)
    assert cell(main, "joint", "macro F1 (%)").text == "68.0 ± 1.0"
    assert cell(main, "joint", "mAP (%)").text == "75.0 ± 1.0"
    assert main.rules == {2}


def test_table1_marks_the_best_the_second_and_what_is_below_the_best_single(main: Sheet) -> None:
    marks = {row[0].text: set(row[1].marks) for row in main.rows}
    assert marks == {
        "unimodal: accelerometer": {"best"},
        "unimodal: gyroscope": set(),
        "joint": {"below"},
        "joint + vcmm": {"second", "below"},
        "ensemble": {"below"},
        "multi_loss": {"below"},
    }


def test_table1_tests_every_arm_against_joint_by_two_tests(main: Sheet) -> None:
    joint = dict(enumerate(STUDY["joint", "none"][:3]))
    others = {
        label: dict(enumerate(STUDY[key][:3]))
        for label, key in {
            "unimodal: accelerometer": ("unimodal:accelerometer", "none"),
            "unimodal: gyroscope": ("unimodal:gyroscope", "none"),
            "joint + vcmm": ("joint", "vcmm"),
            "ensemble": ("ensemble", "none"),
            "multi_loss": ("multi_loss", "none"),
        }.items()
    }
    by_t = [paired(own, joint) for own in others.values()]
    by_rank = [wilcoxon(own, joint) for own in others.values()]
    for name, t, rank in zip(
        others,
        holm([one.p if one else None for one in by_t]),
        holm([one.p if one else None for one in by_rank]),
        strict=True,
    ):
        assert cell(main, name, "p (t, Holm)").values["mean"] == t
        assert cell(main, name, "p (Wilcoxon, Holm)").values["mean"] == rank
    assert cell(main, "joint", "p (t, Holm)") == Cell()
    assert cell(main, "multi_loss", "to joint (points)").small.endswith("not distinguishable")
    gain = cell(main, "joint + vcmm", "to joint (points)")
    assert gain.small == "[+3.5, +4.6]"
    # Differences of .042, .038 and .041: no draw leaves their range.
    assert 0.038 <= gain.values["bootstrap low"] < gain.values["mean"] < 0.042
    assert gain.values["mean"] < gain.values["bootstrap high"] <= 0.042 + 1e-12
    assert any(
        "With 3 seeds the least two-sided p" in note and "0.25" in note for note in main.notes
    )


def test_table1_leaves_out_what_is_no_published_arm(tmp_path: Path) -> None:
    names = texts(made(table1(only(ablated(tmp_path)), "valid")), "seeds")
    assert names == {"joint": "3", "joint + vcmm": "3"}


def test_table1_with_one_seed_says_that_nothing_was_tested(tmp_path: Path) -> None:
    sheet = made(table1(only(study(tmp_path, seeds=1)), "valid"))
    assert cell(sheet, "joint + vcmm", "to joint (points)").small == "not tested"
    assert "p (t, Holm)" not in {column.title for column in sheet.columns}
    assert not any("least two-sided" in note for note in sheet.notes)


def test_one_arm_is_no_table(tmp_path: Path) -> None:
    arm(tmp_path, 0.7)
    assert [make(only(tmp_path), "valid") for make in SHEETS] == [None] * len(SHEETS)


def test_the_papers_numbers_stand_beside_its_data_sets(tmp_path: Path) -> None:
    cremad = {"data": {"name": "cremad"}, "modalities": ("audio", "visual")}
    arm(tmp_path, 0.6, method="unimodal:visual", **cremad)
    arm(tmp_path, 0.7, fusion={"name": "concat"}, **cremad)
    arm(tmp_path, 0.8, "vcmm", fusion={"name": "concat"}, **cremad)
    sheet = made(table1(only(tmp_path), "valid"))
    smalls = [row[1].small.partition("paper ")[2] for row in sheet.rows]
    assert smalls == ["45.8", "63.6", "85.6"]
    assert [row[2].small.partition("paper ")[2] for row in sheet.rows] == ["68.6", "68.4", "91.5"]
    assert sheet.rows[2][1].values["paper"] == 0.8562
    prices = made(cost(only(tmp_path), "valid"))
    assert prices.rows[1][2].small == "paper 1.14×"


def test_the_papers_ablation_stands_beside_its_data_sets(tmp_path: Path) -> None:
    sheet = made(ablation(only(ablated(tmp_path, data={"name": "kinetics_sounds"})), "valid"))
    smalls = [row[1].small.partition("paper ")[2] for row in sheet.rows]
    assert smalls == ["64.5", "67.7", "68.1", "69.3", "70.7", "72.1", "75.3", "", "", ""]


def test_the_ablation_has_the_papers_rows_and_then_the_controls(tmp_path: Path) -> None:
    sheet = made(ablation(only(ablated(tmp_path)), "valid"))
    assert list(texts(sheet, "seeds")) == [
        "shared",
        "fixed asymmetric",
        "frozen",
        "without noise subtraction",
        "without centring",
        "without exact correction",
        "full",
        "best shared",
        "strength 0",
        "floor after smoothing",
    ]
    assert sheet.rules == {7}
    assert set(texts(sheet, "seeds").values()) == {"3"}
    smalls = {row[0].text: row[0].small for row in sheet.rows if row[0].small}
    assert smalls == {
        "fixed asymmetric": "accelerometer 0.95, gyroscope 0.8",
        "best shared": "0.95 for all",
    }
    assert cell(sheet, "full", "to shared (points)").text == "+6.0"
    assert cell(sheet, "full", "to full (points)") == Cell()
    assert cell(sheet, "shared", "to full (points)").text == "−6.0"
    assert cell(sheet, "strength 0", "to shared (points)").small.endswith("not distinguishable")
    assert any("out of 9 that were tried" in note for note in sheet.notes)


def test_where_equal_momenta_won_both_rows_are_the_same_and_it_says_so(tmp_path: Path) -> None:
    arm(tmp_path, 0.7)
    arm(tmp_path, 0.72, "vcmm", control={"center": False}, turn=1)
    arm(tmp_path, 0.74, "fixed", control={"betas": {"a": 0.9, "b": 0.9}}, turn=2)
    sheet = made(ablation(only(tmp_path), "valid"))
    assert [(row[0].text, row[0].small) for row in sheet.rows] == [
        ("shared", ""),
        ("fixed asymmetric", "0.9 for all"),
        ("without centring", ""),
        ("best shared", "0.9 for all"),
    ]
    assert any("same runs" in note for note in sheet.notes)


def test_one_part_taken_away_is_no_ablation(tmp_path: Path) -> None:
    arm(tmp_path, 0.7)
    arm(tmp_path, 0.72, "vcmm", control={"center": False}, turn=1)
    arm(tmp_path, 0.72, "vcmm", control={"strength": 0.0}, turn=1)
    assert ablation(only(tmp_path), "valid") is None


def test_sensitivity_has_a_group_for_each_setting(tmp_path: Path) -> None:
    sheet = made(sensitivity(only(swept(tmp_path)), "valid"))
    rows = [(row[0].text, row[1].text, row[1].small) for row in sheet.rows]
    assert rows == [
        ("strength", "0", ""),
        ("strength", "0.5", ""),
        ("strength", "1", "usual"),
        ("strength", "2", ""),
        ("smoothing", "0.8", ""),
        ("smoothing", "0.9", ""),
        ("smoothing", "0.95", "usual"),
        ("learning rate", "0.001", "usual"),
        ("learning rate", "0.01", ""),
        ("learning rate", "0.1", ""),
        ("batch size", "16", ""),
        ("batch size", "32", ""),
        ("batch size", "64", "usual"),
    ]
    assert sheet.rules == {4, 7, 10}


def test_a_rate_and_a_batch_are_compared_with_joint_training_by_the_same(tmp_path: Path) -> None:
    sheet = made(sensitivity(only(swept(tmp_path)), "valid"))
    joint = {(row[0].text, row[1].text): row[2].values["mean"] for row in sheet.rows}
    assert joint["learning rate", "0.01"] < 0.62 < joint["learning rate", "0.001"]
    gains = {(row[0].text, row[1].text): row[4].text for row in sheet.rows}
    assert gains["batch size", "16"] == "+5.0"
    assert gains["batch size", "64"] == "+6.0"
    usual = {(row[0].text, row[1].text): row[6].text for row in sheet.rows}
    assert usual["batch size", "16"] == "−11.0"
    assert usual["batch size", "64"] == ""


def test_cost_is_over_joint_training(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, seed=seed, seconds=2.0 + 90 * (seed == 2), peak=100 * 2**20)
        write(tmp_path, "ogm", seed=seed, seconds=3.0, peak=150 * 2**20)
        write(tmp_path, "unimodal:gyroscope", seed=seed)
    sheet = made(cost(only(tmp_path), "valid"))
    assert [[one.text for one in row] for row in sheet.rows] == [
        ["joint (reference)", "100.0", "1.00×", "12", "1.00×", "1", "1"],
        ["ogm", "150.0", "1.50×", "18", "1.50×", "1", "1"],
    ]
    assert sheet.rows[0][3].small == "[12, 552]"  # one disturbed run moves the range alone


def test_a_search_is_told_in_full(tmp_path: Path) -> None:
    setting = only(searched(tmp_path))
    sheet = made(search(setting, "valid"))
    rows = [[one.text for one in row] for row in sheet.rows]
    assert [row[:4] for row in rows] == [
        ["joint", "3", "lr 0.001 to 0.004", "lr 0.004"],
        ["ogm", "3", "lr 0.0007 to 0.009", "lr 0.0007"],
    ]
    assert [row[6] for row in rows] == ["3.00×", "3.00×"]
    assert sheet.notes == ("Every arm had the same number of trials.",)
    assert texts(made(table1(setting, "valid")), "lr") == {"joint": "0.004", "ogm": "0.0007"}


def test_a_search_for_momenta_is_told_too(tmp_path: Path) -> None:
    sheet = made(search(only(ablated(tmp_path)), "valid"))
    assert [[one.text for one in row[1:4]] for row in sheet.rows] == [
        ["9", "momenta 0.8 to 0.95", "lr 0.001, accelerometer 0.95, gyroscope 0.8"],
        ["9", "momenta 0.8 to 0.95", "lr 0.001, accelerometer 0.95, gyroscope 0.95"],
    ]


def test_a_recording_is_no_trial(tmp_path: Path) -> None:
    arm(tmp_path, 0.7)
    arm(tmp_path, 0.7, "vcmm")
    arm(tmp_path, 0.7, "vcmm", control={"encoder_every": 5}, seeds=(0,))
    setting = only(tmp_path)
    assert len(setting.aside) == 1
    assert search(setting, "valid") is None


def test_ranking_is_over_data_sets(tmp_path: Path) -> None:
    for name, gain in (("digits", 0.05), ("watch", 0.03)):
        data = {"data": {"name": name}}
        arm(tmp_path, 0.7, **data)
        arm(tmp_path, 0.7 + gain, "vcmm", turn=1, **data)
        arm(tmp_path, 0.7, method="ogm", turn=1, **data)
        arm(tmp_path, 0.9, method=f"only_{name}", **data)
    found = settings(load(tmp_path))
    sheet = made(ranking(found, "valid"))
    assert [row[0].text for row in sheet.rows] == ["joint + vcmm", "joint", "ogm"]
    assert texts(sheet, "mean rank")["joint + vcmm"] == "1.00"
    assert texts(sheet, "groups") == dict.fromkeys(("joint + vcmm", "joint", "ogm"), "a")
    # 9 pairs of runs: .74 + noise is above .70 + noise in all of them.
    assert cell(sheet, "joint + vcmm", "better than joint (%)").text == "100.0"
    assert cell(sheet, "ogm", "better than joint (%)").small.endswith("not distinguishable")
    assert any("these ranks can show nothing" in note for note in sheet.notes)
    assert ranking(found[:1], "valid") is None


def test_sheets_are_found_by_name(tmp_path: Path) -> None:
    assert list(SUITES) == [*(make.__name__ for make in SHEETS), "ranking"]
    found = [only(study(tmp_path))]
    assert [sheet.name for sheet in named("table1", found, "valid")] == ["table1"]
    assert named("ablation", found, "valid") == []
    assert named("ranking", found, "valid") == []
    with pytest.raises(ValueError, match="there is no table 'table2'; choose from table1, "):
        named("table2", found, "valid")


def test_what_is_shown_as_equal_is_marked_alike() -> None:
    means = [0.7004, 0.7001, 0.69, 0.65]
    cells = [
        Cell(f"{100 * mean:.1f} ± 0.{i}", values={"mean": mean}) for i, mean in enumerate(means)
    ]
    assert [set(one.marks) for one in ranked([*cells, Cell()])] == [
        {"best"},
        {"best"},
        {"second"},
        set(),
        set(),
    ]
    assert [set(one.marks) for one in ranked(cells[:2])] == [set(), set()]
    smallest = ranked(cells, largest=False)
    assert [set(one.marks) for one in smallest[2:]] == [{"second"}, {"best"}]


def test_rows_are_as_long_as_there_are_columns() -> None:
    with pytest.raises(ValueError, match="sheet 'x' has 1 columns, and a row of 2 cells"):
        Sheet("x", "", "", (Column("a"),), ((Cell("1"), Cell("2")),))
