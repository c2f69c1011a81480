"""Choose the weight that the embedded judge advises its decoder, and say what it is worth.

    python docs/make_trust.py choose FLICKR8K FILE.onnx    dev images, then the judged test pairs
    python docs/make_trust.py adam FILE.onnx ...           the weight nearest to ten Adam steps

Both print tables of reading-of-alpha.md. The choice sees dev images alone: Flickr8k's and COCO's
photographs, and some hundred of each re-rendered in every domain (``discode.paper.styles``),
against the pseudo ratings of ``training.questions``. Allowed is a weight that loses no more than
0.1 of τ_c to smoothing on any of these sets; of those the one with the best mean gain is advised,
and that is written into ``discode.backends.embedded`` by hand.

Readings are kept in training's build folder ($DISCODE_BUILD), where ``training.data`` wrote the dev
images and what they are asked: NAME_dev.npz, NAME_shifted.npz and NAME_test.npz. What is missing is
read from FILE.onnx (dev and shifted: about an hour of a core).
"""

from __future__ import annotations

import argparse
import io
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image

from discode import Readings
from discode.backends import read_all
from discode.backends.embedded import Embedded
from discode.decoders import get_decoder
from discode.pairs import Pair
from discode.paper.styles import render
from discode.prompts import CAPTION_LAST
from discode.scales import TEN, UNIT
from discode.stats import KendallPlan, paired_bootstrap
from training import agreement, common, questions

IMAGES = {"flickr8k": 200, "coco": 100}
"""Sources of dev photographs, and how many of each are re-rendered in every domain."""
WEIGHTS = (0, 1, 4, 9, 19, 49, 99, 499, 999, 9999)
"""λ; the prior's exponent is 1/(1+λ)."""
MOST_LOST = 0.1
"""In τ_c, percent, on any of the dev sets."""
RESAMPLES = 500


def dev_images() -> list[bytes]:
    """Return the dev images as ``training.data`` packed them."""
    data = np.load(common.BUILD / "dev.npz")
    raw = data["bytes"].tobytes()
    return [raw[a:b] for a, b in pairwise(data["offset"])]


def asked(source: str, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of other images' captions and their images: all, or of the first images."""
    every, about = common.load_json("questions.json"), common.load_json("images.json")
    image = np.array(every["image"])
    mine = np.flatnonzero(np.array(about["dev_source"]) == about["sources"].index(source))
    rows = np.isin(image, mine[:count]) & np.isin(every["kind"], ("hard", "random"))
    return np.flatnonzero(rows), image[rows]


def read_shifted(file: Path) -> dict[str, Any]:
    """Ask about re-rendered dev images; a domain that was read already is not read again."""
    path = common.BUILD / f"{file.stem}_shifted.npz"
    arrays: dict[str, Any] = dict(np.load(path)) if path.exists() else {}
    packed, text = dev_images(), common.load_json("questions.json")["text"]
    backend: Embedded | None = None
    for source in IMAGES:
        rows, image = asked(source, IMAGES[source])
        numbers, place = np.unique(image, return_inverse=True)
        for domain in agreement.DOMAINS[1:]:
            if f"{source}_{domain}_digits" in arrays:
                continue
            backend = backend or Embedded(file)
            images: list[Any] = []
            for number in numbers:
                buffer = io.BytesIO()
                photo = Image.open(io.BytesIO(packed[number])).convert("RGB")
                render(photo, domain, seed=int(number)).save(buffer, "PNG")
                images.append(buffer.getvalue())
            stems, digits = agreement.said(backend, images, place, [text[row] for row in rows])
            arrays[f"{source}_{domain}_stem"] = stems.astype(np.float32)
            arrays[f"{source}_{domain}_digits"] = digits.astype(np.float32)
            np.savez_compressed(path, **arrays)
            print("read", source, domain, flush=True)
    return arrays


def method_of(weight: float | None) -> str:
    """Return the default with this weight; smoothing for None."""
    return "smoothing" if weight is None else f"discode:trust={weight}"


def tau_c(read: tuple[Any, Any], weight: float | None, people: np.ndarray, repeat: int = 1) -> Any:
    """Return τ_c of decoded readings, as a function of how often each row counts."""
    score = agreement.decoded(*read, method_of(weight))
    return KendallPlan(np.repeat(score, repeat), people, variant="c")


def percent(plan: Any, rows: int) -> float:
    """Return a statistic of all rows, in percent."""
    return 100 * float(plan(np.ones(rows, int)))


def choose(file: Path) -> float | None:
    """Print every weight's gain over smoothing on every dev set, and return the best allowed."""
    if not (common.BUILD / f"{file.stem}_dev.npz").exists():
        agreement.dev(file)
    photos: Any = np.load(common.BUILD / f"{file.stem}_dev.npz")
    rendered = read_shifted(file)
    rating = np.array(common.load_json("questions.json")["rating"])
    print(f"| dev, τ_c | smoothing | {' | '.join(f'λ = {weight:g}' for weight in WEIGHTS)} |")
    print("| --- " * (len(WEIGHTS) + 2) + "|")
    gains: list[list[float]] = []
    for source in IMAGES:
        for domain in agreement.DOMAINS:
            rows, _ = asked(source, None if domain == "photo" else IMAGES[source])
            read = (
                (photos["stem"][rows], photos["digits"][rows])
                if domain == "photo"
                else (rendered[f"{source}_{domain}_stem"], rendered[f"{source}_{domain}_digits"])
            )
            level = questions.levels(rating[rows])
            base = percent(tau_c(read, None, level), len(rows))
            found = [percent(tau_c(read, weight, level), len(rows)) - base for weight in WEIGHTS]
            gains.append(found)
            cells = " | ".join(f"{gain:+.2f}" for gain in found)
            print(f"| {source}, {domain} | {base:.2f} | {cells} |", flush=True)
    table = np.array(gains)
    for name, row in (("mean", table.mean(axis=0)), ("worst", table.min(axis=0))):
        print(f"| {name} | | {' | '.join(f'{gain:+.2f}' for gain in row)} |")
    allowed = [i for i in range(len(WEIGHTS)) if table[:, i].min() >= -MOST_LOST]
    best = max(allowed, key=lambda i: table[:, i].mean(), default=None)
    if best is None:
        print("\nNo weight is allowed: smoothing is.")
        return None
    gain = table[:, best].mean()
    worst = table[:, best].min()
    print(f"\nAdvised: λ = {WEIGHTS[best]:g} (mean gain {gain:+.3f}, worst {worst:+.3f}).")
    if gain <= 0:
        print("No allowed weight gains anything on the mean: smoothing is as good.")
    return WEIGHTS[best]


def test(folder: Path, file: Path, weight: float | None) -> None:
    """Print what weights are worth on the judged pairs, with paired intervals."""
    if not (common.BUILD / f"{file.stem}_test.npz").exists():
        agreement.read(folder, file)
    data: Any = np.load(common.BUILD / f"{file.stem}_test.npz")
    people = agreement.Judgments(folder)
    weights = [w for w in dict.fromkeys((weight, 99, 9, 0)) if w is not None]
    print(f"\n| test | smoothing | {' | '.join(f'λ = {w:g}' for w in weights)} |")
    print("| --- " * (len(weights) + 2) + "|")
    for which, domain in (
        *(("expert", domain) for domain in agreement.DOMAINS),
        ("crowd", "photo"),
    ):
        read = data[f"{which}_{domain}_stem"], data[f"{which}_{domain}_digits"]
        repeat = 3 if which == "expert" else 1
        said = people.votes.ravel() if which == "expert" else people.crowd
        clusters = np.repeat(people.image[which], repeat)

        def plan(
            w: float | None, read: tuple[Any, Any] = read, said: Any = said, n: int = repeat
        ) -> Any:
            score = np.repeat(agreement.decoded(*read, method_of(w)), n)
            return KendallPlan(score, said, variant="c" if n == 3 else "b")

        base = plan(None)
        cells = []
        for w in weights:
            d = paired_bootstrap(plan(w), base, clusters, resamples=RESAMPLES).difference
            cells.append(f"{100 * d.value:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})")
        title = f"{which}, {domain}, τ_{'c' if repeat == 3 else 'b'}"
        print(f"| {title} | {percent(base, len(said)):.2f} | {' | '.join(cells)} |", flush=True)


def hidden_readings(file: Path, count: int) -> tuple[Readings, np.ndarray]:
    """Return readings with hidden states of Flickr8k's first dev photographs, and their levels."""
    every = common.load_json("questions.json")
    rows, image = asked("flickr8k", count)
    packed = dev_images()
    pairs = [Pair(packed[i], every["text"][row]) for i, row in zip(image, rows, strict=True)]
    readings = read_all(Embedded(file), pairs, CAPTION_LAST, UNIT, hidden=True)
    return readings, questions.levels(np.array(every["rating"])[rows])


def random_readings(size: float, width: int = 4096, count: int = 300) -> Readings:
    """Return readings of a random head as wide as an 8B model's, hidden states of this size."""
    rng = np.random.default_rng(0)
    head = rng.normal(size=(10, width)).astype(np.float32) * 3 / size / np.sqrt(width)
    hidden = size * rng.normal(size=(count, width)).astype(np.float32)
    logits = hidden.astype(np.float64) @ head.T.astype(np.float64)
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    given = Readings.of(logp, TEN)
    return Readings(TEN, given.answer_logp, given.stem_logp, hidden=hidden, head=head)


def nearest_to_adam(files: list[Path], count: int = 150) -> None:
    """Print, per model, the weight whose distributions are nearest to those of ten Adam steps."""
    sources: dict[str, tuple[Readings, np.ndarray | None]] = {}
    for file in files:
        sources[file.stem] = hidden_readings(file, count)
    for size in (0.01, 0.1, 1.0):
        sources[f"random head, width 4096, entries of h about {size:g}"] = (
            random_readings(size),
            None,
        )
    print(
        "| readings | ten steps reach | KL(Adam, L) | nearest λ, printed loss | KL there | "
        "nearest λ, τ = 1 | KL there | τ of scores: λ, Adam | smoothing, Adam | "
        "τ_c with pseudo ratings: Adam | that λ | smoothing |"
    )
    print("| --- " * 12 + "|")
    grid = [0.0, *np.geomspace(1e-3, 1e4, 141)]
    for name, (readings, level) in sources.items():
        one = get_decoder("paper-adam").decode(readings)
        smooth = get_decoder("smoothing").decode(readings)
        cells = [name]
        if readings.hidden is None:
            raise SystemExit(f"{name} has no hidden states")
        reach = 10 * 1e-3 * float(np.abs(readings.hidden).sum(axis=1).mean() + 1)
        cells += [f"{reach:.2f}", f"{kl(one.distribution, smooth.distribution):.2e}"]
        scores = []
        for method in ("paper", "discode"):
            found = [get_decoder(method, trust=trust).decode(readings) for trust in grid]
            far = [kl(one.distribution, each.distribution) for each in found]
            best = int(np.argmin(far))
            cells += [f"{grid[best]:.3g}", f"{far[best]:.2e}"]
            scores.append(found[best].score)
        for score in (scores[0], smooth.score):
            plan = KendallPlan(score, one.score, variant="b")
            cells.append(f"{percent(plan, len(score)):.2f}")
        for score in (one.score, scores[0], smooth.score):
            if level is None:
                cells.append("")
            else:
                cells.append(f"{percent(KendallPlan(score, level, variant='c'), len(score)):.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """Return the mean of KL(p || q) over rows; infinite where q lacks what p has."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return float(terms.sum(axis=1).mean())


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=("choose", "adam"))
    parser.add_argument("paths", nargs="+", type=Path)
    args = parser.parse_args()
    if args.command == "adam":
        nearest_to_adam(args.paths)
    elif len(args.paths) != 2:
        parser.error("choose takes FLICKR8K and FILE.onnx")
    else:
        folder, file = args.paths
        test(folder, file, choose(file))


if __name__ == "__main__":
    main()
