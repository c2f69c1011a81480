"""Served models as judges: any server that returns log-probabilities in OpenAI's chat format.

A request shows the image first, then the question, and lets the model generate a few tokens,
greedily. The likeliest tokens at each position are the reading
(:mod:`discode.backends.served.parse_logprobs`). What a server can do is found out once, by a
request without an image. Where it knows vLLM's ``logprob_token_ids``, we ask for the tokens of all
answers, so that none is missing.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from discode.backends.served.client import (
    IMAGE_PLACEHOLDER,
    KEY_VARIABLE,
    ChatAnswer,
    ChatClient,
    Message,
    Prices,
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
from discode.errors import DiscodeError, InputError, RejectedError, StoppedError
from discode.images import image_digest
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings, ReadingsCollector
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

_Done = queue.SimpleQueue[tuple[list[int], Readings | BaseException]]
"""The rows of a request with its one reading, or the exception that the program raised."""


class ServedOptions(TypedDict, total=False):
    """The options of ``openai:NAME`` and ``endpoint:NAME``."""

    base_url: Annotated[str, "the server's address up to the version: http://localhost:8000/v1"]
    key_variable: Annotated[str, "environment variable that holds the key (OPENAI_API_KEY)"]
    image_size: Annotated[int, "shrink images whose longer side has more pixels than this"]
    concurrency: Annotated[int, "most requests in flight (64); the server's own limit is found"]
    rate: Annotated[float, "most requests per second"]
    timeout: Annotated[float, "seconds to wait for an answer (120)"]
    max_requests: Annotated[int, "most requests in all; retries and the first trial count"]
    max_cost: Annotated[float, "most that may be spent; needs prices"]
    prices: Annotated[str, "READ,WRITTEN: prices per million tokens, as 2.5,10"]
    top: Annotated[int, "log-probabilities to ask for per position (20; llama.cpp has more)"]
    tries: Annotated[int, "how often to ask a server that is busy or fails (8)"]
    pause: Annotated[float, "about how many seconds before the second try (0.5); doubled each time"]


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


class Served:
    """A backend for a model behind an address.

    Args:
        name: The model, as the server calls it.
        base_url: The server's address up to the version, "http://localhost:8000/v1".
        key_variable: The environment variable that holds the key.
        image_size: Images whose longer side has more pixels are shrunk to this; None: never.
        concurrency: The most requests in flight; the server's own limit is found below that.
        rate: The most requests per second.
        timeout: Seconds to wait for an answer.
        max_requests: The most requests in all; retries and the first trial count.
        max_cost: The most that may be spent; needs ``prices``.
        prices: "READ,WRITTEN": what a million tokens cost.
        top: Log-probabilities to ask for per position; llama.cpp returns more than 20.
        tries: How often to ask a server that is busy, fails, or drops the connection.
        pause: About how many seconds to wait before the second try; doubled each time.

    Nothing is sent before the first reading, or before :attr:`identity` is asked for.
    """

    capabilities = frozenset[str]()
    prompt = FLEUR
    scale = UNIT
    batch_size = 2048
    """Pairs per batch: the server runs empty at the end of each."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str = OPENAI,
        key_variable: str = KEY_VARIABLE,
        image_size: int | None = None,
        concurrency: int = 64,
        rate: float | None = None,
        timeout: float = 120.0,
        max_requests: int | None = None,
        max_cost: float | None = None,
        prices: str | None = None,
        top: int = TOP,
        tries: int = 8,
        pause: float = 0.5,
    ) -> None:
        if image_size is not None and image_size < 1:
            raise InputError(f"image_size={image_size} is not allowed; give 1 pixel or more")
        if max_cost is not None and prices is None:
            raise InputError("max_cost needs prices: READ,WRITTEN per million tokens, as 2.5,10")
        if top < 1:
            raise InputError(f"top={top} is not allowed; give 1 or more")
        self.prices = None if prices is None else Prices.of(prices)
        self.client = ChatClient(
            base_url, name, key_variable, timeout, tries, pause,
            RequestThrottle(concurrency, rate, max_requests, max_cost), self.prices,
        )  # fmt: skip
        where = self.client.host_and_path
        self.model = f"openai:{name}" if base_url == OPENAI else f"{name}@{where}"
        self._image_size, self._top = image_size, top
        self._features: ServerFeatures | None = None
        self._token_ids: dict[Scale, list[int]] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> Identity:
        """The model, the server's own name for it, and what changes its answers.

        That is the size that images are shrunk to, and how many log-probabilities it returns.
        """
        features = self.server_features()
        parts = [features.model if features.model != self.client.name else ""]
        parts.append("" if self._image_size is None else f"{self._image_size}px")
        parts.append("" if features.top == TOP else f"top{features.top}")
        return Identity(self.model, "+".join(filter(None, parts)) or "none")

    @property
    def stopped(self) -> str:
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
        top = self._top
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
        if top < self._top:
            LOG.warning(
                "%s returns %d log-probabilities per position, not %d", self.model, top, self._top
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
        found = self.client.fetch_json("tokenize", body | {"return_token_strs": True})
        ids: list[int] = []
        try:
            named = dict(zip(found["tokens"], found["token_strs"], strict=True))
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
    ) -> Readings:
        """Read N pairs; the captions of an image are asked about one after the other."""
        gather = ReadingsCollector(scale, len(pairs))
        for rows, block in self.blocks(pairs, prompt, scale):
            gather.add(block, [[row] for row in rows])
        return gather.readings()

    def blocks(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Iterator[tuple[list[int], Readings]]:
        """Yield readings and the numbers of their pairs, as answers come in."""
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
        waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        done: _Done = queue.SimpleQueue()
        for request in requests:
            waiting.put(request)
        cancelled = threading.Event()

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not cancelled.is_set():
                    request = waiting.get_nowait()
                    try:
                        done.put((request.rows, self._ask(request, options, scale)))
                    except BaseException as error:
                        done.put((request.rows, error))

        started = 0

        def start_threads() -> None:
            # As many threads as may send: one that has its answer goes on with the next request
            # and need not wake another.
            nonlocal started
            while started < min(len(requests), throttle.limit + throttle.pausing):
                threading.Thread(target=work, daemon=True).start()
                started += 1

        start_threads()
        try:
            yield from _in_blocks(done, len(requests), scale, start_threads)
        finally:
            cancelled.set()  # after Ctrl-C no further request is sent

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
                digest, (EncodedImage(pair.image, self._image_size), {})
            )
            request = texts.setdefault(text, _Request(text, image))
            request.rows.append(row)
        requests = [request for _, texts in images.values() for request in texts.values()]
        for request in requests:
            request.image.uses += 1
        return requests, refused

    def _ask(self, request: _Request, options: Mapping[str, Any], scale: Scale) -> Readings:
        """Return the reading of one request, NaN with its reason where there is none."""
        try:
            messages = [_user(request.text, IMAGE_PLACEHOLDER)]
            url, features = request.image.url(), self.server_features()
            answer = self.client.ask(messages, options, logprobs=features.top, image_url=url)
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
                    url, *size = data_url(pairs[request.rows[0]].image, self._image_size)
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


def _in_blocks(
    done: _Done, count: int, scale: Scale, after_each: Callable[[], None]
) -> Iterator[tuple[list[int], Readings]]:
    """Yield ``count`` readings and their rows, :data:`BLOCK_ANSWERS` or a short while at a time.

    ``after_each`` is called after each answer; an exception among the answers is raised.
    """
    rows: list[int] = []
    parts: list[Readings] = []
    number, oldest = 0, 0.0
    while number < count:
        late = False
        try:
            wait = max(0.0, oldest + KEPT_AFTER - time.monotonic()) if parts else None
            owners, reading = done.get(timeout=wait)
        except queue.Empty:
            late = True
        else:
            after_each()
            if isinstance(reading, BaseException):
                raise reading
            oldest = oldest if parts else time.monotonic()
            rows += owners
            parts.append(reading if len(owners) == 1 else reading.take([0] * len(owners)))
            number += 1
        if late or len(parts) == BLOCK_ANSWERS or number == count:
            yield rows, Readings.concat(scale, parts)
            rows, parts = [], []


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
