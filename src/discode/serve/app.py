"""The service: routes, and what is said about a judge over HTTP."""

from __future__ import annotations

import asyncio
import csv
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from discode.decoders import METHODS, get_decoder
from discode.errors import HttpError
from discode.http.fetching import fetch
from discode.http.guard import Guard
from discode.http.limits import HEADERS, Gate, Limits, check_token, read_length
from discode.images import demo_path
from discode.judge import Judge
from discode.scores import Scores
from discode.serve.batching import Answer, Batcher, Question
from discode.serve.prometheus import CONTENT_TYPE, Measures
from discode.serve.requests import receive, understand
from discode.serve.schema import ERRORS, MODELS, SCORE_BODY, SCORED
from discode.version import __version__

PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}
_log = logging.getLogger("discode.web")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a service is run.

    Attributes:
        method: The decoder where a request names none.
        limits: What is too much.
        token: What callers must present, or None.
        allow_urls: Whether pictures are fetched by URL.
        hosts: Names the server answers to, or None for any.
    """

    method: str = "discode"
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    allow_urls: bool = False
    hosts: tuple[str, ...] | None = None


def make_app(judge: Judge, options: Options | None = None) -> FastAPI:
    """Return the service around a judge, as an ASGI application."""
    options = options or Options()
    get_decoder(options.method)
    return _Service(judge, options).app()


class _Service:
    def __init__(self, judge: Judge, options: Options) -> None:
        self.judge = judge
        self.options = options
        self.gate = Gate(options.limits)
        self.measures = Measures()
        self.measures.inside.set_function(lambda: self.gate.requests)
        self.batcher = Batcher(judge, self.measures)
        self.fetchers = ThreadPoolExecutor(8, thread_name_prefix="fetch")
        self.files = static_files()

    def app(self) -> FastAPI:
        app = FastAPI(
            title="discode",
            version=__version__,
            description="Judge image captions with a vision-language model.",
            docs_url=None,  # these pages come from a CDN
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self.lifespan,
        )
        app.add_api_route(
            "/v1/score", self.score, methods=["POST"], summary="Score captions of a picture",
            openapi_extra={"requestBody": SCORE_BODY}, responses=SCORED | ERRORS,
        )  # fmt: skip
        app.add_api_route(
            "/v1/models", self.models, summary="Who judges, how, within which limits",
            responses=MODELS,
        )  # fmt: skip
        app.add_api_route("/healthz", self.health, summary="Is it up?")
        app.add_api_route("/metrics", self.metrics, summary="Prometheus text")
        for route in ("/", "/page/{name}", "/demo/{name}"):
            app.add_api_route(route, self.file, methods=["GET", "HEAD"], include_in_schema=False)
        app.add_api_route("/demo", self.examples, include_in_schema=False)
        app.add_exception_handler(HttpError, _refusal)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_middleware(Guard, hosts=self.options.hosts, headers=HEADERS, refusal=_refusal)
        return app

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        await self.batcher.stop()
        self.fetchers.shutdown(wait=False, cancel_futures=True)

    async def score(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            response: Response = JSONResponse(await self._score(request))
        except HttpError as error:
            if error.status != 408:
                await _drain(request, self.options.limits.body)
            response = await _refusal(request, error)
        except ClientDisconnect:  # nobody is there to be told
            response = _error(499, "gone", "the client hung up")
        except Exception:
            _log.exception("a request failed")
            response = _error(500, "failed", "the judge failed on this request; the log says why")
        self.measures.requests.labels(str(response.status_code)).inc()
        self.measures.seconds.observe(time.monotonic() - start)
        return response

    async def _score(self, request: Request) -> dict[str, Any]:
        check_token(request.headers.get("authorization"), self.options.token)
        limits = self.options.limits
        with self.gate.enter() as held:
            try:
                body = await asyncio.wait_for(receive(request, held), limits.seconds)
            except asyncio.TimeoutError:
                message = f"the request took over {limits.seconds:g} s to arrive"
                raise HttpError(408, "slow", message) from None

            async def answer() -> tuple[Question, Answer]:
                question = await understand(
                    body, request.headers.get("content-type", ""), limits=limits, held=held,
                    method=self.options.method,
                    fetch=self._fetch if self.options.allow_urls else None,
                )  # fmt: skip
                return question, await self.batcher.ask(question)

            try:
                question, made = await asyncio.wait_for(answer(), limits.seconds)
            except asyncio.TimeoutError:
                message = f"no answer within {limits.seconds:g} s; send fewer captions, or later"
                raise HttpError(504, "timeout", message) from None
        failed = made.scores.counts()["failed"]
        self.measures.pairs.inc(len(question.captions) - failed)
        self.measures.failed.inc(failed)
        return result(self.judge, question, made)

    async def _fetch(self, url: str) -> bytes:
        limits = self.options.limits
        call = partial(fetch, url, limit=limits.body, seconds=min(20.0, limits.seconds))
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
        }
        # Those without an entry of their own are had by options: "discode:sigma2=0.05".
        methods = [{"name": name, "about": row.about} for name, row in METHODS.items()]
        return JSONResponse(
            {
                "version": __version__,
                "models": [model],
                "methods": methods,
                "method": self.options.method,
                "urls": self.options.allow_urls,
                "limits": asdict(self.options.limits),
            }
        )

    async def health(self) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def metrics(self, request: Request) -> Response:
        check_token(request.headers.get("authorization"), self.options.token)
        return Response(self.measures.text(), media_type=CONTENT_TYPE)

    async def file(self, request: Request) -> Response:
        """Answer with a file by its whole path: there is nothing to climb out of."""
        try:
            content, kind = self.files[request.url.path]
        except KeyError:
            raise HTTPException(404) from None
        # Pages may be kept, but are asked for again: a new version shows at once.
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    async def examples(self) -> Response:
        return JSONResponse(_examples())


def result(judge: Judge, question: Question, answer: Answer) -> dict[str, Any]:
    """Return what a request is answered, JSON-ready: a row a caption, NaN as null."""
    before = list(answer.before.rows())
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
            question.captions, answer.scores.rows(), before, answer.stems, strict=True
        )
    ]
    scores: Scores = answer.scores
    return {
        "model": judge.backend.identity.model,
        "scale": judge.scale.name,
        "answers": list(scores.answers),
        "scores": rows,
        "counts": scores.counts(),
        "signature": str(scores.signature),
        "before_signature": str(answer.before.signature),
    }


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return every file that is served, by its path: the page's and the demo's pictures."""
    found = {f"/page/{path.name}": path for path in PAGE.iterdir()}
    found |= {f"/demo/{path.name}": path for path in demo_path().glob("*.jpg")}
    found["/"] = PAGE / "index.html"
    return {
        name: (path.read_bytes(), _TYPES[path.suffix])
        for name, path in found.items()
        if path.suffix in _TYPES
    }


def _examples() -> list[dict[str, Any]]:
    """Return the shipped photographs with their captions, as the page offers them."""
    examples: dict[str, list[str]] = {}
    with (demo_path() / "captions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            examples.setdefault(row["image"], []).append(row["caption"])
    return [
        {"name": Path(image).stem, "image": f"/demo/{image}", "captions": captions}
        for image, captions in examples.items()
    ]


def _error(status: int, code: str, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return _error(error.status, error.code, str(error), error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = str(error.detail).lower().replace(" ", "_")
    return _error(error.status_code, code, str(error.detail), error.headers)


async def _drain(request: Request, limit: int) -> None:
    """Read on a little: one who is still sending reads no answer, and would see a broken pipe."""
    length = read_length(request.headers.get("content-length", "0"))
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
    except (asyncio.TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: read already
        return
