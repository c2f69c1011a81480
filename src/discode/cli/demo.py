"""discode demo: the embedded model judges eight images; raw, smoothing and discode of each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.markup import escape

from discode.cli import output
from discode.cli.model_options import model_options
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.errors import MissingExtraError, require
from discode.files import read_rows, replacing
from discode.images import demo_path, open_image
from discode.judge import load
from discode.pairs import Pair
from discode.scores import Scores

KINDS = ("good", "middling", "wrong")
ACROSS = 4
INK, PALE = "#2f3437", "#98a2ab"
STYLES = (
    ("raw", INK, "", 0),
    ("smoothing", "#8d99a5", "token probabilities: raw is their peak, smoothing their mean", -1),
    ("discode", "#d1495b", "with the prior: discode is their mean", 1),
)
"""Method, its colour, what its bars are called, and on which side of a tick they stand."""


def demo(
    typed: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the chart goes; default: demo.png."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Cores to use; default: all.")] = None,
) -> None:
    """Judge captions of eight images with the embedded model: raw, smoothing, discode."""
    out = typed or Path("demo.png")
    output.check_writable(out)
    if typed is not None:
        require("matplotlib", "plot")
    pairs = demo_pairs()
    judge = load("embedded", **model_options(None, threads=threads))
    readings = judge.read(pairs)
    results = {name: judge.decode(pairs, readings, get_decoder(name)) for name in SIDE_BY_SIDE}
    table = output.table_of("image", "caption", "meant as", *SIDE_BY_SIDE, texts=range(3))
    for i, pair in enumerate(pairs):
        values = [output.format_score(results[name].value[i]) for name in SIDE_BY_SIDE]
        name = Path(str(pair.image)).stem
        if i and pair.image == pairs[i - 1].image:
            name = ""
        elif i:
            table.add_row()
        table.add_row(name, escape(pair.caption), pair.id, *values)
    output.stdout.print(table)
    output.stdout.print(f"\n{order_held(pairs, results['discode'].value)}", highlight=False)
    identity = judge.backend.identity
    who = f"judged by {identity.model} {identity.revision}"
    output.stdout.print(
        f"{who}, a small model: it makes mistakes that no decoder corrects", highlight=False
    )
    output.stdout.print(
        str(judge.signature), style="dim", markup=False, highlight=False, soft_wrap=True
    )
    try:
        draw_chart(out, pairs, results, who)
        output.stdout.print(f"chart written to {out}", highlight=False)
    except MissingExtraError as error:
        output.stderr.print(f"no chart drawn: {error}", markup=False)


def demo_pairs() -> list[Pair]:
    """Return the shipped images with their captions; a pair's id is the kind of caption."""
    folder = demo_path()
    rows = [row for _, row in read_rows(folder / "captions.csv")]
    return [Pair(str(folder / row["image"]), row["caption"], id=row["kind"]) for row in rows]


def in_order(
    pairs: Sequence[Pair], values: NDArray[np.float64]
) -> dict[tuple[str, str], list[bool]]:
    """Return, by the two kinds, whether a better caption scored above a worse of its image.

    >>> cat = [Pair("cat.jpg", text, id=text) for text in ("good", "middling", "wrong")]
    >>> in_order(cat, np.array([0.9, 0.2, 0.3]))["middling", "wrong"]
    [False]
    """
    held: dict[tuple[str, str], list[bool]] = {}
    for better, worse in combinations(range(len(pairs)), 2):
        kinds = pairs[better].id, pairs[worse].id
        if pairs[better].image == pairs[worse].image and kinds[0] != kinds[1]:
            if KINDS.index(kinds[0]) > KINDS.index(kinds[1]):
                better, worse, kinds = worse, better, kinds[::-1]
            held.setdefault(kinds, []).append(bool(values[better] > values[worse]))
    return held


def order_held(pairs: Sequence[Pair], values: NDArray[np.float64]) -> str:
    """Say how often a better kind of caption scored above a worse one of the same image.

    >>> cat = [Pair("cat.jpg", text, id=text) for text in ("good", "middling", "wrong")]
    >>> order_held(cat, np.array([0.9, 0.2, 0.3]))
    'good > middling > wrong held in 2 of 3 pairs of captions; wrong above good in 0 of 1'
    """
    held = in_order(pairs, values)
    every = [right for column in held.values() for right in column]
    extreme = held.get((KINDS[0], KINDS[-1]), [])
    return (
        f"good > middling > wrong held in {sum(every)} of {len(every)} pairs of captions; "
        f"wrong above good in {len(extreme) - sum(extreme)} of {len(extreme)}"
    )


def draw_chart(out: Path, pairs: Sequence[Pair], results: dict[str, Scores], who: str) -> None:
    """Draw a column per image: the image, and its first good, middling and wrong caption."""
    images = list(dict.fromkeys(pair.image for pair in pairs))
    first = {(pair.image, pair.id): i for i, pair in reversed(list(enumerate(pairs)))}
    bands = -(-len(images) // ACROSS)
    heights = [1.5, *[1.0] * len(KINDS)]
    # Not through pyplot, which needs a backend for windows.
    figure: Any = require("matplotlib.figure", "plot").Figure(
        figsize=(2.9 * ACROSS, (2.2 + 1.5 * len(KINDS)) * bands), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    axes = figure.subplots(bands * len(heights), ACROSS, height_ratios=heights * bands)
    for number, image in enumerate(images):
        band, column = divmod(number, ACROSS)
        above, *below = axes[band * len(heights) : (band + 1) * len(heights), column]
        above.imshow(open_image(image))
        above.set_axis_off()
        for axis, kind in zip(below, KINDS, strict=True):
            i = first[image, kind]
            draw_panel(axis, pairs[i].caption, results, i)
            axis.tick_params(labelbottom=kind == KINDS[-1])
            if column == 0:
                axis.set_ylabel(kind, fontsize=12, fontweight="bold", color=INK, labelpad=8)
    handles, names = axes[1][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=12)
    figure.supxlabel(f"probability of each rating; {who}", fontsize=9, color=PALE)
    with replacing(out) as temp:
        figure.savefig(temp, dpi=110, format="png")


def draw_panel(axis: Any, caption: str, results: Mapping[str, Scores], i: int) -> None:
    """Draw the three scores of a caption, and the distributions whose means two of them are."""
    answers = results["discode"].answers
    ticks = range(len(answers))
    # The scores are written where the bars are low.
    edge, align = (0.98, "right") if results["discode"].value[i] < 0.6 else (0.02, "left")
    for line, (name, colour, bar, side) in enumerate(STYLES):
        scores = results[name]
        if bar:
            places = [tick + 0.2 * side for tick in ticks]
            axis.bar(places, np.asarray(scores.distribution)[i], 0.4, color=colour, label=bar)
        axis.text(
            edge, 0.95 - 0.2 * line, f"{name} {scores.value[i]:.2f}", transform=axis.transAxes,
            ha=align, va="top", fontsize=10, fontweight="bold", color=colour,
        )  # fmt: skip
    axis.set_title(balanced(caption), fontsize=9, color=INK, linespacing=1.3)
    axis.set_xticks(list(ticks), [f"0.{answer}" for answer in answers])
    axis.set_yticks([])
    axis.set_ylim(0, 1)
    axis.tick_params(color=PALE, labelcolor=INK, labelsize=8, length=2)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PALE)


def balanced(caption: str, width: int = 40) -> str:
    """Break a caption into as few lines as fit, of much the same length.

    >>> balanced("a man in a helmet rides a bike down a hill")
    'a man in a helmet rides\\na bike down a hill'
    """
    lines = textwrap.wrap(caption, width)
    while len(shorter := textwrap.wrap(caption, width)) == len(lines) and width > 1:
        best, width = shorter, width - 1
    return "\n".join(best)
