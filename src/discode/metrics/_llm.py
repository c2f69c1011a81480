"""G-VEval and CLAIR: metrics that ask a chat model for a number from 0 to 100.

Both ask at temperature 0, as CLAIR's authors do; G-VEval's sample their one answer at temperature 1
(gpt-4o-2024-05-13, images in low detail). The wording of the questions is ours: it asks for what
the authors' questions ask for, in the same order. The signature says so, "prompt:ours-" and a
digest. An answer without the number is NaN with its reason, never 0 and never the previous item's
score.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from discode._pairs import NO_REFERENCES, Pair
from discode._prompts import neutralise
from discode._scales import piece_at
from discode._scores import Progress, Scores
from discode._signature import Signature
from discode.backends._served.client import ChatAnswer, ChatModel, Message
from discode.errors import BackendError, ImageError
from discode.images import image_digest, open_image
from discode.metrics._base import (
    make_scores,
    report_progress,
)

_PLACE = re.compile(r"\{(caption|references)\}")
_SCORE = re.compile(r'"score"\s*:\s*"?(-?\d+(?:\.\d+)?)')
_WORKERS = 8
"""Requests at a time."""
_DOLLARS = re.compile(r"\$\s*(\d{1,3})\s*\$")

G_VEVAL = """You are given an image and one caption that was generated for it.

Rate the caption with an integer from 0 to 100. A high score means that it tells the important
content of the image accurately; redundant, excess or wrong information lowers it.

1. Look at the image and find its main content.
2. Check how much of that content the caption covers, and what it adds that is not there.
3. Decide on an integer score from 0 to 100.

Caption:
{caption}

First give the reasons for your score, then end with a sentence of this form, the integer between
dollar signs:
The final score is $score$."""
G_VEVAL_REFERENCES = """You are given an image, reference captions that people wrote for it, and one
caption that was generated for it.

Rate the caption with an integer from 0 to 100. A high score means that it tells the important
content of the image accurately, and what is essential in the references; redundant, excess or wrong
information lowers it.

1. Look at the image and find its main content.
2. Read the references and find what they say is important.
3. Compare the caption with both.
4. Check how much of the image's and of the references' content it covers, and what it adds that is
not there.
5. Decide on an integer score from 0 to 100.

Reference captions:
{references}

Caption:
{caption}

First give the reasons for your score, then end with a sentence of this form, the integer between
dollar signs:
The final score is $score$."""
CLAIR = """Decide whether a candidate caption describes the same image as the reference captions.

Candidate:
{caption}

References:
{references}

On a precise scale from 0 to 100, how likely is it that the candidate describes the same image as
the references? Answer in JSON with a key "score", a number from 0 to 100, and a key "reason", a
string."""


def g_veval(answer: ChatAnswer) -> float:
    """Return the expected integer 0..100 between two ``$``, renormalised over integers.

    >>> from discode.readings._tokens import Token
    >>> top = {"80": math.log(0.6), "90": math.log(0.2), "a": 0}
    >>> tokens = (Token(" $", {}), Token("80", top), Token("$.", {}))
    >>> round(g_veval(ChatAnswer("The final score is $80$.", tokens)), 6)
    82.5
    """
    if not answer.tokens:
        raise BackendError("the server returned no log-probabilities, which G-VEval reads")
    pieces = [token.text for token in answer.tokens]
    written = _only_number(_DOLLARS, "".join(pieces), "integer between two $")
    token = answer.tokens[piece_at(pieces, written.start(1))]
    if token.text.strip() != written[1]:
        # "85" in two tokens: the first alone would say 8.
        raise BackendError(
            f"the model writes {written[1]} in several tokens; G-VEval needs each integer as one"
        )
    mass = {
        int(text): math.exp(logp)
        for text, logp in token.top.items()
        if re.fullmatch(r"0|[1-9]\d?|100", text)
    }
    total = sum(mass.values())
    if not total > 0:
        raise BackendError("no integer from 0 to 100 among the likeliest tokens after the $")
    return sum(number * p for number, p in mass.items()) / total


def clair(answer: ChatAnswer) -> float:
    """Return the JSON's ``score``, 0..100, divided by 100.

    >>> clair(ChatAnswer('Sure: {"score": 85, "reason": "same dog"}'))
    0.85
    """
    score = float(_only_number(_SCORE, answer.text, 'JSON with a number "score"')[1])
    if not 0 <= score <= 100:
        raise BackendError(f"the score {score:g} is not from 0 to 100")
    return score / 100


def _only_number(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    """Return the last match; raise where there is none, or where different numbers match."""
    matches = list(pattern.finditer(text))
    if len({float(match[1]) for match in matches}) == 1:
        return matches[-1]
    shown = json.dumps(text if len(text) <= 80 else text[:77] + "...", ensure_ascii=False)
    raise BackendError(f"{'more than one' if matches else 'no'} {what} in the answer {shown}")


@dataclass(frozen=True)
class ChatMetric:
    """A metric that asks a chat model once per pair.

    Attributes:
        chat: The model that is asked.
        name: The metric's name.
        template: The question, with ``{caption}`` and, where they count, ``{references}``.
        parse: From an answer to a number, or :class:`BackendError`.
        image: Whether the model sees the image.
        logprobs: How many of the likeliest tokens are asked for.
    """

    chat: ChatModel
    name: str
    template: str
    parse: Callable[[ChatAnswer], float]
    image: bool = False
    logprobs: int = 0

    @property
    def needs(self) -> frozenset[str]:
        """Images and references, as the question has them."""
        asked = {"image": self.image, "references": "{references}" in self.template}
        return frozenset(name for name, wanted in asked.items() if wanted)

    @property
    def signature(self) -> Signature:
        """The metric, the model, the question."""
        digest = hashlib.sha256(self.template.encode()).hexdigest()[:8]
        return Signature.of(
            metric=self.name, model=self.chat.name, prompt=f"ours-{digest}", temperature=0,
            top=self.logprobs,
        )  # fmt: skip

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs; equal pairs are asked for once."""
        errors: dict[int, str] = {}
        rows: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}  # by question
        for number, pair in enumerate(pairs):
            try:
                shown = image_digest(pair.image) if self.image else ""
                references = pair.references if "references" in self.needs else ()
                if "references" in self.needs and not references:
                    raise BackendError(NO_REFERENCES)
                rows.setdefault((shown, pair.caption, references), []).append(number)
            except (BackendError, ImageError) as error:
                errors[number] = str(error)
        report_progress(progress, len(errors))
        value = np.full(len(pairs), np.nan)
        with ThreadPoolExecutor(_WORKERS) as pool:
            replies = pool.map(lambda numbers: self._ask(pairs[numbers[0]]), rows.values())
            for numbers, answer in zip(rows.values(), replies, strict=True):
                if isinstance(answer, str):
                    errors |= dict.fromkeys(numbers, answer)
                else:
                    value[numbers] = answer
                report_progress(progress, len(numbers))
        return make_scores(value, errors, self.signature)

    def _ask(self, pair: Pair) -> float | str:
        try:
            messages = self._messages(pair)
            return self.parse(self.chat(messages, max_tokens=512, logprobs=self.logprobs))
        except (BackendError, ImageError) as error:
            return str(error)

    def _messages(self, pair: Pair) -> list[Message]:
        fields = {
            "caption": neutralise(pair.caption),
            "references": "\n".join(f"- {neutralise(text)}" for text in pair.references),
        }
        # One pass: nothing inside a caption is expanded.
        text = _PLACE.sub(lambda match: fields[match[1]], self.template)
        if not self.image:
            return [{"role": "user", "content": text}]
        url = f"data:image/jpeg;base64,{_jpeg(pair)}"
        parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
        return [{"role": "user", "content": parts}]


def _jpeg(pair: Pair) -> str:
    file = io.BytesIO()
    open_image(pair.image).save(file, "JPEG", quality=95)
    return base64.b64encode(file.getvalue()).decode()


def chat_metric(chat: ChatModel, name: str) -> ChatMetric:
    """Return G-VEval (Tong et al., 2025) or CLAIR (Chan et al., 2023) by its name.

    G-VEval sees the image, and as "ref-g-veval" the references, too; CLAIR references alone.
    """
    if name == "clair":
        return ChatMetric(chat, name, CLAIR, clair)
    text = G_VEVAL_REFERENCES if name.startswith("ref-") else G_VEVAL
    return ChatMetric(chat, name, text, g_veval, image=True, logprobs=5)
