r"""All tables and figures of a data set as files for a paper, and where each number came from.

    DIR/main.tex            takes in everything; compile it, or copy its \input lines
    DIR/tables/NAME.tex     a table, with caption and label (needs booktabs and xcolor)
    DIR/figures/NAME.pdf    a figure, and NAME.png
    DIR/figures/NAME.tex    the figure with caption and label (needs graphicx)
    DIR/manifest.json       every run behind them: spec, hashes, seed, commit; sums of the files

The same runs give the same bytes. Files of an earlier bundle that are not made any more are
deleted, so that no table of old runs is left among those of new ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import selection as select
from ..arms import Arm, Setting, settings
from ..records import Run
from .export import latex, tex
from .figure import Figure, Source
from .figures import FIGURES
from .figures.critical import critical
from .sheets import SHEETS, Sheet, ranking
from .style import Look, looks

MANIFEST = "manifest.json"
FLOATS = 6  # between two page breaks: TeX keeps few in mind


@dataclass(slots=True)
class Bundle:
    """What has been written, in order."""

    out: Path
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tables: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    figures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sections: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])

    def put(self, name: str, content: bytes) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.files[name] = content

    def table(self, prefix: str, sheet: Sheet, runs: Sequence[Run]) -> None:
        name = f"tables/{prefix}{sheet.name}.tex"
        self.put(name, latex(replace(sheet, name=f"{prefix}{sheet.name}")).encode())
        self._listed(self.tables, name, sheet.title, runs)

    def figure(self, prefix: str, figure: Figure) -> None:
        stem = f"{prefix}{figure.name}"
        (self.out / "figures").mkdir(parents=True, exist_ok=True)
        for path in figure.save(str(self.out / "figures" / stem)):
            self.files[f"figures/{Path(path).name}"] = Path(path).read_bytes()
        name = f"figures/{stem}.tex"
        self.put(name, _figure(figure, stem).encode())
        runs = [run for arm in figure.arms for run in arm.runs.values()]
        self._listed(self.figures, name, figure.title, runs)

    def _listed(
        self, where: list[dict[str, Any]], name: str, title: str, runs: Iterable[Run]
    ) -> None:
        hashes = {run.hash: run for run in runs}
        self.runs |= hashes
        where.append({"file": name, "title": title, "runs": sorted(hashes)})
        self.sections[-1][1].append(name)


def write(
    runs: Sequence[Run], out: str | Path, *, data: str | None = None, selection: str = "valid"
) -> Path:
    """Write all there is about a data set into a folder; gives the path of its main.tex.

    `data` may be left out where the runs are of one data set. What spans several data sets is made
    from all runs.
    """
    if selection not in select.RULES:
        raise ValueError(f"selection is {selection!r}; choose from {', '.join(select.RULES)}")
    every = settings(runs)
    chosen = _chosen(every, data)
    made = Bundle(Path(out))
    stale = _earlier(made.out)
    made.out.mkdir(parents=True, exist_ok=True)
    styles = _looks(every)
    for setting, prefix in zip(chosen, _prefixes(chosen), strict=True):
        _setting(made, setting, prefix, selection, styles)
    _together(made, every, selection, styles)
    made.put("main.tex", _main(made, selection).encode())
    manifest = json.dumps(_manifest(made, selection), indent=2, sort_keys=True) + "\n"
    (made.out / MANIFEST).write_text(manifest, encoding="utf-8")
    for name in stale - made.files.keys():
        (made.out / name).unlink(missing_ok=True)
    return made.out / "main.tex"


# What is in it


def _chosen(every: Sequence[Setting], data: str | None) -> list[Setting]:
    names = sorted({_data(setting) for setting in every})
    if data is None and len(names) == 1:
        data = names[0]
    if data not in names:
        known = ", ".join(names) or "none at all"
        asked = "several data sets" if data is None else f"no run on {data!r}"
        raise ValueError(f"there are {asked} among the runs; name one with --data: {known}")
    return [setting for setting in every if _data(setting) == data]


def _data(setting: Setting) -> str:
    return Path(setting.arms[0].spec["data"]["name"]).name


def _setting(
    made: Bundle, setting: Setting, prefix: str, selection: str, styles: dict[str, Look]
) -> None:
    made.sections.append((setting.title, []))
    arms = (*setting.arms, *setting.aside, *setting.near)
    runs = [run for arm in arms for run in arm.runs.values()]
    for sheet in (make(setting, selection) for make in SHEETS):
        if sheet is not None:
            made.table(prefix, sheet, runs)
    for figure in (make(Source(setting, selection, styles)) for make in FIGURES):
        if figure is not None:
            made.figure(prefix, figure)


def _together(
    made: Bundle, every: Sequence[Setting], selection: str, styles: dict[str, Look]
) -> None:
    """What spans data sets."""
    figure, sheet = critical(every, selection, styles), ranking(every, selection)
    if figure is None or sheet is None:
        return
    made.sections.append(("All data sets", []))
    made.table("", sheet, [run for arm in figure.arms for run in arm.runs.values()])
    made.figure("", figure)


def _looks(every: Sequence[Setting]) -> dict[str, Look]:
    arms: list[Arm] = [arm for setting in every for arm in setting.arms]
    references = [setting.reference.label for setting in every if setting.reference]
    return looks([arm.label for arm in arms], references[0] if references else None)


def _prefixes(chosen: Sequence[Setting]) -> list[str]:
    """Of file names: none for one setting, else what its title says."""
    if len(chosen) == 1:
        return [""]
    slugs = [re.sub(r"[^a-z0-9]+", "-", one.title.lower()).strip("-")[:60] for one in chosen]
    return [
        f"{slug}-" if slug and slugs.count(slug) == 1 else f"{slug}-{index}-".lstrip("-")
        for index, slug in enumerate(slugs)
    ]


# Words


def _figure(figure: Figure, stem: str) -> str:
    star, width = ("*", "\\textwidth") if figure.wide else ("", "\\columnwidth")
    return "\n".join(
        [
            "% needs \\usepackage{graphicx}, and \\graphicspath with the folder of the PDF",
            f"\\begin{{figure{star}}}[t]",
            "\\centering",
            f"\\includegraphics[width={width}]{{{stem}.pdf}}",
            f"\\caption{{{tex(f'{figure.title}. {figure.caption} {figure.reading}')}}}",
            f"\\label{{fig:{stem}}}",
            f"\\end{{figure{star}}}",
            "",
        ]
    )


def _main(made: Bundle, selection: str) -> str:
    lines = [
        "% Written by vcmm paper, and overwritten by the next one: take its \\input lines into a",
        "% document of your own. Which run every number is from: manifest.json",
        "\\documentclass[10pt,twocolumn]{article}",
        "\\usepackage[T1]{fontenc}",
        "\\usepackage[letterpaper,margin=0.8in,columnsep=0.3in]{geometry}",
        "\\usepackage{booktabs,xcolor,graphicx}",
        "\\graphicspath{{figures/}}",
        "\\begin{document}",
    ]
    if warned := select.warning(selection):
        lines.append(f"\\noindent\\textbf{{{tex(warned)}}}")
    for title, names in made.sections:
        lines.append(f"\\section*{{{tex(title)}}}")
        for index, name in enumerate(names):
            if index and index % FLOATS == 0:
                lines.append("\\clearpage")
            lines.append(f"\\input{{{name.removesuffix('.tex')}}}")
        lines.append("\\clearpage")
    return "\n".join([*lines, "\\end{document}", ""])


# Where it comes from


def _manifest(made: Bundle, selection: str) -> dict[str, Any]:
    return {
        "selection": selection,
        "tables": made.tables,
        "figures": made.figures,
        "files": {
            name: hashlib.sha256(content).hexdigest() for name, content in made.files.items()
        },
        "runs": {run.hash: _described(run) for run in made.runs.values()},
    }


def _described(run: Run) -> dict[str, Any]:
    return {
        "data_hash": run.data_hash,
        "seed": run.seed,
        "commit": run.env.get("commit"),
        "vcmm": run.env.get("vcmm"),
        "torch": run.env.get("torch"),
        "device": run.device,
        "threads": run.threads,
        "numerics": run.numerics,
        "result_version": run.result_version,
        "spec": run.spec,
    }


def _earlier(out: Path) -> set[str]:
    """The files of a bundle that was here before, by its manifest; none outside of the folder."""
    path = out / MANIFEST
    if not path.exists():
        return set()
    try:
        names: list[str] = list(json.loads(path.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no manifest of vcmm paper ({error}); choose another folder with --out"
        ) from error
    home = out.resolve()
    return {name for name in names if (home / name).resolve().is_relative_to(home)}
