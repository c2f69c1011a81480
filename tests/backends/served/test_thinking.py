"""Models that think: switched off by what the server accepts, read after the thoughts, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._served.client import _answer
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._openai import readings_from_json
from tests.helpers.chat_servers import Body, Server, caption, pairs_of, served, serving


def by_template(body: Body) -> bool:
    """As current templates: unless they are told not to."""
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", True))


def by_effort(body: Body) -> bool:
    return body.get("reasoning_effort") not in ("none", "minimal")


def only_if_told(body: Body) -> bool:
    return (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True


def always(body: Body) -> bool:
    return True


def same_answers(ours: Readings, theirs: Readings) -> None:
    assert ours.errors == theirs.errors == {}
    for name in ("answer_logp", "stem_logp", "lead_logp", "how"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def without_thinking(image: Path) -> Readings:
    with serving() as server:
        return read_all(served(server), pairs_of(image, 4), FLEUR, UNIT)


@pytest.mark.parametrize(
    ("thinks", "refuses", "part", "trials"),
    [
        (by_template, set(), "+no-thinking", 2),
        (by_template, {"reasoning_effort"}, "+no-thinking", 2),
        (by_effort, set(), "+reasoning-none", 3),
        (by_effort, {"chat_template_kwargs"}, "+reasoning-none", 3),
        (lambda body: body.get("reasoning_effort") != "minimal", set(), "+reasoning-minimal", 4),
        (only_if_told, set(), "", 1),  # as before: its key in a store stays
    ],
)
@pytest.mark.parametrize("separates", [True, False])
def test_thinking_is_switched_off(
    server: Server, image: Path, thinks: Any, refuses: set[str], part: str, trials: int,
    separates: bool,
) -> None:  # fmt: skip
    server.thinks, server.refuses, server.separates = thinks, refuses, separates
    backend = served(server)
    same_answers(read_all(backend, pairs_of(image, 4), FLEUR, UNIT), without_thinking(image))
    assert backend.identity.revision == f"tiny-2026{part}"
    asked = [body for body in server.asked if caption(body)]
    assert len(asked) == 4  # one request per pair
    assert len(server.asked) - len(asked) + (refuses == {"chat_template_kwargs"}) <= trials + 1
    fields = {"chat_template_kwargs", "reasoning_effort"}
    assert all(len(fields & body.keys()) == bool(part) for body in asked)


def test_a_template_that_begins_the_thoughts(server: Server, image: Path) -> None:
    """Only their length gives them away: ten tokens do not suffice for the trial."""
    server.thinks, server.separates, server.opens = by_template, False, False
    backend = served(server)
    same_answers(read_all(backend, pairs_of(image, 4), FLEUR, UNIT), without_thinking(image))
    assert backend.identity.revision == "tiny-2026+no-thinking"


@pytest.mark.parametrize("separates", [True, False])
@pytest.mark.parametrize("opens", [True, False])
def test_a_model_that_always_thinks_is_refused(
    server: Server, image: Path, separates: bool, opens: bool
) -> None:
    server.thinks, server.separates, server.opens = always, separates, opens
    with pytest.raises(InputError) as caught:
        read_all(served(server), pairs_of(image, 4), FLEUR, UNIT)
    for tried in ("enable_thinking", "none", "minimal", "thinking=on"):
        assert tried in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(server.seen) == {""}  # no pair was sent


def test_a_long_answer_is_no_thought(server: Server, image: Path) -> None:
    """A model that ends at the limit of tokens is asked on; its key in a store stays."""
    chatty = [(word, {word: 0.9}) for word in ["Sure", "!"] * 9]
    server.answers = lambda body: chatty
    assert served(server).identity.revision == "tiny-2026"


@pytest.mark.parametrize("thinks", [by_template, by_effort, only_if_told, always])
@pytest.mark.parametrize("separates", [True, False])
def test_ratings_after_thoughts(
    server: Server, image: Path, thinks: Callable[[Body], bool], separates: bool
) -> None:
    server.thinks, server.separates = thinks, separates
    backend = served(server, thinking="on")
    readings = read_all(backend, pairs_of(image, 4), FLEUR, UNIT)
    same_answers(readings, without_thinking(image))
    assert set(np.asarray(readings.how)) == {"generated"}
    assert backend.identity.revision == "tiny-2026+thinking"
    asked = [body for body in server.asked if caption(body)]
    assert len(asked) == 4
    assert {body["max_tokens"] for body in asked} == {2048 + 10}


def test_thoughts_that_do_not_end(server: Server, image: Path) -> None:
    """The trial ends, but the thoughts about one caption do not."""
    server.thinks = always
    backend = served(server, thinking="on", thinking_tokens=40)
    backend.server_features()
    server.thoughts = 60
    readings = read_all(backend, pairs_of(image, 1), FLEUR, UNIT)
    assert "thinking_tokens" in readings.errors[0]
    with pytest.raises(InputError, match="thinking_tokens"):
        served(server, thinking="on", thinking_tokens=40).server_features()


def test_a_model_that_never_thinks_cannot_be_told_to(server: Server) -> None:
    with pytest.raises(InputError, match="enable_thinking") as caught:
        served(server, thinking="on").server_features()
    assert "medium" in str(caught.value)
    with pytest.raises(InputError, match=r"read=forced.*thinking"):
        served(server, thinking="on", read="forced")


def test_a_body_that_switches_thinking_off(server: Server, image: Path) -> None:
    server.thinks = by_template
    backend = served(server, body='{"chat_template_kwargs": {"enable_thinking": false}}')
    assert not read_all(backend, pairs_of(image, 2), FLEUR, UNIT).errors
    assert len(server.asked) == 3
    assert backend.identity.revision.startswith("tiny-2026+body-")


def test_a_body_is_merged_into_every_request(server: Server, image: Path) -> None:
    server.thinks = by_template
    fields = {"mm_processor_kwargs": {"size": 4}, "chat_template_kwargs": {"tone": "dry"}}
    one, other = served(server, body=fields), served(server, body=dict(reversed(fields.items())))
    read_all(one, pairs_of(image, 2), FLEUR, UNIT)
    assert all(body["mm_processor_kwargs"] == {"size": 4} for body in server.asked)
    last = server.asked[-1]["chat_template_kwargs"]
    assert last == {"tone": "dry", "enable_thinking": False}
    assert one.identity == other.identity  # in whatever order
    assert one.identity != served(server, body={"mm_processor_kwargs": {}}).identity
    assert one.identity != served(server).identity


def test_recorded_answers_with_thoughts() -> None:
    """Responses that were kept: the rating within the thoughts is none."""
    top = [{"token": str(n), "logprob": np.log(0.1)} for n in range(10)]
    words = ["<think>", "0", ".", "2", "</think>", "0", ".", "7"]
    content = [{"token": word, "logprob": -0.1, "top_logprobs": top} for word in words]
    choice = {"message": {"content": "".join(words)}, "logprobs": {"content": content}}
    found = readings_from_json({"choices": [choice]}, UNIT)
    assert found is not None
    assert found[0].errors == {}
    assert found[1] == [(2, 3)]


def test_reasoning_that_is_only_counted() -> None:
    """As OpenAI reports it."""
    body = (
        b'{"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": {'
        b'"prompt_tokens": 9, "completion_tokens": 10,'
        b' "completion_tokens_details": {"reasoning_tokens": 10}}}'
    )
    answer = _answer(body)
    assert answer.thoughts
    assert answer.cut
    assert not _answer(body.replace(b'"reasoning_tokens": 10', b'"reasoning_tokens": 0')).thoughts
