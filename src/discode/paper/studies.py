"""The paper's tables of agreement with people, as rows of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from discode.metrics import METRICS
from discode.paper.base import Study
from discode.paper.tables import StudyLine, TableStudy

PHOTOGRAPHS = ("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s")
EVERYWHERE = (*PHOTOGRAPHS, "mceval")

ADAM, EXACT, PRINTED = "ten Adam steps", "exact minimiser", "closed form as printed"
_ADAM = "paper:solver=adam"  # the loss as printed, after few steps


def _text_metrics(*names: str) -> tuple[StudyLine, ...]:
    titles = {"rouge-l": "ROUGE", "cider": "CIDEr"}
    return tuple(StudyLine(titles.get(name, name.upper()), name) for name in names)


def _judges(prefix: str = "") -> tuple[StudyLine, ...]:
    title = "Ref" if prefix else ""
    return (
        StudyLine(f"{title}Raw score", f"{prefix}raw"),
        StudyLine(f"{title}Smoothing", f"{prefix}smoothing"),
        StudyLine(f"{title}FLEUR", f"{prefix}fleur"),
        StudyLine(f"{title}DISCODE, default", f"{prefix}discode"),
        StudyLine(f"{title}DISCODE, {PRINTED}", f"{prefix}paper"),
        StudyLine(f"{title}DISCODE, {ADAM}", f"{prefix}{_ADAM}"),
    )


def _by_references(line: StudyLine, model: str) -> str:
    row = METRICS.get(line.method) or METRICS.get(line.system)
    if row is None:
        return "scores from files"
    shown = "references" in row.needs or line.method.startswith("ref-")
    return "with references" if shown else "reference-free"


_PRIORS = tuple((name, "fleur") for name in ("discode", "paper", _ADAM))

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
)


def _by_solver(line: StudyLine, model: str) -> str:
    return f"{model}, {line.block}"


def _solved(name: str, method: str, setting: str) -> list[StudyLine]:
    """Return a line twice: by ten Adam steps, and exactly."""
    more = "," if ":" in method else ":"
    return [
        StudyLine(name, f"{method}{more}solver=adam", ADAM, setting),
        StudyLine(name, method, EXACT, setting),
    ]


_PLAIN = [
    StudyLine("Raw score", "raw", "without a prior"),
    StudyLine("Smoothing", "smoothing", "without a prior"),
]


def _varied(tables: Mapping[str, tuple[str, ...]], lines: list[list[StudyLine]]) -> TableStudy:
    """Return a study that varies the method: lines by solver, the plain ones first."""
    every = [line for pair in lines for line in pair]
    ordered = [*_PLAIN, *(line for block in (ADAM, EXACT) for line in every if line.block == block)]
    return TableStudy(
        tables,
        tuple(ordered),
        _by_solver,
        lambda cell: f"the paper, {cell.model}",
        ((_ADAM, "smoothing"), ("paper", "raw"), ("paper", _ADAM)),
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


_SIGMA = _varied(
    {"sigma": ("sigma",)},
    [
        _solved(f"σ² = {value}", "paper" if value == "0.1" else f"paper:sigma2={value}",
                f"sigma2={value}")
        for value in ("1.0", "0.5", "0.1", "0.05", "0.01")
    ],
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
)
_MODELS = TableStudy(
    {
        "models": ("llms", "lmms"),
        "models_appendix": ("llms_appendix", "lmms_appendix"),
        "models_mceval": ("mdce_llm_full", "mdce_lmm_full"),
    },
    _judges(),
    lambda line, model: model,
    lambda cell: cell.model,
    _PRIORS,
)

_ROWS: tuple[tuple[str, str, TableStudy, tuple[str, ...]], ...] = (
    ("main", "metrics on Flickr8k, Composite and Pascal-50S", _SYSTEMS, PHOTOGRAPHS),
    ("mceval", "metrics on MCEval, domain by domain", _MCEVAL, ("mceval",)),
    ("references", "metrics and judges that are shown references", _REFERENCES, PHOTOGRAPHS),
    ("foil", "metrics on FOIL, with one and four references", _FOIL,
     ("foil:references=1", "foil:references=4")),
    ("ablation", "DISCODE without each term of its loss", _ABLATION, EVERYWHERE),
    ("sigma", "the variance σ² in α", _SIGMA, PHOTOGRAPHS),
    ("divergence", "five divergences from the prior, and none", _DIVERGENCE, EVERYWHERE),
    ("scale", "four rating scales", _SCALE, EVERYWHERE),
    ("models", "every model of the paper, and yours", _MODELS, EVERYWHERE),
)  # fmt: skip
PAPER_STUDIES = tuple(
    Study(name, about, tuple(chain(*study.tables.values())), study.run, benchmarks)
    for name, about, study, benchmarks in _ROWS
)
"""The studies of the paper's tables of agreement with people."""
