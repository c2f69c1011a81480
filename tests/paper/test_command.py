"""discode study as a person types it: listed, run, written, resumed from logs, refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from discode.paper import STUDIES
from tests.helpers.command_line import DISCODE, refused, run
from tests.helpers.mini_benchmarks import several
from tests.helpers.samples import png


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several(tmp_path_factory.mktemp("data"))


def test_without_a_name_all_are_listed() -> None:
    done = run("study")
    for study in STUDIES.values():
        assert study.name in done.stdout


@pytest.mark.usefixtures("shipped")
def test_a_study_is_written_and_goes_on_from_its_logs(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    first = tmp_path / "first"
    arguments = ["--data", data, "-b", "flickr8k-expert", "--resamples", 100]
    done = run("study", "ablation", *arguments, "-o", first)
    assert done.returncode == 0, done.stderr
    for suffix in (".txt", ".md", ".tex", ".csv", ".png", "_appendix.csv"):
        assert (first / f"ablation{suffix}").stat().st_size > 0
    log = first / "runs" / "discode-embedded_flickr8k-expert.json"
    results = json.loads(log.read_text())["results"]
    assert len(results) == 10
    assert (first / "readings.db").is_file()
    assert "other data" in (first / "ablation.txt").read_text()
    # Another study from the log and its readings: a judge that only replays.
    (tmp_path / "moved").mkdir()
    copy = tmp_path / "moved" / "run.json"
    copy.write_bytes(log.read_bytes())
    (tmp_path / "moved" / "readings.db").write_bytes((first / "readings.db").read_bytes())
    again = run("study", "sigma", *arguments, "--log", copy, "-f", "csv")
    assert again.returncode == 0, again.stderr
    assert "judging with" not in again.stderr
    assert "discode-embedded / ten Adam steps" in again.stdout.replace(", ", " / ")
    # Without data only what the log has.
    alone = run("study", "ablation", "--log", copy)
    assert alone.returncode == 0, alone.stderr
    table = (first / "ablation.txt").read_text()
    assert [line for line in alone.stdout.splitlines() if "Smoothing" in line][:1] == [
        line for line in table.splitlines() if "Smoothing" in line
    ][:1]


def test_everything_is_written_though_nobody_reads_on(data: Path, tmp_path: Path) -> None:
    """As into ``| head``, which goes away after a line."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["study", "dataset", "--data", data, "-b", "flickr8k-expert", "-o", tmp_path]
    subprocess.run([*DISCODE, *map(str, arguments)], stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert {path.name for path in tmp_path.iterdir()} >= {"dataset.txt", "dataset.csv"}


def test_ratings_of_ones_own_are_all_that_is_looked_for(tmp_path: Path) -> None:
    ratings = tmp_path / "mine.csv"
    ratings.write_text("image,caption,rating\na.jpg,a dog,1\nb.jpg,a cat,2\n")
    done = run("study", "dataset", "--ratings", ratings)
    assert done.returncode == 0
    assert "None" not in done.stderr
    assert "flickr8k" not in done.stderr


@pytest.mark.usefixtures("shipped")
def test_a_judge_that_gives_one_score_to_everything(tmp_path: Path) -> None:
    lines = ["image,caption,rating"]
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png())
        lines.append(f"{number}.png,a cat,{number}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    done = run("study", "divergence", "--ratings", tmp_path / "ratings.csv", "--resamples", 100)
    assert done.returncode == 0, done.stderr
    assert "undefined" in done.stdout
    assert "nan" not in done.stdout.lower()
    assert "warning" not in done.stderr.lower()


def test_mistakes_are_told_in_one_line(data: Path, tmp_path: Path) -> None:
    refused(run("study", "ablation"), "--data", "--log")
    refused(run("study", "ablatoin"), "ablatoin")
    refused(run("study", "mceval", "--data", data), "mceval", "bench list")
    refused(run("study", "ablation", "-b", "flickr8k-expert"), "--data")
    refused(run("study", "ablation", "--data", data, "-b", "nonesuch"), "nonesuch")
    refused(run("study", "mceval", "--data", data, "-b", "flickr8k-expert"), "no column", "mceval")
    refused(run("study", "foil", "--data", data, "-b", "foil:reference=1"), "reference")
    refused(run("study", "sigma", "--data", data, "--format", "html"), "html", "latex")
    refused(run("study", "sigma", "--log", tmp_path / "none.json"), "none.json")
    refused(run("study", "sigma", "--log", tmp_path), "no runs in")
    refused(run("study", "cost", "-b", "mceval"), "needs no benchmark")
    refused(run("study", "cost", "--captions", "0"), "captions", "whole number")
    (tmp_path / "file").write_text("")
    refused(run("study", "sigma", "--data", data, "-o", tmp_path / "file"), "cannot write")


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(("name", "word"), [("scale", "scales"), ("references", "references")])
def test_the_embedded_judge_says_what_it_cannot(name: str, word: str, data: Path) -> None:
    done = run("study", name, "--data", data, "-b", "flickr8k-expert", "--model", "embedded")
    assert done.returncode == 2
    assert word in done.stderr.splitlines()[-1]
    assert "--model" in done.stderr.splitlines()[-1]
