"""Served models: what kinds of server return, how they fail, and what is counted and kept."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, LETTERS, UNIT, get_scale
from discode.backends import read_all
from discode.backends._served.backend import Served
from discode.backends._served.estimate import data_url
from discode.errors import InputError
from discode.images import image_digest
from discode.readings._store import ReadingStore
from tests.helpers.chat_servers import (
    KEY,
    Body,
    Server,
    caption,
    completion,
    digits,
    pairs_of,
    question,
    served,
)

DIGITS = "0123456789"


def constant(status: int, body: Any) -> Any:
    return lambda asked, times: (status, {}, body)


def expected(text: str) -> dict[str, float]:
    message = {"role": "user", "content": f"Caption: {text}\n"}
    return digits({"messages": [message]})[2][1]


@pytest.mark.parametrize("exact", [True, False])
def test_readings(server: Server, image: Path, exact: bool) -> None:
    server.tokens = exact
    backend = served(server)
    pairs = pairs_of(image, 5)
    readings = read_all(backend, pairs, FLEUR, UNIT)
    assert not readings.errors
    # The list has "12": unless it has all that we ask for, others of its kind may be missing.
    assert set(np.asarray(readings.truncated)) == {not exact}
    assert set(np.asarray(readings.how)) == {"generated"}
    for row, pair in enumerate(pairs):
        p = expected(pair.caption)
        want = [p[str(d)] + (p["12"] if d == 1 else 0) for d in range(10)]
        np.testing.assert_allclose(np.exp(readings.answer_logp[row, 0]), want, atol=1e-6)
        np.testing.assert_allclose(np.exp(readings.stem_logp[row, 0]), 0.7 * 0.99)
        assert readings.lead_logp is not None
        np.testing.assert_allclose(np.exp(readings.lead_logp[row]), [0.7, 0.2])
    asked = server.asked[-1]
    assert asked["temperature"] == 0
    assert asked["logprobs"] is True
    assert ("logprob_token_ids" in asked) == exact
    shown, text = asked["messages"][0]["content"]  # the image first
    data = shown["image_url"]["url"].removeprefix("data:image/png;base64,")
    assert base64.b64decode(data) == image.read_bytes()
    assert text["text"] == question(asked)
    assert server.keys == {f"Bearer {KEY}"}
    assert backend.identity.model == f"tiny@127.0.0.1:{server.server_address[1]}"
    assert backend.identity.revision == "tiny-2026"


def test_other_scales(server: Server, image: Path) -> None:
    server.tokens = True
    server.answers = lambda body: [("4", {"4": 0.5, "5": 0.2, "1": 0.1, "2": 0.05, "3": 0.05})]
    backend = served(server)
    readings = read_all(backend, pairs_of(image, 1), FLEUR, FIVE)
    np.testing.assert_allclose(np.exp(readings.answer_logp[0, 0]), [0.1, 0.05, 0.05, 0.5, 0.2])
    server.answers = lambda body: [("B", {"A": 0.2, "B": 0.5, "C": 0.1, "D": 0.01, "E": 0.01})]
    readings = read_all(backend, pairs_of(image, 1), FLEUR, LETTERS)
    np.testing.assert_allclose(np.exp(readings.answer_logp[0, 0]), [0.2, 0.5, 0.1, 0.01, 0.01])
    with pytest.raises(InputError, match="at most 128"):
        discode.load(backend, scale="0-200")


def test_top_five_is_truncated_and_bounded(server: Server, image: Path) -> None:
    def refuse(body: Body, times: int) -> Any:
        if body["top_logprobs"] > 5:
            return 400, {}, {"error": {"message": "top_logprobs must be at most 5"}}
        return None

    server.before = refuse
    judge = discode.load(served(server), method="smoothing")
    pairs = pairs_of(image, 6)
    scores = judge.score_pairs(pairs)
    assert {body["top_logprobs"] for body in server.asked} == {20, 5}
    assert scores.flags["truncated"].all()
    assert scores.bound is not None
    for row, pair in enumerate(pairs):
        p = expected(pair.caption)
        mass = np.array([p[str(d)] + (p["12"] if d == 1 else 0) for d in range(10)])
        true = float(mass @ np.arange(10) / mass.sum() / 10)
        assert abs(scores.value[row] - true) <= scores.bound[row] + 1e-9 < 0.5
    assert "bound" in next(scores.rows())


def test_more_log_probabilities_are_another_revision(
    server: Server, image: Path, tmp_path: Path
) -> None:
    """What was cut at five is not the answer where twenty are asked for."""
    bounds = []
    for top in (5, 20):
        judge = discode.load(served(server, top=top), store=tmp_path / "run.db")
        bounds.append(judge.score_pairs(pairs_of(image, 3)).bound)
    few, many = bounds
    assert few is not None
    assert many is not None
    assert (few > many).all()


def test_another_model_ends_the_run(server: Server, image: Path, tmp_path: Path) -> None:
    """Its answers are neither kept nor scored under the name of the first."""
    answer = completion(model="other-2027")
    server.before = lambda body, times: (
        (200, {}, answer) if caption(body) in ("caption 2", "caption 3") else None
    )
    judge = discode.load(served(server, concurrency=1), store=tmp_path / "run.db")
    scores = judge.score_pairs(pairs_of(image, 40))
    assert {2, 39} <= set(scores.errors)
    assert "other-2027" in scores.errors[39]
    assert judge.store is not None
    assert len(judge.store) == 40 - len(scores.errors) <= 4
    assert len(server.asked) < 12


def test_the_answer_is_the_message_with_the_lowest_index(server: Server, image: Path) -> None:
    def choice(digit: str, index: int, **more: Any) -> dict[str, Any]:
        made: dict[str, Any] = completion()["choices"][0] | {"index": index}
        made["message"]["content"] = f"0.{digit}"
        made["logprobs"]["content"][2] = {
            "token": digit,
            "top_logprobs": [{"token": d, "logprob": 0.0 if d == digit else -30.0} for d in DIGITS],
        }
        return made | more

    said = {
        "two": [choice("1", 1), choice("9", 0)],
        "other": [choice("3", 0, message={"content": "0.8"})],
        "reasoning": [choice("5", 0, message={"content": None})],
    }
    server.before = lambda body, times: (
        (200, {}, {"choices": said[caption(body)]}) if caption(body) in said else None
    )
    readings = read_all(served(server), [Pair(image, name) for name in said], FLEUR, UNIT)
    assert set(readings.errors) == {1, 2}
    assert readings.answer_logp[0, 0].argmax() == 9


def test_numbers_of_several_digits(server: Server, image: Path) -> None:
    """Whether 10 is one token is found out by the trial; where it is not known, 1 may begin 10."""
    p = {"9": 0.5, "1": 0.3, "8": 0.1, "10": 0.01} | {str(n): 0.01 for n in range(2, 8)}
    for trial in ("100", "1 0 0"):
        server.answers = lambda body, trial=trial: (  # type: ignore[misc]  # the loop's own
            [("9", p)] if caption(body) else [(token, {token: 0.9}) for token in trial.split()]
        )
        backend = served(server)
        readings = read_all(backend, pairs_of(image, 1), FLEUR, get_scale("1-10"))
        assert backend.server_features().whole_numbers == (trial == "100")
        assert not readings.errors
        assert np.asarray(readings.truncated)[0] == (trial != "100")


def test_without_log_probabilities(server: Server, image: Path) -> None:
    said: list[dict[str, Any]] = [{}, {"logprobs": None}, {"logprobs": {"content": []}}]
    for why in said:
        choice = {"message": {"content": "0.7"}, **why}
        server.before = constant(200, {"choices": [choice]})
        with pytest.raises(InputError, match="no log-probabilities"):
            read_all(served(server, samples=0), pairs_of(image, 9), FLEUR, UNIT)
    assert set(server.seen) == {""}  # the trial only
    refusal = {"error": {"message": "'logprobs' is not supported with this model"}}
    server.before = lambda body, times: (400, {}, refusal)
    with pytest.raises(InputError, match="not supported with this model"):
        discode.load(served(server, samples=0)).score_pairs(pairs_of(image, 9))
    assert set(server.seen) == {""}


def test_newer_names_of_options(server: Server, image: Path) -> None:
    def before(body: Body, times: int) -> Any:
        if "max_tokens" in body:
            message = "Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'"
            return 400, {}, {"error": {"message": message}}
        return None

    server.before = before
    assert not read_all(served(server), pairs_of(image, 2), FLEUR, UNIT).errors


def test_a_storm_loses_nothing(server: Server, image: Path) -> None:
    """429 with Retry-After, 500, cut connections: every pair is answered, in order, and once."""

    def before(body: Body, times: int) -> Any:
        number = int(caption(body).split()[1]) if caption(body) else -1
        if number >= 0 and times == 1 and number % 4 != 3:
            return [
                (429, {"Retry-After": "0.1"}, {"error": {"message": "slow down"}}),
                (500, {}, b"oops"),
                (200, {"Content-Length": "5000"}, b'{"choices": ['),
            ][number % 4]
        return None

    server.before = before
    pairs = pairs_of(image, 60)
    readings = read_all(served(server, tries=8), pairs, FLEUR, UNIT)
    assert not readings.errors
    for row, pair in enumerate(pairs):
        p = expected(pair.caption)
        np.testing.assert_allclose(np.exp(readings.answer_logp[row, 0, 0]), p["0"])
    assert set(server.succeeded.values()) == {1}
    assert len(server.succeeded) == 61


def test_each_failure_is_a_row(
    server: Server, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def odd(**place: Any) -> Any:
        answer = completion()
        answer["choices"][0]["logprobs"]["content"][2] |= place
        return answer

    bodies = {
        "html": b"<html>", "empty": {"choices": []}, "deep": b"[" * 100000,
        "null": {"choices": [{"message": {"content": "0.7"}}]},
        "huge": b" " * (17 << 20),
        "digits": odd(logprob=-(10**400)),
        "digits above": odd(top_logprobs=[{"token": "7", "logprob": 10**400}]),
        "positive": odd(logprob=0.5),
        "nan": odd(top_logprobs=[{"token": "7", "logprob": float("nan")}]),
        "no number": odd(logprob=None),
        "twice": b'{"choices": [], ' + json.dumps(completion()).encode()[1:],
    }  # fmt: skip

    def before(body: Body, times: int) -> Any:
        name = caption(body)
        if name == "slow":
            over.wait(60)
        if name == "moved":
            return 302, {"Location": "http://127.0.0.1:9/v1/chat/completions"}, {}
        return (200, {}, bodies[name]) if name in bodies else None

    def answers(body: Body) -> Any:
        words = {"words": ["I", " cannot"], "ten": ["10", ".", "5"], "whole": ["1"]}
        if caption(body) in words:
            return [(token, {token: 0.9}) for token in words[caption(body)]]
        return digits(body)

    server.before, server.answers = before, answers
    names = [*bodies, "moved", "words", "ten", "whole", "half \ud800", "good"]
    pairs = [Pair(tmp_path / "no.png", "gone"), *(Pair(image, name) for name in names)]
    backend = served(server, tries=1)
    readings = read_all(backend, pairs, FLEUR, UNIT)
    assert set(readings.errors) == set(range(len(names)))
    assert np.isnan(readings.answer_logp[:-1]).all()
    assert "302" in readings.errors[1 + names.index("moved")]
    assert "I cannot" in readings.errors[1 + names.index("words")]
    monkeypatch.setattr(backend.client._connections, "_timeout", 0.2)
    assert set(read_all(backend, [Pair(image, "slow")], FLEUR, UNIT).errors) == {0}
    over.set()


def test_caps(server: Server, image: Path) -> None:
    readings = read_all(served(server, max_requests=5), pairs_of(image, 20), FLEUR, UNIT)
    assert sum(server.paths.values()) == 5  # /tokenize is one, the trial another
    assert len(readings.errors) == 17
    assert set(readings.errors.values()) == {"not asked: max_requests=5 is reached"}
    server.asked.clear()
    # 1,000 tokens read and 4 written per request
    backend = served(server, max_cost=0.0105, prices="1,10")
    readings = read_all(backend, pairs_of(image, 20), FLEUR, UNIT)
    assert len(server.asked) == 10
    assert backend.client.throttle.spent == pytest.approx(10 * 1040e-6)
    assert "max_cost=0.0105 is reached (0.0104 spent)" in readings.errors[max(readings.errors)]
    assert len(readings.errors) == 11


@pytest.mark.parametrize("kind", ["slow", "cut"])
def test_requests_without_an_answer_cost_as_much(server: Server, image: Path, kind: str) -> None:
    """The server computed them, and may bill them."""
    over = threading.Event()

    def before(body: Body, times: int) -> Any:
        if not caption(body) or len(server.asked) % 2:
            return None
        if kind == "cut":
            return 200, {"Content-Length": "5000"}, b'{"choices": ['
        over.wait(60)
        return None

    server.before = before
    options = {"prices": "1,10", "max_cost": 0.0105, "tries": 6, "pause": 0.001}
    backend = served(server, **options, timeout=1.0 if kind == "slow" else 60.0)
    readings = read_all(backend, pairs_of(image, 20), FLEUR, UNIT)
    over.set()
    assert len(server.asked) <= 10
    assert backend.client.throttle.spent >= (len(server.asked) - 1e-6) * 1040e-6
    assert "max_cost" in backend.stopped
    assert readings.errors


def test_a_key_that_ends_in_the_middle(server: Server, image: Path) -> None:
    def before(body: Body, times: int) -> Any:
        if caption(body) == "caption 5":
            return 401, {}, {"error": {"message": f"no more for {KEY}"}}
        return None

    server.before = before
    readings = read_all(served(server, concurrency=1), pairs_of(image, 50), FLEUR, UNIT)
    assert len(server.asked) <= 8  # of two threads, either may be ahead
    assert len(readings.errors) == 52 - len(server.asked)
    assert "the key was refused (no more for ***)" in readings.errors[49]
    server.before = lambda body, times: (401, {}, {"error": {"message": KEY}})
    with pytest.raises(InputError, match=r"\(\*\*\*\)"):
        read_all(served(server), pairs_of(image, 2), FLEUR, UNIT)


def test_the_same_question_is_asked_once(server: Server, image: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes(image.read_bytes())
    pairs = [Pair(image, "a"), Pair(copy, "a"), Pair(image, "b"), Pair(image, "a")]
    readings = read_all(served(server), pairs, FLEUR, UNIT)
    assert len(server.asked) == 3
    np.testing.assert_array_equal(readings.answer_logp[0], readings.answer_logp[1])
    np.testing.assert_array_equal(readings.answer_logp[0], readings.answer_logp[3])


def test_what_is_in_the_store_is_not_asked_again(
    server: Server, image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.db"
    options: Any = {"base_url": server.url, "store": path, "image_size": 4}
    judge = discode.load("endpoint:tiny", **options)
    assert judge.batch_size == 2048
    scores = judge.score_pairs(pairs_of(image, 3))
    asked = len(server.asked)
    again = discode.load("endpoint:tiny", **options).score_pairs(pairs_of(image, 4))
    assert len(server.asked) == asked + 2  # the trial and the fourth
    np.testing.assert_array_equal(again.value[:3], scores.value)
    with ReadingStore(path) as store:
        assert next(iter(store.batches(store.run_keys()[0][0])))[0][0].image == image_digest(image)
    assert "revision:tiny-2026+4px" in str(scores.signature)
    assert f"model:tiny@{server.url[7:-3]}" in str(scores.signature)


def test_what_came_is_kept(
    server: Server, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies in the middle of a batch has kept the answers it paid for."""
    backend = served(server)
    real = backend.read

    def dying(*args: Any, **options: object) -> Iterator[Any]:
        for number, block in enumerate(real(*args)):
            if number == 2:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr(backend, "read", dying)
    monkeypatch.setattr("discode.backends._served.backend.KEPT_AFTER", 600.0)
    judge = discode.load(backend, store=tmp_path / "run.db")
    with pytest.raises(KeyboardInterrupt):
        judge.score_pairs(pairs_of(image, 200))
    assert judge.store is not None
    assert len(judge.store) == 128


def test_answers_are_kept_soon(server: Server, image: Path) -> None:
    """The first answers are handed on while the last one is still being written."""
    last = threading.Event()

    def before(body: Body, times: int) -> None:
        if caption(body) == "caption 5":
            last.wait(60)

    server.before = before
    blocks = served(server).read(pairs_of(image, 6), FLEUR, UNIT)
    first: list[int] = []
    while len(first) < 5:
        rows, readings = next(blocks)
        assert len(readings) == len(rows)
        first += rows
    assert sorted(first) == [0, 1, 2, 3, 4]
    last.set()
    assert [rows for rows, _ in blocks] == [[5]]


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://x"}, {"base_url": "http://me:secret@host/v1"},
        {"base_url": "http://host/v1?key=secret"}, {"image_size": 0}, {"concurrency": 0},
        {"rate": -1.0}, {"timeout": 0.0}, {"timeout": 1e300}, {"max_requests": 0},
        {"max_cost": 1.0}, {"prices": "cheap"}, {"prices": "-1,2"}, {"top": 0}, {"tries": 0},
        {"pause": -1.0}, {"pause": float("inf")}, {"samples": -1}, {"thinking": "maybe"},
        {"thinking_tokens": 0}, {"body": "top_k=4"}, {"body": "[1]"}, {"body": "{"},
        {"body": {"model": "x"}}, {"body": '{"n": 2}'}, {"body": {"x": {"api_key": "secret"}}},
        {"body": '{"a": [{"Authorization": "secret"}]}'}, {"body": '{"apiKey": "secret"'},
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Served("tiny", **options)
    (name,) = options
    assert name in str(caught.value) or name == "base_url"
    assert "secret" not in str(caught.value)


def test_images_as_data_urls(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(photo)
    url, *size = data_url(photo)
    assert base64.b64decode(url.removeprefix("data:image/jpeg;base64,")) == photo.read_bytes()
    assert size == [60, 40]
    url, *size = data_url(photo, 30)
    assert url.startswith("data:image/jpeg")
    assert size == [30, 20]
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(clear)
    url, *_ = data_url(clear)
    image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert image.getpixel((0, 0)) == (255, 255, 255)  # as open_image has it
    rotated = tmp_path / "rotated.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(rotated, exif=exif)
    assert data_url(rotated)[1:] == (20, 40)
    assert data_url(Image.new("RGB", (5, 6)))[0].startswith("data:image/png")
    bitmap = tmp_path / "x.bmp"
    Image.new("RGB", (5, 6)).save(bitmap)
    assert data_url(bitmap)[0].startswith("data:image/png")


def test_estimate_sends_nothing(server: Server, image: Path, tmp_path: Path) -> None:
    pairs = [*pairs_of(image, 3), Pair(image, "caption 0"), Pair(tmp_path / "no.png", "x")]
    found = served(server, prices="2,10").estimate(pairs, FLEUR, UNIT)
    assert (found.requests, found.images, found.unusable) == (3, 1, 1)
    text = len(FLEUR.render("caption 0", [], UNIT))
    assert found.bytes == 3 * (text + len(data_url(image)[0]))
    assert found.read > 3 * (text / 4 + 85)
    assert not server.paths
