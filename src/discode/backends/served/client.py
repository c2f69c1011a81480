"""Ask a chat model: the protocol, and the client for servers that speak OpenAI's.

The key is read from the environment when a request is made. It stands in no attribute, no error
and no log, and is not sent on when a server redirects: redirects are not followed. Where a server
repeats it, it is hidden before anything is read from the answer.
"""

from __future__ import annotations

import json
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
import numpy as np

from discode.backends.served.throttle import Gate
from discode.backends.served.transport import Lines, hide, keep_out_of_logs, parse
from discode.errors import BackendError, InputError, RejectedError, StoppedError
from discode.readings.base import POSITIVE_TOLERANCE

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, as OpenAI has it."""

PICTURE = "data:,"
"""Stands for a picture's data URL in messages."""
_BUSY = (429, 503)
_AGAIN = (408, 409, 500, 502, 504)
_MISTAKES = {
    401: "the key was refused",
    403: "the key may not do this",
    404: "there is no such model or address",
}
_LONGEST = 120.0  # seconds that a server may ask to wait
_MOST_TOKENS = 10**8  # of one request; more is no count


@dataclass(frozen=True)
class Token:
    """A token that was written, and log-probabilities of what could have been."""

    text: str
    top: Mapping[str, float]
    logp: float = math.nan


@dataclass(frozen=True)
class Answer:
    """What a model wrote; tokens where log-probabilities were asked for.

    ``model`` is the server's name for who answered, ``usage`` the tokens read and written.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    model: str = ""
    usage: tuple[int, int] | None = None


class Chat(Protocol):
    """A chat model, asked at temperature 0."""

    @property
    def name(self) -> str:
        """The model's name, for the signature."""

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> Answer:
        """Return the answer, with the ``logprobs`` likeliest tokens at each place.

        Raises :class:`~discode.errors.BackendError` where this one request failed.
        """


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, read and written.

    >>> Prices.of("2.5,10").cost(1_000_000, 100_000)
    3.5
    """

    read: float
    written: float

    @classmethod
    def of(cls, text: str) -> Prices:
        """Return the prices written as ``READ,WRITTEN``."""
        try:
            read, written = (float(part) for part in text.split(","))
        except ValueError:
            read = written = math.nan
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise InputError(
                f"prices={text!r} is not allowed; give READ,WRITTEN for a million tokens: 2.5,10"
            )
        return cls(read, written)

    def cost(self, read: int, written: int) -> float:
        """Return the cost of so many tokens."""
        return (self.read * read + self.written * written) / 1e6


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks OpenAI's chat completions.

    Attributes:
        url: Its address up to the version, e.g. "http://localhost:8000/v1".
        name: The model to ask.
        key_variable: The environment variable that holds the key; unset means no key.
        timeout: Seconds to wait for an answer.
        tries: How often a server is asked that is busy, broken, or cut the line.
        pause: Seconds before the second try, more or less; doubled each time.
        gate: How many requests may be under way; several clients may share one.
        prices: For the gate's cap on cost.
    """

    url: str
    name: str
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    tries: int = 8
    pause: float = 0.5
    gate: Gate = field(default_factory=Gate, repr=False)
    prices: Prices | None = None

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(f"endpoint {self.url!r} is no http:// or https:// address")
        if parsed.userinfo or parsed.query:
            raise InputError(
                f"the address of {parsed.host} holds a name, a key or a query; give it without, "
                f"and the key in the environment variable {self.key_variable}"
            )
        if not self.name:
            raise InputError("an endpoint needs the name of the model to ask")
        if self.tries < 1:
            raise InputError(f"tries={self.tries} is not allowed; give 1 or more")
        if not self.timeout > 0:
            raise InputError(f"timeout={self.timeout} is not allowed; give seconds above 0")
        keep_out_of_logs(self.key_variable)
        lines = Lines(self.timeout)
        object.__setattr__(self, "_lines", lines)
        weakref.finalize(self, lines.close)

    @property
    def host(self) -> str:
        """Where it is, with the port: ``localhost:8000``."""
        return httpx.URL(self.url).netloc.decode()

    @property
    def place(self) -> str:
        """The host, with the path where it is not the usual /v1: routes of a proxy differ."""
        path = httpx.URL(self.url).path.rstrip("/")
        return self.host + ("" if path in ("", "/v1") else path)

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> Answer:
        """Ask once; again, with growing pauses, while the server is busy."""
        return self.ask(messages, {"max_tokens": max_tokens}, logprobs=logprobs)

    def ask(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        *,
        logprobs: int = 0,
        picture: bytes = b"",
    ) -> Answer:
        """Ask with options of this server's own beside the messages.

        ``picture`` is a data URL that takes the place of :data:`PICTURE` in the messages: JSON
        need not look through it again for every caption.
        """
        body = {"model": self.name, "messages": list(messages), "temperature": 0, **options}
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        sent = json.dumps(body).encode()
        if picture:  # a quote inside a caption is escaped: only the URL itself reads so
            sent = sent.replace(f'"{PICTURE}"'.encode(), b'"' + picture + b'"', 1)
        return self._insist("chat/completions", sent)

    def look(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON at a path beside the version's, or None where there is none.

        It is a request as any other: the gate counts it.
        """
        root = self.url.rstrip("/").removesuffix("/v1")
        try:
            self.gate.enter()
        except StoppedError:
            return None
        try:
            status, _, data = self._send(f"{root}/{path}", json.dumps(body).encode())
            return parse(data, self._key()) if status == 200 else None
        except (httpx.HTTPError, ValueError, RecursionError, BackendError):
            return None
        finally:
            self.gate.leave("failed")

    def _insist(self, path: str, body: bytes) -> Answer:
        url = f"{self.url.rstrip('/')}/{path}"
        for number in range(self.tries):
            wait = self.pause * 2**number * random.uniform(0.5, 1.5)
            self.gate.enter()
            outcome, cost, why = "failed", 0.0, ""
            try:
                status, headers, data = self._send(url, body)
                if status == 200:
                    outcome = "done"
                    # A server that does not say what it read gets the dearest it may have been.
                    cost = self.gate.dearest if self.prices else 0.0
                    answer = _answer(data, self._key())
                    if self.prices and answer.usage:
                        cost = self.prices.cost(*answer.usage)
                    return answer
                complaint = _complaint(data, self._key())
                if status in _MISTAKES:
                    raise InputError(f"{self.url}: {_MISTAKES[status]} ({complaint})")
                why = f"{self.url} answered {status}: {complaint}"
                if status not in (*_BUSY, *_AGAIN):
                    if status in (400, 422):
                        raise RejectedError(why, complaint)
                    raise BackendError(why)
                if status in _BUSY:
                    outcome = "refused"
                    wait = max(wait, asked := _retry_after(headers))
                    if asked > _LONGEST:  # whom else it would be asked for need not ask
                        why = f"{why} (it asks to wait {asked:.0f} s)"
                        self.gate.stop(f"not asked: {why}", asked)
                        raise BackendError(why)
            except httpx.TimeoutException:
                outcome, why = "refused", f"{self.url} gave no answer in {self.timeout:g} s"
            except httpx.HTTPError as error:
                said = hide(str(error), self._key())
                if isinstance(error, httpx.RemoteProtocolError):
                    said = said.partition(":")[0]  # behind it is what the server wrote, in pieces
                said = said or type(error).__name__
                why = f"{self.url} cannot be reached: {said}"
            finally:
                self.gate.leave(outcome, cost=cost, wait=wait)
            if number + 1 < self.tries:
                self.gate.rest(wait * random.uniform(1.0, 1.1))
        raise BackendError(f"{why} ({self.tries} tries)" if self.tries > 1 else why)

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):  # the header's own error would show it
            raise InputError(f"{self.key_variable} holds no key: it has odd characters inside")
        return key

    def _send(self, url: str, body: bytes) -> tuple[int, httpx.Headers, bytes]:
        headers = {"Content-Type": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        lines: Lines = self._lines  # type: ignore[attr-defined]  # set above: frozen
        try:
            return lines.exchange(url, body, headers)
        except BackendError as error:
            raise BackendError(f"{self.url}: {error}") from None


def _retry_after(headers: httpx.Headers) -> float:
    """Return the seconds that a server asks to wait: a number, or a date by the server's clock.

    By this machine's clock, where the answer is not dated, at most :data:`_LONGEST`: two clocks
    may differ by more.

    >>> _retry_after(httpx.Headers({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT",
    ...                             "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    30.0
    """
    asked = headers.get("Retry-After", "0")
    try:
        seconds = float(asked)
    except ValueError:
        until, now = _date(asked), _date(headers.get("Date", ""))
        if until is None:
            return 0.0
        if now is None:
            now = datetime.now(timezone.utc)
            return min(max((until - now).total_seconds(), 0.0), _LONGEST)
        seconds = (until - now).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _answer(data: bytes, key: str = "") -> Answer:
    """Read OpenAI's JSON, or say that it is none."""
    try:
        found = parse(data, key)
        choice = found["choices"][0]
        content = (choice.get("logprobs") or {}).get("content") or ()
        answer = Answer(
            str(choice["message"]["content"] or ""),
            tuple(_token(item) for item in content),
            str(found.get("model") or ""),
            _usage(found.get("usage")),
        )
    except Exception as error:  # whatever a server sends is its own row's failure
        said = hide(str(error), key)[:200]
        raise BackendError(
            f"the answer is not OpenAI's chat completion: {type(error).__name__} at {said}"
        ) from None
    written = "".join(token.text for token in answer.tokens)
    if hide(written, key) != written:  # token by token it did not show
        raise BackendError("the server repeats the key")
    return answer


def _usage(found: Any) -> tuple[int, int] | None:
    """Return the tokens read and written; None where that is no pair of counts, or nothing read."""
    try:
        read, written = found["prompt_tokens"], found["completion_tokens"]
        if 1 <= read < _MOST_TOKENS and 0 <= written < _MOST_TOKENS:
            return int(read), int(written)
    except (TypeError, KeyError):
        pass
    return None


def _token(item: Mapping[str, Any]) -> Token:
    """Return a token; other tokens that read alike are added up, the same one twice is one."""
    seen: dict[str, set[float]] = {}
    for top in item.get("top_logprobs") or ():
        logp = _logp(top)
        if math.isnan(logp):
            raise ValueError(f"log-probability {logp} of {top['token']!r}")
        seen.setdefault(str(top["token"]), set()).add(logp)
    merged = {
        text: min(0.0, float(np.logaddexp.reduce(sorted(values)))) for text, values in seen.items()
    }
    return Token(str(item["token"]), merged, _logp(item) if "logprob" in item else math.nan)


def _logp(item: Mapping[str, Any]) -> float:
    logp = float(item["logprob"])
    if logp > POSITIVE_TOLERANCE:
        raise ValueError(f"log-probability {logp} of {item['token']!r}")
    return min(logp, 0.0)


def _complaint(data: bytes, key: str) -> str:
    """Return a server's own words, one line; some servers repeat the key in them."""
    try:
        found = parse(data, key)
        message = found["error"]["message"] if "error" in found else found["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = data.decode(errors="replace") or "no reason given"
    return " ".join(hide(str(message), key).split())[:200]  # hidden first: a cut leaves halves
