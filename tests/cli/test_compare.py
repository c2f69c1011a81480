"""discode compare on score files, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import discode
from discode._cli.output import open_scores
from discode.bench._compare import GROUP_RULE
from discode.bulk._judging import at_rows
from tests.helpers.command_line import call, refused
from tests.helpers.fake_model import FakeModel
from tests.helpers.samples import png


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Scores of three captioners as ``discode score`` writes them; one caption fails."""
    judge = discode.load(FakeModel(rejects="bad"))
    names = [f"{n}.png" for n in range(40)]
    found = []
    for name, word in (("short.jsonl", "cat"), ("long.csv", "cat on a mat"), ("odd.jsonl", "cab")):
        captions = [
            f"{word}{'s' * (n % 7)}{' bad' * (n == 3 and word == 'cat')}" for n in range(40)
        ]
        scores = {"discode": judge.score([png()] * 40, captions)}
        rows = at_rows(scores, None, 0, list(map(str, range(40))), names=tuple(names))
        with open_scores(tmp_path / name) as write:
            write(rows)
        found.append(tmp_path / name)
    return found


def test_two_captioners(files: list[Path], tmp_path: Path) -> None:
    done = call("compare", *files[:2], "--resamples", 199, "--plot", tmp_path / "two.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["system", "mean", "95", "%", "rank"]
    assert lines[4].split()[:2] == ["A", "B"]
    assert lines[5].split()[:2] == ["short", "long"]
    assert "39 images compared, joined by image" in lines
    assert "leaving out 1 failed row of short (5 %)" in done.stdout
    assert "199 permutations that swap images" in done.stdout
    assert "fake|" in lines[-1]
    assert "model:fake" not in done.stdout
    assert "model:fake" in call("compare", *files[:2], "--resamples", 99, "--signature").stdout
    assert (tmp_path / "two.png").stat().st_size > 10_000

    told = json.loads(call("compare", *files[:2], "--resamples", 199, "--json").stdout)
    (pair,) = told["pairs"]
    assert f"{pair['difference']:+.4f}" == lines[5].split()[2]
    assert pair["verdict"] + " (5 %)" in lines
    assert told["files"][0] == {"name": "short", "rows": 40, "failed": 1, "images": 40}
    assert told["images"] == 39
    assert (told["joined_by"], told["failed_as"]) == ("image", None)
    counted = ("compare", *files[:2], "--resamples", 199, "--failed-as", 0)
    told = json.loads(call(*counted, "--json").stdout)
    assert (told["images"], told["failed_as"], told["pairs"][0]["failed_a"]) == (40, 0, 0)
    assert "rows without a score: short 1 (counted as 0)" in call(*counted).stdout


def test_several_captioners(files: list[Path]) -> None:
    done = call("compare", *files[:2], f"other={files[2]}", "--resamples", 199)
    assert done.returncode == 0, done.stderr
    assert "groups that differ: " in done.stdout
    assert GROUP_RULE in done.stdout.splitlines()
    told = json.loads(
        call("compare", *files[:2], f"other={files[2]}", "--resamples", 199, "--json").stdout
    )
    assert len(told["pairs"]) == 3
    assert sorted(name for group in told["groups"] for name in group) == ["long", "other", "short"]
    assert np.all(np.diff([system["mean"] for system in told["systems"]]) <= 0)


def test_tables_for_papers(files: list[Path]) -> None:
    given = ("compare", *files[:2], "--resamples", 99)
    (pair,) = json.loads(call(*given, "--json").stdout)["pairs"]
    numbers = [f"{pair['difference']:+.4f}", f"{pair['low']:+.4f} to {pair['high']:+.4f}"]
    for form, gap, end in (("markdown", " | ", " |"), ("latex", " & ", r" \\"), ("csv", ",", "")):
        done = call(*given, "--format", form)
        assert done.returncode == 0, done.stderr
        rows = [line.removesuffix(end).split(gap) for line in done.stdout.splitlines()]
        (row,) = [row for row in rows if row[1:2] == ["long"]]
        assert row[2:4] == numbers
        assert ("model:fake" in done.stdout) == (form != "csv")


def test_one_captioner(files: list[Path], tmp_path: Path) -> None:
    given = ("compare", files[0], "--resamples", 199)
    told = json.loads(call(*given, "--json").stdout)
    (alone,) = told["systems"]
    numbers = f"{alone['mean']:.4f}", f"{alone['low']:.4f}", "to", f"{alone['high']:.4f}"
    done = call(*given, "--plot", tmp_path / "one.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["short", *numbers]
    assert "failed-as" in done.stdout  # one row failed
    assert "model:fake" not in done.stdout
    assert "model:fake" in call(*given, "--signature").stdout
    assert (told["images"], told["pairs"], told["files"][0]["failed"]) == (39, [], 1)
    assert (tmp_path / "one.png").stat().st_size > 5_000
    row = f"short & {numbers[0]} & {' '.join(numbers[1:])} \\\\"
    assert row in call(*given, "-f", "latex").stdout.splitlines()
    page = tmp_path / "one.html"
    assert call("report", files[0], "-o", page).returncode == 0
    assert "short" in page.read_text()


def test_latex_marks_the_best_and_what_is_worse(files: list[Path], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    worse = [row | {"score": row["score"] and row["score"] / 2} for row in rows]
    path = tmp_path / "worse.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in worse))
    made = call("compare", files[0], path, "--resamples", 199, "-f", "latex").stdout.splitlines()
    (best,) = [line for line in made if line.startswith(r"short & \textbf{0.")]
    (other,) = [line for line in made if line.startswith("worse & 0.")]
    assert r"\dag{} & " in other
    assert r"\dag" not in best
    assert any(line.startswith("% bold") for line in made)
    tied = call("compare", files[0], f"x={files[0]}", "--resamples", 99, "-f", "latex").stdout
    assert r"\dag" not in tied.replace("% bold: the best; †", "")


@pytest.mark.parametrize("width", [50, 80, 100, None])
def test_numbers_are_never_cut(files: list[Path], width: int | None) -> None:
    given = [f"a-captioner-with-a-long-name={files[0]}", f"another-{'x' * 30}={files[1]}"]
    done = call("compare", *given, "--resamples", 99, width=width)
    (pair,) = json.loads(call("compare", *given, "--resamples", 99, "--json").stdout)["pairs"]
    numbers = [
        f"{pair['difference']:+.4f}", f"{pair['low']:+.4f}", "to", f"{pair['high']:+.4f}",
        f"{pair['p']:.4f}", f"{pair['adjusted']:.4f}", f"{100 * pair['above']:.1f}", "%",
        f"{100 * pair['below']:.1f}", "%", f"{pair['standardised']:+.2f}",
    ]  # fmt: skip
    lines = done.stdout.splitlines()
    assert "…" not in done.stdout
    assert [line for line in lines if line.split()[-len(numbers) :] == numbers], done.stdout
    if width == 80:  # the table itself fits; what follows it are sentences
        table = lines[: lines.index(next(line for line in lines if "(5 %)" in line))]
        assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("images", "note"),
    [(2, "with 2 images there is no interval"), (7, "with 7 images intervals are too narrow")],
)
def test_few_images_are_told(files: list[Path], tmp_path: Path, images: int, note: str) -> None:
    few = [path.with_stem(f"few-{path.stem}") for path in (files[0], files[2])]
    for path, whole in zip(few, (files[0], files[2]), strict=True):
        path.write_text("\n".join(whole.read_text().splitlines()[-images:]))
    compared = call("compare", *few, "--resamples", 99)
    assert note in compared.stdout
    assert compared.stdout.count("too narrow") == ("too narrow" in note)
    page = tmp_path / "a.html"
    assert note in " ".join(call("report", *few, "-o", page).stderr.split())
    assert note in page.read_text()


def test_what_cannot_be_compared(files: list[Path], tmp_path: Path) -> None:
    run, mixed = tmp_path / "run.json", tmp_path / "mixed.jsonl"
    refused(call("compare", run, "a", "b"), "run.json")
    run.write_text("{}")
    first, *rest = files[0].read_text().splitlines()
    mixed.write_text("\n".join([first.replace('"discode"', "null", 1), *rest]))
    other = files[0].read_text().replace("model:fake", "model:other")
    files[2].write_text(other)
    for arguments, place in (
        ((files[0], tmp_path / "no.csv"), "no.csv"),
        ((*files, "--measure", "tau_b"), "--measure"),
        ((*files, "--plot", tmp_path / "a.txt"), "a.txt"),
        ((*files, "--plot", tmp_path / "no" / "a.png"), "a.png"),
        ((*files, "--method", "raw"), "has discode"),
        ((run, "--join-by", "id"), "--join-by"),
        ((run, "--failed-as", "0"), "--failed-as"),
        ((*files[:2], "--failed-as", "nan"), "failed_as"),
        ((mixed, files[0]), "has rows without a method, discode"),
        ((files[0], files[2]), "model:other"),
    ):
        refused(call("compare", *arguments), place)
    page = ("-o", tmp_path / "a.html")
    refused(call("report", files[0], files[1], run, *page), "run logs")
    refused(call("report", *files[:2], "--store", run, *page), "--store")
    refused(call("report", run, "--method", "raw", *page), "--method")
    refused(call("report", run, "--failed-as", 0, *page), "--failed-as")
    assert call("report", mixed, files[0], "--method", "discode", *page).returncode == 0
    refused(call("compare", *files[:2], "--format", "html"), "html")
    refused(call("compare", *files[:2], "--format", "csv", "--json"), "--format")
    # a list of rows is JSON, too, and no run
    rows = [json.loads(line) for line in other.splitlines()]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    done = call("compare", tmp_path / "list.json", files[2], "--resamples", 9)
    assert "no difference between list and odd was shown" in done.stdout
