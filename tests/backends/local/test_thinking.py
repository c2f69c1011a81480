"""Models that think: the template's switch, and the rating after the thoughts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers as hf

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.check import check_model
from discode.backends._local.vocabulary import Vocabulary
from discode.errors import InputError
from tests.helpers.local_models import LOCAL_MODEL_MARKS, count_generated, noise_images
from tests.helpers.tiny_thinking import make_thinking, parts

pytestmark = LOCAL_MODEL_MARKS
PAIRS = [Pair(image, text) for image in noise_images((80, 60)) for text in ("a dog runs", "x")]
BLOCK = "<think>\n\n</think>\n\n"


def revision(backend: Local) -> list[str]:
    return backend.identity.revision.split("+")[1:]


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3"])
def test_a_switch_is_used(name: str, tmp_path: Path) -> None:
    folder = make_thinking(name, tmp_path / name)
    backend = Local(folder, device="cpu")
    assert backend.runner.vocabulary.chat("a dog").endswith(BLOCK)
    assert "thinking=off" in revision(backend)
    with count_generated(backend) as count:
        said = read_all(backend, PAIRS, FLEUR, UNIT)
    assert not count
    assert set(np.asarray(said.how)) == {"forced"}
    assert np.exp(np.asarray(said.lead_logp)).sum(axis=1).min() > 0.9
    # the processor's own prompt, with the image, has the same end
    ids, _ = backend.runner.process("a dog", PAIRS[0].image)
    assert backend.runner.vocabulary.tokenizer.decode(ids[0]).endswith(BLOCK)


@pytest.mark.parametrize("name", ["qwen3_vl_thinking", "qwen3_5", "qwen3", "glm4v"])
def test_the_rating_after_the_thoughts_is_read(name: str, tmp_path: Path) -> None:
    folder = make_thinking(name, tmp_path / name)
    backend = Local(folder, device="cpu", thinking="on", thinking_tokens=8)
    assert revision(backend)[-1] == "thinking"
    said = read_all(backend, PAIRS, FLEUR, UNIT, hidden=True)
    assert not said.errors
    assert set(np.asarray(said.how)) == {"generated"}
    # the oracle: generate's own distributions where it wrote the first decimal
    vocabulary = backend.runner.vocabulary
    tokenized = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    group, _ = backend._prepare(PAIRS, [0, 1], tokenized)
    for row in range(2):
        ids, inputs = backend.runner.whole_prompt(group, row)
        made = backend.runner.model.generate(
            input_ids=ids, **inputs, max_new_tokens=12, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        tokens = made.sequences[0, ids.shape[1] :].tolist()
        written = vocabulary.tokenizer.decode(tokens, skip_special_tokens=False)
        thoughts, answer = written.split("</think>")
        assert "the" in thoughts
        stem = UNIT.stems.index(answer[:2])
        at = tokens.index(vocabulary.tokenizer.convert_tokens_to_ids("</think>")) + 3
        logp = made.logits[at][0].double().log_softmax(-1)
        expected = [float(logp[list(group)].logsumexp(-1)) for group in tokenized.answers[stem]]
        assert said.answer_logp[row, stem] == pytest.approx(expected, abs=1e-4)


def test_a_model_without_thoughts_is_as_before(tmp_path: Path) -> None:
    folder = make_thinking("qwen3_vl", tmp_path / "instruct")
    backend = Local(folder, device="cpu")
    assert backend._model.vocabulary.template_options == {}
    assert revision(backend) == ["second"]
    on = Local(folder, device="cpu", thinking="on")
    assert set(np.asarray(read_all(on, PAIRS, FLEUR, UNIT).how)) == {"generated"}


def test_a_template_that_always_thinks_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = make_thinking("qwen3_vl_thinking", tmp_path / "thinks")
    with pytest.raises(InputError, match=r"enable_thinking.*thinking=on") as refused:
        Local(folder, device="cpu")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="always thinks"):  # before its weights are downloaded
        check_model(str(folder))


def test_a_model_that_thinks_without_a_switch_fails_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_thinking("glm4v", tmp_path / "glm")
    backend = Local(folder, device="cpu")
    # its tiny thoughts would end in time; the real model's do not
    monkeypatch.setattr("discode.backends._local.backend.MAX_NEW_TOKENS", 2)
    said = read_all(backend, PAIRS, FLEUR, UNIT)
    assert list(said.errors) == [0, 1]
    assert all("without enable_thinking" in reason for reason in said.errors.values())
    on = Local(folder, device="cpu", thinking="on", thinking_tokens=1)
    monkeypatch.setattr("discode.backends._local.backend.MAX_NEW_TOKENS", 1)
    said = read_all(on, PAIRS, FLEUR, UNIT)
    assert all("thinking_tokens" in reason for reason in said.errors.values())
    assert np.isnan(said.answer_logp).all()


def test_thoughts_and_a_forced_answer_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="read=forced"):
        Local(tmp_path, thinking="on", read="forced")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>0.2 or 0.3</think>\n0.8", "\n0.8"),
        ("0.8", "0.8"),
        ("the</think> a <think> b </think>0.7", "0.7"),
        ("<think> 0.8", None),
        ("Final Score: 0.4", " 0.4"),
        ("a dog [RESULT] 3", " 3"),
    ],
)
def test_where_the_answer_begins(text: str, answer: str | None) -> None:
    vocabulary = Vocabulary(parts("glm4v").processor.tokenizer)
    tokens = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    start = vocabulary.answer_start(tokens, len(tokens))
    assert (None if start is None else vocabulary._text(tokens[start:])) == answer


def test_an_unfinished_explanation_has_no_rating() -> None:
    vocabulary = Vocabulary(parts("glm4v").processor.tokenizer, "on")
    for text, cut, whole in (("3 dogs", None, 0), ("3 dogs [RESULT] 4", 1, 1)):
        tokens = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
        for most, expected in ((len(tokens), cut), (len(tokens) + 1, whole)):
            start = vocabulary.answer_start(tokens, most)
            assert (start is None, bool(start)) == (expected is None, bool(expected))


class _Template:
    """A processor that has only a chat template, rendered as transformers does."""

    def __init__(self, template: str, special: Sequence[str] = ()) -> None:
        self.chat_template = template
        self.tokenizer = SimpleNamespace(
            get_added_vocab=dict, all_special_tokens=list(special), chat_template=template
        )

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        del options["tokenize"]
        chats, _ = hf.utils.chat_template_utils.render_jinja_template(
            [conversation], chat_template=self.chat_template, bos_token="<bos>", **options
        )
        return str(chats[0])


@pytest.mark.data
@pytest.mark.parametrize("folder", ["gemma3", "qwen2_5_vl"])
def test_real_templates_without_thoughts(folder: str, data: Path) -> None:
    text = (data / "tokenizers" / folder / "chat_template.json").read_text()
    template = json.loads(text)["chat_template"]
    for thinking in ("off", "on"):
        vocabulary = Vocabulary(_Template(template), thinking)
        assert vocabulary.template_options == {}
        assert vocabulary.chat("a dog").endswith(("model\n", "assistant\n"))


# What the published template of GLM-4.5V adds to the question, as a stand-in for the whole.
_NO_THINK = (
    "{% for m in messages %}<|user|>\n{{ m.content[1].text }}"
    "{{ '/nothink' if (enable_thinking is defined and not enable_thinking) else '' }}{% endfor %}"
    "<|assistant|>\n"
)


def test_a_switch_in_the_question_is_used() -> None:
    off, on = (Vocabulary(_Template(_NO_THINK), thinking) for thinking in ("off", "on"))
    assert "/nothink" in off.chat("a dog")
    assert off.template_options == {"enable_thinking": False}
    assert "/nothink" not in on.chat("a dog")
    assert on.template_options == {}
