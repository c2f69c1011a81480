"""Flickr8k-Expert and Flickr8k-CF (Hodosh et al. 2013): ratings of captions of Flickr8k's images.

The publisher's files are tab-separated without a header: an image, the id of a caption (mostly
another image's), and the judgments; ``Flickr8k.token.txt`` has the captions. The JSON that
CLIPScore made of them, and PAC-S and FLEUR pass on, is read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Ratings,
)
from discode.benchmarks._parsing import Entry, read_object, read_tsv
from discode.errors import InputError
from discode.options import Option

_EXPERT_FIELDS = ("image", "caption id", "expert 1", "expert 2", "expert 3")
_CROWD_FIELDS = ("image", "caption id", "share of yes", "yes", "no")


class _Row(NamedTuple):
    """A caption of an image, what each rater gave it, and the image's references."""

    image: str
    caption: str
    key: str
    """The caption's id, or its number among those of the image."""
    votes: tuple[float, ...]
    references: tuple[str, ...]


def load_expert(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read Flickr8k-Expert: 5,822 rows, of which 5,664 have a caption of another image.

    The published cells come from ``experts=flatten`` (16,992 points) and ``self_references=drop``:
    a caption that is one of the image's own references would be compared with itself.
    """
    files = EXPERT.find_files(folder)
    rows = _read(files, _EXPERT_FIELDS, _expert_votes, 1, 4)
    notes = []
    if options["self_references"] == "drop":
        others = [row for row in rows if row.caption not in row.references]
        if len(others) < len(rows):
            notes.append(
                f"{len(rows) - len(others)} rows dropped: "
                "the caption is one of the image's own references"
            )
        rows = others
    return _build(EXPERT, folder, options, files, rows, notes)


def load_cf(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read Flickr8k-CF: 47,830 rows, each the share of crowd workers who said yes.

    With ``references=clean`` (the published protocol) a reference that equals any judged caption
    of the image is not used as a reference for that image.
    """
    files = CF.find_files(folder)
    rows = _read(files, _CROWD_FIELDS, _crowd_vote, 0, 1)
    notes = []
    if options["references"] == "clean":
        judged = {(row.image, row.caption) for row in rows}
        removed = {(row.image, text) for row in rows for text in row.references} & judged
        if removed:
            notes.append(
                f"{len(removed)} references removed: they are judged captions of the image"
            )
        rows = [
            row._replace(
                references=tuple(text for text in row.references if (row.image, text) not in judged)
            )
            for row in rows
        ]
    return _build(CF, folder, options, files, rows, notes)


def _read(
    files: Mapping[str, Path],
    fields: Sequence[str],
    votes: Callable[[Entry], tuple[float, ...]],
    low: float,
    high: float,
) -> list[_Row]:
    path, *others = files.values()
    if not others:
        return _read_clipscore(path, low, high)
    captions = _read_tokens(others[0])
    references: dict[str, list[str]] = {}
    for key, caption in captions.items():
        references.setdefault(key.rpartition("#")[0], []).append(caption)
    rows: dict[tuple[str, str], _Row] = {}
    for entry in read_tsv(path, fields):
        image, key = entry.get("image"), entry.get("caption id")
        if missing := [image] * (image not in references) + [key] * (key not in captions):
            raise InputError(f"{entry.where}: {missing[0]!r} is not in {others[0].name}")
        entry.check_new((image, key), rows)
        rows[image, key] = _Row(image, captions[key], key, votes(entry), tuple(references[image]))
    return list(rows.values())


def _build(
    benchmark: BenchmarkRow,
    folder: Path,
    options: Mapping[str, Any],
    files: Mapping[str, Path],
    rows: Sequence[_Row],
    notes: list[str],
) -> Benchmark:
    builder = BenchmarkBuilder(benchmark, folder)
    rated = []
    for row in rows:
        name = f"{row.image}#{row.key}"
        for rater, vote in enumerate(row.votes):
            if not math.isnan(vote):
                pair = builder.add(row.image, row.caption, row.references, name)
                rated.append((pair, vote, rater))
    if empty := sum(len(row.votes) for row in rows) - len(rated):
        notes.append(f"{empty} ratings left out: the file has NaN for them")
    judgments = Ratings.of(rated)
    if options.get("experts") == "average":
        judgments = judgments.averaged()
    return builder.build(options, judgments, list(files.values()), notes)


def _read_tokens(path: Path) -> dict[str, str]:
    """Read Flickr8k.token.txt: caption by id, "IMAGE#0" to "IMAGE#4"."""
    captions: dict[str, str] = {}
    for entry in read_tsv(path, ("caption id", "caption")):
        key = entry.get("caption id")
        if "#" not in key:
            raise entry.error("caption id", "like IMAGE.jpg#0")
        entry.check_new(key, captions)
        captions[key] = " ".join(entry.get("caption").split())
    return captions


def _expert_votes(entry: Entry) -> tuple[float, ...]:
    return tuple(entry.whole(name, 1, 4) for name in _EXPERT_FIELDS[2:])


def _crowd_vote(entry: Entry) -> tuple[float, ...]:
    """Read the share of yes, which must match the counts in the same row."""
    vote = entry.number("share of yes", 0, 1)
    yes, no = (entry.whole(name, 0, 10**6) for name in ("yes", "no"))
    if not yes + no or abs(vote - yes / (yes + no)) > 1e-3:
        raise entry.error("share of yes", f"yes/(yes+no) of {yes} and {no}")
    return (vote,)


def _read_clipscore(path: Path, low: float, high: float) -> list[_Row]:
    """Read CLIPScore's JSON, which has one entry per rating of a caption."""
    rows = []
    for key, fields in read_object(path).fields.items():
        entry = Entry(fields, f"{path.name} image {key!r}")
        image, references = Path(entry.text("image_path")).name, entry.texts("ground_truth")
        votes: dict[str, list[float]] = {}
        for judgement in entry.entries("human_judgement", "judgement"):
            caption = " ".join(judgement.text("caption").split())
            rating = judgement.get("rating")
            empty = isinstance(rating, float) and math.isnan(rating)
            vote = rating if empty else judgement.number("rating", low, high)
            votes.setdefault(caption, []).append(vote)
        rows += [
            _Row(image, caption, str(i), tuple(ratings), references)
            for i, (caption, ratings) in enumerate(votes.items())
        ]
    return rows


_COPY = "copies of Flickr8k_text.zip (github.com/rokaHakor/ImageCaptioning, Arun-kr630/ca)"
_TOKENS = DataFile(
    "fc18d93dd1816b367a790e08c73c10b4ef1465102bad4f2412f19ea967c1344a",
    _COPY,
)

EXPERT = BenchmarkRow(
    "flickr8k-expert",
    "Flickr8k-Expert",
    "5,822 captions, three experts each, 1-4; τ",
    load_expert,
    source="Flickr8k_text.zip and Flickr8k_Dataset.zip (github.com/jbrownlee/Datasets/releases)",
    licence="research and education; the photographs are their photographers'",
    citation="Hodosh, Young, Hockenmaier: Framing Image Description as a Ranking Task. "
    "JAIR 47 (2013)",
    forms=(("ExpertAnnotations.txt", "Flickr8k.token.txt"), ("flickr8k.json",)),
    files={
        "ExpertAnnotations.txt": DataFile(
            "e604ba9c13158f74dcc6319362ff3c10a30d883851618b49054a75aab8cb8e6b",
            _COPY,
        ),
        "Flickr8k.token.txt": _TOKENS,
        "flickr8k.json": DataFile(),
    },
    folders=("flickr8k", "Flickr8k", "flickr8k_text", "Flickr8k_text"),
    image_folders=(
        "images",
        "Images",
        "Flicker8k_Dataset",
        "Flickr8k_Dataset",
        "Flickr8k_Dataset/Flicker8k_Dataset",
        "",
    ),
    options=(
        Option(
            "experts", "flatten", "three points per caption, or their mean", ("flatten", "average")
        ),
        Option(
            "self_references",
            "drop",
            "captions that are among the image's references",
            ("drop", "keep"),
        ),
    ),
    published_sizes=lambda options: (
        (
            1000,
            {"drop": 5664, "keep": 5822}[options["self_references"]]
            * {"flatten": 3, "average": 1}[options["experts"]],
        ),
    ),
)

CF = replace(
    EXPERT,
    name="flickr8k-cf",
    title="Flickr8k-CF",
    about="47,830 captions, share of crowd workers who said yes; τ",
    load=load_cf,
    forms=(("CrowdFlowerAnnotations.txt", "Flickr8k.token.txt"), ("crowdflower_flickr8k.json",)),
    files={
        "CrowdFlowerAnnotations.txt": DataFile(
            "9ce4a12d14634554983be996319452efd74f10a4e666088dc9f8dff83977e462",
            _COPY,
        ),
        "Flickr8k.token.txt": _TOKENS,
        "crowdflower_flickr8k.json": DataFile(),
    },
    options=(
        Option("references", "clean", "without the judged captions of the image", ("clean", "all")),
    ),
    main_tau="tau_b",
    published_sizes=lambda options: ((1000, 47_830),),
)
