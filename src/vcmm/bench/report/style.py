"""How everything looks, in one place: colours of page and figures, and what matplotlib is told.

The seven colours keep apart under normal vision and under the three kinds of colour blindness, and
stand out against the card they lie on; a test measures both. More arms than colours get another
dash and another marker. The reference is drawn in ink, in every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# One name per colour, so that a figure drawn once can follow the theme.
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "page": "#f6f7f9",
        "card": "#ffffff",
        "ink": "#191c21",
        "muted": "#5a626e",
        "line": "#dfe3e8",
        "accent": "#0a58b5",
        "good": "#0d6e4b",
        "bad": "#b3261e",
        "warn": "#7a4b00",
        "warn-card": "#fff4dc",
        "bar-0": "#12406b",
        "bar-1": "#4d86b8",
        "bar-2": "#a9c6e0",
    },
    "dark": {
        "page": "#0f1216",
        "card": "#171b21",
        "ink": "#eceff3",
        "muted": "#a2abb7",
        "line": "#2c333c",
        "accent": "#7db6ff",
        "good": "#4fd3a0",
        "bad": "#ff8d85",
        "warn": "#ffd27d",
        "warn-card": "#33280f",
        "bar-0": "#cfe4f7",
        "bar-1": "#6fa3d1",
        "bar-2": "#3b6288",
    },
}
COLOURS: dict[str, tuple[str, ...]] = {
    "light": ("#103e90", "#f4483b", "#247a62", "#944b89", "#6e6e15", "#4c8eef", "#6424c4"),
    "dark": ("#7180d4", "#f46f2e", "#12db7b", "#ed81ae", "#f6cf1e", "#93c4ff", "#9959ff"),
}
OURS = 1  # the place of VCMM among them
BARS = ("bar-0", "bar-1", "bar-2")


class Dash(NamedTuple):
    """A way to draw a line, as plotly, matplotlib and SVG spell it."""

    plotly: str
    matplotlib: Any  # a name, or an offset and lengths
    svg: str


class Symbol(NamedTuple):
    """A marker, as plotly and matplotlib spell it."""

    plotly: str
    matplotlib: str


DASHES = (
    Dash("solid", "-", "none"),
    Dash("dash", "--", "6 3"),
    Dash("dot", ":", "2 2"),
    Dash("dashdot", "-.", "6 2 2 2"),
    Dash("longdash", (0, (8, 3)), "10 3"),
)
SYMBOLS = (
    Symbol("circle", "o"),
    Symbol("square", "s"),
    Symbol("diamond", "D"),
    Symbol("triangle-up", "^"),
    Symbol("x", "X"),
)


class Look(NamedTuple):
    """How an arm is drawn, wherever it is drawn."""

    colour: str  # a name of `variables`
    dash: Dash
    symbol: Symbol


def looks(labels: Sequence[str], reference: str | None) -> dict[str, Look]:
    """A look for every arm, by label. An arm looks the same in every setting of a page.

    The reference with VCMM has a colour that is kept for it, far from the ink of the reference, on
    whatever page it is; its variants have what other methods leave.
    """
    found: dict[str, Look] = {}
    if reference is not None:
        found[reference] = Look("ink", DASHES[0], SYMBOLS[0])
    ours = f"{reference} + vcmm"
    others = [label for label in dict.fromkeys(labels) if label not in (reference, ours)]
    others.sort(key=lambda label: label.startswith(f"{ours} ("))
    count = len(COLOURS["light"])
    places = {label: index + (index >= OURS) for index, label in enumerate(others)}
    if ours in set(labels):
        places = {ours: OURS, **places}
    for label, index in places.items():
        turn = index // count
        dash, symbol = DASHES[turn % len(DASHES)], SYMBOLS[turn % len(SYMBOLS)]
        found[label] = Look(f"arm-{index % count}", dash, symbol)
    return found


def variables(theme: str) -> dict[str, str]:
    """Every colour of a theme, by name."""
    arms = {f"arm-{index}": colour for index, colour in enumerate(COLOURS[theme])}
    return THEMES[theme] | arms


# Type 42 fonts are text in a PDF, which journals ask for. Names are never mathematics.
PAPER: dict[RcKeyType, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": THEMES["light"]["muted"],
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": THEMES["light"]["line"],
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.color": THEMES["light"]["muted"],
    "ytick.color": THEMES["light"]["muted"],
}
