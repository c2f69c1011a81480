"""discode bench and discode compare, as a user types them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discode.bench._agreement import TAU_C_NOTES
from discode.bench._published import PAPER_TABLES
from discode.bench._runlog import RunLog
from discode.benchmarks import load_benchmark
from discode.images import demo_path
from tests.helpers import mini_benchmarks as mini
from tests.helpers.command_line import refused, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A custom benchmark: twelve images of noise with four rated captions each."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(12):
        pixels = rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
        for j in range(4):
            rows.append({"image": f"{i}.png", "caption": f"a dog {'runs ' * j}number {i}",
                         "references": [f"a dog runs {i}"], "rating": 1 + (i + j) % 5})  # fmt: skip
    (tmp_path / "ratings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def scores(folder: Path, name: str, seed: int, drop: int = 0) -> Path:
    path = folder / name
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "score"])
        pairs = load_benchmark("custom", folder).pairs
        for pair in pairs[drop:]:
            writer.writerow([Path(str(pair.image)).name, pair.caption, rng.random()])
    return path


def test_run_table_plot_compare(folder: Path) -> None:
    first, second = scores(folder, "a.csv", 0), scores(folder, "b.csv", 1, drop=2)
    log = folder / "run.json"
    done = run(
        "bench", "run", "--benchmark", "custom", "--data", folder, "-o", log, "-m", "discode",
        "-m", "smoothing", "-m", f"one=scorefile:{first}", "-m", f"two=scorefile:{second}",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # two pairs have no score
    assert "two: " in done.stderr
    assert "2 pairs failed" in done.stderr
    assert "b.csv has no score for 2 of 48 pairs" in done.stderr
    assert "scorefile|" in done.stderr
    kept = RunLog.load(log)
    assert list(kept.results) == ["discode", "smoothing", "one", "two"]
    assert np.isnan(kept.results["two"].value[:2]).all()
    assert (folder / "run.json.readings.db").is_file()

    again = run("bench", "run", "--benchmark", "custom", "--data", folder, "-o", log,
                "-m", "raw", "-m", "discode")  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert list(RunLog.load(log).results) == ["discode", "smoothing", "one", "two", "raw"]
    assert "one" not in again.stdout

    table = run("bench", "table", log)
    assert table.returncode == 0
    rows, _, note = table.stdout.partition("\n\n")
    assert [row.split()[0] for row in rows.splitlines()[2:]] == [
        "discode", "smoothing", "one", "two", "raw",
    ]  # fmt: skip
    assert "two *" in rows
    assert note.startswith("* without a score: two 4.17 % of custom")
    for form, word in (("markdown", "| metric |"), ("latex", r"\toprule"), ("csv", "metric,")):
        assert word in run("bench", "table", log, "--format", form).stdout
    figure = folder / "a.png"
    assert run("bench", "plot", log, "-o", figure).returncode == 0
    assert figure.stat().st_size > 5000

    done = run("compare", log, "one", "two", "--resamples", "99")
    assert "with 12 images intervals are too narrow: score some dozens" in done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "judgments skipped" in done.stdout
    first_pair = json.loads(run("bench", "pairs", "--benchmark", "custom", "--data", folder)
                            .stdout.splitlines()[0])  # fmt: skip
    assert set(first_pair) == {"id", "image", "caption", "references"}
    assert "99 permutations" in done.stdout
    report = json.loads(run("compare", log, "--json", "--resamples", "99").stdout)
    assert len(report["pairs"]) == 10
    assert sum(map(len, report["groups"])) == 5


def test_one_m_and_tie_rates(folder: Path) -> None:
    """Ratings with 48 values; the first metric has two, and gains by scipy's m and by τ_b."""
    rows = [json.loads(line) for line in (folder / "ratings.jsonl").read_text().splitlines()]
    people = np.arange(48.0)
    with (folder / "ratings.jsonl").open("w") as file:
        file.writelines(
            json.dumps(row | {"rating": r}) + "\n" for row, r in zip(rows, people, strict=True)
        )
    noisy = people + np.random.default_rng(0).normal(0, 12, 48)
    files = []
    for name, values in (("two", people > 23), ("many", noisy)):
        lines = [
            f"{row['image']},{row['caption']},{float(v)}"
            for row, v in zip(rows, values, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["image,caption,score", *lines]))
        files += ["-m", f"{name}=scorefile:{folder / name}.csv"]
    common = ("bench", "run", "-b", "custom", "--data", folder, *files, "--resamples", 100)
    shown = {}
    for tau_m in ("people", "scipy"):
        done = run(*common, "--tau-m", tau_m, "-o", folder / f"{tau_m}.json", "--signature")
        assert done.returncode == 0, done.stderr
        assert f"|tau_m:{tau_m}" in done.stderr
        assert TAU_C_NOTES[tau_m] in done.stdout
        assert (
            "tie rates: two 48.9 %, many 0.0 %; τ_b, and τ_c with scipy's m, reward ties"
            in done.stdout
        )
        assert done.stdout.splitlines()[1].split() == ["metric", "τ_b", "τ_c", "ties", "%"]
        shown[tau_m] = float(done.stdout.splitlines()[2].split()[2])
    assert shown["scipy"] == 100
    assert shown["people"] == pytest.approx(100 * (1 / 2) / (47 / 48), abs=0.01)
    for measure, note in (("tau_c", TAU_C_NOTES["people"]), ("tau_b", "reward ties")):
        done = run("compare", folder / "scipy.json", "--measure", measure, "--resamples", 100)
        titles, row, *notes = done.stdout.splitlines()
        shows_rates = titles.split()[6:10] == ["A", "ties", "B", "ties"]
        assert shows_rates == (row.split()[4:8] == ["48.9", "%", "0.0", "%"])
        assert shows_rates == (measure == "tau_b")
        assert measure == "tau_b" or row.split()[2] == f"{shown['people']:.2f}"
        assert any(note in line for line in notes)
        assert any(line.startswith("tie rates: two 48.9 %, many 0.0 %") for line in notes)
    refused(run(*common, "--tau-m", "both"), "tau_m=both", "people, scipy")


def test_a_metric_that_gives_one_score_to_everything(folder: Path) -> None:
    other = scores(folder, "a.csv", 0)
    flat = folder / "flat.csv"
    lines = [line.rpartition(",")[0] for line in other.read_text().splitlines()]
    flat.write_text("\n".join([f"{lines[0]},score", *(f"{line},0.1" for line in lines[1:])]))
    log = folder / "run.json"
    metrics = ("-m", f"flat=scorefile:{flat}", "-m", f"other=scorefile:{other}")
    done = run("bench", "run", "-b", "custom", "--data", folder, "-o", log, *metrics)
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:] if line}
    assert table["flat"] == ["undefined", "undefined"]
    assert len(table["other"]) == 2
    compared = run("compare", log)
    rows = [line.split() for line in compared.stdout.splitlines()]
    assert rows[1][:3] == ["flat", "other", "undefined"]
    assert rows[2][:2] == ["undefined:", "flat,"]
    for said in (done, compared):
        assert said.returncode == 0
        assert "nan" not in said.stdout.lower()
        assert "warning" not in said.stderr.lower()
    ours = json.loads(run("compare", log, "--json").stdout)
    assert ours["groups"] == [["other"]]
    assert ours["pairs"][0]["difference"] is None


def test_what_cannot_be_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    common = ("bench", "run", "--benchmark", "custom", "--data", folder)
    refused(run("bench", "run", "--benchmark", "flickr9k", "--data", folder, "-m", "raw"),
            "flickr9k", "did you mean")  # fmt: skip
    for spec, place in (("raters", "KEY=VALUE"), ("ratrs=x", "raters"), ("scale=5-1", "scale=5-1")):
        refused(run(*common[:2], "-b", f"custom:{spec}", *common[4:], "-m", "raw"), place)
    refused(run(*common, "-m", "raw", "--ties", "maybe"), "wrong")
    done = run(*common, "-m", "raw", "-m", "discode", "--model", folder)  # a folder, but no model
    assert done.returncode == 2
    (told,) = [line for line in done.stderr.splitlines() if str(folder) in line]  # once for both
    assert told.startswith("raw, discode: ")
    refused(run("bench", "table", folder / "no.json"), "no such run")
    refused(run("bench", "table", folder / "ratings.jsonl"), "JSON")
    refused(run("bench", "run", "--benchmark", "flickr8k-expert", "--data", folder, "-m", "raw"),
            "ExpertAnnotations.txt", "Hodosh")  # fmt: skip
    other = mini.flickr8k(tmp_path_factory.mktemp("flickr8k"))
    log, file = folder / "run.json", scores(folder, "a.csv", 0)
    assert run(*common, "-m", f"scorefile:{file}", "-o", log).returncode == 0
    before = log.read_bytes()
    refused(run("bench", "run", "--benchmark", "flickr8k-expert", "--data", other, "-o", log,
                "-m", "raw"), "give another file")  # fmt: skip
    assert log.read_bytes() == before
    refused(run("bench", "table", log, "--format", "html"), "markdown")
    refused(run("compare", log), "two metrics")
    assert "scorefile:PATH" in run("bench", "metrics").stdout


def test_several_benchmarks(tmp_path: Path) -> None:
    data, runs = mini.several(tmp_path / "data"), tmp_path / "runs"
    both = ("-b", "flickr8k-expert", "-b", "flickr8k-cf")
    command = ("bench", "run", *both, "--data", data, "-m", "raw", "-m", "discode")
    refused(run(*command, "-b", "mceval", "-b", "foil", "-o", f"{runs}/"),
            "mceval, foil", "--skip-missing", "foil: ")  # fmt: skip
    refused(run(*command, "-o", tmp_path / "run.json"), "run.json", "folder")
    refused(run(*command, "-b", "flickr8k-cf:references=all"), "flickr8k-cf", "twice")
    refused(run("bench", "run", "-b", "foil", "--data", data, "-m", "raw", "--skip-missing"),
            "none of foil is in")  # fmt: skip
    assert not runs.exists()

    done = run(*command, "-b", "mceval", "--skip-missing", "-o", runs)
    assert done.returncode == 0, done.stderr
    assert "skipped: mceval: " in done.stderr
    assert "flickr8k-cf: discode: " in done.stderr
    assert sorted(path.name for path in runs.iterdir()) == [
        "flickr8k-cf.json", "flickr8k-expert.json", "readings.db",
    ]  # fmt: skip
    assert done.stdout.splitlines()[0].split() == ["Flickr8k-Expert", "Flickr8k-CF"]
    assert [line.split()[0] for line in done.stdout.splitlines()[2:8]] == [
        "raw", "from", "to", "discode", "from", "to",
    ]  # fmt: skip
    assert "paper" not in done.stdout
    kept = [RunLog.load(runs / f"{name}.json") for name in both[1::2]]
    assert [log.benchmark for log in kept] == [*both[1::2]]
    before = (runs / "flickr8k-cf.json").read_bytes()

    done = run("bench", "run", "-b", "flickr8k-expert", "-b", "composite", "--data", data,
               "-m", "smoothing", "-o", f"{runs}/")  # fmt: skip
    assert done.returncode == 1, done.stderr  # Composite has no images here
    assert "composite: 2 of 2 images missing" in done.stderr
    assert "composite: smoothing: no scores, 3 pairs failed" in done.stderr
    assert "* without a score: smoothing 100.00 % of composite" in done.stdout
    assert list(RunLog.load(runs / "flickr8k-expert.json").results) == [
        "raw", "discode", "smoothing",
    ]  # fmt: skip
    assert (runs / "flickr8k-cf.json").read_bytes() == before
    table = run("bench", "table", runs)
    assert table.stdout.splitlines()[0].split() == ["Flickr8k-Expert", "Flickr8k-CF", "Composite"]
    refused(run("bench", "table", data), "no runs in")


def test_score_elsewhere_decode_here(folder: Path) -> None:
    benchmark = ("--benchmark", "custom", "--data", folder)
    printed = run("bench", "pairs", *benchmark, "--no-references").stdout
    assert set(json.loads(printed.splitlines()[0])) == {"id", "image", "caption"}
    given, scored, log = (folder / name for name in ("pairs.jsonl", "scores.jsonl", "run.json"))
    given.write_text(printed)
    done = run("score", "-i", given, "-o", scored)
    assert done.returncode == 0, done.stderr
    done = run("bench", "run", *benchmark, "-m", "discode", "-m", f"elsewhere=scorefile:{scored}",
               "-o", log)  # fmt: skip
    assert done.returncode == 0, done.stderr
    here, elsewhere = RunLog.load(log).results.values()
    assert np.isfinite(here.value).all()
    assert np.allclose(here.value, elsewhere.value, rtol=0, atol=1e-6)


def test_two_shares_are_read_elsewhere_and_put_into_one_table(folder: Path) -> None:
    benchmark = ("--benchmark", "custom:limit=6", "--data", folder)
    pairs, scored, store = folder / "pairs.jsonl", folder / "scores", folder / "readings.db"
    pairs.write_text(run("bench", "pairs", *benchmark, "--no-references").stdout)
    for share in range(2):
        arguments = ("--shard", f"{share}/2", "--shard-size", 5, "--store", folder / f"{share}.db")
        done = run("score", "--input", pairs, "-o", scored, *arguments)
        assert done.returncode == 0, done.stderr
        exported = folder / f"{share}.jsonl"
        assert run("store", "export", folder / f"{share}.db", exported).returncode == 0
        assert 0 < len(exported.read_text().splitlines()) < 24
        assert run("store", "import", store, exported).returncode == 0
    table = ("-m", "raw", "-m", "discode", "-o")
    joined = run("bench", "run", *benchmark, *table, folder / "a.json",
                 "--model", f"recorded:{store}")  # fmt: skip
    assert joined.returncode == 0, joined.stderr
    study = ("paper", "sigma", "--data", folder, "-b", "custom", "--limit", 6, "--resamples", 0)
    assert run(*study, "--model", f"recorded:{store}").returncode == 0
    # The same numbers as of one machine, and of fewer images than the whole has.
    alone = run("bench", "run", *benchmark[:1], "custom", *benchmark[2:], "--limit", 6, *table,
                folder / "b.json")  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    here, there = (RunLog.load(folder / f"{name}.json") for name in "ab")
    assert here.same_questions(there)
    for label in ("raw", "discode"):
        assert np.array_equal(here.results[label].value, there.results[label].value)
        assert np.isfinite(here.results[label].value).all()
    refused(run("bench", "run", *benchmark[:1], "custom", *benchmark[2:], *table,
                folder / "b.json"), "b.json")  # fmt: skip


def test_without_java_the_other_metrics_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap", reason="text metrics want discode-eval[bench]")
    monkeypatch.setenv("PATH", "/nowhere")
    file = scores(folder, "a.csv", 0)
    done = run("bench", "run", "--benchmark", "custom", "--data", folder, "-m", "cider",
               "-m", f"one=scorefile:{file}")  # fmt: skip
    assert done.returncode == 1
    assert "one" in done.stdout
    assert any("cider" in line and "Java" in line for line in done.stderr.splitlines())


def test_a_recording_is_not_stored_again(tmp_path: Path, recording: str) -> None:
    caption = "a close up of a brown striped cat with green eyes"
    row = {"image": str(demo_path() / "cat.jpg"), "caption": caption, "rating": 1}
    (tmp_path / "ratings.jsonl").write_text(json.dumps(row))
    log = tmp_path / "run.json"
    done = run("bench", "run", "--benchmark", "custom", "--data", tmp_path, "-o", log,
               "--model", recording, "-m", "discode")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.isfinite(RunLog.load(log).results["discode"].value).all()
    assert not (tmp_path / "run.json.readings.db").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "bleu-4", "-M", "foo=1"), "foo"),
        (("-m", "bleu-4", "--model", "embeded"), "--model"),
        (("-m", "cidr"), "did you mean 'cider'"),
        (("-m", "discode", "-M", "thread=2"), "did you mean 'threads'"),
        (("-m", "discode", "--model", "recorded:x.db", "-M", "threads=1"), "'threads'"),
    ],
)
def test_mistakes_are_told_before_the_data_is_read(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    data = tmp_path / "there is nothing here"
    refused(run("bench", "run", "-b", "flickr8k-expert", "--data", data, *arguments), words)


def test_tables_of_the_paper() -> None:
    listed = run("bench", "published")
    assert listed.returncode == 0
    for name in PAPER_TABLES:
        assert name in listed.stdout
    table = run("bench", "published", "foil", "--format", "markdown")
    assert "DISCODE, LLaVA-NeXT-72B | 98.2 | 98.2 |" in table.stdout
    refused(run("bench", "published", "fol"), "did you mean 'foil'")
    refused(run("bench", "published", "foil", "--format", "html"), "text, markdown, latex, csv")


def test_composite_is_made_from_what_its_description_names(tmp_path: Path) -> None:
    told = run("bench", "list", "composite").stdout
    assert "Yebin46/FLEUR" in told
    assert "Silviase/VisCE2" in told
    assert "discode bench join-composite annotations/composite.json result.parquet" in told
    refused(run("bench", "list", "composit"), "unknown benchmark", "'composite'")
    mini.write(tmp_path / "rows.json", mini.FLEUR_COMPOSITE)
    own = mini.COMPOSITE["flickr8k"][0]["references"]
    table = tmp_path / "references.jsonl"
    table.write_text(json.dumps({"image_path": "8k/a.jpg", "references": own}), encoding="utf-8")
    out = tmp_path / "composite.json"
    done = run("bench", "join-composite", tmp_path / "rows.json", table, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "not the version that reproduces the published numbers" in done.stderr
    assert json.loads(out.read_text(encoding="utf-8")) == mini.COMPOSITE
    for rows, references, target in (
        ("no.json", table, out),
        ("rows.json", tmp_path / "no.parquet", out),
        ("rows.json", table, tmp_path / "no" / "composite.json"),
    ):
        refused(run("bench", "join-composite", tmp_path / rows, references, "-o", target), "no")
    assert json.loads(out.read_text(encoding="utf-8")) == mini.COMPOSITE  # nothing was lost
