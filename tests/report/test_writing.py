"""Reports as files: what goes into the page, and what does not."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._judge import load
from discode._report import gather_runs, write_report
from discode._report.bars import find_bars
from discode._report.thumbnails import SIDE, encode_thumbnail, make_thumbnails
from discode.bench import RunLog, run_metrics
from discode.bench._agreement import TAU_C_NOTES
from discode.bench._systems import compare_systems, join_systems
from discode.benchmarks import load_benchmark
from discode.errors import ImageError, InputError
from discode.explain import find_spans
from tests.helpers.command_line import refused, run
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, coarse_run, preferred, rated
from tests.helpers.reports import HOSTILE, TEXTS, explain_custom, make_custom, run_custom
from tests.helpers.samples import png


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark in custom/, its log run.json, and the readings beside it."""
    folder = tmp_path_factory.mktemp("report")
    run_custom(make_custom(folder / "custom"), folder / "run.json")
    return folder


def _store(folder: Path) -> Path:
    return folder / "run.json.readings.db"


def _data(page: Path, name: str = "data") -> Any:
    found = re.search(
        rf'<script type="application/json" id="{name}">(.*?)</script>', page.read_text(), re.S
    )
    assert found is not None
    return json.loads(found[1])


def test_the_page_has_everything(folder: Path, tmp_path: Path) -> None:
    page, log = tmp_path / "r.html", RunLog.load(folder / "run.json")
    facts = write_report(page, {"run": log}, data=[folder], stores=[_store(folder)], resamples=100)
    data = _data(page)
    (bench,) = data["benchmarks"]
    assert facts.items == len(log.ids) == len(bench["ids"])
    assert facts.images == 2
    assert facts.notes == ("1 image missing or damaged",)
    assert [data["texts"][i] for i in bench["caption"]] == [*TEXTS] * 3
    assert data["lists"][bench["references"][0]] == [
        data["texts"].index("reference of 0"), data["texts"].index(HOSTILE[0])
    ]  # fmt: skip
    for number, result in enumerate(log.results.values()):
        found = np.array(bench["scores"][number], float)
        np.testing.assert_allclose(found, result.value, rtol=1e-4)
        assert sum(map(len, bench["errors"][number].values())) == len(result.errors)
        assert bench["metrics"][number]["signature"] == str(result.signature)
    assert {metric["group"] for metric in bench["metrics"]} >= {1}
    assert len(_data(page, "images")) == 2
    # Pairs whose image is there and whose caption was not rejected.
    assert facts.bars == 2 * (len(TEXTS) - 1)


def test_nothing_comes_from_elsewhere_and_the_policy_knows_each_script(
    folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "r.html"
    write_report(page, {"run": RunLog.load(folder / "run.json")}, data=[folder], resamples=100)
    text = page.read_text(encoding="utf-8")
    assert {*re.findall(r"https?://[^\s\"'<]+", text)} == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|script|img)[^>]+(?:src|href)=\"(?!data:)", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy[1]
    assert "alert(1)</script>" not in text


def test_without_data_the_page_has_ids_and_says_why(folder: Path, tmp_path: Path) -> None:
    log = RunLog.load(folder / "run.json")
    facts = write_report(tmp_path / "r.html", {"run": log}, resamples=100)
    (bench,) = _data(tmp_path / "r.html")["benchmarks"]
    assert (bench["caption"], bench["references"], facts.images) == ([], [], 0)
    assert "--data" in bench["data"]
    assert facts.notes == (f"custom: {bench['data']}",)
    other = make_custom(tmp_path / "other", TEXTS[:4])
    (found,) = gather_runs({"run": log}, [tmp_path / "nowhere", other])
    assert found.pairs == ()
    assert "checksums differ" in found.data
    (found,) = gather_runs({"run": log}, [other, folder])  # the second one has its files
    assert (len(found.pairs), found.data) == (len(log.ids), "")
    (found,) = gather_runs({"run": replace(log, benchmark="unheard-of")}, [folder])
    assert "unheard-of" in found.data


def test_a_title_and_a_label_cannot_leave_their_place(tmp_path: Path) -> None:
    evil = "</title><script>alert(1)</script>"
    log, _ = run_metrics(rated(6), {evil: "a"}, FakeFactory(a=FakeMetric(0, 2.0)), QUICK)
    write_report(tmp_path / "r.html", {evil: log}, title=evil, resamples=100)
    text = (tmp_path / "r.html").read_text()
    assert "<script>alert" not in text
    found = re.search(r"<title>(.*?)</title>", text)
    assert found is not None
    assert unescape(found[1]).startswith(evil)


def test_runs_of_one_benchmark_are_joined() -> None:
    bench = rated()
    names, same = {"a": "a", "b": "b"}, FakeMetric(1, 2.0)
    first, _ = run_metrics(bench, names, FakeFactory(a=FakeMetric(0, 2.0), b=same), QUICK)
    second, _ = run_metrics(bench, names, FakeFactory(a=FakeMetric(7, 2.0), b=same), QUICK)
    (joined,) = gather_runs({"x": first, "y": second})
    assert list(joined.log.results) == ["a (x)", "b", "a (y)"]
    assert joined.sources == ("x", "y")
    apart = gather_runs({"x": first, "y": replace(second, checksums={"a.json": "11"})})
    assert [one.name for one in apart] == ["composite (x)", "composite (y)"]
    half = replace(second, protocol=replace(QUICK, ties="half"))
    for runs in ({"x": first, "y": half}, {"x": replace(first, results={})}):
        with pytest.raises(InputError):
            gather_runs(runs)


def test_tables_are_in_the_page_as_they_are_elsewhere(tmp_path: Path) -> None:
    metrics = {"good": FakeMetric(0, 1.0), "bad": FakeMetric(1, 400.0)}
    logs = {
        bench.name: run_metrics(bench, {m: m for m in metrics}, FakeFactory(**metrics), QUICK)[0]
        for bench in (preferred(), rated())
    }
    write_report(tmp_path / "r.html", logs, resamples=100)
    ratings, choices = _data(tmp_path / "r.html")["benchmarks"]
    assert (ratings["name"], choices["name"]) == ("composite", "pascal50s")  # the tables' order
    assert [m["group"] for m in choices["metrics"]] == [1, 2]
    for entry in (ratings, choices):
        log = logs[entry["name"]]
        for metric in entry["metrics"]:
            for name, cell in metric["cells"].items():
                one = log.results[metric["label"]].measures[name]
                np.testing.assert_allclose(cell[:3], 100 * np.array([one.value, one.low, one.high]),
                                           rtol=1e-4)  # fmt: skip
    assert choices["category"] == ["HC", "MM"] * 100


def test_the_page_says_which_m_and_whose_ties(tmp_path: Path) -> None:
    people, scipy = coarse_run(), coarse_run(replace(QUICK, tau_m="scipy"))
    for logs, rule, also in (
        ({"a": people}, "people", False),
        ({"a": scipy}, "scipy", True),
        ({"a": people, "b": scipy}, "people", False),
    ):
        write_report(tmp_path / "r.html", logs, resamples=100)
        (entry,) = _data(tmp_path / "r.html")["benchmarks"]
        assert f" {TAU_C_NOTES[rule]}; tie rates: coarse" in entry["compared"]
        assert ("5 %, with people's m;" in entry["compared"]) == also
        assert [metric["label"] for metric in entry["metrics"]] == ["coarse", "fine"]


def test_bars_are_what_the_decoder_makes_of_the_readings(folder: Path) -> None:
    log, pairs = RunLog.load(folder / "run.json"), load_benchmark("custom", folder).pairs
    found = find_bars(pairs, log.results, [_store(folder)])
    assert list(found) == ["raw", "smoothing", "discode"]
    for label, bars in found.items():
        assert bars.labels == (*(f"0.{digit}" for digit in range(10)), "1.0")
        has = np.isfinite(bars.before).all(axis=1)
        assert has.sum() == 2 * (len(TEXTS) - 1)
        for row in np.flatnonzero(has)[:6]:
            for method, bar in ((label, bars.after[row]), ("smoothing", bars.before[row])):
                scores = load(FakeModel(), method=method).score(
                    pairs[row].image, pairs[row].caption
                )
                assert scores.distribution is not None
                np.testing.assert_allclose(bar[:10], scores.distribution[0])
                assert bar[10] == 0


def test_bars_of_a_judge_that_sees_references(folder: Path, tmp_path: Path) -> None:
    bench, store = load_benchmark("custom", folder), tmp_path / "r.db"
    judge = load(FakeModel(), method="discode:sigma2=0.05", store=store)
    factory = FakeFactory(x=replace(judge, references="always"))
    name = "ref-discode:sigma2=0.05"
    log, _ = run_metrics(bench, {name: "x"}, factory, QUICK)
    bars = find_bars(bench.pairs, log.results, [store])[name]
    assert np.isfinite(bars.after).all(axis=1).sum() == 2 * len(TEXTS)
    # Readings without references are other readings.
    assert find_bars(bench.pairs, log.results, [_store(folder)]) == {}


def test_bars_are_shown_only_where_they_give_the_score(folder: Path, tmp_path: Path) -> None:
    log, pairs = RunLog.load(folder / "run.json"), load_benchmark("custom", folder).pairs
    own = log.results["discode"]
    for other in (
        replace(own, value=own.value + 0.01),
        replace(own, signature=own.signature.with_fields(model="another")),
        replace(own, signature=own.signature.with_fields(decoder="of-tomorrow(x=1)")),
    ):
        assert find_bars(pairs, {"discode": other}, [_store(folder)]) == {}
    assert list(find_bars(pairs, {"mine (run)": own}, [_store(folder)])) == ["mine (run)"]
    (tmp_path / "broken.db").write_text("not a store")
    complaints: list[str] = []
    stores = [tmp_path / "broken.db", _store(folder)]
    assert list(find_bars(pairs, {"discode": own}, stores, complaints.append)) == ["discode"]
    (complaint,) = complaints
    assert "broken.db" in complaint


def test_words_are_those_of_the_judge_that_scored(tmp_path: Path) -> None:
    log = run_custom(make_custom(tmp_path / "custom"), tmp_path / "run.json")
    pairs = load_benchmark("custom", tmp_path).pairs
    assert find_bars(pairs, log.results, [_store(tmp_path)])["discode"].explained == {}
    explain_custom(tmp_path / "custom", tmp_path / "run.json")
    found = find_bars(pairs, log.results, [_store(tmp_path)])
    # The last was rejected, of other images no word was read, and some have no English word.
    rows = [row for row in range(len(TEXTS) - 1) if find_spans(pairs[row].caption)]
    for label in ("raw", "discode"):
        judge = load(FakeModel(), method=label)
        own = [judge.explain(pairs[row].image, pairs[row].caption)[0].spans for row in rows]
        assert [found[label].explained[row].spans for row in rows] == own
        assert [*found[label].explained] == [*rows]
    result = log.results["discode"]
    value = result.value.copy()
    value[0] += 0.01
    changed = find_bars(pairs, {"discode": replace(result, value=value)}, [_store(tmp_path)])
    assert [*changed["discode"].explained] == [*rows[1:]]


def test_thumbnails_keep_to_their_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for number in range(4):
        noise = rng.integers(0, 255, (600, 900, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
        paths.append(str(tmp_path / f"{number}.png"))
    text = encode_thumbnail(paths[0])
    with Image.open(io.BytesIO(base64.b64decode(text))) as small:
        assert (small.format, max(small.size)) == ("WEBP", SIDE)
    budget = 5 * len(text) // 2
    made, notes = make_thumbnails([paths[0], "nowhere.jpg", *paths[1:]], budget)
    assert sum(map(len, made.values())) <= budget
    assert list(made) == paths[:2]
    assert [int(note.split()[0]) for note in notes] == [2, 1]  # left out, and missing
    with pytest.raises(ImageError):
        encode_thumbnail(str(tmp_path))


def test_captioners_have_the_numbers_of_compare_and_every_row(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for prefix, name in (("a/", "plain"), ("", "other")):
        rows = [
            {"image": f"{prefix}{n}.png", "caption": f"{name} {n} {HOSTILE[0]}", "id": f"{n}",
             "score": None if (n, name) == (3, "plain") else (n * ord(name[0])) % 7 / 7}
            for n in range(12)
        ]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    (tmp_path / "a" / "5.png").write_bytes(png())
    files = {name: tmp_path / f"{name}.jsonl" for name in ("plain", "other")}
    page = tmp_path / "r.html"
    done = run("report", *files.values(), "-o", page, "--images", tmp_path, "--resamples", 199)
    assert done.returncode == 0, done.stderr
    want = compare_systems(join_systems(files), resamples=199)
    data = _data(page)
    (bench,) = data["benchmarks"]
    for system in want.systems:
        (own,) = [metric for metric in bench["metrics"] if metric["label"] == system.name]
        np.testing.assert_allclose(
            own["cells"]["mean"][:3], [system.mean, system.low, system.high], rtol=1e-4
        )
        assert own["group"] == system.rank
    (pair,) = want.pairs
    (shown,) = bench["differences"]
    assert shown[:2] == [pair.a, pair.b]
    np.testing.assert_allclose(
        shown[2:], [pair.difference, pair.low, pair.high, pair.adjusted], rtol=1e-4
    )
    # Every row, those of one image together.
    assert bench["pairs"] == len(bench["ids"]) == 24
    assert bench["category"] == ["plain", "other"] * 12
    assert data["texts"][bench["caption"][1]] == f"other 0 {HOSTILE[0]}"
    assert bench["scores"][0][:2] == [0.0, None]
    assert bench["errors"] == [{"no score": [6]}, {}]
    values = join_systems(files).value
    for number, (own, other) in enumerate(zip(*bench["apart"], strict=True)):
        assert [own, other][1 - number % 2] is None
        apart = [own, other][number % 2]
        if number // 2 == 3:
            assert apart is None
        else:
            assert apart == pytest.approx(abs(np.subtract(*values[:, number // 2])), abs=1e-4)
    assert len(_data(page, "images")) == 1
    assert bench["thumbs"].index(0) == 5


@pytest.mark.slow
def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    done = run("report", folder / "run.json", "-o", page, "--data", folder, "--resamples", 100)
    assert done.returncode == 0, done.stderr
    assert "27 items, 2 images, distributions of 16 pairs" in done.stderr.replace("\n", " ")
    assert len(_data(page)["benchmarks"][0]["bars"]) == 3
    done = run("report", folder / "run.json", "-o", page, "--data", folder, "--image-budget", 0,
               "--resamples", 100)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _data(page, "images") == []
    before = page.read_bytes()
    log, lost = folder / "run.json", tmp_path / "lost"
    for arguments, place in (
        (("nowhere.json",), "nowhere.json"),
        ((folder / "custom" / "ratings.jsonl",), "ratings.jsonl"),
        ((log, "--data", lost), "--data"),
        ((log, "--store", lost), "--store"),
        ((log, "--image-budget", "-1"), "--image-budget"),
        ((log, "--resamples", "5"), "--resamples"),
    ):
        refused(run("report", *arguments, "-o", page), place)
    assert page.read_bytes() == before
    for path in (tmp_path / "r.pdf", tmp_path / "no" / "r.html"):
        refused(run("report", log, "-o", path), path.name)


@pytest.mark.data
def test_a_published_benchmark(data: Path, tmp_path: Path) -> None:
    bench = load_benchmark("flickr8k-expert", data)
    log, _ = run_metrics(bench, {"a": "a"}, FakeFactory(a=FakeMetric(0, 2.0)), QUICK)
    facts = write_report(
        tmp_path / "r.html", {"run": log}, data=[data], image_budget=200_000, resamples=100
    )
    assert facts.items == len(bench.pairs)
    numbers = [int(number) for note in facts.notes for number in re.findall(r"^\d+", note)]
    assert facts.images + sum(numbers) == len(np.unique(bench.image))
    page = _data(tmp_path / "r.html")
    (entry,) = page["benchmarks"]
    assert [page["texts"][i] for i in entry["caption"]] == [pair.caption for pair in bench.pairs]
    assert sum(map(len, _data(tmp_path / "r.html", "images"))) <= 200_000
