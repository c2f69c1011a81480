"""The distributions behind a judge's scores: stored readings, before and after decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discode.bench.runlog import MetricResult
from discode.decoders import Decoder, get_decoder, without_prior
from discode.decoders.base import greedy_stem
from discode.decoders.preset import is_preset
from discode.errors import ImageError, InputError, StoreError
from discode.images import image_digest
from discode.pairs import Pair
from discode.prompts import needs_neutralising
from discode.readings import Readings
from discode.readings.store import PairKey, ReadingStore, RunKey
from discode.scores import Floats, Scores
from discode.signature import Signature, SignedDecoder

_SAME = 1e-9
"""A reading belongs to a score if decoding it again gives the score, up to rounding."""


@dataclass(frozen=True, eq=False)
class MetricBars:
    """The distributions of one metric's scores.

    Attributes:
        labels: K answers, lowest first.
        before: (P, K) the token probabilities; NaN where no reading was found.
        after: (P, K) what the decoder made of them.
        flags: Pair number to the flags of its score.
    """

    labels: tuple[str, ...]
    before: Floats
    after: Floats
    flags: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def find_bars(
    pairs: Sequence[Pair],
    results: Mapping[str, MetricResult],
    stores: Sequence[Path],
    complain: Callable[[str], None] = lambda reason: None,
) -> dict[str, MetricBars]:
    """Return the distributions of the results that stores of readings hold, by label.

    A reading is shown only if decoding it again gives the score of the run. Nothing is asked, and
    decoders that need hidden states, or that this version does not know, have no bars. A store
    that cannot be read is left out, and ``complain`` is told why.
    """
    found: dict[str, MetricBars] = {}
    wanted = {
        label: (result, decoder)
        for label, result in results.items()
        if (decoder := _decoder_of(label, result.signature)) is not None
    }
    if not wanted or not stores:
        return found
    digests = _digests(pairs)
    defused = np.array([needs_neutralising(p.caption, *p.references) for p in pairs], bool)
    for path in stores:
        kept: dict[tuple[RunKey, bool], tuple[Readings, list[int]]] = {}
        try:
            with ReadingStore(path, create=False) as store:
                runs = [run for run, _ in store.run_keys()]
                for result, _ in wanted.values():
                    bare = result.signature.get("references") in ("none", "ignored")
                    for run in runs:
                        if _made_by(run, result.signature) and (run, bare) not in kept:
                            kept[run, bare] = _readings(store, run, pairs, digests, bare)
        except StoreError as error:  # a report without bars is better than none
            complain(str(error))
            continue
        for label, (result, decoder) in wanted.items():
            bare = result.signature.get("references") in ("none", "ignored")
            for (run, without), (readings, rows) in kept.items():
                if rows and without == bare and _made_by(run, result.signature):
                    bars = _decode(readings, rows, decoder, result, defused)
                    found[label] = _merge(found[label], bars) if label in found else bars
    return {label: bars for label, bars in found.items() if np.isfinite(bars.before).any()}


def _decoder_of(label: str, signature: Signature) -> Decoder | None:
    """Return the decoder of a signature; of a preset file, which the label names, only if equal."""
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
    who = run.identity
    own = Signature.of(
        model=who.model, revision=who.revision, dtype=who.dtype, scale=run.scale.unique_name
    )
    return all(own[key] == signature.get(key) for key in ("model", "revision", "dtype", "scale"))


def _digests(pairs: Sequence[Pair]) -> list[str | None]:
    """Return the SHA-256 of each pair's image; None where it cannot be read."""
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
    run: RunKey,
    pairs: Sequence[Pair],
    digests: Sequence[str | None],
    bare: bool,
) -> tuple[Readings, list[int]]:
    """Return the readings of a run key, and the numbers of the pairs that they belong to."""
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


def _decode(
    readings: Readings,
    rows: Sequence[int],
    decoder: Decoder,
    result: MetricResult,
    defused: NDArray[np.bool_],
) -> MetricBars:
    scores = Scores.build(
        decoder.decode(readings), readings, result.signature, {"defused": defused[list(rows)]}
    )
    before = without_prior(decoder).decode(readings)
    same = np.abs(scores.value - result.value[list(rows)]) <= _SAME
    places = np.asarray(rows)[same]
    wide = []
    labels: tuple[str, ...] = ()
    for answers, distribution in (
        (before.answers, before.distribution),
        (scores.answers, scores.distribution),
    ):
        labels, shown = _one_axis(readings, answers, np.asarray(distribution))
        column = np.full((len(result.value), len(labels)), np.nan)
        column[places] = shown[same]
        wide.append(column)
    flags = scores.columns()["flags"]
    kept = [place for place in np.flatnonzero(same).tolist() if flags[place]]
    return MetricBars(
        labels, wide[0], wide[1],
        {rows[place]: tuple(flags[place]) for place in kept},
    )  # fmt: skip


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
    """Fill what the first lacks from the second: two prompts of one model, or two stores."""
    lacks = np.isnan(first.before).any(axis=1, keepdims=True)
    return MetricBars(
        first.labels,
        np.where(lacks, second.before, first.before),
        np.where(lacks, second.after, first.after),
        {**second.flags, **first.flags},
    )
