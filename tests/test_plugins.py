"""A decoder, a backend, a benchmark and a metric of somebody else, by entry point and by module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from discode.decoders import METHODS, get_decoder, named_decoder
from discode.errors import InputError, UnknownNameError
from tests.helpers.command_line import CAT, refused, run

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
CAPTIONS = ("a cat", "a close up of a striped cat that looks at us")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder in which the example is installed, as pip does it."""
    pytest.importorskip("hatchling", reason="building a package needs discode-eval[dev]")
    folder = tmp_path_factory.mktemp("site")
    wheels = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=EXAMPLE, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(folder), str(wheel)], check=True, capture_output=True)
    return str(folder)


def scores(*arguments: str, PYTHONPATH: str) -> list[dict[str, object]]:
    """Return the rows that ``discode score`` prints of the cat."""
    done = run("score", CAT, *CAPTIONS, "--json", *arguments, PYTHONPATH=PYTHONPATH)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_installed_is_listed_with_its_options(site: str) -> None:
    for command, name, option in (
        (["methods", "sharpen"], "sharpen", "power"),
        (["models", "--options"], "blind", "best"),
        (["bench", "list", "stars"], "stars", "least"),
        (["bench", "metrics"], "words", "words in a caption"),
    ):
        done = run(*command, PYTHONPATH=site)
        assert done.returncode == 0, done.stderr
        assert name in done.stdout
        assert option in done.stdout


def test_a_decoder_and_a_backend_judge(site: str) -> None:
    sharp = scores("-m", "sharpen:power=3", "--model", "blind", "-M", "best=5", PYTHONPATH=site)
    plain = scores("-m", "sharpen:power=1", "--model", "blind", "-M", "best=5", PYTHONPATH=site)
    smooth = scores("-m", "smoothing", "--model", "blind", "-M", "best=5", PYTHONPATH=site)
    assert [row["score"] for row in plain] == [row["score"] for row in smooth]
    assert [row["score"] for row in sharp] != [row["score"] for row in plain]
    signature = str(sharp[0]["signature"])
    assert "sharpen@discode-example-1.0(power=3" in signature
    assert "blind" in signature
    assert "best=5" in signature


def test_a_benchmark_and_a_metric_run(site: str, tmp_path: Path) -> None:
    rows = [f"{CAT},{'word ' * n},{n}" for n in range(1, 6)]
    (tmp_path / "stars.csv").write_text("\n".join(["image,caption,stars", *rows]))
    done = run(
        "bench", "run", "-b", "stars:least=2", "--data", tmp_path, "-m", "words", "-m", "sharpen",
        "--model", "blind", "-o", tmp_path / "run.json", PYTHONPATH=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run.json").read_text()
    log = json.loads(text)
    assert log["benchmark"] == "stars"
    assert log["options"]["plugin"] == "discode-example-1.0"
    assert "plugin:discode-example-1.0" in text  # the metric's signature
    assert "sharpen@discode-example-1.0" in text


def test_a_module_of_the_working_directory(tmp_path: Path) -> None:
    code = (EXAMPLE / "discode_example.py").read_text()
    (tmp_path / "mine.py").write_text(code)
    done = run("score", CAT, "a cat", "--json", "-m", "mine:Sharpen:power=1", "-m", "smoothing",
               "--model", "mine:Blind", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    sharp, smooth = map(json.loads, done.stdout.splitlines())
    assert sharp["score"] == smooth["score"]
    assert "Sharpen@mine-" in sharp["signature"] or "sharpen@mine-" in sharp["signature"]


@pytest.mark.parametrize(
    ("method", "place"),
    [("nowhere:Thing", "nowhere"), ("json:Thing", "json:Thing"), ("json:dumps", "json:dumps")],
)
def test_what_cannot_be_taken_in_is_refused(method: str, place: str, tmp_path: Path) -> None:
    refused(run("score", CAT, "a cat", "-m", method, cwd=tmp_path), place)


BAD = """
import numpy as np
from discode_example import WORDS, Blind, RowScores, Sharpen, Words, dataclass
from discode.metrics import MetricRow

class Raises(Words):
    def score_rows(self, pairs, repeats):
        raise KeyError("stars")

class Exits(Words):
    def score_rows(self, pairs, repeats):
        raise SystemExit(0)

class One(Words):
    def score_rows(self, pairs, repeats):
        return RowScores(np.array([1.0]))

class Infinite(Words):
    def score_rows(self, pairs, repeats):
        return RowScores(np.full(len(pairs), np.inf))

RAISES, EXITS, ONE, INFINITE = (
    MetricRow("bad", "bad", frozenset(), lambda factory, name, kind=kind: kind())
    for kind in (Raises, Exits, One, Infinite)
)

@dataclass(frozen=True, kw_only=True)
class Threes(Sharpen):
    def prepare(self, seen, readings):
        return lambda rows, logp, raw: np.full_like(logp, np.nan)

@dataclass(frozen=True, kw_only=True)
class Nothing(Sharpen):
    def prepare(self, seen, readings):
        return None

@dataclass(frozen=True, kw_only=True)
class Leaves(Sharpen):
    def decode(self, readings):
        raise SystemExit(0)

@dataclass(frozen=True, kw_only=True)
class Stops(Sharpen):
    def decode(self, readings):
        raise StopIteration

@dataclass
class Quits(Blind):
    def read(self, pairs, prompt, scale, *, hidden=False):
        raise SystemExit(0)
        yield

@dataclass
class Dry(Blind):
    def read(self, pairs, prompt, scale, *, hidden=False):
        next(iter(()))
        yield

@dataclass
class Unopened(Blind):
    def __post_init__(self):
        raise SystemExit(0)

@dataclass
class Lost(Blind):
    def read(self, pairs, prompt, scale, *, hidden=False):
        raise ZeroDivisionError("lost")
"""


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "discode_example.py").write_text((EXAMPLE / "discode_example.py").read_text())
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(3)")
    rows = [f"{CAT},{'word ' * n},{n}" for n in range(1, 6)]
    (tmp_path / "ratings.csv").write_text("\n".join(["image,caption,rating", *rows]))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["-m", "bad:Threes", "--model", "embedded"], "sharpen"),
        (["-m", "leaves:X"], "leaves:X"),
        (["-m", "bad.py:Threes"], "bad:Threes"),
        (["--model", "bad:Lost"], "read"),
        (["-m", "bad:Nothing", "--model", "embedded"], "sharpen"),
        (["-m", "bad:Leaves", "--model", "embedded"], "bad"),
        (["-m", "bad:Stops", "--model", "embedded"], "bad"),
        (["--model", "bad:Quits"], "bad"),
        (["--model", "bad:Dry"], "bad"),
        (["--model", "bad:Unopened"], "bad"),
    ],
)
def test_a_plugin_that_fails_is_named_in_one_line(
    bad: Path, arguments: list[str], place: str
) -> None:
    done = run("score", CAT, "a cat", *arguments, cwd=bad)
    assert done.returncode == 2, done
    (line,) = done.stderr.strip().splitlines()  # an older rich ends its bar with an empty line
    assert place in line


def test_a_metric_that_fails_leaves_the_others_alone(bad: Path) -> None:
    metrics = [
        f"{name.lower()}=bad:{name}" for name in ("RAISES", "EXITS", "ONE", "INFINITE", "WORDS")
    ]
    done = run(
        "bench", "run", "-b", "custom", "--data", "ratings.csv", "-o", "run.json",
        *(part for metric in metrics for part in ("-m", metric)), cwd=bad,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    results = json.loads((bad / "run.json").read_text())["results"]
    assert results.keys() == {"infinite", "words"}
    assert sum(map(len, results["infinite"]["errors"].values())) == 5


def test_names_from_strangers_import_nothing() -> None:
    with pytest.raises(UnknownNameError):
        named_decoder("this:s")
    assert "this" not in sys.modules
    with pytest.raises(InputError):
        get_decoder("json:dumps")
    assert "json:dumps" not in METHODS
