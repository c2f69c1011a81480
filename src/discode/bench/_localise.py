"""Whether a judge's explanations find the wrong word of a caption, measured on FOIL."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from discode._judge import Judge
from discode._scores import Progress
from discode._signature import Signature
from discode.bench._agreement import AgreementProtocol
from discode.benchmarks import Benchmark, Preferences
from discode.errors import InputError
from discode.explain import THRESHOLD, Explanation, Span, find_spans
from discode.stats import AccuracyPlan, Interval, bootstrap


@dataclass(frozen=True)
class Localisation:
    """How well wrong words are found, and how often right ones are suspected: shares."""

    first: Interval  # wrong captions whose wrong word is blamed more than all others
    chance: float  # what that would be if any of the caption's words was blamed
    marked: Interval  # wrong captions whose wrong word is marked
    suspected: Interval  # right captions with a marked word
    wrong: int  # captions
    right: int
    errors: Mapping[str, str]  # captions that are left out, since not all could be judged
    signature: Signature


def measure_localisation(
    judge: Judge,
    benchmark: Benchmark,
    protocol: AgreementProtocol | None = None,
    threshold: float = THRESHOLD,
    progress: Progress | None = None,
) -> Localisation:
    """Explain FOIL's captions, of which the wrong ones are right ones with a word changed.

    A wrong caption counts as not found if none of its changed words is examined.
    """
    judged, protocol = benchmark.judgments, protocol or AgreementProtocol()
    if benchmark.name != "foil" or not isinstance(judged, Preferences):
        raise InputError(f"{benchmark.name} does not mark its wrong words; use foil")
    pairs, which = benchmark.bare_pairs()
    bare = judge.explain_pairs(pairs, threshold, progress)
    explained = [bare[number] for number in which]  # a row per pair
    right = [row for row in np.unique(judged.left).tolist() if not explained[row].error]
    choices = zip(judged.left.tolist(), judged.right.tolist(), strict=True)
    couples = [(other, row) for other, row in choices if not explained[row].error]
    wrong = [row for _, row in couples]
    if not wrong or not right:
        reason = next((each.error for each in bare if each.error), "no pairs")
        raise InputError(f"nothing could be explained: {reason}")
    cases = [
        (changed_words(explained[other].caption, explained[row]), explained[row])
        for other, row in couples
    ]

    def share(rows: Sequence[int], hits: Sequence[bool]) -> Interval:
        if not protocol.resamples:
            return Interval.point(float(np.mean(hits)), protocol.level)
        plan = AccuracyPlan(np.array(hits, np.float64))
        return bootstrap(plan, benchmark.image[rows], **protocol.bootstrap)

    return Localisation(
        share(wrong, [each.worst in words for words, each in cases]),
        float(np.mean([len(words) / max(1, len(each.spans)) for words, each in cases])),
        share(wrong, [any(span.marked for span in words) for words, _ in cases]),
        share(right, [any(span.marked for span in explained[row].spans) for row in right]),
        len(wrong),
        len(right),
        {pair.id: each.error for pair, each in zip(pairs, bare, strict=True) if each.error},
        bare[0].signature,
    )


def changed_words(right: str, wrong: Explanation) -> list[Span]:
    """Find the words of a wrong caption that differ from the right one."""
    a, b = ([span.text.lower() for span in spans] for spans in (find_spans(right), wrong.spans))
    changes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [s for tag, _, _, i, j in changes if tag != "equal" for s in wrong.spans[i:j]]
