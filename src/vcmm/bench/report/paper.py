"""A figure as PDF and PNG, for papers and slides, from the same series as the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .figure import Figure, Panel, Series
from .interactive import short
from .style import PAPER, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
WIDTH, HEIGHT = 3.2, 2.4  # of a panel, in inches
ROW = 0.22  # of a line in "ranges", in inches
_COLOURS = variables("light")  # paper is white


def save(figure: Figure, stem: str) -> list[str]:
    """Write `<stem>.pdf` and `<stem>.png`, the same bytes every time; gives both names."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    columns = min(COLUMNS, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    longest = max(len(panel.series) for panel in figure.panels)
    ranges = figure.panels[0].kind == "ranges"
    height = max(1.2, 0.6 + ROW * longest) if ranges else HEIGHT * rows
    with mpl.rc_context(PAPER):
        width = 1.6 * WIDTH if columns == 1 else WIDTH * columns
        sheet = Sheet(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(sheet)
        grid = sheet.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < len(figure.panels):
                _draw(figure.panels[index], axes)
            else:
                axes.set_axis_off()
        if not ranges:
            _legend(figure.panels, sheet)
        names = [f"{stem}.pdf", f"{stem}.png"]
        sheet.savefig(names[0], metadata={"CreationDate": None, "Producer": None, "Creator": None})
        sheet.set_layout_engine("none")  # what is where was decided for the PDF
        sheet.savefig(names[1], metadata={"Software": None})
    return names


def _draw(panel: Panel, axes: Axes) -> None:
    draw: dict[str, Callable[[Panel, Axes], None]] = {
        "lines": _lines,
        "marks": _marks,
        "bars": _bars,
        "ranges": _ranges,
    }
    draw[panel.kind](panel, axes)
    axes.set_title(printable(panel.title))
    axes.set_xlabel(printable(panel.x_label))
    axes.set_ylabel(printable(panel.y_label))
    if panel.log_y:
        axes.set_yscale("log")


def _lines(panel: Panel, axes: Axes) -> None:
    for one in panel.series:
        colour = _COLOURS[one.look.colour]
        if panel.banded and one.low:
            low, high = _numbers(one.low), _numbers(one.high)
            axes.fill_between(_numbers(one.x), low, high, color=colour, alpha=0.15, linewidth=0)
        style = one.look.dash.matplotlib
        marker = one.look.symbol.matplotlib if len(one.x) == 1 else None
        axes.plot(_numbers(one.x), _numbers(one.y), color=colour, linestyle=style, marker=marker)


def _marks(panel: Panel, axes: Axes) -> None:
    for one in panel.series:
        colour, marker = _COLOURS[one.look.colour], one.look.symbol.matplotlib
        if len(one.dots) > 1:
            xs, ys = zip(*one.dots, strict=True)
            axes.scatter(xs, ys, color=colour, marker=marker, s=8, alpha=0.4, linewidths=0)
        x, y = _numbers(one.x), _numbers(one.y)
        axes.errorbar(x, y, yerr=_errors(one, one.y), color=colour, fmt=marker, capsize=2)


def _bars(panel: Panel, axes: Axes) -> None:
    width = 0.8 / len(panel.series)
    names = panel.series[0].x
    for index, one in enumerate(panel.series):
        offset = (index - (len(panel.series) - 1) / 2) * width
        places = [place + offset for place in range(len(names))]
        axes.bar(places, _numbers(one.y), width, color=_COLOURS[one.look.colour])
        axes.errorbar(
            places,
            _numbers(one.y),
            yerr=_errors(one, one.y),
            fmt="none",
            ecolor=_COLOURS["muted"],
            capsize=2,
        )
    axes.set_xticks(range(len(names)), [printable(str(name)) for name in names])
    axes.grid(visible=False, axis="x")


def _ranges(panel: Panel, axes: Axes) -> None:
    axes.axvline(0, color=_COLOURS["muted"], linewidth=0.8)
    for one in panel.series:
        colour, marker = _COLOURS[one.look.colour], one.look.symbol.matplotlib
        x, y = _numbers(one.x), _numbers(one.y)
        axes.errorbar(x, y, xerr=_errors(one, one.x), color=colour, fmt=marker, capsize=2)
    axes.set_yticks(range(len(panel.series)), [printable(one.label) for one in panel.series])
    axes.set_ylim(-0.6, len(panel.series) - 0.4)
    axes.grid(visible=False, axis="y")


def _legend(panels: Sequence[Panel], sheet: Any) -> None:
    """One for all panels, below them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {one.label: one for panel in panels for one in panel.series}
    kind = panels[0].kind
    handles: list[Any] = []
    for one in shown.values():
        colour = _COLOURS[one.look.colour]
        if kind == "bars":
            handles.append(Patch(color=colour))
        elif kind == "lines":
            handles.append(Line2D([], [], color=colour, linestyle=one.look.dash.matplotlib))
        else:
            symbol = one.look.symbol.matplotlib
            handles.append(Line2D([], [], color=colour, marker=symbol, linestyle="none"))
    columns = min(3, len(handles)) if len(panels) > 1 or len(handles) > 6 else 2
    labels = [printable(label) for label in shown]
    sheet.legend(handles, labels, loc="outside lower center", ncols=columns)


def printable(text: str) -> str:
    """A label that every font can show, and that no convention of matplotlib's hides."""
    shown = "".join(c if c.isprintable() and ord(c) < 0x2200 else "\N{WHITE SQUARE}" for c in text)
    return short(f" {shown}" if shown.startswith("_") else shown)


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _errors(one: Series, middle: Sequence[Any]) -> list[list[float]]:
    """Distances from the middle, down and up; nothing where the interval is unknown."""
    ys = _numbers(middle)
    lows, highs = _numbers(one.low), _numbers(one.high)
    down = [y - low for y, low in zip(ys, lows, strict=True)]
    up = [high - y for y, high in zip(ys, highs, strict=True)]
    return [down, up]
