"""Judge requests that arrive at about the same time in one batch.

The first request waits a few milliseconds for others; those that come while the model is busy are
judged together afterwards. Captions of one image stand side by side, so that the model looks at it
once, and a pair that several callers ask for is read once. Every caller gets their own rows back,
in their own order. An error in one request fails that request alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from discode._judge import Judge
from discode._pairs import Pair, references_among
from discode._scores import Scores, lists_or_none
from discode._serve.prometheus import ServiceCounters
from discode._serve.requests import ScoreRequest
from discode._serve.schema import (
    Answer,
    ExplainAnswer,
    ExplainedCaption,
    ScoreAnswer,
    ScoredCaption,
)
from discode._signature import SignedDecoder
from discode.decoders import without_prior
from discode.errors import DiscodeError, HttpError, ImageError, InputError
from discode.explain._effects import THRESHOLD, explain_scores
from discode.images import MAX_PIXELS, open_image

WINDOW = 0.008
"""Seconds that a request waits for others when the model is idle."""


def judge_together(judge: Judge, requests: Sequence[ScoreRequest]) -> list[Answer | Exception]:
    """Read the pairs of all requests in one batch; return an answer or an error for each.

    >>> from discode._judge import load
    >>> from discode.images import demo_path
    >>> cat = (demo_path() / "cat.jpg").read_bytes()
    >>> requests = [ScoreRequest(cat, [text]) for text in ("a cat", "a car")]
    >>> [answer.scores[0].raw for answer in judge_together(load("embedded"), requests)]
    [0.8, 0.3]
    """
    images: dict[bytes, bytes] = {}
    row_of: dict[tuple[bytes, str, tuple[str, ...]], int] = {}
    pairs: list[Pair] = []
    rows: list[list[int]] = []
    for request in requests:
        # The bytes object of an image's first request: equal ones of the others can be freed.
        image = images.setdefault(request.digest, request.image)
        rows.append([])
        for pair in request.pairs:
            key = (request.digest, pair.caption, pair.references)
            row = row_of.setdefault(key, len(pairs))
            if row == len(pairs):
                pairs.append(pair if pair.image is image else replace(pair, image=image))
            rows[-1].append(row)
    names = ["" if each.decoder is None else str(n) for n, each in enumerate(requests)]
    decoders = {
        name: each.decoder or judge.decoder for name, each in zip(names, requests, strict=True)
    }
    try:
        scores = judge.decode_all(pairs, decoders)
    # Whatever a model raises belongs to the one request that causes it: each is tried alone.
    except Exception as error:
        if len(requests) == 1:
            refused = isinstance(error, InputError)
            return [HttpError(422, "bad_request", str(error)) if refused else error]
        return [judge_together(judge, [request])[0] for request in requests]
    return [
        _answer(judge, request, scores[name][chosen])
        for request, name, chosen in zip(requests, names, rows, strict=True)
    ]


def _answer(judge: Judge, request: ScoreRequest, scores: Scores) -> Answer | Exception:
    # Others of the batch may have references.
    references = references_among(request.pairs, taken=judge.backend.takes_references)
    scores = replace(scores, signature=scores.signature.with_fields(references=references))
    try:
        if len(scores.errors) == len(scores) and not request.one_of_many:
            open_image(request.image)  # if this is the reason, it is not about the captions
        if request.explains:
            return _explain(judge, request, scores)
    except ImageError as error:
        return HttpError(422, "bad_image", str(error))
    except DiscodeError as error:
        return HttpError(422, "bad_request", str(error))
    except Exception as error:
        return error
    smoothing = without_prior(request.decoder or judge.decoder)
    names = ["" if smoothing.stem == "joint" else stem for stem in judge.scale.stems]
    stems = [0] * len(scores) if scores.stem is None else scores.stem.tolist()
    plain = [None] * len(scores) if scores.plain is None else lists_or_none(scores.plain)
    rows = zip(request.captions, stems, plain, scores.rows(), strict=True)
    return ScoreAnswer(
        model=judge.backend.identity.model,
        scale=judge.scale.name,
        answers=list(scores.answers),
        scores=[
            ScoredCaption(caption=caption, stem=names[stem], probabilities=probabilities, **row)
            for caption, stem, probabilities, row in rows
        ],
        counts=scores.counts(),
        signature=str(scores.signature),
        smoothing_signature=str(scores.signature.with_fields(decoder=SignedDecoder.of(smoothing))),
    )


def merged(answers: Sequence[Answer]) -> Answer:
    first, *others = answers
    name = "scores" if isinstance(first, ScoreAnswer) else "explanations"
    rows = [row for answer in answers for row in getattr(answer, name)]
    counts = {key: sum(answer.counts[key] for answer in answers) for key in first.counts}
    return first.model_copy(update={name: rows, "counts": counts}) if others else first


def _explain(judge: Judge, request: ScoreRequest, scores: Scores) -> ExplainAnswer:
    captions = [Pair(request.image, caption) for caption in request.captions]
    explained = explain_scores(captions, scores, judge.scale, THRESHOLD)
    return ExplainAnswer(
        model=judge.backend.identity.model,
        scale=judge.scale.name,
        explanations=[ExplainedCaption(**each.to_dict()) for each in explained],
        counts={"failed": sum(bool(each.error) for each in explained)},
        signature=str(explained[0].signature),
    )


@dataclass(eq=False)
class _Job:
    request: ScoreRequest
    future: asyncio.Future[Answer]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue of requests, and the one thread in which the judge runs.

    Args:
        judge: Its ``batch_size`` limits the pairs in a batch; a longer request goes alone.
        counters: Where batches are counted.
        window: How many seconds a request waits for others.
    """

    def __init__(self, judge: Judge, counters: ServiceCounters, *, window: float = WINDOW) -> None:
        self.judge = judge
        self._counters = counters
        self._window = window
        self._jobs: list[_Job] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start working; call it in the event loop."""
        self._worker = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop; requests that still wait are cancelled. A server calls it when none are left."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def answer(self, request: ScoreRequest) -> Answer:
        """Return the result; a request whose caller gave up (cancelled) is not judged."""
        job = _Job(request, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._wake.set()
        try:
            return await job.future
        finally:
            with suppress(ValueError):  # usually it has left the queue by now
                self._jobs.remove(job)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._jobs:
                self._wake.clear()
                continue
            await asyncio.sleep(max(0.0, self._jobs[0].arrived + self._window - time.monotonic()))
            if jobs := self._take_batch():
                await self._judge_batch(jobs)

    def _take_batch(self) -> list[_Job]:
        """Take the oldest job and all others of its image, then the next oldest, while they fit.

        The oldest is always among them, so no request waits for ever because of a popular image.
        A model may hold all images of a batch decoded: together they have at most as many pixels
        as one may have. Captions to explain are not judged with others: never by sentences.
        """
        by_image: dict[bytes, list[_Job]] = {}
        for job in self._jobs:
            if job.request.explains is self._jobs[0].request.explains:
                by_image.setdefault(job.request.digest, []).append(job)
        jobs: list[_Job] = []
        size = pixels = 0
        for job in chain.from_iterable(by_image.values()):
            size += len(job.request.pairs)
            if job is by_image[job.request.digest][0]:
                pixels += job.request.pixels
            if jobs and (size > self.judge.batch_size or pixels > MAX_PIXELS):
                break
            jobs.append(job)
        for job in jobs:
            self._jobs.remove(job)
        return jobs

    async def _judge_batch(self, jobs: list[_Job]) -> None:
        start = time.monotonic()
        requests = [job.request for job in jobs]
        judge = self.judge.by_caption() if requests[0].explains else self.judge
        results: Sequence[Answer | Exception]
        try:
            results = await asyncio.get_running_loop().run_in_executor(
                self._thread, judge_together, judge, requests
            )
        except Exception as error:  # the queue must survive any error
            results = [error] * len(jobs)
        self._counters.judge.observe(time.monotonic() - start)
        self._counters.batch.observe(sum(len(request.pairs) for request in requests))
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # the caller gave up meanwhile
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
