"""Measure what sentences of long captions score that name a thing which is not there.

``python -m training.long_captions captions.jsonl IMAGES`` scores captions that LVLMs wrote
(``machine_captions`` of the labels) sentence by sentence, of photographs in the folder. Named is a
class of COCO's boxes; not there is one without a box, which no caption by people mentions. The
embedded model was trained on these photographs, and on the first two sentences of these captions:
later ones are new to it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import discode
from discode.backends._embedded.tokenizer import normalise
from discode.stats import Interval, bootstrap, resample, resampled_difference
from training import statements

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
TRAINED = 2
"""Sentences of a caption that training has seen."""


@dataclass(frozen=True)
class Things:
    """What texts name, and what is in photographs by their boxes, or by people's captions."""

    boxes: statements.Boxes
    told: dict[str, str]  # by photograph

    def named(self, text: str) -> set[str]:
        """Return the things that a text names; a teddy bear is no bear."""
        left, found = normalise(text), set()
        for name in sorted(self.boxes.things, key=len, reverse=True):
            left, times = re.subn(rf"\b({name}|{statements.plural(name)})\b", "", left)
            found |= {name} if times else set()
        return found

    def there(self, image: str, name: str) -> bool:
        """Return whether a thing has a box, or people mention it."""
        words = (name, statements.plural(name), *statements.ALSO.get(name, "").split())
        said = any(re.search(rf"\b{word}\b", self.told[image]) for word in words)
        return said or name in self.boxes.count.get(image, ())


def auc(low: Mask, score: Floats) -> Callable[[NDArray[np.int64]], float]:
    """Return how often a row scores above one that is to be ``low``, as a function of weights."""
    codes = np.unique(score, return_inverse=True)[1]

    def statistic(weights: NDArray[np.int64]) -> float:
        bad, good = (np.bincount(codes, weights * chosen) for chosen in (low, ~low))
        pairs, above = bad.sum() * good.sum(), good @ (np.cumsum(bad) - bad / 2)
        return float(above / pairs) if pairs else np.nan

    return statistic


def report(label: str, low: Mask, score: Floats, images: Sequence[str]) -> None:
    """Print an AUC with its interval, counts and means."""
    found = bootstrap(auc(low, score), images)
    means = f"means {score[low].mean():.3f} and {score[~low].mean():.3f}"
    counts = f"{low.sum()} against {(~low).sum()}, {len({*images})} images"
    print(f"{label}: AUC {_shown(found)}, {counts}, {means}")


def _shown(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captions", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--limit", type=int, default=2000, help="captions, drawn at random")
    parser.add_argument("--store", type=Path, help="keep the readings in this file")
    arguments = parser.parse_args()
    lines = map(json.loads, arguments.captions.read_text(encoding="utf-8").splitlines())
    told = {Path(row["image"]).name: normalise(" ".join(row["captions"])) for row in lines}
    things = Things(statements.Boxes(), told)
    pairs = [
        discode.Pair(str(path), row["caption"])
        for image, row in statements.read("machine_captions")
        if (path := arguments.images / image).is_file() and image in told
    ]
    pairs = random.Random(0).sample(pairs, min(arguments.limit, len(pairs)))
    judge = discode.load("embedded", method="discode:trust=9", store=arguments.store, by="sentence")
    scores = judge.score_pairs(pairs)
    both = zip(pairs, scores.sentences or (), strict=True)
    split = [(pair, sentences) for pair, sentences in both if sentences is not None]
    rows = []
    for pair, sentences in split:
        image = Path(str(pair.image)).name
        for number, text in enumerate(sentences.texts):
            names = things.named(text)
            missing = any(not things.there(image, name) for name in names)
            rows.append((image, number, sentences.value[number], bool(names), missing))
    images, place, value, named, absent = map(np.array, zip(*rows, strict=True))
    new = place >= TRAINED
    for label, chosen in {
        "later sentences, all": new,
        "later sentences that name a thing": new & named,
        "first two sentences, all": ~new,
    }.items():
        report(label, absent[chosen], value[chosen], images[chosen].tolist())
    ends = np.cumsum([len(sentences.texts) for _, sentences in split])
    wrong = np.array([part.any() for part in np.split(absent, ends[:-1])])
    whole = judge.by_caption().score_pairs([pair for pair, _ in split])
    means = np.array([np.mean(part.value) for _, part in split])
    owners = np.array([Path(str(pair.image)).name for pair, _ in split])
    for label, chosen in {"captions": wrong | True, "cut captions": whole.flags["cut"]}.items():
        low, clusters = wrong[chosen], owners[chosen].tolist()
        if not 0 < low.sum() < len(low):
            continue
        report(f"{label}, whole", low, whole.value[chosen], clusters)
        report(f"{label}, mean of sentences", low, means[chosen], clusters)
        by_mean, by_whole = (
            resample(auc(low, value[chosen]), clusters, 1000, 0) for value in (means, whole.value)
        )
        compared = resampled_difference(by_mean, by_whole, 0.95)
        print(f"{label}, difference: {_shown(compared.difference)}")
    print(scores.signature)


if __name__ == "__main__":
    main()
