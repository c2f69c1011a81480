"""Requests of one moment: read together, answered apart."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from discode.decoders import get_decoder
from discode.images import demo_path
from discode.judge import load
from tests.conftest import FakeModel
from tests.helpers.serving import CAT, Client, SlowModel, running

# Behind the skip for want of fastapi:
from discode.serve.batching import Batcher, Question  # isort: skip
from discode.serve.prometheus import Measures  # isort: skip


def test_questions_given_up_leave_the_queue() -> None:
    async def give_up() -> int:
        batcher = Batcher(load(FakeModel()), Measures())  # never started: a model that hangs
        question = Question(CAT, ("a cat",), (), get_decoder("raw"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.ask(question), 0.05)
        await batcher.stop()
        return len(batcher._jobs)

    assert asyncio.run(give_up()) == 0


def test_what_waits_for_the_model_is_read_together() -> None:
    model = SlowModel(seconds=0.3)
    rocket = (demo_path() / "rocket.jpg").read_bytes()
    with running(load(model)) as client, ThreadPoolExecutor(12) as pool:
        first = pool.submit(client.upload, CAT, ["the first"])
        time.sleep(0.15)
        asked = [
            (image, [f"{word} {i}", "a cat"])
            for i in range(4)
            for image, word in ((CAT, "cat"), (rocket, "rocket"))
        ]
        replies = list(pool.map(lambda ask: client.upload(*ask), asked))
        assert first.result().status == 200
    assert len(model.batches) == 2
    together = [pair.image == CAT for pair in model.batches[1]]
    assert len(together) == 2 * (4 + 1)  # "a cat" is read once a picture
    assert sum(a != b for a, b in pairwise(together)) == 1
    for (image, captions), reply in zip(asked, replies, strict=True):
        own = load(FakeModel()).score(image, captions)
        assert [row["caption"] for row in reply.json["scores"]] == captions
        assert [row["score"] for row in reply.json["scores"]] == own.value.tolist()


def test_a_store_answers_what_was_asked_before(tmp_path: Path) -> None:
    model = SlowModel()
    with running(load(model, store=tmp_path / "kept.db")) as client:
        first = client.score(CAT, ["a cat", "a dog"])
        assert client.upload(CAT, ["a dog", "a cat"]).json["scores"] == first.json["scores"][::-1]
    assert len(model.batches) == 1


def test_a_full_queue_is_read_picture_by_picture() -> None:
    model = SlowModel(seconds=0.3)
    rocket = (demo_path() / "rocket.jpg").read_bytes()
    with running(load(model, batch_size=4)) as client, ThreadPoolExecutor(9) as pool:
        pool.submit(client.upload, CAT, ["the first"])
        time.sleep(0.15)
        asked = [(rocket if i % 2 else CAT, [f"number {i}"]) for i in range(8)]
        assert [r.status for r in pool.map(lambda ask: client.upload(*ask), asked)] == [200] * 8
    assert [len({pair.image for pair in batch}) for batch in model.batches] == [1, 1, 1]


def test_what_is_wrong_with_one_fails_one() -> None:
    model = SlowModel(seconds=0.2, stumbles="stumble")
    cut = CAT[:3000]
    asked = [(CAT, "fine", 200), (CAT, "stumble", 500), (cut, "x", 422), (CAT, "fine too", 200)]
    with running(load(model)) as client, ThreadPoolExecutor(5) as pool:
        pool.submit(client.upload, CAT, ["the first"])
        time.sleep(0.1)
        replies = list(pool.map(lambda ask: client.upload(ask[0], [ask[1]]), asked))
    assert [reply.status for reply in replies] == [status for _, _, status in asked]
    assert (replies[1].code, replies[2].code) == ("failed", "bad_image")
    assert "truncated" in replies[2].json["error"]["message"]
    assert "a model's own bug" not in replies[1].body.decode()


def test_two_hundred_requests_of_twenty_clients_keep_their_owners() -> None:
    model = SlowModel(seconds=0.005)
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
        list(pool.map(lambda number: one(client, number), range(200)))
    assert len(seen) == 200
    assert len(model.batches) < 200
    judge = load(FakeModel())
    for captions, values in seen:
        assert values == judge.score(CAT, captions).value.tolist()
