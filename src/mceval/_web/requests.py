"""The request with its form and person, and common responses."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from discode.errors import HttpError
from mceval._shown import ShownImage
from mceval._tables import Person
from mceval._web.auth import Visitor


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
