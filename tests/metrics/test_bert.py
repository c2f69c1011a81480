"""BERTScore against the bert-score library's own matching, on tiny encoders."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode._pairs import Pair
from discode.errors import InputError
from discode.metrics._bert import BERT_MEASURES, BertScore, greedy_match

torch = pytest.importorskip("torch", reason="BERTScore: discode-eval[dev]")
transformers = pytest.importorskip("transformers", reason="BERTScore: discode-eval[dev]")
pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = [
    Pair("x", "the dog runs", ("the cat runs", "dog")),
    Pair("x", " a big dog", ("the dog", "the dog runs", "a bigger cat")),
    Pair("x", "cat", ("cat",)),
    Pair("x", "the dog runs", ("the cat runs", "dog")),
]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers import tiny_encoders

    save: Any = getattr(tiny_encoders, f"save_{request.param}")
    made: Path = save(tmp_path_factory.mktemp(request.param))
    return made


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("layer", [1, 2])
def test_against_bert_score(
    folder: Path, idf: bool, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discode.metrics._encoders.BATCH", 2)
    utils = pytest.importorskip("bert_score.utils", reason="the oracle is in discode-eval[dev]")
    metric = BertScore.open(str(folder), layer=layer, idf=idf, device="cpu")
    metric.tokenizer.model_max_length = 24  # bert-score cannot do without
    model = transformers.AutoModel.from_pretrained(folder)
    model.encoder.layer = model.encoder.layer[:layer]  # as bert-score chooses a layer
    refs = [ref for pair in PAIRS for ref in pair.references]
    if idf:
        weights = utils.get_idf_dict(refs, metric.tokenizer, nthreads=0)
    else:
        weights = defaultdict(lambda: 1.0)
        weights[metric.tokenizer.sep_token_id] = weights[metric.tokenizer.cls_token_id] = 0.0
    hyps = [pair.caption.strip() for pair in PAIRS for _ in pair.references]
    found = utils.bert_cos_score_idf(
        model.eval(), refs, hyps, metric.tokenizer, weights, device="cpu"
    ).numpy()
    owner = np.repeat(np.arange(len(PAIRS)), [len(pair.references) for pair in PAIRS])
    for column, measure in enumerate(BERT_MEASURES):
        metric = replace(metric, measure=measure)
        expected = [found[owner == row, column].max() for row in range(len(PAIRS))]
        np.testing.assert_allclose(metric.score_pairs(PAIRS).value, expected, rtol=1e-4, atol=1e-5)


units = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=n, max_size=n
    )
)  # fmt: skip


@given(units, units, st.data())
@settings(max_examples=50, deadline=None)
def test_greedy_against_loops(left: Any, right: Any, more: st.DataObject) -> None:
    x, y = (np.array(side) + np.array([2.0, 0, 0]) for side in (left, right))
    x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
    v, w = (
        np.array(more.draw(st.lists(st.floats(0.1, 3), min_size=len(s), max_size=len(s))))
        for s in (x, y)
    )
    p = sum(v[i] * max(float(a @ b) for b in y) for i, a in enumerate(x)) / v.sum()
    r = sum(w[j] * max(float(a @ b) for a in x) for j, b in enumerate(y)) / w.sum()
    expected = [p, r, 2 * p * r / (p + r) if p + r else 0]
    np.testing.assert_allclose(greedy_match(x, v, y, w), expected, rtol=1e-9, atol=1e-9)


def test_what_is_missing_empty_or_long(folder: Path) -> None:
    metric = BertScore.open(str(folder), device="cpu")
    odd = [Pair("x", "dog"), Pair("x", " ", ("dog",)), Pair("x", "dog", ("dog " * 40, "dog"))]
    done: list[int] = []
    scores = metric.score_pairs(odd, progress=done.append)
    assert done == [len(odd)]
    assert np.isnan(scores.value[0])
    assert "no references" in scores.errors[0]
    assert scores.value[1] == 0
    assert scores.value[2] == pytest.approx(1)
    assert scores.flags["cut"].tolist() == [False, False, True]
    assert metric.score_pairs([]).value.shape == (0,)
    assert "|layer:2|idf:none|measure:f1" in str(scores.signature)
    assert metric.needs == {"references"}


def test_bad_options(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="layer=3"):
        BertScore.open(str(folder), layer=3)
    with pytest.raises(InputError, match="'moon'"):
        BertScore.open(str(folder), device="moon")
    with pytest.raises(InputError, match="no model folder"):
        BertScore.open(str(tmp_path / "none"))
