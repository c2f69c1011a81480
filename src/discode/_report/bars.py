"""The distributions behind a judge's scores: stored readings, before and after decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discode._pairs import Pair
from discode._prompts import needs_neutralising
from discode._scores import Floats, Scores
from discode._signature import Signature, SignedDecoder
from discode.bench._runlog import MetricResult
from discode.decoders import Decoder, get_decoder
from discode.decoders._base import greedy_stem
from discode.decoders._preset import is_preset
from discode.errors import ImageError, InputError, StoreError
from discode.explain._effects import THRESHOLD, Explanation, explain_scores, pairs_to_explain
from discode.images import image_digest
from discode.readings import Readings
from discode.readings._store import PairKey, ReadingStore, RunKey

_SAME = 1e-9
"""A reading belongs to a score if decoding it again gives the score, up to rounding."""


@dataclass(frozen=True, eq=False)
class MetricBars:
    """The distributions of one metric's scores.

    Attributes:
        labels: K answers, lowest first.
        before: (P, K) the token probabilities; NaN where no reading was found.
        after: (P, K) the decoded distributions.
        flags: Pair number to the flags of its score.
        explained: Pair number to the effects of its words on the score.
    """

    labels: tuple[str, ...]
    before: Floats
    after: Floats
    flags: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    explained: Mapping[int, Explanation] = field(default_factory=dict)


def find_bars(
    pairs: Sequence[Pair],
    results: Mapping[str, MetricResult],
    stores: Sequence[Path],
    complain: Callable[[str], None] = lambda reason: None,
) -> dict[str, MetricBars]:
    """Find the distributions of the results in stores of readings, by label.

    A reading is shown only if decoding it again gives the score of the run; so are its words, if
    the store has the readings of all of them (``discode explain --store``). No model is used;
    decoders that need hidden states, or are unknown to this version, have no bars. Unreadable
    stores are skipped, and ``complain`` gets the reason.
    """
    wanted = {
        label: (result, decoder)
        for label, result in results.items()
        if (decoder := _decoder_of(label, result.signature)) is not None
    }
    if not wanted or not stores:
        return {}
    digests = _digests(pairs)
    defused = np.array([needs_neutralising(p.caption, *p.references) for p in pairs], bool)
    bars: dict[str, MetricBars] = {}
    for path in stores:
        try:
            with ReadingStore(path, create=False) as store:
                read = cache(partial(_readings, store, pairs, digests))
                read_words = cache(partial(_variants, store, pairs, digests))
                for (run, count), (label, (result, decoder)) in product(
                    store.run_keys(), wanted.items()
                ):
                    bare = result.signature.get("references") in ("none", "ignored")
                    if _made_by(run, result.signature) and (rows := read(run, bare)[1]):
                        more = _decode(read(run, bare)[0], rows, decoder, result, defused)
                        own = {(digests[row], pairs[row].caption) for row in rows}
                        if count > len(own):  # there may be words among the others
                            words = read_words(run, bare)
                            more = _with_words(more, pairs, *words, decoder, result.signature)
                        bars[label] = _merge(bars[label], more) if label in bars else more
        except StoreError as error:  # a report without bars is better than none
            complain(str(error))
    return {label: its for label, its in bars.items() if np.isfinite(its.before).any()}


def _decoder_of(label: str, signature: Signature) -> Decoder | None:
    """Recreate the decoder of a signature; None if it differs or cannot be made."""
    signed = signature.decoder
    if signed is None:
        return None
    method = label.partition(" (")[0].removeprefix("ref-")
    try:
        decoder = get_decoder(method) if is_preset(method) else signed.make()
    except InputError:  # a file that is gone, or a decoder of another version
        return None
    return decoder if not decoder.requires and SignedDecoder.of(decoder) == signed else None


def _made_by(run: RunKey, signature: Signature) -> bool:
    asked = Signature.of(**vars(run.identity), scale=run.scale.unique_name)
    return all(asked[key] == signature.get(key) for key in ("model", "revision", "dtype", "scale"))


def _digests(pairs: Sequence[Pair]) -> list[str | None]:
    known: dict[str, str | None] = {}
    for pair in pairs:
        if str(pair.image) not in known:
            try:
                known[str(pair.image)] = image_digest(pair.image)
            except ImageError:
                known[str(pair.image)] = None
    return [known[str(pair.image)] for pair in pairs]


def _readings(
    store: ReadingStore,
    pairs: Sequence[Pair],
    digests: Sequence[str | None],
    run: RunKey,
    bare: bool,
) -> tuple[Readings, list[int]]:
    rows, keys = [], []
    for row, (pair, digest) in enumerate(zip(pairs, digests, strict=True)):
        if digest is not None:
            try:
                keys.append(PairKey(digest, pair.caption, () if bare else pair.references))
            except InputError:
                continue
            rows.append(row)
    readings, here = store.get(run, keys)
    return readings, [rows[place] for place in here]


def _variants(
    store: ReadingStore,
    pairs: Sequence[Pair],
    digests: Sequence[str | None],
    run: RunKey,
    bare: bool,
) -> tuple[Readings, list[int]]:
    """Read the readings that explain pairs, with the numbers of the pairs they cover fully."""
    asked = [pairs_to_explain([pair]) for pair in pairs]
    worded = [row for row, its in enumerate(asked) if len(its) > 1]
    # Most were never explained: then their first variant is not there either.
    firsts, images = [asked[row][1] for row in worded], [digests[row] for row in worded]
    found = [worded[place] for place in _readings(store, firsts, images, run, bare)[1]]
    variants = [pair for row in found for pair in asked[row]]
    images = [digests[row] for row in found for _ in asked[row]]
    readings, here = _readings(store, variants, images, run, bare)
    place_of = {place: number for number, place in enumerate(here)}
    rows, places, start = [], [], 0
    for row in found:
        own = range(start, start + len(asked[row]))
        start = own.stop
        if all(place in place_of for place in own):
            rows.append(row)
            places += [place_of[place] for place in own]
    return readings.take(places), rows


def _decode(
    readings: Readings,
    rows: Sequence[int],
    decoder: Decoder,
    result: MetricResult,
    defused: NDArray[np.bool_],
) -> MetricBars:
    scores = Scores.build(decoder, readings, result.signature, {"defused": defused[list(rows)]})
    same = np.abs(scores.value - result.value[list(rows)]) <= _SAME
    columns = []
    labels: tuple[str, ...] = ()
    for distribution in (scores.plain, scores.distribution):
        labels, shares = _one_axis(readings, scores.answers, np.asarray(distribution))
        column = np.full((len(result.value), len(labels)), np.nan)
        column[np.asarray(rows)[same]] = shares[same]
        columns.append(column)
    flags = scores.columns()["flags"]
    flagged = [place for place in np.flatnonzero(same).tolist() if flags[place]]
    by_row = {rows[place]: tuple(flags[place]) for place in flagged}
    return MetricBars(labels, columns[0], columns[1], by_row)


def _with_words(
    bars: MetricBars,
    pairs: Sequence[Pair],
    readings: Readings,
    rows: Sequence[int],
    decoder: Decoder,
    signature: Signature,
) -> MetricBars:
    """Add what words do to the scores that have bars, by the readings of :func:`_variants`."""
    if not rows:
        return bars
    scores = Scores.build(decoder, readings, signature)
    explained = explain_scores([pairs[row] for row in rows], scores, readings.scale, THRESHOLD)
    found = zip(rows, explained, strict=True)
    own = {row: each for row, each in found if np.isfinite(bars.before[row]).any()}
    return replace(bars, explained=own)


def _one_axis(
    readings: Readings, answers: tuple[str, ...], distribution: Floats
) -> tuple[tuple[str, ...], Floats]:
    """Lay answers after several stems ("0.", "1.") on one axis, from 0.0 to 1.0."""
    scale = readings.scale
    if len(scale.stems) == 1 or answers != scale.answers:
        return answers, distribution
    labels = (*(f"{scale.stems[0]}{answer}" for answer in answers), scale.high)
    last = (greedy_stem(readings) == len(scale.stems) - 1)[:, None]
    top = np.where(last, distribution[:, :1], 0.0)
    return labels, np.concatenate([np.where(last, 0.0, distribution), top], axis=1)


def _merge(first: MetricBars, second: MetricBars) -> MetricBars:
    """Fill gaps of the first from the second: two prompts of one model, or two stores."""
    lacks = np.isnan(first.before).any(axis=1, keepdims=True)
    return MetricBars(
        first.labels,
        np.where(lacks, second.before, first.before),
        np.where(lacks, second.after, first.after),
        {**second.flags, **first.flags},
        {**second.explained, **first.explained},
    )
