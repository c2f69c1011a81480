"""discode score on files, folders, patterns and tars, as a user types it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

import discode
from discode._files import read_rows, replacing
from discode.images import demo_path
from tests.helpers.command_line import call, refused, run
from tests.helpers.fake_model import CAPTION
from tests.helpers.samples import png, read_parts, write_tar


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The demo's pairs as a table, and one more whose image is missing."""
    rows = [row for _, row in read_rows(demo_path() / "captions.csv")]
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "caption"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*rows, {"image": "gone.jpg", "caption": "a dog"}])
    return path


def test_what_a_flag_sets_is_no_model_option() -> None:
    for option in ("model=x", "scale=ten", "by=caption"):
        refused(call("score", demo_path() / "cat.jpg", CAPTION, "-M", option), option.split("=")[0])


def test_image_ids_that_match_no_file_stop_the_run(tmp_path: Path, shipped: Path) -> None:
    rows = [{"image_id": 103, "caption": "a cat"}, {"image_id": 8, "caption": "a dog"}]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    notes = tmp_path / "instances.json"
    notes.write_text(json.dumps({"images": [{"id": 103, "file_name": "cat.jpg"}]}))
    (tmp_path / "photos").mkdir()
    shutil.copy(demo_path() / "cat.jpg", tmp_path / "photos" / "2423894412_d952d5d103.jpg")
    shutil.copy(demo_path() / "cat.jpg", tmp_path / "photos" / "cat.jpg")
    command = ("score", "-i", tmp_path / "results.json", "--images", tmp_path / "photos")
    for out in ((), ("-o", tmp_path / "out"), ("-o", tmp_path / "out.csv"), ("--json",)):
        refused(call(*command, *out), "2 of 2", "--annotations FILE")
    refused(call("score", "cat.jpg", "a cat", "--annotations", notes), "--input")
    done = call(*command, "--annotations", notes, "-o", tmp_path / "out.csv", "--threads", 1)
    assert done.returncode == 1, done.stderr
    scored, failed = (row for _, row in read_rows(tmp_path / "out.csv"))
    assert scored["image"] == "103"
    assert scored["file"] == str(tmp_path / "photos" / "cat.jpg")
    assert float(scored["score"]) > 0
    assert "instances.json" in failed["error"]


def test_a_number_that_is_a_file_name_fails_with_what_would_make_it_an_id(tmp_path: Path) -> None:
    """In CSV the column ``image`` holds names, although 8.jpg would match an image id."""
    shutil.copy(demo_path() / "cat.jpg", tmp_path / "8.jpg")
    (tmp_path / "a.csv").write_text("image,caption\n8,a cat\n")
    done = call("score", "-i", tmp_path / "a.csv", "--images", tmp_path, "--threads", 1)
    assert done.returncode == 1
    assert "image_id" in done.stderr
    (tmp_path / "a.csv").write_text("image_id,caption\n8,a cat\n")
    done = call("score", "-i", tmp_path / "a.csv", "--images", tmp_path, "--threads", 1)
    assert done.returncode == 0, done.stderr


def test_tars_are_filtered_and_shared_out(tmp_path: Path, shipped: Path) -> None:
    cat = (demo_path() / "cat.jpg").read_bytes()
    files = {"0.jpg": cat, "0.txt": b"a cat", "1.jpg": cat, "1.txt": b"a man rides a bike",
             "2.jpg": png()}  # fmt: skip
    write_tar(tmp_path / "a.tar", files)
    shutil.copy(tmp_path / "a.tar", tmp_path / "b.tar")
    common = ("score", "-i", tmp_path / "*.tar", "-o", tmp_path / "out", "--threads", 1)
    for share in ("0/2", "1/2"):
        done = call(*common, "--min-score", "0.4", "--shard", share)
        assert done.returncode == 1
        assert "1 pass 0.4, 1 do not, 1 failed" in done.stderr
        assert "no caption" in done.stderr
    for file in (tmp_path / "out" / "passed").iterdir():
        with tarfile.open(file) as tar:
            assert tar.getnames() == ["0.jpg", "0.txt"]
    assert [row["source"] for row in read_parts(tmp_path / "out")] == ["a.tar"] * 3 + ["b.tar"] * 3
    done = call(
        "score", "-i", tmp_path / "a.tar", "-i", tmp_path / "b.tar", "-o", tmp_path / "one.csv",
        "--threads", 1,
    )  # fmt: skip
    assert done.returncode == 1
    with (tmp_path / "one.csv").open(newline="") as handle:
        assert [row["id"] for row in csv.DictReader(handle)] == [
            f"{name}.tar:{key}" for name in "ab" for key in range(3)
        ]


def test_a_recording_needs_no_store(tmp_path: Path, recording: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "cat.jpg", "caption": "x"}))
    done = call(
        "score", "-i", tmp_path / "a.jsonl", "--images", demo_path(), "-o", f"{tmp_path}/out.csv/",
        "--model", recording,
    )  # fmt: skip
    assert done.returncode == 1
    assert "not recorded" in done.stderr
    assert list((tmp_path / "out.csv").glob("*.csv"))
    assert not list((tmp_path / "out.csv").glob("*.db"))


def test_mistakes_are_one_line(tmp_path: Path, table: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.parquet").write_bytes(b"no table")
    out = ("-o", tmp_path / "out")
    for arguments, words in (
        (("cat.jpg", "a cat", "--shard", "0/2"), "--shard"),
        (("-i", table, "--min-score", "0.5"), "--min-score"),
        (("-i", tmp_path / "bad"), "cannot read"),
        (("-i", tmp_path / "bad", *out), "cannot read"),
        (("-i", tmp_path / "*.zip", *out), "no file matches"),
        (("-i", tmp_path / "none.csv", *out), "none.csv"),
        (("-i", "-"), "standard input"),
        (("-i", table, *out, "--shard", "2/2"), "I/N"),
        (("-i", table, *out, "--shard-size", "0"), "1 or more"),
        (("-i", table, *out, "--engine", "spark"), "unknown engine"),
        (("-i", table, *out, "--workers", "2"), "--engine ray"),
        (("-i", table, *out, "--json"), "--json"),
        (("-i", table, *out, "-m", "raw", "-m", "discode", "--min-score", 1), "one --method"),
        (("-i", table, "-o", tmp_path), "--output"),
        (("-i", table, *out, "--engine", "ray", "--store", tmp_path / "s.db"), "--store"),
        (("-i", table, *out, "--engine", "ray", "--shard", "0/2"), "--shard"),
        (("-i", tmp_path / "bad", "-o", tmp_path / "x.txt"), "written to .jsonl"),
    ):
        refused(call("score", *arguments), words)


def test_what_is_refused_leaves_no_folder(tmp_path: Path, table: Path) -> None:
    out = tmp_path / "new" / "out"
    for model in (("-M", "nonsense=1"), ("--scale", "five")):
        refused(run("score", "-i", table, "-o", out, *model))
        assert not out.parent.exists()
    out.mkdir(parents=True)
    refused(run("score", "-i", table, "-o", out, "--scale", "five"))
    assert out.exists()  # it was there before


def test_a_slash_makes_a_folder_of_a_name_with_a_dot(
    tmp_path: Path, table: Path, shipped: Path
) -> None:
    common = ("score", "-i", table, "--images", demo_path(), "--threads", 1)
    done = call(*common, "-o", f"{tmp_path / 'scores.v2'}/")
    assert done.returncode == 1, done.stderr
    assert read_parts(tmp_path / "scores.v2")
    assert call(*common, "-o", tmp_path / "scores.v2").returncode == 1  # it is there by now
    refused(call(*common, "-o", f"{table}/"), "cannot write")


def test_three_decoders_stand_side_by_side(tmp_path: Path, recording: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"image,caption\ncat.jpg,{CAPTION}\n")
    done = call("score", "-i", path, "--images", demo_path(), "--model", recording)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()[0].split()
    assert shown == ["id", "image", "caption", "raw", "smoothing", "discode", "flags"]


@pytest.mark.parametrize("in_tar", [False, True])
def test_the_mean_has_its_interval_over_images(tmp_path: Path, shipped: Path, in_tar: bool) -> None:
    """Two captions of four images, or eight samples of two tars with the same names."""
    names = ["cat.jpg", "coffee.jpg", "astronaut.jpg", "city.jpg"]
    pairs = [(name, text) for text in ("a cat", "a cup of coffee") for name in names]
    if in_tar:
        for tar, part in (("a.tar", pairs[:4]), ("b.tar", pairs[4:])):
            members = [{f"{i}.jpg": (demo_path() / name).read_bytes(), f"{i}.txt": text.encode()}
                       for i, (name, text) in enumerate(part)]  # fmt: skip
            write_tar(tmp_path / tar, {k: v for each in members for k, v in each.items()})
    else:
        lines = [f"{name},{text}" for name, text in pairs]
        (tmp_path / "pairs.csv").write_text("\n".join(["image,caption", *lines]))
    source = tmp_path / ("*.tar" if in_tar else "pairs.csv")
    done = call("score", "-i", source, "--images", demo_path(), "--threads", 1)
    assert done.returncode == 0, done.stderr
    scores = discode.load().score([demo_path() / name for name, _ in pairs], [t for _, t in pairs])
    found = scores.interval([str(i) for i in range(8)] if in_tar else None)
    numbers = f"mean {found.value:.4f}, 95 % {found.low:.4f} to {found.high:.4f}"
    assert f"{numbers} over {8 if in_tar else 4} images" in " ".join(done.stderr.split())


def test_a_folder_names_the_command_for_its_interval(tmp_path: Path, shipped: Path) -> None:
    images = ["cat.jpg", "coffee.jpg", "astronaut.jpg"]
    source, out = tmp_path / "pairs.csv", tmp_path / "scores"
    source.write_text("\n".join(["image,caption", *(f"{name},a cat" for name in images)]))
    done = call("score", "-i", source, "--images", demo_path(), "-o", out)
    assert f"discode compare {out}" in " ".join(done.stderr.split())
    found = discode.load().score([demo_path() / name for name in images], ["a cat"] * 3).interval()
    assert f"{found.low:.4f} to {found.high:.4f}" in call("compare", out).stdout


def test_nothing_vanishes_from_a_narrow_table(tmp_path: Path, recording: str) -> None:
    caption = "a caption of many words " * 8
    rows = [
        {"id": "a-very-long-identifier-" + "0" * 30, "image": "cat.jpg", "caption": CAPTION},
        *({"id": n, "image": "gone.jpg", "caption": caption} for n in range(50)),
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ("score", "-i", path, "--images", demo_path(), "--model", recording)
    many = [
        text for name in ("discode", "smoothing", "raw", "fleur", "paper") for text in ("-m", name)
    ]
    for options, width in ((many, 80), (many, 60), ([], 80), (many, None)):
        done = call(*command, *options, width=width)
        lines = done.stdout.splitlines()
        printed = " ".join(done.stdout.split())
        folded = re.sub(r"\s", "", done.stdout)
        for title in ("id", "image", "caption", "flags", "raw", "discode", *options[1::2]):
            assert title in printed, (title, width)
        assert "…" not in printed
        assert printed.count("failed") == 39
        assert "gone.jpg" in folded
        assert lines[-1].startswith("... and 11 rows more")
        assert "... and 45 more; --output or --json has every reason" in done.stderr
        if width == 80:
            numbers = [line for line in lines if re.search(r"\b0\.\d{3}\b", line)]
            assert max(map(len, numbers)) <= 80


def test_a_caption_stays_where_its_image_is_refused(tmp_path: Path, recording: str) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [
        *({"image": name, "caption": "kept"} for name in ("../x", "/etc/x.jpg", "")),
        {"image": "cat.jpg", "caption": None},
        {"caption": "kept"},
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = call("score", "-i", path, "--images", tmp_path, "--model", recording, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["caption"] for row in found] == ["kept"] * 3 + [None, "kept"]
    assert found[3]["error"] == "pairs.jsonl line 4: 'caption' is empty (null)"
    assert "has no 'image'" in found[4]["error"]


HOSTILE = "a \x1b]0;title\x07cat\x9b2J \u202egod\u2066 \x7f\r[bold]x[/] :cat: \n2"
DRIVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("options", [(), ("--show",), ("--json",), ("-m", "raw", "-m", "fleur")])
def test_texts_never_drive_a_terminal(
    tmp_path: Path, recording: str, options: tuple[str, ...]
) -> None:
    rows = [
        {"id": HOSTILE, "image": "cat.jpg", "caption": CAPTION},
        {"image": f"{HOSTILE}.jpg", "caption": HOSTILE},
        {HOSTILE: "no columns"},
    ]
    path = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("score", "-i", path, "--images", demo_path(), "--model", recording, *options)
    assert done.returncode == 1, done
    assert not DRIVING.search(done.stdout + done.stderr)
    assert "\\u001b" in done.stdout
    assert "\\u202e" in done.stderr
    if "--json" in options:
        assert json.loads(done.stdout.splitlines()[0])["id"] == HOSTILE
    else:
        assert ":cat:" in done.stdout  # no picture of one
    done = call("score", HOSTILE, HOSTILE, "--model", HOSTILE)
    refused(done, "\\x1b")
    assert not DRIVING.search(done.stderr)


def test_everything_is_printed_by_one_function() -> None:
    package = Path(discode.__file__).parent
    for folder in (package / "_cli", package.parent / "mceval" / "_cli"):
        assert folder.is_dir()
        for file in folder.glob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert "Console(" not in text or file.name == "output.py", file
            calls = re.findall(r"(?:typer\.s?echo|sys\.std\w+\.write|(?<![.\w])print)\(.*", text)
            assert all("printable(" in line or "(self)" in line for line in calls), calls


def test_what_a_killed_run_left_is_removed(tmp_path: Path, recording: str) -> None:
    out, left = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.abc.part"
    for name in (left.name, ".other.jsonl.abc.part", "out.jsonl.part"):
        (tmp_path / name).write_text("half")
    with replacing(out) as busy:  # by another process that is still at work
        arguments = (demo_path() / "cat.jpg", CAPTION, "--model", recording, "-o", out)
        assert call("score", *arguments).returncode == 0
        assert busy.exists()
        busy.write_text(out.read_text())
    others = {".other.jsonl.abc.part", "out.jsonl.part"}
    assert {file.name for file in tmp_path.iterdir() if file.suffix == ".part"} == others


def test_a_caption_may_be_called_as_a_file_that_is_no_image(
    tmp_path: Path, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "cat", "dog"):
        shutil.copy(demo_path() / "cat.jpg", name)
    Path("cat").write_text("notes")
    assert "cat" in call("score", "a.jpg", "cat", "--model", recording).stdout
    for image in ("a.jpg", "dog"):  # by its suffix, and by its content
        refused(call("score", "a.jpg", "a cat", image, "--model", recording), image)


def test_the_lowest_scores_are_first(table: Path, tmp_path: Path, shipped: Path) -> None:
    command = ("score", "-i", table, "--images", demo_path(), "--model", "embedded", "--threads", 1)
    call(*command, "-o", tmp_path / "all.jsonl")
    rows = [row for _, row in read_rows(tmp_path / "all.jsonl")]
    scored = [row for row in rows if row["score"] is not None]
    failed = rows[len(scored) :]
    for key in ("score", "raw"):
        wanted = sorted(scored, key=lambda row: row[key])
        call(*command, "-o", tmp_path / "a.jsonl", "--sort", key)
        assert [row for _, row in read_rows(tmp_path / "a.jsonl")] == [*wanted, *failed]
        done = call(*command, "--json", "--sort", key, "--top", 3)  # chunks of 64 rows
        assert [json.loads(line) for line in done.stdout.splitlines()] == wanted[:3]
        assert f"{len(rows)} items" in done.stderr  # the mean is of all
    lowest = min(scored, key=lambda row: row["score"])
    _, first, *more = call(*command, "--top", 1).stdout.splitlines()
    assert (first.split()[0], more) == (lowest["id"], [])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--sort", "caption"), "raw"),
        (("--top", "0"), "--top"),
        (("--top", "3", "-o", "runs/"), "folder"),
        (("--sort", "score", "--show"), "--show"),
    ],
)
def test_sorting_is_refused_in_one_line(
    table: Path, tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    refused(run("score", "-i", table, *arguments, cwd=tmp_path), word)
    assert not (tmp_path / "runs").exists()
