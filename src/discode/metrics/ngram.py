"""BLEU, ROUGE-L, METEOR, CIDEr and SPICE, with pycocoevalcap's values.

Each text is tokenised once for all metrics that share a :class:`TokenisedTexts`, and each (caption,
references) is scored once, however often it is in the input. A pair without references is NaN. An
empty caption is scored as pycocoevalcap does: 0, or nearly so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import BackendError, InputError, lookup, require
from discode.metrics.base import PairMetric, RowScores, package_version, unique_keys
from discode.metrics.java import TokenisedPair, check_java, check_spice, meteor, spice, tokenise
from discode.pairs import Pair
from discode.scores import Floats
from discode.signature import Signature

_Ngrams = dict[tuple[str, ...], int]
_ORDERS = 4


def bleu(items: Sequence[TokenisedPair]) -> Floats:
    """Return BLEU-1 to BLEU-4 of each item, (M, 4), as ``Bleu(4)`` gives them per item.

    >>> bleu([("a dog runs", ("a dog runs",))]).round(6).tolist()[0][:3]
    [1.0, 1.0, 1.0]
    """
    scorer = require("pycocoevalcap.bleu.bleu_scorer", "bench")
    cooked = {refs: scorer.cook_refs(refs) for refs in dict.fromkeys(refs for _, refs in items)}
    sums: Any = scorer.BleuScorer(n=_ORDERS)
    sums.crefs = [cooked[refs] for _, refs in items]
    sums.ctest = [scorer.cook_test(text, cooked[refs]) for text, refs in items]
    if not items:
        return np.zeros((0, _ORDERS))
    _, scores = sums.compute_score(option="closest", verbose=0)
    columns: Floats = np.array(scores, np.float64).T
    return columns


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

    ``repeats`` (M,) says how often each item is in the set: the frequencies and log(N) count every
    repetition, so that the values are those of the set with every item written out.

    >>> cider([("a dog", ("a dog",)), ("a cat", ("two cats",))]).round(2).tolist()
    [5.0, 0.0]
    """
    counts = [1] * len(items) if repeats is None else list(repeats)
    total = sum(counts)
    if not items:
        return np.zeros(0)
    if total == 0:
        raise InputError("repeats are all 0: there is no set to count words in")
    cooked: dict[str, _Ngrams] = {}
    for text, refs in items:
        for words in (text, *refs):
            if words not in cooked:
                cooked[words] = _ngrams(words)
    frequency: dict[tuple[str, ...], int] = {}
    weight: dict[tuple[str, ...], int] = {}
    for (_, refs), count in zip(items, counts, strict=True):
        weight[refs] = weight.get(refs, 0) + count
    for refs, count in weight.items():
        for ngram in {ngram for words in refs for ngram in cooked[words]}:
            frequency[ngram] = frequency.get(ngram, 0) + count
    log_total = np.log(float(total))
    idf = {ngram: log_total - np.log(max(1.0, count)) for ngram, count in frequency.items()}
    vectors = {words: _vector(ngrams, idf, log_total) for words, ngrams in cooked.items()}
    return np.array(
        [_likeness(vectors[text], [vectors[words] for words in refs]) for text, refs in items]
    )


_Vector = tuple[list[dict[tuple[str, ...], float]], list[float], int]


def _ngrams(text: str) -> _Ngrams:
    words = text.split()
    counts: _Ngrams = {}
    for order in range(1, _ORDERS + 1):
        for start in range(len(words) - order + 1):
            ngram = tuple(words[start : start + order])
            counts[ngram] = counts.get(ngram, 0) + 1
    return counts


def _vector(ngrams: _Ngrams, idf: dict[tuple[str, ...], float], unseen: float) -> _Vector:
    """Return tf-idf weights by order, their norms, and the number of bigrams (CIDEr's length)."""
    weights: list[dict[tuple[str, ...], float]] = [{} for _ in range(_ORDERS)]
    squares = [0.0] * _ORDERS
    length = 0
    for ngram, count in ngrams.items():
        order = len(ngram) - 1
        weight = float(count * idf.get(ngram, unseen))
        weights[order][ngram] = weight
        squares[order] += weight**2
        if order == 1:
            length += count
    return weights, [math.sqrt(square) for square in squares], length


def _likeness(text: _Vector, references: Sequence[_Vector]) -> float:
    """Return ten times the mean clipped cosine, with a Gaussian penalty (σ = 6) on length."""
    total = np.zeros(_ORDERS)
    weights, norms, length = text
    for ref_weights, ref_norms, ref_length in references:
        penalty = np.e ** (-(float(length - ref_length) ** 2) / (2 * 6.0**2))
        for order in range(_ORDERS):
            other = ref_weights[order]
            value = 0.0
            for ngram, weight in weights[order].items():
                if ngram in other:
                    value += min(weight, other[ngram]) * other[ngram]
            if norms[order] != 0 and ref_norms[order] != 0:
                value /= norms[order] * ref_norms[order]
            total[order] += value * penalty
    return float(np.mean(total) / len(references) * 10.0)


class TokenisedTexts:
    """What text metrics of one run share: words, and scores that were computed before."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._scores: dict[str, dict[TokenisedPair, Floats]] = {}

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
        self,
        measure: str,
        items: Sequence[TokenisedPair],
        score: Callable[[Sequence[TokenisedPair]], Floats],
    ) -> Floats:
        """Return ``score`` of N items; it is called for those it was never called for."""
        known = self._scores.setdefault(measure, {})
        new = [item for item in dict.fromkeys(items) if item not in known]
        if new:
            known.update(zip(new, score(new), strict=True))
        return np.array([known[item] for item in items])


@dataclass(frozen=True)
class TextScorer:
    """How a text metric is computed: a function of all items, and its column where it has some.

    Scorers with the same ``key`` share the results of one call.
    """

    key: str
    score: Callable[[Sequence[TokenisedPair]], Floats]
    column: int | None = None


TEXT_SCORERS: dict[str, TextScorer] = {
    **{f"bleu-{n}": TextScorer("bleu", bleu, n - 1) for n in range(1, _ORDERS + 1)},
    "rouge-l": TextScorer("rouge-l", rouge_l),
    "meteor": TextScorer("meteor", meteor),
    "spice": TextScorer("spice", spice),
}


@dataclass(frozen=True)
class TextMetric(PairMetric):
    """A metric that compares a caption with references, one pair at a time.

    ``name`` is a row of ``TEXT_SCORERS``; metrics that share ``texts`` share tokens and results.
    """

    name: str
    texts: TokenisedTexts = field(default_factory=TokenisedTexts, compare=False)

    needs = frozenset({"references"})

    def __post_init__(self) -> None:
        lookup(TEXT_SCORERS, self.name, "text metric")
        check_spice() if self.name == "spice" else check_java(self.name)

    @property
    def signature(self) -> Signature:
        """The metric, the tokenizer, and the library whose numbers these are."""
        return Signature.of(
            metric=self.name, tokenizer="ptb", library=package_version("pycocoevalcap")
        )

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs, in order."""
        scorer = TEXT_SCORERS[self.name]

        def score(items: list[TokenisedPair]) -> Floats:
            value = self.texts.scores(scorer.key, items, scorer.score)
            return value if scorer.column is None else value[:, scorer.column]

        return _score(self.texts, pairs, score)


@dataclass(frozen=True)
class Cider(PairMetric):
    """CIDEr-D, whose document frequencies come from the set it scores.

    A benchmark that judges a pair several times counts it as often: ``repeats`` says how often.
    """

    texts: TokenisedTexts = field(default_factory=TokenisedTexts, compare=False)

    name = "cider"
    needs = frozenset({"references"})

    def __post_init__(self) -> None:
        check_java(self.name)

    @property
    def signature(self) -> Signature:
        """The metric, the tokenizer, where its frequencies come from, and the library."""
        return Signature.of(
            metric=self.name, tokenizer="ptb", idf="set", library=package_version("pycocoevalcap")
        )

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs, in order; one that is in the set 0 times is scored, and not counted."""

        def score(items: list[TokenisedPair]) -> Floats:
            first, which = unique_keys(items)
            weights = np.bincount(which, repeats, len(first)).astype(int)
            return cider([items[number] for number in first], weights.tolist())[which]

        return _score(self.texts, pairs, score)


def _score(
    texts: TokenisedTexts,
    pairs: Sequence[Pair],
    score: Callable[[list[TokenisedPair]], Floats],
) -> RowScores:
    """Score pairs; if a program fails, their errors say why."""
    try:
        return RowScores(score(texts.items(pairs)))
    except BackendError as error:
        return RowScores(np.full(len(pairs), np.nan), dict.fromkeys(range(len(pairs)), str(error)))
