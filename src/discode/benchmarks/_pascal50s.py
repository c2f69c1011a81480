"""Pascal-50S (Vedantam et al. 2015): which of two captions describes the image better.

Four categories of 1,000 choices: two human captions of the image (HC), one of another image (HI),
a human and a machine's (HM), two machines' (MM). FLEUR's JSON has the choices, what people chose
and five references; ``pascal50S.mat`` all fifty references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Preferences,
)
from discode.benchmarks._parsing import Entry, read_object
from discode.errors import InputError, require
from discode.options import COUNT, SIZE, Option

_CATEGORIES = ("HC", "HI", "HM", "MM")
"""In the order of pair_pascal.mat's numbers 1 to 4."""
_REFERENCES = 5
"""How many references a metric sees."""


@dataclass(frozen=True)
class PascalChoice:
    """Two captions of an image, which of them people preferred, and references if given."""

    image: str
    captions: tuple[str, str]
    chosen: int
    category: str
    references: tuple[str, ...] = ()


def load_pascal50s(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read Pascal-50S: 4,000 choices, as often as references are drawn.

    The published protocol is ``references=draw``: five of each image's fifty references at random,
    and the mean of five draws. Every draw brings its own pairs and its own 4,000 choices, so
    the accuracy over all choices is the mean of the draws. ``references=given`` takes the JSON's
    five. ``labels=consensus`` is what people chose by the JSON; ``labels=votes`` the majority of
    the eleven votes in pair_pascal.mat, which differs in a third of HC.
    """
    source = "pascal_50s.json" if options["labels"] == "consensus" else "pair_pascal.mat"
    if options["references"] == "draw":
        files = ROW.find_files(folder, [(source, "pascal50S.mat")])
    elif source == "pascal_50s.json":
        files = ROW.find_files(folder, [(source,)])
    else:
        raise InputError(
            "pair_pascal.mat has no references; give references=draw or labels=consensus"
        )
    choices = read_choices(files[source]) if source.endswith("json") else read_votes(files[source])
    builder = BenchmarkBuilder(ROW, folder)
    judged, used = [], dict(options)
    if options["references"] == "draw":
        pool = read_references(files["pascal50S.mat"])
        rng = np.random.default_rng(options["seed"])
        for draw in range(options["draws"]):
            shown = {
                image: tuple(all_[i] for i in rng.choice(len(all_), _REFERENCES, replace=False))
                for image, all_ in pool.items()
            }
            judged += _add(builder, choices, shown, f"@{draw}")
    else:
        judged += _add(builder, choices, None, "")
        used = {key: options[key] for key in ("references", "labels")}  # nothing is drawn
    return builder.build(used, Preferences.of(judged), list(files.values()))


def _add(
    builder: BenchmarkBuilder,
    choices: list[PascalChoice],
    shown: Mapping[str, tuple[str, ...]] | None,
    suffix: str,
) -> list[tuple[int, int, int, str]]:
    rows = []
    for i, choice in enumerate(choices):
        if shown is not None and choice.image not in shown:
            raise InputError(
                f"choice {i}: image {choice.image!r} has no references in pascal50S.mat"
            )
        references = choice.references if shown is None else shown[choice.image]
        left, right = (
            builder.add(choice.image, caption, references, f"{choice.image}#{i}{side}{suffix}")
            for side, caption in zip("ab", choice.captions, strict=True)
        )
        rows.append((left, right, choice.chosen, choice.category))
    return rows


def read_choices(path: Path) -> list[PascalChoice]:
    """Read the choices of FLEUR's pascal_50s.json."""
    content = read_object(path)
    choices = []
    for category in content.fields:
        if category not in _CATEGORIES:
            raise InputError(f"{path.name}: {category!r} is none of {', '.join(_CATEGORIES)}")
        for entry in content.entries(category, f"{category} entry"):
            image = Path(entry.text("image")).name
            entry.fields.setdefault("references", [])
            choices.append(
                PascalChoice(
                    image,
                    entry.two_texts("captions"),
                    entry.whole("label", 0, 1),
                    category,
                    entry.texts("references"),
                )
            )
    return choices


def read_votes(path: Path) -> list[PascalChoice]:
    """Read pair_pascal.mat: the majority of about eleven votes of 1 and -1 per choice."""
    content = _matlab(path, ("new_input", "category", "result"))
    if len({len(column) for column in content.values()}) > 1:
        raise InputError(f"{path.name}: {', '.join(content)} differ in length")
    choices = []
    for i, (fields, kind, result) in enumerate(zip(*content.values(), strict=True)):
        where = f"{path.name} choice {i}"
        entry = Entry(fields, where)
        votes = np.atleast_1d(np.asarray(Entry(result, where).get("result"), float)).sum()
        if votes == 0 or np.isnan(votes):
            raise InputError(f"{where}: result has no majority")
        left, right = (" ".join(entry.text(side).split()) for side in ("sent1", "sent2"))
        number = Entry({"category": kind}, where).whole("category", 1, 4)
        choices.append(
            PascalChoice(entry.text("name"), (left, right), int(votes < 0), _CATEGORIES[number - 1])
        )
    return choices


def read_references(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the fifty references of each image from pascal50S.mat."""
    pool: dict[str, tuple[str, ...]] = {}
    for i, fields in enumerate(_matlab(path, ("refs",))["refs"]):
        entry = Entry(fields, f"{path.name} image {i}")
        image = entry.text("image")
        texts = [str(text) for text in np.atleast_1d(entry.get("sent"))]
        entry.check_new(image, pool)
        if len(texts) < _REFERENCES:
            raise entry.error("sent", f"{_REFERENCES} references or more")
        pool[image] = Entry({"sent": texts}, entry.where).texts("sent")
    return pool


def _matlab(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    scipy = require("scipy.io", "bench")
    try:
        content = scipy.loadmat(path, simplify_cells=True, variable_names=list(names))
    except Exception as error:  # scipy raises a different error for every way a file is broken
        raise InputError(f"{path.name} is not a complete MATLAB file: {error}") from error
    for name in names:
        if name not in content:
            raise InputError(f"{path.name} has no variable {name!r}")
    return {
        name: list(value) if isinstance(value := content[name], list | np.ndarray) else [value]
        for name in names
    }


_MATLAB = "github.com/vrama91/cider-matlab"

ROW = BenchmarkRow(
    "pascal50s",
    "Pascal-50S",
    "4,000 choices between two captions; accuracy by category",
    load_pascal50s,
    source="github.com/Yebin46/FLEUR (annotations/pascal_50s.json) and github.com/vrama91/"
    "cider-matlab (*.mat); images: Pascal VOC",
    licence="none stated",
    citation="Vedantam, Zitnick, Parikh: CIDEr. CVPR 2015",
    forms=(("pascal_50s.json", "pascal50S.mat"),),
    files={
        "pascal_50s.json": DataFile(
            "f6033bbcf74583a22d289cf080fff5b930c04cf6d29e33e0170552e8e0237da9",
            "github.com/Yebin46/FLEUR",
        ),
        "pascal50S.mat": DataFile(
            "f927c038104d9579ce89be6b8c1a10415b41ce02519becc28238b6fb75a145ac",
            _MATLAB,
        ),
        "pair_pascal.mat": DataFile(
            "63925be0d9a9d98d68cfdef2be6667a87b6ee23f08f3a1397edaaee07ad09d84",
            _MATLAB,
        ),
        "pascal_cands.mat": DataFile(
            "381d85e343eaddef86950b99d3c0e0f9f5b34277f743bded4ee2f3a2c6aea0e8",
            _MATLAB,
        ),
    },
    optional=("pair_pascal.mat", "pascal_cands.mat"),
    folders=("pascal50s", "Pascal-50s", "pascal-50s", "Pascal50S"),
    image_folders=(
        "images", "JPEGImages", "VOC2012/JPEGImages", "VOC2010/JPEGImages",
        "VOCdevkit/VOC2012/JPEGImages", "VOCdevkit/VOC2010/JPEGImages", "",
    ),
    options=(
        Option(
            "references", "draw", "five of fifty at random, or the file's five", ("draw", "given")
        ),
        Option("draws", 5, "how often references are drawn", (SIZE,), affects_published=False),
        Option("seed", 0, "random seed of the draws", (COUNT,), affects_published=False),
        Option(
            "labels", "consensus", "by the JSON, or pair_pascal.mat's votes", ("consensus", "votes")
        ),
    ),
    categories=_CATEGORIES,
    published_sizes=lambda options: (
        (1000, 4000 * (int(options["draws"]) if options["references"] == "draw" else 1)),
    ),
)  # fmt: skip
