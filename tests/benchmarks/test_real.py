"""The real files: counts, checksums, and published cells as an oracle of the protocols."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from discode.bench._published import published_cells
from discode.benchmarks import Benchmark, Preferences, Ratings, load_benchmark
from discode.benchmarks._check import check_data
from discode.benchmarks._composite import join_composite

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("name", "options", "judgments", "pairs", "images"),
    [
        ("flickr8k-expert", {}, 16_992, 5664, 1000),
        ("flickr8k-expert", {"self_references": "keep"}, 17_466, 5822, 1000),
        ("flickr8k-expert", {"experts": "average"}, 5664, 5664, 1000),
        ("flickr8k-cf", {}, 47_830, 47_830, 1000),
        ("composite", {}, 11_985, 11_983, 3995),
        ("composite", {"source": "8k"}, 2991, 2991, 997),
        ("composite", {"source": "30k"}, 2973, 2973, 991),
        ("composite", {"source": "coco"}, 6021, 6019, 2007),
        ("pascal50s", {}, 20_000, 27_735, 1000),
        ("pascal50s", {"draws": "2"}, 8000, 11_094, 1000),
        ("pascal50s", {"references": "given"}, 4000, 5547, 1000),
        ("pascal50s", {"labels": "votes", "draws": "1"}, 4000, 5547, 1000),
        ("foil", {}, 1000, 2000, 992),
        ("foil", {"pairs": "valid"}, 943, 1886, 936),
    ],
)
def test_counts(
    data: Path, name: str, options: dict[str, str], judgments: int, pairs: int, images: int
) -> None:
    made = load_benchmark(name, data, options)
    assert len(made.judgments) == judgments
    assert len(made.pairs) == pairs
    assert len(np.unique(made.image)) == images
    keys = {(pair.image, pair.caption, pair.references) for pair in made.pairs}
    assert len(keys) == len({pair.id for pair in made.pairs}) == pairs
    sides = 2 if isinstance(made.judgments, Preferences) else 1
    assert made.repeats().sum() == sides * judgments
    assert made.repeats().min() >= 1


def test_categories_and_values(data: Path) -> None:
    pascal = load_benchmark("pascal50s", data).judgments
    assert isinstance(pascal, Preferences)
    assert Counter(pascal.category) == dict.fromkeys(("HC", "HI", "HM", "MM"), 5000)
    expert = load_benchmark("flickr8k-expert", data).judgments
    assert isinstance(expert, Ratings)
    assert set(expert.value) == {1, 2, 3, 4}
    made = load_benchmark("composite", data)
    assert Counter(len(pair.references) for pair in made.pairs) == {4: 11_950, 5: 18, 3: 6, 0: 9}


def test_the_files_are_complete(data: Path) -> None:
    rows = check_data(data)
    assert {row.state for row in rows if row.file != "images"} <= {"ok", "missing"}
    assert sum(row.state == "ok" and row.file != "images" for row in rows) == 10


def test_composite_is_joined_byte_for_byte(data: Path, tmp_path: Path) -> None:
    """From FLEUR's rows and a table of references, whose layout is that of VisCE2's."""
    path = data / "composite" / "composite.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    table = [
        json.dumps({"image_path": f"x/{row['image']}", "references": row["references"]})
        for entries in rows.values()
        for row in entries
        if row["references"] is not None
    ]
    (tmp_path / "references.jsonl").write_text("\n".join(table), encoding="utf-8")
    bare = {
        source: [{key: row[key] for key in ("image", "caption", "human")} for row in entries]
        for source, entries in rows.items()
    }
    (tmp_path / "composite.json").write_text(json.dumps(bare), encoding="utf-8")
    joined = join_composite(tmp_path / "composite.json", tmp_path / "references.jsonl")
    assert joined.encode() == path.read_bytes()


def test_fleurs_scores_on_the_experts(data: Path) -> None:
    """What FLEUR gave each pair, against the experts: the 53.0 of its paper."""
    text = (data / "fleur" / "fleur_flickr8k_expert.txt").read_text()
    pattern = r"image file : (.*)\ncaption : (.*)\nmodel score : .*\nour score : (.*)\n"
    given = {
        (Path(image).name, " ".join(caption.split())): float(score)
        for image, caption, score in re.findall(pattern, text)
    }
    made = load_benchmark("flickr8k-expert", data)
    judged = made.judgments
    assert isinstance(judged, Ratings)
    scores = np.array([given[Path(str(pair.image)).name, pair.caption] for pair in made.pairs])
    tau = {v: 100 * kendalltau(scores[judged.pair], judged.value, variant=v)[0] for v in "bc"}
    assert tau["c"] == pytest.approx(53.03, abs=0.02)
    assert tau["b"] == pytest.approx(52.67, abs=0.02)
    (cell,) = (
        c
        for c in published_cells("sota_main", "fleur", "flickr8k-expert tau_c")
        if "1.5" in c.model
    )
    assert round(tau["c"], 1) == cell.value


def rouge(made: Benchmark) -> np.ndarray:
    """ROUGE-L by pycocoevalcap, on words found without its Java tokenizer."""
    module = pytest.importorskip("pycocoevalcap.rouge.rouge", reason="wants discode-eval[bench]")
    scorer = module.Rouge()

    def words(text: str) -> str:
        return " ".join(re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower()))

    return np.array(
        [
            scorer.calc_score([words(pair.caption)], list(map(words, pair.references)) or [""])
            for pair in made.pairs
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flickr8k-expert", "flickr8k-cf", "composite"])
def test_rouge_gives_the_published_cells(data: Path, name: str) -> None:
    made = load_benchmark(name, data)
    judged = made.judgments
    assert isinstance(judged, Ratings)
    has = np.array([bool(pair.references) for pair in made.pairs])[judged.pair]
    scores, ratings = rouge(made)[judged.pair][has], judged.value[has]
    for variant in "bc":
        (cell,) = published_cells("sota_main", "rouge-l", f"{name} tau_{variant}")
        tau = 100 * kendalltau(scores, ratings, variant=variant)[0]
        assert tau == pytest.approx(cell.value, abs=0.15)


@pytest.mark.slow
def test_rouge_on_pascal50s(data: Path) -> None:
    """Within the noise of the draws; the votes of pair_pascal.mat would miss HC by ten points."""
    made = load_benchmark("pascal50s", data, {"draws": "2"})
    judged = made.judgments
    assert isinstance(judged, Preferences)
    scores = rouge(made)
    sign = np.where(judged.chosen == 0, 1, -1)
    right = sign * (scores[judged.left] - scores[judged.right]) > 0
    for category in ("HC", "HI", "HM", "MM"):
        (cell,) = published_cells("refdisode", "rouge-l", f"pascal50s {category}")
        accuracy = 100 * right[np.array(judged.category) == category].mean()
        assert accuracy == pytest.approx(cell.value, abs=2.0)
