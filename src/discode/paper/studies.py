"""The paper's tables of agreement with people, as rows of data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from discode.bench.agreement import main_measure
from discode.bench.runlog import RunLog
from discode.errors import require
from discode.metrics import METRICS
from discode.paper.base import Study
from discode.paper.published import published_cells
from discode.paper.run_tables import MEASURE_SYMBOLS, benchmark_title
from discode.paper.tables import StudyLine, TableStudy

PHOTOGRAPHS = ("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s")
EVERYWHERE = (*PHOTOGRAPHS, "mceval")

ADAM, EXACT = "ten Adam steps", "exact minimiser"
_ADAM = "paper:solver=adam"  # the loss as printed, hardly minimised: our guess at the tables


def _text_metrics(*names: str) -> tuple[StudyLine, ...]:
    titles = {"rouge-l": "ROUGE", "cider": "CIDEr"}
    return tuple(StudyLine(titles.get(name, name.upper()), name) for name in names)


def _judges(prefix: str = "") -> tuple[StudyLine, ...]:
    title = "Ref" if prefix else ""
    return (
        StudyLine(f"{title}FLEUR", f"{prefix}fleur"),
        StudyLine(f"{title}DISCODE, default", f"{prefix}discode"),
        StudyLine(f"{title}DISCODE, {ADAM}", f"{prefix}{_ADAM}"),
    )


def _by_references(line: StudyLine, model: str) -> str:
    row = METRICS.get(line.method) or METRICS.get(line.system)
    if row is None:
        return "scores from files"
    shown = "references" in row.needs or line.method.startswith("ref-")
    return "with references" if shown else "reference-free"


_PRIORS = (("discode", "fleur"), (_ADAM, "fleur"))

_SYSTEMS = TableStudy(
    {"main": ("sota_main",)},
    (*_text_metrics("bleu-4", "rouge-l", "meteor", "cider"), *_judges()),
    _by_references,
    lambda cell: cell.group,
    _PRIORS,
)
_MCEVAL = replace(_SYSTEMS, tables={"mceval": ("rice",)})
_FOIL = replace(_SYSTEMS, tables={"foil": ("foil",)})
_REFERENCES = TableStudy(
    {"references": ("refdisode",)},
    (*_text_metrics("bleu-1", "bleu-4", "rouge-l", "meteor", "cider"), *_judges("ref-")),
    _by_references,
    lambda cell: cell.group,
    tuple((f"ref-{a}", f"ref-{b}") for a, b in _PRIORS),
    beyond_embedded="cannot be shown references",
)


def _by_solver(line: StudyLine, model: str) -> str:
    return f"{model}, {line.block}"


def _solved(name: str, method: str, setting: str = "", scale: str | None = None) -> list[StudyLine]:
    """Return a line twice: by ten Adam steps, and exactly."""
    more = "," if ":" in method else ":"
    return [
        StudyLine(name, f"{method}{more}solver=adam", ADAM, setting, scale),
        StudyLine(name, method, EXACT, setting, scale),
    ]


_PLAIN = [
    StudyLine("Raw score", "raw", "without a prior"),
    StudyLine("Smoothing", "smoothing", "without a prior"),
]


def _varied(
    tables: Mapping[str, tuple[str, ...]], lines: list[list[StudyLine]], **more: object
) -> TableStudy:
    """Return a study that varies the method: lines by solver, the plain ones first."""
    every = [line for pair in lines for line in pair]
    ordered = [*_PLAIN, *(line for block in (ADAM, EXACT) for line in every if line.block == block)]
    return TableStudy(
        tables,
        tuple(ordered),
        _by_solver,
        lambda cell: f"the paper, {cell.model}",
        ((_ADAM, "smoothing"), ("paper", "raw"), ("paper", _ADAM)),
        ranges=True,
        **more,  # type: ignore[arg-type]  # fields of TableStudy
    )


_ABLATION = _varied(
    {"ablation": ("ablation",), "ablation_appendix": ("ablation_appendix",)},
    [
        _solved("DISCODE", "paper", "sigma2=0.1"),
        _solved("without cross-entropy H", "no-cross-entropy", "w/o cross-entropy"),
        _solved("without divergence D", "no-divergence", "w/o divergence"),
        _solved("without adaptive α", "no-adaptive-alpha", "alpha=0.5"),
    ],
)


def _draw_sigma(study: TableStudy, logs: Mapping[str, RunLog], path: Path) -> None:
    """Draw agreement against σ², a panel per benchmark and a line per model and solver."""
    require("matplotlib", "plot").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot")
    measures = {log.benchmark: main_measure(log.benchmark, log.judgments) for log in logs.values()}
    figure, panels = pyplot.subplots(
        1, len(measures), figsize=(max(5.0, 4.2 * len(measures)), 3.4), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, (name, measure) in zip(panels.flat, measures.items(), strict=True):
        for label, points in _sigma_lines(study, logs, f"{name} {measure}").items():
            x, y, low, high = zip(*sorted(points), strict=True)
            (drawn,) = panel.plot(x, y, "o-", label=label, ms=4)
            panel.fill_between(x, low, high, color=drawn.get_color(), alpha=0.12, lw=0)
        panel.set_xscale("log")
        panel.set_xlabel("σ² in α")
        panel.set_ylabel(f"{MEASURE_SYMBOLS[measure]}, %")
        panel.set_title(benchmark_title(name), fontsize=10)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _sigma_lines(
    study: TableStudy, logs: Mapping[str, RunLog], column: str
) -> dict[str, list[tuple[float, float, float, float]]]:
    """Return σ², agreement and its interval, by model and solver; the paper's has no interval."""
    points = [
        (f"{cell.model}, {cell.line.block}", cell.line.setting,
         (cell.value.value, cell.value.low, cell.value.high))
        for cell in study.cells(logs)
        if cell.line.setting and cell.column[0] == column
    ] + [
        (f"the paper, {cell.model}", cell.setting, (cell.value, math.nan, math.nan))
        for cell in published_cells("sigma")
        if cell.column == column
    ]  # fmt: skip
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for label, setting, values in points:
        lines.setdefault(label, []).append((float(setting.partition("=")[2]), *values))
    return lines


_SIGMA = _varied(
    {"sigma": ("sigma",)},
    [
        _solved(f"σ² = {value}", "paper" if value == "0.1" else f"paper:sigma2={value}",
                f"sigma2={value}")
        for value in ("1.0", "0.5", "0.1", "0.05", "0.01")
    ],
    draw=_draw_sigma,
)  # fmt: skip
_DIVERGENCE = _varied(
    {"divergence": ("divergence",), "divergence_appendix": ("divergence_appendix",)},
    [
        _solved("none", "no-divergence", "divergence=none"),
        _solved("Rényi", "renyi", "divergence=renyi"),
        _solved("beta", "beta", "divergence=beta"),
        _solved("Jensen-Shannon", "jensen-shannon", "divergence=jensen-shannon"),
        _solved("Kullback-Leibler", "kl", "divergence=kl"),
        _solved("weighted KL", "paper", "divergence=weighted-kl"),
    ],
)
_SCALES = {"five": "1 to 5", "ten": "0 to 9", "letters": "A to E", "unit": "0.0 to 1.0"}
_SCALE = TableStudy(
    {"scale": ("rating",), "scale_appendix": ("rating_appendix",)},
    tuple(
        StudyLine(f"{title}, {words}", method, block, f"scale={scale}", scale, system)
        for title, method, block, system in (
            ("Raw score", "raw", "", "raw"),
            ("Smoothing", "smoothing", "", "smoothing"),
            ("DISCODE", _ADAM, ADAM, "discode"),
            ("DISCODE", "paper", EXACT, "discode"),
        )
        for scale, words in _SCALES.items()
    ),
    lambda line, model: f"{model}, {line.block}" if line.block else model,
    lambda cell: f"the paper, {cell.model}",
    beyond_embedded="rates from 0.0 to 1.0 only, and this study asks on four scales",
)
_MODELS = TableStudy(
    {
        "models": ("llms", "lmms"),
        "models_appendix": ("llms_appendix", "lmms_appendix"),
        "models_mceval": ("mdce_llm_full", "mdce_lmm_full"),
    },
    (StudyLine("Raw score", "raw"), *_judges()),
    lambda line, model: model,
    lambda cell: cell.model,
    _PRIORS,
)

_FOILS = ("foil:references=1", "foil:references=4")
_ROWS: tuple[tuple[str, str, TableStudy, tuple[str, ...]], ...] = (
    ("main", "metrics on Flickr8k, Composite and Pascal-50S", _SYSTEMS, PHOTOGRAPHS),
    ("mceval", "metrics on MCEval, domain by domain", _MCEVAL, ("mceval",)),
    ("references", "metrics and judges that are shown references", _REFERENCES, PHOTOGRAPHS),
    ("foil", "metrics on FOIL, with one and four references", _FOIL, _FOILS),
    ("ablation", "DISCODE without each term of its loss", _ABLATION, EVERYWHERE),
    ("sigma", "the variance σ² in α", _SIGMA, PHOTOGRAPHS),
    ("divergence", "five divergences from the prior, and none", _DIVERGENCE, EVERYWHERE),
    ("scale", "four rating scales", _SCALE, EVERYWHERE),
    ("models", "every model of the paper, and yours", _MODELS, EVERYWHERE),
)
PAPER_STUDIES = tuple(
    Study(
        name,
        about,
        tuple(label for labels in study.tables.values() for label in labels),
        study.run,
        benchmarks,
    )
    for name, about, study, benchmarks in _ROWS
)
"""The studies of the paper's tables of agreement with people."""
