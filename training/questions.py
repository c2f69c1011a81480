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
from scipy.stats import kendalltau, mannwhitneyu, pearsonr, spearmanr

from discode._probe.wrong_words import OPPOSITES, swap
from training import common, extras, people, statements
from training.labels import References
from training.wrong_words import PENALTY, PEOPLE

TRIED = 300
"""Images per source that are asked about words after a caption."""
COMPARED = 400
"""Images per source that are asked about the nearest caption by words."""
OTHERS = 1500
EMPTY = ("an image of something", "a photo of things", "there are some objects in the picture")
"""Fluent, true and empty; none of them is trained."""
COLUMNS = ("image", "text", "kind", "base", "rating")
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


def write(names: list[str], captions: list[list[str]]) -> int:
    """Write questions.json: columns image, text, kind, base (a question's number) and rating."""
    references = References("dev", "cpu")
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
    rows += [(i, text, "graded", -1, r) for i, text, r in people.rated(names) if people.chooses(i)]
    rows += things(names, captions)
    for image in range(0, len(names), 10):
        rows += [(image, text, "empty", -1, 0.0) for text in EMPTY]
    return save(rows)


def save(rows: list[Row]) -> int:
    """Write questions.json, and return how many there are."""
    columns = [[row[i] for row in rows] for i in range(len(COLUMNS))]
    common.save_json("questions.json", dict(zip(COLUMNS, columns, strict=True)))
    return len(rows)


def things(names: list[str], captions: list[list[str]]) -> list[Row]:
    """Return what images are asked about things: those with a box, random and likely others."""
    rng, boxes = random.Random(2), statements.Boxes()
    rows: list[Row] = []
    for image, name in enumerate(names):
        if not boxes.count.get(name):
            continue
        there = sorted(boxes.count[name])
        absent = {
            kind: boxes.absent(name, captions[image], 2, rng, likely=kind == "likely")
            for kind in ("random", "likely")
        }
        for kind, some in {"true": rng.sample(there, min(2, len(there))), **absent}.items():
            rows += [
                (image, f"there is {statements.a(x)}", f"there is: {kind}", -1, 0.0) for x in some
            ]
    return rows


def add(written: dict[str, list[str]]) -> None:
    """Add captions that a machine wrote of every dev image, by kind: own ones are to be above."""
    asked = common.load_json("questions.json")
    rows: list[Row] = list(zip(*(asked[name] for name in COLUMNS), strict=True))
    own: dict[int, int] = {}
    said: dict[int, set[str]] = {}
    for number, (image, text, kind, _, _) in enumerate(rows):
        if kind == "own":
            own.setdefault(image, number)
            said.setdefault(image, set()).add(text)
    for kind, texts in written.items():
        rows += [
            (image, text, kind, own[image], 0.0)
            for image, text in enumerate(texts)
            if image in own and text not in said[image]
        ]
    save(rows)


def complete() -> bool:
    """Say whether captions by a machine are among the questions."""
    return any(kind.startswith("machine: ") for kind in common.load_json("questions.json")["kind"])


def levels(rating: np.ndarray) -> np.ndarray:
    """Put pseudo ratings of other images' captions into four levels, most in the lowest."""
    return np.asarray(np.digitize(rating, np.quantile(rating, [0.55, 0.8, 0.92])))


def _kinds(kind: np.ndarray, inside: np.ndarray) -> dict[str, np.ndarray]:
    """Return the questions of each kind."""
    return {str(k): np.flatnonzero(inside & (kind == k)) for k in np.unique(kind[inside])}


def _alone(score: np.ndarray, rating: np.ndarray, at: dict[str, np.ndarray]) -> dict[str, float]:
    """Return figures of questions that stand for themselves: graded, things, empty."""
    rows: dict[str, float] = {}
    if "graded" in at:
        pair = score[at["graded"]], rating[at["graded"]]
        rows["graded, Spearman"] = 100 * float(spearmanr(*pair).statistic)
        rows["graded, Pearson"] = 100 * float(pearsonr(*pair).statistic)
    for kind in ("random", "likely"):
        if f"there is: {kind}" in at:
            yes, no = score[at["there is: true"]], score[at[f"there is: {kind}"]]
            above = mannwhitneyu(yes, no).statistic / len(yes) / len(no)
            rows[f"there is a THING, {kind}"] = 100 * float(above)
    if "empty" in at:
        rows["mean empty"] = float(score[at["empty"]].mean())
    return rows


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
            if not len(at) or base[at[0]] < 0:
                continue
            if k.startswith("after: "):
                rows[k] = float((score[at] - score[base[at]]).mean())
            elif k != "hard":
                rows[k] = 100 * float((score[at] < score[base[at]]).mean())
        rows |= _alone(score, rating, _kinds(kind, source == number))
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
