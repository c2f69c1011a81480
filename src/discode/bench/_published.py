"""The numbers printed in the paper's tables and elsewhere, and which of them match a run.

``data/published.csv`` has one cell of the paper per row, in percent where it prints percent; empty
cells ("--") are left out. ``data/published_elsewhere.csv`` has cells that the paper lacks. A cell
is compared with a run's number if benchmark, metric and model are the same; otherwise the run has
no published number.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from discode._prompts import FLEUR
from discode._signature import Signature, SignedDecoder
from discode.backends._local.catalog import CATALOG
from discode.bench._runlog import RunLog
from discode.benchmarks import BENCHMARKS, LIMIT, Preferences, Ratings
from discode.decoders import METHODS, get_decoder
from discode.errors import InputError, lookup
from discode.metrics import METRICS
from discode.metrics._registry import asks_judge

PAPER_TABLES = {
    "sota_main": "the state of the art on Flickr8k, Composite, Pascal-50S",
    "rice": "the state of the art on MCEval",
    "refdisode": "metrics with references, in full",
    "foil": "FOIL with one and four references",
    "ablation": "without each term of the loss",
    "ablation_appendix": "the same, in full (in the paper's source, but not typeset)",
    "sigma": "the variance in α (in the paper's source, but not typeset)",
    "rating": "four rating scales",
    "rating_appendix": "raw, smoothing and DISCODE on four scales, in full",
    "divergence": "five divergences, and none",
    "divergence_appendix": "the same, in full",
    "llms": "four sizes of LLaVA-NeXT",
    "llms_appendix": "the same, in full",
    "mdce_llm_full": "the same, on MCEval's domains",
    "lmms": "six other models",
    "lmms_appendix": "the same, in full",
    "mdce_lmm_full": "the same, on MCEval's domains",
    "cost": "seconds of the model and of scoring",
    "dataset_statistics": "sizes of the benchmarks",
}
"""The paper's tables by the label in its source."""


SOURCE = "Inoue et al. 2026"


@dataclass(frozen=True)
class PublishedCell:
    """A number in a table of the paper.

    ``column`` is a benchmark and a measure ("flickr8k-cf tau_b", "pascal50s HC", "mceval mean"),
    ``setting`` what a row varies ("sigma2=0.05", "scale=five", "divergence=beta"). ``metric`` and
    ``scale`` reproduce it here ("paper:sigma2=0.05" on "unit"), "" if nothing does.
    """

    table: str
    system: str
    group: str
    """"reference-free" or "with references"."""
    model: str
    setting: str
    column: str
    metric: str
    scale: str
    value: float
    text: str
    """The number as it is printed, with its "± ..." where it has one."""
    printed: str
    note: str
    source: str

    @property
    def title(self) -> str:
        r"""The row's title without citations and LaTeX.

        >>> {cell.title for cell in published_cells("ablation")} >= {"w/o divergence term D_alpha"}
        True
        """
        return re.sub(r"[$\\{}]| *\([^)]*et al[^)]*\)+", "", self.printed)


def published_cells(
    table: str | None = None, system: str | None = None, column: str | None = None
) -> tuple[PublishedCell, ...]:
    """Select cells of the paper by table, system and column; all of them by default.

    >>> [cell.value for cell in published_cells("sota_main", "cider", "composite tau_c")]
    [37.7]
    """
    cells = _cells()
    for name, value in (("table", table), ("system", system), ("column", column)):
        if value is not None:
            lookup(dict.fromkeys(filter(None, (getattr(c, name) for c in _cells()))), value, name)
            cells = tuple(cell for cell in cells if getattr(cell, name) == value)
    return cells


@cache
def _cells() -> tuple[PublishedCell, ...]:
    return _read_cells("published.csv")


def _read_cells(name: str) -> tuple[PublishedCell, ...]:
    path = Path(__file__).parents[1] / "data" / name
    unnamed = {each.name: "" for each in fields(PublishedCell)} | {"source": SOURCE}
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedCell(**unnamed | row | {"value": float(row["text"].partition(" ")[0])})
            for row in csv.DictReader(file)
        )


def published_column(log: RunLog, measure: str) -> str:
    """Name the column of the paper's tables that a measure of a run belongs to."""
    row = BENCHMARKS.get(log.benchmark)
    if row is None or not (row.published_sizes or row.published_files):
        return f"{log.benchmark} {measure}"
    options = row.option_texts(log.options)
    return row.published_column.format(benchmark=row.name, measure=measure, **options)


def has_published_data(log: RunLog) -> bool:
    """Whether a run is on the data of published numbers, and by their protocol.

    For the paper's benchmarks the numbers of images and judgments are compared.
    """
    row = BENCHMARKS.get(log.benchmark)
    if row is None:
        return False
    if row.published_sizes is None:
        return LIMIT.name not in log.options and not {*row.published_files}.isdisjoint(
            log.checksums
        )
    options, usual = row.option_texts(log.options), row.option_texts({})
    changed = (o.name for o in row.options if o.affects_published)
    return (
        all(options[name] == usual[name] for name in changed)
        and (len(np.unique(log.image)), len(log.judgments)) in row.published_sizes(options)
        and (isinstance(log.judgments, Ratings) or log.protocol.ties == "wrong")
    )


FEW = 0.01
"""A result without a score for more than this share of the judgments is one of other data."""


def published_cell(log: RunLog, label: str, measure: str) -> PublishedCell | None:
    """Look up the paper's number for the same benchmark, metric and model, or None.

    A metric includes its options, and a judge's its prompt, its scale and whether it saw
    references. A row of scores from a file is named by its label: METRIC or METRIC@MODEL.
    """
    result = log.results[label]
    few = result.measures["failed"].value <= FEW
    if not few or not has_published_data(log) or (measure == "tau_c" and _other_m(log, label)):
        return None
    return _by_key().get((published_column(log, measure), *_key(label, result.signature)))


def find_cell(column: str, label: str) -> PublishedCell:
    """Look up the published number of a score file, which is named by its label."""
    cell = _by_key()[(column, *_key(label, Signature.of(metric="scorefile")))]
    if cell is None:
        raise InputError(f"{column} of {label}: published numbers contradict each other")
    return cell


def _other_m(log: RunLog, label: str) -> bool:
    """Whether τ_c has another m than scipy's, with which the literature computes it."""
    judged, value = log.judgments, log.results[label].value
    if isinstance(judged, Preferences) or log.protocol.tau_m == "scipy":
        return False
    scores = value[judged.pair]
    seen = np.isfinite(scores)
    return len(np.unique(scores[seen])) < len(np.unique(judged.value[seen]))


@cache
def _by_key() -> dict[tuple[str, ...], PublishedCell | None]:
    """Index cells by column, metric, scale and model; None marks contradictory tables."""
    cells: dict[tuple[str, ...], PublishedCell | None] = {}
    for cell in (*published_cells(), *_read_cells("published_elsewhere.csv")):
        if cell.metric:
            model = cell.model or _UNNAMED.get(cell.metric, "")
            key = cell.column, cell.metric, cell.scale, model
            first = cells.setdefault(key, cell)
            if first is not None and first.value != cell.value:
                cells[key] = None
    return cells


_UNNAMED = dict.fromkeys(("clip-s", "ref-clip-s", "pac-s", "ref-pac-s", "polos"), "ViT-B") | {
    "bertscore": "roberta-large"
}
"""The models of rows that name none: those of the metrics' own papers."""
_ENCODERS = {
    "clip-vit-base-patch32": "ViT-B",
    "clip-vit-large-patch14": "ViT-L",
    "gpt-4o": "GPT-4o",
}
_UNQUANTISED = ("none", "float32", "bfloat16", "float16")
"""The dtypes of the paper's judges; a server reports none."""


def _key(label: str, signature: Signature) -> tuple[str, str, str]:
    """Identify a result by metric, scale and model, as cells do."""
    if signature.decoder is None:
        name, model = signature.get("metric"), signature.get("model").rpartition("/")[2]
        if name not in METRICS:  # scores from a file
            name, _, model = label.partition("@")
            return name, "unit" if asks_judge(name) else "", model or _UNNAMED.get(name, "")
        usual = {("measure", "f1"), ("idf", "none")}
        if name == "bertscore" and not usual <= {*signature.fields}:
            name = ""
        return name, "", _ENCODERS.get(model, model)
    method = _judges().get(signature.decoder, "")
    if (
        signature.get("prompt") != f"{FLEUR.name}-{FLEUR.digest}"
        or signature.get("dtype", "none") not in _UNQUANTISED
        or re.search(r"(^|\+)\d+px", signature.get("revision"))  # shrunk images
    ):
        method = ""
    shown = signature.get("references", "none") not in ("none", "ignored")
    model = paper_model(signature.get("model"))
    return "ref-" * shown + method, signature.get("scale", "unit"), model


@cache
def _judges() -> dict[SignedDecoder, str]:
    names = {cell.metric.removeprefix("ref-") for cell in published_cells()}
    names = {name for name in names if name.partition(":")[0] in METHODS}
    return {SignedDecoder.of(get_decoder(name)): name for name in names}


def paper_model(model: str) -> str:
    """Translate a model's name to the paper's; "" if the paper does not have the model.

    A model that was loaded from a folder has the last part of its hub name alone, and a served one
    its server's address after it.

    >>> paper_model("llava-hf/llava-v1.6-34b-hf@localhost:8000"), paper_model("my-internvl")
    ('LLaVA-NeXT-34B', '')
    """
    known = {row.hub: row.paper for row in CATALOG if row.paper} | _OTHER_MODELS
    known |= {hub.rpartition("/")[2]: paper for hub, paper in known.items()}
    return known.get(model.partition("@")[0], "")


_OTHER_MODELS = {
    "llava-hf/llava-1.5-13b-hf": "LLaVA-1.5-13B",
    "liuhaotian/llava-v1.5-13b": "LLaVA-1.5-13B",
}
"""FLEUR's own model, which has rows in the paper's tables but is not one of its ten."""
