"""Composite (Aditya et al. 2015): how correct captions of Flickr8k, Flickr30k and COCO are, 1-5.

Three captions an image, of which position 0 is a person's. One JSON object of three lists
(flickr8k, flickr30k, coco) with image, caption, human, and where they were added references and
position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from discode.benchmarks.base import Benchmark, Builder, ratings
from discode.benchmarks.facts import FACTS
from discode.benchmarks.reading import form_of, get, json_file, letters, shown, text, texts, whole
from discode.errors import InputError


@dataclass(frozen=True)
class Judged:
    """A caption, its correctness, its place among its image's, and the references if known."""

    image: str
    caption: str
    human: int
    position: int
    references: tuple[str, ...] | None


def load_composite(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read Composite: 11,985 rows, of which 11,976 have references.

    With ``references=clean`` (the published protocol) the human candidate is taken out of the
    references of all three captions of its image; it is known by its letters and digits, since
    the candidates lost their marks.
    """
    name = "composite"
    files = form_of(name, folder)
    rows = read_composite(files["composite.json"])
    notes = []
    bare = sum(row.references is None for row in rows)
    if bare == len(rows):
        notes.append("no references in the file: only metrics that need none can be scored")
    elif bare:
        notes.append(f"{bare} rows dropped: they lack references")
        rows = [row for row in rows if row.references is not None]
    human = {row.image: letters(row.caption) for row in rows if row.position == 0}
    removed: set[str] = set()
    builder = Builder(folder, FACTS[name].images)
    judged = []
    for row in rows:
        references = row.references or ()
        if options["references"] == "clean":
            kept = tuple(one for one in references if letters(one) != human.get(row.image))
            if len(kept) < len(references):
                removed.add(row.image)
            references = kept
        key = f"{Path(row.image).name}#{row.position}"
        judged.append((builder.add(row.image, row.caption, references, key), row.human, 0))
    if removed:
        notes.append(f"the human candidate removed from the references of {len(removed)} images")
    return builder.build(name, options, ratings(judged), list(files.values()), notes)


def read_composite(path: Path) -> list[Judged]:
    """Return the rows of composite.json in its order."""
    content = json_file(path)
    if not isinstance(content, dict):
        raise InputError(
            f"{path.name} must be an object of lists (flickr8k, flickr30k, coco), "
            f"not {type(content).__name__}"
        )
    rows = []
    for source, entries in content.items():
        if not isinstance(entries, list):
            raise InputError(f"{path.name}: {source!r} must be a list, not {shown(entries)}")
        places: Counter[str] = Counter()
        for i, entry in enumerate(entries):
            where = f"{path.name} {source} entry {i}"
            image = text(entry, "image", where)
            references = entry.get("references")
            position = entry.get("position", places[image])
            places[image] += 1
            rows.append(
                Judged(
                    image,
                    text(entry, "caption", where),
                    whole(get(entry, "human", where), "human", where, 1, 5),
                    whole(position, "position", where, 0, 99),
                    texts(references, "references", where) if references is not None else None,
                )
            )
    if not rows:
        raise InputError(f"{path.name} holds no rows")
    return rows
