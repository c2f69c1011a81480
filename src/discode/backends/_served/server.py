"""One server of a model: the features it supports, and requests to it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

from PIL import Image

from discode._prompts import FLEUR
from discode._scales import UNIT, Scale
from discode.backends._answers import MAX_TOKENS, SPACES, ids_of_answers, words_of_answers
from discode.backends._served.client import IMAGE_PLACEHOLDER, ChatAnswer, ChatClient
from discode.backends._served.estimate import EncodedImage, data_url
from discode.backends._served.sglang import Template
from discode.backends._served.transport import wait_for
from discode.backends._served.weights import difference, distance
from discode.errors import (
    BackendError,
    DiscodeError,
    InputError,
    RejectedError,
    StoppedError,
    UnreachableError,
)
from discode.images import ImageSource
from discode.readings._tokens import SPACE_MARKS, Token

LOG = logging.getLogger("discode")
SAME_WEIGHTS = 0.3
"""Maximum root-mean-square difference of log-probabilities from the same weights.

Six times the rounding of bfloat16 across batches; two models from one training recipe differ by
less in 1 % of their answers.
"""
SAMPLES = 20
"""Answers per pair if the server returns no log-probabilities."""
MOST_CHOICES = 128
"""Maximum number of answers in one request (OpenAI's limit of ``n``)."""
_NO_LOGPROBS = (
    "it returns no log-probabilities, which a judge needs; remove samples=0, so that answers are "
    "sampled, or use a server that returns them (vLLM, SGLang, llama.cpp)"
)
_SWITCH = "chat_template_kwargs"
_WAYS: dict[bool, dict[str, dict[str, Any]]] = {
    False: {
        "": {}, "no-thinking": {_SWITCH: {"enable_thinking": False}},
        "reasoning-none": {"reasoning_effort": "none"},
        "reasoning-minimal": {"reasoning_effort": "minimal"},
    },
    True: {
        "": {}, "switched": {_SWITCH: {"enable_thinking": True}},
        "medium": {"reasoning_effort": "medium"},
    },
}  # fmt: skip
"""Fields that switch thinking off and on, tried in order, by their part of the revision."""
_UNCUT = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
_DRAWING = {"temperature": 1, "n": 2, **_UNCUT}
"""Fields of sampled answers. By default, servers may change probabilities before they sample."""
_THOUGHTS_TRIAL = 400
"""Tokens in which thoughts about the trial should end."""
_TRIAL = "Print the number 100 and nothing else."
_TRIAL_MESSAGES = [{"role": "user", "content": _TRIAL}]
_IDS = "logprob_token_ids"
_LIMITS = ("max_tokens", "max_completion_tokens")
_MOST_MISSES = 8  # after so many cached images that a server did not have, all are sent


@dataclass(frozen=True)
class ServerFeatures:
    """The features that a server supports."""

    model: str  # the server's name for the model, e.g. with a date
    top: int  # log-probabilities per position
    options: Mapping[str, Any]  # fields of every request
    token_ids: bool  # whether it returns the log-probabilities of requested token ids
    whole_numbers: bool  # whether a number of several digits is known to be one token
    thinking: str = ""  # how thinking was switched off or on; empty if that needs no field

    @property
    def limit(self) -> str:
        return next(name for name in _LIMITS if name in self.options)


class _Trial(NamedTuple):
    answer: ChatAnswer
    options: dict[str, Any]
    top: int  # log-probabilities per position; 0 if it returns none


@dataclass(eq=False)
class ModelServer:
    """A server and its features.

    Attributes:
        client: The client that sends requests to it.
        model: The model's name in messages, with this server's host.
        top: Log-probabilities to request per position.
        body: Fields of every request that the user chose.
        thinking: Maximum tokens of thoughts; 0 switches thinking off.
        sampled: Whether answers are sampled; None if it returns no log-probabilities.
        choices: Maximum answers per request.
        keeps_images: Whether it caches images by the names that they are sent with.
        rests_until: When an unreachable server is tried again (monotonic clock).
    """

    client: ChatClient
    model: str
    top: int
    body: Mapping[str, Any] = field(default_factory=dict)
    thinking: int = 0
    sampled: bool | None = None
    choices: int = MOST_CHOICES
    keeps_images: bool = False
    rests_until: float = 0.0

    features: ServerFeatures | None = field(default=None, init=False)
    trial: tuple[Token, ...] = field(default=(), init=False)
    _token_ids: dict[Scale, list[int]] = field(default_factory=dict, init=False)
    _continues: asyncio.Task[bool] | None = field(default=None, init=False)
    _tokenizes: bool = field(default=False, init=False)
    _tried_images: bool = field(default=False, init=False)
    _misses: int = field(default=0, init=False)
    _limit: str = field(default=_LIMITS[0], init=False)
    _template: Template | None = field(default=None, init=False)
    _tried_generate: bool = field(default=False, init=False)

    def find_features(self, final: tuple[str, ...] = ()) -> ServerFeatures:
        """Find out what it supports, once, by a request without an image.

        The kinds of failure in ``final`` are not retried.
        """
        if self.features is None:
            try:
                self.features = self._find_features(final)
            except (StoppedError, UnreachableError):
                raise  # a cap on requests may be reached by the first trials
            except DiscodeError as error:
                raise InputError(f"{self.model} cannot be a judge: {error}") from None
        return self.features

    def _find_features(self, final: tuple[str, ...]) -> ServerFeatures:
        """Request every feature, and drop those that the server refuses."""
        ids = self.answer_ids(UNIT)
        way, trial = self._find_way(ids, final)
        answer, top = trial.answer, trial.top
        if top and not answer.tokens:
            raise InputError(f"its thoughts exceed {self.thinking} tokens; raise thinking_tokens")
        if not top and self.sampled is None:
            LOG.warning(
                "%s returns no log-probabilities: %d answers per pair are sampled instead; "
                "samples=0 refuses that",
                self.model,
                SAMPLES,
            )
        if 0 < top < self.top:
            LOG.warning("%s returns %d log-probabilities per position", self.model, top)
        options = {k: v for k, v in trial.options.items() if k not in (_IDS, "n")}
        if not top and len(answer.texts) < 2:
            self.choices = 1
        # A server that does not support the field may ignore it and return other tokens.
        returned = {text.strip(SPACES) for token in answer.tokens[:1] for text in token.top}
        exact = bool(ids) and self._tokenizes and not self.thinking and {*"0123456789."} <= returned
        whole = any("100" in token.text for token in answer.tokens)
        self.trial = answer.tokens
        named = model_name(answer) or self.client.name
        return ServerFeatures(
            named, top, options, exact, whole, "thinking" if self.thinking else way
        )

    def _find_way(self, ids: Sequence[int], final: tuple[str, ...]) -> tuple[str, _Trial]:
        """Find the fields with which it thinks or does not, as wanted; the fewest that suffice."""
        plain: _Trial | None = None
        tried: list[str] = []
        wanted = bool(self.thinking)
        for way, fields in _WAYS[wanted].items():
            merged = {**fields, **self.body}
            for name in fields.keys() & self.body.keys():
                if isinstance(fields[name], dict) and isinstance(self.body[name], dict):
                    merged[name] = {**fields[name], **self.body[name]}
            if way and merged == self.body:
                continue  # the user chose it
            try:
                trial = self._try({*fields} - {*self.body}, merged, ids, final)
            except RejectedError:
                if not way:
                    raise
                trial = None
            if trial is not None:
                # A template may begin the thoughts: then it takes more tokens than the answer.
                if trial.answer.thoughts == wanted and not (trial.answer.cut and not wanted):
                    return way, trial
                plain = plain or trial
            if fields:
                tried.append(json.dumps(fields)[1:-1])
        if plain is not None and not wanted and not plain.answer.thoughts:
            longer = {**plain.options, self._limit: _THOUGHTS_TRIAL}
            longer.pop(_IDS, None)
            if not wait_for(self.client.ask(_TRIAL_MESSAGES, longer, final=final)).thoughts:
                return "", plain
        raise InputError(
            f"it {'never thinks' if wanted else 'always thinks'} (tried {', '.join(tried)}); set "
            f"thinking={'off' if wanted else 'on'}, or other fields by body={{...}}"
        )

    def _try(
        self, ours: set[str], fields: Mapping[str, Any], ids: Sequence[int], final: tuple[str, ...]
    ) -> _Trial:
        """Ask without an image; drop what is refused, except the fields that are ``ours``."""
        options = {self._limit: MAX_TOKENS + self.thinking, **fields}
        top = self.top

        def draw(refusal: str = _NO_LOGPROBS) -> None:
            if self.sampled is False:
                raise InputError(refusal)
            nonlocal top
            top = 0
            options.pop(_IDS, None)
            hosted = self.model.startswith("openai:")  # which cuts nothing, and refuses most
            skipped = {*self.body, *(_UNCUT if hosted else ())}
            options.update({k: v for k, v in _DRAWING.items() if k not in skipped})

        if self.sampled:
            draw()
        elif ids and not self.thinking:  # too many numbers along with thoughts
            options[_IDS] = ids
        for _ in range(10):
            try:
                asking = self.client.ask(_TRIAL_MESSAGES, options, logprobs=top, final=final)
                answer = wait_for(asking)
            except RejectedError as error:
                complaint = error.complaint
                if any(name in complaint for name in ours):
                    raise
                present = [n for n in _DRAWING if n not in self.body and options.get(n) is not None]
                present.reverse()  # temperature and n are needed most
                named = [name for name in present if re.search(rf"\b{name}\b", complaint)]
                if _LIMITS[1] in complaint and _LIMITS[0] in options:
                    self._limit = _LIMITS[1]
                    options[self._limit] = options.pop(_LIMITS[0])
                elif options.pop(_IDS, None) is not None:
                    pass
                elif top and "temperature" in complaint:  # a reasoning model
                    draw(f"{_NO_LOGPROBS}: {error}")
                elif top:
                    if "logprob" not in complaint:
                        raise
                    top = _fewer(complaint, top)
                    if not top:
                        draw(f"{_NO_LOGPROBS}: {error}")
                elif dropped := named or present:
                    options[dropped[0]] = None  # not sent
                else:
                    raise
                continue
            unread = not any(token.top for token in answer.tokens)
            if top and unread and (answer.text or not answer.thoughts):
                draw()
                continue
            return _Trial(answer, options, top)
        raise InputError(_NO_LOGPROBS)

    def differs_from(self, other: ModelServer) -> str:
        """Describe how another server's features or answers differ; "" if they do not.

        Answers to the trial may differ by rounding, on other hardware or in other batches.
        """
        ours, theirs = (asdict(server.find_features()) for server in (self, other))
        for name, value in ours.items():
            if theirs[name] != value:
                return f"{name} is {value!r} and {theirs[name]!r}"
        if not self.find_features().top:
            return ""  # samples differ anyway
        apart = difference(self.trial, other.trial)
        if apart <= SAME_WEIGHTS:
            return ""
        return f"log-probabilities differ by {apart:.2g} (rounding: at most {SAME_WEIGHTS:g})"

    async def continues(self) -> bool:
        """Whether it continues a partial answer; tested once, without an image."""
        if self._continues is None:
            self._continues = asyncio.create_task(self._find_continues())
        return await asyncio.shield(self._continues)

    async def _find_continues(self) -> bool:
        """Whether it continues a partial answer as the model continued the same text before.

        A server without support may ignore the beginning, or start a new answer after it. So we
        continue from where the likely tokens differ most from those at the first position: there,
        rounding matters little. If the answer is one token, it is begun with words to lengthen it.
        """
        features = self.find_features()
        messages = [{"role": "user", "content": FLEUR.render("a dog", (), UNIT)}]
        ask = partial(self.client.ask, messages, features.options, logprobs=features.top)
        try:
            tokens = (await ask()).tokens
        except BackendError:  # unrelated to partial answers
            self._continues = None
            raise
        try:
            before = "" if len(tokens) > 1 else "The rating is"
            if before:
                tokens = (await ask(begun=before)).tokens
            places = range(1, len(tokens))
            place = max(places, key=lambda p: round(distance(tokens[0], tokens[p]), 1), default=0)
            beginning = "".join(token.text for token in tokens[:place]).translate(SPACE_MARKS)
            begun = (before + beginning).lstrip()
            more = (await ask(begun=begun)).tokens if place else ()
        except (StoppedError, UnreachableError):
            self._continues = None
            raise
        except BackendError:
            return False
        return bool(more) and distance(tokens[place], more[0]) < distance(tokens[0], more[0]) / 2

    def answer_ids(self, scale: Scale) -> list[int]:
        """Find the token ids of a scale's answers, if the server has /tokenize (vLLM, SGLang).

        Empty if an answer is not one token: then the likeliest tokens are more informative.
        """
        if scale in self._token_ids or self.model.startswith("openai:"):
            return self._token_ids.get(scale, [])
        text = words_of_answers(scale)
        body = {"model": self.client.name, "prompt": text, "add_special_tokens": False}
        reply = wait_for(self.client.fetch_json("tokenize", body | {"return_token_strs": True}))
        if reply is None:  # the server may be unavailable for now
            return []
        ids: list[int] = []
        try:
            if "token_strs" in reply:
                named = dict(zip(reply["tokens"], reply["token_strs"], strict=True))
                self._tokenizes = True
            else:
                distinct = sorted({int(i) for i in reply["tokens"]})
                named = dict(zip(distinct, self._texts([[i] for i in distinct]), strict=True))
            ids = ids_of_answers(scale, {int(i): str(piece) for i, piece in named.items()})
        except (TypeError, KeyError, ValueError):
            pass
        self._token_ids[scale] = ids
        return self._token_ids[scale]

    def _texts(self, tokens: list[Any]) -> Any:
        """Return the text of token ids, or of each list of them, by SGLang's /detokenize."""
        body = {"model": self.client.name, "tokens": tokens, "skip_special_tokens": False}
        return wait_for(self.client.fetch_json("detokenize", body))["text"]

    def generates(self) -> bool:
        """Whether it has SGLang's /generate, and reads a prompt there as on the chat route.

        Tested once, with an image: as many tokens must be read, and as likely ones written.
        """
        features = self.find_features()
        ids = self._token_ids.get(UNIT)
        allowed = {_SWITCH, "reasoning_effort"}
        possible = ids and not (self._tokenizes or self.thinking or {*self.body} - allowed)
        if self._tried_generate or not (possible and features.top):
            return self._template is not None
        self._tried_generate, same = True, False
        question = f"\n{_TRIAL}\n"
        part = {"type": "image_url", "image_url": {"url": IMAGE_PLACEHOLDER}}
        messages = [{"role": "user", "content": [part, {"type": "text", "text": question}]}]
        fields = {name: features.options[name] for name in allowed & features.options.keys()}
        body = {"model": self.client.name, "messages": messages, **fields}
        gray = data_url(Image.new("RGB", (64, 64), "gray"))[0].encode()
        try:
            tokens = wait_for(self.client.fetch_json("tokenize", body))["tokens"]
            prompt = str(self._texts(tokens))
            trims = question not in prompt
            before, found, after = prompt.partition(_TRIAL if trims else question)
            if not found:
                return False
            chat = wait_for(self._send(_TRIAL, features.options, gray, ""))
            self._template = Template(before, after, trims)
            own = wait_for(self._send(_TRIAL, {**features.options, _IDS: ids}, gray, ""))
            read = [(answer.usage or (0, 0))[0] for answer in (chat, own)]
            same = read[0] == read[1] > 0 and difference(chat.tokens, own.tokens) <= SAME_WEIGHTS
        except (StoppedError, UnreachableError):
            raise
        except (BackendError, TypeError, KeyError):
            pass
        finally:
            self._template = self._template if same else None
        return self._template is not None

    def request_options(self, scale: Scale) -> dict[str, Any]:
        features = self.find_features()
        ids = self.answer_ids(scale) if features.token_ids or self.generates() else []
        return {**features.options, **({_IDS: ids} if ids else {})}

    def try_images(self) -> None:
        """Find out once whether it caches images by name; only vLLM does, which has /tokenize.

        A server that ignores names would answer without the image. So it must refuse an unknown
        name, and read as many tokens for a known name as for the image itself.
        """
        if self._tried_images or not self._tokenizes:
            return
        self._tried_images = True
        gray = data_url(Image.new("RGB", (64, 64), "gray"))[0].encode()
        options, known, unknown = self.find_features().options, uuid.uuid4().hex, uuid.uuid4().hex

        def tokens_read(url: bytes | None, name: str) -> int:
            asking = self._send(_TRIAL, options, url, name, final=("dropped", "failed", "silent"))
            return (wait_for(asking).usage or (0, 0))[0]

        try:
            try:
                tokens_read(None, unknown)
            except RejectedError:
                self.keeps_images = tokens_read(gray, known) == tokens_read(None, known) > 0
        except StoppedError:
            raise
        except BackendError:
            pass

    def returns_several(self) -> bool:
        if not self.find_features().top:
            return self.choices > 1  # found out by the trial
        options = {**self.find_features().options, "temperature": 1, "n": 2}
        try:
            return len(wait_for(self.client.ask(_TRIAL_MESSAGES, options)).texts) > 1
        except RejectedError:
            return False

    def image_tokens(self, image: ImageSource) -> int | None:
        """Count the tokens that it reads for an image; None if it reports no usage."""
        options, top = self.find_features().options, self.find_features().top
        url = data_url(image)[0].encode()
        without = wait_for(self.client.ask(_TRIAL_MESSAGES, options, logprobs=top))
        shown = wait_for(self._send(_TRIAL, options, url, ""))
        if without.usage is None or shown.usage is None:
            return None
        return shown.usage[0] - without.usage[0]

    async def ask(
        self, text: str, image: EncodedImage, options: Mapping[str, Any], *, begun: str,
        final: tuple[str, ...],
    ) -> ChatAnswer:  # fmt: skip
        """Ask about an image, which is sent unless the server has cached it."""
        url, name = await image.url()
        if missed := self.keeps_images and self in image.kept_by:
            try:
                ends = (*final, "failed")
                answer = await self._send(text, options, None, name, begun=begun, final=ends)
                self._misses = max(self._misses - 1, 0)
                return answer
            except (StoppedError, UnreachableError):
                raise
            except BackendError:  # it dropped the image, or cannot answer
                image.kept_by.discard(self)
        name *= self.keeps_images
        answer = await self._send(text, options, url, name, begun=begun, final=final)
        image.kept_by.add(self)
        if missed:  # several servers behind one address do not share images
            self._misses += 1
            self.keeps_images = self._misses < _MOST_MISSES
        return answer

    async def _send(
        self, text: str, options: Mapping[str, Any], url: bytes | None, name: str, **more: Any
    ) -> ChatAnswer:
        """Ask about an image by its data URL, its name (vLLM's ``uuid``), or both."""
        shown = None if url is None else {"url": IMAGE_PLACEHOLDER}
        part = {"type": "image_url", "image_url": shown, **({"uuid": name} if name else {})}
        messages = [{"role": "user", "content": [part, {"type": "text", "text": text}]}]
        top = self.find_features().top
        if self._template is not None and _IDS in options:
            more["prompt"] = self._template.render(text, more.get("begun", ""))
        return await self.client.ask(messages, options, logprobs=top, image_url=url or b"", **more)


def _fewer(complaint: str, top: int) -> int:
    """Parse how many log-probabilities a refusal allows, from numbers near that word; or 0.

    >>> _fewer("top_logprobs must be at most 5, see http://host/12", 20)
    5
    """
    without_urls = re.sub(r"\S*://\S*", "", complaint)
    near = " ".join(re.findall(r".{0,80}logprob.{0,80}", without_urls))
    return max(
        (int(n) for n in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\d)", near) if int(n) < top),
        default=0,
    )


def model_name(answer: ChatAnswer) -> str:
    """The server's name for the model; llama.cpp returns the path of a file."""
    return answer.model.rpartition("/")[2] if answer.model[:1] == "/" else answer.model
