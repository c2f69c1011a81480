"""Served models as judges: any server that returns log-probabilities in OpenAI's chat format.

A request shows the image first, then the question, and lets the model generate a few tokens,
greedily. The likeliest tokens at each position are the reading
(:mod:`discode.backends.served.parse_logprobs`). What a server can do is found out once, by a
request without an image. Where it knows vLLM's ``logprob_token_ids``, we ask for the tokens of all
answers, so that none is missing.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discode.backends.base import Backend, Blocks
from discode.backends.served.client import (
    IMAGE_PLACEHOLDER,
    PRICES,
    ChatAnswer,
    ChatClient,
    Message,
    Prices,
    RequestOptions,
)
from discode.backends.served.estimate import (
    ANSWER_TOKENS,
    EncodedImage,
    Estimate,
    data_url,
    image_tokens,
    text_tokens,
)
from discode.backends.served.parse_logprobs import reading_from_tokens
from discode.backends.served.throttle import RequestThrottle
from discode.backends.served.transport import start
from discode.errors import DiscodeError, InputError, RejectedError, StoppedError
from discode.images import image_digest
from discode.options import POSITIVE, SIZE, TEXT, option, options_of, with_options_documented
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Identity, Readings
from discode.scales import UNIT, Scale

LOG = logging.getLogger("discode")
OPENAI = "https://api.openai.com/v1"
MAX_TOKENS = 10
"""Enough for "Score: 0.75"."""
TOP = 20
"""Log-probabilities per position; hosted servers do not return more."""
MAX_TOKEN_IDS = 128
"""Token ids that vLLM accepts in ``logprob_token_ids``."""
BLOCK_ANSWERS = 64
"""Answers that are handed on, and kept, at a time."""
KEPT_AFTER = 0.5
"""Seconds that an answer waits for others, at most: a run that is killed asks for it again."""
_TRIAL = "Print the number 100 and nothing else."
_SPACES = " \n▁ĠĊ"


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class ServedOptions(RequestOptions):
    """The options of ``openai:NAME`` and ``endpoint:NAME``."""

    base_url: str = option(
        OPENAI, "server's address up to the version: http://localhost:8000/v1", TEXT
    )
    image_size: int | None = option(
        None, "pixels of the longer side; larger images are shrunk", SIZE, None
    )
    concurrency: int = option(64, "most requests in flight; the server's own limit is found", SIZE)
    rate: float | None = option(None, "most requests per second", POSITIVE, None)
    max_requests: int | None = option(
        None, "most requests in all; retries and the first trial count", SIZE, None
    )
    max_cost: float | None = option(None, "most that may be spent; needs prices", POSITIVE, None)
    prices: Prices | None = option(  # noqa: RUF009  # a field like the others
        None, "prices per million tokens, read and written", PRICES, None
    )
    top: int = option(TOP, "log-probabilities to ask for per position; llama.cpp has more", SIZE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_cost is not None and self.prices is None:
            raise InputError("max_cost needs prices: READ,WRITTEN per million tokens, as 2.5,10")


@dataclass(frozen=True)
class ServerFeatures:
    """What a server turned out to support."""

    model: str
    """Its own name for the model, e.g. with a date."""
    top: int
    """Log-probabilities per position."""
    options: Mapping[str, Any]
    """Fields that every request carries."""
    token_ids: bool
    """Whether it returns the log-probabilities of tokens that are named by their ids."""
    whole_numbers: bool
    """Whether the model is known to write a number of several digits as one token."""


@dataclass(eq=False)
class _Request:
    """One question about one image; ``rows`` are the pairs that it answers."""

    text: str
    image: EncodedImage
    rows: list[int] = field(default_factory=list)


_Block = list[tuple[_Request, Readings]]
"""Requests, and the one reading of each."""
_Blocks = queue.SimpleQueue[_Block | Exception]


class Served(Backend):
    """A backend for a model behind an address.

    Args:
        name: The model, as the server calls it.
        options: Those of :class:`ServedOptions`.

    Nothing is sent before the first reading, or before :attr:`identity` is asked for.
    """

    batch_size = 2048
    """Pairs per batch: the server runs empty at the end of each."""

    def __init__(self, name: str, **options: Any) -> None:
        self.options = chosen = ServedOptions(**options)
        self.prices = chosen.prices
        self.client = ChatClient(
            chosen.base_url,
            name,
            throttle=RequestThrottle(
                chosen.concurrency, chosen.rate, chosen.max_requests, chosen.max_cost
            ),
            prices=chosen.prices,
            **{row.name: getattr(chosen, row.name) for row in options_of(RequestOptions)},
        )
        where = self.client.host_and_path
        self.model = f"openai:{name}" if chosen.base_url == OPENAI else f"{name}@{where}"
        self._features: ServerFeatures | None = None
        self._token_ids: dict[Scale, list[int]] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> Identity:  # type: ignore[override]  # it is worked out
        """The model, the server's own name for it, and what changes its answers.

        That is the size that images are shrunk to, and how many log-probabilities it returns.
        """
        features = self.server_features()
        parts = [features.model if features.model != self.client.name else ""]
        parts.append("" if self.options.image_size is None else f"{self.options.image_size}px")
        parts.append("" if features.top == TOP else f"top{features.top}")
        return Identity(self.model, "+".join(filter(None, parts)) or "none")

    @property
    def stopped(self) -> str:  # type: ignore[override]  # it is worked out
        """Why no request is sent any more: a cap, a refused key; empty while requests are sent."""
        return self.client.throttle.stopped

    def server_features(self) -> ServerFeatures:
        """Return what the server supports; asks it once, without an image."""
        with self._lock:
            if self._features is None:
                self._features = self._find_features()
            return self._features

    def _find_features(self) -> ServerFeatures:
        """Ask for everything, and leave out what the server refuses."""
        options: dict[str, Any] = {"max_tokens": MAX_TOKENS}
        if ids := self._answer_ids(UNIT):
            options["logprob_token_ids"] = ids
        top = self.options.top
        for _ in range(5):
            try:
                answer = self.client.ask([_user(_TRIAL)], options, logprobs=top)
                break
            except RejectedError as error:
                complaint = error.complaint
                if "max_completion_tokens" in complaint and "max_tokens" in options:
                    options["max_completion_tokens"] = options.pop("max_tokens")
                elif options.pop("logprob_token_ids", None) is None:
                    if "logprob" not in complaint:
                        raise InputError(f"{self.model} cannot be asked: {error}") from None
                    if not (fewer := _fewer(complaint, top)):
                        raise InputError(self._no_logprobs(f": {error}")) from None
                    top = fewer
            except StoppedError:
                raise  # a cap below the first trials is a cap like any other
            except DiscodeError as error:
                raise InputError(f"{self.model} cannot be asked: {error}") from None
        else:
            raise InputError(self._no_logprobs(""))
        if not answer.tokens or not any(token.top for token in answer.tokens):
            raise InputError(self._no_logprobs(""))
        if top < self.options.top:
            LOG.warning(
                "%s returns %d log-probabilities per position, not %d",
                self.model,
                top,
                self.options.top,
            )
        options.pop("logprob_token_ids", None)
        # A server that does not know the field may ignore it, and return its own choice.
        returned = {text.strip(_SPACES) for text in answer.tokens[0].top}
        exact = bool(ids) and {*"0123456789."} <= returned
        whole = any("100" in token.text for token in answer.tokens)
        named = _model_name(answer) or self.client.name
        return ServerFeatures(named, top, options, exact, whole)

    def _no_logprobs(self, why: str) -> str:
        return (
            f"{self.model} returns no log-probabilities{why}; a judge needs them: take a model "
            "that does not reason, or a server that has them (vLLM, SGLang, llama.cpp)"
        )

    def _answer_ids(self, scale: Scale) -> list[int]:
        """Return the token ids of a scale's answers, where the server has /tokenize (vLLM).

        None where an answer is not one token: then the likeliest tokens tell more.
        """
        if scale in self._token_ids or self.model.startswith("openai:"):
            return self._token_ids.get(scale, [])
        words = [stem + answer for stem in scale.stems for answer in scale.answers]
        wanted = {*scale.answers, *"".join(scale.stems)}
        if any(scale.stems):  # "85" after "0." counts as 8
            words += [f"{stem}{number:02}" for stem in scale.stems for number in range(100)]
        text = " ".join(words) + "\n" + "\n".join(words)
        body = {"model": self.client.name, "prompt": text, "add_special_tokens": False}
        reply = self.client.fetch_json("tokenize", body | {"return_token_strs": True})
        ids: list[int] = []
        try:
            named = dict(zip(reply["tokens"], reply["token_strs"], strict=True))
            texts = {int(i): str(piece).strip(_SPACES) for i, piece in named.items()}
            if wanted <= set(texts.values()):
                two = r"\d\d" if any(scale.stems) else r"(?!)"
                ids = [i for i, t in texts.items() if t in wanted or re.fullmatch(two, t)]
                ids.sort(key=lambda i: (texts[i] not in wanted, i))  # the rarest are cut off
        except (TypeError, KeyError, ValueError):
            pass
        self._token_ids[scale] = ids[:MAX_TOKEN_IDS]
        return self._token_ids[scale]

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise where no server could be asked this way; sends nothing."""
        if len(scale.answers) > MAX_TOKEN_IDS:
            raise InputError(
                f"scale {scale.name!r} has {len(scale.answers)} answers; a server returns at most "
                f"{MAX_TOKEN_IDS}: take unit, ten, five, letters or a shorter range"
            )

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings as answers come in; an image's captions are asked about in turn."""
        requests, refused = self._requests(pairs, prompt, scale)
        if refused:
            yield list(refused), Readings.failed(scale, list(refused.values()))
        if not requests:
            return
        features, throttle = self.server_features(), self.client.throttle
        options = dict(features.options)
        if features.token_ids and (ids := self._answer_ids(scale)):
            options["logprob_token_ids"] = ids
        if self.prices is not None:  # until answers tell what a request costs
            guess = self.estimate([pairs[requests[0].rows[0]]], prompt, scale).cost(self.prices)
            throttle.highest_cost = max(throttle.highest_cost, guess or 0.0)
        blocks: _Blocks = queue.SimpleQueue()
        asking = start(self._ask_all(requests, options, features, scale, blocks.put))
        try:
            left = len(requests)
            while left:
                block = blocks.get()
                if isinstance(block, Exception):
                    raise block
                left -= len(block)
                rows = [row for request, _ in block for row in request.rows]
                readings = Readings.concat(scale, [reading for _, reading in block])
                owners = [n for n, (request, _) in enumerate(block) for _ in request.rows]
                yield rows, readings if len(rows) == len(block) else readings.take(owners)
        finally:
            asking.cancel()  # after Ctrl-C no further request is sent

    async def _ask_all(
        self,
        requests: Sequence[_Request],
        options: Mapping[str, Any],
        features: ServerFeatures,
        scale: Scale,
        put: Callable[[_Block | Exception], None],
    ) -> None:
        """Ask all, several at a time; put :data:`BLOCK_ANSWERS`, or those of a short while."""
        waiting = iter(requests)
        block: _Block = []

        def flush() -> None:
            if block:
                put(block.copy())
                block.clear()

        async def work() -> None:
            for request in waiting:
                reading = await self._ask(request, options, features, scale)
                if not block:
                    asyncio.get_running_loop().call_later(KEPT_AFTER, flush)
                block.append((request, reading))
                if len(block) == BLOCK_ANSWERS:
                    flush()

        # Each holds one image in memory; the throttle says how many of them may send.
        count = min(len(requests), self.client.throttle.concurrency)
        workers = [asyncio.create_task(work()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
            flush()
        except Exception as error:  # a mistake of the program ends the run
            put(error)
        finally:
            for worker in workers:
                worker.cancel()

    def _requests(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> tuple[list[_Request], dict[int, str]]:
        """Return one request per different question, in the order of the images.

        The second result says for each row that cannot be asked why not.
        """
        refused: dict[int, str] = {}
        images: dict[str, tuple[EncodedImage, dict[str, _Request]]] = {}
        for row, pair in enumerate(pairs):
            try:
                text = prompt.render(pair.caption, pair.references, scale)
                text.encode()
                digest = image_digest(pair.image)
            except (DiscodeError, UnicodeEncodeError) as error:
                refused[row] = str(error)
                continue
            image, texts = images.setdefault(
                digest, (EncodedImage(pair.image, self.options.image_size), {})
            )
            request = texts.setdefault(text, _Request(text, image))
            request.rows.append(row)
        requests = [request for _, texts in images.values() for request in texts.values()]
        for request in requests:
            request.image.uses += 1
        return requests, refused

    async def _ask(
        self,
        request: _Request,
        options: Mapping[str, Any],
        features: ServerFeatures,
        scale: Scale,
    ) -> Readings:
        """Return the reading of one request, NaN with its reason where there is none."""
        try:
            messages = [_user(request.text, IMAGE_PLACEHOLDER)]
            url = await request.image.url()
            answer = await self.client.ask_async(
                messages, options, logprobs=features.top, image_url=url
            )
            if (_model_name(answer) or features.model) != features.model:
                raise InputError(
                    f"{_model_name(answer)} answers now, not {features.model}; run it again"
                )
            whole = features.whole_numbers or "logprob_token_ids" in options
            return _reading(answer, scale, whole)
        except InputError as error:  # a refused key, another model: the rest would fail too
            self.client.throttle.stop(str(error))
            return Readings.failed(scale, [str(error)])
        except DiscodeError as error:
            return Readings.failed(scale, [str(error)])
        finally:
            request.image.release()

    def estimate(self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale) -> Estimate:
        """Return what reading the pairs would send; sends nothing."""
        requests, refused = self._requests(pairs, prompt, scale)
        sizes: dict[EncodedImage, tuple[int, int]] = {}
        total = read = unusable = 0
        for request in requests:
            if request.image not in sizes:
                try:
                    url, *size = data_url(pairs[request.rows[0]].image, self.options.image_size)
                    sizes[request.image] = (len(url), image_tokens(*size))
                except DiscodeError:
                    sizes[request.image] = (0, 0)
            length, tokens = sizes[request.image]
            unusable += not length
            total += (length + len(request.text.encode())) * bool(length)
            read += (text_tokens(request.text) + tokens) * bool(length)
        usable = len(requests) - unusable
        return Estimate(
            usable,
            sum(length > 0 for length, _ in sizes.values()),
            total,
            read,
            ANSWER_TOKENS * usable,
            unusable + len(refused),
        )


def _fewer(complaint: str, top: int) -> int:
    """Return how many log-probabilities a refusal allows, by the numbers near that word; or 0.

    >>> _fewer("top_logprobs must be at most 5, see http://host/12", 20)
    5
    """
    without_urls = re.sub(r"\S*://\S*", "", complaint)
    near = " ".join(re.findall(r".{0,80}logprob.{0,80}", without_urls))
    return max(
        (int(n) for n in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\d)", near) if int(n) < top),
        default=0,
    )


def _model_name(answer: ChatAnswer) -> str:
    """Return the server's own name for the model; llama.cpp returns the path of the file."""
    return answer.model.rpartition("/")[2] if answer.model[:1] == "/" else answer.model


def _reading(answer: ChatAnswer, scale: Scale, whole: bool) -> Readings:
    if answer.text and not answer.tokens:
        return Readings.failed(scale, ["the server returned no log-probabilities this time"])
    try:
        return reading_from_tokens(answer.tokens, scale, whole=whole)
    except Exception as error:  # probabilities that add up to more than 1, and what is odder
        return Readings.failed(scale, [f"the server returned impossible numbers: {error}"])


def _user(text: str, image_url: str | None = None) -> Message:
    if image_url is None:
        return {"role": "user", "content": text}
    image = {"type": "image_url", "image_url": {"url": image_url}}
    return {"role": "user", "content": [image, {"type": "text", "text": text}]}
