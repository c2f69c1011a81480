"""FOIL (Shekhar et al. 2017): a COCO caption against the same caption with one wrong noun.

Read from the original ``foilv1.0_test_2017.json`` (annotations that share an ``id`` are a caption
and its foils) or from VALSE's ``foil-it.json``; references come from COCO's captions, if there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode.benchmarks.base import Benchmark, Builder, preferences
from discode.benchmarks.facts import FACTS
from discode.benchmarks.reading import form_of, get, json_file, letters, text, whole
from discode.errors import InputError

COCO = "captions_val2014.json"


@dataclass(frozen=True)
class Choice:
    """A caption and its foil; ``valid`` says whether most people told them apart."""

    key: str
    image: str
    number: int
    """COCO's number of the image."""
    caption: str
    foil: str
    valid: bool = True


def load_foil(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read FOIL; the caption stands left, the foil right, and the caption is the right answer.

    ``references`` is how many of the image's other COCO captions a metric is shown: the paper has
    a column for 1 and one for 4. ``pairs=valid`` keeps what at least two of VALSE's three
    annotators told apart (943 of 1,000); the original file says nothing of that.
    """
    name = "foil"
    files = form_of(name, folder)
    (path,) = files.values()
    choices = read_foil(path) if path.name.startswith("foilv1") else read_valse(path)
    notes = []
    if options["pairs"] == "valid":
        kept = [choice for choice in choices if choice.valid]
        if len(kept) < len(choices):
            notes.append(f"{len(choices) - len(kept)} choices dropped: annotators did not agree")
        choices = kept
    wanted = int(options["references"])
    captions: dict[int, list[str]] = {}
    if wanted and (folder / COCO).is_file():
        files[COCO] = folder / COCO
        captions = read_coco(folder / COCO)
    elif wanted:
        notes.append(f"no references: {COCO} is not in {folder}")
    builder = Builder(folder, FACTS[name].images)
    judged, short = [], 0
    for choice in choices:
        own = [
            one
            for one in captions.get(choice.number, [])
            if letters(one) != letters(choice.caption)
        ][:wanted]
        short += bool(captions) and len(own) < wanted
        left = builder.add(choice.image, choice.caption, own, f"{choice.key}#caption")
        right = builder.add(choice.image, choice.foil, own, f"{choice.key}#foil")
        judged.append((left, right, 0, "foil"))
    if short:
        notes.append(f"{short} choices have fewer than {wanted} references")
    return builder.build(name, options, preferences(judged), list(files.values()), notes)


def read_valse(path: Path) -> list[Choice]:
    """Return the choices of VALSE's foil-it.json."""
    content = _object(path)
    choices = []
    for key, entry in content.items():
        where = f"{path.name} entry {key!r}"
        image = text(entry, "image_file", where)
        digits = Path(image).stem.rpartition("_")[2]
        votes = get(get(entry, "mturk", where), "caption", where)
        choices.append(
            Choice(
                key,
                image,
                whole(digits, "the number in image_file", where, 0, 10**12),
                text(entry, "caption", where),
                text(entry, "foil", where),
                whole(votes, "mturk caption", where, 0, 99) >= 2,
            )
        )
    return choices


def read_foil(path: Path) -> list[Choice]:
    """Return the choices of the original file: each foil with the caption it was made from."""
    content = _object(path)
    names = {}
    for i, entry in enumerate(_list(content, "images", path)):
        where = f"{path.name} image {i}"
        names[_number(entry, "id", where)] = text(entry, "file_name", where)
    captions: dict[str, str] = {}
    foils: list[tuple[str, str, str, int, str]] = []
    for i, entry in enumerate(_list(content, "annotations", path)):
        where = f"{path.name} annotation {i}"
        key, caption = str(get(entry, "id", where)), text(entry, "caption", where)
        flag = get(entry, "foil", where)
        if not isinstance(flag, bool):
            raise InputError(f"{where}: foil must be true or false, not {flag!r}")
        if flag:
            foil = str(get(entry, "foil_id", where))
            foils.append((where, key, foil, _number(entry, "image_id", where), caption))
        elif key in captions:
            raise InputError(f"{where}: id {key!r} has two captions that are no foils")
        else:
            captions[key] = caption
    choices = []
    for where, key, foil, number, caption in foils:
        if key not in captions:
            raise InputError(f"{where}: id {key!r} has a foil but no caption")
        if number not in names:
            raise InputError(f"{where}: image_id {number!r} is not among the images")
        choices.append(Choice(f"{key}-{foil}", names[number], number, captions[key], caption))
    if not choices:
        raise InputError(f"{path.name} holds no foils")
    return choices


def read_coco(path: Path) -> dict[int, list[str]]:
    """Return the captions of each image of COCO's captions_*.json, in its order."""
    captions: dict[int, list[str]] = {}
    for i, entry in enumerate(_list(_object(path), "annotations", path)):
        where = f"{path.name} annotation {i}"
        number = _number(entry, "image_id", where)
        captions.setdefault(number, []).append(" ".join(text(entry, "caption", where).split()))
    return captions


def _number(entry: Any, name: str, where: str) -> int:
    return whole(get(entry, name, where), name, where, 0, 10**12)


def _object(path: Path) -> dict[str, Any]:
    content = json_file(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path.name} must be an object with entries")
    return content


def _list(content: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    entries = get(content, name, path.name)
    if not isinstance(entries, list):
        raise InputError(f"{path.name}: {name} must be a list")
    return entries
