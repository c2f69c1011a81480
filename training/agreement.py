"""Agreement with people on Flickr8k's test images: the only place that reads human judgments.

    python -m training.agreement read FLICKR8K FILE.onnx    what the file says: build/FILE_test.npz
    python -m training.agreement figures FLICKR8K NAME ...  agreement in percent, with intervals

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
METHODS = ("raw", "smoothing", "discode", "paper", "discode:reading=joint")
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


def read(folder: Path, file: Path) -> None:
    """Ask the file about every judged pair."""
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()
    side = common.config()["data"]["image_size"]
    backend = Embedded(file)
    arrays: dict[str, Any] = {}
    judged = judged_pairs(folder, names)
    for domain in DOMAINS:
        paths = [folder / "images" / name for name in names]
        pictures: list[Any] = list(paths)
        if domain != "photo":  # small first, as in training: a style has the grain of its picture
            for number, path in enumerate(paths):
                small = (
                    Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
                )
                buffer = io.BytesIO()
                render(small, domain, seed=number).save(buffer, "PNG")
                pictures[number] = buffer.getvalue()
        for which in ("expert", "crowd") if domain == "photo" else ("expert",):
            image, text = judged[which]
            pairs = [Pair(pictures[i], t) for i, t in zip(image, text, strict=True)]
            said = backend.read(pairs, CAPTION_LAST, UNIT)
            arrays[f"{which}_{domain}_stem"] = said.stem_logp.astype(np.float32)
            arrays[f"{which}_{domain}_digits"] = said.answer_logp[:, 0].astype(np.float32)
            print("read", which, domain, flush=True)
    np.savez_compressed(common.BUILD / f"{file.stem}_test.npz", **arrays)


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
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("read", "figures"))
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    if args.command == "read":
        for word in args.words:
            read(args.flickr8k, Path(word))
    else:
        figures(args.flickr8k, args.words)


if __name__ == "__main__":
    main()
