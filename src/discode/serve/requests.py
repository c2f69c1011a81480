"""Parse the body of a score request: JSON with a data URL or URL, or a form with a file."""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import re
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from discode.decoders import Decoder, named_decoder
from discode.errors import HttpError, ImageError, InputError
from discode.files import parse_json
from discode.images import IMAGE_FORMATS, check_size, open_formats
from discode.serve.batching import ScoreRequest
from discode.serve.limits import HeldBytes, Limits, parse_content_length, too_large

FetchImage = Callable[[str], Awaitable[bytes]]
FIELDS = ("image", "captions", "references", "method")
METHOD_CHARACTERS = 400
"""The longest method that a request may name; one with every option has half as many."""
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_DATA_URL = re.compile(r"data:(image/[\w.+-]+)?(;[\w=.+-]+)*;base64,", re.IGNORECASE)


async def read_body(request: Request, held: HeldBytes) -> bytes:
    """Return the body, or refuse it as soon as it is too long."""
    limit = held.limiter.limits.body
    length = request.headers.get("content-length")
    if length is not None and (parse_content_length(length) is None or int(length) > limit):
        raise too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        held.add(len(chunk))
        body += chunk
    return bytes(body)


@dataclass(frozen=True, kw_only=True)
class RequestParser:
    """Turns bodies into requests, or raises :class:`~discode.errors.HttpError`.

    Whatever takes time on a long or hostile body runs in ``threads``, and the event loop goes on.

    Args:
        limits: What a request may hold.
        method: What the service's own method is called.
        default: Its decoder, if a request names that or none.
        fetch: Fetches an image by URL; None where that is not allowed.
        threads: Where bodies are parsed and images opened; its size bounds how many at once.
    """

    limits: Limits
    method: str
    default: Decoder
    fetch: FetchImage | None
    threads: Executor

    async def parse(self, body: bytes, content_type: str, held: HeldBytes) -> ScoreRequest:
        """Return what a body asks for, an image fetched by URL included (its bytes are ``held``).

        Args:
            body: JSON or multipart/form-data, as ``content_type`` says.
            content_type: The header, with the boundary of a form.
            held: Where the bytes of a fetched image are counted.
        """
        run = asyncio.get_running_loop().run_in_executor
        # In one go where there is no URL: every change of thread waits for the interpreter's lock.
        asked = await run(self.threads, self._parse, body, content_type)
        if isinstance(asked, ScoreRequest):
            return asked
        url, finish = asked
        return await run(self.threads, finish, await self._fetch(url, held))

    def _parse(
        self, body: bytes, content_type: str
    ) -> ScoreRequest | tuple[str, Callable[[bytes], ScoreRequest]]:
        """Return the request, or the URL of its image and what makes the request of its bytes."""
        limits = self.limits
        kind = content_type.partition(";")[0].strip().lower()
        if kind == "application/json":
            asked = _json(body, limits)
        elif kind == "multipart/form-data":
            asked = asyncio.run(_form(body, content_type, limits))  # a loop of this thread's own
        else:
            raise HttpError(
                415, "wrong_type", "send application/json or multipart/form-data, "
                f"not {kind[:80]!r}",
            )  # fmt: skip
        captions = _texts(asked.get("captions"), "captions", limits.captions, limits.characters)
        if not captions:
            raise _bad("captions: give at least one")
        references = _texts(
            asked.get("references"), "references", limits.references, limits.characters
        )
        finish = partial(
            _make_request,
            captions=captions,
            references=references,
            decoder=self._decoder(asked.get("method")),
        )
        image = _image(asked.get("image"))
        return finish(image) if isinstance(image, bytes) else (image, finish)

    def _decoder(self, name: Any) -> Decoder:
        if name is not None and not isinstance(name, str):
            raise _bad("method must be text, such as discode or discode:sigma2=0.05")
        # The service's own method may be a preset file; callers open none.
        if name in (None, "", self.method):
            return self.default
        if len(name) > METHOD_CHARACTERS:
            raise _bad(f"method has over {METHOD_CHARACTERS} characters")
        try:
            decoder = named_decoder(name)
        except InputError as error:
            raise _bad(str(error)) from None
        if decoder.requires:  # a caller could ask for a million steps of Adam
            raise _bad("solver 'adam' is not served; use solver 'exact'")
        return decoder

    async def _fetch(self, url: str, held: HeldBytes) -> bytes:
        if self.fetch is None:
            raise HttpError(
                422, "bad_url", "URLs are not fetched here; send the image (--allow-urls)"
            )
        image = await self.fetch(url)
        held.add(len(image))
        return image


def _make_request(
    image: bytes, *, captions: tuple[str, ...], references: tuple[str, ...], decoder: Decoder
) -> ScoreRequest:
    request = ScoreRequest(image, captions, references, decoder, pixels=check_image(image))
    _ = request.digest  # computed here, in a worker thread, and kept for the queue
    return request


def check_image(image: bytes) -> int:
    """Return the pixels that an image will have when it is decoded, by what its head declares.

    Raises unless it begins like an image that can be decoded within limits.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, and about odd tags
            with open_formats(image) as opened:
                reduction = check_size(opened)
                pixels: int = opened.width * opened.height // (reduction * reduction)
                return pixels
    except ImageError as error:
        raise HttpError(422, "bad_image", f"the image cannot be used: {error}") from None
    # Pillow raises a different error for every way in which a file can be broken.
    except Exception:
        what = "is empty" if not image else "cannot be opened, or is far too large"
        names = ", ".join(IMAGE_FORMATS)
        raise HttpError(422, "bad_image", f"the image {what}; allowed: {names}") from None


def check_json(body: bytes, *, depth: int, elements: int) -> None:
    """Raise where a body nests deeper, or has more values, than it may.

    The bytes are searched, not parsed: a parser would make a million objects of a megabyte of
    ``[],[],`` before anybody could count them.

    >>> check_json(b'{"captions": ["a [[[ cat"]}', depth=2, elements=9)
    >>> check_json(b"[[[]]]", depth=2, elements=9)
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: the body is nested deeper than 2 levels
    """
    # In a text an escape begins with the first of its backslashes, so that pairs go first; then
    # every quote that is left begins or ends a text. (Outside of texts a backslash is no JSON.)
    plain = body
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * elements:
        raise _bad(f"the body has over {elements} texts; send several requests")
    outside = b"".join(plain.split(b'"')[::2])
    marks = outside.translate(None, _NO_MARKS)
    if len(marks) > 2 * elements:
        raise _bad(f"the body has over {elements} values; send several requests")
    level = 0
    for mark in marks:
        level += (mark in b"[{") - (mark in b"]}")
        if level > depth:
            raise _bad(f"the body is nested deeper than {depth} levels")


def _json(body: bytes, limits: Limits) -> dict[str, Any]:
    # Four times what is allowed: who sends a few too many captions is told so by name.
    check_json(body, depth=8, elements=4 * (limits.captions + limits.references + len(FIELDS)))
    try:
        # Text, not bytes: these might be UTF-16, which is not what was searched.
        asked = parse_json(body.decode("utf-8-sig"), "the body")
    except UnicodeDecodeError:
        raise _bad("the body is not JSON in UTF-8") from None
    except InputError as error:
        raise _bad(str(error)) from None
    if not isinstance(asked, dict):
        raise _bad("the body must be a JSON object")
    _check_fields(asked)
    return asked


async def _form(body: bytes, content_type: str, limits: Limits) -> dict[str, Any]:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]

    class Parser(MultiPartParser):
        spool_max_size = limits.body  # in memory, which is counted already

    charset = _check_form(body, content_type)
    fields = limits.captions + limits.references + 1
    # As Latin-1 every byte comes through, and is decoded here: the parser takes whatever is not of
    # the charset for Latin-1, and so makes other letters of it.
    parser = Parser(
        Headers({"content-type": f"{content_type}; charset=latin-1"}), chunks(), max_files=1,
        max_fields=fields, max_part_size=8 * limits.characters,
    )  # fmt: skip
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:
        raise _bad(f"the form cannot be read: {error}") from None
    try:
        _check_fields(dict(form))
        asked: dict[str, Any] = {name: _decoded(form.getlist(name), charset) for name in FIELDS}
        for name in ("method", "image"):
            if len(values := asked[name]) > 1:
                raise _bad(f"{name} is in the form twice")
            asked[name] = values[0] if values else None
        if isinstance(file := asked["image"], UploadFile):
            asked["image"] = await file.read()
        return asked
    except UnicodeDecodeError as error:
        raise _bad(f"the form has text that is not {charset}: {error.reason}") from None
    finally:
        await form.close()


def _decoded(values: Sequence[str | UploadFile], charset: str) -> list[str | UploadFile]:
    return [v.encode("latin-1").decode(charset) if isinstance(v, str) else v for v in values]


def _check_form(body: bytes, content_type: str) -> str:
    """Return a form's charset; raise where it is not for text (Python has some), or is cut off.

    The parser takes half a form for a whole one with fewer captions.
    """
    options = parse_options_header(content_type)[1]
    boundary = options.get(b"boundary", b"")
    delimiter = b"\r\n--" + boundary
    begins = body.startswith(delimiter[2:]) or delimiter in body
    ends = body.startswith(delimiter[2:] + b"--") or delimiter + b"--" in body
    if boundary and begins and not ends:  # without one, or with another, the parser refuses it
        raise HttpError(400, "bad_request", "the form is cut off: its closing boundary is missing")
    name = options.get(b"charset", b"utf-8").decode("latin-1")
    try:
        charset = codecs.lookup(name).name
    except (LookupError, ValueError):  # ValueError: a zero byte in it
        charset = ""
    if charset not in ("utf-8", "ascii", "iso8859-1"):
        raise _bad(f"the form's charset {name[:40]!r} is not accepted; send UTF-8")
    return charset


def _check_fields(asked: dict[str, Any]) -> None:
    for name in asked:
        if name not in FIELDS:
            raise _bad(f"unknown field {name[:80]!r}; known: {', '.join(FIELDS)}")


def _texts(value: Any, name: str, count: int, characters: int) -> tuple[str, ...]:
    texts: Sequence[Any] = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list):
        raise _bad(f"{name} must be a text or a list of texts")
    if len(texts) > count:
        raise _bad(f"{len(texts)} {name} are over the limit of {count}; send several requests")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise _bad(f"{name}[{number}] is not text")
        if len(text) > characters:
            raise _bad(f"{name}[{number}] has over {characters} characters")
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            raise _bad(f"{name}[{number}] holds half a character (a lone surrogate)")
    return tuple(texts)


def _image(value: Any) -> bytes | str:
    """Return the bytes of an image, or its URL."""
    if value is None:
        raise _bad("image is missing: a data URL in JSON, or a file in a form")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _bad("image must be text in JSON, or a file in a form")
    head = _DATA_URL.match(value[:200])
    if head:
        try:
            return base64.b64decode(value[head.end() :].encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise HttpError(422, "bad_image", "the data URL does not hold base64") from None
    if not re.match(r"https?://", value, re.IGNORECASE):
        raise _bad("image must be a data URL with base64 (data:image/png;base64,...) or a URL")
    return value


def _bad(message: str) -> HttpError:
    return HttpError(422, "bad_request", message)
