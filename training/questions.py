"""What dev images are asked: the same questions for a model in training and for a finished file.

Written once by ``training.data``: per dev image its own captions, a random one, two nearest of
1,500 others (to all its references in meaning; to its first caption by words), hard ones with
pseudo ratings, its captions with a wrong word, and a random caption with words after it that want a
high score. ``figures`` turns scores into figures, by source.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau

from training import common, extras
from training.labels import References
from training.wrong_words import OPPOSITES, PENALTY, PEOPLE, swap

TRIED = 300
"""Images per source that are asked about words after a caption."""
COMPARED = 400
"""Images per source that are asked about the nearest caption by words."""
OTHERS = 1500
Row = tuple[int, str, str, int, float]  # image, text, kind, base, rating


def _gender(text: str, references: list[str]) -> str | None:
    """Return a caption with one man for a woman or the like."""
    said = {word for reference in references for word in reference.split()}
    words = text.split()
    for place, word in enumerate(words):
        other = [o for o in OPPOSITES.get(word, ())[:1] if o not in said]
        if word in PEOPLE and other:
            return " ".join([*words[:place], *other, *words[place + 1 :]])
    return None


def write(captions: list[list[str]]) -> int:
    """Write questions.json: columns image, text, kind, base (a question's number) and rating."""
    settings = common.config()["labels"]
    references = References("dev", settings["minilm_weight"], "cpu")
    source = np.array(common.load_json("images.json")["dev_source"])
    owner = references.owner.numpy()
    flat = [text for texts in captions for text in texts]
    first = references.first.numpy()
    rng, dice = random.Random(1), np.random.default_rng(1)
    rows: list[Row] = []
    by_words: list[Row] = []
    for number in np.unique(source):
        images = np.flatnonzero(source == number)
        mine = np.arange(first[images[0]], first[images[-1] + 1])  # a source's images are adjacent
        ones = first[images][:OTHERS]  # one caption of each
        table = references.table(torch.from_numpy(images)).numpy()
        words = references.words[torch.from_numpy(first[images])]
        likeness = (words @ words[: len(ones)].T).numpy()
        for place, image in enumerate(map(int, images)):
            texts, similar = captions[image], table[place]
            own = len(rows)
            rows += [(image, text, "own", -1, 10.0) for text in texts]
            others = mine[owner[mine] != image]
            if not len(others):
                continue
            away = int(dice.choice(others))
            rows.append((image, flat[away], "random", own, float(similar[away])))
            wrong = len(rows) - 1
            rivals = ones[owner[ones] != image]
            near = rivals[np.argmax(similar[rivals])]
            rows.append((image, flat[near], "nearest", own, float(similar[near])))
            if place < COMPARED:
                alike = likeness[place] * [flat[rival] != texts[0] for rival in ones]
                near = ones[np.argmax(alike)]
                by_words.append((image, flat[near], "nearest by words", own, 0.0))
            order = others[np.argsort(-similar[others])]
            ranks = np.exp(dice.random(6) * np.log(min(OTHERS, len(order)))).astype(int) - 1
            for hard in order[ranks]:
                rows.append((image, flat[hard], "hard", own, float(similar[hard])))
            for kind in PENALTY:
                for i in rng.sample(range(len(texts)), len(texts)):
                    if swapped := swap(texts[i], texts, rng, kind, hardest=0):
                        rows.append((image, swapped[0], kind, own + i, 0.0))
                        break
            for i, text in enumerate(texts):
                if changed := _gender(text, texts):
                    rows.append((image, changed, "man/woman", own + i, 0.0))
                    break
            if place < TRIED:
                for name, shout in extras.DEV.items():
                    rows.append((image, f"{flat[away]} {shout}", f"after: {name}", wrong, 0.0))
    rows += by_words
    names = ("image", "text", "kind", "base", "rating")
    columns = [[row[i] for row in rows] for i in range(len(names))]
    common.save_json("questions.json", dict(zip(names, columns, strict=True)))
    return len(rows)


def levels(rating: np.ndarray) -> np.ndarray:
    """Put pseudo ratings of other images' captions into four levels, most in the lowest."""
    return np.asarray(np.digitize(rating, np.quantile(rating, [0.55, 0.8, 0.92])))


def figures(score: np.ndarray, asked: dict[str, Any] | None = None) -> dict[str, dict[str, float]]:
    """Return figures by source from the scores of all questions."""
    asked = asked or common.load_json("questions.json")
    about = common.load_json("images.json")
    image, kind = np.array(asked["image"]), np.array(asked["kind"])
    base, rating = np.array(asked["base"]), np.array(asked["rating"])
    source = np.array(about["dev_source"])[image]
    result: dict[str, dict[str, float]] = {}
    for number, name in enumerate(about["sources"]):
        rows: dict[str, float] = {}
        for k in dict.fromkeys(asked["kind"]):
            at = np.flatnonzero((kind == k) & (source == number))
            if not len(at) or k == "own":
                continue
            if k.startswith("after: "):
                rows[k] = float((score[at] - score[base[at]]).mean())
            elif k != "hard":
                rows[k] = 100 * float((score[at] < score[base[at]]).mean())
        other = (source == number) & np.isin(kind, ("hard", "random"))
        own = (source == number) & (kind == "own")
        if not other.any():
            continue
        level = levels(rating[other])
        rows["tau_c"] = 100 * float(kendalltau(score[other], level, variant="c").statistic)
        rows["mean own"], rows["mean random"] = (
            float(score[own].mean()),
            float(score[(source == number) & (kind == "random")].mean()),
        )
        for mark in (0.5, 0.8, 0.9, 0.95):
            rows[f"own above {mark}"] = 100 * float((score[own] > mark).mean())
        for step in np.unique(level):
            rows[f"mean at level {step + 1} of 4"] = float(score[other][level == step].mean())
        result[name] = rows
    return result
