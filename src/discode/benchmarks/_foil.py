"""FOIL (Shekhar et al. 2017): a COCO caption against the same caption with one wrong noun.

Read from the original ``foilv1.0_test_2017.json`` (annotations that share an ``id`` are a caption
and its foils) or from VALSE's ``foil-it.json``; references come from COCO's captions, if there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Preferences,
)
from discode.benchmarks._parsing import Entry, letters_and_digits, read_object
from discode.errors import InputError
from discode.options import Numbers, Option

_COCO = "captions_val2014.json"


class _Choice(NamedTuple):
    """A caption and its foil; ``valid`` is whether most people told them apart."""

    key: str
    image: str
    number: int
    """COCO's number of the image."""
    caption: str
    foil: str
    valid: bool = True


def load_foil(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read FOIL: the caption is on the left, its foil on the right; the caption is correct.

    ``references`` is how many of the image's other COCO captions a metric is shown: the paper has
    a column for 1 and one for 4. ``pairs=valid`` keeps what at least two of VALSE's three
    annotators told apart (943 of 1,000); the original file has no such votes.
    """
    files = ROW.find_files(folder)
    (path,) = files.values()
    choices = [*(_read_foil if path.name.startswith("foilv1") else _read_valse)(path)]
    notes = []
    if options["pairs"] == "valid":
        agreed = [choice for choice in choices if choice.valid]
        if len(agreed) < len(choices):
            notes.append(f"{len(choices) - len(agreed)} choices dropped: annotators did not agree")
        choices = agreed
    wanted = options["references"]
    captions: dict[int, list[str]] = {}
    if wanted and (folder / _COCO).is_file():
        files[_COCO] = folder / _COCO
        captions = _read_coco(folder / _COCO)
    elif wanted:
        notes.append(f"no references: {_COCO} is not in {folder}")
    builder = BenchmarkBuilder(ROW, folder)
    judged, short = [], 0
    for choice in choices:
        references = [
            text
            for text in captions.get(choice.number, [])
            if letters_and_digits(text) != letters_and_digits(choice.caption)
        ][:wanted]
        short += bool(captions) and len(references) < wanted
        left = builder.add(choice.image, choice.caption, references, f"{choice.key}#caption")
        right = builder.add(choice.image, choice.foil, references, f"{choice.key}#foil")
        judged.append((left, right, 0, "foil"))
    if short:
        notes.append(f"{short} choices have fewer than {wanted} references")
    return builder.build(options, Preferences.of(judged), list(files.values()), notes)


def _read_valse(path: Path) -> Iterator[_Choice]:
    for key, fields in read_object(path).fields.items():
        entry = Entry(fields, f"{path.name} entry {key!r}")
        image = entry.text("image_file")
        digits = Entry({"image_file": Path(image).stem.rpartition("_")[2]}, entry.where)
        number = _number(digits, "image_file")
        people = Entry(entry.get("mturk"), f"{entry.where} mturk").whole("caption", 0, 99)
        yield _Choice(key, image, number, entry.text("caption"), entry.text("foil"), people >= 2)


def _read_foil(path: Path) -> Iterator[_Choice]:
    """Read the original file: each foil with the caption it was made from."""
    content = read_object(path)
    names = {
        _number(image, "id"): image.text("file_name")
        for image in content.entries("images", "image")
    }
    captions: dict[str, str] = {}
    foils: list[Entry] = []
    for entry in content.entries("annotations", "annotation"):
        key, caption = str(entry.get("id")), entry.text("caption")
        if not isinstance(entry.get("foil"), bool):
            raise entry.error("foil", "true or false")
        if entry.get("foil"):
            foils.append(entry)
        else:
            entry.check_new(key, captions)
            captions[key] = caption
    for foil in foils:
        key, number = str(foil.get("id")), _number(foil, "image_id")
        if key not in captions:
            raise InputError(f"{foil.where}: id {key!r} has a foil but no caption")
        if number not in names:
            raise InputError(f"{foil.where}: image_id {number!r} is not among the images")
        name = f"{key}-{foil.get('foil_id')}"
        yield _Choice(name, names[number], number, captions[key], foil.text("caption"))


def _read_coco(path: Path) -> dict[int, list[str]]:
    """Read the captions of each image, in file order."""
    captions: dict[int, list[str]] = {}
    for entry in read_object(path).entries("annotations", "annotation"):
        caption = " ".join(entry.text("caption").split())
        captions.setdefault(_number(entry, "image_id"), []).append(caption)
    return captions


def _number(entry: Entry, name: str) -> int:
    return entry.whole(name, 0, 10**12)


ROW = BenchmarkRow(
    "foil",
    "FOIL",
    "a COCO caption or the same with one wrong noun; accuracy",
    load_foil,
    source="foilunitn.github.io (foilv1.0_test_2017.json), or github.com/Heidelberg-NLP/VALSE "
    "(foil-it.json, 1,000 of them); references: COCO's captions_val2014.json",
    licence="VALSE's file MIT, the original none stated; COCO captions CC BY 4.0",
    citation="Shekhar et al.: FOIL it! ACL 2017; Parcalabescu et al.: VALSE. ACL 2022",
    forms=(("foilv1.0_test_2017.json",), ("foil-it.json",)),
    files={
        "foil-it.json": DataFile(
            "6f6f0d7494271ed28f6e6f075c3ba36ba1bc45d00ecf7403920f060915130460",
            "github.com/Heidelberg-NLP/VALSE",
        ),
        "foilv1.0_test_2017.json": DataFile(),
        _COCO: DataFile(),
    },
    optional=(_COCO,),
    folders=("foil", "FOIL"),
    image_folders=("images", "val2014", "", "../coco/val2014"),
    options=(
        Option(
            "references",
            4,
            "other COCO captions of the image",
            (Numbers("0, 1, 4", (0, 1, 4).__contains__, whole=True),),
            affects_published=False,
        ),
        Option(
            "pairs",
            "all",
            "or those that VALSE's annotators told apart",
            ("all", "valid"),
            affects_published=False,
        ),
    ),
    published_column="foil {references}-ref",
    # The test set by Table 1 of its paper; VALSE's 1,000 are other data.
    published_sizes=lambda options: ((32_150, 99_480),),
)
