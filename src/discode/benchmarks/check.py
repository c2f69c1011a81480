"""Is the data whole? Counts and checksums of the files in a folder of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from discode.benchmarks import (
    BENCHMARKS,
    composite,
    flickr8k,
    foil,
    folder_of,
    load_benchmark,
    mceval,
    pascal50s,
)
from discode.benchmarks.base import Benchmark, Row, sha256
from discode.benchmarks.facts import File
from discode.errors import DiscodeError, InputError, MissingExtraError

COUNTS: dict[str, Callable[[Path], int]] = {
    "ExpertAnnotations.txt": lambda path: len(flickr8k.read_expert(path)),
    "CrowdFlowerAnnotations.txt": lambda path: len(flickr8k.read_crowd(path)),
    "Flickr8k.token.txt": lambda path: len(flickr8k.read_tokens(path)),
    "flickr8k.json": lambda path: sum(len(row.votes) for row in flickr8k.read_json(path, 1, 4)),
    "crowdflower_flickr8k.json": lambda path: sum(
        len(row.votes) for row in flickr8k.read_json(path, 0, 1)
    ),
    "composite.json": lambda path: len(composite.read_composite(path)),
    "pascal_50s.json": lambda path: len(pascal50s.read_choices(path)),
    "pascal50S.mat": lambda path: len(pascal50s.read_references(path)),
    "pair_pascal.mat": lambda path: len(pascal50s.read_votes(path)),
    "pascal_cands.mat": lambda path: len(pascal50s.read_candidates(path)),
    "foilv1.0_test_2017.json": lambda path: len(foil.read_foil(path)),
    "foil-it.json": lambda path: len(foil.read_valse(path)),
    "captions_val2014.json": lambda path: sum(map(len, foil.read_coco(path).values())),
    "mceval.jsonl": lambda path: len(mceval.read_mceval(path)),
}
"""How to count the rows of each file; reading them is what finds the damage."""


@dataclass(frozen=True)
class Check:
    """What was found: ``state`` is ok, missing, damaged, or unknown version."""

    benchmark: str
    file: str
    state: str
    detail: str


def check_data(folder: str | os.PathLike[str]) -> list[Check]:
    """Check every benchmark in its own folder or in a folder of such folders.

    A file with a checksum we know is ok. One with another checksum is an unknown version if it
    reads well and has the right number of rows, and damaged if not. Pictures are counted.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    return [found for name, row in BENCHMARKS.items() for found in _benchmark(name, row, folder)]


def _benchmark(name: str, row: Row, data: Path) -> list[Check]:
    folder, facts = folder_of(name, data), row.facts
    forms = [form for form in facts.forms if any((folder / file).is_file() for file in form)]
    if not forms and not facts.files:
        return []  # nobody has to have a benchmark of their own
    if not forms:
        wanted = " and ".join(facts.forms[0])
        return [Check(name, wanted, "missing", f"not in {data}; {facts.fetch}")]
    # What lacks the least is what was meant to be there.
    form = min(forms, key=lambda files: sum(not (folder / file).is_file() for file in files))
    found = [_file(name, folder / file, facts.files.get(file, File())) for file in form]
    extra = [file for file in facts.extra if file not in form and (folder / file).is_file()]
    found += [_file(name, folder / file, facts.files[file]) for file in extra]
    if all(each.state in ("ok", "unknown version") for each in found):
        found.append(_images(name, folder))
    return [
        Check(name, each.file, each.state, f"{each.detail}; {facts.fetch}")
        if each.state == "missing" and each.file != "images"
        else each
        for each in found
    ]


def _file(name: str, path: Path, known: File) -> Check:
    if not path.is_file():
        return Check(name, path.name, "missing", f"not in {path.parent}")
    digest = sha256(path)
    if known.sha256 and digest == known.sha256:
        return Check(
            name, path.name, "ok", f"{known.rows:,} {known.what}, as distributed by {known.origin}"
        )
    count = COUNTS.get(path.name)
    try:
        rows = count(path) if count else 0
    except MissingExtraError as error:
        return Check(name, path.name, "unknown version", str(error))
    except DiscodeError as error:
        return Check(name, path.name, "damaged", str(error))
    counted = f"{rows:,} {known.what}" if count else "rows are checked when it is loaded"
    if known.rows and rows != known.rows:
        detail = f"{counted}, should be {known.rows:,}"
        return Check(name, path.name, "damaged", detail)
    if not known.sha256:
        return Check(name, path.name, "ok", f"{counted}; no checksum is known")
    return Check(
        name, path.name, "unknown version", f"{counted}, as it should be; another SHA-256: {digest}"
    )


def _images(name: str, folder: Path) -> Check:
    """Load with the defaults and count the pictures that are there."""
    try:
        benchmark = load_benchmark(name, folder)
    except MissingExtraError as error:
        return Check(name, "images", "unknown version", str(error))
    except DiscodeError as error:
        return Check(name, "(all files together)", "damaged", str(error))
    images = {
        number: str(pair.image)
        for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True)
    }
    missing = sum(not Path(image).is_file() for image in images.values())
    there = f"{len(images) - missing:,} of {len(images):,} pictures"
    if missing:
        return Check(name, "images", "missing", f"{there}; metrics of text alone can be run")
    return Check(name, "images", "ok", there)


def unusual(benchmark: Benchmark) -> list[str]:
    """Return a line on each file that is not the one the published cells were reproduced with."""
    known = BENCHMARKS[benchmark.name].facts.files
    return [
        f"{name} is another version than the one known to reproduce published numbers; discode "
        "bench check looks closer"
        for name, digest in benchmark.checksums.items()
        if name in known and known[name].sha256 not in ("", digest)
    ]
