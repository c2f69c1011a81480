"""Answers that are sampled: chosen by itself, in few requests, counted and priced."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._sampled import counts_of, draws_of
from tests.helpers.chat_servers import Body, Server, caption, digits, pairs_of, served


def shares(text: str) -> np.ndarray[Any, Any]:
    """The probabilities (2, 10) of the ratings that the server draws from, by its own numbers."""
    message = {"role": "user", "content": f"Caption: {text}\n"}
    first, point, decimal, end = (p for _, p in digits({"messages": [message]}))
    ends = end["<eos>"] + end["5"] + 0.0
    known = np.array([decimal[str(n)] for n in range(10)])
    known[1] += decimal["12"]  # 0.12 is read as 0.1
    zero = first["0"] * point["."] * known * ends
    one = np.zeros(10)
    one[0] = first["1"] * point["."] * decimal["0"] * end["<eos>"]  # 1.05 is off the scale
    return np.stack([zero, one])


def asked_about(server: Server) -> list[Body]:
    return [body for body in server.asked if caption(body)]


def draws_within_chance(readings: Readings, captions: list[str], n: int) -> None:
    """Each count within five standard deviations of what the server's probabilities make of it."""
    counts = counts_of(readings)
    for row, text in enumerate(captions):
        p = shares(text)
        deviation = np.sqrt(n * p * (1 - p)) + 1e-9
        assert (np.abs(counts[row] - n * p) <= 5 * deviation + 1).all()
        assert counts[row].sum() > n / 2


def test_answers_are_drawn_in_one_request(server: Server, image: Path) -> None:
    backend = served(server, samples=100)
    readings = read_all(backend, pairs_of(image, 3), FLEUR, UNIT)
    assert not readings.errors
    assert draws_of(readings).tolist() == [100] * 3
    assert set(np.asarray(readings.how)) == {"sampled 100"}
    draws_within_chance(readings, [f"caption {n}" for n in range(3)], 100)
    asked = asked_about(server)
    assert [body["n"] for body in asked] == [100] * 3
    for body in server.asked:
        assert body["temperature"] == body["top_p"] == 1  # nothing unlikely is cut off
        assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0, 1)
        assert "logprobs" not in body
    assert backend.identity.revision == "tiny-2026+sampled"
    assert backend.identity == served(server, samples=5).identity


@pytest.mark.parametrize(
    ("most", "requests"), [(1, 20), (8, 3), (0, 20)], ids=["ignores n", "at most 8", "refuses n"]
)
def test_several_requests_where_n_does_not_suffice(
    server: Server, image: Path, most: int, requests: int
) -> None:
    server.choices = most
    backend = served(server, samples=20, concurrency=1)
    readings = read_all(backend, pairs_of(image, 4), FLEUR, UNIT)
    assert draws_of(readings).tolist() == [20] * 4
    last = [body for body in asked_about(server) if caption(body) == "caption 3"]
    assert len(last) == requests
    assert len(asked_about(server)) == 4 * requests
    estimate = backend.estimate(pairs_of(image, 4), FLEUR, UNIT)
    assert estimate.requests == 4 * requests


def test_a_lower_limit_of_n(server: Server, image: Path) -> None:
    """It allows two, as the trial wants, and refuses twenty: halves are tried."""

    def before(body: Body, times: int) -> Any:
        return (400, {}, {"error": {"message": "n: too large"}}) if body.get("n", 1) > 6 else None

    server.before = before
    readings = read_all(served(server, samples=20, concurrency=1), pairs_of(image, 2), FLEUR, UNIT)
    assert draws_of(readings).tolist() == [20] * 2
    assert [body.get("n") for body in asked_about(server)] == [20, 10, 5, 5, 5, 5] + [5] * 4


def test_fields_of_sampling_that_are_refused(server: Server, image: Path) -> None:
    server.refuses = {"top_k", "min_p"}
    readings = read_all(served(server, samples=4), pairs_of(image, 2), FLEUR, UNIT)
    assert not readings.errors
    assert [body["n"] for body in asked_about(server)] == [4] * 2
    assert not any({"top_k", "min_p"} & body.keys() for body in asked_about(server))


@pytest.mark.parametrize("how", ["left out", "refused", "temperature"])
def test_without_log_probabilities_answers_are_sampled(
    server: Server, image: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "left out":
        server.logprobs = False
    elif how == "refused":
        server.refuses = {"logprobs"}
    else:  # a reasoning model allows no other than 1
        server.before = lambda body, times: (
            (400, {}, {"error": {"message": "temperature must be 1"}})
            if body["temperature"] != 1
            else None
        )
    backend = served(server)
    with caplog.at_level(logging.WARNING, "discode"):
        readings = read_all(backend, pairs_of(image, 3), FLEUR, UNIT)
        read_all(backend, pairs_of(image, 1), FLEUR, UNIT)
    assert draws_of(readings).tolist() == [20] * 3
    assert len(asked_about(server)) == 4
    (record,) = caplog.records
    assert "sampled" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert backend.samples == 20
    assert backend.identity.revision == "tiny-2026+sampled"
    with pytest.raises(InputError, match="no log-probabilities"):
        served(server, samples=0).server_features()


def test_a_model_with_log_probabilities_is_not_sampled(server: Server) -> None:
    backend = served(server)
    assert backend.samples == served(server, samples=0).samples == 0
    assert backend.identity.revision == "tiny-2026"
    with pytest.raises(InputError, match="samples=5"):
        backend.sampling(5)


def test_a_view_draws_more_of_the_same(server: Server, image: Path) -> None:
    backend = served(server, samples=20)
    view = backend.sampling(7)
    assert (backend.samples, view.samples) == (20, 7)
    assert view.identity == backend.identity
    assert view.client.throttle is backend.client.throttle
    assert draws_of(read_all(view, pairs_of(image, 2), FLEUR, UNIT)).tolist() == [7, 7]
    assert {body["n"] for body in asked_about(server)} == {7}


@pytest.mark.parametrize("separates", [True, False])
def test_samples_after_thoughts(server: Server, image: Path, separates: bool) -> None:
    server.thinks, server.separates, server.logprobs = (lambda body: True), separates, False
    backend = served(server, thinking="on")
    readings = read_all(backend, pairs_of(image, 2), FLEUR, UNIT)
    assert draws_of(readings).tolist() == [20] * 2
    draws_within_chance(readings, ["caption 0", "caption 1"], 20)
    assert backend.identity.revision == "tiny-2026+thinking+sampled"


def test_answers_without_a_rating_are_counted_as_drawn(server: Server, image: Path) -> None:
    server.answers = lambda body: [("no", {"no": 1.0})]
    readings = read_all(served(server, samples=6), pairs_of(image, 1), FLEUR, UNIT)
    assert list(readings.errors) == [0]
    assert "6" in readings.errors[0]


def test_several_servers_may_sample(image: Path, server: Server) -> None:
    server.logprobs = False
    backend = served(server, server)  # one address counts once
    assert len(backend.models) == 1
    assert backend._servers[0].differs_from(backend._servers[0]) == ""


def test_samples_are_priced(server: Server, image: Path) -> None:
    """The prompt once per request, every answer as written; no request is sent."""
    pairs = pairs_of(image, 3)
    plain = served(server, samples=0).estimate(pairs, FLEUR, UNIT)
    drawn = served(server, samples=20).estimate(pairs, FLEUR, UNIT)
    assert (drawn.requests, drawn.read) == (plain.requests, plain.read)
    assert drawn.written == 20 * plain.written
    thinking = served(server, thinking="on", thinking_tokens=500).estimate(pairs, FLEUR, UNIT)
    assert thinking.written == plain.written + 3 * 500
    assert not server.asked
    backend = served(server, samples=20, prices="1,1")
    read_all(backend, pairs, FLEUR, UNIT)
    # 1,000 tokens read per request and four written per answer; the trial has no image
    assert backend.client.throttle.written == (3 * 20 + 2) * 4
    assert backend.client.throttle.read == 4 * 1000


def test_forced_stems_and_samples_exclude_each_other(server: Server) -> None:
    with pytest.raises(InputError, match=r"read=forced.*samples"):
        served(server, samples=3, read="forced")
