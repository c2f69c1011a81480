"""Published P(yes) of VQAScore against people, through a score file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import kendalltau, spearmanr

from discode.bench import RunLog
from tests.helpers.command_line import call


@pytest.mark.data
def test_vqascore_of_genai_bench_agrees_with_people(data: Path, tmp_path: Path) -> None:
    source = data / "alignment" / "genai_bench" / "genai_image_teaser.json"
    if not source.is_file():
        pytest.skip(f"GenAI-Bench's teasers are not at {source}")
    rows = [
        {"image": f"{key}/{model}.jpg", "caption": row["prompt"], "id": f"{key} {model}",
         "rating": float(each["human"]), "score": float(each["clip_flant5"]),
         "clip": float(each["clip"])}
        for key, row in json.loads(source.read_text()).items()
        for model, each in row["models"].items()
    ]  # fmt: skip
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "ratings.jsonl").write_text("".join(lines))
    scores = tmp_path / "vqascore.jsonl"
    scores.write_text("".join(lines))
    out = tmp_path / "run.json"
    done = call("bench", "run", "-b", "custom", "--data", tmp_path / "ratings.jsonl",
                "-m", f"vqascore=scorefile:{scores}", "-m", f"clip=scorefile:{scores}#clip",
                "--resamples", "0", "-o", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = RunLog.load(out).results
    human = [row["rating"] for row in rows]
    for name, column in (("vqascore", "score"), ("clip", "clip")):
        values = [row[column] for row in rows]
        measures = results[name].measures
        assert measures["tau_b"].value == pytest.approx(kendalltau(values, human)[0])
        assert measures["spearman"].value == pytest.approx(spearmanr(values, human)[0])
    assert results["vqascore"].measures["tau_b"].value > results["clip"].measures["tau_b"].value
