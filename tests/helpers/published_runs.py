"""Runs that have the size of a benchmark's published data, and any signature."""

from __future__ import annotations

import numpy as np

from discode._prompts import FLEUR, Prompt
from discode._scales import get_scale
from discode._signature import Signature, sign
from discode.bench import AgreementProtocol, MetricResult, RunLog
from discode.benchmarks import BENCHMARKS, Preferences, Ratings
from discode.decoders import get_decoder
from discode.readings import Identity
from discode.stats import Interval

LLAVA = "llava-hf/llava-next-72b-hf"


def judged(
    method: str,
    model: str = LLAVA,
    *,
    scale: str = "unit",
    prompt: Prompt = FLEUR,
    dtype: str = "bfloat16",
    revision: str = "abc",
    references: str = "none",
) -> Signature:
    """Return the signature of a judge's scores, as a judge itself writes it."""
    identity = Identity(model, revision, dtype)
    return sign(identity, get_scale(scale), get_decoder(method), prompt, references=references)


def run_of(
    benchmark: str,
    made: Signature,
    label: str = "a",
    *,
    size: tuple[int, int] | None = None,
    ties: str = "wrong",
    **options: str,
) -> RunLog:
    """Return the log of a run with the published number of images and judgments, or another."""
    row = BENCHMARKS[benchmark]
    chosen = row.option_texts({}) | options
    if size is None:
        assert row.published_sizes is not None
        size = row.published_sizes(chosen)[0]
    images, count = size
    pair = np.arange(count)
    categories = row.categories or ("foil",)
    judgments: Ratings | Preferences
    if benchmark in ("flickr8k-expert", "flickr8k-cf", "composite"):
        judgments = Ratings(pair, np.zeros(count), np.zeros(count, np.int64))
    else:
        kinds = [categories[number % len(categories)] for number in range(count)]
        judgments = Preferences(pair, pair, np.zeros(count, np.int64), tuple(kinds))
    half = Interval(0.5, 0.4, 0.6, 0.95)
    names = ("tau_b", "tau_c", "mean", "ties", "failed", *categories)
    measures = dict.fromkeys(names, half) | {"failed": Interval(0.0, 0.0, 0.0, 0.95)}
    result = MetricResult(made, made, np.zeros(count), {}, {}, 0.0, measures)
    return RunLog(
        benchmark, chosen, AgreementProtocol(ties), {}, (), tuple(map(str, range(count))),
        pair % images, judgments, {}, {label: result},
    )  # fmt: skip
