from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discode._pairs import Pair, PairParser, as_pairs, make_pairs, read_pairs
from discode.errors import InputError
from discode.images import demo_path, image_digest, open_image


def test_one_with_many_and_many_with_many() -> None:
    assert [p.image for p in make_pairs("a.jpg", ["x", "y"])] == ["a.jpg", "a.jpg"]
    assert [p.image for p in make_pairs(["a.jpg", "b.jpg"], ["x", "y"])] == ["a.jpg", "b.jpg"]
    assert make_pairs("a.jpg", "x", ["r1", "r2"])[0].references == ("r1", "r2")
    assert make_pairs("a.jpg", ["x", "y"], ["r"])[1].references == ("r",)
    assert make_pairs(["a", "b"], ["x", "y"], [["r"], []])[1].references == ()


@pytest.mark.parametrize(
    ("images", "captions", "references", "match"),
    [
        (["a", "b"], ["x"], None, "do not pair up"),
        ("a", [], None, "no captions"),
        (None, "x", None, "cannot be NoneType"),
        ("a", "x", [5], "must be text"),
        ("a", "x", "ref", "list of captions"),
        (["a", "b"], ["x", "y"], ["r1", "r2"], "one list of captions per pair"),
        (["a", "b"], ["x", "y"], [["r"]], "2 lists"),
    ],
)
def test_bad_pairs(images: object, captions: object, references: object, match: str) -> None:
    with pytest.raises(InputError, match=match):
        make_pairs(images, captions, references)  # type: ignore[arg-type]  # that is the point


def test_formats_read_the_same(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "image": "a.jpg", "caption": 'a "dog", running', "references": ["r, 1", "r2"]},
        {"id": "2", "image": "b.jpg", "caption": "naïve 猫", "references": []},
    ]
    want = [
        Pair(str(tmp_path / r["image"]), r["caption"], tuple(r["references"]), r["id"])  # type: ignore[arg-type, operator]  # rows are mixed
        for r in rows
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "p.json").write_text(json.dumps(rows))
    (tmp_path / "p.csv").write_text(
        'id,image,caption,references\n1,a.jpg,"a ""dog"", running","[""r, 1"", ""r2""]"\n'
        "2,b.jpg,naïve 猫,\n",
        encoding="utf-8",
    )
    (tmp_path / "p.tsv").write_text(
        'id\timage\tcaption\treferences\n1\ta.jpg\ta "dog", running\t["r, 1", "r2"]\n'
        "2\tb.jpg\tnaïve 猫\t\n",
        encoding="utf-8",
    )
    for suffix in (".jsonl", ".json", ".csv", ".tsv"):
        assert read_pairs(tmp_path / f"p{suffix}", tmp_path) == want, suffix
    pa = pytest.importorskip("pyarrow", reason="Parquet wants discode-eval[parquet]")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert read_pairs(tmp_path / "p.parquet", tmp_path) == want


def test_coco_results_find_their_images(tmp_path: Path) -> None:
    (tmp_path / "COCO_val2014_000000000042.jpg").touch()
    results = tmp_path / "results.json"
    results.write_text(
        json.dumps([{"image_id": 42, "caption": "x"}, {"image_id": 7, "caption": "y"}])
    )
    pairs = read_pairs(results, tmp_path)
    assert str(pairs[0].image).endswith("COCO_val2014_000000000042.jpg")
    assert not pairs[0].problem
    assert pairs[1].image == str(tmp_path / "7")
    assert "entry 1" in pairs[1].problem
    (tmp_path / "COCO_val2014_000000000042.txt").touch()  # a sidecar is not an image
    (tmp_path / "000000000099.jpg").touch()
    (tmp_path / "x_99.jpg").touch()  # nor is a number that nobody asks for a problem
    assert read_pairs(results, tmp_path) == pairs
    (tmp_path / "000000000042.jpg").touch()
    with pytest.raises(InputError, match=r"2 of 2 .*--annotations"):
        read_pairs(results, tmp_path)
    results.write_text(
        json.dumps([{"image_id": n, "caption": "x"} for n in (42, 99, "99", "7.jpg", 8)])
    )
    (tmp_path / "x_99.jpg").unlink()
    pairs = read_pairs(results, tmp_path)
    assert [bool(pair.problem) for pair in pairs] == [True, False, False, False, True]
    assert all(name in pairs[0].problem for name in ("/", "000000000042.jpg", "COCO_val2014_"))


def test_a_number_at_the_end_of_a_hash_is_no_image_id(tmp_path: Path) -> None:
    for name in ("2423894412_d952d5d103.jpg", "a103.jpg", "a-104.jpg", "a_0104.jpg", "0105.png"):
        (tmp_path / name).touch()
    results = tmp_path / "results.json"
    results.write_text(
        json.dumps([{"image_id": n, "caption": "x"} for n in (103, 104, 105, 2423894412)])
    )
    pairs = read_pairs(results, tmp_path)
    assert [Path(str(pair.image)).name for pair in pairs] == [
        "103", "a_0104.jpg", "0105.png", "2423894412",
    ]  # fmt: skip
    assert [bool(pair.problem) for pair in pairs] == [True, False, False, True]


def test_annotations_give_image_ids_their_files(tmp_path: Path) -> None:
    (tmp_path / "x_7.jpg").touch()
    notes = tmp_path / "instances.json"
    images = [{"id": 7, "file_name": "d952d5d103.jpg"}, {"id": "k", "file_name": "sub/b.jpg"}]
    images += [{"id": 8}, {"id": 9, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg"}]
    notes.write_text(json.dumps({"images": images}))
    results = tmp_path / "results.csv"
    ids = ["7", "7.0", "k", "7", "7.00", "8", "9", "10"]  # CSV has 7.0 where a column has gaps
    results.write_text("image_id,caption\n" + "".join(f"{n},x\n" for n in ids))
    pairs = read_pairs(results, tmp_path, annotations=notes)
    first = str(tmp_path / "d952d5d103.jpg")
    assert [pairs[n].image for n in (0, 1, 3, 4)] == [first] * 4
    assert pairs[2].image == str(tmp_path / "sub" / "b.jpg")
    assert [bool(pair.problem) for pair in pairs] == [
        False, False, False, False, False, True, True, True,
    ]  # fmt: skip
    assert all("instances.json" in pair.problem for pair in pairs[5:])
    assert read_pairs(results, annotations=notes)[0].image == "d952d5d103.jpg"
    results.write_text("image_id,caption\n7.0,x\n7.5,x\n7,x\n")
    found = [Path(str(pair.image)).name for pair in read_pairs(results, tmp_path)]
    assert found == ["x_7.jpg", "7.5", "x_7.jpg"]
    results.write_text("image_id,caption\n7,x\n8,y\n9,z\n")
    with pytest.raises(InputError, match=r"2 of 3 .*instances\.json"):
        read_pairs(results, tmp_path, annotations=notes)
    notes.write_text('{"images": [{"id": 7, "file_name": "../x.jpg"}]}')
    with pytest.raises(InputError, match="leads out"):
        read_pairs(results, tmp_path, annotations=notes)
    notes.write_text('{"annotations": []}')
    with pytest.raises(InputError, match="'images'"):
        read_pairs(results, tmp_path, annotations=notes)
    with pytest.raises(InputError, match="no such file"):
        read_pairs(results, tmp_path, annotations=tmp_path / "none.json")


def test_only_a_number_or_an_image_id_is_a_number_in_file_names(tmp_path: Path) -> None:
    (tmp_path / "frame_7.jpg").touch()
    parser = PairParser(tmp_path)

    def image(**row: object) -> object:
        return Path(str(parser.parse({**row, "caption": "x"}, "row", "0").image)).name

    for row in ({"image_id": "7"}, {"image_id": 7.0}, {"Image ID": "007"}, {"image": 7}):
        assert image(**row) == "frame_7.jpg", row
    assert image(image="7") == "7"
    assert image(image="7", image_id=7) == "7"
    (tmp_path / "7").touch()
    parser = PairParser(tmp_path)
    assert image(image_id=7) == image(image="7") == image(image_id="7") == "7"
    assert image(image_id="007") == "frame_7.jpg"


def test_empty_cells_are_not_filled(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(
        "id,Image ID,file_name,caption,text\n"
        ",7,,,a dog\n"
        "a, ,b.jpg,a cat,\n"
        ",,c.jpg, ,\n"
        "\t,8,d.jpg,a bird,x\n"
    )
    assert read_pairs(path) == [
        Pair("7", "a dog", (), "7"),
        Pair("b.jpg", "a cat", (), "a"),
        Pair("c.jpg", " ", (), "2"),  # fails when it is judged
        Pair("d.jpg", "a bird", (), "8"),
    ]
    (tmp_path / "x_7.jpg").touch()
    assert read_pairs(path, tmp_path)[0].image == str(tmp_path / "x_7.jpg")


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("p.csv", "image,caption\na.jpg\n", "line 2 does not have the 2 columns"),
        ("p.csv", "photo,words\na,b\n", "no 'image'"),
        ("p.csv", "", "no pairs"),
        ("p.jsonl", '{"image": "a", "caption": "b"}\n' * 16 + "{oops\n", "line 17 is not JSON"),
        ("p.jsonl", '{"image": "a"}\n', "line 1 has no 'caption'"),
        ("p.json", "{}", "not a list"),
        ("p.txt", "x", "unknown format"),
        ("p.parquet", "x", "cannot read"),
        ("p.csv", 'image,caption,references\na,b,"[1"\n', "line 2: references is not JSON"),
    ],
)
def test_bad_files_name_the_place(tmp_path: Path, name: str, text: str, match: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet wants discode-eval[parquet]")
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=match):
        read_pairs(tmp_path / name)


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_pairs(tmp_path / "none.csv")
    (tmp_path / "p.csv").write_bytes(b"image,caption\n\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"p\.csv line 2 is not UTF-8"):
        read_pairs(tmp_path / "p.csv")
    with pytest.raises(InputError, match="not a folder"):
        read_pairs(tmp_path / "p.csv", tmp_path / "nowhere")


def test_digest_is_of_the_bytes(image: Path) -> None:
    assert image_digest(image) == image_digest(str(image)) == image_digest(image.read_bytes())
    red, blue = Image.new("RGB", (2, 2), "red"), Image.new("RGB", (2, 2), "blue")
    assert image_digest(red) != image_digest(blue)
    assert image_digest(Image.new("L", (4, 1))) != image_digest(Image.new("L", (1, 4)))
    # The same indices under two palettes are two images.
    one, two = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    one.putpalette([255, 0, 0])
    two.putpalette([0, 0, 255])
    assert image_digest(one) != image_digest(two)


def test_pairs_may_be_tuples_or_dictionaries(image: Path) -> None:
    photo = Image.new("RGB", (4, 2))
    given = [
        Pair("a.jpg", "x"),
        ("a.jpg", "x"),
        ["a.jpg", "x", ["r1", "r2"]],
        {"image": "a.jpg", "caption": "x", "references": ["r"], "id": 7},
        {"file_name": image, "candidate": "x", "split": "val"},
        (photo, "x"),
        {"image": np.zeros((6, 5, 3), np.uint8), "caption": "x"},
    ]
    pairs = as_pairs(given)  # type: ignore[arg-type]  # lists will do
    assert pairs[0] is given[0]
    assert [pair.caption for pair in pairs] == ["x"] * 7
    assert [pair.references for pair in pairs[1:4]] == [(), ("r1", "r2"), ("r",)]
    assert [pair.id for pair in pairs] == ["", "1", "2", "7", "4", "5", "6"]
    assert pairs[4].image == image
    assert pairs[5].image is photo
    assert open_image(pairs[6].image).size == (5, 6)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("a.jpg", "a list of pairs, not str"),
        ({"image": "a.jpg", "caption": "x"}, "a list of pairs, not dict"),
        (["a.jpg"], "pair 0 is str; give discode.Pair"),
        ([("a.jpg", 5)], "pair 0: a caption must be text"),
        ([("a.jpg", "x"), (5, "x")], "pair 1: an image cannot be int"),
        ([("a.jpg", "x", "a reference")], "pair 0: references must be a list"),
        ([("a.jpg", "x", {"a", "b"})], "pair 0: references must be a list"),
        ([{"image": "a.jpg"}], "pair 0 has no 'caption'"),
        ([(np.zeros((3, 5, 3)), "x")], "pair 0: an array of shape .* may be HWC or CHW"),
    ],
)
def test_bad_pairs_say_what_a_pair_is(given: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        as_pairs(given)


def test_a_batch_of_arrays_is_as_many_images() -> None:
    batch = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 9), np.uint8)
    pairs = make_pairs(batch, ["x", "y"])
    for pair, array in zip(pairs, batch, strict=True):
        assert np.array_equal(np.asarray(open_image(pair.image)), array.transpose(1, 2, 0))
    one, two = make_pairs(batch[0], ["x", "y"])
    assert one.image is two.image  # an image of several captions is converted once
    assert len(make_pairs(list(batch), ["x", "y"])) == 2
    assert make_pairs(np.array(["a.jpg", "b.jpg"]), ["x", "y"])[1].image == "b.jpg"  # a column
    assert Pair(io.BytesIO(b"GIF"), "x").image == b"GIF"  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 images and 1 caption "):
        make_pairs(batch, "x")


def test_what_has_no_order_is_refused() -> None:
    for captions in ({"a cat", "a dog"}, frozenset({"a cat"}), {"a cat": 1}):
        with pytest.raises(InputError, match=type(captions).__name__):
            make_pairs("a.jpg", captions)  # type: ignore[arg-type]
    for references in ({"a cat"}, [{"a cat", "a pet"}]):
        with pytest.raises(InputError, match="references must be"):
            make_pairs("a.jpg", ["a cat"], references)  # type: ignore[arg-type]
    assert [pair.caption for pair in make_pairs("a.jpg", {"a cat": 1, "a dog": 2}.keys())] == [  # type: ignore[arg-type]
        "a cat", "a dog",
    ]  # fmt: skip
    one: Any = np.array("a cat")
    assert [pair.caption for pair in make_pairs("a.jpg", one)] == ["a cat"]


def test_an_open_file_may_stand_in_several_pairs() -> None:
    path = demo_path() / "cat.jpg"
    data = path.read_bytes()
    with path.open("rb") as file:
        pairs = as_pairs([(file, "a cat"), (file, "a dog")])
        assert [pair.image for pair in pairs] == [data, data]
        assert make_pairs([file, file], ["a", "b"])[1].image == data
