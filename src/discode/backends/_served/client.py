"""The chat model interface, and the client for servers with OpenAI's chat completions.

The key is read from the environment for each request. It is never stored in an attribute, an error
or a log, and never sent to another server: redirects are not followed. If a server repeats the
key, it is hidden before anything else is read from the answer.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import httpx

from discode.backends._served.sglang import completion_of, generate_body
from discode.backends._served.throttle import RequestThrottle
from discode.backends._served.transport import (
    Connections,
    hide_key,
    keep_out_of_logs,
    parse_without_key,
    wait_for,
)
from discode.errors import (
    BackendError,
    InputError,
    RejectedError,
    StoppedError,
    UnreachableError,
)
from discode.options import SIZE, TEXT, Configurable, Numbers, option, with_options_documented
from discode.readings._openai import (
    OTHER_TOKENS,
    choices_in_order,
    split_thoughts,
    what_is_wrong,
)
from discode.readings._tokens import Token, tokens_of_text

LOG = logging.getLogger("discode")
Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, in OpenAI's form."""

IMAGE_PLACEHOLDER = "data:,"
"""Placeholder for the data URL of an image in messages."""
_BUSY = (429, 503, 529)
_TRANSIENT = (408, 409, *range(500, 600))
_MISTAKES = {
    401: "the key was refused",
    403: "the key has no permission for this",
    404: "no such model or address",
}
_REASONS = {"silent": "timeout", "dropped": "dropped connection", "gone": "no connection"}
"""Names of failures without a status in the usage report."""
_MAX_WAIT = 120.0  # seconds that a server may ask us to wait
_LONGEST_WAIT = 86_400.0  # maximum of options in seconds: a day
_SILENT_WAIT = 5.0  # longer waits in seconds are logged
KEY_VARIABLE = "OPENAI_API_KEY"
_OPENAI_HOST = "api.openai.com"
_MOST_TOKENS = 10**8  # of one request; a larger number is not a count


@dataclass(frozen=True)
class ChatAnswer:
    """A model's answer, its tokens without reasoning, and the token counts read and written.

    ``texts`` are the answers of all choices, ``thoughts`` says whether the model thought before the
    first one, ``cut`` whether that one ended at the maximum number of tokens.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    model: str = ""
    usage: tuple[int, int] | None = None
    texts: tuple[str, ...] = ()
    thoughts: bool = False
    cut: bool = False


class ChatModel(Protocol):
    """A chat model that is asked at temperature 0."""

    @property
    def name(self) -> str:
        """The model's name, for the signature."""

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        """Answer, with the ``logprobs`` likeliest tokens at each position.

        Raises :class:`~discode.errors.BackendError` if this request fails.
        """


@dataclass(frozen=True)
class Prices:
    """The prices of a million tokens, read and written.

    >>> Prices(2.5, 10).cost(1_000_000, 100_000)
    3.5
    """

    read: float
    written: float

    def cost(self, read: int, written: int) -> float:
        return (self.read * read + self.written * written) / 1e6


class _PriceRange:
    """Two prices; on a command line 2.5,10."""

    text = "READ,WRITTEN, as 2.5,10"

    def convert(self, value: Any) -> Prices | None:
        if isinstance(value, Prices):
            return value
        try:
            read, written = map(float, value.split(",") if isinstance(value, str) else value)
        except (TypeError, ValueError):
            return None
        allowed = 0 <= read < math.inf and 0 <= written < math.inf
        return Prices(read, written) if allowed else None


PRICES = _PriceRange()
_SECONDS = Numbers("seconds from 0 to a day", lambda x: 0 <= x <= _LONGEST_WAIT)
_SOME_SECONDS = Numbers("seconds above 0, at most a day", lambda x: 0 < x <= _LONGEST_WAIT)


@dataclass(frozen=True, kw_only=True)
class RequestOptions(Configurable):
    """Options of requests to a server."""

    key_variable: str = option(KEY_VARIABLE, "environment variable that holds the key", TEXT)
    timeout: float = option(120.0, "seconds to wait for an answer", _SOME_SECONDS)
    tries: int = option(8, "attempts if a server is busy, fails or drops the connection", SIZE)
    pause: float = option(
        0.5, "approximate seconds before the second try; doubles each time", _SECONDS
    )


@dataclass
class _TryAgain(Exception):
    """A request failed and may succeed later, after ``wait`` seconds if the server is busy.

    ``kind`` is "busy", "failed", "dropped", "silent" or "gone"; the first two have a ``status``.
    """

    why: str
    kind: str
    wait: float = 0.0
    status: int = 0


@with_options_documented
@dataclass(frozen=True)
class ChatClient(RequestOptions):
    """A client for one model of a server with OpenAI's chat completions.

    If ``key_variable`` is not set, no key is sent; OpenAI's own server, and any client with another
    ``key_variable``, require one.

    Attributes:
        url: The server's address up to the version, e.g. "http://localhost:8000/v1".
        name: The model.
        throttle: Limits requests in flight; several clients may share one.
        prices: Prices for the throttle's ``max_cost``.
    """

    url: str
    name: str
    throttle: RequestThrottle = field(default_factory=RequestThrottle, repr=False)
    prices: Prices | None = None
    _connections: Connections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise InputError("a served model needs a name: endpoint:NAME")
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        whole = parsed.scheme in ("http", "https") and parsed.host
        possible = parsed.port is None or 1 <= parsed.port <= 65535
        if not (whole and possible) or parsed.userinfo or parsed.query:
            # The address is not shown: it may contain a key.
            raise InputError(
                f"base_url of {self.name} must be http(s)://HOST[:PORT][/PATH], PORT from 1 to "
                f"65535, without credentials or a query; the key belongs in {self.key_variable}"
            )
        keep_out_of_logs(self.key_variable)
        object.__setattr__(self, "_connections", Connections(self.timeout))
        weakref.finalize(self, self._connections.close).atexit = False  # the loop ends with it

    @property
    def host(self) -> str:
        """The server's host with its port: ``localhost:8000``."""
        return httpx.URL(self.url).netloc.decode()

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        return wait_for(self.ask(messages, {"max_tokens": max_tokens}, logprobs=logprobs))

    async def ask(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        *,
        logprobs: int = 0,
        image_url: bytes = b"",
        begun: str = "",
        prompt: str = "",
        final: Container[str] = (),
    ) -> ChatAnswer:
        """Send messages with further request fields; retry with growing pauses.

        ``image_url`` is a data URL that replaces :data:`IMAGE_PLACEHOLDER` in the messages, so that
        it is not encoded as JSON for each caption. The answer continues ``begun`` if the server
        supports that. If ``prompt`` is given, it replaces the messages, and is sent to SGLang's
        /generate. Options that are None are not sent, not even by default. The kinds of failure
        in ``final`` are not retried.
        """
        body = {"model": self.name, "messages": list(messages), "temperature": 0, **options}
        body = {name: value for name, value in body.items() if value is not None}
        if begun:  # vLLM's names, which SGLang and llama.cpp adopted
            body["messages"] = [*messages, {"role": "assistant", "content": begun}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        if prompt:
            limit = options["max_tokens"]
            body = generate_body(prompt, IMAGE_PLACEHOLDER, options, limit, logprobs)
        sent = json.dumps(body).encode()
        if image_url:  # quotes inside a caption are escaped: only the URL itself matches
            sent = sent.replace(f'"{IMAGE_PLACEHOLDER}"'.encode(), b'"' + image_url + b'"', 1)
        for number in range(self.tries):
            wait = self.pause * 2**number * random.uniform(0.5, 1.5)
            try:
                return await self._try_once(sent, wait, begun, native=bool(prompt))
            except _TryAgain as failure:
                why, kind, wait = failure.why, failure.kind, max(wait, failure.wait)
                reason = str(failure.status) if failure.status else _REASONS[kind]
                if kind in final:
                    lost = kind in ("silent", "gone")
                    raise (UnreachableError if lost else BackendError)(why) from None
            if number + 1 < self.tries:
                self.throttle.retries[reason] += 1
                if wait > _SILENT_WAIT and not self._connections.announced:
                    self._connections.announced = True  # once, until it answers again
                    LOG.warning(
                        "waiting %.0f s (%d of %d tries): %s", wait, number + 1, self.tries, why
                    )
                await self.throttle.pause(wait * random.uniform(1.0, 1.1))
        error = UnreachableError if kind == "gone" else BackendError
        raise error(f"{why} ({self.tries} tries)" if self.tries > 1 else why)

    async def fetch_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post to a path outside the API version and parse the JSON; None if there is none.

        The throttle counts it like any other request.
        """
        try:
            await self.throttle.acquire()
        except StoppedError:
            return None
        try:
            status, _, data = await self._send(self._outside(path), json.dumps(body).encode())
            return parse_without_key(data, self._key()) if status == 200 else None
        except (httpx.HTTPError, ValueError, RecursionError, BackendError):
            return None
        finally:
            self.throttle.release("failed")

    def _outside(self, path: str) -> str:
        return f"{self.url.rstrip('/').removesuffix('/v1')}/{path}"

    async def _try_once(
        self, body: bytes, wait: float, begun: str, *, native: bool = False
    ) -> ChatAnswer:
        """Send once; ``wait`` is the minimum wait after a refusal."""
        await self.throttle.acquire()
        # A request whose usage is not reported, or too late, counts as the most expensive one.
        outcome, cost = "failed", self.throttle.highest_cost if self.prices else 0.0
        try:
            chat = f"{self.url.rstrip('/')}/chat/completions"
            url = self._outside("generate") if native else chat
            status, headers, data = await self._send(url, body)
            status = _status_inside(data) if status == 200 else status
            if status != 200:
                cost = 0.0
                raise self._failure(status, headers, data)
            outcome = "done"
            answer = _answer(data, self._key(), begun, native=native)
            if answer.usage:
                self.throttle.read += answer.usage[0]
                self.throttle.written += answer.usage[1]
                cost = self.prices.cost(*answer.usage) if self.prices else 0.0
            return answer
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            cost = 0.0
            why = self._unreachable(error)
            if not self._connections.reached:  # a wrong address does not become right
                raise UnreachableError(f"{why}; is a server running there?") from None
            raise _TryAgain(why, "gone") from None
        except httpx.TimeoutException:
            why = f"{self.url} did not answer within {self.timeout:g} s"
            raise _TryAgain(why, "silent") from None
        except httpx.HTTPError as error:
            raise _TryAgain(self._unreachable(error), "dropped") from None
        except _TryAgain as failure:
            outcome = "refused" if failure.kind == "busy" else "failed"
            wait = max(wait, failure.wait)
            raise
        finally:
            self.throttle.release(outcome, cost=cost, wait=wait)

    def _failure(self, status: int, headers: httpx.Headers, data: bytes) -> Exception:
        """Choose the error for a status; a request for a long wait stops all others."""
        complaint = _complaint(data, self._key())
        why = f"{self.url} answered {status}: {complaint}"
        if status in _MISTAKES:
            return InputError(f"{self.url}: {_MISTAKES[status]} ({complaint})")
        if status in (400, 422):
            return RejectedError(why, complaint)
        if status not in _BUSY:
            again = _TryAgain(why, "failed", status=status)
            return again if status in _TRANSIENT else BackendError(why)
        seconds = _retry_after(headers)
        if seconds <= _MAX_WAIT:
            return _TryAgain(why, "busy", seconds, status)
        why = f"{why} (it asks us to wait {seconds:.0f} s)"
        self.throttle.stop(why, seconds)
        return BackendError(why)

    def _unreachable(self, error: httpx.HTTPError) -> str:
        why = hide_key(str(error), self._key())
        if isinstance(error, httpx.RemoteProtocolError):
            why = why.partition(":")[0]  # the rest is part of the server's response
        return f"{self.url} cannot be reached: {why or type(error).__name__}"

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):  # httpx's own error would show it
            raise InputError(f"{self.key_variable} is not a key: it has unprintable characters")
        return key

    async def _send(self, url: str, body: bytes) -> tuple[int, httpx.Headers, bytes]:
        headers = {"Content-Type": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        elif self.host == _OPENAI_HOST or self.key_variable != KEY_VARIABLE:
            raise InputError(
                f"{self.host} needs a key, and {self.key_variable} is not set; export "
                f"{self.key_variable}=... or set key_variable to another environment variable"
            )
        try:
            return await self._connections.post(url, body, headers)
        except BackendError as error:
            raise BackendError(f"{self.url}: {error}") from None


def _retry_after(headers: httpx.Headers) -> float:
    """Parse how many seconds a server asks us to wait: a number, or a date by its clock.

    >>> _retry_after(httpx.Headers({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT",
    ...                             "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    30.0
    """
    value, now = headers.get("Retry-After", "0"), _date(headers.get("Date", ""))
    try:
        seconds = float(value)
    except ValueError:
        until, here = _date(value), datetime.now(timezone.utc)
        seconds = (until - (now or here)).total_seconds() if until else 0.0
        # Without a date in the answer we use our own clock, which may differ by more than this.
        seconds = seconds if now else min(seconds, _MAX_WAIT)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text).replace(tzinfo=timezone.utc)  # HTTP's are all GMT
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _answer(data: bytes, key: str = "", begun: str = "", *, native: bool = False) -> ChatAnswer:
    try:
        body = parse_without_key(data, key)
        body = completion_of(body) if native else body
        choices = choices_in_order(body["choices"])
        choice = choices[0]
        contents = [split_thoughts(str(each["message"]["content"] or "")) for each in choices]
        thoughts, text = contents[0]
        tokens = [*map(Token.parse, (choice.get("logprobs") or {}).get("content") or ())]
        model, usage = str(body.get("model") or ""), _usage(body.get("usage"))
        thinks = bool(thoughts) or _reasons(choice["message"], body.get("usage"))
    except Exception as error:  # whatever a server sends may fail only its own row
        why = hide_key(what_is_wrong(error), key)[:200]
        raise BackendError(f"the answer is not an OpenAI chat completion: {why}") from None
    written = "".join(token.text for token in tokens)
    if hide_key(written, key) != written:  # the key may be spread over several tokens
        raise BackendError("the server repeats the key")
    of_text = tokens_of_text(tokens, text)
    if begun:  # the model may end it at once, and some servers repeat the beginning
        if of_text is None:
            of_text = tokens_of_text(tokens, text.removeprefix(begun))
        of_text = None if of_text is None else tokens
    if of_text is None:
        raise BackendError(f"{OTHER_TOKENS} {text!r}")
    texts, cut = tuple(said for _, said in contents), choice.get("finish_reason") == "length"
    return ChatAnswer(text, tuple(of_text), model, usage, texts, thinks, cut)


def _reasons(message: Mapping[str, Any], usage: Any) -> bool:
    """Whether a server reports thoughts, by their text or by their number of tokens."""
    try:
        counted = usage["completion_tokens_details"]["reasoning_tokens"]
    except (TypeError, KeyError):
        counted = 0
    texts = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return bool(counted) or any(isinstance(text, str) and text.strip() for text in texts)


def _status_inside(data: bytes) -> int:
    """Find the status in the body of an answer with status 200: some contain an error."""
    if b'"choices"' in data:
        return 200
    try:
        body = json.loads(data)
        code = (body["error"] if body.get("object") != "error" else body).get("code")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 200  # not an error object
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _usage(usage: Any) -> tuple[int, int] | None:
    """Parse the token counts read and written; None unless both are plausible."""
    try:
        read, written = usage["prompt_tokens"], usage["completion_tokens"]
        if 1 <= read < _MOST_TOKENS and 0 <= written < _MOST_TOKENS:
            return int(read), int(written)
    except (TypeError, KeyError):
        pass
    return None


def _complaint(data: bytes, key: str) -> str:
    """Extract a server's error message on one line; some servers repeat the key in it."""
    try:
        body = parse_without_key(data, key)
        message = body["error"]["message"] if "error" in body else body["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = data.decode(errors="replace") or "no reason given"
    whole = hide_key(str(message), key)  # before the cut: part of a key would not be found
    return " ".join(whole.split())[:200]
