"""The same judgments on re-rendered images: every decoder in every domain, for the same people.

The paper compares decoders across MCEval's domains, whose data is not public. Here the images of a
benchmark are drawn again as paintings, sketches and so on (:mod:`discode.paper.styles`), and
people's judgments of the originals are kept: a caption that fits a photograph fits its drawing.
What differs between the columns is therefore the rendering alone. What is not measured: how people
would judge the drawings, on which less can be seen.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from discode.bench.agreement import main_measure
from discode.bench.compare import agreement_difference
from discode.bench.layout import CellTable, TableValue
from discode.bench.runlog import RunLog
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.decoders import METHODS, get_decoder
from discode.errors import ImageError, InputError, lookup
from discode.files import replacing
from discode.images import ImageSource, image_digest, open_image
from discode.options import COUNT, SIZE, TEXT, Option
from discode.paper.base import Study, StudyResult, StudySetup, run_methods
from discode.paper.drawing import BLUE, GREEN, GREY, INK, RED, empty_figure, save_figure
from discode.paper.run_tables import MEASURE_SYMBOLS
from discode.paper.styles import STYLES, render
from discode.stats import Interval

ORIGINAL = "photo"
"""The style that leaves an image as it is: its readings may be stored already."""
BASE = "smoothing"
"""What the other decoders are compared with."""


def keep_images(benchmark: Benchmark, count: int) -> Benchmark:
    """Return a benchmark with ``count`` of its images and their judgments.

    Which ones is decided by the SHA-256 of their names, so that they are spread over the data and
    a larger count only adds images: what was read stays of use.
    """
    if count < 1:
        raise InputError(f"images={count} is not allowed; give 1 or more, or all")
    first: dict[int, str] = {}
    for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True):
        first.setdefault(number, Path(str(pair.image)).name)
    if count >= len(first):
        return benchmark
    order = sorted(first, key=lambda image: hashlib.sha256(first[image].encode()).hexdigest())
    kept = np.isin(benchmark.image, order[:count])
    place = np.cumsum(kept) - 1
    judged = benchmark.judgments
    judgments: Ratings | Preferences
    if isinstance(judged, Ratings):
        rows = kept[judged.pair]
        judgments = Ratings(place[judged.pair[rows]], judged.value[rows], judged.rater[rows])
    else:
        rows = kept[judged.left] & kept[judged.right]
        category = tuple(np.array(judged.category)[rows].tolist())
        judgments = Preferences(
            place[judged.left[rows]], place[judged.right[rows]], judged.chosen[rows], category
        )
    return replace(
        benchmark,
        pairs=tuple(pair for pair, keep in zip(benchmark.pairs, kept, strict=True) if keep),
        image=benchmark.image[kept],
        judgments=judgments,
        options={**benchmark.options, "images": count},
        notes=(*benchmark.notes, f"{count} of {len(first)} images, by the SHA-256 of their names"),
    )


def render_benchmark(benchmark: Benchmark, style: str, folder: Path, *, seed: int = 0) -> Benchmark:
    """Return a benchmark whose images are drawn in a style, as PNG files below ``folder``.

    A file is named by the SHA-256 of the image it was made of, and is not drawn twice; since a
    store of readings knows an image by its own SHA-256, nothing is asked twice either. An image
    that cannot be opened stays as it is, and fails with its reason when it is judged. The name of
    the result ("flickr8k-expert@sketch") keeps it from being held against published numbers.
    """
    lookup(STYLES, style, "style")
    drawn: dict[str, ImageSource] = {}
    if style != ORIGINAL:
        place = folder / f"{style}-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        for image in dict.fromkeys(str(pair.image) for pair in benchmark.pairs):
            drawn[image] = _draw(image, style, seed, place)
    return replace(
        benchmark,
        name=f"{benchmark.name}@{style}",
        pairs=tuple(
            replace(pair, image=drawn.get(str(pair.image), pair.image)) for pair in benchmark.pairs
        ),
        options={**benchmark.options, "style": style, "seed": seed},
    )


def _draw(image: str, style: str, seed: int, folder: Path) -> str:
    try:
        file = folder / f"{image_digest(image)[:32]}.png"
        if not file.is_file():
            with replacing(file) as temp:
                drawing = render(open_image(image), style, seed=seed)
                drawing.save(temp, format="PNG", compress_level=1)
    except ImageError:
        return image
    return str(file)


def chosen_styles(given: str) -> list[str]:
    """Return the styles of a list with commas; "all" are those of the paper and "noisy".

    >>> chosen_styles("sketch,photo")
    ['photo', 'sketch']
    """
    names = list(STYLES) if given == "all" else [name.strip() for name in given.split(",")]
    for name in names:
        lookup(STYLES, name, "style", also=", or all")
    return [name for name in STYLES if name in {ORIGINAL, *names}]


def chosen_methods(given: str) -> list[str]:
    """Return decoders of a list with spaces; "all" are those that need no hidden states.

    >>> chosen_methods("raw discode:sigma2=1")
    ['raw', 'discode:sigma2=1', 'smoothing']
    """
    names = given.split()
    if names == ["all"]:
        names = [name for name in METHODS if not get_decoder(name).requires]
    for name in names:
        get_decoder(name)
    return list(dict.fromkeys([*names, BASE]))


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    if given:
        yield Path(given)
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)


def _run(setup: StudySetup) -> StudyResult:
    if not setup.benchmarks:
        raise InputError("shift needs --data: the images are drawn anew")
    styles = chosen_styles(setup.options["styles"])
    methods = chosen_methods(setup.options["methods"])
    wanted, seed = setup.options["images"], setup.options["seed"]
    tables: dict[str, CellTable] = {}
    figures: dict[str, Any] = {}
    findings: list[str] = []
    logs: dict[str, RunLog] = {}
    problems: dict[str, None] = {}
    number = 0
    with _folder(setup.options["rendered"]) as folder:
        for (place, benchmark), model in product(setup.benchmarks.items(), setup.judges):
            few = benchmark if wanted == "all" else keep_images(benchmark, wanted)
            drawn = {
                f"{place}@{style}": render_benchmark(few, style, folder, seed=seed)
                for style in styles
            }
            one = replace(setup, benchmarks=drawn, judges={model: setup.judges[model]})
            runs = run_methods(one, methods)
            problems |= dict.fromkeys(runs.problems)
            found: dict[str, RunLog] = {}
            for name, log in runs.logs.items():
                place_of, _, style = log.benchmark.rpartition("@")
                # Its own runs come first; older ones of the same name may have other images.
                if place_of == benchmark.name and style in styles and style not in found:
                    found[style] = logs[name] = log
            if not found:
                continue
            group = f"{setup.judges[model].judge.backend.identity.model} "
            number += 1
            suffix = f"-{number}" if number > 1 else ""
            values, apart = _values(found, methods), _differences(found, methods)
            measure = main_measure(benchmark.name, benchmark.judgments)
            title = f"{group}{place}, {MEASURE_SYMBOLS[measure]} in percent"
            few_images = len(np.unique(next(iter(found.values())).image))
            note = f"{few_images:,} images, drawn anew; the judgments are of the originals"
            lost = max(
                int(np.isnan(r.value).sum()) for g in found.values() for r in g.results.values()
            )
            note += f"; up to {lost:,} pairs without a score" if lost else ""
            tables[f"shift{suffix}"] = CellTable(
                ("domain", *values), _transposed(found, values), title, [note]
            )
            tables[f"shift-differences{suffix}"] = CellTable(
                ("domain", *apart), _transposed(found, apart),
                f"{group}{place}, difference to {BASE}, paired",
            )  # fmt: skip
            figures[f"shift{suffix}"] = lambda out, apart=apart, styles=list(found), title=title: (
                draw_differences(apart, styles, title, out)
            )
            findings += _findings(f"{group}{place}", apart, list(found))
    if not tables:
        raise InputError(next(iter(problems), "there is nothing to compare"))
    return StudyResult(tables, figures, logs, findings, tuple(problems))


def _transposed(
    names: Iterable[str], columns: Mapping[str, Sequence[TableValue]]
) -> list[list[TableValue]]:
    """Return a row per name from columns of as many cells."""
    return [[name, *(c[i] for c in columns.values())] for i, name in enumerate(names)]


def _values(logs: Mapping[str, RunLog], methods: Sequence[str]) -> dict[str, list[TableValue]]:
    measures = [main_measure(log.benchmark, log.judgments) for log in logs.values()]
    return {
        name: [
            log.results[name].measures[measure].times(100) if name in log.results else None
            for log, measure in zip(logs.values(), measures, strict=True)
        ]
        for name in methods
    }


def _differences(
    logs: Mapping[str, RunLog], methods: Sequence[str]
) -> dict[str, list[Interval | None]]:
    """Return by method how much better than ``BASE`` it agrees with people, in percent."""
    return {
        name: [
            agreement_difference(
                log, name, BASE, resamples=log.protocol.resamples, seed=log.protocol.seed,
                level=log.protocol.level,
            ).difference
            if {name, BASE} <= log.results.keys()
            else None
            for log in logs.values()
        ]
        for name in methods
        if name != BASE
    }  # fmt: skip


def _findings(
    name: str, apart: Mapping[str, Sequence[Interval | None]], styles: Sequence[str]
) -> list[str]:
    """Say where a decoder differs from smoothing: where the interval has no 0."""
    lines = []
    for method, cells in apart.items():
        parts = []
        for word, sign in (("better", 1), ("worse", -1)):
            where = [
                f"{style} ({cell.value:+.2f})"
                for style, cell in zip(styles, cells, strict=True)
                if cell is not None and min(sign * cell.low, sign * cell.high) > 0
            ]
            if where:
                parts.append(f"{word} on {', '.join(where)}")
        text = " and ".join(parts) or "no difference was shown"
        lines.append(f"{name}, {method} against {BASE}: {text}.")
    return lines


_COLOURS = (BLUE, RED, "#b45309", GREEN, "#7c3aed", GREY)
_DRAWN = 6
"""Decoders that the figure shows: more cannot be distinguished."""


def draw_differences(
    apart: Mapping[str, Sequence[Interval | None]], styles: Sequence[str], title: str, out: Path
) -> None:
    """Draw how far decoders are from smoothing in each style, with intervals."""
    figure = empty_figure(9, 1.2 + 0.62 * len(styles))
    axis = figure.subplots()
    shown = list(apart.items())[:_DRAWN]
    for number, (method, cells) in enumerate(shown):
        shift = 0.7 * ((number + 0.5) / len(shown) - 0.5)
        colour = _COLOURS[number]
        for place, cell in enumerate(cells):
            if cell is None:
                continue
            y = place + shift
            axis.plot([cell.low, cell.high], [y, y], color=colour, lw=1.6, alpha=0.6)
            axis.plot(cell.value, y, "o", color=colour, ms=4.5)
        axis.plot([], [], "o-", color=colour, ms=4.5, label=method)
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_yticks(range(len(styles)), styles)
    axis.set_ylim(len(styles) - 0.4, -0.6)
    axis.set_xlabel(f"difference to {BASE}", fontsize=9)
    axis.set_title(title, fontsize=10, color=INK, parse_math=False)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(labelsize=8.5)
    figure.legend(frameon=False, fontsize=8.5, loc="outside right upper")
    save_figure(figure, out)


STUDY = Study(
    "shift",
    "every decoder on the same judgments with the images drawn as paintings, sketches and so on",
    ("rice",),
    _run,
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s"),
    options=(
        Option("images", "all", "how many images to draw", ("all", SIZE)),
        Option("styles", "all", "styles with commas between them", (TEXT,)),
        Option(
            "methods",
            "raw smoothing discode paper",
            "decoders with spaces between them, or all",
            (TEXT,),
        ),
        Option("seed", 0, "what is random in the drawings", (COUNT,)),
        Option("rendered", None, "a folder that keeps the drawn images", (TEXT, None)),
    ),
)
