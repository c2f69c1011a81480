"""BLEU, ROUGE-L, METEOR, CIDEr and SPICE, with pycocoevalcap's values.

Each text is tokenised once for all metrics that share a :class:`TokenisedTexts`, and each (caption,
references) is scored once, however often it is in the input. A pair without references is NaN. An
empty caption is scored as pycocoevalcap does: 0, or nearly so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from discode._pairs import Pair
from discode._scores import Floats
from discode._signature import Signature
from discode.errors import BackendError, lookup
from discode.metrics._base import PairMetric, RowScores, package_version
from discode.metrics._java import TokenisedPair, check_java, check_spice, meteor, spice, tokenise

_Ngrams = Mapping[tuple[str, ...], int]
_ORDERS = 4


def bleu(items: Sequence[TokenisedPair]) -> Floats:
    """Return BLEU-1 to BLEU-4 of each item, (M, 4), as ``Bleu(4)`` gives them per item.

    >>> bleu([("a dog runs", ("a dog runs",))]).round(6).tolist()[0][:3]
    [1.0, 1.0, 1.0]
    """
    counted = _count_ngrams(items)
    values = np.zeros((len(items), _ORDERS))
    for row, (text, refs) in enumerate(items):
        length, correct = len(text.split()), [0] * _ORDERS
        for ngram, count in _common(counted[text], [counted[ref] for ref in refs]).items():
            correct[len(ngram) - 1] += count
        nearest = min((abs(size - length), size) for size in (len(ref.split()) for ref in refs))[1]
        # Small numbers are pycocoevalcap's: nothing is divided by zero.
        ratio, product = (length + 1e-15) / (nearest + 1e-9), 1.0
        penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
        for order, right in enumerate(correct):
            product *= (right + 1e-15) / (max(0, length - order) + 1e-9)
            values[row, order] = product ** (1 / (order + 1)) * penalty
    return values


def _common(ngrams: _Ngrams, references: Sequence[_Ngrams]) -> _Ngrams:
    """Return how many of a caption's n-grams are in references, each as often as in any one."""
    most: dict[tuple[str, ...], int] = {}
    for other in references:
        for ngram in ngrams.keys() & other.keys():
            most[ngram] = max(most.get(ngram, 0), min(ngrams[ngram], other[ngram]))
    return most


def rouge_l(items: Sequence[TokenisedPair]) -> Floats:
    """Return ROUGE-L of each item, (M,): F with β = 1.2 of the best precision and best recall.

    >>> rouge_l([("a dog runs", ("the dog runs", "a cat"))]).round(4).tolist()
    [0.6667]
    """
    beta2 = 1.2**2
    values = []
    for text, refs in items:
        words = text.split(" ")
        common = [(lcs_length(words, ref.split(" ")), ref.count(" ") + 1) for ref in refs]
        precision = max(length / len(words) for length, _ in common)
        recall = max(length / size for length, size in common)
        values.append(
            ((1 + beta2) * precision * recall) / (recall + beta2 * precision)
            if precision and recall
            else 0.0
        )
    return np.array(values)


def lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    Hyyrö's bit-parallel form keeps a row of the usual table in one integer: a zero bit in ``row``
    is a place where the length increases by one.

    >>> lcs_length("a b c d".split(), "b x d".split())
    2
    """
    places: dict[str, int] = {}
    for number, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << number
    full = (1 << len(left)) - 1
    row = full
    for word in right:
        hit = row & places.get(word, 0)
        row = (row + hit | row - hit) & full
    return len(left) - row.bit_count()


def cider(items: Sequence[TokenisedPair], repeats: Sequence[int] | None = None) -> Floats:
    """Return CIDEr-D of each item, (M,), with document frequencies over the items themselves.

    ``repeats`` (M,) is how often each item is in the set: the frequencies and log(N) count every
    repetition, so that the values are those of the set with every item written out.

    >>> cider([("a dog", ("a dog",)), ("a cat", ("two cats",))]).round(2).tolist()
    [5.0, 0.0]
    """
    counts = [1] * len(items) if repeats is None else list(repeats)
    total = sum(counts)
    if not items:
        return np.zeros(0)
    counted = _count_ngrams(items)
    frequency: dict[tuple[str, ...], int] = {}
    weight: dict[tuple[str, ...], int] = {}
    for (_, refs), count in zip(items, counts, strict=True):
        weight[refs] = weight.get(refs, 0) + count
    for refs, count in weight.items():
        for ngram in set().union(*(counted[words] for words in refs)):
            frequency[ngram] = frequency.get(ngram, 0) + count
    log_total = np.log(float(total))
    rare = {n: float(log_total - np.log(max(1.0, n))) for n in {*frequency.values()}}
    idf = {ngram: rare[count] for ngram, count in frequency.items()}
    unseen = float(log_total)
    vectors = {words: _vector(ngrams, idf, unseen) for words, ngrams in counted.items()}
    return np.array(
        [_likeness(vectors[text], [vectors[words] for words in refs]) for text, refs in items]
    )


_Weights = dict[tuple[str, ...], float]
_Vector = tuple[_Weights, list[float], int]


def _count_ngrams(items: Sequence[TokenisedPair]) -> dict[str, _Ngrams]:
    """Return how often each n-gram is in every text of the items, shorter n-grams first."""
    counted: dict[str, _Ngrams] = {}
    for text in dict.fromkeys(chain.from_iterable((text, *refs) for text, refs in items)):
        words = text.split()
        shifted = [words[start:] for start in range(_ORDERS)]
        orders = (zip(*shifted[: n + 1], strict=False) for n in range(_ORDERS))
        counted[text] = Counter(chain.from_iterable(orders))
    return counted


def _vector(ngrams: _Ngrams, idf: _Weights, unseen: float) -> _Vector:
    """Return tf-idf weights, their norms by order, and the number of bigrams (CIDEr's length)."""
    weights = {ngram: count * idf.get(ngram, unseen) for ngram, count in ngrams.items()}
    squares = [0.0] * _ORDERS
    for ngram, weight in weights.items():
        squares[len(ngram) - 1] += weight**2
    length = sum(count for ngram, count in ngrams.items() if len(ngram) == 2)
    return weights, [math.sqrt(square) for square in squares], length


def _likeness(text: _Vector, references: Sequence[_Vector]) -> float:
    """Return ten times the mean clipped cosine, with a Gaussian penalty (σ = 6) on length."""
    total = np.zeros(_ORDERS)
    weights, norms, length = text
    for others, other_norms, other_length in references:
        penalty = np.e ** (-(float(length - other_length) ** 2) / (2 * 6.0**2))
        values = [0.0] * _ORDERS
        for ngram, weight in weights.items():
            if ngram in others:
                values[len(ngram) - 1] += min(weight, others[ngram]) * others[ngram]
        for order, value in enumerate(values):
            scale = norms[order] * other_norms[order]
            total[order] += (value / scale if scale else value) * penalty
    return float(np.mean(total) / len(references) * 10.0)


class TokenisedTexts:
    """What text metrics of one run share: words, and scores that were computed before."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._scores: dict[Callable[..., Floats], dict[TokenisedPair, Floats]] = {}

    def items(self, pairs: Sequence[Pair]) -> list[TokenisedPair]:
        """Return N tokenised pairs; each text is tokenised once."""
        texts = (text for pair in pairs for text in (pair.caption, *pair.references))
        new = [text for text in dict.fromkeys(texts) if text not in self._words]
        self._words.update(zip(new, tokenise(new), strict=True))
        words = self._words
        return [
            (words[pair.caption], tuple(words[ref] for ref in pair.references)) for pair in pairs
        ]

    def scores(
        self, score: Callable[[Sequence[TokenisedPair]], Floats], items: Sequence[TokenisedPair]
    ) -> Floats:
        """Return ``score`` of N items; it is called for those it was never called for."""
        known = self._scores.setdefault(score, {})
        new = [item for item in dict.fromkeys(items) if item not in known]
        if new:
            known.update(zip(new, score(new), strict=True))
        return np.array([known[item] for item in items])


TEXT_SCORERS: dict[str, Callable[[Sequence[TokenisedPair]], Floats]] = {
    **{f"bleu-{n}": bleu for n in range(1, _ORDERS + 1)},
    "rouge-l": rouge_l,
    "meteor": meteor,
    "spice": spice,
    "cider": cider,
}


@dataclass(frozen=True)
class TextMetric(PairMetric):
    """A metric that compares a caption with references.

    ``name`` is a row of ``TEXT_SCORERS``; metrics that share ``texts`` share tokens and results.
    CIDEr's document frequencies come from the set it scores: a pair that a benchmark judges several
    times counts as often, and one that is there 0 times is scored, and not counted.
    """

    name: str
    texts: TokenisedTexts = field(default_factory=TokenisedTexts, compare=False)

    needs = frozenset({"references"})

    def __post_init__(self) -> None:
        lookup(TEXT_SCORERS, self.name, "text metric")
        check_spice() if self.name == "spice" else check_java(self.name)

    @property
    def signature(self) -> Signature:
        """The metric, the tokenizer, CIDEr's frequencies, and the library of these numbers."""
        idf = {"idf": "set"} if self.name == "cider" else {}
        library = package_version("pycocoevalcap")
        return Signature.of(metric=self.name, tokenizer="ptb", **idf, library=library)

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs, in order; if a program fails, their errors say why."""
        try:
            items = self.texts.items(pairs)
            if self.name == "cider":
                counts: Counter[TokenisedPair] = Counter()
                for item, count in zip(items, repeats.tolist(), strict=True):
                    counts[item] += count
                values = dict(zip(counts, cider(list(counts), list(counts.values())), strict=True))
                return RowScores(np.array([values[item] for item in items]))
            value = self.texts.scores(TEXT_SCORERS[self.name], items)
            return RowScores(value if value.ndim == 1 else value[:, int(self.name[-1]) - 1])
        except BackendError as error:
            nothing = np.full(len(pairs), np.nan)
            return RowScores(nothing, dict.fromkeys(range(len(pairs)), str(error)))
