r"""A sheet as text: LaTeX for papers, Markdown for pages, CSV for programs, columns for terminals.

| mark   | LaTeX                | Markdown   | text |
|--------|----------------------|------------|------|
| best   | \textbf              | **bold**   | *    |
| second | \underline           | <u>        | +    |
| below  | \textcolor{gray}     | ↓          | -    |

LaTeX needs the packages booktabs, graphicx and xcolor; a table that is wider than the page is made
smaller. Whatever a name holds is escaped. CSV has the numbers as they are, neither rounded nor in
percent, one column for each: "accuracy", "accuracy sd", "accuracy low", and so on.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping

from .sheet import Cell, Column, Mark, Sheet

LINE = 120  # characters, small ones counting as two thirds, that a page of footnotes is wide
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "\N{MINUS SIGN}": r"$-$",
    "\N{EN DASH}": "--",
    "\N{NO-BREAK SPACE}": "~",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{WARNING SIGN}": r"\textbf{!}",
}
_LETTERS = frozenset(chr(code) for code in range(0xC0, 0x180))  # Latin, which every TeX sets
_SIGNS = {"best": "*", "second": "+", "below": "-"}
PRINTED: dict[Mark, str] = {
    "best": "the best is bold",
    "second": "the second underlined",
    "below": "what is below the best single modality is grey",
}
_MARKED: dict[Mark, str] = {**PRINTED, "below": "↓ is below the best single modality"}
_SIGNED: dict[Mark, str] = {
    "best": "* is the best",
    "second": "+ the second",
    "below": "- is below the best single modality",
}


def latex(sheet: Sheet) -> str:
    """A table environment with caption and label, for a paper to take in as it is."""
    form = "".join("r" if column.number else "l" for column in sheet.columns)
    heads = " & ".join(tex(column.title) for column in sheet.columns)
    wide = _width(sheet) > LINE
    lines = [
        "% needs \\usepackage{booktabs,graphicx,xcolor}",
        "\\begin{table*}[t]",
        "\\centering",
        f"\\caption{{{tex(sheet.caption + legend(sheet, PRINTED))}}}",
        f"\\label{{tab:{re.sub('[^a-zA-Z0-9-]+', '-', sheet.name)}}}",
        "\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        *["\\resizebox{\\linewidth}{!}{%"] * wide,
        f"\\begin{{tabular}}{{@{{}}{form}@{{}}}}",
        "\\toprule",
        f"{heads} \\\\",
        "\\midrule",
    ]
    for index, row in enumerate(sheet.rows):
        if index and index in sheet.rules:
            lines.append("\\midrule")
        words = " & ".join(map(_tex_cell, row))
        # What begins with a bracket would be taken for how much space the row above leaves.
        lines.append(f"{'{}' * words.startswith(('[', '*'))}{words} \\\\")
    lines += ["\\bottomrule", "\\end{tabular}" + "}" * wide]
    # A note is a paragraph of its own, as wide as the text.
    lines += [f"\\par\\smallskip{{\\scriptsize {tex(note)}\\par}}" for note in sheet.notes]
    return "\n".join([*lines, "\\end{table*}", ""])


def tex(text: str) -> str:
    """Words as LaTeX has to be told of them; a sign that it cannot set becomes a question mark."""
    known = (_LATEX.get(sign, sign) for sign in " ".join(text.split()))
    return "".join(sign if sign.isascii() or sign in _LETTERS else "?" for sign in known)


def markdown(sheet: Sheet) -> str:
    """A table with its caption above and its notes beneath."""
    heads = " | ".join(_md(column.title) for column in sheet.columns)
    form = "|".join("---:" if column.number else "---" for column in sheet.columns)
    rows = [f"| {' | '.join(map(_md_cell, row))} |" for row in sheet.rows]
    notes = [part for note in sheet.notes for part in ("", _md(note))]
    caption = _md(sheet.caption + legend(sheet, _MARKED))
    return "\n".join([caption, "", f"| {heads} |", f"|{form}|", *rows, *notes, ""])


def csv_text(sheet: Sheet) -> str:
    """Every number in full, in a column of its own; words where there is no number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = [_parts(sheet, index) for index in range(len(sheet.columns))]
    heads = zip(sheet.columns, parts, strict=True)
    writer.writerow(["table", *(_head(column, key) for column, keys in heads for key in keys)])
    for row in sheet.rows:
        writer.writerow(
            [
                sheet.title,
                *(
                    cell.text if key is None else cell.values.get(key, "")
                    for cell, keys in zip(row, parts, strict=True)
                    for key in keys
                ),
            ]
        )
    return out.getvalue()


def text(sheet: Sheet) -> str:
    """Columns for a terminal, or for a letter."""
    rows = [[column.title for column in sheet.columns]]
    rows += [[_plain_cell(cell) for cell in row] for row in sheet.rows]
    widths = [max(len(row[index]) for row in rows) for index in range(len(sheet.columns))]
    lines: list[str] = []
    for number, row in enumerate(rows):
        if number == 1 or (number > 1 and number - 1 in sheet.rules):
            lines.append("  ".join("-" * width for width in widths))
        each = zip(sheet.columns, row, widths, strict=True)
        words = (word.rjust(width) if c.number else word.ljust(width) for c, word, width in each)
        lines.append("  ".join(words).rstrip())
    caption = sheet.caption + legend(sheet, _SIGNED)
    return "\n".join([sheet.title, "", *lines, "", caption, *sheet.notes, ""])


FORMATS: dict[str, Callable[[Sheet], str]] = {
    "text": text,
    "latex": latex,
    "markdown": markdown,
    "csv": csv_text,
}


# Cells


def _tex_cell(cell: Cell) -> str:
    words = tex(cell.text)
    if "best" in cell.marks:
        words = f"\\textbf{{{words}}}"
    if "second" in cell.marks:
        words = f"\\underline{{{words}}}"
    if cell.small:
        words += f" {{\\scriptsize {tex(cell.small)}}}"
    return f"\\textcolor{{gray}}{{{words}}}" if "below" in cell.marks else words


def _width(sheet: Sheet) -> float:
    """About how wide a table is."""
    columns = zip(*sheet.rows, strict=True)
    return sum(
        max(len(column.title), *(len(cell.text) + 2 / 3 * len(cell.small) for cell in cells)) + 2
        for column, cells in zip(sheet.columns, columns, strict=True)
    )


def _md(words: str) -> str:
    """Words that Markdown shall take as words."""
    escaped = re.sub(r"([\\`*_\[\]{}#|~$])", r"\\\1", " ".join(words.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_cell(cell: Cell) -> str:
    words = _md(cell.text)
    if "best" in cell.marks:
        words = f"**{words}**"
    if "second" in cell.marks:
        words = f"<u>{words}</u>"
    words += " ↓" * ("below" in cell.marks)
    if cell.small:
        words += f" <small>{_md(cell.small)}</small>"
    return words


def _plain_cell(cell: Cell) -> str:
    signs = "".join(sign for mark, sign in _SIGNS.items() if mark in cell.marks)
    return " ".join(filter(None, (cell.text + signs, cell.small)))


def legend(sheet: Sheet, words: Mapping[Mark, str]) -> str:
    """What the marks mean, if there are any."""
    used = {mark for row in sheet.rows for cell in row for mark in cell.marks}
    said = ", ".join(word for mark, word in words.items() if mark in used)
    return f" {said[0].upper()}{said[1:]}." if said else ""


def _parts(sheet: Sheet, index: int) -> list[str | None]:
    """The numbers that the cells of a column hold; None for its words."""
    cells = [row[index] for row in sheet.rows]
    keys: Mapping[str, None] = dict.fromkeys(key for cell in cells for key in cell.values)
    worded = any(cell.text and not cell.values for cell in cells)
    return [*([None] if worded or not keys else []), *keys]


def _head(column: Column, key: str | None) -> str:
    name = re.sub(r" \((%|points)\)", "", column.title)
    return name if key in (None, "mean") else f"{name} {key}"
