"""Text metrics against plain pycocoevalcap, on pairs written out as often as they are judged."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode._pairs import Pair
from discode._scores import Floats
from discode.errors import BackendError, MissingExtraError
from discode.metrics import _java as java
from discode.metrics import _ngram as ngram
from discode.metrics._java import TokenisedPair, meteor
from discode.metrics._ngram import (
    TEXT_SCORERS,
    TextMetric,
    TokenisedTexts,
    bleu,
    cider,
    lcs_length,
    rouge_l,
)

pytest.importorskip("pycocoevalcap", reason="text metrics want discode-eval[bench]")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")

DOG = ("A dog runs over the grass.", "The brown dog is running!", 'Someone says "run", he runs')
CAT = ("A cat sleeps; on the mat.", "the cat's asleep")
PAIRS = [
    Pair("dog.jpg", "A dog running on grass", DOG),
    Pair("dog.jpg", "a cat sleeps on the mat", DOG),
    Pair("cat.jpg", "a cat sleeps on the mat", CAT),
    Pair("cat.jpg", "A café (closed) — 3.5 dogs & 1,000 cats", CAT),
    Pair("cat.jpg", "two\nlines ||| and bars", CAT),
    Pair("dog.jpg", "A dog running on grass", DOG),
]
REPEATS = [3, 1, 2, 1, 4, 2]


def plain(pairs: Sequence[Pair], repeats: Sequence[int]) -> dict[str, Floats]:
    """Return pycocoevalcap's values of the set written out, one per pair."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider as PlainCider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    flat = [pair for pair, count in zip(pairs, repeats, strict=True) for _ in range(count)]
    last = np.cumsum(repeats) - 1
    tokenizer = PTBTokenizer()
    gts = tokenizer.tokenize(
        {i: [{"caption": text} for text in pair.references] for i, pair in enumerate(flat)}
    )
    res = tokenizer.tokenize({i: [{"caption": pair.caption}] for i, pair in enumerate(flat)})
    with redirect_stdout(io.StringIO()):
        _, bleus = Bleu(4).compute_score(gts, res, verbose=0)
    meteor_scorer = Meteor()
    found = {
        **{f"bleu-{n + 1}": np.array(bleus[n]) for n in range(4)},
        "rouge-l": Rouge().compute_score(gts, res)[1],
        "cider": PlainCider().compute_score(gts, res)[1],
        "meteor": np.array(meteor_scorer.compute_score(gts, res)[1]),
    }
    for pipe in (meteor_scorer.meteor_p.stdout, meteor_scorer.meteor_p.stderr):
        pipe.close()  # its own __del__ forgets them
    return {name: values[last] for name, values in found.items()}


@needs_java
@pytest.mark.slow
def test_values_are_those_of_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    real = java.tokenise

    def counted(texts: Sequence[str]) -> list[str]:
        starts.append(len(texts))
        return real(texts)

    monkeypatch.setattr(ngram, "tokenise", counted)
    texts = TokenisedTexts()
    expected = plain(PAIRS, REPEATS)
    for name, values in expected.items():
        scores = TextMetric(name, texts).score_pairs(PAIRS, repeats=REPEATS)
        np.testing.assert_allclose(scores.value, values, rtol=0, atol=1e-12, err_msg=name)
        assert scores.counts() == {"failed": 0}
        assert f"|metric:{name}|tokenizer:ptb|" in str(scores.signature)
        assert str(scores.signature).endswith("|library:pycocoevalcap-1.2")
    assert [n for n in starts if n] == [9]  # 4 captions and 5 references, once for all metrics


@needs_java
@pytest.mark.data
@pytest.mark.slow
def test_real_captions(data: Path) -> None:
    captions: dict[str, list[str]] = {}
    for row in (data / "flickr8k" / "Flickr8k.token.txt").read_text().splitlines()[:300]:
        name, text = row.split("\t")
        captions.setdefault(name.partition("#")[0], []).append(text)
    images = list(captions)
    pairs = [
        Pair(image, captions[images[i - shift]][0], tuple(captions[image][1:]))
        for i, image in enumerate(images)
        for shift in (0, 1)
    ]
    repeats = [1 + i % 3 for i in range(len(pairs))]
    texts = TokenisedTexts()
    for name, values in plain(pairs, repeats).items():
        scores = TextMetric(name, texts).score_pairs(pairs, repeats=repeats)
        np.testing.assert_allclose(scores.value, values, rtol=0, atol=1e-12, err_msg=name)


words = st.lists(st.sampled_from(["a", "dog", "cat", "runs", "on"]), max_size=9).map(" ".join)
items = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=4).map(tuple)), min_size=1)


@given(items, st.data())
@settings(max_examples=60, deadline=None)
def test_scorers_against_plain_calls_on_words(
    found: list[TokenisedPair], more: st.DataObject
) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider as PlainCider
    from pycocoevalcap.rouge.rouge import Rouge

    repeats = more.draw(st.lists(st.integers(1, 3), min_size=len(found), max_size=len(found)))
    flat = [item for item, count in zip(found, repeats, strict=True) for _ in range(count)]
    last = np.cumsum(repeats) - 1
    res = {i: [text] for i, (text, _) in enumerate(flat)}
    gts = {i: list(refs) for i, (_, refs) in enumerate(flat)}
    _, bleus = Bleu(4).compute_score(gts, res, verbose=0)
    np.testing.assert_allclose(bleu(found), np.array(bleus).T[last], rtol=0, atol=1e-12)
    rouges = Rouge().compute_score(gts, res)[1][last]
    np.testing.assert_allclose(rouge_l(found), rouges, rtol=0, atol=1e-12)
    if any(text for refs in gts.values() for text in refs):  # else it takes the max of nothing
        expected = PlainCider().compute_score(gts, res)[1][last]
        np.testing.assert_allclose(cider(found, repeats), expected, rtol=0, atol=1e-12)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
@settings(deadline=None)  # the first example imports the oracle
def test_longest_common_subsequence(left: list[str], right: list[str]) -> None:
    from pycocoevalcap.rouge.rouge import my_lcs

    assert lcs_length(left, right) == my_lcs(left, right)


@needs_java
@pytest.mark.slow
def test_what_is_missing_or_odd() -> None:
    odd = [
        Pair("x", "a dog", ()),
        Pair("x", "", ("a dog",)),
        Pair("x", "a dog", ("",)),
        Pair("x", "a\rdog\u2028runs\x0b.", ("a dog runs",)),
        Pair("x", "half a character \ud83d", ("a ||| b",)),
    ]
    texts = TokenisedTexts()
    for name in ("bleu-4", "rouge-l", "meteor", "cider"):
        metric = TextMetric(name, texts)
        scores = metric.score_pairs(odd)
        assert np.isnan(scores.value).tolist() == [True, False, False, False, False]
        assert "no references" in scores.errors[0]
        assert scores.value[1] < 1e-6
        assert metric.score_pairs([]).value.shape == (0,)
    assert TextMetric("rouge-l", texts).score_pairs(odd).value[3] == 1
    assert np.isnan(TextMetric("cider", texts).score_pairs(odd[:1]).value).all()


@needs_java
def test_what_is_there_0_times_is_not_counted() -> None:
    counted = TextMetric("cider").score_pairs(PAIRS, repeats=[1, 1, 1, 0, 1, 0]).value
    alone = TextMetric("cider").score_pairs([*PAIRS[:3], PAIRS[4]]).value
    np.testing.assert_allclose(counted[[0, 1, 2, 4]], alone, rtol=0, atol=1e-12)


@needs_java
@pytest.mark.slow
def test_a_program_that_dies_costs_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        code = "import sys; sys.stderr.write('Error: no memory'); sys.stdin.readline()"
        started.append(real([sys.executable, "-c", code], **options))
        return started[-1]

    texts = TokenisedTexts()
    texts.items(PAIRS)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", popen)
        scores = TextMetric("meteor", texts).score_pairs(PAIRS)
        with pytest.raises(BackendError, match="no memory"):
            meteor([("a", ("b" * 100_000,))] * 50)
    assert np.isnan(scores.value).all()
    assert scores.errors[0] == "METEOR failed: Error: no memory"
    assert all(process.returncode is not None for process in started)  # no zombies
    assert not np.isnan(TextMetric("meteor", texts).score_pairs(PAIRS).value).any()


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in TEXT_SCORERS:
        with pytest.raises(MissingExtraError, match=f"{name} needs Java.*install a Java runtime"):
            TextMetric(name)
