"""Readings from an answer's tokens: what is known of every answer along each stem of a scale.

Tokenizers cut "0.75" in many ways: ``0 . 75``, ``0. 7 5``, ``0 .7``, or one token. So we find the
answer in the text; the token that holds its first decimal is at position T. The other tokens that
were likely at T are read letter by letter: after a written ``0``, ``.7`` is a 7, and so is ``.75``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discode._scales import Scale, find_rating, piece_at, why_no_rating
from discode.readings._base import Readings, absent_answers
from discode.readings._tokens import SPACE_MARKS, Token, candidates, pieces_of, token_logp

Floats = NDArray[np.float64]
MIN_LEAD = 0.5
"""Below this probability that an answer begins with a stem, what the model writes counts."""
SEVERAL_TOKENS = "in several tokens; take another scale (unit, five)"


def reading_from_tokens(
    tokens: Sequence[Token],
    scale: Scale,
    *,
    missing: str = "spread",
    whole: bool = False,
    every: bool = False,
) -> Readings:
    """Return the reading of one answer, or a NaN row with the text written instead.

    Answers that are missing from the list get the smallest probability in it, or an equal share of
    the remaining mass if that is less; the row is then flagged truncated. With ``missing="nan"``,
    such a row is NaN. ``whole`` means that the model writes a number of several digits as one
    token; where that is not known, "1" on a scale to 10 may be the beginning of "10". ``every``
    means that the list has all tokens of all answers: otherwise, where "85" is in it, others may
    not be.

    >>> from discode._scales import FIVE
    >>> top = {"4": math.log(0.5), " 4": math.log(0.1), "5": math.log(0.2), "the": math.log(0.1)}
    >>> reading = reading_from_tokens([Token("4", top, math.log(0.5))], FIVE)
    >>> np.exp(reading.answer_logp[0, 0]).round(3).tolist(), reading.truncated.tolist()
    ([0.033, 0.033, 0.033, 0.6, 0.2], [True])
    """
    pieces = pieces_of(tokens)
    rating = find_rating(text := "".join(pieces), scale)
    if rating is None:
        return Readings.failed(scale, [why_no_rating(text, scale)])
    first, at = (piece_at(pieces, position) for position in (rating.start, rating.at))
    junk = pieces[first][: rating.start - len("".join(pieces[:first]))]
    read, answer = list(tokens[first : at + 1]), scale.answers[rating.answer]
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    if not scale.stems[rating.stem]:
        if _answer(pieces[at], scale) != answer:
            return Readings.failed(scale, [f"the model writes {answer!r} {SEVERAL_TOKENS}"])
        top = candidates(tokens[at])
        if not whole and len(answer) == 1:  # a longer one would be one token
            top = _before_unclear(top, scale)
        if tokens[at].text not in top:
            return Readings.failed(scale, [f"the model may write answers {SEVERAL_TOKENS}"])
        read[-1] = Token(tokens[at].text, top, tokens[at].logp)
    # All in one token: every stem may be in its list.
    stems = range(len(scale.stems)) if first == at else (rating.stem,)
    paths = [StemPath(scale, stem, "", junk, read, after) for stem in stems]
    return reading_from_paths(paths, missing=missing, every=every, generated=True)


@dataclass
class StemPath:
    """The tokens of an answer along one stem: those that the model wrote, or would be given.

    Where the model went another way, the likeliest token that leads along the stem is taken from
    its list; the model has to be asked to continue ``begun``, with ``left`` tokens.
    ``before`` is what it wrote before its rating, of which ``junk`` is in the rating's own token.

    >>> from discode._scales import UNIT
    >>> path = StemPath(UNIT, 1)
    >>> path.follow([Token("0", {"0": -0.2, "1": -1.8})])
    >>> path.begun, path.left
    ('1', 3)
    >>> path.follow([Token(".", {".": -0.1}), Token("0", {"0": -0.3, "5": -1.5})])
    >>> path.complete, round(path.read()[1], 1)
    (True, -1.9)
    """

    scale: Scale
    stem: int
    before: str = ""
    junk: str = ""
    tokens: list[Token] = field(default_factory=list)
    after: Token | None = None
    lost: bool = False

    @property
    def begun(self) -> str:
        """What the answer begins with; the server's template has the space before it."""
        return (self.before + self._written).lstrip()

    @property
    def left(self) -> int:
        """How many tokens are wanted, at most: up to the answer, and one that may follow it."""
        return len(self.scale.stems[self.stem]) - len(self._written) + 2

    @property
    def complete(self) -> bool:
        return self.left < 2

    def _text(self, tokens: Sequence[Token]) -> str:
        return "".join(pieces_of(tokens)).removeprefix(self.junk).lstrip()

    @property
    def _written(self) -> str:
        return self._text(self.tokens)

    def _fits(self, text: str) -> bool:
        written, stem = self._text([*self.tokens, Token(text, {})]), self.scale.stems[self.stem]
        answered = written.startswith(stem) and written[len(stem) :][:1] in self.scale.answers
        return written != self._written and (answered or stem.startswith(written))

    def follow(self, tokens: Sequence[Token]) -> None:
        """Go on along tokens that the model wrote after what it was given."""
        self.lost = not tokens
        for token, after in itertools.zip_longest(tokens, tokens[1:]):
            likely = candidates(token)
            text, logp = token.text, token_logp(token)
            if not self._fits(text):
                text = max(filter(self._fits, likely), key=lambda text: likely[text], default="")
                self.lost = not text  # so unlikely that it is not in the list
                if self.lost:
                    return
                logp, after = likely[text], None
            self.tokens.append(Token(text, likely, logp))
            if self.complete or text != token.text:
                self.after = after
                return

    def read(self, *, every: bool = False) -> _Position:
        """Return what is known at the answer; the mass is log P(stem)."""
        *before, last = self.tokens
        written, junk = self._text(before), "" if before else self.junk
        position = _answers_at(candidates(last), self.scale, self.stem, written, junk, every)
        return position._replace(mass=sum(map(token_logp, before)) + position.mass)

    def second_decimals(self, *, inside: bool) -> _Position | None:
        """Return what is known of the second decimal; None where the number ends.

        One in the same token as the first is only looked for ``inside`` where that is wanted.
        """
        stem = self.scale.stems[self.stem]
        more = self._written[len(stem) + 1 :]
        if not more and self.after and self.after.text.translate(SPACE_MARKS)[:1].isdigit():
            top = candidates(self.after)
        elif more and inside:  # P(5 | 8) = Σ P("85...") / Σ P("8...")
            start = self.tokens[-1].text.translate(SPACE_MARKS).removesuffix(more)
            texts = {text.translate(SPACE_MARKS): p for text, p in self.tokens[-1].top.items()}
            both = {t.removeprefix(start): p for t, p in texts.items() if t.startswith(start)}
            whole = float(np.logaddexp.reduce(list(both.values())))
            top = {text: logp - whole for text, logp in both.items() if text}
        else:
            return None
        return _answers_at(top, self.scale, self.stem, stem, "", every=True)


def stem_paths(tokens: Sequence[Token], scale: Scale, *, forced: bool) -> list[StemPath]:
    """Return the paths along all stems through an answer, as far as it leads.

    None where it has no rating, nor probably begins with one, unless ``forced``.
    """
    pieces = pieces_of(tokens)
    rating = find_rating("".join(pieces), scale)
    words = [place for place, piece in enumerate(pieces) if piece.strip()]
    if not words:
        return []
    first = piece_at(pieces, rating.start) if rating else words[0]
    if rating is None and not forced:
        leads = [_lead(candidates(tokens[first]), stem, "") for stem in scale.stems]
        if np.nansum(np.exp(leads)) < MIN_LEAD:
            return []
    before = "".join(pieces[:first])
    junk = "" if rating is None else pieces[first][: rating.start - len(before)]
    paths = [StemPath(scale, stem, before + junk, junk) for stem in range(len(scale.stems))]
    for path in paths:
        path.follow(tokens[first:])
    return paths


def reading_from_paths(
    paths: Sequence[StemPath],
    *,
    missing: str = "spread",
    every: bool = False,
    generated: bool = False,
) -> Readings:
    """Return the reading of an answer that was followed along its stems, as far as possible.

    ``generated`` means that the model wrote it all.
    """
    scale, junk = paths[0].scale, paths[0].junk
    ends = {path.stem: path.read(every=every) for path in paths if path.complete}
    ends = {stem: end for stem, end in ends.items() if end.mass > -math.inf}
    if not ends:
        return Readings.failed(scale, ["no answer of the scale is among the model's likeliest"])
    stem = max(ends, key=lambda stem: ends[stem].mass)
    likelier = next(path for path in paths if path.stem == stem)
    if ends[stem].absent and missing == "nan":
        return Readings.failed(scale, [absent_answers(ends[stem].absent, len(scale.answers))])
    answer_logp = np.full((1, len(scale.stems), len(scale.answers)), np.nan)
    stem_logp = np.full((1, len(scale.stems)), np.nan)
    for number, end in ends.items():
        answer_logp[0, number], stem_logp[0, number] = end.answers, end.mass
    second = None
    if scale.stems[stem] and (generated or not stem):  # a begun "1.0" has one decimal
        second = likelier.second_decimals(inside=not generated)
    # No method looks at what follows an unlikely "1.".
    cut = [end.cut for end in (ends[stem], ends.get(0), second) if end]
    begins = candidates(likelier.tokens[0])
    lead_logp = np.array([[_lead(begins, beginning, junk) for beginning in scale.stems]])
    return Readings(
        scale,
        answer_logp.clip(max=0),
        stem_logp.clip(max=0),
        lead_logp=lead_logp.clip(max=0) if any(scale.stems) else None,
        second_logp=None if second is None else second.answers[None].clip(max=0),
        truncated=np.array([any(cut)]),
        how=np.array(["generated" if generated or likelier.before.strip() else "forced"]),
    )


def _answer(text: str, scale: Scale) -> str | None:
    """Return the answer that a token is on a scale without stems; "B)" is B, "45" is not 4."""
    rating = find_rating(text.translate(SPACE_MARKS), scale)
    return None if rating is None else scale.answers[rating.answer]


def _before_unclear(top: Mapping[str, float], scale: Scale) -> dict[str, float]:
    """Return the tokens that are likelier than any that may be the beginning of a longer answer.

    Where "10" is written as "1" and "0", the probability of "1" gives neither that of 1 nor that of
    10, only that neither is likelier: so the list is read as if it ended there. Where "10" itself
    is likelier than "1", it is not written that way.
    """
    mass: dict[str, float] = {}
    for token, logp in top.items():
        if (answer := _answer(token, scale)) is not None:
            mass[answer] = float(np.logaddexp(mass.get(answer, -math.inf), logp))
    unclear = -math.inf
    for answer, logp in mass.items():
        longer = [a for a in scale.answers if a.startswith(answer) and a != answer]
        if longer and logp > max(mass.get(a, -math.inf) for a in longer):
            unclear = max(unclear, logp)
    return {token: logp for token, logp in top.items() if logp > unclear}


class _Position(NamedTuple):
    """The answers found in a list of likely tokens."""

    answers: Floats  # (K,) log P(answer | stem)
    mass: float  # log P(what the list adds to the stem)
    absent: list[str]
    cut: bool  # whether tokens of answers may be missing


def _answers_at(
    top: Mapping[str, float], scale: Scale, stem: int, written: str, junk: str, every: bool
) -> _Position:
    """Return the answers of a list of tokens where one is expected.

    ``written`` is the part of the stem before this position, ``junk`` whatever is glued to the
    front of the number in the same token. Unless the list has ``every`` token of an answer, "85"
    among them shows that others may be missing: the rest of the mass may be any answer's.
    """
    wanted = scale.stems[stem]
    known: dict[str, list[float]] = {}
    bare = -math.inf  # the stem alone: its answer would be the next token
    cut = False
    for text, logp in top.items():
        piece = text.translate(SPACE_MARKS)
        if wanted:
            piece = written + (piece if written else piece.removeprefix(junk).lstrip())
            rest = piece[len(wanted) :] if piece.startswith(wanted) else ""
            if piece == wanted:
                bare = float(np.logaddexp(bare, logp))
            if rest[:1] in scale.answers:
                known.setdefault(rest[0], []).append(logp)
                cut |= not every and rest[1:2].isdigit()
        elif (answer := _answer(piece, scale)) is not None:
            known.setdefault(answer, []).append(logp)
    absent = [answer for answer in scale.answers if answer not in known]
    left = max(1.0 - float(np.exp(list(top.values())).sum()), 0.0)
    share = left / max(len(absent), 1)
    fill = min(min(top.values()), math.log(share) if share else -math.inf)
    joint = np.array(
        [float(np.logaddexp.reduce(known[a])) if a in known else fill for a in scale.answers]
    )
    if not known:
        return _Position(joint, -math.inf, absent, True)
    mass = 0.0
    if wanted and written != wanted:
        mass = float(np.logaddexp.reduce([bare, *itertools.chain(*known.values())]))
        unknown = math.log(left) if left and cut else -math.inf
        joint = joint - np.logaddexp.reduce([*joint, bare, unknown])
    return _Position(joint, mass, absent, cut or bool(absent))


def _lead(top: Mapping[str, float], stem: str, junk: str) -> float:
    """Return log P of the tokens that begin as the stem does, cut as the model cuts it."""
    logps = []
    for text, logp in top.items():
        piece = text.translate(SPACE_MARKS)
        rest = piece.removeprefix(junk) if piece.startswith(junk) else ""
        if rest and (rest.startswith(stem) or stem.startswith(rest)):
            logps.append(logp)
    return float(np.logaddexp.reduce(logps)) if logps and stem else math.nan
