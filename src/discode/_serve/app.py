"""The service as an ASGI application: its routes, and the answers as JSON."""

from __future__ import annotations

import asyncio
import csv
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from discode._http.guard import SECURITY_HEADERS, Guard
from discode._http.static import ICON, SHARED, StaticFile, read_static
from discode._judge import Judge
from discode._report import PAGE as REPORT
from discode._report import render_explorer
from discode._serve.about import describe_judge
from discode._serve.batching import Batcher, merged
from discode._serve.limits import (
    HeldBytes,
    Limits,
    LoadLimiter,
    check_token,
    parse_content_length,
)
from discode._serve.prometheus import CONTENT_TYPE, ServiceCounters
from discode._serve.requests import RequestReader
from discode._serve.schema import (
    ERRORS,
    Answer,
    ErrorAnswer,
    ErrorText,
    ExplainAnswer,
    ModelsAnswer,
    ScoreAnswer,
)
from discode._version import __version__
from discode.decoders import METHODS, get_decoder
from discode.decoders._preset import is_preset
from discode.errors import HttpError
from discode.images import demo_path

PAGE = Path(__file__).parent / "page"
_log = logging.getLogger("discode.web")


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How a service is run.

    Attributes:
        method: The decoder if a request names none: a method, or a preset file.
        limits: How much requests may ask for.
        token: What callers must send, or None.
        allow_urls: Whether images are fetched by URL.
        hosts: The names that the server answers to, or None for any.
    """

    method: str = "discode"
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    allow_urls: bool = False
    hosts: tuple[str, ...] | None = None


def make_service(judge: Judge, options: ServiceOptions | None = None) -> FastAPI:
    """Return the service around a judge, as an ASGI application."""
    return _Service(judge, options or ServiceOptions()).app()


class _Service:
    def __init__(self, judge: Judge, options: ServiceOptions) -> None:
        self.judge = judge.with_method(options.method)
        judge.backend.capabilities  # noqa: B018  # loads a local model before the first request
        self.options = options
        # Callers need not know the folder of a preset file.
        self.method = Path(options.method).name if is_preset(options.method) else options.method
        self.limiter = LoadLimiter(options.limits)
        self.counters = ServiceCounters()
        self.counters.active.set_function(lambda: self.limiter.requests)
        self.batcher = Batcher(self.judge, self.counters)
        self.reader = RequestReader(options.limits, self.method, allow_urls=options.allow_urls)
        self.about = self.describe()
        self.files = page_files()

    def app(self) -> FastAPI:
        app = FastAPI(
            title="discode",
            version=__version__,
            description="Judge image captions with a vision-language model.",
            docs_url=None,  # these pages would load scripts from a CDN
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self.lifespan,
        )
        bodies = {"application/json": self.reader.body, "multipart/form-data": self.reader.form}
        content = {kind: {"schema": model.model_json_schema()} for kind, model in bodies.items()}
        # For openapi.json: requests are checked where refusals are counted.
        bearer = Security(HTTPBearer(auto_error=False, scheme_name="token"))
        needed: dict[str, Any] = {"dependencies": [bearer]} if self.options.token else {}
        asked: dict[str, Any] = {
            **needed, "methods": ["POST"], "responses": ERRORS,
            "openapi_extra": {"requestBody": {"required": True, "content": content}},
        }  # fmt: skip
        app.add_api_route(
            "/v1/score", self.score, response_model=ScoreAnswer,
            summary="Score captions of an image", **asked,
        )  # fmt: skip
        app.add_api_route(
            "/v1/explain", self.explain, response_model=ExplainAnswer,
            summary="Find wrong words in captions; each word costs a reading", **asked,
        )  # fmt: skip
        app.add_api_route(
            "/v1/models", self.models, summary="The judge, its methods and the limits",
            responses={401: ERRORS[401]}, **needed,
        )  # fmt: skip
        app.add_api_route("/healthz", self.health, summary="Whether the service is up")
        app.add_api_route("/metrics", self.metrics, summary="Counters for Prometheus", **needed)
        for route in ("/", "/api", "/explorer", "/page/{name}", "/demo/{name}"):
            app.add_api_route(route, self.file, methods=["GET", "HEAD"], include_in_schema=False)
        app.add_api_route("/demo", examples, include_in_schema=False)
        for route in ("/docs", "/redoc"):  # where people who know FastAPI look
            app.add_api_route(route, api_page, methods=["GET", "HEAD"], include_in_schema=False)
        for kind in (HttpError, HTTPException):
            app.add_exception_handler(kind, _on_error)
        app.add_middleware(
            Guard, hosts=self.options.hosts, headers=SECURITY_HEADERS, on_error=_on_error
        )
        return app

    def describe(self) -> ModelsAnswer:
        scale, prompt = self.judge.scale, self.judge.prompt
        model = asdict(self.judge.backend.identity) | {
            "scale": scale.name,
            "answers": scale.answers,
            "stems": scale.stems,
            "prompt": f"{prompt.name}-{prompt.digest}",
            "signature": str(self.judge.signature),
            "references": self.judge.backend.takes_references,
            # A preset file may turn scores into those of people.
            "range": None if is_preset(self.options.method) else [scale.minimum, scale.maximum],
            **describe_judge(self.judge, self.options.method),
        }
        # Others are reached with options: "discode:sigma2=0.05".
        methods = [
            {"name": name, "about": row.about}
            for name, row in METHODS.discover().items()
            if not get_decoder(name).requires  # solver 'adam' is not served
            and row.scale in (None, scale.name)
        ]
        return ModelsAnswer(
            version=__version__,
            models=[model],
            methods=methods,
            method=self.method,
            urls=self.options.allow_urls,
            limits=asdict(self.options.limits),
        )

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        await self.batcher.stop()
        self.reader.threads.shutdown(wait=False, cancel_futures=True)

    async def score(self, request: Request) -> Answer:
        return await self._serve(request, explains=False)

    async def explain(self, request: Request) -> Answer:
        return await self._serve(request, explains=True)

    async def _serve(self, request: Request, *, explains: bool) -> Answer:
        start, status = time.monotonic(), 200
        try:
            check_token(request.headers.get("authorization"), self.options.token)
            with self.limiter.admit() as held:
                answer = await self._answer(request, held, explains)
        except Exception as error:
            refusal = _as_refusal(error)
            status = refusal.status
            if status not in (408, 499):
                await _drain(request, self.options.limits.body)
            raise refusal from error
        finally:
            self.counters.requests.labels(str(status)).inc()
            self.counters.seconds.observe(time.monotonic() - start)
        rows = answer.scores if isinstance(answer, ScoreAnswer) else answer.explanations
        self.counters.pairs.inc(len(rows) - answer.counts["failed"])
        self.counters.failed.inc(answer.counts["failed"])
        return answer

    async def _answer(self, request: Request, held: HeldBytes, explains: bool) -> Answer:
        """Return the answer, unless the client disconnects or time runs out first."""
        seconds = self.options.limits.seconds
        try:
            body = await asyncio.wait_for(self.reader.receive(request, held), seconds)
        except asyncio.TimeoutError:
            message = f"the request took over {seconds:g} s to arrive"
            raise HttpError(408, "slow", message) from None
        task = asyncio.ensure_future(self._parse_and_judge(body, held, explains))
        del body  # once parsed, a request holds its image alone
        # All of the body was read: what comes next is that the client hangs up.
        gone = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            message = f"no answer in {seconds:g} s; send fewer captions, or try later"
            raise HttpError(504, "timeout", message)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _parse_and_judge(self, body: Any, held: HeldBytes, explains: bool) -> Answer:
        requests = await self.reader.parse(body, held, explains=explains)
        del body
        return merged(await asyncio.gather(*map(self.batcher.answer, requests)))

    async def models(self, request: Request) -> ModelsAnswer:
        check_token(request.headers.get("authorization"), self.options.token)
        return self.about

    async def health(self) -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    async def metrics(self, request: Request) -> Response:
        check_token(request.headers.get("authorization"), self.options.token)
        return Response(self.counters.text(), media_type=CONTENT_TYPE)

    async def file(self, request: Request) -> Response:
        file = self.files.get(request.url.path)
        if file is None:
            raise HTTPException(404)
        # Browsers may keep it, but ask again each time: a new version shows at once.
        headers = {"cache-control": "no-cache"}
        return Response(file.content, media_type=file.media_type, headers=headers)


def page_files() -> dict[str, StaticFile]:
    """Return every file that is served, by its path: the pages and the demo's images."""
    own = [*PAGE.iterdir(), ICON, *SHARED, REPORT / "report.css", REPORT / "report.js"]
    files = read_static("/page", own)
    files |= read_static("/demo", demo_path().glob("*.jpg"))
    names = [*(path.name for path in SHARED), "asked.js", "report.js"]
    scripts = [f"/page/{name}" for name in names]
    explorer = render_explorer("/page/report.css", scripts).encode()
    page = files["/page/index.html"]
    return files | {
        "/": page,
        "/api": files["/page/api.html"],
        "/explorer": replace(page, content=explorer),
    }


def api_page() -> Response:
    return RedirectResponse("/api")


def examples() -> list[dict[str, Any]]:
    """Return the shipped images with their captions and what each was written as: good, ..."""
    captions: dict[str, list[dict[str, str]]] = {}
    with (demo_path() / "captions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            captions.setdefault(row["image"], []).append(row)
    return [
        {
            "name": Path(image).stem,
            "image": f"/demo/{image}",
            "captions": [row["caption"] for row in rows],
            "kinds": [row["kind"] for row in rows],
        }
        for image, rows in captions.items()
    ]


def _as_refusal(error: Exception) -> HttpError:
    """Return the refusal for an error; unexpected errors are logged."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ClientDisconnect):
        return HttpError(499, "gone", "the client hung up")  # for the counters alone
    if isinstance(error, HTTPException):  # starlette's own: no such path, no such method
        code = str(error.detail).lower().replace(" ", "_")
        return HttpError(error.status_code, code, str(error.detail), dict(error.headers or {}))
    _log.error("a request failed", exc_info=error)
    return HttpError(500, "failed", "the judge failed on this request; see the server log")


async def _on_error(request: Request, error: Exception) -> Response:
    refusal = _as_refusal(error)
    answer = ErrorAnswer(error=ErrorText(code=refusal.code, message=str(refusal)))
    return JSONResponse(answer.model_dump(), refusal.status, refusal.headers)


async def _drain(request: Request, limit: int) -> None:
    """Read on a little: a client that is still sending would see a broken pipe, not the answer."""
    length = parse_content_length(request.headers.get("content-length", "0"))
    if "expect" in request.headers or length is None or length > 4 * limit:
        return

    async def read() -> None:
        seen = 0
        async for chunk in request.stream():
            seen += len(chunk)
            if seen > 4 * limit:
                return

    try:
        await asyncio.wait_for(read(), 2)
    except (asyncio.TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: read before
        return
