"""Prompts, stems and answers as the token ids of one model.

Nothing is assumed about a vocabulary: ids are found in context, by tokenising the whole prompt
followed by the stem and the answer, and comparing.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._pairs import Pair, check_characters
from discode._prompts import Prompt
from discode._scales import Scale, find_rating, piece_at, why_no_rating
from discode.errors import InputError
from discode.readings import Readings

# Captions that begin in different ways: the ids that all their prompts share are the prefix.
_BEGINNINGS = ("a dog", "7 dogs", "'a'", "Été", "猫", ".", "-a", ")", "\u0301a", "\U0001f415", '"')

_SWITCH = "enable_thinking"
"""The variable of chat templates that switches a model's thoughts on and off."""
_THOUGHTS_BEGIN = ("<think>", "[THINK]", "◁think▷", "<|channel>")
_THOUGHTS_END = ("</think>", "[/THINK]", "◁/think▷", "<channel|>", "[RESULT]", "Final Score:")
"""What precedes a rating after thoughts; the last two are those of judges that explain first."""
MAX_NEW_TOKENS = 10
"""Enough for "Score: 0.75", after thoughts if there are any."""


def conversation(text: str, image: Any = None) -> list[dict[str, Any]]:
    """Build the input of chat templates: one turn, the image first."""
    shown = {"type": "image"} if image is None else {"type": "image", "image": image}
    return [{"role": "user", "content": [shown, {"type": "text", "text": text}]}]


@dataclass(frozen=True)
class Spelling:
    """One way to write a stem and the answers after it, as ids.

    ``ids`` are forced after the prompt: the first ``space`` of them are a space, the others the
    stem with this number. ``answers`` are (K,) groups of ids: several if the vocabulary has tokens
    of several digits, or tokens that include the space.
    """

    stem: int
    ids: tuple[int, ...]
    space: int
    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """One prompt on one scale, as the ids of one tokenizer.

    ``text`` is the prompt with an example caption: ``prefix`` are the ids before the caption, which
    all captions share (the image is one placeholder), ``tail`` the others. Each stem has at least
    one spelling, those without a space first; a rating's probability is the sum over spellings.
    """

    vocabulary: Vocabulary
    prompt: Prompt
    scale: Scale
    text: str
    prefix: tuple[int, ...]
    tail: list[int]
    spellings: tuple[Spelling, ...]

    @property
    def stems(self) -> tuple[tuple[int, ...], ...]:
        """The ids that are forced after the prompt, spelling by spelling."""
        return tuple(spelling.ids for spelling in self.spellings)

    @property
    def answers(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The groups of ids of the answers, spelling by spelling."""
        return tuple(spelling.answers for spelling in self.spellings)

    @cached_property
    def column(self) -> dict[int, int]:
        return {token: i for i, token in enumerate(self.wanted)}

    @property
    def decimal_stems(self) -> dict[int, int]:
        """Indices of the ``stems`` that two decimals may follow ("0." on scale unit), with places.

        A place is where the answers are read among the R positions: the end of the prompt, and
        every id of every stem.
        """
        if not self.scale.stems[0].endswith("."):
            return {}
        ends = np.cumsum([len(stem) for stem in self.stems]).tolist()
        return {n: ends[n] for n, spelling in enumerate(self.spellings) if spelling.stem == 0}

    @cached_property
    def answer_of(self) -> NDArray[np.float64]:
        """(I, K): 1 where an id of ``wanted`` belongs to an answer after the first stem."""
        groups = [set(group) for group in self.answers[0]]
        return np.array([[float(i in group) for group in groups] for i in self.wanted])

    @cached_property
    def second_digit(self) -> dict[int, int]:
        """The second digit of ids of several digits, as an answer ("85": 5)."""
        ids = [i for group in self.answers[0] for i in group[1:] if self.decimal_stems]
        tokens = self.vocabulary.tokenizer.convert_ids_to_tokens(ids)
        return {i: self.scale.answers.index(token[1]) for i, token in zip(ids, tokens, strict=True)}

    def render(self, caption: str, references: Sequence[str]) -> str:
        """Render the prompt with a caption, whose control tokens are neutralised."""
        check_characters(caption, *references)
        control = self.vocabulary.control_tokens
        return self.prompt.render(caption, references, self.scale, control)

    def suffixes(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Tokenise several captions together; returns the ids after the shared prefix."""
        texts = [self.render(pair.caption, pair.references) for pair in pairs]
        rows = self.vocabulary.encode_all(texts)
        for ids, pair in zip(rows, pairs, strict=True):
            if tuple(ids[: len(self.prefix)]) != self.prefix:
                start = pair.caption[:20]
                raise InputError(f"the tokenizer merges the caption {start!r} with the instruction")
        return [ids[len(self.prefix) :] for ids in rows]

    def before_rating(self, tokens: Sequence[int], pieces: Sequence[str]) -> list[int]:
        """List the tokens before the rating and its stem; raise if there is no rating.

        The rating is found by its text and checked by its tokens: it must consist of the tokens
        whose probabilities are read.
        """
        text = "".join(pieces)
        rating = find_rating(text, self.scale)
        if rating is None:
            raise InputError(why_no_rating(text, self.scale))
        step = piece_at(pieces, rating.at)
        starts = [
            step - len(spelling.ids)
            for spelling in self.spellings
            if spelling.stem == rating.stem
            and len(spelling.ids) <= step
            and tuple(tokens[step - len(spelling.ids) : step]) == spelling.ids
            and tokens[step] in spelling.answers[rating.answer]
        ]
        if not starts:
            raise InputError(f"the answer {text!r} is a rating in tokens that are not read")
        return list(tokens[: min(starts)])

    @property
    def wanted(self) -> list[int]:
        """All ids whose probabilities are read, in ascending order."""
        ids = {i for stem in self.stems for i in stem}
        return sorted(ids | {i for stem in self.answers for group in stem for i in group})


class Vocabulary:
    """A processor's tokenizer and chat template; ``thinking`` is "on" or "off"."""

    def __init__(self, processor: Any, thinking: str = "off") -> None:
        self.processor, self.thinking = processor, thinking
        self.tokenizer = getattr(processor, "tokenizer", processor)
        added = {str(token) for token in self.tokenizer.get_added_vocab()}
        self.control_tokens = frozenset(added | set(self.tokenizer.all_special_tokens))
        self._prompts: dict[tuple[str, Scale, bool], TokenizedPrompt] = {}

    @cached_property
    def template_options(self) -> dict[str, bool]:
        """The chat template's switch for thoughts, if it makes a difference.

        Raises if the prompt makes the model think although it should not.
        """
        options = {_SWITCH: self.thinking == "on"}
        if not self._has_switch or self._chat("", options) == self._chat("", {}):
            options = {}
        if self.thinking == "off" and _is_thinking(self._chat("", options)):
            raise InputError(
                f"this model always thinks: its chat template begins the thoughts, {self.tried}"
            )
        return options

    @property
    def _has_switch(self) -> bool:
        parts = (self.processor, self.tokenizer)
        return any(_SWITCH in str(getattr(part, "chat_template", "")) for part in parts)

    @property
    def tried(self) -> str:
        """What was tried to switch thoughts off, and what to do instead."""
        tried = f"although {_SWITCH}=false was set" if self._has_switch else f"without {_SWITCH}"
        return f"{tried}; set thinking=on (-M thinking=on), or use another model"

    def chat(self, text: str) -> str:
        return self._chat(text, self.template_options)

    def _chat(self, text: str, options: dict[str, bool]) -> str:
        try:
            return str(
                self.processor.apply_chat_template(
                    conversation(text), add_generation_prompt=True, tokenize=False, **options
                )
            )
        # A template may be invalid, or refuse images with any exception.
        except Exception as error:
            why = str(error) or type(error).__name__
            raise InputError(f"the model's chat template cannot be used: {why}") from error

    def encode(self, text: str, continuation: str = "") -> list[int]:
        return self.encode_all([text], continuation)[0]

    def encode_all(self, texts: Sequence[str], continuation: str = "") -> list[list[int]]:
        strings = [self.chat(text) + continuation for text in texts]
        start = self.tokenizer.bos_token
        # As the processors do: no second first token if the template writes it.
        special = start is None or not strings[0].startswith(start)
        rows = self.tokenizer(strings, add_special_tokens=special)["input_ids"]
        return [list(map(int, row)) for row in rows]

    def piece(self, tokens: Sequence[int], step: int) -> str:
        """The text that the token at ``step`` adds, including spaces."""
        before = self.tokenizer.decode(tokens[:step], skip_special_tokens=True)
        after = self.tokenizer.decode(tokens[: step + 1], skip_special_tokens=True)
        return str(after[len(before) :])

    def answer_start(self, tokens: Sequence[int], most: int) -> int | None:
        """Find where the answer begins after thoughts; None if they have not ended.

        Without marks, a text of ``most`` tokens of a model that should think is unfinished: a
        number in its explanation is no rating.
        """
        text = self._text(tokens)
        if _is_thinking(self.chat("") + text):
            return None
        ends = [text.rfind(mark) + len(mark) for mark in _THOUGHTS_END if mark in text]
        if self.thinking == "on" and not ends and len(tokens) >= most:
            return None
        counts = range(len(tokens) + 1)
        return bisect.bisect_left(
            counts, max(ends, default=0), key=lambda count: len(self._text(tokens[:count]))
        )

    def _text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with special tokens, which marks of thoughts are."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))

    def tokenize_prompt(
        self, prompt: Prompt, scale: Scale, *, references: bool, sampled: bool = False
    ) -> TokenizedPrompt:
        """Tokenise a prompt on a scale; raises if an answer is not one token.

        Ratings in sampled answers are found by their text, so that no token is needed.
        """
        key = (prompt.template(references), scale, sampled)
        if key not in self._prompts:
            self._prompts[key] = self._tokenize(prompt, scale, references, sampled)
        return self._prompts[key]

    def _tokenize(
        self, prompt: Prompt, scale: Scale, references: bool, sampled: bool
    ) -> TokenizedPrompt:
        def render(caption: str) -> str:
            shown = [caption] if references else []
            return prompt.render(caption, shown, scale, self.control_tokens)

        text = render(_BEGINNINGS[0])
        first = self.encode(text)
        shared = len(first)
        for beginning in _BEGINNINGS[1:]:
            other = self.encode(render(beginning))
            same = (a == b for a, b in zip(first, other, strict=False))
            shared = min(shared, next((i for i, yes in enumerate(same) if not yes), shared))
        spellings = () if sampled else self._spellings(text, first, scale)
        return TokenizedPrompt(
            self, prompt, scale, text, tuple(first[:shared]), first[shared:], spellings
        )

    def _spellings(self, text: str, first: list[int], scale: Scale) -> tuple[Spelling, ...]:
        spellings: dict[tuple[int, ...], Spelling] = {}
        refused: dict[int, InputError] = {}
        for space in ("", " "):
            for number in range(len(scale.stems)):
                try:
                    new = self._spell(text, first, space, number, scale)
                except InputError as error:  # its tokens merge with the prompt or each other
                    refused.setdefault(number, error)
                    continue
                if new.ids in spellings:  # one token includes the space and the answer
                    both = zip(spellings[new.ids].answers, new.answers, strict=True)
                    groups = tuple(tuple(dict.fromkeys((*a, *b))) for a, b in both)
                    spellings[new.ids] = replace(new, answers=groups)
                elif not space or self.may_begin_with_space(text):
                    spellings[new.ids] = new
        for number, reason in refused.items():
            if all(spelling.stem != number for spelling in spellings.values()):
                raise reason
        return tuple(spellings.values())

    def may_begin_with_space(self, text: str) -> bool:
        """Whether an answer may begin with a space: the prompt does not end in white space.

        It may after "ASSISTANT:" and "[/INST]", but not after a line break.
        """
        return not self.chat(text)[-1:].isspace()

    def _spell(
        self, text: str, first: list[int], space: str, number: int, scale: Scale
    ) -> Spelling:
        """Find how this vocabulary spells a stem; raises if an answer is not one token."""
        stem = scale.stems[number]
        ids = self._added(text, first, space + stem)
        added = [self._added(text, first, space + stem + answer) for answer in scale.answers]
        if space and not stem and all(len(answer) == 1 for answer in added):
            ids = []
        groups = []
        for answer, (*before, token) in zip(scale.answers, added, strict=True):
            if before != ids:
                raise InputError(
                    f"this model's tokenizer does not write the answer {stem + answer!r} as one "
                    "token after its stem; use another scale (unit, ten, five, letters)"
                )
            groups.append((token, *(self._numbers.get(answer, ()) if stem.endswith(".") else ())))
        alone = self._added(text, first, space)
        width = len(alone) if ids[: len(alone)] == alone else 0
        return Spelling(number, tuple(ids), width, tuple(groups))

    def _added(self, text: str, first: list[int], continuation: str) -> list[int]:
        ids = self.encode(text, continuation)
        if ids[: len(first)] != first:
            raise InputError(
                f"this model's tokenizer merges {continuation!r} with the end of its prompt"
            )
        return ids[len(first) :]

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """Tokens of several digits by their first digit.

        After "0.", "85" has the first decimal 8, so its probability belongs to 8.
        """
        numbers: dict[str, list[int]] = {}
        for token, i in self.tokenizer.get_vocab().items():
            if len(token) > 1 and token.isascii() and token.isdigit():
                numbers.setdefault(token[0], []).append(int(i))
        # A vocabulary's order changes from run to run, and sums with it.
        return {digit: sorted(ids) for digit, ids in numbers.items()}


def _is_thinking(text: str) -> bool:
    """Whether thoughts have begun in a text and not ended."""
    return max(map(text.rfind, _THOUGHTS_BEGIN)) > max(map(text.rfind, _THOUGHTS_END))


@np.errstate(invalid="ignore")  # a broken model's NaN becomes a failed row
def readings_from_logp(
    tokenized: TokenizedPrompt,
    logp: NDArray[np.float64],
    states: NDArray[np.float32],
    head: NDArray[np.float32] | None,
    how: str = "forced",
) -> Readings:
    """Turn log-probabilities (N, R, I) of ``tokenized.wanted`` at the R positions into readings.

    A stem's probability is the sum over its spellings, and so is that of each answer after it:
    a space before the rating makes no difference. Positions beyond the stems', if any, follow the
    first decimal of each spelling of "0.".

    With the rows of the head for ``tokenized.wanted``, ``head`` (I, D), the readings include the
    hidden states before the answer, from ``states`` (N, R, D).
    """
    n, b, k = len(logp), len(tokenized.scale.stems), len(tokenized.scale.answers)
    path_logp, first_logp, after_logp, places = _logp_of_spellings(tokenized, logp)
    stem_logp, lead_logp, answer_logp = np.empty((n, b)), np.empty((n, b)), np.empty((n, b, k))
    likeliest = np.empty((n, b), np.intp)
    for stem in range(b):
        of = [i for i, spelling in enumerate(tokenized.spellings) if spelling.stem == stem]
        # The empty stem is certain, with or without a space: the sum is clipped to 1.
        stem_logp[:, stem] = np.logaddexp.reduce(path_logp[:, of], axis=1).clip(max=0)
        lead_logp[:, stem] = np.logaddexp.reduce(first_logp[:, of], axis=1)
        weight = path_logp[:, of] - stem_logp[:, stem, None]
        joint = weight[:, :, None] + after_logp[:, of]
        answer_logp[:, stem] = np.logaddexp.reduce(joint, axis=1)
        likeliest[:, stem] = np.array(places)[of][joint.max(axis=2).argmax(axis=1)]
    hidden = rows = second = None
    if head is not None:
        every = np.arange(n)
        hidden = states[every, likeliest[every, stem_logp.argmax(axis=1)]]
        rows = head[[tokenized.column[group[0]] for group in tokenized.answers[0]]]
    forced = 1 + sum(len(spelling.ids) for spelling in tokenized.spellings)
    if logp.shape[1] > forced:
        second = np.empty((n, k))
        for extra, at in enumerate(tokenized.decimal_stems.values(), forced):
            here = likeliest[:, 0] == at  # the second decimal follows the likeliest spelling
            second[here] = second_decimals(tokenized, logp[here, at], logp[here, extra])
        second[stem_logp.argmax(axis=1) != 0] = np.nan  # "1.0" has one decimal
    return Readings(
        tokenized.scale,
        answer_logp.clip(max=0),
        stem_logp,
        lead_logp=lead_logp.clip(max=0) if any(tokenized.scale.stems) else None,
        second_logp=None if second is None else second.clip(max=0),
        hidden=hidden,
        head=rows,
        how=np.full(n, how),
    )


def _logp_of_spellings(
    tokenized: TokenizedPrompt, logp: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], list[int]]:
    """Compute log P of M spellings, their first tokens (N, M) and answers after them (N, M, K).

    Also returns the position at which each spelling's answers are read.
    """
    column = tokenized.column
    n, m = len(logp), len(tokenized.spellings)
    path_logp, first_logp = np.zeros((n, m)), np.zeros((n, m))
    after_logp = np.empty((n, m, len(tokenized.scale.answers)))
    places = []
    place = 0
    for number, spelling in enumerate(tokenized.spellings):
        before = 0
        for step, token in enumerate(spelling.ids):
            path_logp[:, number] += logp[:, before, column[token]]
            if step == spelling.space:
                first_logp[:, number] = path_logp[:, number]
            place += 1
            before = place
        places.append(before)
        for answer, group in enumerate(spelling.answers):
            columns = [column[token] for token in group]
            after_logp[:, number, answer] = np.logaddexp.reduce(logp[:, before, columns], axis=-1)
    return path_logp, first_logp, after_logp, places


def first_decimal(tokenized: TokenizedPrompt, logp: NDArray[np.float64]) -> tuple[int, int]:
    """Find the likeliest answer for ``logp`` (I,) after the first stem, and its likeliest id."""
    answer = int((np.exp(logp) @ tokenized.answer_of).argmax())
    column = np.where(tokenized.answer_of[:, answer] > 0, logp, -np.inf).argmax()
    return answer, tokenized.wanted[int(column)]


def second_decimals(
    tokenized: TokenizedPrompt, before: NDArray[np.float64], after: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute log P(second decimal | the likeliest first one) (N, K).

    ``before`` (N, I) are the log-probabilities after "0.", ``after`` (N, I) those after the first
    decimal d: NaN, like the result, where the model would end the number there. If the likeliest
    id of d has several digits ("85"), the second decimal is part of it:
    P(5 | 8) = Σ P("85...") / (P("8") + Σ P("8...")).
    """
    belongs = tokenized.answer_of > 0
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        second = np.stack([np.logaddexp.reduce(after[:, ids], axis=1) for ids in belongs.T], axis=1)
    for row, logp in enumerate(before):
        answer, token = first_decimal(tokenized, logp)
        if token in tokenized.second_digit:
            second[row] = -np.inf
            for other in tokenized.answers[0][answer][1:]:
                digit = tokenized.second_digit[other]
                second[row, digit] = np.logaddexp(second[row, digit], logp[tokenized.column[other]])
            second[row] -= np.logaddexp.reduce(logp[belongs[:, answer]])
    return second
