"""The same judgments on re-rendered images: every decoder in every domain, for the same people.

The paper compares decoders across MCEval's domains, whose data is not public. Here the images of a
benchmark are drawn again as paintings, sketches and so on (:mod:`discode._paper.styles`), and
people's judgments of the originals are kept: a caption that fits a photograph fits its drawing.
The columns therefore differ in the rendering alone. How people would judge the drawings, which show
less, is not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from discode._files import replacing
from discode._paper.base import Study, StudySetup, run_each, run_methods
from discode._paper.styles import STYLES, render
from discode.bench._agreement import TAU_C_NOTES, main_measure, note_ties
from discode.bench._compare import agreement_difference
from discode.bench._layout import CellTable, TableValue
from discode.bench._results import StudyResult
from discode.bench._run import measure_by
from discode.bench._runlog import RunLog
from discode.bench._tables import MEASURE_SYMBOLS, plot_runs
from discode.benchmarks import Benchmark
from discode.decoders import METHODS, get_decoder
from discode.errors import ImageError, lookup
from discode.images import ImageSource, image_digest, open_image
from discode.options import COUNT, TEXT, Option
from discode.stats import Interval

ORIGINAL = "photo"
"""The style that keeps the image, whose readings may already be stored."""
BASE = "smoothing"
"""The baseline of the other decoders."""


def render_benchmark(benchmark: Benchmark, style: str, folder: Path, *, seed: int = 0) -> Benchmark:
    """Redraw a benchmark's images in a style, as PNG files below ``folder``.

    A file is named by the SHA-256 of its source and is not drawn twice; a store of readings
    identifies images by SHA-256, so nothing is read twice either. An image that cannot be opened
    is kept, and fails with its reason when it is judged. The name of the result, such as
    "flickr8k-expert@sketch", has no published numbers.
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


def chosen_styles(names: str) -> list[str]:
    """Parse styles joined by "+"; "all" means the paper's and "noisy".

    >>> chosen_styles("sketch+photo")
    ['photo', 'sketch']
    """
    listed = list(STYLES) if names == "all" else names.split("+")
    for name in listed:
        lookup(STYLES, name, "style", also=", or all")
    return [name for name in STYLES if name in {ORIGINAL, *listed}]


def chosen_methods(names: str) -> list[str]:
    """Parse decoders joined by "+"; "all" means those that need no hidden states.

    >>> chosen_methods("raw+discode:sigma2=1")
    ['raw', 'discode:sigma2=1', 'smoothing']
    """
    listed = names.split("+")
    if names == "all":
        listed = [
            name
            for name, row in METHODS.items()
            if not get_decoder(name).requires and row.scale in (None, "unit")
        ]
    for name in listed:
        get_decoder(name)
    return list(dict.fromkeys([*listed, BASE]))


def _run(setup: StudySetup) -> StudyResult:
    setup = replace(setup, protocol=replace(setup.protocol, tau_m="people"))
    styles = chosen_styles(setup.options["styles"])
    methods = chosen_methods(setup.options["methods"])
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(setup.options["rendered"] or temp)
        return run_each(setup, partial(_shift, styles=styles, methods=methods, folder=folder))


def _shift(
    setup: StudySetup,
    place: str,
    benchmark: Benchmark,
    styles: Sequence[str],
    methods: Sequence[str],
    folder: Path,
) -> StudyResult:
    (judge,) = setup.judges.values()
    drawn = {
        f"{place}@{style}": render_benchmark(benchmark, style, folder, seed=setup.options["seed"])
        for style in styles
    }
    runs = run_methods(replace(setup, benchmarks=drawn), methods)
    named: dict[str, tuple[str, RunLog]] = {}
    for name, log in runs.logs.items():
        place_of, _, style = log.benchmark.rpartition("@")
        if place_of == benchmark.name and style in styles:
            # The runs of these images come first; older ones may have others.
            named.setdefault(style, (name, measure_by(setup.protocol, log)))
    if not named:
        return StudyResult({}, problems=runs.problems)
    by_style = {style: log for style, (_, log) in named.items()}
    who = f"{judge.judge.backend.identity.model} {place}"
    apart = {style: _differences(log, methods) for style, log in by_style.items()}
    differences = CellTable(
        ("domain", *next(iter(apart.values()))),
        [[style, *cells.values()] for style, cells in apart.items()],
        f"{who}, difference to {BASE}, paired",
    )
    return StudyResult(
        {"shift": _agreement(by_style, methods, who), "shift-differences": differences},
        {"shift": partial(plot_runs, by_style)}, dict(named.values()), _findings(who, apart),
        runs.problems,
    )  # fmt: skip


def _agreement(logs: Mapping[str, RunLog], methods: Sequence[str], who: str) -> CellTable:
    first = next(iter(logs.values()))
    measure = main_measure(first.benchmark, first.judgments)
    rows: list[list[TableValue]] = [
        [style, *(log.results[name].measures[measure].times(100) if name in log.results else None
                  for name in methods)]
        for style, log in logs.items()
    ]  # fmt: skip
    results = [result for log in logs.values() for result in log.results.values()]
    lost = max(int(np.isnan(result.value).sum()) for result in results)
    note = f"{len(np.unique(first.image)):,} images, redrawn; the judgments are of the originals"
    note += f"; up to {lost:,} pairs without a score" if lost else ""
    title = f"{who}, {MEASURE_SYMBOLS[measure]} in percent"
    notes = [note, *([TAU_C_NOTES["people"]] if measure == "tau_c" else [])]
    ties = {name: 100 * result.measures["ties"].value for name, result in first.results.items()}
    if measure == "tau_b" and (tied := note_ties(ties)):
        rows.append([f"ties %, {next(iter(logs))}", *(ties.get(name) for name in methods)])
        notes += tied
    return CellTable(("domain", *methods), rows, title, notes)


def _differences(log: RunLog, methods: Sequence[str]) -> dict[str, Interval | None]:
    """Compute each method's gain over ``BASE`` in agreement with people, in percent."""
    return {
        name: agreement_difference(log, name, BASE, log.protocol)
        if {name, BASE} <= log.results.keys()
        else None
        for name in methods
        if name != BASE
    }


def _findings(name: str, apart: Mapping[str, Mapping[str, Interval | None]]) -> list[str]:
    """Report where a decoder differs from smoothing: where the interval excludes 0."""
    lines = []
    for method in next(iter(apart.values())):
        parts = []
        for word, sign in (("better", 1), ("worse", -1)):
            where = [
                f"{style} ({cell.value:+.2f})"
                for style, cells in apart.items()
                if (cell := cells[method]) and min(sign * cell.low, sign * cell.high) > 0
            ]
            if where:
                parts.append(f"{word} on {', '.join(where)}")
        text = " and ".join(parts) or "no difference was shown"
        lines.append(f"{name}, {method} against {BASE}: {text}.")
    return lines


STUDY = Study(
    "shift",
    "every decoder on the same judgments with the images drawn as paintings, sketches and so on",
    ("rice",),
    _run,
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s"),
    options=(
        Option("styles", "all", "styles with + between them", (TEXT,)),
        Option(
            "methods", "raw+smoothing+discode+paper", "decoders with + between them, or all",
            (TEXT,),
        ),
        Option("seed", 0, "random seed of the drawings", (COUNT,)),
        Option("rendered", None, "folder for the drawn images", (TEXT, None)),
    ),
)  # fmt: skip
