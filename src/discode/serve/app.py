"""The service as an ASGI application: its routes, and the answers as JSON."""

from __future__ import annotations

import asyncio
import csv
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from discode.decoders import METHODS, get_decoder
from discode.decoders.preset import is_preset
from discode.errors import HttpError
from discode.http.guard import SECURITY_HEADERS, Guard
from discode.http.static import DISTRIBUTION, ICON, StaticFile, read_static
from discode.images import demo_path
from discode.judge import Judge
from discode.report import PAGE as REPORT
from discode.report import render_explorer
from discode.serve.about import describe_judge
from discode.serve.batching import Batcher, ScoreRequest, ScoreResult
from discode.serve.fetching import fetch_image
from discode.serve.limits import (
    HeldBytes,
    Limits,
    LoadLimiter,
    check_token,
    parse_content_length,
)
from discode.serve.prometheus import CONTENT_TYPE, ServiceCounters
from discode.serve.requests import RequestParser, read_body
from discode.serve.schema import ERRORS, MODELS, SCORE_BODY, SCORED
from discode.version import __version__

PAGE = Path(__file__).parent / "page"
T = TypeVar("T")
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
        self.judge = judge
        self.options = options
        self.decoder = get_decoder(options.method)
        # A preset file's folder is nobody's business.
        self.method = Path(options.method).name if is_preset(options.method) else options.method
        self.limiter = LoadLimiter(options.limits)
        self.counters = ServiceCounters()
        self.counters.active.set_function(lambda: self.limiter.requests)
        self.batcher = Batcher(judge, self.counters)
        self.fetchers = ThreadPoolExecutor(8, thread_name_prefix="fetch")
        self.parser = RequestParser(
            limits=options.limits,
            method=self.method,
            default=self.decoder,
            fetch=self._fetch if options.allow_urls else None,
            threads=ThreadPoolExecutor(4, thread_name_prefix="parse"),
        )
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
        app.add_api_route(
            "/v1/score", self.score, methods=["POST"], summary="Score captions of an image",
            openapi_extra={"requestBody": SCORE_BODY}, responses=SCORED | ERRORS,
        )  # fmt: skip
        app.add_api_route(
            "/v1/models", self.models, summary="The judge, its methods and the limits",
            responses=MODELS,
        )  # fmt: skip
        app.add_api_route("/healthz", self.health, summary="Whether the service is up")
        app.add_api_route("/metrics", self.metrics, summary="Counters for Prometheus")
        for route in ("/", "/api", "/explorer", "/page/{name}", "/demo/{name}"):
            app.add_api_route(route, self.file, methods=["GET", "HEAD"], include_in_schema=False)
        app.add_api_route("/demo", self.examples, include_in_schema=False)
        for kind in (HttpError, HTTPException):
            app.add_exception_handler(kind, _on_error)
        app.add_middleware(
            Guard, hosts=self.options.hosts, headers=SECURITY_HEADERS, on_error=_on_error
        )
        return app

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        await self.batcher.stop()
        for threads in (self.fetchers, self.parser.threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def score(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            response: Response = JSONResponse(await self._score(request))
        except HttpError as error:
            if error.status != 408:
                await _drain(request, self.options.limits.body)
            response = await _on_error(request, error)
        except ClientDisconnect:
            response = _error(499, "gone", "the client hung up")  # for the counters alone
        except Exception as error:
            response = await _on_error(request, error)
        self.counters.requests.labels(str(response.status_code)).inc()
        self.counters.seconds.observe(time.monotonic() - start)
        return response

    async def _score(self, request: Request) -> dict[str, Any]:
        check_token(request.headers.get("authorization"), self.options.token)
        with self.limiter.admit() as held:
            # Nothing here keeps the body: once parsed, a request holds its image alone.
            asked, result = await self._unless_gone(
                request,
                self._parse_and_score(
                    await self._read_body(request, held),
                    request.headers.get("content-type", ""),
                    held,
                ),
            )
        failed = result.scores.counts()["failed"]
        self.counters.pairs.inc(len(asked.captions) - failed)
        self.counters.failed.inc(failed)
        return response_body(self.judge, asked, result)

    async def _read_body(self, request: Request, held: HeldBytes) -> bytes:
        seconds = self.options.limits.seconds
        try:
            return await asyncio.wait_for(read_body(request, held), seconds)
        except asyncio.TimeoutError:
            message = f"the request took over {seconds:g} s to arrive"
            raise HttpError(408, "slow", message) from None

    async def _parse_and_score(
        self, body: bytes, content_type: str, held: HeldBytes
    ) -> tuple[ScoreRequest, ScoreResult]:
        asked = await self.parser.parse(body, content_type, held)
        del body
        return asked, await self.batcher.score(asked)

    async def _unless_gone(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work gives; it is given up when the client is, or when time is over."""
        seconds = self.options.limits.seconds
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            message = f"no answer in {seconds:g} s; send fewer captions, or try later"
            raise HttpError(504, "timeout", message)
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _fetch(self, url: str) -> bytes:
        limits = self.options.limits
        call = partial(fetch_image, url, limit=limits.body, seconds=min(20.0, limits.seconds))
        return await asyncio.get_running_loop().run_in_executor(self.fetchers, call)

    async def models(self, request: Request) -> Response:
        check_token(request.headers.get("authorization"), self.options.token)
        scale, prompt = self.judge.scale, self.judge.prompt
        model = asdict(self.judge.backend.identity) | {
            "scale": scale.name,
            "answers": scale.answers,
            "stems": scale.stems,
            "prompt": f"{prompt.name}-{prompt.digest}",
            "signature": str(self.judge.signature),
            "references": self.judge.takes_references,
            # A preset file may turn scores into those of people.
            "range": None if is_preset(self.options.method) else [scale.minimum, scale.maximum],
            **describe_judge(self.judge, self.options.method),
        }
        # Others are reached with options: "discode:sigma2=0.05".
        methods = [
            {"name": name, "about": row.about}
            for name, row in METHODS.items()
            if not get_decoder(name).requires  # solver 'adam' is not served
        ]
        return JSONResponse(
            {
                "version": __version__,
                "models": [model],
                "methods": methods,
                "method": self.method,
                "urls": self.options.allow_urls,
                "limits": asdict(self.options.limits),
            }
        )

    async def health(self) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def metrics(self, request: Request) -> Response:
        check_token(request.headers.get("authorization"), self.options.token)
        return Response(self.counters.text(), media_type=CONTENT_TYPE)

    async def file(self, request: Request) -> Response:
        """Answer with a file of the table, by its whole path."""
        found = self.files.get(request.url.path)
        if found is None:
            raise HTTPException(404)
        # Browsers may keep it, but ask again each time: a new version shows at once.
        headers = {"cache-control": "no-cache"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def examples(self) -> Response:
        return JSONResponse(_examples())


def response_body(judge: Judge, asked: ScoreRequest, result: ScoreResult) -> dict[str, Any]:
    """Return the answer to a request, ready for JSON: one row per caption, NaN as null."""
    rows = [
        {
            "caption": caption,
            "score": row["score"],
            "raw": row["raw"],
            "distribution": row["distribution"],
            "before": {key: old[key] for key in ("score", "distribution")},
            "stem": stem,
            "flags": row["flags"],
            "error": row["error"],
        }
        for caption, row, old, stem in zip(
            asked.captions, result.scores.rows(), result.before.rows(), result.stems, strict=True
        )
    ]
    return {
        "model": judge.backend.identity.model,
        "scale": judge.scale.name,
        "answers": list(result.scores.answers),
        "scores": rows,
        "counts": result.scores.counts(),
        "signature": str(result.scores.signature),
        "before_signature": str(result.before.signature),
    }


def page_files() -> dict[str, StaticFile]:
    """Return every file that is served, by its path: the pages and the demo's images."""
    own = [*PAGE.iterdir(), ICON, DISTRIBUTION, REPORT / "report.css", REPORT / "report.js"]
    files = read_static("/page", own)
    files |= read_static("/demo", demo_path().glob("*.jpg"))
    scripts = [f"/page/{name}" for name in ("distribution.js", "asked.js", "report.js")]
    explorer = render_explorer("/page/report.css", scripts).encode()
    page = files["/page/index.html"]
    return files | {
        "/": page,
        "/api": files["/page/api.html"],
        "/explorer": replace(page, content=explorer),
    }


def _examples() -> list[dict[str, Any]]:
    """Return the shipped images with their captions and what each was written as: good, ..."""
    examples: dict[str, list[dict[str, str]]] = {}
    with (demo_path() / "captions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            examples.setdefault(row["image"], []).append(row)
    return [
        {
            "name": Path(image).stem,
            "image": f"/demo/{image}",
            "captions": [row["caption"] for row in rows],
            "kinds": [row["kind"] for row in rows],
        }
        for image, rows in examples.items()
    ]


def _error(status: int, code: str, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _on_error(request: Request, error: Exception) -> Response:
    """Return the answer for a request that was refused, or on which the judge failed."""
    if isinstance(error, HttpError):
        return _error(error.status, error.code, str(error), error.headers)
    if isinstance(error, HTTPException):  # starlette's own: no such path, no such method
        code = str(error.detail).lower().replace(" ", "_")
        return _error(error.status_code, code, str(error.detail), error.headers)
    _log.error("a request failed", exc_info=error)
    return _error(500, "failed", "the judge failed on this request; the log says why")


async def _hung_up(request: Request) -> None:
    """Wait until the client of a request that has been read hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
