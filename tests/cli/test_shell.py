"""discode among other programs: what a shell hands over, pipes that close, runs that are cut."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from discode._cli import flags
from discode._cli.score import JSON_ROWS
from discode._judge import load
from discode.images import demo_path
from tests.helpers.command_line import DISCODE, call, refused
from tests.helpers.fake_model import CAPTION, FakeModel


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Three times as many pairs as --json prints at once, of one image and one caption."""
    path = tmp_path / "pairs.csv"
    row = f"{demo_path() / 'cat.jpg'},{CAPTION}\n"
    path.write_text("image,caption\n" + row * 3 * JSON_ROWS)
    return path


def test_images_that_a_shell_spells_out_are_not_captions(tmp_path: Path, recording: str) -> None:
    images = sorted(map(str, demo_path().glob("*.jpg")))
    for captions in ((), ("a cat",)):
        done = call("score", "--model", recording, *images, *captions)
        refused(done, repr(images[1]), "--input")
    long = "a cat and " * 1000  # longer than any file's name
    assert call("score", "--model", recording, images[0], long).returncode == 1  # not recorded


@pytest.mark.parametrize(
    "command",
    [
        ("score", "--input", "PAIRS"),
        ("score", demo_path() / "cat.jpg", CAPTION),
        ("decode", "PAIRS"),
        ("demo",),
        ("paper", "sigma"),
    ],
)
def test_a_dash_is_not_an_output(
    command: tuple[str, ...], many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [many if word == "PAIRS" else word for word in command]
    refused(call(*words, "-o", "-"), "cannot write -")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("command", [("methods",), ("score", "--json", "--input", "PAIRS")])
def test_a_reader_that_has_seen_enough_is_no_failure(
    command: tuple[str, ...], many: Path, recording: str
) -> None:
    words = [str(many) if word == "PAIRS" else word for word in command]
    model = ["--model", recording] if "PAIRS" in command else []
    line = f"{shlex.join([*DISCODE, *words, *model])} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 1
    assert "Traceback" not in done.stderr


class InterruptedModel(FakeModel):
    """Ctrl-C comes with the second question of all."""

    def answer(self, *arguments: Any, **options: Any) -> Any:
        if self.asked:
            raise KeyboardInterrupt
        return super().answer(*arguments, **options)


def test_json_has_what_was_judged_before_an_interrupt(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flags, "load", lambda _, **options: load(InterruptedModel(), **options))
    done = call("score", "--json", "--input", many)
    assert done.returncode == 130
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row"] for row in rows] == list(range(JSON_ROWS))
    assert all(0 <= row["score"] <= 1 for row in rows)


def test_an_option_that_takes_one_value_is_given_once(recording: str) -> None:
    cat = demo_path() / "cat.jpg"
    prefer = ("prefer", "--model", recording, cat, "a", "b")
    refused(call(*prefer, "-m", "raw", "--method", "discode"), "--method")
    refused(call("arena", "a.csv", "b.csv", "--seed", 1, "--seed", 1), "--seed")
    many = call("score", "--model", recording, cat, CAPTION, "-m", "raw", "-m", "smoothing")
    assert many.returncode == 0, many.stderr


def test_a_chart_that_was_asked_for_is_drawn_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(call("demo", "-o", tmp_path / "x.png"), ".[plot]")


@pytest.mark.usefixtures("shipped")
def test_the_demo_needs_no_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = call("demo", "--threads", 1)
    assert done.returncode == 0
    assert "pairs of captions in order" in done.stdout
    assert not list(tmp_path.iterdir())
