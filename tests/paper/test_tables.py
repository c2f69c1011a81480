"""Studies of the paper's tables: what is scored, what is reused, and where each number goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._pairs import Pair
from discode._paper import STUDIES, StudyResult, StudySetup
from discode._paper.tables import FOLDER, PAPER_STUDIES, PaperTable
from discode._signature import Signature
from discode.bench import RunLog, measure_agreement, run_metrics
from discode.bench._agreement import TAU_C_NOTES
from discode.bench._published import PAPER_TABLES, published_cells
from discode.benchmarks import BENCHMARKS, Preferences
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.metrics import METRICS, MetricFactory
from discode.readings import Readings
from discode.stats import Interval
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import (
    QUICK,
    FakeFactory,
    FakeMetric,
    coarse_run,
    preferred,
    rated,
)

HIDDEN = frozenset({"hidden"})


def setup_of(*models: FakeModel, **more: Any) -> StudySetup:
    judges = {model.name: MetricFactory(model=model) for model in models}
    return StudySetup({"composite": rated()}, judges, protocol=QUICK, **more)


def rows_of(result: StudyResult, name: str) -> dict[str, list[Any]]:
    """Rows by their names, with those of the headings above in front."""
    rows: dict[str, list[Any]] = {}
    heading = ""
    for row in result.tables[name].rows:
        text = str(row[0])
        if not text.startswith(" "):
            heading = text
        rows[f"{heading} / {text.strip()}"] = list(row[1:])
    return rows


def test_every_study_names_tables_and_benchmarks_that_exist() -> None:
    for study in PAPER_STUDIES:
        assert STUDIES[study.name] is study
        assert set(study.paper) <= PAPER_TABLES.keys()
        assert {text.partition(":")[0] for text in study.benchmarks} <= BENCHMARKS.keys()
    for path in FOLDER.glob("*.json"):
        table = PaperTable.load(path)
        methods = {row.method for row in table.rows}
        assert {method for pair in table.contrasts for method in pair} <= methods
        for method in methods:
            assert method in METRICS or get_decoder(method.removeprefix("ref-"))
    tables = [label for study in PAPER_STUDIES for label in study.paper]
    assert len(tables) == len(set(tables))
    assert set(PAPER_TABLES) - set(tables) == {"cost", "dataset_statistics"}


def test_ablation_has_both_solvers_beside_the_paper() -> None:
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    model = FakeModel(capabilities=HIDDEN)
    result = STUDIES["ablation"].run(setup_of(model))
    (log,) = result.logs.values()
    assert len(log.results) == 10
    distinct = {(pair.image, pair.caption) for pair in rated().pairs}
    assert len(model.asked) == len(distinct)  # one reading serves all ten
    rows = rows_of(result, "ablation")
    solved = {"DISCODE", "without cross-entropy H", "without divergence D", "without adaptive α"}
    for block in ("fake, ten Adam steps", "fake, exact minimiser"):
        assert {key.partition(" / ")[2] for key in rows if key.startswith(block)} >= solved
    raw = rows["fake, without a prior / Raw score"][0]
    expected = measure_agreement(
        log.judgments, log.image, log.results["raw"].value, QUICK
    )["tau_c"]  # fmt: skip
    assert isinstance(raw, Interval)
    assert (raw.value, raw.low) == (100 * expected.value, 100 * expected.low)
    # Without divergence the exact minimiser is the raw answer.
    assert rows["fake, exact minimiser / without divergence D"][0] == raw
    printed = {
        cell.setting: f"{cell.value:.1f}"
        for cell in published_cells("ablation", column="composite tau_c")
    }
    place = "LLaVA-NeXT-72B, the paper / "
    assert rows[f"{place}DISCODE (published)"] == [printed[""]]
    assert rows[f"{place}w/o divergence term D_alpha (published)"] == [printed["w/o divergence"]]
    assert [title[1] for title in result.tables["ablation_appendix"].columns[1:]] == ["τ_b", "τ_c"]
    assert any("exact minimiser) minus" in text for text in result.findings)
    assert not result.problems


def test_a_model_without_hidden_states_has_no_adam_and_a_note() -> None:
    result = STUDIES["sigma"].run(setup_of(FakeModel()))
    assert any("hidden" in note for note in result.tables["sigma"].notes)
    assert not any("Adam" in key for key in rows_of(result, "sigma"))
    assert not result.problems


def test_logs_are_used_before_a_model_is_asked() -> None:
    first = FakeModel()
    done = STUDIES["divergence"].run(setup_of(first))
    again = FakeModel()
    result = STUDIES["divergence"].run(setup_of(again, logs=done.logs))
    assert again.asked == []
    assert rows_of(result, "divergence") == rows_of(done, "divergence")
    # Another model's scores are not this model's, but are shown as its own.
    other = FakeModel("other")
    both = rows_of(STUDIES["models"].run(setup_of(other, logs=done.logs)), "models")
    assert other.asked
    assert {"other / Raw score", "fake / Raw score"} <= both.keys()


def test_logs_alone_make_a_table(tmp_path: Path) -> None:
    done = STUDIES["divergence"].run(setup_of(FakeModel()))
    (log,) = done.logs.values()
    log.save(tmp_path / "run.json")
    alone = StudySetup(logs={"run": RunLog.load(tmp_path / "run.json")}, protocol=QUICK)
    ours = rows_of(STUDIES["divergence"].run(alone), "divergence")
    assert ours == rows_of(done, "divergence")
    # The data makes no difference where there is no judge to ask.
    loaded = replace(alone, benchmarks={"composite": rated()})
    assert rows_of(STUDIES["divergence"].run(loaded), "divergence") == ours
    # Runs in the output folder are reused, but only what is asked for is shown.
    kept = setup_of(FakeModel(), kept={"x": replace(log, benchmark="flickr8k-expert")})
    shown = STUDIES["divergence"].run(kept).tables["divergence"]
    assert [title[0] for title in shown.columns[1:]] == ["Composite"]
    with pytest.raises(InputError, match="nothing to score"):
        STUDIES["divergence"].run(StudySetup())


def test_every_metric_of_a_log_is_a_line_among_metrics() -> None:
    benchmark = rated()
    scored = {"clip-s": "clip-s", "berts": "bertscore", "mine": "scorefile"}
    metrics = {label: FakeMetric(number, 3.0) for number, label in enumerate(scored)}
    log, _ = run_metrics(benchmark, {a: a for a in metrics}, FakeFactory(**metrics), QUICK)
    log = replace(log, results={
        label: replace(result, signature=Signature.of(metric=scored[label]))
        for label, result in log.results.items()
    })  # fmt: skip
    alone = STUDIES["main"].run(StudySetup(logs={"run": log}, protocol=QUICK))
    # Beside a judge, after an earlier study, and measured with other resamples.
    finer = replace(QUICK, resamples=150)
    earlier = run_metrics(benchmark, {"raw": "raw"}, MetricFactory(model=FakeModel()), finer)[0]
    setup = setup_of(FakeModel(), logs={"run": log}, kept={"earlier": earlier})
    beside = STUDIES["main"].run(replace(setup, protocol=finer))
    for result in (alone, beside):
        rows = rows_of(result, "main")
        for place in ("reference-free / clip-s", "with references / berts",
                      "scores from files / mine"):  # fmt: skip
            expected = log.results[place.rpartition(" / ")[2]].measures["tau_c"]
            assert rows[place][1].value == pytest.approx(100 * expected.value)
    # A study of judges has no place for them.
    judges = STUDIES["models"].run(replace(setup, protocol=finer))
    assert not any("clip-s" in key for key in rows_of(judges, "models"))


def test_domains_that_the_paper_lacks_have_columns_of_their_own() -> None:
    choices = replace(preferred(), name="mceval", options={})
    assert isinstance(choices.judgments, Preferences)
    some = tuple("real" if name == "HC" else "comic" for name in choices.judgments.category)
    choices = replace(choices, judgments=replace(choices.judgments, category=some))
    setup = replace(setup_of(FakeModel()), benchmarks={"mceval": choices})
    result = STUDIES["mceval"].run(setup)
    assert [title[1] for title in result.tables["mceval"].columns[1:]] == ["real", "comic", "Mean"]
    row = rows_of(result, "mceval")["reference-free / DISCODE, default, fake"]
    assert all(isinstance(cell, Interval) for cell in row)
    tables = STUDIES["models"].run(setup).tables
    assert [title[1] for title in tables["models"].columns[1:]] == ["Mean"]  # as of the paper's
    assert [title[1] for title in tables["models_mceval"].columns[1:]] == ["real", "comic", "Mean"]


def test_sentences_and_panels_have_the_benchmarks_own_tau(tmp_path: Path) -> None:
    """Flickr8k-CF is reported in τ_b, the other ratings in τ_c."""
    matplotlib = pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    crowd = replace(rated(), name="flickr8k-cf")
    both = replace(setup_of(FakeModel()), benchmarks={"flickr8k-cf": crowd, "composite": rated()})
    result = STUDIES["sigma"].run(both)
    log = result.logs["fake flickr8k-cf"]
    exact, raw = (log.results[name].measures["tau_b"].value for name in ("paper", "raw"))
    (finding,) = (text for text in result.findings if text.startswith("Flickr8k-CF, fake"))
    assert f"{100 * (exact - raw):+.2f} in τ_b" in finding
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        result.figures["sigma"](tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert (drawn.count("τ_b, %"), drawn.count("τ_c, %")) == (1, 1)


def test_models_are_rows_and_benchmarks_are_columns() -> None:
    setup = setup_of(FakeModel("one"), FakeModel("llava-hf/llava-v1.6-34b-hf"))
    choices = replace(preferred(), options={"draws": "1"})
    setup = replace(setup, benchmarks={**setup.benchmarks, "pascal50s": choices})
    result = STUDIES["models"].run(setup)
    assert len(result.logs) == 4
    table = result.tables["models"]
    assert table.columns[1:] == [("Composite", "τ_c"), ("Pascal-50S", "Mean")]
    rows = rows_of(result, "models")
    assert all(isinstance(cell, Interval) for cell in rows["one / Raw score"])
    assert "models_mceval" not in result.tables
    # Every model of the paper has its three lines exactly once, run or not.
    counted = Counter(str(row[0]).strip() for row in table.rows)
    assert counted["FLEUR (published)"] == 10  # other data: the paper's 34B is not ours


def test_the_papers_number_stands_below_ours_on_the_published_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With as many images and judgments as published, text metrics and models are compared."""
    benchmark = rated()
    sizes = (len(np.unique(benchmark.image)), len(benchmark.judgments))
    row = replace(BENCHMARKS["composite"], published_sizes=lambda options: (sizes,))
    monkeypatch.setitem(BENCHMARKS, "composite", row)
    setup = setup_of(FakeModel("llava-hf/llava-v1.6-34b-hf"))
    result = STUDIES["models"].run(setup)
    rows = [[str(cell) for cell in row] for row in result.tables["models"].rows]
    names = [row[0] for row in rows]
    place = names.index("llava-hf/llava-v1.6-34b-hf")
    assert names[place + 1 : place + 3] == ["  Raw score", "    paper"]
    assert rows[place + 2][1] == "54.6"
    assert "LLaVA-NeXT-34B" not in names  # all its lines are ours
    assert "LLaVA-NeXT-8B" in names


def test_what_failed_is_told_and_left_out() -> None:
    class Broken(FakeModel):
        def answer(self, *args: Any, **more: Any) -> Any:
            raise InputError("it is broken")

    with pytest.raises(InputError, match="it is broken"):
        STUDIES["sigma"].run(setup_of(Broken()))
    silent = FakeModel("silent", rejects="x")  # every caption of the benchmark has an x
    result = STUDIES["models"].run(setup_of(silent, FakeModel("fine")))
    assert any("rejected" in text and "silent" in text for text in result.problems)
    assert not any(key.startswith("silent") for key in rows_of(result, "models"))


@dataclass
class OpensImages(FakeModel):
    """Answers only for images whose files are there."""

    there: Container[str] = ()

    def answer(self, pairs: Sequence[Pair], *args: Any, **more: Any) -> Readings:
        read = super().answer(pairs, *args, **more)
        lost = Readings.failed(read.scale, ["cannot read it"] * len(pairs))
        gone = [str(pair.image) not in self.there for pair in pairs]
        rows = np.arange(len(pairs)) + len(pairs) * np.array(gone)
        return Readings.concat(read.scale, [read, lost]).take(rows)


def test_numbers_of_the_images_that_are_present_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rated()
    sizes = (len(np.unique(whole.image)), len(whole.judgments))
    row = replace(BENCHMARKS["composite"], published_sizes=lambda options: (sizes,))
    monkeypatch.setitem(BENCHMARKS, "composite", row)
    name = "llava-hf/llava-v1.6-34b-hf"
    for missing in (range(1, 40, 2), range(1, 40)):  # half of the images; all but one
        some = replace(whole, missing=frozenset(missing))
        there = {f"{number}.jpg" for number in range(40) if number not in missing}
        setup = replace(setup_of(OpensImages(name, there=there)), benchmarks={"composite": some})
        result = STUDIES["models"].run(setup)
        rows = rows_of(result, "models")
        assert isinstance(rows[f"{name} / Raw score *"][0], Interval)
        assert not result.problems
        note = result.tables["models"].notes[-1]
        share = 100 * len(missing) / 40
        assert note.startswith("* without a score: ")
        assert f"Raw score {share:.2f} % of composite" in note
        # A published number does not stand below ours, but in a line of its own.
        assert f"{name} / paper" not in rows
        assert "LLaVA-NeXT-34B / Raw score (published)" in rows


def test_scales_are_readings_of_their_own() -> None:
    model = FakeModel()
    result = STUDIES["scale"].run(setup_of(model))
    assert {log.results["raw"].signature["scale"] for log in result.logs.values()} == {
        "five", "ten", "letters", "unit"
    }  # fmt: skip
    rows = rows_of(result, "scale_appendix")
    printed = {
        (cell.system, cell.setting): f"{cell.value:.1f}"
        for cell in published_cells("rating_appendix", column="composite tau_b")
    }
    for scale, words in (("five", "1 to 5"), ("ten", "0 to 9"), ("letters", "A to E")):
        assert isinstance(rows[f"fake, without a prior / Raw score, {words}"][0], Interval)
        for system, title in (("raw", "Raw score"), ("smoothing", "Smoothing")):
            row = rows[f"LLaVA-NeXT-72B, the paper / {title} {words} (published)"]
            assert row[0] == printed[system, f"scale={scale}"]


def test_differences_have_peoples_m_and_say_so_beside_scipys() -> None:
    for tau_m, ending in (("people", " in τ_c ("), ("scipy", " in τ_c with people's m (")):
        setup = replace(setup_of(FakeModel()), protocol=replace(QUICK, tau_m=tau_m))
        findings = STUDIES["main"].run(setup).findings
        assert findings
        assert all(ending in sentence for sentence in findings)


def test_tie_rates_and_m_stand_in_the_table() -> None:
    log = coarse_run(replace(QUICK, tau_m="scipy"), "composite")
    others = coarse_run(replace(QUICK, tau_m="scipy"), "mine")
    setup = StudySetup(logs={"a": log, "b": others}, protocol=QUICK)
    table = STUDIES["main"].run(setup).tables["main"]
    assert table.columns[1:] == [
        (name, title) for name in ("Composite", "mine") for title in ("τ_b", "τ_c", "ties %")
    ]
    rows = {str(row[0]).strip(): row[1:] for row in table.rows}
    rate = rows["coarse"][2]
    assert isinstance(rate, Interval)
    assert rate.value == 100 * log.results["coarse"].measures["ties"].value
    assert TAU_C_NOTES["scipy"] in table.notes
    for place in ("Composite", "mine"):
        assert any(note.startswith(f"tie rates on {place}: coarse 5") for note in table.notes)
    alike = replace(log, results={"fine": log.results["fine"]})
    table = STUDIES["main"].run(replace(setup, logs={"a": alike})).tables["main"]
    assert [title[1] for title in table.columns[1:]] == ["τ_b", "τ_c"]
    assert not any("ties" in note for note in table.notes)
