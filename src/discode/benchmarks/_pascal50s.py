"""Pascal-50S (Vedantam et al. 2015): which of two captions describes the image better.

Four categories of 1,000 choices: two human captions of the image (HC), one of another image (HI),
a human and a machine's (HM), two machines' (MM). FLEUR's JSON has the choices, what people chose
and five references; ``pascal50S.mat`` all fifty references.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
_POOL = "pascal50S.mat"
_Choice = tuple[str, tuple[str, str], int, str, tuple[str, ...]]
"""An image, two captions, which of them people preferred, the category, and references if given."""


def load_pascal50s(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read Pascal-50S: 4,000 choices, as often as references are drawn.

    The published protocol is ``references=draw``: five of each image's fifty references at random,
    and the mean of five draws. Every draw brings its own pairs and its own 4,000 choices, so
    the accuracy over all choices is the mean of the draws. ``references=given`` takes the JSON's
    five. ``labels=consensus`` is what people chose by the JSON; ``labels=votes`` the majority of
    the eleven votes in pair_pascal.mat, which differs in a third of HC.
    """
    drawn, votes = options["references"] == "draw", options["labels"] == "votes"
    if votes and not drawn:
        raise InputError(
            "pair_pascal.mat has no references; give references=draw or labels=consensus"
        )
    source = "pair_pascal.mat" if votes else "pascal_50s.json"
    files = ROW.find_files(folder, [(source, _POOL) if drawn else (source,)])
    choices = [*(_read_votes if votes else _read_choices)(files[source])]
    pool = _read_references(files[_POOL]) if drawn else {}
    rng = np.random.default_rng(options["seed"])
    builder = BenchmarkBuilder(ROW, folder)
    judged = []
    for draw in range(options["draws"] if drawn else 1):
        suffix = f"@{draw}" if drawn else ""
        shown = {
            image: tuple(texts[i] for i in rng.choice(len(texts), _REFERENCES, replace=False))
            for image, texts in pool.items()
        }
        for i, (image, captions, chosen, category, given) in enumerate(choices):
            if drawn and image not in shown:
                raise InputError(f"choice {i}: image {image!r} has no references in {_POOL}")
            left, right = (
                builder.add(image, caption, shown.get(image, given), f"{image}#{i}{side}{suffix}")
                for side, caption in zip("ab", captions, strict=True)
            )
            judged.append((left, right, chosen, category))
    names = options if drawn else ("references", "labels")  # otherwise nothing is drawn
    used = {name: options[name] for name in names}
    return builder.build(used, Preferences.of(judged), list(files.values()))


def _read_choices(path: Path) -> Iterator[_Choice]:
    content = read_object(path)
    for category in content.fields:
        if category not in _CATEGORIES:
            raise InputError(f"{path.name}: {category!r} is none of {', '.join(_CATEGORIES)}")
        for entry in content.entries(category, f"{category} entry"):
            image = Path(entry.text("image")).name
            entry.fields.setdefault("references", [])
            captions, label = entry.two_texts("captions"), entry.whole("label", 0, 1)
            yield image, captions, label, category, entry.texts("references")


def _read_votes(path: Path) -> Iterator[_Choice]:
    """Read the majority of about eleven votes of 1 and -1 per choice."""
    content = _matlab(path, ("new_input", "category", "result"))
    if len({len(column) for column in content.values()}) > 1:
        raise InputError(f"{path.name}: {', '.join(content)} differ in length")
    for i, (fields, kind, result) in enumerate(zip(*content.values(), strict=True)):
        where = f"{path.name} choice {i}"
        entry = Entry(fields, where)
        votes = np.atleast_1d(np.asarray(Entry(result, where).get("result"), float)).sum()
        if votes == 0 or np.isnan(votes):
            raise InputError(f"{where}: result has no majority")
        left, right = (" ".join(entry.text(side).split()) for side in ("sent1", "sent2"))
        number = Entry({"category": kind}, where).whole("category", 1, 4)
        yield entry.text("name"), (left, right), int(votes < 0), _CATEGORIES[number - 1], ()


def _read_references(path: Path) -> dict[str, tuple[str, ...]]:
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
