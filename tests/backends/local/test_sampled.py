"""Sampled answers of local models against their exact probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from discode import load
from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import FIVE, TEN, UNIT, find_rating, get_scale
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.errors import InputError
from discode.readings._sampled import counts_of, draws_of
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import FAMILIES, make
from tests.helpers.tiny_thinking import make_thinking

pytestmark = LOCAL_MODEL_MARKS
PAIRS = [Pair(image, text) for image in noise_images((80, 60)) for text in ("a dog runs", "x")]


def prepared(backend: Local) -> Any:
    tokenized = backend.runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    return backend._prepare(PAIRS, [0, 1], tokenized)[0]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"mllama"}))
def test_every_step_has_the_models_own_distribution(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the likeliest token always drawn, the draws are what generate writes greedily."""
    backend = Local(make(family, tmp_path / family), device="cpu")
    group = prepared(backend)
    greedy = backend.runner.generate(group, 0, 6)
    eos = backend.runner.model.generation_config.eos_token_id
    drawn: list[Any] = []

    def likeliest(p: Any, *_: Any, **__: Any) -> Any:
        drawn.append(p)
        return p.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", likeliest)
    answers = backend.runner.sample(group, 0, 3, 6)
    assert answers == [[token for token in greedy if token != eos]] * 3
    assert all(torch.allclose(p, p[:1].expand(3, -1), atol=1e-6) for p in drawn)


def test_counts_are_draws_from_the_exact_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of one token, so that all of them can be enumerated."""
    folder = make("qwen2_vl", tmp_path / "qwen", answers=True, begins="number")
    monkeypatch.setattr("discode.backends._local.backend.MAX_NEW_TOKENS", 1)
    draws = 4000
    sampled = Local(folder, device="cpu", samples=draws)
    sampled.runner.generator.manual_seed(0)
    counts = counts_of(read_all(sampled, PAIRS, FLEUR, get_scale("0-1")))
    group, tokenizer = prepared(sampled), sampled.runner.vocabulary.tokenizer
    for row in range(2):
        ids, inputs = sampled.runner.whole_prompt(group, row)
        with torch.inference_mode():
            p = sampled.runner.run(ids, inputs, None, keep=1)[1][0, -1].double().softmax(-1)
        rated = [find_rating(tokenizer.decode([i]), get_scale("0-1")) for i in range(len(p))]
        exact = [
            sum(float(p[i]) for i, r in enumerate(rated) if r is not None and r.answer == answer)
            for answer in range(2)
        ]
        seen = [*counts[row, 0], draws - counts[row].sum()]
        expected = np.array([*exact, 1 - sum(exact)]) * draws
        assert expected[:2].min() > 5
        assert stats.chisquare(seen, expected * sum(seen) / expected.sum()).pvalue > 1e-3


def test_shares_estimate_the_forced_probabilities(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "llava", answers=True, begins="digit")
    exact = read_all(Local(folder, device="cpu"), PAIRS, FLEUR, TEN)
    sampled = Local(folder, device="cpu", samples=2000)
    sampled.runner.generator.manual_seed(1)
    said = read_all(sampled, PAIRS, FLEUR, TEN)
    assert set(np.asarray(said.how)) == {"sampled 2000"}
    # an answer may go on after its digit ("8 the 7"), which is no rating: compare the shares
    seen, p = counts_of(said)[:, 0], np.exp(exact.answer_logp[:, 0])
    assert seen.sum(axis=1).min() > 1500
    for row in range(2):
        expected = p[row] / p[row].sum() * seen[row].sum()
        assert stats.chisquare(seen[row], expected).pvalue > 1e-3


def test_sampling_is_the_same_model_with_fresh_draws(tmp_path: Path) -> None:
    folder = make("llava_next_llama", tmp_path / "llava", answers=True, begins="digit")
    whole = Local(folder, device="cpu", samples=30)
    assert whole.identity.revision.endswith("+sampled")
    view = whole.sampling(12)
    assert (whole.samples, view.samples) == (30, 12)
    assert view.identity == whole.identity
    assert view.runner is whole.runner
    first, second = (read_all(view, PAIRS, FLEUR, TEN) for _ in range(2))
    assert draws_of(first).tolist() == [12, 12]
    assert (counts_of(first) != counts_of(second)).any()
    assert Local(folder, device="cpu").sampling(3).identity == whole.identity
    # no two processes have the same seed, or draws that are added later would repeat the first
    assert Local(folder, device="cpu").runner.generator.initial_seed() != torch.initial_seed()
    assert not whole.capabilities


def test_more_draws_than_fit_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Local(make("qwen2_vl", tmp_path / "qwen"), device="cpu")
    group = prepared(backend)
    length = backend.runner.whole_prompt(group, 0)[0].shape[1]
    monkeypatch.setattr(backend.runner, "tokens_that_fit", lambda: 3 * (length + 2))
    assert len(backend.runner.sample(group, 0, 7, 2)) == 7


def test_a_scale_whose_answers_are_not_tokens_can_be_sampled(tmp_path: Path) -> None:
    folder = make("qwen2_vl", tmp_path / "qwen", answers=True, begins="digit")
    hundred = get_scale("0-100")
    with pytest.raises(InputError, match="as one token"):
        load(str(folder), scale=hundred, device="cpu")
    judge = load(str(folder), scale=hundred, device="cpu", samples=20, method="smoothing")
    value = judge.score_pairs(PAIRS).value
    assert ((value >= 0) & (value <= 100)).all()


def test_thoughts_are_sampled_too(tmp_path: Path) -> None:
    folder = make_thinking("qwen3_5", tmp_path / "thinks")
    backend = Local(folder, device="cpu", thinking="on", thinking_tokens=8, samples=20)
    assert backend.identity.revision.endswith("+thinking=8+sampled")
    said = read_all(backend, PAIRS, FLEUR, UNIT)
    assert not said.errors
    assert np.exp(said.stem_logp).sum(axis=1).min() > 0.5


def test_without_a_rating_the_row_fails(llava: Path) -> None:
    said = read_all(Local(llava, device="cpu", samples=4), PAIRS, FLEUR, FIVE)
    assert list(said.errors) == [0, 1]
    assert np.isnan(said.answer_logp).all()


@pytest.mark.parametrize("samples", [0, -1, "many"])
def test_bad_numbers_of_samples(samples: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples"):
        load(str(tmp_path), samples=samples)
