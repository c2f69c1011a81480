"""Ask a chat model: the protocol, and a client for servers that speak OpenAI's.

The key is read from the environment when a request is made. It stands in no attribute, no error
and no log, and is not sent on when a server redirects.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from discode.errors import BackendError, InputError

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``, as OpenAI has it."""

_BUSY = (408, 409, 429, 500, 502, 503, 504)
_MISTAKES = {
    401: "the key was refused",
    403: "the key may not do this",
    404: "there is no such model or address",
}
_MOST = 16 << 20  # bytes of an answer


@dataclass(frozen=True)
class Token:
    """A token that was written, and log-probabilities of what could have been."""

    text: str
    top: Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What a model wrote; tokens where log-probabilities were asked for."""

    text: str
    tokens: tuple[Token, ...] = ()


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


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks OpenAI's chat completions.

    Attributes:
        url: Its address up to the version, e.g. "http://localhost:8000/v1".
        name: The model to ask.
        key_variable: The environment variable that holds the key; unset means no key.
        timeout: Seconds to wait for an answer.
        tries: How often a busy server is asked.
        pause: Seconds before the second try; doubled each time.
    """

    url: str
    name: str
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    tries: int = 4
    pause: float = 1.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"endpoint {self.url!r} is no http:// or https:// address")
        if not self.name:
            raise InputError("an endpoint needs the name of the model to ask")
        if self.tries < 1:
            raise InputError(f"tries={self.tries} is not allowed; give 1 or more")

    def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int = 0
    ) -> Answer:
        """Ask once; again, with growing pauses, while the server is busy."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        for number in range(self.tries):
            try:
                return _answer(self._post(body))
            except urllib.error.HTTPError as error:
                with error:
                    why = _complaint(error, self._key())
                if error.code in _MISTAKES:
                    raise InputError(f"{self.url}: {_MISTAKES[error.code]} ({why})") from None
                if error.code not in _BUSY or number + 1 == self.tries:
                    raise BackendError(f"{self.url} answered {error.code}: {why}") from None
            except (OSError, http.client.HTTPException) as error:
                if number + 1 == self.tries:
                    raise BackendError(f"{self.url} cannot be reached: {error}") from None
            time.sleep(self.pause * 2**number)
        raise AssertionError("unreachable")

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):  # the header's own error would show it
            raise InputError(f"{self.key_variable} holds no key: it has odd characters inside")
        return key

    def _post(self, body: Mapping[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
        )
        opener = urllib.request.build_opener(_Stay)
        with opener.open(request, timeout=self.timeout) as response:
            found: bytes = response.read(_MOST)
            return found


def _answer(text: bytes) -> Answer:
    """Read OpenAI's JSON, or say that it is none."""
    try:
        choice = json.loads(text)["choices"][0]
        content = (choice.get("logprobs") or {}).get("content") or ()
        tokens = tuple(
            Token(
                str(item["token"]),
                {str(top["token"]): float(top["logprob"]) for top in item.get("top_logprobs", ())},
            )
            for item in content
        )
        return Answer(str(choice["message"]["content"] or ""), tokens)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise BackendError(
            f"the answer is not OpenAI's chat completion: {type(error).__name__} at {error}"
        ) from None


def _complaint(error: urllib.error.HTTPError, key: str) -> str:
    """Return a server's own words, one line; some servers repeat the key in them."""
    try:
        found = json.loads(error.read(_MOST))
        message = found["error"]["message"] if "error" in found else found["message"]
    except (ValueError, KeyError, TypeError, OSError):
        message = error.reason
    text = " ".join(str(message).split())
    return (text.replace(key, "***") if key else text)[:200]
