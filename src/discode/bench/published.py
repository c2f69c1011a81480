"""The numbers that are printed in the paper's tables, and which of them a run may be held against.

``data/published.csv`` has one cell per row, in percent where the paper prints percent; empty cells
("--") are left out. ``system`` is our name of a metric where we have it, ``printed``
the paper's; "fleur" with a model is the paper's own run of FLEUR's smoothing on that model.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from discode.backends.local.catalog import CATALOG
from discode.bench.runlog import RunLog
from discode.benchmarks import BENCHMARKS, BenchmarkRow, Preferences, Ratings
from discode.decoders import get_decoder
from discode.decoders.discode import POWERS
from discode.errors import InputError, lookup
from discode.metrics import METRICS
from discode.options import option_text
from discode.prompts import FLEUR
from discode.scales import SCALES, get_scale
from discode.signature import Signature, SignedDecoder

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


@dataclass(frozen=True)
class PublishedCell:
    """A number in a table of the paper.

    ``column`` is a benchmark and a measure ("flickr8k-cf tau_b", "pascal50s HC", "mceval mean");
    ``setting`` what a row varies ("sigma2=0.05", "scale=five", "divergence=beta").
    """

    table: str
    system: str
    group: str
    """"reference-free" or "with references"."""
    model: str
    setting: str
    column: str
    value: float
    text: str
    """The number as it is printed, with its "± ..." where it has one."""
    printed: str
    note: str

    @property
    def row(self) -> PaperRow:
        """The row that it stands in, however its table words the setting."""
        return PaperRow(self.system, self.model, _SETTINGS.get(self.setting, self.setting))


class PaperRow(NamedTuple):
    """Whose numbers a row of the paper has; ``setting`` "" is the paper's method."""

    system: str
    model: str = ""
    setting: str = ""


def published_cells(
    table: str | None = None, system: str | None = None, column: str | None = None
) -> tuple[PublishedCell, ...]:
    """Return the paper's cells, or those of a table, a system, a column.

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
    path = Path(__file__).parents[1] / "data" / "published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedCell(value=float(row["text"].partition(" ")[0]), **row)
            for row in csv.DictReader(file)
        )


OTHER_BENCHMARK = "the paper does not have this benchmark"


@dataclass(frozen=True)
class PaperMatch:
    """The paper's cell for a number of ours, or why there is none.

    Beside a cell, ``reason`` says in what the run departs from it; it is empty where both were made
    in the same way.
    """

    cell: PublishedCell | None = None
    reason: str = ""

    @property
    def comparable(self) -> bool:
        """Whether ours minus the paper's is a difference of two measurements of the same thing."""
        return self.cell is not None and not self.reason

    @property
    def value(self) -> float:
        """The paper's number; NaN where it has none."""
        return math.nan if self.cell is None else self.cell.value

    @property
    def model(self) -> str:
        """The model of the paper's number, as the paper calls it; "" where it names none."""
        return "" if self.cell is None else self.cell.model


class _NoCellError(Exception):
    """Why the paper has no cell for a run."""


def match_published(log: RunLog, label: str, measure: str) -> PaperMatch:
    """Return the paper's cell for a measure of a result, or the reason why there is none.

    The whole identity of the run decides: the benchmark with its counts and its protocol, and from
    the signature of the scores the model, the method with its options, the scale, the prompt,
    whether references were shown, and quantisation. A cell of other data, another model, another
    scale or another setting is never returned; scores for some of the images only are scores of
    other data. A run that does the same thing in another way (``discode``, which is not the printed
    formula; another prompt; a quantised model) gets the cell with the reason why the two are not
    compared.
    """
    try:
        row = _published_row(log)
        failed = log.results[label].measures["failed"].value
        if failed > _FEW:
            raise _NoCellError(f"other data: {100 * failed:.0f} % of the judgments have no score")
        wanted, departures = _row_of(log.results[label].signature, label)
        if measure == "tau_c" and _another_m(log, label):
            departures.append("another m in τ_c than scipy's (--tau-m scipy)")
        return _find_cell(log, row, wanted, departures, measure)
    except _NoCellError as error:
        return PaperMatch(None, str(error))


def other_data(log: RunLog) -> str:
    """Return why the data of a run is not that of the paper's numbers; "" where it is."""
    try:
        _published_row(log)
    except _NoCellError as error:
        return str(error)
    return ""


_FEW = 0.01
"""The share of judgments without a score that does not make a result one of other data."""


def _another_m(log: RunLog, label: str) -> bool:
    """Whether τ_c has another m than scipy's, with which the literature computes it."""
    judged, value = log.judgments, log.results[label].value
    if not isinstance(judged, Ratings) or log.protocol.tau_m == "scipy":
        return False
    scores = value[judged.pair]
    seen = np.isfinite(scores)
    return len(np.unique(scores[seen])) < len(np.unique(judged.value[seen]))


def _published_row(log: RunLog) -> BenchmarkRow:
    """Return a run's benchmark; raise unless it has the paper's numbers of images and judgments."""
    row = BENCHMARKS.get(log.benchmark)
    if row is None or row.published_sizes is None:
        raise _NoCellError(OTHER_BENCHMARK)
    sizes = row.published_sizes(row.option_texts(log.options))
    ours = (len(np.unique(log.image)), len(log.judgments))
    if ours not in sizes:
        raise _NoCellError(
            "other data: {:,} images with {:,} judgments, where the paper's have {:,} and "
            "{:,}".format(*ours, *sizes[0])
        )
    return row


def _find_cell(
    log: RunLog, row: BenchmarkRow, wanted: PaperRow, departures: list[str], measure: str
) -> PaperMatch:
    cells = [cell for cell in published_cells() if cell.system == wanted.system]
    if not cells:
        raise _NoCellError("not in the paper's tables")
    options, defaults = row.option_texts(log.options), row.option_texts({})
    if all(cell.group == "reference-free" for cell in cells) and "references" in options:
        # What references there are makes no difference to a metric that does not see them.
        options["references"] = defaults["references"]
    departures += [
        f"another protocol ({option.name}={options[option.name]})"
        for option in row.options
        if option.affects_published and options[option.name] != defaults[option.name]
    ]
    if isinstance(log.judgments, Preferences) and log.protocol.ties != "wrong":
        departures.append(f"ties count {log.protocol.ties}")
    column = row.published_column.format(benchmark=row.name, measure=measure, **options)
    printed = [cell for cell in cells if (cell.row, cell.column) == (wanted, column)]
    if not printed:
        here = [cell for cell in cells if cell.column.split()[0] == row.name]
        raise _NoCellError(_why_none(wanted, here, row.title))
    if len(tables := {cell.value: cell.table for cell in printed}) > 1:
        words = " and ".join(f"{value:g} ({table})" for value, table in tables.items())
        departures.append(f"the paper contradicts itself: {words}")
    return PaperMatch(printed[0], "; ".join(departures))


def _why_none(wanted: PaperRow, cells: Sequence[PublishedCell], benchmark: str) -> str:
    """Return why none of a system's cells on a benchmark is the one that is wanted."""
    if not cells:
        return f"the paper does not have it on {benchmark}"
    models = dict.fromkeys(cell.model for cell in cells if cell.row.setting == wanted.setting)
    if not models:
        return f"the paper has no row with {wanted.setting}"
    if wanted.model in models:
        return "the paper leaves this cell empty"
    if not (named := " and ".join(filter(None, models))):
        return "the paper does not say of which model its row is"
    row = f"{wanted.setting} " if wanted.setting else ""
    if wanted.model:
        return f"another model: {wanted.model}; the paper's {row}is of {named}"
    return (
        f"the paper's {row}is of {named}, and the run does not say its model; a score file may be "
        f"called {wanted.system}@{next(iter(models))}"
    )


_SETTINGS = {
    "sigma2=0.1": "",
    "scale=unit": "",
    "divergence=weighted-kl": "",
    "sigma2=1.0": "sigma2=1",
    "w/o cross-entropy": "cross_entropy=false",
    "w/o divergence": "divergence=none",
    "alpha=0.5": "divergence=kl",
}
"""What the paper's rows vary: the same thing said in two ways, or its own default."""


def _row_of(signature: Signature, label: str) -> tuple[PaperRow, list[str]]:
    """Return the row of the paper that scores belong to, and in what they depart from it."""
    if signature.decoder is not None:
        return _judge_row(signature, signature.decoder)
    metric, model = signature.get("metric"), signature.get("model")
    if metric not in METRICS:  # scores from a file: their label says whose they are
        name, _, model = label.partition("@")
        return PaperRow(paper_system(name), model), []
    system = paper_system(metric)
    if system.removeprefix("ref-") == "pac-s++":
        return PaperRow(system, _BACKBONES.get(model.rpartition("/")[2], model)), []
    if system in _ENCODERS:
        if model.rpartition("/")[2] != _ENCODERS[system]:
            raise _NoCellError(f"another model: {model}, the paper's is {_ENCODERS[system]}")
        usual = _USUAL.get(system, {})
        changed = {key: signature.get(key) for key in usual if signature.get(key) != usual[key]}
        return PaperRow(system), [f"{key}={value}" for key, value in changed.items()]
    if not model:
        return PaperRow(system), []
    if re.fullmatch(r"(?:.*[:/])?gpt-4o(-\d{4}-\d\d-\d\d)?", model):  # dated or not
        model = "GPT-4o"
    return PaperRow(system, model), ["the wording of the question is not the authors'"]


def paper_system(name: str) -> str:
    """Return what the paper's tables call a metric of ours."""
    return "bert-s" if name == "bertscore" else name


_ENCODERS = {
    "clip-s": "clip-vit-base-patch32",
    "ref-clip-s": "clip-vit-base-patch32",
    "pac-s": "clip-vit-base-patch32",
    "ref-pac-s": "clip-vit-base-patch32",
    "polos": "clip-vit-base-patch32",
    "bert-s": "roberta-large",
}
"""The models of rows whose numbers were taken from the metrics' own papers, which name them."""

_BACKBONES = {"clip-vit-base-patch32": "ViT-B", "clip-vit-large-patch14": "ViT-L"}
"""PAC-S++ has rows with either."""

_USUAL = {
    "bert-s": {"measure": "f1", "idf": "none"},
    "polos": {"normalised": "batch"},  # the authors' batches of 32 pairs; here each text by itself
}
"""What the papers' own numbers were made with, as a signature would say it."""


def paper_model(model: str) -> str:
    """Return what the paper calls a model; "" where it is not one of the paper's.

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


_PRECISIONS = ("none", "float32", "bfloat16", "float16")
"""Of weights that are not quantised; a server does not say."""


def _judge_row(signature: Signature, decoder: SignedDecoder) -> tuple[PaperRow, list[str]]:
    """Return the row of a judge, from its model, decoder, scale and prompt, and its departures."""
    model = paper_model(signature.get("model"))
    if not model:
        raise _NoCellError(f"another model: {signature.get('model')}")
    departures = _asked_otherwise(signature)
    options = dict(decoder.options)
    scale = _scale_name(signature.get("scale", "unit"))
    if scale == "unit" and options.get("stem", "greedy") != "greedy":
        departures.append(f"stem={options['stem']}")
    settings = [] if scale == "unit" else [f"scale={scale}"]
    system = decoder.name
    if system == "discode":
        changed, other = _from_printed(options)
        settings += changed
        departures += other
    elif system == "smoothing" and scale == "unit":
        system = "fleur"
        departures.append("renormalised over the answers, which FLEUR is not")
    if len(settings) > 1:
        raise _NoCellError(f"the paper has no row with {' and '.join(settings)}")
    if signature.get("references", "none") not in ("none", "ignored"):
        system = f"ref-{system}"
    setting = "".join(settings)
    return PaperRow(system, model, _SETTINGS.get(setting, setting)), departures


def _asked_otherwise(signature: Signature) -> list[str]:
    """Return in what a judge was asked otherwise than the paper's."""
    departures = []
    if signature.get("dtype", "none") not in _PRECISIONS:
        departures.append(f"a quantised model ({signature['dtype']})")
    if shrunk := re.search(r"(?:^|\+)(\d+px)", signature.get("revision")):
        departures.append(f"images shrunk to {shrunk[1]}")
    if signature.get("prompt") != f"{FLEUR.name}-{FLEUR.digest}":
        departures.append(f"another prompt ({signature.get('prompt')})")
    return departures


def _scale_name(name: str) -> str:
    """Return the paper's scale that has the same answers, or the name.

    >>> _scale_name("1-5"), _scale_name("1-7")
    ('five', '1-7')
    """
    try:
        scale = get_scale(name)
    except InputError:  # a scale of one's own
        return name
    answers = {(known.stems, known.answers): known.name for known in SCALES.values()}
    return answers.get((scale.stems, scale.answers), name)


_VARIED = ("sigma2", "alpha", "cross_entropy", "divergence")
"""The options of the decoder that the paper's ablations vary."""


def _from_printed(options: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return what a decoder varies as the paper's ablations do, and in what else it departs.

    The printed formula is the preset ``paper``. The paper minimises its loss analytically, and by
    ten Adam steps where the divergence is no KL; it says neither where Adam starts nor the orders
    of divergences.

    >>> _from_printed({"sigma2": "0.05", "tau": "1", "solver": "closed"})
    (['sigma2=0.05'], ['not the printed formula (tau=1)'])
    >>> _from_printed({"divergence": "jensen-shannon", "solver": "exact"})[1]
    ['solved exactly, where the paper takes ten Adam steps']
    """
    printed = {name: option_text(value) for name, value in get_decoder("paper").options().items()}
    printed |= {"steps": "10", "learning_rate": "0.001"}
    changed = {
        name: text
        for name, text in options.items()
        if name not in ("solver", "stem", "order") and printed.get(name) != text
    }
    other = ",".join(f"{name}={text}" for name, text in changed.items() if name not in _VARIED)
    departures = [f"not the printed formula ({other})"] if other else []
    analytical = options.get("divergence", "weighted-kl") in POWERS
    if options.get("solver") == "adam":
        departures.append(
            "Adam steps, which the paper takes for other divergences only"
            if analytical
            else "Adam starts at the model's head, and the paper does not say where"
        )
    elif not analytical:
        departures.append("solved exactly, where the paper takes ten Adam steps")
    if "order" in options:
        departures.append(f"order={options['order']}, and the paper names none")
    return [f"{name}={text}" for name, text in changed.items() if name in _VARIED], departures
