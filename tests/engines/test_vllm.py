"""vLLM by Ray's processor, with a stand-in for the processor: requests out, answers in."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discode
from discode.engines.vllm import TOP, answer, score_vllm, token_row
from discode.errors import InputError
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings
from discode.scales import UNIT, Scale
from discode.streams import score_stream
from tests.streams.conftest import png, read_parts

pytest.importorskip("ray.data", reason="Ray is tested with discode[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    # Ray leaves sockets and files to the collector, and warns of its own coming changes.
    pytest.mark.filterwarnings("ignore"),
]


def distribution(caption: str, kind: int, k: int) -> np.ndarray:
    rng = np.random.default_rng([sum(caption.encode()), kind])
    logits = rng.normal(size=k)
    return np.asarray(logits - np.logaddexp.reduce(logits) - 0.05)


class Oracle:
    """What the stand-in says, read without Ray."""

    identity = Identity("org/model", "none", "auto")
    capabilities: frozenset[str] = frozenset()
    prompt: Prompt = FLEUR
    scale: Scale = UNIT

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        answers = np.full((len(pairs), len(scale.stems), len(scale.answers)), math.nan)
        stems = np.full((len(pairs), len(scale.stems)), math.nan)
        for i, pair in enumerate(pairs):
            answers[i, 0] = distribution(pair.caption, 0, len(scale.answers))
            if len(scale.stems) > 1:
                stems[i] = distribution(pair.caption, 1, 2)
        errors = {i: "vLLM: too long" for i, pair in enumerate(pairs) if "fails" in pair.caption}
        answers[list(errors)] = math.nan
        return Readings(scale, answers, stems, errors=errors)


def say(row: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request as vLLM does through Ray."""
    sampling = row["sampling_params"]
    assert (sampling["max_tokens"], sampling["logprobs"]) == (1, TOP)
    user, *begun = row["messages"]
    if user["content"] == "-":
        return answer({**row, "logprobs": [{}]})
    picture, text = user["content"]
    data = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == (8, 8)
    caption = text["text"].partition("Caption: ")[2].partition("\n")[0]
    if "fails" in caption:
        return answer({**row, "logprobs": None}) | {"__inference_error__": "too long"}
    five = "from 1 to 5" in text["text"]
    if begun:
        assert begun[0] == {"role": "assistant", "content": "0."}
        tokens, logp = list("0123456789"), distribution(caption, 0, 10)
    elif five:
        tokens, logp = list("12345"), distribution(caption, 0, 5)
    else:
        tokens, logp = ["▁0", "1"], distribution(caption, 1, 2)
    entry = {i: {"logprob": float(v), "rank": 1, "decoded_token": t}
             for i, (t, v) in enumerate(zip(tokens, logp, strict=True))}  # fmt: skip
    return answer({**row, "logprobs": [entry]}) | {"__inference_error__": ""}


def processor(data: Any) -> Any:
    return data.map(say)


@pytest.mark.parametrize("scale", ["unit", "five"])
def test_scores_are_those_of_the_same_answers_in_process(tmp_path: Path, scale: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    rows = [{"image": "a.png", "caption": f"caption {i}"} for i in range(40)]
    rows[3]["image"] = "gone.png"
    rows[5] = {"image": "a.png", "caption": "this one fails"}
    lines = [json.dumps(row) for row in rows]
    lines[7] = "{broken"
    (tmp_path / "set.jsonl").write_text("\n".join([*lines, *["{broken"] * 8]))
    source, options = tmp_path / "set.jsonl", {"images": tmp_path, "shard_size": 8}
    totals = score_vllm(
        "org/model", source, tmp_path / "a", scale=scale, processor=processor,
        images=tmp_path, shard_size=8,
    )  # fmt: skip
    judge = discode.load(Oracle(), scale=scale)
    score_stream(judge, source, tmp_path / "b", **options)  # type: ignore[arg-type]
    got, want = read_parts(tmp_path / "a"), read_parts(tmp_path / "b")
    assert len(got) == 48
    assert (totals.rows, totals.failed) == (48, 11)
    for left, right in zip(got, want, strict=True):
        if left["row"] == 3:  # the oracle never opens a picture
            assert "cannot read" in str(left["error"])
            continue
        assert left["signature"] == right["signature"]
        assert left["error"] == right["error"]
        assert left["score"] == (
            None if right["score"] is None else pytest.approx(right["score"], abs=1e-12)
        )


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "set.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="cannot read"):
        score_vllm("m", tmp_path / "set.parquet", tmp_path / "out", processor=processor)
    with pytest.raises(InputError, match="missing='zero'"):
        score_vllm("m", tmp_path / "set.parquet", tmp_path / "out", missing="zero")
    with pytest.raises(InputError, match="hidden"):
        score_vllm("m", tmp_path / "set.parquet", tmp_path / "out", method="discode:solver=adam")


def test_tokens_of_one_text_are_added_up() -> None:
    entry = [{1: {"logprob": math.log(0.2), "decoded_token": "7"},
              2: {"logprob": math.log(0.3), "decoded_token": "7"},
              3: {"logprob": -math.inf, "decoded_token": "8"},
              4: {"logprob": -1.0, "decoded_token": None}}]  # fmt: skip
    assert token_row(entry) == {"7": pytest.approx(math.log(0.5))}
    assert token_row(None) == {}
