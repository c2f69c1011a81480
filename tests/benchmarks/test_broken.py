"""Whatever is wrong with a file, it is one clear line: no other error, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from discode.benchmarks import load_benchmark
from discode.errors import InputError
from tests.helpers import mini_benchmarks as mini

ODD: list[Any] = [None, True, -1, 1e300, "", "\0", [], [None], {}, {"x": 1}, "x" * 5000]
FILES: dict[str, tuple[str, str, dict[str, str], Any]] = {
    "clipscore": ("flickr8k-expert", "flickr8k.json", {}, mini.clipscore({"a": [("x", [1, 2])]})),
    "composite": ("composite", "composite.json", {}, mini.COMPOSITE),
    "pascal": ("pascal50s", "pascal_50s.json", {"references": "given"}, mini.PASCAL),
    "valse": ("foil", "foil-it.json", {}, mini.VALSE),
    "foil": ("foil", "foilv1.0_test_2017.json", {}, mini.FOIL),
    "mceval": ("mceval", "mceval.jsonl", {}, mini.MCEVAL),
    "custom": ("custom", "ratings.jsonl", {}, [{"image": "a", "caption": "b", "rating": 1}] * 2),
}


PICK = {"image": "a.jpg", "caption_a": "x", "caption_b": "y", "preference": 1}
EXPERT, CROWD, TOKENS = "ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt", "Flickr8k.token.txt"


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested JSON."""
    if path:
        yield path
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))


def put(path: tuple[Any, ...], value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def load_or_refuse(name: str, folder: Path, options: dict[str, str]) -> bool:
    try:
        load_benchmark(name, folder, options)
    except InputError as error:
        lines = str(error).count("\n")
    else:
        return True
    assert lines == 0
    return False


@pytest.mark.parametrize("case", FILES)
def test_odd_values_everywhere(tmp_path: Path, case: str) -> None:
    name, file, options, content = FILES[case]
    mini.write(tmp_path / file, content)
    assert load_or_refuse(name, tmp_path, options)
    refused = 0
    for path in places(content):
        for odd in ODD:
            mini.write(tmp_path / file, mini.changed(content, put(path, odd)))
            refused += not load_or_refuse(name, tmp_path, options)
    assert refused > 20


@pytest.mark.parametrize("case", FILES)
def test_files_cut_anywhere(tmp_path: Path, case: str) -> None:
    name, file, options, content = FILES[case]
    whole = mini.write(tmp_path / file, content).read_text()
    for end in range(0, len(whole), 7):
        (tmp_path / file).write_text(whole[:end])
        loaded = load_or_refuse(name, tmp_path, options)
        # Only lines can be cut so that it does not show; then the count does.
        assert not loaded or (file.endswith("l") and json.loads(whole[:end].splitlines()[-1]))


def test_flickr8k_cut_anywhere(tmp_path: Path) -> None:
    mini.flickr8k(tmp_path)
    for file in ("ExpertAnnotations.txt", "Flickr8k.token.txt"):
        whole = (tmp_path / file).read_text()
        for end in range(len(whole)):
            (tmp_path / file).write_text(whole[:end])
            load_or_refuse("flickr8k-expert", tmp_path, {})
        (tmp_path / file).write_text(whole)


@pytest.mark.parametrize(
    ("case", "change", "place"),
    [
        ("clipscore", lambda c: c.update(a=5), "image 'a'"),
        ("clipscore", lambda c: c["a"].pop("ground_truth"), "image 'a' has no 'ground_truth'"),
        ("clipscore", lambda c: c["a"]["human_judgement"][1].update(rating=7),
         "image 'a' judgement 1: rating"),
        ("composite", lambda c: c["flickr8k"][1].update(human=6), "flickr8k entry 1: human"),
        ("composite", lambda c: c["flickr8k"][1].update(human=True), "flickr8k entry 1: human"),
        ("composite", lambda c: c["flickr8k"][1].pop("caption"), "entry 1 has no 'caption'"),
        ("composite", lambda c: c["flickr8k"][1].update(references="x"), "entry 1: references"),
        ("composite", lambda c: c["flickr8k"][1].update(position=0), "'a.jpg#0'"),
        ("composite", lambda c: c["flickr8k"].append(7), "flickr8k entry 3"),
        ("composite", lambda c: c.update(coco=3), "coco"),
        ("pascal", lambda c: c["MM"][1].update(label=2), "MM entry 1: label"),
        ("pascal", lambda c: c["MM"][1].update(captions=["x"]), "MM entry 1: captions"),
        ("pascal", lambda c: c.update(XX=[]), "'XX'"),
        ("valse", lambda c: c["11"].update(image_file="x.jpg"), "entry '11': image_file"),
        ("valse", lambda c: c["11"].update(mturk={}), "entry '11' mturk has no 'caption'"),
        ("foil", lambda c: c["annotations"][0].update(foil="yes"), "annotation 0: foil"),
        ("foil", lambda c: c["annotations"][0].update(id=12), "annotation 0: id '12'"),
        ("foil", lambda c: c["annotations"][0].update(image_id=7), "annotation 0: image_id"),
        ("foil", lambda c: c["annotations"][0].update(foil=False), "annotation 1: '11'"),
        ("foil", lambda c: c.pop("images"), "'images'"),
        ("mceval", lambda c: c[1].update(preference=2), "line 2: preference"),
        ("mceval", lambda c: c[1].update(candidates=["x"] * 3), "line 2: candidates"),
        ("mceval", lambda c: c[1].update(image="real/1.png"), "line 2: 'real/1.png'"),
        ("custom", lambda c: c[0].pop("rating"), "line 1"),
        ("custom", lambda c: c[1].update(rating=float("inf")), "line 2: rating"),
        ("custom", lambda c: c[1].update(references="[1"), "line 2: references"),
        ("custom", lambda c: [row.update(rater="a") for row in c], "line 2: "),
        ("custom", lambda c: [row.update(id="1", caption=f"{id(row)}") for row in c], "line 2: id"),
        ("custom", lambda c: c.__setitem__(slice(None), [PICK, {**PICK, "preference": True}]),
         "line 2: preference"),
        ("custom", lambda c: c.__setitem__(slice(None), [{**PICK, "id": "1"}] * 2), "line 2: '1'"),
        *((case, lambda c: c.clear(), FILES[case][1]) for case in FILES),
    ],
)  # fmt: skip
def test_broken_entries_are_named(
    tmp_path: Path, case: str, change: Callable[[Any], object], place: str
) -> None:
    name, file, options, content = FILES[case]
    mini.write(tmp_path / file, mini.changed(content, change))
    with pytest.raises(InputError, match=place):
        load_benchmark(name, tmp_path, options)


@pytest.mark.parametrize(
    ("file", "before", "after", "place"),
    [
        (EXPERT, "\t4\t4\t4", "\t4", "line 1"),
        (EXPERT, "b.jpg\tc.jpg#0", "q.jpg\tc.jpg#0", "line 3: 'q.jpg'"),
        (EXPERT, "c.jpg#0", "c.jpg#9", "line 3: 'c.jpg#9'"),
        (EXPERT, "1\t1\t2", "1\t1\t5", "line 2: expert 3"),
        (EXPERT, "1\t1\t2", "1\t1.5\t2", "line 2: expert 2"),
        (EXPERT, "c.jpg\ta.jpg#0", "a.jpg\tb.jpg#2", "line 4: "),
        (EXPERT, mini.EXPERT, "\n", "Annotations"),
        (CROWD, "0.25", "0.5", "line 4: share of yes"),
        (CROWD, "\t1\t3\n", "\t0\t0\n", "line 4: share of yes"),
        (CROWD, "\t1\t3\n", "\t1\t3\t0\n", "line 4"),
        (TOKENS, "a.jpg#1", "a.jpg#0", "line 2: 'a.jpg#0'"),
        (TOKENS, "a.jpg#1", "a.jpg", "line 2: caption id"),
        (TOKENS, mini.TOKENS, "", "line 1: 'a.jpg'"),
    ],
)
def test_broken_lines_are_named(
    tmp_path: Path, file: str, before: str, after: str, place: str
) -> None:
    mini.flickr8k(tmp_path)
    text = (tmp_path / file).read_text()
    assert before in text
    (tmp_path / file).write_text(text.replace(before, after))
    name = "flickr8k-cf" if file == CROWD else "flickr8k-expert"
    with pytest.raises(InputError, match=place) as caught:
        load_benchmark(name, tmp_path)
    assert file in str(caught.value)


def test_letters_that_look_like_line_ends_stay_in_captions(tmp_path: Path) -> None:
    mini.flickr8k(tmp_path)
    tokens = mini.TOKENS.replace("A boat .", "A\x85boat\u2028here\x0c.").replace("\n", "\r\n")
    (tmp_path / "Flickr8k.token.txt").write_bytes(tokens.encode())
    made = load_benchmark("flickr8k-expert", tmp_path)
    assert made.pairs[1].caption == "A boat here ."


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    path = mini.write(tmp_path / "composite.json", mini.COMPOSITE)
    with pytest.raises(InputError, match="is a file; give the folder that holds it"):
        load_benchmark("composite", path)
