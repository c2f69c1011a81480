"""A small benchmark with images and hostile captions, run by a judge that keeps its readings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from discode._judge import load
from discode.bench import RunLog, run_metrics
from discode.benchmarks import load_benchmark
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric
from tests.helpers.mini_benchmarks import write

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "right to left \u202e override \u2066 isolate",
    "a bell \x07, a line\nbreak, an escape \x1b[31m",
    '{{DATA}} "quoted" & <!-- open',
)
TEXTS = (*HOSTILE, "a dog runs on the beach", "two cats asleep", "مرحبا بالعالم", "rejected one")


def make_custom(folder: Path, texts: Iterable[str] = TEXTS, images: int = 3) -> Path:
    """Ratings of captions, three raters each; the last image is not there."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(images):
        if i + 1 < images:
            (folder / "images").mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 255, (30, 40, 3), np.uint8)
            Image.fromarray(noise).resize((400, 300)).save(folder / "images" / f"{i}.png")
        for j, text in enumerate(texts):
            for rater in "xyz":
                rows.append({"image": f"{i}.png", "caption": text, "rater": rater,
                             "rating": int(rng.integers(1, 6)), "id": f"{i}-{j}",
                             "references": [f"reference of {i}", HOSTILE[0]]})  # fmt: skip
    write(folder / "ratings.jsonl", rows)
    return folder


def run_custom(data: Path, out: Path) -> RunLog:
    """Run a judge by three decoders, and a metric that asks none; the store is beside the log."""
    store = out.with_name(f"{out.name}.readings.db")
    metrics = {
        name: load(FakeModel(rejects="rejected"), method=name, store=store)
        for name in ("raw", "smoothing", "discode")
    }
    factory = FakeFactory(**metrics, length=FakeMetric(0, 2.0))
    names = {name: name for name in (*metrics, "length")}
    log, problems = run_metrics(load_benchmark("custom", data), names, factory, QUICK)
    assert problems == {}
    log.save(out)
    return log


def explain_custom(data: Path, out: Path) -> None:
    """Keep the readings of the words of the first image's captions in the store beside a log."""
    pairs = load_benchmark("custom", data).bare_pairs()[0][: len(TEXTS)]
    store = out.with_name(f"{out.name}.readings.db")
    load(FakeModel(rejects="rejected"), store=store).explain_pairs(pairs)
