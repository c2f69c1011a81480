"""discode paper as a person types it: listed, run, written, resumed from logs, refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from discode._paper import STUDIES
from discode.bench import RunLog
from discode.bench._agreement import TAU_C_NOTES
from discode.benchmarks import load_benchmark
from tests.helpers.command_line import DISCODE, refused, run
from tests.helpers.mini_benchmarks import several
from tests.helpers.samples import png


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several(tmp_path_factory.mktemp("data"))


def test_without_a_name_all_are_listed() -> None:
    done = run("paper")
    for study in STUDIES.values():
        assert study.name in done.stdout


@pytest.mark.usefixtures("shipped")
def test_a_study_is_written_and_goes_on_from_its_logs(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    first = tmp_path / "first"
    arguments = ["--data", data, "-b", "flickr8k-expert", "--resamples", 100]
    done = run("paper", "ablation", *arguments, "-o", first)
    assert done.returncode == 0, done.stderr
    for suffix in (".txt", ".md", ".tex", ".csv", ".png", "_appendix.csv"):
        assert (first / f"ablation{suffix}").stat().st_size > 0
    log = first / "runs" / "discode-embedded_flickr8k-expert.json"
    results = json.loads(log.read_text())["results"]
    assert len(results) == 10
    assert RunLog.load(log).protocol.tau_m == "scipy"  # as in the published tables
    assert TAU_C_NOTES["scipy"] in (first / "ablation.txt").read_text()
    assert (first / "readings.db").is_file()
    # Another study from the log and its readings: a judge that only replays.
    copy = tmp_path / "run.json"
    copy.write_bytes(log.read_bytes())
    (tmp_path / "readings.db").write_bytes((first / "readings.db").read_bytes())
    again = run("paper", "sigma", *arguments, "--log", copy, "-f", "csv")
    assert again.returncode == 0, again.stderr
    assert "judging with" not in again.stderr
    assert "discode-embedded / ten Adam steps" in again.stdout.replace(", ", " / ")
    # Without data only what the log has.
    alone = run("paper", "ablation", "--log", copy)
    assert alone.returncode == 0, alone.stderr
    table = (first / "ablation.txt").read_text()
    assert [line for line in alone.stdout.splitlines() if "Smoothing" in line][:1] == [
        line for line in table.splitlines() if "Smoothing" in line
    ][:1]


@pytest.mark.usefixtures("shipped")
def test_several_studies_share_a_run_and_a_page(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    scores = tmp_path / "mine.csv"
    pairs = load_benchmark("flickr8k-expert", data).pairs
    scores.write_text(
        "\n".join(["id,score", *(f"{pair.id},0.{i}" for i, pair in enumerate(pairs))])
    )
    names = ("main", "sigma", "scale", "mceval", "dataset")
    arguments = [*names, "--data", data, "-b", "flickr8k-expert", "--resamples", 0, "--limit", 2,
                 "-m", f"mine=scorefile:{scores}", "-m", "discode:trust=1"]  # fmt: skip
    done = run("paper", *arguments, "-o", tmp_path)
    assert done.returncode == 0, done.stderr  # what is not there is no failure
    left_out = [line for line in done.stderr.splitlines() if line.startswith("left out: ")]
    assert {line.split(": ")[1] for line in left_out} >= {"scale"}
    (not_made,) = (line for line in done.stderr.splitlines() if line.startswith("not made: "))
    assert not_made.startswith("not made: mceval: ")
    page = (tmp_path / "index.html").read_text()
    made = [name for name in names if name != "mceval"]
    for name in made:
        assert f'<h2 id="{name}">' in page
    linked = re.findall(r'(?:href|src)="([^#"]+)"', page)
    assert len(linked) >= 4 * len(made)
    assert all((tmp_path / file).is_file() for file in linked)
    table = (tmp_path / "main.csv").read_text()
    for row in ("mine", "discode:trust=1, discode-embedded",
                "DISCODE, closed form as printed, discode-embedded"):  # fmt: skip
        assert f"{row}," in table.replace('"', "")
    # One log has what all studies of these pairs scored, and is of the limited run.
    log = RunLog.load(tmp_path / "runs" / "discode-embedded_flickr8k-expert_limit_2.json")
    assert {"raw", "mine", "paper", "paper:sigma2=0.01"} <= log.results.keys()
    assert (len(set(log.image.tolist())), log.options["limit"]) == (2, "2")
    assert "limit=2" in log.results["raw"].signature["benchmark"]
    # A whole run does not take its numbers from there.
    whole = run("paper", "sigma", *arguments[len(names) : -6], "-o", tmp_path)
    assert whole.returncode == 0, whole.stderr
    log = RunLog.load(tmp_path / "runs" / "discode-embedded_flickr8k-expert.json")
    assert len(set(log.image.tolist())) == 3


@pytest.mark.usefixtures("shipped")
def test_what_fails_is_said_and_the_rest_is_made(data: Path, tmp_path: Path) -> None:
    """Composite has no images here."""
    arguments = ("--data", data, "--resamples", 0, "-o", tmp_path)
    done = run("paper", "digits", "dataset", "-b", "composite", *arguments)
    assert done.returncode == 0, done.stderr
    assert "not made: digits: " in done.stderr
    done = run("paper", "divergence", "dataset", *arguments)
    assert done.returncode == 1, done.stderr
    assert "failed: divergence: discode-embedded composite" in done.stderr
    assert (tmp_path / "divergence.csv").is_file()
    assert (tmp_path / "dataset.csv").is_file()


def test_everything_is_written_though_nobody_reads_on(data: Path, tmp_path: Path) -> None:
    """As into ``| head``, which goes away after a line."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["paper", "dataset", "--data", data, "-b", "flickr8k-expert", "-o", tmp_path]
    subprocess.run([*DISCODE, *map(str, arguments)], stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert {path.name for path in tmp_path.iterdir()} >= {"dataset.txt", "dataset.csv"}


@pytest.mark.usefixtures("shipped")
def test_a_judge_that_gives_one_score_to_everything(tmp_path: Path) -> None:
    lines = ["image,caption,rating"]
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png())
        lines.append(f"{number}.png,a cat,{number}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    done = run("paper", "divergence", "--ratings", tmp_path / "ratings.csv", "--resamples", 100)
    assert done.returncode == 0, done.stderr
    assert "undefined" in done.stdout
    assert "nan" not in done.stdout.lower()
    assert "warning" not in done.stderr.lower()


def test_mistakes_are_told_in_one_line(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command, words in (
        (("ablation",), ("--data", "--log")),
        (("ablatoin",), ("ablatoin",)),
        (("mceval", "--data", data), ("mceval", "bench list")),
        (("ablation", "-b", "flickr8k-expert"), ("--data",)),
        (("ablation", "--data", data, "-b", "nonesuch"), ("nonesuch",)),
        (("mceval", "--data", data, "-b", "flickr8k-expert"), ("flickr8k-expert", "mceval")),
        (("foil", "--data", data, "-b", "foil:reference=1"), ("reference",)),
        (("sigma", "--data", data, "--format", "html"), ("html", "latex")),
        (("sigma", "main", "--data", data, "--limit", 0), ("limit=0",)),
        (("sigma", "main", "--data", tmp_path / "nowhere"), ("nowhere",)),
        (("sigma", "main", "--data", data, "--model", "recorded:none.db"), ("none.db",)),
        (("main", "--data", data, "-m", "clip-z:model=x"), ("clip-z",)),
        (("main", "--data", data, "-m", "g-veval"), ("endpoint",)),
        (("sigma", "--log", tmp_path / "none.json"), ("none.json",)),
        (("sigma", "--log", tmp_path), (str(tmp_path),)),
        (("cost", "-b", "mceval"), ("-b",)),
        (("cost:captions=0",), ("captions=0",)),
        (("cost:caption=2",), ("captions",)),
        (("sigma", "--data", data, "-o", tmp_path / "file"), ("file", "folder")),
    ):
        refused(run("paper", *command), *words)


@pytest.mark.usefixtures("shipped")
def test_scales_that_the_judge_lacks_are_left_out_and_the_others_lines(data: Path) -> None:
    done = run("paper", "scale", "--data", data, "-b", "flickr8k-expert", "--model", "embedded")
    assert done.returncode == 0  # nothing failed
    assert "0.0 to 1.0" in done.stdout
    assert all(f"'{scale}'" in done.stderr for scale in ("five", "ten", "letters"))
