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

from discode.benchmarks.base import Benchmark, Builder, preferences
from discode.benchmarks.facts import FACTS
from discode.benchmarks.reading import form_of, get, json_file, text, texts, whole
from discode.errors import InputError, require

CATEGORIES = ("HC", "HI", "HM", "MM")
"""In the order of pair_pascal.mat's numbers 1 to 4."""
SHOWN = 5
"""References that a metric is shown."""


@dataclass(frozen=True)
class Choice:
    """Two captions of an image, which of them people preferred, and references if given."""

    image: str
    captions: tuple[str, str]
    chosen: int
    category: str
    references: tuple[str, ...] = ()


def load_pascal50s(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read Pascal-50S: 4,000 choices, as often as references are drawn.

    The published protocol is ``references=draw``: five of each image's fifty references at random,
    and the mean of five draws. Every draw brings its own pairs and its own 4,000 choices, so
    the accuracy over all choices is the mean of the draws. ``references=given`` takes the JSON's
    five. ``labels=consensus`` is what people chose by the JSON; ``labels=votes`` the majority of
    the eleven votes in pair_pascal.mat, which says otherwise in a third of HC.
    """
    name = "pascal50s"
    source = "pascal_50s.json" if options["labels"] == "consensus" else "pair_pascal.mat"
    if options["references"] == "draw":
        files = form_of(name, folder, [(source, "pascal50S.mat")])
    elif source == "pascal_50s.json":
        files = form_of(name, folder, [(source,)])
    else:
        raise InputError(
            "pair_pascal.mat has no references; give references=draw or labels=consensus"
        )
    choices = read_choices(files[source]) if source.endswith("json") else read_votes(files[source])
    builder = Builder(folder, FACTS[name].images)
    judged, protocol = [], dict(options)
    if options["references"] == "draw":
        pool = read_references(files["pascal50S.mat"])
        rng = np.random.default_rng(int(options["seed"]))
        for draw in range(int(options["draws"])):
            shown = {
                image: tuple(all_[i] for i in rng.choice(len(all_), SHOWN, replace=False))
                for image, all_ in pool.items()
            }
            judged += _add(builder, choices, shown, f"@{draw}")
    else:
        judged += _add(builder, choices, None, "")
        protocol = {key: options[key] for key in ("references", "labels")}  # nothing is drawn
    return builder.build(name, protocol, preferences(judged), list(files.values()))


def _add(
    builder: Builder,
    choices: list[Choice],
    shown: Mapping[str, tuple[str, ...]] | None,
    suffix: str,
) -> list[tuple[int, int, int, str]]:
    """Add the pairs of one draw and return its choices."""
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


def read_choices(path: Path) -> list[Choice]:
    """Return the choices of FLEUR's pascal_50s.json."""
    content = json_file(path)
    if not isinstance(content, dict):
        raise InputError(
            f"{path.name} must be an object of lists (HC, HI, HM, MM), not {type(content).__name__}"
        )
    choices = []
    for category, entries in content.items():
        if category not in CATEGORIES or not isinstance(entries, list):
            raise InputError(
                f"{path.name}: {category!r} is no list of choices; "
                f"categories: {', '.join(CATEGORIES)}"
            )
        for i, entry in enumerate(entries):
            where = f"{path.name} {category} entry {i}"
            captions = texts(get(entry, "captions", where), "captions", where)
            if len(captions) != 2:
                raise InputError(f"{where}: captions must be two, not {len(captions)}")
            choices.append(
                Choice(
                    Path(text(entry, "image", where)).name,
                    (captions[0], captions[1]),
                    whole(get(entry, "label", where), "label", where, 0, 1),
                    category,
                    texts(entry.get("references", []), "references", where),
                )
            )
    if not choices:
        raise InputError(f"{path.name} holds no choices")
    return choices


def read_votes(path: Path) -> list[Choice]:
    """Return the choices of pair_pascal.mat: the majority of about eleven votes of 1 and -1."""
    content = _matlab(path, ("new_input", "category", "result"))
    choices = []
    inputs, numbers, results = (content[name] for name in ("new_input", "category", "result"))
    if not len(inputs) == len(numbers) == len(results):
        raise InputError(f"{path.name}: new_input, category and result differ in length")
    for i, (entry, kind, result) in enumerate(zip(inputs, numbers, results, strict=True)):
        where = f"{path.name} choice {i}"
        votes = np.atleast_1d(np.asarray(get(result, "result", where), float)).sum()
        if votes == 0 or np.isnan(votes):
            raise InputError(f"{where}: result has no majority")
        number = whole(kind, "category", where, 1, 4)
        sides = (" ".join(text(entry, side, where).split()) for side in ("sent1", "sent2"))
        left, right = sides
        choices.append(
            Choice(
                text(entry, "name", where), (left, right), int(votes < 0), CATEGORIES[number - 1]
            )
        )
    return choices


def read_references(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the fifty references of each image in pascal50S.mat."""
    pool: dict[str, tuple[str, ...]] = {}
    for i, entry in enumerate(_matlab(path, ("refs",))["refs"]):
        where = f"{path.name} image {i}"
        image = text(entry, "image", where)
        given = [str(one) for one in np.atleast_1d(get(entry, "sent", where))]
        if image in pool:
            raise InputError(f"{where}: {image!r} was there before; images must be unique")
        if len(given) < SHOWN:
            raise InputError(f"{where}: {len(given)} references, at least {SHOWN} are needed")
        pool[image] = texts(given, "sent", where)
    return pool


def read_candidates(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return (image, its two captions) of pascal_cands.mat, the choices without the votes."""
    return [
        (
            text(entry, "image", f"{path.name} choice {i}"),
            texts([str(one) for one in np.atleast_1d(entry["sent"])], "sent", f"choice {i}"),
        )
        for i, entry in enumerate(_matlab(path, ("cands",))["cands"])
    ]


def _matlab(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return variables of a MATLAB file as lists."""
    scipy = require("scipy.io", "bench")
    try:
        content = scipy.loadmat(path, simplify_cells=True, variable_names=list(names))
    except Exception as error:  # scipy raises a different error for every way a file is broken
        raise InputError(f"{path.name} is no whole MATLAB file: {error}") from error
    for name in names:
        if name not in content:
            raise InputError(f"{path.name} has no variable {name!r}")
    return {
        name: list(value) if isinstance(value := content[name], list | np.ndarray) else [value]
        for name in names
    }
