"""The paper's table "dataset_statistics": sizes of benchmarks, and of the words in their captions.

The paper's way of counting, found by counting the real files:

- words are separated by spaces: in Flickr8k the full stop is a word;
- the mean is over the captions that people judged, each as often as it was judged with another
  image or another caption, and is cut after two decimals, not rounded (11.9154 is printed 11.91);
- a choice between two captions counts both, so Pascal-50S has 8,000; its 8.75 words, however, are
  those of the *references* (the captions have 10.41);
- Composite's 13,146 captions and 11.58 words do not match the public copy: it has three captions
  for each of 3,995 images, as the paper describes it, which is 11,985.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from discode._paper.base import Study, StudySetup
from discode.bench._layout import CellTable, TableValue
from discode.bench._published import has_published_data, published_cells
from discode.bench._results import StudyResult
from discode.bench._runlog import RunLog
from discode.benchmarks import Benchmark, Ratings
from discode.errors import InputError


@dataclass(frozen=True)
class DatasetCounts:
    """Sizes of a benchmark.

    ``captions`` that people judged are one per rated pair and two per choice, ``pairs`` are
    distinct pairs of image and caption.
    ``words`` are means, NaN without text; ``raters`` is None if the data does not identify people.
    """

    captions: int
    words: float
    pairs: int
    images: int
    reference_words: float
    judgments: int
    raters: int | None
    categories: tuple[str, ...]


def count_dataset(benchmark: Benchmark) -> DatasetCounts:
    """Count captions, words, images and judgments; repeated draws of references count once."""
    pairs, judged = benchmark.pairs, benchmark.judgments
    words = np.array([len(pair.caption.split()) for pair in pairs])
    draws = benchmark.options.get("draws", 1)  # Pascal-50S: every draw repeats the choices
    raters: int | None = None
    categories: tuple[str, ...] = ()
    if isinstance(judged, Ratings):
        shown = np.unique(judged.pair)
        people = len(np.unique(judged.rater))
        raters = people if people > 1 else None  # one number may be the mean of many
    else:
        shown = np.concatenate([*judged.sides.values()])
        categories = tuple(dict.fromkeys(judged.category))
    by_image: dict[int, dict[str, None]] = {}
    for image, pair in zip(benchmark.image.tolist(), pairs, strict=True):
        by_image.setdefault(image, {}).update(dict.fromkeys(pair.references))
    references = [len(text.split()) for texts in by_image.values() for text in texts]
    return DatasetCounts(
        captions=len(shown) // draws,
        words=_mean(words[shown].tolist()),
        pairs=len({(str(pair.image), pair.caption) for pair in pairs}),
        images=len(by_image),
        reference_words=_mean(references),
        judgments=len(judged) // draws,
        raters=raters,
        categories=categories,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _run(setup: StudySetup) -> StudyResult:
    if not setup.benchmarks:
        raise InputError("dataset needs --data: a run has no captions")
    paper = {cell.column: cell.value for cell in published_cells("dataset_statistics")}
    sizes: list[list[TableValue]] = []
    people: list[list[TableValue]] = []
    findings, notes = [], []
    for place, benchmark in setup.benchmarks.items():
        counts = count_dataset(benchmark)
        same = has_published_data(RunLog.begin(benchmark, setup.protocol, {}))
        captions = paper.get(f"{benchmark.name} captions") if same else None
        words = paper.get(f"{benchmark.name} words") if same else None
        printed = None if captions is None else f"{captions:,.0f}"
        sizes.append(
            [place, f"{counts.captions:,}", printed, counts.words, words, counts.reference_words]
        )
        people.append([
            place, f"{counts.images:,}", f"{counts.pairs:,}", f"{counts.judgments:,}",
            None if counts.raters is None else str(counts.raters),
            str(len(counts.categories)) if counts.categories else None,
        ])  # fmt: skip
        if len(counts.categories) > 1:
            notes.append(f"{place}: {', '.join(counts.categories)}")
        if captions is not None and words is not None:
            findings.append(_verdict(place, counts, captions, words))
    tables = {
        "dataset": CellTable(
            ("benchmark", ("captions", "here"), ("captions", "paper"), ("words each", "here"),
             ("words each", "paper"), ("words per", "reference")),
            sizes, "Captions that people judged (two per choice)",
            ["a word is what stands between spaces"],
        ),
        "dataset-judgments": CellTable(
            ("benchmark", "images", "distinct pairs", "judgments", "raters", "categories"), people,
            "Images and judgments", notes,
        ),
    }  # fmt: skip
    return StudyResult(tables, findings=findings)


def _verdict(place: str, counts: DatasetCounts, captions: float, words: float) -> str:
    """Compare the paper's numbers with this data, and identify the texts they describe."""
    same = counts.captions == captions
    size = "as in the paper" if same else f"the paper has {captions:,.0f}"
    text = f"{place}: {counts.captions:,} captions, {size}; "
    for what, mean in (("caption", counts.words), ("reference", counts.reference_words)):
        if mean == mean and round(mean, 2) == words:
            return text + f"the paper's {words} words are those per {what}"
        if mean == mean and int(100 * mean) / 100 == words:
            return text + f"the paper's {words} words are those per {what}, {mean:.4f}, cut"
    return text + f"the paper's {words} words are neither those per caption nor per reference"


STUDY = Study(
    "dataset",
    "sizes of benchmarks: captions, words, images, judgments, people",
    ("dataset_statistics",),
    _run,
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s", "foil", "mceval"),
)
