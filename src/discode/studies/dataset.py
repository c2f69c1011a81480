"""The paper's table "dataset_statistics": sizes of benchmarks, and of the words in their captions.

The paper's way of counting, found by counting the real files:

- a word is what stands between spaces: in Flickr8k the full stop is a word of its own;
- the mean is over the captions that people judged, each as often as it was judged with another
  image or another caption, and is cut after two decimals, not rounded (11.9154 is printed 11.91);
- a choice between two captions counts both, so Pascal-50S has 8,000; its 8.75 words, however, are
  those of the *references* (the captions have 10.41);
- Composite's 13,146 captions and 11.58 words are of another copy of the data: the public one has
  three captions for each of 3,995 images, as the paper's own description says, which is 11,985.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from discode.benchmarks import Benchmark, Ratings


@dataclass(frozen=True)
class DatasetCounts:
    """What a benchmark consists of.

    Attributes:
        captions: Captions that people judged: one per rated pair, two per choice.
        words: Their mean number of words.
        pairs: Distinct pairs of image and caption.
        images: Images.
        references: Distinct references per image, on average.
        reference_words: The references' mean number of words; NaN where there are none.
        judgments: Ratings, or choices.
        raters: How many people the data tells apart; None where it does not say.
        categories: The categories of choices; () for ratings.
    """

    captions: int
    words: float
    pairs: int
    images: int
    references: float
    reference_words: float
    judgments: int
    raters: int | None
    categories: tuple[str, ...]


def count_words(text: str) -> int:
    """Return how many words a caption has: what stands between spaces.

    >>> count_words("A dog runs .")
    4
    """
    return len(text.split())


def count_dataset(benchmark: Benchmark) -> DatasetCounts:
    """Count what a benchmark consists of; repeated draws of references count once."""
    pairs, judged = benchmark.pairs, benchmark.judgments
    words = np.array([count_words(pair.caption) for pair in pairs])
    draws = int(benchmark.options.get("draws", "1"))  # Pascal-50S: every draw repeats the choices
    raters: int | None = None
    categories: tuple[str, ...] = ()
    if isinstance(judged, Ratings):
        shown = np.unique(judged.pair)
        people = len(np.unique(judged.rater))
        raters = people if people > 1 else None  # one number may be the mean of many
    else:
        shown = np.concatenate([judged.left, judged.right])
        categories = tuple(dict.fromkeys(judged.category))
    references = _references(benchmark)
    return DatasetCounts(
        captions=len(shown) // draws,
        words=_mean(words[shown].tolist()),
        pairs=len({(str(pair.image), pair.caption) for pair in pairs}),
        images=len(np.unique(benchmark.image)),
        references=_mean([len(texts) for texts in references]),
        reference_words=_mean([count_words(text) for texts in references for text in texts]),
        judgments=len(judged) // draws,
        raters=raters,
        categories=categories,
    )


def _references(benchmark: Benchmark) -> list[dict[str, None]]:
    """Return the distinct references of each image."""
    found: dict[int, dict[str, None]] = {}
    for image, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True):
        found.setdefault(image, {}).update(dict.fromkeys(pair.references))
    return list(found.values())


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")
