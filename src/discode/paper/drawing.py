"""What the figures of studies share: colours, an empty figure, and saving it whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from discode.errors import require
from discode.files import replacing

INK, GREY, PALE = "#2f3437", "#5f6b76", "#98a2ab"
"""Of texts, lesser texts, and lines."""
BEFORE, RED, BLUE, GREEN = "#a9b4bf", "#d1495b", "#2563eb", "#1b7f5c"
"""Of bars and points; the first is for what a model said before decoding."""


def empty_figure(width: float, height: float, layout: str | None = "constrained") -> Any:
    """Return a figure of so many inches; not through pyplot, which needs a backend for windows."""
    figure = require("matplotlib.figure", "plot").Figure
    return figure(figsize=(width, height), layout=layout)


def save_figure(figure: Any, out: Path) -> None:
    """Write a figure whole or not at all; its format is the suffix of the file."""
    with replacing(out) as temp, warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(temp, dpi=110, format=out.suffix.lstrip(".").lower() or "png")
