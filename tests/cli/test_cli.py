"""The command line, as a user types it: what it prints, what it writes, how it exits."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import discode
from discode._cli.demo import demo_pairs
from discode.backends._embedded import SHA256
from discode.decoders import get_decoder
from discode.images import demo_path
from tests.helpers.command_line import CAT, DISCODE, call, refused, run
from tests.helpers.fake_model import CAPTION, random_logp


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"id": f"r{i}", "log_probs": row.tolist()} for i, row in
            enumerate(random_logp(np.random.default_rng(0), 20, 10))]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_version() -> None:
    assert run("--version").stdout == f"discode {discode.__version__}\n"


def test_decode_prints_methods_side_by_side(file: Path) -> None:
    header, first = (line.split() for line in run("decode", file).stdout.splitlines()[:2])
    assert header == ["id", "raw", "smoothing", "discode", "flags"]
    chosen = run("decode", file, "-m", "smoothing").stdout.splitlines()[1].split()
    assert first[1:3] == chosen[1:3]
    done = run("decode", file, "-m", "discode", "-m", "smoothing", "-m", "discode:tau=alpha")
    assert done.returncode == 0
    header = done.stdout.splitlines()[0].split()
    assert header == ["id", "raw", "discode", "smoothing", "discode:tau=alpha", "flags"]
    assert "smoothing|" in done.stderr


def test_decode_equals_python_in_every_output(tmp_path: Path, file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    want = discode.decode([row["log_probs"] for row in rows])
    for name in ("out.jsonl", "out.csv"):
        assert run("decode", file, "-o", tmp_path / name).returncode == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    printed = run("decode", file, "--json").stdout.splitlines()
    for source in (lines, printed):
        got = [json.loads(line) for line in source]
        assert [row["score"] for row in got] == want.value.tolist()
        assert [row["id"] for row in got] == [row["id"] for row in rows]
        assert {row["signature"] for row in got} == {str(want.signature)}
    with (tmp_path / "out.csv").open() as handle:
        assert [float(row["score"]) for row in csv.DictReader(handle)] == want.value.tolist()


def test_rows_that_fail_are_nan_rows(tmp_path: Path, file: Path) -> None:
    good = file.read_text().splitlines()[0]
    bad = {
        "{broken": "not JSON",
        "[1, 2]": "not an object",
        "{}": "no log_probs",
        '{"log_probs": {"7": -0.1}}': "no log-probability for",
        '{"log_probs": [NaN, -1, -1, -1, -1, -1, -1, -1, -1, -1]}': "NaN",
        '{"log_probs": [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1]}': "add up to",
        '{"scale": "tenn", "log_probs": [-1]}': "did you mean 'ten'",
        '{"answer_logp": [1, 2]}': "answer_logp has shape (2,)",
        '"just"': "not an object but str",
        "[" * 100_000: "not JSON",
        '{"log_probs": [-1], "log_probs": [-2]}': "'log_probs'",
        '{"log_probs": {"5": -0.05, "4": -4, "5": -9}}': "'5'",
    }
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join([good, *bad, good]))
    done = run("decode", path, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == len(bad) + 2  # nothing is lost
    assert [row["score"] is None for row in rows] == [False] + [True] * len(bad) + [False]
    for number, (row, reason) in enumerate(zip(rows[1:-1], bad.values(), strict=True), start=2):
        assert reason in row["error"], row
        assert row["error"].startswith(f"line {number}") or reason == "NaN"
        assert "failed" in row["flags"]


def test_responses_are_decoded_as_they_came(tmp_path: Path) -> None:
    def response(number: int, *words: str) -> dict[str, object]:
        top = [{"token": str(n), "logprob": -1.7} for n in range(1, 6)]
        items = [{"token": word, "logprob": -1.7, "top_logprobs": top} for word in words]
        return {"id": f"chatcmpl-{number}", "choices": [{"logprobs": {"content": items}}]}

    path = tmp_path / "responses.json"
    path.write_text(json.dumps(response(1, "Rating", ": ", "4"), indent=2))  # as curl prints it
    done = run("decode", path, "--scale", "five", "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["id"] == "chatcmpl-1"
    lines = [response(1, "4"), response(2, "I", " refuse"), {"choices": [{"message": {}}]}]
    lines.append({"choices": []})
    path.write_text("\n".join(map(json.dumps, lines)))
    done = run("decode", path, "--scale", "five", "--json")
    assert done.returncode == 1
    errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
    assert errors[0] is None
    assert all(f"line {number}: " in errors[number - 1] for number in (2, 3, 4))


def test_a_binary_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "k.parquet"
    path.write_bytes(b"PAR1\x15\x00\x15\x80\n\x00\xff\n" * 9 + b"PAR1")
    refused(call("decode", path), "is not text; give log-probabilities as JSON")


def test_raw_is_printed_as_the_decimal_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    logp = [[0.0 if digit == best else -9.0 for digit in range(10)] for best in range(10)]
    path.write_text("".join(f"{json.dumps({'log_probs': row})}\n" for row in logp))
    command = ("decode", path, "--scale", "unit", "-m", "raw", "-m", "smoothing", "--json")
    rows = [json.loads(line) for line in call(*command).stdout.splitlines()]
    assert [repr(row["raw"]) for row in rows] == [f"0.{n}" for n in range(10) for _ in range(2)]
    assert [row["score"] for row in rows[::2]] == [row["raw"] for row in rows[::2]]


def test_users_mistakes_are_one_line(tmp_path: Path, file: Path) -> None:
    empty, two = tmp_path / "empty.jsonl", tmp_path / "two.jsonl"
    empty.write_text("\n\n")
    two.write_text(
        '{"scale": "five", "log_probs": [-2, -2, -2, -2, -2]}\n'
        '{"scale": "1-4", "log_probs": [-2, -2, -2, -2]}'
    )
    for arguments, word in (
        ((file, "-m", "discode:sigma=1"), "'sigma2'"),
        ((file, "-m", "discode:oops"), "oops"),
        ((file, "-m", "discode:solver=adam"), "hidden"),
        ((file, "-m", "fleur"), "smoothing"),
        ((file, "--missing", "zero"), "zero"),
        ((file, "-o", tmp_path / "none" / "x.jsonl"), "none/x.jsonl"),
        ((file, "-o", tmp_path / "x.xlsx"), "x.xlsx"),
        ((file, "--json", "--show"), "--show"),
        ((tmp_path / "none.jsonl",), "none.jsonl"),
        ((tmp_path,), str(tmp_path)),
        ((empty,), "empty.jsonl"),
        ((two,), "five, 1-4"),
        ((), "file"),
    ):
        refused(call("decode", *arguments), word)


def test_decode_takes_stems_and_the_joint_reading(tmp_path: Path) -> None:
    path = tmp_path / "unit.jsonl"
    digits = [math.log(0.1)] * 10
    rows = [
        {
            "scale": "unit",
            "answer_logp": [digits, digits],
            "stem_logp": [math.log(0.2), math.log(0.7)],
        }
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    done = call("decode", path, "-m", "raw", "-m", "smoothing:stem=joint", "--json")
    got = {row["method"]: row["score"] for row in map(json.loads, done.stdout.splitlines())}
    assert got["raw"] == 1.0
    assert got["smoothing:stem=joint"] == pytest.approx((0.2 * 0.45 + 0.7) / 0.9)
    # Digits alone: the stem is taken to be "0.", and the joint reading has nothing to go by.
    path.write_text(json.dumps({"log_probs": digits}))
    done = call("decode", path, "--scale", "unit", "-m", "smoothing", "-m", "smoothing:stem=joint")
    assert done.returncode == 1
    assert "0.450" in done.stdout


def test_decode_reads_all_that_an_export_holds(tmp_path: Path) -> None:
    """FLEUR's rules want the integer token and the second decimal."""
    half = [math.log(0.05)] * 9 + [math.log(0.5)]
    rows = [
        {"scale": "unit", "answer_logp": [half, half], "stem_logp": [-0.1, -3.0],
         "second_logp": half},
        {"scale": "unit", "answer_logp": [half, [None] * 10], "stem_logp": [-2.0, -0.4],
         "lead_logp": [-1.9, -0.3], "how": "generated", "truncated": True},
    ]  # fmt: skip
    path = tmp_path / "unit.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    done = call("decode", path, "-m", "fleur", "-m", "raw", "--json")
    got = [json.loads(line) for line in done.stdout.splitlines()]
    digits = 0.05 * 36 + 0.5 * 9
    assert got[0]["score"] == pytest.approx(0.1 * digits + 0.01 * digits)
    assert got[2]["score"] == pytest.approx(0.9 * math.exp(-1.9) + math.exp(-0.3))
    assert got[2]["flags"] == ["truncated", "generated"]
    assert got[3]["score"] == 1.0  # after "1." there is only 1.0, read or not


def test_score_one_image(tmp_path: Path, recording: str) -> None:
    want = discode.load(recording).score(CAT, CAPTION)
    done = run("score", CAT, CAPTION, "never asked", "--model", recording, "--show", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{float(want):.3f}" in done.stdout
    assert "not recorded" in done.stderr
    assert list(tmp_path.iterdir()) == []  # no files but those asked for


@pytest.mark.usefixtures("shipped")
def test_score_out_of_the_box(tmp_path: Path) -> None:
    done = run("score", CAT, "a dog runs", "a cat", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]  # and nothing but rows
    want = discode.load("embedded").score(CAT, ["a dog runs", "a cat"])
    assert [row["score"] for row in rows] == pytest.approx(want.value, abs=1e-5)
    assert "|model:discode-embedded|" in rows[0]["signature"]
    assert f"-{SHA256[:8]}|" in rows[0]["signature"]
    first, *rest = done.stderr.splitlines()
    assert first.startswith("discode: using the built-in judge")
    assert "--model" in first
    assert "load(" not in first
    assert "--model" in first
    assert not any("judging" in line for line in rest)
    named = run(
        "score", CAT, "a dog runs", "a cat", "--json", "--model", "embedded", "--threads", 1
    )
    assert "judging" not in named.stderr
    again = [json.loads(line)["score"] for line in named.stdout.splitlines()]
    assert again == pytest.approx(want.value, abs=1e-5)
    # A run that is written to a file keeps its readings beside it, and goes on from them.
    for _ in range(2):
        done = run("score", CAT, "a cat", "-o", tmp_path / "out.jsonl")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out.jsonl.readings.db").exists()


@pytest.mark.usefixtures("shipped")
def test_mistakes_with_the_default_judge_are_one_line(tmp_path: Path) -> None:
    for arguments, word in (
        (("--scale", "ten"), "'unit'"),
        (("--prompt", "fleur"), "'caption-last'"),
        (("--threads", 0), "threads"),
        (("--threads", "many"), "threads"),
        (("--store", tmp_path / "no" / "x.db"), "no/x.db"),
        (("--model", "embedded:none.onnx"), "none.onnx"),
        (("--model", ""), "unknown model"),
    ):
        refused(call("score", CAT, "x", *arguments), word)
    broken = call("score", tmp_path / "none.jpg", "a dog")
    assert broken.returncode == 1
    assert "none.jpg" in broken.stderr


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("captions", "seconds", "megabytes"),
    [(["a dog runs"], 15, 600), ([f"a dog {'runs ' * 70}{i}" for i in range(64)], 150, 900)],
    ids=["one", "the worst batch"],
)
def test_the_whole_command_is_small(captions: list[str], seconds: float, megabytes: float) -> None:
    """Limits are wide: peaks vary by a tenth and more (perf/embedded.py has memory and speed)."""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc on this system to tell the peak of memory")
    code = (
        "import sys, time; from discode._cli import main\n"
        "try: main()\n"
        "finally: print(open('/proc/self/status').read(), time.process_time(), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "score", CAT, *captions]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert int(peak) * 1024 < megabytes * 1e6
    assert float(done.stderr.split()[-1]) < seconds


def test_score_a_file_and_resume(tmp_path: Path, recording: str) -> None:
    pairs = tmp_path / "pairs.csv"
    with pairs.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerows(
            [["id", "image", "caption"], ["a", "cat.jpg", CAPTION], ["b", "none.jpg", "x"]]
        )
    out = tmp_path / "out.jsonl"
    store = tmp_path / "kept.db"
    where = ("--input", pairs, "--images", demo_path(), "-o", out, "--store", store)
    command = ("score", *where, "--model", recording)
    first = call(*command, "-m", "discode", "-m", "raw")
    assert first.returncode == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["method"]) for row in rows] == [
        ("a", "discode"), ("a", "raw"), ("b", "discode"), ("b", "raw"),
    ]  # fmt: skip
    assert rows[0]["caption"] == CAPTION
    assert "cannot read" in rows[2]["error"]
    info = call("store", "info", store)
    assert "fake" in info.stdout
    exported = call("store", "export", store, tmp_path / "kept.jsonl")
    assert exported.stdout.startswith("1 readings written")
    # The exported readings stand in for the model.
    again = call("score", CAT, CAPTION, "--model", tmp_path / "kept.jsonl", "--json")
    assert json.loads(again.stdout)["score"] == rows[0]["score"]
    with contextlib.closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE readings SET answer_logp = stem_logp")
    damaged = call("store", "export", store, tmp_path / "none.jsonl")
    assert damaged.returncode == 1
    assert "skipped: 1 damaged reading" in damaged.stderr
    assert "read again: 1 damaged reading in it" in call(*command).stderr
    imported = call("store", "import", tmp_path / "new.db", tmp_path / "kept.jsonl")
    assert "1 in " in imported.stdout


def test_score_mistakes(tmp_path: Path, recording: str) -> None:
    (tmp_path / "junk.db").write_bytes(b"x" * 5000)
    (tmp_path / "bad.jsonl").write_text("{}")
    pair = (CAT, CAPTION)
    for arguments, word in (
        ((), "give an image"),
        ((CAT,), "at least one caption"),
        ((*pair, "--threads", 2), "recording"),
        ((*pair, "--input", "x.csv"), "--input"),
        (("--input", tmp_path / "x.csv"), "x.csv"),
        ((*pair, "--prompt", "fler"), "'fleur'"),
        ((*pair, "--store", tmp_path / "a" / "b.db"), "a/b.db"),
        ((*pair, "--store", tmp_path / "junk.db"), "junk.db"),
        (("cat.jpg", "x", "--images", tmp_path / "no"), "--images"),
    ):
        refused(call("score", *arguments, "--model", recording), word)
    refused(call("score", *pair, "--model", "embeded"), "'embedded'")
    refused(call("store", "info", tmp_path / "none.db"), "none.db")
    refused(call("store", "import", tmp_path / "new.db", tmp_path / "bad.jsonl"), "bad.jsonl")
    assert not (tmp_path / "new.db").exists()


def test_nothing_that_is_read_is_overwritten(tmp_path: Path, file: Path, recording: str) -> None:
    before = file.read_bytes()
    refused(call("decode", file, "-o", file), "also an input")
    (tmp_path / "link.jsonl").symlink_to(file)
    refused(call("decode", file, "-o", tmp_path / "link.jsonl"), "also an input")
    refused(call("score", "-i", file, "--model", recording, "-o", file), "also an input")
    refused(call("score", CAT, "x", "--model", f"recorded:{file}", "-o", file), "also an input")
    refused(
        call("score", CAT, "x", "--model", recording, "--store", file, "-o", file), "also an input"
    )
    assert file.read_bytes() == before


def test_usage_errors_are_one_line() -> None:
    refused(call("score", "--batch-size", "x"), "batch-size")
    refused(call("foo"), "foo")
    assert call().returncode == 2
    assert "Usage" in call().stdout


def test_a_row_on_another_scale_than_asked_for_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"scale": "E-A", "log_probs": dict.fromkeys("ABCDE", -2.5)}))
    done = call("decode", path, "-s", "letters")
    assert done.returncode == 1
    assert "'letters'" in done.stderr


def test_standard_input_and_narrow_terminals(file: Path) -> None:
    text = file.read_text()
    done = run("decode", "-", "--show", stdin=text, COLUMNS="60", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\n 7  0." in done.stdout


def test_odd_text_reaches_files_and_terminal(tmp_path: Path, file: Path) -> None:
    row = json.loads(file.read_text().splitlines()[0])
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(row | {"id": "\ud800 \x1b[31m"}))
    done = run("decode", path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert run("decode", path, "-o", tmp_path / "out.jsonl").returncode == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["id"] == "\ud800 \x1b[31m"


def test_a_full_disk_is_one_line(file: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    command = f"{shlex.join(DISCODE)} methods > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    refused(done, "No space left")


@pytest.mark.usefixtures("shipped")
def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the figure wants discode-eval[plot]")
    done = run("demo", "-o", tmp_path / "demo.png", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace(str(tmp_path), "").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert f"-{SHA256[:8]}" in done.stdout
    assert "nan" not in done.stdout.split()
    images = {line.split()[0]: line for line in lines[-11:-3]}
    assert "!" not in next(iter(images.values()))  # best judged first
    assert images.keys() == {path.stem for path in demo_path().glob("*.jpg")}
    assert "!" in images["astronaut"]
    with Image.open(tmp_path / "demo.png") as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 800
    every = run("demo", "--all", "-o", tmp_path / "demo.png", COLUMNS="200").stdout.splitlines()
    for pair in demo_pairs():
        (line,) = [line for line in every if f" {pair.caption}  " in line]
        assert len(re.findall(r"\b[01]\.\d{3}\b", line)) == 3


@pytest.mark.usefixtures("shipped")
def test_the_cases_of_the_demo_show_what_they_are_chosen_for() -> None:
    judge, pairs = discode.load("embedded"), demo_pairs("cases.csv")
    readings = judge.read(pairs)
    scores, plain = (
        judge.decode(pairs, readings, get_decoder(n)) for n in ("discode", "smoothing")
    )
    good, middling, _ = np.asarray(scores.raw)
    assert good == middling
    for values in (scores.value, plain.value):
        assert values[0] > values[1] + 0.01
    before = np.asarray(plain.distribution)[2]
    peaks = [k for k in range(1, 9) if before[k] == before[k - 1 : k + 2].max()]
    assert len(peaks) == 2
    assert peaks[1] - peaks[0] >= 3
    assert plain.value[2] - scores.value[2] > 0.15
