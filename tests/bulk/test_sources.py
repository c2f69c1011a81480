"""Every format: what is read, and what a broken row costs (itself, and nothing else)."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discode._pairs import Pair, read_pairs
from discode.bulk import _tars as tars
from discode.bulk._chunks import PairChunk
from discode.bulk._counting import RowCount, count_rows
from discode.bulk._inputs import find_inputs
from discode.bulk._plan import read_chunks
from discode.errors import InputError
from tests.helpers.instant import make_judge, rows, to_file, to_folder
from tests.helpers.samples import png, write_table, write_tar

pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
pq = pytest.importorskip("pyarrow.parquet")


def chunks(path: Path, **options: Any) -> Iterator[PairChunk]:
    inputs = find_inputs(path)
    for number in range(len(inputs.files)):
        yield from read_chunks(inputs, number, **options)


def read(path: Path, **options: Any) -> tuple[list[Pair | None], list[str], dict[int, str]]:
    """Return pairs, None for a broken row, with ids, and errors by the row's place in all."""
    rows = [pair for chunk in chunks(path, **options) for pair in chunk.pairs]
    errors = {number: row.problem for number, row in enumerate(rows) if row.problem}
    return [None if row.problem else row for row in rows], [row.id for row in rows], errors


def captions(path: Path, **options: Any) -> list[str | None]:
    return [pair.caption or None for chunk in chunks(path, **options) for pair in chunk.pairs]


def samples(count: int, caption: bytes = b"caption", image: bytes = b"") -> dict[str, bytes]:
    """The files of samples: an image and a caption each."""
    ends = (("jpg", image or png()), ("txt", caption))
    return {f"{number:02d}.{end}": data for number in range(count) for end, data in ends}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"])
def test_tables_say_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    table = rows(150)
    path = write_table(tmp_path / f"set{suffix}", table)
    pairs, ids, _ = read(path, shard_size=64)
    assert ids == [row["id"] for row in table]
    assert pairs == [Pair(row["image"], row["caption"], (), row["id"]) for row in table]
    for wanted in ({0}, {1, 3}, {4}, set()):
        ids = read(path, wanted=wanted.__contains__, shard_size=30)[1]
        assert ids == [f"r{i}" for i in range(150) if i // 30 in wanted]


def test_a_folder_a_pattern_and_a_list_are_one_input(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_table(tmp_path / f"{name}.jsonl", [{"image": "x.png", "caption": name}] * 2)
    (tmp_path / "README").write_text("not a table")
    (tmp_path / ".hidden.jsonl").write_text("half a file")
    folder = find_inputs(tmp_path)
    assert folder.names == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert find_inputs(str(tmp_path / "*.jsonl")).files == folder.files
    assert find_inputs([tmp_path / f"{name}.jsonl" for name in "abc"]).digest == folder.digest
    assert read(tmp_path)[1][:3] == ["a.jsonl:0", "a.jsonl:1", "b.jsonl:0"]
    (tmp_path / "deep").mkdir()
    write_table(tmp_path / "deep" / "a.jsonl", rows(1))
    assert find_inputs(str(tmp_path / "**" / "a.jsonl")).names == ("a.jsonl", "deep/a.jsonl")


def test_inputs_that_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "a.jsonl", rows(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.xls").write_bytes(b"")
    for name in ("no.csv", "*.csv", "empty", "x.xls"):
        with pytest.raises(InputError, match=re.escape(name)):
            find_inputs(tmp_path / name)
    for names in ([], [tmp_path / "a.jsonl"] * 2, "/dev/null", "-"):
        with pytest.raises(InputError):
            find_inputs(names)
    write_table(tmp_path / "a.parquet", rows(1))
    with pytest.raises(InputError, match=r"a\.jsonl and a\.parquet"):
        find_inputs(tmp_path)


@pytest.mark.parametrize("name", ["shards", "shards/*.jsonl", "shards/**/*.jsonl"])
def test_what_stands_among_the_files_and_is_none_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "shards" / "deep").mkdir(parents=True)  # no table by its name; only ** looks inside
    write_table(tmp_path / "shards" / "a.jsonl", rows(1))
    assert len(find_inputs(tmp_path / name).files) == 1
    (tmp_path / "shards" / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(InputError, match=r"shards/b\.jsonl"):
        find_inputs(tmp_path / name)
    write_table(tmp_path / "gone.jsonl", rows(1))
    assert len(find_inputs(tmp_path / name).files) == 2
    (tmp_path / "shards" / "c.jsonl").mkdir()
    with pytest.raises(InputError, match=r"shards/c\.jsonl"):
        find_inputs(tmp_path / name)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_scores_are_not_judged_beside_what_they_were_made_of(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"a.{suffix}", rows(3))
    to_file(make_judge(), tmp_path, tmp_path / f"run1.{suffix}")
    for names in (tmp_path, tmp_path / f"*.{suffix}", [*tmp_path.glob(f"*.{suffix}")]):
        with pytest.raises(InputError, match=f"run1.{suffix} is an output of discode"):
            find_inputs(names)
    # Alone, they are a table like others: another judge may score them.
    assert count_rows(find_inputs(tmp_path / f"run1.{suffix}")) == RowCount(3, suffix != "csv")


def test_what_passed_is_not_judged_beside_where_it_came_from(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(1))
    to_folder(make_judge(), tmp_path, tmp_path / "out", min_score=0)
    (passed,) = (tmp_path / "out" / "passed").iterdir()
    with pytest.raises(InputError, match=passed.name):
        find_inputs(tmp_path / "**" / "*.tar")
    assert find_inputs(passed.parent).files == (passed,)


def test_broken_json_lines_cost_themselves(tmp_path: Path) -> None:
    good = b'{"image": "a.png", "caption": "fine"}'
    images = (b'""', b"true", b"[1]", b"0.5", b"NaN", b'{"bytes": 5.5}', b'{"path": null}')
    bad = [
        b"{broken", b"[1]", b"[" * 100_000, b'{"image": "a.png"}', b'{"caption": "a"}',
        b'{"image": "a.png", "caption": 7}', b'{"image": "a.png", "caption": "\xff"}',
        b'{"image": "a.png", "caption": "a", "references": 3}',
        *(b'{"image": %s, "caption": "a"}' % image for image in images),
    ]  # fmt: skip
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([good, b"", *bad, good]))
    pairs, ids, errors = read(path)
    assert [pair is None for pair in pairs] == [False, *[True] * len(bad), False]
    assert all(f"set.jsonl line {row + 2}" in reason for row, reason in errors.items())
    assert ids == [str(i) for i in range(len(bad) + 2)]


def test_broken_csv_rows_cost_themselves(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_bytes(
        b'image,caption\na.png,fine\na.png\na.png,one,two\na.png,\xff\n\na.png,"x"y\n,none\n'
        b'a.png,"two\nlines"\na.png,fine\na.png,"never closed\n'
    )
    assert captions(path) == ["fine", *[None] * 5, "two\nlines", "fine", None]
    lines = {1: 3, 2: 4, 3: 5, 4: 7, 5: 8, 8: 12}
    assert all(f"line {lines[row]} " in reason for row, reason in read(path)[2].items())


def test_lines_that_an_open_quote_swallows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text('image,caption\na.png,fine\na.png,"open\n' + "a.png,lost\n" * 7)
    _, _, errors = read(path)
    assert list(errors) == list(range(1, 9))
    assert all(f"line {row + 2} " in reason for row, reason in errors.items())
    assert all("lines 3 to 10" in reason for reason in errors.values())
    path.write_text('image,caption\na.png,"open\na.png,lost\na.png,"x"\na.png,fine\n')
    assert captions(path) == [None, None, None, "fine"]


def test_coco_results_and_annotations(tmp_path: Path) -> None:
    image = tmp_path / "COCO_val_000000000042.jpg"
    image.write_bytes(png())
    path = write_table(tmp_path / "results.json", [{"image_id": 42, "caption": "a"}])
    assert [pair.id for pair in read_pairs(path)] == ["42"]
    path.write_text(json.dumps([{"image_id": 42, "caption": "a"}, 7, {"image_id": 42}]))
    pairs, ids, errors = read(path, images=tmp_path)
    assert pairs == [Pair(str(image), "a", (), "42"), None, None]
    assert ids == ["42", "1", "42"]
    assert all(f"results.json entry {row}" in reason for row, reason in errors.items())
    whole = {
        "images": [{"id": 42, "file_name": image.name}, {"id": 7}],
        "annotations": [
            {"id": 9, "image_id": 42, "caption": "a"},
            {"image_id": 42, "caption": "b"},
            {"id": 10, "image_id": 7, "caption": "c"},
            {"id": 11, "image_id": 42},
        ],
    }
    path.write_text(json.dumps(whole))
    pairs, ids, _ = read(path, images=tmp_path)
    assert ids == ["9", "42", "10", "11"]
    assert pairs[0] == Pair(str(image), "a", (), "9")
    assert captions(path, images=tmp_path) == ["a", "b", "c", None]
    path.write_text('{"images": 3, "annotations": []}')
    with pytest.raises(InputError, match="'images'"):
        read(path)


def test_an_id_that_coco_annotations_lack_is_no_number_in_file_names(tmp_path: Path) -> None:
    for name in ("x_5.png", "y_1.png"):
        (tmp_path / name).write_bytes(png())
    images = [{"id": 1, "file_name": "x_5.png"}, {"id": 7, "file_name": "y_1.png"}]
    notes = [{"image_id": number, "caption": "a"} for number in (1, 1.0, "1", "01", 5, True)]
    path = tmp_path / "whole.json"
    path.write_text(json.dumps({"images": images, "annotations": notes}))
    pairs, ids, errors = read(path, images=tmp_path)
    assert ids == ["1", "1.0", "1", "01", "5", "True"]
    first = str(tmp_path / "x_5.png")
    assert [pair and pair.image for pair in pairs] == [first, first, first, None, None, None]
    assert all(f"whole.json entry {number}:" in errors[number] for number in (3, 4, 5))
    images.append({"id": 1, "file_name": "y_1.png"})
    notes.append({"image_id": 7, "caption": "a"})
    path.write_text(json.dumps({"images": images, "annotations": notes}))
    pairs, _, errors = read(path, images=tmp_path)
    assert [pair and pair.image for pair in pairs] == [None] * 6 + [str(tmp_path / "y_1.png")]
    assert all("whole.json" in errors[number] for number in range(6))


@pytest.mark.parametrize("header", ["FILE NAME,Text", "image-path,CANDIDATE", "img,Sentence"])
def test_headers_are_understood_whatever_their_capitals(tmp_path: Path, header: str) -> None:
    image, caption = header.split(",")
    for name in ("a.csv", "a.tsv", "a.parquet"):
        path = write_table(tmp_path / name, [{image: "a.png", caption: "x", "ID": "k"}])
        assert read(path)[0] == [Pair("a.png", "x", (), "k")]


def parquet(*names: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * len(names), names=names), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", png()),
        ("b.jsonl", b"no\njson\nat all\n"),
        ("b2.jsonl", b'{"image": "a", "caption": "b", "caption": "c"}'),
        ("c.csv", png()),
        ("d.csv", b"name,title\n1,2\n"),
        ("d2.csv", b"imagee,caption\na,b\n"),
        ("d3.csv", b"image,caption,Caption\na,b,c\n"),
        ("d4.csv", b"image,caption,x,x\na,b,c,d\n"),
        ("e.csv", b""),
        ("f.parquet", png()),
        ("f2.parquet", parquet("image", "caption", "caption")),
        ("f3.parquet", parquet("url", "text")),
        ("g.parquet", b""),
        ("h.json", b"{}"),
        ("i.json", png()),
        ("j.tar", png()),
        ("k.tar", b""),
        ("l.tar.gz", gzip.compress(png())),
        ("m.tsv", b"image,caption\na,b\n"),
        ("n.tsv", b"image\tcaption\tcaption\na\tb\tc\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_are_not_tables_of_pairs(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name):
        list(chunks(tmp_path / name))


def test_quotes_of_tsv_are_text_and_its_header_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    texts = ['a "cat"', '"open', "two, commas", '"x"y']
    lines = [f"{number}.jpg\t{caption}\n" for number, caption in enumerate(texts)]
    for first in ("image\tcaption\n", ""):
        path.write_text(first + "".join(lines))
        assert captions(path) == texts
        assert read(path)[1] == ["0", "1", "2", "3"]
        assert count_rows(find_inputs(path)) == RowCount(4)
        assert [pair.caption for pair in read_pairs(path)] == texts
    to_folder(make_judge(), path, tmp_path / "out", min_score=0)
    (passed,) = (tmp_path / "out" / "passed").iterdir()
    assert captions(passed) == texts


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("a.png", True),
        ("deep/../a.png", True),
        ("link/b.png", True),  # what the folder's owner linked
        ("{folder}/a.png", True),
        ("../secret.png", False),
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
    table = [{"image": text, "caption": "x"} for text in ("a.png", name.format(folder=folder))]
    for suffix in ("jsonl", "parquet"):
        path = write_table(tmp_path / f"a.{suffix}", table)
        assert captions(path, images=folder) == ["x", "x" if inside else None]
        assert captions(path) == ["x", "x"]  # without a folder, names are taken as they are


def test_the_root_may_be_the_folder_of_images(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.jsonl", [{"image": str(tmp_path / "x.png"), "caption": "y"}])
    assert captions(path, images="/") == ["y"]


def test_images_inside_parquet(tmp_path: Path) -> None:
    table: list[dict[str, Any]] = [
        {"image": {"bytes": png(), "path": "a.png"}, "caption": "bytes"},
        {"image": {"bytes": None, "path": "b.png"}, "caption": "path"},
        {"image": None, "caption": "neither"},
    ]
    pairs, _, _ = read(write_table(tmp_path / "set.parquet", table), images=tmp_path)
    assert [pair and pair.image for pair in pairs] == [png(), str(tmp_path / "b.png"), None]
    write_table(tmp_path / "plain.parquet", [{"image": png(), "caption": "bytes"}])
    assert read(tmp_path / "plain.parquet")[0] == [Pair(png(), "bytes", (), "0")]


@pytest.mark.parametrize("kind", ["dictionary", "Arrow's own dictionary", "struct", "prefixes"])
def test_an_image_that_is_stored_once_does_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    image, texts = bytes(1_000_000), [f"c {i}" for i in range(200)]
    column: Any = [image] * 200
    options: dict[str, Any] = {}
    if kind == "Arrow's own dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array([image]))
    elif kind == "struct":
        column = [{"bytes": image, "path": "a.png"}] * 200
    elif kind == "prefixes":
        options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"image": column, "caption": texts}), path, **options)
    assert path.stat().st_size < 1_000_000  # nothing in the file itself tells how much it is
    sizes, pairs = [], []
    before = pa.total_allocated_bytes()
    for chunk in chunks(path):
        sizes.append(len(chunk))
        pairs += [(pair.caption, pair.image == image) for pair in chunk.pairs]
        assert pa.total_allocated_bytes() - before < 160_000_000
        del chunk
    assert pairs == [(caption, True) for caption in texts]
    assert max(sizes) <= 68
    assert min(sizes[:-1]) > 30  # many at once are quicker


def test_chunks_of_a_tar_with_large_images_are_small(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "set.tar", samples(99, image=bytes(1_000_000)))
    assert [len(chunk) for chunk in chunks(path)] == [68, 31]


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


def test_text_that_is_not_utf8_costs_its_row_of_parquet(tmp_path: Path) -> None:
    texts = pa.array([b"fine", b"\xff", b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"image": ["a.png"] * 3, "caption": texts}), tmp_path / "a.parquet")
    assert captions(tmp_path / "a.parquet") == ["fine", None, "fine"]
    assert "a.parquet row 1 " in read(tmp_path / "a.parquet")[2][1]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz"])
def test_webdataset(tmp_path: Path, suffix: str) -> None:
    mark = b"\xef\xbb\xbf"  # of UTF-8, which is no part of a caption
    files = {
        "./": b"",
        "a/0.seg.png": png("blue"),  # beside which the plain one is judged
        "a/0.jpg": png(),
        "a/0.txt": mark + b"a caption\n",
        "a/0.json": b'{"references": ["one"], "caption": "not this one"}',
        "a/1.png": png("blue"),
        "a/1.json": mark + b'{"caption": "from json", "id": "named"}',
        "a/._1.png": b"what a Mac leaves behind",
    }
    path = write_tar(tmp_path / f"set.{suffix}", files, "w:gz" if "g" in suffix else "w")
    assert read(path)[0] == [
        Pair(png(), "a caption", ("one",), "a/0"),
        Pair(png("blue"), "from json", (), "named"),
    ]


CAT, DOG, RED, BLUE = ("jpg", png("red")), ("jpg", png("blue")), ("txt", b"red"), ("txt", b"blue")


@pytest.mark.parametrize(
    ("members", "want"),
    [
        ([("0", *CAT)], [None]),
        ([("0", *RED)], [None]),
        ([("0", *CAT), ("0", "json", b"{")], [None]),
        ([("0", *CAT), ("0", "json", b"[]")], [None]),
        ([("0", *CAT), ("0", "json", b"{}")], [None]),
        ([("0", *CAT), ("0", "txt", b"\xff")], [None]),
        ([("0", *CAT), ("0", *RED), ("0", *DOG), ("0", *BLUE)], [None]),
        ([("0", *CAT), ("0", *DOG), ("0", *RED)], [None]),
        ([("0", *CAT), ("0", "TXT", b"red"), ("0", *BLUE)], [None]),
        ([("0", *CAT), ("0", *RED), ("1", *DOG), ("1", *BLUE), ("0", "json", b"{}")],
         ["red", "blue", None]),
        ([("0", *CAT), ("1", *DOG), ("0", *RED), ("1", *BLUE)], [None] * 4),
        ([("../0", *CAT), ("../0", *RED)], [None]),
        ([("/etc/0", *CAT), ("/etc/0", *RED)], [None]),
        ([("0", *CAT), ("0", "png", png("blue")), ("0", *RED)], [None]),
    ],
)  # fmt: skip
def test_a_sample_that_is_broken_or_ambiguous_costs_itself(
    tmp_path: Path, members: list[tuple[str, str, bytes]], want: list[Any]
) -> None:
    whole = [("y", *CAT), ("y", "txt", b"y"), *members, ("z", *CAT), ("z", "txt", b"z")]
    path = write_tar(tmp_path / "set.tar", [(f"{key}.{end}", data) for key, end, data in whole])
    assert captions(path) == ["y", *want, "z"]
    out = tmp_path / "out"
    totals = to_folder(make_judge(), path, out, min_score=0)
    assert (totals.rows, totals.failed) == (len(want) + 2, want.count(None))
    with tarfile.open(next((out / "passed").iterdir())) as tar:
        assert len(tar.getnames()) == 2 * totals.passed  # an image and a caption of each


def test_ids_of_several_files_differ(tmp_path: Path) -> None:
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", {"0.jpg": png(), "0.txt": b"x", "1.jpg": png()})
    assert read(tmp_path)[1] == ["a.tar:0", "a.tar:1", "b.tar:0", "b.tar:1"]
    (tmp_path / "json").mkdir()
    for name in "ab":
        write_table(tmp_path / "json" / f"{name}.json", [{"image_id": 42, "caption": "x"}])
    assert read(tmp_path / "json")[1] == ["a.json:42", "b.json:42"]


def test_a_tar_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "set.tar", samples(6, image=png() + bytes(5000)))
    whole = path.read_bytes()
    member = 512 * 13  # a sample: two headers, an image, a caption
    for end in (len(whole) // 2, 512 * 3 + 100):
        path.write_bytes(whole[:end])
        assert captions(path) == ["caption"] * (end // member) + [None]
    # Between two members: all is well, but for the zeros at the end.
    path.write_bytes(whole[: 2 * member])
    assert captions(path) == ["caption", "caption", None]
    # A header in the middle overwritten: what follows it cannot be found.
    path.write_bytes(whole[: member * 2] + b"\xff" * 2048 + whole[member * 2 + 2048 :])
    assert captions(path) == ["caption", "caption", None]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_joined_tars_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    mode = "w:gz" if suffix == "tar.gz" else "w"
    keys = ["0", "1", "0"]  # a name that comes again costs its own sample
    parts = [
        write_tar(tmp_path / f"{i}.part", {f"{key}.jpg": png(), f"{key}.txt": b"x"}, mode)
        for i, key in enumerate(keys)
    ]
    (tmp_path / f"set.{suffix}").write_bytes(b"".join(part.read_bytes() for part in parts))
    assert read(tmp_path / f"set.{suffix}")[1] == keys
    assert captions(tmp_path / f"set.{suffix}") == ["x", "x", None]


def test_zeros_that_no_tar_ends_with_are_a_row(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "set.tar", samples(20))
    whole = path.read_bytes()
    sample = 512 * 4  # a header and a block each
    for gap, ids in (
        (slice(2 * sample, None), ["00", "01", "after 01"]),
        (slice(0, None), ["after "]),
        (slice(sample, 15 * sample), ["00", "after 00", *(f"{i}" for i in range(15, 20))]),
    ):
        room = b"" if gap.stop else bytes(20480)  # which a download took beforehand
        data = bytearray(whole + room)
        data[gap] = bytes(len(data[gap]))
        path.write_bytes(data)
        lost = [key.startswith("after") for key in ids]
        assert read(path)[1] == ids
        assert [caption is None for caption in captions(path)] == lost


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
    _, ids, errors = read(path)
    assert captions(path) == ["zero", None, None, "three"]
    assert ids == ["0", "1", "2", "3"]
    assert "1.jpg" in errors[1]
    assert "2.txt" in errors[2]
    assert count_rows(find_inputs(path)) == RowCount(4)


def test_a_sample_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tars, "MAX_SAMPLE", 20_000)
    files = {"0.jpg": png(), "0.txt": b"a"} | {f"0.x{i}": bytes(5000) for i in range(5)}
    files |= {"1.jpg": png(), "1.txt": b"b"} | {f"1.x{i}": b"" for i in range(50)}
    files |= {"2.jpg": png(), "2.txt": b"c"} | {f"2.x{i}": bytes(5000) for i in range(3)}
    chunk, *_ = chunks(write_tar(tmp_path / "set.tar", files), keep=True)
    assert chunk.captions == [None, None, "c"]
    assert [sample.weight() for sample in chunk.samples][:2] == [0, 0]


def test_the_same_rows_whatever_the_chunk(tmp_path: Path) -> None:
    files = {f"{i:03d}.{ext}": data for i in range(40) for ext, data in
             (("png", png()), ("txt", f"caption {i}".encode()))}  # fmt: skip
    path = write_tar(tmp_path / "set.tar", files)
    whole = read(path)[0]
    for size in (1, 7, 40, 41):
        assert read(path, shard_size=size)[0] == whole
    halves = [read(path, shard_size=7, wanted=lambda b, o=odd: b % 2 == o)[1] for odd in (0, 1)]
    assert sorted(itertools.chain(*halves)) == [f"{i:03d}" for i in range(40)]
