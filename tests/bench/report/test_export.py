"""A sheet as LaTeX, Markdown, CSV and text: whole, escaped, and with every number."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from vcmm.bench.arms import settings
from vcmm.bench.records import load
from vcmm.bench.report.export import FORMATS, csv_text, latex, markdown, tex, text
from vcmm.bench.report.sheet import Cell, Column, Sheet
from vcmm.bench.report.sheets import SHEETS

from .studies import ablated

HOSTILE = 'a\\b{c}$d&e#f%g_h^i~j<k>l|m"n\u2028[x] 一 é `*'


def sheet(**given: object) -> Sheet:
    cells = (
        Cell("70.1 ± 1.0", "[68.0, 72.0]", frozenset({"best"}), {"mean": 0.701, "sd": 0.01}),
        Cell("−3.0", values={"mean": -0.03}),
    )
    second = (
        Cell("68.0", marks=frozenset({"second", "below"}), values={"mean": 0.68}),
        Cell(),
    )
    whole: dict[str, object] = {
        "name": "small_one",
        "title": "A table",
        "caption": "What it shows, 95 %.",
        "columns": (Column("method", number=False), Column("accuracy (%)"), Column("to joint")),
        "rows": ((Cell("joint"), *cells), (Cell("multi_loss"), *second)),
        "notes": ("A note.",),
        "rules": frozenset({1}),
    }
    return Sheet(**(whole | given))  # type: ignore[arg-type]


def balanced(source: str) -> bool:
    """Whether every brace and every environment is closed, in order."""
    bare = re.sub(r"\\[{}]", "", re.sub(r"\\\\", "", re.sub(r"(?m)^%.*$", "", source)))
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    open_: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([^}]*)\}", source):
        if kind == "begin":
            open_.append(name)
        elif not open_ or open_.pop() != name:
            return False
    return depth == 0 and not open_


def test_latex_is_a_booktabs_table() -> None:
    caption = (
        "What it shows, 95 \\%. The best is bold, the second underlined, what is below the best "
        "single modality is grey."
    )
    assert (
        latex(sheet()).replace(caption, "CAPTION")
        == r"""% needs \usepackage{booktabs,graphicx,xcolor}
\begin{table*}[t]
\centering
\caption{CAPTION}
\label{tab:small-one}
\footnotesize\setlength{\tabcolsep}{4pt}
\begin{tabular}{@{}lrr@{}}
\toprule
method & accuracy (\%) & to joint \\
\midrule
joint & \textbf{70.1 $\pm$ 1.0} {\scriptsize [68.0, 72.0]} & $-$3.0 \\
\midrule
multi\_loss & \textcolor{gray}{\underline{68.0}} &  \\
\bottomrule
\end{tabular}
\par\smallskip{\scriptsize A note.\par}
\end{table*}
"""
    )


def test_latex_escapes_whatever_a_name_holds() -> None:
    assert tex(HOSTILE) == (
        r"a\textbackslash{}b\{c\}\$d\&e\#f\%g\_h\textasciicircum{}i\textasciitilde{}j$<$k$>$l$|$m''n"
        " [x] ? é `*"
    )
    rows = ((Cell(HOSTILE), Cell(HOSTILE, HOSTILE), Cell()),)
    made = latex(sheet(rows=rows, caption=HOSTILE, notes=(HOSTILE,), name=HOSTILE))
    assert balanced(made)
    assert r"\label{tab:a-b-c-d-e-f-g-h-i-j-k-l-m-n-x-}" in made


def test_a_row_that_begins_with_a_bracket_is_no_option_of_the_row_before() -> None:
    rows = ((Cell("a"), Cell(), Cell()), (Cell("[1]"), Cell(), Cell()), (Cell("*"), Cell(), Cell()))
    lines = latex(sheet(rows=rows)).splitlines()
    assert [line for line in lines if line.startswith("{}")] == [r"{}[1] &  &  \\", r"{}* &  &  \\"]


def test_a_table_wider_than_the_page_is_made_smaller() -> None:
    made = latex(sheet(rows=((Cell("x" * 130), Cell(), Cell()),)))
    assert "\\resizebox{\\linewidth}{!}{%\n\\begin{tabular}" in made
    assert "\\end{tabular}}" in made
    assert balanced(made)


def test_markdown_is_a_table() -> None:
    assert markdown(sheet()).splitlines() == [
        "What it shows, 95 %. The best is bold, the second underlined, ↓ is below the best single "
        "modality.",
        "",
        "| method | accuracy (%) | to joint |",
        "|---|---:|---:|",
        "| joint | **70.1 ± 1.0** <small>\\[68.0, 72.0\\]</small> | −3.0 |",
        "| multi\\_loss | <u>68.0</u> ↓ |  |",
        "",
        "A note.",
    ]


def test_markdown_takes_names_as_words() -> None:
    rows = ((Cell(HOSTILE), Cell("<script>", "[a](b)"), Cell()),)
    row = markdown(sheet(rows=rows)).splitlines()[4]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert "<script>" not in row
    assert r"\[a\](b)" in row


def test_csv_has_every_number_in_a_column_of_its_own() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(sheet()))))
    assert rows == [
        ["table", "method", "accuracy", "accuracy sd", "to joint"],
        ["A table", "joint", "0.701", "0.01", "-0.03"],
        ["A table", "multi_loss", "0.68", "", ""],
    ]


def test_csv_keeps_words_where_there_is_no_number() -> None:
    rows = (
        (Cell("a, b"), Cell("not tested"), Cell()),
        (Cell('"'), Cell("1", values={"mean": 1.0}), Cell()),
    )
    made = list(csv.reader(io.StringIO(csv_text(sheet(rows=rows)))))
    assert made[0] == ["table", "method", "accuracy", "accuracy", "to joint"]
    assert made[1:] == [["A table", "a, b", "not tested", "", ""], ["A table", '"', "1", "1.0", ""]]


def test_text_stands_in_columns() -> None:
    assert text(sheet()).splitlines() == [
        "A table",
        "",
        "method                  accuracy (%)  to joint",
        "----------  ------------------------  --------",
        "joint       70.1 ± 1.0* [68.0, 72.0]      −3.0",
        "----------  ------------------------  --------",
        "multi_loss                    68.0+-",
        "",
        "What it shows, 95 %. * is the best, + the second, - is below the best single modality.",
        "A note.",
    ]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_sheet_can_be_written_in_every_form(tmp_path: Path, form: str) -> None:
    (setting,) = settings(load(ablated(tmp_path)))
    made = [sheet for make in SHEETS if (sheet := make(setting, "valid"))]
    assert [sheet.name for sheet in made] == ["table1", "ablation", "cost", "search"]
    for one in made:
        written = FORMATS[form](one)
        assert "joint" in written or "shared" in written
        if form == "latex":
            assert balanced(written)
            lines = written.splitlines()
            rows = [line for line in lines if line.endswith(r"\\")]
            assert len(rows) == len(one.rows) + 1
            assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(one.columns) - 1}
