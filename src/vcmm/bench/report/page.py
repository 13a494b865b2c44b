"""The page: one file that holds everything it shows, and asks nothing of any network.

plotly.js is embedded once, as the installed package has it. Figures are data in a script element
that no browser executes; `page.js` draws them. The page forbids itself, by its content security
policy, to load anything and to run any script but these two, whatever a record may hold. It is
written under another name and then renamed, so a reader never finds half of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import selection as select
from ..analysis import table
from ..arms import Arm, Setting, settings
from ..recommend import recommend
from ..records import Run
from .export import PRINTED, legend
from .figure import Figure, Panel, Source
from .figures import FIGURES
from .figures.critical import critical
from .grid import grid
from .interactive import short
from .sheets import SHEETS, Sheet, ranking
from .style import THEMES, Look, looks, variables

HERE = Path(__file__).parent
MOST = 10  # bands before they hide one another; lines and bars on half of the page


def write(
    runs: Sequence[Run],
    out_dir: str | Path,
    *,
    selection: str = "valid",
    title: str = "Results",
    paper: bool = True,
) -> Path:
    """Write `<out_dir>/index.html`, and each figure as PDF and PNG beside it; gives its path.

    The page can show every selection rule. `selection` is the one that it opens with, and the one
    of the figures for papers, which are left out if `paper` is false.
    """
    if selection not in select.RULES:
        raise ValueError(f"selection is {selection!r}; choose from {', '.join(select.RULES)}")
    if not runs:
        raise ValueError("there are no runs to report; `vcmm sweep demo` makes some")
    out = Path(out_dir)
    folder = out / "figures" if paper else None
    (folder or out).mkdir(parents=True, exist_ok=True)
    found = settings(runs)
    styles = _looks(found)
    charts: list[dict[str, Any]] = []
    parts = [_setting(setting, styles, charts, folder, selection, found) for setting in found]
    text = _render(
        title=title,
        settings=parts,
        across=_across(found, styles, charts, folder, selection),
        rules=[{"name": rule, "shown": select.shown(rule)} for rule in select.RULES],
        selection=selection,
        warning=select.warning("oracle"),
        facts=f"{len(runs)} runs",
        themes={theme: variables(theme) for theme in THEMES},
        charts=charts,
    )
    return _replace(out / "index.html", text)


# What is shown


def _looks(found: Sequence[Setting]) -> dict[str, Look]:
    labels = [arm.label for setting in found for arm in setting.arms]
    references = [setting.reference.label for setting in found if setting.reference]
    return looks(labels, references[0] if references else None)


def _setting(
    setting: Setting,
    styles: dict[str, Look],
    charts: list[dict[str, Any]],
    folder: Path | None,
    selection: str,
    all_settings: Sequence[Setting],
) -> dict[str, Any]:
    """All that the template needs of one setting. Its charts are appended to those of the page."""
    prefix = "" if len(all_settings) == 1 else f"{_slug(setting.title, all_settings)}-"
    seeds = sorted({seed for arm in setting.arms for seed in arm.runs})
    spec = setting.arms[0].spec
    return {
        "title": setting.title,
        "facts": [
            f"{len(setting.arms)} arms",
            *[f"{len(setting.aside)} more were tried"] * bool(setting.aside),
            f"seeds {', '.join(map(str, seeds))}",
            f"{spec['optimizer']['name']}, {spec['schedule']['name']}",
            f"{spec['epochs']} epochs in batches of {spec['batch_size']}",
        ],
        "rules": [
            {
                "name": rule,
                "warning": select.warning(rule),
                "advice": [s for s in recommend(setting, rule) if s != select.warning(rule)],
                "table": grid(table(setting, rule), styles),
                "sheets": [_sheet(sheet) for make in SHEETS if (sheet := make(setting, rule))],
            }
            for rule in select.RULES
        ],
        "arms": [{"label": arm.label, "look": styles[arm.label]} for arm in setting.arms],
        "figures": _figures(setting, styles, charts, folder, prefix, selection),
    }


def _across(
    found: Sequence[Setting],
    styles: dict[str, Look],
    charts: list[dict[str, Any]],
    folder: Path | None,
    selection: str,
) -> list[dict[str, Any]]:
    """The sheet and the figure over all data sets, by each rule."""
    shown: list[dict[str, Any]] = []
    for rule in select.RULES:
        sheet, figure = ranking(found, rule), critical(found, rule, styles)
        if sheet is None or figure is None:
            continue
        if folder is not None and rule == selection:
            figure.save(str(folder / figure.name))
        stem = None if folder is None else f"{folder.name}/{figure.name}"
        drawn = _shown(figure, rule, charts, stem)
        warned = {"name": rule, "warning": select.warning(rule)}
        shown.append({**warned, "sheet": _sheet(sheet), "figure": {**drawn, "rule": None}})
    return shown


def _sheet(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "caption": sheet.caption,
        "columns": sheet.columns,
        "rows": sheet.rows,
        "notes": sheet.notes,
        "rules": sheet.rules,
        "legend": legend(sheet, PRINTED).strip(),
    }


def _figures(
    setting: Setting,
    styles: dict[str, Look],
    charts: list[dict[str, Any]],
    folder: Path | None,
    prefix: str,
    selection: str,
) -> list[dict[str, Any]]:
    """Every figure, once for each rule if the rule changes it."""
    found: list[dict[str, Any]] = []
    for make in FIGURES:
        for rule in select.RULES:
            figure = make(Source(setting, rule, styles))
            if figure is None or not (figure.by_rule or rule == selection):
                continue
            figure = _thin(figure)
            name = f"{prefix}{figure.name}"
            if folder is not None and rule == selection:
                figure.save(str(folder / name))
            stem = None if folder is None else f"{folder.name}/{name}"
            found.append(_shown(figure, rule, charts, stem))
    return found


def _shown(
    figure: Figure, rule: str, charts: list[dict[str, Any]], stem: str | None
) -> dict[str, Any]:
    first = len(charts)
    charts.extend(figure.plotly)
    return {
        "title": figure.title,
        "caption": figure.caption,
        "reading": figure.reading,
        "rule": rule if figure.by_rule else None,
        "warning": select.warning(rule) if figure.by_rule else None,
        "stem": stem,
        "wide": len(figure.panels) > 1 or any(map(_crowded, figure.panels)),
        "panels": [
            {
                "title": panel.title,
                "chart": first + index,
                "rows": len(panel.series) if panel.kind == "ranges" else 0,
                "label": f"{figure.title}, {panel.title}: {panel.y_label} by {panel.x_label}",
            }
            for index, panel in enumerate(figure.panels)
        ],
        "sources": [_source(arm) for arm in figure.arms],
    }


def _crowded(panel: Panel) -> bool:
    """Whether half of the page is too little for its lines, or for its groups of bars."""
    if panel.kind == "ranges":
        return len(panel.series) > MOST
    return panel.kind == "bars" and len(panel.series[0].x) * len(panel.series) > MOST


def _source(arm: Arm) -> dict[str, Any]:
    runs = [{"seed": seed, "hash": run.hash} for seed, run in arm.runs.items()]
    commits = sorted({str(run.env.get("commit", "unknown")) for run in arm.runs.values()})
    return {"label": arm.label, "runs": runs, "commits": commits}


def _thin(figure: Figure) -> Figure:
    """Without bands where there are too many of them."""
    panels = tuple(replace(p, banded=len(p.series) <= MOST) for p in figure.panels)
    return replace(figure, panels=panels)


def _slug(title: str, all_settings: Iterable[Setting]) -> str:
    """A setting's title as a part of file names, and told apart from those that look like it."""
    titles = [setting.title for setting in all_settings]
    slugs = [re.sub(r"[^a-z0-9]+", "-", other.lower()).strip("-")[:60] for other in titles]
    slug = slugs[titles.index(title)] or "setting"
    return slug if slugs.count(slug) == 1 else f"{slug}-{titles.index(title)}"


# The file


def _render(**shown: Any) -> str:
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "bound": bound}
    scripts = [get_plotlyjs(), (HERE / "page.js").read_text(encoding="utf-8")]
    charts = shown.pop("charts")
    return environment.get_template("page.html.jinja").render(
        **shown,
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        charts=Markup(embedded(charts)),
    )


def bound(text: str) -> str:
    """A sentence whose numbers no line break parts from what belongs to them."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=[=<]) (?=\d)", "\N{NO-BREAK SPACE}", text)


def embedded(value: object) -> str:
    """JSON that may stand inside a script element, whatever it holds."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _replace(path: Path, text: str) -> Path:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            # A hostile record may hold half a character, which no encoding can write.
            file.write(text.encode("utf-8", errors="replace"))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path
