"""The effect of each word of a caption on its score, compared with a neutral replacement."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from discode._files import without_nan
from discode._pairs import Pair
from discode._scales import Scale
from discode._scores import Scores
from discode._signature import Signature
from discode.explain._phrases import Span, find_spans

THRESHOLD = 0.45
"""A word is marked if it adds less than a correct word would, by this share of the caption's score.
With the shipped judge, fewer than one in ten correct captions have a marked word."""
LOW = 1 / 3
"""Lower scores count as this share of the scale, or any small effect would be a large share."""
MAX_SPANS = 40
"""Maximum words per caption, each of which costs one reading."""
RULES = "neutral-2"
"""Version of the rules for variants and marks, in signatures."""
NOT_READ = "not read"
"""Error of a word after the part of a caption that the judge reads."""
NO_SINGLE_WORD = "no single word is to blame for the low score"
"""Note on a caption that the judge takes for wrong throughout."""
WORD_EFFECTS = {
    (
        "3-0d60a866",
        "discode(alpha=adaptive,alpha_clip=0:1,alpha_scale=digit,cross_entropy=true,"
        "divergence=weighted-kl,prior_variance=1,sigma2=0.1,solver=closed,stem=graded,tau=1,"
        "trust=0)",
    ): {
        "subject": 0.151, "noun": 0.071, "person": 0.045, "modifier": 0.041, "adjective": 0.010,
        "number": -0.023, "verb": 0.008,
    }
}  # fmt: skip
"""The effect of a correct word, by the model's revision, the decoder and the kind of word: means
over 500 captions of COCO's dev images (``python -m training.word_effects``)."""
_MARK = '<mark style="background:#fecaca;color:#7f1d1d;padding:0 .2em">'


@dataclass(frozen=True)
class Explanation:
    """A caption with its score, and the effects of its words.

    ``str()`` marks the wrong words: ``a man on a [snowboard -0.31]``.

    Attributes:
        left_out: Number of words after the first ``MAX_SPANS``, which are not examined.
        error: Why it could not be explained, or only in part.
        cut: Whether the judge read only part of the caption. Words after that part have the effect
            NaN and the error ``NOT_READ``.
        wrong_throughout: Whether no single word is to blame for a score in the lowest third of the
            scale: all words were looked at, and none is marked.
    """

    caption: str
    score: float
    spans: tuple[Span, ...]
    left_out: int
    signature: Signature
    error: str = ""
    cut: bool = False
    wrong_throughout: bool = False

    @property
    def worst(self) -> Span | None:
        """The word with the highest blame, marked or not; None if no word could be judged."""
        judged = [span for span in self.spans if not math.isnan(span.effect)]
        return max(judged, key=lambda span: span.blame, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready data, with None for NaN."""
        spans = [vars(span) | {"blame": span.blame} for span in self.spans]
        row = vars(self) | {"spans": spans, "signature": str(self.signature)}
        return dict(without_nan(row))

    def parts(self) -> Iterator[str | Span]:
        """Yield the caption in pieces: the examined words, and the text between them."""
        end = 0
        for span in self.spans:
            yield self.caption[end : span.start]
            yield span
            end = span.end
        yield self.caption[end:]

    def __str__(self) -> str:
        return "".join(map(str, self.parts()))

    def __repr__(self) -> str:
        error = f", {self.error!r}" if self.error else ""
        return f"Explanation({self.score:.4g}, {str(self)!r}{error}, {self.signature.short})"

    def _repr_html_(self) -> str:
        pieces = []
        for part in self.parts():
            piece = html.escape(part if isinstance(part, str) else part.text)
            if isinstance(part, Span):
                if part.marked:
                    piece = f"{_MARK}<s>{piece}</s> <small>{part.shown_effect}</small></mark>"
                title = html.escape(part.error or f"{part.kind}, {part.shown_effect}")
                piece = f'<span title="{title}">{piece}</span>'
            pieces.append(piece)
        note = self.error or (NO_SINGLE_WORD if self.wrong_throughout else "")
        note = f" <small>{html.escape(note)}</small>" if note else ""
        return f"<div>{self.score:.3f} {''.join(pieces)}{note}</div>"


def pairs_to_explain(pairs: Sequence[Pair]) -> list[Pair]:
    """List the pairs that a judge must read: each pair, followed by its variants."""
    asked = []
    for pair in pairs:
        spans = find_spans(pair.caption)[:MAX_SPANS]
        asked += [pair, *(replace(pair, caption=span.variant) for span in spans)]
    return asked


def explain_scores(
    pairs: Sequence[Pair], scores: Scores, scale: Scale, threshold: float
) -> list[Explanation]:
    """Explain pairs from the scores of their :func:`pairs_to_explain`.

    The effects of correct words were measured for the shipped judge with its default decoder. For
    other judges and decoders the expected effect is 0, and the signature has ``expected:none``: a
    word is marked if the caption is better without it.
    """
    judged_by = scores.signature.get("revision"), scores.signature.get("decoder")
    known = WORD_EFFECTS.get(judged_by, {})
    signature = scores.signature.with_fields(
        explain=RULES, threshold=f"{threshold:g}", expected="measured" if known else "none"
    )
    # Removing a word beyond the judge's limit does not change the smoothed score. Other scores may
    # be equal by chance (raw has ten values).
    plain = scores.value if scores.smoothing is None else scores.smoothing
    low = LOW * (scale.maximum - scale.minimum)
    explained, row = [], 0
    for pair in pairs:
        score, cut = float(scores.value[row]), bool(scores.flags["cut"][row])
        least = threshold * max(score - scale.minimum, low)
        errors, spans = [scores.errors.get(row, "")], []
        words = find_spans(pair.caption)
        for place, word in enumerate(words[:MAX_SPANS], row + 1):
            if cut and plain[place] == plain[row]:
                spans.append(replace(word, error=NOT_READ))
                continue
            effect = score - float(scores.value[place])
            error = errors[0] or scores.errors.get(place, "")
            errors.append(error if errors[0] or not error else f"without {word.text!r}: {error}")
            span = replace(word, effect=effect, expected=known.get(word.kind, 0.0), error=error)
            spans.append(replace(span, marked=span.blame >= least and span.blame > 0))
        error = next(filter(None, errors), "")
        left_out = len(words) - len(spans)
        whole = bool(spans) and not (error or cut or left_out or any(s.marked for s in spans))
        explained.append(
            Explanation(
                pair.caption, score, tuple(spans), left_out, signature, error, cut,
                wrong_throughout=whole and score < scale.minimum + low,
            )
        )  # fmt: skip
        row += 1 + len(spans)
    return explained
