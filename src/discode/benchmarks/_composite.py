"""Composite (Aditya et al. 2015): how correct captions of Flickr8k, Flickr30k and COCO are, 1-5.

Three captions per image; the one at position 0 was written by a person. The file is one JSON object
of three lists (flickr8k, flickr30k, coco), whose entries have image, caption, human, and where they
were added references and position.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from discode._files import read_rows
from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Ratings,
)
from discode.benchmarks._parsing import Entry, letters_and_digits, read_object
from discode.errors import InputError, lookup
from discode.options import Option

SOURCES = {"8k": "flickr8k", "30k": "flickr30k", "coco": "coco"}
"""The lists of the file by the value of the option ``source``."""


class _Row(NamedTuple):
    """A caption, how correct it is, its place among its image's, and its references if known."""

    image: str
    caption: str
    human: int
    position: int
    references: tuple[str, ...] | None


def load_composite(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read Composite: 11,985 rows, of which 11,976 have references.

    The nine that lack them are kept for metrics that need none. With ``references=clean`` (the
    published protocol) the human candidate is taken out of the references of all three captions of
    its image; it is recognised by its letters and digits, since the candidates lost their
    punctuation. ``source`` restricts it to the captions of one of the three collections of images.
    """
    files = ROW.find_files(folder)
    parts = _read(files["composite.json"])
    if options["source"] != "all":
        source = SOURCES[options["source"]]
        parts = {source: lookup(parts, source, "source in composite.json")}
    rows = [row for part in parts.values() for row in part]
    notes = []
    bare = sum(row.references is None for row in rows)
    if bare == len(rows):
        notes.append("no references in the file: only metrics that need none can be scored")
    elif bare:
        notes.append(f"{bare} rows lack references: metrics that need them leave these out")
    human = {row.image: letters_and_digits(row.caption) for row in rows if row.position == 0}
    removed: set[str] = set()
    builder = BenchmarkBuilder(ROW, folder)
    judged = []
    for row in rows:
        references = row.references or ()
        if options["references"] == "clean":
            others = tuple(
                text for text in references if letters_and_digits(text) != human.get(row.image)
            )
            if len(others) < len(references):
                removed.add(row.image)
            references = others
        name = Path(row.image).name  # unique here, and users seldom keep the publishers' folders
        pair = builder.add(name, row.caption, references, f"{name}#{row.position}")
        judged.append((pair, row.human, 0))
    if removed:
        notes.append(f"the human candidate removed from the references of {len(removed)} images")
    return builder.build(options, Ratings.of(judged), list(files.values()), notes)


def _read(path: Path) -> dict[str, list[_Row]]:
    """Read the rows of composite.json by source, in file order."""
    content = read_object(path)
    rows: dict[str, list[_Row]] = {}
    for source in content.fields:
        places: Counter[str] = Counter()
        rows[source] = []
        for entry in content.entries(source, f"{source} entry"):
            image = entry.text("image")
            entry.fields.setdefault("position", places[image])
            places[image] += 1
            bare = entry.fields.get("references") is None
            human, position = entry.whole("human", 1, 5), entry.whole("position", 0, 99)
            references = None if bare else entry.texts("references")
            rows[source].append(_Row(image, entry.text("caption"), human, position, references))
    return rows


def join_composite(rows: Path, references: Path) -> str:
    """Make composite.json from FLEUR's rows and a table with the images' references.

    ``rows`` is FLEUR's annotations/composite.json, with image, caption and human; ``references``
    VisCE2's table of Composite, of which the columns image_path and references count. They are
    joined by the names of the images; images missing from the table have no references.
    """
    references_of: dict[str, list[str]] = {}
    for where, row in read_rows(references):
        entry = Entry(row, where)
        name, texts = Path(entry.text("image_path")).name, entry.get("references")
        entry.texts("references")  # checked, and kept as it is
        if references_of.setdefault(name, texts) != texts:
            raise InputError(f"{where}: {name} had different references in an earlier row")
    joined = {
        source: [
            row._asdict() | {"references": references_of.get(Path(row.image).name)} for row in part
        ]
        for source, part in _read(rows).items()
    }
    if all(row["references"] is None for entries in joined.values() for row in entries):
        raise InputError(f"{references.name} has none of the images of {rows.name}")
    return json.dumps(joined, indent=0)


ROW = BenchmarkRow(
    "composite",
    "Composite",
    "11,985 captions, rated 1-5 for correctness; τ",
    load_composite,
    source="github.com/Yebin46/FLEUR (annotations/composite.json), joined with references from "
    "github.com/Silviase/VisCE2; discode bench list composite says how",
    help="""\
First published at imagesdg.wordpress.com/image-to-scene-description-graph. Two repositories have
what is read here; fetch one file from each:

  1. rows: annotations/composite.json of github.com/Yebin46/FLEUR, commit b9cd6c9c
  2. references: github.com/Silviase/VisCE2, commit c8c56da1 (later ones lack it),
     results/inference/composite/liuhaotian/llava-v1.5-13b/caption/result.parquet

Then join them into the file that is read:

  discode bench join-composite annotations/composite.json result.parquet -o composite/composite.json

It says whether the result is, byte for byte, the version that reproduces the published numbers.
Images are sought below the folder: those of Flickr8k, Flickr30k and COCO val2014, from their own
publishers.""",
    licence="none stated",
    citation="Aditya et al.: From Images to Sentences through Scene Description Graphs. 2015",
    forms=(("composite.json",),),
    files={
        "composite.json": DataFile(
            "a23a815bd439a84088ba2749eed99bd5c506961a1375c78a576fd23edcda19f7",
            "this project: FLEUR's rows joined with the references of VisCE2",
        )
    },
    folders=("composite", "Composite"),
    image_folders=(
        "images", "", "Flickr8k_Dataset", "Flickr30k_Dataset", "val2014", "flickr8k",
        "flickr30k", "coco2014", "../flickr8k/images", "../flickr30k/images", "../coco/val2014",
    ),
    options=(
        Option("references", "clean", "without the human candidate", ("clean", "all")),
        Option(
            "source", "all", "captions of Flickr8k, Flickr30k or COCO alone", ("all", *SOURCES)
        ),
    ),
    # The second: without the nine rows that lack references.
    published_sizes=lambda options: ((3995, 11_985), (3992, 11_976)),
)  # fmt: skip
