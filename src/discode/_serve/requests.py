"""Read a score request: JSON with a data URL or URL, or a form with a file."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from discode._files import parse_json
from discode._pairs import Pair
from discode._serve.fetching import fetch_image
from discode._serve.limits import HeldBytes, Limits
from discode._serve.schema import ScoreFields, score_models
from discode.decoders import Decoder, named_decoder
from discode.errors import HttpError, ImageError, InputError, count_of
from discode.explain._effects import pairs_to_explain
from discode.images import IMAGE_FORMATS, check_size, open_formats

_CHARSETS = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1")
_PLURALS = {"images": "image", "caption": "captions", "reference": "references"}
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_DATA_URL = re.compile(r"data:(image/[\w.+-]+)?(;[\w=.+-]+)*;base64,", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """One request: captions of an image, for the judge's or another decoder.

    ``pixels`` are those that the image declares. ``explains`` asks for their words, and
    ``one_of_many`` means that the request has other images: a broken image fails only its own rows.
    """

    image: bytes
    captions: Sequence[str]
    references: Sequence[str] = ()
    decoder: Decoder | None = None
    pixels: int = 0
    explains: bool = False
    one_of_many: bool = False

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs to read: the captions, with the variants of each if words are explained."""
        references = tuple(self.references)
        pairs = [Pair(self.image, caption, references) for caption in self.captions]
        return pairs_to_explain(pairs) if self.explains else pairs

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.image).digest()


class RequestReader:
    """Turns HTTP requests into score requests, or raises :class:`~discode.errors.HttpError`.

    Slow work on a long or hostile body runs in threads and does not block the event loop.

    Args:
        limits: What a request may hold.
        method: What the service's own method is called.
        allow_urls: Whether images are fetched by URL.
    """

    def __init__(self, limits: Limits, method: str, *, allow_urls: bool) -> None:
        self.limits = limits
        self.method = method
        self.allow_urls = allow_urls
        self.body, self.form = score_models(limits)
        # Limits on bodies parsed, and images fetched, at once.
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="parse")
        self.fetching = asyncio.Semaphore(8)

    async def receive(self, request: Request, held: HeldBytes) -> bytes | dict[str, Any]:
        """Return the body: JSON as it is, or the fields of a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return b"".join([chunk async for chunk in held.read(request)])
        if kind == "multipart/form-data":
            return await _read_form(request, held)
        raise HttpError(
            415, "wrong_type", f"send application/json or multipart/form-data, not {kind[:80]!r}"
        )

    async def parse(
        self, body: bytes | dict[str, Any], held: HeldBytes, *, explains: bool = False
    ) -> list[ScoreRequest]:
        """Return what a body asks for, by image; images fetched by URL are held, too."""
        run = asyncio.get_running_loop().run_in_executor
        # In one go where there is no URL: every change of thread waits for the interpreter's lock.
        images, finish = await run(self.threads, self._parse, body, explains)
        if isinstance(finish, list):
            return finish

        async def fetched(image: bytes | str) -> bytes:
            if isinstance(image, bytes):
                return image
            async with self.fetching:
                seconds = min(20.0, self.limits.seconds)
                content = await fetch_image(image, limit=self.limits.body, seconds=seconds)
            held.add(len(content))
            return content

        return await run(self.threads, finish, await asyncio.gather(*map(fetched, images)))

    def _parse(
        self, body: bytes | dict[str, Any], explains: bool
    ) -> tuple[list[bytes | str], Callable[[list[bytes]], list[ScoreRequest]] | list[ScoreRequest]]:
        """Return the images or their URLs, and the requests, or what makes them of the images."""
        try:
            if isinstance(body, bytes):
                fields = self.body.model_validate(_parse_json(body, self.limits))
            else:
                fields = self.form.model_validate(body)
        except ValidationError as error:
            raise _bad(_first_fault(error)) from None
        finish = partial(self._make, fields, self._decoder(fields.method), explains)
        if len(fields.image) not in (1, len(fields.captions)):
            raise _bad(
                f"image: {count_of(len(fields.image), 'image')} and "
                f"{count_of(len(fields.captions), 'caption')} do not pair up; send one image, or "
                "as many images as captions"
            )
        if len(fields.image) > 1 and fields.references:
            raise _bad("references cannot be combined with several images; send one image")
        images = [self._image(image) for image in fields.image]
        held = [image for image in images if isinstance(image, bytes)]
        return images, finish(held) if len(held) == len(images) else finish

    def _image(self, image: bytes | str) -> bytes | str:
        if isinstance(image, bytes):
            return image
        if re.match(r"https?://", image, re.IGNORECASE):
            if not self.allow_urls:
                raise HttpError(
                    422, "bad_url", "URLs are not fetched here; send the image (--allow-urls)"
                )
            return image
        head = _DATA_URL.match(image[:200])
        try:
            text = "".join(image[head.end() if head else 0 :].split())  # encoders may break lines
            return base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            if head:
                raise HttpError(422, "bad_image", "the data URL does not hold base64") from None
            raise _bad("image: send base64, as it is or in a data URL, or a URL") from None

    def _decoder(self, name: str | None) -> Decoder | None:
        # The service's own method may be a preset file; callers open none.
        if not name or name == self.method:
            return None
        try:
            decoder = named_decoder(name)
        except InputError as error:
            raise _bad(str(error)) from None
        if decoder.requires:  # a caller could ask for a million steps of Adam
            raise _bad("solver 'adam' is not served; use solver 'exact'")
        return decoder

    def _make(
        self, fields: ScoreFields, decoder: Decoder | None, explains: bool, images: list[bytes]
    ) -> list[ScoreRequest]:  # fmt: skip
        several = len(images) > 1
        requests = []
        for image, captions in zip(
            images, [[c] for c in fields.captions] if several else [fields.captions], strict=True
        ):
            try:
                pixels = check_image(image)
            except HttpError:
                if not several:
                    raise
                pixels = 0  # the judge reports the error in the row
            request = ScoreRequest(
                image, captions, fields.references, decoder, pixels, explains, several
            )
            _ = request.digest  # computed here, in a worker thread, and kept for the queue
            requests.append(request)
        readings = sum(len(request.pairs) for request in requests)
        if readings > self.limits.captions:
            raise _bad(
                f"captions: their words need {readings} readings, but at most "
                f"{self.limits.captions} are allowed; send fewer captions"
            )
        return requests


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
    ``[],[],`` before they could be counted.

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


def _parse_json(body: bytes, limits: Limits) -> Any:
    # Four times what is allowed: who sends a few too many captions is told so by name.
    check_json(body, depth=8, elements=4 * (limits.captions + limits.references + 4))
    try:
        # Text, not bytes: these might be UTF-16, which is not what was searched.
        return parse_json(body.decode("utf-8-sig"), "the body")
    except (UnicodeDecodeError, InputError) as error:
        raise _bad(f"send JSON in UTF-8: {error}") from None


class _FormParser(MultiPartParser):
    """Notes whether a form ends; it takes half a form for a whole one with fewer captions."""

    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _read_form(request: Request, held: HeldBytes) -> dict[str, Any]:
    limits = held.limiter.limits
    content_type = request.headers["content-type"]
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in _CHARSETS:
        raise _bad(f"the form's charset {charset[:40]!r} is not accepted; send UTF-8")

    async def chunks() -> AsyncGenerator[bytes, None]:
        async for chunk in held.read(request):
            yield chunk
        if not parser.ended:
            raise HttpError(400, "bad_request", "the form is cut off: it has no last boundary")

    # As Latin-1 every byte comes through, and is decoded here: the parser takes what is not in
    # the charset for Latin-1, and so makes other letters of it.
    parser = _FormParser(
        Headers({"content-type": f"{content_type}; charset=latin-1"}),
        chunks(),
        max_files=limits.captions,
        max_fields=limits.captions + limits.references + 1,
        max_part_size=8 * limits.characters,
    )
    parser.spool_max_size = limits.body  # in memory, which is counted already
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:
        raise _bad(f"the form cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            content = (
                value.encode("latin-1").decode(charset)
                if isinstance(value, str)
                else await value.read()
            )
            name = _PLURALS.get(name, name)
            if name in ("image", "captions", "references"):
                fields.setdefault(name, []).append(content)
            elif name in fields:
                raise _bad(f"the field {name[:80]!r} occurs twice")
            else:
                fields[name] = content
        return fields
    except UnicodeDecodeError as error:
        raise _bad(f"the form has text that is not {charset}: {error.reason}") from None
    finally:
        await form.close()


def _first_fault(error: ValidationError) -> str:
    """Return the first thing that is wrong with a request, and with which field.

    >>> try:
    ...     score_models(Limits())[0].model_validate({"image": "", "captions": ["a", 7]})
    ... except ValidationError as error:
    ...     _first_fault(error)
    'captions[1]: Input should be a valid string'
    """
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name, *place = fault["loc"] or ("the body",)
    where = str(name)[:80] + "".join(f"[{number}]" for number in place)
    return " ".join(f"{where}: {fault['msg']}".split())


def _bad(message: str) -> HttpError:
    return HttpError(422, "bad_request", message)
