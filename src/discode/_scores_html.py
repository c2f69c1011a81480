"""Scores as a table for a notebook; its colours are the page's."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._scales import get_scale
from discode._signature import SignedDecoder
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.errors import InputError

HTML_ROWS = 20
"""Rows that a notebook shows of scores."""
HTML_LETTERS = 80
"""Letters that it shows of a caption; the rest is in the tooltip."""
_HEIGHTS = "▁▂▃▄▅▆▇█"


def scores_table(scores: Any) -> str:
    """Return the first rows of ``Scores``, with bars and distributions, and a line on all.

    Before the scores are raw and smoothing of the same readings, where there are some.
    """
    try:
        scale = get_scale(scores.signature.get("scale"))
        low, high = scale.minimum, scale.maximum
    except InputError:  # another metric, or a scale of the caller's own: no bars
        low, high = math.nan, math.nan
    texts: dict[str, Sequence[str]] = {}
    if scores.images is not None:  # the file name is enough to distinguish images
        texts["image"] = [Path(name).name for name in scores.images[:HTML_ROWS]]
    if scores.captions is not None:
        texts["caption"] = scores.captions
    own = scores.signature.decoder
    same = (name for name in SIDE_BY_SIDE if SignedDecoder.of(get_decoder(name)) == own)
    name = next(same, "score")
    plain = [column for column in SIDE_BY_SIDE[:-1] if getattr(scores, column) is not None]
    plain = plain if name not in plain else plain[: plain.index(name)]
    cells = [*texts, *plain, name, *(["distribution"] if scores.distribution is not None else [])]
    left = 'style="text-align:left"'
    lines = [
        '<table style="font-variant-numeric:tabular-nums"><thead><tr><th></th>'
        + "".join(f"<th {left}>{name}</th>" for name in cells)
        + f"<th {left}></th></tr></thead><tbody>"
    ]
    for row, values in enumerate(scores[:HTML_ROWS].rows()):
        line = [f"<td {left}>{_clamped(column[row])}</td>" for column in texts.values()]
        whole = 'style="text-align:left;white-space:nowrap"'
        line += [f"<td {whole}>{_bar(values[column], math.nan, high)}</td>" for column in plain]
        line.append(f"<td {whole}>{_bar(values['score'], low, high)}</td>")
        if scores.distribution is not None:
            marks = _heights(scores.distribution[row])
            answers = html.escape(" ".join(scores.answers), quote=True)
            line.append(f'<td {whole} title="{answers}">{marks}</td>')
        note = values["error"] or " ".join(values["flags"])
        line.append(f'<td style="text-align:left;opacity:.7">{_clamped(note)}</td>')
        lines.append(f"<tr><td>{row}</td>{''.join(line)}</tr>")
    more = f"... and {len(scores) - HTML_ROWS} more; " if len(scores) > HTML_ROWS else ""
    signature = html.escape(str(scores.signature), quote=True)
    short = html.escape(scores.signature.short)
    lines.append(
        f'</tbody></table><div style="opacity:.7" title="{signature}">'
        f"{more}{scores.summary()}; {short}</div>"
    )
    return "\n".join(lines)


def _clamped(text: str) -> str:
    """Return text for a cell: escaped, in one line, cut where it is long, whole in a tooltip."""
    line = " ".join(text.split())
    if len(line) <= HTML_LETTERS:
        return html.escape(line)
    whole = html.escape(line[: 10 * HTML_LETTERS], quote=True)
    return f'<span title="{whole}">{html.escape(line[:HTML_LETTERS])}…</span>'


def _bar(score: float | None, low: float, high: float) -> str:
    """Return a score as a number, and as a bar where the ends of its scale are known."""
    if score is None or math.isnan(low):
        return "nan" if score is None else f"{score:.3f}"
    width = 100 * (score - low) / (high - low)
    return (
        f'{score:.3f} <span style="display:inline-block;width:5em;height:.6em;border-radius:.3em;'
        'overflow:hidden;background:rgba(128,128,128,.3)"><span style="display:block;height:100%;'
        f'width:{min(max(width, 0.0), 100.0):.0f}%;background:#3b82f6"></span></span>'
    )


def _heights(distribution: NDArray[np.float64]) -> str:
    """Return a distribution as a row of small bars.

    >>> _heights(np.array([0.0, 0.25, 0.5]))
    '▁▅█'
    """
    top = float(np.nanmax(distribution, initial=0.0))
    if not top:
        return ""
    return "".join(_HEIGHTS[round(7 * p / top)] for p in np.nan_to_num(distribution).tolist())
