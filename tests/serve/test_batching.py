"""Requests of one moment: read together, answered apart."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from discode._judge import load
from discode.errors import HttpError
from discode.images import MAX_PIXELS, demo_path
from tests.helpers.fake_model import FakeModel
from tests.helpers.serving import CAT, BusyModel, Client, running

# Behind the skip for want of fastapi:
from discode._serve.batching import Batcher  # isort: skip
from discode._serve.prometheus import ServiceCounters  # isort: skip
from discode._serve.requests import ScoreRequest  # isort: skip
from discode._serve.schema import Answer, ExplainAnswer, ScoreAnswer  # isort: skip


CITY, ASTRONAUT = ((demo_path() / f"{name}.jpg").read_bytes() for name in ("city", "astronaut"))


def test_requests_given_up_leave_the_queue() -> None:
    async def give_up() -> int:
        batcher = Batcher(load(FakeModel()), ServiceCounters())  # never started: a model that hangs
        request = ask(CAT, "a cat")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.answer(request), 0.05)
        await batcher.stop()
        return len(batcher._jobs)

    assert asyncio.run(give_up()) == 0


def score_behind_one(
    model: BusyModel, requests: list[ScoreRequest], batch_size: int = 64
) -> list[Answer | BaseException]:
    """Let requests queue while the model is busy with another one; their results."""

    async def run() -> list[Answer | BaseException]:
        batcher = Batcher(load(model, batch_size=batch_size), ServiceCounters())
        batcher.start()
        model.free.clear()
        first = asyncio.create_task(batcher.answer(ask(CAT, "the first")))
        while not model.batches:
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(batcher.answer(request)) for request in requests]
        while len(batcher._jobs) < len(requests):
            await asyncio.sleep(0.01)
        model.free.set()
        await first
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await batcher.stop()
        return results

    return asyncio.run(run())


def ask(image: bytes, *captions: str) -> ScoreRequest:
    return ScoreRequest(image, captions)


def test_what_waits_for_the_model_is_read_together() -> None:
    model = BusyModel()
    asked = [
        ask(image, f"{word} {i}", "a cat")
        for i in range(4)
        for image, word in ((CAT, "cat"), (CITY, "city"))
    ]
    words = ScoreRequest(CAT, ["a cat"], explains=True)
    *results, explained = score_behind_one(model, [*asked, words])
    assert [*map(len, model.batches[2:])] == [2]  # "a cat" and "something", for their words
    together = [pair.image == CAT for pair in model.batches[1]]
    assert len(together) == 2 * (4 + 1)  # "a cat" is read once per image
    assert sum(a != b for a, b in pairwise(together)) == 1
    assert isinstance(explained, ExplainAnswer)
    (whole,) = load(FakeModel()).explain(CAT, "a cat")
    assert [span.effect for span in explained.explanations[0].spans] == [whole.spans[0].effect]
    for request, result in zip(asked, results, strict=True):
        assert isinstance(result, ScoreAnswer)
        own = load(FakeModel()).score(request.image, request.captions)
        assert [row.score for row in result.scores] == own.value.tolist()


def test_a_full_queue_is_read_image_by_image() -> None:
    model = BusyModel()
    asked = [ask(CITY if i % 2 else CAT, f"number {i}") for i in range(8)]
    score_behind_one(model, asked, batch_size=4)
    assert [len({pair.image for pair in batch}) for batch in model.batches] == [1, 1, 1]


def test_images_of_a_batch_have_as_many_pixels_as_one_may_have() -> None:
    model = BusyModel()
    asked = [
        replace(ask(image, f"number {i}"), pixels=MAX_PIXELS // 2)
        for i, image in enumerate((CAT, CAT, CITY, ASTRONAUT, CITY))
    ]
    score_behind_one(model, asked)
    # The first was alone; then two captions each of two images, and the third for itself.
    assert [len(batch) for batch in model.batches] == [1, 4, 1]


def test_an_error_of_one_request_fails_that_request_alone() -> None:
    model = BusyModel(fails_on="stumble")
    results = score_behind_one(
        model, [ask(CAT, "fine"), ask(CAT, "stumble"), ask(CAT[:3000], "x"), ask(CAT, "fine too")]
    )
    assert [*map(type, results)] == [ScoreAnswer, RuntimeError, HttpError, ScoreAnswer]
    assert results[2].code == "bad_image"  # type: ignore[union-attr]


def test_a_bug_of_the_model_is_not_shown_to_callers() -> None:
    with running(load(BusyModel(fails_on="stumble"))) as client:
        reply = client.upload(CAT, ["stumble"])
    assert (reply.status, reply.code) == (500, "failed")
    assert "a model's own bug" not in reply.body.decode()


def test_a_store_answers_what_was_asked_before(tmp_path: Path) -> None:
    model = BusyModel()
    with running(load(model, store=tmp_path / "kept.db")) as client:
        first = client.score(CAT, ["a cat", "a dog"])
        assert client.upload(CAT, ["a dog", "a cat"]).json["scores"] == first.json["scores"][::-1]
    assert len(model.batches) == 1


def test_a_hundred_requests_of_twenty_clients_keep_their_owners() -> None:
    model = BusyModel()
    lock, seen = threading.Lock(), []

    def one(client: Client, number: int) -> None:
        captions = [f"{'x' * (number % 37 + k)} of {number}" for k in range(number % 3 + 1)]
        reply = client.score(CAT, captions)
        assert reply.status == 200
        rows = reply.json["scores"]
        assert [row["caption"] for row in rows] == captions
        with lock:
            seen.append((captions, [row["score"] for row in rows]))

    with running(load(model)) as client, ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: one(client, number), range(100)))
    assert len(seen) == 100
    judge = load(FakeModel())
    for captions, values in seen:
        assert values == judge.score(CAT, captions).value.tolist()
