"""Requests of one moment, judged together.

The first request waits a few milliseconds for company; what comes while the model is busy goes
together afterwards. Captions of one picture stand side by side, so that the model looks at it
once, and a pair that several people ask for is read once. Everybody gets their own rows back, in
their own order. What is wrong with one request fails that one alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from discode.decoders import Decoder, without_prior
from discode.decoders.base import greedy_stem
from discode.errors import DiscodeError, HttpError, ImageError
from discode.images import open_image
from discode.judge import Judge
from discode.pairs import Pair
from discode.readings import Readings
from discode.scores import Scores
from discode.serve.prometheus import Measures

WINDOW = 0.008
"""Seconds that a request waits for others when the model is idle."""


@dataclass(frozen=True, eq=False)
class Question:
    """What one request asks: a picture's bytes, captions of it, how to decode."""

    image: bytes
    captions: tuple[str, ...]
    references: tuple[str, ...]
    decoder: Decoder

    @cached_property
    def digest(self) -> bytes:
        """The picture's SHA-256."""
        return hashlib.sha256(self.image).digest()

    def pairs(self) -> list[Pair]:
        """Return one pair a caption."""
        return [
            Pair(self.image, caption, self.references, str(number))
            for number, caption in enumerate(self.captions)
        ]


@dataclass(frozen=True, eq=False)
class Answer:
    """Scores, the same without the prior, and the stem each row was decoded behind."""

    scores: Scores
    before: Scores
    stems: tuple[str, ...]


def judge_together(judge: Judge, questions: Sequence[Question]) -> list[Answer | Exception]:
    """Read all pairs of some questions in one go; return an answer or an error for each.

    >>> from discode.decoders import get_decoder
    >>> from discode.judge import load
    >>> from discode.images import demo_path
    >>> cat = (demo_path() / "cat.jpg").read_bytes()
    >>> asked = [Question(cat, (text,), (), get_decoder("raw")) for text in ("a cat", "a car")]
    >>> [answer.scores.value.tolist() for answer in judge_together(load("embedded"), asked)]
    [[0.5], [0.1]]
    """
    place: dict[tuple[bytes, str, tuple[str, ...]], int] = {}
    pairs: list[Pair] = []
    rows: list[list[int]] = [[] for _ in questions]
    together = {question.digest: number for number, question in reversed([*enumerate(questions)])}
    for number in sorted(range(len(questions)), key=lambda i: (together[questions[i].digest], i)):
        question = questions[number]
        for pair in question.pairs():
            key = (question.digest, pair.caption, pair.references)
            if key not in place:
                place[key] = len(pairs)
                # The very bytes of the first: equal ones of other requests may be let go.
                pairs.append(replace(pair, image=questions[together[question.digest]].image))
            rows[number].append(place[key])
    try:
        readings = judge.read(pairs)
    # Whatever a model may throw, it is for the one question that it cannot stand.
    except Exception as error:
        if len(questions) == 1:
            return [error]
        return [judge_together(judge, [question])[0] for question in questions]
    return [
        _answer(judge, question, readings.take(mine))
        for question, mine in zip(questions, rows, strict=True)
    ]


def _answer(judge: Judge, question: Question, readings: Readings) -> Answer | Exception:
    pairs = question.pairs()
    try:
        if len(readings.errors) == len(readings):
            open_image(question.image)  # if that is the reason, it is no question of captions
        scores, before = (
            replace(judge, decoder=decoder).decode(pairs, readings)
            for decoder in (question.decoder, without_prior(question.decoder))
        )
    except ImageError as error:
        return HttpError(422, "bad_image", str(error))
    except DiscodeError as error:
        return HttpError(422, "bad_request", str(error))
    except Exception as error:
        return error
    named = question.decoder.options().get("reading") != "joint"  # its answers have their stems
    stems = [judge.scale.stems[i] if named else "" for i in greedy_stem(readings)]
    return Answer(scores, before, tuple(stems))


@dataclass(eq=False)
class _Job:
    question: Question
    future: asyncio.Future[Answer]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue before the judge, and the one thread that the judge runs in.

    Args:
        judge: Its ``batch_size`` bounds the pairs of a batch; a longer request goes alone.
        measures: Where batches are counted.
        window: Seconds a request waits for others.
    """

    def __init__(self, judge: Judge, measures: Measures, *, window: float = WINDOW) -> None:
        self.judge = judge
        self._measures = measures
        self._window = window
        self._jobs: list[_Job] = []
        self._some = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work; called in the event loop."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop; what still waits is cancelled. A server calls it when nobody waits any more."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def ask(self, question: Question) -> Answer:
        """Return the answer; one who no longer waits for it (cancelled) is not judged."""
        job = _Job(question, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._some.set()
        try:
            return await job.future
        finally:
            with suppress(ValueError):  # mostly it is out of the queue by now
                self._jobs.remove(job)

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            if not self._jobs:
                self._some.clear()
                continue
            await asyncio.sleep(max(0.0, self._jobs[0].arrived + self._window - time.monotonic()))
            if jobs := self._batch():
                await self._judge(jobs)

    def _batch(self) -> list[_Job]:
        """Take the oldest job, all of its picture, then the next oldest and so on, while they fit.

        The oldest is always among them, so nobody waits for ever behind a popular picture.
        """
        pictures: dict[bytes, list[_Job]] = {}
        for job in self._jobs:
            pictures.setdefault(job.question.digest, []).append(job)
        jobs: list[_Job] = []
        size = 0
        for job in chain.from_iterable(pictures.values()):
            size += len(job.question.captions)
            if jobs and size > self.judge.batch_size:
                break
            jobs.append(job)
        for job in jobs:
            self._jobs.remove(job)
        return jobs

    async def _judge(self, jobs: list[_Job]) -> None:
        start = time.monotonic()
        questions = [job.question for job in jobs]
        answers: Sequence[Answer | Exception]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, judge_together, self.judge, questions
            )
        except Exception as error:  # the queue must outlive whatever this is
            answers = [error] * len(jobs)
        self._measures.judge.observe(time.monotonic() - start)
        self._measures.batch.observe(sum(len(question.captions) for question in questions))
        for job, answer in zip(jobs, answers, strict=True):
            if job.future.done():  # it gave up meanwhile
                continue
            if isinstance(answer, Exception):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)
