"""Every figure: what it computes, and that page and paper draw the same numbers."""

from __future__ import annotations

import json
import math
import statistics as stats
from pathlib import Path

import pytest

from vcmm.bench.arms import settings
from vcmm.bench.records import load
from vcmm.bench.report.figure import Figure, Panel, Source
from vcmm.bench.report.figures import FIGURES
from vcmm.bench.report.interactive import chart, short
from vcmm.bench.report.paper import printable
from vcmm.bench.report.series import POINTS, over_seeds, thinned
from vcmm.bench.report.style import DASHES, SYMBOLS, Look, looks
from vcmm.bench.statistics import interval, paired

from ..folders import EPOCHS, STEPS, STUDY, study, write

LOOK = Look("arm-0", DASHES[0], SYMBOLS[0])


def source(root: Path, selection: str = "valid") -> Source:
    (setting,) = settings(load(root))
    labels = [arm.label for arm in setting.arms]
    return Source(setting, selection, looks(labels, "joint"))


def figures(root: Path, selection: str = "valid") -> dict[str, Figure]:
    made = [make(source(root, selection)) for make in FIGURES]
    return {figure.name: figure for figure in made if figure is not None}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    return figures(study(tmp_path_factory.mktemp("runs")))


def test_there_are_all_figures_with_words_and_sources(found: dict[str, Figure]) -> None:
    assert list(found) == [
        "differences",
        "imbalance",
        "learning",
        "validation",
        "momentum",
        "ratio",
        "time",
        "memory",
    ]
    for figure in found.values():
        assert figure.title
        assert figure.caption.endswith(".")
        assert figure.reading.endswith(".")
        assert figure.arms
    assert {name for name, one in found.items() if one.by_rule} == {
        "differences",
        "imbalance",
        "time",
        "memory",
    }


def test_differences_are_paired_and_sorted(found: dict[str, Figure]) -> None:
    (panel,) = found["differences"].panels
    by_label = {one.label: one for one in panel.series}
    ours, theirs = (dict(enumerate(STUDY["joint", c][:3])) for c in ("vcmm", "none"))
    expected = paired(ours, theirs)
    assert expected is not None
    assert expected.low is not None
    shown = by_label["joint + vcmm"]
    assert (shown.x[0], shown.low[0]) == pytest.approx((100 * expected.mean, 100 * expected.low))
    means = [one.x[0] for one in panel.series]
    assert means == sorted(means)
    assert "joint" not in by_label


def test_imbalance_has_three_measures_of_each_modality(found: dict[str, Figure]) -> None:
    (panel,) = found["imbalance"].panels
    alone, probe, head = panel.series
    assert list(alone.x) == ["accelerometer", "gyroscope"]
    assert alone.y == pytest.approx(
        [100 * stats.fmean(STUDY["unimodal:" + m, "none"][:3]) for m in alone.x]
    )
    assert probe.y == pytest.approx([70, 66])
    assert head.y == pytest.approx([65, 60])
    assert "Under-trained: accelerometer." in found["imbalance"].reading


def test_learning_curves_are_means_over_seeds_on_valid(found: dict[str, Figure]) -> None:
    panels = found["learning"].panels
    assert [panel.title for panel in panels] == [
        "fused",
        "accelerometer, own head",
        "gyroscope, own head",
    ]
    fused = {one.label: one for one in panels[0].series}
    assert list(fused["joint"].x) == list(range(1, EPOCHS + 1))
    last = interval([100 * value for value in STUDY["joint", "none"][:3]])
    assert last.sd is not None
    assert fused["joint"].y[-1] == pytest.approx(last.mean)
    assert fused["joint"].high[-1] == pytest.approx(last.mean + last.sd)
    # A modality that was trained alone is in its own panel and in no other's.
    assert "unimodal: gyroscope" in {one.label for one in panels[2].series}
    assert "unimodal: gyroscope" not in {one.label for one in panels[1].series}


def test_momentum_and_ratio_are_of_arms_with_a_controller(found: dict[str, Figure]) -> None:
    for name in ("momentum", "ratio"):
        panels = found[name].panels
        assert [panel.title for panel in panels] == ["accelerometer", "gyroscope"]
        assert [[one.label for one in panel.series] for panel in panels] == [["joint + vcmm"]] * 2
    beta = found["momentum"].panels[1].series[0]
    assert len(beta.x) == EPOCHS * STEPS
    assert beta.y == pytest.approx([0.919] * EPOCHS * STEPS)
    ratio = found["ratio"].panels[0]
    assert ratio.log_y
    assert ratio.series[0].y[:3] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_prices_are_of_whole_runs(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, seed=seed, seconds=2.0 + seed, peak=(100 + seed) * 2**20, test=0.7)
    made = figures(tmp_path)
    (time,), (memory,) = (made[name].panels[0].series for name in ("time", "memory"))
    assert time.x[0] == 2.5 * EPOCHS
    assert [x for x, _ in time.dots] == [2.0 * EPOCHS, 3.0 * EPOCHS]
    assert memory.x[0] == 100.5
    assert time.y[0] == pytest.approx(70)


def test_interrupted_runs_are_owned_up_to(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert "interrupted" not in figures(tmp_path)["time"].caption
    path = folder / "cost.jsonl"
    first = path.read_text(encoding="utf-8").splitlines()[0]
    with path.open("a", encoding="utf-8") as file:
        file.write(first.replace('"attempt": 1', '"attempt": 2') + "\n")
    assert "1 of the runs were interrupted" in figures(tmp_path)["time"].caption


def test_the_rule_moves_what_it_selects(tmp_path: Path) -> None:
    write(tmp_path, test=[0.4, 0.9, 0.6], valid=[0.8, 0.5, 0.7], epochs=3)
    heights = {
        rule: figures(tmp_path, rule)["time"].panels[0].series[0].y[0]
        for rule in ("valid", "last", "oracle")
    }
    assert heights == pytest.approx({"valid": 40, "last": 60, "oracle": 90})


def test_what_was_not_recorded_has_no_figure(tmp_path: Path) -> None:
    write(tmp_path, "ensemble", peak=None)
    assert list(figures(tmp_path)) == ["learning", "time"]


# Series


def test_curves_are_thinned_and_keep_their_ends() -> None:
    values = [float(v) for v in range(10_001)]
    kept = thinned(values)
    assert len(kept) == POINTS
    assert (kept[0], kept[-1]) == (0, 10_000)
    assert kept == sorted(set(kept))
    assert thinned(values[:POINTS]) == values[:POINTS]


def test_logarithms_leave_out_what_has_none() -> None:
    one = over_seeds("a", LOOK, [{1: 1.0, 2: 0.0, 3: math.nan}, {1: 100.0, 2: 4.0}], log=True)
    assert one is not None
    assert list(one.x) == [1, 2]
    assert one.y == pytest.approx([10, 4])  # the geometric mean
    assert over_seeds("a", LOOK, [{1: math.inf}]) is None


def test_seeds_of_different_length_are_averaged_where_they_are() -> None:
    one = over_seeds("a", LOOK, [{1: 1.0, 2: 3.0}, {1: 3.0}])
    assert one is not None
    assert (list(one.y), list(one.low)) == ([2, 3], [pytest.approx(2 - math.sqrt(2)), 3])


# Drawing


def test_plotly_and_paper_draw_the_same_series(found: dict[str, Figure]) -> None:
    from matplotlib.figure import Figure as Sheet

    from vcmm.bench.report import paper

    (panel,) = [p for p in found["learning"].panels if p.title == "fused"]
    lines = [t for t in chart(panel)["data"] if t["line"]["width"]]
    axes = Sheet().subplots()
    paper._draw(panel, axes)
    drawn = axes.get_lines()
    assert len(drawn) == len(lines) == len(panel.series)
    for line, trace in zip(drawn, lines, strict=True):
        assert list(line.get_ydata()) == pytest.approx(trace["y"], rel=1e-5)
        assert trace["line"]["color"].startswith("var(--")


def test_charts_are_json_with_gaps_for_what_is_not_finite() -> None:
    from vcmm.bench.report.figure import Series

    series = Series("a", LOOK, [1.0, 2.0], [math.nan, math.inf], [None, 1.0], [1.0, 2.0])
    for kind in ("lines", "marks", "bars", "ranges"):
        text = json.dumps(chart(Panel("", kind, "x", "y", (series,))), allow_nan=False)
        assert "NaN" not in text


def test_labels_are_escaped_in_every_text_of_plotly(tmp_path: Path) -> None:
    name = '<a href="javascript:alert(1)">%{x}</a>'
    for seed in range(2):
        write(tmp_path, seed=seed, modalities=[name, "b"], test=0.6 + 0.1 * seed)
        write(tmp_path, name, "vcmm", seed=seed, modalities=[name, "b"], test=0.7)
        write(tmp_path, f"unimodal:{name}", seed=seed, test=0.5)
    seen = 0
    for figure in figures(tmp_path).values():
        for one in figure.plotly:
            one["data"] = [{k: v for k, v in t.items() if k != "meta"} for t in one["data"]]
            text = json.dumps(one)
            assert "<a" not in text
            seen += text.count("&lt;a href=")
            for trace in one["data"]:
                # The name comes in by its own field, never inside the template.
                assert "&lt;" not in trace.get("hovertemplate", "")
    assert seen > 10


def test_papers_get_the_same_bytes_every_time(found: dict[str, Figure], tmp_path: Path) -> None:
    first = found["momentum"].save(str(tmp_path / "a"))
    second = found["momentum"].save(str(tmp_path / "b"))
    assert [Path(name).suffix for name in first] == [".pdf", ".png"]
    for one, other in zip(first, second, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()
    assert Path(first[0]).read_bytes().startswith(b"%PDF")
    assert Path(first[1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_figure_is_drawn_for_papers_with_any_name(tmp_path: Path) -> None:
    hostile = [r"_hidden $\frac{1}{", "日本語 a\nb\x00\ud800", "<b>&amp;" + "x" * 200]
    write(tmp_path, modalities=hostile)
    for name in hostile:
        write(tmp_path, name, "vcmm", modalities=hostile)
        write(tmp_path, f"unimodal:{name}")
    made = figures(tmp_path)
    assert len(made) == 7  # joint with vcmm, and with it validation, is not there
    for figure in made.values():
        for name in figure.save(str(tmp_path / figure.name)):
            assert Path(name).stat().st_size > 1000


def test_long_names_keep_what_tells_them_apart() -> None:
    names = [f"a_method_with_a_very_long_name (alpha={alpha})" for alpha in (0.1, 0.3)]
    assert short(names[0]) == "a_method_with_a…name (alpha=0.1)"
    assert short(names[0]) != short(names[1])
    assert short("joint") == "joint"


def test_names_that_fonts_and_matplotlib_cannot_show_are_mended() -> None:
    assert printable("joint + vcmm") == "joint + vcmm"
    assert printable("_a") == " _a"
    assert printable("a\n\ud800") == "a\u25a1\u25a1"
    assert len(printable("x" * 99)) == 32
