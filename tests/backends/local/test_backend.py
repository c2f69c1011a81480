"""Local models on tiny checkpoints of the real classes: packed equals separate equals generate."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discode
from discode._pairs import Pair
from discode._prompts import CAPTION_LAST, FLEUR
from discode._scales import FIVE, LETTERS, UNIT, get_scale
from discode.backends import read_all
from discode.backends._local import backend as backend_module
from discode.backends._local import forward
from discode.backends._local.backend import IMAGES_AHEAD, Local
from discode.backends._local.random_weights import random_model
from discode.errors import InputError
from discode.images import image_digest
from tests.helpers.local_models import (
    LOCAL_MODEL_MARKS,
    largest_difference,
    noise_image,
    noise_images,
)
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED, ask, make

pytestmark = LOCAL_MODEL_MARKS

CAPTIONS = ["a dog runs", "x", "two men on a boat near the long wharf of a harbour at night " * 4]


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = str(request.param)
    return make(name, tmp_path_factory.mktemp("tiny") / name)


def test_packed_equals_plain_equals_the_processor_itself(family: Path) -> None:
    backend = Local(family, device="cpu", read="forced")
    assert backend.runner.packed == (family.name not in UNPACKED)
    identity = backend.identity  # found before the weights
    assert str(backend.runner.model.dtype) == f"torch.{identity.dtype}"
    spaced = backend.runner.vocabulary.may_begin_with_space("a")
    assert ("space" in identity.revision.split("+")) == spaced
    images = noise_images((90, 60), (90, 60), (50, 120))
    pairs = [Pair(image, text) for image in images for text in [*CAPTIONS, CAPTIONS[0]]]
    packed = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    backend.runner.packed = False
    plain = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    assert largest_difference(packed, plain) < 1e-4
    for other in (1, 4):  # another caption, another image: no constants are compared
        assert largest_difference(packed.take([0]), packed.take([other])) > 1e-3
    assert packed.hidden is not None
    assert plain.hidden is not None
    assert np.abs(packed.hidden - plain.hidden).max() < 1e-4
    # the oracle: the processor's own ids, the model's own generate, its first step
    text = FLEUR.render(CAPTIONS[0], (), UNIT)
    inputs = ask(backend.runner.processor, images[2], text)
    said = backend.runner.model.generate(
        **inputs,
        max_new_tokens=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logp = said.logits[0][0].log_softmax(-1)
    vocabulary = backend.runner.vocabulary
    tokenized = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    without_space = replace(tokenized, spellings=tokenized.spellings[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "tokenize_prompt", lambda *_, **__: without_space)
        lead = read_all(backend, pairs[8:9], FLEUR, UNIT).lead_logp
    assert lead is not None
    for stem in range(2):
        assert abs(lead[0, stem] - float(logp[tokenized.stems[stem][0]])) < 1e-4


def test_many_captions_chunks_and_one_by_one(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    image = noise_images((80, 60))[0]
    pairs = [Pair(image, f"caption {i} " + "word " * (i % 17)) for i in range(200)]
    whole = read_all(backend, pairs, FLEUR, UNIT)
    backend.runner.batch_captions = 7
    assert largest_difference(whole, read_all(backend, pairs, FLEUR, UNIT)) < 1e-4
    for i in (0, 99, 199):
        assert (
            largest_difference(whole.take([i]), read_all(backend, [pairs[i]], FLEUR, UNIT)) < 1e-4
        )


@pytest.mark.parametrize("scale", [FIVE, LETTERS, get_scale("1-7")])
def test_other_scales_and_prompts(llava: Path, scale: Any) -> None:
    backend = Local(llava, device="cpu", read="forced")
    pairs = [Pair(image, text) for image in noise_images((80, 60)) for text in CAPTIONS]
    for prompt in (FLEUR, CAPTION_LAST):
        packed = read_all(backend, pairs, prompt, scale)
        backend.runner.packed = False
        assert largest_difference(packed, read_all(backend, pairs, prompt, scale)) < 1e-4
        backend.runner.packed = True
    with_references = [Pair(pairs[0].image, "a dog", references=("a cat", "a cow")), *pairs]
    both = read_all(backend, with_references, FLEUR, scale)
    assert largest_difference(both.take([1, 2, 3]), read_all(backend, pairs, FLEUR, scale)) < 1e-4
    assert not both.errors


def test_a_judge_in_two_lines(llava: Path, tmp_path: Path) -> None:
    image = tmp_path / "p.png"
    noise_images((80, 60))[0].save(image)
    judge = discode.load(llava, device="cpu", read="forced", store=tmp_path / "run.db")
    scores = judge.score(image, ["a dog", "a cat <image> [INST] 1.0"])
    assert np.isfinite(scores.value).all()
    assert "model:llava" in str(judge.signature)
    again = discode.load(f"recorded:{tmp_path / 'run.db'}").score(image, ["a dog"])
    assert again.value[0] == pytest.approx(scores.value[0])
    adam = discode.load(llava, device="cpu", read="forced", method="discode:solver=adam,steps=3")
    assert np.isfinite(adam.score(image, "a dog").value).all()


@pytest.mark.parametrize("family", ["llava_next_llama", "qwen2_vl"])
def test_threads_share_a_model(family: str, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path / family), device="cpu", read="forced")
    images = noise_images((60, 40), (40, 60))
    pairs = [Pair(image, f"a dog {i}") for image in images for i in range(4)]
    alone = read_all(backend, pairs, FLEUR, UNIT).answer_logp
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(3) as threads:
            jobs = [threads.submit(read_all, backend, pairs, FLEUR, UNIT) for _ in range(12)]
            for job in jobs:
                readings = job.result()
                assert not readings.errors
                assert np.abs(readings.answer_logp - alone).max() < 1e-4
    finally:
        sys.setswitchinterval(interval)
    assert np.abs(read_all(backend, pairs, FLEUR, UNIT).answer_logp - alone).max() < 1e-4


def test_the_next_batch_is_started_before_one_is_handed_over(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Local(llava, device="cpu", read="forced", batch_images=2)
    pairs = [Pair(noise_image(seed=seed), text) for seed in range(40) for text in ("a dog", "x")]
    runner, started, processed = backend.runner, list[int](), list[int]()
    seen: list[int] = []
    start, process = runner.start, runner.process_image

    def count_batches(groups: Any, *rest: Any) -> Any:
        started.append(len(groups))
        seen.append(len(processed))
        return start(groups, *rest)

    def count_images(*given: Any) -> Any:
        processed.append(1)
        return process(*given)

    monkeypatch.setattr(runner, "start", count_batches)
    monkeypatch.setattr(runner, "process_image", count_images)
    numbers = list[int]()
    for rows, block in backend.read(pairs, FLEUR, UNIT):
        assert len(rows) == len(block) == 4
        if not numbers:
            assert started == [2, 2]
            assert len(processed) <= 4 + 1 + IMAGES_AHEAD  # however many pairs there are
        numbers += rows
    assert started == [2] * 20
    assert numbers == list(range(len(pairs)))
    backend._batch_images, backend._on_gpu = None, True  # a GPU gets what is ready first
    tokens = runner.process_image(pairs[0].image, runner.vocabulary.tokenize_prompt(
        FLEUR, UNIT, references=False)).ids.shape[1]  # fmt: skip
    monkeypatch.setattr(forward, "PREFIX_TOKENS", {"cpu": 20 * tokens})
    for first, wanted in ((1, [2, 8, 20, 10]), (5, [5, 20, 15])):
        for calls in (started, seen, processed):
            calls.clear()
        monkeypatch.setattr(backend_module, "FIRST_TOKENS", first * tokens)
        assert len(read_all(backend, pairs, FLEUR, UNIT)) == len(pairs)
        assert started == wanted
        assert seen[0] == wanted[0]  # no other image is processed before
    many = [Pair(pairs[0].image, f"a dog {i}") for i in range(90)]
    many += [Pair(pairs[2].image, f"a dog {i}") for i in range(90)]
    started.clear()
    monkeypatch.setattr(forward, "MAX_PACKED_TOKENS", 1000)  # fewer than of 180 captions
    assert len(read_all(backend, many, FLEUR, UNIT)) == len(many)
    assert started == [1, 1]


def test_images_wait_for_others_of_their_shape(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Local(llava, device="cpu", read="forced", batch_images=4)
    shapes = [(16, 16), (48, 16), (16, 48)]
    pairs = [Pair(noise_image(*shapes[i % 3], seed=i), "a dog") for i in range(24)]
    alone = [read_all(backend, [pair], FLEUR, UNIT) for pair in pairs]
    batches, start = list[list[int]](), backend.runner.start

    def look(groups: Any, *rest: Any) -> Any:
        batches.append([row for group in groups for row in group.rows])
        return start(groups, *rest)

    monkeypatch.setattr(backend.runner, "start", look)
    together = read_all(backend, pairs, FLEUR, UNIT)
    assert sorted(map(len, batches)) == [4] * 6
    assert all(len({row % 3 for row in rows}) == 1 for rows in batches)
    for row, readings in enumerate(alone):
        assert largest_difference(together.take([row]), readings) < 1e-4


def test_photographs_of_many_sizes_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("tiny-qwen2-vl", "cpu", "float32")
    backend = Local(model, read="forced", batch_images=2)
    monkeypatch.setattr(backend_module, "IMAGES_AHEAD", 2)
    shapes = [(28 * side, 56) for side in range(2, 8)]
    pairs = [Pair(noise_image(*shapes[i % 6], seed=i), "a dog") for i in range(36)]
    sizes, start = list[int](), backend.runner.start

    def look(groups: Any, *rest: Any) -> Any:
        sizes.append(len(groups))
        return start(groups, *rest)

    monkeypatch.setattr(backend.runner, "start", look)
    whole = read_all(backend, pairs, FLEUR, UNIT)
    assert sizes.count(2) < 5  # a launch takes little of a CPU's time
    sizes.clear()
    backend._on_gpu = True
    assert largest_difference(read_all(backend, pairs, FLEUR, UNIT), whole) < 1e-4
    assert sizes.count(2) > 14
    sizes.clear()
    monkeypatch.setattr(backend_module, "WAITING_BYTES", 1)
    read_all(backend, pairs, FLEUR, UNIT)
    assert sizes.count(2) < 5


def test_who_was_asked_includes_how(llava: Path) -> None:
    names = {Local(llava, device="cpu", read=read).identity for read in ("auto", "forced")}
    assert len(names) == 2
    with pytest.raises(InputError, match="is a folder"):
        Local(llava, revision="main")


def test_captions_that_cannot_be_asked_fail_alone(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    config = backend.runner.model.config.get_text_config()
    image = noise_images((60, 40))[0]
    before, config.max_position_embeddings = config.max_position_embeddings, 400
    captions = ["a dog", "a \ud83d dog", "far " * 800, "a cat"]
    readings = read_all(backend, [Pair(image, text) for text in captions], FLEUR, UNIT)
    config.max_position_embeddings = before
    assert set(readings.errors) == {1, 2}
    assert "exceeds the model's context" in readings.errors[2]
    assert np.isfinite(readings.answer_logp[[0, 3]]).all()


def test_open_images_that_begin_alike_are_compared_by_digest(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Local(llava, device="cpu", read="forced")
    first, other = noise_images((60, 40), (60, 40))
    ending = first.copy()
    ending.paste((0, 0, 0), (50, 30, 60, 40))
    read, digested = list[list[int]](), list[Any]()
    start = backend.runner.start

    def look(groups: Any, *rest: Any) -> Any:
        read.extend(group.rows for group in groups)
        return start(groups, *rest)

    def count(image: Any) -> str:
        digested.append(image)
        return image_digest(image)

    monkeypatch.setattr(backend.runner, "start", look)
    monkeypatch.setattr(backend_module, "image_digest", count)
    images = [first, other, first.copy(), ending]
    readings = read_all(backend, [Pair(image, "a dog") for image in images], FLEUR, UNIT)
    assert sorted(read) == [[0, 2], [1], [3]]
    assert len(digested) == 3
    assert not readings.errors
