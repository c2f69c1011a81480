"""Small benchmarks in the publishers' formats, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TOKENS = "".join(
    f"{image}#{i}\t{caption} .\n"
    for image, captions in {
        "a.jpg": ["A dog runs", "A brown dog", "One dog outside", "A dog on grass", "Dog"],
        "b.jpg": ["Two cats", "Cats asleep", "A pair of cats", "Some cats", "Cats"],
        "c.jpg": ["A boat", "A ship at sea", "Boat on water", "A white boat", "Dog"],
    }.items()
    for i, caption in enumerate(captions)
)
EXPERT = (
    "a.jpg\ta.jpg#2\t4\t4\t4\n"  # the image's own: dropped
    "a.jpg\tb.jpg#2\t1\t1\t2\n"
    "b.jpg\tc.jpg#0\t1\t2\t3\n"
    "c.jpg\ta.jpg#0\t2\t2\t2"  # no newline at the end, as the publisher has it
)
CROWD = (
    "a.jpg\ta.jpg#2\t1\t3\t0\n"  # so it is not a reference of a.jpg
    "a.jpg\tb.jpg#2\t0\t0\t3\n"
    "b.jpg\tc.jpg#0\t0.333333333333333\t1\t2\n"
    "c.jpg\ta.jpg#4\t0.25\t1\t3\n"  # "Dog ." is a caption of c.jpg, too: removed there by its text
)
COMPOSITE: dict[str, Any] = {
    "flickr8k": [
        {"image": "Flickr8k_Dataset/a.jpg", "caption": "a dog in a t shirt", "human": 5,
         "position": 0, "references": ["A dog in a T-shirt .", "A dog"]},
        {"image": "Flickr8k_Dataset/a.jpg", "caption": "a cat", "human": 1, "position": 1,
         "references": ["A dog in a T-shirt .", "A dog"]},
        {"image": "Flickr8k_Dataset/a.jpg", "caption": "a cat", "human": 2, "position": 2,
         "references": ["A dog in a T-shirt .", "A dog"]},
    ],
    "coco": [
        {"image": "val2014/x.jpg", "caption": "a kite", "human": 3, "position": 0,
         "references": None},
    ],
}  # fmt: skip
FLEUR_COMPOSITE = {
    source: [{key: row[key] for key in ("image", "caption", "human")} for row in rows]
    for source, rows in COMPOSITE.items()
}
PASCAL: dict[str, Any] = {
    "HC": [
        {"image": "VOC/JPEGImages/a.jpg", "captions": ["one dog", "a dog"], "label": 1,
         "references": ["r0", "r1", "r2", "r3", "r4"]},
    ],
    "MM": [
        {"image": "VOC/JPEGImages/a.jpg", "captions": ["a dog", "a cat"], "label": 0,
         "references": ["r0", "r1", "r2", "r3", "r4"]},
        {"image": "VOC/JPEGImages/b.jpg", "captions": ["x", "y"], "label": 1,
         "references": ["s0", "s1", "s2", "s3", "s4"]},
    ],
}  # fmt: skip
VALSE: dict[str, Any] = {
    "11": {"image_file": "COCO_val2014_000000000042.jpg", "caption": "A bowl of food.",
           "foil": "A bottle of food.", "mturk": {"foil": 0, "caption": 3, "other": 0}},
    "12": {"image_file": "COCO_val2014_000000000042.jpg", "caption": "Food on a table.",
           "foil": "Food on a bed.", "mturk": {"foil": 1, "caption": 1, "other": 1}},
}  # fmt: skip
FOIL: dict[str, Any] = {
    "images": [{"id": 42, "file_name": "COCO_val2014_000000000042.jpg"}],
    "annotations": [
        {"id": 11, "foil_id": 1, "image_id": 42, "caption": "A bottle of food.", "foil": True,
         "target_word": "bowl", "foil_word": "bottle"},
        {"id": 11, "foil_id": 11, "image_id": 42, "caption": "A bowl of food.", "foil": False,
         "target_word": "ORIG", "foil_word": "ORIG"},
        {"id": 11, "foil_id": 2, "image_id": 42, "caption": "A cup of food.", "foil": True,
         "target_word": "bowl", "foil_word": "cup"},
    ],
}  # fmt: skip
COCO: dict[str, Any] = {
    "annotations": [
        {"image_id": 42, "id": i, "caption": caption}
        for i, caption in enumerate(
            ["A bowl of food", "Food in a bowl.", "Lunch.", "A meal", "Some food", "Dinner "]
        )
    ]
}
MCEVAL: list[dict[str, Any]] = [
    {"image": "real/1.png", "domain": "real", "candidates": ["a dog", "a cat"],
     "reference": "a brown dog", "preference": 0},
    {"image": "sketch/1.png", "domain": "sketch", "candidates": ["a line", "a house"],
     "reference": ["a house", "a drawn house"], "preference": 1},
]  # fmt: skip


def clipscore(rows: Mapping[str, list[tuple[str, list[float]]]]) -> dict[str, Any]:
    """Ratings in the JSON that CLIPScore made of Flickr8k."""
    return {
        image: {
            "image_id": image,
            "image_path": f"Flickr8k_Dataset/{image}.jpg",
            "ground_truth": [f"{image} one", f"{image}  two "],
            "human_judgement": [
                {"image_id": image, "caption": caption, "rating": rating}
                for caption, given in captions
                for rating in given
            ],
        }
        for image, captions in rows.items()
    }


def flickr8k(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Flickr8k.token.txt").write_text(TOKENS)
    (folder / "ExpertAnnotations.txt").write_text(EXPERT)
    (folder / "CrowdFlowerAnnotations.txt").write_text(CROWD)
    (folder / "Flicker8k_Dataset").mkdir(exist_ok=True)
    Image.new("RGB", (2, 2)).save(folder / "Flicker8k_Dataset" / "a.jpg")
    return folder


def several(folder: Path) -> Path:
    """A folder of folders: Flickr8k with all its images, and Composite without any."""
    images = flickr8k(folder / "flickr8k") / "Flicker8k_Dataset"
    for number, name in enumerate("abc"):
        Image.new("RGB", (20, 20), (80 * number, 90, 40)).save(images / f"{name}.jpg")
    write(folder / "composite" / "composite.json", COMPOSITE)
    return folder


def pascal50s(folder: Path) -> Path:
    import scipy.io

    write(folder / "pascal_50s.json", PASCAL)
    refs = [
        (image, np.array([f"{letter}{i}" for i in range(50)], object))
        for image, letter in (("a.jpg", "r"), ("b.jpg", "s"))
    ]
    kind = [("image", "O"), ("sent", "O")]
    scipy.io.savemat(folder / "pascal50S.mat", {"refs": np.array([refs], kind)})
    choices = [
        (each["image"][-5:], f" {each['captions'][0]} ", each["captions"][1])
        for entries in PASCAL.values()
        for each in entries
    ]
    votes = [[1, 1, 1], [1, 1, -1], [-1, -1, 1]]
    scipy.io.savemat(
        folder / "pair_pascal.mat",
        {
            "new_input": np.array([choices], [("name", "O"), ("sent1", "O"), ("sent2", "O")]),
            "category": np.array([[1, 4, 4]], np.uint8),
            "result": np.array([[(np.array([each]),) for each in votes]], [("result", "O")]),
        },
    )
    cands = [(image, np.array([a, b], object)) for image, a, b in choices]
    scipy.io.savemat(folder / "pascal_cands.mat", {"cands": np.array([cands], kind)})
    return folder


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        assert isinstance(content, list)
        path.write_text("\n".join(map(json.dumps, content)), encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def changed(content: Any, change: Callable[[Any], object]) -> Any:
    """A deep copy with one thing changed."""
    copy = json.loads(json.dumps(content))
    change(copy)
    return copy
