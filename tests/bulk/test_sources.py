"""Every format: what is read, and what a broken row costs (itself, and nothing else)."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import math
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discode.bulk import tars
from discode.bulk.chunks import PairChunk
from discode.bulk.counting import RowCount, count_rows
from discode.bulk.inputs import find_inputs
from discode.bulk.plan import read_chunks
from discode.errors import InputError
from discode.pairs import Pair, read_pairs
from tests.helpers.instant import make_judge, rows, to_file, to_folder
from tests.helpers.samples import png, write_tar

pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
pq = pytest.importorskip("pyarrow.parquet")


def chunks(path: Path, **options: Any) -> Iterator[PairChunk]:
    inputs = find_inputs(path)
    for number in range(len(inputs.files)):
        yield from read_chunks(inputs, number, **options)


def read(path: Path, **options: Any) -> tuple[list[Pair | None], list[str], dict[int, str]]:
    """Return pairs, ids, and errors by the row's place in all."""
    pairs: list[Pair | None] = []
    ids: list[str] = []
    errors: dict[int, str] = {}
    for chunk in chunks(path, **options):
        errors |= {len(pairs) + place: reason for place, reason in chunk.errors.items()}
        pairs += chunk.pairs
        ids += chunk.ids
    return pairs, ids, errors


def write(path: Path, table: list[dict[str, Any]]) -> Path:
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, list(table[0]), delimiter="\t" if path.suffix == ".tsv" else ","
            )
            writer.writeheader()
            writer.writerows(table)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path, row_group_size=70)
    elif path.suffix == ".json":
        path.write_text(json.dumps(table))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"])
def test_tables_say_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    table = rows(300)
    pairs, ids, errors = read(write(tmp_path / f"set{suffix}", table), shard_size=128)
    assert not errors
    assert ids == [row["id"] for row in table]
    assert pairs == [Pair(row["image"], row["caption"], (), row["id"]) for row in table]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("wanted", [{0}, {1, 3}, {4}, set()])
def test_unwanted_shards_are_passed_over(tmp_path: Path, suffix: str, wanted: set[int]) -> None:
    path = write(tmp_path / f"set{suffix}", rows(130))
    ids = read(path, wanted=lambda shard: shard in wanted, shard_size=30)[1]
    assert ids == [f"r{i}" for i in range(130) if i // 30 in wanted]


def test_a_folder_a_pattern_and_a_list_are_one_input(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.jsonl", [{"image": "x.png", "caption": name}] * 2)
    (tmp_path / "README").write_text("not a table")
    (tmp_path / ".hidden.jsonl").write_text("half a file")
    folder = find_inputs(tmp_path)
    assert folder.names == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert find_inputs(str(tmp_path / "*.jsonl")).files == folder.files
    assert find_inputs([tmp_path / f"{name}.jsonl" for name in "abc"]).digest() == folder.digest()
    assert read(tmp_path)[1][:3] == ["a.jsonl:0", "a.jsonl:1", "b.jsonl:0"]
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.jsonl", rows(1))
    assert find_inputs(str(tmp_path / "**" / "a.jsonl")).names == ("a.jsonl", "deep/a.jsonl")


def test_inputs_that_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", rows(1))
    (tmp_path / "empty").mkdir()
    for given, words in (
        (tmp_path / "no.csv", "no such file"),
        (tmp_path / "*.csv", "no file matches"),
        (tmp_path / "empty", "no tables or tars"),
        ([], "no input given"),
        ([tmp_path / "a.jsonl"] * 2, "in the input twice"),
        (Path("/dev/null"), "not a regular file"),
    ):
        with pytest.raises(InputError, match=words):
            find_inputs(given)
    write(tmp_path / "a.parquet", rows(1))
    with pytest.raises(InputError, match="mixes formats"):
        find_inputs(tmp_path)
    (tmp_path / "x.xls").write_bytes(b"")
    with pytest.raises(InputError, match="unknown format"):
        find_inputs(tmp_path / "x.xls")


@pytest.mark.parametrize("name", ["shards", "shards/*.jsonl", "shards/**/*.jsonl"])
def test_what_stands_among_the_files_and_is_none_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "shards").mkdir()
    write(tmp_path / "shards" / "a.jsonl", rows(1))
    (tmp_path / "shards" / "deep").mkdir()  # no table by its name, and only ** looks into it
    assert len(find_inputs(tmp_path / name).files) == 1
    (tmp_path / "shards" / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(InputError, match=r"shards/b\.jsonl: it is a link"):
        find_inputs(tmp_path / name)
    write(tmp_path / "gone.jsonl", rows(1))
    assert len(find_inputs(tmp_path / name).files) == 2
    (tmp_path / "shards" / "c.jsonl").mkdir()
    with pytest.raises(InputError, match=r"shards/c\.jsonl: it is a folder"):
        find_inputs(tmp_path / name)
    with pytest.raises(InputError, match="is a folder"):
        find_inputs(tmp_path / "shards" / "d*")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_scores_are_not_judged_beside_what_they_were_made_of(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.{suffix}", rows(3))
    to_file(make_judge(), tmp_path, tmp_path / f"run1.{suffix}")
    for given in (tmp_path, tmp_path / f"*.{suffix}", [*tmp_path.glob(f"*.{suffix}")]):
        with pytest.raises(InputError, match=f"run1.{suffix} was written by discode"):
            find_inputs(given)
    # Alone, they are a table like others: another judge may score them.
    assert count_rows(find_inputs(tmp_path / f"run1.{suffix}")) == RowCount(3)


def test_what_passed_is_not_judged_beside_where_it_came_from(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.jpg": png(), "0.txt": b"x"})
    to_folder(make_judge(), tmp_path, tmp_path / "out", min_score=0)
    (passed,) = (tmp_path / "out" / "passed").iterdir()
    with pytest.raises(InputError, match=passed.name):
        find_inputs(tmp_path / "**" / "*.tar")
    assert find_inputs(passed.parent).files == (passed,)


def test_broken_json_lines_cost_themselves(tmp_path: Path) -> None:
    good = json.dumps({"image": "a.png", "caption": "fine"}).encode()
    bad = {
        b"{broken": "not JSON",
        b"[1]": "not an object",
        b'{"image": "a.png"}': "no 'caption'",
        b'{"caption": "a"}': "no 'image'",
        b'{"image": "", "caption": "a"}': "empty image",
        b'{"image": "a.png", "caption": 7}': "must be text",
        b'{"image": "a.png", "caption": "\xff"}': "not UTF-8",
        b'{"image": "a.png", "caption": "a", "references": 3}': "must be a list",
        b"[" * 100_000: "not JSON",
        b'{"image": {"bytes": null, "path": null}, "caption": "a"}': "empty image",
    }
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([good, b"", *bad, good]))
    pairs, ids, errors = read(path)
    assert [pair is None for pair in pairs] == [False, *[True] * len(bad), False]
    for (row, reason), (line, words) in zip(errors.items(), bad.items(), strict=True):
        assert words in reason, (line, reason)
        assert f"set.jsonl line {row + 2}" in reason
    assert ids == [str(i) for i in range(len(bad) + 2)]


def test_broken_csv_rows_cost_themselves(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_bytes(
        b'image,caption\na.png,fine\na.png\na.png,one,two\na.png,\xff\n\na.png,"x"y\n,none\n'
        b'a.png,"two\nlines"\na.png,fine\na.png,"never closed\n'
    )
    pairs, _, errors = read(path)
    kinds = [None if pair is None else pair.caption for pair in pairs]
    assert kinds == ["fine", None, None, None, None, None, "two\nlines", "fine", None]
    for row, words in {1: "2 columns", 2: "2 columns", 3: "not UTF-8", 4: "not CSV",
                       5: "empty image", 8: "not CSV"}.items():  # fmt: skip
        assert words in errors[row]


def test_lines_that_an_open_quote_swallows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text('image,caption\na.png,fine\na.png,"open\n' + "a.png,lost\n" * 7)
    pairs, _, errors = read(path)
    assert [pair is None for pair in pairs] == [False] + [True] * 8
    assert "line 3 is lost" in errors[1]
    assert "line 10 is lost" in errors[8]
    assert all("lines 3 to 10" in reason for reason in errors.values())
    path.write_text('image,caption\na.png,"open\na.png,lost\na.png,"x"\na.png,fine\n')
    pairs, _, errors = read(path)
    assert [pair is None for pair in pairs] == [True] * 3 + [False]


def test_broken_entries_of_coco_results(tmp_path: Path) -> None:
    (tmp_path / "COCO_val_000000000042.jpg").write_bytes(png())
    path = tmp_path / "results.json"
    path.write_text(json.dumps([{"image_id": 42, "caption": "a"}, 7, {"image_id": 42}]))
    pairs, _, errors = read(path, images=tmp_path)
    assert pairs[0] is not None
    assert pairs[0].image == str(tmp_path / "COCO_val_000000000042.jpg")
    assert "not an object" in errors[1]
    assert "no 'caption'" in errors[2]


def test_coco_numbers_are_ids_and_annotations_are_read(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "COCO_val_000000000042.jpg").write_bytes(png())
    path = write(tmp_path / "results.json", [{"image_id": 42, "caption": "a"}])
    pairs, ids, _ = read(path, images=tmp_path / "images")
    assert ids == ["42"]
    whole = {
        "info": {},
        "images": [{"id": 42, "file_name": "COCO_val_000000000042.jpg"}, {"id": 7}],
        "annotations": [
            {"id": 9, "image_id": 42, "caption": "a"},
            {"image_id": 42, "caption": "b"},
            {"id": 10, "image_id": 7, "caption": "c"},
            {"id": 11, "image_id": 42},
        ],
    }
    path.write_text(json.dumps(whole))
    found, ids, errors = read(path, images=tmp_path / "images")
    assert ids == ["9", "42", "10", "11"]
    assert [None if pair is None else pair.caption for pair in found] == ["a", "b", "c", None]
    assert found[0] is not None
    assert pairs[0] is not None
    assert found[0].image == pairs[0].image
    assert list(errors) == [3]
    write(path, [{"image_id": 42, "caption": "a"}])
    assert [pair.id for pair in read_pairs(path)] == ["42"]
    path.write_text('{"images": 3, "annotations": []}')
    with pytest.raises(InputError, match="'images' is not a list"):
        read(path)


def test_an_id_that_coco_annotations_lack_is_no_number_in_file_names(tmp_path: Path) -> None:
    for name in ("x_5.png", "y_1.png"):
        (tmp_path / name).write_bytes(png())
    images = [{"id": 1, "file_name": "x_5.png"}, {"id": 7, "file_name": "y_1.png"}]
    rows = [{"image_id": number, "caption": "a"} for number in (1, 1.0, "1", "01", 5, True)]
    path = tmp_path / "whole.json"
    path.write_text(json.dumps({"images": images, "annotations": rows}))
    pairs, ids, errors = read(path, images=tmp_path)
    assert ids == ["1", "1.0", "1", "01", "5", "True"]
    first = str(tmp_path / "x_5.png")
    assert [pair and pair.image for pair in pairs] == [first, first, first, None, None, None]
    assert all(f"whole.json entry {number}:" in errors[number] for number in (3, 4, 5))
    images.append({"id": 1, "file_name": "y_1.png"})
    rows.append({"image_id": 7, "caption": "a"})
    path.write_text(json.dumps({"images": images, "annotations": rows}))
    pairs, _, errors = read(path, images=tmp_path)
    assert [pair and pair.image for pair in pairs] == [None] * 6 + [str(tmp_path / "y_1.png")]
    assert all("whole.json" in errors[number] for number in range(6))


@pytest.mark.parametrize(
    "header", ["Image,Caption", "FILE NAME,Text", "image-path,CANDIDATE", "img,Sentence"]
)
def test_headers_are_understood_whatever_their_capitals(tmp_path: Path, header: str) -> None:
    for name, text in (("a.csv", header), ("a.tsv", header.replace(",", "\t"))):
        line = "a.png\tx" if name.endswith("tsv") else "a.png,x"
        (tmp_path / name).write_text(f"{text}\n{line}\n")
        assert read(tmp_path / name)[0] == [Pair("a.png", "x", (), "0")]
    first, second = header.split(",")
    write(tmp_path / "a.parquet", [{first: "a.png", second: "x", "ID": "k"}])
    assert read(tmp_path / "a.parquet")[0] == [Pair("a.png", "x", (), "k")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "imagee,caption\na,b\n", "did you mean 'imagee'"),
        ("a.csv", "image,caption,caption\na,b,c\n", "a.csv: .* 'caption' mean the same"),
        ("a.csv", "image,caption,Caption\na,b,c\n", "'Caption' mean the same"),
        ("a.csv", "image,caption,x,x\na,b,c,d\n", "a.csv has the column 'x' twice"),
        ("a.tsv", "image\tcaption\tcaption\na\tb\tc\n", "mean the same"),
        ("a.jsonl", '{"image": "a", "caption": "b", "caption": "c"}', "'caption' is there twice"),
    ],
)
def test_columns_that_cannot_be_meant(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read(tmp_path / name)


def test_parquet_with_two_columns_of_one_name_or_without_one(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["image", "caption", "caption"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'caption' twice"):
        read(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", [{"url": "x", "text": "y"}])
    with pytest.raises(InputError, match="'image'"):
        read(tmp_path / "b.parquet")


def test_quotes_of_tsv_are_text_and_its_header_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    captions = ['a "cat"', '"open', "two, commas", '"x"y']
    lines = [f"{number}.jpg\t{caption}\n" for number, caption in enumerate(captions)]
    for first in ("image\tcaption\n", ""):
        path.write_text(first + "".join(lines))
        pairs, ids, errors = read(path)
        assert not errors
        assert [pair and pair.caption for pair in pairs] == captions
        assert ids == ["0", "1", "2", "3"]
        assert count_rows(find_inputs(path)) == RowCount(4)
        assert [pair.caption for pair in read_pairs(path)] == captions
    to_folder(make_judge(), path, tmp_path / "out", min_score=0)
    (passed,) = (tmp_path / "out" / "passed").iterdir()
    assert [pair and pair.caption for pair in read(passed)[0]] == captions


OUTSIDE = "../secret.png"


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("a.png", True),
        ("deep/../a.png", True),
        ("link/b.png", True),  # what the folder's owner linked
        ("{folder}/a.png", True),
        (OUTSIDE, False),
        ("deep/../../secret.png", False),
        ("{folder}/../secret.png", False),
        ("{folder}2/a.png", False),
        ("/etc/passwd", False),
        ("./../x://y", False),
    ],
)
def test_names_stay_below_the_folder_of_images(tmp_path: Path, name: str, inside: bool) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    name = name.format(folder=folder)
    good, lost = {"image": "a.png", "caption": "x"}, {"image": name, "caption": "y"}
    for path in (
        write(tmp_path / "a.jsonl", [good, lost]),
        write(tmp_path / "a.parquet", [good, {**lost, "image": name}]),
    ):
        pairs, _, errors = read(path, images=folder)
        assert pairs[0] is not None
        assert (pairs[1] is not None) == inside
        assert inside or "leads out of the folder" in errors[1]
    if name == OUTSIDE:
        pairs, _, errors = read(tmp_path / "a.jsonl")  # no folder: names are taken as they are
        assert pairs[1] is not None
        write(tmp_path / "a.jsonl", [{"image": str(tmp_path / "x.png"), "caption": "y"}])
        assert not read(tmp_path / "a.jsonl", images="/")[2]


@pytest.mark.parametrize("image", [True, [1], {"bytes": 5.5}, 0.5, math.nan])
def test_images_that_are_no_names(tmp_path: Path, image: Any) -> None:
    path = write(tmp_path / "a.jsonl", [{"image": image, "caption": "x"}, *rows(1)])
    assert "a file name or a number" in read(path)[2][0]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", png()),
        ("b.jsonl", b"no\njson\nat all\n"),
        ("c.csv", png()),
        ("d.csv", b"name,title\n1,2\n"),
        ("e.csv", b""),
        ("f.parquet", png()),
        ("g.parquet", b""),
        ("h.json", b"{}"),
        ("i.json", png()),
        ("j.tar", png()),
        ("k.tar", b""),
        ("l.tar.gz", gzip.compress(png())),
        ("m.tsv", b"image,caption\na,b\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_are_not_tables_at_all(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name):
        list(chunks(tmp_path / name))


def test_images_inside_parquet(tmp_path: Path) -> None:
    table: list[dict[str, Any]] = [
        {"image": {"bytes": png(), "path": "a.png"}, "caption": "bytes"},
        {"image": {"bytes": None, "path": "b.png"}, "caption": "path"},
        {"image": None, "caption": "neither"},
    ]
    pairs, _, errors = read(write(tmp_path / "set.parquet", table), images=tmp_path)
    assert [None if pair is None else pair.image for pair in pairs] == [
        png(), str(tmp_path / "b.png"), None,
    ]  # fmt: skip
    assert list(errors) == [2]
    write(tmp_path / "plain.parquet", [{"image": png(), "caption": "bytes"}])
    assert read(tmp_path / "plain.parquet")[0][0] == Pair(png(), "bytes", (), "0")


def test_chunks_of_large_images_are_small(tmp_path: Path) -> None:
    noise = [bytes([i]) * 1_000_000 for i in range(150)]
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"image": noise, "caption": ["a"] * 150}), path, use_dictionary=False)
    sizes = [len(chunk) for chunk in chunks(path)]
    assert sum(sizes) == 150
    assert max(sizes) <= 67
    files = {f"{i}.{ext}": data for i, image in enumerate(noise)
             for ext, data in (("jpg", image), ("txt", b"a"))}  # fmt: skip
    sizes = [len(chunk) for chunk in chunks(write_tar(tmp_path / "set.tar", files))]
    assert sum(sizes) == 150
    assert max(sizes) <= 68


@pytest.mark.parametrize("kind", ["dictionary", "Arrow's own dictionary", "struct", "prefixes"])
def test_an_image_that_is_stored_once_does_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    image, captions = bytes(1_000_000), [f"c {i}" for i in range(200)]
    column: Any = [image] * 200
    options: dict[str, Any] = {}
    if kind == "Arrow's own dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array([image]))
    elif kind == "struct":
        column = [{"bytes": image, "path": "a.png"}] * 200
    elif kind == "prefixes":
        options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"image": column, "caption": captions}), path, **options)
    assert path.stat().st_size < 1_000_000  # nothing in the file itself tells how much it is
    sizes, pairs = [], []
    before = pa.total_allocated_bytes()
    for chunk in chunks(path):
        sizes.append(len(chunk))
        pairs += [pair and (pair.caption, pair.image == image) for pair in chunk.pairs]
        assert pa.total_allocated_bytes() - before < 160_000_000
        del chunk
    assert pairs == [(caption, True) for caption in captions]
    assert max(sizes) <= 68
    assert min(sizes[:-1]) > 30  # small batches are joined: a model wants many at once


def test_a_damaged_row_group_loses_its_rows_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    table = pa.Table.from_pylist(rows(90))
    pq.write_table(table, path, row_group_size=30, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(2)
    data = bytearray(path.read_bytes())
    begin = column.data_page_offset
    data[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    pairs, _, errors = read(path, shard_size=50)
    assert len(pairs) == 90
    assert sorted(errors) == list(range(30, 60))
    assert "cannot be read" in errors[30]


def test_text_that_is_not_utf8_costs_its_row_of_parquet(tmp_path: Path) -> None:
    captions = pa.array([b"fine", b"\xff", b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"image": ["a.png"] * 3, "caption": captions}), tmp_path / "a.parquet")
    pairs, _, errors = read(tmp_path / "a.parquet")
    assert [pair is None for pair in pairs] == [False, True, False]
    assert "a.parquet row 1 cannot be read" in errors[1]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz"])
def test_webdataset(tmp_path: Path, suffix: str) -> None:
    files = {
        "./": b"",
        "a/0.jpg": png(),
        "a/0.txt": b"a caption\n",
        "a/0.json": b'{"references": ["one"], "caption": "not this one"}',
        "a/1.png": png("blue"),
        "a/1.json": b'{"caption": "from json", "id": "named"}',
        "a/._1.png": b"what a Mac leaves behind",
    }
    path = write_tar(tmp_path / f"set.{suffix}", files, "w:gz" if "g" in suffix else "w")
    pairs, ids, errors = read(path)
    assert not errors
    assert ids == ["a/0", "named"]
    assert pairs == [
        Pair(png(), "a caption", ("one",), "a/0"),
        Pair(png("blue"), "from json", (), "named"),
    ]


def test_broken_samples_cost_themselves(tmp_path: Path) -> None:
    fine = {"jpg": png(), "txt": b"fine"}
    samples: list[tuple[dict[str, bytes], str | None]] = [
        (fine, None),
        ({"jpg": png()}, "no caption"),
        ({"txt": b"x"}, "no image"),
        ({"jpg": png(), "json": b"{"}, "not JSON"),
        ({"jpg": png(), "json": b"[]"}, "not an object"),
        ({"jpg": png(), "json": b"{}"}, "no caption"),
        ({"jpg": png(), "txt": b"\xff"}, "not UTF-8"),
        (fine, None),
    ]
    files = {f"{i}.{ext}": data for i, (members, _) in enumerate(samples)
             for ext, data in members.items()}  # fmt: skip
    pairs, ids, errors = read(write_tar(tmp_path / "set.tar", files))
    assert [pair is None for pair in pairs] == [words is not None for _, words in samples]
    for row, (_, words) in enumerate(samples):
        assert words is None or words in errors[row]
    assert ids[0] == "0"


CAT, DOG = ("jpg", png("red")), ("jpg", png("blue"))


@pytest.mark.parametrize(
    ("members", "captions", "reason"),
    [
        ([("0", *CAT), ("0", "txt", b"red"), ("0", *DOG), ("0", "txt", b"blue")], [None], "twice"),
        ([("0", *CAT), ("0", *DOG), ("0", "txt", b"red")], [None], "twice"),
        ([("0", *CAT), ("0", "TXT", b"red"), ("0", "txt", b"blue")], [None], "twice"),
        ([("0", *CAT), ("0", "txt", b"red"), ("1", *DOG), ("1", "txt", b"blue"),
          ("0", "json", b"{}")], ["red", "blue", None], "not adjacent"),
        ([("0", *CAT), ("1", *DOG), ("0", "txt", b"red"), ("1", "txt", b"blue")], [None] * 4, ""),
        ([("../0", *CAT), ("../0", "txt", b"red")], [None], "outside"),
        ([("/etc/0", *CAT), ("/etc/0", "txt", b"red")], [None], "outside"),
        ([("0", *CAT), ("0", "png", png("blue")), ("0", "txt", b"red")], [None], "several images"),
    ],
)  # fmt: skip
def test_a_sample_whose_files_cannot_be_told_apart_has_no_score(
    tmp_path: Path, members: list[tuple[str, str, bytes]], captions: list[Any], reason: str
) -> None:
    path = write_tar(tmp_path / "set.tar", [(f"{key}.{end}", data) for key, end, data in members])
    pairs, _, errors = read(path)
    assert [None if pair is None else pair.caption for pair in pairs] == captions
    assert reason in list(errors.values())[-1]
    out = tmp_path / "out"
    totals = to_folder(make_judge(), path, out, min_score=0)
    assert (totals.rows, totals.failed) == (len(captions), captions.count(None))
    kept = []
    for file in (out / "passed").iterdir():
        with tarfile.open(file) as tar:
            kept += tar.getnames()
    assert len(kept) == 2 * totals.passed  # an image and a caption of each that was scored


def test_the_plain_image_of_a_sample_is_judged(tmp_path: Path) -> None:
    files = {"0.seg.png": png("blue"), "0.jpg": png("red"), "0.txt": b"red"}
    (pair,) = read(write_tar(tmp_path / "a.tar", files))[0]
    assert pair is not None
    assert pair.image == png("red")


def test_ids_of_several_files_differ(tmp_path: Path) -> None:
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", {"0.jpg": png(), "0.txt": b"x", "1.jpg": png()})
    inputs = find_inputs(str(tmp_path / "*.tar"))
    ids = [i for number in range(2) for chunk in read_chunks(inputs, number) for i in chunk.ids]
    assert ids == ["a.tar:0", "a.tar:1", "b.tar:0", "b.tar:1"]
    (tmp_path / "json").mkdir()
    for name in "ab":
        write(tmp_path / "json" / f"{name}.json", [{"image_id": 42, "caption": "x"}])
    assert read(tmp_path / "json")[1] == ["a.json:42", "b.json:42"]


def test_a_tar_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    files = {f"{i}.{ext}": data for i in range(6) for ext, data in
             (("txt", b"caption"), ("jpg", png() + b"\0" * 5000))}  # fmt: skip
    path = write_tar(tmp_path / "set.tar", files)
    whole = path.read_bytes()
    for end in (len(whole) // 2, 512 * 3 + 100):
        path.write_bytes(whole[:end])
        pairs, _, errors = read(path)
        assert 0 < len(pairs) < 6
        assert [i for i, pair in enumerate(pairs) if pair is None] == [len(pairs) - 1]
        assert "breaks off" in errors[len(pairs) - 1]
    # Between two members: all is well, but for the zeros at the end.
    path.write_bytes(whole[: 2 * 512 * (1 + 1 + 1 + 10)])
    pairs, _, errors = read(path)
    assert [pair is None for pair in pairs] == [False] * 2 + [True], errors
    assert "zeros that end a tar" in errors[2]
    member = 512 * 13  # a header in the middle overwritten: what follows it cannot be found
    path.write_bytes(whole[: member * 2] + b"\xff" * 2048 + whole[member * 2 + 2048 :])
    assert read(path)[2]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_joined_tars_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    mode = "w:gz" if suffix == "tar.gz" else "w"
    keys = ["0", "1", "0"]  # a name that comes again costs its own sample
    parts = [
        write_tar(tmp_path / f"{i}.part", {f"{key}.jpg": png(), f"{key}.txt": b"x"}, mode)
        for i, key in enumerate(keys)
    ]
    (tmp_path / f"set.{suffix}").write_bytes(b"".join(part.read_bytes() for part in parts))
    pairs, ids, errors = read(tmp_path / f"set.{suffix}")
    assert ids == keys
    assert [pair is None for pair in pairs] == [False, False, True]
    assert list(errors) == [2]


def test_zeros_that_no_tar_ends_with_are_a_row(tmp_path: Path) -> None:
    files = {f"{i}.{ext}": data for i in range(6) for ext, data in
             (("jpg", png()), ("txt", b"caption"))}  # fmt: skip
    path = write_tar(tmp_path / "set.tar", files)
    whole = path.read_bytes()
    sample = 512 * 4  # a header and a block each
    for gap, kept in ((slice(2 * sample, None), 2), (slice(0, None), 0)):
        data = bytearray(whole + bytes(20480))  # room that a download took beforehand
        data[gap] = bytes(len(data[gap]))
        path.write_bytes(data)
        pairs, _, errors = read(path)
        assert [pair is None for pair in pairs] == [False] * kept + [True]
        assert "set.tar has" in errors[kept]
    long = write_tar(tmp_path / "long.tar", {f"{i:02d}.{ext}": data for i in range(20) for ext, data
                     in (("jpg", png()), ("txt", b"caption"))})  # fmt: skip
    data = bytearray(long.read_bytes())
    data[sample : 15 * sample] = bytes(14 * sample)  # a piece in the middle never came
    long.write_bytes(data)
    pairs, ids, errors = read(long)
    assert ids == ["00", "after 00", *(f"{i}" for i in range(15, 20))]
    assert list(errors) == [1]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_sample_made_of_links_is_a_row(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as tar:
        for name, data, target in (
            ("0.jpg", png(), ""), ("0.txt", b"zero", ""), ("1.jpg", b"", "0.jpg"),
            ("1.txt", b"", "0.txt"), ("2.jpg", png(), ""), ("2.txt", b"", "0.txt"),
            ("3.jpg", png(), ""), ("3.txt", b"three", ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size, info.linkname = len(data), target
            info.type = kind if target else tarfile.REGTYPE
            tar.addfile(info, io.BytesIO(data))
    pairs, ids, errors = read(path)
    assert [pair and pair.caption for pair in pairs] == ["zero", None, None, "three"]
    assert ids == ["0", "1", "2", "3"]
    assert "1.jpg is a link" in errors[1]
    assert "2.txt is a link" in errors[2]
    assert count_rows(find_inputs(path)) == RowCount(4)


def test_a_sample_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tars, "MAX_SAMPLE", 20_000)
    files = {"0.jpg": png(), "0.txt": b"a"} | {f"0.x{i}": bytes(5000) for i in range(5)}
    files |= {"1.jpg": png(), "1.txt": b"b"} | {f"1.x{i}": b"" for i in range(50)}
    files |= {"2.jpg": png(), "2.txt": b"c"} | {f"2.x{i}": bytes(5000) for i in range(3)}
    chunk, *_ = chunks(write_tar(tmp_path / "set.tar", files), keep=True)
    assert [pair and pair.caption for pair in chunk.pairs] == [None, None, "c"]
    assert [sample.weight() for sample in chunk.samples][:2] == [0, 0]
    assert list(chunk.errors) == [0, 1]


def test_a_byte_order_mark_is_no_part_of_a_caption(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    files = {"0.jpg": png(), "0.txt": mark + b"a cat", "1.jpg": png(),
             "1.json": mark + b'{"caption": "a dog"}'}  # fmt: skip
    pairs, _, errors = read(write_tar(tmp_path / "set.tar", files))
    assert not errors
    assert [pair and pair.caption for pair in pairs] == ["a cat", "a dog"]


def test_the_same_rows_whatever_the_chunk(tmp_path: Path) -> None:
    files = {f"{i:03d}.{ext}": data for i in range(40) for ext, data in
             (("png", png()), ("txt", f"caption {i}".encode()))}  # fmt: skip
    path = write_tar(tmp_path / "set.tar", files)
    whole = read(path)[0]
    for size in (1, 7, 40, 41):
        assert read(path, shard_size=size)[0] == whole
    halves = [read(path, shard_size=7, wanted=lambda b, o=odd: b % 2 == o)[1] for odd in (0, 1)]
    assert sorted(itertools.chain(*halves)) == [f"{i:03d}" for i in range(40)]
