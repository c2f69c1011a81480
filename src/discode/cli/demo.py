"""discode demo: real readings of real pictures, before and after the prior."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from discode.backends import demo_path
from discode.cli import output
from discode.decoders import get_decoder
from discode.errors import MissingExtraError, require
from discode.files import replacing
from discode.judge import load
from discode.pairs import Pair, open_image
from discode.scores import Scores

COMPARED = ("raw", "smoothing", "paper", "discode")


def demo(
    out: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes.")] = Path(
        "demo.png"
    ),
) -> None:
    """Decode recorded readings of four photographs and draw what the prior does."""
    folder = demo_path()
    lines = (folder / "readings.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [Pair(str(folder / row["file"]), row["caption"]) for row in map(json.loads, lines)]
    judge = load("demo")
    readings = judge.read(pairs)
    results = {
        name: replace(judge, decoder=get_decoder(name)).decode(pairs, readings) for name in COMPARED
    }
    table = Table("picture", "caption", *COMPARED, box=None, header_style="bold", pad_edge=False)
    for i, pair in enumerate(pairs):
        values = [output.number(results[name].value[i]) for name in COMPARED]
        new = i == 0 or pair.image != pairs[i - 1].image
        table.add_row(Path(str(pair.image)).stem if new else "", escape(pair.caption), *values)
    chosen = widest(pairs, results)
    titles = [f"{Path(str(pair.image)).stem}: {pair.caption}" for pair in pairs]
    output.show("discode", results["discode"], results["smoothing"], titles, chosen)
    output.stdout.print(table)
    output.stdout.print(
        f"\n{len(pairs)} recorded readings of {judge.backend.identity.model}, "
        "a small prototype: it errs, and no decoder mends that.",
        highlight=False,
    )
    output.stdout.print(judge.signature, style="dim", markup=False, highlight=False, soft_wrap=True)
    try:
        draw(out, pairs, chosen, results)
        output.stdout.print(f"picture written to {out}", highlight=False)
    except MissingExtraError as error:
        output.stderr.print(f"no picture drawn: {error}", markup=False)


def widest(pairs: list[Pair], results: dict[str, Scores]) -> list[int]:
    """Return, for each picture, the reading that the prior changes most."""
    best: dict[str, int] = {}
    change = abs(results["discode"].value - results["smoothing"].value)
    for i, pair in enumerate(pairs):
        name = str(pair.image)
        if name not in best or change[i] > change[best[name]]:
            best[name] = i
    return list(best.values())


def draw(out: Path, pairs: list[Pair], rows: list[int], results: dict[str, Scores]) -> None:
    """Draw pictures, captions and distributions side by side."""
    # Not through pyplot, which wants a backend for windows we do not open.
    figure: Any = require("matplotlib.figure", "plot").Figure(
        figsize=(3.6 * len(rows), 5.6), layout="constrained"
    )
    axes = figure.subplots(2, len(rows), height_ratios=(1.1, 1))
    smoothing, corrected = results["smoothing"], results["discode"]
    for (top, bottom), i in zip(axes.T, rows, strict=True):
        pair = pairs[i]
        top.imshow(open_image(pair.image))
        top.set_axis_off()
        top.set_title("\n".join(textwrap.wrap(pair.caption, 34)), fontsize=10)
        ticks = range(len(smoothing.answers))
        for offset, scores, colour, name in (
            (-0.2, smoothing, "#9aa7b4", "token probabilities"),
            (0.2, corrected, "#d1495b", "DISCODE"),
        ):
            assert scores.distribution is not None
            label = f"{name}: {scores.value[i]:.2f}"
            heights = scores.distribution[i]
            bottom.bar([t + offset for t in ticks], heights, 0.4, color=colour, label=label)
        bottom.set_xticks(list(ticks), [f"0.{answer}" for answer in smoothing.answers])
        bottom.set_ylim(0, 0.9)
        bottom.spines[["top", "right"]].set_visible(False)
        bottom.legend(frameon=False, fontsize=9)
    axes[1][0].set_ylabel("probability")
    with replacing(out) as temp:
        figure.savefig(temp, dpi=110, format="png")
