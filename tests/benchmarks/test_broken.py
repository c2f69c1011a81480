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
