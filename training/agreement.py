"""Agreement with people on Flickr8k's test images: the only place that reads human judgments.

    python -m training.agreement read FLICKR8K FILE.onnx    what the file says: build/FILE_test.npz
    python -m training.agreement figures FLICKR8K NAME ...  agreement in percent, with intervals
    python -m training.agreement dev FLICKR8K FILE.onnx     decoders on dev images, pseudo ratings

``read`` asks the finished file as a user would, on the published pictures, and on the same ones
re-rendered (``discode.shift``). ``figures`` reads what this or ``evaluate.py`` wrote. Intervals are
95 % percentile intervals of a bootstrap over images.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import kendalltau

import discode
from discode.backends.embedded import Embedded
from discode.pairs import Pair
from discode.prompts import CAPTION_LAST
from discode.scales import UNIT
from discode.shift import render
from training import common
from training.data import read_captions

DOMAINS = ("photo", "sketch", "painting", "quickdraw", "clipart", "infograph", "noisy")
METHODS = ("raw", "smoothing", "discode", "paper", "paper-unit", "no-adaptive-alpha")
RESAMPLES = 200


def judged_pairs(folder: Path, names: list[str]) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Return the judged pairs: expert (5,664, own references dropped) and crowd (47,830).

    Each is the number of the image among ``names`` and the caption.
    """
    captions = read_captions(folder)
    test = {name: i for i, name in enumerate(names)}
    result = {}
    for name, file in (
        ("expert", "ExpertAnnotations.txt"),
        ("crowd", "CrowdFlowerAnnotations.txt"),
    ):
        image, text = [], []
        for line in (folder / file).read_text().splitlines():
            picture, key = line.split("\t")[:2]
            source, _, number = key.partition("#")
            if name == "expert" and source == picture:
                continue
            image.append(test[picture])
            text.append(captions[source][int(number)])
        result[name] = np.array(image), text
    return result


def decoded(stems: np.ndarray, digits: np.ndarray, method: str) -> np.ndarray:
    """Return the scores of readings, stems (N, 2) and digits behind "0." (N, 10)."""
    answers = np.full((len(digits), 2, 10), np.nan)  # behind "1." there is only 1.0
    answers[:, 0] = digits
    return discode.decode(discode.Readings(UNIT, answers, stems), method).value


def expected(stems: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Return the expected score under the joint reading."""
    return decoded(stems, digits, "smoothing:reading=joint")


def resampled(image: np.ndarray) -> list[np.ndarray]:
    """Return rows for each resample: images drawn with replacement, with all their pairs."""
    rng = np.random.default_rng(0)
    numbers = np.unique(image)
    order = np.argsort(image, kind="stable")
    rows = dict(
        zip(numbers, np.split(order, np.flatnonzero(np.diff(image[order])) + 1), strict=True)
    )
    return [
        np.concatenate([rows[i] for i in rng.choice(numbers, len(numbers))])
        for _ in range(RESAMPLES)
    ]


def rendered(folder: Path, names: list[str], domain: str) -> list[Any]:
    """Return pictures as published, or re-rendered."""
    paths: list[Any] = [folder / "images" / name for name in names]
    if domain == "photo":
        return paths
    side = common.config()["data"]["image_size"]
    pictures = []
    for number, path in enumerate(paths):  # small first, as in training: grain belongs to style
        small = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        render(small, domain, seed=number).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    return pictures


def said(
    backend: Embedded, pictures: list[Any], image: np.ndarray, text: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return log P of the stems (N, 2) and of the digits behind "0." (N, 10)."""
    pairs = [Pair(pictures[i], t) for i, t in zip(image, text, strict=True)]
    readings = backend.read(pairs, CAPTION_LAST, UNIT)
    return readings.stem_logp, readings.answer_logp[:, 0]


def read(folder: Path, file: Path) -> None:
    """Ask the file about every judged pair."""
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()
    backend = Embedded(file)
    arrays: dict[str, Any] = {}
    judged = judged_pairs(folder, names)
    for domain in DOMAINS:
        pictures = rendered(folder, names, domain)
        for which in ("expert", "crowd") if domain == "photo" else ("expert",):
            stems, digits = said(backend, pictures, *judged[which])
            arrays[f"{which}_{domain}_stem"] = stems.astype(np.float32)
            arrays[f"{which}_{domain}_digits"] = digits.astype(np.float32)
            print("read", which, domain, flush=True)
    np.savez_compressed(common.BUILD / f"{file.stem}_test.npz", **arrays)


def dev(folder: Path, file: Path, images: int = 400) -> None:
    """Print τ_c of decoders with four levels of the pseudo ratings, on dev images."""
    from training.labels import Similarity

    names = common.load_json("names.json")
    first, chosen = len(names["train"]), names["dev"][:images]
    similarity = Similarity(common.config()["labels"], "cpu").within(first, first + len(chosen))
    every = read_captions(folder)
    captions = [text for name in chosen for text in every[name]]
    rng = np.random.default_rng(1)
    image, caption = [], []
    for i, row in enumerate(similarity.numpy()):
        order = np.argsort(-row)
        order = order[order // 5 != i]
        ranks = np.exp(rng.random(6) * np.log(min(1500, len(order)))).astype(int) - 1
        image += [i] * 10
        caption += [*order[ranks], *rng.choice(order, 4)]
    rating = similarity.numpy()[image, caption]
    level = np.digitize(rating, np.quantile(rating, [0.55, 0.8, 0.92]))
    backend = Embedded(file)
    print(f"| dev | {' | '.join(METHODS)} |")
    print("| --- " * (len(METHODS) + 1) + "|")
    for domain in DOMAINS:
        pictures = rendered(folder, chosen, domain)
        read = said(backend, pictures, np.array(image), [captions[c] for c in caption])
        taus = [kendalltau(decoded(*read, m), level, variant="c").statistic for m in METHODS]
        print(f"| {domain} | " + " | ".join(f"{100 * tau:.2f}" for tau in taus) + " |", flush=True)


def figures(folder: Path, names: list[str]) -> None:
    """Print agreement: τ_c with experts in every domain, τ_b with the crowd on photographs."""
    test = (folder / "Flickr_8k.testImages.txt").read_text().split()
    judged = judged_pairs(folder, test)
    lines = (folder / "ExpertAnnotations.txt").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    votes = np.array([row[2:] for row in rows if row[1].partition("#")[0] != row[0]], int)
    lines = (folder / "CrowdFlowerAnnotations.txt").read_text().splitlines()
    crowd = np.array([float(line.split("\t")[2]) for line in lines])
    samples = {which: resampled(judged[which][0]) for which in judged}

    def expert(score: np.ndarray, at: Any = slice(None)) -> float:
        human = np.ravel(votes[at])
        return 100 * float(kendalltau(np.repeat(score[at], 3), human, variant="c").statistic)

    def people(score: np.ndarray, at: Any = slice(None)) -> float:
        return 100 * float(kendalltau(score[at], crowd[at]).statistic)

    for name in names:
        data = np.load(common.BUILD / f"{name}_test.npz")
        print(f"\n| {name} | {' | '.join(METHODS)} | discode - smoothing |")
        print("| --- " * (len(METHODS) + 2) + "|")
        for part in sorted({key.rpartition("_")[0] for key in data}, key=_order):
            which = part.partition("_")[0]
            agree = expert if which == "expert" else people
            scores = {m: decoded(data[f"{part}_stem"], data[f"{part}_digits"], m) for m in METHODS}
            cells = [f"{agree(score):.2f}" for score in scores.values()]
            many = np.array(
                [
                    [agree(scores[m], at) for m in ("smoothing", "discode")]
                    for at in samples[which][: RESAMPLES if which == "expert" else RESAMPLES // 4]
                ]
            )
            low, high = np.quantile(many[:, 1], [0.025, 0.975])
            cells[2] += f" ({low:.1f} to {high:.1f})"
            low, high = np.quantile(many[:, 1] - many[:, 0], [0.025, 0.975])
            gain = agree(scores["discode"]) - agree(scores["smoothing"])
            print(f"| {part} | {' | '.join(cells)} | {gain:+.2f} ({low:+.2f} to {high:+.2f}) |")


def _order(part: str) -> tuple[bool, int]:
    which, _, domain = part.partition("_")
    return which == "crowd", DOMAINS.index(domain)


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("read", "figures", "dev"))
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    if args.command == "figures":
        figures(args.flickr8k, args.words)
    for word in args.words if args.command != "figures" else ():
        {"read": read, "dev": dev}[args.command](args.flickr8k, Path(word))


if __name__ == "__main__":
    main()
