"""Shared parts of figures (colours, empty figures, atomic saving), and the plot of captioners."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from discode._files import replacing
from discode.bench._systems import JoinedScores, SystemComparison
from discode.errors import InputError, require

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
INK, GREY, PALE = "#2f3437", "#5f6b76", "#98a2ab"
"""Of texts, lesser texts, and lines."""
BEFORE, RED, BLUE, GREEN = "#a9b4bf", "#d1495b", "#2563eb", "#1b7f5c"
"""Of bars and points; the first is for what a model said before decoding."""


def empty_figure(width: float, height: float, layout: str | None = "constrained") -> Any:
    """Create a figure, sized in inches, without pyplot, which requires a window backend."""
    figure = require("matplotlib.figure", "plot").Figure
    return figure(figsize=(width, height), layout=layout)


def save_figure(figure: Any, out: Path, dpi: int = 110) -> None:
    """Write a figure whole or not at all; its format is the suffix of the file."""
    with replacing(out) as temp, warnings.catch_warnings():
        # A letter missing from the font is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(temp, dpi=dpi, format=out.suffix.lstrip(".").lower() or "png")


def check_plot(path: Path) -> None:
    """Raise unless a plot can be written to a file of this name."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"{path.name}: plots are written to {', '.join(PLOT_SUFFIXES)}")
    require("matplotlib", "plot")


def plot_systems(done: SystemComparison, joined: JoinedScores, path: Path) -> None:
    """Draw captioners: their means, and how far they are apart.

    Of two, the differences image by image; of more, each one's difference to the highest. One has
    its mean alone.
    """
    check_plot(path)
    count, highest = len(done.systems), done.systems[0]
    figure = empty_figure(9.0, 1.6 + 0.36 * max(count, 4))
    left, right = figure.subplots(1, 2)
    right.set_visible(count > 1)
    for place, system in enumerate(reversed(done.systems)):
        _interval(left, place, system.mean, system.low, system.high, BLUE)
    left.set_ylim(-0.6, count - 0.4)
    left.set_yticks(range(count), [_short(system.name) for system in reversed(done.systems)])
    left.set_xlabel("mean score, with 95 %")
    left.set_title(f"mean score, {done.images} images", fontsize=10)
    right.axvline(0, color=GREY, lw=1, ls=":")
    if count == 2:
        pair = done.pairs[0]
        value = joined.value[:, joined.shared]
        right.hist(value[0] - value[1], bins=min(41, 5 + done.images // 8), color=BEFORE)
        right.axvspan(pair.low, pair.high, color=BLUE, alpha=0.25, lw=0)
        right.axvline(pair.difference, color=BLUE, lw=2)
        right.set_ylabel("images")
        right.set_xlabel("difference of an image's scores; blue: the mean and its 95 %")
        right.set_title(f"{_short(pair.a)} - {_short(pair.b)}: p = {pair.p:.2g}", fontsize=10)
    else:
        others = [system.name for system in reversed(done.systems[1:])]
        for place, name in enumerate(others):
            pair = next(pair for pair in done.pairs if {pair.a, pair.b} == {highest.name, name})
            sign = -1 if pair.a == highest.name else 1
            low, high = sorted((sign * pair.low, sign * pair.high))
            shown = RED if pair.adjusted < 0.05 else GREY
            _interval(right, place, sign * pair.difference, low, high, shown)
        right.set_yticks(range(len(others)), [_short(name) for name in others])
        right.set_ylim(left.get_ylim())
        right.set_xlabel("difference of the means, with 95 %")
        right.set_title(f"difference to {_short(highest.name)}; red: Holm's p < 5 %", fontsize=10)
    for panel in (left, right):
        panel.grid(axis="x", alpha=0.25)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    save_figure(figure, path, dpi=140)


def _interval(panel: Any, place: int, value: float, low: float, high: float, colour: str) -> None:
    panel.plot([low, high], [place, place], color=colour, lw=2, alpha=0.5)
    panel.plot(value, place, "o", color=colour, ms=6)


def _short(name: str) -> str:
    text = name if len(name) <= 30 else f"...{name[-27:]}"
    return text.replace("$", r"\$")
