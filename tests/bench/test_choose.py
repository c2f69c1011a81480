"""The choice of a decoder, by simulation where the truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._scales import FIVE, TEN, UNIT
from discode.bench._agreement import AgreementProtocol, measure_agreement
from discode.bench._choose import (
    DecoderChoice,
    candidate_decoders,
    choose_and_show,
    choose_decoder,
    read_judged,
)
from discode.bench._layout import write_table
from discode.bench._results import StudyResult
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.metrics import MetricFactory
from discode.readings import Readings
from tests.helpers.command_line import refused, run
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import preferred, rated
from tests.helpers.simulated_ratings import SimulatedRatings, simulate

FEW = {
    spec: get_decoder(spec)
    for spec in (
        "smoothing", "raw", "discode:alpha=1,tau=2,trust=0", "discode:alpha=0,trust=0",
        "discode:alpha=0.5,trust=0", "discode:alpha=0.8,trust=0", "discode:tau=2,trust=0",
    )
}  # fmt: skip
QUICK = AgreementProtocol(resamples=199)


def chosen(made: SimulatedRatings, **options: Any) -> DecoderChoice:
    """The choice on a simulated set."""
    return choose_decoder(made.ratings, made.image, made.readings, FEW, protocol=QUICK, **options)


@pytest.mark.parametrize("truth", [None, "smoothing"])
def test_nothing_is_claimed_where_there_is_nothing(truth: str | None) -> None:
    """100 sets of 40 images; perf/choose.py draws thousands."""
    claims = [chosen(simulate(seed, truth=truth, images=40)).beats_baseline for seed in range(100)]
    assert np.mean(claims) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_the_better_decoder_is_found_where_there_is_one() -> None:
    truth = "discode:alpha=0.5,trust=0"
    choices = [chosen(simulate(seed, truth=truth, images=80)) for seed in range(20)]
    assert np.mean([choice.beats_baseline for choice in choices]) > 0.7
    for choice in choices:
        assert choice.recommended == (choice.winner if choice.beats_baseline else "smoothing")
        assert choice.winner.startswith("discode") or not choice.beats_baseline


def test_agreement_on_all_images_is_that_of_the_bench() -> None:
    made = simulate(0)
    done = chosen(made)
    for spec, value in zip(done.specs, done.agreement.tolist(), strict=True):
        score = get_decoder(spec).decode(made.readings).score
        bench = measure_agreement(made.ratings, made.image, score, QUICK)
        assert value == pytest.approx(bench["tau_c"].value)
    assert done.nested.baseline == pytest.approx(done.agreement[0], abs=0.03)


def test_equal_ratings_are_refused() -> None:
    made = simulate(0, images=30)
    equal = replace(made.ratings, value=np.full(len(made.ratings), 3.0))
    for calibrated in (False, True):
        with pytest.raises(InputError, match="equal"):
            choose_decoder(equal, made.image, made.readings, FEW, calibrated=calibrated)


def test_preferences_are_chosen_by_accuracy() -> None:
    made = simulate(0, truth="discode:alpha=0.5,trust=0", images=300, captions=2)
    value = made.ratings.value
    left = np.arange(0, 600, 2)[value[::2] != value[1::2]]
    side = (value[left + 1] > value[left]).astype(np.int64)
    judged = Preferences(left, left + 1, side, ("all",) * len(left))
    done = choose_decoder(judged, made.image, made.readings, FEW, protocol=QUICK)
    score = get_decoder("smoothing").decode(made.readings).score
    bench = measure_agreement(judged, made.image, score, QUICK)
    assert (done.measure, done.images) == ("mean", len(left))
    assert done.agreement[0] == pytest.approx(bench["mean"].value)
    assert done.nested.baseline == pytest.approx(bench["mean"].value)
    with pytest.raises(InputError, match="--calibrate"):
        choose_decoder(judged, made.image, made.readings, FEW, protocol=QUICK, calibrated=True)


def test_calibration_is_of_the_recommended_decoder() -> None:
    made = simulate(3, truth="discode:alpha=0.5,trust=0", images=120)
    done = chosen(made, calibrated=True)
    assert done.calibration is not None
    assert done.error is not None
    assert done.error.calibrated < done.error.constant
    score = get_decoder(done.recommended).decode(made.readings).score
    mapped = done.calibration.apply(score)
    assert np.mean(mapped) == pytest.approx(np.mean(made.ratings.value), abs=0.05)


def test_failed_pairs_are_counted_and_unusable_methods_named() -> None:
    rng = np.random.default_rng(0)
    answers = np.log(rng.dirichlet(np.ones(10), (120, 2))) + np.log(0.9)
    stems = np.tile(np.log([0.7, 0.2]), (120, 1))
    stems[:5, 1] = np.nan  # "joint" needs both stems
    answers[7] = np.nan
    readings = Readings(UNIT, answers, stems)
    judged = Ratings.of([(row, float(row % 4), 0) for row in range(120)])
    specs = {
        spec: get_decoder(spec)
        for spec in ("smoothing", "smoothing:stem=greedy", "smoothing:stem=joint")
    }
    done = choose_decoder(judged, np.arange(120) // 3, readings, specs, protocol=QUICK)
    assert (done.failed, done.judgments, done.images) == (1, 119, 40)
    assert done.specs == ("smoothing",)  # greedy gives the same scores here
    assert done.unusable == ("smoothing:stem=joint",)
    nothing = Readings.failed(UNIT, ["no"] * 120)
    with pytest.raises(InputError):
        choose_decoder(judged, np.arange(120) // 3, nothing, specs)


def test_candidates_are_methods_that_can_be_typed() -> None:
    unit, five = candidate_decoders(UNIT), candidate_decoders(FIVE)
    assert next(iter(unit)) == next(iter(five)) == "smoothing"
    assert not any("stem" in spec for spec in five)
    assert {str(decoder.options().get("stem")) for decoder in unit.values()} == {
        "graded", "printed", "greedy", "joint",
    }  # fmt: skip
    assert not any(decoder.requires for decoder in unit.values())
    every = candidate_decoders(UNIT, hidden=True)
    assert any(decoder.requires for decoder in every.values())
    assert len({(d.name, str(d.options())) for d in every.values()}) >= len(every) - 1  # discode
    assert all(get_decoder(spec).options() == decoder.options() for spec, decoder in every.items())


def study(
    benchmark: Benchmark,
    *models: FakeModel,
    adam: bool = False,
    protocol: AgreementProtocol = QUICK,
    **options: Any,
) -> StudyResult:
    """What ``discode choose`` finds for fake models on one benchmark."""
    judges = {model.name: MetricFactory(model) for model in models}
    sets = read_judged(judges, {"mine": benchmark}, hidden=adam)
    return choose_and_show(sets, partial(candidate_decoders, hidden=adam), protocol, **options)


def test_the_study_reads_once_and_its_preset_decodes(tmp_path: Path) -> None:
    model, benchmark = FakeModel(), rated()
    result = study(benchmark, model, calibrated=True)
    assert len(model.asked) == len({(pair.image, pair.caption) for pair in benchmark.pairs})
    path = tmp_path / "decoder.json"
    path.write_text(result.files["decoder.json"])
    content = json.loads(path.read_text())
    decoder = get_decoder(str(path))
    digest = decoder.options()["preset"]
    assert any(str(digest) in line for line in result.findings)
    assert content["chosen"]["verdict"] == result.findings[0]
    assert content["chosen"]["sha256"] == {"a.json": "00"}
    assert content["chosen"]["images"] == 40
    assert len(content["chosen"]["chosen_by_fold"]) == 5
    metric = MetricFactory(model).make(str(path))
    scores = metric.score_pairs(benchmark.pairs[:4])
    assert scores.value.min() >= 1
    assert scores.value.max() <= 4
    for form in ("text", "markdown", "latex", "csv"):
        assert "held-out" in write_table(result.tables["decoder"], form)


def test_several_judges_and_preferences_have_a_preset_each() -> None:
    result = study(preferred(60), FakeModel("a"), FakeModel("org/b"))
    assert [*result.files] == ["decoder_a_mine.json", "decoder_org_b_mine.json"]
    titles = "mine, a: ", "mine, org/b: "
    assert all(line.startswith(titles) for line in result.findings[:-1])  # the last is of presets
    assert any("accuracy" in line for line in result.findings)


def test_adam_is_tried_where_hidden_states_are_to_be_had() -> None:
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    model = FakeModel(capabilities=frozenset({"hidden"}))
    results = [study(rated(24), model, adam=adam) for adam in (True, False)]
    chosen = [json.loads(result.files["decoder.json"])["chosen"] for result in results]
    assert chosen[0]["candidates"] > chosen[1]["candidates"]
    with pytest.raises(InputError, match="hidden"):
        study(rated(24), FakeModel(), adam=True)


def test_what_the_study_cannot_do_is_told() -> None:
    with pytest.raises(InputError, match="--resamples 100"):
        study(rated(24), FakeModel(), protocol=AgreementProtocol(resamples=0))
    with pytest.raises(InputError, match="12 images are too few"):
        study(rated(12), FakeModel())


@pytest.mark.usefixtures("shipped")
def test_the_command_from_judgments_to_scores(tmp_path: Path) -> None:
    """Ratings in a table, then a campaign's export of the same images."""
    rng = np.random.default_rng(0)
    rows, export = ["image,caption,rating"], []
    for i in range(20):
        pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        captions = ["a caption", f"a caption number {i}"]
        rows += [f"{i}.png,{caption},{1 + (i + j) % 4}" for j, caption in enumerate(captions)]
        row = {"image": f"{i}.png", "domain": "noise", "candidates": captions, "reference": "none"}
        export.append(json.dumps(row | {"preference": i % 2}))
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    (tmp_path / "mceval.jsonl").write_text("\n".join(export))
    options = ("--resamples", 100, "-o", "out")
    done = run("choose", "--ratings", "mine.csv", "--calibrate", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 images, 40 ratings" in done.stdout
    assert "beat" in done.stdout or "agrees best" in done.stdout
    scored = run("score", "0.png", "a caption", "-m", "out/decoder.json", "--json", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert "preset=" in scored.stdout
    done = run("choose", "--ratings", ".", *options, cwd=tmp_path)
    assert "20 images, 20 choices" in done.stdout, done.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.csv").rename(tmp_path / "elsewhere/mine.csv")
    lost = ("choose", "--ratings", "elsewhere/mine.csv", "--model", "embedded", *options)
    refused(run(*lost, cwd=tmp_path), "custom:images=DIR")
    refused(run("choose"), "--ratings FILE")
    refused(run("choose", "--ratings", "none.csv", cwd=tmp_path), "none.csv")
    refused(run(*lost, "-b", "foil", cwd=tmp_path), "--ratings")


@pytest.mark.data
def test_flickr8k_expert_by_a_recorded_model(data: Path) -> None:
    """Real readings: the choice is made in a few seconds, and smoothing's τ_c is the known one."""
    archive = np.load(data / "readings" / "flickr8k_expert_b6s.npz")
    people = {}
    for line in (data / "flickr8k" / "ExpertAnnotations.txt").read_text().splitlines():
        photo, caption, *votes = line.split("\t")
        people[photo, caption] = [int(vote) for vote in votes]
    pairs = zip(archive["image"], archive["caption"], strict=True)
    judged = Ratings.of(
        [(i, v, k) for i, one in enumerate(pairs) for k, v in enumerate(people[one])]
    )
    image = np.unique(archive["image"], return_inverse=True)[1]
    done = choose_decoder(judged, image, Readings.of(archive["photo"], TEN), FEW, protocol=QUICK)
    assert (done.images, done.judgments) == (1000, 16_992)
    assert 100 * done.agreement[0] == pytest.approx(51.75, abs=0.01)
    assert 100 * done.nested.baseline == pytest.approx(51.75, abs=0.1)
    assert done.winner != "raw"
