"""Read the forms of the pages."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from fastapi import Request

from discode.errors import HttpError, InputError, lookup
from mceval.queue import Choice, Look, Revision

BODY = 64 << 10
"""Maximum bytes of a form; a revised caption has at most 4000 characters."""
SECONDS = 20.0
"""Maximum time for a form to arrive."""


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
