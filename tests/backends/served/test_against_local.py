"""A checkpoint served over HTTP gives the same readings as the same checkpoint run locally."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="local models need discode-eval[hf]")
pytest.importorskip("transformers", reason="local models need discode-eval[hf]")

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._served.backend import Served
from tests.helpers.chat_servers import Body, Handler, Server, serving
from tests.helpers.greedy_model import GreedyModel
from tests.helpers.local_models import LOCAL_MODEL_MARKS
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS


class Model(GreedyModel):
    """A server's model."""

    def tokenize(self, body: Body) -> Any:
        ids = self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        return {"tokens": ids, "token_strs": self.tokenizer.convert_ids_to_tokens(ids)}

    def completion(self, body: Body) -> Any:
        content = body["messages"][0]["content"]
        image, text = Image.new("RGB", (16, 16)), content
        if not isinstance(content, str):
            data = content[0]["image_url"]["url"].partition(",")[2]
            image = Image.open(io.BytesIO(base64.b64decode(data)))
            text = content[1]["text"]
        begun = body["messages"][1]["content"] if body.get("continue_final_message") else ""
        wanted = body.get("logprob_token_ids"), body["top_logprobs"]
        places = []
        for likely in self.write(image, text, begun, body["max_tokens"], *wanted):
            named = [{"token": self.text(i), "logprob": logp} for i, logp in likely.items()]
            places.append(named[0] | {"top_logprobs": named})
        text = "".join(str(place["token"]) for place in places)
        choice = {"message": {"content": text}, "logprobs": {"content": places}}
        return {"model": body["model"], "choices": [choice]}


# Byte-level with numbers of two digits; SentencePiece; byte-level with single digits.
FAMILIES = (
    "llava_next_llama",
    pytest.param("llava_next_mistral", marks=pytest.mark.full),
    pytest.param("llava_next_qwen2", marks=pytest.mark.full),
)


@pytest.fixture(scope="module", params=FAMILIES)
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Local:
    folder = tmp_path_factory.mktemp("llava") / "llava"
    return Local(make(request.param, folder, answers=True, begins="rating"), device="cpu")


@pytest.fixture
def server(local: Local) -> Iterator[Server]:
    model = Model(local)

    def post(handler: Handler, body: Body) -> Any:
        with handler.server.lock:  # one forward at a time
            handler.server.asked.append(body)
            if handler.path == "/tokenize":
                return model.tokenize(body)
            return model.completion(body)

    with serving(post=post) as server:
        yield server


@pytest.fixture
def pairs(image: Path, tmp_path: Path) -> list[Pair]:
    rng = np.random.default_rng(0)
    other = tmp_path / "other.png"
    Image.fromarray(rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(other)
    pairs = [Pair(image, "a dog"), Pair(other, "a dog"), Pair(other, "two cats, one of 7 sleeps")]
    return [*pairs, Pair(image, "a man on a bike", ("a man rides", "a bike"))]


def test_the_same_readings(server: Server, local: Local, pairs: list[Pair]) -> None:
    backend = Served("tiny", base_url=server.url)
    far = read_all(backend, pairs, FLEUR, UNIT)
    near = read_all(local, pairs, FLEUR, UNIT)
    assert backend.server_features().token_ids
    assert not far.errors
    assert not np.asarray(far.truncated).any()
    stem = np.nan_to_num(far.stem_logp, nan=-np.inf).argmax(axis=1)
    rows = np.arange(len(pairs))
    np.testing.assert_array_equal(stem, near.stem_logp.argmax(axis=1))
    assert far.lead_logp is not None
    assert near.lead_logp is not None
    for name in ("answer_logp", "stem_logp", "lead_logp"):
        ours, theirs = getattr(far, name)[rows, stem], getattr(near, name)[rows, stem]
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    np.testing.assert_allclose(far.lead_logp, near.lead_logp, atol=1e-4, rtol=0)
    assert "logprob_token_ids" in server.asked[-1]


def test_both_stems(server: Server, local: Local, pairs: list[Pair]) -> None:
    """With begun answers nothing is missing: the local model reads the same in one pass."""
    backend = Served("tiny", base_url=server.url, read="forced")
    far, near = read_all(backend, pairs, FLEUR, UNIT), read_all(local, pairs, FLEUR, UNIT)
    assert backend.identity.revision == "forced"
    assert not far.errors
    assert set(np.asarray(far.how)) == {"forced"}
    for name in ("answer_logp", "stem_logp", "lead_logp"):
        np.testing.assert_allclose(
            getattr(far, name), getattr(near, name), atol=1e-4, rtol=0, err_msg=name
        )
    assert near.second_logp is not None
    second = np.full((len(pairs), 10), np.nan)
    second = second if far.second_logp is None else far.second_logp
    np.testing.assert_allclose(second, near.second_logp, atol=1e-4, rtol=0)
