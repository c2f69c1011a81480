"""Draw charts whose content is known: python -m training.plots FOLDER [COUNT]

Charts of public repositories come with titles, which a small image does not show. Of these it is
known what can be seen: the kind, the colour, how many bars, lines or slices; and captions that get
one of them wrong are listed beside those that are right ("wrong" in ``captions.jsonl``).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from training.gather import split_of
from training.statements import NUMBERS

COLOURS = {
    "blue": ("tab:blue", "steelblue", "royalblue", "navy"),
    "red": ("tab:red", "firebrick", "crimson", "red"),
    "green": ("tab:green", "seagreen", "limegreen"),
    "orange": ("tab:orange", "darkorange"),
    "purple": ("tab:purple", "rebeccapurple"),
    "gray": ("gray", "slategray"),
    "yellow": ("gold", "khaki"),
    "pink": ("hotpink", "tab:pink"),
}
KINDS = {"bar chart": "bars", "line chart": "lines", "pie chart": "slices", "scatter plot": "dots"}
WHAT = (
    "sales users passengers rainfall temperature income births students accidents members "
    "exports downloads customers prices profits votes tickets patients readers"
).split()
PER = "month year week day country city region age".split()


def _one(rng: random.Random) -> dict[str, Any]:
    """Return what a chart shows, and its captions, right and wrong."""
    chart = rng.choice(list(KINDS))
    colour, other = rng.sample(list(COLOURS), 2)
    n = rng.randint(1, 3) if chart == "line chart" else rng.randint(3, 8)
    what, per = rng.choice(WHAT), rng.choice(PER)
    marks, title = KINDS[chart], f"{what} per {per}"
    false = rng.choice([other for other in KINDS if other != chart])
    right = [f"a {chart} of {title}", f"a {chart}"]
    wrong = [f"a {false} of {title}", f"a {false}", f"a chart with {KINDS[false]}"]
    if chart == "pie chart":
        right.append(f"a pie chart with {NUMBERS[n]} slices")
        wrong.append(f"a pie chart with {NUMBERS[n + rng.choice((-2, -1, 1))]} slices")
    else:
        several = marks if n > 1 else marks.removesuffix("s")
        right.append(f"a chart with {'a ' if n == 1 else ''}{colour} {several}")
        wrong.append(f"a chart with {'a ' if n == 1 else ''}{other} {several}")
        wrong.append(f"a chart with {colour} {KINDS[false]}")
        if chart != "scatter plot":
            right.append(f"a chart with {NUMBERS[n]} {colour} {several}")
            more = NUMBERS[n + rng.choice((1, 2) if n < 3 else (-2, -1, 1))]
            wrong.append(f"a chart with {more} {colour} {marks}")
    return {
        "chart": chart,
        "colour": colour,
        "n": n,
        "title": title,
        "right": right,
        "wrong": wrong,
    }


def draw(about: dict[str, Any], rng: random.Random, file: Path) -> None:
    """Draw a chart, in one of many looks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(rng.uniform(4, 6), rng.uniform(3, 4.5)), dpi=60)
    axes = figure.add_subplot()
    chart, n, colours = about["chart"], about["n"], COLOURS[about["colour"]]
    colour, values = rng.choice(colours), [rng.uniform(2, 10) for _ in range(n)]
    if chart == "bar chart" and rng.random() < 0.25:
        axes.barh(range(n), values, color=colour, height=rng.uniform(0.5, 0.9))
    elif chart == "bar chart":
        axes.bar(range(n), values, color=colour, width=rng.uniform(0.5, 0.9))
    elif chart == "line chart":
        for _ in range(n):
            heights = [rng.uniform(2, 10) for _ in range(12)]
            marker = rng.choice((None, "o"))
            axes.plot(heights, color=colour, linewidth=rng.uniform(1, 3), marker=marker)
    elif chart == "pie chart":
        shades = rng.sample([shade for shades in COLOURS.values() for shade in shades], n)
        axes.pie(values, colors=shades, startangle=rng.uniform(0, 360))
    else:
        many = rng.randint(15, 80)
        across, up = ([rng.gauss(5, 2) for _ in range(many)] for _ in "xy")
        axes.scatter(across, up, color=colour, s=rng.uniform(8, 40))
    if rng.random() < 0.8:
        axes.set_title(about["title"].capitalize())
    if chart != "pie chart" and rng.random() < 0.4:
        axes.grid(alpha=0.4)
    if chart != "pie chart" and rng.random() < 0.4:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, facecolor=rng.choice(("white", "white", "whitesmoke", "ivory")))


def main() -> None:
    """Write a folder of charts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int, nargs="?", default=2000)
    args = parser.parse_args()
    folder, count = args.folder, args.count
    if count < 1 or folder.is_file():
        parser.error("give a folder, and how many charts to draw, at least one")
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = random.Random(0), []
    for number in range(count):
        about, name = _one(rng), f"{number:04}.png"
        draw(about, rng, folder / name)
        row = {"image": name, "split": split_of(number)}
        lines.append(json.dumps({**row, "captions": about["right"], "wrong": about["wrong"]}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"plots: {len(lines)} images")


if __name__ == "__main__":
    main()
