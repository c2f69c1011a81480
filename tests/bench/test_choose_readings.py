"""discode choose --readings: anyone's log-probabilities with people's scores, from a file."""

from __future__ import annotations

import csv
import io
import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode import decode
from discode.bench._agreement import TAU_C_NOTES
from discode.decoders import get_decoder
from tests.helpers.command_line import call, refused
from tests.helpers.simulated_ratings import simulate

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = ("discode", "paper", "λ=9")


def table(*arguments: object, status: int = 0) -> dict[str, dict[str, float]]:
    """The command's table: a row of numbers per file, in percent."""
    done = call("choose", *arguments, "--resamples", 100, "-f", "csv")
    assert done.returncode == status, done.stderr
    rows = csv.DictReader(io.StringIO(done.stdout))
    return {
        row.pop("readings"): {
            name: float(cell.replace(",", "")) for name, cell in row.items() if cell
        }
        for row in rows
    }


def judge_columns(row: dict[str, float]) -> list[float]:
    """What the table says of the decoders."""
    return [row[name] for name in ("raw", "smoothing", *OTHERS)]


def test_every_form_of_a_file_gives_the_same_choice(tmp_path: Path) -> None:
    drawn = simulate(0, images=30, captions=2)
    logp, score = drawn.readings.answer_logp[:, 0], drawn.ratings.value
    columns = drawn.image.tolist(), score.tolist(), logp.tolist()
    listed = [
        {"image": image, "score": value, "log_probs": row}
        for image, value, row in zip(*columns, strict=True)
    ]
    named = [row | {"log_probs": dict(zip("0123456789", row["log_probs"], strict=True))}
             for row in listed]  # fmt: skip
    lines = [["image", "score", *(f"my_{digit}" for digit in range(10))]]
    lines += [[row["image"], row["score"], *row["log_probs"]] for row in listed]
    lines.append([""] * 12)  # neither a reading nor a score
    (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    for name, rows in (("b.jsonl", listed), ("c.jsonl", named)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    files = [("--readings", tmp_path / name) for name in ("a.csv", "b.jsonl", "c.jsonl")]
    shown = table(*(word for pair in files for word in pair), "--rating-column", "score")
    names = ["a.csv", "b.jsonl", "c.jsonl"]
    assert list(shown) == [row for name in names for row in (name, f"{name}, ties %")]
    assert shown["a.csv"] == shown["b.jsonl"] == shown["c.jsonl"]
    assert shown["a.csv"]["n"] == 60
    specs = ["smoothing", "discode", "paper", "discode:trust=9"]
    tau = {
        name: 100 * kendalltau(decode(logp, method=get_decoder(name)).value, score, variant="c")[0]
        for name in ("raw", *specs)
    }
    gains = [tau[name] - tau["smoothing"] for name in specs[1:]]
    expected = [tau["raw"], tau["smoothing"], *gains]
    assert judge_columns(shown["a.csv"]) == pytest.approx(expected, abs=1e-3)
    for name in OTHERS:
        assert (
            shown["a.csv"][f"{name} low"] <= shown["a.csv"][name] <= shown["a.csv"][f"{name} high"]
        )
    ties = shown["a.csv, ties %"]
    raw = decode(logp, method="raw").value
    equal = np.equal.outer(raw, raw)[np.triu_indices(60, 1)].mean()
    assert ties["raw"] == pytest.approx(100 * equal, abs=1e-3)
    assert ties["smoothing"] == ties["paper"] == 0
    out = tmp_path / "out"
    call("choose", "--readings", tmp_path / "a.csv", "--rating-column", "score", "-o", out)
    chosen = json.loads((out / "decoder.json").read_text())["chosen"]
    assert (chosen["readings"], chosen["ratings"]) == ("a.csv", "score")
    assert (chosen["images"], chosen["judgments"]) == (30, 60)


def test_rows_are_left_out_by_conditions_and_counted(tmp_path: Path) -> None:
    drawn = simulate(1, images=30, captions=2)
    rows = [
        {"score": value, "split": "test", "parsed": 1.0, "log_probs": logp}
        for value, logp in zip(
            drawn.ratings.value.tolist(), drawn.readings.answer_logp[:, 0].tolist(), strict=True
        )
    ]
    bad = [math.nan] * 10
    more = [
        rows[0] | {"parsed": 0.5}, rows[1] | {"parsed": None}, rows[2] | {"split": "train"},
        rows[3] | {"score": None}, rows[4] | {"log_probs": bad}, rows[5] | {"log_probs": bad},
    ]  # fmt: skip
    for name, content in (("a", rows), ("b", rows + more)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    wanted = ("--rating-column", "people", "--rating-column", "score", "--where", "parsed >= 1",
              "--where", "split==test")  # fmt: skip
    both = "--readings", tmp_path / "a.jsonl", "--readings", tmp_path / "b.jsonl"
    shown = table(*both, *wanted, status=1)  # two rows without a score
    assert shown["a.jsonl"] == shown["b.jsonl"]
    call("choose", *both, *wanted, "--resamples", 100, "-o", tmp_path / "out")
    presets = sorted((tmp_path / "out").glob("*.json"))
    clean, chosen = (json.loads(file.read_text())["chosen"] for file in presets)
    assert clean["left_out"] == {}
    assert sorted(chosen["left_out"].values()) == [1, 1, 2]
    assert (clean["without_score"], chosen["without_score"]) == (0, 2)
    assert chosen["where"] == ["parsed >= 1", "split==test"]
    assert (clean["judgments"], chosen["judgments"]) == (60, 60)
    for condition in ("parsed", ">=1", "parsed>=", "parsed=>1"):
        refused(call("choose", *both, "--rating-column", "score", "--where", condition), condition)
    refused(
        call("choose", *both, "--rating-column", "score", "--where", "other>1"), "line 1", "other"
    )
    refused(call("choose", *both, "--rating-column", "score", "--where", "parsed>1"), "a.jsonl")


def test_ties_are_not_paid_for(tmp_path: Path) -> None:
    """People's scores have many values, and raw few: τ_c with scipy's m would choose raw."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random(600) < 0.6, 0.0, rng.random(600))
    p = np.full((600, 5), 0.001) + 0.9 * np.eye(5)[(truth * 4.99).astype(int)]
    p[:, 1] += np.clip(0.05 + 0.03 * truth + rng.normal(0, 0.004, 600), 0, 0.09)
    lines = ["people,1,2,3,4,5"]
    lines += [",".join(map(str, (a, *row))) for a, row in zip(truth, np.log(p), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    out = tmp_path / "out"
    command = ("--readings", tmp_path / "a.csv", "--rating-column", "people", "--scale", "five")
    row, ties = table(*command).values()
    assert ties["raw"] > 10 > ties["smoothing"]
    done = call("choose", *command, "--resamples", 100, "-o", out)
    assert TAU_C_NOTES["people"] in done.stdout
    chosen = json.loads((out / "decoder.json").read_text())["chosen"]
    raw = decode(np.log(p), method="raw", scale="five").value
    few, many = 5, len(np.unique(truth))
    by_scipy = 100 * kendalltau(raw, truth, variant="c").statistic
    assert row["raw"] == pytest.approx(by_scipy * (1 - 1 / few) / (1 - 1 / many), abs=1e-3)
    assert row["raw"] < row["smoothing"] < by_scipy
    assert chosen["best_on_all_rows"] != "raw"


@pytest.mark.parametrize("unit", ["images", "rows"])
def test_what_is_held_out_has_its_name(unit: str, tmp_path: Path) -> None:
    drawn = simulate(0, images=30, captions=2)
    logp, score = drawn.readings.answer_logp[:, 0].tolist(), drawn.ratings.value.tolist()
    rows = [{"score": value, "log_probs": row} for value, row in zip(score, logp, strict=True)]
    if unit == "images":
        rows = [{"image": i, **row} for i, row in zip(drawn.image.tolist(), rows, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "few.jsonl").write_text("\n".join(map(json.dumps, rows[:4])))
    command = ("choose", "--rating-column", "score", "--readings")
    done = call(*command, tmp_path / "a.jsonl", "--calibrate", "-o", tmp_path)
    assert done.stdout.count(f"on held-out {unit}") == 2
    assert {"images": "rows", "rows": "images"}[unit] not in done.stdout.replace("hump: rows", "")
    chosen = json.loads((tmp_path / "decoder.json").read_text())["chosen"]
    assert chosen[unit] == {"images": 30, "rows": 60}[unit]
    refused(call(*command, tmp_path / "few.jsonl"), f" {unit} are too few")


@pytest.mark.parametrize("column", ["image_id", "Image", "file_name"])
def test_rows_of_an_image_stay_together_whatever_its_column(column: str, tmp_path: Path) -> None:
    drawn = simulate(0, images=30, captions=2)
    logp, score = drawn.readings.answer_logp[:, 0].tolist(), drawn.ratings.value.tolist()
    images: list[object] = drawn.image.tolist()
    images[:3] = ["", None, " "]  # two rows of image 0, and one of image 1, whose other row stays
    rows = [
        {column: image, "score": value, "log_probs": row}
        for image, value, row in zip(images, score, logp, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = call(
        "choose", "--rating-column", "score", "--readings", tmp_path / "a.jsonl", "-o", tmp_path
    )
    assert json.loads((tmp_path / "decoder.json").read_text())["chosen"]["images"] == 29 + 3
    assert "images: 32; rows without an image, each a group: 3" in done.stdout


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "score,logp_1,logp_2,logp_3,logp_4,logp_5\n1,-1,-1,-2,-3,-4\nx,-1,-1,-1,-1,-1\n"
    )
    command = ("choose", "--readings", file, "--scale", "five")
    refused(call(*command), "--rating-column")
    refused(call(*command, "--rating-column", "people"), "people", "logp_1")
    refused(call(*command, "--rating-column", "score"), "line 3", "score", "'x'")
    refused(call("choose", "--readings", file, "--rating-column", "logp_1"), "logp_0")
    refused(call(*command, "--rating-column", "score", "--data", tmp_path), "--data")
    refused(call("choose", "--readings", tmp_path / "none.csv", "--rating-column", "x"), "none.csv")
    refused(call("choose", "--scale", "five"), "--readings")
    refused(call("choose", "--where", "score>1"), "--readings")
    refused(call("choose", "-m", "paper"), "--readings")
    refused(call(*command, "--rating-column", "score", "-m", "chosen/decoder.json"), "decoder.json")
    refused(call(*command, "--rating-column", "score", "-m", "papr"), "papr")
    refused(call("choose", "--rating-column", file, "--rating-column", "score"), "--readings")


@pytest.mark.data
def test_real_judges(data: Path) -> None:
    files = [
        data / "judges" / f"divake_v2{name}.csv" for name in ("", "_phi4", "_gemini", "_polaris")
    ]
    if not all(file.is_file() for file in files):
        pytest.skip(f"there is no {files[0]}")
    # The folder's README has these figures, counted with scipy, whose m for raw on Polaris
    # is 5, where people's scores have 102 values: 58.10 * (4 / 5) / (101 / 102).
    shown = table(
        *(word for file in files for word in ("--readings", file)), "--scale", "five",
        "--rating-column", "gt_score_continuous", "--rating-column", "gt_score",
        "--where", "parsed_score>=1",
    )  # fmt: skip
    expected = {
        "divake_v2.csv": (5716, 27.97, 30.77, 0, 0, 0),
        "divake_v2_phi4.csv": (5653, 22.81, 24.85, 0, -0.02, 0.01),
        "divake_v2_gemini.csv": (5409, 35.54, 38.67, -0.10, -0.04, -0.09),
        "divake_v2_polaris.csv": (8724, 46.94, 51.31, 0.39, 0.39, 0.11),
    }
    for name, numbers in expected.items():
        row = [shown[name]["n"], *judge_columns(shown[name])]
        assert row == pytest.approx(numbers, abs=0.006), name


@pytest.mark.data
def test_the_tables_of_the_pages_are_current(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all((data / folder).is_dir() for folder in ("judges", "readings", "flickr8k")):
        pytest.skip(f"{data} has no judges, readings and flickr8k")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DOCS))
    script = runpy.run_path(str(DOCS / "make_choice.py"))
    agree = runpy.run_path(str(DOCS / "make_outputs.py"))["agree"]
    blocks = script["blocks_of"](data)
    pages = {page: page.read_text(encoding="utf-8") for page in script["PAGES"]}
    named = [block["name"] for text in pages.values() for block in script["BLOCK"].finditer(text)]
    assert {*named} == {*blocks}
    for page, text in pages.items():
        shown, made = (
            script["BLOCK"].findall(side) for side in (text, script["renew"](text, blocks))
        )
        for (name, before), (_, now) in zip(shown, made, strict=True):
            assert agree(before, now), f"{page.name}, {name}: run docs/make_choice.py"


def test_an_answers_own_column_is_no_rating(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("score,1,2,3,4,5\n" + "3,-1,-2,-3,-4,-5\n" * 9)
    refused(
        call("choose", "--readings", path, "--rating-column", "4", "-s", "five"),
        "a.csv line 2",
        "4",
    )
