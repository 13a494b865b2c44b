"""A figure as PDF and PNG, for papers and slides, from the same series as the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .figure import MOST, Figure, Panel, Series
from .interactive import short
from .style import PAPER, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLUMN, TEXT = 3.3, 6.75  # inches, of one column of a paper and of two
COLUMNS = 3
HEIGHT = 2.0  # of a panel, in inches
ROW = 0.19  # of a line in "ranges"
LINE = 0.145  # of a legend
_COLOURS = variables("light")  # paper is white


def save(figure: Figure, stem: str) -> list[str]:
    """Write `<stem>.pdf` and `<stem>.png`, the same bytes every time; gives both names."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    count = len(figure.panels)
    columns = 2 if count == 4 else min(COLUMNS, count)
    rows = math.ceil(count / columns)
    width = TEXT if figure.wide else COLUMN
    with mpl.rc_context(PAPER):
        sheet = Sheet(layout="constrained")
        FigureCanvasAgg(sheet)
        below = _legend(figure.panels, sheet, width)
        sheet.set_size_inches(width, sum(_height(figure.panels, rows)) + below)
        grid = sheet.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < count:
                _draw(figure.panels[index], axes)
            else:
                axes.set_axis_off()
        names = [f"{stem}.pdf", f"{stem}.png"]
        sheet.savefig(names[0], metadata={"CreationDate": None, "Producer": None, "Creator": None})
        sheet.set_layout_engine("none")  # what is where was decided for the PDF
        sheet.savefig(names[1], metadata={"Software": None})
    return names


def _height(panels: Sequence[Panel], rows: int) -> list[float]:
    """Of every row of panels, in inches."""
    if panels[0].kind == "ranges":
        return [max(1.2, 0.6 + ROW * max(len(panel.series) for panel in panels))] * rows
    if panels[0].kind == "heat":
        return [2.6] * rows
    return [HEIGHT] * rows


def _draw(panel: Panel, axes: Axes) -> None:
    draw: dict[str, Callable[[Panel, Axes], None]] = {
        "lines": _lines,
        "marks": _marks,
        "bars": _bars,
        "ranges": _ranges,
        "heat": _heat,
        "points": _points,
    }
    draw[panel.kind](panel, axes)
    axes.set_title(printable(panel.title))
    # Beside long names there is more room to the left.
    axes.set_xlabel(printable(panel.x_label), loc="right" if panel.kind == "ranges" else "center")
    axes.set_ylabel(printable(panel.y_label))
    if panel.log_x:
        axes.set_xscale("log")
        _decades(axes.xaxis, *axes.get_xlim())
    if panel.log_y:
        axes.set_yscale("log")
        _decades(axes.yaxis, *axes.get_ylim())
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), [printable(name) for name in panel.x_names])
    if panel.y_names:
        axes.set_yticks(range(len(panel.y_names)), [printable(name) for name in panel.y_names])


def _decades(axis: Axis, low: float, high: float) -> None:
    """Plain numbers at the ticks: mathematics is not set, so matplotlib's powers are not."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    decades = math.log10(high / low)
    if decades < 1:
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    else:
        steps = (1.0, 2.0, 5.0) if decades < 2 else (1.0,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=6))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: int | None) -> str:
    return f"{value:g}"


def _lines(panel: Panel, axes: Axes) -> None:
    for one in panel.series:
        colour = _COLOURS[one.look.colour]
        if panel.banded and one.low and len(panel.series) <= MOST:
            low, high = _numbers(one.low), _numbers(one.high)
            axes.fill_between(_numbers(one.x), low, high, color=colour, alpha=0.15, linewidth=0)
        style = one.look.dash.matplotlib
        alone = len(one.x) == 1
        marker = one.look.symbol.matplotlib if alone or _marked(one, panel) else None
        axes.plot(_numbers(one.x), _numbers(one.y), color=colour, linestyle=style, marker=marker)


def _marked(one: Series, panel: Panel) -> bool:
    return panel.marked and not one.level


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
    if panel.from_zero:
        axes.axvline(0, color=_COLOURS["muted"], linewidth=0.8)
    for one in panel.series:
        colour, marker = _COLOURS[one.look.colour], one.look.symbol.matplotlib
        x, y = _numbers(one.x), _numbers(one.y)
        axes.errorbar(x, y, xerr=_errors(one, one.x), color=colour, fmt=marker, capsize=2)
    axes.set_yticks(range(len(panel.series)), [printable(one.label) for one in panel.series])
    axes.set_ylim(-0.6, len(panel.series) - 0.4)
    axes.grid(visible=False, axis="y")


def _heat(panel: Panel, axes: Axes) -> None:
    """A map with its numbers in it; what is framed is framed in red."""
    import numpy as np
    from matplotlib.patches import Rectangle

    (one,) = panel.series
    cells = np.full((len(panel.y_names), len(panel.x_names)), math.nan)
    for x, y, value in zip(*map(_numbers, (one.x, one.y, one.values)), strict=True):
        cells[int(y), int(x)] = value
    drawn = axes.imshow(cells, origin="lower", cmap="cividis", aspect="equal")
    bar: Any = axes.figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.set_label(printable(panel.value_label))
    bar.outline.set_visible(False)
    for (row, column), value in np.ndenumerate(cells):
        if math.isfinite(value):
            bright = value > (np.nanmin(cells) + np.nanmax(cells)) / 2
            ink = _COLOURS["ink" if bright else "card"]
            axes.text(column, row, f"{value:.1f}", color=ink, ha="center", va="center", size=7)
    for x, y in one.dots:
        frame = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, color=_COLOURS["bad"], linewidth=2)
        axes.add_patch(frame)
    axes.grid(visible=False)


def _points(panel: Panel, axes: Axes) -> None:
    for one in panel.series:
        colour, marker = _COLOURS[one.look.colour], one.look.symbol.matplotlib
        x, y = _numbers(one.x), _numbers(one.y)
        axes.scatter(x, y, color=colour, marker=marker, s=7, alpha=0.5, linewidths=0)


def _legend(panels: Sequence[Panel], sheet: Any, width: float) -> float:
    """One for all panels, below them; gives its height."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: dict[str, tuple[Series, Panel]] = {}
    for panel in panels:
        if panel.kind not in ("ranges", "heat"):  # which say it themselves
            for one in panel.series:
                shown.setdefault(one.label, (one, panel))
    if not shown:
        return 0.0
    handles: list[Any] = []
    for one, panel in shown.values():
        look = one.look
        colour, symbol = _COLOURS[look.colour], look.symbol.matplotlib
        if panel.kind == "bars":
            handles.append(Patch(color=colour))
        elif panel.kind == "lines":
            marker = symbol if _marked(one, panel) else None
            line = Line2D([], [], color=colour, linestyle=look.dash.matplotlib, marker=marker)
            handles.append(line)
        else:
            handles.append(Line2D([], [], color=colour, marker=symbol, linestyle="none"))
    labels = [printable(label) for label in shown]
    wanted = 0.45 + 0.055 * max(map(len, labels))  # inches, of the longest
    columns = max(1, min(len(labels), int(width / wanted)))
    sheet.legend(handles, labels, loc="outside lower center", ncols=columns)
    return 0.1 + LINE * math.ceil(len(labels) / columns)


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
