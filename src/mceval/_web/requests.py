"""Requests with their form and person, the reading of forms, and common responses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from discode.errors import HttpError, InputError, lookup
from mceval._shown import ShownImage
from mceval._tables import Person
from mceval._web.auth import Visitor
from mceval.queue import Choice, Look, Revision

BODY = 64 << 10
"""Maximum bytes of a form; a revised caption has at most 4000 characters."""
SECONDS = 20.0
"""Maximum time for a form to arrive."""


@dataclass(frozen=True)
class PageRequest:
    """A request for a handler, with its form and person."""

    request: Request
    now: float
    form: dict[str, str]
    known_visitor: Visitor | None

    @property
    def visitor(self) -> Visitor:
        """The person and their browser; 401 if no one has joined with it."""
        if self.known_visitor is None:
            raise HttpError(401, "unknown", "please open your invitation link again")
        return self.known_visitor

    @property
    def person(self) -> Person:
        return self.visitor.person

    @property
    def number(self) -> int:
        text = str(self.request.path_params["number"])
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise HttpError(404, "no_number", "this page does not exist")
        return int(text)


def redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


def image_response(image: ShownImage) -> Response:
    headers = {"cache-control": "private, max-age=900", "content-disposition": "inline"}
    return Response(image.data, media_type=image.media_type, headers=headers)


async def read_form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HttpError(415, "no_form", "the request must be a form")
    try:
        body = await asyncio.wait_for(_receive(request), SECONDS)
    except asyncio.TimeoutError:
        raise HttpError(408, "slow", f"the form took more than {SECONDS:g} s to arrive") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"
        )
    except ValueError as error:  # invalid UTF-8, or too many fields
        raise HttpError(400, "no_form", "the form cannot be read") from error
    return dict(pairs)


async def _receive(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY:
            raise HttpError(413, "too_large", f"the form exceeds {BODY} bytes")
    return bytes(body)


def check_ticked(form: dict[str, str], name: str = "sure") -> None:
    if form.get(name) != "yes":
        raise InputError("please tick the box to confirm")


def reply_of(form: dict[str, str]) -> Choice | Revision | Look:
    if sum(name in form for name in ("side", "look", "text")) != 1:
        raise InputError("an answer must be a side, a second look or a text")
    if "side" in form:
        return Choice({"left": 0, "right": 1}.get(form["side"], -1))
    if "look" in form:
        return Look(lookup({"accept": True, "reject": False}, form["look"], "answer"))
    return Revision(form["text"], unchanged=form.get("unchanged") == "yes")


def reason_of(form: dict[str, str]) -> str:
    """Join the chosen reason with the text that was added to it.

    >>> reason_of({"reason": "Other", "more": "too dark"})
    'Other: too dark'
    """
    chosen, more = form.get("reason", ""), form.get("more", "")
    return f"{chosen}: {more}" if chosen and more.strip() else chosen or more
