"""The annotation application: its routes, their access rules, and their pages.

Every request passes the same checks: a known browser, a form from our pages, a role with access,
and consent. Handlers are plain functions that run in threads, since the database blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from discode import __version__
from discode._http.guard import SECURITY_HEADERS, Guard
from discode.errors import DiscodeError, HttpError, InputError, NotAllowedError, StoreError
from mceval import people, queue
from mceval._tables import Image, Person
from mceval._texts import LONGEST
from mceval._web.admin import AdminPages
from mceval._web.auth import (
    SESSION_SECONDS,
    GuessLimiter,
    begin_session,
    end_session,
    find_visitor,
    network_of,
)  # fmt: skip
from mceval._web.images import CampaignImages
from mceval._web.progress import campaign_progress, open_to, person_progress, why_wait
from mceval._web.rendering import Pages, annotation_files
from mceval._web.requests import (
    PageRequest,
    check_ticked,
    image_response,
    read_form,
    reason_of,
    redirect,
    reply_of,
)
from mceval.database import CampaignSettings, Database, settings_of
from mceval.queue._answers import UNDO_SECONDS
from mceval.queue._leases import IDLE_SECONDS

HEADERS = SECURITY_HEADERS | {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    # "no-referrer" would make browsers send our own forms with the origin "null". The origin alone
    # never reveals an invitation's token.
    "referrer-policy": "strict-origin",
}
HEADINGS: dict[str | int, str] = {
    "unknown": "Who are you?",
    404: "Nothing here",
    409: "That did not count",
    429: "One moment",
    500: "Sorry",
    503: "Sorry",
}
"""The heading of an error page, by the error's code or status."""
PROGRESS_SECONDS = 3.0
"""Maximum age of the campaign's progress on a page."""
_log = logging.getLogger("discode.web")


@dataclass(frozen=True, kw_only=True)
class AnnotationOptions:
    """Options of the application."""

    images: Path | None = None
    """The current folder of the images, if they were moved."""
    hosts: tuple[str, ...] | None = None
    """The host names that the server accepts, or None for any."""
    origin: str | None = None
    """The public origin ("https://NAME"), if there is a proxy."""
    secure: bool = False
    trust_proxy: bool = False
    """Take client addresses from X-Forwarded-For, which your proxy sets."""
    pause_every: int = 40
    clock: Callable[[], float] = time.time


Handler = Callable[[PageRequest], Response]
ANYBODY, PERSON, WORKER, ADMIN = "anybody", "person", "worker", "admin"
"""The access rules of routes."""


def make_annotation_app(db: Database, options: AnnotationOptions) -> FastAPI:
    return _AnnotationApp(db, options).app()


class _AnnotationApp:
    def __init__(self, db: Database, options: AnnotationOptions) -> None:
        self.db = db
        self.options = options
        self.guesses = GuessLimiter()
        self.images = CampaignImages(db, options.images)
        self.files = annotation_files()
        self.cookie = "__Host-discode" if options.secure else "discode"
        with db.read() as session:
            self.settings: CampaignSettings = settings_of(session)
        self.pages = Pages(self.files, self.settings.name)
        self.admin = AdminPages(db, self.settings, self.pages, self.images, options.origin)
        self._progress: tuple[float, tuple[int, int]] = (float("-inf"), (0, 0))

    def app(self) -> FastAPI:
        admin = self.admin
        app = FastAPI(
            title="discode annotate", version=__version__, openapi_url=None, docs_url=None,
            redoc_url=None, redirect_slashes=False,
        )  # fmt: skip
        for method, path, allowed, handler in (
            ("GET", "/", ANYBODY, self.home),
            ("GET", "/join/{token}", ANYBODY, self.invitation),
            ("POST", "/join", ANYBODY, self.join),
            ("POST", "/leave", PERSON, self.leave),
            ("GET", "/guide", PERSON, self.guide),
            ("POST", "/consent", PERSON, self.consent),
            ("GET", "/task", WORKER, self.task),
            ("POST", "/task", WORKER, self.answer),
            ("POST", "/undo", WORKER, self.undo),
            ("POST", "/skip", WORKER, partial(self.pass_on, queue.skip)),
            ("POST", "/flag", WORKER, partial(self.pass_on, queue.flag)),
            ("POST", "/beat", WORKER, self.heartbeat),
            ("GET", "/pause", WORKER, self.pause),
            ("POST", "/withdraw", WORKER, self.withdraw),
            ("GET", "/image/{lease}", WORKER, self.image),
            ("GET", "/admin", ADMIN, admin.overview),
            ("GET", "/admin/person/{number}", ADMIN, admin.person),
            ("POST", "/admin/person/{number}", ADMIN, admin.act_on_person),
            ("POST", "/admin/person/{number}/invitation", ADMIN, admin.new_invitation),
            ("GET", "/admin/invitations", ADMIN, admin.invitations),
            ("POST", "/admin/invitations", ADMIN, admin.invite),
            ("GET", "/admin/export", ADMIN, admin.export),
            ("GET", "/admin/image/{number}", ADMIN, admin.image),
            ("POST", "/admin/image/{number}", ADMIN, admin.act_on_image),
        ):
            app.add_api_route(path, self.checked(allowed, handler), methods=[method])
        app.add_api_route("/static/{name}", self.file, methods=["GET"])
        app.add_api_route("/healthz", self.health, methods=["GET"])
        app.add_exception_handler(HTTPException, self.error_page)
        app.add_middleware(
            Guard, hosts=self.options.hosts, headers=HEADERS, on_error=self.error_page,
            origin=self.options.origin,
        )  # fmt: skip
        return app

    # Checks and errors

    def checked(self, allowed: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Make the endpoint that calls a handler after the checks, or shows an error page."""

        async def endpoint(request: Request) -> Response:
            form: dict[str, str] = {}
            try:
                if request.method == "POST":
                    form = await read_form(request)
                return await run_in_threadpool(self.handle, request, form, allowed, handler)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return await self.error_page(request, error, form.get("text", ""))

        return endpoint

    def handle(
        self, request: Request, form: dict[str, str], allowed: str, handler: Handler
    ) -> Response:
        now = self.options.clock()
        known = find_visitor(self.db, request.cookies.get(self.cookie), now)
        asked = PageRequest(request, now, form, known)
        if allowed == ANYBODY:
            return handler(asked)
        visitor = asked.visitor
        if request.method == "POST":
            visitor.check_form(form.get("form_token", ""))
        person = visitor.person
        if allowed == ADMIN and person.role != "admin":
            raise HttpError(403, "not_admin", "only organisers can open this page")
        if allowed == WORKER and person.role == "admin":
            return redirect("/admin")
        if allowed != PERSON and person.state != "active":
            return self.ended(asked)
        if allowed == WORKER and person.consented is None:
            return redirect("/guide")
        return handler(asked)

    async def error_page(self, request: Request, error: Exception, written: str = "") -> Response:
        """Show the error, with the caption that the person had written."""
        headers: dict[str, str] = {}
        code, why = "", str(error)
        if isinstance(error, HttpError):
            status, headers, code = error.status, error.headers, error.code
        elif isinstance(error, HTTPException):  # from starlette: unknown path or method
            status = error.status_code
            why = "this page does not exist" if status == 404 else str(error.detail)
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
        if status == 503 or not isinstance(error, DiscodeError | HTTPException):
            why = "something went wrong on the server; please try again in a minute"
        heading = HEADINGS.get(code) or HEADINGS.get(status) or "This is not possible"
        return self.pages.show(
            "message.html", status, headers, why=why, heading=heading, written=written
        )

    # Coming and going

    def home(self, asked: PageRequest) -> Response:
        if asked.known_visitor is None:
            return self.pages.show("home.html")
        if asked.person.state != "active":
            return self.ended(asked)
        return redirect("/admin" if asked.person.role == "admin" else "/task")

    def invitation(self, asked: PageRequest) -> Response:
        """Welcome a person with an invitation.

        The form of this page sets the cookie: a strict cookie is not sent when a link in a mail is
        followed, and programs that open links must not join.
        """
        token = str(asked.request.path_params["token"])
        person = self.invited(asked, token)
        return self.pages.show("join.html", person=person, token=token)

    def join(self, asked: PageRequest) -> Response:
        person = self.invited(asked, asked.form.get("token", ""))
        response = redirect("/")
        response.set_cookie(
            self.cookie, begin_session(self.db, person.id, asked.now), max_age=int(SESSION_SECONDS),
            httponly=True, samesite="strict", secure=self.options.secure, path="/",
        )  # fmt: skip
        return response

    def invited(self, asked: PageRequest, token: str) -> Person:
        address = self.address(asked.request)
        person = people.person_by_token(self.db, token, asked.now)
        if person is None:  # a valid link works despite failed guesses from this address
            self.guesses.check(address, asked.now)
            self.guesses.failed(address, asked.now)
            why = (
                "this invitation is unknown or has expired; check that the link is complete, or "
                "ask the organisers for a new one"
            )
            raise HttpError(404, "no_invitation", why)
        return person

    def address(self, request: Request) -> str:
        """Client address of a request; for IPv6 the network, which has one holder."""
        address = request.client.host if request.client else ""
        if self.options.trust_proxy:
            address = request.headers.get("x-forwarded-for", address).split(",")[-1].strip()
        return network_of(address)

    def leave(self, asked: PageRequest) -> Response:
        end_session(self.db, asked.visitor.key)
        if asked.form.get("invitation") == "end":
            people.use_up_invitation(self.db, asked.person.id, asked.now)
        response = redirect("/")
        response.delete_cookie(self.cookie, path="/", secure=self.options.secure, httponly=True)
        return response

    def guide(self, asked: PageRequest) -> Response:
        with self.db.read() as session:
            gold = self.settings.checks.gold_rate > 0 and session.scalar(
                select(Image.id).where(Image.state == "gold").limit(1)
            )
        return self.page(
            "guide.html", asked, settings=self.settings, gold=gold,
            idle_minutes=round(IDLE_SECONDS / 60),
        )  # fmt: skip

    def consent(self, asked: PageRequest) -> Response:
        check_ticked(asked.form, "agreed")
        people.record_consent(self.db, asked.person.id, asked.now)
        return redirect("/")

    # Working

    def task(self, asked: PageRequest, refused: str = "") -> Response:
        """Show a person's task; ``refused`` is the reason why their answer was not accepted."""
        task = queue.next_task(self.db, asked.person.id, asked.now)
        if task is None:
            with self.db.read() as session:
                why = why_wait(session, asked.person)
                self._progress = (
                    asked.now,
                    campaign_progress(session),
                )  # those pages show it in words
            return self.page("wait.html" if why else "done.html", asked, refused, why=why)
        # No answer can be sent without a name, so none is accepted for a missing image.
        there = self.images.has_file(asked.person.id, task.lease)
        submission = asked.visitor.new_submission(task.lease) if there else ""
        written = asked.form.get("text") if asked.form.get("lease") == task.lease else None
        return self.page(
            f"{task.kind}.html", asked, refused, task=task, submission=submission,
            longest=LONGEST, skips=self.settings.rules.skips, written=written,
            # often enough to count working time and to keep the lease
            beat_seconds=min(IDLE_SECONDS, task.expires - task.begun) / 3,
        )  # fmt: skip

    def answer(self, asked: PageRequest) -> Response:
        lease, submission = asked.form.get("lease", ""), asked.form.get("submission", "")
        asked.visitor.check_submission(lease, submission)
        try:
            reply = reply_of(asked.form)
            queue.submit(self.db, asked.person.id, lease, submission, asked.now, reply)
        except InputError as error:
            return self.again(asked, error)
        with self.db.read() as session:
            count = person_progress(session, asked.person.id).answers
        return redirect("/pause" if count and count % self.options.pause_every == 0 else "/task")

    def again(self, asked: PageRequest, error: InputError) -> Response:
        """Show the task again, with the written text, unless it is no longer theirs."""
        if isinstance(error, NotAllowedError):
            raise error
        return self.task(asked, str(error))

    def undo(self, asked: PageRequest) -> Response:
        try:
            queue.undo(self.db, asked.person.id, asked.now)
        except InputError as error:
            return self.again(asked, error)
        return redirect("/task")

    def pass_on(self, act: Callable[..., None], asked: PageRequest) -> Response:
        lease, reason = asked.form.get("lease", ""), reason_of(asked.form)
        act(self.db, asked.person.id, lease, reason, asked.now)
        return redirect("/task")

    def heartbeat(self, asked: PageRequest) -> Response:
        """Extend the lease of a person who is active on the page."""
        queue.heartbeat(self.db, asked.person.id, asked.form.get("lease", ""), asked.now)
        return Response(status_code=204)

    def pause(self, asked: PageRequest) -> Response:
        return self.page("pause.html", asked, pays=self.settings.pay_per_hour > 0)

    def withdraw(self, asked: PageRequest) -> Response:
        check_ticked(asked.form)
        people.withdraw(self.db, asked.person.id, asked.now)
        return redirect("/")

    def ended(self, asked: PageRequest) -> Response:
        """Show the last page to a person whose part has ended."""
        return self.page("ended.html", asked, code=403)

    def image(self, asked: PageRequest) -> Response:
        lease = str(asked.request.path_params["lease"])
        return image_response(self.images.of_task(asked.person.id, lease))

    # Files and pages

    async def file(self, request: Request) -> Response:
        file = self.files.get(request.url.path)
        if file is None:
            raise HTTPException(404)
        # Browsers may cache it: its URL contains its digest.
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(file.content, media_type=file.media_type, headers=headers)

    async def health(self) -> Response:
        return Response('{"status": "ok"}', media_type="application/json")

    def page(
        self, name: str, asked: PageRequest, refused: str = "", code: int = 200, **values: Any
    ) -> Response:
        """Render a page with the person's and the campaign's progress and a refusal, if any."""
        with self.db.read() as session:
            progress = person_progress(session, asked.person.id)
            left = open_to(session, asked.person, asked.now)
            if asked.now - self._progress[0] > PROGRESS_SECONDS:
                self._progress = (asked.now, campaign_progress(session))
        undoable = progress.last is not None and asked.now - progress.last < UNDO_SECONDS
        return self.pages.show(
            name, 400 if refused else code, person=asked.person, mine=progress, left=left,
            refused=refused, undoable=undoable, progress=self._progress[1],
            form_token=asked.visitor.form_token, **values,
        )  # fmt: skip
