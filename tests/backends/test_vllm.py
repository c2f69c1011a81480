"""``vllm:NAME`` against the local backend on the same weights, and how vLLM is asked."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="local models need discode-eval[hf]")
pytest.importorskip("transformers", reason="local models need discode-eval[hf]")

import discode
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._vllm import Vllm
from discode.errors import InputError, MissingExtraError, UnknownNameError
from tests.helpers.command_line import call
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.stand_in_vllm import OldSamplingParams, stand_in
from tests.helpers.tiny_lvlms import FAMILIES, make, write

pytestmark = LOCAL_MODEL_MARKS
CAPTIONS = ("a dog", "two cats, one of 7 sleeps", "a man on a bike")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "vllm", module := stand_in())
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava") / "llava"
    return make("llava_next_llama", folder, answers=True, begins="rating")


@pytest.fixture(scope="module")
def local(folder: Path) -> Local:
    return Local(folder, device="cpu")


@pytest.fixture
def pairs() -> list[Pair]:
    images = noise_images((30, 40), (40, 30), (30, 30))
    rows = [Pair(image, caption) for caption in CAPTIONS for image in images]
    return [*rows, Pair(images[0], "a red boat", ("a boat", "a ship")), rows[0]]


def close(ours: Any, theirs: Any, *names: str) -> None:
    for name in names:
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), atol=1e-4, rtol=0, err_msg=name
        )


def test_both_stems_as_the_local_model_reads_them(
    vllm: Any, folder: Path, local: Local, pairs: list[Pair]
) -> None:
    backend = Vllm(folder, read="forced")
    ours, theirs = read_all(backend, pairs, FLEUR, UNIT), read_all(local, pairs, FLEUR, UNIT)
    assert not ours.errors
    assert not np.asarray(ours.truncated).any()
    close(ours, theirs, "answer_logp", "stem_logp", "lead_logp")
    assert "forced" in backend.identity.revision
    assert len(vllm.LLM.started) == 1


def test_the_answers_are_read_where_the_model_writes_them(
    vllm: Any, folder: Path, local: Local, pairs: list[Pair]
) -> None:
    ours = read_all(Vllm(folder), pairs, FLEUR, UNIT)
    theirs = read_all(local, pairs, FLEUR, UNIT)
    assert not ours.errors
    rows, stem = np.arange(len(pairs)), theirs.stem_logp.argmax(axis=1)
    near = ours.answer_logp[rows, stem], theirs.answer_logp[rows, stem]
    np.testing.assert_allclose(*near, atol=1e-4, rtol=0)
    assert not any(settings.get("continue_final_message") for settings in vllm.LLM.settings)


def test_one_question_of_each_image_leads(vllm: Any, folder: Path, pairs: list[Pair]) -> None:
    read_all(Vllm(folder), pairs, FLEUR, UNIT)
    leading, others = vllm.LLM.asked
    names = [turn[0]["content"][0]["uuid"] for turn in leading]
    assert len({*names}) == len(names) == 3
    after = [turn[0]["content"][0]["uuid"] for turn in others]
    assert after == sorted(after, key=names.index)
    assert len(leading) + len(others) == len(pairs) - 1  # one pair is there twice


def test_images_that_fit_into_the_cache(vllm: Any, folder: Path) -> None:
    backend = Vllm(folder)
    pairs = [Pair(image, "a dog") for image in noise_images(*[(8, 8 + i) for i in range(30)])]
    assert not read_all(backend, pairs, FLEUR, UNIT).errors
    assert len(vllm.LLM.asked[0]) == 16  # it is not known yet how many tokens one has
    wanted = 1024 * 16 // 2 // backend._prompt_tokens
    assert backend._images_at_once() == wanted
    assert sum(map(len, vllm.LLM.asked)) == 30


def test_without_ids_the_likeliest_tokens_are_read(
    vllm: Any, folder: Path, local: Local, pairs: list[Pair]
) -> None:
    vllm.SamplingParams = OldSamplingParams
    ours = read_all(Vllm(folder, read="forced"), pairs, FLEUR, UNIT)
    theirs = read_all(local, pairs, FLEUR, UNIT)
    best = theirs.answer_logp[:, 0].argmax(axis=1)
    rows = np.arange(len(pairs))
    assert np.abs(ours.answer_logp[rows, 0, best] - theirs.answer_logp[rows, 0, best]).max() < 0.05


def test_pairs_that_cannot_be_asked_fail_alone(vllm: Any, folder: Path, tmp_path: Path) -> None:
    (image,) = noise_images((30, 40))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    pairs = [Pair(image, "a dog"), Pair(image, "far " * 900), Pair(broken, "a cat")]
    pairs += [Pair(image, "half a \ud83d dog"), Pair(image, "a cat")]
    readings = read_all(Vllm(folder, max_model_len=700), pairs, FLEUR, UNIT)
    assert {*readings.errors} == {1, 2, 3}
    assert np.isfinite(readings.answer_logp[[0, 4], 0]).all()


def test_options_of_the_engine(vllm: Any, folder: Path) -> None:
    judge = discode.load(
        f"vllm:{folder}", tensor_parallel_size="2", quantization="fp8",
        mm_processor_kwargs='{"size": 2}', read="forced",
    )  # fmt: skip
    plain = discode.load(f"vllm:{folder}")
    assert not vllm.LLM.started  # until something is read
    judge.score(noise_images((30, 40))[0], "a dog")
    (started,) = vllm.LLM.started
    assert started["tensor_parallel_size"] == 2
    assert started["mm_processor_kwargs"] == {"size": 2}
    assert started["limit_mm_per_prompt"] == {"image": 1}
    assert "read" not in started
    assert judge.backend.identity != plain.backend.identity
    assert judge.backend.identity.dtype == "fp8-auto"
    more = discode.load(f"vllm:{folder}", tensor_parallel_size=2)
    assert more.backend.identity == plain.backend.identity
    assert not judge.backend.capabilities
    with pytest.raises(UnknownNameError, match="tensor_parallel_size"):
        Vllm(folder, tensor_paralel_size=2)
    with pytest.raises(InputError, match="folder"):
        Vllm(folder, revision="main")


def test_an_engine_that_does_not_start(vllm: Any, folder: Path, tmp_path: Path) -> None:
    copy = make("llava_next_llama", tmp_path / "copy", answers=True, begins="rating")
    (copy / "config.json").write_text('{"vllm": "unknown"}')
    backend = Vllm(copy)
    for _ in range(2):
        with pytest.raises(InputError, match="not supported"):
            read_all(backend, [Pair(noise_images((30, 40))[0], "a dog")], FLEUR, UNIT)


def test_an_option_of_the_wrong_type_is_named(vllm: Any, folder: Path) -> None:
    backend = Vllm(folder, max_model_len="long")
    with pytest.raises(InputError, match="max_model_len"):
        read_all(backend, [Pair(noise_images((30, 40))[0], "a dog")], FLEUR, UNIT)


def test_a_dead_engine_ends_the_run(vllm: Any, folder: Path) -> None:
    judge = discode.load(f"vllm:{folder}")
    image = noise_images((30, 40))[0]
    judge.score(image, "a dog")
    dead = type("EngineDeadError", (Exception,), {})

    def die(*_: Any, **__: Any) -> None:
        raise dead("EngineCore encountered an issue.")

    vllm.LLM.chat = die
    scores = judge.score(image, ["a cat", "a boat"])
    assert "has stopped" in scores.errors[0]


def test_a_worker_of_ray_has_the_engines_gpus(
    vllm: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption\na.png,a dog\n")
    seen = []

    def stop(*_: Any, gpus: float, **__: Any) -> None:
        seen.append(gpus)
        raise InputError("enough")

    monkeypatch.setattr("discode.bulk._ray.score_with_ray", stop)
    for size in ((), ("-M", "tensor_parallel_size=2", "-M", "pipeline_parallel_size=2")):
        done = call(
            "score", "--input", tmp_path / "pairs.csv", "-o", f"{tmp_path}/out/", "--engine", "ray",
            "--model", f"vllm:{folder}", *size,
        )  # fmt: skip
        assert "enough" in done.stderr
    assert seen == [1.0, 4.0]


def test_other_scales(vllm: Any, folder: Path, pairs: list[Pair]) -> None:
    backend = Vllm(folder)
    readings = read_all(backend, pairs[:2], FLEUR, FIVE)
    assert readings.answer_logp.shape == (2, 1, 5)


def test_without_vllm(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match="vllm"):
        discode.load(f"vllm:{folder}")


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")
def test_the_real_engine(tmp_path: Path, pairs: list[Pair]) -> None:
    parts = FAMILIES["internvl3_5"]()
    parts.config.text_config.head_dim = 32  # vLLM's attention on CPUs takes no smaller heads
    write(parts, tmp_path, "rating", "internvl3_5")
    backend = Vllm(
        tmp_path, read="forced", dtype="float32", enforce_eager=True, max_model_len=4096,
        gpu_memory_utilization=0.3,
    )  # fmt: skip
    ours = read_all(backend, pairs, FLEUR, UNIT)
    theirs = read_all(Local(tmp_path, device="cpu"), pairs, FLEUR, UNIT)
    assert not ours.errors
    assert np.abs(ours.answer_logp - theirs.answer_logp).max() < 0.05
