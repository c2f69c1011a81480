"""discode explain and discode bench explain, as a user types them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discode._files import read_rows
from discode._judge import load
from discode.explain._effects import NO_SINGLE_WORD, NOT_READ
from discode.images import demo_path
from tests.helpers import mini_benchmarks as mini
from tests.helpers.chat_servers import serving
from tests.helpers.command_line import CAT, call, refused
from tests.helpers.samples import write_tar

CAPTIONS = ("a close up of a striped cat", "a striped cat on a snowboard")

pytestmark = pytest.mark.usefixtures("shipped")


def test_wrong_words_are_in_brackets() -> None:
    done = call("explain", CAT, *CAPTIONS, "it is there", "--model", "embedded")
    assert done.returncode == 0, done
    wanted = load("embedded").explain(CAT, [*CAPTIONS, "it is there"])
    for explanation in wanted:
        assert f"{explanation.score:.3f}  {explanation}\n" in done.stdout
        for span in explanation.spans:
            assert f"{span.text} {span.shown_effect}" in done.stdout
    assert "a striped cat on a [snowboard -0." in done.stdout
    assert "2: no word" in done.stderr
    signature = wanted[0].signature
    assert signature.short in done.stderr
    assert str(signature) not in done.stderr
    assert str(signature) in call("explain", CAT, *CAPTIONS, "--signature").stderr


def test_a_caption_that_is_wrong_as_a_whole() -> None:
    done = call("explain", CAT, "a skateboarder jumps", CAPTIONS[1], "--model", "embedded")
    assert [line for line in done.stderr.splitlines() if NO_SINGLE_WORD in line] == [
        f"0: {NO_SINGLE_WORD}"
    ]


def test_json_has_everything(tmp_path: Path) -> None:
    store = tmp_path / "readings.db"
    command = ("explain", CAT, *CAPTIONS, "--json", "--threshold", 0.2)
    done = call(*command, "--store", store)
    assert done.returncode == 0, done
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = load("embedded").explain(CAT, CAPTIONS, threshold=0.2)
    assert [row["caption"] for row in rows] == list(CAPTIONS)
    for row, explanation in zip(rows, wanted, strict=True):
        assert row == {"id": row["id"], "image": CAT, **explanation.to_dict()}
        for span in row["spans"]:
            assert row["caption"][span["start"] : span["end"]] == span["text"]
    again = call(*command, "--model", f"recorded:{store}")
    assert [json.loads(line)["spans"] for line in again.stdout.splitlines()] == [
        row["spans"] for row in rows
    ]


def test_what_fails_is_named(tmp_path: Path) -> None:
    store = tmp_path / "readings.db"
    load("embedded", store=store).score(CAT, ["a cat on a mat", "a cat on something"])
    done = call("explain", CAT, "a cat on a mat", "--model", f"recorded:{store}", "--json")
    assert done.returncode == 1
    (row,) = map(json.loads, done.stdout.splitlines())
    cat, mat = row["spans"]
    assert cat["effect"] is None
    assert cat["error"]
    assert mat["effect"] is not None
    assert "failed: 0" in done.stderr
    done = call("explain", CAT, "", "a cat", "--model", "embedded", "--json")
    assert done.returncode == 1
    empty, cat = map(json.loads, done.stdout.splitlines())
    assert (empty["score"], empty["spans"]) == (None, [])
    assert empty["error"]
    assert cat["score"] > 0.5


def test_a_caption_that_is_read_in_part_says_so(tmp_path: Path) -> None:
    long = "a cat " + "in the very same old place " * 30
    done = call("explain", CAT, long, "snowboard " * 500, "a cat", "--model", "embedded")
    (explained,) = load("embedded").explain(CAT, long)
    unread = [span.text for span in explained.spans if span.error == NOT_READ]
    lines = [line for line in done.stderr.splitlines() if line[:2] in ("0:", "1:")]
    assert [line[0] for line in lines] == ["0", "0", "1", "1"]  # cut, and more than 40 words
    assert f" {len(unread)} of 40 " in lines[0]
    assert f"{NOT_READ}: {', '.join(unread)}" in done.stdout
    assert "81 words" in done.stderr
    assert "relative to 0" not in done.stderr
    assert "relative to 0" in call("explain", CAT, "a cat", "-m", "raw").stderr
    assert "+nan" not in call("explain", CAT, "a cat", "--model", _nothing_in(tmp_path)).stdout


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Pairs with references, one without an image and one without a caption."""
    rows = [
        ("cat.jpg", CAPTIONS[0], 0.9), ("cat.jpg", CAPTIONS[1], 0.8), ("missing.jpg", "a cat", 0.1),
        ("cat.jpg", "", 0.2), ("coffee.jpg", "a cup of coffee next to a dog", 0.7),
        ("coffee.jpg", "a cup of coffee", 0.6),
    ]  # fmt: skip
    lines = [f"pair {n},{','.join(map(str, row))},a reference" for n, row in enumerate(rows)]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["id,image,caption,score,reference", *lines]))
    return path


def test_the_lowest_rows_of_a_file_are_explained(table: Path, tmp_path: Path) -> None:
    judge = ("--images", demo_path(), "--model", "embedded", "--threads", 1)
    call("score", "--input", table, *judge, "-m", "discode", "-m", "raw", "-o", tmp_path / "s.csv")
    call("score", "--input", table, *judge, "-o", tmp_path / "s.parquet")
    wanted = [row for _, row in read_rows(tmp_path / "s.parquet") if row["score"] is not None]
    wanted.sort(key=lambda row: row["score"])
    for file in (table, tmp_path / "s.csv", tmp_path / "s.parquet"):
        done = call("explain", "--input", file, "--top", 3, "--json", *judge)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        for row, low in zip(rows, wanted[:3], strict=True):
            assert [row[key] for key in ("id", "image", "caption")] == [
                low[key] for key in ("id", "image", "caption")
            ]
            assert row["score"] == pytest.approx(low["score"], abs=1e-6)
            assert row["spans"]
        assert done.returncode == 1  # of the rows without a score
        assert "failed: pair 2" in done.stderr
        assert "failed: pair 3" in done.stderr
    printed = call("explain", "--input", table, *judge).stdout
    (lowest,) = load("embedded").explain(demo_path() / wanted[0]["image"], wanted[0]["caption"])
    assert printed.startswith(f"{lowest.score:.3f}  {lowest}\n")
    assert [printed.count(row["id"]) for row in wanted] == [1] * 4
    order = [printed.index(row["id"]) for row in wanted]
    assert order == sorted(order)


def test_a_score_file_chooses_by_its_own_scores(table: Path, tmp_path: Path) -> None:
    judge = ("--images", demo_path(), "--model", "embedded")
    scores = tmp_path / "s.jsonl"
    call("score", "--input", table, *judge, "-o", scores)
    rows = [row for _, row in read_rows(scores)]
    best = max((row for row in rows if row["score"] is not None), key=lambda row: row["score"])
    best["score"] = 0.0
    scores.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = call("explain", "--input", scores, "--top", 1, "--json", *judge)
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row["id"] == best["id"]
    assert row["score"] > 0.5
    with serving() as server:
        served = ("--model", "endpoint:tiny", "--base-url", server.url, "--dry-run")
        done = call("explain", "--input", scores, "--top", 1, "--images", demo_path(), *served)
        assert f"{1 + len(row['spans'])} requests" in done.stdout
        refused(call("explain", "--input", table, "--images", demo_path(), *served), "--dry-run")
        assert server.asked == []


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_folder_of_a_run_is_its_scores(table: Path, tmp_path: Path, form: str) -> None:
    judge = ("--images", demo_path(), "--model", "embedded")
    run, scores = tmp_path / f"run.{form}", tmp_path / "s.jsonl"
    call("score", "--input", table, *judge, "--shard-size", 2, "-o", f"{run}/")
    call("score", "--input", table, *judge, "-o", scores)
    explained = [call("explain", "--input", path, "--json", *judge) for path in (run, scores)]
    assert explained[0].stdout == explained[1].stdout
    assert explained[0].stdout.count("\n") == 4
    next((run / "_done").iterdir()).unlink()
    refused(call("explain", "--input", run, *judge), run.name)


def test_images_in_a_tar_are_explained_by_the_tar(tmp_path: Path) -> None:
    tar, run = tmp_path / "a.tar", tmp_path / "run"
    write_tar(tar, {"1.jpg": (demo_path() / "cat.jpg").read_bytes(), "1.txt": b"a dog"})
    judge = ("--model", "embedded")
    call("score", "--input", tar, "-o", run, *judge)
    refused(call("explain", "--input", run, *judge), tar.name)
    done = call("explain", "--input", tar, "--store", run / "_readings.db", "--json", *judge)
    assert json.loads(done.stdout)["caption"] == "a dog"


def test_a_score_file_of_image_ids_is_explained_and_shown(tmp_path: Path) -> None:
    """Its column ``file`` has what was opened; the ids alone lead to no file."""
    results, folder = tmp_path / "results.json", tmp_path / "images"
    folder.mkdir()
    for number, name in ((7, "cat"), (8, "coffee")):
        shutil.copy(demo_path() / f"{name}.jpg", folder / f"COCO_{number:012}.jpg")
    results.write_text(json.dumps([{"image_id": n, "caption": "a cat"} for n in (7, 8)]))
    scores, page = tmp_path / "s.jsonl", tmp_path / "page.html"
    judge = ("--model", "embedded")
    call("score", "--input", results, "--images", folder, "-o", scores, *judge)
    explained = ("explain", "--input", scores, "--json", *judge)
    expected = call(*explained).stdout
    assert [json.loads(line)["error"] for line in expected.splitlines()] == ["", ""]
    assert "2 images, distributions" in call("report", scores, "-o", page).stderr
    moved = folder.rename(tmp_path / "moved")
    assert call(*explained).returncode == 1
    assert "--images" in call("report", scores, "-o", page).stderr
    assert call(*explained, "--images", moved).stdout == expected
    assert "2 images, distributions" in call("report", scores, "-o", page, "--images", moved).stderr


def test_a_file_in_which_nothing_has_a_score(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("image,caption\nmissing.jpg,a cat\n")
    done = call("explain", "--input", path, "--model", "embedded")
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing.jpg" in done.stderr


def _nothing_in(folder: Path) -> str:
    """Return a recording that has no reading of what is asked."""
    load("embedded", store=folder / "readings.db").score(CAT, "a bird")
    return f"recorded:{folder / 'readings.db'}"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "caption"),
        ((CAT,), "caption"),
        ((CAT, "a cat", "--top", 2), "--input"),
        ((CAT, "a cat", "--annotations", CAT), "--input"),
        (("--input", "missing.csv"), "missing.csv"),
        (("missing.jpg", "a cat"), "missing.jpg"),
        ((CAT, CAT), "cat.jpg"),
        ((CAT, "a cat", "--threshold", "-1"), "threshold"),
        ((CAT, "a cat", "--dry-run"), "--dry-run"),
        ((CAT, "a cat", "--method", "nonsense"), "nonsense"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], word: str) -> None:
    refused(call("explain", *arguments, *(["--model", "embedded"] * (word != "--dry-run"))), word)


def test_a_server_is_not_asked_to_name_the_price() -> None:
    with serving() as server:
        done = call("explain", CAT, *CAPTIONS, "--model", "endpoint:tiny", "--base-url", server.url,
                    "--dry-run", "-M", "prices=1,2")  # fmt: skip
        assert done.returncode == 0, done
        assert "7 requests" in done.stdout  # two captions, of two and three words
        assert server.asked == []


@pytest.fixture(params=["endpoint", pytest.param("local", marks=pytest.mark.slow)])
def other_judge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[object, ...]]:
    if request.param == "endpoint":
        with serving() as server:
            yield "--model", "endpoint:tiny", "--base-url", server.url
        return
    for name in ("torch", "transformers", "torchvision"):
        pytest.importorskip(name, reason="local models want discode-eval[hf]")
    from tests.helpers.tiny_lvlms import make  # imports transformers

    request.getfixturevalue("one_thread")
    folder = make("llava_next_llama", tmp_path / "llava", answers=True)
    yield "--model", folder, "--device", "cpu"


@pytest.mark.filterwarnings("ignore")  # transformers warns a lot
def test_any_judge_explains_as_it_scores(other_judge: tuple[object, ...]) -> None:
    def rows(*arguments: object) -> list[dict[str, Any]]:
        done = call(*arguments, "--json", *other_judge)
        assert done.returncode == 0, done
        return [json.loads(line) for line in done.stdout.splitlines()]

    for row in rows("explain", CAT, *CAPTIONS):
        variants = [span["variant"] for span in row["spans"]]
        own, *others = (each["score"] for each in rows("score", CAT, row["caption"], *variants))
        assert row["score"] == pytest.approx(own, abs=1e-4)
        effects = [own - score for score in others]
        assert [span["effect"] for span in row["spans"]] == pytest.approx(effects, abs=1e-4)
        assert any(effects)
        for span in row["spans"]:
            assert span["blame"] == -span["effect"]  # what right words add is not known
            assert span["marked"] == (span["blame"] >= 0.45 * max(row["score"], 1 / 3))


@pytest.fixture
def foil(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    name = mini.VALSE["11"]["image_file"]
    (images / name).write_bytes((demo_path() / "cat.jpg").read_bytes())
    (tmp_path / "foil-it.json").write_text(json.dumps(mini.VALSE))
    return tmp_path


def test_a_benchmark_says_how_often_the_wrong_word_is_blamed(foil: Path) -> None:
    store = foil / "readings.db"
    command = ("bench", "explain", "-b", "foil", "--data", foil, "--model", "embedded")
    more = ("--format", "csv", "--resamples", 0, "--threads", 1, "--signature")
    done = call(*command, "--store", store, *more)
    assert done.returncode == 0, done
    lines = [line.split(",") for line in done.stdout.splitlines()]
    assert float(lines[1][lines[0].index("chance")]) == 50.0  # two words in each caption
    assert {line[-1] for line in lines[1:]} == {"2"}
    assert "explain:" in done.stderr
    recorded = (*command[:-1], f"recorded:{store}")
    assert call(*recorded, "--format", "csv", "--resamples", 0).stdout == done.stdout
    refused(call("bench", "explain", "-b", "custom", "--data", foil, "--model", "embedded"))
    refused(call(*command, "--format", "nonsense"), "nonsense")
