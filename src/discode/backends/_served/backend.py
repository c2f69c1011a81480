"""Served models as judges: any server with OpenAI's chat completions.

The model generates a few tokens greedily; the likeliest tokens at each position make the reading
(:mod:`discode.readings._stems`). If a server supports vLLM's ``logprob_token_ids``, we request the
tokens of all answers, so that none is missing. If it can continue a partial answer, the stem that
the model did not write can be read as well. If it returns no log-probabilities, answers are sampled
and counted (:mod:`discode.readings._sampled`).
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from discode._files import parse_json
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale, find_rating
from discode.backends._answers import (
    MAX_TOKEN_IDS,
    READ,
    READ_ABOUT,
    TOP,
    check_answers,
    follow_answer,
)
from discode.backends._base import Backend, Blocks
from discode.backends._served.client import PRICES, ChatAnswer, ChatClient, Prices, RequestOptions
from discode.backends._served.estimate import (
    ANSWER_TOKENS,
    EncodedImage,
    Estimate,
    data_url,
    image_tokens,
    text_tokens,
)
from discode.backends._served.schedule import Request, RequestQueue
from discode.backends._served.server import (
    SAMPLES,
    ModelServer,
    ServerFeatures,
    model_name,
)
from discode.backends._served.throttle import (
    INITIAL_LIMIT,
    OWN_INITIAL_LIMIT,
    RequestThrottle,
)
from discode.backends._served.transport import start, wait_for
from discode.errors import BackendError, DiscodeError, InputError, RejectedError, UnreachableError
from discode.images import image_digest
from discode.options import (
    COUNT,
    POSITIVE,
    SIZE,
    TEXT,
    option,
    options_of,
    with_options_documented,
)
from discode.readings import Identity, Readings
from discode.readings._sampled import SAMPLED, count_ratings, from_counts

LOG = logging.getLogger("discode")
OPENAI = "https://api.openai.com/v1"
BLOCK_ANSWERS = 64
"""Answers per block."""
KEPT_AFTER = 0.5
"""The longest time in seconds before an incomplete block is yielded: a killed run loses less."""
GONE_SECONDS = 30.0
"""How long to pause after the last server is gone, so that a service survives its restart."""
LOST = ("gone", "silent")
"""The kinds of failure after which other servers take over."""
REST = 10
"""An unreachable server is skipped for this many times as long as we waited for it."""


class _Fields:
    """Fields of requests, as a JSON object; nothing that discode sets itself, and no key."""

    text = "a JSON object"

    def convert(self, value: Any) -> dict[str, Any] | None:
        """Return the object; a value that is none is not shown, since it may contain a key."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            fields = parse_json(text, "body")
        except (TypeError, ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise InputError("body must be a JSON object, as body='{\"top_k\": 40}'")
        for name in fields:
            if name in _OWN_FIELDS:
                raise InputError(f"body cannot set {name!r}, which discode sets itself")
        if secret := next(filter(_SECRET.search, _names(fields)), None):
            raise InputError(
                f"body cannot contain {secret!r}; export the key in an environment variable and "
                "set key_variable to its name"
            )
        return fields


def _names(value: Any) -> Iterator[str]:
    """Yield the names in JSON, at any depth."""
    if isinstance(value, dict):
        yield from value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from _names(part)


_OWN_FIELDS = {
    *("model", "messages", "temperature", "n", "seed", "stream", "logprobs", "top_logprobs"),
    *("logprob_token_ids", "max_tokens", "max_completion_tokens"),
    *("continue_final_message", "add_generation_prompt"),
}
_SECRET = re.compile(
    r"(?i)api.?key|authorization|password|secret|bearer|(access|auth).?(token|key)"
)


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class ServedOptions(RequestOptions):
    """The options of ``openai:NAME`` and ``endpoint:NAME``."""

    base_url: str = option(
        OPENAI, "server address, as http://localhost:8000/v1; several with commas", TEXT
    )
    image_size: int | None = option(None, "maximum pixels of the longer side", SIZE, None)
    concurrency: int = option(
        64, "maximum requests in flight per server; adapts to the server's limit", SIZE
    )
    rate: float | None = option(None, "maximum requests per second", POSITIVE, None)
    max_requests: int | None = option(None, "maximum requests, retries included", SIZE, None)
    max_cost: float | None = option(None, "maximum cost; requires prices", POSITIVE, None)
    prices: Prices | None = option(  # noqa: RUF009  # a field like the others
        None, "prices per million tokens, read and written", PRICES, None
    )
    top: int = option(TOP, "log-probabilities per position; llama.cpp returns more", SIZE)
    read: str = option("auto", f"{READ_ABOUT}, if the server supports it", *READ)
    thinking: str = option("off", "whether the model thinks before it rates", "off", "on")
    thinking_tokens: int = option(
        2048, "maximum tokens of thoughts and rating", SIZE, when={"thinking": ("on",)}
    )
    samples: int | None = option(
        None, "answers to sample per pair; none samples 20 if the server returns no "
        "log-probabilities, 0 never samples", COUNT, None,
    )  # fmt: skip
    body: dict[str, Any] | None = option(  # noqa: RUF009  # a field like the others
        None, "JSON object with further fields of every request", _Fields(), None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.read == "forced" and (self.samples or self.thinking == "on"):
            other = "samples" if self.samples else "thinking=on"
            raise InputError(f"read=forced cannot be combined with {other}")
        if self.max_cost is not None and self.prices is None:
            raise InputError("max_cost requires prices: READ,WRITTEN per million tokens, as 2.5,10")


_Block = list[tuple[Request, Readings]]
"""Requests, and the one reading of each."""
_Blocks = queue.SimpleQueue[_Block | Exception]


class Served(Backend):
    """A backend for a model on one or several servers.

    Args:
        name: The server's name for the model.
        options: See :class:`ServedOptions`.

    Nothing is sent before the first reading or the first use of :attr:`identity`.
    """

    batch_size = 2048
    """Pairs per batch; large, because the server idles at the end of each."""

    def __init__(self, name: str, **options: Any) -> None:
        self.options = chosen = ServedOptions(**options)
        self.prices = chosen.prices
        urls = list(dict.fromkeys(url.strip() for url in chosen.base_url.split(",")))
        throttle = RequestThrottle(
            chosen.concurrency * len(urls), chosen.rate, chosen.max_requests, chosen.max_cost,
            initial=INITIAL_LIMIT if chosen.base_url == OPENAI else OWN_INITIAL_LIMIT * len(urls),
        )  # fmt: skip
        asking = {row.name: getattr(chosen, row.name) for row in options_of(RequestOptions)}
        clients = [
            ChatClient(url, name, throttle=throttle, prices=chosen.prices, **asking) for url in urls
        ]
        self.client = clients[0]
        models = [f"openai:{name}"] if chosen.base_url == OPENAI else [*map(_model, clients)]
        self._servers = [
            ModelServer(
                client, model, chosen.top, chosen.body or {},
                chosen.thinking_tokens if chosen.thinking == "on" else 0,
                None if chosen.samples is None else chosen.samples > 0,
            )
            for client, model in zip(clients, models, strict=True)
        ]  # fmt: skip
        self._draws: int | None = None  # those of a view by sampling()
        self._named: ModelServer | None = None  # the first that answered; does not change
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.models)!r})"  # identity asks a server

    @property
    def identity(self) -> Identity:  # type: ignore[override]  # computed
        """The model on the first server that answered, with that server's name for it and options.

        The options are the image size, the number of log-probabilities, ``read=forced``, how
        thinking was switched off or on, whether answers are sampled, and a digest of ``body``.
        """
        named = self._named or self.reachable_servers()[0]
        features = named.find_features()
        parts = [features.model if features.model != self.client.name else ""]
        parts.append("" if self.options.image_size is None else f"{self.options.image_size}px")
        parts.append("" if features.top in (TOP, 0) else f"top{features.top}")
        parts.append("forced" * (self.options.read == "forced"))
        parts.append(features.thinking)
        parts.append("" if features.top else SAMPLED)
        if self.options.body:
            text = json.dumps(self.options.body, sort_keys=True, separators=(",", ":"))
            parts.append(f"body-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
        return Identity(named.model, "+".join(filter(None, parts)) or "none")

    @property
    def samples(self) -> int:
        """Answers drawn per pair; 0 if log-probabilities are read. May ask a server."""
        if self._draws or self.options.samples is not None:
            return self._draws or self.options.samples or 0
        return 0 if self.server_features().top else SAMPLES

    def sampling(self, n: int) -> Served:
        """Return a view that draws ``n`` answers per pair, with the same servers and limits."""
        if not self.samples:
            raise InputError(f"{self!r} reads log-probabilities; set samples={n} to sample answers")
        view = copy.copy(self)
        view._draws = n
        return view

    @property
    def models(self) -> list[str]:
        """The model with the host of each server; readings are stored under one of them."""
        return [server.model for server in self._servers]

    @property
    def stopped(self) -> str:  # type: ignore[override]  # computed
        """Why no more requests are sent (a cap, a rejected key); empty while they are."""
        return self.client.throttle.stopped

    @property
    def hosts(self) -> str:
        return ", ".join(server.client.host for server in self._servers)

    def server_features(self) -> ServerFeatures:
        """Find out what the servers support, with one request each and no image."""
        return (self._named or self.reachable_servers()[0]).find_features()

    def reachable_servers(self) -> list[ModelServer]:
        """List the servers that answer; raise if none does or if they differ."""
        servers: list[ModelServer] = []
        reasons: list[str] = []
        with self._lock:
            now = time.monotonic()
            order = sorted(self._servers, key=lambda server: server.rests_until > now)
            for server in order:
                if servers and server.rests_until > now:
                    continue
                started = time.monotonic()
                others = servers or server is not order[-1]
                try:
                    server.find_features(LOST if others else ())
                except UnreachableError as error:
                    reasons.append(str(error))
                    ended = time.monotonic()
                    server.rests_until = ended + REST * (ended - started)
                    if len(order) > 1:
                        LOG.warning("%s; using the other servers", error)
                    continue
                servers.append(server)
                if self.options.read == "forced" and not wait_for(server.continues()):
                    raise InputError(
                        f"{server.client.url} cannot continue a partial answer; "
                        "set read to auto or generate"
                    )
                self._named = self._named or server
                if why := self._named.differs_from(server):
                    raise InputError(
                        f"{self._named.client.url} and {server.client.url} do not serve the same "
                        f"model: {why}"
                    )
        if not servers:
            raise InputError(f"no server for {self.client.name}: {'; '.join(reasons)}")
        return servers

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise if no server can support the scale; sends nothing."""
        check_answers(scale)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings as answers arrive."""
        requests, refused = self._requests(pairs, prompt, scale)
        if refused:
            yield list(refused), Readings.failed(scale, list(refused.values()))
        if not requests:
            return
        servers = self.reachable_servers()
        throttle = self.client.throttle
        options = {server: server.request_options(scale) for server in servers}
        if self._stems(scale) > 1 or any(request.image.uses > 1 for request in requests):
            for server in servers:
                server.try_images()
        if self.prices is not None:  # until the first answer shows the cost of a request
            guess = self.estimate([pairs[requests[0].rows[0]]], prompt, scale).cost(self.prices)
            throttle.highest_cost = max(throttle.highest_cost, guess or 0.0)
        blocks: _Blocks = queue.SimpleQueue()
        asking = start(self._ask_all(requests, options, scale, blocks.put))
        try:
            left = len(requests)
            while left:
                block = blocks.get()
                if isinstance(block, Exception):
                    raise block
                left -= len(block)
                rows = [row for request, _ in block for row in request.rows]
                readings = Readings.concat(scale, [reading for _, reading in block])
                throttle.pairs += len(rows)
                owners = [n for n, (request, _) in enumerate(block) for _ in request.rows]
                yield rows, readings if len(rows) == len(block) else readings.take(owners)
        finally:
            asking.cancel()  # after Ctrl-C no further request is sent

    async def _ask_all(
        self,
        requests: Sequence[Request],
        options: Mapping[ModelServer, Mapping[str, Any]],
        scale: Scale,
        put: Callable[[_Block | Exception], None],
    ) -> None:
        """Send all requests, several at a time; ``put`` answers in blocks."""
        waiting = RequestQueue(requests, options, max(1, self.options.concurrency // 2))
        block: _Block = []

        def flush() -> None:
            if block:
                put(block.copy())
                block.clear()

        async def work(server: ModelServer) -> None:
            while (request := await waiting.next(server)) is not None:
                reading = await self._ask_or_lose(server, request, waiting, options[server], scale)
                if reading is None:
                    return
                waiting.done(request)
                if not block:
                    asyncio.get_running_loop().call_later(KEPT_AFTER, flush)
                block.append((request, reading))
                if len(block) == BLOCK_ANSWERS:
                    flush()

        # Each worker holds one image in memory; the throttle limits how many send. Servers take
        # turns, so none gets more than its share before it has answered.
        count = min(-(-len(requests) // len(options)), self.options.concurrency)
        workers = [asyncio.create_task(work(server)) for _ in range(count) for server in options]
        try:
            await asyncio.gather(*workers)
            flush()
        except Exception as error:  # a bug ends the run
            put(error)
        finally:
            for worker in workers:
                worker.cancel()

    async def _ask_or_lose(
        self,
        server: ModelServer,
        request: Request,
        waiting: RequestQueue,
        options: Mapping[str, Any],
        scale: Scale,
    ) -> Readings | None:
        """Read one request; None if the server is lost and others take over."""
        while True:
            final = LOST if waiting.others(server) else ()
            try:
                return await self._ask(server, request, options, scale, final)
            except UnreachableError as error:
                if waiting.others(server):
                    if waiting.lose(server, request):
                        LOG.warning("%s; the other servers take over", error)
                    return None
                if not final:  # otherwise it just became the last server, and is asked again
                    self.client.throttle.stop(str(error), GONE_SECONDS)
                    return Readings.failed(scale, [str(error)])

    def _requests(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> tuple[list[Request], dict[int, str]]:
        """Make one request per distinct question, by image; also why some rows cannot be sent."""
        refused: dict[int, str] = {}
        images: dict[str, tuple[EncodedImage, dict[str, Request]]] = {}
        for row, pair in enumerate(pairs):
            try:
                text = prompt.render(pair.caption, pair.references, scale)
                text.encode()
                digest = image_digest(pair.image)
            except (DiscodeError, UnicodeEncodeError) as error:
                refused[row] = str(error)
                continue
            image, texts = images.setdefault(
                digest, (EncodedImage(pair.image, self.options.image_size, digest), {})
            )
            request = texts.setdefault(text, Request(text, image))
            request.rows.append(row)
        requests = [request for _, texts in images.values() for request in texts.values()]
        for request in requests:
            request.image.uses += 1
        return requests, refused

    def _stems(self, scale: Scale) -> int:
        return len(scale.stems) if self.options.read == "forced" else 1

    async def _ask(
        self,
        server: ModelServer,
        request: Request,
        options: Mapping[str, Any],
        scale: Scale,
        final: tuple[str, ...],
    ) -> Readings:
        features = server.find_features()
        thinking = bool(server.thinking)

        async def ask(begun: str = "", **more: Any) -> ChatAnswer:
            fields = {**options, **more}
            answer = await server.ask(request.text, request.image, fields, begun=begun, final=final)
            if (model_name(answer) or features.model) != features.model:
                raise InputError(
                    f"the server now serves {model_name(answer)}, not {features.model}; run again"
                )
            return answer

        try:
            if not features.top:
                return await self._draw(server, ask, scale)
            answer = await ask()
            if answer.thoughts and not answer.text:
                change = "raise thinking_tokens" if thinking else "set thinking=on"
                raise BackendError(f"the model's thoughts took all of its tokens; {change}")
            ids = options.get("logprob_token_ids", ())
            every = 0 < len(ids) < MAX_TOKEN_IDS  # otherwise some were cut off
            if answer.text and not answer.tokens:
                why = "the server returned no log-probabilities for this pair"
                return Readings.failed(scale, [why])
            whole = features.whole_numbers or bool(ids)
            read = "generate" if thinking else self.options.read
            following = follow_answer(answer.tokens, scale, read=read, whole=whole, every=every)
            try:
                begun, left = next(following)
                if not await server.continues():
                    following.send(None)
                while True:
                    more = await ask(begun, **{features.limit: left})
                    begun, left = following.send(more.tokens)
            except StopIteration as end:
                reading: Readings = end.value
                return reading
        except UnreachableError:
            raise
        except InputError as error:  # a rejected key, another model: all others would fail too
            self.client.throttle.stop(str(error))
            return Readings.failed(scale, [str(error)])
        except DiscodeError as error:
            return Readings.failed(scale, [str(error)])

    async def _draw(
        self, server: ModelServer, ask: Callable[..., Awaitable[ChatAnswer]], scale: Scale
    ) -> Readings:
        """Sample answers about one pair, in as few requests as the server allows."""
        wanted, texts = self.samples, list[str]()
        while len(texts) < wanted:
            n = min(wanted - len(texts), server.choices)
            try:
                answer = await ask(**({"n": n} if n > 1 else {}))
            except RejectedError:
                if n == 1:
                    raise
                server.choices = min(server.choices, n // 2)
                continue
            texts += answer.texts[:n]
            if len(answer.texts) < n:
                server.choices = min(server.choices, len(answer.texts))
        counts = count_ratings(scale, [find_rating(text, scale) for text in texts])
        return from_counts(scale, counts[None], np.array([wanted]))

    def estimate(self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale) -> Estimate:
        """Estimate the most that reading the pairs would send; sends nothing.

        Sampled answers count as one request per pair unless the server is known to return fewer.
        """
        requests, refused = self._requests(pairs, prompt, scale)
        sizes: dict[EncodedImage, tuple[int, int]] = {}
        for request in requests:
            if request.image not in sizes:
                try:
                    url, *size = data_url(pairs[request.rows[0]].image, self.options.image_size)
                    sizes[request.image] = (len(url), image_tokens(*size))
                except DiscodeError:
                    sizes[request.image] = (0, 0)
        usable = [(request.text, *sizes[request.image]) for request in requests]
        usable = [question for question in usable if question[1]]
        first = self._servers[0]
        draws = self._draws or self.options.samples or 0
        if first.features is not None and not first.features.top:
            draws = draws or SAMPLES
        times = -(-draws // first.choices) or self._stems(scale)
        return Estimate(
            times * len(usable),
            sum(length > 0 for length, _ in sizes.values()),
            times * sum(len(text.encode()) + length for text, length, _ in usable),
            times * sum(text_tokens(text) + tokens for text, _, tokens in usable),
            (draws or times) * (ANSWER_TOKENS + first.thinking) * len(usable),
            len(requests) - len(usable) + len(refused),
        )


def _model(client: ChatClient) -> str:
    """Name the model with its server's host, and the path if it is not the usual one."""
    path = httpx.URL(client.url).path.rstrip("/")  # a proxy may have one path per model
    return f"{client.name}@{client.host}{'' if path in ('', '/v1') else path}"
