"""Prompts, stems and answers as the token ids of one model.

Nothing is assumed about a vocabulary: ids are found in context, by tokenising the whole prompt
followed by the stem and the answer, and looking at what was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import InputError
from discode.prompts import Prompt
from discode.readings import Readings
from discode.scales import Scale

# Captions that begin in different ways: the ids that come before all of them are the prefix.
_BEGINNINGS = ("a dog", "7 dogs", "'a'", "Été", "猫", ".", "-a", ")", "\u0301a", "\U0001f415", '"')


def conversation(text: str, image: Any = None) -> list[dict[str, Any]]:
    """Return what chat templates take: one turn, the image first."""
    shown = {"type": "image"} if image is None else {"type": "image", "image": image}
    return [{"role": "user", "content": [shown, {"type": "text", "text": text}]}]


@dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """One prompt on one scale, as the ids of one tokenizer."""

    vocabulary: Vocabulary
    prompt: Prompt
    scale: Scale
    text: str
    """The prompt with an example caption."""
    prefix: tuple[int, ...]
    """The ids before the caption, which all captions share; the image is one placeholder."""
    tail: list[int]
    """The other ids of ``text``."""
    stems: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[tuple[int, ...], ...], ...]
    """(B, K) groups of ids: several ids where the vocabulary has tokens of several digits."""

    @property
    def answer_columns(self) -> list[int]:
        """The columns of ``wanted`` that hold the first id of each answer."""
        column = {token: i for i, token in enumerate(self.wanted)}
        return [column[group[0]] for group in self.answers[0]]

    @property
    def decimal_stems(self) -> dict[int, int]:
        """The numbers of the ``stems`` after which two decimals may follow, "0." on scale unit.

        Each with its answers' place among the R positions: the end of the prompt, and every id of
        every stem.
        """
        ends = np.cumsum([len(stem) for stem in self.stems]).tolist()
        return {0: ends[0]} if self.scale.stems[0].endswith(".") else {}

    @cached_property
    def answer_of(self) -> NDArray[np.float64]:
        """(I, K): 1 where an id of ``wanted`` belongs to an answer after the first stem."""
        groups = [set(group) for group in self.answers[0]]
        return np.array([[float(i in group) for group in groups] for i in self.wanted])

    @cached_property
    def second_digit(self) -> dict[int, int]:
        """The answer that is the second digit of an id, for ids of several digits ("85": 5)."""
        ids = [i for group in self.answers[0] for i in group[1:] if self.decimal_stems]
        tokens = self.vocabulary.tokenizer.convert_ids_to_tokens(ids)
        return {i: self.scale.answers.index(token[1]) for i, token in zip(ids, tokens, strict=True)}

    def render(self, caption: str, references: Sequence[str]) -> str:
        """Return the prompt with a caption, whose control tokens are disarmed."""
        control = self.vocabulary.control_tokens
        return self.prompt.render(caption, references, self.scale, control)

    def suffix(self, caption: str, references: Sequence[str]) -> list[int]:
        """Return the ids that follow the shared prefix for a caption."""
        ids = self.vocabulary.encode(self.render(caption, references))
        if tuple(ids[: len(self.prefix)]) != self.prefix:
            start = caption[:20]
            raise InputError(f"the tokenizer merges the caption {start!r} with the instruction")
        return ids[len(self.prefix) :]

    @property
    def wanted(self) -> list[int]:
        """All ids whose probability is read, in ascending order."""
        ids = {i for stem in self.stems for i in stem}
        return sorted(ids | {i for stem in self.answers for group in stem for i in group})


class Vocabulary:
    """A processor's tokenizer and chat template."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        added = {str(token) for token in self.tokenizer.get_added_vocab()}
        self.control_tokens = frozenset(added | set(self.tokenizer.all_special_tokens))
        self._prompts: dict[tuple[str, Scale], TokenizedPrompt] = {}

    def chat(self, text: str) -> str:
        """Return the chat template around a text, with the placeholder of the image."""
        return str(
            self.processor.apply_chat_template(
                conversation(text), add_generation_prompt=True, tokenize=False
            )
        )

    def encode(self, text: str, continuation: str = "") -> list[int]:
        """Return the ids of a prompt's text in the chat template, and of a continuation."""
        string = self.chat(text) + continuation
        start = self.tokenizer.bos_token
        # As the processors do: a template that writes the first token itself gets no second one.
        special = start is None or not string.startswith(start)
        return [int(i) for i in self.tokenizer(string, add_special_tokens=special)["input_ids"]]

    def piece(self, tokens: Sequence[int], step: int) -> str:
        """Return the text that the token at ``step`` added, spaces included."""
        before = self.tokenizer.decode(tokens[:step], skip_special_tokens=True)
        after = self.tokenizer.decode(tokens[: step + 1], skip_special_tokens=True)
        return str(after[len(before) :])

    def tokenize_prompt(self, prompt: Prompt, scale: Scale, *, references: bool) -> TokenizedPrompt:
        """Return a prompt on a scale as ids; raise where an answer is not one token."""
        key = (prompt.template(references), scale)
        if key not in self._prompts:
            self._prompts[key] = self._tokenize(prompt, scale, references)
        return self._prompts[key]

    def _tokenize(self, prompt: Prompt, scale: Scale, references: bool) -> TokenizedPrompt:
        def render(caption: str) -> str:
            given = [caption] if references else []
            return prompt.render(caption, given, scale, self.control_tokens)

        text = render(_BEGINNINGS[0])
        first = self.encode(text)
        shared = len(first)
        for beginning in _BEGINNINGS[1:]:
            other = self.encode(render(beginning))
            same = (a == b for a, b in zip(first, other, strict=False))
            shared = min(shared, next((i for i, yes in enumerate(same) if not yes), shared))
        stems = tuple(tuple(self._added(text, first, stem)) for stem in scale.stems)
        answers = []
        for stem, ids in zip(scale.stems, stems, strict=True):
            groups = []
            for answer in scale.answers:
                added = self._added(text, first, stem + answer)[len(ids) :]
                if len(added) != 1:
                    raise InputError(
                        f"the answer {stem + answer!r} is not one token after its stem for this "
                        "model's tokenizer; take another scale (unit, ten, five, letters)"
                    )
                more = self._longer(answer) if stem.endswith(".") else []
                groups.append((added[0], *more))
            answers.append(tuple(groups))
        return TokenizedPrompt(
            self, prompt, scale, text, tuple(first[:shared]), first[shared:], stems, tuple(answers)
        )

    def _added(self, text: str, first: list[int], continuation: str) -> list[int]:
        ids = self.encode(text, continuation)
        if ids[: len(first)] != first:
            raise InputError(
                f"this model's tokenizer merges {continuation!r} with the end of its prompt"
            )
        return ids[len(first) :]

    def _longer(self, digit: str) -> list[int]:
        """Return tokens of several digits that begin with ``digit``: "85" begins with 8.

        After "0." they have the same first decimal, so their probability belongs to it.
        """
        return sorted(  # a vocabulary's order changes from run to run, and sums with it
            int(i)
            for token, i in self.tokenizer.get_vocab().items()
            if len(token) > 1 and token.isascii() and token.isdigit() and token[0] == digit
        )


def readings_from_logp(
    tokenized: TokenizedPrompt,
    logp: NDArray[np.float64],
    states: NDArray[np.float32],
    head: NDArray[np.float32] | None,
) -> Readings:
    """Turn log-probabilities (N, R, I) of ``tokenized.wanted`` at the R positions into readings.

    One position more, if there is one, is that after the first decimal. With the rows of the head
    for ``tokenized.wanted``, ``head`` (I, D), the readings keep the hidden states: those of
    ``states`` (N, R, D) before the answer.
    """
    column = {token: i for i, token in enumerate(tokenized.wanted)}
    n, b, k = len(logp), len(tokenized.stems), len(tokenized.scale.answers)
    stem_logp, lead_logp = np.zeros((n, b)), np.zeros((n, b))
    answer_logp = np.empty((n, b, k))
    places = []
    place = 0
    for number, (stem, groups) in enumerate(zip(tokenized.stems, tokenized.answers, strict=True)):
        before = 0
        for step, token in enumerate(stem):
            value = logp[:, before, column[token]]
            stem_logp[:, number] += value
            if step == 0:
                lead_logp[:, number] = value
            place += 1
            before = place
        places.append(before)
        for answer, group in enumerate(groups):
            columns = [column[token] for token in group]
            answer_logp[:, number, answer] = np.logaddexp.reduce(logp[:, before, columns], axis=-1)
    hidden = rows = None
    if head is not None:
        likelier = np.array(places)[stem_logp.argmax(axis=1)]
        hidden = states[np.arange(n), likelier]
        rows = head[tokenized.answer_columns]
    second = None
    if logp.shape[1] > place + 1:
        second = second_decimals(tokenized, logp[:, places[0]], logp[:, place + 1])
        second[stem_logp.argmax(axis=1) != 0] = np.nan  # "1.0" has one decimal
    return Readings(
        tokenized.scale,
        answer_logp.clip(max=0),
        stem_logp.clip(max=0),
        lead_logp=lead_logp.clip(max=0) if any(tokenized.stems) else None,
        second_logp=None if second is None else second.clip(max=0),
        hidden=hidden,
        head=rows,
    )


def first_decimal(tokenized: TokenizedPrompt, logp: NDArray[np.float64]) -> tuple[int, int]:
    """Return the likeliest answer for ``logp`` (I,) after the first stem, and its likeliest id."""
    answer = int((np.exp(logp) @ tokenized.answer_of).argmax())
    column = np.where(tokenized.answer_of[:, answer] > 0, logp, -np.inf).argmax()
    return answer, tokenized.wanted[int(column)]


def second_decimals(
    tokenized: TokenizedPrompt, before: NDArray[np.float64], after: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log P(second decimal | the likeliest first one) (N, K).

    ``before`` (N, I) are the log-probabilities after "0.", ``after`` (N, I) those after the first
    decimal d: NaN where the model would end the number there, and so is the result. Where the
    likeliest id of d has several digits ("85"), the second decimal is inside it:
    P(5 | 8) = Σ P("85...") / (P("8") + Σ P("8...")).
    """
    belongs = tokenized.answer_of > 0
    second = np.stack([np.logaddexp.reduce(after[:, own], axis=1) for own in belongs.T], axis=1)
    column = {token: i for i, token in enumerate(tokenized.wanted)}
    for row, logp in enumerate(before):
        answer, token = first_decimal(tokenized, logp)
        if token in tokenized.second_digit:
            second[row] = -np.inf
            for other in tokenized.answers[0][answer][1:]:
                digit = tokenized.second_digit[other]
                second[row, digit] = np.logaddexp(second[row, digit], logp[column[other]])
            second[row] -= np.logaddexp.reduce(logp[belongs[:, answer]])
    return second
