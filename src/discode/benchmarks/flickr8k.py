"""Flickr8k-Expert and Flickr8k-CF (Hodosh et al. 2013): ratings of captions of Flickr8k's images.

The publisher's files are tab-separated without a header: an image, the id of a caption (mostly
another image's), and the judgments; ``Flickr8k.token.txt`` has the captions. The JSON that
CLIPScore made of them, and PAC-S and FLEUR pass on, is read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discode.benchmarks.base import Benchmark, Builder, Ratings, averaged, ratings
from discode.benchmarks.facts import FACTS
from discode.benchmarks.reading import (
    form_of,
    get,
    json_file,
    number,
    shown,
    table,
    text,
    texts,
    whole,
)
from discode.errors import InputError

EXPERT = ("image", "caption id", "expert 1", "expert 2", "expert 3")
CROWD = ("image", "caption id", "share of yes", "yes", "no")


@dataclass(frozen=True)
class Judged:
    """A caption of an image, what each rater gave it, and the image's references."""

    image: str
    caption: str
    key: str
    """The caption's id, or its number among those of the image."""
    votes: tuple[float, ...]
    references: tuple[str, ...] = ()


def load_expert(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read Flickr8k-Expert: 5,822 rows, of which 5,664 are of foreign captions.

    The published cells come from ``experts=flatten`` (16,992 points) and ``self_references=drop``:
    a caption that is one of the image's own references would be compared with itself.
    """
    name = "flickr8k-expert"
    files = form_of(name, folder)
    if "flickr8k.json" in files:
        rows = read_json(files["flickr8k.json"], 1, 4)
    else:
        rows = _join(files, "ExpertAnnotations.txt", read_expert)
    notes = []
    if options["self_references"] == "drop":
        kept = [row for row in rows if row.caption not in row.references]
        if len(kept) < len(rows):
            notes.append(
                f"{len(rows) - len(kept)} rows dropped: "
                "the caption is one of the image's own references"
            )
        rows = kept
    builder = Builder(folder, FACTS[name].images)
    judgments = _ratings(builder, rows, notes)
    if options["experts"] == "average":
        judgments = averaged(judgments)
    return builder.build(name, options, judgments, list(files.values()), notes)


def load_cf(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read Flickr8k-CF: 47,830 rows, each the share of crowd workers who said yes.

    With ``references=clean`` (the published protocol) a reference that equals any judged caption
    of the image is no reference of that image.
    """
    name = "flickr8k-cf"
    files = form_of(name, folder)
    if "crowdflower_flickr8k.json" in files:
        rows = read_json(files["crowdflower_flickr8k.json"], 0, 1)
    else:
        rows = _join(files, "CrowdFlowerAnnotations.txt", read_crowd)
    notes = []
    if options["references"] == "clean":
        judged: dict[str, set[str]] = {}
        for row in rows:
            judged.setdefault(row.image, set()).add(row.caption)
        removed = {(r.image, own) for r in rows for own in r.references if own in judged[r.image]}
        if removed:
            notes.append(
                f"{len(removed)} references removed: they are judged captions of the image"
            )
        rows = [
            replace(
                row,
                references=tuple(own for own in row.references if own not in judged[row.image]),
            )
            for row in rows
        ]
    builder = Builder(folder, FACTS[name].images)
    judgments = _ratings(builder, rows, notes)
    return builder.build(name, options, judgments, list(files.values()), notes)


def _join(
    files: Mapping[str, Path],
    annotations: str,
    read: Callable[[Path, Mapping[str, str]], list[Judged]],
) -> list[Judged]:
    """Return the publisher's rows with their captions and references."""
    captions = read_tokens(files["Flickr8k.token.txt"])
    own: dict[str, list[str]] = {}
    for key, caption in captions.items():
        own.setdefault(key.rpartition("#")[0], []).append(caption)
    return [
        replace(row, caption=captions[row.key], references=tuple(own[row.image]))
        for row in read(files[annotations], captions)
    ]


def _ratings(builder: Builder, rows: Sequence[Judged], notes: list[str]) -> Ratings:
    empty = sum(math.isnan(vote) for row in rows for vote in row.votes)
    if empty:
        notes.append(f"{empty} ratings left out: the file has NaN for them")
    return ratings(
        [
            (
                builder.add(row.image, row.caption, row.references, f"{row.image}#{row.key}"),
                vote,
                rater,
            )
            for row in rows
            for rater, vote in enumerate(row.votes)
            if not math.isnan(vote)
        ]
    )


def read_tokens(path: Path) -> dict[str, str]:
    """Return Flickr8k.token.txt: caption by id, "IMAGE#0" to "IMAGE#4"."""
    captions: dict[str, str] = {}
    for where, (key, caption) in table(path, ("caption id", "caption")):
        if "#" not in key:
            raise InputError(f"{where}: caption id must look like IMAGE.jpg#0, not {key!r}")
        if key in captions:
            raise InputError(f"{where}: caption id {key!r} was there before; ids must be unique")
        captions[key] = " ".join(caption.split())
    if not captions:
        raise InputError(f"{path.name} holds no captions")
    return captions


def read_expert(path: Path, captions: Mapping[str, str] | None = None) -> list[Judged]:
    """Return the rows of ExpertAnnotations.txt, their ids checked against ``captions``."""
    return [
        Judged(
            cells[0],
            "",
            cells[1],
            tuple(
                whole(cell, name, where, 1, 4)
                for name, cell in zip(EXPERT[2:], cells[2:], strict=True)
            ),
        )
        for where, cells in _annotations(path, captions, EXPERT)
    ]


def read_crowd(path: Path, captions: Mapping[str, str] | None = None) -> list[Judged]:
    """Return the rows of CrowdFlowerAnnotations.txt: the vote is the share of yes."""
    rows = []
    for where, (image, key, share, yes, no) in _annotations(path, captions, CROWD):
        found = number(share, "share of yes", where, 0, 1)
        said = whole(yes, "yes", where, 0, 10**6)
        total = said + whole(no, "no", where, 0, 10**6)
        if not total or abs(found - said / total) > 1e-3:
            raise InputError(f"{where}: share of yes {share} is not yes/(yes+no) of {yes} and {no}")
        rows.append(Judged(image, "", key, (found,)))
    return rows


def _annotations(
    path: Path, captions: Mapping[str, str] | None, fields: tuple[str, ...]
) -> list[tuple[str, list[str]]]:
    rows, seen = [], set()
    images = None if captions is None else {key.rpartition("#")[0] for key in captions}
    for where, cells in table(path, fields):
        image, key = cells[:2]
        if images is not None and image not in images:
            raise InputError(f"{where}: image {image!r} has no captions in Flickr8k.token.txt")
        if captions is not None and key not in captions:
            raise InputError(f"{where}: caption id {key!r} is not in Flickr8k.token.txt")
        if (image, key) in seen:
            raise InputError(f"{where}: {image} with {key} was there before; rows must be unique")
        seen.add((image, key))
        rows.append((where, cells))
    if not rows:
        raise InputError(f"{path.name} holds no rows")
    return rows


def read_json(path: Path, low: float, high: float) -> list[Judged]:
    """Return the rows of CLIPScore's JSON; a caption's ratings stand one after the other in it."""
    content = json_file(path)
    if not isinstance(content, dict):
        raise InputError(f"{path.name} must be an object of images, not {type(content).__name__}")
    rows = []
    for key, entry in content.items():
        where = f"{path.name} image {key!r}"
        image = Path(text(entry, "image_path", where)).name
        references = texts(get(entry, "ground_truth", where), "ground_truth", where)
        judged: Any = get(entry, "human_judgement", where)
        if not isinstance(judged, list):
            raise InputError(f"{where}: human_judgement must be a list, not {shown(judged)}")
        votes: dict[str, list[float]] = {}
        for i, judgement in enumerate(judged):
            place = f"{where} judgement {i}"
            caption = " ".join(text(judgement, "caption", place).split())
            rating = get(judgement, "rating", place)
            empty = isinstance(rating, float) and math.isnan(rating)
            vote = rating if empty else number(rating, "rating", place, low, high)
            votes.setdefault(caption, []).append(vote)
        rows += [
            Judged(image, caption, str(i), tuple(given), references)
            for i, (caption, given) in enumerate(votes.items())
        ]
    if not rows:
        raise InputError(f"{path.name} holds no judgements")
    return rows
