"""discode demo: the embedded model judges eight images; raw, smoothing and discode of each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from discode._cli import flags, output
from discode._cli.flags import model_options
from discode._files import read_rows, replacing
from discode._judge import load
from discode._pairs import Pair
from discode._scores import Scores
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.errors import MissingExtraError, require
from discode.images import demo_path, open_image

KINDS = ("good", "middling", "wrong")
TITLES = (
    "1. The same raw score, told apart by the probabilities",
    "2. Two humps: smoothing falls between them, discode stays at the higher one",
    "3. Eight images with good, middling and wrong captions",
)
ACROSS = 4
INK, PALE, AMBER = "#2f3437", "#98a2ab", "#b45309"
STYLES = (
    ("raw", INK, "", 0),
    ("smoothing", "#8d99a5", "token probabilities: raw is their peak, smoothing their mean", -1),
    ("discode", "#d1495b", "with the prior: discode is their mean", 1),
)
"""Method, its colour, what its bars are called, and on which side of a tick they stand."""
TITLE: dict[str, Any] = {"fontsize": 13, "fontweight": "bold", "color": INK}
CAPTION: dict[str, Any] = {"fontsize": 9, "linespacing": 1.3, "pad": 9}
KIND: dict[str, Any] = TITLE | {"fontsize": 12, "labelpad": 8}
Values = NDArray[np.float64]
Results = Mapping[str, Scores]


def demo(
    typed: Annotated[
        str | None,
        flags.output_option(help="Chart, or a folder for demo.png; default: demo.png here."),
    ] = None,
    every: Annotated[
        bool, flags.output_flag("--all", help="Print every caption with its three scores.")
    ] = False,
    threads: flags.Threads = None,
) -> None:
    """Judge captions of eight images with the embedded model."""
    out = output.output_file(typed or "demo.png", "demo.png")
    if typed is not None:
        require("matplotlib", "plot")
    judge = load("embedded", **model_options(None, threads=threads))

    def judged(pairs: list[Pair]) -> Results:
        readings = judge.read(pairs)
        return {name: judge.decode(pairs, readings, get_decoder(name)) for name in SIDE_BY_SIDE}

    pairs, cases = demo_pairs(), demo_pairs("cases.csv")
    results, shown = judged(pairs), judged(cases)
    print_cases(cases, shown)
    output.stdout.print(f"\n{TITLES[2]}", style="bold", highlight=False)
    (print_captions if every else print_images)(pairs, results)
    identity = judge.backend.identity
    who = f"judged by {identity.model} {identity.revision}"
    say = output.stdout.print
    right = in_order(pairs, results["discode"].value)
    held = f"{sum(right)} of {len(right)} pairs of captions in order"
    say(f"[red]![/] scored at or above a better caption; {held}", highlight=False)
    say(f"{who}, a small model; 1 and 2 are selected", highlight=False)
    if every:
        say(str(judge.signature), style="dim", markup=False, highlight=False, soft_wrap=True)
    try:
        draw_chart(out, pairs, results, cases, shown, who)
        more = "" if every else "; --all prints every caption"
        say(f"chart written to {out}{more}", markup=False, highlight=False, soft_wrap=True)
    except MissingExtraError as error:
        output.stderr.print(f"no chart drawn: {error}", markup=False)


def demo_pairs(file: str = "captions.csv") -> list[Pair]:
    """Return the shipped images with their captions; a pair's id is the kind of caption."""
    folder = demo_path()
    rows = [row for _, row in read_rows(folder / file)]
    return [Pair(str(folder / row["image"]), row["caption"], id=row["kind"]) for row in rows]


def print_cases(cases: Sequence[Pair], shown: Results) -> None:
    """Print a tie that the probabilities break, and a distribution before and after the prior."""
    *tie, hump = range(len(cases))
    output.stdout.print(TITLES[0], style="bold", highlight=False)
    table = output.table_of("image", "caption", "meant as", *SIDE_BY_SIDE, texts=range(3))
    for i in tie:
        table.add_row(name_of(cases[i]), cases[i].caption, cases[i].id, *scores_of(shown, i))
    output.stdout.print(table)
    output.stdout.print(f"\n{TITLES[1]}", style="bold", highlight=False)
    raw, *_ = scores_of(shown, hump)
    what = f"{name_of(cases[hump])}, {cases[hump].id} caption: {cases[hump].caption}; raw {raw}"
    output.stdout.print(what, highlight=False)
    answers = shown["discode"].answers
    table = output.table_of("rating", *(f"0.{x}" for x in answers), "mean", texts=[0], gap=1)
    for title, name in (("% before prior", "smoothing"), ("% after prior", "discode")):
        cells = [f"{100 * p:.0f}" for p in np.asarray(shown[name].distribution)[hump]]
        table.add_row(title, *cells, f"{name} {output.format_score(shown[name].value[hump])}")
    output.stdout.print(table, highlight=False)


def name_of(pair: Pair) -> str:
    return Path(str(pair.image)).stem


def scores_of(results: Results, i: int) -> list[str]:
    return [output.format_score(results[name].value[i]) for name in SIDE_BY_SIDE]


def print_images(pairs: Sequence[Pair], results: Results) -> None:
    values = results["discode"].value
    bad = misplaced(pairs, values)
    table = output.table_of("image", *KINDS, gap=3)
    for image, rows in by_order(pairs, values).items():
        cells = dict.fromkeys(KINDS, "")
        for i in rows:
            mark = "[red]![/]" if bad[i] else " "
            cells[str(pairs[i].id)] += f"{output.format_score(values[i])}{mark} "
        table.add_row(Path(image).stem, *cells.values())
    output.stdout.print(table, highlight=False)


def print_captions(pairs: Sequence[Pair], results: Results) -> None:
    """Print a line per caption: its kind and its three scores."""
    values = results["discode"].value
    bad = misplaced(pairs, values)
    table = output.table_of("image", "caption", "meant as", *SIDE_BY_SIDE, "", texts=range(3))
    for image, rows in by_order(pairs, values).items():
        name = Path(image).stem
        for i in rows:
            mark = "[red]![/]" if bad[i] else ""
            caption = escape(pairs[i].caption)
            table.add_row(name, caption, pairs[i].id, *scores_of(results, i), mark)
            name = ""
        table.add_row()
    output.stdout.print(table)


def by_order(pairs: Sequence[Pair], values: Values) -> dict[str, list[int]]:
    """Return the pairs' indices by image; images with the fewest captions out of order first."""
    places: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        places.setdefault(str(pair.image), []).append(i)

    def wrong(item: tuple[str, list[int]]) -> int:
        return in_order([pairs[i] for i in item[1]], values[item[1]]).count(False)

    return dict(sorted(places.items(), key=wrong))


def better(pairs: Sequence[Pair]) -> NDArray[np.bool_]:
    """Return (N, N): whether a pair's caption is of a better kind than another of its image."""
    images = np.array([str(pair.image) for pair in pairs])
    ranks = np.array([KINDS.index(str(pair.id)) for pair in pairs])
    return np.asarray((images[:, None] == images) & (ranks[:, None] < ranks))


def in_order(pairs: Sequence[Pair], values: Values) -> list[bool]:
    """Return, for each better and worse caption of an image, whether the better scored above.

    >>> cat = [Pair("cat.jpg", text, id=text) for text in ("good", "middling", "wrong")]
    >>> in_order(cat, np.array([0.9, 0.2, 0.3]))
    [True, True, False]
    """
    return [bool(right) for right in (values[:, None] > values)[better(pairs)]]


def misplaced(pairs: Sequence[Pair], values: Values) -> NDArray[np.bool_]:
    """Return which captions score at or above a better one of their image.

    >>> cat = [Pair("cat.jpg", text, id=text) for text in ("good", "middling", "wrong")]
    >>> misplaced(cat, np.array([0.9, 0.2, 0.3])).tolist()
    [False, False, True]
    """
    return np.asarray((better(pairs) & ~(values[:, None] > values)).any(axis=0))


def draw_chart(
    out: Path,
    pairs: Sequence[Pair],
    results: Results,
    cases: Sequence[Pair],
    shown: Results,
    who: str,
) -> None:
    """Draw the cases, then a column per image: its first good, middling and wrong caption."""
    values = results["discode"].value
    images = by_order(pairs, values)
    bands = -(-len(images) // ACROSS)
    heights = [1.5, *[1.0] * len(KINDS)]
    tall = (2.4 + 1.65 * len(KINDS)) * bands
    # Not through pyplot, which needs a backend for windows.
    figure: Any = require("matplotlib.figure", "plot").Figure(
        figsize=(2.9 * ACROSS, 4.2 + tall), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    above, below = figure.subfigures(2, 1, height_ratios=[4.0, tall])
    draw_cases(above, cases, shown)
    below.suptitle(TITLES[2], **TITLE)
    axes = below.subplots(bands * len(heights), ACROSS, height_ratios=heights * bands)
    for number, (image, rows) in enumerate(images.items()):
        band, column = divmod(number, ACROSS)
        top, *panels = axes[band * len(heights) : (band + 1) * len(heights), column]
        right = in_order([pairs[i] for i in rows], values[rows])
        show_image(top, image)
        top.set_title(
            f"{sum(right)} of {len(right)} pairs of captions in order",
            fontsize=9, color=PALE if all(right) else AMBER,
        )  # fmt: skip
        first = [next(i for i in rows if pairs[i].id == kind) for kind in KINDS]
        bad = misplaced([pairs[i] for i in first], values[first])
        for axis, kind, i, marked in zip(panels, KINDS, first, bad, strict=True):
            draw_panel(axis, pairs[i].caption, results, i)
            axis.tick_params(labelbottom=kind == KINDS[-1])
            if marked:
                axis.set_title(f"{axis.get_title()}\nout of order", color=AMBER, **CAPTION)
            if column == 0:
                axis.set_ylabel(kind, **KIND)
    handles, names = axes[1][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=12)
    notes = f"{who}; 1 and 2 are selected, second humps are rare with this judge"
    figure.supxlabel(f"probability of each rating; {notes}", fontsize=9, color=PALE)
    with replacing(out) as temp:
        figure.savefig(temp, dpi=110, format="png")


def draw_cases(figure: Any, cases: Sequence[Pair], shown: Results) -> None:
    """Draw the tie on the left, the better caption above, and the two humps on the right."""
    *tie, hump = range(len(cases))
    for part, title, rows in zip(figure.subfigures(1, 2), TITLES, (tie, [hump]), strict=False):
        part.suptitle(balanced(title, 48), **TITLE)
        axes = part.subplot_mosaic([["image", i] for i in rows], width_ratios=[1, 1.5])
        show_image(axes["image"], cases[rows[0]].image)
        for i in rows:
            room = {"top": 1.05} if i in tie else {"top": 0.64, "step": 0.07}
            draw_panel(axes[i], cases[i].caption, shown, i, **room)
            axes[i].set_ylabel(cases[i].id, **KIND)


def show_image(axis: Any, image: Any) -> None:
    axis.imshow(open_image(image))
    axis.set_axis_off()


def draw_panel(
    axis: Any, caption: str, results: Results, i: int, top: float = 1.4, step: float = 0.18
) -> None:
    """Draw the three scores of a caption, and the distributions whose means two of them are.

    Bars up to ``top`` fit; ``step`` is the distance between the names of scores, as a share of it.
    """
    answers = results["discode"].answers
    ticks = range(len(answers))
    # A dot marks each score; its name stands where the bars are low.
    side, align = (1, "left") if results["discode"].value[i] < 0.5 else (-1, "right")
    for line, (name, colour, bar, shift) in enumerate(STYLES):
        scores = results[name]
        if bar:
            places = [tick + 0.2 * shift for tick in ticks]
            axis.bar(places, np.asarray(scores.distribution)[i], 0.4, color=colour, label=bar)
        place, height = 10 * scores.value[i], top * (0.95 - step * line)
        axis.plot(place, height, "o", color=colour, markersize=5)
        axis.annotate(
            f"{name} {scores.value[i]:.2f}", (place, height), (8 * side, 0),
            textcoords="offset points", ha=align, va="center", fontsize=10, fontweight="bold",
            color=colour,
        )  # fmt: skip
    axis.set_title(balanced(caption), color=INK, **CAPTION)
    axis.set_xticks(list(ticks), [f"0.{answer}" for answer in answers])
    axis.set_xlim(-0.6, len(answers) - 0.4)
    axis.set_ylim(0, top)
    axis.set_yticks([])
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
