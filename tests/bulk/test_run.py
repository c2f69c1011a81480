"""Runs into folders and files: the same numbers as in memory, resumed, shared out, filtered."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode._files import replacing
from discode._judge import Judge, load
from discode._pairs import read_pairs
from discode._scores import Scores
from discode.bulk import Share, Totals, plan_run
from discode.bulk._folder import lock_share
from discode.bulk._inputs import DIGEST_BYTES, find_inputs
from discode.decoders import get_decoder
from discode.errors import InputError
from tests.helpers.instant import Instant, make_judge, rows, to_file, to_folder
from tests.helpers.samples import png, read_any, read_parts, write_table, write_tar

pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
pq = pytest.importorskip("pyarrow.parquet")

Lines = Callable[..., Path]


def in_memory(path: Path, judge: Judge | None = None) -> Scores:
    """The oracle: the same judge on all pairs at once."""
    return (judge or make_judge()).score_pairs(read_pairs(path))


def or_nan(values: list[Any]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def test_a_folder_holds_what_memory_says(tmp_path: Path, lines: Lines) -> None:
    path, judge = lines(230), make_judge()
    want = in_memory(path)
    done: list[int] = []
    totals = to_folder(judge, path, tmp_path / "out", shard_size=100, progress=done.append)
    assert sum(done) == 230
    table = read_parts(tmp_path / "out")
    columns = {name: [row[name] for row in table] for name in table[0]}
    assert columns["id"] == [f"r{i}" for i in range(230)]
    assert columns["row"] == list(range(230))
    assert set(columns["source"]) == {"set.jsonl"}
    assert set(columns["signature"]) == {str(judge.signature.with_fields(references="none"))}
    np.testing.assert_array_equal(or_nan(columns["score"]), want.value)
    np.testing.assert_array_equal(or_nan(columns["raw"]), want.raw)
    assert columns["error"] == [want.errors.get(i) for i in range(230)]
    assert columns["flags"] == [row["flags"] for row in want.rows()]
    assert (totals.rows, totals.failed) == (230, len(want.errors)) == (230, 5)
    assert totals.mean() == pytest.approx(want.mean(), abs=1e-12)
    assert sorted(p.name for p in (tmp_path / "out").glob("part*")) == [
        f"part-00000-0000{i}.jsonl" for i in range(3)
    ]


def test_a_second_run_asks_nothing(tmp_path: Path, lines: Lines) -> None:
    path, log = lines(100), tmp_path / "log"
    first = to_folder(make_judge(log=log), path, tmp_path / "out", shard_size=20)
    asked = log.read_text()
    path_time = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    done: list[int] = []
    again = to_folder(
        make_judge(log=log), path, tmp_path / "out", shard_size=20, progress=done.append
    )
    assert (again, done) == (first, [100])  # progress begins with what is finished
    assert log.read_text() == asked
    assert path_time == {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}


def test_what_is_damaged_is_done_again(tmp_path: Path, lines: Lines) -> None:
    path, log, out = lines(60), tmp_path / "log", tmp_path / "out"
    first = to_folder(make_judge(), path, out, shard_size=20)
    whole = read_parts(out)
    mark, part = out / "_done" / "part-00000-00001.json", out / "part-00000-00001.jsonl"
    text = mark.read_text()
    for file, damaged in (
        (mark, None), (mark, "{"), (mark, '{"files": {}}'), (mark, "[]"),
        (mark, text.replace("ends_file", "x")), (mark, text.replace('"rows"', '"x"')),
        (part, None), (part, "half"),
    ):  # fmt: skip
        file.unlink()
        if damaged is not None:
            file.write_text(damaged)
        (out / ".part-00000-00001.jsonl.abc.part").write_text("what a killed process leaves")
        log.write_text("")
        assert to_folder(make_judge(log=log), path, out, shard_size=20) == first
        assert read_parts(out) == whole
        assert len(log.read_text().splitlines()) == 20
        assert not list(out.glob(".part*"))


def test_other_settings_are_refused(tmp_path: Path, lines: Lines) -> None:
    path, out = lines(60), tmp_path / "out"
    judge = make_judge()
    to_folder(judge, path, out, shard_size=20)
    for name, value in (("shard_size", 21), ("format", "csv"), ("min_score", 0), ("images", "/")):
        options: Any = {"shard_size": 20, name: value}
        with pytest.raises(InputError, match=f"{name}="):
            to_folder(judge, path, out, **options)
    with pytest.raises(InputError, match="another judge"):
        to_folder(load(Instant("another")), path, out, shard_size=20)
    text = path.read_text()
    for changed in (text + text.splitlines()[0], text.replace("caption 9 ", "caption 8 ")):
        path.write_text(changed)
        with pytest.raises(InputError, match="another input"):
            to_folder(judge, path, out, shard_size=20)
    path.write_text(text)  # the same again, if written anew
    assert to_folder(judge, path, out, shard_size=20).rows == 60
    (out / "_run.json").write_text("[]")
    with pytest.raises(InputError, match=r"_run\.json"):
        to_folder(judge, path, out, shard_size=20)
    (out / "_run.json").unlink()
    with pytest.raises(InputError, match=r"_run\.json"):
        to_folder(judge, path, out, shard_size=20)


@pytest.mark.parametrize("files", [1, 5])
def test_shares_make_one_whole(tmp_path: Path, lines: Lines, files: int) -> None:
    (tmp_path / "in").mkdir()
    for k in range(files):
        shutil.move(lines(70 + k), tmp_path / "in" / f"{k}.jsonl")
    to_folder(make_judge(), tmp_path / "in", tmp_path / "whole", shard_size=16)
    log = tmp_path / "log"
    score = partial(to_folder, make_judge(log=log), tmp_path / "in", tmp_path / "out")
    totals = [score(shard=f"{i}/3", shard_size=16) for i in range(3)]
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")
    count = sum(70 + k for k in range(files))
    assert sum(total.rows for total in totals) == count
    # Other shares of the same folder find nothing left to do.
    assert score(shard="1/2", shard_size=16).rows > 0
    assert len(log.read_text().splitlines()) == count


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
def test_what_passes_is_written_in_its_own_format(tmp_path: Path, suffix: str) -> None:
    table = [row | {"extra": f"kept {i}"} for i, row in enumerate(rows(90))]
    path = write_table(tmp_path / f"set.{suffix}", table)
    want = in_memory(path).value
    least, out = float(np.nanmedian(want)), tmp_path / "out"
    totals = to_folder(make_judge(), path, out, shard_size=40, min_score=least)
    passing = np.flatnonzero(want >= least).tolist()
    assert 0 < totals.passed == len(passing) < 90
    assert totals.failed == 2
    assert len(read_parts(out)) == 90
    passed = [row for part in sorted((out / "passed").iterdir()) for row in read_any(part)]
    assert [float(row.pop("discode_score")) for row in passed] == want[passing].tolist()
    assert passed == [table[i] for i in passing]
    # The result is an input again, and its own filter keeps all of it.
    again = to_folder(make_judge(), out / "passed", tmp_path / "again", min_score=least)
    assert again.passed == again.rows == len(passing)


def test_the_notes_of_datasets_name_the_new_column(tmp_path: Path) -> None:
    table = [{"image": {"bytes": png(), "path": None}, "caption": f"a {i}"} for i in range(9)]
    notes = {"info": {"features": {"image": {"_type": "Image"}, "caption": {"dtype": "string"}}}}
    for text in (json.dumps(notes), '"not theirs"'):
        whole = pa.Table.from_pylist(table).replace_schema_metadata({"huggingface": text})
        pq.write_table(whole, tmp_path / "set.parquet")
        out = tmp_path / f"out{len(text)}"
        to_folder(make_judge(), tmp_path / "set.parquet", out, min_score=0.0)
        passed = pq.read_table(out / "passed")
        assert passed.column("image").to_pylist() == [row["image"] for row in table]
        after = json.loads(passed.schema.metadata[b"huggingface"])
        named = after == "not theirs" or list(after["info"]["features"]) == passed.column_names
        assert named


def test_tars_that_pass_hold_the_original_bytes(tmp_path: Path) -> None:
    files = {f"k/{i:02d}.{ext}": data for i in range(30) for ext, data in
             (("png", png()), ("txt", f"caption {i}".encode()), ("cls", bytes([i])))}  # fmt: skip
    del files["k/03.txt"]
    path = write_tar(tmp_path / "set.tar", files)
    judge, out = make_judge(), tmp_path / "out"
    to_folder(judge, path, tmp_path / "plain")
    scores: Any = {row["id"]: row["score"] for row in read_parts(tmp_path / "plain")}
    assert scores.pop("k/03") is None
    least = float(np.median(list(scores.values())))
    totals = to_folder(judge, path, out, shard_size=8, min_score=least)
    passing = {key for key, value in scores.items() if value >= least}
    passed: dict[str, bytes] = {}
    for file in sorted((out / "passed").iterdir()):
        with tarfile.open(file) as tar:
            for member in tar:
                assert member.mtime == 1_700_000_000
                passed[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    assert passed == {name: data for name, data in files.items() if name.split(".")[0] in passing}
    assert (totals.passed, totals.failed) == (len(passing), 1)
    assert to_folder(judge, out / "passed", tmp_path / "again").rows == len(passing)


def test_nothing_passes(tmp_path: Path, lines: Lines) -> None:
    totals = to_folder(make_judge(), lines(30), tmp_path / "out", min_score=2.0)
    assert totals.passed == 0
    assert not list((tmp_path / "out" / "passed").iterdir())


def test_bad_options(tmp_path: Path, lines: Lines) -> None:
    lines(10)
    judge = make_judge()
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "coco.json").write_text('[{"image_id": 1, "caption": "a"}]')
    mistakes: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        ("set.jsonl", "out", {"min_score": math.nan}, "min_score"),
        ("set.jsonl", "out", {"images": tmp_path / "no"}, "images: .*no"),
        ("set.jsonl", "set.jsonl/out", {}, "set.jsonl/out"),
        ("none.jsonl", "none", {}, "none.jsonl"),
        ("coco.json", "coco", {"min_score": 0.5}, "COCO"),
    )
    for source, out, options, place in mistakes:
        with pytest.raises(InputError, match=place):
            to_folder(judge, tmp_path / source, tmp_path / out, **options)
    for source, out in (("set.jsonl", "out.txt"), ("none.jsonl", "none.csv")):
        with pytest.raises(InputError):
            to_file(judge, tmp_path / source, tmp_path / out)
        assert not (tmp_path / out).exists()


def test_image_ids_by_annotations_and_by_file_name(tmp_path: Path) -> None:
    names = ("2423894412_d952d5d103.jpg", "0007.png", "x_8.png", "y_8.png")
    for name in names:
        (tmp_path / "images" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "images" / name).write_bytes(png())
    judge, folder = make_judge(), tmp_path / "images"
    rows = [{"image_id": n, "caption": "a"} for n in (7, 103, 7, 8, 7)]
    rows.append({"image": "0007.png", "caption": "a"})
    source = write_table(tmp_path / "results.json", rows)
    totals = to_folder(judge, source, tmp_path / "by name", images=folder)
    assert (totals.rows, totals.failed) == (6, 2)
    scored = read_parts(tmp_path / "by name")
    seven = str(folder / "0007.png")
    assert [row["file"] for row in scored] == [seven, None, seven, None, seven, None]
    assert [row["image"] for row in scored] == ["7", "103", "7", "8", "7", "0007.png"]
    assert [row["score"] is None for row in scored] == [False, True, False, True, False, False]
    assert "entry 1" in str(scored[1]["error"])
    assert "x_8.png and y_8.png" in str(scored[3]["error"])

    notes = tmp_path / "instances.json"
    found = ({"id": 7, "file_name": names[0]}, {"id": 103, "file_name": names[1]})
    notes.write_text(json.dumps({"images": [*found, {"id": 8, "file_name": "x_8.png"}]}))
    totals = to_folder(judge, source, tmp_path / "out", images=folder, annotations=notes)
    assert totals.failed == 0
    files = [Path(str(row["file"])).name for row in read_parts(tmp_path / "out")[:5]]
    assert files == [names[0], names[1], names[0], "x_8.png", names[0]]
    with pytest.raises(InputError, match="annotations"):  # is another run
        to_folder(judge, source, tmp_path / "out", images=folder)

    source = write_table(tmp_path / "results.json", rows[1:4])
    with pytest.raises(InputError, match=r"results\.json: 2 of 3 .*--annotations"):
        to_folder(judge, source, tmp_path / "none", images=folder)
    with pytest.raises(InputError, match="annotations: no such file"):
        plan_run(source, tmp_path / "none", annotations=tmp_path / "none.json")
    assert not (tmp_path / "none" / "_run.json").exists()


@pytest.mark.parametrize("other", ["0/1", "0/2"])
def test_two_processes_do_not_write_the_same_shards(
    tmp_path: Path, lines: Lines, other: str
) -> None:
    path, out = lines(20), tmp_path / "out"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from discode.bulk._chunks import Share\n"
        "from discode.bulk._folder import lock_share\n"
        "lock_share(Path(sys.argv[1]), Share.parse(sys.argv[2]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    to_folder(make_judge(), path, out)
    half = out / ".part-00000-00000.jsonl.abc.part"
    half.write_text("another process is at it")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(out), other],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process"):
            to_folder(make_judge(), path, out)
        assert half.exists()
        process.kill()
    assert to_folder(make_judge(), path, out).rows == 20  # the dead hold nothing
    assert not half.exists()


def test_shares_of_one_run_do_not_lock_each_other_out(tmp_path: Path) -> None:
    for handle in [lock_share(tmp_path, Share(index, 2)) for index in range(2)]:
        os.close(handle)


def test_large_inputs_are_sampled_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    data = bytearray(3 << 20)
    seen = set()
    for place in (0, 0, len(data) - 1, (len(data) - DIGEST_BYTES) * 7 // 15):
        data[place] += 1
        path.write_bytes(data)
        seen.add(find_inputs(path).digest)
    assert len(seen) == 4


def test_rows_that_are_added_while_it_runs_are_told(tmp_path: Path, lines: Lines) -> None:
    path, out = lines(60), tmp_path / "out"

    def add(count: int) -> None:
        with path.open("a") as file:
            file.write(json.dumps(rows(1)[0]) + "\n")

    with pytest.raises(InputError, match="changed while it was read"):
        to_folder(make_judge(), path, out, shard_size=20, progress=add)
    assert len(read_parts(out)) >= 60
    with pytest.raises(InputError, match="another input"):
        to_folder(make_judge(), path, out, shard_size=20)


def _meanwhile(other: Callable[[], object]) -> Callable[[int], None]:
    """Progress that does something else once, after a run has begun and before it has written."""
    todo = [other]

    def progress(count: int) -> None:
        if todo:
            todo.pop()()

    return progress


def test_of_two_shares_that_begin_at_once_one_decides(tmp_path: Path, lines: Lines) -> None:
    path, out, judge = lines(40), tmp_path / "out", make_judge()
    raw, smoothing = ({name: get_decoder(name)} for name in ("raw", "smoothing"))
    score = partial(to_folder, judge, path, out, shard_size=20)
    other = _meanwhile(lambda: score(methods=raw, shard="1/2"))
    with pytest.raises(InputError, match="other methods"):
        score(methods=smoothing, shard="0/2", progress=other)
    assert {row["method"] for row in read_parts(out)} == {"raw"}
    assert len(read_parts(out)) == 20
    # The very file cannot be written by both, however close they are.
    for name, other_text in (("first", "theirs"), ("second", "")):
        with replacing(tmp_path / name, unless_exists=True) as temp:
            temp.write_text("ours")
            if other_text:
                (tmp_path / name).write_text(other_text)
        assert (tmp_path / name).read_text() == (other_text or "ours")
    assert not list(tmp_path.glob(".*.part"))


def test_the_order_of_methods_is_that_of_whoever_began(tmp_path: Path, lines: Lines) -> None:
    path, judge = lines(60), make_judge()
    methods = {name: get_decoder(name) for name in ("raw", "discode")}
    score = partial(to_folder, judge, path, shard_size=20)
    want = score(tmp_path / "whole", methods=methods)
    turned = dict(reversed(methods.items()))
    out = tmp_path / "out"
    score(out, methods=methods, shard="0/2")
    score(out, methods=turned, shard="1/2")
    assert read_parts(out) == read_parts(tmp_path / "whole")
    again = score(out, methods=turned)
    assert again == want
    assert list(again.methods) == list(methods)
    with pytest.raises(InputError, match="other methods"):
        score(out, methods={"raw": methods["raw"]})


def test_names_are_found_where_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, out = (tmp_path / name for name in ("here", "there", "out"))
    for folder, colour in ((here, "red"), (there, "blue")):
        folder.mkdir()
        (folder / "x.png").write_bytes(png(colour))
    (here / "only.png").write_bytes(png())
    path = tmp_path / "set.jsonl"

    def share(folder: Path, name: str, **options: Any) -> Totals:
        monkeypatch.chdir(folder)
        judge = make_judge(store=tmp_path / f"{folder.name}.db")  # a store opens images
        return to_folder(judge, path, out, shard=name, shard_size=2, **options)

    write_table(path, [{"image": "only.png", "caption": "a"}] * 4)
    assert share(here, "0/2").failed == 0
    assert share(there, "1/2").failed == 0
    assert [row["image"] for row in read_parts(out)] == ["only.png"] * 4
    # Two that begin at once cannot know of each other: the later one is told.
    shutil.rmtree(out)
    write_table(path, [{"image": "x.png", "caption": "a"}] * 4)
    with pytest.raises(InputError, match="run this again"):
        share(here, "0/2", progress=_meanwhile(lambda: share(there, "1/2")))
    assert share(here, "0/2").rows == 2
    assert len(read_parts(out)) == 4


def test_half_characters_in_every_text_are_escaped(tmp_path: Path) -> None:
    row = {"id": "\ud800", "image": "no-\udc80.png", "caption": "x"}
    path = write_table(tmp_path / "set.jsonl", [row])
    judge = make_judge(store=tmp_path / "s.db")  # a store opens images
    to_folder(judge, path, tmp_path / "out", format="parquet")
    (row,) = read_any(tmp_path / "out" / "part-00000-00000.parquet")
    assert row["id"] == "\\ud800"
    assert "no-\\udc80.png" in row["error"]


class Truncating(Instant):
    """A server that leaves answers out of every second row."""

    def answer(self, pairs: Any, prompt: Any, scale: Any, *, hidden: bool = False) -> Any:
        read = super().answer(pairs, prompt, scale, hidden=hidden)
        marks = np.array([int(pair.id[1:]) % 2 == 1 for pair in pairs])
        return replace(read, truncated=marks)


def test_bounds_of_truncated_rows_are_kept(tmp_path: Path, lines: Lines) -> None:
    path, judge = lines(40), load(Truncating())
    want = in_memory(path, judge)
    assert want.bound is not None
    totals = to_folder(judge, path, tmp_path / "out", shard_size=20)
    bounds = [row["bound"] for row in read_parts(tmp_path / "out")]
    wanted = np.where(want.flags["truncated"], want.bound, math.nan)
    np.testing.assert_array_equal(or_nan(bounds), wanted)
    assert totals.methods["discode"].bound == np.nanmax(want.bound)
    assert to_folder(judge, path, tmp_path / "out", shard_size=20) == totals  # from the marks
    to_file(judge, path, tmp_path / "one.csv")
    cells = [row["bound"] for row in read_any(tmp_path / "one.csv")]
    assert cells == ["" if bound is None else str(bound) for bound in bounds]
