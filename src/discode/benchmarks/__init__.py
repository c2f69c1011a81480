"""Benchmarks: pairs with human judgments, read from the publishers' own files.

``BENCHMARKS`` is the table; a new benchmark is a new row (docs/adding-a-benchmark.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from discode.bench.published import Cell, published
from discode.benchmarks.base import Benchmark, Option, Preferences, Ratings, Row, integer, resolve
from discode.benchmarks.composite import load_composite
from discode.benchmarks.custom import load_custom
from discode.benchmarks.facts import FACTS
from discode.benchmarks.flickr8k import load_cf, load_expert
from discode.benchmarks.foil import load_foil
from discode.benchmarks.mceval import load_mceval
from discode.benchmarks.pascal50s import load_pascal50s
from discode.errors import lookup

__all__ = [
    "BENCHMARKS", "Benchmark", "Cell", "Option", "Preferences", "Ratings", "Row", "folder_of",
    "load_benchmark", "published",
]  # fmt: skip

BENCHMARKS: dict[str, Row] = {
    "flickr8k-expert": Row(
        load_expert,
        FACTS["flickr8k-expert"],
        {
            "experts": Option(
                "flatten", "three points a caption, or their mean", ("flatten", "average")
            ),
            "self_references": Option(
                "drop", "captions that are among the image's references", ("drop", "keep")
            ),
        },
    ),
    "flickr8k-cf": Row(
        load_cf,
        FACTS["flickr8k-cf"],
        {
            "references": Option(
                "clean", "without the judged captions of the image", ("clean", "all")
            )
        },
    ),
    "composite": Row(
        load_composite,
        FACTS["composite"],
        {"references": Option("clean", "without the human candidate", ("clean", "all"))},
    ),
    "pascal50s": Row(
        load_pascal50s,
        FACTS["pascal50s"],
        {
            "references": Option(
                "draw", "five of fifty at random, or the file's five", ("draw", "given")
            ),
            "draws": integer(5, "how often references are drawn", low=1),
            "seed": integer(0, "of the draws", low=0),
            "labels": Option(
                "consensus", "by the JSON, or pair_pascal.mat's votes", ("consensus", "votes")
            ),
        },
    ),
    "foil": Row(
        load_foil,
        FACTS["foil"],
        {
            "references": Option("4", "other COCO captions of the image", ("0", "1", "4")),
            "pairs": Option("all", "or those that VALSE's annotators told apart", ("all", "valid")),
        },
    ),
    "mceval": Row(load_mceval, FACTS["mceval"]),
    "custom": Row(
        load_custom,
        FACTS["custom"],
        {
            "scale": Option(
                "any",
                "the ratings' range",
                pattern=r"any|-?\d+(\.\d+)?--?\d+(\.\d+)?",
                allowed="any, or LOW-HIGH such as 1-5",
            ),
            "raters": Option("flatten", "a point a rating, or a pair", ("flatten", "average")),
        },
    ),
}
"""The benchmarks by name."""


def load_benchmark(
    name: str, data: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Benchmark:
    """Read a benchmark from its own folder, or from a folder of such folders.

    ``options`` are the choices of its protocol; the defaults reproduce the published cells.
    Pictures that are not there stop nobody: a pair's ``image`` is where it should lie.
    """
    row = lookup(BENCHMARKS, name, "benchmark")
    return row.load(folder_of(name, data), resolve(options, row.options))


def folder_of(name: str, data: str | os.PathLike[str]) -> Path:
    """Return a benchmark's own folder: ``data``, or the folder in it that goes by its name."""
    data = Path(data)
    facts = lookup(BENCHMARKS, name, "benchmark").facts
    folders = (data, *(data / known for known in facts.folders))
    # A file that other benchmarks may have as well says less than one that this one is read from.
    for wanted in ({file for form in facts.forms for file in form}, set(facts.extra)):
        for folder in folders:
            if any((folder / file).is_file() for file in wanted):
                return folder
    return next((folder for folder in folders[1:] if folder.is_dir()), data)
