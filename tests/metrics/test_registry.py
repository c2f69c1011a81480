"""The table of metrics, and what those of one factory share."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discode
from discode._pairs import Pair
from discode._scores import Scores
from discode.errors import InputError, MissingExtraError, UnknownNameError
from discode.images import demo_path
from discode.metrics import METRICS, MetricFactory, TextMetric
from tests.helpers.chat_servers import serving
from tests.helpers.fake_model import FakeModel

CAT = demo_path() / "cat.jpg"
PAIRS = [
    Pair(CAT, "a cat", ("a striped cat", "a cat looks")),
    Pair(CAT, "a dog", ("a striped cat",)),
    Pair(CAT, "two cats"),
    Pair(CAT, "a cat", ("a striped cat", "a cat looks")),
]
TEXT = ["bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l", "meteor", "spice", "cider"]
JUDGED = ["raw", "smoothing", "fleur", "discode", "paper"]


def test_the_table() -> None:
    others = ["bertscore", "clip-s", "ref-clip-s", "pac-s", "ref-pac-s", "pac-s++", "ref-pac-s++"]
    others += ["polos", "vqascore", "prefer", "g-veval", "ref-g-veval", "clair"]
    names = [*TEXT, *others, *JUDGED, *(f"ref-{name}" for name in JUDGED)]
    assert list(METRICS) == names
    for name, row in METRICS.items():
        assert row.name == name
        assert row.about
        assert row.needs <= {"image", "references", "preferences"}
        assert ("preferences" in row.needs) == (name == "prefer")
        wants = name in (*TEXT, "bertscore", "polos", "clair") or name.startswith("ref-")
        assert ("references" in row.needs) == wants
    with pytest.raises(FrozenInstanceError):
        METRICS["raw"].name = "x"  # type: ignore[misc]  # that is the point


def test_rows_say_what_their_metrics_need() -> None:
    factory = MetricFactory(model=FakeModel())
    specs = [*JUDGED, *(f"ref-{name}" for name in JUDGED)]
    chat = ":endpoint=http://localhost:8000/v1,model=tiny"
    specs += [f"{name}{chat}" for name in ("g-veval", "ref-g-veval", "clair")]
    if shutil.which("java"):
        specs += [name for name in TEXT if name != "spice"]
    for spec in specs:
        name = spec.partition(":")[0]
        assert factory.make(spec).needs == METRICS[name].needs
    assert factory.make(f"clair{chat}").signature["model"].startswith("tiny")


def test_a_server_that_cannot_be_asked_is_tried_once() -> None:
    with serving(before=lambda body, times: (401, {}, {"error": {"message": "no key"}})) as server:
        options = {"base_url": server.url}
        factory = MetricFactory(model="endpoint:tiny", options=options)
        for name in ("raw", "fleur", "ref-discode"):
            with pytest.raises(InputError, match="no key"):
                factory.make(name)
        assert server.paths["/v1/chat/completions"] == 1
        factory = MetricFactory(model="endpoint:tiny", options=options)
        factory.open_judge()
        assert server.paths["/v1/chat/completions"] == 1


def test_judges_read_once_and_decode_often() -> None:
    model = FakeModel()
    factory = MetricFactory(model=model)
    found = decode_all(factory, [*JUDGED, "kl"])
    assert model.asked == ["a cat", "a dog", "two cats", "a cat"]
    for name, scores in found.items():
        alone = discode.load(FakeModel(), method=name).score_pairs(
            [Pair(pair.image, pair.caption) for pair in PAIRS]
        )
        np.testing.assert_array_equal(scores.value, alone.value)
        assert scores.signature == alone.signature
        assert "|references:none|" in str(scores.signature)
    with_references = decode_all(factory, [f"ref-{name}" for name in JUDGED])
    assert model.asked[4:] == ["a cat", "a dog", "a cat"]
    for name, scores in with_references.items():
        alone = discode.load(FakeModel(), method=name.removeprefix("ref-")).score_pairs(
            [pair for pair in PAIRS if pair.references]
        )
        np.testing.assert_array_equal(scores.value[[0, 1, 3]], alone.value)
        assert math.isnan(scores.value[2])
        assert "no references" in scores.errors[2]
    assert len(factory.make("ref-raw").score_pairs([])) == 0
    assert np.isnan(factory.make("ref-raw").score_pairs(PAIRS[2:3]).value).all()


def decode_all(factory: MetricFactory, names: Sequence[str]) -> dict[str, Scores]:
    """The scores of judges that are made, by one reading."""
    judges: dict[str, Any] = {name: factory.make(name) for name in names}
    decoders = {name: judge.decoder for name, judge in judges.items()}
    found: dict[str, Scores] = judges[names[0]].decode_all(PAIRS, decoders)
    return found


@pytest.mark.parametrize("order", [1, -1])
def test_methods_with_and_without_hidden_states_share_one_reading(order: int) -> None:
    pytest.importorskip("torch", reason="the Adam solver wants discode-eval[adam]")
    names = ["smoothing", "paper-adam"][::order]
    model = FakeModel(capabilities=frozenset({"hidden"}))
    found = decode_all(MetricFactory(model=model), names)
    assert len(model.asked) == len(PAIRS)
    for name, scores in found.items():
        alone = MetricFactory(model=FakeModel(capabilities=frozenset({"hidden"}))).make(name)
        np.testing.assert_array_equal(scores.value, alone.score_pairs(PAIRS).value)


def test_a_judge_is_the_same_whichever_is_made_first() -> None:
    factory = MetricFactory("embedded")
    factory.make("raw")
    assert factory.make("discode").signature == discode.load("embedded").signature


def test_what_a_model_cannot_give_is_not_asked_of_it() -> None:
    factory = MetricFactory(model=FakeModel())
    with pytest.raises(InputError, match="needs hidden"):
        factory.make("paper-adam")
    assert np.isfinite(factory.make("raw").score_pairs(PAIRS).value).all()


def test_a_store_is_used(tmp_path: Path) -> None:
    model = FakeModel()
    MetricFactory(model=model, store=tmp_path / "run.db").make("raw").score_pairs(PAIRS)
    again = MetricFactory(model=model, store=tmp_path / "run.db").make("ref-raw").score_pairs(PAIRS)
    first = len(model.asked)
    assert again.counts()["failed"] == 1
    third = MetricFactory(model=model, store=tmp_path / "run.db")
    third.make("discode").score_pairs(PAIRS)
    third.make("ref-discode").score_pairs(PAIRS)
    assert len(model.asked) == first


def test_progress_counts_every_pair() -> None:
    factory = MetricFactory(model=FakeModel())
    for _ in range(2):
        done: list[int] = []
        for name in ("discode", "ref-discode"):
            done.clear()
            factory.make(name).score_pairs(PAIRS, progress=done.append)
            assert sum(done) == len(PAIRS)


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")
def test_repeats_go_to_cider() -> None:
    factory = MetricFactory()
    cider = factory.make("cider")
    pairs, repeats = PAIRS[:2], [3, 1]
    expected = TextMetric("cider").score_pairs([pairs[0]] * 3 + pairs[1:]).value[2:]
    counted = cider.score_pairs(pairs, repeats=repeats)
    np.testing.assert_allclose(counted.value, expected, atol=1e-12)
    other = factory.make("bleu-1").score_pairs(pairs, repeats=repeats)
    assert other.counts()["failed"] == 0
    texts = [getattr(factory.make(name), "texts", None) for name in ("bleu-4", "meteor")]
    assert texts[0] is not None
    assert texts[0] is texts[1]


def test_names_and_options_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = MetricFactory(model=FakeModel())
    for spec, error, place in (
        ("bleu4", UnknownNameError, "'bleu-4'"),
        ("ref-nothing", UnknownNameError, "ref-nothing"),
        ("scorefile:none.csv", InputError, r"none\.csv"),
        (f"clip-s:model={tmp_path / 'no'}", InputError, str(tmp_path / "no")),
        ("clip-s:modell=x", UnknownNameError, "'model'"),
        ("clip-s:model", InputError, "KEY=VALUE"),
        ("ref-pac-s", InputError, "weights="),
        ("pac-s++:model=x", InputError, "weights="),
        ("polos", InputError, "weights="),
        (f"bertscore:model={tmp_path}", InputError, r"config\.json"),
        ("bertscore:layer=-1", InputError, "layer=-1"),
        ("bertscore:idf=maybe", InputError, "idf=maybe"),
        ("g-veval:model=x", InputError, "endpoint="),
        ("clair:endpoint=http://x/v1", InputError, "model="),
        ("bleu-4:model=x", UnknownNameError, "bleu-4"),
        ("discode:sigm2=1", UnknownNameError, "'sigma2'"),
    ):
        if str(tmp_path) in spec:
            pytest.importorskip("transformers", reason="encoders want discode-eval[hf]")
        with pytest.raises(error, match=place) as caught:
            factory.make(spec)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in TEXT:
        with pytest.raises(MissingExtraError, match=f"{name} needs Java"):
            factory.make(name)
    assert factory.make("discode").score_pairs(PAIRS).counts()["failed"] == 0  # the others go on


def test_nothing_heavy_is_imported() -> None:
    code = "import discode.metrics, sys; "
    code += "print([m for m in ('torch', 'transformers', 'pycocoevalcap') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
