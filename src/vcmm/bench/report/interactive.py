"""A panel as a plotly figure: data and layout, as JSON has them.

Colours are names, `var(--arm-0)`, which the page looks up in its theme. Every label is escaped, for
plotly reads some HTML in all its text, and goes into the text itself, never into a template.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from .figure import Number, Panel, Series

LONGEST = 32  # characters of a label on an axis
DIGITS = 6


def chart(panel: Panel) -> dict[str, Any]:
    """Traces and layout. A trace says in `meta` which arm it belongs to."""
    draw: dict[str, Callable[[Panel], list[dict[str, Any]]]] = {
        "lines": _lines,
        "marks": _marks,
        "bars": _bars,
        "ranges": _ranges,
        "heat": _heat,
        "points": _points,
    }
    return {"data": draw[panel.kind](panel), "layout": _layout(panel)}


def _lines(panel: Panel) -> list[dict[str, Any]]:
    bands = [_band(one) for one in panel.series if panel.banded and one.low]
    lines = [
        _trace(one, "scatter", hovertemplate=_hover(panel))
        | {"mode": _mode(one, panel)}
        | {"x": _rounded(one.x), "y": _rounded(one.y)}
        | {"line": {"color": _colour(one), "dash": one.look.dash.plotly, "width": 2}}
        | {"marker": {"color": _colour(one), "symbol": one.look.symbol.plotly}}
        for one in panel.series
    ]
    return bands + lines


def _mode(one: Series, panel: Panel) -> str:
    if len(one.x) == 1:
        return "markers"
    return "lines+markers" if panel.marked and not one.level else "lines"


def _band(one: Series) -> dict[str, Any]:
    """Once along the upper edge, and back along the lower one."""
    x, low, high = _rounded(one.x), _rounded(one.low), _rounded(one.high)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": high + low[::-1],
        "fill": "toself",
        "fillcolor": _colour(one),
        "line": {"width": 0, "color": _colour(one)},
        "opacity": 0.16,
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"arm": one.label},
    }


def _marks(panel: Panel) -> list[dict[str, Any]]:
    dots = [
        _trace(one, "scatter", hoverinfo="skip")
        | {"mode": "markers", "x": _rounded([x for x, _ in one.dots])}
        | {"y": _rounded([y for _, y in one.dots]), "opacity": 0.4}
        | {"marker": {"color": _colour(one), "size": 5, "symbol": one.look.symbol.plotly}}
        for one in panel.series
        if len(one.dots) > 1
    ]
    means = [
        _trace(one, "scatter", hovertemplate=_hover(panel))
        | {"mode": "markers", "x": _rounded(one.x), "y": _rounded(one.y)}
        | {"marker": {"color": _colour(one), "size": 11, "symbol": one.look.symbol.plotly}}
        | {"error_y": _errors(one, one.y, _colour(one))}
        for one in panel.series
    ]
    return dots + means


def _bars(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "type": "bar",
            "name": _text(one.label),
            "x": list(range(len(one.x))),
            "y": _rounded(one.y),
            "marker": {"color": _colour(one)},
            "error_y": _errors(one, one.y, "var(--muted)"),
            "hovertemplate": "%{fullData.name}<br>%{y:.1f}<extra></extra>",
            "meta": {"measure": one.label},
        }
        for one in panel.series
    ]


def _ranges(panel: Panel) -> list[dict[str, Any]]:
    hover = "<b>%{fullData.name}</b><br>%{x:+.2f}<extra></extra>"
    return [
        _trace(one, "scatter", hovertemplate=hover)
        | {"mode": "markers", "x": _rounded(one.x), "y": _rounded(one.y)}
        | {"marker": {"color": _colour(one), "size": 10, "symbol": one.look.symbol.plotly}}
        | {"error_x": _errors(one, one.x, _colour(one))}
        for one in panel.series
    ]


def _heat(panel: Panel) -> list[dict[str, Any]]:
    """One map; a cell that nothing was measured for stays empty."""
    (one,) = panel.series
    cells = {(x, y): value for x, y, value in zip(one.x, one.y, one.values, strict=True)}
    columns, rows = range(len(panel.x_names)), range(len(panel.y_names))
    known = [[cells.get((column, row)) for column in columns] for row in rows]
    texts = [["" if value is None else f"{value:.1f}" for value in row] for row in known]
    return [
        {
            "type": "heatmap",
            "name": _text(one.label),
            "z": [_rounded(row) for row in known],
            "text": texts,
            "texttemplate": "%{text}",
            "hovertemplate": "%{x}, %{y}<br>%{text}<extra></extra>",
            "colorscale": "Cividis",
            "colorbar": {"title": {"text": _text(panel.value_label), "side": "right"}},
            "xgap": 2,
            "ygap": 2,
            "hoverongaps": False,
            "meta": {"measure": one.label},
        }
    ]


def _points(panel: Panel) -> list[dict[str, Any]]:
    hover = "<b>%{fullData.name}</b><br>%{x:.3~g}, %{y:.3~g}<extra></extra>"
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": _text(one.label),
            "x": _rounded(one.x),
            "y": _rounded(one.y),
            "marker": {
                "color": _colour(one),
                "size": 5,
                "symbol": one.look.symbol.plotly,
                "opacity": 0.6,
            },
            "hovertemplate": hover,
            "meta": {"measure": one.label},
        }
        for one in panel.series
    ]


def _trace(one: Series, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "name": _text(one.label),
        "showlegend": False,
        "meta": {"arm": one.label},
        **more,
    }


def _errors(one: Series, middle: Sequence[Any], colour: str) -> dict[str, Any]:
    """Distances from the middle; none where the interval is unknown."""
    bounds = list(zip(middle, one.low, one.high, strict=True))
    return {
        "type": "data",
        "visible": any(None not in bound for bound in bounds),
        "symmetric": False,
        "array": [0 if None in (y, high) else _round(high - y) for y, _, high in bounds],
        "arrayminus": [0 if None in (y, low) else _round(y - low) for y, low, _ in bounds],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def _layout(panel: Panel) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "autosize": True,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--muted)"},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "var(--card)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)"},
        },
        "showlegend": panel.kind in ("bars", "points"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": _axis(panel.x_label),
        "yaxis": _axis(panel.y_label),
        "barmode": "group",
    }
    # With more ticks than that plotly writes down every number from 1 to 9.
    logarithmic = {"type": "log", "tickformat": "~g", "nticks": 3}
    layout["xaxis"] |= logarithmic if panel.log_x else {}
    layout["yaxis"] |= logarithmic if panel.log_y else {}
    if panel.y_range is not None:
        layout["yaxis"]["range"] = _rounded(panel.y_range)
    for axis, names in (("xaxis", panel.x_names), ("yaxis", panel.y_names)):
        if names:
            layout[axis] |= _ticks(names) | {"showgrid": False}
    if panel.kind == "bars":
        names = [str(name) for name in panel.series[0].x]
        layout["xaxis"] |= _ticks(names) | {"showgrid": False}
        layout["yaxis"]["rangemode"] = "tozero"
    if panel.kind == "ranges":
        layout["yaxis"] |= _ticks([one.label for one in panel.series]) | {"showgrid": False}
        layout["yaxis"]["range"] = [-0.6, len(panel.series) - 0.4]
        layout["xaxis"] |= {"zeroline": True, "rangemode": "tozero"} if panel.from_zero else {}
    if panel.kind == "heat":
        layout["shapes"] = [_frame(x, y) for x, y in panel.series[0].dots]
    return layout


def _frame(x: float, y: float) -> dict[str, Any]:
    """Around a cell of a heat map."""
    sides = {"x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.5, "y1": y + 0.5}
    return {"type": "rect", **sides, "line": {"color": "var(--bad)", "width": 3}}


def _axis(title: str) -> dict[str, Any]:
    return {
        "type": "linear",
        "title": {"text": _text(title), "standoff": 8},
        "automargin": True,
        "gridcolor": "var(--line)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--muted)",
        "zeroline": False,
    }


def _ticks(names: Sequence[str]) -> dict[str, Any]:
    """Names at whole numbers: plotly would read some names as numbers, or as dates."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [_text(short(name)) for name in names],
    }


def short(name: str) -> str:
    """A name as long as an axis can bear. Names of a family differ at their ends, so both stay."""
    if len(name) <= LONGEST:
        return name
    end = LONGEST // 2
    return f"{name[: LONGEST - 1 - end]}…{name[-end:]}"


def _hover(panel: Panel) -> str:
    x = "%{x:.4~g}" if panel.kind == "marks" else "%{x}"
    y = "%{y:.3~g}" if panel.log_y or "beta" in panel.y_label else "%{y:.1f}"
    return f"<b>%{{fullData.name}}</b><br>{_text(panel.x_label)} {x}<br>{y}<extra></extra>"


def _text(label: str) -> str:
    return escape(label, quote=True)


def _colour(one: Series) -> str:
    return f"var(--{one.look.colour})"


def _rounded(values: Sequence[Any]) -> list[Any]:
    return [_round(value) for value in values]


def _round(value: Number | str) -> Number | str:
    """Six digits; JSON has no infinity, and plotly leaves gaps at null."""
    if value is None or isinstance(value, str):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
