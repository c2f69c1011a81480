"""Published numbers against what their authors released."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.bench._published import published_cells
from discode.bench._verify import CONFORMAL, verify, verify_choices, verify_intervals
from discode.benchmarks import load_benchmark
from tests.helpers.command_line import refused, run

TIFA = "human_annotations_with_scores.json"


def made_up(folder: Path) -> tuple[list[float], list[float]]:
    """Write TIFA's file with 40 items, and return people's means and METEOR."""
    rng = np.random.default_rng(3)
    human = rng.integers(2, 11, 40) / 2
    meteor = human + rng.normal(0, 1, 40)
    items = {
        f"item_{i}": {
            "image_path": f"{i}.jpg", "text": f"a picture of {i}", "human_avg": h,
            "human_scores": [int(h), int(2 * h - int(h))], "meteor": m,
        }
        for i, (h, m) in enumerate(zip(human.tolist(), meteor.tolist(), strict=True))
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / TIFA).write_text(json.dumps(items))
    return human.tolist(), meteor.tolist()


def test_scores_that_authors_released(tmp_path: Path) -> None:
    human, meteor = made_up(tmp_path / "tifa160")
    benchmark = load_benchmark("tifa160", tmp_path)
    cells = {cell.column: cell for cell in verify(benchmark, tmp_path, {})}
    assert cells.keys() == {"tifa160 tau_b", "tifa160 pearson"}
    assert cells["tifa160 tau_b"].ours == pytest.approx(100 * kendalltau(human, meteor)[0])
    assert cells["tifa160 pearson"].ours == pytest.approx(100 * np.corrcoef(human, meteor)[0, 1])
    assert cells["tifa160 tau_b"].published == 27.4
    assert not cells["tifa160 tau_b"].holds


def test_the_command(tmp_path: Path) -> None:
    """Exit code 1 where a number is not reproduced; score files of the user's own join it."""
    made_up(tmp_path / "tifa160")
    rows = [{"id": f"item_{i}", "score": i} for i in range(40)]
    (own := tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("bench", "verify", "--data", tmp_path, "-m", f"spice=scorefile:{own}",
               "--format", "csv")  # fmt: skip
    assert done.returncode == 1
    table = list(csv.reader(done.stdout.splitlines()))
    verdicts = {(row[1], row[2]): row[6] for row in table[1:5]}
    assert verdicts.keys() == {
        (measure, metric) for measure in ("tau_b", "pearson") for metric in ("spice", "meteor")
    }
    assert {*verdicts.values()} == {"differs"}
    for arguments in (
        ("--data", tmp_path / "none"), ("--data", tmp_path, "-b", "composite"),
        ("--data", tmp_path, "--format", "x"), ("--data", tmp_path, "-m", "meteorr"),
    ):  # fmt: skip
        done = run("bench", "verify", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_a_folder_without_published_data(tmp_path: Path) -> None:
    assert run("bench", "verify", "--data", tmp_path).returncode == 2
    refused(run("bench", "verify", "--data", tmp_path / "none"), "folder", "none")


def test_a_metric_without_a_published_number_is_named(tmp_path: Path) -> None:
    made_up(tmp_path / "tifa160")
    done = run("bench", "verify", "--data", tmp_path, "-m", "cider", "-m", "meteor")
    assert "cider" in done.stderr
    assert "meteor" not in done.stderr
    item = {"imgid": "0", "mt": "a cat", "score": 0.5, "count": 8}
    (tmp_path / "polaris").mkdir()
    (tmp_path / "polaris" / "polaris_val.json").write_text(json.dumps([item]))
    refused(run("bench", "verify", "--data", tmp_path, "-b", "polaris"), "polaris", "-b")


@pytest.mark.data
def test_fleur_on_pascal50s(data: Path) -> None:
    cells = list(verify_choices(data))
    assert [round(cell.ours, 1) for cell in cells] == [61.3, 99.7, 97.6, 74.2, 83.2]
    assert all(cell.holds for cell in cells)


@pytest.mark.slow
@pytest.mark.data
def test_intervals(data: Path) -> None:
    cells = list(verify_intervals(data))
    assert len(cells) == 62
    assert [cell.column for cell in cells if not cell.holds] == ["mllm-judge mm-vet width"]
    assert {cell.source for cell in cells} == {CONFORMAL}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["flickr8k-expert", "flickr8k-cf", "composite", "pascal50s"])
def test_text_metrics_and_fleur(name: str, data: Path) -> None:
    """Every cell but METEOR's, which takes minutes."""
    pytest.importorskip("pycocoevalcap", reason="text metrics need discode-eval[bench]")
    metrics = {metric: metric for metric in ("bleu-1", "bleu-4", "rouge-l", "cider")}
    cells = list(verify(load_benchmark(name, data), data, metrics))
    wanted = {
        (cell.column, cell.metric)
        for cell in published_cells()
        if cell.metric in metrics and cell.column.startswith(f"{name} ")
    }
    assert {(cell.column, cell.metric) for cell in cells if cell.metric in metrics} == wanted
    assert all(cell.holds for cell in cells), cells
