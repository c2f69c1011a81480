"""Parse the body of a score request: JSON with a data URL or URL, or a form with a file."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from discode.decoders import Decoder, named_decoder
from discode.errors import HttpError, ImageError, InputError
from discode.images import IMAGE_FORMATS, check_size, open_formats
from discode.serve.batching import ScoreRequest
from discode.serve.limits import HeldBytes, Limits, parse_content_length, too_large

FetchImage = Callable[[str], Awaitable[bytes]]
FIELDS = ("image", "captions", "references", "method")
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


async def parse_request(
    body: bytes,
    content_type: str,
    *,
    limits: Limits,
    method: str,
    default: Decoder,
    fetch: FetchImage | None,
    held: HeldBytes,
) -> ScoreRequest:
    """Return what a body asks for, or raise :class:`~discode.errors.HttpError`.

    Args:
        body: JSON or multipart/form-data, as ``content_type`` says.
        content_type: The header, with the boundary of a form.
        limits: What it may hold.
        method: What the service's own method is called.
        default: Its decoder, if the request names that or none.
        fetch: Fetches an image by URL; None where that is not allowed.
        held: Where the bytes of a fetched image are counted.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        asked = await run_in_threadpool(_json, body)
    elif kind == "multipart/form-data":
        asked = await _form(body, content_type, limits)
    else:
        raise HttpError(
            415, "wrong_type", "send application/json or multipart/form-data, "
            f"not {kind[:80]!r}",
        )  # fmt: skip
    image = asked.get("image")
    captions = _texts(asked.get("captions"), "captions", limits.captions, limits.characters)
    if not captions:
        raise _bad("captions: give at least one")
    references = _texts(asked.get("references"), "references", limits.references, limits.characters)
    name = asked.get("method")
    if name is not None and not isinstance(name, str):
        raise _bad("method must be text, such as discode or discode:sigma2=0.05")
    try:
        # The service's own method may be a preset file; callers open none.
        decoder = default if name in (None, "", method) else named_decoder(name)
    except InputError as error:
        raise _bad(str(error)) from None
    if decoder.requires:  # a caller could ask for a million steps of Adam
        raise _bad("solver 'adam' is not served; use solver 'exact'")
    if isinstance(image, str):
        image = await _load_image(image, fetch, held)
    if image is None:
        raise _bad("image is missing: a data URL in JSON, or a file in a form")
    if not isinstance(image, bytes):
        raise _bad("image must be text in JSON, or a file in a form")
    request = ScoreRequest(image, captions, references, decoder)
    await run_in_threadpool(check_image, request)
    return request


def check_image(request: ScoreRequest) -> None:
    """Raise unless the bytes begin like an image that can be decoded within limits."""
    image = request.image
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about decompression bombs, and about odd tags
            with open_formats(image) as opened:
                check_size(opened)
    except ImageError as error:
        raise HttpError(422, "bad_image", str(error)) from None
    # Pillow raises a different error for every way in which a file can be broken.
    except Exception:
        what = "is empty" if not image else "cannot be opened, or is far too large"
        names = ", ".join(IMAGE_FORMATS)
        raise HttpError(422, "bad_image", f"the image {what}; allowed: {names}") from None
    _ = request.digest  # computed here, in a worker thread, and kept for the queue


def _json(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise _bad("the body is not JSON") from None
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

    _check_form(body, content_type)
    fields = limits.captions + limits.references + 1
    parser = Parser(
        Headers({"content-type": content_type}), chunks(), max_files=1, max_fields=fields,
        max_part_size=8 * limits.characters,
    )  # fmt: skip
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:
        raise _bad(f"the form cannot be read: {error}") from None
    try:
        _check_fields(dict(form))
        asked: dict[str, Any] = {
            "captions": form.getlist("captions"), "references": form.getlist("references")
        }  # fmt: skip
        for name in ("method", "image"):
            if len(values := form.getlist(name)) > 1:
                raise _bad(f"{name} is in the form twice")
            asked[name] = values[0] if values else None
        if isinstance(file := asked["image"], UploadFile):
            asked["image"] = await file.read()
        return asked
    finally:
        await form.close()


def _check_form(body: bytes, content_type: str) -> None:
    """Raise where a form is cut off, or names a charset that is not for text (Python has some).

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
        known = codecs.lookup(name).name in ("utf-8", "ascii", "iso8859-1")
    except (LookupError, ValueError):  # ValueError: a zero byte in it
        known = False
    if not known:
        raise _bad(f"the form's charset {name[:40]!r} is not accepted; send UTF-8")


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


async def _load_image(text: str, fetch: FetchImage | None, held: HeldBytes) -> bytes:
    head = _DATA_URL.match(text[:200])
    if head:
        try:
            return await run_in_threadpool(
                base64.b64decode, text[head.end() :].encode("ascii"), validate=True
            )
        except (binascii.Error, UnicodeEncodeError):
            raise HttpError(422, "bad_image", "the data URL does not hold base64") from None
    if not re.match(r"https?://", text, re.IGNORECASE):
        raise _bad("image must be a data URL with base64 (data:image/png;base64,...) or a URL")
    if fetch is None:
        raise HttpError(422, "bad_url", "URLs are not fetched here; send the image (--allow-urls)")
    image = await fetch(text)
    held.add(len(image))
    return image


def _bad(message: str) -> HttpError:
    return HttpError(422, "bad_request", message)
