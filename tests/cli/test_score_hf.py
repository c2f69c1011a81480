"""A local model on the command line: scores, options, Ctrl-C and going on, and every refusal."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from discode.readings._store import ReadingStore
from tests.helpers.command_line import CAT, DISCODE, refused, run, start

pytest.importorskip("torch", reason="local models want discode-eval[hf]")
pytest.importorskip("transformers", reason="local models want discode-eval[hf]")
pytest.importorskip("torchvision", reason="the image processors of most families want it")

from discode.backends._local.catalog import CATALOG
from tests.helpers.tiny_lvlms import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers warns a lot
    pytest.mark.usefixtures("one_thread", "few_threads"),
]


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the commands that are run


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llava_next_llama", tmp_path_factory.mktemp("llava") / "llava", answers=True)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_scores_and_options(llava: Path) -> None:
    command = ("score", CAT, "a cat", "a dog runs", "--model", llava, "--device", "cpu", "--json")
    plain = rows(run(*command))
    chunks = rows(run(*command, "--dtype", "float32", "-M", "batch_captions=1"))
    half = rows(run(*command, "--dtype", "bfloat16"))
    assert [row["caption"] for row in plain] == ["a cat", "a dog runs"]
    for one, other in zip(plain, chunks, strict=True):
        assert 0 <= one["score"] <= 1
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert one["signature"] == other["signature"]
    assert "dtype:float32" in plain[0]["signature"]
    assert "dtype:bfloat16" in half[0]["signature"]


def test_what_a_log_shows(llava: Path, tmp_path: Path) -> None:
    """No bars, no warnings of libraries: the summary, and one line for what failed."""
    (tmp_path / "broken.jpg").write_bytes(Path(CAT).read_bytes()[:500])
    shutil.copy(CAT, tmp_path / "cat.jpg")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("id,image,caption\na,cat.jpg,a cat\nb,broken.jpg,a cat\nc,cat.jpg,a dog\n")
    done = run("score", "-i", pairs, "--images", tmp_path, "--model", llava, "--device", "cpu")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 3
    assert re.match(r"failed: b: cannot decode .*broken.jpg", lines[0])
    assert lines[1].startswith("discode: 3 items, mean ")
    assert "1 failed" in lines[1]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["id", "a", "b", "c"]
    assert "nan" in done.stdout.splitlines()[2]


def test_interrupted_it_goes_on_from_its_store(llava: Path, tmp_path: Path) -> None:
    number = 300
    pairs, store = tmp_path / "pairs.csv", tmp_path / "out.jsonl.readings.db"
    pairs.write_text("image,caption\n" + "".join(f"{CAT},caption {i}\n" for i in range(number)))
    where = ("-i", pairs, "-o", tmp_path / "out.jsonl")
    arguments = ("score", *where, "--model", llava, "--device", "cpu", "--batch-size", 2)

    def kept() -> int:
        if not store.exists():
            return 0
        with ReadingStore(store) as opened:
            return len(opened)

    with start(*DISCODE, *arguments) as process:
        while kept() < 6 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "out.jsonl").exists()
    first = kept()
    assert 6 <= first < number
    with ReadingStore(store) as opened:
        ((ask, _),) = opened.run_keys()
        ((items, readings),) = opened.batches(ask)
    done = run(*arguments)
    assert done.returncode == 0, done
    assert kept() == number
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["caption"] for row in lines] == [f"caption {i}" for i in range(number)]
    with ReadingStore(store) as opened:
        again, here = opened.get(ask, items)
    assert here == list(range(first))
    assert (again.answer_logp == readings.answer_logp).all()


def test_options_that_are_refused(llava: Path) -> None:
    command = ("score", CAT, "a cat", "--model", llava)
    refused(run(*command, "--device", "warp", "--dtype", "float32"), "'warp'")
    refused(run(*command, "-M", "quantize=3bit"), "quantize=3bit", "4bit")


def test_samples_thoughts_and_vqascore(tmp_path: Path) -> None:
    llava = make("llava_next_llama", tmp_path / "llava", answers=True, begins="rating")
    command = ("score", CAT, "a cat", "--model", llava, "--device", "cpu", "--json")
    (row,) = rows(run(*command, "-M", "samples=20", "--method", "smoothing"))
    assert 0 <= row["score"] <= 1
    assert "+sampled" in row["signature"]
    (row,) = rows(run(*command, "-M", "thinking=on", "-M", "thinking_tokens=5"))
    assert "+thinking" in row["signature"]
    refused(run(*command, "-M", "thinking=maybe"), "thinking=maybe", "off")
    refused(run(*command, "-M", "thinking=on", "-M", "read=forced"), "read=forced")
    shutil.copy(CAT, tmp_path / "cat.jpg")
    asked = [{"image": "cat.jpg", "caption": text, "rating": i} for i, text in enumerate("abcd")]
    (tmp_path / "ratings.jsonl").write_text("\n".join(map(json.dumps, asked)))
    done = run(
        "bench", "run", "-b", "custom", "--data", tmp_path, "-m", "vqascore", "--model", llava,
        "--device", "cpu", "-o", tmp_path / "run.json", "-M", "read=forced",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "vqascore" in done.stdout


@pytest.mark.parametrize("columns", ["80", "60"])
def test_the_table_of_models_has_whole_names(columns: str) -> None:
    done = run("models", COLUMNS=columns)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for row in CATALOG:
        (line,) = (line for line in lines if line.split()[:1] == [row.hub])
        assert len(line.rstrip()) <= 80
        assert line.split()[1:] == [
            f"{row.memory:.0f}",
            f"{row.memory_4bit:.0f}",
            "packed" if row.packed else "plain",
            row.tested or "nothing",
        ]
        assert not row.note or any(line.startswith(row.hub.split("/")[1]) for line in lines)
