"""The annotation application: what is asked, by whom, and what is answered.

Every request passes the same four doors: whose browser it is, whether the form was ours, whether
the role may, whether consent was given. Handlers behind them are plain functions in threads, since
the database waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from discode.errors import DiscodeError, HttpError, InputError, NotAllowedError, StoreError
from discode.http.guard import Guard
from discode.http.limits import HEADERS
from discode.mceval import people, queue
from discode.mceval.database import Database, Settings, settings_of
from discode.mceval.tables import Person
from discode.mceval.texts import LONGEST
from discode.mceval.web.admin import Admin
from discode.mceval.web.auth import (
    SESSION_SECONDS,
    Throttle,
    Visitor,
    begin,
    end,
    find_visitor,
    make_table,
)  # fmt: skip
from discode.mceval.web.forms import read_form, reason_of
from discode.mceval.web.images import Gallery, Picture
from discode.mceval.web.rendering import Pages, kept, static_files
from discode.mceval.web.standing import campaign_share, more_later, standing_of
from discode.version import __version__

OWN_HEADERS = HEADERS | {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    # With "no-referrer" browsers would send our own forms as if from nowhere.
    "referrer-policy": "same-origin",
}
HEADINGS: dict[str | int, str] = {
    "ended": "Thank you for your time",
    "unknown": "Who are you?",
    404: "Nothing here",
    409: "That did not count",
    429: "One moment",
    500: "Sorry",
    503: "Sorry",
}
"""Over the reason why there is no other page, by its code or status."""
SHARE_SECONDS = 3.0
"""How old the campaign's progress on a page may be."""
_log = logging.getLogger("discode.web")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the application is run.

    Attributes:
        images: Where the pictures are now, if they were moved.
        hosts: Names the server answers to, or None for any.
        secure: Whether people come by https: cookies are then for https only.
        trust_proxy: Take a visitor's address from X-Forwarded-For, which a proxy of yours sets.
        pause_every: After so many answers a break is suggested.
        clock: What time it is.
    """

    images: Path | None = None
    hosts: tuple[str, ...] | None = None
    secure: bool = False
    trust_proxy: bool = False
    pause_every: int = 40
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Ask:
    """A request behind the doors."""

    request: Request
    now: float
    form: dict[str, str] = field(default_factory=dict)
    visitor: Visitor | None = None

    @property
    def known(self) -> Visitor:
        """The visitor, where the route wants one."""
        assert self.visitor is not None
        return self.visitor

    @property
    def person(self) -> Person:
        """Who asks."""
        return self.known.person


Handler = Callable[[Ask], Response]
NOBODY, PERSON, WORKER, ADMIN = "nobody", "person", "worker", "admin"


def make_app(db: Database, options: Options | None = None) -> FastAPI:
    """Return the application around a campaign, as an ASGI application."""
    return _Annotate(db, options or Options()).app()


class _Annotate:
    def __init__(self, db: Database, options: Options) -> None:
        self.db = db
        self.options = options
        self.throttle = Throttle()
        self.gallery = Gallery(db, options.images)
        self.files = static_files()
        self.pages = Pages(self.files)
        self.cookie = "__Host-discode" if options.secure else "discode"
        make_table(db)
        with db.read() as session:
            self.settings: Settings = settings_of(session)
        self.admin = Admin(db, self.pages)
        self._share: tuple[float, tuple[int, int]] = (float("-inf"), (0, 0))

    def app(self) -> FastAPI:
        app = FastAPI(
            title="discode annotate", version=__version__, openapi_url=None, docs_url=None,
            redoc_url=None, redirect_slashes=False, lifespan=self.lifespan,
        )  # fmt: skip
        for method, path, needs, handler in (
            ("GET", "/", NOBODY, self.home),
            ("GET", "/join/{token}", NOBODY, self.door),
            ("POST", "/join", NOBODY, self.join),
            ("POST", "/leave", PERSON, self.leave),
            ("GET", "/guide", PERSON, self.guide),
            ("POST", "/consent", PERSON, self.consent),
            ("GET", "/task", WORKER, self.task),
            ("POST", "/task", WORKER, self.answer),
            ("POST", "/undo", WORKER, self.undo),
            ("POST", "/skip", WORKER, self.skip),
            ("POST", "/flag", WORKER, self.flag),
            ("POST", "/beat", WORKER, self.beat),
            ("GET", "/pause", WORKER, self.pause),
            ("GET", "/image/{lease}", WORKER, self.image),
            ("GET", "/admin", ADMIN, self.overview),
            ("GET", "/admin/person/{number}", ADMIN, self.look_at),
            ("POST", "/admin/person/{number}", ADMIN, self.decide),
            ("GET", "/admin/image/{number}", ADMIN, self.any_image),
        ):
            app.add_api_route(path, self.doors(needs, handler), methods=[method])
        app.add_api_route("/static/{name}", self.file, methods=["GET"])
        app.add_api_route("/healthz", self.health, methods=["GET"])
        app.add_exception_handler(HTTPException, self.no_such_page)
        app.add_middleware(
            Guard, hosts=self.options.hosts, headers=OWN_HEADERS, refusal=self.refusal
        )
        return app

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        self.db.close()

    # The doors

    def doors(self, needs: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that lets a request through to its handler, or says why not."""

        async def endpoint(request: Request) -> Response:
            try:
                form = await read_form(request) if request.method == "POST" else {}
                return await run_in_threadpool(self.enter, request, form, needs, handler)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return await self.refusal(request, error)

        return endpoint

    def enter(
        self, request: Request, form: dict[str, str], needs: str, handler: Handler
    ) -> Response:
        now = self.options.clock()
        visitor = find_visitor(self.db, request.cookies.get(self.cookie), now)
        ask = Ask(request, now, form, visitor)
        if needs == NOBODY:
            return handler(ask)
        if visitor is None:
            raise HttpError(401, "unknown", "please open your invitation link again")
        if request.method == "POST":
            visitor.check_form(form.get("form_token", ""))
        if needs == ADMIN and visitor.person.role != "admin":
            raise HttpError(403, "not_admin", "this page is for the organisers")
        if needs == WORKER:
            if visitor.person.role == "admin":
                return _to("/admin")
            if visitor.person.state != "active":
                why = "your part in this campaign has ended; its organisers can tell you more"
                raise HttpError(403, "ended", why)
            if visitor.person.consented is None:
                return _to("/guide")
        return handler(ask)

    async def refusal(self, request: Request, error: Exception) -> Response:
        """Say in a page why there is no other."""
        headers: dict[str, str] = {}
        if isinstance(error, HttpError):
            status, headers = error.status, error.headers
        elif isinstance(error, NotAllowedError):
            status = 409
        elif isinstance(error, InputError):
            status = 400
        elif isinstance(error, StoreError):
            status, headers = 503, {"retry-after": "2"}
            _log.error("the database failed: %s", error)
        else:
            status = 500
            _log.error("a page failed", exc_info=error)
        known = isinstance(error, DiscodeError) and status != 503
        why = str(error) if known else "something went wrong here; please try again in a minute"
        code = error.code if isinstance(error, HttpError) else ""
        heading = HEADINGS.get(code) or HEADINGS.get(status) or "This is not possible"
        return self.pages.show(
            "message.html", status, headers, campaign=self.settings.name, why=why, heading=heading
        )

    async def no_such_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        why = "there is no such page" if error.status_code == 404 else str(error.detail)
        return await self.refusal(request, HttpError(error.status_code, "http", why))

    # Coming and going

    def home(self, ask: Ask) -> Response:
        if ask.visitor is None:
            return self.pages.show("home.html", campaign=self.settings.name)
        return _to("/admin" if ask.person.role == "admin" else "/task")

    def door(self, ask: Ask) -> Response:
        """Greet somebody with an invitation.

        The cookie is set by the form of this page and not here: a strict cookie does not travel
        along when a link in a mail is followed, and programs that look at links join nobody.
        """
        token = str(ask.request.path_params["token"])
        person = self.invited(ask, token)
        return self.pages.show("join.html", campaign=self.settings.name, person=person, token=token)

    def join(self, ask: Ask) -> Response:
        person = self.invited(ask, ask.form.get("token", ""))
        response = _to("/")
        response.set_cookie(
            self.cookie, begin(self.db, person.id, ask.now), max_age=int(SESSION_SECONDS),
            httponly=True, samesite="strict", secure=self.options.secure, path="/",
        )  # fmt: skip
        return response

    def invited(self, ask: Ask, token: str) -> Person:
        place = self.place(ask.request)
        self.throttle.check(place, ask.now)
        person = people.find(self.db, token)
        if person is None:
            self.throttle.failed(place, ask.now)
            raise HttpError(404, "no_invitation", "this invitation is unknown; is the link whole?")
        return person

    def place(self, request: Request) -> str:
        """Return where a request comes from; of IPv6 the network, for its holder has them all."""
        address = request.client.host if request.client else ""
        if self.options.trust_proxy:
            address = request.headers.get("x-forwarded-for", address).split(",")[-1].strip()
        return ":".join(address.split(":")[:4]) if ":" in address else address

    def leave(self, ask: Ask) -> Response:
        end(self.db, ask.known.key)
        response = _to("/")
        response.delete_cookie(self.cookie, path="/", secure=self.options.secure, httponly=True)
        return response

    def guide(self, ask: Ask) -> Response:
        return self.page("guide.html", ask, settings=self.settings)

    def consent(self, ask: Ask) -> Response:
        if ask.form.get("agreed") != "yes":
            raise InputError("please tick the box if you agree; without it there is no task")
        people.consent(self.db, ask.person.id, ask.now)
        return _to("/")

    # Working

    def task(self, ask: Ask) -> Response:
        task = queue.next_task(self.db, ask.person.id, ask.now)
        if task is None:
            with self.db.read() as session:
                later = more_later(session, ask.person)
            return self.page("wait.html" if later else "done.html", ask)
        submission = ask.known.new_submission(task.lease)
        page = "revise.html" if task.kind == "revise" else "compare.html"
        return self.page(page, ask, task=task, submission=submission, longest=LONGEST)

    def answer(self, ask: Ask) -> Response:
        lease, submission = ask.form.get("lease", ""), ask.form.get("submission", "")
        ask.known.check_submission(lease, submission)
        side = ask.form.get("side")
        queue.submit(
            self.db, ask.person.id, lease, submission, ask.now,
            side={"left": 0, "right": 1}.get(side, -1) if side is not None else None,
            text=ask.form.get("text"),
        )  # fmt: skip
        with self.db.read() as session:
            count = standing_of(session, ask.person.id).answers
        return _to("/pause" if count and count % self.options.pause_every == 0 else "/task")

    def undo(self, ask: Ask) -> Response:
        queue.undo(self.db, ask.person.id, ask.now)
        return _to("/task")

    def skip(self, ask: Ask) -> Response:
        queue.skip(self.db, ask.person.id, ask.form.get("lease", ""), reason_of(ask.form), ask.now)
        return _to("/task")

    def flag(self, ask: Ask) -> Response:
        queue.flag(self.db, ask.person.id, ask.form.get("lease", ""), reason_of(ask.form), ask.now)
        return _to("/task")

    def beat(self, ask: Ask) -> Response:
        """Hold a task longer, for somebody who is still looking at it."""
        queue.heartbeat(self.db, ask.person.id, ask.form.get("lease", ""), ask.now)
        return Response(status_code=204)

    def pause(self, ask: Ask) -> Response:
        return self.page("pause.html", ask)

    def image(self, ask: Ask) -> Response:
        return _picture(self.gallery.held(ask.person.id, str(ask.request.path_params["lease"])))

    # Organising

    def overview(self, ask: Ask) -> Response:
        return self.admin.overview(ask.known, ask.now)

    def look_at(self, ask: Ask) -> Response:
        return self.admin.look_at(ask.known, _number(ask))

    def decide(self, ask: Ask) -> Response:
        self.admin.decide(ask.person, _number(ask), ask.form, ask.now)
        return _to(f"/admin/person/{_number(ask)}")

    def any_image(self, ask: Ask) -> Response:
        return _picture(self.gallery.numbered(_number(ask)))

    # Files and pages

    async def file(self, request: Request) -> Response:
        """Answer with a file by its whole path: there is nothing to climb out of."""
        found = self.files.get(request.url.path)
        if found is None:
            raise HTTPException(404)
        return kept(found)

    async def health(self) -> Response:
        return Response('{"status": "ok"}', media_type="application/json")

    def page(self, name: str, ask: Ask, **values: Any) -> Response:
        """Return a page with what all pages of a person who works show."""
        with self.db.read() as session:
            standing = standing_of(session, ask.person.id)
            if ask.now - self._share[0] > SHARE_SECONDS:
                self._share = (ask.now, campaign_share(session))
        undoable = standing.last is not None and ask.now - standing.last < queue.UNDO_SECONDS
        return self.pages.show(
            name, campaign=self.settings.name, person=ask.person, standing=standing,
            undoable=undoable, share=self._share[1], form_token=ask.known.form_token, **values,
        )  # fmt: skip


def _number(ask: Ask) -> int:
    text = str(ask.request.path_params["number"])
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise HttpError(404, "no_number", "there is no such page")
    return int(text)


def _to(place: str) -> RedirectResponse:
    return RedirectResponse(place, 303)


def _picture(found: Picture) -> Response:
    headers = {"cache-control": "private, max-age=900", "content-disposition": "inline"}
    return Response(found.data, media_type=found.kind, headers=headers)
