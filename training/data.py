"""Prepare everything that training reads: python -m training.data FOLDER [FOLDER ...] [--limit N]

Each FOLDER is a source of images (``sources.py``); a source goes by its folder's name. Flickr8k's
test images are packed for the final evaluation only; no test caption, and no judgment, is used for
the vocabulary, the labels or anything else here.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from discode._probe.wrong_words import WORDS, swap
from discode.backends._embedded.tokenizer import Bpe, byte_alphabet
from training import common, extras, parts, people, questions, sources, statements
from training.sources import SPLITS, Item
from training.wrong_words import (
    PENALTY,
    SPLICED,
    add_number,
    names_side,
    splice,
    swap_people,
    swap_side,
)


def pack_images(
    paths: Sequence[Path], size: int, quality: int, kind: str = "JPEG"
) -> dict[str, np.ndarray]:
    """Squash images to size x size and pack them as JPEG or WebP."""

    def encode(path: Path) -> bytes:
        with Image.open(path) as image:
            small = image.convert("RGB")
            if small.size != (size, size):
                small = small.resize((size, size), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        small.save(buffer, kind, quality=quality, method=2)  # WebP: 6 is a tenth smaller, but slow
        return buffer.getvalue()

    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(encode, paths))
    offsets = np.cumsum([0, *map(len, files)]).astype(np.int64)
    return {"bytes": np.frombuffer(b"".join(files), np.uint8), "offset": offsets}


def stem(word: str) -> str:
    """Strip the commonest English endings; enough to match runs, running and run."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word.rstrip("e")


class TfIdf:
    """Normalised tf-idf rows (sparse), with document frequencies from training captions."""

    STOP = frozenset(
        "a an the of in on at with and be to is are its his her their it he she they that this "
        "another through by from for as up down into while over near next front out who which "
        "there one".split()
    )

    def __init__(self, captions: list[str]) -> None:
        self.documents = len(captions)
        self.frequency = Counter(word for text in captions for word in set(self.stems(text)))
        common_first = self.frequency.most_common()
        self.words = {w: i for i, (w, count) in enumerate(common_first) if count >= 3}

    def stems(self, text: str) -> list[str]:
        """Return a caption's stems, stop words left out."""
        return [stem(word) for word in re.findall(r"[a-z]+", text) if word not in self.STOP]

    def __call__(self, captions: list[str]) -> dict[str, Any]:
        """Return the rows of captions as row, column, value and shape."""
        r, c, v = [], [], []
        for number, text in enumerate(captions):
            counts = Counter(word for word in self.stems(text) if word in self.words)
            if counts:
                idf = [np.log(self.documents / self.frequency[word]) for word in counts]
                values = np.array(idf) * list(counts.values())
                r += [number] * len(values)
                c += [self.words[word] for word in counts]
                v += (values / (np.linalg.norm(values) + 1e-9)).tolist()
        return {
            "row": np.array(r, np.int32),
            "column": np.array(c, np.int16),
            "value": np.array(v, np.float16),
            "shape": np.array([len(captions), len(self.words)]),
        }


def wrong_captions(
    items: Sequence[Item], each: int, seed: int
) -> list[list[tuple[int, str, float]]]:
    """Return, per image, (number of the source caption, text, penalty) of its wrong captions.

    All captions of an image take turns, so that neighbours come from different ones.
    """
    rng = random.Random(seed)
    everything = [text for item in items for text in item.captions]
    first, rows = 0, []
    for item in items:
        made: dict[str, tuple[int, str, float]] = {}
        for _ in range(each):
            for number, caption in enumerate(item.captions):
                text, penalty = _spoil(caption, item.captions, everything, rng)
                made.setdefault(text, (first + number, text, penalty))
        rows.append(list(made.values()))
        first += len(item.captions)
    return rows


def _spoil(
    caption: str, references: Sequence[str], everything: Sequence[str], rng: random.Random
) -> tuple[str, float]:
    """Return a caption with one wrong word, or two, or a wrong half, and its penalty."""
    swapped = None
    if rng.random() > 0.12:
        # Numbers, colours and who it is are hard to see: preferred where the caption has some.
        kind = rng.choice(("number", "number", "colour", "colour", "people", "action", "", ""))
        if rng.random() < 0.5:
            swapped = swap_side(caption, references)
        if swapped is None and kind == "people":
            swapped = swap_people(caption, references, rng)
        elif swapped is None and kind:
            swapped = swap(caption, references, rng, kind)
        if kind == "number" and swapped is None:
            swapped = add_number(caption, references, rng)
        swapped = swapped or swap(caption, references, rng)
    if swapped is None:
        return splice(caption, rng.choice(everything)), SPLICED
    text, kind = swapped
    penalty = PENALTY[kind]
    if rng.random() < 0.1 and (again := swap(text, references, rng)):
        text, penalty = again[0], min(7.0, penalty + PENALTY[again[1]])
    return text, penalty


def choose_vocabulary(bpe: Bpe, texts: list[str], size: int) -> Bpe:
    """Keep the tokens that training texts use, then the most frequent others, closed under BPE.

    A token stays only with the two it merges from, so that the kept merges reach it.
    """
    parents = {a + b: (a, b) for a, b in reversed(bpe.merges)}
    kept: dict[str, None] = dict.fromkeys([*byte_alphabet().values(), common.START, common.END])

    def keep(token: str) -> None:
        if token not in kept:
            for parent in parents.get(token, ()):
                keep(parent)
            kept[token] = None

    used = Counter(i for text in texts for i in bpe.encode(text))
    for i, _ in used.most_common():
        if len(kept) >= size - len(common.STEMS) - 8:  # a token may bring parents
            break
        keep(bpe.tokens[i])
    for a, b in bpe.merges:  # in the order of their frequency in the tokenizer's own corpus
        if len(kept) >= size - len(common.STEMS):
            break
        if (a + b).removeprefix("Ġ").isalpha() and (a + b).islower():
            keep(a + b)
    tokens = [*kept, *common.STEMS]
    merges = [pair for pair in bpe.merges if pair[0] + pair[1] in kept and set(pair) <= kept.keys()]
    return Bpe(tokens, merges)


def write_images(items: dict[str, list[Item]], settings: dict[str, Any]) -> None:
    """Write the images of all splits; those of training in parcels, each a draw from all sources.

    So training may begin with the first parcel while the others are still on their way.
    """
    size = settings["image_size"]
    for split in ("dev", "test"):
        paths = [item.path for item in items[split]]
        measured = settings["measured_size"], settings["quality"]
        common.save_arrays(f"{split}.npz", pack_images(paths, *measured))
    numbers = np.random.default_rng(0).permutation(len(items["train"]))
    parcels = -(-len(numbers) // settings["parcel"])
    for parcel, part in enumerate(np.array_split(numbers, parcels)):
        paths = [items["train"][i].path for i in part]
        packed = pack_images(paths, size, settings["train_quality"], "WebP")
        packed |= {"number": part.astype(np.int32), "parcels": np.array(parcels)}
        common.save_arrays(f"train_{parcel:02}.npz", packed)


def vocabulary_of(file: Path) -> Bpe:
    """Return a finished file's own vocabulary: a run that starts from its weights needs it."""
    import onnx

    model = onnx.load(file, load_external_data=False)
    about = {entry.key: entry.value for entry in model.metadata_props}
    tokens, ids = json.loads(about["tokens"]), iter(json.loads(about["merges"]))
    return Bpe(tokens, [(tokens[a], tokens[b]) for a, b in zip(ids, ids, strict=True)])


def write_text(items: dict[str, list[Item]], settings: dict[str, Any]) -> None:
    """Write captions, right and wrong, as ids, the tokenizer and the pretrained parts."""
    captions = [text for item in items["train"] for text in item.captions]
    wrong = wrong_captions(items["train"], settings["perturbations"], seed=0)
    made = [row for rows in wrong for row in rows]
    extra, before = extras.draw(settings["extras"], seed=0)
    stated = statements.make(items["train"], seed=0)
    written = statements.machine_captions(items["train"])
    common.save_json("captions.json", {"train": captions, "machine": [row[1] for row in written]})

    full = parts.language_tokenizer()
    instruction = parts.instruction()
    lists = [" " + word for words in WORDS.values() for word in words]
    texts = [f" {text}" for text in (*captions, *(row[1] for row in made), *extra)]
    if "file" in settings:
        bpe = vocabulary_of(settings["file"])
    else:
        bpe = choose_vocabulary(full, [*lists, *texts, instruction], settings["vocabulary"])
    common.save_json("tokenizer.json", {"tokens": bpe.tokens, "merges": bpe.merges})

    arrays: dict[str, Any] = {}
    for name, texts in (
        ("train", captions),
        ("wrong", [row[1] for row in made]),
        ("extra", extra),
        ("statement", [text for rows in stated for text, _ in rows]),
        ("machine", [text for _, text, _ in written]),
    ):
        encoded = [bpe.encode(t if t.startswith(".") else f" {t}") for t in texts]
        arrays[name], arrays[f"{name}_offset"] = common.ragged(encoded)
    for split in ("train", "dev"):  # captions of image i: first[i] ... first[i + 1]
        counts = [len(item.captions) for item in items[split]]
        arrays[f"{split}_first"] = np.cumsum([0, *counts])
    arrays["wrong_first"] = np.cumsum([0, *map(len, wrong)])
    arrays["wrong_source"] = np.array([row[0] for row in made], np.int32)
    arrays["wrong_penalty"] = np.array([row[2] for row in made], np.float16)
    arrays["extra_before"] = np.array(before)
    arrays["own"] = np.array([statements.specificity(text) for text in captions], np.float16)
    arrays["sided"] = np.array([any(map(names_side, item.captions)) for item in items["train"]])
    arrays["statement_first"] = np.cumsum([0, *map(len, stated)])
    arrays["statement_rating"] = np.array([r for rows in stated for _, r in rows], np.float16)
    arrays["machine_owner"] = np.array([row[0] for row in written], np.int32)
    arrays["machine_penalty"] = np.array([row[2] for row in written], np.float16)
    arrays["instruction"] = np.array(bpe.encode(instruction), np.int32)
    np.savez_compressed(common.BUILD / "text.npz", **arrays)
    parts.save_language(bpe, full)
    lengths = np.diff(arrays["train_offset"])
    print(f"{len(captions)} captions, {len(made)} wrong ones, {len(bpe.tokens)} tokens")
    print(f"{sum(map(len, stated))} statements, {len(written)} captions by machines")
    print(f"tokens per caption: mean {lengths.mean():.1f}, 99 % {np.quantile(lengths, 0.99):.0f}")


def write_meaning(items: dict[str, list[Item]], settings: dict[str, Any]) -> None:
    """Write what labels are made from, and what dev images are asked.

    The training captions' meanings are made where a run begins.
    """
    captions = {s: [t for item in items[s] for t in item.captions] for s in ("train", "dev")}
    tfidf = TfIdf(captions["train"])
    for split, texts in captions.items():
        common.save_arrays(f"{split}_words.npz", tfidf(texts))
    parts.save_meanings("dev", captions["dev"])
    people.write_scale("cpu")
    names = [item.path.name for item in items["dev"]]
    asked = questions.write(names, [list(item.captions) for item in items["dev"]])
    print(asked, "dev questions")


STEPS = {"images": write_images, "text": write_text, "meaning": write_meaning}


def main() -> None:
    """Write the build folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, help="use this many images per source and split")
    parser.add_argument("--only", choices=STEPS, help="one of the three steps")
    parser.add_argument("--labels", type=Path, help="a folder of boxes, statements and ratings")
    parser.add_argument("--vocabulary", type=Path, help="a finished file, to keep its vocabulary")
    args = parser.parse_args()
    settings = common.config()["data"]
    common.BUILD.mkdir(exist_ok=True, parents=True)
    if args.labels:
        shutil.copytree(args.labels, common.BUILD / "labels", dirs_exist_ok=True)
    if args.vocabulary:
        settings["file"] = args.vocabulary

    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    more: list[Item] = []  # dev images that nothing is measured on, with people's ratings
    about: dict[str, Any] = {"sources": [folder.name for folder in args.folders]}
    for number, folder in enumerate(args.folders):
        for split, rows in sources.read(folder).items():
            some = rows[: args.limit][: settings["dev_images"] if split == "dev" else None]
            items[split] += some
            about.setdefault(f"{split}_source", []).extend([number] * len(some))
            if split == "dev" and not args.limit:
                more += people.trained(rows[len(some) :])
    if more:
        items["train"] += more
        about["train_source"] += [len(about["sources"])] * len(more)
        about["sources"].append(people.RATED)
    for split, rows in items.items():
        about[split] = [item.path.name for item in rows]
    common.save_json("images.json", about)
    for name, step in STEPS.items():
        if args.only in (None, name):
            step(items, settings)


if __name__ == "__main__":
    main()
