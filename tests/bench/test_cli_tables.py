"""`vcmm results --table`: the tables of a paper in a terminal."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import get_args

import pytest

from vcmm.bench.cli import main, reading
from vcmm.bench.report.export import FORMATS
from vcmm.bench.report.sheets import SUITES

from .folders import study, write
from .report.studies import searched


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_the_flags_name_what_there_is() -> None:
    assert get_args(reading.Table) == tuple(SUITES)
    assert get_args(reading.Format) == tuple(FORMATS)


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "Results on watch\n"),
        ("latex", "% needs \\usepackage"),
        ("markdown", "Results on watch, test split"),
        ("csv", "table,method,accuracy,"),
    ],
)
def test_a_table_is_printed_in_the_form_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str, start: str
) -> None:
    study(tmp_path)
    command = ("results", "--runs", tmp_path, "--table", "table1", "--format", form)
    code, out, _ = said(capsys, *command)
    assert code == 0
    assert out.startswith(start)
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        means = {row["method"]: float(row["accuracy"]) for row in rows}
        assert means["joint"] == pytest.approx(0.7)


def test_a_table_that_the_runs_do_not_hold_says_what_would_fill_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path)
    code, out, err = said(capsys, "results", "--runs", tmp_path, "--table", "ablation")
    assert (code, out) == (2, "")
    assert "hold no table 'ablation'; vcmm sweep ablation trains what it shows" in err


def test_what_stands_aside_is_not_forgotten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    searched(tmp_path)
    _, out, _ = said(capsys, "results", "--runs", tmp_path)
    assert "Not shown: 4 runs of searches, grids and recorders (--table search);" in out
