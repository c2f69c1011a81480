"""Ask a chat model: the interface, and the client for servers with OpenAI's chat completions.

The key is read from the environment when a request is made. It is never in an attribute, an error
or a log, and never sent to another server: redirects are not followed. Where a server repeats it,
it is hidden before anything else is read from the answer.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import httpx

from discode.backends.served.parse_logprobs import (
    OTHER_TOKENS,
    Token,
    choices_in_order,
    tokens_of_text,
)
from discode.backends.served.throttle import RequestThrottle
from discode.backends.served.transport import (
    ConnectionPool,
    hide_key,
    keep_out_of_logs,
    parse_without_key,
)
from discode.errors import BackendError, InputError, RejectedError, StoppedError

LOG = logging.getLogger("discode")
Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, in OpenAI's form."""

IMAGE_PLACEHOLDER = "data:,"
"""Stands for the data URL of an image in messages."""
_BUSY = (429, 503, 529)
_TRANSIENT = (408, 409, *range(500, 600))
_MISTAKES = {
    401: "the key was refused",
    403: "the key may not do this",
    404: "there is no such model or address",
}
_MAX_WAIT = 120.0  # seconds that a server may ask to wait
_LONGEST_WAIT = 86_400.0  # seconds that an option may ask for: a day
_SILENT_WAIT = 5.0  # seconds to wait without a word
KEY_VARIABLE = "OPENAI_API_KEY"
_OPENAI_HOST = "api.openai.com"
_MOST_TOKENS = 10**8  # of one request; more cannot be a count


@dataclass(frozen=True)
class ChatAnswer:
    """What a model wrote; its tokens, where log-probabilities were asked for.

    Tokens of reasoning before the text are left out. ``model`` is the name that the server gives,
    ``usage`` the numbers of tokens read and written.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    model: str = ""
    usage: tuple[int, int] | None = None


class ChatModel(Protocol):
    """A chat model that is asked at temperature 0."""

    @property
    def name(self) -> str:
        """The model's name, for the signature."""

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        """Return the answer, with the ``logprobs`` likeliest tokens for each token written.

        Raises :class:`~discode.errors.BackendError` where this one request failed.
        """


@dataclass(frozen=True)
class Prices:
    """The prices of a million tokens, read and written.

    >>> Prices.of("2.5,10").cost(1_000_000, 100_000)
    3.5
    """

    read: float
    written: float

    @classmethod
    def of(cls, text: str) -> Prices:
        """Parse ``READ,WRITTEN``."""
        try:
            read, written = (float(part) for part in text.split(","))
        except ValueError:
            read = written = math.nan
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise InputError(
                f"prices={text!r} is not allowed; give READ,WRITTEN per million tokens: 2.5,10"
            )
        return cls(read, written)

    def cost(self, read: int, written: int) -> float:
        """Return the cost of these numbers of tokens."""
        return (self.read * read + self.written * written) / 1e6


@dataclass(frozen=True)
class ChatClient:
    """A client for one model of a server that has OpenAI's chat completions.

    Attributes:
        url: The server's address up to the version, e.g. "http://localhost:8000/v1".
        name: The model to ask.
        key_variable: The environment variable that holds the key. Unset means no key, which is
            refused for OpenAI's own server and where another variable was named.
        timeout: Seconds to wait for an answer.
        tries: How often to ask a server that is busy, fails, or drops the connection.
        pause: About how many seconds to wait before the second try; doubled each time.
        throttle: How many requests may be in flight; several clients may share one.
        prices: For the throttle's ``max_cost``.
    """

    url: str
    name: str
    key_variable: str = KEY_VARIABLE
    timeout: float = 120.0
    tries: int = 8
    pause: float = 0.5
    throttle: RequestThrottle = field(default_factory=RequestThrottle, repr=False)
    prices: Prices | None = None

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(f"endpoint {self.url!r} is not an http:// or https:// address")
        if parsed.userinfo or parsed.query:
            raise InputError(
                f"the address of {parsed.host} contains a name, a key or a query; leave it out, "
                f"and put the key into the environment variable {self.key_variable}"
            )
        if not self.name:
            raise InputError("an endpoint needs the name of the model to ask")
        if self.tries < 1:
            raise InputError(f"tries={self.tries} is not allowed; give 1 or more")
        if not 0 <= self.pause <= _LONGEST_WAIT:
            raise InputError(f"pause={self.pause} is not allowed; give 0 seconds or more")
        if not 0 < self.timeout <= _LONGEST_WAIT:
            raise InputError(f"timeout={self.timeout} is not allowed; give seconds above 0")
        keep_out_of_logs(self.key_variable)
        connections = ConnectionPool(self.timeout)
        object.__setattr__(self, "_connections", connections)
        weakref.finalize(self, connections.close)

    @property
    def _pool(self) -> ConnectionPool:
        pool: ConnectionPool = self._connections  # type: ignore[attr-defined]  # set above: frozen
        return pool

    @property
    def host(self) -> str:
        """The server's host, with its port: ``localhost:8000``."""
        return httpx.URL(self.url).netloc.decode()

    @property
    def host_and_path(self) -> str:
        """The host, and the path unless it is the usual /v1: a proxy has a route per model."""
        path = httpx.URL(self.url).path.rstrip("/")
        return self.host + ("" if path in ("", "/v1") else path)

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> ChatAnswer:
        """Ask; try again, with growing pauses, while the server is busy."""
        return self.ask(messages, {"max_tokens": max_tokens}, logprobs=logprobs)

    def ask(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        *,
        logprobs: int = 0,
        image_url: bytes = b"",
    ) -> ChatAnswer:
        """Ask with further fields in the request, such as those of one kind of server.

        ``image_url`` is a data URL that replaces :data:`IMAGE_PLACEHOLDER` in the messages, so that
        it is not encoded as JSON again for each caption.
        """
        body = {"model": self.name, "messages": list(messages), "temperature": 0, **options}
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        sent = json.dumps(body).encode()
        if image_url:  # quotes inside a caption are escaped: only the URL itself matches
            sent = sent.replace(f'"{IMAGE_PLACEHOLDER}"'.encode(), b'"' + image_url + b'"', 1)
        return self._post_with_retries("chat/completions", sent)

    def fetch_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post to a path outside the version's; return the JSON, or None where there is none.

        The throttle counts it like any other request.
        """
        root = self.url.rstrip("/").removesuffix("/v1")
        try:
            self.throttle.acquire()
        except StoppedError:
            return None
        try:
            status, _, data = self._send(f"{root}/{path}", json.dumps(body).encode())
            return parse_without_key(data, self._key()) if status == 200 else None
        except (httpx.HTTPError, ValueError, RecursionError, BackendError):
            return None
        finally:
            self.throttle.release("failed")

    def _post_with_retries(self, path: str, body: bytes) -> ChatAnswer:
        url = f"{self.url.rstrip('/')}/{path}"
        for number in range(self.tries):
            wait = self.pause * 2**number * random.uniform(0.5, 1.5)
            self.throttle.acquire()
            outcome, cost, why = "failed", 0.0, ""
            try:
                status, headers, data = self._send(url, body)
                if status == 200:
                    status = _status_inside(data)
                if status == 200:
                    outcome = "done"
                    # An answer that does not say how many tokens it read gets the highest cost.
                    cost = self.throttle.highest_cost if self.prices else 0.0
                    answer = _answer(data, self._key())
                    if self.prices and answer.usage:
                        cost = self.prices.cost(*answer.usage)
                    return answer
                complaint = _complaint(data, self._key())
                if status in _MISTAKES:
                    raise InputError(f"{self.url}: {_MISTAKES[status]} ({complaint})")
                why = f"{self.url} answered {status}: {complaint}"
                if status not in (*_BUSY, *_TRANSIENT):
                    if status in (400, 422):
                        raise RejectedError(why, complaint)
                    raise BackendError(why)
                if status in _BUSY:
                    outcome = "refused"
                    wait = max(wait, wanted := _retry_after(headers))
                    if wanted > _MAX_WAIT:  # then the other requests need not be sent either
                        why = f"{why} (it asks to wait {wanted:.0f} s)"
                        self.throttle.stop(why, wanted)
                        raise BackendError(why)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = self._unreachable(error)
                if not self._pool.reached:  # a wrong address does not mend itself
                    raise BackendError(f"{why}; is a server running there?") from None
            except httpx.TimeoutException:
                outcome, why = "refused", f"{self.url} gave no answer in {self.timeout:g} s"
            except httpx.HTTPError as error:
                why = self._unreachable(error)
            finally:
                self.throttle.release(outcome, cost=cost, wait=wait)
            if number + 1 < self.tries:
                if wait > _SILENT_WAIT and not self._pool.told:
                    self._pool.told = True  # once, until it answers again
                    LOG.warning(
                        "waiting %.0f s (%d of %d tries): %s", wait, number + 1, self.tries, why
                    )
                self.throttle.pause(wait * random.uniform(1.0, 1.1))
        raise BackendError(f"{why} ({self.tries} tries)" if self.tries > 1 else why)

    def _unreachable(self, error: httpx.HTTPError) -> str:
        said = hide_key(str(error), self._key())
        if isinstance(error, httpx.RemoteProtocolError):
            said = said.partition(":")[0]  # after it comes what the server wrote, in pieces
        return f"{self.url} cannot be reached: {said or type(error).__name__}"

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):  # httpx's own error would show it
            raise InputError(f"{self.key_variable} does not hold a key: it contains odd characters")
        return key

    def _send(self, url: str, body: bytes) -> tuple[int, httpx.Headers, bytes]:
        headers = {"Content-Type": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        elif self.host == _OPENAI_HOST or self.key_variable != KEY_VARIABLE:
            raise InputError(
                f"{self.host} needs a key, and the environment variable {self.key_variable} is not "
                f"set: export {self.key_variable}=..., or name another by key_variable"
            )
        try:
            return self._pool.post(url, body, headers)
        except BackendError as error:
            raise BackendError(f"{self.url}: {error}") from None


def _retry_after(headers: httpx.Headers) -> float:
    """Return how many seconds a server asks to wait: a number, or a date by the server's clock.

    Where the answer has no date, this machine's clock is used, and the result is at most
    :data:`_MAX_WAIT`: two clocks may differ by more.

    >>> _retry_after(httpx.Headers({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT",
    ...                             "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    30.0
    """
    value = headers.get("Retry-After", "0")
    try:
        seconds = float(value)
    except ValueError:
        until, now = _date(value), _date(headers.get("Date", ""))
        if until is None:
            return 0.0
        if now is None:
            now = datetime.now(timezone.utc)
            return min(max((until - now).total_seconds(), 0.0), _MAX_WAIT)
        seconds = (until - now).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _answer(data: bytes, key: str = "") -> ChatAnswer:
    """Parse a chat completion; raise :class:`BackendError` where it is not one."""
    try:
        found = parse_without_key(data, key)
        choice = choices_in_order(found["choices"])[0]
        text = str(choice["message"]["content"] or "")
        tokens = [*map(Token.parse, (choice.get("logprobs") or {}).get("content") or ())]
        model, usage = str(found.get("model") or ""), _usage(found.get("usage"))
    except Exception as error:  # whatever a server sends fails its own row only
        said = hide_key(str(error), key)[:200]
        raise BackendError(
            f"the answer is not OpenAI's chat completion: {type(error).__name__} at {said}"
        ) from None
    written = "".join(token.text for token in tokens)
    if hide_key(written, key) != written:  # the key may be spread over several tokens
        raise BackendError("the server repeats the key")
    if (own := tokens_of_text(tokens, text)) is None:
        raise BackendError(f"{OTHER_TOKENS} {text!r}")
    return ChatAnswer(text, tuple(own), model, usage)


def _status_inside(data: bytes) -> int:
    """Return the status that the body of an answer with status 200 tells: some hold an error."""
    if b'"choices"' in data:
        return 200
    try:
        found = json.loads(data)
        code = (found["error"] if found.get("object") != "error" else found).get("code")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 200  # whatever it is
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _usage(found: Any) -> tuple[int, int] | None:
    """Return the tokens read and written; None unless both are counts and some were read."""
    try:
        read, written = found["prompt_tokens"], found["completion_tokens"]
        if 1 <= read < _MOST_TOKENS and 0 <= written < _MOST_TOKENS:
            return int(read), int(written)
    except (TypeError, KeyError):
        pass
    return None


def _complaint(data: bytes, key: str) -> str:
    """Return a server's own words on one line; some servers repeat the key in them."""
    try:
        found = parse_without_key(data, key)
        message = found["error"]["message"] if "error" in found else found["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = data.decode(errors="replace") or "no reason given"
    whole = hide_key(str(message), key)  # before the cut: half a key would not be found
    return " ".join(whole.split())[:200]
