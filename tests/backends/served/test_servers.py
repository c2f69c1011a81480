"""Which images a server is sent and keeps, several servers, and answers that are begun for it."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from discode.backends._served.schedule import WORTH_SHARING
from discode.backends._served.transport import Connections
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.chat_servers import (
    Body,
    Server,
    begun,
    caption,
    pairs_of,
    rater,
    served,
    serving,
)

CUT = (200, {"Content-Length": "5000"}, b'{"choices": [')
VLLM: dict[str, Any] = {"tokens": True, "continues": True, "keeps": 100, "answers": rater}


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(**VLLM)) for _ in range(3)]


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    """Seven captions of each of nine images, those of an image apart."""
    images = [tmp_path / f"{n}.png" for n in range(9)]
    for n, path in enumerate(images):
        Image.new("RGB", (8, 8), (n, 9, 9)).save(path)
    return [Pair(image, f"caption {n} {image.stem}") for n in range(7) for image in images]


def same(ours: Readings, theirs: Readings) -> None:
    assert ours.errors == theirs.errors == {}
    for name in ("answer_logp", "stem_logp", "lead_logp", "how"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def without_keeping(pairs: list[Pair], **options: Any) -> Readings:
    """What a server says that is sent the image each time."""
    with serving(**VLLM | {"keeps": 0}) as server:
        return read_all(served(server, **options), pairs, FLEUR, UNIT)


def asked_about(server: Server) -> list[Body]:
    return [body for body in server.asked if caption(body) and body["image"]]


@pytest.mark.parametrize("read", ["auto", "forced"])
def test_an_image_is_sent_once(servers: list[Server], pairs: list[Pair], read: str) -> None:
    server = servers[0]
    backend = served(server, read=read)
    same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs, read=read))
    assert server.uploads == 9 + 1  # one to find out
    first = [body for body in asked_about(server) if body["messages"][0]["content"][0]["image_url"]]
    assert len({body["messages"][0]["content"][0]["uuid"] for body in first}) == 9
    assert "uuid" not in backend.identity.revision


def test_captions_of_an_image_wait_for_its_first(server: Server, pairs: list[Pair]) -> None:
    """Also where images are sent each time: the server's own cache has it then."""
    early = []

    def before(body: Body, times: int) -> None:
        image = caption(body)[-1:]
        asked = [name for name in server.seen.copy() if image and name.endswith(image)]
        if len(asked) > 1 and not any(name in server.succeeded for name in asked):
            early.append(asked)

    server.before = before
    read_all(served(server), pairs, FLEUR, UNIT)
    assert len(server.succeeded) == len(pairs) + 1
    assert not early


def test_a_server_that_ignores_names_is_sent_every_image(server: Server, pairs: list[Pair]) -> None:
    server.tokens, server.answers = True, rater
    same(read_all(served(server), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert server.uploads == len(pairs)
    assert not any("uuid" in body["messages"][0]["content"][0] for body in asked_about(server))


@pytest.mark.parametrize("status", [400, 500, 0])
def test_a_server_that_cannot_do_without_the_image(
    servers: list[Server], pairs: list[Pair], status: int
) -> None:
    def before(body: Body, times: int) -> Any:
        content = body["messages"][0]["content"]
        if isinstance(content, str) or content[0]["image_url"] is not None:
            return None
        return (status, {}, {"error": {"message": "image_url: none"}}) if status else CUT

    servers[0].before = before
    same(read_all(served(servers[0], tries=8), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert servers[0].uploads >= len(pairs)


@pytest.mark.parametrize("keeps", [1, 4])
def test_images_that_a_server_drops(servers: list[Server], pairs: list[Pair], keeps: int) -> None:
    """They are sent again, and where that happens often, every time."""
    servers[0].keeps = keeps
    same(read_all(served(servers[0]), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert servers[0].uploads > 9


def test_connections_that_drop_cost_no_row(servers: list[Server], pairs: list[Pair]) -> None:
    def before(body: Body, times: int) -> Any:
        return CUT if caption(body) and times == 1 and sum(caption(body).encode()) % 3 else None

    servers[0].before = before
    same(read_all(served(servers[0]), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert servers[0].uploads < len(pairs)


def test_several_servers_read_alike(servers: list[Server], pairs: list[Pair]) -> None:
    backend = served(*servers)
    same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs))
    answered = [caption(body) for server in servers for body in asked_about(server)]
    assert sorted(answered) == sorted(pair.caption for pair in pairs)
    assert sum(server.uploads - 1 for server in servers) == 9  # each image to one server
    assert backend.identity == served(servers[0]).identity


@pytest.mark.parametrize("images", [2, 9])
def test_few_requests_are_spread(servers: list[Server], pairs: list[Pair], images: int) -> None:
    read_all(served(*servers[:2]), pairs[:images], FLEUR, UNIT)
    counts = [len(asked_about(server)) for server in servers[:2]]
    assert sorted(counts) == [images // 2, images - images // 2]


def test_an_image_of_many_captions_is_shared(servers: list[Server], image: Path) -> None:
    pairs = pairs_of(image, 12 * WORTH_SHARING)
    same(read_all(served(*servers, concurrency=4), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert all(len(asked_about(server)) > WORTH_SHARING for server in servers)


@pytest.mark.parametrize("count", [2, 3])
def test_a_server_that_dies_gives_its_work_to_the_others(
    servers: list[Server], pairs: list[Pair], caplog: pytest.LogCaptureFixture, count: int
) -> None:
    fifth = threading.Lock()

    def before(server: Server) -> Any:
        def die(body: Body, times: int) -> Any:
            if not server.dead and len(asked_about(server)) >= 5 and fifth.acquire(blocking=False):
                server.die()
            return CUT if server.dead else None

        return die

    for server in servers:
        server.before = before(server)
    backend = served(*servers[:count], tries=8)
    with caplog.at_level(logging.WARNING, "discode"):
        same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs))
    (dead,) = [server for server in servers if server.dead]
    assert not backend.stopped
    assert [dead.url in row.getMessage() for row in caplog.records] == [True]


def test_when_all_are_dead_nothing_more_is_asked(servers: list[Server], pairs: list[Pair]) -> None:
    backend = served(*servers[:2])
    backend.server_features()
    for server in servers[:2]:
        server.die()
    readings = read_all(backend, pairs, FLEUR, UNIT)
    assert set(readings.errors) == set(range(len(pairs)))
    assert "cannot be reached" in backend.stopped


def test_servers_that_are_not_there_at_first(
    servers: list[Server], pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    servers[0].die()
    with caplog.at_level(logging.WARNING, "discode"):
        same(read_all(served(*servers[:2]), pairs, FLEUR, UNIT), without_keeping(pairs))
    assert servers[0].url in caplog.text
    servers[1].die()
    with pytest.raises(InputError, match=servers[1].url):
        read_all(served(*servers[:2]), pairs, FLEUR, UNIT)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """The paths that servers were asked for which give no answer in time, by their ports."""
    paths: dict[int, list[str]] = {}
    real = Connections.post

    async def post(connections: Connections, url: str, *rest: Any) -> Any:
        asked = httpx.URL(url)
        if asked.port not in paths:
            return await real(connections, url, *rest)
        paths[asked.port].append(asked.path)
        raise httpx.ReadTimeout("too slow")

    monkeypatch.setattr(Connections, "post", post)
    monkeypatch.setattr("discode.backends._served.backend.REST", math.inf)
    return paths


@pytest.mark.parametrize("place", [0, 1])
def test_a_server_that_is_silent_from_the_start(
    servers: list[Server], pairs: list[Pair], silent: dict[int, list[str]], place: int
) -> None:
    """It is waited for once, rests, and supports what the others do when it is there again."""
    port = servers[place].server_port
    silent[port] = []
    backend = served(*servers[:2], tries=8)
    for _ in range(2):
        same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs))
    assert silent.pop(port) == ["/tokenize", "/v1/chat/completions"]
    backend._servers[place].rests_until = 0.0
    same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs))
    assert servers[place].asked


def test_when_no_server_answers_the_last_one_is_tried_again(
    servers: list[Server], silent: dict[int, list[str]]
) -> None:
    silent |= {server.server_port: [] for server in servers[:2]}
    with pytest.raises(InputError, match=servers[1].url):
        served(*servers[:2], tries=3, pause=0).server_features()
    assert [*map(len, silent.values())] == [2, 4]  # /tokenize, and the trial


@pytest.mark.parametrize("body", [b"<html>", {"choices": []}, {"choices": 3}])
def test_a_server_that_answers_something_else_is_named(
    servers: list[Server], pairs: list[Pair], body: Any
) -> None:
    servers[1].before = lambda _, times: (200, {}, body)
    with pytest.raises(InputError) as caught:
        read_all(served(*servers[:2]), pairs, FLEUR, UNIT)
    hosts = [server.url[7:-3] in str(caught.value) for server in servers]
    assert hosts == [False, True, False]
    assert not re.search(r"Error\b|list index|subscriptable|object", str(caught.value))


def test_servers_of_different_models_are_refused(servers: list[Server], pairs: list[Pair]) -> None:
    def other(body: Body, times: int) -> Any:
        completion = {"content": [{"token": "5", "top_logprobs": [{"token": "5", "logprob": -1}]}]}
        choice = {"message": {"content": "5"}, "logprobs": completion}
        return 200, {}, {"model": "other", "choices": [choice]}

    servers[1].before = other
    with pytest.raises(InputError) as caught:
        read_all(served(*servers[:2]), pairs, FLEUR, UNIT)
    assert servers[0].url in str(caught.value)
    assert servers[1].url in str(caught.value)
    assert not any(map(asked_about, servers))
    with pytest.raises(InputError, match="base_url"):
        discode.load("endpoint:tiny", base_url=f"{servers[0].url},ftp://x")


def test_servers_of_other_weights_are_refused(servers: list[Server], pairs: list[Pair]) -> None:
    """Each log-probability moves by rounding, which is allowed, or by much more."""
    rng = np.random.default_rng(0)

    def moved(scale: float) -> Any:
        def answers(body: Body) -> Any:
            return [
                (text, {t: min(1.0, q * math.exp(rng.normal(scale=scale))) for t, q in p.items()})
                for text, p in rater(body)
            ]

        return answers

    for servers[1].answers in [moved(0.05)] * 20:
        served(*servers[:2]).server_features()
    for servers[1].answers in [moved(1.0)] * 20:
        with pytest.raises(InputError) as caught:
            served(*servers[:2]).server_features()
        assert servers[0].url in str(caught.value)
        assert servers[1].url in str(caught.value)


def test_the_signature_names_the_server_that_answered(
    servers: list[Server], pairs: list[Pair], silent: dict[int, list[str]]
) -> None:
    """Also when the first one is there again, and when the one that is named is gone."""
    silent[servers[0].server_port] = []
    backend = served(*servers)
    identity = served(servers[1]).identity
    assert backend.identity == identity
    silent.clear()
    backend._servers[0].rests_until = 0.0
    same(read_all(backend, pairs, FLEUR, UNIT), without_keeping(pairs))
    assert asked_about(servers[0])
    assert backend.identity == identity
    servers[1].die()
    servers[2].answers = lambda body: [("5", {"5": 0.9})]
    backend._servers[2].features = None
    with pytest.raises(InputError, match=servers[2].url):
        read_all(backend, pairs, FLEUR, UNIT)


def test_both_stems(server: Server, pairs: list[Pair]) -> None:
    server.continues, server.answers = True, rater
    backend = served(server, read="forced")
    readings = read_all(backend, pairs, FLEUR, UNIT)
    assert not readings.errors
    assert readings.lead_logp is not None
    assert set(np.asarray(readings.how)) == {"forced"}
    assert backend.identity.revision == "tiny-2026+forced"
    joint = discode.decode(readings, "smoothing:stem=joint")
    assert not np.isnan(joint.value).any()
    one = discode.load(served(server), method="smoothing:stem=joint").score_pairs(pairs[:1])
    assert "read=forced" in one.errors[0]
    server.asked.clear()
    read_all(backend, pairs, FLEUR, UNIT)
    assert 2 <= len(server.asked) / len(pairs) < 2.2


def test_servers_that_do_not_go_on(server: Server, image: Path) -> None:
    """One ignores what was begun, another refuses it: then the model's own words are all."""

    def answers(body: Body) -> Any:
        point, eight = (".", {".": 0.9}), ("8", {"8": 0.9})
        return (
            [("1", {"0": 0.3, "1": 0.6}), point, eight] if caption(body) == "1.8" else rater(body)
        )

    server.answers = answers
    pairs = [*pairs_of(image, 9), Pair(image, "1.8")]
    refusal: Any = 400, {}, {"error": {"message": "no"}}
    for refuses in (False, True):
        server.before = lambda body, times, refuses=refuses: (  # type: ignore[misc]  # the loop's own
            refusal if refuses and begun(body) else None
        )
        asked = len(server.asked)
        assert set(read_all(served(server), pairs, FLEUR, UNIT).errors) == {9}
        assert len(server.asked) - asked == 1 + 10 + 2
        with pytest.raises(InputError, match="read"):
            read_all(served(server, read="forced"), pairs, FLEUR, UNIT)


@pytest.mark.parametrize("short", [True, False])
def test_what_the_trial_of_begun_answers_bears(server: Server, short: bool) -> None:
    """A model that ends at once, and numbers that are rounded otherwise in each batch."""
    rng = np.random.default_rng(0)

    def answers(body: Body) -> Any:
        if short and not begun(body):
            return [("8", {"8": 0.9, "0": 0.1})]
        words = begun(body).removeprefix("The rating is")
        said = [body["messages"][0], {"role": "assistant", "content": words}]
        places = rater(body | {"messages": said})
        return [(text, rounded(p | {"?": 1 - sum(p.values())})) for text, p in places]

    def rounded(p: dict[str, float]) -> dict[str, float]:
        noisy = {text: q * math.exp(rng.normal(scale=0.1)) for text, q in p.items() if q > 0}
        return {text: q / sum(noisy.values()) for text, q in noisy.items()}

    server.answers = answers
    for server.continues in [True] * 10:
        served(server, read="forced").server_features()
    for server.continues in [False] * 10:
        with pytest.raises(InputError, match="read"):
            served(server, read="forced").server_features()


def test_a_model_that_writes_something_else(server: Server, image: Path) -> None:
    """Where it would begin with a rating, both stems are read; else only if that is forced."""

    def answers(body: Body) -> Any:
        if caption(body) == "prose" and not begun(body):
            return [("the", {"the": 0.9, "0": 0.06, "1": 0.01}), ("<eos>", {"<eos>": 0.9})]
        if caption(body) == "beyond" and not begun(body):
            digit = ("8", {"8": 0.9, "0": 0.1})
            return [("1", {"0": 0.3, "1": 0.6}), (".", {".": 0.9}), digit]
        if caption(body) == "late" and begun(body) in ("", "the 1"):
            words = [("the", {"the": 0.9}), (" ", {" ": 0.9})] if not begun(body) else []
            return [*words, *(rater(body) if words else rater(body | {"messages": late(body)}))]
        return rater(body)

    def late(body: Body) -> Any:
        return [body["messages"][0], {"role": "assistant", "content": "1"}]

    server.continues, server.answers = True, answers
    pairs = [Pair(image, name) for name in ("prose", "beyond", "late", "plain")]
    assert set(read_all(served(server, read="generate"), pairs, FLEUR, UNIT).errors) == {0, 1}
    own = read_all(served(server), pairs, FLEUR, UNIT)
    assert set(own.errors) == {0}
    assert np.asarray(own.how).tolist()[1:] == ["forced", "generated", "generated"]
    assert np.isnan(own.stem_logp).any(axis=1).tolist() == [True, False, True, True]
    forced = read_all(served(server, read="forced"), pairs, FLEUR, UNIT)
    assert not forced.errors
    assert np.asarray(forced.how).tolist() == ["forced", "forced", "generated", "forced"]
    assert forced.lead_logp is not None
    np.testing.assert_allclose(forced.lead_logp[0], np.log([0.06, 0.01]))
    assert not np.isnan(forced.stem_logp).any()
    assert not np.isnan(forced.answer_logp).any()
    np.testing.assert_array_equal(forced.answer_logp[1], own.answer_logp[1])


def test_other_scales_need_no_second_request(server: Server, image: Path) -> None:
    server.continues = True
    server.answers = lambda body: (
        [("4", {"4": 0.5, "5": 0.2, "1": 0.1, "2": 0.05, "3": 0.05})]
        if body["image"]
        else rater(body)
    )
    backend = served(server, read="forced")
    assert not read_all(backend, pairs_of(image, 4), FLEUR, FIVE).errors
    assert len(asked_about(server)) == 4
    estimate = {scale: backend.estimate(pairs_of(image, 4), FLEUR, scale) for scale in (FIVE, UNIT)}
    assert estimate[UNIT].requests == 2 * estimate[FIVE].requests == 8
