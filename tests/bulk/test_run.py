"""Runs into folders and files: the same numbers as in memory, resumed, shared out, filtered."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.bulk import Share, Totals
from discode.bulk.inputs import DIGEST_BYTES, find_inputs
from discode.bulk.judging import by_method, judge_chunk
from discode.bulk.locks import ShareLock
from discode.bulk.plan import read_chunks
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.files import replacing
from discode.judge import load
from discode.pairs import read_pairs
from tests.helpers.instant import Instant, make_judge, rows, to_file, to_folder
from tests.helpers.samples import png, read_parts, write_tar

pa = pytest.importorskip("pyarrow", reason="Parquet is tested with discode-eval[parquet]")
pq = pytest.importorskip("pyarrow.parquet")

Lines = Callable[..., Path]


def in_memory(path: Path) -> Any:
    """The oracle: the same judge on all pairs at once."""
    return make_judge().score_pairs(read_pairs(path))


def same(value: float | None, want: float) -> bool:
    return (value is None and math.isnan(want)) or value == want


def test_every_format_holds_what_memory_says(tmp_path: Path, lines: Lines) -> None:
    path = lines(230)
    want = in_memory(path)
    judge = make_judge()
    done: list[int] = []
    totals = to_folder(judge, path, tmp_path / "jsonl", shard_size=100, progress=done.append)
    assert sum(done) == 230
    got = read_parts(tmp_path / "jsonl")
    assert [row["id"] for row in got] == [f"r{i}" for i in range(230)]
    assert [row["row"] for row in got] == list(range(230))
    assert {row["source"] for row in got} == {"set.jsonl"}
    made = judge.signature.with_fields(references="none")
    assert {row["signature"] for row in got} == {str(made)}
    assert all(same(row["score"], v) for row, v in zip(got, want.value, strict=True))  # type: ignore[arg-type]
    assert all(same(row["raw"], v) for row, v in zip(got, want.raw, strict=True))  # type: ignore[arg-type]
    assert [row["error"] for row in got] == [want.errors.get(i) for i in range(230)]
    assert [row["flags"] for row in got] == [row["flags"] for row in want.rows()]
    assert totals.rows == 230
    assert totals.failed == len(want.errors) == 5
    assert totals.mean() == pytest.approx(want.mean(), abs=1e-12)
    assert sorted(p.name for p in (tmp_path / "jsonl").glob("part*")) == [
        f"part-00000-0000{i}.jsonl" for i in range(3)
    ]
    to_folder(judge, path, tmp_path / "parquet", shard_size=100, format="parquet")
    table = pq.read_table(tmp_path / "parquet").to_pylist()
    assert [dict(row) for row in table] == got
    to_folder(judge, path, tmp_path / "csv", shard_size=100, format="csv")
    to_file(judge, path, tmp_path / "one.csv")
    to_file(judge, path, tmp_path / "one.jsonl")
    assert [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()] == got
    parts: list[dict[str, str]] = []
    for file in sorted((tmp_path / "csv").glob("part*")):
        with file.open(newline="") as handle:
            parts += csv.DictReader(handle)
    with (tmp_path / "one.csv").open(newline="") as handle:
        assert list(csv.DictReader(handle)) == parts
    assert [float(row["score"]) for row in parts] == pytest.approx(want.value.tolist(), nan_ok=True)


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


def _without(file: Path, *keys: str) -> None:
    mark = json.loads(file.read_text())
    inner = mark
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    file.write_text(json.dumps(mark))


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: (out / "_done" / "part-00000-00001.json").unlink(),
        lambda out: (out / "_done" / "part-00000-00001.json").write_text("{"),
        lambda out: (out / "_done" / "part-00000-00001.json").write_text('{"files": {}}'),
        lambda out: (out / "_done" / "part-00000-00001.json").write_text("[]"),
        lambda out: _without(out / "_done" / "part-00000-00001.json", "ends_file"),
        lambda out: _without(out / "_done" / "part-00000-00001.json", "totals", "rows"),
        lambda out: (out / "part-00000-00001.jsonl").unlink(),
        lambda out: (out / "part-00000-00001.jsonl").write_text("half"),
    ],
)
def test_what_is_damaged_is_done_again(
    tmp_path: Path, lines: Lines, damage: Callable[[Path], None]
) -> None:
    path, log, out = lines(60), tmp_path / "log", tmp_path / "out"
    first = to_folder(make_judge(), path, out, shard_size=20)
    whole = read_parts(out)
    damage(out)
    (out / ".part-00000-00001.jsonl.abc.part").write_text("what a killed process leaves")
    assert to_folder(make_judge(log=log), path, out, shard_size=20) == first
    assert read_parts(out) == whole
    assert len(log.read_text().splitlines()) == 20
    assert not list(out.glob(".part*"))


def test_unfinished_shards_ask_the_store_first(tmp_path: Path, lines: Lines) -> None:
    path, log, out = lines(60), tmp_path / "log", tmp_path / "out"
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(png())
    first = to_folder(make_judge(store=tmp_path / "s.db"), path, out, images=tmp_path)
    assert first.failed == 2
    shutil.rmtree(out)
    judge = make_judge(log=log, store=tmp_path / "s.db")
    assert to_folder(judge, path, out, images=tmp_path) == first
    assert all("x!" in line for line in log.read_text().splitlines())  # failures are not kept


def test_other_settings_are_refused(tmp_path: Path, lines: Lines) -> None:
    path, out = lines(60), tmp_path / "out"
    judge = make_judge()
    to_folder(judge, path, out, shard_size=20)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"shard_size": 21}, "shard_size=20"),
        ({"shard_size": 20, "format": "csv"}, "format=jsonl"),
        ({"shard_size": 20, "min_score": 0.5}, "min_score=None"),
        ({"shard_size": 20, "images": tmp_path}, "images=None"),
    )
    for options, word in changes:
        with pytest.raises(InputError, match=word):
            to_folder(judge, path, out, **options)
    with pytest.raises(InputError, match="another judge"):
        to_folder(load(Instant("another")), path, out, shard_size=20)
    with path.open("a") as file:
        file.write(json.dumps(rows(1)[0]) + "\n")
    with pytest.raises(InputError, match="another input"):
        to_folder(judge, path, out, shard_size=20)
    (out / "_run.json").write_text("[]")
    with pytest.raises(InputError, match="not the manifest"):
        to_folder(judge, path, out, shard_size=20)
    (out / "_run.json").unlink()
    with pytest.raises(InputError, match="holds shards without"):
        to_folder(judge, path, out, shard_size=20)


@pytest.mark.parametrize("files", [1, 5])
def test_shares_make_one_whole(tmp_path: Path, lines: Lines, files: int) -> None:
    (tmp_path / "in").mkdir()
    for k in range(files):
        shutil.move(lines(70 + k), tmp_path / "in" / f"{k}.jsonl")
    to_folder(make_judge(), tmp_path / "in", tmp_path / "whole", shard_size=16)
    log = tmp_path / "log"
    totals = [
        to_folder(
            make_judge(log=log), tmp_path / "in", tmp_path / "out", shard=f"{i}/3", shard_size=16
        )
        for i in range(3)
    ]
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")
    assert sum(total.rows for total in totals) == sum(70 + k for k in range(files))
    assert len(log.read_text().splitlines()) == sum(70 + k for k in range(files))
    # Other shares of the same folder find nothing left to do.
    more = to_folder(
        make_judge(log=log), tmp_path / "in", tmp_path / "out", shard="1/2", shard_size=16
    )
    assert len(log.read_text().splitlines()) == sum(70 + k for k in range(files))
    assert more.rows > 0


def threshold(values: np.ndarray) -> float:
    return float(np.nanmedian(values))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
def test_what_passes_is_written_in_its_own_format(tmp_path: Path, suffix: str) -> None:
    table = [row | {"extra": f"kept {i}"} for i, row in enumerate(rows(90))]
    path = tmp_path / f"set.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, list(table[0]), delimiter="\t" if suffix == "tsv" else ","
            )
            writer.writeheader()
            writer.writerows(table)
    want = in_memory(path)
    least = threshold(want.value)
    out = tmp_path / "out"
    totals = to_folder(make_judge(), path, out, shard_size=40, min_score=least)
    wanted = [i for i in range(90) if want.value[i] >= least]
    assert 0 < totals.passed == len(wanted) < 90
    assert totals.failed == 2
    assert len(read_parts(out)) == 90
    got: list[dict[str, Any]] = []
    for part in sorted((out / "passed").iterdir()):
        if suffix == "parquet":
            got += pq.read_table(part).to_pylist()
        elif suffix == "jsonl":
            got += [json.loads(line) for line in part.read_text().splitlines()]
        else:
            with part.open(newline="") as handle:
                reader = csv.DictReader(handle, delimiter="\t" if suffix == "tsv" else ",")
                got += reader
    assert [float(row.pop("discode_score")) for row in got] == [want.value[i] for i in wanted]
    assert got == [table[i] for i in wanted]
    # The result is an input again, and its own filter keeps all of it.
    again = to_folder(make_judge(), out / "passed", tmp_path / "again", min_score=least)
    assert again.passed == again.rows == len(wanted)


def test_the_notes_of_datasets_name_the_new_column(tmp_path: Path) -> None:
    table = [{"image": {"bytes": png(), "path": None}, "caption": f"a {i}"} for i in range(9)]
    notes = {"info": {"features": {"image": {"_type": "Image"}, "caption": {"dtype": "string"}}}}
    for kept in (json.dumps(notes), "not theirs"):
        whole = pa.Table.from_pylist(table).replace_schema_metadata({"huggingface": kept})
        pq.write_table(whole, tmp_path / "set.parquet")
        out = tmp_path / f"out{len(kept)}"
        to_folder(make_judge(), tmp_path / "set.parquet", out, min_score=0.0)
        passed = pq.read_table(out / "passed")
        assert passed.column("image").to_pylist() == [row["image"] for row in table]
        said = passed.schema.metadata[b"huggingface"].decode()
        if kept == "not theirs":
            assert said == kept
        else:
            assert list(json.loads(said)["info"]["features"]) == passed.column_names


def test_tars_that_pass_hold_the_original_bytes(tmp_path: Path) -> None:
    files = {f"k/{i:02d}.{ext}": data for i in range(30) for ext, data in
             (("png", png()), ("txt", f"caption {i}".encode()), ("cls", bytes([i])))}  # fmt: skip
    del files["k/03.txt"]
    path = write_tar(tmp_path / "set.tar", files)
    judge = make_judge()
    to_folder(judge, path, tmp_path / "plain")
    scores = {row["id"]: row["score"] for row in read_parts(tmp_path / "plain")}
    assert scores["k/03"] is None
    least = threshold(np.array([math.nan if v is None else v for v in scores.values()], float))
    out = tmp_path / "out"
    totals = to_folder(judge, path, out, shard_size=8, min_score=least)
    passing = {key for key, value in scores.items() if value is not None and value >= least}  # type: ignore[operator]
    got: dict[str, bytes] = {}
    for file in sorted((out / "passed").iterdir()):
        with tarfile.open(file) as tar:
            for member in tar:
                assert member.mtime == 1_700_000_000
                got[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    assert got == {name: data for name, data in files.items() if name.split(".")[0] in passing}
    assert totals.passed == len(passing)
    assert totals.failed == 1
    again = to_folder(judge, out / "passed", tmp_path / "again")
    assert again.rows == len(passing)


def test_nothing_passes(tmp_path: Path, lines: Lines) -> None:
    totals = to_folder(make_judge(), lines(30), tmp_path / "out", min_score=2.0)
    assert totals.passed == 0
    assert not list((tmp_path / "out" / "passed").iterdir())


def test_images_that_cannot_be_opened_are_nan_rows(tmp_path: Path, shipped: Path) -> None:
    import discode

    files = {"0.png": png(), "0.txt": b"a red square", "1.png": b"not an image", "1.txt": b"a"}
    path = write_tar(tmp_path / "set.tar", files)
    totals = to_folder(discode.load("embedded", threads=1), path, tmp_path / "out")
    good, bad = read_parts(tmp_path / "out")
    assert good["error"] is None
    assert bad["score"] is None
    assert "cannot decode" in str(bad["error"])
    assert (totals.rows, totals.failed) == (2, 1)


def test_captions_of_an_image_go_together(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    table = [{"image": f"{i % 7}.png", "caption": f"c{i}"} for i in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    log = tmp_path / "log"
    (chunk,) = read_chunks(find_inputs(path), 0)
    scored = judge_chunk(by_method(make_judge(log=log, batch_size=32)), chunk)
    asked = [int(line.split()[1][1:]) % 7 for line in log.read_text().splitlines()]
    assert asked == sorted(asked)
    want = make_judge().score_pairs([pair for pair in chunk.pairs if pair is not None])
    (scores,) = scored.rows.scores.values()
    assert scores.value.tolist() == want.value.tolist()


def test_bad_options(tmp_path: Path, lines: Lines) -> None:
    path, judge = lines(10), make_judge()
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "coco.json").write_text('[{"image_id": 1, "caption": "a"}]')
    mistakes: tuple[tuple[Path, str, dict[str, Any], str], ...] = (
        (path, "out", {"min_score": math.nan}, "min_score"),
        (path, "out", {"images": tmp_path / "no"}, "images: .*no"),
        (path, "set.jsonl/out", {}, "set.jsonl/out"),
        (tmp_path / "none.jsonl", "none", {}, "none.jsonl"),
        (tmp_path / "coco.json", "coco", {"min_score": 0.5}, "COCO"),
    )
    for source, out, options, words in mistakes:
        with pytest.raises(InputError, match=words):
            to_folder(judge, source, tmp_path / out, **options)
    with pytest.raises(InputError, match=r"out\.txt"):
        to_file(judge, path, tmp_path / "out.txt")
    with pytest.raises(InputError):
        to_file(judge, tmp_path / "none.jsonl", tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()
    assert math.isnan(Totals().mean())


@pytest.mark.parametrize("other", ["0/1", "0/2"])
def test_two_processes_do_not_write_the_same_shards(
    tmp_path: Path, lines: Lines, other: str
) -> None:
    path, out = lines(20), tmp_path / "out"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from discode.bulk.chunks import Share\n"
        "from discode.bulk.locks import ShareLock\n"
        "lock = ShareLock(Path(sys.argv[1]), Share.parse(sys.argv[2]))\n"
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
        with pytest.raises(InputError, match=r"another process is writing to .*--shard I/N"):
            to_folder(make_judge(), path, out)
        assert half.exists()
        process.kill()
    assert to_folder(make_judge(), path, out).rows == 20  # the dead hold nothing
    assert not half.exists()


def test_shares_of_one_run_do_not_lock_each_other_out(tmp_path: Path) -> None:
    with closing(ShareLock(tmp_path, Share(0, 2))), closing(ShareLock(tmp_path, Share(1, 2))):
        pass


def test_a_changed_input_of_the_same_size_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "set.jsonl", tmp_path / "out"
    text = "".join(json.dumps(row) + "\n" for row in rows(20))
    path.write_text(text)
    to_folder(make_judge(), path, out)
    path.write_text(text.replace("caption 9 ", "caption 8 "))
    with pytest.raises(InputError, match="another input"):
        to_folder(make_judge(), path, out)
    path.write_text(text)  # the same again, if written anew
    assert to_folder(make_judge(), path, out).rows == 20


def test_large_inputs_are_sampled_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    data = bytearray(3 << 20)
    seen = set()
    for place in (0, 0, len(data) - 1, (len(data) - DIGEST_BYTES) * 7 // 15):
        data[place] += 1
        path.write_bytes(data)
        seen.add(find_inputs(path).digest())
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
    with replacing(tmp_path / "first", unless_exists=True) as temp:
        temp.write_text("mine")
        (tmp_path / "first").write_text("theirs")
    assert (tmp_path / "first").read_text() == "theirs"
    with replacing(tmp_path / "second", unless_exists=True) as temp:
        temp.write_text("mine")
    assert (tmp_path / "second").read_text() == "mine"
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

    path.write_text(4 * (json.dumps({"image": "only.png", "caption": "a"}) + "\n"))
    assert share(here, "0/2").failed == 0
    assert share(there, "1/2").failed == 0
    assert [row["image"] for row in read_parts(out)] == ["only.png"] * 4
    # Two that begin at once cannot know of each other: the later one is told.
    for name, refused in (("x.png", True), (str(here / "x.png"), False)):
        shutil.rmtree(out)
        path.write_text(4 * (json.dumps({"image": name, "caption": "a"}) + "\n"))
        other = _meanwhile(lambda: share(there, "1/2"))
        with pytest.raises(InputError, match="run this again") if refused else nullcontext():
            share(here, "0/2", progress=other)
        assert share(here, "0/2").rows == 2
        assert len(read_parts(out)) == 4


def test_half_characters_in_every_text_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"id": "\ud800", "image": "no-\udc80.png", "caption": "x"}) + "\n")
    judge = make_judge(store=tmp_path / "s.db")  # a store opens images
    to_folder(judge, path, tmp_path / "out", format="parquet")
    (row,) = pq.read_table(tmp_path / "out").to_pylist()
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
    want = judge.score_pairs(read_pairs(path))
    assert want.bound is not None
    totals = to_folder(judge, path, tmp_path / "out", shard_size=20)
    got = read_parts(tmp_path / "out")
    truncated = want.flags["truncated"].tolist()
    assert [row["bound"] for row in got] == [
        bound if mark else None for bound, mark in zip(want.bound.tolist(), truncated, strict=True)
    ]
    assert totals.methods["discode"].bound == np.nanmax(want.bound)
    assert to_folder(judge, path, tmp_path / "out", shard_size=20) == totals  # from the marks
    to_folder(judge, path, tmp_path / "table", shard_size=20, format="parquet")
    assert [dict(row) for row in pq.read_table(tmp_path / "table").to_pylist()] == got
    to_file(judge, path, tmp_path / "one.csv")
    with (tmp_path / "one.csv").open(newline="") as file:
        bounds = [row["bound"] for row in csv.DictReader(file)]
    assert bounds == ["" if row["bound"] is None else str(row["bound"]) for row in got]
