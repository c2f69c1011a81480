"""Prepare everything that training reads: python -m training.data FLICKR8K [--limit N]

FLICKR8K is a folder with ``images/``, ``Flickr8k.token.txt`` and the split lists, as published.
Test images are packed for the final evaluation only; no test caption, and no judgment, is used for
the vocabulary, the labels or anything else here.
"""

from __future__ import annotations

import argparse
import io
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from discode.backends.embedded.tokenizer import Bpe, byte_alphabet, normalise
from training import common, parts
from training.wrong_words import PENALTY, SPLICED, WORDS, splice, swap

SPLITS = ("train", "dev", "test")


def read_captions(folder: Path) -> dict[str, list[str]]:
    """Return file name to its five normalised captions."""
    captions: dict[str, list[str]] = {}
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        key, text = line.split("\t")
        captions.setdefault(key.partition("#")[0], []).append(normalise(text))
    return captions


def pack_images(folder: Path, names: list[str], size: int, quality: int) -> dict[str, np.ndarray]:
    """Squash pictures to size x size and pack them as JPEG."""

    def encode(name: str) -> bytes:
        with Image.open(folder / "images" / name) as image:
            small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()

    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(encode, names))
    offsets = np.cumsum([0, *map(len, files)]).astype(np.int64)
    return {"jpeg": np.frombuffer(b"".join(files), np.uint8), "offset": offsets}


def stem(word: str) -> str:
    """Strip the commonest English endings; enough to match runs, running and run."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word.rstrip("e")


def tfidf(captions: list[str], train: int) -> dict[str, np.ndarray]:
    """Return normalised tf-idf rows (sparse); document frequencies from the training part."""
    stop = set(
        "a an the of in on at with and be to is are its his her their it he she they that this "
        "another through by from for as up down into while over near next front out who which "
        "there one".split()
    )
    rows = [[stem(w) for w in re.findall(r"[a-z]+", text) if w not in stop] for text in captions]
    frequency = Counter(word for row in rows[:train] for word in set(row))
    words = {w: i for i, (w, count) in enumerate(frequency.most_common()) if count >= 3}
    r, c, v = [], [], []
    for number, row in enumerate(rows):
        counts = Counter(word for word in row if word in words)
        if counts:
            values = np.array([n * np.log(train / frequency[w]) for w, n in counts.items()])
            r += [number] * len(values)
            c += [words[word] for word in counts]
            v += (values / np.linalg.norm(values)).tolist()
    return {
        "row": np.array(r, np.int32),
        "column": np.array(c, np.int32),
        "value": np.array(v, np.float32),
        "shape": np.array([len(captions), len(words)]),
    }


def wrong_captions(captions: list[str], each: int, seed: int) -> list[tuple[int, str, str, float]]:
    """Return (source caption, text, kind, penalty) with five captions an image."""
    rng = random.Random(seed)
    rows = []
    for number, caption in enumerate(captions):
        references = captions[number // 5 * 5 : number // 5 * 5 + 5]
        for _ in range(each):
            swapped = None
            if rng.random() > 0.15:
                # Numbers are rare in captions and hard to see: preferred where there is one.
                rare = swap(caption, references, rng, "number") if rng.random() < 0.4 else None
                swapped = rare or swap(caption, references, rng)
            if swapped is None:
                text = splice(caption, rng.choice(captions))
                rows.append((number, text, "splice", SPLICED))
                continue
            text, kind = swapped
            penalty = PENALTY[kind]
            if rng.random() < 0.25 and (again := swap(text, references, rng)):
                text, penalty = again[0], min(6.0, penalty + PENALTY[again[1]])
            rows.append((number, text, kind, penalty))
    return rows


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
        keep(bpe.tokens[i])
    for a, b in bpe.merges:  # in the order of their frequency in the tokenizer's own corpus
        if len(kept) >= size - len(common.STEMS):
            break
        if (a + b).removeprefix("Ġ").isalpha() and (a + b).islower():
            keep(a + b)
    tokens = [*kept, *common.STEMS]
    merges = [pair for pair in bpe.merges if pair[0] + pair[1] in kept and set(pair) <= kept.keys()]
    return Bpe(tokens, merges)


def main() -> None:
    """Write the build folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("--limit", type=int, help="use this many images a split")
    args = parser.parse_args()
    settings = common.config()["data"]
    common.BUILD.mkdir(exist_ok=True)

    every = read_captions(args.flickr8k)
    names: dict[str, list[str]] = {}
    for split in SPLITS:
        listed = (args.flickr8k / f"Flickr_8k.{split}Images.txt").read_text().split()
        names[split] = listed[: args.limit]
        images = pack_images(
            args.flickr8k, names[split], settings["image_size"], settings["jpeg_quality"]
        )
        common.save_arrays(f"{split}.npz", images)
    common.save_json("names.json", names)

    captions = {s: [text for name in names[s] for text in every[name]] for s in ("train", "dev")}
    wrong = wrong_captions(captions["train"], settings["perturbations"], seed=0)
    dev_swaps: list[tuple[int, str, str]] = []
    rng = random.Random(1)
    for number, text in enumerate(captions["dev"]):
        references = captions["dev"][number // 5 * 5 : number // 5 * 5 + 5]
        for kind in PENALTY:
            if swapped := swap(text, references, rng, kind):
                dev_swaps.append((number, *swapped))

    full = parts.language_tokenizer()
    instruction = parts.instruction()
    lists = [" " + word for words in WORDS.values() for word in words]
    texts = [" " + t for t in captions["train"]] + [" " + row[1] for row in wrong]
    bpe = choose_vocabulary(full, [*texts, *lists, instruction], settings["vocabulary"])
    common.save_json("tokenizer.json", {"tokens": bpe.tokens, "merges": bpe.merges})
    common.save_json("dev_swaps.json", dev_swaps)

    arrays: dict[str, Any] = {}
    for name, rows in (
        ("train", captions["train"]),
        ("dev", captions["dev"]),
        ("wrong", [row[1] for row in wrong]),
        ("dev_swap", [row[1] for row in dev_swaps]),
    ):
        arrays[name], arrays[f"{name}_offset"] = common.ragged([bpe.encode(" " + t) for t in rows])
    arrays["instruction"] = np.array(bpe.encode(instruction), np.int32)
    arrays["wrong_source"] = np.array([row[0] for row in wrong], np.int32)
    arrays["wrong_penalty"] = np.array([row[3] for row in wrong], np.float32)
    arrays["dev_swap_source"] = np.array([row[0] for row in dev_swaps], np.int32)
    common.save_arrays("text.npz", arrays)

    both = captions["train"] + captions["dev"]
    common.save_arrays("tfidf.npz", tfidf(both, len(captions["train"])))
    embedded = parts.sentence_embeddings(both)
    scale = np.abs(embedded).max(axis=1, keepdims=True) / 127
    np.savez(
        common.BUILD / "minilm.npz",
        q=np.round(embedded / scale).astype(np.int8),
        scale=scale.astype(np.float32),
    )
    parts.save_language(bpe, full)
    parts.save_vision()
    lengths = np.diff(arrays["train_offset"])
    print(f"{len(bpe.tokens)} tokens, {len(wrong)} wrong captions, {len(dev_swaps)} dev swaps")
    print(f"caption tokens: mean {lengths.mean():.1f}, 99 % {np.quantile(lengths, 0.99):.0f}")


if __name__ == "__main__":
    main()
