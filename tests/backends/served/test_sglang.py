"""SGLang's own route, against a stand-in built from its source: every answer, or the chat route."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._prompts import FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from tests.helpers.chat_servers import Body, Place, Server, pairs_of, rater, served, serving


def unlikely(body: Body) -> list[Place]:
    """Most digits are not among the two likeliest."""
    places = rater(body)
    return [(t, p) if t in "0." else (t, {**p, "the": 0.04}) for t, p in places]


@pytest.fixture
def sglang(server: Server) -> Server:
    server.answers, server.continues, server.sglang = unlikely, True, "native"
    return server


def native(server: Server) -> list[Body]:
    return [body["native"] for body in server.asked if "native" in body]


def test_no_answer_is_missing(sglang: Server, image: Path) -> None:
    backend = served(sglang, top=2)
    readings = read_all(backend, pairs_of(image, 4), FLEUR, UNIT)
    assert not readings.errors
    assert not np.asarray(readings.truncated).any()
    with serving(answers=unlikely, continues=True) as plain:  # twenty of fifteen tokens
        whole = read_all(served(plain), pairs_of(image, 4), FLEUR, UNIT)
    np.testing.assert_allclose(readings.answer_logp, whole.answer_logp)
    np.testing.assert_allclose(readings.stem_logp, whole.stem_logp)
    asked = native(sglang)
    assert len(asked) == 1 + 4  # one to compare it with the chat route, one per pair
    assert asked[-1]["text"].startswith("<user>None<image>")
    question = FLEUR.render("caption 3", (), UNIT).strip()
    assert any(question in body["text"] for body in asked)
    assert asked[-1]["image_data"].startswith("data:image/")
    assert {chr(number) for number in asked[-1]["token_ids_logprob"]} >= {*"0123456789."}


def test_both_stems_and_other_scales(sglang: Server, image: Path) -> None:
    readings = read_all(served(sglang, read="forced"), pairs_of(image, 7), FLEUR, UNIT)
    assert not np.isnan(readings.stem_logp).any()
    begun = {body["text"].split("<assistant>")[1] for body in native(sglang)}
    assert begun >= {"", "0", "1"}
    p = {"4": 0.5, "5": 0.2, "1": 0.1, "2": 0.05, "3": 0.05}
    sglang.answers = lambda body: [("4", p)]
    readings = read_all(served(sglang, top=1), pairs_of(image, 1), FLEUR, FIVE)
    np.testing.assert_allclose(np.exp(readings.answer_logp[0, 0]), [p[d] for d in "12345"])


def test_thinking_is_switched_off_in_the_template(sglang: Server, image: Path) -> None:
    sglang.thinks = lambda body: "native" not in body and not body.get("chat_template_kwargs")
    read_all(served(sglang), pairs_of(image, 1), FLEUR, UNIT)
    assert "'enable_thinking': False" in native(sglang)[-1]["text"]


@pytest.mark.parametrize("kind", ["bos", "other numbers", "body"])
def test_the_chat_route_where_the_other_reads_otherwise(
    sglang: Server, image: Path, kind: str
) -> None:
    """A token of its own, other probabilities, or fields that it does not know."""
    options: dict[str, Any] = {}
    if kind == "bos":
        sglang.sglang = "bos"
    elif kind == "body":
        options["body"] = {"top_k": 5}
    else:
        sglang.answers = lambda body: (
            rater(body) if body["model"] else [("5", {"5": 0.99})]  # /generate names no model
        )
    readings = read_all(served(sglang, top=2, **options), pairs_of(image, 2), FLEUR, UNIT)
    assert len(native(sglang)) == (kind != "body")
    assert np.asarray(readings.truncated).all()
