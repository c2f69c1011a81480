"""The benchmarks that are rows of data, on small files in their publishers' formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.benchmarks import BENCHMARKS, Preferences, Ratings, load_benchmark
from discode.benchmarks._declared import ROWS
from discode.errors import InputError

WINOGROUND = [
    {"id": 7, "image_0": "ex_7_img_0", "image_1": "ex_7_img_1",
     "caption_0": "a dog on a cat", "caption_1": "a cat on a dog", "tag": "Noun"},
]  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "polaris": {"polaris_val.json": [
        {"id": "v1", "imgid": "ab", "mt": "a cat", "score": 0.75, "count": 6},
        {"id": "v2", "imgid": "ab", "mt": "a dog", "score": 0},
    ]},
    "nebula": {
        "nebula_test.json": [
            {"imgid": "ab", "mt": "a cat", "refs": ["one cat"], "score": 1.0},
            {"imgid": "cd", "mt": "a dog", "refs": ["one dog"], "score": 0.0},
        ],
        "spica.csv": "imgid,mt,score\ncd,a dog,0.5\ncd,a dog,1.0\nxx,other,1\n",
    },
    "thumb": {
        "mscoco_THumB-1.0.jsonl": [
            {"SYS": "A", "seg_id": "9", "hyp": "a cat", "image": "9.jpg", "P": 4.0, "R": 2.0,
             "human_score": 3.0},
            {"SYS": "B", "seg_id": "9", "hyp": "a cat", "image": "9.jpg", "P": 5.0, "R": 2.0,
             "human_score": 3.5},
        ],
        "mscoco_references.json": '{"seg_id": "9", "refs": ["one cat", "cats"]}\n',
    },
    "longcap-arena": {
        f"{axis}_dci_test.csv": f"imgid,mt,refs,score\n1.jpg,a cat,\"['it', 'is']\",{score}\n"
        for axis, score in (("desc", 0.25), ("rel", 0.5), ("flu", 1))
    },
    "caparena": {"caparena_annots_eval.json": [
        {"img": "1.jpg", "caption1": "x", "caption2": "y", "source1": "A", "source2": "B",
         "winner": winner, "cluster": "level 1"}
        for winner in ("A", "B", "equal")
    ]},
    "detailcaps": {"detailcaps_4870.jsonl": [
        {"image": "1.jpg", "CogVLM": "x", "ShareCaptioner": "y", "LLaVA_v15": "z",
         "GT_Caption_GPT4O": "r", "GT_Caption_GPT4V": "s", "GT_Caption_Gemini15Pro": "t",
         "GPT4_Eval": '{"CogVLM": 3, "ShareCaptioner": 4.5, "LLaVA_v15": null}'},
        {"image": "2.jpg", "CogVLM": "x", "ShareCaptioner": "y", "LLaVA_v15": "z",
         "GT_Caption_GPT4O": "r", "GT_Caption_GPT4V": "s", "GT_Caption_Gemini15Pro": "t",
         "GPT4_Eval": None},
    ]},
    "mllm-judge": {"score.jsonl": [
        {"score_id": 0, "answer": "a lime", "image_path": "1.jpg", "human": 3},
        {"score_id": 1, "answer": "a lemon", "image_path": "1.jpg", "human": "4"},
    ]},
    "mllm-judge-pairs": {"pair.jsonl": [
        {"image_path": "1.jpg", "original_dataset": "coco", field: side,
         "answer1": {"answer": f"x{i}"}, "answer2": {"answer": f"y{i}"}}
        for i, (field, side) in enumerate([("human", "A"), ("human_answer", "B"), ("human", "C")])
    ]},
    "tifa160": {"human_annotations_with_scores.json": {
        "coco_1_sd": {"image_path": "1.jpg", "text": "a tree", "human_scores": [5, 2]},
        "coco_2_sd": {"image_path": "2.jpg", "text": "a cup", "human_scores": [3, 3]},
    }},
    "genai-bench": {"genai_image.json": {
        "00001": {"id": "00001", "prompt": "bread", "models": {"A": [5, 4, 5], "B": [1, 41, 2]}},
    }},
    "seetrue": {"SeeTRUE.csv": "image,text,label\n1.png,a zebra,0\n1.png,a horse,1\n"},
    "sugarcrepe": {
        f"{kind}.json": {"0": {"filename": "1.jpg", "caption": f"a {kind}",
                               "negative_caption": f"no {kind}"}}
        for kind in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att",
                     "swap_obj")
    },
    "winoground": {"examples.jsonl": WINOGROUND},
}  # fmt: skip


def write(name: str, folder: Path) -> Path:
    for file, content in FILES[name].items():
        if isinstance(content, str):
            text = content
        elif file.endswith(".jsonl"):
            text = "".join(json.dumps(row) + "\n" for row in content)
        else:
            text = json.dumps(content)
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def rated(name: str, folder: Path, **options: object) -> list[tuple[str, str, float]]:
    """Every rating of a benchmark with the names of its image and caption."""
    made = load_benchmark(name, write(name, folder), options)
    assert isinstance(made.judgments, Ratings)
    pairs = [made.pairs[i] for i in made.judgments.pair]
    return [
        (Path(str(pair.image)).name, pair.caption, value)
        for pair, value in zip(pairs, made.judgments.value.tolist(), strict=True)
    ]


def chosen(name: str, folder: Path) -> list[tuple[str, str, str]]:
    """Every choice of a benchmark: the better caption, the other, and the category."""
    made = load_benchmark(name, write(name, folder))
    assert isinstance(made.judgments, Preferences)
    j = made.judgments
    rows = zip(j.left.tolist(), j.right.tolist(), j.chosen.tolist(), j.category, strict=True)
    sides = [((left, right)[side], (right, left)[side], kind) for left, right, side, kind in rows]
    return [(made.pairs[a].caption, made.pairs[b].caption, kind) for a, b, kind in sides]


def test_every_row_has_files_here() -> None:
    assert {row.name for row in ROWS} == FILES.keys()
    for row in ROWS:
        assert all((row.title, row.about, row.source, row.licence, row.citation, row.tried))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("polaris", {}, [("ab.jpg", "a cat", 0.75), ("ab.jpg", "a dog", 0)]),
        ("nebula", {}, [("ab.jpg", "a cat", 1), ("cd.jpg", "a dog", 0)]),
        ("nebula", {"scores": "spica"}, [("ab.jpg", "a cat", 1), ("cd.jpg", "a dog", 0.75)]),
        ("thumb", {}, [("9.jpg", "a cat", 3), ("9.jpg", "a cat", 3.5)]),
        ("thumb", {"axis": "precision"}, [("9.jpg", "a cat", 4), ("9.jpg", "a cat", 5)]),
        ("longcap-arena", {}, [("1.jpg", "a cat", 0.25)]),
        ("longcap-arena", {"axis": "flu"}, [("1.jpg", "a cat", 1)]),
        ("detailcaps", {}, [("1.jpg", "x", 3), ("1.jpg", "y", 4.5)]),
        ("mllm-judge", {}, [("1.jpg", "a lime", 3), ("1.jpg", "a lemon", 4)]),
        ("tifa160", {}, [("1.jpg", "a tree", 3.5), ("2.jpg", "a cup", 3)]),
        ("tifa160", {"raters": "flatten"},
         [("1.jpg", "a tree", 5), ("1.jpg", "a tree", 2), ("2.jpg", "a cup", 3),
          ("2.jpg", "a cup", 3)]),
        ("genai-bench", {}, [("00001.jpeg", "bread", 14 / 3), ("00001.jpeg", "bread", 1.5)]),
        ("seetrue", {}, [("1.png", "a zebra", 0), ("1.png", "a horse", 1)]),
    ],
)  # fmt: skip
def test_ratings(
    name: str, options: dict[str, Any], expected: list[tuple[str, str, float]], tmp_path: Path
) -> None:
    assert rated(name, tmp_path, **options) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("caparena", [("x", "y", "level 1"), ("y", "x", "level 1")]),
        ("mllm-judge-pairs", [("x0", "y0", "coco"), ("y1", "x1", "coco")]),
        ("sugarcrepe", [(f"a {file[:-5]}", f"no {file[:-5]}", file[:-5])
                        for file in FILES["sugarcrepe"]]),
    ],
)  # fmt: skip
def test_choices(name: str, expected: list[tuple[str, str, str]], tmp_path: Path) -> None:
    assert chosen(name, tmp_path) == expected


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    for name, count in (("caparena", "1 tie"), ("genai-bench", "1 row"), ("detailcaps", "4 rows")):
        (folder := tmp_path / name).mkdir()
        notes = load_benchmark(name, write(name, folder)).notes
        assert notes[0].startswith(count)


def test_references(tmp_path: Path) -> None:
    for name, references in (
        ("thumb", ("one cat", "cats")), ("longcap-arena", ("it", "is")), ("nebula", ("one cat",)),
        ("detailcaps", ("r", "s", "t")), ("polaris", ()),
    ):  # fmt: skip
        (folder := tmp_path / name).mkdir()
        assert load_benchmark(name, write(name, folder)).pairs[0].references == references
    (tmp_path / "thumb" / "mscoco_references.json").unlink()
    made = load_benchmark("thumb", tmp_path / "thumb")
    assert made.pairs[0].references == ()
    assert made.notes[0].startswith("no references")


def test_images_of_generators_differ(tmp_path: Path) -> None:
    made = load_benchmark("genai-bench", write("genai-bench", tmp_path))
    assert [Path(str(pair.image)).parent.name for pair in made.pairs] == ["A", "B"]
    assert made.image.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [  # of image 0 and image 1, each with caption 0 and caption 1
        ([[1, 0], [0, 1]], (1, 1, 1)),
        ([[1, 0], [3, 4]], (1, 0, 0)),  # image 1 suits both captions better
        ([[1, 2], [0, 3]], (0, 1, 0)),  # caption 1 suits both images better
        ([[1, 0], [0, 0]], (0, 0, 0)),  # a tie is wrong
    ],
)
def test_winoground(scores: list[list[float]], expected: tuple[float, ...], tmp_path: Path) -> None:
    """Text, image and group score against the definitions in its paper."""
    made = load_benchmark("winoground", write("winoground", tmp_path))
    judged = made.judgments
    assert isinstance(judged, Preferences)
    place = {
        (Path(str(p.image)).stem[-1], p.caption): i for i, p in enumerate(made.pairs)
    }  # fmt: skip
    value = np.zeros(len(made.pairs))
    for i, row in enumerate(scores):
        for k, score in enumerate(row):
            value[place[str(i), str(WINOGROUND[0][f"caption_{k}"])]] = score
    problems = [pair.problem for pair in made.comparisons()[0]]
    assert [bool(problem) for problem in problems] == [False, False, True, True]
    earned = judged.earned(value[judged.left], value[judged.right], "wrong")
    kinds = np.array(judged.category)
    assert tuple(earned[kinds == kind].mean() for kind in ("text", "image", "group")) == expected


def test_groups_against_loops() -> None:
    rng = np.random.default_rng(5)
    left, right = rng.integers(0, 30, (2, 200))
    judged = Preferences(
        left, right, rng.integers(0, 2, 200), ("all",) * 200, rng.integers(0, 60, 200)
    )
    value = rng.integers(0, 4, 30).astype(float)
    sides = value[left], value[right]
    alone = Preferences(left, right, judged.chosen, judged.category).earned(*sides, "half")
    assert judged.group is not None
    slow = [min(alone[judged.group == group]) for group in judged.group]
    assert judged.earned(*sides, "half").tolist() == slow
    some = rng.random(200) < 0.5
    part = judged.take(some)
    assert part.group is not None
    assert part.group.tolist() == judged.group[some].tolist()


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("tifa160", "human_annotations_with_scores.json", []),
        ("tifa160", "human_annotations_with_scores.json", {"a": {"text": "x"}}),
        ("genai-bench", "genai_image.json", {"1": {"id": "1", "prompt": "x"}}),
        ("caparena", "caparena_annots_eval.json", [{"img": "1.jpg"}]),
        ("mllm-judge-pairs", "pair.jsonl", {"image_path": "1.jpg", "human": "A", "answer1": 3,
                                            "original_dataset": "x"}),
        ("winoground", "examples.jsonl", {"id": 1, "image_0": "x"}),
        ("nebula", "nebula_test.json", [{"imgid": "x", "mt": "", "score": 1}]),
    ],
)  # fmt: skip
def test_broken_files(name: str, file: str, content: object, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=file.split(".")[0]):
        load_benchmark(name, tmp_path)


def test_corrections_that_are_missing(tmp_path: Path) -> None:
    (write("nebula", tmp_path) / "spica.csv").unlink()
    with pytest.raises(InputError, match=r"spica\.csv"):
        load_benchmark("nebula", tmp_path, {"scores": "spica"})


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sources", "pairs", "judgments"),
    [
        ("polaris", ["polaris_nebula/polaris_val.json.gz"], 4237, 4237),
        ("nebula", ["polaris_nebula/nebula_val.json.gz"], 2901, 2901),
        ("tifa160", ["alignment/tifa/human_annotations_with_scores.json.gz"], 800, 800),
        ("genai-bench", ["alignment/genai_bench/genai_image.json"], 3162, 3162),
        ("seetrue", ["alignment/SeeTRUE.csv"], 6930, 6930),
        ("sugarcrepe", [f"alignment/sugarcrepe/{file}.gz" for file in FILES["sugarcrepe"]],
         11862, 7512),
        ("nebula", ["samples/nebula_test_first20.json"], 20, 20),
        ("thumb", ["samples/thumb_first20.jsonl"], 18, 20),
        ("mllm-judge", ["samples/mllm_judge_first10.jsonl"], 10, 10),
    ],
)  # fmt: skip
def test_real_files(
    name: str, sources: list[str], pairs: int, judgments: int, data: Path, tmp_path: Path
) -> None:
    row = BENCHMARKS[name]
    firsts = {"nebula": "nebula_test.json", "thumb": row.forms[0][0], "mllm-judge": row.forms[0][0]}
    for source in sources:
        file = data / source
        content = file.read_bytes()
        target = firsts[name] if source.startswith("samples") else file.name.removesuffix(".gz")
        (tmp_path / target).write_bytes(gzip.decompress(content) if ".gz" in source else content)
    made = load_benchmark(name, tmp_path)
    assert (len(made.pairs), len(made.judgments)) == (pairs, judgments)
