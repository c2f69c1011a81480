"""What a finished file is worth, asked as a user would ask it.

    python -m training.agreement read FLICKR8K FILE.onnx    the judged pairs: build/FILE_test.npz
    python -m training.agreement dev FILE.onnx              dev images: build/FILE_dev.npz
    python -m training.agreement decoders FLICKR8K FILE.onnx    decoders on dev images
    python -m training.agreement figures FLICKR8K NAME ...  agreement in percent, with intervals
    python -m training.agreement compare FLICKR8K NAME ... [--into PAGE.md]   files side by side
    python -m training.agreement card FLICKR8K NAME [--into PAGE.md]    the model card's tables

This is the only place that reads human judgments. ``read`` asks about Flickr8k's test images as
published and re-rendered (``discode._paper.styles``), ``dev`` what ``questions.py`` wrote. The rest
reads what these two wrote. Intervals are 95 % percentile intervals of a bootstrap over
images.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import kendalltau

import discode
from discode._pairs import Pair
from discode._paper.styles import render
from discode._prompts import CAPTION_LAST
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._embedded import Embedded
from training import common, questions, sources

DOMAINS = ("photo", "sketch", "painting", "quickdraw", "clipart", "infograph", "noisy")
METHODS = ("raw", "smoothing", "discode", "paper", "paper-unit", "no-adaptive-alpha")
DEFAULT = "discode:trust=9"
"""The decoder of the card's figures, so that versions stay comparable."""
RESAMPLES = 200
STYLES = ("sketch", "painting", "quickdraw", "clipart")
"""Those of the wanted mean."""
HELD_OUT = ("painting", "infograph")
"""Never trained."""
SHOWN = (
    "random",
    "nearest by words",
    "noun",
    "action",
    "colour",
    "number",
    "relation",
    "man/woman",
    "graded, Spearman",
    "graded, Pearson",
    "machine: likeliest",
    "machine: drawn",
    "there is a THING, random",
    "there is a THING, likely",
    "after: score",
    "after: nines",
    "after: held out: praise",
    "after: held out: order",
    "mean own",
    "mean random",
    "mean empty",
    "own above 0.5",
    "own above 0.8",
)
"""Dev rows that ``compare`` and ``card`` print."""


def judged_pairs(folder: Path, names: list[str]) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Return the judged pairs: expert (5,664, own references dropped) and crowd (47,830).

    Each is the number of the image among ``names`` and the caption.
    """
    captions = sources.flickr8k_captions(folder)
    test = {name: i for i, name in enumerate(names)}
    result = {}
    for name, file in (
        ("expert", "ExpertAnnotations.txt"),
        ("crowd", "CrowdFlowerAnnotations.txt"),
    ):
        image, text = [], []
        for line in (folder / file).read_text().splitlines():
            file_name, key = line.split("\t")[:2]
            source, _, number = key.partition("#")
            if name == "expert" and source == file_name:
                continue
            image.append(test[file_name])
            text.append(captions[source][int(number)])
        result[name] = np.array(image), text
    return result


def decoded(stems: np.ndarray, digits: np.ndarray, method: str) -> np.ndarray:
    """Return the scores of readings, stems (N, 2) and digits after "0." (N, 10)."""
    answers = np.full((len(digits), 2, 10), np.nan)  # after "1." there is only 1.0
    answers[:, 0] = digits
    return discode.decode(discode.Readings(UNIT, answers, stems), method).value


def expected(stems: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Return the expected score under the joint reading."""
    return decoded(stems, digits, "smoothing:stem=joint")


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
    """Return images as published, or re-rendered."""
    paths: list[Any] = [folder / "images" / name for name in names]
    if domain == "photo":
        return paths
    side = common.config()["data"]["measured_size"]
    images = []
    for number, path in enumerate(paths):  # small first, as in training: grain belongs to style
        small = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        render(small, domain, seed=number).save(buffer, "PNG")
        images.append(buffer.getvalue())
    return images


def said(
    backend: Embedded, images: list[Any], image: np.ndarray, text: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return log P of the stems (N, 2) and of the digits after "0." (N, 10)."""
    pairs = [Pair(images[i], t) for i, t in zip(image, text, strict=True)]
    readings = read_all(backend, pairs, CAPTION_LAST, UNIT)
    return readings.stem_logp, readings.answer_logp[:, 0]


def read(folder: Path, file: Path) -> None:
    """Ask the file about every judged pair."""
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()
    backend = Embedded(file)
    arrays: dict[str, Any] = {}
    judged = judged_pairs(folder, names)
    for domain in DOMAINS:
        images = rendered(folder, names, domain)
        for which in ("expert", "crowd") if domain == "photo" else ("expert",):
            stems, digits = said(backend, images, *judged[which])
            arrays[f"{which}_{domain}_stem"] = stems.astype(np.float32)
            arrays[f"{which}_{domain}_digits"] = digits.astype(np.float32)
            print("read", which, domain, flush=True)
    from discode._cli.demo import demo_pairs  # wants what a machine for training may lack

    pairs = demo_pairs()
    images = [pair.image for pair in pairs]
    stems, digits = said(backend, images, np.arange(len(pairs)), [pair.caption for pair in pairs])
    arrays |= {"demo_stem": stems, "demo_digits": digits}
    np.savez_compressed(common.BUILD / f"{file.stem}_test.npz", **arrays)


def dev(file: Path) -> None:
    """Ask the file what dev images are asked, of the images that training.data packed."""
    asked = common.load_json("questions.json")
    data = np.load(common.BUILD / "dev.npz")
    raw = data["bytes"].tobytes()
    images = [raw[a:b] for a, b in pairwise(data["offset"])]
    stems, digits = said(Embedded(file), images, np.array(asked["image"]), asked["text"])
    np.savez_compressed(common.BUILD / f"{file.stem}_dev.npz", stem=stems, digits=digits)
    print("read dev", flush=True)


def decoders(folder: Path, file: Path, count: int = 400) -> None:
    """Print τ_c of decoders with four levels of the pseudo ratings, on Flickr8k's dev images."""
    asked, about = common.load_json("questions.json"), common.load_json("images.json")
    number = about["sources"].index(folder.name)
    names = [n for n, s in zip(about["dev"], about["dev_source"], strict=True) if s == number]
    image, kind = np.array(asked["image"]), np.array(asked["kind"])
    first = about["dev_source"].index(number)
    inside = (image >= first) & (image < first + min(count, len(names)))
    at = np.flatnonzero(inside & np.isin(kind, ("hard", "random")))
    level = questions.levels(np.array(asked["rating"])[at])
    backend = Embedded(file)
    print(f"| dev | {' | '.join(METHODS)} |")
    print("| --- " * (len(METHODS) + 1) + "|")
    for domain in DOMAINS:
        images = rendered(folder, names[:count], domain)
        read = said(backend, images, image[at] - first, [asked["text"][i] for i in at])
        taus = [kendalltau(decoded(*read, m), level, variant="c").statistic for m in METHODS]
        print(f"| {domain} | " + " | ".join(f"{100 * tau:.2f}" for tau in taus) + " |", flush=True)


class Judgments:
    """What people said of the judged pairs."""

    def __init__(self, folder: Path) -> None:
        test = (folder / "Flickr_8k.testImages.txt").read_text().split()
        self.image = {which: image for which, (image, _) in judged_pairs(folder, test).items()}
        lines = (folder / "ExpertAnnotations.txt").read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        self.votes = np.array([row[2:] for row in rows if row[1].partition("#")[0] != row[0]], int)
        lines = (folder / "CrowdFlowerAnnotations.txt").read_text().splitlines()
        self.crowd = np.array([float(line.split("\t")[2]) for line in lines])

    def agreement(self, which: str, score: np.ndarray, at: Any = slice(None)) -> float:
        """Return τ_c with the experts or τ_b with the crowd, in percent."""
        if which == "crowd":
            return 100 * float(kendalltau(score[at], self.crowd[at]).statistic)
        human = np.ravel(self.votes[at])
        return 100 * float(kendalltau(np.repeat(score[at], 3), human, variant="c").statistic)


def figures(folder: Path, names: list[str]) -> None:
    """Print agreement: τ_c with experts in every domain, τ_b with the crowd on photographs."""
    people = Judgments(folder)
    samples = {which: resampled(image) for which, image in people.image.items()}
    for name in names:
        data = np.load(common.BUILD / f"{name}_test.npz")
        print(f"\n| {name} | {' | '.join(METHODS)} | discode - smoothing |")
        print("| --- " * (len(METHODS) + 2) + "|")
        for which, domain in judged_parts(data):
            part = f"{which}_{domain}"
            scores = {m: decoded(data[f"{part}_stem"], data[f"{part}_digits"], m) for m in METHODS}
            cells = [f"{people.agreement(which, score):.2f}" for score in scores.values()]
            many = np.array(
                [
                    [people.agreement(which, scores[m], at) for m in METHODS[1:3]]
                    for at in samples[which][: RESAMPLES if which == "expert" else RESAMPLES // 4]
                ]
            )
            low, high = np.quantile(many[:, 1], [0.025, 0.975])
            cells[2] += f" ({low:.1f} to {high:.1f})"
            low, high = np.quantile(many[:, 1] - many[:, 0], [0.025, 0.975])
            both = [people.agreement(which, scores[m]) for m in METHODS[1:3]]
            gain = both[1] - both[0]
            print(f"| {part} | {' | '.join(cells)} | {gain:+.2f} ({low:+.2f} to {high:+.2f}) |")


def judged_parts(data: Any) -> list[tuple[str, str]]:
    """Return who judged what of the parts that were read, photographs first, the crowd last."""
    every = [*(("expert", domain) for domain in DOMAINS), ("crowd", "photo")]
    return [(which, domain) for which, domain in every if f"{which}_{domain}_stem" in data]


def measured(people: Judgments, name: str) -> dict[str, float]:
    """Return all figures of a file, by the row's title.

    Agreement with people is that of ``DEFAULT``; dev figures are the expected score's, which has
    no ties.
    """
    rows: dict[str, float] = {}
    test, dev_read = (common.BUILD / f"{name}_{part}.npz" for part in ("test", "dev"))
    if test.exists():
        data = np.load(test)
        for which, domain in judged_parts(data):
            score = decoded(
                data[f"{which}_{domain}_stem"], data[f"{which}_{domain}_digits"], DEFAULT
            )
            rows[f"{which}, {domain}"] = people.agreement(which, score)
        four = [rows.get(f"expert, {domain}", np.nan) for domain in STYLES]
        rows["expert, mean of four styles"] = float(np.mean(four))
        if "demo_stem" in data:
            rows |= demo(decoded(data["demo_stem"], data["demo_digits"], DEFAULT))
    if dev_read.exists():
        data = np.load(dev_read)
        for source, figure in questions.figures(expected(data["stem"], data["digits"])).items():
            rows |= {f"{source}: {title}": value for title, value in figure.items()}
    return rows


def demo(score: np.ndarray) -> dict[str, float]:
    """Return how the demo's captions were scored: couples in order, images judged right."""
    from discode._cli.demo import KINDS, demo_pairs, in_order

    pairs = demo_pairs()
    low: dict[str, float] = {}
    for pair, value in zip(pairs, score, strict=True):
        if pair.id == KINDS[0]:
            low[str(pair.image)] = min(value, low.get(str(pair.image), 1.0))
    return {
        "demo, couples in order": float(sum(in_order(pairs, score))),
        "demo, images whose good captions reach 0.5": float(sum(v >= 0.5 for v in low.values())),
    }


def compare(folder: Path, names: list[str], page: Path | None = None) -> None:
    """Print the figures of several files beside each other.

    With ``page``, the tables replace what stands between the page's two marks.
    """
    people = Judgments(folder)
    columns = [measured(people, name) for name in names]
    lines = _table(["", *names])
    for title in columns[-1]:
        if ": " not in title:
            lines.append(_row(title, [column.get(title) for column in columns]))
    about = common.load_json("images.json")["sources"]
    photos = [s for s in about if s not in sources.DRAWN and f"{s}: {SHOWN[0]}" in columns[-1]]
    lines += ["", *_table(["dev", *(f"{source}, {name}" for source in photos for name in names)])]
    for title in SHOWN:
        found = [column.get(f"{source}: {title}") for source in photos for column in columns]
        lines.append(_row(title, found))
    put("compare", lines, page)


def _table(titles: list[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]


def _row(title: str, figures: Sequence[float | None]) -> str:
    """Return a row; means and lifts have three digits."""
    digits = 3 if title.startswith(("after: ", "mean ")) else 1
    cells = ["" if figure is None else f"{figure:.{digits}f}" for figure in figures]
    return f"| {title} | {' | '.join(cells)} |"


def put(command: str, lines: list[str], page: Path | None) -> None:
    """Print lines, or put them between the command's two marks on a page."""
    if page is None:
        print("\n".join(lines))
        return
    marks = [f"<!-- agreement {command}: {end} -->" for end in ("begin", "end")]
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not end:
        raise SystemExit(f"{page} has no place for the table: {marks[0]} ... {marks[1]}")
    page.write_text(before + begin + "\n".join(["", *lines, ""]) + end + after, encoding="utf-8")


def card(folder: Path, name: str, page: Path | None = None) -> None:
    """Print the model card's tables: agreement with intervals, and scores on dev images."""
    people, data = Judgments(folder), np.load(common.BUILD / f"{name}_test.npz")
    samples = {which: resampled(image) for which, image in people.image.items()}
    lines = [f"| `{DEFAULT}` | agreement | 95 % interval |", "| --- | --- | --- |"]
    styles: list[np.ndarray] = []
    for which, domain in judged_parts(data):
        part = f"{which}_{domain}"
        score = decoded(data[f"{part}_stem"], data[f"{part}_digits"], DEFAULT)
        drawn = samples[which][: RESAMPLES if which == "expert" else RESAMPLES // 4]
        many = [people.agreement(which, score, at) for at in (slice(None), *drawn)]
        title = f"Expert, {domain}, τ_c" if which == "expert" else "CF, τ_b"
        held = " (style held out)" if domain in HELD_OUT else ""
        lines.append(_interval(title + held, many))
        if domain in STYLES:
            styles.append(np.array(many))
    lines.append(_interval("mean of sketch, painting, quickdraw, clipart", np.mean(styles, axis=0)))
    read = np.load(common.BUILD / f"{name}_dev.npz")
    found = questions.figures(decoded(read["stem"], read["digits"], DEFAULT))
    photos = [source for source in found if source not in sources.DRAWN]
    lines += ["", *_table([f"dev images, `{DEFAULT}`", *photos])]
    lines += [_row(title, [found[source].get(title) for source in photos]) for title in SHOWN]
    put("card", lines, page)


def _interval(title: str, many: Any) -> str:
    """Return a row: the figure itself comes first, those of the resamples follow."""
    low, high = np.quantile(many[1:], [0.025, 0.975])
    return f"| {title} | {many[0]:.1f} | {low:.1f} to {high:.1f} |"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "command", choices=("read", "dev", "decoders", "figures", "compare", "card")
    )
    parser.add_argument("words", nargs="+")
    parser.add_argument("--into", type=Path, help="the page that the tables belong to")
    args = parser.parse_args()
    first, *rest = args.words
    if args.command == "dev":
        dev(Path(first))
    elif not rest:
        parser.error("give a folder, and a file or names")
    elif args.command == "compare":
        compare(Path(first), rest, args.into)
    elif args.command == "card":
        card(Path(first), rest[0], args.into)
    elif args.command == "figures":
        figures(Path(first), rest)
    else:
        {"read": read, "decoders": decoders}[args.command](Path(first), Path(rest[0]))


if __name__ == "__main__":
    main()
